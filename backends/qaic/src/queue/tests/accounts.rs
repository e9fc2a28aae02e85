// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The queues' accounts: room, causes, turns, and the work in flight when something went wrong.

use super::*;
use std::sync::Weak;

fn network(bench: &Bench) -> Arc<Executable> {
    Arc::new(Executable::network(&container(), None, &bench.queues).unwrap())
}

fn count(calls: &[Asked], wanted: Asked) -> usize {
    calls.iter().filter(|call| **call == wanted).count()
}

/// A job that fills memory.
fn filling(queue: QueueId, epoch: u64, memory: &Arc<Memory>) -> Job<QaicDevice> {
    let fill = Command::Fill { target: span(memory, 0, 4), pattern: Pattern::new(&[1]).unwrap() };
    let commands = Commands::Own([fill].into_iter().collect());
    Job { queue, epoch, waits: Default::default(), event: None, commands, recording: None, observer: None }
}

/// Looks at the queues from inside a report.
#[derive(Default)]
struct Inside {
    queues: Weak<Queues>,
    memory: Weak<Memory>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Reports for Inside {
    fn ended(&self, _: QueueId, epoch: u64, _: Result<(), Failure>) {
        assert!(self.memory.upgrade().is_none(), "what the job held is free");
        self.log.lock().push(format!("{epoch} begins"));
        // As the other thread would.
        self.queues.upgrade().unwrap().report(0);
        self.log.lock().push(format!("{epoch} ends"));
    }

    fn has_room(&self, _: QueueId) {
        self.log.lock().push("room".to_owned());
    }

    fn lost(&self, _: Failure) {}
}

#[test]
fn one_thread_at_a_time_reports_after_the_jobs_memory_is_free() {
    let bench = Bench::with_channels(1);
    let queues = Queues::new("qaic1");
    let memory = bench.memory(&[0; 4]);
    let log = Arc::default();
    let inside =
        Inside { queues: Arc::downgrade(&queues), memory: Arc::downgrade(&memory), log: Arc::clone(&log) };
    queues.start(Box::new(inside));
    for epoch in [1, 2] {
        let empty = Commands::Own(Default::default());
        let job = filling(bench.names[0], epoch, &memory);
        let job = if epoch == 1 { job } else { Job { commands: empty, ..job } };
        let started = StartedJob {
            number: epoch,
            queue: job.queue,
            epoch,
            observer: None,
            begin: 0,
            runs: 0,
            job: Some(job),
            failure: None,
        };
        queues.state.lock().queues[0].started.push_back(started);
    }
    drop(memory);
    queues.report(0);
    assert_eq!(*log.lock(), ["1 begins", "1 ends", "2 begins", "2 ends"]);
}

#[test]
fn full_queue_reports_room_once() {
    let bench = Bench::with_channels(1);
    let memory = bench.memory(&[0; 4]);
    let full = Queues::new("qaic1");
    let log = Arc::default();
    let inside = Inside { queues: Arc::downgrade(&full), memory: Weak::new(), log: Arc::clone(&log) };
    full.start(Box::new(inside));
    let mut submissions = bench.submissions;
    submissions.queues = full.clone();
    for epoch in 1..=DEPTH as u64 {
        assert!(full.submit(filling(bench.names[0], epoch, &memory)).is_ok(), "{epoch}");
    }
    let one_more = || full.submit(filling(bench.names[0], 9999, &memory));
    assert!(matches!(one_more(), Err(Rejected::Full(_))));
    assert!(full.submit(filling(bench.names[1], 1, &memory)).is_ok(), "another queue has room");
    while submissions.step() == Next::Again {}
    let count = log.lock().iter().filter(|line| *line == "room").count();
    assert_eq!(count, 1);
    assert!(one_more().is_ok());
}

#[test]
fn job_has_the_first_of_its_failures() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 16]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    let others = [span(&memory, 8, 4), span(&memory, 12, 4)];
    let epoch = bench
        .submit(0, &[dispatch(&executable, 0, [1; 3], &bindings), dispatch(&executable, 1, [1; 3], &others)]);
    bench.begin_all();
    // The second network is looked at first.
    assert!(bench.completions.step());
    bench.fake.fail(Asked::Wait, Errno::IO);
    let failure = bench.until_ended(epoch).unwrap_err();
    assert_eq!(failure.code(), Code::OutOfRange, "{failure}");
}

#[test]
fn network_has_the_first_reason_why_it_ended() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    bench.fake.hold();
    let epoch =
        bench.submit(0, &[dispatch(&executable, 0, [1; 3], &[span(&memory, 0, 4), span(&memory, 4, 4)])]);
    bench.begin_all();
    let number = bench.queues.state.lock().launched[0].launched.network;
    assert_eq!(bench.networks().end(number, &Error::Full), Error::Full);
    assert_eq!(bench.networks().end(number, &Error::Ring), Error::Full);
    let failure = bench.until_ended(epoch).unwrap_err();
    assert!(failure.message().contains("the channel's ring is full"), "{failure}");
}

