// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Streams: a thread each, which does one operation after the other.
//!
//! With a seed, a stream waits before an operation as long as its numbers say. An error that stays belongs to the
//! process: from then on no stream does anything, and who waits for one gets the error.

use super::Driver;
use super::launch::Kernel;
use super::memory::{Allocation, Life, Target};
use super::options::Injection;
use super::report::Rule;
use super::status::{Error, Outcome};
use crate::random::{Random, mix};
use crate::simt::Fault;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

thread_local! {
    /// Whether this thread runs a host function.
    pub(super) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether something has ended, and how.
#[derive(Default)]
pub struct Done {
    state: Mutex<Option<(i32, Instant)>>,
    changed: Condvar,
}

impl Done {
    fn set(&self, result: i32) {
        *self.state.lock() = Some((result, Instant::now()));
        self.changed.notify_all();
    }

    /// Waits for the end.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        while state.is_none() {
            self.changed.wait(&mut state);
        }
    }

    /// Waits for the end, or until it is no longer wanted.
    fn wait_unless(&self, stop: &AtomicBool) {
        let mut state = self.state.lock();
        while state.is_none() && !stop.load(Relaxed) {
            self.changed.wait_for(&mut state, Duration::from_millis(20));
        }
    }

    /// Whether it has ended.
    pub fn is_set(&self) -> bool {
        self.state.lock().is_some()
    }

    /// When it ended.
    pub fn time(&self) -> Option<Instant> {
        self.state.lock().map(|(_, at)| at)
    }
}

/// What a stream does.
#[derive(Clone)]
pub enum Op {
    /// Nothing: its end is what counts.
    Marker,
    /// A kernel.
    Launch(Arc<Kernel>),
    /// Rows of bytes: to, from, their width, how many, and what is between the beginnings of two.
    Copy(Target, Target, Rows),
    /// A value in rows: where, the value, its bytes.
    Set(Target, u32, u8, Rows),
    /// Waits for the end of something.
    Wait(Arc<Done>),
    /// A function of the program's.
    Host(HostFunction),
    /// Writes a word.
    Write(Target, u64, u8),
    /// Waits until a word compares with a value as the flags say.
    Await(Target, u64, u32, u8),
    /// Memory can be used from here on, or until here.
    Life(Arc<Allocation>, Life),
    /// The operations of a graph, in an order that its edges allow.
    Graph(Arc<Vec<Self>>),
}

/// Rows of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Bytes of a row.
    pub width: usize,
    /// How many.
    pub height: usize,
    /// From one row to the next at the destination.
    pub to_pitch: usize,
    /// From one row to the next at the source.
    pub from_pitch: usize,
}

impl Rows {
    /// A single one.
    pub fn one(width: usize) -> Self {
        Self { width, height: 1, to_pitch: width, from_pitch: width }
    }
}

/// A function of the program's, and what it gets.
#[derive(Clone, Copy)]
pub struct HostFunction {
    /// The function.
    pub function: unsafe extern "C" fn(*mut std::ffi::c_void),
    /// Its argument.
    pub data: *mut std::ffi::c_void,
}

// SAFETY: the program says that the function may run on another thread.
unsafe impl Send for HostFunction {}
// SAFETY: as above.
unsafe impl Sync for HostFunction {}

struct Item {
    op: Op,
    done: Arc<Done>,
    after: Vec<Arc<Done>>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Launches that have not ended.
    launches: usize,
    last: Option<Arc<Done>>,
    is_closed: bool,
}

/// The process's error that stays: "any further CUDA work will return the same error", as CUDA's header says of it.
#[derive(Default)]
pub struct Sticky(AtomicI32);

impl Sticky {
    /// The error, if there is one.
    pub fn check(&self) -> Outcome {
        match self.0.load(SeqCst) {
            0 => Ok(()),
            error => Err(Error(error)),
        }
    }

    /// Ends the error, as the end of the process does.
    pub(super) fn clear(&self) {
        self.0.store(0, SeqCst);
    }

    /// Sets the error; the first one stays.
    pub fn set(&self, error: Error) {
        let _ = self.0.compare_exchange(0, error.0, SeqCst, SeqCst);
    }
}

/// A stream.
pub struct Stream {
    /// Its handle.
    pub handle: u64,
    /// The handle of its context.
    pub context: u64,
    /// Whether it is not ordered with the default stream.
    pub is_independent: bool,
    /// The flags that it was created with.
    pub flags: u32,
    /// Its priority.
    pub priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Ends a kernel that runs; set when the context goes.
    pub(super) stop: Arc<AtomicBool>,
}

