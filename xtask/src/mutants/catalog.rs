// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The list of mutants: every wrong line of the crate's text as it is, with a name that lasts.
//!
//! A mutant's id comes from the text of its line and not from its place, and a sample is chosen by ids. So a change of
//! the crate changes no more of a sample than the mutants of the lines that it touches.

use super::operators::{self, Mutation};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The crate's files, each by its path in the crate.
pub(super) type Files = BTreeMap<String, String>;

/// Files and folders that are not the crate itself: devices for tests, the model checkers' deliberate defects, tests.
const EXEMPT: [&str; 5] = ["testing", "mutation", "tests", "loom", "shuttle"];

/// How much of a line is shown.
const WIDTH: usize = 120;

/// A wrong line.
#[derive(Clone, Debug, Default)]
pub(super) struct Mutant {
    pub(super) id: String,
    /// Relative to the crate.
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) operator: String,
    /// The line as it is.
    pub(super) original: String,
    /// What it becomes.
    pub(super) mutated: String,
    pub(super) mutation: Mutation,
}

impl Mutant {
    /// Whether nothing but loom can notice: on most machines, and in most runs, a weaker order or no fence is as good.
    pub(super) fn is_for_loom(&self) -> bool {
        let is_fence = self.original.trim_start_matches("crate::sync::").starts_with("fence(");
        self.operator.ends_with(" to Relaxed") || is_fence
    }

    /// Whether the variable keeps its value, which may be gone: to a loop's next turn, which stands before this.
    pub(super) fn drops_assignment_to(&self, name: &str) -> bool {
        let assigned = self.original.split_once(" = ").map(|(assigned, _)| assigned);
        self.operator == "statement dropped" && assigned == Some(name)
    }

    /// Whether what comes after it may see what it should not: a value that is not gone, or has gone.
    pub(super) fn drops_an_end(&self) -> bool {
        let ends = ["drop(", "return", "break", "continue"];
        self.operator.ends_with(" dropped") && ends.iter().any(|end| self.original.contains(end))
    }
}

/// Reads the crate.
pub(super) fn read(folder: &Path) -> Result<Files> {
    let mut files = Files::new();
    read_folder(&folder.join("src"), "src", &mut files)?;
    let of_tests: Vec<String> = files.iter().flat_map(|(file, text)| of_tests(file, text)).collect();
    files.retain(|file, _| !of_tests.contains(file));
    Ok(files)
}

/// The files of the modules that a file declares for tests alone.
fn of_tests(file: &str, text: &str) -> Vec<String> {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let folder = match stem.rsplit_once('/') {
        Some((folder, "mod" | "lib" | "main")) => folder,
        _ => stem,
    };
    let items = syn::parse_file(text).map(|file| file.items).unwrap_or_default();
    let is_of_tests =
        |module: &&syn::ItemMod| module.content.is_none() && module.attrs.iter().any(is_for_tests);
    let modules = items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) => Some(module),
        _ => None,
    });
    modules.filter(is_of_tests).map(|module| format!("{folder}/{}.rs", module.ident)).collect()
}

fn read_folder(from: &Path, to: &str, files: &mut Files) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let path = entry?.path();
        let (Some(name), Some(stem)) = (path.file_name(), path.file_stem()) else { continue };
        if EXEMPT.iter().any(|exempt| stem == *exempt) {
            continue;
        }
        let to = format!("{to}/{}", name.to_string_lossy());
        if path.is_dir() {
            read_folder(&path, &to, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            files.insert(to, text);
        }
    }
    Ok(())
}

/// Whether what has this attribute is compiled for tests alone.
fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let when: String = list.tokens.to_string().split_whitespace().collect();
    list.path.is_ident("cfg") && (when == "test" || when.starts_with("all(test,"))
}

/// Whether a file is the root of a crate's modules.
pub(super) fn is_root(file: &str) -> bool {
    matches!(file, "src/lib.rs" | "src/main.rs")
}

/// A number that is another one when the files or the mutants are others.
pub(super) fn fingerprint(files: &Files, mutants: &[Mutant]) -> u64 {
    let texts = files.iter().map(|(file, text)| format!("{file}\n{text}\n"));
    hash(&texts.chain(mutants.iter().map(|mutant| format!("{}\n", mutant.id))).collect::<String>())
}

/// Every mutant of these files.
pub(super) fn mutants(files: &Files) -> Vec<Mutant> {
    let mut alike = HashMap::new();
    let mut all = Vec::new();
    for (file, text) in files {
        for mutation in operators::mutations(text) {
            let mut mutant = describe(file, text, mutation);
            let Mutant { operator, original, mutated, .. } = &mutant;
            let name = format!("{file}\n{operator}\n{original}\n{mutated}\n");
            let before: &mut u32 = alike.entry(name.clone()).or_default();
            mutant.id = format!("{:08x}", hash(&format!("{name}{before}")) >> 32);
            *before += 1;
            all.push(mutant);
        }
    }
    all
}

