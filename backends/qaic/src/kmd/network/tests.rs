// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whole conversations with a device that is a function, and everything that it may say.

use super::super::fake_systems::{Files, Scripted};
use super::super::{Errno, System};
use super::*;
use hal_backend::Code;
use hal_qaic_abi::nnc::command::kind;
use hal_qaic_abi::nnc::user::{Message, asks};
use hal_qaic_abi::uapi::{Call, MESSAGE_MAX, ManageMessage};
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

/// A request to a device, which owns its bytes.
#[derive(Clone, Debug, PartialEq)]
enum Asked {
    Command(Vec<u8>),
    Transfer(u32, Vec<u8>),
    Activate(u32),
    Deactivate(u32),
    Version,
}

/// A kernel whose device answers by `answer`, which adds to the message and says what the kernel returns.
fn answering(
    mut answer: impl FnMut(&[Asked], &mut Message) -> Result<(), Errno> + Send + 'static,
) -> Scripted {
    let mut answered = false;
    Scripted::new(move |call, argument| {
        if call == Call::MmapBo {
            // A request for an object that does not exist asks whether the device can be used: it cannot.
            return Err(Errno::NODEV);
        }
        assert_eq!(call, Call::Manage);
        let mut manage = ManageMessage::read_from_bytes(argument).unwrap();
        // SAFETY: a message has room for an answer of the largest size, and no other thread touches it meanwhile.
        let memory = unsafe { &mut *(manage.data as *mut [u8; MESSAGE_MAX]) };
        let asked = asks(&memory[..manage.len as usize], manage.count).unwrap();
        let asked: Vec<Asked> = asked
            .into_iter()
            .map(|ask| match ask {
                Ask::Passthrough(bytes) => Asked::Command(bytes.to_vec()),
                Ask::DmaTransfer { tag, address, size } => {
                    // SAFETY: what a transfer names stays until the message is answered.
                    let bytes = unsafe {
                        std::slice::from_raw_parts(address as *const u8, usize::try_from(size).unwrap())
                    };
                    Asked::Transfer(tag, bytes.to_vec())
                }
                Ask::Activate { elements, .. } => Asked::Activate(elements),
                Ask::Deactivate { channel } => Asked::Deactivate(channel),
                Ask::Status => Asked::Version,
            })
            .collect();
        let mut reply = Message::new();
        let result = match asked.as_slice() {
            [Asked::Version] => {
                let version = Version { major: 5, minor: 0 };
                reply.answer(&Answer::Status { version, status: 0, flags: 0 }).map_err(|_| Errno::INVAL)
            }
            [Asked::Command(bytes)] if !answered && kind(bytes) == Ok(kind::STATUS_REQUEST) => {
                // Opening a device asks for its commands' version; what is asked later is the test's.
                answered = true;
                say(&mut reply, &knows(COMMANDS));
                Ok(())
            }
            asked => answer(asked, &mut reply),
        };
        if matches!(result, Ok(()) | Err(Errno::CANCELED)) {
            memory.copy_from_slice(reply.memory());
            manage.len = u32::try_from(reply.bytes().len()).unwrap();
            manage.count = reply.count();
            argument.copy_from_slice(manage.as_bytes());
        }
        result
    })
}

fn device(system: Scripted) -> Device {
    let system: Arc<dyn System> = Arc::new(system);
    let card = Card::open(system, Path::new("/dev/accel/accel0"), Duration::ZERO).unwrap();
    Device::new(card, None).unwrap()
}

/// The status of a device that knows commands of this version.
fn knows(commands: Version) -> StatusResponse {
    let mut status = StatusResponse::default();
    status.device.commands_major = commands.major.into();
    status.device.commands_minor = commands.minor.into();
    status
}

fn say<T: IntoBytes + hal_qaic_abi::nnc::command::Command>(reply: &mut Message, command: &T) {
    reply.answer(&Answer::Passthrough(command.as_bytes())).unwrap();
}

const ACTIVATED: Answer<'_> = Answer::Activated { status: 0, channel: 6, options: 0 };

fn activated() -> ActivateResponse {
    ActivateResponse {
        activation_id: 11.into(),
        channel: 6.into(),
        ddr_base: 0x1000.into(),
        multicast_base: 0x9000.into(),
        ..ActivateResponse::default()
    }
}

