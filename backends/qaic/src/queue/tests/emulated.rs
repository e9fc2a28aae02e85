// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The same on the emulator of the kernel driver: what each of its faults looks like from a queue.

use super::*;
use emulator_qaic::{Counts, Emulator, Options};
use hal_backend::Parameters;

struct Machine {
    emulator: Arc<Emulator>,
    bench: Bench,
    executable: Arc<Executable>,
    bindings: [Span<QaicDevice>; 2],
    target: Arc<Memory>,
}

impl Machine {
    /// A card with these parameters, and what the tests have on it.
    fn new(parameters: &[(&'static str, &'static str)], settings: Settings) -> Self {
        let pairs = [("workers", "2")].iter().chain(parameters).copied();
        let options = Options::read(&mut Parameters::new("qaic", pairs)).unwrap();
        let emulator = Emulator::new(options).unwrap();
        let fake = FakeCard::new(0, 0);
        let bench = Bench::on(fake, emulator.clone(), emulator.clone(), settings);
        let executable = bench.adder();
        let (source, target) = (bench.memory(&[1; 10_000]), bench.memory(&[0; 10_000]));
        let bindings = [span(&source, 0, 10_000), span(&target, 0, 10_000)];
        Self { emulator, bench, executable, bindings, target }
    }

    fn dispatch(&mut self) -> Result<(), Failure> {
        assert!(self.target.view().fill(&[0]));
        self.bench.dispatch(&self.executable, 0, [10_000, 1, 1], &self.bindings)
    }

    /// Dispatches what never ends.
    fn never_ends(&mut self) -> Result<(), Failure> {
        self.bench.set_impatient(true);
        let outcome = self.dispatch();
        self.bench.set_impatient(false);
        outcome
    }

    /// Dispatches, and looks at what came out.
    fn works(&mut self) {
        self.dispatch().unwrap();
        assert_eq!(bytes(&self.target, 10_000), [6; 10_000]);
    }

    fn counts(&self) -> Counts {
        self.emulator.counts(0)
    }
}

#[test]
fn dispatch_takes_the_way_of_a_network() {
    let mut machine = Machine::new(&[], Settings::default());
    machine.works();
    let first = machine.counts();
    assert_eq!((first.calls, first.activations, first.channels, first.loaded), (1, 1, 1, 1));
    machine.works();
    let second = machine.counts();
    assert_eq!((second.calls, second.messages), (2, first.messages), "nothing is said to the card again");
    // The call, two bindings both ways, the outcome.
    assert_eq!(second.requests, 2 * first.requests);
}