#[test]
fn abort_ends_what_runs_and_what_waits_for_its_reason() {
    let mut bench = Bench::new(FakeCard::new(16, 1), Settings { in_flight: Some(1), ..Settings::default() });
    let executable = bench.adder();
    let memory = bench.memory(&[1; 16]);
    bench.fake.hold();
    let runs =
        bench.submit(0, &[dispatch(&executable, 0, [1; 3], &[span(&memory, 0, 4), span(&memory, 4, 4)])]);
    let waits =
        bench.submit(1, &[dispatch(&executable, 0, [1; 3], &[span(&memory, 8, 4), span(&memory, 12, 4)])]);
    bench.begin_all();
    assert_eq!(bench.fake.held().values().sum::<usize>(), 1);
    bench.queues.abort(&Failure::new(Code::Cancelled, "the program is over"));
    bench.fake.calls();
    for epoch in [runs, waits] {
        let failure = bench.until_ended(epoch).unwrap_err();
        assert_eq!((failure.code(), failure.message()), (Code::Cancelled, "the program is over"));
    }
    assert_eq!(count(&bench.fake.calls(), Asked::PartialExecute), 0, "what waited was not begun");
}

#[test]
fn loss_is_reported_after_the_jobs_in_flight() {
    let mut bench = Bench::with_channels(16);
    let (idle, held, gone) = (bench.adder(), bench.adder(), bench.adder());
    let memory = bench.memory(&[1; 16]);
    bench.dispatch(&idle, 0, [1; 3], &[span(&memory, 0, 4), span(&memory, 4, 4)]).unwrap();
    bench.fake.hold();
    bench.submit(0, &[dispatch(&held, 0, [1; 3], &[span(&memory, 0, 4), span(&memory, 4, 4)])]);
    bench.begin_all();
    assert!(bench.completions.step());
    bench.fake.fail(Asked::PartialExecute, Errno::NODEV);
    bench.submit(1, &[dispatch(&gone, 0, [1; 3], &[span(&memory, 8, 4), span(&memory, 12, 4)])]);
    bench.begin_all();
    assert!(bench.reports.lost.lock().is_empty(), "a run is in flight");
    bench.completions.step();
    bench.begin_all();
    assert_eq!(bench.reports.lost.lock().len(), 1);
    assert_eq!(bench.networks().len(), 0);
    assert_eq!(bench.fake.counts(), (1, 0, 0), "the buffer is left");
}

#[test]
fn device_that_is_gone_while_it_is_waited_for_is_lost() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    bench.fake.fail(Asked::Wait, Errno::NODEV);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    assert!(bench.dispatch(&executable, 0, [1; 3], &bindings).is_err());
    for _ in 0..3 {
        bench.completions.step();
        bench.begin_all();
    }
    assert_eq!(bench.reports.lost.lock().len(), 1);
}

#[test]
fn each_network_has_its_turn_and_its_own_end() {
    let mut bench = Bench::with_channels(16);
    let (first, second) = (bench.adder(), bench.adder());
    let memory = bench.memory(&[1; 16]);
    bench.fake.hold();
    let of =
        |executable, at| dispatch(executable, 0, [1; 3], &[span(&memory, at, 4), span(&memory, at + 4, 4)]);
    for (broken, whole) in [(0, 1), (1, 0)] {
        let epochs = [bench.submit(0, &[of(&first, 0)]), bench.submit(1, &[of(&second, 8)])];
        bench.begin_all();
        let channels: Vec<u32> = {
            let state = bench.queues.state.lock();
            state.launched.iter().map(|flight| flight.launched.target.channel.number).collect()
        };
        bench.fake.release(channels[whole]);
        for _ in 0..4 {
            bench.completions.step();
        }
        bench.begin_all();
        let ended: Vec<u64> = bench.reports.ended.lock().drain(..).map(|(epoch, _)| epoch).collect();
        assert_eq!(ended, [epochs[whole]], "the other one is held");
        bench.fake.release(channels[broken]);
        bench.until_ended(epochs[broken]).unwrap();
        bench.reports.ended.lock().clear();
    }
    // A failure of one of them does not touch the other.
    let epochs = [bench.submit(0, &[of(&first, 0)]), bench.submit(1, &[of(&second, 8)])];
    bench.begin_all();
    bench.fake.fail(Asked::Wait, Errno::IO);
    bench.completions.step();
    bench.begin_all();
    let (broken, _) = bench.reports.ended.lock()[0].clone();
    let whole = epochs.into_iter().find(|epoch| *epoch != broken).unwrap();
    let channel = *bench.fake.held().keys().next().unwrap();
    bench.fake.release(channel);
    bench.until_ended(whole).unwrap();
}

