// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Profiling: records of what the engine and the device did, for IREE's tools.
//!
//! A session is IREE's own recorder. Each operation that is submitted while a session is open carries a [`Trace`],
//! which writes the operation's records once they are known: its submission and readiness (a queue event), the
//! device's times (dispatches, a span of its queue), and its cost for the host. All are written before the
//! operation's signals, so a program that has waited for these finds them in the profile.

use crate::command::executable::Executable;
use crate::ffi::object::HostAllocator;
use crate::ffi::status::{Result, check, text, view};
use hal_backend::{Observer, Properties};
use hal_semaphore::{Code, Failure, Point};
use hal_sys as sys;
use parking_lot::{Mutex, RwLock};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// The profiling of a device.
///
/// # The program's sink
///
/// The recorder calls the program's sink, which may do anything: block, or use the device. So no lock is held
/// during the call but a session's recorder, for reading; and a thread inside a recorder cannot begin, flush or end
/// that recorder's session.
#[derive(Default)]
pub(crate) struct Profiler {
    state: RwLock<SessionState>,
    /// Lock-free copy of whether a session is open, for operations that only check.
    open: AtomicBool,
    sessions: AtomicU64,
}

/// The state of a device's sessions, of which one exists at a time.
#[derive(Default)]
enum SessionState {
    #[default]
    Closed,
    /// A thread is making a session.
    Opening,
    Open(Arc<Session>),
}

/// Restores the previous state, unless a session was opened.
struct Opening<'a>(&'a Profiler);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.write();
        if matches!(*state, SessionState::Opening) {
            *state = SessionState::Closed;
        }
    }
}

