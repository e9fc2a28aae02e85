// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Cards of several drivers, whose own memory only they can access, and which run a function for tests.

use crate::common::properties::{HEAP, QUEUE, properties};
use crate::common::{Device, Executable, check, registry};
use hal_backend::{
    Command, Completer, DeviceInfo, DeviceSpec, Dispatch, Driver, Failure, Function, Heap, HostLoader,
    HostRange, Job, LoadRequest, Loaded, MemoryRequest, Parameters, Place, Properties, Rejected, Span,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

/// A step of the cards' function, on its bindings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CardStep {
    /// `target = source + addend` on bytes, each given by its binding and offset.
    Add { target: (u32, u32), source: (u32, u32), addend: u8 },
    /// Adds to every other byte of a binding, from its first one on.
    Stripe { target: u32, length: u32, addend: u8 },
    /// Sleeps for so many milliseconds.
    Pause(u32),
}

impl CardStep {
    fn words(self) -> [u32; 6] {
        match self {
            CardStep::Add { target, source, addend } => {
                [0, target.0, target.1, source.0, source.1, u32::from(addend)]
            }
            CardStep::Stripe { target, length, addend } => [1, target, length, 0, 0, u32::from(addend)],
            CardStep::Pause(milliseconds) => [2, milliseconds, 0, 0, 0, 0],
        }
    }
}

/// The constants of a dispatch with these steps.
pub(crate) fn constants(steps: &[CardStep]) -> Vec<u32> {
    steps.iter().flat_map(|step| step.words()).collect()
}

/// As few as will do: a registry of IREE's has room for 15 drivers.
const NAMES: [&str; 5] = ["card-a", "card-b", "card-c", "sealed-a", "sealed-b"];

/// Cards without any memory that the host can map.
const SEALED: std::ops::Range<usize> = 3..5;

/// The path of a card that blocks on [`HELD`] when it is asked for memory that the host can map.
const HOLDS: &str = "holds";

/// The number of blocked threads.
pub(crate) static HELD: (Mutex<()>, AtomicUsize) = (Mutex::new(()), AtomicUsize::new(0));

struct Card<const KIND: usize>;

impl<const KIND: usize> Driver for Card<KIND> {
    type Device = CardDevice<KIND>;
    const NAME: &'static str = NAMES[KIND];
    const FULL_NAME: &'static str = "a card whose memory is its own";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open(&self, path: &str, _parameters: &mut Parameters<'_>) -> Result<CardDevice<KIND>, Failure> {
        Ok(CardDevice::open(path == HOLDS))
    }
}

const QUEUES: usize = 2;

/// A thread for each queue.
struct CardDevice<const KIND: usize> {
    holds: bool,
    completer: Arc<OnceLock<Completer>>,
    queues: Vec<Mutex<Sender<Job<Self>>>>,
}

struct CardMemory {
    range: HostRange,
    is_visible: bool,
}

impl<const KIND: usize> CardDevice<KIND> {
    fn open(holds: bool) -> Self {
        let completer = Arc::new(OnceLock::<Completer>::new());
        let queue = |_| {
            let (sender, jobs) = channel::<Job<Self>>();
            let completer = completer.clone();
            std::thread::spawn(move || {
                for job in jobs {
                    let (queue, epoch) = (job.queue, job.epoch);
                    job.commands.iter().for_each(run);
                    drop(job);
                    let _ = completer.get().unwrap().complete(queue, epoch);
                }
            });
            Mutex::new(sender)
        };
        let queues = (0..QUEUES).map(queue).collect();
        Self { holds, completer, queues }
    }
}

fn bytes<const KIND: usize>(span: &Span<CardDevice<KIND>>) -> HostRange {
    match &span.place {
        Place::Device(memory, offset) => memory.range.slice(*offset, span.length).unwrap(),
        Place::Host(range) => range.slice(0, span.length).unwrap(),
    }
}

