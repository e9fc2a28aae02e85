// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The functions of the C interface.

use crate::board::parse_board;
use crate::simulator::Simulator;
use emulator_chip::Violation;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The board of this process, between `libttsim_init` and `libttsim_exit`.
static SIMULATOR: Mutex<Option<Simulator>> = Mutex::new(None);

/// Reads memory of the host, for the device.
type ReadHost = Option<unsafe extern "C" fn(u64, *mut c_void, u32)>;
/// Writes memory of the host, for the device.
type WriteHost = Option<unsafe extern "C" fn(u64, *const c_void, u32)>;

fn lock() -> MutexGuard<'static, Option<Simulator>> {
    SIMULATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process, as the interface requires when it is used wrongly.
fn fatal(message: &str) -> ! {
    eprintln!("emulator-ttsim: {message}");
    std::process::exit(1)
}

fn with<T>(work: impl FnOnce(&mut Simulator) -> T) -> T {
    match &mut *lock() {
        Some(simulator) => work(simulator),
        None => fatal("called before libttsim_init or after libttsim_exit"),
    }
}

/// True if a broken rule ends the process, as in the vendor's library.
fn ends() -> bool {
    std::env::var_os("TENSTORRENT_SIM_VIOLATIONS").is_some_and(|value| value == "exit")
}

/// Reports a broken rule.
fn complain(message: &str) {
    if ends() {
        fatal(message);
    }
    eprintln!("emulator-ttsim: {message}");
}

fn report(result: Result<(), Violation>) -> bool {
    if let Err(violation) = &result {
        complain(&violation.to_string());
    }
    result.is_ok()
}

/// Hands zeroed bytes to `read`, and copies them out, or ones if it failed.
///
/// # Safety
/// `to` is valid for writing `size` bytes.
unsafe fn read_into(to: *mut c_void, size: u32, read: impl FnOnce(&mut [u8]) -> Result<(), Violation>) {
    if size == 0 {
        return;
    }
    // SAFETY: the caller's promise: `size` bytes; they are written before they are read.
    let bytes = unsafe {
        to.cast::<u8>().write_bytes(0, size as usize);
        std::slice::from_raw_parts_mut(to.cast::<u8>(), size as usize)
    };
    if !report(read(bytes)) {
        bytes.fill(0xff);
    }
}

/// The bytes to write.
///
/// # Safety
/// `from` is valid for reading `size` bytes for as long as the result is used.
unsafe fn bytes_from<'a>(from: *const c_void, size: u32) -> &'a [u8] {
    if size == 0 {
        return &[];
    }
    // SAFETY: `size` bytes can be read at `from` while the result is used, as the function asks.
    unsafe { std::slice::from_raw_parts(from.cast(), size as usize) }
}

/// Makes the board.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_init() {
    let text = std::env::var("TENSTORRENT_SIM").unwrap_or_else(|_| "p150".to_owned());
    let board = parse_board(&text).unwrap_or_else(|message| fatal(&message));
    let mut simulator = lock();
    if simulator.is_some() {
        fatal("libttsim_init was called twice");
    }
    *simulator = Some(Simulator::new(board));
}

/// Switches the board off.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_exit() {
    *lock() = None;
}

/// Reads a word of the configuration space.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_pci_config_rd32(bus_device_function: u32, offset: u32) -> u32 {
    with(|simulator| simulator.configuration(bus_device_function, offset))
}

/// Would write a word of the configuration space, which is read-only.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_pci_config_wr32(bus_device_function: u32, offset: u32, data: u32) {
    eprintln!(
        "emulator-ttsim: {data:#x} was not written to {offset:#x} of the configuration space of \
         {bus_device_function:#x}"
    );
}

/// Reads from one of the device's regions.
///
/// # Safety
/// `to` is valid for writing `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libttsim_pci_mem_rd_bytes(address: u64, to: *mut c_void, size: u32) {
    // SAFETY: `size` bytes can be written at `to`, as this function asks for `read_into`.
    unsafe { read_into(to, size, |bytes| with(|simulator| simulator.read(address, bytes))) }
}

/// Writes to one of the device's regions.
///
/// # Safety
/// `from` is valid for reading `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libttsim_pci_mem_wr_bytes(address: u64, from: *const c_void, size: u32) {
    // SAFETY: used for this call alone.
    let bytes = unsafe { bytes_from(from, size) };
    report(with(|simulator| simulator.write(address, bytes)));
}

/// Ends the process: on these chips, the host reaches tiles through windows alone.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_tile_rd_bytes(x: u32, y: u32, _address: u64, _to: *mut c_void, _size: u32) {
    no_way_past_windows(x, y);
}

/// Ends the process: on these chips, the host reaches tiles through windows alone.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_tile_wr_bytes(x: u32, y: u32, _address: u64, _from: *const c_void, _size: u32) {
    no_way_past_windows(x, y);
}

fn no_way_past_windows(x: u32, y: u32) -> ! {
    fatal(&format!(
        "tile ({x}, {y}) is reached through a window, and not by libttsim_tile_rd_bytes or its like"
    ))
}

/// Lets time pass.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_clock(clocks: u32) {
    for stopped in with(|simulator| simulator.clock(clocks)) {
        complain(&format!("core {:?} of tile {} stopped: {:?}", stopped.core, stopped.tile, stopped.stop));
    }
}

/// Sets the callbacks by which the device reaches the host's memory, which this one never does.
#[unsafe(no_mangle)]
pub extern "C" fn libttsim_set_pci_dma_mem_callbacks(_read: ReadHost, _write: WriteHost) {}
