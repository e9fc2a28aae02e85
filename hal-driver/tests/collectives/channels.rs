// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Channels: the rank and the group of each, and refusals.

use crate::common::{Device, List, Result, Tracker, check, reference};
use crate::rig::*;
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

#[test]
fn channel_is_what_it_is_asked_for() {
    let id = fresh_id();
    let device = Device::open("mock").unwrap();
    assert_eq!(device.channel(&id, "a", (1, 3)).unwrap().place(), (1, 3));
    // Alone, unless something gives it a rank.
    assert_eq!(device.default_channel().unwrap().place(), (0, 1));
}

/// Names that would be equal if they had to be text.
#[test]
fn name_of_a_group_is_any_bytes() {
    let (id, devices) = (fresh_id(), [(); 2].map(|()| Device::open("mock").unwrap()));
    let names = [b"\xfe", b"\xff"];
    let channels = [0, 1].map(|at| devices[at].channel(&id, names[at], (0, 2)).unwrap());
    assert_eq!(channels.each_ref().map(Channel::place), [(0, 2); 2]);
    let taken = devices[1].channel(&id, names[0], (0, 2)).err().unwrap();
    assert_eq!(taken.code, Code::AlreadyExists, "{taken:?}");
}

#[test]
fn uri_says_which_rank_a_device_is() {
    let device = Device::open("mock://?collective_rank=2&collective_count=5").unwrap();
    assert_eq!(device.default_channel().unwrap().place(), (2, 5));
    for (uri, says) in [
        ("mock://?collective_rank=2", "collective_rank needs collective_count"),
        ("mock://?collective_count=2", "collective_count needs collective_rank"),
        ("mock://?collective_rank=2&collective_count=2", "the ranks are 0 to 1"),
        ("mock://?collective_rank={rank}&collective_count=2", "of devices of one process"),
        ("mock://?collective_rank={local_rank}&collective_count=2", "of devices of one process"),
        ("mock://?collective_timeout=soon", "a number of seconds"),
        ("mock://?collective_timeout=0", "a number of seconds"),
        ("mock://?collective_check=yes", "it takes on, first or off"),
    ] {
        let refused = Device::open(uri).err().unwrap();
        assert_eq!(refused.code, Code::InvalidArgument, "{uri}");
        assert!(refused.text.contains(says), "{uri}: {}", refused.text);
    }
}

#[test]
fn devices_of_a_group_are_its_ranks() {
    let devices = ["mock", "template", "mock"].map(|uri| Device::open(uri).unwrap());
    let tracker = Tracker::new();
    let group = tracker.group_of(&devices.each_ref()).unwrap();
    let channels = devices.each_ref().map(|device| device.default_channel().unwrap());
    assert_eq!(channels.each_ref().map(Channel::place), [(0, 3), (1, 3), (2, 3)]);
    // Sessions of IREE's runtime make groups of one device each.
    let (alone, tracker) = (Tracker::new(), tracker);
    let own = alone.group(&devices[1]).unwrap();
    assert_eq!(devices[1].default_channel().unwrap().place(), (1, 3));
    unsafe {
        sys::iree_hal_device_group_release(own);
        sys::iree_hal_device_group_release(group);
    }
    drop(tracker);
}

#[test]
fn group_that_could_not_be_built_makes_no_device_a_rank() {
    let devices: [_; 4] = std::array::from_fn(|_| Device::open("mock://?queues=1").unwrap());
    let place = |device: usize| devices[device].default_channel().unwrap().place();
    // The first device gets an axis and undoes the join; the second one finds no axis and refuses.
    let small = Tracker::of_axes(1);
    small.group_of(&[&devices[0], &devices[1]]).unwrap_err();
    assert_eq!((place(0), place(1)), ((0, 1), (0, 1)));
    // The group before stays.
    let tracker = Tracker::new();
    let group = tracker.group_of(&[&devices[0], &devices[1]]).unwrap();
    let small = Tracker::of_axes(1);
    small.group_of(&[&devices[1], &devices[2], &devices[3]]).unwrap_err();
    assert_eq!([0, 1, 2, 3].map(place), [(0, 2), (1, 2), (0, 1), (0, 1)]);
    unsafe { sys::iree_hal_device_group_release(group) };
}

