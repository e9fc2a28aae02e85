// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tests of the repository as a whole: licences, the oldest compiler, the length of lines, which crates depend on
//! which, that pages name only files, tests and commands that exist, and that their pictures are up to date.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends the test")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout that cargo tests, which may be a copy of the one that this was built in.
fn root() -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).parent().unwrap().to_owned()
}

/// What `cargo xtask` prints.
fn xtask(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The first word of each line that begins with a small letter.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with(char::is_lowercase))
}

/// Every file below a folder, but for what is built and what is hidden.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_ours = !name.starts_with('.') && !matches!(name.as_str(), "target" | "__pycache__");
        if path.is_dir() && is_ours {
            files_below(&path, found);
        } else if path.is_file() {
            found.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

// ------------------------------------------------------------------------------------------------------------------
// Licences and versions
// ------------------------------------------------------------------------------------------------------------------

const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception";

/// The files that name the licence in one of their first lines, by the ends of their names, and how a comment
/// begins there.
const SOURCES: [(&str, &str); 11] = [
    (".rs", "//"),
    (".c", "//"),
    (".cc", "//"),
    (".h", "//"),
    (".fbs", "//"),
    (".mlir", "//"),
    (".py", "#"),
    (".pyi", "#"),
    (".cmake", "#"),
    ("CMakeLists.txt", "#"),
    ("Makefile", "#"),
];

#[test]
fn each_source_names_its_licence_at_its_beginning() {
    let mut files = Vec::new();
    files_below(&root(), &mut files);
    let line = |path: &Path| {
        let (_, mark) = SOURCES.iter().find(|(end, _)| path.to_string_lossy().ends_with(end))?;
        Some(format!("{mark} {LICENCE}"))
    };
    let sources: Vec<_> = files.iter().filter_map(|path| Some((path, line(path)?))).collect();
    assert!(sources.len() > 500, "only {} sources were found", sources.len());
    let is_without =
        |(path, line): &&(&PathBuf, String)| !read(path).lines().take(2).any(|first| first == line);
    let without: Vec<_> = sources.iter().filter(is_without).collect();
    assert!(without.is_empty(), "these files should begin with their licence:\n{without:#?}");
}

#[test]
fn each_package_has_the_licence_and_the_oldest_compiler_of_the_workspace() {
    let metadata = metadata();
    for package in packages(&metadata) {
        let name = text(package, "name");
        assert!(LICENCE.ends_with(text(package, "license")), "{name} has another licence");
        assert_eq!(text(package, "rust_version"), env!("CARGO_PKG_RUST_VERSION"), "{name}");
        assert!(!text(package, "description").is_empty(), "{name} has no description");
    }
}

/// The versions of Rust that a text names: behind the word, and shaped like a version.
fn versions_of_rust(text: &str) -> Vec<&str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words
        .windows(2)
        .filter(|pair| matches!(pair.first(), Some(&("Rust" | "rustc"))))
        .filter_map(|pair| pair.get(1))
        .map(|version| version.trim_matches(|end: char| !end.is_ascii_digit()))
        .filter(|version| version.starts_with("1."))
        .collect()
}

#[test]
fn oldest_compiler_is_one_version_wherever_it_is_named() {
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    let root = root();
    let lint = "incompatible_msrv = \"deny\"";
    assert!(read(&root.join("Cargo.toml")).contains(lint), "without {lint} a newer function is noticed late");
    for page in ["README.md", "CONTRIBUTING.md", "docs/backend.md", "docs/embedding.md"] {
        for version in versions_of_rust(&read(&root.join(page))) {
            assert_eq!(version, oldest, "{page} names Rust {version}");
        }
    }
    assert_eq!(versions_of_rust("needs Rust 1.90 or newer, not gcc 1.2; rustc 1.91, too"), ["1.90", "1.91"]);
}

/// The files whose lines have a limit, by the ends of their names.
const LIMITED: [&str; 9] = [".rs", ".md", ".py", ".pyi", ".c", ".cc", ".h", ".cmake", ".toml"];

