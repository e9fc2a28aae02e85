// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's backend: it turns each queue operation into a job of the device or a task of the host.

use crate::command::collectives::execution::{ExecutionEnd, ExecutionPart};
use crate::command::collectives::running::{Collectives, RunningCollectives};
use crate::command::command_buffer::Recorded;
use crate::command::record::{Record, Substitutes};
use crate::device::Bounce;
use crate::device::completions::Completions;
use crate::device::operation_text;
use crate::device::profile::Trace;
use crate::device::running_calls::RunningCalls;
use crate::device::until_end::UntilEnd;
use crate::ffi::object::Opaque;
use crate::ffi::object::{Retained, to_device_size};
use crate::ffi::status::{Result, bug, check, misuse};
use crate::memory::alloca::{Alloca, Dealloca, PendingAllocas};
use crate::memory::buffer_range::BufferRange;
use crate::memory::reservation::Reservation;
use crate::sync::frontier::Frontiers;
use crate::sync::host_pool::HostPool;
use crate::sync::semaphore::{IreeTimeline, OwnedList};
use crate::sync::teardown;
use hal_backend::{Command, Commands, Device, Job, Observer, Rejected};
use hal_semaphore::backend::{
    Backend, Batch, Completer, Description, DeviceSpec, Ended, HostTask, Submission, Submitted,
};
use hal_semaphore::{Code, Failure, Point, QueueId};
use hal_sys as sys;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A queue operation.
pub(crate) struct QueueWork<D: Device> {
    pub(crate) operation: Operation<D>,
    /// The operation's trace, if it is profiled.
    pub(crate) trace: Option<Arc<Trace>>,
}

/// The kinds of queue operations, with their operands.
pub(crate) enum Operation<D: Device> {
    /// A single transfer or dispatch.
    Record(Record),
    /// The same with certain memory. The device has the command while it is in flight.
    Command(Command<D>),
    /// A step of a command buffer. It is a part of an execution that has several.
    Execute {
        commands: Recorded,
        step: usize,
        bindings: Box<[Option<BufferRange>]>,
        substitutes: Substitutes,
        part: Option<ExecutionPart>,
    },
    /// The end of an execution that has parts.
    ExecutionEnd(ExecutionEnd),
    /// Collectives without an order between them.
    Collectives(Box<Collectives>),
    /// Returns memory.
    Dealloca(Dealloca),
    /// Allocates memory.
    Alloca(Alloca),
    /// Waits for memory that was requested before: for the frontier of the pool's reservation, or for the pool.
    Await(Box<(Alloca, Option<Reservation>)>),
    /// Calls the program.
    HostCall(Box<HostCall>),
    /// Reads or writes a file.
    Transfer(Box<Transfer>),
    /// Copies a bounce buffer back to its owner.
    Return(Arc<Bounce>),
}

/// A function of the program and its arguments.
///
/// # Invariants
///
/// The program allows one call, on any thread, with a context of the device.
#[derive(Clone, Copy)]
pub(crate) struct ProgramCall {
    function: HostFunction,
    user_data: *mut std::ffi::c_void,
}

type HostFunction = unsafe extern "C" fn(
    *mut std::ffi::c_void,
    *const u64,
    *mut sys::iree_hal_host_call_context_t,
) -> sys::iree_status_t;

// SAFETY: the call may be made on any thread, by the invariant.
unsafe impl Send for ProgramCall {}

impl ProgramCall {
    /// The call of C's arguments; `None` without a function.
    ///
    /// # Safety
    ///
    /// The call may be made once, on any thread, with a context of the device.
    pub(crate) unsafe fn new(call: sys::iree_hal_host_call_t) -> Option<Self> {
        Some(Self { function: call.fn_?, user_data: call.user_data })
    }
}

/// A call of the program. Its signals are not the engine's, as the call may defer them.
pub(crate) struct HostCall {
    pub(crate) call: ProgramCall,
    pub(crate) arguments: [u64; 4],
    pub(crate) affinity: u64,
    pub(crate) device: Opaque,
    /// The signals, unless the call is non-blocking.
    pub(crate) signals: Option<OwnedList>,
}

impl HostCall {
    /// Makes the call, and signals or fails its semaphores.
    fn run(mut self, trace: Option<&Trace>) {
        let _inside = teardown::enter();
        let empty = sys::iree_hal_semaphore_list_t {
            count: 0,
            semaphores: std::ptr::null_mut(),
            payload_values: std::ptr::null_mut(),
        };
        let mut context = sys::iree_hal_host_call_context_t {
            device: self.device.0.cast(),
            queue_affinity: self.affinity,
            signal_semaphore_list: self.signals.as_mut().map_or(empty, OwnedList::raw),
        };
        let ProgramCall { function, user_data } = self.call;
        // SAFETY: the one call that the invariant of `ProgramCall` allows; the context and the list live through
        // the call, and the device waits for its calls before it goes.
        let status = unsafe { function(user_data, self.arguments.as_ptr(), &raw mut context) };
        // SAFETY: the status is ours.
        let outcome = unsafe { check(status) };
        if let Some(trace) = trace {
            trace.done(outcome.as_ref().map(drop));
        }
        let Some(signals) = self.signals else { return };
        match outcome {
            Ok(()) => signals.signal_or_fail(Ok(())),
            // The program signals or fails its own copy of the list.
            Err(failure) if failure.code() == Code::Deferred => {}
            Err(failure) => signals.signal_or_fail(Err(&failure)),
        }
    }
}