#[test]
fn two_devices_are_not_one_rank_and_groups_have_one_size() {
    let id = fresh_id();
    let (one, two) = (Device::open("mock").unwrap(), Device::open("mock").unwrap());
    let first = one.channel(&id, "", (0, 2)).unwrap();
    let again = one.channel(&id, "", (0, 2)).unwrap();
    let refused = two.channel(&id, "", (0, 2)).err().unwrap();
    assert_eq!(refused.code, Code::AlreadyExists);
    let refused = two.channel(&id, "", (1, 3)).err().unwrap();
    assert_eq!(refused.code, Code::InvalidArgument);
    // The same id in another group names another group.
    two.channel(&id, "other", (0, 3)).unwrap();
    drop((first, again));
    two.channel(&id, "", (0, 3)).unwrap();
    for place in [(2, 2), (-2, 2), (0, -5), (0, 0)] {
        let refused = one.channel(&id, "", place).err().unwrap();
        assert_eq!(refused.code, Code::InvalidArgument, "{place:?}");
    }
}

#[test]
fn channel_is_split_by_color_and_key() {
    let ranks = mocks(4);
    let parts: Vec<Option<Channel>> = ranks
        .iter()
        .zip([(0, 5), (0, -5), (7, 0), (-1, 0)])
        .map(|(rank, (color, key))| rank.channel.split(color, key).unwrap())
        .collect();
    let places: Vec<_> = parts.iter().map(|part| part.as_ref().map(Channel::place)).collect();
    assert_eq!(places, [Some((1, 2)), Some((0, 2)), Some((0, 1)), None]);
    assert_eq!(ranks[0].channel.split(-2, 0).err().unwrap().code, Code::InvalidArgument);
    // The parts work, and so does the whole group.
    for (rank, part) in ranks.iter().zip(&parts).take(2) {
        let (send, recv) = (rank.words(&[6; 3]), rank.words(&[0; 3]));
        let commands = rank.device.record(0, |commands| {
            collective(commands, part.as_ref().unwrap(), ALL_REDUCE, 0, (&send, &recv), 3)
        });
        rank.execute(&commands.unwrap(), 1).unwrap();
    }
    ranks[..2].iter().for_each(|rank| rank.done.wait(1).unwrap());
}

/// A provider that lets the ranks meet as MPI would.
#[repr(C)]
struct Provider {
    resource: sys::iree_hal_resource_t,
    place: (i32, i32),
    shared: Arc<(Barrier, Mutex<Vec<u8>>)>,
}

static TABLE: sys::iree_hal_channel_provider_vtable_t = sys::iree_hal_channel_provider_vtable_t {
    destroy: Some(destroy),
    query_default_rank_and_count: Some(query),
    exchange_default_id: Some(exchange),
};

unsafe extern "C" fn destroy(provider: *mut sys::iree_hal_channel_provider_t) {
    drop(unsafe { Box::from_raw(provider.cast::<Provider>()) });
}

unsafe extern "C" fn query(
    provider: *mut sys::iree_hal_channel_provider_t,
    rank: *mut i32,
    count: *mut i32,
) -> sys::iree_status_t {
    unsafe { (*rank, *count) = (*provider.cast::<Provider>()).place };
    null_mut()
}

unsafe extern "C" fn exchange(
    provider: *mut sys::iree_hal_channel_provider_t,
    id: sys::iree_byte_span_t,
) -> sys::iree_status_t {
    let (provider, bytes) =
        unsafe { (&*provider.cast::<Provider>(), std::slice::from_raw_parts_mut(id.data, id.data_length)) };
    if provider.place.0 == 0 {
        *provider.shared.1.lock().unwrap() = bytes.to_vec();
    }
    provider.shared.0.wait();
    bytes.copy_from_slice(&provider.shared.1.lock().unwrap());
    null_mut()
}