/// Every word that goes to the kernel from the first question to the end of a network, as the kernel's header and the
/// vendor's commands have them. `P` is the process, `A` an address in it.
const TRANSCRIPT: [&str; 6] = [
    "12 8",
    "1 24 | 13 0 | 0 0",
    "1 112 | 3 100 P 3148 7628142 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7 0 0 0 | 0 0 | 5 32 100 0 A A 7 0",
    "1 64 | 9 P 0 8 0 -1 1 -1 1 0 0 0 | 0 0 | 7 24 512 0 0 0",
    "1 32 | 11 11 1 0 | 0 0 | 10 16 6 0",
    "1 24 | 7 8 | 0 0",
];

#[test]
fn activation_has_its_golden_transcript() {
    let said = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let record = said.clone();
    let inner = answering(|asked, reply| {
        let Some(Asked::Command(bytes)) = asked.first() else { panic!("{asked:?}") };
        match command::kind(bytes).unwrap() {
            kind::LOAD_ELF_REQUEST => {
                say(reply, &LoadElfResponse { elf_id: 8.into(), ..Default::default() });
            }
            kind::ACTIVATE_REQUEST => {
                say(reply, &activated());
                reply.answer(&ACTIVATED).unwrap();
            }
            kind::DEACTIVATE_REQUEST => say(reply, &DeactivateResponse::default()),
            _ => say(reply, &UnloadElfResponse::default()),
        }
        Ok(())
    });
    let mut script = inner.script.into_inner();
    let device = device(Scripted::new(move |call, argument| {
        let manage = ManageMessage::read_from_bytes(argument).unwrap();
        // SAFETY: a message has that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(manage.data as *const u8, manage.len as usize) };
        let words = bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap()));
        record.lock().push(words.collect::<Vec<_>>());
        script(call, argument)
    }));
    let network = device.load_network("net", b"network", 0xc4c).unwrap();
    let active = device.activate(network, None, 512, Duration::ZERO).unwrap();
    device.deactivate(&active).unwrap();
    device.unload_network(network).unwrap();
    let said = said.lock();
    assert_eq!(said.len(), TRANSCRIPT.len());
    for (words, expected) in said.iter().zip(TRANSCRIPT) {
        let expected: Vec<&str> = expected.split_whitespace().filter(|word| *word != "|").collect();
        let me = std::process::id().cast_signed();
        let agree = |(word, expected): (&i32, &&str)| match *expected {
            "P" => *word == me,
            "A" => true,
            number => *word == number.parse::<i32>().unwrap(),
        };
        let agrees = words.len() == expected.len() && words.iter().zip(&expected).all(agree);
        assert!(agrees, "{words:?} instead of {expected:?}");
    }
}

