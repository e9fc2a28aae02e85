// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! That what the pages name is there: files, tests in them, places in other pages, commands, steps, packages and examples.

use clap::CommandFactory;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Endings by which a word in a page is known to name a file of the repository.
const FILES: [&str; 10] = [".rs", ".md", ".toml", ".py", ".pyi", ".cmake", ".h", ".c", ".cc", ".mlir"];

/// Whether a page means a file of a kernel's by this: the pages of an emulated driver's rules cite its sources.
fn is_a_kernels(page: &str, name: &str) -> bool {
    page.ends_with("/rules.md") && (name.ends_with(".c") || name.ends_with(".h"))
}

/// The repository as far as pages name it.
struct Repository {
    root: PathBuf,
    /// Every file, from the root on.
    files: BTreeSet<String>,
    packages: BTreeSet<String>,
}

impl Repository {
    fn read() -> Self {
        let root = crate::workspace::root().unwrap();
        let mut found = Vec::new();
        crate::workspace::files_below(&root, &mut found);
        let relative = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let files: BTreeSet<String> = found.iter().map(relative).collect();
        let manifests = files.iter().filter(|file| file.ends_with("Cargo.toml"));
        let packages = manifests.filter_map(|file| {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            Some(text.split("[package]\nname = \"").nth(1)?.split('"').next()?.to_owned())
        });
        Self { packages: packages.collect(), root, files }
    }

    fn pages(&self) -> impl Iterator<Item = (&String, String)> {
        let pages = self.files.iter().filter(|file| file.ends_with(".md"));
        pages.map(|page| (page, std::fs::read_to_string(self.root.join(page)).unwrap()))
    }

    /// Whether a page means a file of the repository by this: from the root, from the page, or by the end of its path.
    fn has_file(&self, page: &str, name: &str) -> bool {
        let end = format!("/{name}");
        self.files.contains(name)
            || self.files.iter().any(|file| file.ends_with(&end))
            || resolve(page, name).is_some_and(|path| self.root.join(path).exists())
    }
}

/// Whether a file has a test with a name.
fn has_test(text: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    let mut above = text.split("#[test]").skip(1);
    above.any(|rest| {
        rest.lines()
            .map(str::trim)
            .find(|line| line.starts_with("fn "))
            .is_some_and(|line| line.starts_with(&function))
    })
}

/// A path that is written in a page, from the root on.
fn resolve(page: &str, link: &str) -> Option<PathBuf> {
    let mut path = Path::new(page).parent()?.to_owned();
    for part in Path::new(link).components() {
        match part {
            std::path::Component::ParentDir => path.pop().then_some(())?,
            std::path::Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    Some(path)
}

/// What is between back quotes in a line, as code.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of a line's links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// The anchor of a heading, as it is made where pages are shown.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
    kept.map(|char| if char == ' ' { '-' } else { char.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// The word behind each place where a text has some words.
fn behind<'a>(text: &'a str, words: &'a str) -> impl Iterator<Item = &'a str> {
    let rest = text.split(words).skip(1);
    rest.filter_map(|rest| rest.strip_prefix(' ')?.split_whitespace().next())
        .map(|word| word.trim_end_matches(['`', ',', ';', ':', '.', ')']))
        .filter(|word| {
            !word.is_empty() && word.chars().all(|char| char.is_alphanumeric() || "-_".contains(char))
        })
        // In capitals a page says where the reader's own word goes.
        .filter(|word| word.chars().any(|char| char.is_lowercase()))
}

/// Files, and places in pages, that a page names and that are not there.
fn missing_places(repository: &Repository, page: &str, text: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for link in links(line).filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { Some(PathBuf::from(page)) } else { resolve(page, file) };
            let path = path.map(|path| repository.root.join(path)).filter(|path| path.exists());
            let Some(path) = path else {
                missing.push(format!("{page}:{number}: the link {link}"));
                continue;
            };
            if !place.is_empty() && !anchors(&std::fs::read_to_string(path).unwrap()).contains(place) {
                missing.push(format!("{page}:{number}: no heading for {link}"));
            }
        }
        let names = quoted(line).filter(|name| {
            let is_path = name.chars().all(|char| char.is_ascii_alphanumeric() || "/_-.".contains(char));
            is_path && FILES.iter().any(|end| name.len() > end.len() && name.ends_with(end))
        });
        for (name, test) in quoted(line).filter_map(|name| name.split_once(".rs::")) {
            let end = format!("/{name}.rs");
            let files = repository.files.iter().filter(|file| file.ends_with(&end));
            let mut texts = files.map(|file| std::fs::read_to_string(repository.root.join(file)).unwrap());
            if !texts.any(|text| has_test(&text, test)) {
                missing.push(format!("{page}:{number}: the test {name}.rs::{test}"));
            }
        }
        for name in names.filter(|name| !is_a_kernels(page, name) && !repository.has_file(page, name)) {
            missing.push(format!("{page}:{number}: the file {name}"));
        }
    }
    missing
}

/// Commands that a page names and that are not there.
fn missing_commands(repository: &Repository, page: &str, text: &str) -> Vec<String> {
    let commands = crate::Arguments::command();
    let is_command = |name: &str| commands.get_subcommands().any(|command| command.get_name() == name);
    let steps = crate::test::names();
    let is_example = |name: &str| {
        let end = format!("examples/{name}.rs");
        repository.files.iter().any(|file| file.ends_with(&end))
    };
    let is_test = |name: &str| {
        let ends = [format!("/tests/{name}.rs"), format!("/tests/{name}/main.rs")];
        repository.files.iter().any(|file| ends.iter().any(|end| file.ends_with(end)))
    };
    let unknown = |words: &'static str, is_known: &dyn Fn(&str) -> bool| {
        let unknown = behind(text, words).filter(|word| !is_known(word) && !word.starts_with('-'));
        unknown.map(|word| format!("{page}: {words} {word}")).collect::<Vec<_>>()
    };
    [
        unknown("cargo xtask", &is_command),
        unknown("xtask test --only", &|name| steps.contains(&name)),
        unknown(" -p", &|name| repository.packages.contains(name)),
        unknown("--example", &is_example),
        unknown("--test", &is_test),
    ]
    .concat()
}

#[test]
fn files_and_places_that_pages_name_are_there() {
    let repository = Repository::read();
    assert!(repository.pages().count() > 30);
    let missing: Vec<String> =
        repository.pages().flat_map(|(page, text)| missing_places(&repository, page, &text)).collect();
    assert!(missing.is_empty(), "pages name what is not there:\n{}", missing.join("\n"));
}

#[test]
fn commands_that_pages_name_are_there() {
    let repository = Repository::read();
    let missing: Vec<String> =
        repository.pages().flat_map(|(page, text)| missing_commands(&repository, page, &text)).collect();
    assert!(missing.is_empty(), "pages name what is not there:\n{}", missing.join("\n"));
}

/// The pages that links lead to from a page on, itself included.
fn reachable(repository: &Repository, from: &str) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(page) = next.pop() {
        let Ok(text) = std::fs::read_to_string(repository.root.join(&page)) else { continue };
        let targets = text.lines().flat_map(links).filter_map(|link| resolve(&page, link.split('#').next()?));
        next.extend(targets.map(|path| path.to_string_lossy().into_owned()).filter(|path| {
            path.ends_with(".md") && repository.files.contains(path) && !found.contains(path)
        }));
        found.insert(page);
    }
    found
}