fn provide(device: &Device, place: (i32, i32), shared: &Arc<(Barrier, Mutex<Vec<u8>>)>) {
    let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const TABLE).cast() };
    let provider = Box::into_raw(Box::new(Provider { resource, place, shared: shared.clone() })).cast();
    unsafe {
        sys::iree_hal_device_replace_channel_provider(device.0, provider);
        sys::iree_hal_channel_provider_release(provider);
    }
}

#[test]
fn provider_says_which_rank_a_device_is_and_the_ids_are_exchanged_once() {
    let shared = Arc::new((Barrier::new(2), Mutex::default()));
    let ranks = std::thread::scope(|scope| {
        let open = |rank| {
            let shared = shared.clone();
            scope.spawn(move || {
                let device = Device::open("mock").unwrap();
                provide(&device, (rank, 2), &shared);
                // The second one needs no other rank: the other thread may be gone.
                let (channel, again) = (device.default_channel().unwrap(), device.default_channel().unwrap());
                assert_eq!(channel.place(), (rank, 2));
                assert_eq!(again.place(), (rank, 2));
                Rank { channel, done: device.semaphore(0), device }
            })
        };
        [open(0), open(1)].map(|thread| thread.join().unwrap())
    });
    let recvs = ranks.each_ref().map(|rank| {
        let (send, recv) = (rank.words(&[21; 3]), rank.words(&[0; 3]));
        let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 3).unwrap();
        rank.execute(&commands, 1).unwrap();
        recv
    });
    for (rank, recv) in ranks.iter().zip(&recvs) {
        rank.done.wait(1).unwrap();
        assert_eq!(rank.read(recv), [42; 3]);
    }
}