/// The most characters in a line of a source or a page.
const WIDTH: usize = 120;

/// The numbers of the lines of a file that are too long. A row of a page's table is one line, and a link has no blank
/// to break it at.
fn long_lines(file: &str, text: &str) -> Vec<usize> {
    let is_row = |line: &str| file.ends_with(".md") && line.trim_start().starts_with('|');
    let is_link =
        |line: &str| line.contains("://") && line.split_whitespace().any(|word| word.len() > WIDTH / 2);
    let is_long = |line: &str| line.chars().count() > WIDTH && !is_row(line) && !is_link(line);
    (1..).zip(text.lines()).filter(|(_, line)| is_long(line)).map(|(number, _)| number).collect()
}

#[test]
fn no_line_is_longer_than_its_limit() {
    let root = root();
    let mut files = Vec::new();
    files_below(&root, &mut files);
    files.push(root.join(".cargo/config.toml"));
    files.retain(|path| LIMITED.iter().any(|end| path.to_string_lossy().ends_with(end)));
    assert!(files.len() > 500, "only {} files were found", files.len());
    let found = files.iter().flat_map(|path| {
        let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let long = long_lines(&name, &read(path));
        long.into_iter().map(move |number| format!("{name}:{number}"))
    });
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "more than {WIDTH} characters in a line:\n{}", found.join("\n"));
}

#[test]
fn long_line_is_found_unless_it_is_a_row_of_a_table_or_a_link() {
    let (most, more) = ("é".repeat(WIDTH), "e".repeat(WIDTH + 1));
    let text = format!("{most}\n{more}\n  | {more} |\n[1]: https://{more}\n");
    assert_eq!(long_lines("a.md", &text), [2]);
    assert_eq!(long_lines("a.rs", &text), [2, 3]);
}

// ------------------------------------------------------------------------------------------------------------------
// Crates
// ------------------------------------------------------------------------------------------------------------------

/// The workspace's packages, as cargo describes them.
fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata.get("packages").and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A package's folder, from the root on.
fn folder<'a>(metadata: &'a Value, package: &'a Value) -> &'a str {
    let manifest = text(package, "manifest_path").trim_end_matches("/Cargo.toml");
    manifest.strip_prefix(text(metadata, "workspace_root")).unwrap_or(manifest).trim_start_matches('/')
}

/// The feature that brings emulators into a build.
const EMULATED: &str = "emulated";

/// True if a package ships with a dependency: it is no dependency of tests, nor one that only the feature
/// `emulated` switches on.
fn is_shipped(package: &Value, dependency: &Value) -> bool {
    let enabled_by = |feature: &Value| {
        let name = text(dependency, "rename");
        let name = if name.is_empty() { text(dependency, "name") } else { name };
        feature.as_array().into_iter().flatten().filter_map(Value::as_str).any(|part| {
            part == format!("dep:{name}") || part == name || part.starts_with(&format!("{name}/"))
        })
    };
    let features = package.get("features").and_then(Value::as_object).into_iter().flatten();
    let mut enabling = features.filter(|(_, feature)| enabled_by(feature)).map(|(name, _)| name).peekable();
    let is_optional = dependency.get("optional").and_then(Value::as_bool).unwrap_or_default();
    let is_emulated_alone = is_optional && enabling.peek().is_some() && enabling.all(|name| name == EMULATED);
    text(dependency, "kind") != "dev" && !is_emulated_alone
}

