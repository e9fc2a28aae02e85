// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine over Vulkan's own queues and fences, on Mesa's device in software (lavapipe).

use ash::vk;
use hal_semaphore::{
    Action, Affinity, Clock, Code, Engine, Failure, Origin, Semaphore, SystemClock, WaitError,
};
use hal_semaphore_vulkan::{Buffer, Commands, Gpu, Vulkan, copy, fill};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Far more than any machine needs.
const LONG: Duration = Duration::from_secs(100);

fn gpu() -> Arc<Gpu> {
    Gpu::open(|kind| kind == vk::PhysicalDeviceType::CPU).expect("a Vulkan device in software")
}

/// Two queues, and semaphores at zero.
struct World {
    gpu: Arc<Gpu>,
    engine: Engine<Vulkan>,
    clock: SystemClock,
}

impl World {
    fn new() -> Self {
        let gpu = gpu();
        let engine = Engine::new(Vulkan::new(&gpu, 2).expect("queues")).expect("an engine");
        Self { gpu, engine, clock: SystemClock::new() }
    }

    fn semaphore(&self) -> Semaphore {
        Semaphore::new(&self.engine, 0).expect("a semaphore")
    }

    fn buffer(&self) -> Arc<Buffer> {
        Buffer::new(&self.gpu, 1024).expect("a buffer")
    }

    fn submit(
        &self,
        queue: usize,
        waits: &[(&Semaphore, u64)],
        signal: (&Semaphore, u64),
        commands: Commands,
    ) {
        let waits: Vec<_> = waits.iter().map(|&(semaphore, value)| (semaphore.clone(), value)).collect();
        let signals = [(signal.0.clone(), signal.1)];
        self.engine
            .submit(Affinity::queue(queue), &waits, &signals, Action::Queue(commands))
            .expect("the submission is valid");
    }

    fn wait(&self, semaphore: &Semaphore, value: u64) {
        semaphore.wait(value, &self.clock, Some(self.clock.now() + LONG)).expect("the value comes");
    }

    fn failure(&self, semaphore: &Semaphore) -> Failure {
        match semaphore.wait(u64::from(u32::MAX >> 2), &self.clock, Some(self.clock.now() + LONG)) {
            Err(WaitError::Failed { failure }) => failure,
            other => panic!("{other:?} in place of a failure"),
        }
    }

    fn end(self) {
        let limit = self.clock.now() + LONG;
        self.engine.shut_down(&self.clock, limit, limit).expect("everything ends");
    }
}

/// The device waits here until the host opens it: what is behind it is under way for sure, and has not ended.
struct Gate {
    gpu: Arc<Gpu>,
    event: vk::Event,
}

impl Gate {
    fn new(gpu: &Arc<Gpu>) -> Arc<Self> {
        // SAFETY: the device is alive.
        let event = unsafe { gpu.device().create_event(&vk::EventCreateInfo::default(), None) };
        Arc::new(Self { gpu: gpu.clone(), event: event.expect("an event") })
    }

    fn pass(self: &Arc<Self>) -> Commands {
        let gate = self.clone();
        Box::new(move |device, commands| {
            let (from, to) = (vk::PipelineStageFlags::HOST, vk::PipelineStageFlags::ALL_COMMANDS);
            // SAFETY: the command buffer is being recorded, and the event lives until the operation has ended.
            unsafe { device.cmd_wait_events(commands, &[gate.event], from, to, &[], &[], &[]) };
            Ok(())
        })
    }

    fn open(&self) {
        // SAFETY: the event is alive.
        unsafe { self.gpu.device().set_event(self.event) }.expect("the event is set");
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: the commands that wait for it have ended: they own a reference.
        unsafe { self.gpu.device().destroy_event(self.event, None) };
    }
}

/// Commands that cannot be recorded.
fn refused() -> Commands {
    Box::new(|_, _| Err(Failure::new(Code::InvalidArgument, "no such shader")))
}

/// Waits until nothing keeps `left` any more: the engine's threads let go of it in their own time.
fn is_dropped<T>(left: &Weak<T>) -> bool {
    let begin = Instant::now();
    while left.strong_count() > 0 && begin.elapsed() < LONG {
        std::thread::yield_now();
    }
    left.strong_count() == 0
}

/// The first variable of a test, so that it is dropped last: waits until no thread of a backend or of an engine is
/// there. A process that ends while one of them closes a device crashes in Vulkan.
struct LastToGo;