/// A job of MPICH and a provider that has loaded another MPI, for which each process is alone.
#[test]
fn provider_that_takes_each_process_of_a_job_for_one_alone_is_refused() {
    const OTHER: &str = "CHANNELS_IN_A_JOB";
    if std::env::var_os(OTHER).is_none() {
        let name = "channels::provider_that_takes_each_process_of_a_job_for_one_alone_is_refused";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let job = [(OTHER, "1"), ("PMI_RANK", "2"), ("PMI_SIZE", "4")];
        let child = command.args([name, "--exact"]).envs(job).output().unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let device = Device::open("mock").unwrap();
    let shared = Arc::new((Barrier::new(1), Mutex::default()));
    provide(&device, (0, 2), &shared);
    let Err(refused) = device.default_channel() else {
        panic!("a rank of a job of four is alone in a group")
    };
    assert_eq!(refused.code, Code::FailedPrecondition, "{refused:?}");
    assert!(refused.text.contains("rank 2 of 4 (PMI_RANK, PMI_SIZE)"), "{refused:?}");
}

/// Every name of an MPI library is found, and none is a library.
#[test]
fn job_without_any_mpi_library_has_groups_of_one_process_and_others_name_the_remedy() {
    const CHILD: &str = "CHANNELS_WITHOUT_MPI";
    if std::env::var_os(CHILD).is_none() {
        let folder = std::env::temp_dir().join(format!("channels-without-mpi-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["libmpi.so.40", "libmpi.so", "libmpich.so.12", "libmpi.so.12", "libmpich.so"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let name =
            "channels::job_without_any_mpi_library_has_groups_of_one_process_and_others_name_the_remedy";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let job = [(CHILD, "1"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        command.args([name, "--exact"]).envs(job).env("LD_LIBRARY_PATH", &folder);
        let child = command.output().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let sums = |ranks: &[Rank]| {
        let count = u32::try_from(ranks.len()).unwrap();
        let begin = |rank: &Rank| {
            let (send, recv) = (rank.words(&[1, 2]), rank.words(&[0; 2]));
            let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 2).unwrap();
            rank.execute(&commands, 1).unwrap();
            (recv, commands)
        };
        let begun: Vec<_> = ranks.iter().map(begin).collect();
        for (rank, (recv, _)) in ranks.iter().zip(&begun) {
            rank.done.wait(1).unwrap();
            assert_eq!(rank.read(recv), [count, 2 * count]);
        }
    };
    // A count that the job does not have, and the job's count with ranks from the URIs.
    sums(&mocks(3));
    let uris = [0, 1].map(|rank| format!("mock://?collective_rank={rank}&collective_count=2"));
    let ranks = uris.map(|uri| {
        let device = Device::open(&uri).unwrap();
        Rank { channel: device.default_channel().unwrap(), done: device.semaphore(0), device }
    });
    sums(&ranks);
    let Err(refused) = Device::open("mock").unwrap().default_channel() else {
        panic!("there is an MPI where there is none")
    };
    assert_eq!(refused.code, Code::Unavailable, "{refused:?}");
    let says = ["no MPI library can be loaded", "apt-get install libmpich12"];
    assert!(says.iter().all(|text| refused.text.contains(text)), "{refused:?}");
}

/// True if this process is a rank of a job of two. Otherwise starts such a job, in which each rank runs the test
/// with this name, and checks that all pass.
fn is_rank_of_two(name: &str) -> bool {
    const RANK: &str = "CHANNELS_OF_TWO_RANKS";
    if std::env::var_os(RANK).is_some() {
        return true;
    }
    let mut job = std::process::Command::new("mpirun");
    job.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]);
    job.arg(std::env::current_exe().unwrap()).args([name, "--exact"]).env(RANK, "1");
    // MPI leaks memory, and so do its users: memory that MPI may write to at its end stays.
    let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
    job.env("ASAN_OPTIONS", format!("{options}:detect_leaks=0"));
    let output = job.output().unwrap_or_else(|error| {
        panic!("mpirun cannot be started: {error}; install it (on Debian and Ubuntu: apt-get install openmpi-bin)")
    });
    let text =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("1 passed").count(), 2, "{text}");
    false
}

/// The program of every rank of the job.
fn sums_to_two(rank: &Rank) {
    let (send, recv) = (rank.words(&[1; 3]), rank.words(&[0; 3]));
    rank.execute(&rank.commands(ALL_REDUCE, 0, (&send, &recv), 3).unwrap(), 1).unwrap();
    rank.done.wait(1).unwrap();
    assert_eq!(rank.read(&recv), [2; 3]);
}

#[test]
fn two_devices_of_a_process_are_not_one_rank_of_its_job() {
    if !is_rank_of_two("channels::two_devices_of_a_process_are_not_one_rank_of_its_job") {
        return;
    }
    let (one, two) = (Device::open("mock").unwrap(), Device::open("mock").unwrap());
    let (first, again) = (one.default_channel().unwrap(), one.default_channel().unwrap());
    assert_eq!(first.place().1, 2);
    let refused = two.default_channel().err().expect("a rank is two devices");
    assert_eq!(refused.code, Code::AlreadyExists, "{}", refused.text);
    let says = format!("rank {} of the group", first.place().0);
    assert!(refused.text.contains(&says), "{}", refused.text);
    // It may be a rank of another group, and of this one after the other handle is gone.
    let other = two.channel(&[], "other", (-1, -1)).unwrap();
    sums_to_two(&Rank { channel: other, done: two.semaphore(0), device: two.again() });
    sums_to_two(&Rank { channel: again, done: one.semaphore(0), device: one.again() });
    drop(first);
    sums_to_two(&Rank { channel: two.default_channel().unwrap(), done: two.semaphore(0), device: two });
}

/// A group of as many ranks as the job has is the job, and this process is one rank of it. As another rank it would
/// wait for itself.
#[test]
fn device_is_no_other_rank_of_a_job_than_its_process() {
    if !is_rank_of_two("channels::device_is_no_other_rank_of_a_job_than_its_process") {
        return;
    }
    let device = Device::open("mock").unwrap();
    let own = device.default_channel().unwrap().place().0;
    let refused = device.channel(b"id", "named", (1 - own, 2)).err().expect("the rank of another process");
    assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.text);
    for says in
        [format!("this process is rank {own}"), format!("rank {} of the group", 1 - own), "named".to_owned()]
    {
        assert!(refused.text.contains(&says), "{}", refused.text);
    }
    // Groups of another size are within the process.
    let ranks: Vec<Channel> = (0..3)
        .map(|rank| Device::open("mock").unwrap().channel(b"id", "named", (rank, 3)).unwrap())
        .collect();
    assert_eq!(ranks[2].place(), (2, 3));
    sums_to_two(&Rank {
        channel: device.channel(b"id", "named", (own, 2)).unwrap(),
        done: device.semaphore(0),
        device,
    });
}

/// A provider that makes a channel of its device while it exchanges the id.
#[repr(C)]
struct Curious {
    resource: sys::iree_hal_resource_t,
    device: *mut sys::iree_hal_device_t,
    asked: mpsc::Sender<Option<Code>>,
}

static CURIOUS: sys::iree_hal_channel_provider_vtable_t = sys::iree_hal_channel_provider_vtable_t {
    destroy: Some(destroy_curious),
    query_default_rank_and_count: Some(query_curious),
    exchange_default_id: Some(exchange_curious),
};

unsafe extern "C" fn destroy_curious(provider: *mut sys::iree_hal_channel_provider_t) {
    drop(unsafe { Box::from_raw(provider.cast::<Curious>()) });
}

unsafe extern "C" fn query_curious(
    _: *mut sys::iree_hal_channel_provider_t,
    rank: *mut i32,
    count: *mut i32,
) -> sys::iree_status_t {
    unsafe { (*rank, *count) = (0, 1) };
    null_mut()
}

unsafe extern "C" fn exchange_curious(
    provider: *mut sys::iree_hal_channel_provider_t,
    _: sys::iree_byte_span_t,
) -> sys::iree_status_t {
    let provider = unsafe { &*provider.cast::<Curious>() };
    let params = sys::iree_hal_channel_params_t { rank: -1, count: -1, ..Default::default() };
    let mut channel = null_mut();
    let created =
        unsafe { check(sys::iree_hal_channel_create(provider.device, u64::MAX, params, &raw mut channel)) };
    provider.asked.send(created.err().map(|refused| refused.code)).unwrap();
    null_mut()
}

#[test]
fn provider_that_makes_a_channel_while_it_exchanges_the_id_is_refused() {
    let (asked, answers) = mpsc::channel();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let device = Device::open("mock").unwrap();
        let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const CURIOUS).cast() };
        let provider = Box::into_raw(Box::new(Curious { resource, device: device.0, asked })).cast();
        unsafe {
            sys::iree_hal_device_replace_channel_provider(device.0, provider);
            sys::iree_hal_channel_provider_release(provider);
        }
        sender.send(device.default_channel().map(|channel| channel.place())).unwrap();
    });
    let place = receiver.recv_timeout(Duration::from_secs(60)).expect("the provider hangs");
    assert_eq!(place.unwrap(), (0, 1));
    assert_eq!(answers.recv().unwrap(), Some(Code::FailedPrecondition));
}

