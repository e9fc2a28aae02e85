//! The queue of a device: jobs in order, by one thread, which also learns of what has ended.
//!
//! Transfers are copies by this thread. A dispatch is a [run](crate::launch) of a network: the thread queues its objects and
//! waits for them, and then goes on. Stopping, starting and everything else that talks to the device's management processor
//! for a dispatch happens here too, so that nothing of it can meet a run.
//!
//! What goes wrong with one dispatch fails its job, and the queue goes on, also where a workload was lost: its network is
//! started again when it is wanted again. Only a device that is gone is lost.

use crate::device::QaicDevice;
use crate::executable::Executable;
use crate::kmd::Error;
use crate::launch::{Binding, Run, Trouble};
use crate::networks::{Networks, Settings};
use hal_backend::{
    Code, Command, Completer, Dispatch, Failure, HostRange, Job, Observer, Place, Rejected, Span, Workgroups,
};
use hal_emulation::clock;
use hal_qaic_abi::container::emulated::Call;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// How many jobs the queue takes.
const DEPTH: usize = 1024;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job<QaicDevice>>,
    /// Whether somebody was told that there is no room.
    full: bool,
    aborted: Option<Failure>,
    lost: Option<Failure>,
    /// Executables that are gone, and whose networks can go.
    retired: Vec<u64>,
    stopping: bool,
}

/// The queue, and what its thread shares with others.
pub(crate) struct Queue {
    name: String,
    state: Mutex<State>,
    work: Condvar,
    completer: OnceLock<Completer>,
    /// Whether whatever runs is to be given up.
    give_up: AtomicBool,
}

/// What the thread has to do next.
enum Next {
    Job(Box<Job<QaicDevice>>, Option<Failure>, bool),
    Retire(Vec<u64>),
    Stop,
}