#[test]
fn ring_that_stays_full_fails_the_dispatch_in_time() {
    let settings = Settings { timeout: Duration::ZERO, ..Settings::default() };
    let mut bench = Bench::new(FakeCard::new(16, 1), settings);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    (0..1000).for_each(|_| bench.fake.fail(Asked::PartialExecute, Errno::AGAIN));
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    let failure = bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap_err();
    assert!(failure.message().contains("the channel's ring is full"), "{failure}");
}

#[test]
fn rings_grow_until_a_run_leaves_one_element_free_and_no_further_than_they_may() {
    let settings = Settings::default();
    // Two objects of 256 elements are as many as the first ring has, and never fit.
    let mut bench = Bench::new(FakeCard::new(16, 256), settings);
    let executable = network(&bench);
    let memory = bench.memory(&[1; 8192]);
    let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    assert_eq!(bytes(&memory, 8192), [[1; 4096], [2; 4096]].concat());
    let mut bench = Bench::new(FakeCard::new(16, 20_000), settings);
    let executable = network(&bench);
    let memory = bench.memory(&[1; 8192]);
    let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
    let failure = bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap_err();
    assert_eq!(failure.code(), Code::ResourceExhausted, "{failure}");
    assert!(failure.message().contains("elements="), "{failure}");
}

#[test]
fn workgroups_are_not_counted_before_the_run_that_writes_them_is_over() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    // With the constant, 4 1 1.
    let words = [255, 251, 251, 251, 252, 251, 251, 251, 252, 251, 251, 251];
    let (source, counts) = (bench.memory(&words), bench.memory(&[0; 12]));
    let memory = bench.memory(&[1; 16]);
    let Command::Dispatch(mut indirect) =
        dispatch(&executable, 0, [1; 3], &[span(&memory, 0, 8), span(&memory, 8, 8)])
    else {
        panic!("a dispatch");
    };
    indirect.workgroups = Workgroups::Indirect(span(&counts, 0, 12));
    bench
        .run(&[
            dispatch(&executable, 0, [12, 1, 1], &[span(&source, 0, 12), span(&counts, 0, 12)]),
            Command::Barrier,
            Command::Dispatch(indirect),
        ])
        .unwrap();
    assert_eq!(bytes(&memory, 16)[8..], [6, 6, 6, 6, 1, 1, 1, 1]);
}

#[test]
fn buffer_in_place_is_sliced_for_its_present_use_and_released() {
    let mut bench = Bench::with_channels(16);
    let executable = network(&bench);
    let (one, other) = (bench.memory(&[1; 4096]), bench.memory(&[0; 4096]));
    let of = |source, target| [span(source, 0, 4096), span(target, 0, 4096)];
    bench.dispatch(&executable, 0, [1; 3], &of(&one, &other)).unwrap();
    bench.dispatch(&executable, 0, [1; 3], &of(&other, &one)).unwrap();
    assert_eq!((bytes(&one, 4096), bytes(&other, 4096)), (vec![3; 4096], vec![2; 4096]));
    // After a loss too no object of the network's own is needed.
    bench.fake.fail(Asked::Wait, Errno::PIPE);
    assert!(bench.dispatch(&executable, 0, [1; 3], &of(&one, &other)).is_err());
    bench.fake.calls();
    bench.dispatch(&executable, 0, [1; 3], &of(&one, &other)).unwrap();
    assert_eq!(count(&bench.fake.calls(), Asked::CreateBo), 0);
    // The kernel keeps the memory of an object that is sliced.
    drop(one);
    assert_eq!(bench.fake.calls(), [Asked::DetachSlice, Asked::GemClose]);
}

#[test]
fn program_goes_with_its_executable() {
    let bench = Bench::with_channels(1);
    let program = Adder::new();
    let kept = Arc::downgrade(&program);
    let executable = Executable::program(program, &bench.programs, &bench.queues);
    assert!(kept.upgrade().is_some());
    drop(executable);
    assert!(kept.upgrade().is_none());
}

#[test]
fn each_output_is_waited_for_where_none_says_that_it_is_the_last() {
    let mut bench = Bench::with_channels(16);
    let request = |buffer: u16, direction| Request {
        buffer,
        direction,
        host_offset: 0,
        device_offset: 4096 * u64::from(buffer),
        size: 4096,
        space: Space::Ddr,
        semaphores: Vec::new(),
        doorbell: None,
    };
    let requests = vec![request(0, Direction::In), request(1, Direction::Out), request(2, Direction::Out)];
    let image = Network { name: "two".to_owned(), requests, ..Network::default() }.image();
    let segments = vec![Segment { name: qpc::name::NETWORK, split: 0, bytes: image.as_slice() }];
    let bytes = Container { segments }.write();
    let executable = Arc::new(Executable::network(&bytes, None, &bench.queues).unwrap());
    let memory = bench.memory(&[1; 3 * 4096]);
    let bindings = [0, 1, 2].map(|page| span(&memory, page * 4096, 4096));
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    assert_eq!(count(&bench.fake.calls(), Asked::Wait), 2);
}
