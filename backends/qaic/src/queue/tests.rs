// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Commands of jobs on a device that is a fake: what comes out, what the kernel is asked, what survives.

use super::submission::Next;
use super::*;
use crate::executable::Executable;
use crate::fake_card::FakeCard;
use crate::kmd::uapi::Call as Asked;
use crate::kmd::{Card, Device as Client, Errno, System};
use crate::memory::Memory;
use crate::networks::{Networks, Settings};
use emulator_qaic::programs::card_programs;
use hal_backend::{
    Command, Commands, Completion, DeviceSpec, Dispatch, Function, HostCall, HostProgram, HostRange,
    NativeWaits, Pattern, Place, Span, Workgroups,
};
use hal_kernel::ProgramHost;
use hal_qaic_abi::container::metadata::{Direction, Request, Space};
use hal_qaic_abi::container::{Container, Network, Segment, qpc};
use hal_qaic_abi::programs::CardPrograms;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// A program with two functions: each byte of the second binding becomes that of the first plus the constant, for as
/// many as there are workgroups; and one that fails.
struct Adder {
    functions: Vec<Function>,
}

impl Adder {
    fn new() -> Arc<Self> {
        let function = |name: &str| Function {
            name: name.to_owned(),
            bindings: 2,
            constants: 1,
            workgroup_size: [1; 3],
        };
        Arc::new(Self { functions: vec![function("add"), function("fail")] })
    }
}

impl HostProgram for Adder {
    fn functions(&self) -> &[Function] {
        &self.functions
    }

    fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, _: usize) -> Result<(), Failure> {
        if call.function == 1 {
            return Err(Failure::new(Code::OutOfRange, "it was asked to fail"));
        }
        let [source, target] = call.bindings else { panic!("two bindings") };
        for at in workgroups {
            let mut byte = [0];
            assert!(source.part(at, 1).unwrap().read(&mut byte));
            let sum = byte[0].wrapping_add(u8::try_from(call.constants[0]).unwrap());
            assert!(target.part(at, 1).unwrap().write(&[sum]));
        }
        Ok(())
    }
}

mod accounts;
mod corners;
mod emulated;
mod limits;

/// The reports: epochs and their outcomes.
#[derive(Default)]
struct Told {
    ended: Mutex<Vec<(u64, Result<(), Failure>)>>,
    lost: Mutex<Vec<Failure>>,
}

impl Reports for Arc<Told> {
    fn ended(&self, _: QueueId, epoch: u64, outcome: Result<(), Failure>) {
        self.ended.lock().push((epoch, outcome));
    }

    fn has_room(&self, _: QueueId) {}

    fn lost(&self, why: Failure) {
        self.lost.lock().push(why);
    }
}

/// The names of queues, which only an engine gives.
fn queue_ids() -> Vec<QueueId> {
    #[derive(Default)]
    struct Names(Arc<Mutex<Vec<QueueId>>>);

    impl hal_semaphore::backend::Backend for Names {
        type Timeline = hal_semaphore::Semaphore;
        type Work = ();
        type Event = ();

        fn device(&self) -> DeviceSpec {
            DeviceSpec { queues: QUEUES, native_waits: NativeWaits::None, completion: Completion::Callback }
        }

        fn submit(
            &self,
            queue: QueueId,
            batch: &mut hal_semaphore::backend::Batch<'_, Self>,
        ) -> hal_semaphore::backend::Submitted {
            batch.iter().for_each(drop);
            self.0.lock().push(queue);
            hal_semaphore::backend::Submitted::all()
        }

        fn abort(&self, _: &Failure) {}
    }

    let names = Names::default();
    let found = names.0.clone();
    let engine = hal_semaphore::Engine::new(names).unwrap();
    let none: [(hal_semaphore::Semaphore, u64); 0] = [];
    for queue in 0..QUEUES {
        let queue = hal_semaphore::Affinity::queue(queue);
        engine.submit(queue, &none, &none, hal_semaphore::Action::Queue(())).unwrap();
    }
    let found = found.lock().clone();
    assert_eq!(found.len(), QUEUES);
    found
}

/// A device whose threads were not started: the tests do what they would do, one step after the other.
struct Bench {
    fake: Arc<FakeCard>,
    programs: Arc<dyn CardPrograms>,
    card: Arc<Card>,
    queues: Arc<Queues>,
    submissions: Submissions,
    completions: Completions,
    reports: Arc<Told>,
    names: Vec<QueueId>,
    epoch: u64,
}

