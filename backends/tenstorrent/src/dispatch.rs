//! A dispatch: bindings, image and workgroups laid out in the memory of some tiles, which then run.
//!
//! Every tile has all [pieces](crate::binding) of memory that the dispatch works on, and some of the workgroups.

use crate::binding::{ALIGNMENT, Binding, Piece, gather};
use crate::device::TenstorrentDevice;
use crate::executable::Executable;
use crate::kmd::{Card, Error};
use crate::memory::Dram;
use crate::stub::{CORES, ENVIRONMENT, IMAGE, L1, STACK, STATE, common, core_block, workgroup_state};
use crate::tile::{Common, Patience, Tile, Watch, wait};
use hal_backend::{Code, Dispatch, Failure, LoadRequest};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tenstorrent_loader::library::{self, Workgroup};

/// How dispatches are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// On how many tiles, at most.
    pub(crate) tiles: usize,
    /// On how many cores of each, at most.
    pub(crate) cores: usize,
    /// How long one may take.
    pub(crate) timeout: Duration,
}

/// Everything that runs.
#[derive(Debug)]
pub(crate) struct Tiles {
    dram: Arc<Dram>,
    settings: Settings,
    /// Those that run dispatches, one dispatch at a time.
    workers: Mutex<Vec<Tile>>,
    /// How many these are.
    count: usize,
    /// The one that asks executables what they are.
    asker: Mutex<Tile>,
    epoch: AtomicU32,
    watch: Option<Box<dyn Watch>>,
}

impl Tiles {
    pub(crate) fn new(
        card: &Arc<Card>,
        dram: &Arc<Dram>,
        settings: Settings,
        watch: Option<Box<dyn Watch>>,
    ) -> Result<Self, Failure> {
        let mut places = card.grid().tiles().to_vec();
        let (Some(last), false) = (places.pop(), places.is_empty()) else {
            let message = format!("{} has less than two tiles", card.name());
            return Err(Failure::new(Code::FailedPrecondition, message));
        };
        let workers = places.into_iter().take(settings.tiles).map(|place| Tile::new(card, place));
        let workers: Vec<Tile> = workers.collect();
        Ok(Self {
            dram: dram.clone(),
            settings,
            count: workers.len(),
            workers: Mutex::new(workers),
            asker: Mutex::new(Tile::new(card, last)),
            epoch: AtomicU32::new(0),
            watch,
        })
    }

    /// How many workgroups run at once.
    pub(crate) fn concurrency(&self) -> usize {
        self.count * self.settings.cores
    }

    fn patience<'a>(&'a self, stop: &'a AtomicBool) -> Patience<'a> {
        Patience { deadline: self.settings.timeout, stop, watch: self.watch.as_deref() }
    }

    /// A number that no recent call had, and none that a tile that is lost would say.
    fn next_epoch(&self) -> u32 {
        self.epoch.fetch_add(1, Ordering::Relaxed) % (1 << 30) + 1
    }

    /// Has a tile ask an executable what it is.
    pub(crate) fn load(&self, request: &LoadRequest<'_>) -> Result<Executable, Error> {
        let never = AtomicBool::new(false);
        Executable::load(request, &self.asker.lock(), self.next_epoch(), self.patience(&never))
    }