/// Each way from a product crate to a crate of `emulators/` in what is shipped, with all features but `emulated`.
fn ways_to_emulators(metadata: &Value) -> Vec<String> {
    let by_name: BTreeMap<&str, &Value> =
        packages(metadata).map(|package| (text(package, "name"), package)).collect();
    let dependencies = |package: &Value| -> Vec<String> {
        let all = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        let shipped = all.filter(|dependency| is_shipped(package, dependency));
        shipped.map(|dependency| text(dependency, "name").to_owned()).collect()
    };
    let is_product = |folder: &str| {
        let top = folder.split('/').next().unwrap_or_default();
        top == "backends" || top.starts_with("hal-")
    };
    let mut found = Vec::new();
    for (&name, &product) in by_name.iter().filter(|(_, package)| is_product(folder(metadata, package))) {
        let (mut seen, mut next) = (BTreeSet::new(), vec![(name.to_owned(), product)]);
        while let Some((way, package)) = next.pop() {
            if folder(metadata, package).starts_with("emulators/") {
                found.push(way);
                continue;
            }
            for dependency in dependencies(package) {
                let Some(&package) = by_name.get(dependency.as_str()) else { continue };
                if seen.insert(dependency.clone()) {
                    next.push((format!("{way} -> {dependency}"), package));
                }
            }
        }
    }
    found.sort();
    found
}

#[test]
fn product_crates_reach_no_emulator_without_the_feature_emulated() {
    let ways = ways_to_emulators(&metadata());
    assert!(ways.is_empty(), "these are shipped with an emulator:\n{}", ways.join("\n"));
}

fn dependency(name: &str, kind: Option<&str>, optional: bool) -> Value {
    serde_json::json!({ "name": name, "kind": kind, "optional": optional })
}

#[test]
fn way_to_an_emulator_is_found_unless_tests_or_the_feature_emulated_alone_take_it() {
    let package = |folder: &str, name: &str, dependencies: &[Value]| {
        serde_json::json!({
            "name": name,
            "manifest_path": format!("/r/{folder}/Cargo.toml"),
            "dependencies": dependencies,
            "features": { "emulated": ["dep:emulator-core", "dep:emulator-both"], "other": ["dep:emulator-both"] },
        })
    };
    let ways = |of_card: &[Value]| {
        let packages = [
            package("emulators/core", "emulator-core", &[]),
            package("emulators/both", "emulator-both", &[]),
            package("backends/kernel", "hal-kernel", of_card),
            package("backends/card", "hal-card", &[dependency("hal-kernel", None, false)]),
            package("xtask", "xtask", &[dependency("emulator-core", None, false)]),
        ];
        ways_to_emulators(&serde_json::json!({ "workspace_root": "/r", "packages": packages }))
    };
    let both = ["hal-card -> hal-kernel -> emulator-core", "hal-kernel -> emulator-core"];
    assert_eq!(ways(&[dependency("emulator-core", None, false)]), both);
    assert_eq!(ways(&[dependency("emulator-core", Some("build"), false)]), both);
    assert_eq!(ways(&[dependency("emulator-both", None, true)]).len(), 2, "another feature brings it, too");
    assert!(ways(&[dependency("emulator-core", None, true)]).is_empty());
    assert!(ways(&[dependency("emulator-core", Some("dev"), false)]).is_empty());
}

#[test]
fn names_of_folders_are_those_of_crates() {
    let metadata = metadata();
    for package in packages(&metadata) {
        let folder = folder(&metadata, package);
        let (top, rest) = folder.split_once('/').unwrap_or((folder, ""));
        let top = match top {
            "backends" => "hal",
            "emulators" => "emulator",
            "python" => "hal-python",
            other => other,
        };
        let expected = format!("{top}-{}", rest.replace('/', "-"));
        assert_eq!(text(package, "name"), expected.trim_end_matches('-'), "the crate in {folder}");
    }
}

// ------------------------------------------------------------------------------------------------------------------
// Pages
// ------------------------------------------------------------------------------------------------------------------

/// Endings by which a word in a page is known to name a file of the repository.
const FILES: [&str; 10] = [".rs", ".md", ".toml", ".py", ".pyi", ".cmake", ".h", ".c", ".cc", ".mlir"];

/// The repository as far as pages name it.
struct Repository {
    root: PathBuf,
    /// Every file, from the root on.
    files: BTreeSet<String>,
    packages: BTreeSet<String>,
    /// The commands of `cargo xtask`, with what each says of itself.
    commands: BTreeMap<String, String>,
    /// The steps of `cargo xtask test`.
    steps: BTreeSet<String>,
}