#[test]
fn nothing_stays_behind_when_a_client_is_gone() {
    let mut machine = Machine::new(&[], Settings::default());
    machine.works();
    let Machine { emulator, bench, executable, bindings, target } = machine;
    drop((executable, bindings, target, bench));
    // The thread for messages lets go of the file by itself.
    let end = std::time::Instant::now() + Duration::from_secs(60);
    let left = || {
        let counts = emulator.counts(0);
        (
            counts.users,
            counts.objects,
            counts.channels,
            counts.activations,
            counts.loaded,
            counts.allocated_bytes,
        )
    };
    while left() != (0, 0, 0, 0, 0, 0) {
        assert!(std::time::Instant::now() < end, "{:?}", left());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn memory_in_many_pieces_gets_rings_that_are_large_enough() {
    // A page at a time: 2 MiB both ways are more than a thousand elements.
    let mut machine = Machine::new(&[("segment", "4k")], Settings::default());
    let large = machine.bench.memory(&vec![1; 2 << 20]);
    let bindings = [span(&large, 0, 1 << 20), span(&large, 1 << 20, 1 << 20)];
    let executable = machine.executable.clone();
    machine.bench.dispatch(&executable, 0, [1000, 1, 1], &bindings).unwrap();
    let mut page = [0; 1001];
    assert!(large.view().read(1 << 20, &mut page));
    assert_eq!((page[999], page[1000]), (6, 1));
}

#[test]
fn as_many_networks_as_there_are_cores_and_more() {
    let mut machine = Machine::new(&[], Settings::default());
    let executables: Vec<_> = (0..20).map(|_| machine.bench.adder()).collect();
    for executable in executables.iter().chain(&executables) {
        machine.bench.dispatch(executable, 0, [4, 1, 1], &machine.bindings).unwrap();
    }
    assert_eq!(machine.counts().activations, 16);
}

#[test]
fn network_that_hangs_is_stopped_and_started_again() {
    let mut machine = Machine::new(&[("fault", "hang:1")], Settings::default());
    let failure = machine.never_ends().unwrap_err();
    assert_eq!(failure.code(), Code::Aborted, "{failure}");
    assert_eq!(machine.counts().activations, 0);
    machine.works();
}

#[test]
fn refused_deactivation_is_asked_for_again() {
    let mut machine = Machine::new(&[("fault", "deactivate:1")], Settings::default());
    machine.works();
    machine.bench.networks().clear();
    let counts = machine.counts();
    assert_eq!((counts.activations, counts.channels, counts.loaded), (0, 0, 0));
}

#[test]
fn channel_that_does_not_exist_fails_the_dispatch_and_not_the_device() {
    let mut machine = Machine::new(&[("fault", "bad-channel:1")], Settings::default());
    let failure = machine.dispatch().unwrap_err();
    assert_eq!(failure.code(), Code::Internal, "{failure}");
    machine.works();
}

#[test]
fn message_with_a_wrong_checksum_fails_the_dispatch_and_not_the_device() {
    // The third message is the one that loads the network: the first two asked for versions.
    let mut machine = Machine::new(&[("fault", "control-crc:3")], Settings::default());
    assert_eq!(machine.dispatch().unwrap_err().code(), Code::DataLoss);
    machine.works();
}

#[test]
fn message_that_is_not_answered_fails_the_dispatch_in_time() {
    let lost = [("fault", "control-lost:3"), ("control_resp_timeout_s", "1")];
    let mut machine = Machine::new(&lost, Settings::default());
    let failure = machine.dispatch().unwrap_err();
    assert_eq!(failure.code(), Code::DeadlineExceeded);
    assert!(failure.message().contains("no answer within"), "{failure}");
    machine.works();
}

#[test]
fn message_that_is_answered_wrongly_fails_the_dispatch_and_leaves_nothing_behind() {
    // The third loads the network, the fourth activates it.
    for message in ["control-wrong:3", "control-wrong:4"] {
        let mut machine = Machine::new(&[("fault", message)], Settings::default());
        let failure = machine.dispatch().unwrap_err();
        assert_eq!(failure.code(), Code::Internal, "{message}: {failure}");
        assert!(failure.message().contains("the device's answer is not understood"), "{message}: {failure}");
        machine.works();
        let emulator = machine.emulator.clone();
        drop(machine);
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while emulator.counts(0).users > 0 {
            assert!(std::time::Instant::now() < end, "the file stays open");
            std::thread::sleep(Duration::from_millis(5));
        }
        let counts = emulator.counts(0);
        assert_eq!((counts.loaded, counts.activations, counts.channels), (0, 0, 0), "{message}");
    }
}

#[test]
fn message_without_room_on_the_device_fails_its_dispatch_with_the_cause() {
    let full = [("fault", "control-full:3"), ("speed", "20")];
    let mut machine = Machine::new(&full, Settings::default());
    let failure = machine.dispatch().unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable, "{failure}");
    assert!(failure.message().contains("taken no message"), "{failure}");
    machine.works();
}

#[test]
fn waits_that_signals_interrupt_go_on() {
    let mut machine = Machine::new(&[("fault", "eintr:5")], Settings::default());
    // A message to the card is not repeated, since it may have arrived.
    let mut tries = 0;
    while let Err(failure) = machine.dispatch() {
        assert_eq!(failure.code(), Code::Aborted, "{failure}");
        tries += 1;
        assert!(tries < 10, "{failure}");
    }
    for _ in 0..20 {
        machine.works();
    }
}

#[test]
fn interrupt_that_is_lost_ends_a_dispatch_in_time() {
    let mut machine = Machine::new(&[("fault", "lost-msi:1")], Settings::default());
    // Among many completions, the next interrupt finds them all.
    if let Err(failure) = machine.never_ends() {
        assert_eq!(failure.code(), Code::Aborted, "{failure}");
    }
    machine.works();
}

#[test]
fn outputs_behind_a_semaphore_that_is_never_added_to_end_a_dispatch_in_time() {
    let mut machine = Machine::new(&[("fault", "deadlock:1")], Settings::default());
    let command = super::dispatch(&machine.executable, 0, [10_000, 1, 1], &machine.bindings);
    let epoch = machine.bench.submit(0, &[command]);
    machine.bench.begin_all();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while machine.counts().calls == 0 {
        assert!(std::time::Instant::now() < end, "it does not run");
        std::thread::sleep(Duration::from_millis(1));
    }
    machine.bench.set_impatient(true);
    let failure = machine.bench.until_ended(epoch).unwrap_err();
    machine.bench.set_impatient(false);
    assert_eq!(failure.code(), Code::Aborted, "{failure}");
    assert_eq!((machine.counts().calls, machine.counts().activations), (1, 0), "it ran, and was stopped");
    machine.works();
}

#[test]
fn object_that_finds_no_memory_fails_the_dispatch() {
    // Two are the buffers of the test.
    let mut machine = Machine::new(&[("fault", "alloc:4")], Settings::default());
    assert_eq!(machine.dispatch().unwrap_err().code(), Code::ResourceExhausted);
    machine.works();
}

#[test]
fn card_that_is_pulled_out_is_lost() {
    let mut machine = Machine::new(&[("fault", "unplug:13")], Settings::default());
    let failure = machine.dispatch().unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable, "{failure}");
    assert!(failure.message().contains("gone"), "{failure}");
}

