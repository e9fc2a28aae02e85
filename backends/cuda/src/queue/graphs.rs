// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Recordings that are executed again become graphs: one call in place of a launch for each command.
//!
//! A graph is of one recording with certain memory, and of one queue: CUDA orders the launches of a graph, so a graph
//! of two queues would order these. It is made when a recording is executed with the same memory for the
//! [`EXECUTIONS`]th time, since to make one takes longer than several executions, and only of [`FEWEST`] commands or
//! more, since to launch one takes longer than to launch a few kernels. It goes when the program has released the
//! recording, when others need its place, and when memory is trimmed; never while a launch of it is pending.
//!
//! What CUDA refuses to make a graph of is executed command by command.

use super::encode::is_host;
use crate::device::NvidiaDevice;
use crate::library::graph::Graph;
use hal_backend::{Command, HostRange, Place, Recording, Span, Workgroups};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// The fewest commands of a graph. Published times of a graph are 15 µs and 0.58 µs for each node, and of a launch
/// 2.65 µs; `cargo xtask hw nvidia` measures both on a card.
const FEWEST: usize = 8;

/// The execution with the same memory that makes the graph.
const EXECUTIONS: u32 = 3;

/// The most executions that a queue remembers, with a graph or before it has one.
const MOST: usize = 64;

/// What a recording is executed with: the address of each place, and lengths where they may differ.
pub(super) type Key = SmallVec<[u64; 32]>;

/// The key of commands that can become a graph. `None` if there are too few, if one needs the host in between, or
/// memory of its own.
pub(super) fn key(commands: &[Command<NvidiaDevice>]) -> Option<Key> {
    let is_barrier = |command: &&Command<NvidiaDevice>| matches!(command, Command::Barrier);
    if commands.len() < FEWEST || commands.iter().filter(|command| !is_barrier(command)).count() < FEWEST {
        return None;
    }
    let mut key = Key::new();
    for command in commands {
        match command {
            // It goes through other memory.
            Command::Update { target, .. } if is_host(target) => return None,
            Command::Fill { target, .. } | Command::Update { target, .. } => {
                key.extend([address(target)?, target.length]);
            }
            Command::Copy { source, target } => {
                let (from, to) = (address(source)?, address(target)?);
                let overlaps = from < to + target.length && to < from + source.length;
                if overlaps || is_host(source) && is_host(target) {
                    return None;
                }
                key.extend([from, to, target.length]);
            }
            Command::Dispatch(dispatch) => {
                if matches!(dispatch.workgroups, Workgroups::Indirect(_)) {
                    return None;
                }
                for binding in &dispatch.bindings {
                    key.push(address(binding)?);
                }
            }
            Command::Barrier => {}
        }
    }
    Some(key)
}

fn address(span: &Span<NvidiaDevice>) -> Option<u64> {
    match &span.place {
        Place::Device(memory, offset) => Some(memory.whole().address() + offset),
        Place::Host(_) => None,
    }
}

/// What there is to launch in place of the commands.
pub(super) enum Prepared {
    /// Nothing: the commands were not executed often enough.
    Not,
    /// A graph, and pinned memory that it copies from.
    Graph(Graph, #[expect(dead_code, reason = "kept as long as the graph")] Vec<HostRange>),
    /// CUDA makes none.
    Refused,
}

/// Commands that were executed with certain memory.
struct Executed {
    recording: Weak<Recording>,
    key: Key,
    executions: u32,
    prepared: Prepared,
    /// The last job that launched the graph.
    epoch: u64,
    /// When it was executed last, among the executions of the queue.
    at: u64,
}

impl Executed {
    fn is_graph(&self) -> bool {
        matches!(self.prepared, Prepared::Graph(..))
    }

    fn is_pending(&self, completed: u64) -> bool {
        self.is_graph() && self.epoch > completed
    }
}

/// The graphs of a queue, and what may become one.
#[derive(Default)]
pub(super) struct Graphs {
    executed: Vec<Executed>,
    executions: u64,
}

impl Graphs {
    /// Counts an execution, as the job with this epoch. Returns what there is to launch, and whether a graph is to be
    /// made; `None` if there is no place for one.
    pub(super) fn execute(
        &mut self,
        recording: &Arc<Recording>,
        key: Key,
        epoch: u64,
        completed: u64,
    ) -> Option<(&mut Prepared, bool)> {
        let address = Arc::as_ptr(recording);
        let is_it = |it: &Executed| std::ptr::eq(it.recording.as_ptr(), address) && it.key == key;
        let at = match self.executed.iter().position(is_it) {
            Some(at) => at,
            None => self.add(recording, key, completed)?,
        };
        self.executions += 1;
        let executed = self.executed.get_mut(at)?;
        executed.executions = executed.executions.saturating_add(1);
        (executed.at, executed.epoch) = (self.executions, epoch);
        let is_due = executed.executions >= EXECUTIONS && matches!(executed.prepared, Prepared::Not);
        Some((&mut executed.prepared, is_due))
    }

    fn add(&mut self, recording: &Arc<Recording>, key: Key, completed: u64) -> Option<usize> {
        self.executed.retain(|it| it.is_pending(completed) || it.recording.strong_count() > 0);
        if self.executed.len() >= MOST {
            let free = self.executed.iter().enumerate().filter(|(_, it)| !it.is_pending(completed));
            // Graphs stay longer than what may become one.
            let (oldest, _) = free.min_by_key(|(_, it)| (it.is_graph(), it.at))?;
            self.executed.swap_remove(oldest);
        }
        self.executed.push(Executed {
            recording: Arc::downgrade(recording),
            key,
            executions: 0,
            prepared: Prepared::Not,
            epoch: 0,
            at: 0,
        });
        Some(self.executed.len() - 1)
    }

    /// Drops the graphs that are not pending.
    pub(super) fn trim(&mut self, completed: u64) {
        self.executed.retain(|it| it.is_pending(completed));
    }
}
