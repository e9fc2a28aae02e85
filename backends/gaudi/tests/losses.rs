// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A card that is pulled out, whatever a program asks of it next: every user is notified.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use hal_backend::{Device, Failure, MemoryRequest};
use hal_gaudi::GaudiDevice;
use hal_gaudi::kmd::{Card, System};
use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{emulator, machine, open, range};

const LENGTH: u64 = 1 << 16;

/// Waits until something is so, as long as only a test does that goes wrong.
fn eventually(is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A request to a card, whose result the program keeps; with another card.
type Request = fn(&GaudiDevice, &GaudiDevice) -> Result<Box<dyn Any>, Failure>;

fn keep<T: 'static>(kept: T) -> Box<dyn Any> {
    Box::new(kept)
}

/// Everything that makes requests of the kernel's driver, but for submissions.
const REQUESTS: [(&str, Request); 6] = [
    ("a transfer from the host", |one, _| {
        let target = one.ipc().allocate(LENGTH)?;
        let request = one.dma().host_to_device(&range(LENGTH), target.address())?;
        // A transfer in flight fails when the card goes.
        drop(request.wait());
        Ok(keep(()))
    }),
    ("device memory", |one, _| one.allocate(&MemoryRequest::new(0, 1 << 30)).map(keep)),
    ("host memory", |one, _| one.allocate(&MemoryRequest::new(1, 8 << 20)).map(keep)),
    ("memory of the program's", |one, _| one.import(range(LENGTH)).map(keep)),
    ("an export", |one, _| {
        let memory = Arc::new(one.ipc().allocate(LENGTH)?);
        one.ipc().export(&memory, 0, LENGTH).map(keep)
    }),
    ("an import", |one, two| {
        let memory = Arc::new(two.ipc().allocate(LENGTH).unwrap());
        let export = two.ipc().export(&memory, 0, LENGTH).unwrap();
        one.ipc().import(export.handle(), export.buffer().unwrap()).map(|import| keep((export, import)))
    }),
];

/// The second card of a machine, and the first, whose driver reports its errors; or, if it was `adopted`, reports
/// them to another user of the same file, so that only requests can find out.
fn cards(uri: &str, adopted: bool) -> (GaudiDevice, GaudiDevice, Option<(OwnedFd, Arc<Card>)>) {
    let two = open(&uri.replace("emulated?", "emulated/1?"));
    if !adopted {
        return (open(uri), two, None);
    }
    let emulator = emulator(uri);
    let file = emulator.open(Path::new("/dev/accel/accel0")).unwrap();
    let notified = Card::adopt(emulator, file.as_fd(), "notified".to_owned()).unwrap();
    (open(&format!("fd/{}", file.as_raw_fd())), two, Some((file, notified)))
}

#[test]
fn pulled_out_card_is_reported_by_any_next_request() {
    for (register, adopted) in [("on", false), ("off", false), ("on", true), ("off", true)] {
        for (what, request) in REQUESTS {
            let uri = machine(&format!("register={register}&workers=1"));
            let (one, two, _told) = cards(&uri, adopted);
            let memory = Arc::new(one.ipc().allocate(LENGTH).unwrap());
            let export = one.ipc().export(&memory, 0, LENGTH).unwrap();
            let import = two.ipc().import(export.handle(), export.buffer().unwrap()).unwrap();
            assert!(import.lost().is_none());
            emulator(&uri).pull_out(0);
            let failure =
                request(&one, &two).err().unwrap_or_else(|| panic!("{what} of a card that is gone"));
            assert!(failure.message().contains("gone"), "{what}: {failure}");
            assert!(eventually(|| import.lost().is_some()), "importers are not notified of it from {what}");
            assert!(import.lost().unwrap().message().contains("is gone"), "{what}: {:?}", import.lost());
            assert!(eventually(|| !one.card().is_open()), "{what}");
            assert!(two.card().is_open(), "{what}");
        }
    }
}