impl Drop for LastToGo {
    fn drop(&mut self) {
        let is_there = |task: std::io::Result<std::fs::DirEntry>| {
            let name = task.and_then(|task| std::fs::read_to_string(task.path().join("comm")));
            name.is_ok_and(|name| name.starts_with("vulkan-") || name.starts_with("hal-"))
        };
        let begin = Instant::now();
        while std::fs::read_dir("/proc/self/task").expect("Linux has it").any(is_there) {
            if std::thread::panicking() {
                return;
            }
            assert!(begin.elapsed() < LONG, "threads stay");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn wait_before_its_signal_is_left_to_the_device_across_queues() {
    let _last = LastToGo;
    let world = World::new();
    let (from, to) = (world.buffer(), world.buffer());
    let (begun, filled, copied) = (world.semaphore(), world.semaphore(), world.semaphore());
    let gate = Gate::new(&world.gpu);
    world.submit(1, &[(&filled, 1)], (&copied, 1), copy(&from, &to));
    world.submit(0, &[(&begun, 1)], (&begun, 2), gate.pass());
    world.submit(0, &[(&begun, 2)], (&filled, 1), fill(&from, 7));
    assert_eq!(world.engine.counts().in_flight, 0);
    begun.signal(1).expect("the host signals");
    let counts = world.engine.counts();
    assert_eq!((counts.in_flight, counts.native, counts.same_queue), (3, 1, 1), "{counts:?}");
    assert_eq!(copied.query().expect("no failure"), 0);
    gate.open();
    world.wait(&copied, 1);
    assert_eq!(filled.query().expect("no failure"), 1, "a cause is there before its effect");
    assert_eq!(to.read(), [7; 1024]);
    world.end();
}

#[test]
fn work_of_a_queue_runs_in_order() {
    let _last = LastToGo;
    let world = World::new();
    let (buffer, done) = (world.buffer(), world.semaphore());
    for round in 1..=500u32 {
        let value = u64::from(round);
        world.submit(round as usize % 2, &[(&done, value - 1)], (&done, value), fill(&buffer, round));
    }
    world.wait(&done, 500);
    assert_eq!(buffer.read(), [500; 1024]);
    world.end();
}

#[test]
fn full_queue_goes_on_as_the_device_ends_work() {
    let _last = LastToGo;
    let world = World::new();
    let (buffer, done, gate) = (world.buffer(), world.semaphore(), Gate::new(&world.gpu));
    world.submit(0, &[], (&done, 1), gate.pass());
    for value in 2..=300 {
        world.submit(0, &[], (&done, value), fill(&buffer, 3));
    }
    let counts = world.engine.counts();
    assert!(counts.operations == 300 && counts.in_flight < 300, "{counts:?}");
    gate.open();
    world.wait(&done, 300);
    world.end();
}

#[test]
fn failure_reaches_what_depends_on_it_and_nothing_else() {
    let _last = LastToGo;
    let world = World::new();
    let (from, to, other) = (world.buffer(), world.buffer(), world.buffer());
    let (filled, copied, apart) = (world.semaphore(), world.semaphore(), world.semaphore());
    world.submit(1, &[(&filled, 1)], (&copied, 1), copy(&from, &to));
    world.submit(0, &[], (&filled, 1), refused());
    world.submit(0, &[], (&apart, 1), fill(&other, 9));
    let (cause, effect) = (world.failure(&filled), world.failure(&copied));
    assert!(cause.same_root(&effect), "{cause}, {effect}");
    assert_eq!((effect.code(), effect.message()), (Code::InvalidArgument, "no such shader"));
    world.wait(&apart, 1);
    assert_eq!((other.read()[1023], to.read()), (9, vec![0; 1024]));
    world.end();
}

#[test]
fn failed_semaphore_ends_what_waits_for_it() {
    let _last = LastToGo;
    let world = World::new();
    let (buffer, input, output) = (world.buffer(), world.semaphore(), world.semaphore());
    world.submit(0, &[(&input, 1)], (&output, 1), fill(&buffer, 9));
    input.fail(Failure::with_origin(Code::Aborted, Origin::Host, "the user has left"));
    let failure = world.failure(&output);
    assert_eq!((failure.code(), failure.origin()), (Code::Aborted, Origin::Host));
    assert_eq!(buffer.read()[0], 0);
    world.end();
}

#[test]
fn shutdown_ends_at_its_limit_and_work_of_the_device_keeps_what_it_uses() {
    let _last = LastToGo;
    let world = World::new();
    let (never, stuck, blocked) = (world.semaphore(), world.semaphore(), world.semaphore());
    let (buffer, gate) = (world.buffer(), Gate::new(&world.gpu));
    world.submit(0, &[], (&stuck, 1), gate.pass());
    world.submit(1, &[(&never, 1)], (&blocked, 1), fill(&buffer, 1));
    let now = world.clock.now();
    let unfinished = world.engine.shut_down(&world.clock, now, now).expect_err("the device is at the gate");
    assert_eq!((unfinished.in_flight, unfinished.host), (1, 0));
    for semaphore in [&stuck, &blocked] {
        assert_eq!(world.failure(semaphore).origin(), Origin::Shutdown);
    }
    let (event, gpu) = (Arc::downgrade(&gate), Arc::downgrade(&world.gpu));
    // The gate is the work's alone from here on.
    gate.open();
    drop((gate, buffer, never, stuck, blocked));
    drop(world);
    assert!(is_dropped(&event) && is_dropped(&gpu), "the device's objects are destroyed once it has ended");
}

#[test]
fn dropped_engine_ends_what_waits_and_the_device_is_closed_after_the_rest() {
    let _last = LastToGo;
    let world = World::new();
    let (never, blocked, running) = (world.semaphore(), world.semaphore(), world.semaphore());
    let (buffer, gate) = (world.buffer(), Gate::new(&world.gpu));
    world.submit(0, &[], (&running, 1), gate.pass());
    world.submit(0, &[], (&running, 2), fill(&buffer, 5));
    world.submit(1, &[(&never, 1)], (&blocked, 1), fill(&buffer, 1));
    let World { gpu, engine, clock } = world;
    drop(engine);
    assert_eq!(blocked.query().expect_err("it has ended").origin(), Origin::Shutdown);
    gate.open();
    running.wait(2, &clock, Some(clock.now() + LONG)).expect("the device ends what it has");
    assert_eq!(buffer.read(), [5; 1024]);
    let left = Arc::downgrade(&gpu);
    drop((gpu, buffer, gate, never, blocked, running));
    assert!(is_dropped(&left));
}

#[test]
fn device_that_is_not_there_is_refused_with_what_is_there() {
    let failure = Gpu::open(|_| false).err().expect("nothing is accepted");
    assert!(failure.code() == Code::NotFound && failure.message().contains("llvmpipe"), "{failure}");
}
