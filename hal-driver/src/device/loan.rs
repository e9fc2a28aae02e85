//! Buffers that only another device can use, for an operation of this one.
//!
//! Devices of different drivers meet in host memory. A card's own memory is not there, so an operation that names a buffer
//! of another card's would have no bytes to work on. It is lent them: the owner copies its buffer into host memory that
//! both can use, the operation works on that, and if it writes, the owner copies it back. The owner's part is its own
//! queue operations, through IREE's interface, whoever's driver it is; semaphores of ours order the parts.
//!
//! What has the program's signals is submitted first, so that nothing has begun if they are refused, and what goes wrong
//! later reaches them along the chain.
//!
//! A buffer that is named in a command buffer itself, and not by its binding table, is not lent: which memory it means is
//! settled for every execution.

use super::State;
use super::queue::{Edges, Side};
use crate::allocator;
use crate::buffer::Slice;
use crate::command_buffer::Recorded;
use crate::constants::ACCESS_WRITE;
use crate::object::{Retained, narrow};
use crate::record::{Record, Reference, Use};
use crate::semaphore::{IreeTimeline, List, OwnedList};
use crate::status::{Missing, Result, check, invalid, unimplemented};
use crate::work::Operation;
use hal_backend::Device;
use hal_semaphore::Affinity;
use hal_sys as sys;

/// A buffer of another device, and what stands for it.
pub(super) struct Loan {
    owner: Retained<sys::iree_hal_device_t>,
    original: Slice,
    staging: Slice,
    /// Whether the operation may want to see what is there.
    reads: bool,
    writes: bool,
    fetched: IreeTimeline,
    returned: IreeTimeline,
}

impl Loan {
    /// Has the owner copy one way or the other.
    fn copy(&self, source: &Slice, target: &Slice, waits: &List<'_>, signal: &IreeTimeline) -> Result {
        let mut waits = waits.to_owned();
        let mut signals = OwnedList::default();
        signals.push(signal.clone(), 1);
        // SAFETY: the owner and the buffers are retained; the lists live through the call.
        unsafe {
            check(sys::iree_hal_device_queue_copy(
                self.owner.get(),
                u64::MAX,
                waits.raw(),
                signals.raw(),
                source.buffer.get(),
                narrow(source.offset),
                target.buffer.get(),
                narrow(target.offset),
                narrow(source.length),
                0,
            ))
        }
    }
}

/// Whether bytes that may have been written go back. What a dispatch writes nobody knows, but it does not write what the
/// program has forbidden.
fn is_returned(slice: &Slice) -> Result<bool> {
    let (access, _) = slice.allowed();
    let allowed = access & ACCESS_WRITE != 0;
    if allowed {
        Use::Target.check(slice)?;
    }
    Ok(allowed)
}

impl<D: Device> State<D> {
    /// What stands for a buffer, if this device cannot use it.
    fn lend(&self, slice: &Slice, reads: bool, writes: bool) -> Result<Option<Loan>> {
        if slice.out_of_reach(self.memory.parent()).is_none() || slice.length == 0 {
            return Ok(None);
        }
        let owner = slice.owner()?;
        if reads {
            Use::Source.check(slice)?;
        }
        let writes = writes && is_returned(slice)?;
        let mut buffer = std::ptr::null_mut();
        // SAFETY: the owner is retained; the out-parameter is ours.
        let buffer = unsafe {
            let device_allocator = sys::iree_hal_device_allocator(owner.get());
            check(sys::iree_hal_allocator_allocate_buffer(
                device_allocator,
                allocator::staging(),
                narrow(slice.length),
                &raw mut buffer,
            ))?;
            Retained::adopt(buffer)
        };
        let buffer = buffer.ok_or_else(|| invalid("the allocator made nothing"))?;
        let staging = Slice::new(buffer, 0, narrow(slice.length))?;
        let (fetched, returned) = (self.timeline()?, self.timeline()?);
        Ok(Some(Loan { owner, original: slice.clone(), staging, reads, writes, fetched, returned }))
    }

    /// Whether this device can use all that an operation names.
    pub(super) fn is_in_reach(&self, record: &Record) -> bool {
        let mut near = true;
        record.visit(|reference, _| {
            if let Reference::Direct(slice) = reference {
                near &= slice.out_of_reach(self.memory.parent()).is_none();
            }
        });
        near
    }