impl Repository {
    fn new() -> Self {
        let root = root();
        let mut found = Vec::new();
        files_below(&root, &mut found);
        let relative = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let files = found.iter().map(relative).collect();
        let packages = packages(&metadata()).map(|package| text(package, "name").to_owned()).collect();
        let help = |name: &str| (name.to_owned(), xtask(&[name, "--help"]));
        let commands = names(&xtask(&["--help"])).map(help).collect();
        let steps = names(&xtask(&["test", "--list"])).map(str::to_owned).collect();
        Self { root, files, packages, commands, steps }
    }

    fn pages(&self) -> impl Iterator<Item = (&String, String)> {
        let pages = self.files.iter().filter(|file| file.ends_with(".md"));
        pages.map(|page| (page, read(&self.root.join(page))))
    }

    /// The files with this path, or with this end of their path.
    fn files_called(&self, name: &str) -> impl Iterator<Item = &String> + use<'_> {
        let (name, end) = (name.to_owned(), format!("/{name}"));
        self.files.iter().filter(move |file| **file == name || file.ends_with(&end))
    }
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

/// Code between back quotes in a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of a line's links within the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
}

/// The anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        kept.map(|char| if char == ' ' { '-' } else { char.to_ascii_lowercase() }).collect()
    };
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// The word behind each place where a text has some words; in capitals stands what the reader fills in.
fn behind<'a>(text: &'a str, words: &'a str) -> impl Iterator<Item = &'a str> {
    let rest = text.split(words).skip(1);
    rest.filter_map(|rest| rest.strip_prefix(' ')?.split_whitespace().next())
        .map(|word| word.trim_end_matches(['`', ',', ';', ':', '.', ')']))
        .filter(|word| word.chars().all(|char| char.is_alphanumeric() || "-_".contains(char)))
        .filter(|word| word.chars().any(char::is_lowercase) && !word.starts_with('-'))
}

/// Files, tests and places in pages that a page names and that do not exist.
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
        for link in links(line) {
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { Some(PathBuf::from(page)) } else { resolve(page, file) };
            match path.map(|path| repository.root.join(path)).filter(|path| path.exists()) {
                None => missing.push(format!("{page}:{number}: the link {link}")),
                Some(path) if !place.is_empty() && !anchors(&read(&path)).contains(place) => {
                    missing.push(format!("{page}:{number}: no heading for {link}"));
                }
                Some(_) => {}
            }
        }
        for (file, test) in quoted(line).filter_map(|name| name.split_once(".rs::")) {
            let name = test.rsplit("::").next().unwrap_or(test);
            let mut texts =
                repository.files_called(&format!("{file}.rs")).map(|file| read(&repository.root.join(file)));
            if !texts.any(|text| text.contains(&format!("fn {name}("))) {
                missing.push(format!("{page}:{number}: the test {file}.rs::{test}"));
            }
        }
        let is_path = |name: &&str| {
            name.chars().all(|char| char.is_ascii_alphanumeric() || "/_-.".contains(char))
                && FILES.iter().any(|end| name.len() > end.len() && name.ends_with(end))
        };
        // Rules of an emulated kernel driver cite the kernel's sources.
        let is_a_kernels = |name: &str| page.ends_with("/rules.md") && name.ends_with(['c', 'h']);
        for name in quoted(line).filter(is_path) {
            let exists = repository.files_called(name).next().is_some()
                || resolve(page, name).is_some_and(|path| repository.root.join(path).exists());
            if !exists && !is_a_kernels(name) {
                missing.push(format!("{page}:{number}: the file {name}"));
            }
        }
    }
    missing
}