#[test]
fn reset_fails_running_work() {
    let mut machine = Machine::new(&[("fault", "reset:2")], Settings::default());
    machine.works();
    let failure = machine.dispatch().unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable, "{failure}");
}

#[test]
fn sub_system_that_restarts_costs_one_dispatch() {
    let mut machine = Machine::new(&[("fault", "crash:2")], Settings::default());
    machine.works();
    let failure = machine.dispatch().unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable, "{failure}");
    assert!(failure.message().contains("the workload is lost"), "{failure}");
    machine.works();
    assert_eq!(machine.counts().resets, 0, "the card goes on");
}

#[test]
fn crash_without_restarts_costs_what_a_reset_costs() {
    let mut machine = Machine::new(&[("fault", "crash:2"), ("restarts", "off")], Settings::default());
    machine.works();
    let failure = machine.dispatch().unwrap_err();
    assert_eq!(failure.code(), Code::Unavailable, "{failure}");
    assert_eq!(machine.counts().resets, 1);
}

/// Times of commands, as a profile gets them, and what was told of jobs.
#[derive(Default)]
struct Times(Mutex<Vec<(u64, u64)>>, Mutex<Vec<Result<(), Failure>>>);

impl Observer for Times {
    fn command(&self, _: usize, begin: u64, end: u64) {
        self.0.lock().push((begin, end));
    }

    fn job(&self, begin: u64, end: u64, outcome: Result<(), &Failure>) {
        assert!(begin <= end);
        self.1.lock().push(outcome.map_err(Failure::clone));
    }
}

/// A program that takes five milliseconds.
struct Slow([Function; 1]);

impl HostProgram for Slow {
    fn functions(&self) -> &[Function] {
        &self.0
    }

    fn run(&self, _: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    }
}

#[test]
fn kernels_statistics_are_the_times_of_a_profile() {
    let mut machine = Machine::new(&[], Settings::default());
    let slow = Arc::new(Slow([Function { bindings: 1, constants: 1, ..Function::default() }]));
    let executable = Arc::new(Executable::program(slow, &machine.bench.programs, &machine.bench.queues));
    let memory = machine.bench.memory(&[1; 4096]);
    // Without a barrier between them the second one stands behind the first one in the ring.
    let run = || dispatch(&executable, 0, [1; 3], &[span(&memory, 0, 4096)]);
    let times = Arc::new(Times::default());
    machine.bench.epoch += 1;
    let job = Job {
        queue: machine.bench.names[0],
        epoch: machine.bench.epoch,
        waits: Default::default(),
        event: None,
        commands: Commands::Own([run(), run()].into_iter().collect()),
        recording: None,
        observer: Some(times.clone()),
    };
    assert!(machine.bench.queues.submit(job).is_ok());
    machine.bench.until_ended(machine.bench.epoch).unwrap();
    let seen = times.0.lock().clone();
    let [(first, middle), (second, last)] = seen[..] else { panic!("{seen:?}") };
    // Each begins when the driver asked and what the kernel measured was over. A thread that was held up before it
    // asked shortens the second one, up to nothing, and never makes the first one shorter than it was.
    assert!(middle - first >= 4_000_000 && last >= second && last <= hal_kernel::clock(), "{seen:?}");
    assert!(second >= middle, "the card was not done with the first one before: {seen:?}");
    assert_eq!(times.1.lock().len(), 1);
}

#[test]
fn file_of_the_programs_is_used_and_not_closed() {
    use std::os::fd::AsFd;
    let machine = Machine::new(&[], Settings::default());
    let (emulator, users) = (machine.emulator.clone(), machine.counts().users);
    let file = emulator.open(Path::new("/dev/accel/accel0")).unwrap();
    let card = Card::adopt(emulator.clone(), file.as_fd(), "descriptor 9".to_owned()).unwrap();
    assert_eq!((card.name(), emulator.counts(0).users), ("descriptor 9", users + 1));
    let object = card.create(4096).unwrap();
    drop((object, card));
    assert_eq!(emulator.counts(0).users, users + 1, "it is the program's");
    emulator.close(file);
    assert_eq!(emulator.counts(0).users, users);
}
