// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The memory of a device: the card's, the host's for the card, and the program's.
//!
//! | heap | memory | given back |
//! |---|---|---|
//! | 0 | the card's, from a pool of this device | to the pool, without waiting |
//! | 1 | the host's, pinned | to [`PinnedCache`], since CUDA waits for the whole card before it frees |
//! | 0 | a variable's of an executable | with the executable |
//! | – | the program's, registered by [`Imports`] | when the last import of a page is gone |

use crate::library::memory::{DeviceBlock, PinnedBlock, Registration, registered};
use crate::library::module::Variable;
use crate::library::{Context, CudaError, Part};
use hal_backend::HostRange;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The alignment of every allocation.
pub(crate) const ALIGNMENT: u64 = 256;

/// The alignment that imported memory needs: as much as compiled kernels rely on.
pub(crate) const IMPORT_ALIGNMENT: u64 = 64;

/// Memory of a device.
pub struct Memory(Kind);

enum Kind {
    Card(DeviceBlock),
    Variable(Variable),
    Pinned(Arc<PinnedMemory>),
    Imported(Imported),
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Memory").field(&self.whole()).finish()
    }
}

impl From<DeviceBlock> for Memory {
    fn from(block: DeviceBlock) -> Self {
        Self(Kind::Card(block))
    }
}

impl From<Variable> for Memory {
    fn from(variable: Variable) -> Self {
        Self(Kind::Variable(variable))
    }
}

impl From<PinnedMemory> for Memory {
    fn from(memory: PinnedMemory) -> Self {
        Self(Kind::Pinned(Arc::new(memory)))
    }
}

impl From<Imported> for Memory {
    fn from(imported: Imported) -> Self {
        Self(Kind::Imported(imported))
    }
}

impl Memory {
    /// All of it.
    pub(crate) fn whole(&self) -> Part {
        match &self.0 {
            Kind::Card(block) => block.whole(),
            Kind::Variable(variable) => variable.whole(),
            Kind::Pinned(memory) => memory.whole(),
            Kind::Imported(imported) => registered(&imported.range),
        }
    }

    /// The host's view, if it has one.
    pub(crate) fn host_view(&self) -> Option<HostRange> {
        match &self.0 {
            Kind::Card(_) | Kind::Variable(_) => None,
            Kind::Pinned(memory) => Some(memory.clone().range()),
            Kind::Imported(imported) => Some(imported.range.clone()),
        }
    }

    /// True if it is memory of the host.
    pub(crate) fn is_host(&self) -> bool {
        !matches!(self.0, Kind::Card(_) | Kind::Variable(_))
    }

    /// The length of the longest piece from the beginning of a part that CUDA copies in one call: it takes a copy
    /// across two registrations for one of pageable memory.
    pub(crate) fn copyable(&self, part: Part) -> usize {
        match &self.0 {
            Kind::Card(_) | Kind::Variable(_) | Kind::Pinned(_) => part.length(),
            Kind::Imported(imported) => imported.copyable(part),
        }
    }
}

/// The least and the most bytes of a cached block.
const LEAST: usize = 4 << 10;
const MEBI: usize = 1 << 20;

/// The most bytes that are kept for later.
const MOST_CACHED: usize = 1 << 30;

/// Pinned memory that is not in use.
pub(crate) struct PinnedCache {
    context: Arc<Context>,
    free: Mutex<FreeBlocks>,
}

#[derive(Default)]
struct FreeBlocks {
    bytes: usize,
    /// By their size.
    blocks: BTreeMap<usize, Vec<PinnedBlock>>,
}

impl PinnedCache {
    pub(crate) fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context, free: Mutex::default() })
    }

    /// So many bytes at least.
    pub(crate) fn allocate(self: &Arc<Self>, length: usize) -> Result<PinnedMemory, CudaError> {
        let size = match length {
            0..LEAST => LEAST,
            LEAST..MEBI => length.next_power_of_two(),
            _ => length.checked_next_multiple_of(MEBI).unwrap_or(length),
        };
        let cached = self.free.lock().take(size);
        let block = match cached {
            Some(block) => block,
            None => self.allocate_new(size)?,
        };
        Ok(PinnedMemory { block: Some(block), length, cache: self.clone() })
    }

    fn allocate_new(&self, size: usize) -> Result<PinnedBlock, CudaError> {
        let current = self.context.enter()?;
        match PinnedBlock::new(&current, size) {
            Err(error) if error.is_out_of_memory() => {
                self.clear();
                PinnedBlock::new(&current, size)
            }
            outcome => outcome,
        }
    }

    /// Frees what is not in use.
    pub(crate) fn clear(&self) {
        let free = std::mem::take(&mut *self.free.lock());
        drop(free);
    }

    fn put(&self, block: PinnedBlock) {
        let mut free = self.free.lock();
        if free.bytes + block.length() <= MOST_CACHED {
            free.bytes += block.length();
            free.blocks.entry(block.length()).or_default().push(block);
        } else {
            drop(free);
            // This waits for the card.
            drop(block);
        }
    }
}