impl Bench {
    fn new(fake: Arc<FakeCard>, settings: Settings) -> Self {
        let bench = Self::on(fake.clone(), fake.clone(), fake, settings);
        bench.fake.calls();
        bench
    }

    /// On another kernel than the fake, which is idle then.
    fn on(
        fake: Arc<FakeCard>,
        system: Arc<dyn System>,
        programs: Arc<dyn ProgramHost>,
        settings: Settings,
    ) -> Self {
        let card = Card::open(system, Path::new("/dev/accel/accel0"), Duration::from_secs(10)).unwrap();
        let client = Arc::new(Client::new(card.clone(), None).unwrap());
        let queues = Queues::new("qaic0");
        let reports = Arc::new(Told::default());
        queues.start(Box::new(reports.clone()));
        let submissions = Submissions::new(&queues, Networks::new(client, settings), settings);
        let completions = Completions::new(&queues, settings.timeout);
        let (names, programs) = (queue_ids(), card_programs(programs));
        Self { fake, programs, card, queues, submissions, completions, reports, names, epoch: 0 }
    }

    fn with_channels(channels: usize) -> Self {
        Self::new(FakeCard::new(channels, 1), Settings::default())
    }

    /// Has what never ends fail soon, or leaves all else as much time as a busy machine takes.
    fn set_impatient(&mut self, impatient: bool) {
        let timeout = if impatient { Duration::from_millis(50) } else { Settings::default().timeout };
        self.submissions.settings.timeout = timeout;
        self.completions.timeout = timeout;
    }

    fn memory(&self, bytes: &[u8]) -> Arc<Memory> {
        let memory = Memory::allocate(&self.card, bytes.len() as u64).unwrap();
        assert!(memory.view().write(0, bytes));
        Arc::new(memory)
    }

    fn adder(&self) -> Arc<Executable> {
        Arc::new(Executable::program(Adder::new(), &self.programs, &self.queues))
    }

    /// Submits a job: its epoch.
    fn submit(&mut self, queue: usize, commands: &[Command<QaicDevice>]) -> u64 {
        self.epoch += 1;
        let job = Job {
            queue: self.names[queue],
            epoch: self.epoch,
            waits: Default::default(),
            event: None,
            commands: Commands::Own(commands.iter().cloned().collect()),
            recording: None,
            observer: None,
        };
        assert!(self.queues.submit(job).is_ok());
        self.epoch
    }

    /// Goes on until nothing more can begin.
    fn begin_all(&mut self) {
        while self.submissions.step() == Next::Again {}
    }

    /// Goes on until a job is over: what became of it, or of the device.
    fn until_ended(&mut self, epoch: u64) -> Result<(), Failure> {
        loop {
            self.begin_all();
            self.completions.step();
            if let Some(why) = self.reports.lost.lock().first() {
                return Err(why.clone());
            }
            if let Some((_, outcome)) = self.reports.ended.lock().iter().find(|(ended, _)| *ended == epoch) {
                return outcome.clone();
            }
        }
    }

    fn run(&mut self, commands: &[Command<QaicDevice>]) -> Result<(), Failure> {
        let epoch = self.submit(0, commands);
        let outcome = self.until_ended(epoch);
        self.begin_all();
        outcome
    }

    fn networks(&mut self) -> &mut Networks {
        &mut self.submissions.networks
    }

    fn dispatch(
        &mut self,
        executable: &Arc<Executable>,
        function: usize,
        workgroups: [u32; 3],
        bindings: &[Span<QaicDevice>],
    ) -> Result<(), Failure> {
        self.run(&[dispatch(executable, function, workgroups, bindings)])
    }
}

fn dispatch(
    executable: &Arc<Executable>,
    function: usize,
    workgroups: [u32; 3],
    bindings: &[Span<QaicDevice>],
) -> Command<QaicDevice> {
    Command::Dispatch(Box::new(Dispatch {
        executable: executable.clone(),
        function,
        workgroup_size: [1; 3],
        workgroups: Workgroups::Count(workgroups),
        local_memory: 0,
        constants: [5].into_iter().collect(),
        bindings: bindings.iter().cloned().collect(),
    }))
}

fn span(memory: &Arc<Memory>, offset: u64, length: u64) -> Span<QaicDevice> {
    Span { place: Place::Device(memory.clone(), offset), length }
}