fn run<const KIND: usize>(command: &Command<CardDevice<KIND>>) {
    match command {
        Command::Fill { target, pattern } => assert!(bytes(target).fill(pattern.bytes())),
        Command::Copy { source, target } => assert!(bytes(target).copy_from(&bytes(source))),
        Command::Update { source, target } => assert!(bytes(target).copy_from(source)),
        Command::Dispatch(dispatch) => work(dispatch),
        Command::Barrier => {}
    }
}

fn work<const KIND: usize>(dispatch: &Dispatch<CardDevice<KIND>>) {
    let bindings: Vec<HostRange> = dispatch.bindings.iter().map(bytes).collect();
    let get = |binding: u32, offset: u64| {
        let mut byte = [0];
        assert!(bindings[binding as usize].read(offset, &mut byte));
        byte[0]
    };
    let set =
        |binding: u32, offset: u64, byte: u8| assert!(bindings[binding as usize].write(offset, &[byte]));
    for step in dispatch.constants.chunks_exact(6) {
        let addend = u8::try_from(step[5]).unwrap();
        match step[0] {
            0 => {
                let byte = get(step[3], u64::from(step[4])).wrapping_add(addend);
                set(step[1], u64::from(step[2]), byte);
            }
            1 => {
                for offset in (0..u64::from(step[2])).step_by(2) {
                    set(step[1], offset, get(step[1], offset).wrapping_add(addend));
                }
            }
            _ => std::thread::sleep(Duration::from_millis(u64::from(step[1]))),
        }
    }
}

impl<const KIND: usize> hal_backend::Device for CardDevice<KIND> {
    type Memory = CardMemory;
    type Executable = ();
    type Event = ();

    fn properties(&self) -> Properties {
        let heap =
            |host_visible| Heap { host_visible, coherent: host_visible, device_local: !host_visible, ..HEAP };
        Properties {
            queues: DeviceSpec { queues: QUEUES, ..QUEUE },
            heaps: if SEALED.contains(&KIND) { vec![heap(false)] } else { vec![heap(false), heap(true)] },
            ..properties(NAMES[KIND])
        }
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<CardMemory, Failure> {
        let is_visible = request.heap == 1;
        if self.holds && is_visible {
            HELD.1.fetch_add(1, Ordering::SeqCst);
            drop(HELD.0.lock().unwrap());
        }
        Ok(CardMemory { range: HostRange::allocate(request.length, 64)?, is_visible })
    }

    fn host_view(&self, memory: &CardMemory) -> Option<HostRange> {
        memory.is_visible.then(|| memory.range.clone())
    }

    fn supports(&self, format: &str, _host: &dyn HostLoader) -> bool {
        format == "steps"
    }

    fn load(&self, _request: &LoadRequest<'_>, _host: &dyn HostLoader) -> Result<Loaded<()>, Failure> {
        Ok(Loaded { executable: (), functions: vec![Function::default()] })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.queues[job.queue.index()].lock().unwrap().send(job).unwrap();
        Ok(())
    }

    fn abort(&self, _why: &Failure) {}
}

static REGISTER: Once = Once::new();

/// A card of this driver: 0 to 2; 3 and 4 without memory that the host can map.
pub(crate) fn card(kind: usize) -> Device {
    open(kind, "")
}

/// A card that blocks on [`HELD`] when it is asked for memory that the host can map.
pub(crate) fn holding_card() -> Device {
    open(1, HOLDS)
}

fn open(kind: usize, path: &str) -> Device {
    REGISTER.call_once(|| unsafe {
        check(hal_driver::register::<Card<0>>(registry())).unwrap();
        check(hal_driver::register::<Card<1>>(registry())).unwrap();
        check(hal_driver::register::<Card<2>>(registry())).unwrap();
        check(hal_driver::register::<Card<3>>(registry())).unwrap();
        check(hal_driver::register::<Card<4>>(registry())).unwrap();
    });
    Device::open(&format!("{}://{path}", NAMES[kind])).unwrap()
}

/// The function, for any bindings.
pub(crate) fn steps(card: &Device) -> Executable {
    card.load("steps", b"steps").unwrap()
}
