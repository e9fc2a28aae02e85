// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Cards that are there and cannot be used: listed, and refused before anything of them is touched.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use emulator_tenstorrent::{Emulator, Options};
use hal_backend::{Code, HostRange, Parameters};
use hal_tenstorrent::kmd::{Card, Errno, Linux, System, cards};
use hal_tenstorrent_abi::uapi::{Request, VENDOR, device};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A kernel with one card, which answers who it is and remembers what else it was asked.
#[derive(Default)]
struct OneCard {
    device: u16,
    asked: Mutex<Vec<Option<Request>>>,
    closed: Mutex<usize>,
}

impl System for OneCard {
    fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        assert_eq!(path, Path::new("/dev/tenstorrent/0"));
        Ok(std::fs::File::open("/dev/null").unwrap().into())
    }

    fn close(&self, file: OwnedFd) {
        drop(file);
        *self.closed.lock().unwrap() += 1;
    }

    fn ioctl(&self, _: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let request = Request::numbered(request);
        let words: &[u32] = match request {
            // A size, version 2 of the interface, module 2.10.0.
            Some(Request::GetDriverInfo) => &[12, 2, 2 | 10 << 8],
            Some(Request::GetDeviceInfo) => &[20, (u32::from(self.device) << 16) | u32::from(VENDOR)],
            _ => &[],
        };
        self.asked.lock().unwrap().push(request);
        if words.is_empty() {
            return Err(Errno::INVAL);
        }
        let places = argument.chunks_exact_mut(4).skip(1);
        places.zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        Ok(())
    }

    fn map(&self, _: BorrowedFd<'_>, _: usize, _: u64) -> Result<HostRange, Errno> {
        panic!("a card that cannot be used is mapped")
    }

    fn read(&self, _: &Path) -> Result<String, Errno> {
        Ok(format!(
            "DRIVER=tenstorrent\nPCI_ID={VENDOR:04X}:{:04X}\nPCI_SLOT_NAME=0000:03:00.0\n",
            self.device
        ))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let class = path == Path::new("/sys/class/tenstorrent");
        Ok(if class {
            vec!["tenstorrent!0".to_owned(), "tenstorrent!1".to_owned()]
        } else {
            vec!["0".to_owned()]
        })
    }
}

/// A module before 2.10 opens a card for all: two programs would start and hold each other's tiles.
#[test]
fn card_has_one_program_with_every_module() {
    for module in ["2.0", "2.9", "2.10"] {
        let options = Options::read(&mut Parameters::new("tenstorrent", [("module", module)])).unwrap();
        let machine = Emulator::new(options).unwrap();
        let open = |patience| Card::open(machine.clone(), Path::new("/dev/tenstorrent/0"), patience);
        let first = open(Duration::ZERO).unwrap();
        let refused = open(Duration::from_millis(30)).map(|_| module).unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{module}: {refused}");
        assert!(refused.message().contains("in use"), "{module}: {refused}");
        drop(first);
        assert!(open(Duration::ZERO).is_ok(), "{module}: it is free");
    }
}

/// Files of other drivers, which the kernel opens or refuses as these do.
#[test]
fn device_of_another_driver_is_refused_at_once_and_as_that() {
    let begin = Instant::now();
    let patience = Duration::from_secs(60);
    // Answers no request.
    let refused = Card::open(Arc::new(Linux), Path::new("/dev/null"), patience).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("/dev/null is not a tenstorrent device"), "{refused}");
    // A DRM driver opens no file exclusively (`drm_open_helper`).
    let refused = Card::open(Arc::new(Exclusive), Path::new("/dev/accel/accel0"), patience).unwrap_err();
    assert!(refused.message().contains("another kernel driver"), "{refused}");
    assert!(begin.elapsed() < Duration::from_secs(30), "it was waited for");
}

/// A system whose drivers know no exclusive files.
struct Exclusive;

impl System for Exclusive {
    fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn open_exclusive(&self, _: &Path) -> Result<OwnedFd, Errno> {
        Err(Errno::BUSY)
    }
}

#[test]
fn cards_of_both_kinds_are_listed_as_what_they_are() {
    for (device, model) in
        [(device::WORMHOLE, "Tenstorrent Wormhole"), (device::BLACKHOLE, "Tenstorrent Blackhole")]
    {
        let listed = cards(&OneCard { device, ..OneCard::default() }).unwrap();
        assert_eq!(listed.iter().map(|card| card.model.as_str()).collect::<Vec<_>>(), [model]);
    }
}

#[test]
fn card_of_an_unknown_kind_is_listed_and_refused_untouched_with_advice() {
    for (device, model, what) in
        [(0xfaca, "Tenstorrent card of an unknown kind", "is a card of an unknown kind (0x1e52:0xfaca)")]
    {
        let system = Arc::new(OneCard { device, ..OneCard::default() });
        let listed = cards(&*system).unwrap();
        let [node] = listed.as_slice() else { panic!("{listed:?}") };
        assert_eq!((node.number, node.address.as_str(), node.model.as_str()), (0, "0000:03:00.0", model));
        assert!(system.asked.lock().unwrap().is_empty(), "a card that is listed is not opened");

        let refused = Card::open(system.clone(), &node.node, Duration::ZERO).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        for part in [
            "/dev/tenstorrent/0",
            what,
            "only Blackhole (p100a, p150) and Wormhole (n150)",
            "tenstorrent://N",
            "tenstorrent://emulated",
        ] {
            assert!(refused.message().contains(part), "{refused}");
        }
        // It is asked for its driver and its identity only: no power, no window, nothing of its network; and it is free
        // for others.
        let asked = system.asked.lock().unwrap().clone();
        assert_eq!(asked, [Some(Request::GetDriverInfo), Some(Request::GetDeviceInfo)]);
        assert_eq!(*system.closed.lock().unwrap(), 1);
    }
}