fn bytes(memory: &Memory, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    assert!(memory.view().read(0, &mut bytes));
    bytes
}

/// A container as a compiler writes it: a page in, a page out, and constants.
fn container() -> Vec<u8> {
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
    let requests = vec![request(0, Direction::In), request(1, Direction::Out)];
    let image = Network { name: "net".to_owned(), requests, ..Network::default() }.image();
    let description = [4_u64.to_le_bytes(), 3_u64.to_le_bytes(), [0; 8]].concat();
    let segment = |name, split, bytes| Segment { name, split, bytes };
    let segments = vec![
        segment(qpc::name::NETWORK, 0, image.as_slice()),
        segment(qpc::name::CONSTANTS_DESCRIPTION, 0, description.as_slice()),
        segment(qpc::name::CONSTANTS, 4, b"weights"),
    ];
    Container { segments }.write()
}

#[test]
fn transfers_are_done_in_order() {
    let mut bench = Bench::with_channels(1);
    let (one, two) = (bench.memory(&[1; 8]), bench.memory(&[2; 8]));
    let host = HostRange::allocate(4, 64).unwrap();
    assert!(host.write(0, &[9; 4]));
    bench
        .run(&[
            Command::Fill { target: span(&one, 0, 4), pattern: Pattern::new(&[7, 8]).unwrap() },
            Command::Barrier,
            Command::Copy { source: span(&one, 2, 4), target: span(&two, 0, 4) },
            Command::Update { source: host.clone(), target: span(&one, 4, 4) },
            Command::Copy { source: Span { place: Place::Host(host), length: 4 }, target: span(&two, 4, 4) },
        ])
        .unwrap();
    assert_eq!(bytes(&one, 8), [7, 8, 7, 8, 9, 9, 9, 9]);
    assert_eq!(bytes(&two, 8), [7, 8, 1, 1, 9, 9, 9, 9]);
    let beyond = bench.run(&[Command::Copy { source: span(&one, 6, 4), target: span(&two, 0, 4) }]);
    assert_eq!(beyond.unwrap_err().code(), Code::OutOfRange);
}

#[test]
fn steady_dispatch_asks_the_kernel_to_queue_and_to_wait_and_nothing_else() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let (source, target) = (bench.memory(&[1; 4096]), bench.memory(&[0; 4096]));
    let bindings = [span(&source, 0, 4096), span(&target, 0, 4096)];
    bench.dispatch(&executable, 0, [4096, 1, 1], &bindings).unwrap();
    assert_eq!(bytes(&target, 4096), [6; 4096]);
    bench.fake.calls();
    bench.dispatch(&executable, 0, [10, 1, 1], &bindings).unwrap();
    // The outcome is behind everything else that comes out.
    assert_eq!(bench.fake.calls(), [Asked::Execute, Asked::Wait]);
}

#[test]
fn binding_that_is_shorter_than_its_slice_is_transferred_in_part() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let (source, target) = (bench.memory(&[1; 256]), bench.memory(&[9; 256]));
    let bindings = [span(&source, 8, 16), span(&target, 100, 16)];
    bench.dispatch(&executable, 0, [16, 1, 1], &bindings).unwrap();
    assert!(bench.fake.calls().contains(&Asked::PartialExecute));
    let mut expected = [9; 256];
    expected[100..116].fill(6);
    assert_eq!(bytes(&target, 256), expected);
    // An empty binding is one as well.
    bench.dispatch(&executable, 0, [0, 1, 1], &[span(&source, 0, 0), span(&target, 0, 0)]).unwrap();
    bench.dispatch(&executable, 0, [1, 1, 1], &[span(&source, 0, 1), span(&target, 0, 1)]).unwrap();
}

#[test]
fn bindings_may_be_memory_of_the_program_and_the_same_buffer_twice() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let imported = HostRange::allocate(8, 64).unwrap();
    assert!(imported.write(0, &[1, 2, 3, 4, 0, 0, 0, 0]));
    let memory = Arc::new(Memory::import(imported));
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
    assert_eq!(bytes(&memory, 8), [1, 2, 3, 4, 6, 7, 8, 9]);
    // In place: what is read is what is written.
    let whole = [span(&memory, 0, 8), span(&memory, 0, 8)];
    bench.dispatch(&executable, 0, [8, 1, 1], &whole).unwrap();
    assert_eq!(bytes(&memory, 8), [6, 7, 8, 9, 11, 12, 13, 14]);
}

