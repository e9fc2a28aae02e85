// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Events that meet in the wrong moment, and numbers at their limits.

use super::*;
use crate::fake_card::FakeCard;
use emulator_qaic::programs::Program;
use emulator_qaic::{Emulator, Options};
use hal_backend::Parameters;

fn network(bench: &Bench) -> Arc<Executable> {
    Arc::new(Executable::network(&container(), None, &bench.queues).unwrap())
}

/// A container whose input begins at an offset of its buffer.
fn far(host_offset: u64) -> Vec<u8> {
    let request = |buffer: u16, direction, host_offset| Request {
        buffer,
        direction,
        host_offset,
        device_offset: 4096 * u64::from(buffer),
        size: 16,
        space: Space::Ddr,
        semaphores: Vec::new(),
        doorbell: None,
    };
    let requests = vec![request(0, Direction::In, host_offset), request(1, Direction::Out, 0)];
    let image = Network { name: "far".to_owned(), requests, ..Network::default() }.image();
    let segments = vec![Segment { name: qpc::name::NETWORK, split: 0, bytes: image.as_slice() }];
    Container { segments }.write()
}

#[test]
fn network_of_more_memory_than_there_are_addresses_is_refused_when_it_is_read() {
    let bench = Bench::with_channels(1);
    for offset in [u64::MAX - 16, u64::MAX - 4096, u64::MAX - 8192] {
        let refused = Executable::network(&far(offset), None, &bench.queues).map(drop).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("memory"), "{refused}");
    }
    assert!(Executable::network(&far(1 << 20), None, &bench.queues).is_ok());
}

#[test]
fn buffer_that_is_on_its_way_for_a_moment_longer_goes_to_another_network_when_it_is_not() {
    let mut bench = Bench::with_channels(16);
    let (one, other) = (network(&bench), network(&bench));
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    bench.dispatch(&one, 0, [1; 3], &bindings).unwrap();
    // The input of a run whose output has come may be the last that the kernel knows of.
    bench.fake.fail(Asked::DetachSlice, Errno::BUSY);
    bench.fake.fail(Asked::DetachSlice, Errno::BUSY);
    bench.dispatch(&other, 0, [1; 3], &bindings).unwrap();
    assert_eq!(bytes(&memories[1], 4096), [2; 4096]);
    // It was copied, and still is the first one's, which is remembered.
    bench.fake.calls();
    bench.dispatch(&other, 0, [1; 3], &bindings).unwrap();
    let detached = bench.fake.calls().into_iter().filter(|call| *call == Asked::DetachSlice).count();
    assert_eq!(detached, 2);
}

#[test]
fn buffer_of_a_network_that_a_device_does_not_stop_is_copied_for_another_one() {
    let mut bench = Bench::with_channels(16);
    let (one, other) = (network(&bench), network(&bench));
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    bench.dispatch(&one, 0, [1; 3], &bindings).unwrap();
    (0..3).for_each(|_| bench.fake.fail(Asked::Manage, Errno::CANCELED));
    bench.networks().clear();
    for _ in 0..2 {
        assert!(memories[1].view().fill(&[0]));
        bench.dispatch(&other, 0, [1; 3], &bindings).unwrap();
        assert_eq!(bytes(&memories[1], 4096), [2; 4096]);
    }
}

#[test]
fn channel_that_was_lost_and_given_to_another_network_is_left_to_it() {
    let mut bench = Bench::with_channels(16);
    let (lost, other) = (bench.adder(), bench.adder());
    let memory = bench.memory(&[1; 8192]);
    let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
    bench.dispatch(&lost, 0, [4, 1, 1], &bindings).unwrap();
    // The first one is not asked for before its channel is the second one's.
    bench.fake.crash();
    bench.dispatch(&other, 0, [4, 1, 1], &bindings).unwrap();
    assert_eq!(bench.networks().len(), 1, "the first one is known to be lost");
    bench.fake.calls();
    for executable in [&lost, &other, &lost] {
        bench.dispatch(executable, 0, [4, 1, 1], &bindings).unwrap();
    }
    let loaded = bench.fake.calls().into_iter().filter(|call| *call == Asked::Manage).count();
    assert_eq!(loaded, 2, "the first one was loaded and activated again, the other one stays");
}