#[test]
fn network_is_loaded_activated_deactivated_and_unloaded() {
    let log = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let record = log.clone();
    let device = device(answering(move |asked, reply| {
        let Some(Asked::Command(bytes)) = asked.first() else { panic!("a command comes first: {asked:?}") };
        let kind = command::kind(bytes).unwrap();
        record.lock().push((kind, asked.get(1).cloned()));
        match kind {
            kind::LOAD_CONSTANTS_EX_REQUEST => {
                let (request, rest) = command::read::<LoadConstantsExRequest>(bytes).unwrap();
                assert_eq!((request.descriptor_length.get(), &rest[..4]), (4, &b"desc"[..]));
                say(reply, &LoadConstantsResponse { constants_id: 3.into(), ..Default::default() });
            }
            kind::LOAD_CONSTANTS_PAYLOAD_REQUEST => {
                let (request, _) = command::read::<LoadConstantsPayloadRequest>(bytes).unwrap();
                assert_eq!((request.constants_id.get(), request.tag.get()), (3, 300));
                assert_eq!(request.offset.get(), if request.length.get() == 5 { 0 } else { 64 });
                say(reply, &LoadConstantsResponse { constants_id: 3.into(), ..Default::default() });
            }
            kind::LOAD_ELF_REQUEST => {
                let (request, _) = command::read::<LoadElfRequest>(bytes).unwrap();
                assert_eq!((request.length.get(), request.metadata_crc.get()), (7, 0xc4c));
                say(reply, &LoadElfResponse { elf_id: 8.into(), ..Default::default() });
            }
            kind::ACTIVATE_REQUEST => {
                let (request, _) = command::read::<ActivateRequest>(bytes).unwrap();
                assert_eq!((request.elf_id.get(), request.constants_id.get()), (8, 3));
                say(reply, &activated());
                reply.answer(&ACTIVATED).unwrap();
            }
            kind::DEACTIVATE_REQUEST => say(reply, &DeactivateResponse::default()),
            kind::UNLOAD_ELF_REQUEST => say(reply, &UnloadElfResponse::default()),
            kind::UNLOAD_CONSTANTS_REQUEST => say(reply, &UnloadConstantsResponse::default()),
            kind => panic!("command {kind}"),
        }
        Ok(())
    }));
    let constants = Constants { description: b"desc", fixed: b"fixed", dynamic: b"dyn", dynamic_at: 64 };
    let constants = device.load_constants(&constants).unwrap();
    let network = device.load_network("net", b"\x7fELF...", 0xc4c).unwrap();
    let activation = device.activate(network, Some(constants), 512, Duration::ZERO).unwrap();
    assert_eq!(activation.channel, 6);
    assert_eq!(activation.bases, Bases { ddr: 0x1000, multicast: 0x9000 });
    device.deactivate(&activation).unwrap();
    device.unload_network(network).unwrap();
    device.unload_constants(constants).unwrap();
    let expected = [
        (kind::LOAD_CONSTANTS_EX_REQUEST, None),
        (kind::LOAD_CONSTANTS_PAYLOAD_REQUEST, Some(Asked::Transfer(300, b"fixed".to_vec()))),
        (kind::LOAD_CONSTANTS_PAYLOAD_REQUEST, Some(Asked::Transfer(300, b"dyn".to_vec()))),
        (kind::LOAD_ELF_REQUEST, Some(Asked::Transfer(100, b"\x7fELF...".to_vec()))),
        (kind::ACTIVATE_REQUEST, Some(Asked::Activate(512))),
        (kind::DEACTIVATE_REQUEST, Some(Asked::Deactivate(6))),
        (kind::UNLOAD_ELF_REQUEST, None),
        (kind::UNLOAD_CONSTANTS_REQUEST, None),
    ];
    assert_eq!(*log.lock(), expected);
}

/// The outcome of an activation with this answer.
fn activate(
    answer: impl FnMut(&mut Message) -> Result<(), Errno> + Send + 'static,
    patience: Duration,
) -> Result<Activation, Error> {
    let mut answer = answer;
    device(answering(move |_, reply| answer(reply))).activate(NetworkId(1), None, 1, patience)
}

#[test]
fn devices_refusal_has_its_status_in_every_form_of_answer() {
    let what = ActivateRequest::NAME;
    let refused = |status| Err(Error::Refused { what, status });
    let no_cores = || ActivateResponse { status: (-13).into(), ..Default::default() };
    // The kernel has noticed.
    let noticed = activate(
        move |reply| {
            say(reply, &no_cores());
            reply.answer(&Answer::Activated { status: 9, channel: 0, options: 0 }).unwrap();
            Err(Errno::CANCELED)
        },
        Duration::ZERO,
    );
    assert_eq!(noticed, refused(Status::NO_CORES));
    // The kernel has only passed it on.
    let passed = activate(
        move |reply| {
            say(reply, &no_cores());
            Ok(())
        },
        Duration::ZERO,
    );
    assert_eq!(passed, refused(Status::NO_CORES));
    // The command went well, and there is no channel.
    let setup = activate(
        |reply| {
            say(reply, &activated());
            reply.answer(&Answer::Activated { status: 9, channel: 0, options: 0 }).unwrap();
            Err(Errno::CANCELED)
        },
        Duration::ZERO,
    );
    assert_eq!(setup, refused(Status(9)));
    // There is no reason in the answer.
    assert_eq!(activate(|_| Err(Errno::CANCELED), Duration::ZERO), refused(Status::ERROR));
}

