// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The C interface, as a program uses it that is right or wrong. Every board has a process of its own: this
//! one, started again.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use emulator_ttsim::ffi::*;
use emulator_ttsim::{BAR0, BAR2, BAR4};
use std::ffi::c_void;
use std::process::{Command, Output};

/// Lets a test of those below, which are ignored otherwise, run on a board of its own.
fn child(test: &str, board: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env("TENSTORRENT_SIM", board);
    command.output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(address: u64) -> u32 {
    let mut bytes = [0_u8; 4];
    // SAFETY: four bytes.
    unsafe { libttsim_pci_mem_rd_bytes(address, bytes.as_mut_ptr().cast(), 4) };
    u32::from_le_bytes(bytes)
}

fn write(address: u64, value: u32) {
    let bytes = value.to_le_bytes();
    // SAFETY: four bytes.
    unsafe { libttsim_pci_mem_wr_bytes(address, bytes.as_ptr().cast::<c_void>(), 4) };
}

/// Points the first window at a tile.
fn point(x: u32, y: u32) {
    for (word, value) in [0, x << 11 | y << 17, 0].into_iter().enumerate() {
        write(BAR0 + 0x1fc0_0000 + 4 * word as u64, value);
    }
}

#[test]
fn board_is_found_and_its_memory_used() {
    let output = child("board_on_the_bus", "p100a");
    assert!(output.status.success(), "{}", errors(&output));
    let errors = errors(&output);
    for part in [
        "tile (15, 2) is fused off",
        "the device is lost since tile (15, 2)",
        "core B of tile (1, 2) stopped",
        "8 bytes at 0x1ffffc of BAR0",
        "4 bytes at 0x1000 of the bus are in none",
        "was not written to 0x10 of the configuration space",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
}

#[test]
#[ignore = "has a process of its own"]
fn board_on_the_bus() {
    libttsim_set_pci_dma_mem_callbacks(None, None);
    libttsim_init();
    let configuration = [0, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x2c];
    let found = configuration.map(|offset| libttsim_pci_config_rd32(0, offset));
    assert_eq!(found, [0xb140_1e52, 4, 1, 0x2000_0004, 1, 4, 8, 0]);
    assert_eq!(libttsim_pci_config_rd32(8, 0), u32::MAX);
    libttsim_pci_config_wr32(0, 0x10, 1);

    point(1, 2);
    write(BAR0 + 0x40, 0x1234_5678);
    assert_eq!(read(BAR0 + 0x40), 0x1234_5678);
    write(BAR2 + 0x1a04, 7);
    assert_eq!(read(BAR2 + 0x1a04), 7);
    // A window of 4 GiB, at the same tile.
    write(BAR0 + 0x1fc0_0000 + 12 * 202 + 4, 1 | 2 << 6);
    assert_eq!(read(BAR4 + 0x40), 0x1234_5678);
    let mut bytes = [0_u8; 4];
    // SAFETY: four bytes, and nothing.
    unsafe {
        libttsim_pci_mem_rd_bytes(BAR0 + 0x40, bytes.as_mut_ptr().cast(), 4);
        libttsim_pci_mem_rd_bytes(BAR0, std::ptr::null_mut(), 0);
        libttsim_pci_mem_wr_bytes(BAR0, std::ptr::null(), 0);
    }
    assert_eq!(u32::from_le_bytes(bytes), 0x1234_5678);

    // Eight bytes over the end of a window, and an address that is nowhere: ones, and the device stays.
    let mut bytes = [0_u8; 8];
    // SAFETY: eight bytes.
    unsafe { libttsim_pci_mem_rd_bytes(BAR0 + 0x1f_fffc, bytes.as_mut_ptr().cast(), 8) };
    assert_eq!(bytes, [0xff; 8]);
    assert_eq!((read(0x1000), read(BAR0 + 0x40)), (u32::MAX, 0x1234_5678));

    // A core that stops at once.
    write(BAR0, 0x0010_0073);
    write(BAR0 + 0x1fc0_0000, 0x7fd);
    write(BAR0 + 0x11_21b0, 0x4_7000);
    libttsim_clock(10);

    point(15, 2);
    assert_eq!((read(BAR0), read(BAR0 + 0x1fc0_0000)), (u32::MAX, u32::MAX));
    libttsim_exit();
    libttsim_init();
    point(1, 2);
    assert_eq!(read(BAR0 + 0x40), 0);
    libttsim_exit();
}

#[test]
fn wormhole_reports_its_device_id() {
    let output = child("wormhole_on_the_bus", "n150");
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
#[ignore = "has a process of its own"]
fn wormhole_on_the_bus() {
    libttsim_init();
    assert_eq!(libttsim_pci_config_rd32(0, 0), 0x401e_1e52);
    // The first window of 16 MiB, by its setting in the third region: a tile, and its last word.
    write(BAR4 + 0x1c0_0000 + 8 * 166, 18 << 12 | 18 << 18);
    write(BAR4 + 0x1c0_0000 + 8 * 166 + 4, 0);
    let tile = BAR0 + (176 << 20);
    write(tile + 0x16_dffc, 0x1234_5678);
    assert_eq!((read(tile + 0x16_dffc), read(tile + 0x16_e000)), (0x1234_5678, u32::MAX));
    // Registers of the controller: it has started.
    assert_eq!(read(BAR0 + 0x1ff3_0060), 0xc0de_0001);
    assert_eq!(read(BAR4 + 0x1f3_0060), 0xc0de_0001);
    assert_eq!(read(BAR4 + (32 << 20)), u32::MAX);
    libttsim_exit();
}

#[test]
fn wrong_use_ends_the_process_with_a_message() {
    for (test, board, part) in [
        ("library_started_twice", "p150", "libttsim_init was called twice"),
        ("library_called_before_its_start", "p150", "called before libttsim_init"),
        ("board_on_the_bus", "p200", "there is no such board"),
        ("tile_read_past_windows", "p150", "tile (1, 2) is reached through a window"),
        ("tile_written_past_windows", "n150", "tile (18, 18) is reached through a window"),
    ] {
        let output = child(test, board);
        assert_eq!(output.status.code(), Some(1), "{test}");
        assert!(errors(&output).contains(part), "{}", errors(&output));
    }
}

#[test]
#[ignore = "has a process of its own"]
fn tile_read_past_windows() {
    libttsim_init();
    libttsim_tile_rd_bytes(1, 2, 0x40, std::ptr::null_mut(), 4);
}

#[test]
#[ignore = "has a process of its own"]
fn tile_written_past_windows() {
    libttsim_init();
    libttsim_tile_wr_bytes(18, 18, 0x40, std::ptr::null(), 4);
}

#[test]
#[ignore = "has a process of its own"]
fn library_started_twice() {
    libttsim_init();
    libttsim_init();
}

#[test]
#[ignore = "has a process of its own"]
fn library_called_before_its_start() {
    libttsim_clock(1);
}
