// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Work in flight at once, on one channel and on several, and work that has to wait.

use super::*;

/// A network of a compiler, and buffers for so many runs of it.
struct Runs {
    bench: Bench,
    executable: Arc<Executable>,
    buffers: Vec<[Arc<Memory>; 2]>,
}

impl Runs {
    fn new(count: u8, settings: Settings) -> Self {
        let bench = Bench::new(FakeCard::new(16, 1), settings);
        let executable = Arc::new(Executable::network(&container(), None, &bench.queues).unwrap());
        let pair = |byte| [bench.memory(&[byte; 4096]), bench.memory(&[0; 4096])];
        let buffers = (0..count).map(pair).collect();
        bench.fake.hold();
        Self { bench, executable, buffers }
    }

    fn command(&self, number: usize) -> Command<QaicDevice> {
        let bindings = self.buffers[number].each_ref().map(|memory| span(memory, 0, 4096));
        dispatch(&self.executable, 0, [1; 3], &bindings)
    }

    /// Submits each run as a job of one queue.
    fn submit_all(&mut self) -> Vec<u64> {
        let commands: Vec<_> = (0..self.buffers.len()).map(|number| self.command(number)).collect();
        let epochs = commands.iter().map(|command| self.bench.submit(0, std::slice::from_ref(command)));
        let epochs = epochs.collect();
        self.bench.begin_all();
        epochs
    }

    fn in_flight(&self) -> Vec<usize> {
        self.bench.fake.held().into_values().collect()
    }

    /// The oldest run of a channel ends, and the threads notice.
    fn land(&mut self, channel: u32) {
        self.bench.fake.release(channel);
        self.bench.completions.step();
        self.bench.begin_all();
    }

    fn ended(&self) -> Vec<u64> {
        self.bench.reports.ended.lock().iter().map(|(epoch, _)| *epoch).collect()
    }
}

#[test]
fn runs_of_one_network_stand_behind_each_other_in_its_ring() {
    let mut runs = Runs::new(5, Settings::default());
    let epochs = runs.submit_all();
    assert_eq!(runs.in_flight(), [5], "all of them, on one channel, before any has ended");
    for number in 0..5 {
        assert_eq!(runs.ended(), epochs[..number]);
        runs.land(0);
        let expected = u8::try_from(number).unwrap() + 1;
        assert_eq!(bytes(&runs.buffers[number][1], 4096), [expected; 4096]);
    }
    assert_eq!(runs.ended(), epochs);
}

#[test]
fn ring_holds_one_fewer_than_its_elements_and_the_rest_waits_for_room() {
    // Seven of eight elements, two for each run: three at a time.
    let mut runs = Runs::new(8, Settings { elements: Some(8), ..Settings::default() });
    let epochs = runs.submit_all();
    assert_eq!(runs.in_flight(), [3]);
    let asked = runs.bench.fake.calls();
    assert_eq!(asked.iter().filter(|call| **call == Asked::Execute).count(), 4, "one found it full");
    for _ in 0..5 {
        runs.land(0);
        assert_eq!(runs.in_flight(), [3], "as one ends the next one begins");
    }
    let asked = runs.bench.fake.calls();
    assert_eq!(asked.iter().filter(|call| **call == Asked::Execute).count(), 5, "none finds it full again");
    (0..3).for_each(|_| runs.land(0));
    assert_eq!(runs.ended(), epochs);
}

#[test]
fn as_many_runs_are_in_flight_as_were_asked_for() {
    let mut runs = Runs::new(6, Settings { in_flight: Some(2), ..Settings::default() });
    runs.submit_all();
    assert_eq!(runs.in_flight(), [2]);
    runs.land(0);
    assert_eq!(runs.in_flight(), [2]);
}

#[test]
fn networks_work_side_by_side_on_channels_of_their_own() {
    let mut runs = Runs::new(3, Settings::default());
    let mut commands = Vec::new();
    for number in 0..3 {
        runs.executable = Arc::new(Executable::network(&container(), None, &runs.bench.queues).unwrap());
        commands.push(runs.command(number));
    }
    let epochs: Vec<u64> =
        commands.iter().map(|command| runs.bench.submit(0, std::slice::from_ref(command))).collect();
    runs.bench.begin_all();
    assert_eq!(runs.in_flight(), [1, 1, 1]);
    // The last one ends first, and is reported last, since they are of one queue.
    for channel in [2, 1] {
        runs.bench.fake.release(channel);
        (0..6).for_each(|_| assert!(runs.bench.completions.step()));
        assert!(runs.ended().is_empty());
    }
    runs.bench.fake.release(0);
    while runs.bench.completions.step() {}
    assert_eq!(runs.ended(), epochs);
}