    /// Runs a dispatch of so many workgroups to its end.
    pub(crate) fn run(
        &self,
        dispatch: &Dispatch<TenstorrentDevice>,
        workgroups: [u32; 3],
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let total = count(workgroups)?;
        if total == 0 {
            return Ok(());
        }
        let function = dispatch.executable.function(dispatch.function)?;
        check(function, dispatch)?;
        let (pieces, bindings) = gather(&self.dram, &dispatch.bindings)?;
        let workers = self.workers.lock();
        let tiles = workers.iter().take(usize::try_from(total).unwrap_or(usize::MAX));
        let tiles: Vec<&Tile> = tiles.collect();
        let share = total.div_ceil(u32::try_from(tiles.len()).unwrap_or(1));
        let cores = self.settings.cores.min(usize::try_from(share).unwrap_or(CORES));
        let plan = Plan { dispatch, function, workgroups, cores, tiles: tiles.len(), pieces: &pieces };
        let layout = plan.layout(&bindings)?;
        let epoch = self.next_epoch();
        let launched = (0..).zip(&tiles).try_for_each(|(number, tile)| {
            let first = share.saturating_mul(number).min(total);
            plan.fill(tile, &layout, first..first.saturating_add(share).min(total))?;
            tile.launch(layout.common, cores, epoch)
        });
        if let Err(error) = launched {
            // Those that were let go are held again, whatever they are at.
            let held = tiles.iter().try_for_each(|tile| tile.hold());
            return held.and(Err(error));
        }
        wait(&tiles, epoch, self.patience(stop))?;
        for tile in &tiles {
            let result = tile.result(cores)?;
            if result != 0 {
                let message = format!(
                    "function {:?} returned {result} on tile {}: what it was called with is wrong to it",
                    function.name,
                    tile.place()
                );
                return Err(Failure::new(Code::Internal, message).into());
            }
        }
        drop(workers);
        pieces.iter().try_for_each(Piece::bring_back)
    }
}

/// How many workgroups there are.
fn count(workgroups: [u32; 3]) -> Result<u32, Error> {
    let [x, y, z] = workgroups;
    let total = x.checked_mul(y).and_then(|total| total.checked_mul(z));
    total.filter(|_| z <= u16::MAX.into()).ok_or_else(|| {
        let message =
            format!("{x} by {y} by {z} workgroups are more than can be counted: 65535 in z, 2^32 - 1 in all");
        Failure::new(Code::OutOfRange, message).into()
    })
}

/// Checks that a function gets what it takes.
fn check(function: &library::Function, dispatch: &Dispatch<TenstorrentDevice>) -> Result<(), Failure> {
    let (bindings, constants) = (dispatch.bindings.len(), dispatch.constants.len());
    if bindings >= function.bindings.into() && constants >= function.constants.into() {
        return Ok(());
    }
    let message = format!(
        "function {:?} takes {} bindings and {} constants, and was called with {bindings} and {constants}",
        function.name, function.bindings, function.constants
    );
    Err(Failure::new(Code::InvalidArgument, message))
}

/// A dispatch and how it is divided.
struct Plan<'a> {
    dispatch: &'a Dispatch<TenstorrentDevice>,
    function: &'a library::Function,
    workgroups: [u32; 3],
    cores: usize,
    tiles: usize,
    pieces: &'a [Piece],
}

/// What every tile of a dispatch has in its memory.
struct Layout {
    common: Common,
    /// IREE's state of the dispatch.
    state: Vec<u8>,
    /// Where pages are in DRAM, and in the tile.
    list: Vec<u32>,
    list_at: u32,
    /// Where the first core's workgroup-local memory is, and how much each has.
    local_at: u32,
    local_length: u32,
    /// Where the first core's stack begins.
    stacks_at: u32,
}

/// Addresses, one behind the other, counted beyond what there is so that a message can say by how much.
struct Cursor(u64);

impl Cursor {
    fn take(&mut self, length: u64) -> u64 {
        let at = self.0.next_multiple_of(ALIGNMENT);
        self.0 = at + length;
        at
    }
}

