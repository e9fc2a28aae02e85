// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Lines that nothing else would miss: times, limits, what is remembered, and when a thread ends.

use super::*;
use crate::memory::{Bound, ObjectPool};

fn network(bench: &Bench) -> Arc<Executable> {
    Arc::new(Executable::network(&container(), None, &bench.queues).unwrap())
}

/// A network whose buffers are as large as this, though it transfers a few bytes of each.
fn large(bench: &Bench, length: u64) -> Arc<Executable> {
    let request = |buffer: u16, direction| Request {
        buffer,
        direction,
        host_offset: length - 16,
        device_offset: 4096 * u64::from(buffer),
        size: 16,
        space: Space::Ddr,
        semaphores: Vec::new(),
        doorbell: None,
    };
    let requests = vec![request(0, Direction::In), request(1, Direction::Out)];
    let image = Network { name: "large".to_owned(), requests, ..Network::default() }.image();
    let segment = |name, bytes| Segment { name, split: 0, bytes };
    let segments = vec![
        segment(qpc::name::NETWORK, image.as_slice()),
        segment(qpc::name::METADATA_CRC, &[0xef, 0xbe, 0xad, 0xde]),
    ];
    let bytes = Container { segments }.write();
    Arc::new(Executable::network(&bytes, None, &bench.queues).unwrap())
}

/// A dispatch of a large network, on buffers of its own.
fn dispatch_large(bench: &Bench, executable: &Arc<Executable>, length: u64) -> Command<QaicDevice> {
    let memories = [0; 2].map(|_| Arc::new(Memory::allocate(&bench.card, length).unwrap()));
    dispatch(executable, 0, [1; 3], &memories.each_ref().map(|memory| span(memory, 0, length)))
}

/// Times of commands, as a profile gets them.
#[derive(Default)]
struct Times(Mutex<Vec<(u64, u64)>>);

impl hal_backend::Observer for Times {
    fn command(&self, _: usize, begin: u64, end: u64) {
        self.0.lock().push((begin, end));
    }

    fn job(&self, _: u64, _: u64, _: Result<(), &Failure>) {}
}

/// When a run that took 20 ms was on the device, by statistics as the kernel gives them, after the moment when it was
/// begun.
fn times(statistics: Result<(u32, u32), Errno>) -> (u64, u64, u64) {
    let mut bench = Bench::with_channels(16);
    let executable = network(&bench);
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let run = dispatch(&executable, 0, [1; 3], &memories.each_ref().map(|memory| span(memory, 0, 4096)));
    bench.dispatch(&executable, 0, [1; 3], &memories.each_ref().map(|memory| span(memory, 0, 4096))).unwrap();
    match statistics {
        Ok((submit, device)) => bench.fake.took(submit, device),
        Err(errno) => bench.fake.fail(Asked::PerfStats, errno),
    }
    bench.fake.hold();
    let observer = Arc::new(Times::default());
    bench.epoch += 1;
    let job = Job {
        queue: bench.names[0],
        epoch: bench.epoch,
        waits: Default::default(),
        event: None,
        commands: Commands::Own([run].into_iter().collect()),
        recording: None,
        observer: Some(observer.clone()),
    };
    let before = clock();
    assert!(bench.queues.submit(job).is_ok());
    bench.begin_all();
    std::thread::sleep(Duration::from_millis(20));
    bench.fake.release(0);
    bench.until_ended(bench.epoch).unwrap();
    let (begin, end) = observer.0.lock()[0];
    (begin - before, end - before, clock() - before)
}

#[test]
fn times_of_a_run_are_the_kernels_and_never_in_the_future() {
    const MS: u64 = 1_000_000;
    let (begin, end, now) = times(Ok((5000, 12_000)));
    assert!(begin >= 5 * MS && end - begin == 12 * MS && end <= now, "{begin} {end} {now}");
    // A kernel that does not know says nothing of use.
    let (begin, end, now) = times(Ok((5000, u32::MAX)));
    assert!(begin >= 5 * MS && (20 * MS..=now).contains(&end), "{begin} {end} {now}");
    let (begin, end, now) = times(Err(Errno::INVAL));
    assert!(end - begin >= 20 * MS && end <= now, "{begin} {end} {now}");
}