#[test]
fn program_that_fails_fails_the_dispatch_and_its_network_stays() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[0; 8]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    for _ in 0..2 {
        let failure = bench.dispatch(&executable, 1, [1; 3], &bindings).unwrap_err();
        assert_eq!((failure.code(), failure.message()), (Code::OutOfRange, "it was asked to fail"));
    }
    assert_eq!(bench.networks().len(), 1);
    let failure = bench.dispatch(&executable, 2, [1; 3], &bindings).unwrap_err();
    assert_eq!(failure.code(), Code::OutOfRange, "{failure}");
}

#[test]
fn network_that_was_used_longest_ago_makes_room() {
    // The device has fewer channels than it may be asked for, and says so.
    let mut bench = Bench::with_channels(2);
    let executables = [bench.adder(), bench.adder(), bench.adder()];
    let memory = bench.memory(&[0; 8]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    let activations = |bench: &mut Bench, number: usize| {
        bench.fake.calls();
        bench.dispatch(&executables[number], 0, [1; 3], &bindings).unwrap();
        bench.fake.calls().contains(&Asked::Manage)
    };
    assert!(activations(&mut bench, 0) && activations(&mut bench, 1));
    assert!(!activations(&mut bench, 0), "both run");
    assert!(activations(&mut bench, 2), "the second one goes");
    assert!(!activations(&mut bench, 0) && activations(&mut bench, 1));
    assert_eq!((bench.networks().len(), bench.fake.counts().1), (2, 2));
    // Using one does not change the order of the others.
    let mut bench = Bench::with_channels(3);
    let executables = [bench.adder(), bench.adder(), bench.adder(), bench.adder()];
    let memory = bench.memory(&[0; 8]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    for number in [0, 1, 2, 0, 3] {
        bench.dispatch(&executables[number], 0, [1; 3], &bindings).unwrap();
    }
    bench.fake.calls();
    bench.dispatch(&executables[2], 0, [1; 3], &bindings).unwrap();
    assert!(!bench.fake.calls().contains(&Asked::Manage), "the second one went, not the third");
    // As many as were asked for, where that is less.
    let mut bench = Bench::new(FakeCard::new(16, 1), Settings { channels: 1, ..Settings::default() });
    for executable in &[bench.adder(), bench.adder()] {
        let memory = bench.memory(&[0; 8]);
        bench.dispatch(executable, 0, [1; 3], &[span(&memory, 0, 4), span(&memory, 4, 4)]).unwrap();
    }
    assert_eq!(bench.fake.counts().1, 1);
}

#[test]
fn network_that_makes_room_leaves_its_large_objects_to_the_next_one() {
    let mut bench = Bench::new(FakeCard::new(16, 1), Settings { channels: 1, ..Settings::default() });
    let executables = [bench.adder(), bench.adder()];
    let memory = bench.memory(&vec![1; 2 << 20]);
    let bindings = [span(&memory, 0, 1 << 20), span(&memory, 1 << 20, 1 << 20)];
    let mut made = |executable| {
        bench.fake.calls();
        bench.dispatch(executable, 0, [4, 1, 1], &bindings).unwrap();
        bench.fake.calls().iter().filter(|call| **call == Asked::CreateBo).count()
    };
    assert_eq!(made(&executables[0]), 6, "the call, each binding both ways, the outcome");
    assert_eq!(made(&executables[1]), 2, "the bindings' are there");
    assert_eq!(made(&executables[0]), 2);
    assert_eq!(bytes(&memory, (1 << 20) + 5)[1 << 20..], [6, 6, 6, 6, 1]);
}

#[test]
fn executable_that_is_dropped_takes_its_objects_and_channels_along() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[0; 8]);
    bench.dispatch(&executable, 0, [1; 3], &[span(&memory, 0, 4), span(&memory, 4, 4)]).unwrap();
    let (objects, channels, images) = bench.fake.counts();
    assert!(objects > 1 && channels == 1 && images == 1);
    drop(executable);
    bench.begin_all();
    assert_eq!(bench.fake.counts(), (1, 0, 0), "the buffer is left");
}