#[test]
fn queues_do_not_wait_for_each_other() {
    let mut runs = Runs::new(3, Settings::default());
    let (first, second) = (runs.command(0), runs.command(1));
    // Two that must not overlap keep the first queue busy.
    let first = [runs.bench.submit(0, std::slice::from_ref(&first)), runs.bench.submit(0, &[first])];
    let other = runs.bench.submit(1, &[second]);
    runs.bench.begin_all();
    assert_eq!(runs.in_flight(), [2], "the second of the first queue waits");
    let filled =
        Command::Fill { target: span(&runs.buffers[2][0], 0, 16), pattern: Pattern::new(&[3]).unwrap() };
    let third = runs.bench.submit(2, &[filled]);
    runs.bench.begin_all();
    assert_eq!(runs.ended(), [third]);
    (0..3).for_each(|_| runs.land(0));
    assert_eq!(runs.ended(), [third, first[0], other, first[1]]);
}

#[test]
fn command_that_uses_what_a_run_writes_waits_for_it() {
    let mut runs = Runs::new(2, Settings::default());
    let [source, target] = runs.buffers[0].clone();
    let read = runs.bench.memory(&[0; 4096]);
    let copy = |from: &Arc<Memory>, to: &Arc<Memory>| Command::Copy {
        source: span(from, 0, 4096),
        target: span(to, 0, 4096),
    };
    let run = runs.command(0);
    let epochs = [
        runs.bench.submit(0, &[run]),
        // The input may be read meanwhile.
        runs.bench.submit(0, &[copy(&source, &read)]),
        runs.bench.submit(0, &[copy(&target, &read)]),
    ];
    runs.bench.begin_all();
    assert_eq!(bytes(&read, 4096), [0; 4096]);
    assert!(runs.ended().is_empty(), "in order, although the second one has ended");
    runs.land(0);
    assert_eq!(runs.ended(), epochs);
    assert_eq!(bytes(&read, 4096), [1; 4096]);
    // And what is written is not what a run still reads.
    let run = runs.command(1);
    runs.bench.submit(0, &[run]);
    let [source, target] = runs.buffers[1].clone();
    runs.bench.submit(0, &[copy(&read, &source)]);
    runs.bench.begin_all();
    runs.land(0);
    assert_eq!((bytes(&target, 1), bytes(&source, 1)), (vec![2], vec![1]));
}

#[test]
fn commands_of_a_job_overlap_up_to_a_barrier() {
    let mut runs = Runs::new(1, Settings::default());
    let run = || runs.command(0);
    // The same buffers: without a barrier between them they are in no order.
    let commands = [run(), run(), Command::Barrier, run()];
    let epoch = runs.bench.submit(0, &commands);
    runs.bench.begin_all();
    assert_eq!(runs.in_flight(), [2]);
    runs.land(0);
    assert_eq!(runs.in_flight(), [1]);
    runs.land(0);
    assert_eq!(runs.in_flight(), [1], "the third one");
    assert!(runs.ended().is_empty());
    runs.land(0);
    assert_eq!(runs.ended(), [epoch]);
    assert_eq!(bytes(&runs.buffers[0][1], 4096), [1; 4096], "one worked in place, the others on copies");
}

#[test]
fn hung_network_fails_its_queued_runs_and_nothing_else() {
    let settings = Settings { timeout: Duration::from_millis(30), ..Settings::default() };
    let mut runs = Runs::new(4, settings);
    let mut commands: Vec<_> = (0..3).map(|number| runs.command(number)).collect();
    runs.executable = Arc::new(Executable::network(&container(), None, &runs.bench.queues).unwrap());
    commands.push(runs.command(3));
    let epochs: Vec<u64> = commands
        .iter()
        .zip([0, 1, 2, 3])
        .map(|(command, queue)| runs.bench.submit(queue, std::slice::from_ref(command)))
        .collect();
    runs.bench.begin_all();
    assert_eq!(runs.in_flight(), [3, 1]);
    runs.bench.fake.release(1);
    for &epoch in &epochs[..3] {
        let failure = runs.bench.until_ended(epoch).unwrap_err();
        assert_eq!(failure.code(), Code::Aborted, "{failure}");
    }
    runs.bench.until_ended(epochs[3]).unwrap();
    assert_eq!(runs.bench.networks().len(), 1, "the other one runs on");
    assert_eq!(bytes(&runs.buffers[3][1], 1), [4]);
}

