// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The words of `--only`: ways, kinds of operations, numbers of ranks ("2ranks") and of bytes. Nothing else of
//! a sort is measured where one of that sort is named.

/// Bytes that a rank sends.
pub(crate) const SIZES: [u64; 7] = [8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Kinds of operations: from one range of memory to another, and where a rank sends from where it receives.
pub(crate) const CASES: [&str; 4] =
    ["all_reduce", "all_gather", "all_reduce_in_place", "all_gather_in_place"];

/// Whether a word of a sort is among those that are asked for, or none of that sort is.
fn asks_for(only: &str, word: &str, is_of_sort: impl Fn(&str) -> bool) -> bool {
    let mut of_sort = only.split_whitespace().filter(|word| is_of_sort(word)).peekable();
    of_sort.peek().is_none() || of_sort.any(|other| other == word)
}

/// Whether anything is measured on a way.
pub(crate) fn asks_for_way(only: &str, way: &str) -> bool {
    asks_for(only, way, |word| ["process", "shared", "tcp"].contains(&word))
}

/// Whether anything is measured with so many ranks.
pub(crate) fn asks_for_ranks(only: &str, ranks: u32) -> bool {
    asks_for(only, &format!("{ranks}ranks"), |word| word.ends_with("ranks"))
}

/// Whether anything of this kind is measured.
pub(crate) fn asks_for_case(only: &str, case: &str) -> bool {
    asks_for(only, case, |word| word.starts_with("all_"))
}

/// Whether anything of this size is measured.
pub(crate) fn asks_for_bytes(only: &str, bytes: u64) -> bool {
    asks_for(only, &bytes.to_string(), |word| word.parse::<u64>().is_ok())
}

/// Refuses words that name nothing, and those that together leave nothing to measure.
pub(crate) fn check(only: &str, quick: bool) -> Result<(), String> {
    let sizes = SIZES.map(|bytes| bytes.to_string());
    let mut names = vec!["process", "shared", "tcp"];
    names.extend(CASES);
    names.extend(["2ranks", "4ranks", "8ranks"]);
    names.extend(sizes.iter().map(String::as_str));
    if let Some(unknown) = only.split_whitespace().find(|word| !names.contains(word)) {
        return Err(format!("--only {unknown}: that is none of {}", names.join(", ")));
    }
    if quick && !asks_for_way(only, "process") && !asks_for_ranks(only, 2) {
        return Err(format!(
            "--quick measures processes on two ranks alone, and --only {only} leaves those out"
        ));
    }
    Ok(())
}
