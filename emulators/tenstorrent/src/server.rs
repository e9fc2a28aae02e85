// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The program that loads a simulator's library (`libttsim.so`) for a machine, and serves the requests on its
//! standard input, which is a socket.
//!
//! It is a separate program because such a library ends its process when a rule is broken. See
//! [`protocol`](crate::protocol).

use crate::protocol::{Regions, Request};
use libloading::Library;
use std::ffi::{OsString, c_void};
use std::io::{BufReader, Read, Result, Write, stdin};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// The library's functions, with their types in the library.
struct Functions {
    init: unsafe extern "C" fn(),
    exit: unsafe extern "C" fn(),
    configuration: unsafe extern "C" fn(u32, u32) -> u32,
    read: unsafe extern "C" fn(u64, *mut c_void, u32),
    write: unsafe extern "C" fn(u64, *const c_void, u32),
    clock: unsafe extern "C" fn(u32),
    /// Keeps the functions loaded.
    _library: Library,
}

impl Functions {
    fn load(path: &OsString) -> std::result::Result<Self, libloading::Error> {
        // SAFETY: the user that names a library vouches for its initialisation, and for the types of its
        // functions, which are those of the simulator's interface. The functions are not used after the
        // library, which is in the same struct.
        unsafe {
            let library = Library::new(path)?;
            Ok(Self {
                init: *library.get(b"libttsim_init")?,
                exit: *library.get(b"libttsim_exit")?,
                configuration: *library.get(b"libttsim_pci_config_rd32")?,
                read: *library.get(b"libttsim_pci_mem_rd_bytes")?,
                write: *library.get(b"libttsim_pci_mem_wr_bytes")?,
                clock: *library.get(b"libttsim_clock")?,
                _library: library,
            })
        }
    }

    /// A word of the configuration space of the only device.
    fn word(&self, offset: u32) -> u32 {
        // SAFETY: the library was initialised.
        unsafe { (self.configuration)(0, offset) }
    }

    /// The address of a region, which two words hold from here on.
    fn region(&self, offset: u32) -> u64 {
        // The lowest bits hold its kind.
        u64::from(self.word(offset) & !15) | u64::from(self.word(offset + 4)) << 32
    }

    /// Answers requests until there are no more.
    fn serve(&self, stream: &UnixStream) -> Result<()> {
        let (mut requests, mut answers) = (BufReader::new(stream), stream);
        let starts = [0x10, 0x18, 0x20].map(|offset| self.region(offset));
        let regions = Regions { identity: self.word(0), starts };
        answers.write_all(&regions.encode())?;
        let mut buffer = Vec::new();
        while let Some(request) = Request::receive(&mut requests)? {
            buffer.resize(request.length(), 0);
            #[expect(clippy::cast_possible_truncation, reason = "a request has its length in 32 bits")]
            let length = buffer.len() as u32;
            if !matches!(request, Request::Read(..)) {
                requests.read_exact(&mut buffer)?;
            }
            // SAFETY: the library was initialised, and the buffer has as many bytes as the request.
            unsafe {
                match request {
                    Request::Read(address, _) => (self.read)(address, buffer.as_mut_ptr().cast(), length),
                    Request::Write(address, _) => (self.write)(address, buffer.as_ptr().cast(), length),
                    Request::Clock(clocks) => (self.clock)(clocks),
                }
            }
            if matches!(request, Request::Read(..)) {
                answers.write_all(&buffer)?;
            }
        }
        Ok(())
    }
}

/// The program that started this one reads all output.
fn fail(message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::FAILURE
}

/// Serves the library that the first argument of this program names, until its standard input ends.
pub fn serve() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        return fail(
            "usage: tenstorrent-ttsim LIBRARY, with a socket as its standard input; tenstorrent://ttsim starts it",
        );
    };
    let stream = match stdin().as_fd().try_clone_to_owned() {
        Ok(file) => UnixStream::from(file),
        Err(error) => return fail(&format!("the standard input cannot be used: {error}")),
    };
    let functions = match Functions::load(&path) {
        Ok(functions) => functions,
        Err(error) => return fail(&format!("{} is no libttsim.so: {error}", path.display())),
    };
    // SAFETY: once, before anything else.
    unsafe { (functions.init)() };
    let served = functions.serve(&stream);
    // SAFETY: once, after everything else.
    unsafe { (functions.exit)() };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("what was asked cannot be received or answered: {error}")),
    }
}