#[test]
fn answer_that_makes_no_sense_is_no_activation() {
    let nonsense = |result: Result<Activation, Error>, says: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Answer { .. }) && error.to_string().contains(says), "{error}");
    };
    nonsense(activate(|_| Ok(()), Duration::ZERO), "no command");
    let alone = activate(
        |reply| {
            say(reply, &activated());
            Ok(())
        },
        Duration::ZERO,
    );
    nonsense(alone, "channel None");
    let other = activate(
        |reply| {
            say(reply, &activated());
            reply.answer(&Answer::Activated { status: 0, channel: 5, options: 0 }).unwrap();
            Ok(())
        },
        Duration::ZERO,
    );
    nonsense(other, "Some(5)");
    let wrong = activate(
        |reply| {
            say(reply, &LoadElfResponse::default());
            Ok(())
        },
        Duration::ZERO,
    );
    nonsense(wrong, "command 4 where 10 belongs");
}

#[test]
fn errno_of_a_message_has_its_meaning() {
    for (errno, expected) in [
        (Errno::PIPE, Error::Checksum { what: ActivateRequest::NAME }),
        (Errno::NODEV, Error::Gone),
        (Errno::TIMEDOUT, Error::NoAnswer { what: ActivateRequest::NAME, waited: Duration::from_secs(60) }),
        (
            Errno::INVAL,
            Error::Answer {
                what: ActivateRequest::NAME,
                why: "the kernel takes it for no answer to this message (errno 22); use firmware and driver of one \
                      release, or look at the kernel's log"
                    .to_owned(),
            },
        ),
        (Errno::NOMEM, Error::Kernel { what: ActivateRequest::NAME, errno: Errno::NOMEM }),
    ] {
        assert_eq!(activate(move |_| Err(errno), Duration::ZERO), Err(expected));
    }
}

#[test]
fn activation_is_tried_again_while_the_sub_system_restarts() {
    let restarting = |times: i32| {
        let mut left = times;
        move |reply: &mut Message| {
            left -= 1;
            if left >= 0 {
                say(reply, &ActivateResponse { status: (-36).into(), ..Default::default() });
                return Err(Errno::CANCELED);
            }
            say(reply, &activated());
            reply.answer(&ACTIVATED).unwrap();
            Ok(())
        }
    };
    assert!(activate(restarting(2), Duration::from_secs(60)).is_ok());
    let refused = activate(restarting(2), Duration::ZERO).unwrap_err();
    assert_eq!(refused, Error::Refused { what: ActivateRequest::NAME, status: Status::RESTARTING });
}

/// A device whose transactions are of this version, and which answers the question for its status so.
fn open(
    transactions: Version,
    status: impl Fn(&mut Message) -> Result<(), Errno> + Send + 'static,
) -> Result<Device, Failure> {
    let system = Scripted::new(move |_, argument| {
        let mut manage = ManageMessage::read_from_bytes(argument).unwrap();
        // SAFETY: `manage.data` is the message's memory, which the system call borrows.
        let memory = unsafe { &mut *(manage.data as *mut [u8; MESSAGE_MAX]) };
        let mut reply = Message::new();
        let result = match asks(&memory[..manage.len as usize], manage.count).unwrap()[..] {
            [Ask::Status] => {
                let version = Answer::Status { version: transactions, status: 0, flags: 1 };
                reply.answer(&version).map_err(|_| Errno::INVAL)
            }
            _ => status(&mut reply),
        };
        memory.copy_from_slice(reply.memory());
        manage.len = u32::try_from(reply.bytes().len()).unwrap();
        argument.copy_from_slice(manage.as_bytes());
        result
    });
    let card = Card::open(Arc::new(system), Path::new("/dev/accel/accel0"), Duration::ZERO).unwrap();
    Device::new(card, None)
}

/// A device that speaks these versions.
fn speaks(transactions: (u16, u16), commands: (u16, u16)) -> Result<Device, Failure> {
    let version = |(major, minor)| Version { major, minor };
    open(version(transactions), move |reply| {
        say(reply, &knows(version(commands)));
        Ok(())
    })
}

#[test]
fn another_major_version_is_refused_and_another_minor_one_is_not() {
    let newer = speaks((5, 7), (17, 0)).unwrap();
    assert_eq!(newer.version(), Version { major: 5, minor: 7 });
    let [warning] = &newer.warnings()[..] else { panic!("{:?}", newer.warnings()) };
    assert!(warning.contains("accel0") && warning.contains("5.7") && warning.contains("5.0"), "{warning}");
    assert!(speaks((5, 0), (17, 0)).unwrap().warnings().is_empty());
    let refused = speaks((4, 0), (17, 0)).unwrap_err();
    assert_eq!(refused.code(), Code::Incompatible);
    assert!(refused.message().contains("4.0") && refused.message().contains("5.0"), "{refused}");
}