/// The arguments of a read or write of a file.
pub(crate) struct Transfer {
    pub(crate) file: Retained<sys::iree_hal_file_t>,
    pub(crate) file_offset: u64,
    pub(crate) range: BufferRange,
    pub(crate) writes_file: bool,
}

impl Transfer {
    fn run(&self) -> Result {
        let (file, buffer) = (self.file.get(), self.range.buffer.get());
        let (offset, length) = (to_device_size(self.range.offset), to_device_size(self.range.length));
        // SAFETY: both are retained; the range was checked.
        unsafe {
            check(if self.writes_file {
                sys::iree_hal_file_write(file, self.file_offset, buffer, offset, length)
            } else {
                sys::iree_hal_file_read(file, self.file_offset, buffer, offset, length)
            })
        }
    }
}

/// The engine's backend: a device behind the operations of IREE's queues.
pub(crate) struct EngineBackend<D: Device> {
    pub(crate) device: UntilEnd<D>,
    pub(crate) spec: DeviceSpec,
    pub(crate) frontiers: Arc<Frontiers>,
    pub(crate) pending_allocas: Arc<PendingAllocas>,
    pub(crate) pool: Arc<HostPool>,
    pub(crate) completions: Arc<Completions<D>>,
    pub(crate) collectives: Arc<RunningCollectives>,
    pub(crate) running_calls: Arc<RunningCalls>,
}

impl<D: Device> EngineBackend<D> {
    /// Places an operation without device work in its queue.
    fn place_marker(&self, queue: QueueId, submission: &mut Submission<'_, Self>) -> Result {
        let point = Point { queue, epoch: submission.epoch };
        let Some(work) = submission.work else { return Ok(()) };
        if let Some(trace) = &work.trace {
            trace.issued(point);
        }
        match &mut work.operation {
            Operation::Dealloca(dealloca) => dealloca.begin(point, &self.frontiers, &self.pending_allocas),
            _ => Err(bug("an operation without device work came to the device")),
        }
    }

    /// Submits work to the device as a job; the outer error is one of making the job.
    #[inline(always)]
    fn hand_over(
        &self,
        queue: QueueId,
        submission: &mut Submission<'_, Self>,
    ) -> Result<std::result::Result<(), Rejected<D>>> {
        let job = if submission.waits.is_empty()
            && submission.event.is_none()
            && let Some(command) = take_command(submission.work)
        {
            // Fast path: moves the command as few times as possible.
            Job {
                queue,
                epoch: submission.epoch,
                waits: SmallVec::new(),
                event: None,
                commands: Commands::Own(SmallVec::from_buf([command])),
                recording: None,
                observer: None,
            }
        } else {
            self.job(queue, submission)?
        };
        Ok(self.device.submit(job))
    }

    /// The job of a submission.
    #[inline(never)]
    fn job(&self, queue: QueueId, submission: &mut Submission<'_, Self>) -> Result<Job<D>> {
        let (mut observer, mut recording) = (None, None);
        let commands = match (take_command(submission.work), &mut *submission.work) {
            (Some(command), _) => Commands::Own(SmallVec::from_buf([command])),
            (None, None) => Commands::Own(SmallVec::new()),
            (None, Some(work)) => {
                let point = Point { queue, epoch: submission.epoch };
                if let Some(trace) = &work.trace {
                    trace.issued(point);
                    observer = Some(trace.clone() as Arc<dyn Observer>);
                }
                if let Operation::Execute { commands, step, .. } = &work.operation {
                    recording = commands.identity(*step);
                }
                self.resolve(point, &mut work.operation)?
            }
        };
        let waits = submission.waits.iter().cloned().collect();
        let event = submission.event.cloned();
        Ok(Job { queue, epoch: submission.epoch, waits, event, commands, recording, observer })
    }

