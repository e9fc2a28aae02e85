// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Owners of memory: the card's, the host's that CUDA allocated, and the host's that CUDA registered.

use super::stream::Stream;
use super::table::{Address, Handle, PoolProperties};
use super::{Context, CudaError, Current, call};
use hal_backend::HostRange;
use parking_lot::Mutex;
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of memory that a device accesses.
///
/// # Invariants
///
/// They are inside memory of one of the owners here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    address: Address,
    length: usize,
}

impl Part {
    /// A part of it; `None` if it is not inside.
    pub(crate) fn part(self, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        if end > self.length as u64 {
            return None;
        }
        Some(Self { address: self.address + offset, length: usize::try_from(length).ok()? })
    }

    /// All of a module's variable.
    pub(super) fn of_variable(address: Address, length: usize) -> Self {
        Self { address, length }
    }

    pub(crate) fn address(self) -> Address {
        self.address
    }

    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// True if both have a byte in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.address < other.address + other.length as u64
            && other.address < self.address + self.length as u64
    }
}

/// A pool of the card's memory, and the stream on which it is allocated and freed.
///
/// Nothing else is on the stream, so to allocate waits for no other work, and neither does to free: who frees has seen
/// the end of all work that uses the memory.
///
/// An allocation is done when the stream has come to it. The stream counts them in a word, and a stream that may use
/// memory before the word says that it is there [waits](Self::wait_on) for the word.
pub(crate) struct Pool {
    context: Arc<Context>,
    handle: Handle,
    stream: Stream,
    /// How many allocations are done.
    done: Word,
    /// How many allocations are on the stream. Changed under `order`, so that the word only grows.
    issued: AtomicU64,
    order: Mutex<()>,
}

impl Pool {
    /// A pool that keeps what is freed, until it is trimmed.
    pub(crate) fn new(current: &Current<'_>) -> Result<Self, CudaError> {
        const PINNED: i32 = 1;
        const DEVICE: i32 = 1;
        const RELEASE_THRESHOLD: i32 = 4;
        let stream = Stream::new(current)?;
        let done = Word::one(current)?;
        let properties = PoolProperties {
            allocation: PINNED,
            handles: 0,
            location: DEVICE,
            device: current.context().device(),
            security: 0,
            most: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let mut handle = 0;
        // SAFETY: the result is ours, and the properties are borrowed for the call.
        unsafe { call!(current.library(), cuMemPoolCreate(&raw mut handle, &raw const properties)) }?;
        let pool = Self {
            context: current.context().clone(),
            handle,
            stream,
            done,
            issued: AtomicU64::new(0),
            order: Mutex::new(()),
        };
        let threshold = u64::MAX;
        // SAFETY: the pool exists; the attribute is a number of 64 bits.
        unsafe {
            call!(current.library(), cuMemPoolSetAttribute(handle, RELEASE_THRESHOLD, &raw const threshold))
        }?;
        Ok(pool)
    }

    /// Allocates memory that a stream may use behind [`wait_on`](Self::wait_on).
    pub(crate) fn allocate(self: &Arc<Self>, length: usize) -> Result<DeviceBlock, CudaError> {
        let current = self.context.enter()?;
        let _order = self.order.lock();
        let mut address = 0;
        // SAFETY: the result is ours.
        unsafe {
            call!(
                current.library(),
                cuMemAllocFromPoolAsync(&raw mut address, length, self.handle, self.stream.handle)
            )
        }?;
        let block = DeviceBlock { pool: self.clone(), address, length };
        let number = self.issued.load(Ordering::Relaxed) + 1;
        self.stream.write(&current, &self.done, number)?;
        self.issued.store(number, Ordering::Release);
        Ok(block)
    }

    /// Has a stream wait until all memory that was allocated before is there. Returns whether that took an operation.
    pub(crate) fn wait_on(&self, current: &Current<'_>, stream: &Stream) -> Result<bool, CudaError> {
        let issued = self.issued.load(Ordering::Acquire);
        if self.done.get() >= issued {
            return Ok(false);
        }
        stream.wait_for(current, &self.done, issued)?;
        Ok(true)
    }

    /// Allocates memory that a stream's next work may use.
    pub(crate) fn allocate_on(
        &self,
        current: &Current<'_>,
        stream: &Stream,
        length: usize,
    ) -> Result<Part, CudaError> {
        let mut address = 0;
        // SAFETY: the result is ours.
        unsafe {
            call!(
                current.library(),
                cuMemAllocFromPoolAsync(&raw mut address, length, self.handle, stream.handle)
            )
        }?;
        Ok(Part { address, length })
    }

    /// Frees what [`allocate_on`](Self::allocate_on) gave, behind the stream's work.
    pub(crate) fn free_on(
        &self,
        current: &Current<'_>,
        stream: &Stream,
        part: Part,
    ) -> Result<(), CudaError> {
        // SAFETY: the memory is freed once, and only this stream uses it.
        unsafe { call!(current.library(), cuMemFreeAsync(part.address, stream.handle)) }
    }

    /// Waits until what was freed is free.
    pub(crate) fn settle(&self) {
        if let Ok(current) = self.context.enter() {
            // After an error nothing is under way.
            let _ = self.stream.synchronize(&current);
        }
    }

    /// Gives memory that is not in use back to the system.
    pub(crate) fn trim(&self) -> Result<(), CudaError> {
        let current = self.context.enter()?;
        self.stream.synchronize(&current)?;
        // SAFETY: the pool exists.
        unsafe { call!(current.library(), cuMemPoolTrimTo(self.handle, 0)) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.settle();
        // A pool is the card's and not the context's: it goes also where that cannot be entered.
        // SAFETY: every block of the pool is gone, as each refers to it.
        let _ = unsafe { call!(self.context.library, cuMemPoolDestroy(self.handle)) };
    }
}

/// Memory of the card. Dropped when no work uses it any more.
pub(crate) struct DeviceBlock {
    pool: Arc<Pool>,
    address: Address,
    length: usize,
}

impl DeviceBlock {
    pub(crate) fn whole(&self) -> Part {
        Part { address: self.address, length: self.length }
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        if let Ok(current) = self.pool.context.enter() {
            // SAFETY: freed once.
            let _ =
                unsafe { call!(current.library(), cuMemFreeAsync(self.address, self.pool.stream.handle)) };
        }
    }
}

/// Memory of the host that CUDA allocated. The card accesses it under the same address.
pub(crate) struct PinnedBlock {
    context: Arc<Context>,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is memory, which is accessed through `HostRange` and `Word` alone.
unsafe impl Send for PinnedBlock {}
// SAFETY: as for `Send`.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    pub(crate) fn new(current: &Current<'_>, length: usize) -> Result<Self, CudaError> {
        const PORTABLE_MAPPED: u32 = 3;
        let mut start = std::ptr::null_mut();
        // SAFETY: the result is ours.
        unsafe { call!(current.library(), cuMemHostAlloc(&raw mut start, length, PORTABLE_MAPPED)) }?;
        let start = NonNull::new(start.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { context: current.context().clone(), start, length })
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn whole(&self) -> Part {
        Part { address: self.start.addr().get() as u64, length: self.length }
    }

    /// The first bytes of it as the host sees them. `owner` keeps the block.
    ///
    /// # Panics
    ///
    /// If it has fewer bytes.
    pub(crate) fn range(&self, length: usize, owner: Arc<dyn Any + Send + Sync>) -> HostRange {
        assert!(length <= self.length, "a view of a block is inside it");
        // SAFETY: so many bytes are valid as long as the block, which the owner keeps.
        unsafe { HostRange::from_raw(self.start.as_ptr(), length, Some(owner)) }
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: freed once, by whoever has the last reference to it.
            let _ = unsafe { call!(current.library(), cuMemFreeHost(self.start.as_ptr().cast())) };
        }
    }
}

/// A 64-bit word of the host that streams write and wait for, on a cache line of its own.
///
/// # Invariants
///
/// `offset` is a multiple of 64, and the word is inside the block.
#[derive(Clone)]
pub(crate) struct Word {
    block: Arc<PinnedBlock>,
    offset: usize,
}

impl Word {
    /// So many words, all zero.
    pub(crate) fn new(current: &Current<'_>, count: usize) -> Result<Vec<Self>, CudaError> {
        const LINE: usize = 64;
        let block = Arc::new(PinnedBlock::new(current, count.max(1) * LINE)?);
        let words: Vec<Self> =
            (0..count).map(|number| Self { block: block.clone(), offset: number * LINE }).collect();
        words.iter().for_each(|word| word.atomic().store(0, Ordering::Release));
        Ok(words)
    }