#[test]
fn workload_that_is_lost_fails_its_dispatch_and_is_started_again() {
    for call in [Asked::Execute, Asked::Wait] {
        let mut bench = Bench::with_channels(16);
        let executable = bench.adder();
        let memory = bench.memory(&[1; 8192]);
        let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
        bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
        bench.fake.calls();
        bench.fake.fail(call, Errno::PIPE);
        let failure = bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap_err();
        assert_eq!(failure.code(), Code::Unavailable, "{failure}");
        assert!(failure.message().contains("the workload is lost"), "{failure}");
        assert_eq!(bench.networks().len(), 0);
        // It is unloaded and not deactivated: the channel may be another network's by now.
        let asked = bench.fake.calls().into_iter().filter(|call| *call == Asked::Manage).count();
        assert_eq!(asked, 1);
        bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
        let (_, channels, images) = bench.fake.counts();
        assert_eq!((channels, images), (1, 1), "what it was loaded from did not stay behind");
    }
}

#[test]
fn dispatch_that_does_not_end_in_time_stops_its_network() {
    let settings = Settings { timeout: Duration::ZERO, ..Settings::default() };
    let mut bench = Bench::new(FakeCard::new(16, 1), settings);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    bench.fake.fail(Asked::Wait, Errno::TIMEDOUT);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    let failure = bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap_err();
    assert_eq!(failure.code(), Code::Aborted);
    assert!(failure.message().contains("timeout="), "{failure}");
    assert_eq!(bench.fake.counts(), (1, 0, 0));
}

#[test]
fn stopping_device_gives_up_running_work() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    bench.queues.abort(&Failure::new(Code::Cancelled, "the program is over"));
    bench.fake.fail(Asked::Wait, Errno::TIMEDOUT);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    let failure = bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap_err();
    assert_eq!((failure.code(), failure.message()), (Code::Cancelled, "the program is over"));
}

#[test]
fn full_ring_is_waited_for_and_one_that_is_too_small_is_replaced() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    bench.fake.fail(Asked::PartialExecute, Errno::AGAIN);
    bench.fake.fail(Asked::PartialExecute, Errno::AGAIN);
    bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
    let count = |calls: &[Asked], call| calls.iter().filter(|one| **one == call).count();
    let calls = bench.fake.calls();
    assert_eq!(count(&calls, Asked::PartialExecute), 3);
    assert_eq!(count(&calls, Asked::PerfStats), 1, "whether it can ever fit is looked at once");
    // 6 objects of 200 elements each never fit into 512, nor into 1,024.
    let mut bench = Bench::new(FakeCard::new(16, 200), Settings::default());
    let executable = bench.adder();
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
    assert_eq!(bench.fake.counts().1, 1);
    // Unless its size is set.
    for elements in [512, 100] {
        let settings = Settings { elements: Some(elements), ..Settings::default() };
        let mut bench = Bench::new(FakeCard::new(16, 200), settings);
        let executable = bench.adder();
        let failure = bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap_err();
        assert_eq!(failure.code(), Code::ResourceExhausted);
        assert!(failure.message().contains("elements="), "{failure}");
        assert_eq!(bench.fake.counts().1, 0);
    }
}

#[test]
fn ring_that_is_full_of_nothing_of_ours_is_tried_again_after_a_pause_that_grows() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    (0..9).for_each(|_| bench.fake.fail(Asked::PartialExecute, Errno::AGAIN));
    let epoch = bench.submit(0, &[dispatch(&executable, 0, [4, 1, 1], &bindings)]);
    // Nothing is in flight, so that nothing would wake the thread.
    let mut pauses = Vec::new();
    while pauses.len() < 9 {
        match bench.submissions.step() {
            Next::Again => {}
            Next::Sleep(_, pause) => pauses.push(pause.map(|pause| pause.as_micros())),
            Next::End => panic!("a job waits"),
        }
    }
    let expected = [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000];
    assert_eq!(pauses, expected.map(Some));
    bench.until_ended(epoch).unwrap();
    // The next one begins with the shortest.
    bench.fake.fail(Asked::PartialExecute, Errno::AGAIN);
    bench.submit(0, &[dispatch(&executable, 0, [4, 1, 1], &bindings)]);
    let next = loop {
        match bench.submissions.step() {
            Next::Again => {}
            next => break next,
        }
    };
    assert!(matches!(next, Next::Sleep(_, Some(pause)) if pause == Duration::from_micros(50)), "{next:?}");
}