#[test]
fn another_major_version_of_commands_is_refused_and_another_minor_one_is_not() {
    for major in [0, 16, 18] {
        let refused = speaks((5, 0), (major, 0)).unwrap_err();
        assert_eq!(refused.code(), Code::Incompatible);
        let says = format!("the device's commands are of version {major}.0, and this driver's of 17.0");
        assert!(refused.message().contains(&says), "{refused}");
    }
    let newer = speaks((5, 1), (17, 3)).unwrap();
    let [transactions, commands] = &newer.warnings()[..] else { panic!("{:?}", newer.warnings()) };
    assert!(transactions.contains("transactions are of version 5.1"), "{transactions}");
    assert!(commands.contains("accel0: the device's commands are of version 17.3"), "{commands}");
}

#[test]
fn device_that_does_not_say_which_commands_it_knows_is_taken_with_a_warning() {
    type Says = fn(&mut Message) -> Result<(), Errno>;
    let refuses: Says = |reply| {
        say(reply, &StatusResponse { status: (-1).into(), ..Default::default() });
        Ok(())
    };
    let is_silent: Says = |_| Ok(());
    let is_short: Says = |reply| {
        reply.answer(&Answer::Passthrough(&knows(COMMANDS).as_bytes()[..496])).map_err(|_| Errno::INVAL)
    };
    for (status, says) in [(refuses, "refuses"), (is_silent, "no command"), (is_short, "504 bytes")] {
        let device = open(TRANSACTIONS, status).unwrap();
        let [warning] = &device.warnings()[..] else { panic!("{:?}", device.warnings()) };
        assert!(warning.contains("which commands") && warning.contains(says), "{warning}");
        assert!(warning.contains("17.0"), "{warning}");
    }
    // An error on the way to the device is no answer.
    for (errno, code) in [(Errno::PIPE, Code::DataLoss), (Errno::TIMEDOUT, Code::DeadlineExceeded)] {
        assert_eq!(open(TRANSACTIONS, move |_| Err(errno)).unwrap_err().code(), code);
    }
}

#[test]
fn network_for_other_firmware_or_hardware_is_refused_and_which_is_newer_is_said() {
    let version = |major, minor| Version { major, minor };
    let device = |metadata: Version, hardware: Version| {
        open(TRANSACTIONS, move |reply| {
            let mut status = knows(COMMANDS);
            status.device.metadata_major = metadata.major.into();
            status.device.metadata_minor = metadata.minor.into();
            status.device.hardware_version = (u32::from(hardware.major) << 16 | 7).into();
            say(reply, &status);
            Ok(())
        })
        .unwrap()
    };
    let network = |version, hardware| Network { version, hardware, ..Network::default() };
    let refusal = |device: &Device, metadata, hardware| {
        let refused = device.suits(&network(metadata, hardware)).unwrap_err().failure("accel0");
        assert_eq!(refused.code(), Code::Incompatible);
        refused.message().to_owned()
    };
    let sold = device(version(1, 3), version(2, 0));
    assert_eq!(sold.suits(&network(version(1, 0), version(2, 9))), Ok(()), "minor numbers may differ");
    let older = refusal(&sold, version(0, 12), version(2, 0));
    assert!(
        older.contains("0.12") && older.contains("1.3") && older.contains("the device is newer"),
        "{older}"
    );
    let other = refusal(&sold, version(1, 0), version(1, 0));
    assert!(other.contains("hardware 1.0, and the device is 2.7"), "{other}");
    let newer = refusal(&device(version(0, 12), version(2, 0)), version(1, 0), version(2, 0));
    assert!(newer.contains("the network is newer") && newer.contains("update the firmware"), "{newer}");
    let silent = open(TRANSACTIONS, |_| Ok(())).unwrap();
    let any = network(version(0, 12), version(1, 0));
    assert_eq!(silent.suits(&any), Ok(()), "a device that does not describe itself");
}