#[test]
fn one_network_is_waited_for_longer_than_each_of_two() {
    let mut bench = Bench::with_channels(16);
    let executables = [network(&bench), network(&bench)];
    let memories = [0; 4].map(|_| bench.memory(&[1; 4096]));
    bench.fake.hold();
    for (number, executable) in executables.iter().enumerate() {
        let bindings = [0, 1].map(|at| span(&memories[2 * number + at], 0, 4096));
        bench.submit(number, &[dispatch(executable, 0, [1; 3], &bindings)]);
        bench.begin_all();
        bench.fake.waits();
        (0..4).for_each(|_| assert!(bench.completions.step()));
        let expected = if number == 0 { 10..=20 } else { 1..=1 };
        let waits = bench.fake.waits();
        assert!(waits.len() == 4 && waits.iter().all(|wait| expected.contains(wait)), "{number}: {waits:?}");
    }
}

#[test]
fn thread_of_a_lost_device_ends_when_nothing_is_in_flight_and_reports_it() {
    let mut bench = Bench::with_channels(16);
    let executable = network(&bench);
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    bench.fake.hold();
    bench.submit(
        0,
        &[dispatch(&executable, 0, [1; 3], &memories.each_ref().map(|memory| span(memory, 0, 4096)))],
    );
    bench.begin_all();
    bench.queues.lose(&mut bench.queues.state.lock());
    bench.queues.stop();
    assert!(matches!(bench.submissions.step(), Next::Sleep(_, None)), "a run is in flight");
    assert!(!bench.completions.step());
    assert_eq!(bench.submissions.step(), Next::End);
    assert_eq!(bench.reports.lost.lock().len(), 1);
    assert_eq!(bench.networks().len(), 0);
}

#[test]
fn ring_that_had_room_meanwhile_may_be_full_as_long_again() {
    let settings = Settings { timeout: Duration::from_millis(50), ..Settings::default() };
    let mut bench = Bench::new(FakeCard::new(16, 1), settings);
    let executable = network(&bench);
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    let run = dispatch(&executable, 0, [1; 3], &bindings);
    bench.fake.fail(Asked::Execute, Errno::AGAIN);
    let epoch = bench.submit(0, &[run.clone(), Command::Barrier, run]);
    bench.begin_all();
    std::thread::sleep(Duration::from_millis(60));
    // The first one begins, and lands.
    bench.begin_all();
    bench.completions.step();
    bench.fake.fail(Asked::Execute, Errno::AGAIN);
    assert!(bench.until_ended(epoch).is_ok());
}

#[test]
fn device_that_had_not_enough_once_is_asked_again_when_a_network_has_gone() {
    let mut bench = Bench::with_channels(2);
    let mut executables = [0; 4].map(|_| Some(network(&bench)));
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    for number in [0, 1, 2] {
        bench.dispatch(executables[number].as_ref().unwrap(), 0, [1; 3], &bindings).unwrap();
    }
    executables[2] = None;
    bench.begin_all();
    assert_eq!(bench.networks().len(), 1);
    bench.dispatch(executables[3].as_ref().unwrap(), 0, [1; 3], &bindings).unwrap();
    assert_eq!(bench.networks().len(), 2, "there was room beside the second one");
}

/// Another program on the same device.
fn beside(bench: &Bench) -> Bench {
    Bench::on(bench.fake.clone(), bench.fake.clone(), bench.fake.clone(), Settings::default())
}

