// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whatever the other side of a bounce says, this one lives, and serves the next client.

use super::*;
use emulator_testbench::cases;
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::net::{Shutdown, shutdown};

/// A caller's messages.
#[derive(Clone, Debug)]
enum Caller {
    /// These bytes, from the beginning.
    Noise(Vec<u8>),
    /// A right call, and then these.
    Stranger(Vec<u8>),
    /// A right proof of so much memory, brings other memory, and asks.
    Importer { said: u64, brought: u64, sealed: bool, requests: Vec<[u64; 3]>, rest: Vec<u8> },
}

fn caller() -> impl Strategy<Value = Caller> {
    let bytes = || vec(any::<u8>(), 0..40);
    let length =
        || prop_oneof![Just(0), Just(4096), Just(STAGE), Just(STAGE + 1), 0..0x2_0000_u64, any::<u64>()];
    let word = || prop_oneof![Just(0), Just(1), Just(LENGTH), Just(u64::MAX), 0..2 * LENGTH, any::<u64>()];
    let request = [word(), word(), word()];
    prop_oneof![
        bytes().prop_map(Caller::Noise),
        bytes().prop_map(Caller::Stranger),
        (length(), 0..=2 * STAGE, any::<bool>(), vec(request, 0..4), bytes()).prop_map(
            |(said, brought, sealed, requests, rest)| Caller::Importer {
                said,
                brought,
                sealed,
                requests,
                rest
            }
        ),
    ]
}

/// Reads to the end. Whatever was said, the connection ends soon after.
fn drain(socket: &OwnedFd) {
    shutdown(socket, Shutdown::Write).unwrap();
    let mut byte = [0];
    while receive_until(socket.as_fd(), &mut byte, soon()).unwrap().is_some() {}
}

impl Caller {
    fn play(&self, handle: &Handle) {
        let socket = call(handle);
        // A client that is hung up on in the middle of a message sends nothing more.
        let say = |bytes: &[u8]| drop(send_all(socket.as_fd(), bytes));
        match self {
            Self::Noise(bytes) => say(bytes),
            Self::Stranger(bytes) => {
                answer(&socket, handle.buffer, 1).unwrap();
                say(bytes);
            }
            Self::Importer { said, brought, sealed, requests, rest } => {
                let (id, _) = answer(&socket, handle.buffer, 1).unwrap();
                let proof = handle.secret.proof(Side::Importer, id, *said);
                let file = memory(*brought, *sealed);
                send_with(socket.as_fd(), &message(&[proof, *said]), file.as_fd()).unwrap();
                requests.iter().for_each(|request| say(&message(request)));
                say(rest);
            }
        }
        drain(&socket);
    }
}

/// An exporter's replies.
fn replies() -> impl Strategy<Value = (bool, Vec<u8>)> {
    let head = prop_oneof![
        Just(vec![]),
        Just(vec![0; REPLY]),
        (0..20_u32, 0..5000_u32)
            .prop_map(|(code, length)| { [code.to_le_bytes(), length.to_le_bytes()].concat() })
    ];
    (any::<bool>(), vec(head, 0..4), vec(any::<u8>(), 0..60))
        .prop_map(|(honest, heads, rest)| (honest, [heads.concat(), rest].concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(24)) })]

    #[test]
    fn fuzz_callers_of_any_kind_leave_an_exporter_that_serves(callers in vec(caller(), 1..8)) {
        let setup = Setup::new("callers");
        let before = setup.pinned();
        callers.iter().for_each(|caller| caller.play(setup.export.handle()));
        let import = setup.import(setup.export.handle()).unwrap();
        setup.read(&import).unwrap();
        drop(import);
        setup.two.ipc().forget(setup.export.handle().exporter, None);
        let end = Instant::now() + LONG;
        while setup.pinned() > before && Instant::now() < end {
            std::thread::yield_now();
        }
        prop_assert_eq!(setup.pinned(), before, "memory of a caller that is gone");
    }

    #[test]
    fn fuzz_exporters_of_any_kind_are_refused_or_believed((honest, said) in replies()) {
        let setup = Setup::new("exporters");
        let real = setup.export.handle().clone();
        let (handle, thread) = impostor(&real.clone(), "any", move |connection| {
            if honest {
                greet_as_exporter(&connection, &real);
            }
            let _ = send_all(connection.as_fd(), &said);
            let _ = shutdown(&connection, Shutdown::Write);
            // Until the importer hangs up.
            while matches!(receive_until(connection.as_fd(), &mut [0], soon()), Ok(Some(_))) {}
        });
        let begin = Instant::now();
        let outcome = setup.import(&handle);
        prop_assert_eq!(outcome.is_ok(), honest, "who has not proved anything is no exporter");
        if let Ok(import) = outcome {
            // It may answer or not.
            let _ = setup.read(&import);
        }
        setup.two.ipc().forget(handle.exporter, None);
        prop_assert!(begin.elapsed() < LONG, "an importer was held up");
        thread.join().unwrap();
        let import = setup.import(setup.export.handle()).unwrap();
        setup.read(&import).unwrap();
    }
}