thread_local! {
    /// The profilers whose recorders this thread is inside, by address.
    static IN_RECORDERS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Removes the last entry.
struct RecorderCall;

impl Drop for RecorderCall {
    fn drop(&mut self) {
        let _ = IN_RECORDERS.try_with(|within| within.borrow_mut().pop());
    }
}

/// Calls the recorder of a profiler.
fn within<T>(profiler: usize, call: impl FnOnce() -> T) -> T {
    // A thread that is ending has no list any more.
    let entered = IN_RECORDERS.try_with(|within| within.borrow_mut().push(profiler)).is_ok();
    let _within = entered.then(|| RecorderCall);
    call()
}

/// One session.
struct Session {
    recorder: RwLock<Option<Recorder>>,
    physical: u32,
    queues: usize,
    submissions: AtomicU64,
    samples: AtomicU64,
    /// Serialises clock samples, so that they are numbered in order.
    clock: Mutex<()>,
    /// The host's time when the device's clock was at zero, by the last sample.
    epoch: AtomicI64,
}

/// IREE's recorder. It notifies its sink of the session's beginning, and of its end when it is dropped.
///
/// # Invariants
///
/// `raw` is a recorder that only this destroys.
struct Recorder {
    raw: *mut sys::iree_hal_local_profile_recorder_t,
    profiler: usize,
}

// SAFETY: the recorder has its own lock.
unsafe impl Send for Recorder {}
// SAFETY: as for `Send`.
unsafe impl Sync for Recorder {}

impl Recorder {
    /// Writes what is left, and ends the session.
    fn end(&self) -> Result {
        // SAFETY: the recorder is alive, since this alone destroys it. It may be asked to end more than once, and
        // ends once.
        self.call(|recorder| unsafe { check(sys::iree_hal_local_profile_recorder_end(recorder)) })
    }

    fn call(&self, call: impl FnOnce(*mut sys::iree_hal_local_profile_recorder_t) -> Result) -> Result {
        within(self.profiler, || call(self.raw))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The session was not ended, or its end failed and that failure was returned to the program.
        let _ = self.end();
        // SAFETY: destroyed here alone, by the invariant, after it has ended.
        unsafe { sys::iree_hal_local_profile_recorder_destroy(self.raw) };
    }
}

fn now() -> i64 {
    // SAFETY: reads a clock.
    unsafe { sys::iree_time_now() }
}

/// A queue's record for IREE's tools.
fn queue_record(physical: u32, ordinal: usize) -> sys::iree_hal_profile_queue_record_t {
    let scope = scope(physical, ordinal);
    // SAFETY: defaults are plain values.
    let mut record = unsafe { sys::iree_hal_profile_queue_record_default() };
    record.physical_device_ordinal = scope.physical_device_ordinal;
    record.queue_ordinal = scope.queue_ordinal;
    record.stream_id = scope.stream_id;
    record
}

/// Refuses data that no device here records, which IREE's recorder takes and leaves empty, and data that only a device
/// with a clock has, by the names of IREE's tools.
fn refuse_unrecorded(
    asked: u64,
    of_the_device: &[(u64, &'static str)],
    has_clock: bool,
    device: &str,
) -> Result {
    let none = [
        (u64::from(sys::IREE_HAL_DEVICE_PROFILING_DATA_MEMORY_EVENTS), "memory-events"),
        (u64::from(sys::IREE_HAL_DEVICE_PROFILING_DATA_COMMAND_REGION_EVENTS), "command-region-events"),
    ];
    let names = |families: &[(u64, &'static str)]| {
        let asked = families.iter().filter(|(family, _)| asked & family != 0).map(|&(_, name)| name);
        asked.collect::<Vec<_>>().join(" and ")
    };
    let (none, timed) = (names(&none), names(if has_clock { &[] } else { of_the_device }));
    let message = if !none.is_empty() {
        format!("this driver records no {none}: profile without them")
    } else if !timed.is_empty() {
        format!(
            "{device} has no clock (Device::clock of its backend), which {timed} need: profile it without them"
        )
    } else {
        return Ok(());
    };
    Err(Failure::new(Code::Unimplemented, message))
}

impl Profiler {
    /// Opens a session. Options that request nothing open none.
    ///
    /// # Safety
    ///
    /// The objects that the options name are alive for the call.
    pub(crate) unsafe fn begin(
        &self,
        options: &sys::iree_hal_device_profiling_options_t,
        properties: &Properties,
        physical: u32,
        allocator: HostAllocator,
        clock: &dyn Fn() -> Option<u64>,
    ) -> Result {
        self.refuse_within()?;
        {
            let mut state = self.state.write();
            if !matches!(*state, SessionState::Closed) {
                return Err(Failure::new(Code::FailedPrecondition, "the device is being profiled already"));
            }
            *state = SessionState::Opening;
        }
        let _opening = Opening(self);
        let queues = properties.queues.queues;
        // SAFETY: what the options name is alive for the call, as the caller promises.
        let recorder =
            unsafe { self.create_recorder(options, properties, physical, allocator, clock().is_some())? };
        if recorder.is_null() {
            return Ok(());
        }
        let opened = Arc::new(Session {
            recorder: RwLock::new(Some(Recorder { raw: recorder, profiler: self.address() })),
            physical,
            queues,
            submissions: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            clock: Mutex::new(()),
            epoch: AtomicI64::new(0),
        });
        opened.correlate(clock)?;
        *self.state.write() = SessionState::Open(opened);
        self.open.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Creates a recorder of IREE's; null if the options request nothing.
    ///
    /// # Safety
    ///
    /// The objects that the options name are alive for the call.
    unsafe fn create_recorder(
        &self,
        options: &sys::iree_hal_device_profiling_options_t,
        properties: &Properties,
        physical: u32,
        allocator: HostAllocator,
        has_clock: bool,
    ) -> Result<*mut sys::iree_hal_local_profile_recorder_t> {
        let queues = properties.queues.queues;
        let of_the_device = [
            (sys::IREE_HAL_DEVICE_PROFILING_DATA_DISPATCH_EVENTS, "dispatch-events"),
            (sys::IREE_HAL_DEVICE_PROFILING_DATA_DEVICE_QUEUE_EVENTS, "device-queue-events"),
        ]
        .map(|(family, name)| (u64::from(family), name));
        refuse_unrecorded(options.data_families, &of_the_device, has_clock, &properties.identifier)?;
        // SAFETY: defaults are plain values; borrowed arguments live through the call, as the caller promises.
        unsafe {
            let mut device = sys::iree_hal_profile_device_record_default();
            device.physical_device_ordinal = physical;
            device.queue_count = u32::try_from(queues).unwrap_or(u32::MAX);
            let records: Vec<_> = (0..queues).map(|ordinal| queue_record(physical, ordinal)).collect();
            let families = of_the_device.iter().fold(0, |all, (family, _)| all | family);
            let recorder_options = sys::iree_hal_local_profile_recorder_options_t {
                name: view(&properties.identifier),
                session_id: self.sessions.fetch_add(1, Ordering::Relaxed) + 1,
                device_record_count: 1,
                device_records: &raw const device,
                queue_record_count: records.len(),
                queue_records: records.as_ptr(),
                // Data that only the device has is not offered for a device without a clock.
                producer_data_families: if has_clock { families } else { 0 },
                ..Default::default()
            };
            let mut recorder = std::ptr::null_mut();
            within(self.address(), || {
                check(sys::iree_hal_local_profile_recorder_create(
                    &raw const recorder_options,
                    options,
                    allocator.raw(),
                    &raw mut recorder,
                ))
            })?;
            Ok(recorder)
        }
    }

    /// Writes what has been recorded so far.
    pub(crate) fn flush(&self, clock: &dyn Fn() -> Option<u64>) -> Result {
        self.refuse_within()?;
        let session = match &*self.state.read() {
            SessionState::Open(session) => session.clone(),
            SessionState::Closed => return Ok(()),
            SessionState::Opening => return Err(beginning()),
        };
        session.correlate(clock)?;
        // SAFETY: `with` holds the session, and with it the recorder, by the invariant of `Recorder`.
        session.with(|recorder| unsafe { check(sys::iree_hal_local_profile_recorder_flush(recorder)) })
    }

    /// Closes the session.
    pub(crate) fn end(&self, clock: &dyn Fn() -> Option<u64>) -> Result {
        self.refuse_within()?;
        let session = {
            let mut state = self.state.write();
            match &*state {
                SessionState::Open(session) => {
                    let session = session.clone();
                    self.open.store(false, Ordering::Relaxed);
                    *state = SessionState::Closed;
                    session
                }
                SessionState::Closed => return Ok(()),
                SessionState::Opening => return Err(beginning()),
            }
        };
        let correlated = session.correlate(clock);
        let Some(recorder) = session.recorder.write().take() else { return Ok(()) };
        correlated.and(recorder.end())
    }

    /// Lock-free check whether a session is open. It may have closed by the time the caller acts.
    #[inline]
    pub(crate) fn may_be_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// A trace for an operation, if a session is open.
    pub(crate) fn trace(&self, about: impl FnOnce() -> OperationDescription) -> Option<Arc<Trace>> {
        if !self.may_be_open() {
            return None;
        }
        let session = match &*self.state.read() {
            SessionState::Open(session) => session.clone(),
            _ => return None,
        };
        Some(Trace::new(session, about()))
    }

    /// Its address, which is stable while a session is open.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Refuses a call from inside the recorder's sink.
    fn refuse_within(&self) -> Result {
        let is_within = |within: &RefCell<Vec<usize>>| within.borrow().contains(&self.address());
        if IN_RECORDERS.try_with(is_within).unwrap_or(false) {
            let message =
                "a profile's sink cannot begin, flush or end the session that calls it; do so after the call";
            return Err(Failure::new(Code::FailedPrecondition, message));
        }
        Ok(())
    }
}

fn beginning() -> Failure {
    let message = "another thread is beginning a profile of the device; wait until that call has returned";
    Failure::new(Code::FailedPrecondition, message)
}

fn scope(physical: u32, ordinal: usize) -> sys::iree_hal_local_profile_queue_scope_t {
    let queue_ordinal = u32::try_from(ordinal).unwrap_or(u32::MAX);
    sys::iree_hal_local_profile_queue_scope_t {
        physical_device_ordinal: physical,
        queue_ordinal,
        stream_id: u64::from(physical) << 32 | u64::from(queue_ordinal),
    }
}

impl Session {
    fn with(&self, write: impl FnOnce(*mut sys::iree_hal_local_profile_recorder_t) -> Result) -> Result {
        // The thread that ends the session waits for this read lock, and a sink that is called here may submit
        // recorded work too.
        match self.recorder.read_recursive().as_ref() {
            Some(recorder) => recorder.call(write),
            None => Ok(()),
        }
    }

    /// Records the device's clock between two readings of the host's.
    fn correlate(&self, clock: &dyn Fn() -> Option<u64>) -> Result {
        let (sample, begin, tick, end) = {
            let _order = self.clock.lock();
            let begin = now();
            let Some(tick) = clock() else { return Ok(()) };
            (self.samples.fetch_add(1, Ordering::Relaxed) + 1, begin, tick, now())
        };
        self.epoch.store(begin.midpoint(end).saturating_sub_unsigned(tick), Ordering::Relaxed);
        // SAFETY: the default is a plain value; `with` holds the recorder, by the invariant of `Recorder`.
        self.with(|recorder| unsafe {
            let mut record = sys::iree_hal_profile_clock_correlation_record_default();
            record.flags = sys::IREE_HAL_PROFILE_CLOCK_CORRELATION_FLAG_DEVICE_TICK
                | sys::IREE_HAL_PROFILE_CLOCK_CORRELATION_FLAG_HOST_CPU_TIMESTAMP
                | sys::IREE_HAL_PROFILE_CLOCK_CORRELATION_FLAG_HOST_SYSTEM_TIMESTAMP
                | sys::IREE_HAL_PROFILE_CLOCK_CORRELATION_FLAG_HOST_TIME_BRACKET;
            record.physical_device_ordinal = self.physical;
            record.sample_id = sample;
            record.device_tick = tick;
            // The host has one clock here, in nanoseconds; every host time is a reading of it.
            record.host_time_begin_ns = begin;
            record.host_time_end_ns = end;
            record.host_cpu_timestamp_ns = u64::try_from(begin).unwrap_or(1);
            record.host_system_timestamp = record.host_cpu_timestamp_ns;
            record.host_system_frequency_hz = 1_000_000_000;
            check(sys::iree_hal_local_profile_recorder_write_clock_correlations(
                recorder,
                1,
                &raw const record,
            ))
        })
    }
}

impl Session {
    /// The host's time at a reading of the device's clock.
    fn host_time(&self, tick: u64) -> i64 {
        self.epoch.load(Ordering::Relaxed).saturating_add_unsigned(tick)
    }
}

/// The description of an operation for a profile; [`operation_description`](super::operation_description) makes it.
#[derive(Default)]
pub(crate) struct OperationDescription {
    pub(crate) kind: u32,
    pub(crate) waits: usize,
    pub(crate) signals: usize,
    pub(crate) payload: u64,
    pub(crate) operations: usize,
    pub(crate) command_buffer: u64,
    /// The queues that it may run on, as bits.
    pub(crate) affinity: u64,
    pub(crate) dispatches: Vec<Dispatched>,
    /// The executables and command buffers that its records name.
    pub(crate) executables: Vec<Executable>,
    pub(crate) layout: Option<CommandLayout>,
}

/// A dispatch of an operation.
pub(crate) struct Dispatched {
    /// The number of its command in the list that the device got.
    pub(super) number: usize,
    /// Its number in the whole command buffer, which may be several lists for the device.
    pub(super) index: usize,
    pub(super) executable: u64,
    pub(super) function: usize,
    pub(super) name: String,
    /// True if a buffer has the number of workgroups.
    pub(super) indirect: bool,
    pub(super) workgroups: [u32; 3],
    pub(super) workgroup_size: [u32; 3],
}

pub(crate) struct CommandLayout {
    pub(super) record: sys::iree_hal_profile_command_buffer_record_t,
    pub(super) operations: Vec<sys::iree_hal_profile_command_operation_record_t>,
}

/// One operation of a session.
pub(crate) struct Trace {
    session: Arc<Session>,
    about: OperationDescription,
    submission: u64,
    submitted: i64,
    begun: AtomicI64,
    queue: AtomicU32,
    /// The cost for the host has been written.
    done: AtomicBool,
}

impl Trace {
    fn new(session: Arc<Session>, about: OperationDescription) -> Arc<Self> {
        let submission = session.submissions.fetch_add(1, Ordering::Relaxed) + 1;
        let queue = u32::min(about.affinity.trailing_zeros(), 63);
        let queue = if (queue as usize) < session.queues { queue } else { 0 };
        let trace = Arc::new(Self {
            session,
            about,
            submission,
            submitted: now(),
            begun: AtomicI64::new(0),
            queue: AtomicU32::new(queue),
            done: AtomicBool::new(false),
        });
        trace.metadata();
        trace
    }

    /// Writes the metadata that readers need, each item once in a session. If that fails the profile lacks it, and
    /// the program goes on.
    fn metadata(&self) {
        // SAFETY: `with` holds the recorder, by the invariant of `Recorder`; the rest is borrowed for the calls.
        let _ = self.session.with(|recorder| unsafe {
            for executable in &self.about.executables {
                check(sys::iree_hal_local_profile_recorder_record_executable_with_id(
                    recorder,
                    executable.raw(),
                    executable.profile_id(),
                ))?;
            }
            if let Some(layout) = &self.about.layout {
                let mut record = layout.record;
                record.physical_device_ordinal = self.session.physical;
                check(sys::iree_hal_local_profile_recorder_record_command_buffer(
                    recorder,
                    &raw const record,
                    layout.operations.len(),
                    layout.operations.as_ptr(),
                ))?;
            }
            Ok(())
        });
    }

    fn scope(&self) -> sys::iree_hal_local_profile_queue_scope_t {
        scope(self.session.physical, self.queue.load(Ordering::Relaxed) as usize)
    }

    fn count(number: usize) -> u32 {
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// The operation was submitted to its queue.
    pub(crate) fn issued(&self, point: Point) {
        self.queue.store(Self::count(point.queue.index()), Ordering::Relaxed);
        self.ready();
    }

    /// Nothing keeps the operation from running any more.
    pub(crate) fn ready(&self) {
        let ready = now();
        self.begun.store(ready, Ordering::Relaxed);
        // SAFETY: the default is a plain value; `with` holds the recorder, by the invariant of `Recorder`.
        let _ = self.session.with(|recorder| unsafe {
            let mut event = sys::iree_hal_local_profile_queue_event_info_default();
            event.type_ = self.about.kind;
            event.dependency_strategy = if self.about.waits == 0 {
                sys::IREE_HAL_PROFILE_QUEUE_DEPENDENCY_STRATEGY_INLINE
            } else {
                sys::IREE_HAL_PROFILE_QUEUE_DEPENDENCY_STRATEGY_DEVICE_BARRIER
            };
            event.scope = self.scope();
            event.host_time_ns = self.submitted;
            event.ready_host_time_ns = ready;
            event.submission_id = self.submission;
            event.command_buffer_id = self.about.command_buffer;
            event.wait_count = Self::count(self.about.waits);
            event.signal_count = Self::count(self.about.signals);
            event.operation_count = Self::count(self.about.operations);
            event.payload_length = self.about.payload;
            sys::iree_hal_local_profile_recorder_append_queue_event(
                recorder,
                &raw const event,
                std::ptr::null_mut(),
            );
            Ok(())
        });
    }

    /// The operation has run, as far as the host knows. Only the first call counts.
    pub(crate) fn done(&self, outcome: std::result::Result<(), &Failure>) {
        if self.done.swap(true, Ordering::Relaxed) || self.begun.load(Ordering::Relaxed) == 0 {
            return;
        }
        // SAFETY: the default is a plain value; `with` holds the recorder, by the invariant of `Recorder`.
        let _ = self.session.with(|recorder| unsafe {
            let mut event = sys::iree_hal_local_profile_host_execution_event_info_default();
            event.type_ = self.about.kind;
            event.status_code = outcome.err().map_or(0, |failure| failure.code() as u32);
            event.scope = self.scope();
            event.submission_id = self.submission;
            event.command_buffer_id = self.about.command_buffer;
            if let (Some(dispatch), 0) = (self.about.dispatches.first(), self.about.command_buffer) {
                event.executable_id = dispatch.executable;
                event.function_ordinal = Self::count(dispatch.function);
                event.workgroup_count = dispatch.workgroups;
                event.workgroup_size = dispatch.workgroup_size;
            } else if self.about.command_buffer != 0 {
                event.flags = sys::IREE_HAL_PROFILE_HOST_EXECUTION_EVENT_FLAG_COMMAND_BUFFER;
            }
            event.start_host_time_ns = self.begun.load(Ordering::Relaxed);
            event.end_host_time_ns = now();
            event.payload_length = self.about.payload;
            event.operation_count = Self::count(self.about.operations);
            sys::iree_hal_local_profile_recorder_append_host_execution_event(
                recorder,
                &raw const event,
                std::ptr::null_mut(),
            );
            Ok(())
        });
    }

    /// Writes a dispatch of a command buffer with its times by the host's clock, from which IREE's tools sum up
    /// functions for statistics. A dispatch that is an operation by itself is written when that ends.
    ///
    /// # Safety
    ///
    /// The recorder is alive.
    unsafe fn append_host_dispatch(
        &self,
        recorder: *mut sys::iree_hal_local_profile_recorder_t,
        dispatch: &Dispatched,
        ticks: [u64; 2],
    ) {
        // SAFETY: the default is a plain value; the recorder is alive, as the caller promises.
        unsafe {
            let mut event = sys::iree_hal_local_profile_host_execution_event_info_default();
            event.type_ = sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_DISPATCH;
            event.flags = sys::IREE_HAL_PROFILE_HOST_EXECUTION_EVENT_FLAG_COMMAND_BUFFER;
            if dispatch.indirect {
                event.flags |= sys::IREE_HAL_PROFILE_HOST_EXECUTION_EVENT_FLAG_INDIRECT_PARAMETERS;
            }
            event.scope = self.scope();
            event.submission_id = self.submission;
            event.command_buffer_id = self.about.command_buffer;
            event.command_index = Self::count(dispatch.index);
            event.executable_id = dispatch.executable;
            event.function_ordinal = Self::count(dispatch.function);
            event.workgroup_count = dispatch.workgroups;
            event.workgroup_size = dispatch.workgroup_size;
            let [begin, end] = ticks.map(|tick| self.session.host_time(tick));
            (event.start_host_time_ns, event.end_host_time_ns) = (begin, end);
            event.operation_count = 1;
            sys::iree_hal_local_profile_recorder_append_host_execution_event(
                recorder,
                &raw const event,
                std::ptr::null_mut(),
            );
        }
    }

    /// True if the program's filter selects this dispatch.
    ///
    /// # Safety
    ///
    /// The recorder is alive.
    unsafe fn wanted(
        &self,
        recorder: *mut sys::iree_hal_local_profile_recorder_t,
        dispatch: &Dispatched,
    ) -> bool {
        // SAFETY: the options live as long as the recorder.
        unsafe {
            let Some(options) = sys::iree_hal_local_profile_recorder_options(recorder).as_ref() else {
                return true;
            };
            let filter = &options.capture_filter;
            let pattern = sys::IREE_HAL_PROFILE_CAPTURE_FILTER_FLAG_EXECUTABLE_FUNCTION_PATTERN;
            let scope = self.scope();
            sys::iree_hal_profile_capture_filter_matches_location(
                filter,
                self.about.command_buffer,
                Self::count(dispatch.index),
                scope.physical_device_ordinal,
                scope.queue_ordinal,
            ) && (filter.flags & pattern == 0
                || matches(&dispatch.name, text(filter.executable_function_pattern)))
        }
    }
}

/// True if a name matches a glob pattern, by IREE's rules.
pub(crate) fn matches(name: &str, pattern: &str) -> bool {
    // SAFETY: both views live through the call.
    unsafe { sys::iree_string_view_match_pattern(view(name), view(pattern)) }
}

impl Observer for Trace {
    fn command(&self, number: usize, begin: u64, end: u64) {
        let Some(dispatch) = self.about.dispatches.iter().find(|dispatch| dispatch.number == number) else {
            return;
        };
        // SAFETY: the default is a plain value; `with` holds the recorder, by the invariant of `Recorder`.
        let _ = self.session.with(|recorder| unsafe {
            if !self.wanted(recorder, dispatch) {
                return Ok(());
            }
            let mut event = sys::iree_hal_local_profile_dispatch_event_info_default();
            event.scope = self.scope();
            event.submission_id = self.submission;
            event.command_buffer_id = self.about.command_buffer;
            if self.about.command_buffer != 0 {
                event.flags = sys::IREE_HAL_PROFILE_DISPATCH_EVENT_FLAG_COMMAND_BUFFER;
                event.command_index = Self::count(dispatch.index);
            }
            if dispatch.indirect {
                event.flags |= sys::IREE_HAL_PROFILE_DISPATCH_EVENT_FLAG_INDIRECT_PARAMETERS;
            }
            event.executable_id = dispatch.executable;
            event.function_ordinal = Self::count(dispatch.function);
            event.workgroup_count = dispatch.workgroups;
            event.workgroup_size = dispatch.workgroup_size;
            event.start_tick = begin;
            event.end_tick = end;
            check(sys::iree_hal_local_profile_recorder_append_dispatch_event(
                recorder,
                &raw const event,
                std::ptr::null_mut(),
            ))?;
            if self.about.command_buffer != 0 {
                self.append_host_dispatch(recorder, dispatch, [begin, end]);
            }
            Ok(())
        });
    }

    fn job(&self, begin: u64, end: u64, outcome: std::result::Result<(), &Failure>) {
        // SAFETY: the default is a plain value; `with` holds the recorder, by the invariant of `Recorder`.
        let _ = self.session.with(|recorder| unsafe {
            let mut event = sys::iree_hal_local_profile_queue_device_event_info_default();
            event.type_ = self.about.kind;
            event.scope = self.scope();
            event.submission_id = self.submission;
            event.command_buffer_id = self.about.command_buffer;
            event.operation_count = Self::count(self.about.operations);
            event.payload_length = self.about.payload;
            event.start_tick = begin;
            event.end_tick = end;
            check(sys::iree_hal_local_profile_recorder_append_queue_device_event(
                recorder,
                &raw const event,
                std::ptr::null_mut(),
            ))
        });
        self.done(outcome);
    }
}