#[test]
fn every_page_is_found_from_the_first() {
    let repository = Repository::read();
    let reachable = reachable(&repository, "README.md");
    let lost: Vec<&String> =
        repository.pages().map(|(page, _)| page).filter(|page| !reachable.contains(*page)).collect();
    assert!(lost.is_empty(), "no page links to {lost:?}");
    let index = std::fs::read_to_string(repository.root.join("docs/README.md")).unwrap();
    let listed: BTreeSet<&str> = index.lines().flat_map(links).collect();
    let unlisted: Vec<&str> = guides(&repository)
        .filter_map(|(page, _)| page.strip_prefix("docs/"))
        .filter(|page| !listed.contains(page))
        .collect();
    assert!(unlisted.is_empty(), "docs/README.md does not list {unlisted:?}");
}

/// The pages of the documentation, but for their list and for decisions.
fn guides(repository: &Repository) -> impl Iterator<Item = (&String, String)> {
    let is_guide = |page: &str| {
        page.strip_prefix("docs/").is_some_and(|name| name != "README.md" && !name.contains('/'))
    };
    repository.pages().filter(move |(page, _)| is_guide(page))
}

/// What the paragraph under a page's title lacks.
fn lacks(text: &str) -> Option<&'static str> {
    let first = text.split("\n\n").nth(1).unwrap_or_default();
    [
        ("*For ", "whom it is for"),
        ("At the end", "what a reader has at the end"),
        ("](README.md)", "a link to all pages"),
    ]
    .into_iter()
    .find_map(|(words, what)| (!first.contains(words)).then_some(what))
}

#[test]
fn pages_begin_with_whom_they_are_for_and_what_one_has_at_the_end() {
    let repository = Repository::read();
    assert!(guides(&repository).count() > 10);
    let without: Vec<String> = guides(&repository)
        .filter_map(|(page, text)| lacks(&text).map(|what| format!("{page}: {what}")))
        .collect();
    assert!(without.is_empty(), "missing under the title:\n{}", without.join("\n"));
    assert_eq!(lacks("# A page\n\nIt is about this.\n"), Some("whom it is for"));
    assert_eq!(
        lacks("# A page\n\n*For you.* ([all pages](README.md))\n"),
        Some("what a reader has at the end")
    );
}

#[test]
fn missing_paths_are_found() {
    let repository = Repository::read();
    let text = "# One\n[a](b.md) and [c](../README.md#two-commands), [d](#one), [e](#two); `engine/none.rs`, `engine/queue.rs`; \
                `src/paths.rs::missing_paths_are_found`, `src/paths.rs::has_test`, `none.rs::is_there`\n";
    let missing = missing_places(&repository, "docs/engine.md", text);
    // Places in the page itself are those of the page that is there.
    let expected = [
        "the link b.md",
        "no heading for #one",
        "no heading for #two",
        "the test src/paths.rs::has_test",
        "the test none.rs::is_there",
        "the file engine/none.rs",
    ];
    assert_eq!(missing, expected.map(|end| format!("docs/engine.md:2: {end}")));
    let text = "`cargo xtask nothing`, `cargo xtask NAME`, cargo xtask test --only msrv --only never; \
                cargo test -p hal-none --test engine, cargo run -p hal-driver --example none";
    let missing = missing_commands(&repository, "page", text);
    let expected = ["cargo xtask nothing", " -p hal-none", "--example none"];
    assert_eq!(missing, expected.map(|end| format!("page: {end}")));
}