/// Flags of this project's commands that a page types and that do not exist.
fn missing_flags(repository: &Repository, page: &str, text: &str) -> Vec<String> {
    let typed = text.lines().flat_map(|line| line.split("cargo xtask ").skip(1)).flat_map(|rest| {
        // What comes behind these is no flag of the command.
        let end = [" -- ", "`", "#", ";"].iter().filter_map(|end| rest.find(end)).min();
        let mut words = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default().split_whitespace();
        let command = words.next().unwrap_or_default();
        words.filter_map(move |word| Some((command, word.strip_prefix("--")?)))
    });
    let is_unknown = |(command, flag): &(&str, &str)| {
        let Some(help) = repository.commands.get(*command) else { return false };
        let name = flag.split('=').next().unwrap_or(flag);
        let known = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
        !flag.is_empty() && !known.map(|word| word.trim_end_matches(',')).any(|known| known == name)
    };
    typed
        .filter(is_unknown)
        .map(|(command, flag)| format!("{page}: cargo xtask {command} --{flag}"))
        .collect()
}

/// Commands, steps, packages, examples and tests that a page names and that do not exist.
fn missing_commands(repository: &Repository, page: &str, text: &str) -> Vec<String> {
    let Repository { commands, steps, .. } = repository;
    let has = |paths: &[String]| paths.iter().any(|path| repository.files_called(path).next().is_some());
    let unknown = |words: &'static str, is_known: &dyn Fn(&str) -> bool| {
        let unknown = behind(text, words).filter(|word| !is_known(word));
        unknown.map(|word| format!("{page}: {words} {word}")).collect::<Vec<_>>()
    };
    [
        unknown("cargo xtask", &|name| commands.contains_key(name)),
        unknown("xtask test --only", &|name| steps.contains(name)),
        unknown(" -p", &|name| repository.packages.contains(name)),
        unknown("--example", &|name| has(&[format!("examples/{name}.rs")])),
        unknown("--test", &|name| has(&[format!("tests/{name}.rs"), format!("tests/{name}/main.rs")])),
        unknown("--bench", &|name| has(&[format!("benches/{name}.rs"), format!("benches/{name}/main.rs")])),
        missing_flags(repository, page, text),
    ]
    .concat()
}

#[test]
fn pages_name_files_tests_and_commands_that_exist() {
    let repository = Repository::new();
    assert!(repository.pages().count() > 15);
    let missing: Vec<String> = repository
        .pages()
        .flat_map(|(page, text)| {
            [missing_places(&repository, page, &text), missing_commands(&repository, page, &text)].concat()
        })
        .collect();
    assert!(missing.is_empty(), "pages name what does not exist:\n{}", missing.join("\n"));
}

#[test]
fn pictures_of_pages_are_those_that_their_script_draws() {
    let script = root().join("docs/images/pictures.py");
    let output = std::process::Command::new("python3").arg(&script).arg("--check").output().unwrap();
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "run {}: {says}", script.display());
}

#[test]
fn names_of_nothing_are_found_in_pages() {
    let repository = Repository::new();
    let text = "# One\n[a](b.md) and [c](../README.md), [d](#one-that-is-none); `engine/none.rs`, `engine/queue.rs`; \
                `tests/repository.rs::names_of_nothing_are_found_in_pages`, `none.rs::is_there`\n";
    let expected = [
        "the link b.md",
        "no heading for #one-that-is-none",
        "the test none.rs::is_there",
        "the file engine/none.rs",
    ];
    let missing = missing_places(&repository, "docs/engine.md", text);
    assert_eq!(missing, expected.map(|end| format!("docs/engine.md:2: {end}")));
    let text = "`cargo xtask nothing`, `cargo xtask NAME`, cargo xtask test --only msrv --only never; \
                cargo test -p hal-none --test engine, cargo run -p hal-driver --example none\n\
                cargo xtask wheel --test --tset; cargo xtask with --cost --=1 -- ls --all # --none";
    let expected = [
        "cargo xtask nothing",
        " -p hal-none",
        "--example none",
        "cargo xtask wheel --tset",
        "cargo xtask with --=1",
    ];
    assert_eq!(missing_commands(&repository, "page", text), expected.map(|end| format!("page: {end}")));
}