#[test]
fn network_that_takes_more_than_the_whole_device_is_refused_by_what_it_takes() {
    let device = |cores: u8, mebibytes: u32| {
        open(TRANSACTIONS, move |reply| {
            let mut status = knows(COMMANDS);
            status.device.metadata_major = 1.into();
            status.device.hardware_version = (2 << 16).into();
            status.device.resources.cores_total = cores;
            status.device.resources.dram_total = mebibytes.into();
            say(reply, &status);
            Ok(())
        })
        .unwrap()
    };
    let network = |cores, semaphores, ddr| Network {
        cores,
        semaphores: vec![0; semaphores],
        ddr,
        ..Network::default()
    };
    let small = device(14, 1);
    assert_eq!(small.suits(&network(14, 32, 1 << 20)), Ok(()));
    for (network, says) in [
        (network(16, 0, 0), "16 cores, and the whole device has 14"),
        (network(0, 33, 0), "33 semaphores, and the whole device has 32"),
        (network(0, 0, 1 << 40), "1099511627776 bytes of memory, and the whole device has 1048576"),
    ] {
        let refused = small.suits(&network).unwrap_err().failure("accel0");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains(says) && refused.message().contains("compile it"), "{refused}");
    }
    assert_eq!(device(0, 0).suits(&network(16, 32, 1 << 40)), Ok(()), "a device that counts nothing");
}

#[test]
fn shorter_timeout_is_kept_and_a_longer_one_is_refused() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let mut slow = answering(move |_, _| {
        // Until the test is over.
        let _ = held.recv();
        Err(Errno::IO)
    });
    slow.files = Files::new([("/sys/module/qaic/parameters/control_resp_timeout_s", "3600\n".to_owned())]);
    let card = Card::open(Arc::new(slow), Path::new("/dev/accel/accel0"), Duration::ZERO).unwrap();
    let refused = Device::new(card.clone(), Some(Duration::from_secs(3601))).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("control_resp_timeout_s"), "{refused}");
    let device = Device::new(card, Some(Duration::from_millis(50))).unwrap();
    let begin = Instant::now();
    let waited = Duration::from_millis(50);
    let expected = Error::NoAnswer { what: UnloadElfRequest::NAME, waited };
    assert_eq!(device.unload_network(NetworkId(1)), Err(expected));
    assert!(begin.elapsed() < Duration::from_secs(30));
    drop(hold);
}

#[test]
fn device_describes_itself() {
    let device = device(answering(|_, reply| {
        let mut answer = StatusResponse::default();
        answer.device.commands_major = 17.into();
        answer.device.resources.cores_total = 16;
        answer.device.resources.cores_free = 14;
        say(reply, &answer);
        Ok(())
    }));
    let information = device.information().unwrap();
    assert_eq!(information.commands(), Version { major: 17, minor: 0 });
    assert_eq!((information.resources.cores_total, information.resources.cores_free), (16, 14));
}

/// Numbers that look random, and are the same each time.
struct Noise(u64);