    /// Does a single operation with what it is lent.
    pub(super) fn record_on_loan(&self, affinity: Affinity, edges: &Edges<'_>, mut record: Record) -> Result {
        let mut loans = Vec::new();
        // A transfer names bytes that may overlap, and reads them before it writes; bindings that overlap are one memory.
        let shares = matches!(record, Record::Dispatch(_));
        for (reference, way) in record.references_mut() {
            let Reference::Direct(slice) = reference else { continue };
            self.borrow(&mut loans, slice, shares, way.reads(), way.writes())?;
        }
        self.with_loans(affinity, edges, &loans, |edges| {
            self.submit(affinity, edges, Side::Queue, Operation::Record(record))
        })
    }

    /// Lends an execution what its binding table has and it cannot use.
    pub(super) fn lend_to_table(
        &self,
        commands: &Recorded,
        table: &mut [Option<Slice>],
    ) -> Result<Vec<Loan>> {
        let mut loans = Vec::new();
        for (binding, uses) in table.iter_mut().zip(commands.slots()) {
            let Some(slice) = binding else { continue };
            // Commands write what they write of it, and all of it goes back.
            if uses.iter().next().is_some() {
                self.borrow(&mut loans, slice, true, true, uses.iter().any(Use::writes))?;
            }
        }
        Ok(loans)
    }

    /// Puts what stands for a buffer in its place, if this device cannot use it. Where bytes are shared, a buffer that comes
    /// twice is lent once, or the second return would undo the first.
    fn borrow(
        &self,
        loans: &mut Vec<Loan>,
        slice: &mut Slice,
        shares: bool,
        reads: bool,
        writes: bool,
    ) -> Result {
        if slice.out_of_reach(self.memory.parent()).is_none() {
            return Ok(());
        }
        let shared = loans.iter_mut().find(|loan| shares && loan.original.overlaps(slice));
        if let Some(loan) = shared {
            if !loan.original.is_same(slice) {
                return Err(unimplemented(Missing::PartialLoan));
            }
            loan.writes |= writes && is_returned(slice)?;
            *slice = loan.staging.clone();
        } else if let Some(loan) = self.lend(slice, reads, writes)? {
            *slice = loan.staging.clone();
            loans.push(loan);
        }
        Ok(())
    }

    /// Does an operation between the fetching and the returning of what it was lent.
    pub(super) fn with_loans(
        &self,
        affinity: Affinity,
        edges: &Edges<'_>,
        loans: &[Loan],
        operation: impl FnOnce(&Edges<'_>) -> Result,
    ) -> Result {
        if loans.is_empty() {
            return operation(edges);
        }
        let done = self.timeline()?;
        let mut over = OwnedList::default();
        over.push(done.clone(), 1);
        for loan in loans.iter().filter(|loan| loan.writes) {
            over.push(loan.returned.clone(), 1);
        }
        self.barrier(affinity, &Edges { waits: over.borrow(), signals: edges.signals.borrow() })?;
        // From here on it was accepted: what goes wrong is told through the signals, and not by a thread that submits.
        if let Err(failure) = self.parts(edges, loans, &done, operation) {
            self.pool.run(move || over.settle(Err(&failure)));
        }
        Ok(())
    }

    fn parts(
        &self,
        edges: &Edges<'_>,
        loans: &[Loan],
        done: &IreeTimeline,
        operation: impl FnOnce(&Edges<'_>) -> Result,
    ) -> Result {
        let mut waits = edges.waits.to_owned();
        for loan in loans.iter().filter(|loan| loan.reads) {
            loan.copy(&loan.original, &loan.staging, &edges.waits, &loan.fetched)?;
            waits.push(loan.fetched.clone(), 1);
        }
        let mut signals = OwnedList::default();
        signals.push(done.clone(), 1);
        operation(&Edges { waits: waits.borrow(), signals: signals.borrow() })?;
        for loan in loans.iter().filter(|loan| loan.writes) {
            loan.copy(&loan.staging, &loan.original, &signals.borrow(), &loan.returned)?;
        }
        Ok(())
    }
}