#[test]
fn network_without_some_of_its_bindings_is_not_run() {
    let mut bench = Bench::with_channels(16);
    let executable = network(&bench);
    let memory = bench.memory(&[1; 4096]);
    for bindings in [&[][..], &[span(&memory, 0, 4096)]] {
        let failure = bench.dispatch(&executable, 0, [1; 3], bindings).unwrap_err();
        assert_eq!(failure.code(), Code::InvalidArgument, "{failure}");
        assert!(failure.message().contains("2 bindings"), "{failure}");
    }
}

/// A program's release callback for imported memory comes when the last reference to it is gone.
#[test]
fn memory_of_a_dispatch_that_does_not_run_is_free_when_its_job_ends() {
    let mut bench = Bench::with_channels(16);
    let (adder, network) = (bench.adder(), network(&bench));
    // Without workgroups; with more than a network has; with a function that there is not.
    for (executable, function, workgroups) in
        [(&adder, 0, [0, 1, 1]), (&network, 0, [2, 1, 1]), (&adder, 7, [1; 3])]
    {
        let memory = bench.memory(&[1; 8192]);
        let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
        let _outcome = bench.dispatch(executable, function, workgroups, &bindings);
        drop(bindings);
        assert_eq!(Arc::strong_count(&memory), 1, "{workgroups:?}");
    }
}

#[test]
fn binding_beyond_the_kernels_counter_of_a_buffer_is_copied() {
    const TWO: u64 = 2 << 30;
    // `clone_range_of_sgt_for_slice` counts in a signed number of 32 bits, and begins anew with those that have more.
    for (length, place, copied) in [
        (TWO + 4096, TWO - 4096, false),
        (TWO + 4096, TWO - 2048, true),
        (2 * TWO - 4096, 0, false),
        (2 * TWO, 0, true),
    ] {
        let mut bench = Bench::with_channels(16);
        let executable = network(&bench);
        let target = bench.memory(&[0; 4096]);
        let large = Arc::new(Memory::allocate(&bench.card, length).unwrap());
        assert!(large.view().slice(place, 4096).unwrap().fill(&[7]));
        bench.fake.calls();
        let bindings = [span(&large, place, 4096), span(&target, 0, 4096)];
        bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
        assert_eq!(bytes(&target, 4096), [8; 4096]);
        let own = bench.fake.calls().contains(&Asked::CreateBo);
        assert_eq!(own, copied, "whether the network has an object of its own for {length:#x} at {place:#x}");
    }
}

#[test]
fn network_beyond_the_kernels_counter_is_refused_with_advice() {
    let bench = Bench::with_channels(1);
    let refused = Executable::network(&far((2 << 30) - 15), None, &bench.queues).map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
    assert!(refused.message().contains("buffer 0 reaches 2147483649 bytes"), "{refused}");
    assert!(refused.message().contains("in several"), "{refused}");
    assert!(Executable::network(&far((2 << 30) - 16), None, &bench.queues).is_ok());
}

#[test]
fn buffer_beyond_two_gibibytes_is_worked_on_where_the_kernel_counts_in_int() {
    for segment in [&[][..], &[("segment", "1g")]] {
        let parameters = [&[("counter", "int")], segment].concat();
        let (emulator, mut bench) = on_emulator(&parameters, Settings::default());
        let executable = bench.adder();
        let large = Arc::new(Memory::allocate(&bench.card, (2 << 30) + 8192).unwrap());
        let at = |place: u64| span(&large, (2 << 30) + place, 4096);
        assert!(large.view().slice(2 << 30, 8192).unwrap().fill(&[1]));
        bench.dispatch(&executable, 0, [4096, 1, 1], &[at(0), at(4096)]).unwrap();
        let mut page = [0; 4096];
        assert!(large.view().read((2 << 30) + 4096, &mut page));
        assert_eq!((page, emulator.complaint(0)), ([6; 4096], None));
    }
}

#[test]
fn wait_may_be_for_ever() {
    let bench = Bench::with_channels(16);
    let object = bench.card.create(1).unwrap();
    assert_eq!(bench.card.wait(&object, 0, Duration::MAX), Err(Error::WorkloadLost));
}

