// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Nodes that are no card of ours, and cards that are not ready.

use super::super::cards;
use super::super::uapi::{Chunk, CsIn, CsOut, cs};
use super::*;
use emulator_gaudi::{Emulator, Options};
use hal_backend::{HostRange, Parameters};
use hal_kernel::drm;
use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A kernel whose node belongs to some driver, and that counts what else is asked of it.
struct Other {
    name: &'static str,
    /// The answer to a request that it does not know.
    refusal: Errno,
    others: AtomicUsize,
}

impl System for Other {
    fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
        memfd_create("node", MemfdFlags::CLOEXEC)
    }

    fn ioctl(&self, _: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        if request != drm::VERSION || self.name.is_empty() {
            self.others.fetch_add(1, Ordering::Relaxed);
            return Err(self.refusal);
        }
        let mut version = drm::Version::read_from_bytes(argument).map_err(|_| Errno::INVAL)?;
        version.name_length = self.name.len() as u64;
        // SAFETY: the request says that there is room for 32 bytes.
        unsafe { (version.name as *mut u8).copy_from(self.name.as_ptr(), self.name.len()) };
        argument.copy_from_slice(version.as_bytes());
        Ok(())
    }
}

#[test]
fn other_driver_gets_no_request_but_for_its_name() {
    let system = Arc::new(Other { name: "qaic", refusal: Errno::NOTTY, others: AtomicUsize::new(0) });
    let refused = Card::open(system.clone(), Path::new("/dev/accel/accel0"), Duration::ZERO).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("qaic") && refused.message().contains("habanalabs"), "{refused}");
    assert_eq!(system.others.load(Ordering::Relaxed), 0);
}

#[test]
fn file_that_is_no_card_is_refused() {
    // Most drivers do not know a request by `ENOTTY`; tt-kmd says `EINVAL` (`tt_cdev_ioctl`).
    for refusal in [Errno::NOTTY, Errno::INVAL] {
        let system = Arc::new(Other { name: "", refusal, others: AtomicUsize::new(0) });
        let refused = Card::open(system, Path::new("/dev/null"), Duration::ZERO).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("not a habanalabs device"), "{refused}");
    }
    let system = Other { name: "", refusal: Errno::NOTTY, others: AtomicUsize::new(0) };
    assert!(cards(&system).unwrap().is_empty(), "a kernel without accelerators lists none");
}

/// An emulated card, which first says that it is in other states, the last one first.
struct Changing {
    machine: Arc<Emulator>,
    states: Mutex<Vec<u32>>,
}

impl Changing {
    fn new(states: &[u32]) -> Arc<Self> {
        let machine = Emulator::new(Options::default()).unwrap();
        Arc::new(Self { machine, states: Mutex::new(states.to_vec()) })
    }
}

impl System for Changing {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open(path)
    }

    fn close(&self, file: OwnedFd) {
        self.machine.close(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.machine.ioctl(file, request, argument)?;
        if request == Call::Info.request(Abi::Drm) {
            let asked = InfoIn::read_from_bytes(argument).map_err(|_| Errno::INVAL)?;
            if asked.op == info::DEVICE_STATUS
                && let Some(state) = self.states.lock().pop()
            {
                // SAFETY: the answer begins with the state, and was just written there.
                unsafe { (asked.return_pointer as *mut u32).write(state) };
            }
        }
        Ok(())
    }

    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        self.machine.map(file, length, offset)
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        self.machine.read(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        self.machine.list(path)
    }

    fn holder(&self, path: &Path) -> Option<String> {
        self.machine.holder(path)
    }
}

/// A card that is being started is opened all the same (`hl_device_operational`), and one that is open may begin to be
/// reset, which needs its file closed.
#[test]
fn card_whose_state_passes_is_waited_for() {
    let node = Path::new("/dev/accel/accel0");
    let passing = [status::IN_DEVICE_CREATION, status::IN_RESET, status::IN_RESET_AFTER_DEVICE_RELEASE];
    let system = Changing::new(&passing);
    let _card = Card::open(system.clone(), node, Duration::from_secs(60)).unwrap();
    assert!(system.states.lock().is_empty());
    for state in passing {
        let refused = Card::open(Changing::new(&[state; 9]), node, Duration::ZERO).unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    }
    let broken = Changing::new(&[status::OPERATIONAL, status::MALFUNCTION]);
    let refused = Card::open(broken, node, Duration::from_secs(60)).unwrap_err();
    assert!(refused.message().contains("broken"), "{refused}");
}

/// The control node of a driver with the old numbers answers questions, and nothing else (`hl_ioctl_control`).
#[test]
fn control_node_is_no_card() {
    let machine = Emulator::new(Options { abi: Abi::Old, ..Options::default() }).unwrap();
    let node = Path::new("/dev/accel/accel_controlD0");
    let refused = Card::open(machine, node, Duration::ZERO).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("control node"), "{refused}");
}

/// A program's own submission took too long, which its flag forgives. It is not why the card is reset much later.
#[test]
fn submission_that_took_too_long_before_a_card_was_adopted_is_not_reported() {
    let mut parameters = Parameters::new("gaudi", [("fault", "hang:1"), ("speed", "100")]);
    let emulator = Emulator::new(Options::read(&mut parameters).unwrap()).unwrap();
    let file = emulator.open(Path::new("/dev/accel/accel0")).unwrap();
    let adopt = |name: &str| Card::adopt(emulator.clone(), file.as_fd(), name.to_owned()).unwrap();
    let program = adopt("one");
    let chunks = [Chunk::default()];
    let signal = CsIn {
        chunks_execute: chunks.as_ptr() as u64,
        num_chunks_execute: 1,
        timeout: 1,
        cs_flags: cs::SIGNAL | cs::CUSTOM_TIMEOUT | cs::SKIP_RESET_ON_TIMEOUT,
        ..CsIn::default()
    };
    let (output, submitted) = program.call::<_, CsOut>(Call::Submit, &signal);
    submitted.unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while program.timed_out().is_none() {
        assert!(Instant::now() < end, "it has not timed out");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(program.timed_out(), Some(output.seq));
    assert_eq!(adopt("two").timed_out(), None);
}
