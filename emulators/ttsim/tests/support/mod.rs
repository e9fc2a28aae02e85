// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The vendor's user-space driver, and libraries where it looks for them.

use emulator_chip::{Family, WORMHOLE};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn target() -> PathBuf {
    // Tests are run from a folder in it.
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(3).unwrap().to_owned()
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    output
}

/// Python with the vendor's driver, installed by whichever test needs it first.
pub(crate) fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("requirements.txt");
        let folder = target().join("tt-umd");
        let python = folder.join("bin/python");
        let wanted = std::fs::read_to_string(&requirements).unwrap();
        let stamp = folder.join("requirements.txt");
        if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
            succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder));
            let install = ["-m", "pip", "install", "--quiet", "--requirement"];
            succeed(Command::new(&python).args(install).arg(&requirements));
            std::fs::write(stamp, wanted).unwrap();
        }
        python
    })
}

fn list(places: &mut dyn Iterator<Item = (u8, u8)>) -> String {
    places.map(|(x, y)| format!("{x}-{y}")).collect::<Vec<_>>().join(", ")
}

/// The driver's description of a chip: the physical coordinates of all parts, with nothing fused off.
fn descriptor(family: &Family) -> String {
    if family == &WORMHOLE { wormhole() } else { blackhole() }
}

fn wormhole() -> String {
    const PORTS: [[(u8, u8); 3]; 6] = [
        [(0, 0), (0, 1), (0, 11)],
        [(0, 5), (0, 6), (0, 7)],
        [(5, 0), (5, 1), (5, 11)],
        [(5, 2), (5, 9), (5, 10)],
        [(5, 3), (5, 4), (5, 8)],
        [(5, 5), (5, 6), (5, 7)],
    ];
    let columns = || (1..=4).chain(6..=9);
    let mut workers = (1..=5).chain(7..=11).flat_map(|y| columns().map(move |x| (x, y)));
    let mut ethernet = [0, 6].into_iter().flat_map(|y| [9, 1, 8, 2, 7, 3, 6, 4].map(|x| (x, y)));
    let banks = PORTS.map(|ports| format!("[{}]", list(&mut ports.into_iter()))).join(", ");
    format!(
        "grid:\n  x_size: 10\n  y_size: 12\narc: [0-10]\npcie: [0-3]\ndram: [{banks}]\neth: [{}]\n\
         functional_workers: [{}]\nharvested_workers: []\nrouter_only: [0-2, 0-4, 0-8, 0-9]\n\
         noc0_x_to_noc1_x: [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]\n\
         noc0_y_to_noc1_y: [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]\n\
         worker_l1_size: 1499136\ndram_bank_size: 2147483648\neth_l1_size: 262144\narch_name: WORMHOLE_B0\n\
         features:\n  noc:\n    translation_id_enabled: True\n",
        list(&mut ethernet),
        list(&mut workers)
    )
}

fn blackhole() -> String {
    const PORTS: [[u8; 3]; 4] = [[0, 1, 11], [2, 10, 3], [9, 4, 8], [5, 7, 6]];
    let columns = || (1..=7).chain(10..=16);
    let mut text = String::from("grid:\n  x_size: 17\n  y_size: 12\narc: [8-0]\npcie: [2-0, 11-0]\n");
    let banks =
        [0, 9].map(|x| PORTS.map(|rows| format!("[{}]", list(&mut rows.iter().map(|&y| (x, y))))).join(", "));
    writeln!(text, "dram: [{}]", banks.join(", ")).unwrap();
    text.push_str("dram_views: [");
    for channel in 0..8 {
        write!(
            text,
            "{{channel: {channel}, eth_endpoint: [0, 1], worker_endpoint: [0, 1], address_offset: 0}}, "
        )
        .unwrap();
    }
    writeln!(text, "]\ndram_view_size: 4278190080\ndram_bank_size: 4278190080").unwrap();
    let mut ethernet = (0..7).flat_map(|index| [(1 + index, 1), (16 - index, 1)]);
    writeln!(text, "eth: [{}]", list(&mut ethernet)).unwrap();
    let mut workers = (2..=11).flat_map(|y| columns().map(move |x| (x, y)));
    writeln!(text, "functional_workers: [{}]\nharvested_workers: []", list(&mut workers)).unwrap();
    let mut routers =
        columns().filter(|x| ![2, 11].contains(x)).map(|x| (x, 0)).chain((1..=11).map(|y| (8, y)));
    writeln!(text, "router_only: [{}]", list(&mut routers)).unwrap();
    text.push_str("worker_l1_size: 1572864\neth_l1_size: 524288\narch_name: BLACKHOLE\n");
    text.push_str("features:\n  noc:\n    translation_id_enabled: True\n");
    text
}

/// The library that was built with the tests, beside them.
pub(crate) fn our_library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libemulator_ttsim.so");
    assert!(library.exists(), "there is no {}", library.display());
    library
}

/// A library in a folder of the test's own, with the description that the driver wants beside it.
pub(crate) fn prepare(library: &Path, name: &str, family: &Family) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("soc_descriptor.yaml"), descriptor(family)).unwrap();
    let copy = folder.join("libttsim.so");
    std::fs::copy(library, &copy).unwrap();
    copy
}
