// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A backend to begin with: copy this crate, and replace the host by your device piece by piece.
//!
//! It is a whole IREE HAL driver in a few hundred lines of safe Rust: it runs models and passes the conformance
//! suite. The "device" is one thread that takes jobs from one queue. Comments say what a real device does
//! differently, and `docs/backend.md` walks through the same steps in order.
//!
//! # The parts of a backend
//!
//! 1. [`Template`] is the *driver*: a name for `--device=template`, the list of devices, and how to open one.
//! 2. [`TemplateDevice`] is a *device*: its [properties](Device::properties), memory, executables, and a queue.
//! 3. `Queue` is the *hardware*: `submit` gives it jobs, and its thread reports their completions.
//!
//! Nothing here knows semaphores, command buffers, pools or C. A job arrives when all its waits have happened or
//! are native work of this device; its signals follow when its epoch is reported.

use hal_backend::{
    Code, Command, Completer, Completion, Device, DeviceInfo, DeviceSpec, Dispatch, Driver, Failure, Heap,
    HostCall, HostLoader, HostPart, HostProgram, HostRange, Job, LoadRequest, Loaded, MemoryRequest,
    NativeWaits, Parameter, Parameters, Properties, Rejected, Reporter, Span, WORKGROUPS_AT_A_TIME,
    Workgroups,
};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

// ------------------------------------------------------------------------------------------------------------------
// 1. The driver
// ------------------------------------------------------------------------------------------------------------------

/// The driver behind `template://`.
#[derive(Debug)]
pub struct Template;

impl Driver for Template {
    type Device = TemplateDevice;

    const NAME: &'static str = "template";
    const FULL_NAME: &'static str = "Template device (software; a backend to begin with)";
    const PARAMETERS: &'static [Parameter] = &[Parameter {
        name: "depth",
        values: "N",
        default: "64",
        effect: "jobs that the queue holds, 1 to 65536",
    }];

    /// Programs create every driver that they are linked with: look for hardware in `enumerate` and `open`, not
    /// here.
    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        // A real driver lists what it finds, for instance in sysfs, without opening anything.
        Ok(vec![DeviceInfo { path: "0".into(), name: "template device: one thread".into() }])
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<TemplateDevice, Failure> {
        if !matches!(path, "" | "0") {
            return Err(Failure::new(
                Code::NotFound,
                format!("there is no template://{path}, only template://0"),
            ));
        }
        // Take the parameters that you declare; the caller refuses any other by name.
        let depth = parameters.number("depth", 64, 1, 65_536)?;
        TemplateDevice::open(depth)
    }
}

// ------------------------------------------------------------------------------------------------------------------
// 2. The device
// ------------------------------------------------------------------------------------------------------------------

/// The alignment of all memory.
const ALIGNMENT: u64 = 64;

/// The size of the largest allocation.
const LARGEST: u64 = 1 << 36;

/// A device.
pub struct TemplateDevice {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

impl TemplateDevice {
    fn open(depth: usize) -> Result<Self, Failure> {
        let queue = Arc::new(Queue::new(depth));
        let (hardware, rest) = (queue.clone(), queue.clone());
        // Jobs depend on this thread, so the reporter starts it: if it panics the device is lost, and no program
        // waits for ever.
        let panicked = move |why: &Failure| rest.thread_panicked(why);
        let thread = queue.reporter.spawn("template", move || hardware.serve(), panicked)?;
        Ok(Self { queue, thread: Some(thread) })
    }
}

impl Device for TemplateDevice {
    /// An allocation. A real device has a handle or an address here.
    type Memory = HostRange;
    /// A loaded executable. A real device has its own format, and loads that.
    type Executable = Arc<dyn HostProgram>;
    /// An event that one queue records and another waits for. This device has only one queue.
    type Event = ();