impl FreeBlocks {
    fn take(&mut self, size: usize) -> Option<PinnedBlock> {
        let block = self.blocks.get_mut(&size)?.pop()?;
        self.bytes -= size;
        Some(block)
    }
}

/// Pinned memory in use. It goes back to its cache when it is dropped.
pub(crate) struct PinnedMemory {
    /// There until the drop.
    block: Option<PinnedBlock>,
    length: usize,
    cache: Arc<PinnedCache>,
}

impl PinnedMemory {
    #[expect(clippy::expect_used, reason = "only the drop takes the block")]
    fn block(&self) -> &PinnedBlock {
        self.block.as_ref().expect("memory in use has its block")
    }

    #[expect(clippy::expect_used, reason = "a block is at least as long as what was asked for")]
    pub(crate) fn whole(&self) -> Part {
        self.block().whole().part(0, self.length as u64).expect("as long as was asked for")
    }

    /// The bytes as the host sees them, which keep the memory.
    pub(crate) fn range(self: Arc<Self>) -> HostRange {
        self.block().range(self.length, self.clone())
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.cache.put(block);
        }
    }
}

/// The size of a page, of which CUDA registers whole ones.
const PAGE: usize = 4096;

/// Pages of the program that are registered, each once, however many imports have bytes of it.
pub(crate) struct Imports {
    context: Arc<Context>,
    /// By their first address.
    runs: Mutex<BTreeMap<usize, Run>>,
}

/// Pages that were registered together.
struct Run {
    end: usize,
    imports: usize,
    _registration: Registration,
}

impl Imports {
    pub(crate) fn new(context: Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context, runs: Mutex::default() })
    }

    /// Registers the pages of a range that are not registered yet.
    pub(crate) fn import(self: &Arc<Self>, range: HostRange) -> Result<Imported, CudaError> {
        let current = self.context.enter()?;
        let begin = range.address().addr();
        let length = usize::try_from(range.length()).unwrap_or(0);
        let (mut at, end) = (begin - begin % PAGE, (begin + length).next_multiple_of(PAGE));
        let mut runs = self.runs.lock();
        // Dropped after the lock, if a registration fails: it then releases the pages of those before.
        let mut imported = Imported { range, runs: Vec::new(), imports: self.clone() };
        while at < end {
            let before = runs.range_mut(..=at).next_back().filter(|(_, run)| run.end > at);
            if let Some((&start, run)) = before {
                run.imports += 1;
                imported.runs.push((start, run.end));
                at = run.end;
                continue;
            }
            let next = runs.range(at..end).next().map_or(end, |(&start, _)| start);
            let registration = match Registration::new(&current, at, next - at) {
                Ok(registration) => registration,
                Err(error) => {
                    drop(runs);
                    return Err(error);
                }
            };
            runs.insert(at, Run { end: next, imports: 1, _registration: registration });
            imported.runs.push((at, next));
            at = next;
        }
        Ok(imported)
    }
}

/// Memory of the program whose pages are registered.
pub(crate) struct Imported {
    range: HostRange,
    /// The registered pages that it is in: where each run begins and ends, in order.
    runs: Vec<(usize, usize)>,
    imports: Arc<Imports>,
}

impl Imported {
    fn copyable(&self, part: Part) -> usize {
        let begin = usize::try_from(part.address()).unwrap_or(usize::MAX);
        let run = self.runs.iter().find(|(start, end)| (*start..*end).contains(&begin));
        run.map_or(part.length(), |(_, end)| part.length().min(end - begin))
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let mut runs = self.imports.runs.lock();
        for (start, _) in self.runs.drain(..) {
            let Some(run) = runs.get_mut(&start) else { continue };
            run.imports -= 1;
            if run.imports == 0 {
                // Under the lock: nobody registers the pages again before they are unregistered.
                runs.remove(&start);
            }
        }
    }
}