    /// One word, zero.
    pub(crate) fn one(current: &Current<'_>) -> Result<Self, CudaError> {
        let block = Arc::new(PinnedBlock::new(current, size_of::<u64>())?);
        let word = Self { block, offset: 0 };
        word.atomic().store(0, Ordering::Release);
        Ok(word)
    }

    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: inside the block and aligned, by the invariant and since CUDA's memory begins at a multiple of 256
        // bytes. The host accesses it atomically alone, and the device writes whole words.
        unsafe { AtomicU64::from_ptr(self.block.start.as_ptr().add(self.offset).cast()) }
    }

    /// The value; what was before its write is visible.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.atomic().load(Ordering::Acquire)
    }

    pub(super) fn address(&self) -> Address {
        self.block.whole().address + self.offset as u64
    }
}

/// Memory of the program that CUDA has registered, until this is dropped. The card accesses it under the same address.
pub(crate) struct Registration {
    context: Arc<Context>,
    start: usize,
}

impl Registration {
    /// Registers whole pages that contain memory of the program.
    pub(crate) fn new(current: &Current<'_>, start: usize, length: usize) -> Result<Self, CudaError> {
        const PORTABLE_MAPPED: u32 = 3;
        let address = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: registering changes no byte of it, and fails where nothing is mapped.
        unsafe { call!(current.library(), cuMemHostRegister(address, length, PORTABLE_MAPPED)) }?;
        Ok(Self { context: current.context().clone(), start })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            let address = std::ptr::with_exposed_provenance_mut(self.start);
            // SAFETY: unregistered once, when no work uses the memory any more.
            let _ = unsafe { call!(current.library(), cuMemHostUnregister(address)) };
        }
    }
}

/// The bytes of a range that registrations contain.
pub(crate) fn registered(range: &HostRange) -> Part {
    Part {
        address: range.address().expose_provenance() as u64,
        length: usize::try_from(range.length()).unwrap_or(0),
    }
}