#[test]
fn provider_that_says_nothing_leaves_the_device_alone() {
    let device = Device::open("mock").unwrap();
    provide(&device, (-1, -1), &Arc::new((Barrier::new(2), Mutex::default())));
    assert_eq!(device.default_channel().unwrap().place(), (0, 1));
}

#[test]
fn provider_that_says_what_is_no_place_is_refused() {
    for place in [(-2, 4), (-1, 2), (0, -1), (0, -7), (i32::MIN, i32::MIN)] {
        let device = Device::open("mock").unwrap();
        provide(&device, place, &Arc::new((Barrier::new(1), Mutex::default())));
        let refused = device.default_channel().map(|channel| channel.place()).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{place:?}");
        let said = format!("rank {} of {}", place.0, place.1);
        assert!(refused.text.contains(&said) && refused.text.contains("provider"), "{}", refused.text);
    }
}

/// Records one collective with anything wrong in it.
fn record(
    rank: &Rank,
    channel: *mut sys::iree_hal_channel_t,
    op: sys::iree_hal_collective_op_t,
    param: u32,
    words: (usize, usize),
    count: usize,
) -> Result {
    let (send, recv) = (rank.words(&vec![0; words.0]), rank.words(&vec![0; words.1]));
    let recorded = rank.device.record(0, |commands| unsafe {
        let (send, recv) = (reference(&send), reference(&recv));
        check(sys::iree_hal_command_buffer_collective(commands, channel, op, param, send, recv, count))
    });
    recorded.map(drop)
}