#[test]
fn network_of_a_compiler_works_on_the_programs_own_buffers() {
    let mut bench = Bench::with_channels(16);
    let executable = Arc::new(Executable::network(&container(), None, &bench.queues).unwrap());
    assert_eq!(executable.functions()[0].bindings, 2);
    let (source, target) = (bench.memory(&[41; 8192]), bench.memory(&[0; 8192]));
    let bindings = [span(&source, 0, 4096), span(&target, 4096, 4096)];
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    assert_eq!(bench.fake.constants(), b"weights");
    let expected = [[0; 4096], [42; 4096]].concat();
    assert_eq!(bytes(&target, 8192), expected);
    assert_eq!(bench.fake.counts().0, 2, "no objects were made beside the program's");
    bench.fake.calls();
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    assert_eq!(bench.fake.calls(), [Asked::Execute, Asked::Wait]);
    // Elsewhere in the same buffer it is sliced anew.
    let elsewhere = [span(&source, 0, 4096), span(&target, 0, 4096)];
    bench.dispatch(&executable, 0, [1; 3], &elsewhere).unwrap();
    assert_eq!(bytes(&target, 8192), [42; 8192]);
    let calls = bench.fake.calls();
    assert_eq!(calls[..2], [Asked::DetachSlice, Asked::AttachSlice]);
}

#[test]
fn buffer_that_a_network_cannot_use_in_place_is_copied() {
    let mut bench = Bench::with_channels(16);
    let executable = Arc::new(Executable::network(&container(), None, &bench.queues).unwrap());
    // One buffer for both, and one that is too short for the slice: both are the network's own objects then.
    let both = bench.memory(&[1; 8192]);
    bench.dispatch(&executable, 0, [1; 3], &[span(&both, 0, 4096), span(&both, 4096, 4096)]).unwrap();
    assert_eq!(bytes(&both, 8192), [[1; 4096], [2; 4096]].concat());
    let (source, target) = (bench.memory(&[7; 8192]), bench.memory(&[0; 8192]));
    bench.dispatch(&executable, 0, [1; 3], &[span(&source, 8000, 100), span(&target, 8000, 100)]).unwrap();
    let mut expected = vec![0; 8192];
    expected[8000..8100].fill(8);
    assert_eq!(bytes(&target, 8192), expected);
    // A part of what is sliced in place.
    bench.fake.calls();
    let target = bench.memory(&[0; 8192]);
    bench.dispatch(&executable, 0, [1; 3], &[span(&source, 0, 50), span(&target, 4096, 50)]).unwrap();
    let mut expected = vec![0; 8192];
    expected[4096..4146].fill(8);
    assert_eq!(bytes(&target, 8192), expected);
    assert!(bench.fake.calls().contains(&Asked::PartialExecute));
}

#[test]
fn partial_input_goes_in_behind_its_header_and_only_as_far_as_it_reaches() {
    let mut bench = Bench::with_channels(16);
    // Of the vendor's compiler: 256 floats that may be fewer go in, and as many come out.
    let container = include_bytes!("../../abi/src/container/description/compiler_partial.qpc");
    let executable = Arc::new(Executable::network(container, None, &bench.queues).unwrap());
    let (source, target) = (bench.memory(&[41; 4096]), bench.memory(&[0; 4096]));
    let mut run = |length: u64| {
        let bindings = [span(&source, 0, length), span(&target, 0, 1024)];
        bench.dispatch(&executable, 0, [1; 3], &bindings).map(|()| bytes(&target, 1024))
    };
    // The cores add one to each byte: to the header, which says where the input begins and how long it is, as well.
    let expected = |length: u16, stale: usize| {
        let [low, high] = length.to_le_bytes().map(|byte| byte + 1);
        let length = usize::from(length);
        let rest = 1024 - 8 - length - stale;
        [&[9, 1, 1, 1, low, high, 1, 1][..], &vec![42; length + stale], &vec![1; rest]].concat()
    };
    assert_eq!(run(64).unwrap(), expected(64, 0));
    assert_eq!(run(1016).unwrap(), expected(1016, 0), "all that there is room for");
    assert_eq!(run(64).unwrap(), expected(64, 1016 - 64), "the device's memory behind it is as it was");
    assert_eq!(run(0).unwrap(), expected(0, 1016), "nothing of it but the header");
    let refused = run(1017).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("binding 0 has 1017 bytes"), "{refused}");
    assert_eq!(run(64).unwrap(), expected(64, 1016 - 64), "the network goes on");
    let mut damaged = container.to_vec();
    let name = b"inputBuff_0";
    let at = damaged.windows(name.len()).position(|bytes| bytes == name).unwrap();
    damaged[at - 1] = 0xff;
    let refused = Executable::network(&damaged, None, &bench.queues).unwrap_err();
    assert!(refused.message().contains("networkdesc.bin: input 0"), "{refused}");
}

