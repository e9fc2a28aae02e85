// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What each kind of operation is in messages: phases, each of them some messages to and from other ranks.
//!
//! Every message between two ranks goes straight from one to the other, and reductions are done by whoever needs the result,
//! in the order of the ranks. So the bits are the same as within one process. An all-reduce of more than [`LARGE`] bytes is
//! done in two phases: each rank reduces its share of the elements, and sends that to all others.

use hal_backend::HostRange;
use hal_collectives::{Buffers, Element, Kind, Operation, Reduction, Result, reduce};

/// From how many bytes on an all-reduce has two phases: less goes to everybody at once.
const LARGE: u64 = 16 << 10;

/// How many bytes a message has at most: MPI counts them in 32 bits.
const MESSAGE: u64 = 1 << 30;

/// Messages that may go in any order, and what comes when all of them have gone.
pub(crate) struct Phase {
    pub(crate) outgoing: Vec<(u32, HostRange)>,
    pub(crate) incoming: Vec<(u32, HostRange)>,
    pub(crate) after: After,
}

/// What comes after a phase: local work, and perhaps another phase.
pub(crate) type After = Box<dyn FnOnce() -> Option<Phase> + Send>;

/// One rank's part in an operation.
struct Plan {
    operation: Operation,
    rank: u32,
    ranks: u32,
    buffers: Buffers,
}

/// The first phase of an operation, whose buffers are as long as its places say.
pub(crate) fn first_phase(
    operation: Operation,
    (rank, ranks): (u32, u32),
    buffers: Buffers,
) -> Result<Phase> {
    Plan { operation, rank, ranks, buffers }.phase()
}

/// A range in pieces that are messages.
fn messages(peer: u32, range: Option<HostRange>) -> impl Iterator<Item = (u32, HostRange)> {
    range.into_iter().flat_map(move |range| {
        let length = range.length();
        (0..length.div_ceil(MESSAGE)).filter_map(move |piece| {
            let offset = piece * MESSAGE;
            Some((peer, range.slice(offset, MESSAGE.min(length - offset))?))
        })
    })
}

fn copy(source: Option<HostRange>, target: Option<HostRange>) {
    if let (Some(source), Some(target)) = (source, target) {
        let fits = target.copy_from(&source);
        debug_assert!(fits, "both are as long as the operation says");
    }
}

fn part(range: &Option<HostRange>, offset: u64, length: u64) -> Option<HostRange> {
    range.as_ref().and_then(|range| range.slice(offset, length))
}

/// Reduces what each rank sent, in the order of the ranks, into the beginning of the target.
fn reduce_into(how: (Element, Reduction), sources: &[HostRange], target: &HostRange) {
    let length = sources.first().map_or(0, HostRange::length);
    reduce(how.0, how.1, sources, (0, length), &mut |at, bytes| {
        let fits = target.write(at, bytes);
        debug_assert!(fits, "a target is as long as what is reduced");
    });
}