#[test]
fn collective_that_cannot_be_done_is_refused_when_it_is_recorded() {
    let ranks = mocks(2);
    let rank = &ranks[0];
    let own = rank.channel.0;
    let refusals = [
        (record(rank, null_mut(), op(ALL_REDUCE), 0, (4, 4), 4), Code::InvalidArgument, "needs a channel"),
        (
            record(rank, ranks[1].channel.0, op(ALL_REDUCE), 0, (4, 4), 4),
            Code::InvalidArgument,
            "another device",
        ),
        (
            record(rank, own, op(BROADCAST), 2, (4, 4), 4),
            Code::OutOfRange,
            "names rank 2, but the group has 2",
        ),
        (record(rank, own, op(SEND), 9, (4, 4), 4), Code::OutOfRange, "names rank 9"),
        (record(rank, own, op(SEND_RECV), 0x0002_0001, (4, 4), 4), Code::OutOfRange, "names rank 2"),
        (
            record(rank, own, op(ALL_REDUCE), 0, (3, 4), 4),
            Code::OutOfRange,
            "sends 16 bytes, but has memory for 12",
        ),
        (
            record(rank, own, op(ALL_REDUCE), 0, (4, 3), 4),
            Code::OutOfRange,
            "receives 16 bytes, but has memory for 12",
        ),
        (record(rank, own, op(ALL_GATHER), 0, (4, 7), 4), Code::OutOfRange, "receives 32 bytes"),
        (record(rank, own, op(ALL_GATHER), 0, (4, 8), 5), Code::OutOfRange, "which has 4 elements"),
        (record(rank, own, op(REDUCE_SCATTER), 0, (4, 4), 4), Code::OutOfRange, "sends 32 bytes"),
        (record(rank, own, op(ALL_TO_ALL), 0, (3, 3), 3), Code::InvalidArgument, "cannot be divided"),
        (record(rank, own, packed(9, 0, 0), 0, (4, 4), 4), Code::InvalidArgument, "no collective of kind 9"),
        (
            record(rank, own, packed(ALL_REDUCE, 0, 4), 0, (4, 4), 4),
            Code::InvalidArgument,
            "needs a reduction",
        ),
        (
            record(rank, own, packed(ALL_GATHER, 1, 4), 0, (4, 8), 4),
            Code::InvalidArgument,
            "does not reduce has a reduction",
        ),
        (record(rank, own, packed(ALL_REDUCE, 6, 4), 0, (4, 4), 4), Code::InvalidArgument, "no reduction 6"),
        (
            record(rank, own, packed(ALL_REDUCE, 1, 12), 0, (4, 4), 4),
            Code::InvalidArgument,
            "no collective element type 12",
        ),
    ];
    for (outcome, code, says) in refusals {
        let error = outcome.unwrap_err();
        assert_eq!(error.code, code, "{}", error.text);
        assert!(error.text.contains(says), "{} does not say {says:?}", error.text);
    }
    // Nothing was entered: the group works.
    record(rank, own, op(ALL_REDUCE), 0, (4, 4), 4).unwrap();
    for rank in &ranks {
        let (send, recv) = (rank.words(&[1; 4]), rank.words(&[0; 4]));
        rank.execute(&rank.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap(), 1).unwrap();
    }
    ranks.iter().for_each(|rank| rank.done.wait(1).unwrap());
}

/// A new group may have the address of one that is gone, but for a channel to it.
#[test]
fn groups_of_devices_are_distinguished_however_they_follow_each_other() {
    let mut channels = Vec::new();
    for _ in 0..20 {
        let tracker = Tracker::new();
        let devices = [(); 2].map(|()| Device::open("mock").unwrap());
        let group = tracker.group_of(&devices.each_ref()).unwrap();
        let ranks = devices.map(|device| Rank {
            channel: device.default_channel().unwrap(),
            done: device.semaphore(0),
            device,
        });
        assert_eq!(ranks.each_ref().map(|rank| rank.channel.place()), [(0, 2), (1, 2)]);
        let recvs = ranks.each_ref().map(|rank| {
            let (send, recv) = (rank.words(&[1; 3]), rank.words(&[0; 3]));
            rank.execute(&rank.commands(ALL_REDUCE, 0, (&send, &recv), 3).unwrap(), 1).unwrap();
            recv
        });
        ranks.iter().for_each(|rank| rank.done.wait(1).unwrap());
        drop(recvs);
        channels.push(ranks[0].channel.clone());
        drop(ranks);
        unsafe { sys::iree_hal_device_group_release(group) };
    }
    assert!(channels.iter().all(|channel| channel.place() == (0, 2)));
}