#[test]
fn object_of_a_run_that_is_over_may_be_on_its_way_for_a_moment_longer() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8192]);
    let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
    bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
    bench.fake.calls();
    bench.fake.fail(Asked::Execute, Errno::INVAL);
    bench.fake.fail(Asked::Execute, Errno::INVAL);
    bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
    let calls = bench.fake.calls();
    assert_eq!(calls, [Asked::Execute, Asked::Execute, Asked::Execute, Asked::Wait], "no wait between");
    // A submission that the kernel never accepts soon becomes an error.
    (0..1000).for_each(|_| bench.fake.fail(Asked::Execute, Errno::INVAL));
    let failure = bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap_err();
    assert_eq!(failure.code(), Code::InvalidArgument);
}

#[test]
fn network_survives_the_loss_of_its_workload_with_the_programs_buffers() {
    let mut bench = Bench::with_channels(16);
    let executable = Arc::new(Executable::network(&container(), None, &bench.queues).unwrap());
    let (source, target) = (bench.memory(&[1; 4096]), bench.memory(&[0; 4096]));
    let bindings = [span(&source, 0, 4096), span(&target, 0, 4096)];
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    bench.fake.fail(Asked::Wait, Errno::PIPE);
    assert!(bench.dispatch(&executable, 0, [1; 3], &bindings).is_err());
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    assert_eq!(bytes(&target, 4096), [2; 4096]);
}

#[test]
fn file_that_is_no_executable_is_refused() {
    let mut bench = Bench::with_channels(16);
    let refused = |bytes: &[u8]| Executable::network(bytes, None, &bench.queues).unwrap_err();
    assert_eq!(refused(b"\x7fELF").code(), Code::Incompatible);
    let vendors = Executable::network(&container(), Some(&bench.programs), &bench.queues).unwrap_err();
    assert!(vendors.message().ends_with("open a card, such as qaic://0"), "{vendors}");
    let executable = Arc::new(Executable::network(&container(), None, &bench.queues).unwrap());
    let memory = bench.memory(&[0; 8192]);
    let bindings = [span(&memory, 0, 4096), span(&memory, 4096, 4096)];
    let failure = bench.dispatch(&executable, 0, [2, 1, 1], &bindings).unwrap_err();
    assert_eq!(failure.code(), Code::InvalidArgument);
    bench.dispatch(&executable, 0, [0, 1, 1], &bindings).unwrap();
    assert_eq!(bench.networks().len(), 0, "no workgroups, no run");
}

#[test]
fn workgroups_are_counted_when_the_dispatch_begins() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 64]);
    let counts = bench.memory(&[0; 12]);
    let words = HostRange::allocate(12, 64).unwrap();
    assert!(words.write(0, &[3_u32, 1, 1].map(u32::to_ne_bytes).concat()));
    let dispatch = Dispatch {
        executable,
        function: 0,
        workgroup_size: [1; 3],
        workgroups: Workgroups::Indirect(span(&counts, 0, 12)),
        local_memory: 0,
        constants: [1].into_iter().collect(),
        bindings: [span(&memory, 0, 8), span(&memory, 8, 8)].into_iter().collect(),
    };
    bench
        .run(&[
            Command::Update { source: words, target: span(&counts, 0, 12) },
            Command::Dispatch(Box::new(dispatch)),
        ])
        .unwrap();
    assert_eq!(bytes(&memory, 16)[8..], [2, 2, 2, 1, 1, 1, 1, 1]);
}

#[test]
fn device_that_refuses_to_stop_a_network_is_asked_again() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    bench.dispatch(&executable, 0, [1; 3], &[span(&memory, 0, 4), span(&memory, 4, 4)]).unwrap();
    // Twice it says no, and the channel is ours again.
    bench.fake.fail(Asked::Manage, Errno::CANCELED);
    bench.fake.fail(Asked::Manage, Errno::CANCELED);
    bench.networks().clear();
    assert_eq!(bench.fake.counts(), (1, 0, 0));
}

