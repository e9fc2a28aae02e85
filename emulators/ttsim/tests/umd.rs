// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The vendor's user-space driver opens the simulated board and uses it.
//!
//! `tt-umd` comes from PyPI, into a folder under `target`, the first time. A simulator of the vendor's own can
//! be put through the same: `LIBTTSIM=/path/to/libttsim.so cargo test -p emulator-ttsim --test umd --
//! --ignored` (of Blackhole, without anything fused off).

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use emulator_chip::{Grid, NocRegisters, Tile, WORMHOLE};
use emulator_ttsim::parse_board;
use hal_tenstorrent_loader::encode::{Assembler, Reg, When, addi, lw, sw};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use support::{our_library, prepare, python, succeed};

const DONE: u32 = 0x3000;
const INPUT: u32 = 0x1_0000;
const OUTPUT: u32 = 0x2_0040;
const LENGTH: u32 = 64;

/// A program for a core: brings bytes from a bank, adds one to each word, and brings them to another bank.
fn program(own: Tile, from: Tile, to: Tile, network: &NocRegisters) -> Vec<u32> {
    const T0: Reg = Reg::T[0];
    const T1: Reg = Reg::T[1];
    const T2: Reg = Reg::T[2];
    const ZERO: Reg = Reg::ZERO;
    /// The file with the bytes in the meantime.
    const BUFFER: u32 = 0x4_0000;
    const READ: u32 = 1 << 4 | 1 << 7 | 1 << 13;
    let is_wormhole = network == &WORMHOLE.noc;
    let command = i32::try_from(network.command).unwrap();
    // A Wormhole has coordinates above the 36 bits of an address, in the same two words.
    let place = |tile: Tile| (u32::from(tile.x) | u32::from(tile.y) << 6) << if is_wormhole { 4 } else { 0 };
    let high = |place: u32| if is_wormhole { (place, None) } else { (0, Some(place)) };
    let mut asm = Assembler::new();
    let transfer = |asm: &mut Assembler, from: (u32, u32), to: (u32, u32), control: u32, counter: i32| {
        asm.constant(T0, 0xffb2_0000);
        asm.emit(lw(T2, counter, T0));
        let registers = [
            (0x00, Some(from.0)),
            (0x04, Some(high(from.1).0)),
            (0x08, high(from.1).1),
            (0x0c, Some(to.0)),
            (0x10, Some(high(to.1).0)),
            (0x14, high(to.1).1),
            (0x18, Some(0)),
            (0x1c, Some(control)),
            (0x20, Some(LENGTH)),
            (command, Some(1)),
        ];
        for (offset, value) in registers.into_iter().filter_map(|(offset, value)| Some((offset, value?))) {
            asm.constant(T1, value);
            asm.emit(sw(T1, offset, T0));
        }
        // Until one more is counted.
        let wait = asm.here();
        asm.emit(lw(T1, counter, T0));
        asm.branch(When::Eq, T1, T2, wait);
    };
    transfer(&mut asm, (INPUT, place(from)), (BUFFER, place(own)), READ, 0x208);
    asm.constant(T0, BUFFER);
    asm.constant(T2, BUFFER + LENGTH);
    let next = asm.here();
    asm.emit(lw(T1, 0, T0));
    asm.emit_all([addi(T1, T1, 1), sw(T1, 0, T0), addi(T0, T0, 4)]);
    asm.branch(When::Ne, T0, T2, next);
    // The last word is there once it was loaded back and used.
    asm.emit_all([lw(T1, -4, T0), addi(T1, T1, 0)]);
    transfer(&mut asm, (BUFFER, place(own)), (OUTPUT, place(to)), READ | 1 << 1, 0x204);
    asm.constant(T0, DONE);
    asm.emit_all([addi(T1, ZERO, 1), sw(T1, 0, T0)]);
    let here = asm.here();
    asm.jump(ZERO, here);
    asm.finish()
}