fn describe(file: &str, text: &str, mutation: Mutation) -> Mutant {
    let head = &text[..mutation.anchor];
    let start = head.rfind('\n').map_or(0, |at| at + 1);
    let end = |text: &str, from: usize| text[from..].find('\n').map_or(text.len(), |at| from + at);
    let original = text[start..end(text, mutation.anchor)].trim().to_owned();
    let wrong = mutation.apply(text);
    let last = end(&wrong, mutation.range.start + mutation.by.len());
    let shown = wrong[start..last].split_whitespace().collect::<Vec<_>>().join(" ");
    Mutant {
        id: String::new(),
        file: file.into(),
        line: head.matches('\n').count() + 1,
        operator: mutation.operator.clone(),
        original,
        mutated: if shown.is_empty() { "(nothing)".into() } else { shortened(&shown) },
        mutation,
    }
}

/// The text, or the beginning of one that is too long to be shown.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(WIDTH) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// So many of the mutants, by place. Of two samples with one seed, the smaller is part of the larger.
pub(super) fn sample(mut mutants: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    let rank = |mutant: &Mutant| hash(&format!("{seed}\n{}", mutant.id));
    mutants.sort_by_cached_key(rank);
    mutants.truncate(count);
    mutants.sort_by(|a, b| {
        (&a.file, a.line, a.mutation.range.start).cmp(&(&b.file, b.line, b.mutation.range.start))
    });
    mutants
}

/// FNV-1a with the finish of SplitMix64, since the ends of similar names should differ in every bit.
fn hash(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut z = text.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_and_orders_are_for_loom() {
        let text = "fn a() {\n    b();\n    fence(Ordering::SeqCst);\n    c();\n    crate::sync::fence(Ordering::SeqCst);\n}\n";
        let others: Vec<_> = of(text).into_iter().filter(|mutant| !mutant.is_for_loom()).collect();
        assert!(!others.is_empty() && others.iter().all(|mutant| !mutant.original.contains("fence")));
    }

    const TEXT: &str =
        "fn a(b: u8) {\n    if b < 1 {\n        c(\n            d,\n        );\n        e();\n    }\n}\n";

    fn of(text: &str) -> Vec<Mutant> {
        mutants(&Files::from([("src/a.rs".into(), text.into())]))
    }

    fn ids(mutants: &[Mutant]) -> Vec<&str> {
        mutants.iter().map(|mutant| mutant.id.as_str()).collect()
    }

    #[test]
    fn mutant_says_what_its_line_is_and_becomes() {
        let all = of(TEXT);
        let less = all.iter().find(|mutant| mutant.operator == "< to <=").unwrap();
        assert_eq!(
            (less.line, less.original.as_str(), less.mutated.as_str()),
            (2, "if b < 1 {", "if b <= 1 {")
        );
        let call = all.iter().find(|mutant| mutant.operator == "statement dropped").unwrap();
        assert_eq!((call.line, call.original.as_str(), call.mutated.as_str()), (3, "c(", "(nothing)"));
    }

    #[test]
    fn ids_last_while_lines_move_and_are_unique() {
        let (before, twice) = (of(TEXT), of(&format!("// A line more.\n{TEXT}{TEXT}")));
        assert_eq!(ids(&twice)[..before.len()], ids(&before));
        let mut unique = ids(&twice);
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), 2 * before.len());
    }

    #[test]
    fn modules_for_tests_alone_are_exempt() {
        let text = "#[cfg(test)] mod a; #[cfg(all(test, not(loom)))] mod b; #[cfg(not(test))] mod c; mod d; \
                    #[cfg(test)] mod e { fn f() {} }";
        assert_eq!(of_tests("src/g.rs", text), ["src/g/a.rs", "src/g/b.rs"]);
        assert_eq!(of_tests("src/g/mod.rs", "#[cfg(test)] mod a;"), ["src/g/a.rs"]);
        assert_eq!(of_tests("src/lib.rs", "#[cfg(test)] mod a;"), ["src/a.rs"]);
    }

    #[test]
    fn sample_repeats_itself_and_grows() {
        let all = of(&TEXT.repeat(20));
        let (few, many) = (sample(all.clone(), 5, 1), sample(all.clone(), 30, 1));
        assert_eq!(ids(&few), ids(&sample(all.clone(), 5, 1)));
        assert!(ids(&few).iter().all(|id| ids(&many).contains(id)));
        assert_ne!(ids(&few), ids(&sample(all, 5, 2)));
    }
}
