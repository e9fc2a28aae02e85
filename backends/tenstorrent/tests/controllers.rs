// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Wormhole's controller that does not say what is fused off: the card is refused before any of its tiles is touched.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

use emulator_tenstorrent::{Emulator, Options};
use hal_backend::{Code, Failure, HostRange, Parameters};
use hal_kernel::DeviceRange;
use hal_tenstorrent::kmd::{Card, Errno, System};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The offsets of the controller's registers in the window that shows them.
const ARGUMENT: u64 = 0x3_006c;
const NUMBER: u64 = 0x3_0074;
const CONTROL: u64 = 0x3_0100;
const TABLE: u64 = 0x3_01d0;
const TRANSLATION: u64 = 0x5_0100;

/// The question, as it is before it is looked at.
const NEVER: u32 = 0xaa57;

/// A word that is read in place of the real one, once the question was asked, or from the beginning.
#[derive(Clone, Copy)]
struct Said {
    offset: u64,
    word: u32,
    once_asked: bool,
}

const fn said(offset: u64, word: u32) -> Said {
    Said { offset, word, once_asked: true }
}

/// The accesses to the card.
#[derive(Clone, Debug, Default)]
struct Done {
    /// The words that were written, and where.
    written: Vec<(u64, u32)>,
    /// How often it was looked whether there is an answer.
    looks: usize,
}

/// An emulated n150, whose controller says something else.
struct Other {
    machine: Arc<Emulator>,
    says: Arc<[Said]>,
    done: Arc<Mutex<Done>>,
}

impl System for Other {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open(path)
    }

    fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open_exclusive(path)
    }

    fn close(&self, file: OwnedFd) {
        self.machine.close(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.machine.ioctl(file, request, argument)
    }

    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        self.machine.map(file, length, offset)
    }

    fn map_device(
        &self,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        let range = self.machine.map_device(file, length, offset)?;
        Ok(Arc::new(OtherRange { range, says: self.says.clone(), done: self.done.clone() }))
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

struct OtherRange {
    range: Arc<dyn DeviceRange>,
    says: Arc<[Said]>,
    done: Arc<Mutex<Done>>,
}

impl std::fmt::Debug for OtherRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.range.fmt(f)
    }
}

impl DeviceRange for OtherRange {
    fn length(&self) -> u64 {
        self.range.length()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.range.read(offset, bytes)?;
        let mut done = self.done.lock().unwrap();
        done.looks += usize::from(offset == NUMBER);
        let asked = done.written.iter().any(|(place, _)| *place == CONTROL);
        if let Some(said) = self.says.iter().find(|said| said.offset == offset && (asked || !said.once_asked))
        {
            bytes.copy_from_slice(&said.word.to_le_bytes());
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let word = bytes.try_into().map_or(u32::MAX, u32::from_le_bytes);
        self.done.lock().unwrap().written.push((offset, word));
        self.range.write(offset, bytes)
    }
}

/// Opens an n150 whose controller says this, and what was done to it.
fn open(seed: &str, says: &[Said]) -> (Result<Card, Failure>, Done) {
    let pairs = [("board", "n150"), ("seed", seed)];
    let machine = Emulator::get(&Options::read(&mut Parameters::new("tenstorrent", pairs)).unwrap()).unwrap();
    let done = Arc::<Mutex<Done>>::default();
    let system = Arc::new(Other { machine, says: says.into(), done: done.clone() });
    let card = Card::open(system, Path::new("/dev/tenstorrent/0"), Duration::ZERO);
    let done = done.lock().unwrap().clone();
    (card, done)
}

/// True if these writes are the question: an argument of zero, the message, and the doorbell.
fn is_the_question(written: &[(u64, u32)]) -> bool {
    let [argument, number, (place, doorbell)] = written else { return false };
    *argument == (ARGUMENT, 0) && *number == (NUMBER, NEVER) && *place == CONTROL && doorbell & 1 << 16 != 0
}

#[test]
fn rows_that_are_fused_off_are_what_the_controller_answers() {
    let (card, done) = open("910001", &[said(ARGUMENT, 0x281)]);
    assert_eq!(card.unwrap().grid().tiles().len(), 56);
    assert!(is_the_question(&done.written[..3]), "{done:x?}");
}

#[test]
fn controller_that_does_not_report_fused_off_tiles_is_refused_before_a_tile_is_touched() {
    let cases: [(&[Said], Code, &[&str]); 5] = [
        (&[said(NUMBER, 0x1_0057)], Code::FailedPrecondition, &["does not say what is fused off (0x1)"]),
        // Old firmware does not know the message.
        (
            &[said(NUMBER, u32::MAX)],
            Code::FailedPrecondition,
            &["does not answer what is fused off (0xffffffff)", "tt-smi -r", "tt-flash"],
        ),
        // One that never looks at it.
        (&[said(NUMBER, NEVER)], Code::FailedPrecondition, &["does not answer what is fused off (0xaa57)"]),
        (
            &[said(NUMBER, u32::MAX), said(TABLE, u32::MAX)],
            Code::Unavailable,
            &["reads as ones", "tt-smi -r"],
        ),
        (&[said(ARGUMENT, 0x3ff)], Code::FailedPrecondition, &["rows 0x3ff of 10 are fused off"]),
    ];
    for (number, (says, code, parts)) in (0..).zip(cases) {
        let (card, done) = open(&(910_010 + number).to_string(), says);
        let refused = card.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        for part in parts {
            assert!(refused.message().contains(part), "{part:?} in {refused}");
        }
        assert!(is_the_question(&done.written), "{refused}: {done:x?}");
        // Only an answer that may still come is waited for.
        let waits = says[0].word == NEVER;
        assert_eq!(done.looks > 1, waits, "{refused}: {} looks", done.looks);
    }
}

#[test]
fn firmware_that_does_not_translate_coordinates_is_refused_and_asked_nothing() {
    let untranslated = Said { offset: TRANSLATION, word: !(1 << 14), once_asked: false };
    let (card, done) = open("910030", &[untranslated]);
    let refused = card.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    for part in ["does not translate coordinates", "update it (tt-flash)"] {
        assert!(refused.message().contains(part), "{part:?} in {refused}");
    }
    assert_eq!(done.written, []);
}