    fn properties(&self) -> Properties {
        Properties {
            identifier: "template".into(),
            // Compilers target devices that they know. This device runs host code, so it answers to `local` as
            // well.
            aliases: vec!["local-template".into(), "local".into()],
            queues: DeviceSpec {
                queues: 1,
                // With several queues: `Epochs` if one can wait for another's progress, `Events` if it records events.
                native_waits: NativeWaits::None,
                // This device's own thread reports. `Descriptor` suits a kernel driver whose completions make a
                // file readable: the driver watches the file and calls `poll`. With `Poll` the driver polls by
                // itself while work is in flight.
                completion: Completion::Callback,
            },
            heaps: vec![Heap {
                host_visible: true,
                coherent: true,
                device_local: true,
                max_allocation: LARGEST,
                alignment: ALIGNMENT,
                // `None` if the device cannot use host memory in place; then `import` is not needed either.
                import_alignment: Some(ALIGNMENT),
            }],
            concurrency: 1,
            host_processor: true,
        }
    }

    fn start(&self, completer: Completer) {
        // Called once, before the first job. Completions are reported through the completer, from any thread.
        self.queue.reporter.start(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<HostRange, Failure> {
        HostRange::allocate(request.length, 64)
    }

    fn import(&self, range: HostRange) -> Result<HostRange, Failure> {
        Ok(range)
    }

    fn follows_mappings(&self) -> bool {
        true
    }

    fn host_view(&self, memory: &HostRange) -> Option<HostRange> {
        // `None` if the host cannot map the device's memory.
        Some(memory.clone())
    }

    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool {
        host.supports(format)
    }

    fn load(
        &self,
        request: &LoadRequest<'_>,
        host: &dyn HostLoader,
    ) -> Result<Loaded<Arc<dyn HostProgram>>, Failure> {
        // A real device checks and uploads `request.data` here and returns the functions in it.
        let executable = host.load(request, 1)?;
        let functions = executable.functions().to_vec();
        Ok(Loaded { executable, functions })
    }

    fn addresses(&self) -> Option<fn(&HostRange) -> u64> {
        // `None` if the device's functions do not get plain addresses of memory.
        Some(|memory| memory.address() as u64)
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.queue.push(job)
    }

    fn abort(&self, why: &Failure) {
        self.queue.abort(why);
    }

    fn clock(&self) -> Option<u64> {
        // Profiles need this. A device whose clock cannot be read returns `None`.
        Some(self.queue.clock())
    }
}

impl Drop for TemplateDevice {
    fn drop(&mut self) {
        self.queue.stop();
        let me = std::thread::current().id();
        // The last reference may be dropped inside a completion, on the device's own thread.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != me) {
            let _ = thread.join();
        }
    }
}

// ------------------------------------------------------------------------------------------------------------------
// 3. The hardware
// ------------------------------------------------------------------------------------------------------------------

/// One queue, and the thread that runs its jobs.
struct Queue {
    state: Mutex<QueueState>,
    work: Condvar,
    reporter: Reporter,
    depth: usize,
    opened: Instant,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job<TemplateDevice>>,
    full: bool,
    aborted: Option<Failure>,
    lost: Option<Failure>,
    stopping: bool,
}

impl Queue {
    fn new(depth: usize) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            reporter: Reporter::default(),
            depth,
            opened: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job, unless there is no room: then the engine submits it again when the device reports room.
    fn push(&self, job: Job<TemplateDevice>) -> Result<(), Rejected<TemplateDevice>> {
        let mut state = self.lock();
        if let Some(failure) = &state.lost {
            return Err(Rejected::Lost(failure.clone()));
        }
        if state.jobs.len() >= self.depth {
            state.full = true;
            return Err(Rejected::Full(Box::new(job)));
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Fails jobs that have not begun; running ones end by themselves.
    fn abort(&self, why: &Failure) {
        self.lock().aborted.get_or_insert_with(|| why.clone());
        self.work.notify_one();
    }

    /// Called when the thread has panicked and takes no more jobs: drops those that are left. The engine fails
    /// them.
    fn thread_panicked(&self, why: &Failure) {
        let mut state = self.lock();
        state.lost = Some(why.clone());
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        drop(jobs);
    }

    fn stop(&self) {
        self.lock().stopping = true;
        self.work.notify_one();
    }

    fn serve(&self) {
        while let Some((job, aborted, had_no_room)) = self.next() {
            let (queue, epoch) = (job.queue, job.epoch);
            let begin = self.clock();
            let outcome = aborted.map_or_else(|| self.run(&job), Err);
            if let Some(observer) = &job.observer {
                observer.job(begin, self.clock(), outcome.as_ref().map(drop));
            }
            // The job's resources are free before its completion is reported.
            drop(job);
            // In queue order, once for each job. A failed job is complete too: the queue goes on.
            self.reporter.ended(queue, epoch, outcome);
            if had_no_room {
                self.reporter.unblock();
            }
        }
    }

    /// Runs the commands of a job, and reports the times if it is observed.
    fn run(&self, job: &Job<TemplateDevice>) -> Result<(), Failure> {
        for (number, command) in job.commands.iter().enumerate() {
            let begin = self.clock();
            self.command(command)?;
            if let Some(observer) = &job.observer {
                observer.command(number, begin, self.clock());
            }
        }
        Ok(())
    }

    /// Runs one command. A real device encodes it for its engines in `submit` instead.
    fn command(&self, command: &Command<TemplateDevice>) -> Result<(), Failure> {
        match command {
            Command::Fill { target, pattern } => done(host(target)?.fill(pattern.bytes())),
            Command::Copy { source, target } => done(host(target)?.copy_from(host(source)?)),
            Command::Update { source, target } => done(host(target)?.copy_from(source.whole())),
            Command::Dispatch(dispatch) => self.call(dispatch),
            // One thread runs one command after the other, so a barrier does nothing.
            Command::Barrier => Ok(()),
        }
    }

    /// Runs the workgroups of a dispatch, a few at a time, as it may have more than ever end.
    fn call(&self, dispatch: &Dispatch<TemplateDevice>) -> Result<(), Failure> {
        let workgroups = match &dispatch.workgroups {
            Workgroups::Count(count) => *count,
            Workgroups::Indirect(place) => counts(host(place)?)?,
        };
        let bindings = dispatch.bindings.iter().map(host).collect::<Result<Vec<_>, _>>()?;
        let call = HostCall {
            function: dispatch.function,
            workgroup_size: dispatch.workgroup_size,
            workgroups,
            constants: &dispatch.constants,
            bindings: &bindings,
            concurrency: 1,
            local_memory: dispatch.local_memory,
        };
        let (mut done, total) = (0, call.total());
        while done < total {
            if let Some(why) = self.lock().aborted.clone() {
                return Err(why);
            }
            let end = done.saturating_add(WORKGROUPS_AT_A_TIME).min(total);
            dispatch.executable.run_dispatch(&call, done..end, 0)?;
            done = end;
        }
        Ok(())
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// The next job, the reason why it must not run if there is one, and whether a refused submission waits for
    /// room.
    fn next(&self) -> Option<(Job<TemplateDevice>, Option<Failure>, bool)> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some((job, state.aborted.clone(), std::mem::take(&mut state.full)));
            }
            if state.stopping {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The number of workgroups, which the device reads when the dispatch begins.
fn counts(place: HostPart<'_>) -> Result<[u32; 3], Failure> {
    let mut words = [[0; 4]; 3];
    done(place.read(words.as_flattened_mut()))?;
    Ok(words.map(u32::from_ne_bytes))
}

/// The bytes of a span. The device may not know this memory; a real device stages it then.
fn host(span: &Span<TemplateDevice>) -> Result<HostPart<'_>, Failure> {
    let part = match &span.place {
        hal_backend::Place::Device(memory, offset) => memory.part(*offset, span.length),
        hal_backend::Place::Host(range) => range.part(0, span.length),
    };
    part.ok_or_else(out_of_range)
}

fn done(fitted: bool) -> Result<(), Failure> {
    fitted.then_some(()).ok_or_else(out_of_range)
}

fn out_of_range() -> Failure {
    Failure::new(Code::OutOfRange, "a command accesses bytes beyond its memory")
}