#[test]
fn idle_network_leaves_its_channel_to_other_programs_and_stays_loaded() {
    let mut one = Bench::with_channels(1);
    let mut other = beside(&one);
    let executables = [network(&one), network(&other)];
    let memories = [one.memory(&[1; 4096]), one.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    one.dispatch(&executables[0], 0, [1; 3], &bindings).unwrap();
    // It is idle, and the thread looks again in time.
    let Next::Sleep(_, Some(left)) = one.submissions.step() else { panic!("it has nothing else to do") };
    assert!(left <= Duration::from_secs(1), "{left:?}");
    let epoch = other.submit(0, &[dispatch(&executables[1], 0, [1; 3], &bindings)]);
    assert!(matches!(other.submissions.step(), Next::Sleep(_, Some(_))), "the first one has the channel");
    std::thread::sleep(left + Duration::from_millis(10));
    assert!(matches!(one.submissions.step(), Next::Sleep(_, None)));
    assert_eq!(one.networks().len(), 0);
    other.until_ended(epoch).unwrap();
    // The first one has it back likewise, and is activated alone.
    other.begin_all();
    std::thread::sleep(Duration::from_millis(1010));
    other.begin_all();
    one.fake.calls();
    one.dispatch(&executables[0], 0, [1; 3], &bindings).unwrap();
    let messages = one.fake.calls().into_iter().filter(|call| *call == Asked::Manage).count();
    assert_eq!(messages, 1, "it was loaded");
}

#[test]
fn network_in_use_is_not_parked() {
    let mut bench = Bench::with_channels(1);
    let executable = network(&bench);
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    bench.fake.hold();
    bench.submit(0, &[dispatch(&executable, 0, [1; 3], &bindings)]);
    bench.begin_all();
    let later = std::time::Instant::now() + Duration::from_secs(100);
    assert_eq!(bench.networks().park_idle(later), None);
    assert_eq!(bench.networks().len(), 1);
}

#[test]
fn other_programs_are_waited_for_and_named_when_that_was_too_long() {
    let mut bench = Bench::new(
        FakeCard::new(0, 1),
        Settings { scarce_timeout: Duration::from_millis(50), ..Settings::default() },
    );
    let executable = network(&bench);
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    let begin = std::time::Instant::now();
    let failure = bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap_err();
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(failure.code(), Code::ResourceExhausted, "{failure}");
    assert!(failure.message().contains("channels="), "{failure}");
}

#[test]
fn device_that_has_nothing_for_the_only_network_is_not_waited_for_if_so_asked() {
    let settings = Settings { scarce_timeout: Duration::ZERO, ..Settings::default() };
    let mut bench = Bench::new(FakeCard::new(0, 1), settings);
    let executable = network(&bench);
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    let failure = bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap_err();
    assert_eq!(failure.code(), Code::ResourceExhausted, "{failure}");
}

#[test]
fn why_networks_ended_is_remembered_of_the_last_ones() {
    let mut bench = Bench::with_channels(16);
    let executable = network(&bench);
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    let mut numbers = Vec::new();
    for _ in 0..65 {
        let epoch = bench.submit(0, &[dispatch(&executable, 0, [1; 3], &bindings)]);
        bench.begin_all();
        let number = bench.queues.state.lock().launched[0].launched.network;
        assert_eq!(bench.networks().end(number, &Error::Full), Error::Full);
        assert!(bench.until_ended(epoch).is_err());
        numbers.push(number);
    }
    let known = |number| bench.submissions.networks.end(number, &Error::Ring) == Error::Full;
    assert_eq!(numbers.into_iter().map(known).filter(|known| *known).count(), 64);
}

#[test]
fn network_that_takes_much_memory_has_few_runs_in_flight_and_one_at_least() {
    for (megabytes, runs) in [(10, 3), (40, 1)] {
        let mut bench = Bench::with_channels(16);
        let length = megabytes << 20;
        let executable = large(&bench, length);
        bench.fake.hold();
        let commands: Vec<_> = (0..4).map(|_| dispatch_large(&bench, &executable, length)).collect();
        for command in commands {
            bench.submit(0, &[command]);
        }
        bench.begin_all();
        assert_eq!(bench.fake.held().into_values().sum::<usize>(), runs, "{megabytes} MiB a buffer");
    }
}

#[test]
fn checksum_of_metadata_goes_along_with_the_network() {
    let mut bench = Bench::with_channels(16);
    let executable = large(&bench, 4096);
    let command = dispatch_large(&bench, &executable, 4096);
    bench.run(&[command]).unwrap();
    assert_eq!(bench.fake.metadata_crc(), 0xdead_beef);
}

#[test]
fn objects_are_kept_from_a_mebibyte_to_half_a_gibibyte_together() {
    const MIB: u64 = 1 << 20;
    let bench = Bench::with_channels(16);
    let kept = |batches: &[&[u64]]| {
        let mut object_pool = ObjectPool::default();
        for batch in batches {
            object_pool.keep(batch.iter().map(|&length| Bound::new(&bench.card, length).unwrap()));
        }
        bench.fake.calls();
        for length in batches.iter().copied().flatten() {
            drop(object_pool.take(&bench.card, *length).unwrap());
        }
        let made = bench.fake.calls().into_iter().filter(|call| *call == Asked::CreateBo).count();
        batches.iter().copied().flatten().count() - made
    };
    assert_eq!(kept(&[&[MIB, MIB - 4096]]), 1, "smaller ones are not worth it");
    assert_eq!(kept(&[&[256 * MIB, 256 * MIB, MIB]]), 2);
    assert_eq!(kept(&[&[256 * MIB], &[256 * MIB], &[MIB]]), 2, "with those that were there");
}

#[test]
fn device_that_is_dropped_waits_for_its_threads_and_by_one_of_them_for_none() {
    /// The last that has a device.
    struct Last(Mutex<Option<Arc<QaicDevice>>>);

    impl hal_backend::Observer for Last {
        fn command(&self, _: usize, _: u64, _: u64) {}

        fn job(&self, _: u64, _: u64, _: Result<(), &Failure>) {
            // The submitter lets go of the device meanwhile.
            while self.0.lock().as_ref().is_some_and(|device| Arc::strong_count(device) > 1) {
                std::thread::yield_now();
            }
            self.0.lock().take();
        }
    }

    for by_its_own in [false, true] {
        let fake = FakeCard::new(16, 1);
        let card = Card::open(fake, Path::new("/dev/accel/accel0"), Duration::ZERO).unwrap();
        let client = Client::new(card, None).unwrap();
        let device = Arc::new(QaicDevice::new(client, None, Settings::default()).unwrap());
        device.queues().start(Box::new(Arc::<Told>::default()));
        let queues = Arc::downgrade(device.queues());
        if by_its_own {
            let job = Job {
                queue: queue_ids()[0],
                epoch: 1,
                waits: Default::default(),
                event: None,
                commands: Commands::Own(Default::default()),
                recording: None,
                observer: Some(Arc::new(Last(Mutex::new(Some(device.clone()))))),
            };
            assert!(hal_backend::Device::submit(&*device, job).is_ok());
        }
        drop(device);
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while by_its_own && queues.upgrade().is_some() {
            assert!(std::time::Instant::now() < end, "its threads go on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(queues.upgrade().is_none());
    }
}

#[test]
fn only_those_constants_are_sent_of_which_there_are_some() {
    // Split at their begin they are all dynamic, at their end all static. Of both kinds there is a message for each.
    let messages = |split: u64, sizes: [u64; 3]| {
        let image = Container::read(&container()).unwrap().network().unwrap().to_vec();
        let description: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        let segment = |name, split, bytes| Segment { name, split, bytes };
        let segments = vec![
            segment(qpc::name::NETWORK, 0, image.as_slice()),
            segment(qpc::name::CONSTANTS_DESCRIPTION, 0, description.as_slice()),
            segment(qpc::name::CONSTANTS, split, b"weights"),
        ];
        let bytes = Container { segments }.write();
        let mut bench = Bench::with_channels(16);
        let executable = Arc::new(Executable::network(&bytes, None, &bench.queues).unwrap());
        let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
        bench.fake.calls();
        let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
        bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
        assert_eq!(bench.fake.constants(), b"weights");
        bench.fake.calls().into_iter().filter(|call| *call == Asked::Manage).count()
    };
    let both = messages(4, [4, 3, 0]);
    assert_eq!([messages(0, [0, 7, 0]), messages(7, [7, 0, 0])], [both - 1; 2]);
}