/// A bench on an emulated card with these parameters.
fn on_emulator(parameters: &[(&'static str, &'static str)], settings: Settings) -> (Arc<Emulator>, Bench) {
    let pairs = [("workers", "2")].iter().chain(parameters).copied();
    let emulator = Emulator::new(Options::read(&mut Parameters::new("qaic", pairs)).unwrap()).unwrap();
    let bench = Bench::on(FakeCard::new(0, 0), emulator.clone(), emulator.clone(), settings);
    (emulator, bench)
}

#[test]
fn constants_of_which_a_part_cannot_be_sent_do_not_stay_behind() {
    // Twice versions, for the bench has asked as well; room for the constants; constants.
    let (emulator, bench) = on_emulator(&[("fault", "control-crc:6")], Settings::default());
    let client = Client::new(bench.card.clone(), None).unwrap();
    let bytes = container();
    let constants = Container::read(&bytes).unwrap().constants().unwrap().unwrap();
    let result = client.load_constants(&constants);
    assert!(matches!(result, Err(Error::Checksum { .. })), "{result:?}");
    assert_eq!(emulator.counts(0).loaded, 0);
    assert!(client.load_constants(&constants).is_ok());
    assert_eq!(emulator.counts(0).loaded, 1);
}

#[test]
fn objects_of_a_network_that_a_device_does_not_stop_are_not_given_to_another() {
    let faults = ["deactivate:1", "deactivate:2", "deactivate:3"].map(|fault| ("fault", fault));
    let (_, mut bench) = on_emulator(&faults, Settings { channels: 1, ..Settings::default() });
    let executables = [bench.adder(), bench.adder()];
    let memory = bench.memory(&vec![1; 2 << 20]);
    let bindings = [span(&memory, 0, 1 << 20), span(&memory, 1 << 20, 1 << 20)];
    for executable in [0, 1, 0] {
        bench.dispatch(&executables[executable], 0, [4, 1, 1], &bindings).unwrap();
    }
    assert_eq!(bytes(&memory, (1 << 20) + 5)[1 << 20..], [6, 6, 6, 6, 1]);
}

#[test]
fn container_that_is_wrong_in_one_byte_is_refused_or_run_and_the_next_one_is_run() {
    let (emulator, mut bench) = on_emulator(&[], Settings::default());
    bench.set_impatient(true);
    let number = bench.programs.host().load(Adder::new());
    let program = Program { program: number, function: 0, constants: 1, capacities: vec![4096, 4096] };
    let right = program.container().unwrap();
    let memory = bench.memory(&[1; 8192]);
    let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
    let step: usize = std::env::var("STEP").ok().and_then(|text| text.parse().ok()).unwrap_or(7);
    let mut run = 0;
    for at in (0..right.len()).step_by(step) {
        let mut wrong = right.clone();
        wrong[at] ^= 0x80 >> (at % 8);
        if let Ok(executable) = Executable::network(&wrong, Some(&bench.programs), &bench.queues) {
            run += 1;
            let _ = bench.dispatch(&Arc::new(executable), 0, [1; 3], &bindings);
        }
    }
    assert!(run > 0);
    bench.set_impatient(false);
    bench.begin_all();
    let executable = Arc::new(Executable::network(&right, Some(&bench.programs), &bench.queues).unwrap());
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    drop(executable);
    bench.begin_all();
    let counts = emulator.counts(0);
    assert_eq!((counts.channels, counts.activations, counts.loaded), (0, 0, 0), "{counts:?}");
}

#[test]
fn ring_that_was_large_enough_is_replaced_for_buffers_in_more_pieces() {
    let mut bench = Bench::new(FakeCard::new(16, 1), Settings::default());
    let executable = network(&bench);
    let memories = [0; 4].map(|_| bench.memory(&[1; 4096]));
    let [first, second, third, fourth] = memories.each_ref().map(|memory| span(memory, 0, 4096));
    bench.fake.fail(Asked::Execute, Errno::AGAIN);
    bench.dispatch(&executable, 0, [1; 3], &[first, second]).unwrap();
    // Each dispatch that finds the ring full checks whether its buffers fit.
    bench.fake.scatter(300);
    bench.dispatch(&executable, 0, [1; 3], &[third, fourth]).unwrap();
    assert_eq!(bytes(&memories[3], 4096), [2; 4096]);
}