/// A rank and a count from the program override the device's URI, and the boundary between an id and a group's name
/// matters.
#[test]
fn rank_and_count_of_the_program_make_groups_of_their_own() {
    let devices = [0, 1]
        .map(|rank| Device::open(&format!("mock://?collective_rank={rank}&collective_count=2")).unwrap());
    let own = devices[0].channel(&[], "its own", (-1, -1)).unwrap();
    let larger = devices[1].channel(&[], "its own", (-1, 3)).unwrap();
    let other = devices[1].channel(&[], "another", (0, -1)).unwrap();
    assert_eq!([own.place(), larger.place(), other.place()], [(0, 2), (1, 3), (0, 2)]);
    let named = [devices[0].channel(b"ab", "c", (0, 1)), devices[1].channel(b"a", "bc", (0, 1))];
    assert!(named.iter().all(Result::is_ok));
}

#[test]
fn another_provider_exchanges_another_id() {
    let device = Device::open("mock").unwrap();
    for _ in 0..2 {
        let shared = Arc::new((Barrier::new(1), Mutex::default()));
        provide(&device, (0, 1), &shared);
        assert_eq!(device.default_channel().unwrap().place(), (0, 1));
        assert!(!shared.1.lock().unwrap().is_empty(), "it was not asked");
    }
}

/// Refused when it is recorded, or when the table arrives that has the buffer.
#[test]
fn collective_reads_and_writes_only_what_the_program_allowed() {
    for (is_sent, says) in [(true, "ACCESS_READ"), (false, "ACCESS_WRITE")] {
        let ranks = mocks(1);
        let rank = &ranks[0];
        let allowing = |access| rank.device.local_buffer_for(access, 16);
        let any = rank.words(&[0; 4]);
        let unread = allowing(sys::IREE_HAL_MEMORY_ACCESS_WRITE);
        let unwritten = allowing(sys::IREE_HAL_MEMORY_ACCESS_READ);
        let buffers = if is_sent { (&unread, &any) } else { (&any, &unwritten) };
        let is_refused = |outcome: Result| {
            let refused = outcome.unwrap_err();
            assert_eq!(refused.code, Code::PermissionDenied, "{}", refused.text);
            assert!(refused.text.contains(says), "{}", refused.text);
        };
        is_refused(rank.commands(ALL_REDUCE, 0, buffers, 4).map(drop));
        // Nothing was submitted: the group works.
        let allowed = rank.commands(ALL_REDUCE, 0, (&unwritten, &unread), 4).unwrap();
        rank.execute(&allowed, 1).unwrap();
        rank.done.wait(1).unwrap();
        let signals = rank.done.at(2);
        let (slots, commands) = ([buffers.0, buffers.1], rank.sum_of_slots(4));
        is_refused(rank.device.execute(u64::MAX, &List::none(), &signals, &commands, &slots));
        assert_eq!(rank.done.value().unwrap(), 1);
        // The next collective would be taken for the refused one.
        is_refused(rank.execute(&allowed, 2));
    }
}

/// Its rank belongs to the other device.
#[test]
fn command_buffer_with_collectives_is_executed_by_its_own_device() {
    let ranks = mocks(1);
    let (rank, other) = (&ranks[0], Device::open("mock").unwrap());
    let (send, recv, done) = (rank.words(&[5; 4]), rank.words(&[0; 4]), other.semaphore(0));
    let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let refused = other.execute(u64::MAX, &List::none(), &done.at(1), &commands, &[]).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.text);
    assert!(refused.text.contains("recorded for another device"), "{}", refused.text);
    assert_eq!(done.value().unwrap(), 0);
}
