// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver: its objects, and what they do, without the C interface.

pub mod graph;
pub mod launch;
pub mod memory;
pub mod options;
pub mod report;
pub mod status;
pub mod stream;

use graph::Graph;
use launch::{Function, Module};
use memory::{Allocation, Kind, Life, Space, Wanted};
use options::Injection;
use parking_lot::{Condvar, Mutex, MutexGuard};
use report::{Report, Rule};
use status::{Error, Outcome};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use stream::{Done, IN_HOST_FUNCTION, Op, Plan, Sticky, Stream};

thread_local! {
    /// The contexts of this thread; the last is the current one.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A context.
pub struct Context {
    /// Its handle.
    pub handle: u64,
    /// Its device.
    pub device: i32,
    /// The flags that it was created with.
    pub flags: u32,
    /// Whether it is its device's primary one.
    pub is_primary: bool,
    stop: Arc<AtomicBool>,
    default: Arc<Stream>,
}

/// An event.
pub struct Event {
    /// Its context.
    pub context: u64,
    /// The flags that it was created with.
    pub flags: u32,
    /// Its last record.
    pub record: Mutex<Option<Arc<Done>>>,
}

/// A pool.
pub struct Pool {
    /// Its device.
    pub device: i32,
    /// The most bytes that it has; 0 for as many as there are.
    pub most: u64,
    /// Attributes that were set, by their numbers.
    pub settings: HashMap<i32, u64>,
    /// Bytes in use, and the most there were.
    pub used: (u64, u64),
}

/// All objects.
#[derive(Default)]
pub struct Objects {
    next: u64,
    /// Contexts.
    pub contexts: HashMap<u64, Arc<Context>>,
    /// Streams.
    pub streams: HashMap<u64, Arc<Stream>>,
    /// Streams that were destroyed, and may still work.
    pub leaving: Vec<Arc<Stream>>,
    /// Events.
    pub events: HashMap<u64, Arc<Event>>,
    /// Modules.
    pub modules: HashMap<u64, Arc<Module>>,
    /// Functions.
    pub functions: HashMap<u64, Arc<Function>>,
    /// Graphs.
    pub graphs: HashMap<u64, Graph>,
    /// Graphs that can be launched.
    pub executables: HashMap<u64, Graph>,
    /// Pools.
    pub pools: HashMap<u64, Pool>,
    /// The primary context of each device, and how often it was retained.
    pub primary: HashMap<i32, (u64, u32)>,
    /// The flags for a primary context.
    pub primary_flags: HashMap<i32, u32>,
    /// The current pool of each device, and its first one.
    pub device_pools: HashMap<i32, (u64, u64)>,
    /// Bytes of each device in use.
    pub used: HashMap<i32, u64>,
}

impl Objects {
    /// The streams of a context, with those that were destroyed and still work.
    fn streams_of(&self, context: u64) -> impl Iterator<Item = &Arc<Stream>> {
        self.streams.values().chain(&self.leaving).filter(move |it| it.context == context)
    }

    /// A handle that nothing else has; no address.
    pub fn handle(&mut self) -> u64 {
        self.next += 16;
        0xc0da_0000_0000_0000 | self.next
    }
}

/// The driver.
pub struct Driver {
    /// What was counted.
    pub report: Report,
    /// All memory.
    pub memory: Space,
    /// The error that stays.
    pub sticky: Sticky,
    objects: Mutex<Objects>,
    /// The process that initialised the driver; 0 before that.
    process: AtomicU32,
    /// How many kernels have stalled, and how many may go on.
    stalled: Mutex<(u64, u64)>,
    released: Condvar,
}

/// The driver of this process.
pub static DRIVER: LazyLock<Driver> = LazyLock::new(|| {
    let report = Report::default();
    if let Ok(text) = std::env::var("EMULATOR_CUDA")
        && let Err(error) = report.configure(&text)
    {
        eprintln!("emulator-cuda: EMULATOR_CUDA: {error}");
        std::process::exit(1);
    }
    Driver {
        report,
        memory: Space::new(),
        sticky: Sticky::default(),
        objects: Mutex::default(),
        process: AtomicU32::new(0),
        stalled: Mutex::new((0, 0)),
        released: Condvar::new(),
    }
});

impl Driver {
    /// The objects.
    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock()
    }

    /// `cuInit`.
    ///
    /// # Errors
    /// The process's limits leave no addresses for the devices' memory.
    pub fn initialise(&self) -> Outcome {
        if !self.memory.is_reserved() {
            return Err(Error::OUT_OF_MEMORY);
        }
        self.process.store(std::process::id(), Relaxed);
        Ok(())
    }

    /// Checks that functions may be called on this thread now.
    ///
    /// # Errors
    /// They may not.
    pub fn admit(&self, function: &'static str, is_initialised: bool) -> Outcome {
        let process = self.process.load(Relaxed);
        // A process that was forked has none of the driver's threads, and its locks may be held: nothing else is read.
        if process != 0 && process != std::process::id() {
            return Err(Error::NOT_INITIALIZED);
        }
        if let Err(error) = self.report.called(function) {
            if error.stays() {
                self.sticky.set(error);
            }
            return Err(error);
        }
        if IN_HOST_FUNCTION.get() {
            self.report.broken(Rule::HostFunctionCalls, || function.to_owned());
            return Err(Error::NOT_PERMITTED);
        }
        if is_initialised && process == 0 {
            return Err(Error::NOT_INITIALIZED);
        }
        Ok(())
    }

    /// Lets a kernel that stalls go on; if none does yet, the next one does not.
    pub fn release(&self) {
        self.stalled.lock().1 += 1;
        self.released.notify_all();
    }

    fn stall(&self, stop: &AtomicBool) {
        let mut stalled = self.stalled.lock();
        stalled.0 += 1;
        let mine = stalled.0;
        while stalled.1 < mine && !stop.load(Relaxed) {
            self.released.wait_for(&mut stalled, std::time::Duration::from_millis(20));
        }
    }

    /// Checks a device's number.
    ///
    /// # Errors
    /// There is no such device.
    pub fn device(&self, device: i32) -> Outcome {
        if (0..self.report.options().devices).contains(&device) { Ok(()) } else { Err(Error::INVALID_DEVICE) }
    }

    /// The current context, without a check of its error.
    ///
    /// # Errors
    /// There is none.
    pub fn current(&self, function: &str) -> Outcome<Arc<Context>> {
        let Some(handle) = current() else {
            self.report.broken(Rule::NoContext, || function.to_owned());
            return Err(Error::INVALID_CONTEXT);
        };
        self.objects().contexts.get(&handle).cloned().ok_or(Error::CONTEXT_IS_DESTROYED)
    }

    /// A process with an error that stays is refused everything.
    ///
    /// # Errors
    /// There is no current context, or the process has an error.
    pub fn healthy(&self, function: &str) -> Outcome<Arc<Context>> {
        let context = self.current(function)?;
        self.sticky.check()?;
        Ok(context)
    }

    /// Makes the process one that was launched anew: it has no context and no error, but is initialised.
    pub fn relaunch(&self) {
        let contexts: Vec<u64> = self.objects().contexts.keys().copied().collect();
        for context in contexts {
            let _ = self.destroy_context(context);
        }
        self.objects().primary.clear();
        self.sticky.clear();
    }

    /// Counts a handle that is none.
    pub fn bad_handle(&self, what: &str, handle: u64) -> Error {
        self.report.broken(Rule::BadHandle, || format!("{handle:#x} is no {what}"));
        Error::INVALID_HANDLE
    }

    /// Makes a context.
    pub(crate) fn create_context(&'static self, device: i32, flags: u32, is_primary: bool) -> Outcome<u64> {
        self.sticky.check()?;
        let (handle, default) = {
            let mut objects = self.objects();
            (objects.handle(), objects.handle())
        };
        let stop = Arc::new(AtomicBool::new(false));
        let plan = Plan { handle: default, context: handle, flags: 0, priority: 0, stop: stop.clone() };
        let default = Stream::start(self, plan)?;
        let context = Context { handle, device, flags, is_primary, stop, default };
        self.objects().contexts.insert(handle, Arc::new(context));
        Ok(handle)
    }

    /// Destroys a context and all it has.
    ///
    /// # Errors
    /// There is none of this handle.
    pub fn destroy_context(&self, handle: u64) -> Outcome {
        let mut objects = self.objects();
        let context = objects.contexts.remove(&handle).ok_or(Error::INVALID_CONTEXT)?;
        let streams: Vec<_> = objects.streams_of(handle).cloned().collect();
        let left = objects.streams.values().filter(|it| it.context == handle).count();
        objects.streams.retain(|_, it| it.context != handle);
        objects.leaving.retain(|it| it.context != handle);
        let events = objects.events.values().filter(|it| it.context == handle).count();
        objects.events.retain(|_, it| it.context != handle);
        let modules = objects.modules.values().filter(|it| it.context == handle).count();
        objects.modules.retain(|_, it| it.context != handle);
        objects.functions.retain(|_, it| it.module.context != handle);
        drop(objects);
        let is_busy = streams.iter().any(|it| !it.is_idle()) || !context.default.is_idle();
        // After an error that stays nothing runs any more.
        if is_busy && self.sticky.check().is_ok() {
            self.report.broken(Rule::DestroyedInUse, || "a context with work that is pending".to_owned());
        }
        context.stop.store(true, Relaxed);
        for stream in streams.iter().chain([&context.default]) {
            let _ = stream.synchronize(self);
            stream.close();
        }
        let memory = self.memory.of_context(handle);
        let owned = memory.iter().filter(|it| it.kind != Kind::Global).count();
        if self.sticky.check().is_ok() && (owned > 0 || left > 0 || events > 0 || modules > 0) {
            self.report.broken(Rule::Leak, || {
                format!("{owned} allocations, {left} streams, {events} events, {modules} modules")
            });
        }
        for allocation in memory {
            self.forget(&allocation);
        }
        // One that is current is popped, as `cuCtxDestroy` says; `cuDevicePrimaryCtxRelease` says that it pops none.
        if !context.is_primary {
            with_stack(|stack| stack.pop_if(|top| *top == handle));
        }
        Ok(())
    }

    /// Makes a stream of the current context.
    pub(crate) fn create_stream(&'static self, context: &Context, flags: u32, priority: i32) -> Outcome<u64> {
        let handle = self.objects().handle();
        let stream = Stream::start(
            self,
            Plan { handle, context: context.handle, flags, priority, stop: context.stop.clone() },
        )?;
        self.objects().streams.insert(handle, stream);
        Ok(handle)
    }

    /// The stream of a handle, which is the context's.
    ///
    /// # Errors
    /// It is not.
    pub fn stream(&self, context: &Context, handle: u64) -> Outcome<Arc<Stream>> {
        // The default stream, by either of its names, and the one of each thread, which is not modelled.
        if handle < 2 {
            return Ok(context.default.clone());
        }
        let found = self.objects().streams.get(&handle).cloned();
        let found = found.ok_or_else(|| self.bad_handle("stream", handle))?;
        if found.context != context.handle {
            return Err(self.bad_handle("stream of the current context", handle));
        }
        Ok(found)
    }

    /// Adds an operation to a stream, ordered with the default stream.
    pub fn submit(&self, context: &Context, stream: &Stream, op: Op) -> Arc<Done> {
        let mut after = Vec::new();
        if stream.handle == context.default.handle {
            let objects = self.objects();
            let others = objects.streams.values();
            let others = others.filter(|it| it.context == context.handle && !it.is_independent);
            after.extend(others.filter_map(|it| it.last()));
        } else if !stream.is_independent {
            after.extend(context.default.last());
        }
        after.retain(|done| !done.is_set());
        stream.push(self, op, after)
    }

    /// Waits for all streams of a context.
    ///
    /// # Errors
    /// The process's error.
    pub fn synchronize(&self, context: &Context) -> Outcome {
        let streams: Vec<_> = {
            let objects = self.objects();
            objects.streams_of(context.handle).cloned().collect()
        };
        for stream in streams.iter().chain([&context.default]) {
            let _ = stream.synchronize(self);
        }
        self.sticky.check()
    }

    /// Whether a stream of a context has work that has not ended.
    pub fn is_busy(&self, context: &Context) -> bool {
        let objects = self.objects();
        objects.streams_of(context.handle).any(|it| !it.is_idle()) || !context.default.is_idle()
    }

    /// Allocates memory for a context.
    ///
    /// # Errors
    /// There is none left, or an error was asked for.
    pub fn allocate(&self, context: &Context, kind: Kind, size: u64, life: Life) -> Outcome<Arc<Allocation>> {
        if size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        if self.report.is_due(&Injection::OutOfMemory) {
            return Err(Error::OUT_OF_MEMORY);
        }
        let most = self.report.options().memory << 20;
        let mut objects = self.objects();
        if let Kind::Pool(pool) = kind
            && objects
                .pools
                .get(&pool)
                .is_some_and(|it| it.most > 0 && it.used.0.saturating_add(size) > it.most)
        {
            return Err(Error::OUT_OF_MEMORY);
        }
        let used = objects.used.entry(context.device).or_default();
        if kind != Kind::Host && used.saturating_add(size) > most {
            return Err(Error::OUT_OF_MEMORY);
        }
        let wanted = Wanted { size, kind, context: context.handle, device: context.device, life };
        let memory = self.memory.allocate(&wanted)?;
        if kind != Kind::Host {
            *used += size;
        }
        if let Kind::Pool(pool) = kind
            && let Some(pool) = objects.pools.get_mut(&pool)
        {
            pool.used.0 += size;
            pool.used.1 = pool.used.1.max(pool.used.0);
        }
        Ok(memory)
    }

    /// Takes memory out of the counts.
    pub fn uncount(&self, allocation: &Allocation) {
        let mut objects = self.objects();
        if !matches!(allocation.kind, Kind::Host | Kind::Registered | Kind::Global)
            && let Some(used) = objects.used.get_mut(&allocation.device)
        {
            *used = used.saturating_sub(allocation.size);
        }
        if let Kind::Pool(pool) = allocation.kind
            && let Some(pool) = objects.pools.get_mut(&pool)
        {
            pool.used.0 = pool.used.0.saturating_sub(allocation.size);
        }
    }

    /// How many objects and allocations there are, without what the driver has of its own.
    pub fn live(&self) -> u64 {
        let objects = self.objects();
        let own = objects.device_pools.len();
        let counts = [
            objects.contexts.len(),
            objects.streams.len(),
            objects.events.len(),
            objects.modules.len(),
            objects.graphs.len(),
            objects.executables.len(),
            objects.pools.len() - own,
        ];
        drop(objects);
        (counts.iter().sum::<usize>() + self.memory.count()) as u64
    }

    /// Frees memory at once.
    pub fn forget(&self, allocation: &Allocation) {
        self.memory.remove(allocation.address);
        self.uncount(allocation);
    }

    /// The current pool of a device, and its first one.
    pub fn pools(&self, device: i32) -> (u64, u64) {
        let mut objects = self.objects();
        if let Some(found) = objects.device_pools.get(&device) {
            return *found;
        }
        let handle = objects.handle();
        objects.pools.insert(handle, Pool { device, most: 0, settings: HashMap::new(), used: (0, 0) });
        objects.device_pools.insert(device, (handle, handle));
        (handle, handle)
    }
}

/// The current context of this thread.
pub fn current() -> Option<u64> {
    STACK.with_borrow(|stack| stack.last().copied()).filter(|handle| *handle != 0)
}

/// Changes the stack of contexts of this thread.
pub fn with_stack<T>(change: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    STACK.with_borrow_mut(change)
}