/// Lets the driver open a library, in a folder of the test's own, as a board.
fn open(library: &Path, name: &str, board: &str) -> String {
    let described = parse_board(board).unwrap();
    let (grid, family) = (Grid::new(&described), described.family());
    let banks: Vec<u8> = (0..8).filter(|&bank| grid.dram(bank, 0).is_some()).collect();
    let place = |(x, y)| Tile { x, y };
    let own = place(grid.tensix(0, 0).unwrap());
    let ports: Vec<Tile> = banks.iter().map(|&bank| place(grid.dram(bank, bank % 3).unwrap())).collect();
    let last = place(grid.tensix(grid.columns() - 1, grid.rows() - 1).unwrap());
    let mut tiles = vec![own, last];
    tiles.extend(&ports);
    let (from, to) = (*ports.first().unwrap(), *ports.last().unwrap());

    let library = prepare(library, name, family);
    let places: Vec<_> = tiles.iter().map(|tile| format!("[{}, {}]", tile.x, tile.y)).collect();
    let cases = format!(
        r#"{{"tiles": [{}], "done": {DONE}, "result": [{}, {}], "address": {OUTPUT}, "length": {LENGTH}}}"#,
        places.join(", "),
        to.x,
        to.y
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/umd.py");
    let mut command = Command::new(python());
    command.arg(script).arg(library).arg(format!("{:?}", program(own, from, to, &family.noc))).arg(cases);
    let output = succeed(command.env("TENSTORRENT_SIM", board));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!errors.contains("emulator-ttsim:"), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The coordinates of the chip's tiles and bank ports, which the driver must find by itself.
fn places(board: &str) -> Vec<String> {
    let grid = Grid::new(&parse_board(board).unwrap());
    let line = |name: &str, places: Vec<(u8, u8)>| {
        let mut texts: Vec<_> = places.into_iter().map(|(x, y)| format!("{x:02}-{y:02}")).collect();
        texts.sort();
        format!("{name} {}", texts.join(" "))
    };
    let mut lines =
        vec![line("tensix", grid.tiles().filter_map(|(column, row)| grid.tensix(column, row)).collect())];
    let ports = |bank| (0..3).filter_map(|port| grid.dram(bank, port)).collect::<Vec<_>>();
    lines.push(line("dram", (0..8).flat_map(ports).collect()));
    // The driver counts the banks that there are.
    let banks = (0..8).map(ports).filter(|ports| !ports.is_empty());
    lines.extend(banks.enumerate().map(|(number, ports)| line(&format!("bank {number}"), ports)));
    lines
}

/// The program's result from the first bank, which is the third target that was written.
fn expected() -> String {
    let words = (0..LENGTH / 4).map(|word| {
        let bytes = std::array::from_fn(|at| u8::try_from(4 * word + 2).unwrap() + u8::try_from(at).unwrap());
        u32::from_le_bytes(bytes) + 1
    });
    let mut text = String::new();
    for byte in words.flat_map(u32::to_le_bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn has_line(output: &str, line: &str) -> bool {
    output.lines().any(|found| found == line)
}

#[test]
fn vendors_driver_uses_every_board() {
    let library = our_library();
    for (name, board, kind) in [
        ("umd-p150", "p150", "p150"),
        ("umd-p100a", "p100a", "p100"),
        ("umd-p100a-west", "p100a,columns=0x3f3f,banks=0xfd", "p100"),
        ("umd-p100a-east", "p100a,columns=0x0fff,banks=0xdf", "p100"),
        ("umd-n150", "n150", "n150"),
        ("umd-blackhole", "blackhole", "p150"),
        ("umd-wormhole", "wormhole", "n150"),
        ("umd-n150-middle", "n150,rows=0x3bf", "n150"),
    ] {
        let output = open(&library, name, board);
        let arch = if kind == "n150" { "arch wormhole_b0" } else { "arch blackhole" };
        assert!(has_line(&output, arch), "{output}");
        assert!(has_line(&output, &format!("board {kind}")), "{output}");
        assert!(has_line(&output, &format!("program {}", expected())), "{output}");
        for line in places(board) {
            assert!(has_line(&output, &line), "{line}\n{output}");
        }
    }
}

#[test]
#[ignore = "LIBTTSIM must name a simulator of the vendor's"]
fn vendors_simulator_does_the_same() {
    let library = std::env::var_os("LIBTTSIM").expect("LIBTTSIM names a libttsim.so for Blackhole");
    let output = open(Path::new(&library), "umd-vendor", "p150");
    assert!(has_line(&output, "arch blackhole") && has_line(&output, "board p150"), "{output}");
    assert!(has_line(&output, &format!("program {}", expected())), "{output}");
}