#[test]
fn loss_that_is_noticed_when_a_buffer_is_sliced_is_a_loss() {
    let mut bench = Bench::with_channels(16);
    let executable = Arc::new(Executable::network(&container(), None, &bench.queues).unwrap());
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[2; 4096]), bench.memory(&[0; 4096])];
    let [first, second, target] = memories.each_ref().map(|memory| span(memory, 0, 4096));
    bench.dispatch(&executable, 0, [1; 3], &[first, target.clone()]).unwrap();
    bench.fake.crash();
    // The kernel calls a channel that is not ours an invalid argument here.
    let failure = bench.dispatch(&executable, 0, [1; 3], &[second.clone(), target.clone()]).unwrap_err();
    assert!(failure.message().contains("the workload is lost"), "{failure}");
    bench.dispatch(&executable, 0, [1; 3], &[second, target]).unwrap();
    assert_eq!(bytes(&memories[2], 4096), [3; 4096]);
}

#[test]
fn buffer_whose_network_was_lost_goes_to_another_one() {
    let mut bench = Bench::with_channels(16);
    let network = || Arc::new(Executable::network(&container(), None, &bench.queues).unwrap());
    let (one, other) = (network(), network());
    let memories = [bench.memory(&[1; 4096]), bench.memory(&[0; 4096])];
    let bindings = memories.each_ref().map(|memory| span(memory, 0, 4096));
    bench.dispatch(&one, 0, [1; 3], &bindings).unwrap();
    // The crash has not been noticed yet when the kernel says that there are no slices to end.
    bench.fake.crash();
    bench.dispatch(&other, 0, [1; 3], &bindings).unwrap();
    assert_eq!(bytes(&memories[1], 4096), [2; 4096]);
}

#[test]
fn card_that_does_not_answer_is_not_asked_for_each_network_again() {
    let mut bench = Bench::with_channels(16);
    let executables = [bench.adder(), bench.adder(), bench.adder()];
    let memory = bench.memory(&[1; 8]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    for executable in &executables {
        bench.dispatch(executable, 0, [1; 3], &bindings).unwrap();
    }
    bench.fake.calls();
    // Each unanswered message takes a minute.
    bench.fake.fail(Asked::Manage, Errno::TIMEDOUT);
    bench.networks().clear();
    let asked = bench.fake.calls().into_iter().filter(|call| *call == Asked::Manage).count();
    assert_eq!(asked, 1);
    // An answer makes good for that.
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    bench.fake.fail(Asked::Manage, Errno::TIMEDOUT);
    assert!(bench.dispatch(&executable, 0, [1; 3], &bindings).is_err());
    bench.dispatch(&executable, 0, [1; 3], &bindings).unwrap();
    bench.networks().clear();
    assert_eq!(bench.fake.counts().1, 0);
}

#[test]
fn transfer_that_failed_is_noticed_where_the_network_says_how_it_ended() {
    let mut bench = Bench::with_channels(16);
    let executable = bench.adder();
    let memory = bench.memory(&[1; 8]);
    let bindings = [span(&memory, 0, 4), span(&memory, 4, 4)];
    bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap();
    bench.fake.fail_transfers();
    // The outcome that the last run left does not count for this one.
    let failure = bench.dispatch(&executable, 0, [4, 1, 1], &bindings).unwrap_err();
    assert_eq!(failure.code(), Code::DataLoss, "{failure}");
}

/// A program that writes into the program's buffer behind the device's back, as another queue or the host may.
struct Meddler {
    buffer: HostRange,
    functions: [Function; 1],
}

impl HostProgram for Meddler {
    fn functions(&self) -> &[Function] {
        &self.functions
    }

    fn run(&self, call: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
        assert!(self.buffer.write(0, &[7]));
        assert!(call.bindings[0].part(1, 1).unwrap().write(&[8]));
        Ok(())
    }
}

#[test]
fn bytes_written_beside_a_dispatch_stay() {
    let mut bench = Bench::with_channels(16);
    let memory = bench.memory(&[1; 4]);
    let functions = [Function { bindings: 1, constants: 1, ..Function::default() }];
    let program = Arc::new(Meddler { buffer: memory.view().clone(), functions });
    let executable = Arc::new(Executable::program(program, &bench.programs, &bench.queues));
    bench.dispatch(&executable, 0, [1; 3], &[span(&memory, 0, 4)]).unwrap();
    assert_eq!(bytes(&memory, 4), [7, 8, 1, 1]);
}

mod overlap;