impl Plan {
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.rank;
        (0..self.ranks).filter(move |&rank| rank != own)
    }

    fn bytes(&self) -> u64 {
        self.operation.count * self.operation.element.size()
    }

    fn phase(self) -> Result<Phase> {
        let (bytes, own) = (self.bytes(), u64::from(self.rank));
        let Buffers { send, recv } = self.buffers.clone();
        let mut phase = Phase { outgoing: Vec::new(), incoming: Vec::new(), after: Box::new(|| None) };
        match self.operation.kind {
            Kind::AllGather => {
                for peer in self.others() {
                    phase.outgoing.extend(messages(peer, send.clone()));
                    phase.incoming.extend(messages(peer, part(&recv, u64::from(peer) * bytes, bytes)));
                }
                copy(send, part(&recv, own * bytes, bytes));
            }
            Kind::AllToAll => {
                let share = bytes / u64::from(self.ranks.max(1));
                for peer in self.others() {
                    let at = u64::from(peer) * share;
                    phase.outgoing.extend(messages(peer, part(&send, at, share)));
                    phase.incoming.extend(messages(peer, part(&recv, at, share)));
                }
                copy(part(&send, own * share, share), part(&recv, own * share, share));
            }
            Kind::Broadcast { root } if root == self.rank => {
                phase.outgoing = self.others().flat_map(|peer| messages(peer, send.clone())).collect();
            }
            Kind::Broadcast { root } => phase.incoming = messages(root, recv).collect(),
            Kind::AllReduce(reduction) if bytes > LARGE => return self.all_reduce(reduction),
            Kind::AllReduce(reduction) => {
                phase.outgoing = self.others().flat_map(|peer| messages(peer, send.clone())).collect();
                self.collect(&mut phase, reduction, send, recv)?;
            }
            Kind::Reduce { reduction, root } if root == self.rank => {
                self.collect(&mut phase, reduction, send, recv)?;
            }
            Kind::Reduce { root, .. } => phase.outgoing = messages(root, send).collect(),
            Kind::ReduceScatter(reduction) => {
                for peer in self.others() {
                    phase.outgoing.extend(messages(peer, part(&send, u64::from(peer) * bytes, bytes)));
                }
                self.collect(&mut phase, reduction, part(&send, own * bytes, bytes), recv)?;
            }
            Kind::Send { to } => self.pair(&mut phase, Some(to), None),
            Kind::Recv { from } => self.pair(&mut phase, None, Some(from)),
            Kind::SendRecv { to, from } => self.pair(&mut phase, to, from),
        }
        Ok(phase)
    }

    /// A transfer in each direction. What a rank sends itself has gone through the group's own list.
    fn pair(&self, phase: &mut Phase, to: Option<u32>, from: Option<u32>) {
        let Buffers { send, recv } = self.buffers.clone();
        if let Some(to) = to {
            phase.outgoing = messages(to, send).collect();
        }
        match (from, recv) {
            (Some(from), recv) => phase.incoming = messages(from, recv).collect(),
            (None, Some(recv)) => {
                let filled = recv.fill(&[0]);
                debug_assert!(filled, "one byte divides everything");
            }
            (None, None) => {}
        }
    }

    /// Receives what every other rank sends, and reduces it with what this one has, in the order of the ranks.
    fn collect(
        &self,
        phase: &mut Phase,
        reduction: Reduction,
        own: Option<HostRange>,
        target: Option<HostRange>,
    ) -> Result {
        let (Some(own), Some(target)) = (own, target) else { return Ok(()) };
        let mut sources = Vec::new();
        for rank in 0..self.ranks {
            if rank == self.rank {
                sources.push(own.clone());
                continue;
            }
            let scratch = HostRange::allocate(own.length(), 64)?;
            phase.incoming.extend(messages(rank, Some(scratch.clone())));
            sources.push(scratch);
        }
        let how = (self.operation.element, reduction);
        phase.after = Box::new(move || {
            reduce_into(how, &sources, &target);
            None
        });
        Ok(())
    }

    /// Where a rank's share of the elements is, and how many bytes it has.
    fn share(&self, rank: u32) -> (u64, u64) {
        let (count, ranks) = (u128::from(self.operation.count), u128::from(self.ranks));
        let begin = |rank: u32| u64::try_from(count * u128::from(rank) / ranks).unwrap_or(u64::MAX);
        let size = self.operation.element.size();
        (begin(rank) * size, (begin(rank + 1) - begin(rank)) * size)
    }

    /// Each rank reduces its share, and sends it to all.
    fn all_reduce(self, reduction: Reduction) -> Result<Phase> {
        let Buffers { send, recv } = self.buffers.clone();
        let (offset, length) = self.share(self.rank);
        let mut phase = Phase { outgoing: Vec::new(), incoming: Vec::new(), after: Box::new(|| None) };
        for peer in self.others() {
            let (offset, length) = self.share(peer);
            phase.outgoing.extend(messages(peer, part(&send, offset, length)));
        }
        let target = part(&recv, offset, length);
        self.collect(&mut phase, reduction, part(&send, offset, length), target.clone())?;
        let reduce = phase.after;
        phase.after = Box::new(move || {
            reduce();
            let mut gather = Phase { outgoing: Vec::new(), incoming: Vec::new(), after: Box::new(|| None) };
            for peer in self.others() {
                let (offset, length) = self.share(peer);
                gather.outgoing.extend(messages(peer, target.clone()));
                gather.incoming.extend(messages(peer, part(&recv, offset, length)));
            }
            Some(gather)
        });
        Ok(phase)
    }
}