    /// The commands of an operation, which retain what they use.
    fn resolve(&self, point: Point, operation: &mut Operation<D>) -> Result<Commands<D>> {
        Ok(match operation {
            Operation::Record(record) => {
                Commands::Own(smallvec![record.resolve(&self.device, &[], &Substitutes::default())?])
            }
            Operation::Execute { commands, step, bindings, substitutes, .. } => {
                commands.resolve(*step, &self.device, bindings, substitutes)?
            }
            Operation::Dealloca(dealloca) => {
                dealloca.begin(point, &self.frontiers, &self.pending_allocas)?;
                Commands::Own(SmallVec::new())
            }
            // It waits natively, and has no commands.
            Operation::ExecutionEnd(_) => Commands::Own(SmallVec::new()),
            Operation::Command(_) => {
                return Err(bug("a single command was not submitted as it is"));
            }
            Operation::Alloca(_)
            | Operation::Await(_)
            | Operation::HostCall(_)
            | Operation::Transfer(_)
            | Operation::Collectives(_)
            | Operation::Return(_) => {
                return Err(bug("an operation of the host came to a queue"));
            }
        })
    }
}

/// Restores the work of a job for which the device had no room: its command, if the work was a command.
#[cold]
fn put_back<D: Device>(had_work: bool, work: &mut Option<QueueWork<D>>, commands: Commands<D>) -> Result {
    if !had_work || work.is_some() {
        return Ok(());
    }
    let missing = || misuse("had no room for a job and returned it without its command");
    let Commands::Own(own) = commands else { return Err(missing()) };
    let command = own.into_iter().next().ok_or_else(missing)?;
    *work = Some(QueueWork { operation: Operation::Command(command), trace: None });
    Ok(())
}

/// Takes the command of an operation that is only a command.
#[inline(always)]
fn take_command<D: Device>(work: &mut Option<QueueWork<D>>) -> Option<Command<D>> {
    if !matches!(work, Some(QueueWork { operation: Operation::Command(_), .. })) {
        return None;
    }
    match work.take()?.operation {
        Operation::Command(command) => Some(command),
        _ => None,
    }
}

/// Releases what an execution of a command buffer keeps, as far as those are not the last references.
fn release_execution<D: Device>(work: &mut Option<QueueWork<D>>) {
    let Some(QueueWork {
        operation: Operation::Execute { bindings, substitutes, part: None, .. },
        trace: None,
    }) = work
    else {
        return;
    };
    for binding in &mut *bindings {
        *binding = binding.take().and_then(BufferRange::release_unless_last);
    }
    if !substitutes.is_empty() || bindings.iter().any(Option::is_some) {
        return;
    }
    let Some(QueueWork {
        operation: Operation::Execute { commands, step, bindings, substitutes, part },
        trace,
    }) = work.take()
    else {
        return;
    };
    *work = commands.release_unless_last().map(|commands| QueueWork {
        operation: Operation::Execute { commands, step, bindings, substitutes, part },
        trace,
    });
}

impl<D: Device> Backend for EngineBackend<D> {
    type Timeline = IreeTimeline;
    type Work = QueueWork<D>;
    type Event = D::Event;

    fn device(&self) -> DeviceSpec {
        self.spec
    }