impl Noise {
    /// A number below this one.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// Says something in the place of an answer: its bytes with some of them changed, cut short, padded, or anything at
/// all; with a length and a count that need not be theirs.
fn distort(noise: &mut Noise, memory: &mut [u8; MESSAGE_MAX], manage: &mut ManageMessage) {
    match noise.below(6) {
        0 => manage.len = u32::try_from(noise.below(manage.len as usize + 1)).unwrap(),
        1 => manage.len += u32::try_from(noise.below(64)).unwrap(),
        2 => (manage.len, manage.count) = (u32::MAX, u32::MAX),
        3 => {
            manage.len = u32::try_from(noise.below(MESSAGE_MAX + 9)).unwrap();
            memory.iter_mut().for_each(|byte| *byte = u8::try_from(noise.below(256)).unwrap());
        }
        _ => {
            for _ in 0..=noise.below(3) {
                let place = noise.below((manage.len as usize).max(1));
                memory[place] = u8::try_from([0, 1, 7, 8, 16, 0x7f, 0xff][noise.below(7)]).unwrap();
            }
        }
    }
    if noise.below(8) == 0 {
        manage.count = u32::try_from(noise.below(600)).unwrap();
    }
}

#[test]
fn device_that_answers_anything_is_refused_or_understood_and_the_next_message_is_sent() {
    let mut noise = Noise(13);
    let garbage = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let distorted = garbage.clone();
    let mut inner = answering(|asked, reply| {
        let Some(Asked::Command(bytes)) = asked.first() else { panic!("{asked:?}") };
        match command::kind(bytes).unwrap() {
            kind::LOAD_ELF_REQUEST => {
                say(reply, &LoadElfResponse { elf_id: 8.into(), ..Default::default() });
            }
            kind::ACTIVATE_REQUEST => {
                say(reply, &activated());
                reply.answer(&ACTIVATED).unwrap();
            }
            kind::DEACTIVATE_REQUEST => say(reply, &DeactivateResponse::default()),
            _ => say(reply, &UnloadElfResponse::default()),
        }
        Ok(())
    })
    .script
    .into_inner();
    let device = device(Scripted::new(move |call, argument| {
        let result = inner(call, argument);
        if call != Call::Manage || !distorted.load(std::sync::atomic::Ordering::Relaxed) {
            return result;
        }
        let mut manage = ManageMessage::read_from_bytes(argument).unwrap();
        // SAFETY: `manage.data` is the message's memory, which the system call borrows.
        let memory = unsafe { &mut *(manage.data as *mut [u8; MESSAGE_MAX]) };
        distort(&mut noise, memory, &mut manage);
        argument.copy_from_slice(manage.as_bytes());
        if noise.below(5) == 0 { Err(Errno::CANCELED) } else { result }
    }));
    let (mut understood, mut refused) = (0, 0);
    for round in 0..1500 {
        garbage.store(true, std::sync::atomic::Ordering::Relaxed);
        let result = match round % 4 {
            0 => device.load_network("net", b"network", 0).map(drop),
            1 => device.activate(NetworkId(8), None, 8, Duration::ZERO).map(drop),
            2 => device.unload_network(NetworkId(8)),
            _ => device.deactivate(&Activation { id: 11, channel: 6, bases: Bases { ddr: 0, multicast: 0 } }),
        };
        match result {
            Ok(()) => understood += 1,
            Err(Error::Answer { .. } | Error::Refused { .. }) => refused += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
        garbage.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(device.unload_network(NetworkId(8)), Ok(()), "round {round}: the next message");
    }
    assert!(understood > 50 && refused > 500, "{understood} understood, {refused} refused");
}

#[test]
fn first_command_of_an_answer_counts_and_a_refusal_without_a_status_is_one() {
    let device = device(answering(|_, reply| {
        say(reply, &LoadElfResponse { elf_id: 3.into(), ..LoadElfResponse::default() });
        say(reply, &LoadElfResponse { elf_id: 4.into(), status: (-4).into(), ..LoadElfResponse::default() });
        Ok(())
    }));
    assert_eq!(device.load_network("twice", b"image", 0), Ok(NetworkId(3)));
    let refused = Scripted::new(|_, argument| {
        let mut manage = ManageMessage::read_from_bytes(argument).unwrap();
        // SAFETY: `manage.data` is the message's memory, which the system call borrows.
        let memory = unsafe { &mut *(manage.data as *mut [u8; MESSAGE_MAX]) };
        let mut reply = Message::new();
        let version = Answer::Status { version: TRANSACTIONS, status: 0, flags: 0 };
        reply.answer(&version).unwrap();
        memory.copy_from_slice(reply.memory());
        manage.len = u32::try_from(reply.bytes().len()).unwrap();
        argument.copy_from_slice(manage.as_bytes());
        Err(Errno::CANCELED)
    });
    let card = Card::open(Arc::new(refused), Path::new("/dev/accel/accel0"), Duration::ZERO).unwrap();
    let failure = Device::new(card, None).map(drop).unwrap_err();
    assert!(failure.message().contains("the device refuses"), "{failure}");
}

#[test]
fn restart_that_is_given_up_is_not_waited_for() {
    let (sender, refused) = std::sync::mpsc::channel();
    let device = device(answering(move |_, reply| {
        let _ = sender.send(());
        say(reply, &ActivateResponse { status: Status::RESTARTING.0.into(), ..ActivateResponse::default() });
        Ok(())
    }));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let activation = scope.spawn(|| device.activate(NetworkId(1), None, 8, Duration::from_secs(20)));
        refused.recv().unwrap();
        device.give_up();
        let result = activation.join().unwrap();
        assert!(matches!(result, Err(Error::Refused { status: Status::RESTARTING, .. })), "{result:?}");
    });
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}