impl Queue {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            state: Mutex::default(),
            work: Condvar::new(),
            completer: OnceLock::new(),
            give_up: AtomicBool::new(false),
        })
    }

    pub(crate) fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    /// Takes a job, unless there is no room: then it comes back when something has ended.
    pub(crate) fn submit(&self, job: Job<QaicDevice>) -> Result<(), Rejected<QaicDevice>> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.lost {
            return Err(Rejected::Lost(failure.clone()));
        }
        if state.jobs.len() >= DEPTH {
            state.full = true;
            return Err(Rejected::Full(Box::new(job)));
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// What has not begun fails, and what runs is given up.
    pub(crate) fn abort(&self, why: &Failure) {
        self.state.lock().aborted.get_or_insert_with(|| why.clone());
        self.give_up.store(true, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// The thread ends when there are no more jobs.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_one();
    }

    /// Networks of this executable are not wanted any more.
    pub(crate) fn retire(&self, executable: u64) {
        self.state.lock().retired.push(executable);
        self.work.notify_one();
    }

    fn next(&self) -> Next {
        let mut state = self.state.lock();
        loop {
            if !state.retired.is_empty() {
                return Next::Retire(std::mem::take(&mut state.retired));
            }
            if let Some(job) = state.jobs.pop_front() {
                return Next::Job(Box::new(job), state.aborted.clone(), std::mem::take(&mut state.full));
            }
            if state.stopping {
                return Next::Stop;
            }
            self.work.wait(&mut state);
        }
    }

    /// What the thread does, until the device is dropped or lost.
    pub(crate) fn serve(&self, mut networks: Networks, settings: Settings) {
        loop {
            match self.next() {
                Next::Retire(executables) => {
                    executables.into_iter().for_each(|number| networks.retire(number));
                }
                Next::Job(job, aborted, had_no_room) => {
                    if !self.perform(&mut networks, settings, *job, aborted, had_no_room) {
                        networks.clear();
                    }
                }
                Next::Stop => return,
            }
        }
    }

    /// Does a job and reports it; false if that was the end of the device.
    fn perform(
        &self,
        networks: &mut Networks,
        settings: Settings,
        job: Job<QaicDevice>,
        aborted: Option<Failure>,
        had_no_room: bool,
    ) -> bool {
        let (queue, epoch) = (job.queue, job.epoch);
        let begin = clock();
        let outcome = match aborted {
            Some(failure) => Err(Trouble::Program(failure)),
            None => self.run(networks, settings, &job.commands, job.observer.as_deref()),
        };
        let gone = matches!(outcome, Err(Trouble::Device(Error::Gone)));
        let outcome = outcome.map_err(|trouble| self.failure(trouble));
        if let Some(observer) = &job.observer {
            observer.job(begin, clock(), outcome.as_ref().map(drop));
        }
        // What the job held is free before its completion is known.
        drop(job);
        if gone {
            let failure = outcome.err().unwrap_or_else(|| Error::Gone.failure(&self.name));
            let jobs = {
                let mut state = self.state.lock();
                state.lost = Some(failure.clone());
                std::mem::take(&mut state.jobs)
            };
            drop(jobs);
            if let Some(completer) = self.completer.get() {
                // Whoever is gone needs no news.
                let _ = completer.lose(queue.device(), failure);
            }
            return false;
        }
        let Some(completer) = self.completer.get() else { return true };
        // In queue order, once for each job. A failed job is complete too: the queue goes on.
        let _ = match outcome {
            Ok(()) => completer.complete(queue, epoch),
            Err(failure) => completer.fail(queue, epoch, failure),
        };
        if had_no_room {
            let _ = completer.unblock(queue.device());
        }
        true
    }

    fn failure(&self, trouble: Trouble) -> Failure {
        match trouble {
            // A run that was given up has no time to blame.
            Trouble::Device(Error::TimedOut) if self.give_up.load(Ordering::Relaxed) => {
                let aborted = self.state.lock().aborted.clone();
                aborted.unwrap_or_else(|| Error::TimedOut.failure(&self.name))
            }
            Trouble::Device(Error::TimedOut) => {
                let message = format!(
                    "{}: a dispatch has not ended in time, and its network was stopped; give execute_timeout= more if it \
                     needs longer",
                    self.name
                );
                Failure::new(Code::DeadlineExceeded, message)
            }
            Trouble::Device(error) => error.failure(&self.name),
            Trouble::Program(failure) => failure,
        }
    }

    fn run(
        &self,
        networks: &mut Networks,
        settings: Settings,
        commands: &[Command<QaicDevice>],
        observer: Option<&dyn Observer>,
    ) -> Result<(), Trouble> {
        for (number, command) in commands.iter().enumerate() {
            let begin = clock();
            match command {
                Command::Fill { target, pattern } => done(view(target)?.fill(pattern.bytes()))?,
                Command::Copy { source, target } => done(view(target)?.copy_from(&view(source)?))?,
                Command::Update { source, target } => done(view(target)?.copy_from(source))?,
                Command::Dispatch(dispatch) => self.dispatch(networks, settings, dispatch)?,
                // One thread does one command after the other, so a barrier is nothing.
                Command::Barrier => {}
            }
            if let Some(observer) = observer {
                observer.command(number, begin, clock());
            }
        }
        Ok(())
    }

    fn dispatch(
        &self,
        networks: &mut Networks,
        settings: Settings,
        dispatch: &Dispatch<QaicDevice>,
    ) -> Result<(), Trouble> {
        let workgroups = match &dispatch.workgroups {
            Workgroups::Count(count) => *count,
            Workgroups::Indirect(place) => counts(&view(place)?)?,
        };
        if workgroups.contains(&0) {
            return Ok(());
        }
        let executable: &Executable = &dispatch.executable;
        if executable.is_network() && workgroups != [1; 3] {
            let message =
                format!("a network runs as a whole, so its workgroups are 1 1 1, not {workgroups:?}");
            return Err(Trouble::Program(Failure::new(Code::InvalidArgument, message)));
        }
        let bindings = dispatch.bindings.iter().map(binding).collect::<Result<Vec<_>, _>>()?;
        let lengths: Vec<u64> = bindings.iter().map(|binding| binding.view.length()).collect();
        let key = executable.key(dispatch.function, &lengths);
        let call = Call {
            workgroups,
            workgroup_size: dispatch.workgroup_size,
            local_memory: dispatch.local_memory,
            constants: dispatch.constants.to_vec(),
            lengths,
        };
        let run = Run { bindings: &bindings, call, timeout: settings.execute_timeout, stop: &self.give_up };
        networks.run(&key, || executable.blueprint(&key), &run)
    }
}

fn binding(span: &Span<QaicDevice>) -> Result<Binding, Trouble> {
    let memory = match &span.place {
        Place::Device(memory, offset) => Some((memory.clone(), *offset)),
        Place::Host(_) => None,
    };
    Ok(Binding { view: view(span)?, memory })
}

/// The bytes of a span.
fn view(span: &Span<QaicDevice>) -> Result<HostRange, Trouble> {
    let found = match &span.place {
        Place::Device(memory, offset) => memory.view().slice(*offset, span.length),
        Place::Host(range) => range.slice(0, span.length),
    };
    found.ok_or_else(misfit)
}

/// The number of workgroups, which is read when the dispatch begins.
fn counts(place: &HostRange) -> Result<[u32; 3], Trouble> {
    let mut words = [[0; 4]; 3];
    done(place.read(0, words.as_flattened_mut()))?;
    Ok(words.map(u32::from_ne_bytes))
}

fn done(fitted: bool) -> Result<(), Trouble> {
    fitted.then_some(()).ok_or_else(misfit)
}

fn misfit() -> Trouble {
    let message = "a command reaches past the memory that it works on";
    Trouble::Program(Failure::new(Code::OutOfRange, message))
}

#[cfg(test)]
mod tests;