/// What a stream is created with.
pub struct Plan {
    pub(super) handle: u64,
    pub(super) context: u64,
    pub(super) flags: u32,
    pub(super) priority: i32,
    pub(super) stop: Arc<AtomicBool>,
}

impl Stream {
    pub(super) fn start(driver: &'static Driver, plan: Plan) -> Outcome<Arc<Self>> {
        let stream = Arc::new(Self {
            handle: plan.handle,
            context: plan.context,
            is_independent: plan.flags & 1 != 0,
            flags: plan.flags,
            priority: plan.priority,
            queue: Mutex::default(),
            changed: Condvar::new(),
            stop: plan.stop,
        });
        let run = stream.clone();
        let thread = std::thread::Builder::new().name("cuda-stream".to_owned());
        thread.spawn(move || run.run(driver)).map_err(|_| Error::OUT_OF_MEMORY)?;
        Ok(stream)
    }

    /// Adds an operation, after others of the same context.
    pub(crate) fn push(&self, driver: &Driver, op: Op, after: Vec<Arc<Done>>) -> Arc<Done> {
        let done = Arc::new(Done::default());
        let mut queue = self.queue.lock();
        if matches!(op, Op::Launch(_) | Op::Graph(_)) {
            let most = driver.report.options().pending;
            if queue.launches >= most {
                driver.report.broken(Rule::QueueFull, || format!("{most} launches are pending"));
            }
            while queue.launches >= most && !queue.is_closed {
                self.changed.wait(&mut queue);
            }
            queue.launches += 1;
        }
        queue.last = Some(done.clone());
        queue.items.push_back(Item { op, done: done.clone(), after });
        drop(queue);
        self.changed.notify_all();
        done
    }

    /// What ends last of all that was added.
    pub fn last(&self) -> Option<Arc<Done>> {
        self.queue.lock().last.clone()
    }

    /// Whether everything has ended.
    pub fn is_idle(&self) -> bool {
        self.last().is_none_or(|last| last.is_set())
    }

    /// Waits until everything has ended.
    pub fn synchronize(&self, driver: &Driver) -> Outcome {
        if let Some(last) = self.last() {
            last.wait();
        }
        driver.sticky.check()
    }

    /// Takes no more; what was added still runs.
    pub(crate) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn run(self: Arc<Self>, driver: &'static Driver) {
        let seed = driver.report.options().seed;
        let mut random = Random::new(mix(seed ^ self.handle));
        loop {
            let mut queue = self.queue.lock();
            let item = loop {
                if let Some(item) = queue.items.pop_front() {
                    break item;
                }
                if queue.is_closed {
                    return;
                }
                self.changed.wait(&mut queue);
            };
            drop(queue);
            item.after.iter().for_each(|other| other.wait_unless(&self.stop));
            if seed != 0 && random.below(2) == 0 {
                let longest = u64::try_from(driver.report.options().delay.as_micros()).unwrap_or(0);
                std::thread::sleep(Duration::from_micros(random.below(longest + 1)));
            }
            let is_launch = matches!(item.op, Op::Launch(_) | Op::Graph(_));
            let is_wanted = !self.stop.load(Relaxed);
            if is_wanted
                && driver.sticky.check().is_ok()
                && let Err(error) = self.perform(driver, &item.op, &mut random)
            {
                driver.sticky.set(error);
            }
            if is_launch {
                self.queue.lock().launches -= 1;
                self.changed.notify_all();
            }
            item.done.set(driver.sticky.check().err().map_or(0, |error| error.0));
        }
    }

    fn perform(&self, driver: &Driver, op: &Op, random: &mut Random) -> Outcome {
        match op {
            Op::Marker => {}
            Op::Launch(kernel) => self.launch(driver, kernel, random)?,
            Op::Copy(to, from, rows) => {
                let (to, from) = (to.host(&driver.report)?, from.host(&driver.report)?);
                // SAFETY: `Space::target` checked the bytes of the first and last row, or the program says that
                // it may be accessed.
                unsafe { copy(to, from, *rows) };
            }
            Op::Set(to, value, bytes, rows) => {
                let to = to.host(&driver.report)?;
                // SAFETY: as above.
                unsafe { set(to, *value, *bytes, *rows) };
            }
            Op::Wait(done) => done.wait_unless(&self.stop),
            Op::Host(HostFunction { function, data }) => {
                IN_HOST_FUNCTION.set(true);
                // SAFETY: the program asked for it.
                unsafe { function(*data) };
                IN_HOST_FUNCTION.set(false);
            }
            Op::Write(to, value, bytes) => {
                let to = to.host(&driver.report)?;
                // SAFETY: the word is in memory that is live, and aligned: both were checked.
                unsafe { write_word(to, *value, *bytes) };
            }
            Op::Await(from, value, flags, bytes) => {
                while driver.sticky.check().is_ok() && !self.stop.load(Relaxed) {
                    let from = from.host(&driver.report)?;
                    // SAFETY: as above.
                    let found = unsafe { read_word(from, *bytes) };
                    if compares(found, *value, *flags, *bytes) {
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(5));
                }
            }
            Op::Life(allocation, life) => match (allocation.life(), life) {
                // It was freed before.
                (Life::Freed, Life::Live) => {}
                (Life::Pending, Life::Freed) => {
                    driver.forget(allocation);
                    let text = || format!("a free of {:#x}", allocation.address);
                    driver.report.broken(Rule::UseBeforeAllocation, text);
                    return Err(Error::ILLEGAL_ADDRESS);
                }
                (_, Life::Freed) => driver.forget(allocation),
                _ => allocation.set_life(*life),
            },
            Op::Graph(ops) => {
                for op in ops.iter() {
                    self.perform(driver, op, random)?;
                }
            }
        }
        Ok(())
    }

