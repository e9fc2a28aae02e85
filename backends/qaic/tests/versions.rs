// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Devices whose versions are not this driver's: which are taken, and what the user of the program reads.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

use emulator_qaic::programs::card_programs;
use emulator_qaic::{Emulator, Options};
use hal_backend::{Code, Failure, HostRange, Parameters};
use hal_qaic::kmd::uapi::{Call, ManageMessage};
use hal_qaic::kmd::{Errno, System};
use hal_qaic::{Qaic, QaicDevice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The offset of the minor version in the answer that has the version of transactions.
const TRANSACTIONS_MINOR: usize = 10;
/// The offset of the versions in the answer that has the device's status: behind the transaction's header, the
/// command's and what comes before in the description of the device.
const COMMANDS_MAJOR: usize = 8 + 16 + 262;
const COMMANDS_MINOR: usize = COMMANDS_MAJOR + 2;
/// The kinds of a transaction and of a command that answer those questions.
const STATUS_TRANSACTION: u32 = 14;
const STATUS_RESPONSE: u32 = 14;

/// A driver and a card like the emulated ones, whose firmware is of another release.
struct Firmware {
    emulator: Arc<Emulator>,
    transactions_minor: u16,
    commands: (u16, u16),
}

impl Firmware {
    /// Changes the versions in an answer.
    fn change(&self, answer: &mut [u8]) {
        let word =
            |at: usize| answer.get(at..at + 4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let kinds = (word(0), word(8));
        let mut put = |at: usize, value: u16| answer[at..at + 2].copy_from_slice(&value.to_le_bytes());
        match kinds {
            (Some(STATUS_TRANSACTION), _) => put(TRANSACTIONS_MINOR, self.transactions_minor),
            (_, Some(STATUS_RESPONSE)) => {
                put(COMMANDS_MAJOR, self.commands.0);
                put(COMMANDS_MINOR, self.commands.1);
            }
            _ => {}
        }
    }
}

impl System for Firmware {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.emulator.open(path)
    }

    fn close(&self, file: OwnedFd) {
        self.emulator.close(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.emulator.ioctl(file, request, argument)?;
        if Call::of_request(request) == Some(Call::Manage) {
            let message: ManageMessage = zerocopy::FromBytes::read_from_bytes(argument).unwrap();
            // SAFETY: the sender of a message keeps its memory until this returns, and the answer in it has that many
            // bytes.
            let answer =
                unsafe { std::slice::from_raw_parts_mut(message.data as *mut u8, message.len as usize) };
            self.change(answer);
        }
        Ok(())
    }

    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        self.emulator.map(file, length, offset)
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        self.emulator.read(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        self.emulator.list(path)
    }
}

/// Opens a card with this firmware.
fn open(transactions_minor: u16, commands: (u16, u16)) -> Result<QaicDevice, Failure> {
    let mut none = Parameters::new("qaic", []);
    let emulator = Emulator::new(Options::read(&mut none).unwrap()).unwrap();
    let system = Arc::new(Firmware { emulator: emulator.clone(), transactions_minor, commands });
    <Qaic>::open_on(system, Path::new("/dev/accel/accel0"), Some(card_programs(emulator)), &mut none)
}

#[test]
fn device_with_other_commands_is_refused_with_advice() {
    for major in [16, 18] {
        let refused = open(0, (major, 0)).map(drop).unwrap_err();
        assert_eq!(refused.code(), Code::Incompatible, "{refused}");
        let message = refused.message();
        assert!(message.contains("accel0") && message.contains(&format!("{major}.0")), "{message}");
        assert!(message.contains("17.0") && message.contains("of one release"), "{message}");
    }
}

#[test]
fn device_that_is_opened_shows_its_versions() {
    let info = open(5, (17, 2)).unwrap().info();
    assert_eq!(info.warnings.len(), 2, "{info}");
    let text = info.to_string();
    for line in [
        "transactions:  5.5, here 5.0",
        "commands:      17.2, here 17.0",
        "module:        datapath_polling",
        "warning:       /dev/accel/accel0",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(open(0, (17, 0)).unwrap().info().warnings.is_empty());
}

/// Which part a process of this program plays.
const PART: &str = "HAL_QAIC_TEST_VERSIONS";

#[test]
fn other_minor_version_warns_on_standard_error_once_for_each_device() {
    match std::env::var(PART).as_deref() {
        Ok("same") => return drop(open(0, (17, 0)).unwrap()),
        Ok("newer") => return drop(open(5, (17, 1)).unwrap()),
        _ => {}
    }
    let said = |part: &str| {
        let this = "other_minor_version_warns_on_standard_error_once_for_each_device";
        let mut program = Command::new(std::env::current_exe().unwrap());
        let output = program.args(["--exact", this, "--nocapture"]).env(PART, part).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text.lines().filter(|line| line.contains("hal-qaic:")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(said("same"), [""; 0]);
    let lines = said("newer");
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, what, device, ours) in
        [(&lines[0], "transactions", "5.5", "5.0"), (&lines[1], "commands", "17.1", "17.0")]
    {
        let says = format!("hal-qaic: /dev/accel/accel0: the device's {what} are of version {device}");
        assert!(line.starts_with(&says) && line.contains(&format!("this driver's of {ours}")), "{line}");
    }
}
