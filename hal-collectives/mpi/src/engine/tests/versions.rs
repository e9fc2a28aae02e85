// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ranks that do not run the same version.

use super::*;

/// A sum of some words, and with what message it fails.
fn message_of(group: &dyn Communicator) -> Receiver<String> {
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(memory(&[1; 3_000])), recv: Some(memory(&[0; 3_000])) };
    let done = Box::new(move |end: Result| tell.send(end.unwrap_err().message().to_owned()).unwrap());
    sum_with(group, buffers, done);
    told
}

#[test]
fn ranks_of_different_versions_fail_each_other_at_once_and_name_the_versions() {
    let (ranks, groups) = pair();
    ranks[1].0.with(TERMS, |progress| progress.pretend(7)).unwrap();
    for again in ["pair", "pair again"] {
        let groups = [0, 1].map(|rank: usize| ranks[rank].join(again.as_bytes(), TERMS));
        let told = groups.each_ref().map(|group| message_of(&**group));
        look_all(&ranks);
        for (own, other, told) in [(1, 7, &told[0]), (7, 1, &told[1])] {
            let told = told.try_recv().unwrap();
            assert!(told.contains(&format!("version {other} ")), "{told}");
            assert!(told.contains(&format!("this one version {own};")), "{told}");
        }
    }
    drop(groups);
}
