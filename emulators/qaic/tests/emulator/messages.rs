// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages: `qaic_manage_ioctl`, `encode_message`, `decode_message` and the functions for each transaction.

use crate::common::{Card, card, faulty, image, open, options, passthrough};
use emulator_core::{Errno, interrupt};
use emulator_qaic::programs as emulated;
use emulator_qaic::{Counts, Options};
use hal_qaic_abi::container::{Network, elf};
use hal_qaic_abi::nnc::command::{
    self, ActivationStateRequest, ActivationStateResponse, CreateGroupRequest, CreateGroupResponse,
    LoadConstantsExRequest, LoadConstantsPayloadRequest, LoadConstantsRequest, LoadConstantsResponse,
    PerformanceInfoRequest, PerformanceInfoResponse, ReleaseGroupRequest, ReleaseGroupResponse,
    ResourceInfoRequest, ResourceInfoResponse, Resources, StateChange, Status, StatusRequest, StatusResponse,
    UnloadConstantsRequest, UnloadConstantsResponse, UnloadElfRequest, UnloadElfResponse, activation,
};
use hal_qaic_abi::nnc::transaction::{
    ACTIVATE_FROM_USER, DEACTIVATE_FROM_USER, DMA_TRANSFER_FROM_USER, PASSTHROUGH_FROM_USER,
    PASSTHROUGH_TO_DEVICE, STATUS_FROM_USER,
};
use hal_qaic_abi::nnc::user::{Answer, Ask, answers};
use hal_qaic_abi::nnc::{TRANSACTIONS, Version};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A message of raw words, in memory for the answer.
fn raw(words: &[u32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(4096, 0);
    bytes
}

#[test]
fn each_wrong_message_is_refused() {
    let card = card(options());
    let status = [STATUS_FROM_USER, 8];
    // As long as the program says, also on its way to the device.
    let mut long = [0; 1024];
    (long[0], long[1], long[512], long[513]) = (STATUS_FROM_USER, 2048, STATUS_FROM_USER, 2048);
    for (name, words, len, count, error) in [
        ("good", &status[..], 8, 1, None),
        ("longer than its memory", &status, 4097, 1, Some(Errno::INVAL)),
        ("no transactions", &status, 8, 0, Some(Errno::INVAL)),
        ("too many transactions", &status, 8, 513, Some(Errno::INVAL)),
        ("shorter than a header", &status, 4, 1, Some(Errno::INVAL)),
        ("fewer bytes than transactions", &status, 8, 2, Some(Errno::INVAL)),
        ("bytes behind the last one", &[STATUS_FROM_USER, 8, 0, 0], 16, 1, Some(Errno::INVAL)),
        ("shorter than its own header", &[STATUS_FROM_USER, 4], 8, 1, Some(Errno::INVAL)),
        ("longer than the message", &[STATUS_FROM_USER, 16], 8, 1, Some(Errno::INVAL)),
        ("an unknown kind", &[99, 8], 8, 1, Some(Errno::INVAL)),
        ("more than the device takes", &long, 4096, 2, Some(Errno::NOSPC)),
        ("a kind for the device", &[PASSTHROUGH_TO_DEVICE, 8], 8, 1, Some(Errno::INVAL)),
        ("a command of half a word", &[PASSTHROUGH_FROM_USER, 12, 1], 12, 1, Some(Errno::INVAL)),
        ("rings without elements", &[ACTIVATE_FROM_USER, 24, 0, 0, 0, 0], 24, 1, Some(Errno::INVAL)),
        ("an activation with padding", &[ACTIVATE_FROM_USER, 24, 8, 0, 0, 1], 24, 1, Some(Errno::INVAL)),
        ("too many elements", &[ACTIVATE_FROM_USER, 24, u32::MAX, 0, 0, 0], 24, 1, Some(Errno::INVAL)),
        ("an activation that is a header", &[ACTIVATE_FROM_USER, 8], 8, 1, Some(Errno::INVAL)),
        ("a transfer that is a header", &[DMA_TRANSFER_FROM_USER, 8], 8, 1, Some(Errno::INVAL)),
        (
            "a deactivation that is a header is of channel 0",
            &[DEACTIVATE_FROM_USER, 8],
            8,
            1,
            Some(Errno::PERM),
        ),
        ("channel 16", &[DEACTIVATE_FROM_USER, 16, 16, 0], 16, 1, Some(Errno::INVAL)),
        ("a deactivation with padding", &[DEACTIVATE_FROM_USER, 16, 0, 1], 16, 1, Some(Errno::INVAL)),
        ("another user's channel", &[DEACTIVATE_FROM_USER, 16, 0, 0], 16, 1, Some(Errno::PERM)),
        ("an empty transfer", &[DMA_TRANSFER_FROM_USER, 32, 0, 0, 64, 0, 0, 0], 32, 1, Some(Errno::INVAL)),
        (
            "a transfer of nothing",
            &[DMA_TRANSFER_FROM_USER, 32, 0, 0, 64, 0, 64, 0],
            32,
            1,
            Some(Errno::FAULT),
        ),
        (
            "a transfer past the end",
            &[DMA_TRANSFER_FROM_USER, 32, 0, 0, u32::MAX, u32::MAX, 64, 0],
            32,
            1,
            Some(Errno::INVAL),
        ),
    ] {
        let mut memory = raw(words);
        let before = memory.clone();
        let (result, answer) = card.manage_raw(&mut memory, len, count);
        assert_eq!(result.err(), error, "{name}");
        if error.is_some() {
            assert_eq!((answer.len, answer.count), (len, count), "{name}: left as it was");
            assert_eq!(memory, before, "{name}");
        }
    }
    assert_eq!(card.counts().mapped, 0);
}

#[test]
fn rings_that_no_channel_takes_are_released() {
    let card = card(options());
    let rings = [ACTIVATE_FROM_USER, 24, 8, 0, 0, 0];
    // The message asks the device for no network, so that it gives no channel.
    let mut memory = raw(&[rings, rings].concat());
    let (result, answer) = card.manage_raw(&mut memory, 48, 2);
    assert_eq!((result, answer.len, answer.count), (Ok(()), 0, 0));
    assert_eq!((card.counts().mapped, card.counts().channels), (0, 0));
}

#[test]
fn memory_that_is_not_there_is_a_fault() {
    use hal_qaic_abi::uapi::{Call, ManageMessage};
    let card = card(options());
    let message = ManageMessage { len: 8, count: 1, data: 64 };
    assert_eq!(card.call(Call::Manage, &message).0, Err(Errno::FAULT));
}

#[test]
fn device_reports_its_version_and_resources() {
    let card = card(options());
    let (result, bytes) = card.manage(&[Ask::Status]);
    assert_eq!(result, Ok(()));
    let expected = Answer::Status { version: Version { major: 5, minor: 0 }, status: 0, flags: 1 };
    assert_eq!(answers(&bytes).unwrap(), [expected]);
    assert_eq!(TRANSACTIONS, Version { major: 5, minor: 0 });
    let status: StatusResponse = card.command(&command::request(&StatusRequest::default(), &[]));
    assert_eq!((status.status.get(), status.device.commands().major), (0, 17));
    // What the vendor's runtime insists on (`QRuntimeManager.cpp`, `QProgramDevice.cpp`, `QRuntime.cpp`).
    assert_eq!(status.device.metadata(), Version { major: 1, minor: 0 });
    assert_eq!((status.device.hardware().major, status.format), (2, 12));
    let resources = resources(&card, WHOLE).1;
    assert_eq!((resources.channels_total, resources.channels_free, resources.cores_free), (16, 16, 16));
    assert_eq!((resources.dram_total.get(), resources.dram_free.get()), (1024, 1024));
    assert_eq!((resources.semaphores_total.get(), resources.semaphores_free.get()), (512, 512));
    let performance: PerformanceInfoResponse =
        card.command(&command::request(&PerformanceInfoRequest::default(), &[]));
    assert_eq!((performance.status.get(), performance.performance), (0, status.device.performance));
}

/// The group of a request that is about the whole device.
const WHOLE: i32 = -1;

/// The resources of a group.
fn resources(card: &Card, group: i32) -> (Status, Resources) {
    let request = ResourceInfoRequest { group: group.into(), ..Default::default() };
    let answer: ResourceInfoResponse = card.command(&command::request(&request, &[]));
    assert_eq!(answer.group.get(), group);
    (Status(answer.status.get()), answer.resources)
}

/// Sets resources apart, of another group if there is one.
fn create_group(card: &Card, source: i32, change: impl Fn(&mut CreateGroupRequest)) -> Result<i32, Status> {
    let mut request = CreateGroupRequest { source: source.into(), ..Default::default() };
    change(&mut request);
    let answer: CreateGroupResponse = card.command(&command::request(&request, &[]));
    let status = Status(answer.status.get());
    if status.is_success() { Ok(answer.group.get()) } else { Err(status) }
}

fn release_group(card: &Card, group: i32) -> Status {
    let request = ReleaseGroupRequest { group: group.into(), ..Default::default() };
    let answer: ReleaseGroupResponse = card.command(&command::request(&request, &[]));
    Status(answer.status.get())
}

#[test]
fn resources_of_a_group_are_nobody_elses_until_it_is_released() {
    let card = card(options());
    let free = |group: i32| {
        let (status, free) = resources(&card, group);
        assert_eq!(status, Status::SUCCESS);
        let few = [free.cores_free, free.channels_free].map(u32::from);
        (few, [free.dram_free, free.semaphores_free, free.multicasts_free].map(u32::from))
    };
    assert_eq!(free(WHOLE), ([16, 16], [1024, 512, 1024]));
    // As the vendor's `qaic-device-partition` asks.
    let group = create_group(&card, WHOLE, |request| {
        (request.cores, request.channels) = (15.into(), 1.into());
        (request.semaphores, request.multicasts) = (20.into(), 10.into());
        let sizes = [1_u64 << 20, 2 << 20, 4 << 20].map(Into::into);
        [request.shared_memory, request.l2_memory, request.memory] = sizes;
        request.networks = 1.into();
    });
    let group = group.unwrap();
    assert_eq!(free(WHOLE), ([1, 15], [1017, 492, 1014]));
    assert_eq!(free(group), ([15, 1], [7, 20, 10]));
    // A network finds what is left, and a second one does not.
    let active = card.channel(8);
    let (result, bytes) = card.try_activate(active.elf, 8);
    assert_eq!(result, Err(Errno::CANCELED));
    assert_eq!(passthrough::<command::ActivateResponse>(&bytes).status.get(), Status::NO_CORES.0);
    // A group of a group keeps it.
    let part = create_group(&card, group, |request| request.cores = 5.into()).unwrap();
    assert_eq!((free(group).0, free(part).0), ([10, 1], [5, 0]));
    assert_eq!(release_group(&card, group), Status::NOT_PERMITTED);
    assert_eq!((release_group(&card, part), release_group(&card, group)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(free(WHOLE).0, [15, 15]);
    assert_eq!(card.try_activate(active.elf, 8).0, Ok(()));
}

#[test]
fn group_that_is_none_or_another_users_or_too_large_is_refused() {
    let card = card(options());
    let other = open(&card.emulator, 0);
    let group = create_group(&card, WHOLE, |request| request.cores = 1.into()).unwrap();
    for (number, status) in
        [(group, Status::NOT_PERMITTED), (group + 1, Status::NOT_FOUND), (-2, Status::NOT_FOUND)]
    {
        assert_eq!(resources(&other, number).0, status);
        assert_eq!(release_group(&other, number), status);
        assert_eq!(create_group(&other, number, |_| ()), Err(status));
    }
    assert_eq!(release_group(&other, WHOLE), Status::NOT_FOUND);
    // Which number says that an activation is within a group is in no public source.
    let request = command::ActivateRequest {
        reservation_type: 1.into(),
        resource_reservation: group.into(),
        ..Default::default()
    };
    let (result, bytes) = card.manage(&[Ask::Passthrough(&command::request(&request, &[]))]);
    assert_eq!(result, Ok(()));
    assert_eq!(passthrough::<command::ActivateResponse>(&bytes).status.get(), Status::PARAMETER.0);
    type Change = fn(&mut CreateGroupRequest);
    let changes: [(Change, Status); 7] = [
        (|request| request.cores = 16.into(), Status::NO_CORES),
        (|request| request.channels = 17.into(), Status::NO_CHANNEL),
        (|request| request.semaphores = 513.into(), Status::NO_SEMAPHORES),
        (|request| request.multicasts = u32::MAX.into(), Status::NO_MULTICAST),
        (|request| request.memory = ((1_u64 << 30) + 1).into(), Status::MEMORY),
        (|request| request.l2_memory = u64::MAX.into(), Status::MEMORY),
        (
            |request| (request.shared_memory, request.memory) = (u64::MAX.into(), u64::MAX.into()),
            Status::MEMORY,
        ),
    ];
    for (number, (change, status)) in changes.into_iter().enumerate() {
        assert_eq!(create_group(&other, WHOLE, change), Err(status), "{number}");
    }
    // A user's groups go with it.
    create_group(&other, WHOLE, |request| request.cores = 15.into()).unwrap();
    assert_eq!(resources(&card, WHOLE).1.cores_free, 0);
    drop(other);
    assert_eq!(resources(&card, WHOLE).1.cores_free, 15);
}

#[test]
fn states_of_active_networks_are_changed_by_their_own_user() {
    let card = card(options());
    let active = card.channel(8);
    let change = |card: &Card, count: u32, state: i32| {
        let mut request = ActivationStateRequest { count: count.into(), ..Default::default() };
        request.changes.fill(StateChange { activation_id: active.id.into(), state: state.into() });
        let answer: ActivationStateResponse = card.command(&command::request(&request, &[]));
        Status(answer.status.get())
    };
    for state in [activation::STANDBY, activation::READY, activation::STOPPING] {
        assert_eq!(change(&card, 8, state), Status::SUCCESS);
    }
    assert_eq!(change(&card, 1, 3), Status::PARAMETER);
    assert_eq!(change(&card, 9, activation::READY), Status::PARAMETER);
    assert_eq!(change(&card, 0, 3), Status::SUCCESS, "nothing is asked for");
    assert_eq!(change(&open(&card.emulator, 0), 1, activation::READY), Status::NOT_PERMITTED);
}

#[test]
fn network_whose_metadata_the_firmware_does_not_read_is_refused_when_it_is_loaded() {
    let card = card(options());
    let network = |major, minor| {
        let version = Version { major, minor };
        Network { name: "net".to_owned(), version, ..Network::default() }.image()
    };
    assert_eq!(card.load(&network(1, 0)).status.get(), 0);
    assert_eq!(card.load(&network(0, 12)).status.get(), Status::METADATA.0);
}

#[test]
fn device_without_checksums_answers_without_them() {
    let card = card(Options { crc: false, ..options() });
    let (result, bytes) = card.manage(&[Ask::Status]);
    assert_eq!(result, Ok(()));
    assert!(matches!(answers(&bytes).unwrap()[..], [Answer::Status { flags: 0, .. }]));
}

/// Constants in one piece.
fn load_constants(card: &Card, bytes: &[u8], crc: u32) -> LoadConstantsResponse {
    let length = bytes.len() as u64;
    let request = LoadConstantsRequest {
        tag: 300.into(),
        crc: crc.into(),
        length: length.into(),
        ..Default::default()
    };
    let request = command::request(&request, &[]);
    let transfer = Ask::DmaTransfer { tag: 300, address: bytes.as_ptr() as u64, size: length };
    let (result, answer) = card.manage(&[Ask::Passthrough(&request), transfer]);
    assert_eq!(result, Ok(()));
    passthrough(&answer)
}

#[test]
fn constants_are_loaded_whole_or_in_parts() {
    let card = card(options());
    let bytes = vec![5; 10_000];
    let crc = hal_qaic_abi::nnc::crc::crc32(&bytes);
    let loaded = load_constants(&card, &bytes, crc);
    assert_eq!((loaded.status.get(), card.counts().allocated_bytes), (0, 10_000));
    assert_eq!(load_constants(&card, &bytes, crc ^ 1).status.get(), Status::METADATA.0);
    let room: LoadConstantsResponse =
        card.command(&command::request(&LoadConstantsExRequest::default(), &[]));
    let part = LoadConstantsPayloadRequest {
        tag: 7.into(),
        constants_id: room.constants_id,
        length: 10_000.into(),
        offset: 5_000.into(),
        ..Default::default()
    };
    let part = command::request(&part, &[]);
    let transfer = Ask::DmaTransfer { tag: 7, address: bytes.as_ptr() as u64, size: 10_000 };
    assert_eq!(card.manage(&[Ask::Passthrough(&part), transfer]).0, Ok(()));
    assert_eq!(card.counts().allocated_bytes, 25_000);
    assert_eq!(card.counts().mapped, 0, "the memory was the device's for the message alone");
}

#[test]
fn parts_of_constants_that_the_device_cannot_have_are_refused_each_with_its_status() {
    let card = card(options());
    let room: LoadConstantsResponse =
        card.command(&command::request(&LoadConstantsExRequest::default(), &[]));
    let bytes = [7; 100];
    for (name, tag, constants, length, offset, status) in [
        ("good", 7, room.constants_id.get(), 100, 0, Status::SUCCESS),
        ("a transfer with another tag", 8, room.constants_id.get(), 100, 0, Status::PARAMETER),
        ("more than was transferred", 7, room.constants_id.get(), 101, 0, Status::LENGTH),
        ("constants that are not there", 7, 999, 100, 0, Status::NOT_FOUND),
        ("past all memory", 7, room.constants_id.get(), 100, 1 << 50, Status::MEMORY),
        ("past the end of numbers", 7, room.constants_id.get(), 100, u64::MAX - 50, Status::PARAMETER),
        ("to the end of memory", 7, room.constants_id.get(), 100, (1 << 30) - 100, Status::SUCCESS),
        ("nothing is left", 7, room.constants_id.get(), 100, (1 << 30) - 99, Status::MEMORY),
    ] {
        let part = LoadConstantsPayloadRequest {
            tag: 7.into(),
            constants_id: constants.into(),
            length: length.into(),
            offset: u64::into(offset),
            ..Default::default()
        };
        let part = command::request(&part, &[]);
        let transfer = Ask::DmaTransfer { tag, address: bytes.as_ptr() as u64, size: 100 };
        let (result, answer) = card.manage(&[Ask::Passthrough(&part), transfer]);
        assert_eq!(result, Ok(()), "{name}");
        let answer: LoadConstantsResponse = passthrough(&answer);
        assert_eq!(answer.status.get(), status.0, "{name}");
    }
    assert_eq!(card.counts().allocated_bytes, 1 << 30);
    let request = UnloadConstantsRequest { constants_id: room.constants_id, ..Default::default() };
    let unloaded: UnloadConstantsResponse = card.command(&command::request(&request, &[]));
    assert_eq!((unloaded.status.get(), card.counts().allocated_bytes), (0, 0));
}

#[test]
fn transfer_of_many_pieces_goes_in_chunks() {
    // 4096 pieces; a message has room for fewer.
    let card = card(Options { segment: Some(4096), ..options() });
    let bytes: Vec<u8> = (0..16_u32 << 20).map(|at| (at >> 9) as u8).collect();
    let crc = hal_qaic_abi::nnc::crc::crc32(&bytes);
    let before = card.counts().messages;
    assert_eq!(load_constants(&card, &bytes, crc).status.get(), 0);
    assert_eq!(card.counts().messages, before + 2, "two messages, each with an answer");
    assert_eq!(card.counts().mapped, 0);
}

#[test]
fn transaction_that_is_shorter_than_its_structure_has_what_follows_it() {
    let card = card(options());
    let (zero, one) = (card.channel(8), card.channel(8));
    assert_eq!((zero.channel, one.channel), (0, 1));
    // The channel is where the next transaction's kind is.
    let mut memory = raw(&[DEACTIVATE_FROM_USER, 8, PASSTHROUGH_FROM_USER, 8]);
    assert_eq!(card.manage_raw(&mut memory, 16, 2).0, Err(Errno::INVAL), "its length is the padding");
    let mut memory = raw(&[DEACTIVATE_FROM_USER, 8]);
    assert_eq!(card.manage_raw(&mut memory, 8, 1).0, Ok(()), "behind the message are zeros");
    let handle = card.create(4096).unwrap();
    assert_eq!(card.execute(0, &[handle]), Err(Errno::PERM), "channel 0 is disabled");
    assert_eq!(card.execute(1, &[handle]), Err(Errno::INVAL), "channel 1 is not: the object is not sliced");
}

#[test]
fn second_transfer_of_a_message_begins_behind_as_many_bytes_as_the_first_had() {
    let card = card(options());
    let bytes: Vec<u8> = (0..30_000_u32).map(|at| (at >> 5) as u8).collect();
    let load = |first: u64, second: u64, crc: u32| {
        let length = second.saturating_sub(first);
        let request = LoadConstantsRequest {
            tag: 2.into(),
            crc: crc.into(),
            length: length.into(),
            ..Default::default()
        };
        let request = command::request(&request, &[]);
        let address = bytes.as_ptr() as u64;
        let transfer = |tag, size| Ask::DmaTransfer { tag, address, size };
        card.manage(&[Ask::Passthrough(&request), transfer(1, first), transfer(2, second)])
    };
    assert_eq!(load(10_000, 10_000, 0).0, Err(Errno::INVAL), "nothing is left of the second");
    assert_eq!(load(10_000, 9_999, 0).0, Err(Errno::INVAL));
    let (result, answer) = load(10_000, 30_000, hal_qaic_abi::nnc::crc::crc32(&bytes[10_000..]));
    assert_eq!(result, Ok(()));
    assert_eq!(passthrough::<LoadConstantsResponse>(&answer).status.get(), 0);
    assert_eq!((card.counts().allocated_bytes, card.counts().mapped), (20_000, 0));
}

#[test]
fn device_that_needs_more_than_a_transfer_has_gets_its_abort() {
    let card = card(Options { segment: Some(4096), ..options() });
    let bytes = vec![1; 16 << 20];
    let request = LoadConstantsRequest { tag: 3.into(), length: (17 << 20).into(), ..Default::default() };
    let request = command::request(&request, &[]);
    let transfer = Ask::DmaTransfer { tag: 3, address: bytes.as_ptr() as u64, size: 16 << 20 };
    let (result, answer) = card.manage(&[Ask::Passthrough(&request), transfer]);
    assert_eq!((result, answer.len()), (Ok(()), 0), "the last answer is to the end of the transfer");
    assert_eq!((card.counts().allocated_bytes, card.counts().mapped), (0, 0));
    assert_eq!(load_constants(&card, &bytes, 0).status.get(), 0, "the next one is whole");
}

#[test]
fn request_that_the_device_refuses_is_answered_with_its_status() {
    let card = card(options());
    let full = image(0, 0, &[2 << 30]);
    let elf = card.load(&full).elf_id.get();
    let (result, bytes) = card.try_activate(elf, 8);
    assert_eq!(result, Err(Errno::CANCELED));
    let response: command::ActivateResponse = passthrough(&bytes);
    assert_eq!(response.status.get(), Status::MEMORY.0);
    let (result, bytes) = card.try_activate(999, 8);
    assert_eq!(result, Err(Errno::CANCELED));
    assert_eq!(passthrough::<command::ActivateResponse>(&bytes).status.get(), Status::NOT_FOUND.0);
    assert_eq!((card.counts().channels, card.counts().mapped), (0, 0));
}

#[test]
fn there_are_sixteen_channels() {
    let card = card(options());
    let image = image(0, 0, &[64]);
    let active: Vec<_> = (0..16).map(|_| card.activate(&image, 8)).collect();
    assert!(active.iter().enumerate().all(|(number, active)| active.channel == number as u32));
    let (result, bytes) = card.try_activate(active[0].elf, 8);
    assert_eq!(result, Err(Errno::CANCELED));
    let status = passthrough::<command::ActivateResponse>(&bytes).status.get();
    // Each network has a core as well.
    assert_eq!(status, Status::NO_CORES.0);
    assert_eq!(card.deactivate(active[3]).0, Ok(()));
    assert_eq!(card.activate(&image, 8).channel, 3);
}

#[test]
fn channels_run_out_where_cores_do_not() {
    let card = card(Options { cores: 20, ..options() });
    let image = image(0, 0, &[64]);
    let active: Vec<_> = (0..16).map(|_| card.activate(&image, 8)).collect();
    let (result, bytes) = card.try_activate(active[0].elf, 8);
    assert_eq!(result, Err(Errno::CANCELED));
    assert_eq!(passthrough::<command::ActivateResponse>(&bytes).status.get(), Status::NO_CHANNEL.0);
    let free = resources(&card, WHOLE).1;
    let left = (free.channels_free, free.cores_free, free.cores_total);
    assert_eq!(left, (0, 4, 20));
    assert_eq!(card.deactivate(active[9]).0, Ok(()));
    assert_eq!(card.activate(&image, 8).channel, 9);
}

#[test]
fn network_takes_all_semaphores_of_a_channel_and_all_memory_of_a_card_but_no_more() {
    let plain = image(0, 0, &[64]);
    let with = |semaphores: usize| {
        let mut network = Network::read(&plain).unwrap();
        network.semaphores.resize(semaphores, 0);
        let metadata = network.image();
        let sections = [emulated::SECTION, "metadata_fb"].map(|name| {
            let file = if name == emulated::SECTION { &plain } else { &metadata };
            (name, elf::section(file, name).unwrap().unwrap())
        });
        elf::write(0, &sections)
    };
    let status = |card: &Card, image: &[u8]| {
        let (result, bytes) = card.try_activate(card.load(image).elf_id.get(), 8);
        let status = Status(passthrough::<command::ActivateResponse>(&bytes).status.get());
        assert_eq!(result.is_ok(), status.is_success());
        status
    };
    let whole = card(options());
    assert_eq!(status(&whole, &with(32)), Status::SUCCESS);
    let taken = whole.counts().allocated_bytes;
    assert_eq!(status(&whole, &with(33)), Status::NO_SEMAPHORES);
    assert_eq!(status(&card(Options { dram: taken, ..options() }), &with(32)), Status::SUCCESS);
    assert_eq!(status(&card(Options { dram: taken - 1, ..options() }), &with(32)), Status::MEMORY);
}

#[test]
fn networks_are_their_users_own() {
    let one = card(options());
    let two = open(&one.emulator, 0);
    let active = one.channel(8);
    let (result, bytes) = two.try_activate(active.elf, 8);
    assert_eq!(result, Err(Errno::CANCELED));
    assert_eq!(passthrough::<command::ActivateResponse>(&bytes).status.get(), Status::NOT_PERMITTED.0);
    let unload = |card: &Card| {
        let request = UnloadElfRequest { elf_id: active.elf.into(), ..Default::default() };
        card.command::<UnloadElfResponse>(&command::request(&request, &[])).status.get()
    };
    assert_eq!(
        (unload(&two), unload(&one)),
        (Status::NOT_PERMITTED.0, Status::NOT_PERMITTED.0),
        "it is active"
    );
    assert_eq!(one.deactivate(active).0, Ok(()));
    assert_eq!((unload(&one), unload(&one)), (0, Status::NOT_FOUND.0));
}

#[test]
fn deactivation_is_consumed_and_ends_everything_of_its_channel() {
    let card = card(options());
    let active = card.channel(8);
    let (stuck, other) = (card.stuck(&active), card.poster(&active, 3));
    card.execute(active.channel, &[stuck]).unwrap();
    let (result, response) = card.deactivate(active);
    assert_eq!((result, response.status.get()), (Ok(()), 0));
    assert_eq!((card.counts().channels, card.counts().mapped), (0, 0));
    // Its objects are no longer sliced, and can be for another one.
    assert_eq!(card.detach(other), Err(Errno::INVAL));
    assert_eq!(card.execute(active.channel, &[other]), Err(Errno::PERM));
    let next = card.channel(8);
    assert_eq!(card.attach(stuck, next.channel, 1, &[<_>::default()]), Ok(()));
    assert_eq!(card.wait(next.channel, stuck, 1), Ok(()), "nothing is on its way");
}

#[test]
fn channel_released_in_a_bad_message_has_no_user_until_a_reset() {
    let card = card(options());
    let active = card.channel(8);
    let mut memory = raw(&[DEACTIVATE_FROM_USER, 16, active.channel, 0, 99, 8]);
    assert_eq!(card.manage_raw(&mut memory, 24, 2).0, Err(Errno::INVAL));
    let handle = card.create(4096).unwrap();
    assert_eq!(card.execute(active.channel, &[handle]), Err(Errno::PERM));
    assert_eq!(card.deactivate(active).0, Err(Errno::PERM));
    assert_eq!(card.counts().channels, 1);
    // A close releases what its user has, and the user has it no longer. The device has taken it back.
    let counts = card.close();
    assert_eq!((counts.channels, counts.activations), (1, 0));
}

#[test]
fn answer_to_a_deactivation_without_a_waiter_releases_the_channel() {
    let released = |counts: &dyn Fn() -> Counts| {
        let limit = Instant::now() + Duration::from_secs(60);
        while counts().channels != 0 {
            assert!(Instant::now() < limit, "the channel stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let signal = Arc::new(AtomicBool::new(true));
    for refused in [false, true] {
        let first = card(if refused { faulty(&["deactivate:1"]) } else { options() });
        let emulator = first.emulator.clone();
        let active = first.channel(8);
        let interrupted = interrupt::on_behalf(signal.clone(), || first.deactivate(active).0);
        assert_eq!(interrupted, Err(Errno::INTR));
        // Also where the device has refused it: no user is there to give the channel back to.
        released(&|| first.counts());
        assert_eq!(first.deactivate(active).0, Err(Errno::PERM));
        first.close();
        assert_eq!(open(&emulator, 0).channel(8).channel, active.channel);
    }
    // The user is gone, and all that it had, before the device has answered.
    let last = card(options());
    let emulator = last.emulator.clone();
    let active = last.channel(8);
    assert_eq!(interrupt::on_behalf(signal, || last.deactivate(active).0), Err(Errno::INTR));
    last.close();
    released(&|| emulator.counts(0));
}