impl Plan<'_> {
    /// Lays everything out.
    fn layout(&self, bindings: &[Binding]) -> Result<Layout, Error> {
        let executable: &Executable = &self.dispatch.executable;
        let cores = self.cores as u64;
        let local_length = u64::from(self.function.local_memory) + u64::from(self.dispatch.local_memory);
        let local_length = local_length.next_multiple_of(ALIGNMENT);
        let staged: u64 = self.pieces.iter().map(Piece::length).sum();
        let entries: usize = {
            let pages = |piece: &Piece| Ok(piece.range()?.pieces(piece.start, piece.length()).count());
            self.pieces.iter().map(pages).sum::<Result<usize, Error>>()?
        };
        let mut cursor = Cursor(u64::from(IMAGE) + executable.image().len() as u64);
        let stacks_at = cursor.take(cores * u64::from(STACK));
        let local_at = cursor.take(cores * local_length);
        let list_at = cursor.take(16 * entries as u64);
        let pieces_at = cursor.take(staged);
        let copies_at = cursor.take(staged);
        if cursor.0 > u64::from(L1) {
            return Err(self.too_large(staged, cursor.0));
        }
        // Everything is below the end of a tile's memory from here on.
        let word = |address: u64| u32::try_from(address).unwrap_or(u32::MAX);
        let mut list = Vec::new();
        let mut locals = Vec::new();
        let mut at = pieces_at;
        for piece in self.pieces {
            locals.push(at);
            for page in piece.range()?.pieces(piece.start, piece.length()) {
                list.extend([page.bank.bits(), word(page.address), word(at + page.at), word(page.length)]);
            }
            at += piece.length();
        }
        let pointer = |binding: &Binding| {
            let start = locals.get(binding.piece).copied().unwrap_or(pieces_at);
            (word(start + binding.offset), word(binding.length))
        };
        let pointers: Vec<(u32, u32)> = bindings.iter().map(pointer).collect();
        let mut common = Common::default();
        common
            .set(common::FUNCTION, self.function.address)
            .set(common::ARGUMENTS, ENVIRONMENT)
            .set(common::ARGUMENTS + 4, STATE)
            .set(common::COUNT_X, self.workgroups[0])
            .set(common::COUNT_Y, self.workgroups[1])
            .set(common::LIST, word(list_at))
            .set(common::LIST_LENGTH, word(entries as u64))
            .set(common::COPY, word(copies_at - pieces_at))
            .set(common::BYTES, executable.has_narrow_stores().into());
        Ok(Layout {
            common,
            state: self.state(&pointers)?,
            list,
            list_at: word(list_at),
            local_at: word(local_at),
            local_length: word(local_length),
            stacks_at: word(stacks_at),
        })
    }

    /// IREE's state of the dispatch.
    fn state(&self, pointers: &[(u32, u32)]) -> Result<Vec<u8>, Error> {
        let state = library::Dispatch {
            workgroup_size: self.dispatch.workgroup_size,
            workgroup_count: self.workgroups,
            concurrency: u8::try_from(self.tiles * self.cores).unwrap_or(u8::MAX),
            constants: &self.dispatch.constants,
            bindings: pointers,
        };
        let room = (IMAGE - STATE) as usize;
        state.encode(STATE).filter(|state| state.len() <= room).ok_or_else(|| {
            let message = format!(
                "{} constants and {} bindings are more than the {room} bytes for them hold",
                self.dispatch.constants.len(),
                pointers.len()
            );
            Failure::new(Code::ResourceExhausted, message).into()
        })
    }

    /// Why a dispatch does not fit into a tile.
    fn too_large(&self, staged: u64, needed: u64) -> Error {
        let message = format!(
            "function {:?} needs {needed} bytes of a tile's {L1}: its bindings have {staged} bytes, which are there twice, the code {}, \
             {} cores {STACK} each for their stacks",
            self.function.name,
            self.dispatch.executable.image().len(),
            self.cores,
        );
        Failure::new(Code::ResourceExhausted, message).into()
    }

    /// Writes everything to a tile, with these workgroups.
    fn fill(&self, tile: &Tile, layout: &Layout, workgroups: std::ops::Range<u32>) -> Result<(), Error> {
        tile.prepare()?;
        tile.write(IMAGE, self.dispatch.executable.image())?;
        tile.write(STATE, &layout.state)?;
        tile.write_words(layout.list_at, &layout.list)?;
        let cores = u32::try_from(self.cores).unwrap_or(1);
        let share = workgroups.len().div_ceil(self.cores);
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        for (core, number) in (0..self.cores).zip(0..cores) {
            let first = workgroups.start.saturating_add(share.saturating_mul(number)).min(workgroups.end);
            let end = first.saturating_add(share).min(workgroups.end);
            let stack_end = layout.stacks_at + STACK * (number + 1);
            let state_at = workgroup_state(core);
            tile.write_words(core_block(core), &[stack_end, first, end, state_at, 0, 0])?;
            let state = Workgroup {
                id: [0; 3],
                processor: number,
                local_memory: layout.local_at + layout.local_length * number,
                local_memory_length: layout.local_length,
            };
            tile.write(state_at, &state.encode().unwrap_or_default())?;
        }
        Ok(())
    }
}
