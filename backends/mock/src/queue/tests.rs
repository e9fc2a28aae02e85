// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Hardware without workers: what is done, this thread does when it submits.

use super::*;
use crate::memory::MockMemory;
use hal_backend::{
    Commands, DeviceSpec, Dispatch, Function, HostCall, HostProgram, HostRange, NativeWaits, Parameters,
    Pattern, Place, Point, Span, Workgroups,
};
use hal_semaphore::backend::{Backend, Batch, Completion, Submitted};
use hal_semaphore::{Engine, Semaphore};
use smallvec::smallvec;

/// What gives queues their names.
struct Names;

impl Backend for Names {
    type Timeline = Semaphore;
    type Work = ();
    type Event = ();

    fn device(&self) -> DeviceSpec {
        DeviceSpec { queues: 3, native_waits: NativeWaits::None, completion: Completion::Poll }
    }

    fn submit(&self, _: QueueId, _: &mut Batch<'_, Self>) -> Submitted {
        Submitted::all()
    }
}

struct Bench {
    names: Engine<Names>,
    hardware: Arc<Hardware>,
    range: HostRange,
    memory: Arc<MockMemory>,
}

impl Bench {
    /// Reports are kept for a poll, so that no engine is needed.
    fn new(parameters: &[(&'static str, &'static str)]) -> Self {
        let pairs = [("completion", "poll")].into_iter().chain(parameters.iter().copied());
        let options = Options::read(&mut Parameters::new("mock", pairs)).unwrap();
        let range = HostRange::allocate(64 << 20, 64).unwrap();
        let memory = Arc::new(MockMemory::imported(range.clone()));
        Self { names: Engine::new(Names).unwrap(), hardware: Hardware::new(options).unwrap(), range, memory }
    }

    /// Submits a fill to a queue behind the first jobs of others, and returns whether it is done behind that.
    fn fills(&self, queue: usize, waits: &[usize], length: u64) -> bool {
        assert!(self.range.write(0, &[0]));
        let target = Span { place: Place::Device(self.memory.clone(), 0), length };
        self.runs(queue, waits, Command::Fill { target, pattern: Pattern::new(&[7]).unwrap() });
        let mut byte = [0];
        assert!(self.range.read(0, &mut byte));
        byte == [7]
    }

    /// Submits a command to a queue behind the first jobs of others.
    fn runs(&self, queue: usize, waits: &[usize], command: Command<MockDevice>) {
        let name = |queue| self.names.queue(queue).unwrap();
        let wait = |&queue| NativeWait { point: Point { queue: name(queue), epoch: 1 }, event: None };
        let job = Job {
            queue: name(queue),
            epoch: 1,
            waits: waits.iter().map(wait).collect(),
            event: None,
            commands: Commands::Own(smallvec![command]),
            recording: None,
            observer: None,
        };
        assert!(self.hardware.submit(job).is_ok());
        self.hardware.kick(queue);
    }
}

/// Makes this thread one that waits at once. On a busy machine a wait may come late.
fn make_calls() {
    while !caller::submits(|waits| waits) {
        caller::begins_to_wait();
    }
    caller::begins_to_wait();
}

#[test]
fn thread_that_waits_at_once_does_short_work_of_an_idle_queue() {
    assert!(!Bench::new(&[]).fills(0, &[], 64), "nothing is known of this thread");
    make_calls();
    let bench = Bench::new(&[("queues", "3")]);
    assert!(bench.fills(0, &[], 64));
    assert!(bench.fills(1, &[0], 64), "the other queue is done");
    assert!(!bench.fills(2, &[], 64 << 20), "that is long");
}

#[test]
fn work_that_waits_for_another_queue_is_left_to_workers() {
    let bench = Bench::new(&[]);
    assert!(!bench.fills(0, &[], 64));
    make_calls();
    assert!(!bench.fills(1, &[0], 64));
}

#[test]
fn work_that_is_delayed_or_fails_is_left_to_workers() {
    for parameter in [("latency", "1ms"), ("fault", "panic:1"), ("fault", "jitter"), ("schedule", "seeded")] {
        make_calls();
        assert!(!Bench::new(&[parameter]).fills(0, &[], 64), "{parameter:?}");
    }
}

/// A program whose calls end when two of them have run at once.
struct Meeting(Mutex<Vec<usize>>);

impl HostProgram for Meeting {
    fn functions(&self) -> &[Function] {
        static FUNCTIONS: [Function; 1] =
            [Function { name: String::new(), bindings: 0, constants: 0, workgroup_size: [1; 3] }];
        &FUNCTIONS
    }

    fn run(&self, _: &HostCall<'_>, _: std::ops::Range<u64>, worker: usize) -> Result<(), Failure> {
        self.0.lock().push(worker);
        let end = Instant::now() + Duration::from_secs(60);
        while self.0.lock().len() < 2 {
            assert!(Instant::now() < end, "no other call has begun after a minute");
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// Calls with one number wait for each other, and a submission does not wait for another queue's work.
#[test]
fn threads_that_do_work_of_several_queues_are_different_workers() {
    let bench = Bench::new(&[("queues", "2")]);
    let meeting = Arc::new(Meeting(Mutex::default()));
    let executable = Arc::new(crate::executable::Executable::new(meeting.clone()));
    // Its calls are known to be short.
    executable.learn(0, Duration::from_nanos(100), 1);
    std::thread::scope(|scope| {
        for queue in 0..2 {
            let (bench, executable) = (&bench, executable.clone());
            scope.spawn(move || {
                make_calls();
                bench.runs(
                    queue,
                    &[],
                    Command::Dispatch(Box::new(Dispatch {
                        executable,
                        function: 0,
                        workgroup_size: [1; 3],
                        workgroups: Workgroups::Count([1; 3]),
                        local_memory: 0,
                        constants: smallvec![],
                        bindings: smallvec![],
                    })),
                );
            });
        }
    });
    let mut numbers = meeting.0.lock().clone();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 2, "both calls ran with the number {numbers:?}");
}
