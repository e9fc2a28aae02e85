// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of a dispatch once everything is in its place: two system calls, and nothing from the heap.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use emulator_qaic::programs::card_programs;
use emulator_qaic::{Emulator, Options};
use emulator_testbench::Testbench;
use hal_backend::{
    Command, Device, Dispatch, Failure, Function, HostCall, HostLoader, HostProgram, HostRange, LoadRequest,
    MemoryRequest, Parameters, Pattern, Place, Span, Workgroups,
};
use hal_qaic::kmd::{self, Errno, uapi::Call};
use hal_qaic::{Executable, Memory, Qaic, QaicDevice};
use hal_semaphore::Semaphore;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

thread_local! {
    /// True on threads of the backend, which are those that ask the kernel.
    static BACKEND: Cell<bool> = const { Cell::new(false) };
    /// True while the thread is in the kernel, which here is an emulator in the same process.
    static IN_KERNEL: Cell<bool> = const { Cell::new(false) };
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts what the backend's threads allocate outside of the kernel.
struct Counting;

fn count() {
    if BACKEND.try_with(Cell::get) == Ok(true) && IN_KERNEL.try_with(Cell::get) == Ok(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the layout has a size, as `GlobalAlloc::alloc` asks of its callers.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer is a block of this layout from `alloc` or `realloc` here, and both give what `System`
        // gave.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`, and the new size is none that overflows, as `GlobalAlloc::realloc` asks of its
        // callers.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A kernel that counts what it is asked.
struct CountingSystem {
    emulator: Arc<Emulator>,
    calls: Mutex<BTreeMap<String, u64>>,
}

impl CountingSystem {
    fn inside<T>(&self, what: &str, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        BACKEND.set(true);
        IN_KERNEL.set(true);
        let begin = Instant::now();
        let result = call();
        let mut name = what.to_owned();
        if result.as_ref().err() == Some(&Errno::TIMEDOUT) {
            // A wait of the backend's is that long; a machine with more to do than it can comes back later.
            assert!(begin.elapsed() >= Duration::from_millis(19), "it looks at what runs too often");
            name.push_str(" that timed out");
        }
        *self.calls.lock().unwrap().entry(name).or_insert(0) += 1;
        IN_KERNEL.set(false);
        result
    }
}

impl kmd::System for CountingSystem {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.inside("open", || self.emulator.open(path))
    }

    fn close(&self, file: OwnedFd) {
        self.emulator.close(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // Naming it is this test's, not the backend's.
        IN_KERNEL.set(true);
        let name = format!("{:?}", Call::of_request(request));
        self.inside(&name, || self.emulator.ioctl(file, request, argument))
    }

    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        self.inside("mmap", || self.emulator.map(file, length, offset))
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        self.inside("read", || self.emulator.read(path))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        self.inside("list", || self.emulator.list(path))
    }

    fn holder(&self, _: &Path) -> Option<String> {
        None
    }
}

/// Adds one to the first byte of its second binding.
struct Program([Function; 1]);

impl HostProgram for Program {
    fn functions(&self) -> &[Function] {
        &self.0
    }

    fn run(&self, call: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
        let place = call.bindings.get(1).and_then(|binding| binding.part(0, 1)).unwrap();
        let mut byte = [0];
        assert!(place.read(&mut byte) && place.write(&[byte[0].wrapping_add(1)]));
        Ok(())
    }
}

struct Loader;

impl HostLoader for Loader {
    fn supports(&self, _: &str) -> bool {
        true
    }

    fn load(&self, _: &LoadRequest<'_>, _: usize) -> Result<Arc<dyn HostProgram>, Failure> {
        Ok(Arc::new(Program([Function { bindings: 6, constants: 1, ..Function::default() }])))
    }
}

struct Bench {
    system: Arc<CountingSystem>,
    engine: Testbench<QaicDevice>,
    executable: Arc<Executable>,
    memory: Vec<Arc<Memory>>,
    timeline: Semaphore,
    value: u64,
}

impl Bench {
    fn new() -> Self {
        let mut none = Parameters::new("qaic", []);
        let emulator = Emulator::new(Options::read(&mut none).unwrap()).unwrap();
        let system = Arc::new(CountingSystem { emulator: emulator.clone(), calls: Mutex::default() });
        let node = Path::new("/dev/accel/accel0");
        let device = <Qaic>::open_on(system.clone(), node, Some(card_programs(emulator)), &mut none).unwrap();
        let device = Arc::new(device);
        let request = LoadRequest { format: "host", data: &[], constants: &[] };
        let executable = Arc::new(device.load(&request, &Loader).unwrap().executable);
        let memory =
            (0..6).map(|_| Arc::new(device.allocate(&MemoryRequest::new(0, 1000)).unwrap())).collect();
        let engine = Testbench::new(device);
        let timeline = engine.timeline();
        // This thread has asked the kernel too, but from here on it is the program's.
        BACKEND.set(false);
        Self { system, engine, executable, memory, timeline, value: 0 }
    }

    /// A dispatch, from the submission to its end.
    fn dispatch(&mut self) {
        let span = |memory: &Arc<Memory>| Span { place: Place::Device(memory.clone(), 0), length: 1000 };
        let command = Command::Dispatch(Box::new(Dispatch {
            executable: self.executable.clone(),
            function: 0,
            workgroup_size: [1; 3],
            workgroups: Workgroups::Count([1; 3]),
            local_memory: 0,
            constants: [1].into_iter().collect(),
            bindings: self.memory.iter().map(span).collect(),
        }));
        self.run(command);
    }

    /// A transfer, which the other one of the backend's threads reports.
    fn fill(&mut self) {
        let target = Span { place: Place::Device(self.memory.first().unwrap().clone(), 0), length: 8 };
        self.run(Command::Fill { target, pattern: Pattern::new(&[0]).unwrap() });
    }

    fn run(&mut self, command: Command<QaicDevice>) {
        self.value += 1;
        self.engine.signal(0, command, &self.timeline, self.value);
        let end = Instant::now() + Duration::from_secs(60);
        while self.timeline.query().unwrap() < self.value {
            assert!(Instant::now() < end, "it does not end");
            std::thread::yield_now();
        }
    }
}

#[test]
fn dispatch_in_the_steady_state_is_two_system_calls_and_no_allocation() {
    const DISPATCHES: u64 = 200;
    let mut bench = Bench::new();
    // Everything is made when it is first needed, by each thread for itself. Whatever each dispatch needed would be
    // needed in each round.
    let mut rounds = 0_u64;
    let (calls, allocations) = loop {
        rounds += 1;
        bench.fill();
        (0..DISPATCHES).for_each(|_| bench.dispatch());
        bench.system.calls.lock().unwrap().clear();
        ALLOCATIONS.store(0, Ordering::Relaxed);
        (0..DISPATCHES).for_each(|_| bench.dispatch());
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        if allocations == 0 || rounds == 4 {
            break (bench.system.calls.lock().unwrap().clone(), allocations);
        }
    };
    println!("{DISPATCHES} dispatches: {calls:?}, {allocations} allocations, in round {rounds}");
    let mut calls = calls;
    calls.remove("Some(Wait) that timed out");
    let expected = [("Some(PartialExecute)", DISPATCHES), ("Some(Wait)", DISPATCHES)];
    assert_eq!(calls, expected.map(|(name, count)| (name.to_owned(), count)).into_iter().collect());
    assert_eq!(allocations, 0);
    let mut byte = [0];
    let memory = bench.memory.get(1).unwrap();
    assert!(bench.engine.device().host_view(memory).unwrap().read(0, &mut byte));
    assert_eq!(byte[0], u8::try_from(2 * rounds * DISPATCHES % 256).unwrap(), "and each of them has run");
}