    fn launch(&self, driver: &Driver, kernel: &Kernel, random: &mut Random) -> Outcome {
        let report = &driver.report;
        if report.is_due(&Injection::IllegalAddress) {
            return Err(Error::ILLEGAL_ADDRESS);
        }
        if report.is_due(&Injection::LaunchFailed) {
            return Err(Error::LAUNCH_FAILED);
        }
        if report.is_due(&Injection::Stall) {
            driver.stall(&self.stop);
        }
        let options = report.options();
        let seed = if options.seed == 0 { 0 } else { random.below(u64::MAX) };
        let begin = Instant::now();
        let outcome = kernel.run(driver, seed, options.budget, &self.stop);
        if options.times {
            let steps = outcome.as_ref().map_or(0, |steps| *steps);
            eprintln!(
                "emulator-cuda: {} {:?}, {steps} instructions of warps",
                kernel.name(),
                begin.elapsed()
            );
        }
        // One that was stopped had no fault.
        outcome.map(|_| ()).or_else(|trap| {
            if trap.fault == Fault::Stopped {
                return Ok(());
            }
            report.broken(Rule::KernelFault, || trap.to_string());
            Err(match trap.fault {
                Fault::Outside { .. } => Error::ILLEGAL_ADDRESS,
                Fault::Misaligned { .. } => Error::MISALIGNED_ADDRESS,
                Fault::Endless => Error::LAUNCH_TIMEOUT,
                _ => Error::LAUNCH_FAILED,
            })
        })
    }
}

/// # Safety
/// Rows of this width can be read at `from` and written at `to`.
unsafe fn copy(to: *mut u8, from: *const u8, rows: Rows) {
    for row in 0..rows.height {
        let (to, from) = (to.wrapping_add(row * rows.to_pitch), from.wrapping_add(row * rows.from_pitch));
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, rows.width) };
    }
}

/// # Safety
/// Rows of this width can be written at `to`.
unsafe fn set(to: *mut u8, value: u32, bytes: u8, rows: Rows) {
    let value = value.to_le_bytes();
    for row in 0..rows.height {
        // SAFETY: the caller's promise.
        let row = unsafe { std::slice::from_raw_parts_mut(to.wrapping_add(row * rows.to_pitch), rows.width) };
        for part in row.chunks_mut(usize::from(bytes)) {
            part.iter_mut().zip(value).for_each(|(to, from)| *to = from);
        }
    }
}

/// # Safety
/// A word of this length can be written at `to`, which is a multiple of it.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
unsafe fn write_word(to: *mut u8, value: u64, bytes: u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if bytes == 8 {
            AtomicU64::from_ptr(to.cast()).store(value, SeqCst);
        } else {
            AtomicU32::from_ptr(to.cast()).store(value as u32, SeqCst);
        }
    }
}

/// # Safety
/// A word of this length can be read at `from`, which is a multiple of it.
unsafe fn read_word(from: *mut u8, bytes: u8) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        if bytes == 8 {
            AtomicU64::from_ptr(from.cast()).load(SeqCst)
        } else {
            u64::from(AtomicU32::from_ptr(from.cast()).load(SeqCst))
        }
    }
}

/// Whether a word compares: at least, in a circle of all values; equal; bits in common; bits that are missing.
fn compares(found: u64, value: u64, flags: u32, bytes: u8) -> bool {
    let mask = if bytes == 8 { u64::MAX } else { 0xffff_ffff };
    let sign = if bytes == 8 { 1 << 63 } else { 1 << 31 };
    match flags & 3 {
        0 => found.wrapping_sub(value) & sign == 0,
        1 => found == value & mask,
        2 => found & value != 0,
        _ => !(found | value) & mask != 0,
    }
}