    fn start(&self, completer: Completer) {
        self.completions.start(completer.clone());
        self.device.start(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let mut accepted = 0;
        let mut last = None;
        let mut stop = None;
        for mut submission in batch.iter() {
            let had_work = submission.work.is_some();
            let placed = if submission.coalesced {
                self.place_marker(queue, &mut submission).map(Ok)
            } else {
                self.hand_over(queue, &mut submission)
            };
            match placed {
                Ok(Ok(())) => {
                    accepted += 1;
                    last = if submission.coalesced { last } else { Some(submission.epoch) };
                }
                Err(failure) | Ok(Err(Rejected::Failed(failure))) => {
                    stop = Some(Submitted::failed(accepted, failure));
                    break;
                }
                Ok(Err(Rejected::Full(job))) => {
                    stop = Some(match put_back(had_work, submission.work, job.commands) {
                        Ok(()) => Submitted::full(accepted),
                        Err(failure) => Submitted::failed(accepted, failure),
                    });
                    break;
                }
                Ok(Err(Rejected::Lost(failure))) => {
                    // The number of accepted jobs no longer matters: the engine ends them all, and the backend
                    // keeps what they use as long as the hardware may access it.
                    stop = Some(Submitted::lost(failure));
                    break;
                }
            }
        }
        self.device.kick(queue.index());
        if let Some(epoch) = last {
            self.completions.submitted(queue.index(), epoch);
        }
        stop.unwrap_or_else(Submitted::all)
    }

    fn create_event(&self) -> Result<D::Event> {
        self.device.create_event()
    }

    fn try_early(&self, work: &mut QueueWork<D>) -> Result<bool> {
        let Operation::Alloca(alloca) = &mut work.operation else { return Ok(false) };
        let done = self.pending_allocas.allocate_early(alloca);
        if let Some(trace) = work.trace.as_ref().filter(|_| done) {
            trace.ready();
        }
        Ok(done)
    }

    fn run(&self, task: HostTask, work: QueueWork<D>) {
        let trace = work.trace;
        if let Some(trace) = &trace {
            trace.ready();
        }
        match work.operation {
            Operation::Alloca(alloca) => self.pending_allocas.allocate(alloca, task),
            Operation::Await(asked) => {
                let (alloca, reservation) = *asked;
                self.pending_allocas.resume(alloca, reservation, task);
            }
            Operation::HostCall(call) => {
                let blocks = call.signals.is_some();
                let running = self.running_calls.clone();
                self.pool.run(move || {
                    // A non-blocking call runs after the signals.
                    if blocks {
                        let signals = call.signals.as_ref().map(OwnedList::steps).unwrap_or_default();
                        running.during(&task, signals, || call.run(trace.as_deref()));
                        task.finish(Ok(()));
                    } else {
                        task.finish(Ok(()));
                        call.run(trace.as_deref());
                    }
                });
            }
            Operation::Transfer(transfer) => self.pool.run(move || {
                let outcome = transfer.run();
                if let Some(trace) = &trace {
                    trace.done(outcome.as_ref().map(drop));
                }
                task.finish(outcome);
            }),
            Operation::Collectives(collectives) => {
                let running = self.collectives.clone();
                collectives.start(&self.pool, &running, move |outcome| {
                    if let Some(trace) = &trace {
                        trace.done(outcome.as_ref().map(drop));
                    }
                    task.finish(outcome);
                });
            }
            Operation::Return(bounce) => self.pool.run(move || {
                let outcome = bounce.write_back();
                if let Err(failure) = &outcome {
                    bounce.fail(failure);
                }
                task.finish(outcome);
            }),
            Operation::Record(_)
            | Operation::Command(_)
            | Operation::Execute { .. }
            | Operation::ExecutionEnd(_)
            | Operation::Dealloca(_) => {
                task.finish(Err(bug("an operation of a queue came to the host")));
            }
        }
    }

    fn clean_up(&self, task: HostTask, work: QueueWork<D>, why: &Failure) {
        match &work.operation {
            Operation::ExecutionEnd(ending) => self.collectives.end_execution(ending, why, task),
            _ => task.finish(Err(why.clone())),
        }
    }

    /// True if releasing the work may call the program back: buffers have release callbacks, and a call that was
    /// never made has signals. Memory is returned at once: a program that sees its return may release its pool.
    /// Work with certain memory keeps no buffer with a release callback. What an execution keeps, the program mostly
    /// still has; then it is released here.
    fn calls_back(&self, work: &mut Option<QueueWork<D>>) -> bool {
        release_execution(work);
        let Some(work) = work else { return false };
        match &work.operation {
            Operation::Dealloca(_)
            | Operation::Alloca(_)
            | Operation::Await(_)
            | Operation::Command(_)
            | Operation::ExecutionEnd(_) => false,
            Operation::Record(_)
            | Operation::Execute { .. }
            | Operation::HostCall(_)
            | Operation::Transfer(_)
            | Operation::Collectives(_)
            | Operation::Return(_) => true,
        }
    }

    fn kind(&self, work: &QueueWork<D>) -> u8 {
        work.operation.kind()
    }

    fn describe(&self, work: Option<&QueueWork<D>>, kind: u8) -> Description {
        match work {
            Some(work) => work.operation.describe(),
            None => Description { text: operation_text::away(kind).to_owned(), signals: Vec::new() },
        }
    }

    fn reclaim(&self, ended: Ended<QueueWork<D>>) {
        let _inside = teardown::enter();
        if let Some(point) = ended.point {
            self.frontiers.advance(point);
            self.completions.ended(point);
        }
        if let Some(work) = ended.work {
            // For a device that does not report times. The record comes after the signals.
            if let Some(trace) = &work.trace {
                trace.done(ended.outcome.as_ref().map(drop));
            }
            match work.operation {
                Operation::Dealloca(dealloca) => {
                    dealloca.end(ended.point, &self.frontiers, &self.pending_allocas)
                }
                Operation::Alloca(alloca) => self.pending_allocas.end(&alloca),
                // The call was never made: its waits failed, or it was cancelled.
                Operation::HostCall(mut call) => {
                    if let (Some(signals), Err(failure)) = (call.signals.take(), &ended.outcome) {
                        signals.signal_or_fail(Err(failure));
                    }
                }
                // The return was never begun, as the bounce buffer was never used.
                Operation::Return(bounce) => {
                    if let Err(failure) = &ended.outcome {
                        bounce.fail(failure);
                    }
                }
                Operation::Collectives(collectives) => {
                    if let Err(failure) = &ended.outcome {
                        collectives.give_up(failure);
                    }
                }
                _ => {}
            }
        }
    }

    fn poll(&self) {
        self.device.poll();
    }

    fn abort(&self, why: &Failure) {
        self.device.abort(why);
    }
}