#[test]
fn loss_that_is_noticed_when_a_run_is_queued_is_the_cause_for_those_in_flight() {
    let mut runs = Runs::new(3, Settings::default());
    let first: Vec<u64> = (0..2)
        .map(|number| runs.command(number))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|command| runs.bench.submit(0, &[command]))
        .collect();
    runs.bench.begin_all();
    assert_eq!(runs.in_flight(), [2]);
    runs.bench.fake.crash();
    let command = runs.command(2);
    let last = runs.bench.submit(1, &[command]);
    let failures: Vec<Failure> =
        first.iter().chain([&last]).map(|&epoch| runs.bench.until_ended(epoch).unwrap_err()).collect();
    assert!(failures[0].message().contains("the workload is lost"), "{}", failures[0]);
    assert!(failures.iter().all(|failure| failure.message() == failures[0].message()), "one cause");
    assert_eq!(runs.bench.networks().len(), 0);
}

#[test]
fn network_that_is_busy_is_not_stopped_for_another_one() {
    let mut runs = Runs::new(2, Settings { channels: 1, ..Settings::default() });
    let first = runs.command(0);
    runs.executable = Arc::new(Executable::network(&container(), None, &runs.bench.queues).unwrap());
    let second = runs.command(1);
    let epochs = [runs.bench.submit(0, &[first]), runs.bench.submit(1, &[second])];
    runs.bench.begin_all();
    assert_eq!((runs.in_flight(), runs.bench.networks().len()), (vec![1], 1));
    runs.land(0);
    assert_eq!((runs.in_flight(), runs.ended()), (vec![1], vec![epochs[0]]));
    runs.land(0);
    assert_eq!(runs.ended(), epochs);
}

#[test]
fn device_that_has_no_channel_left_is_asked_again_when_a_network_is_idle() {
    // The device has fewer than it may be asked for.
    let mut runs = Runs::new(2, Settings::default());
    runs.bench = Bench::with_channels(1);
    runs.executable = Arc::new(Executable::network(&container(), None, &runs.bench.queues).unwrap());
    let pair = |byte| [runs.bench.memory(&[byte; 4096]), runs.bench.memory(&[0; 4096])];
    runs.buffers = vec![pair(1), pair(2)];
    runs.bench.fake.hold();
    let first = runs.command(0);
    runs.executable = Arc::new(Executable::network(&container(), None, &runs.bench.queues).unwrap());
    let second = runs.command(1);
    let epochs = [runs.bench.submit(0, &[first]), runs.bench.submit(1, &[second])];
    runs.bench.begin_all();
    runs.bench.fake.calls();
    // Nothing has changed: it is not asked again and again.
    runs.bench.queues.retire(u64::MAX);
    runs.bench.begin_all();
    assert!(!runs.bench.fake.calls().contains(&Asked::Manage));
    runs.land(0);
    runs.land(0);
    assert_eq!(runs.ended(), epochs);
}

#[test]
fn failed_command_lets_what_is_in_flight_end_before_its_job_is_over() {
    let mut runs = Runs::new(1, Settings::default());
    let run = runs.command(0);
    let [source, target] = runs.buffers[0].clone();
    let wrong = Command::Copy { source: span(&source, 4000, 4096), target: span(&target, 0, 4096) };
    let never = Command::Fill { target: span(&source, 0, 4096), pattern: Pattern::new(&[9]).unwrap() };
    let epoch = runs.bench.submit(0, &[run, wrong, never]);
    runs.bench.begin_all();
    assert!(runs.ended().is_empty());
    runs.land(0);
    assert_eq!(runs.ended(), [epoch]);
    assert_eq!(runs.bench.until_ended(epoch).unwrap_err().code(), Code::OutOfRange);
    assert_eq!(bytes(&source, 1), [0], "nothing after it has begun");
}
