// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A dispatch: the host lays bindings, image and workgroups out in the memory of some tiles, and starts these.
//!
//! Every tile reaches all [ranges](crate::binding) of memory that the dispatch works on, and runs some workgroups.

use crate::binding::{ALIGNMENT, Binding, DramRange, gather};
use crate::device::TenstorrentDevice;
use crate::executable::Executable;
use crate::kmd::{Card, Coordinates, Error};
use crate::layout::{Cursor, Layout, Share, Work, small, word};
use crate::memory::Pool;
use crate::product::Product;
use crate::stub::{ENVIRONMENT, IMAGE, STACK, STATE, common};
use crate::tile::{Common, Patience, Tile, hold, wait};
use hal_backend::{Code, Dispatch, Failure, LoadRequest};
use hal_tenstorrent_loader::library;
use hal_tenstorrent_loader::paging::{ABSENT, ENTRY, PAGE, first_address};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How dispatches are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// On how many tiles, at most.
    pub(crate) tiles: usize,
    /// On how many cores of each, at most.
    pub(crate) cores: usize,
    /// How long one may take.
    pub(crate) timeout: Duration,
    /// True if pages are brought one by one even if all fit.
    pub(crate) paged: bool,
    /// In how many phases engines multiply; in none, and cores do, if it is zero.
    pub(crate) phases: u32,
}

/// The tiles of a card.
pub(crate) struct Tiles {
    dram: Arc<Pool>,
    /// The tiles that run dispatches, one dispatch at a time.
    workers: Mutex<Vec<Tile>>,
    /// The number of these.
    count: usize,
    /// The end of the part of a tile's memory that dispatches have.
    end: u64,
    /// The tile that runs the query functions of executables.
    query_tile: Mutex<Tile>,
    epoch: AtomicU32,
    stopped: StopCause,
}

/// Why a core of the card will never end, which only a simulated chip knows.
pub(crate) type StopCause = Box<dyn Fn() -> Option<String> + Send + Sync>;

impl fmt::Debug for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiles").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Tiles {
    pub(crate) fn new(
        card: &Arc<Card>,
        dram: &Arc<Pool>,
        reserved: u32,
        stopped: StopCause,
    ) -> Result<Self, Failure> {
        let mut places = card.grid().tiles().to_vec();
        let (Some(last), false) = (places.pop(), places.is_empty()) else {
            let message = format!("{} has less than two tiles", card.name());
            return Err(Failure::new(Code::FailedPrecondition, message));
        };
        let workers: Vec<Tile> = places.into_iter().map(|place| Tile::new(card, place)).collect();
        Ok(Self {
            dram: dram.clone(),
            count: workers.len(),
            end: u64::from(card.generation().l1 - reserved),
            workers: Mutex::new(workers),
            query_tile: Mutex::new(Tile::new(card, last)),
            epoch: AtomicU32::new(0),
            stopped,
        })
    }

    /// The coordinates of the tiles that run dispatches.
    pub(crate) fn places(&self) -> Vec<Coordinates> {
        self.workers.lock().iter().map(Tile::place).collect()
    }

    /// How many workgroups run at once.
    pub(crate) fn concurrency(&self, settings: Settings) -> usize {
        self.count.min(settings.tiles) * settings.cores
    }

    fn patience<'a>(&'a self, settings: Settings, stop: &'a AtomicBool) -> Patience<'a> {
        Patience { limit: settings.timeout, stop, stopped: &*self.stopped }
    }

    /// A number that no recent call had, and none that a tile that is lost would say.
    fn next_epoch(&self) -> u32 {
        self.epoch.fetch_add(1, Ordering::Relaxed) % (1 << 30) + 1
    }

    /// Runs an executable's query function on a tile.
    pub(crate) fn load(&self, request: &LoadRequest<'_>, settings: Settings) -> Result<Executable, Error> {
        let never = AtomicBool::new(false);
        Executable::load(request, &self.query_tile.lock(), self.next_epoch(), self.patience(settings, &never))
    }

    /// Runs a dispatch of so many workgroups to its end.
    pub(crate) fn run(
        &self,
        dispatch: &Dispatch<TenstorrentDevice>,
        workgroups: [u32; 3],
        settings: Settings,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let function = dispatch.executable.function(dispatch.function)?;
        check(function, dispatch)?;
        let product = self.product(dispatch, settings)?;
        let is_empty = match product {
            // How many workgroups its code would need does not matter.
            Some(product) => product.is_empty(),
            None => count(workgroups)? == 0,
        };
        if is_empty {
            return Ok(());
        }
        let (pieces, bindings) = gather(&self.dram, &dispatch.bindings)?;
        let workers = self.workers.lock();
        let usable = workers.iter().filter(|tile| product.is_none() || tile.has_engine());
        let tiles: Vec<&Tile> = usable.take(settings.tiles).collect();
        let work = if let Some(product) = &product {
            let generation = dispatch.executable.generation();
            product.plan(generation, (&pieces, &bindings), (tiles.len(), self.end))?
        } else {
            let total = count(workgroups)?;
            let tiles = tiles.len().min(total as usize);
            let share = total.div_ceil(small(tiles));
            let cores = settings.cores.min(share as usize);
            let (paged, end) = (settings.paged, self.end);
            let plan = Plan { dispatch, function, workgroups, cores, tiles, pieces: &pieces, paged, end };
            Work { layout: plan.layout(&bindings)?, shares: Share::all(total, share) }
        };
        let tiles: Vec<&Tile> = tiles.into_iter().take(work.shares.len()).collect();
        let done = self.execute(&work, &tiles, (settings, stop));
        if product.is_some() && done.is_err() {
            tiles.iter().for_each(|tile| tile.stop_engine());
        }
        done?;
        let mut refused = None;
        for tile in &tiles {
            let result = tile.result(work.layout.cores)?;
            if let Some(failure) = product.and_then(|_| Product::refusal(result, tile.place())) {
                tile.stop_engine();
                refused = refused.or(Some(failure));
            } else if result != 0 {
                let message = format!(
                    "function {:?} returned {result} on tile {}: what it was called with is wrong to it",
                    function.name,
                    tile.place()
                );
                return Err(Failure::new(Code::Internal, message).into());
            }
        }
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        drop(workers);
        pieces.iter().try_for_each(DramRange::bring_back)
    }

    /// The product that a dispatch asks for, if engines do it.
    fn product(
        &self,
        dispatch: &Dispatch<TenstorrentDevice>,
        settings: Settings,
    ) -> Result<Option<Product>, Failure> {
        let kind = dispatch.executable.product(dispatch.function)?;
        let Some(kind) = kind.filter(|_| settings.phases > 0) else { return Ok(None) };
        if !self.workers.lock().iter().any(Tile::has_engine) {
            let message = "the engine of every tile was stopped in the middle of a product, and has no defined state: \
                           reset the card (tt-smi -r), or open it with phases=0, which leaves engines alone";
            return Err(Failure::new(Code::FailedPrecondition, message));
        }
        Product::of(kind, settings.phases, dispatch).map(Some)
    }

    /// Starts tiles, each with its share, and waits for their end. On return they are held.
    fn execute(
        &self,
        work: &Work<'_>,
        tiles: &[&Tile],
        (settings, stop): (Settings, &AtomicBool),
    ) -> Result<(), Error> {
        let Work { layout, shares } = work;
        let epoch = self.next_epoch();
        let launched = tiles.iter().zip(shares).try_for_each(|(tile, share)| {
            layout.fill(tile, share)?;
            tile.launch(layout.common, layout.cores, epoch)
        });
        if let Err(error) = launched {
            // The tiles that were started are held again, whatever they do.
            return hold(tiles).and(Err(error));
        }
        wait(tiles, epoch, self.patience(settings, stop))
    }
}

/// How many workgroups there are.
fn count(workgroups: [u32; 3]) -> Result<u32, Error> {
    if workgroups.contains(&0) {
        return Ok(0);
    }
    let [x, y, z] = workgroups;
    let total = x.checked_mul(y).and_then(|total| total.checked_mul(z));
    total.filter(|_| z <= u16::MAX.into()).ok_or_else(|| {
        let message =
            format!("{x} by {y} by {z} workgroups are more than can be counted: 65535 in z, 2^32 - 1 in all");
        Failure::new(Code::InvalidArgument, message).into()
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
    pieces: &'a [DramRange],
    paged: bool,
    /// The end of the memory that it has in a tile.
    end: u64,
}

/// How many bytes a place for a page has, with that for its copy.
const PLACE: u64 = 2 * PAGE as u64;
/// Less places than these are not worth beginning with.
const LEAST_PLACES: u64 = 4;

impl<'a> Plan<'a> {
    /// Lays everything out: all pages at once if they fit, and else a few at a time.
    fn layout(&self, bindings: &[Binding]) -> Result<Layout<'a>, Error> {
        if self.paged {
            return self.paged(bindings);
        }
        match self.whole(bindings)? {
            Some(layout) => Ok(layout),
            None => self.paged(bindings),
        }
    }

    /// How much workgroup-local memory a core has.
    fn local_length(&self) -> u64 {
        let length = u64::from(self.function.local_memory) + u64::from(self.dispatch.local_memory);
        length.next_multiple_of(ALIGNMENT)
    }

    /// The words that are the same however memory is laid out.
    fn common(&self) -> Common {
        let mut common = Common::default();
        common
            .set(common::FUNCTION, self.function.address)
            .set(common::ARGUMENTS, ENVIRONMENT)
            .set(common::ARGUMENTS + 4, STATE)
            .set(common::COUNT_X, self.workgroups[0])
            .set(common::COUNT_Y, self.workgroups[1])
            .set(common::BYTES, self.dispatch.executable.has_narrow_stores().into());
        common
    }

    /// All pages in the memory of a tile, and a copy of each, if they fit.
    fn whole(&self, bindings: &[Binding]) -> Result<Option<Layout<'a>>, Error> {
        let executable: &'a Executable = &self.dispatch.executable;
        let generation = executable.generation();
        let cores = self.cores as u64;
        let local_length = self.local_length();
        let staged: u64 = self.pieces.iter().map(DramRange::length).sum();
        if staged > self.end {
            return Ok(None);
        }
        let entries: usize = {
            let pages = |piece: &DramRange| Ok(piece.range()?.pieces(piece.start, piece.length()).count());
            self.pieces.iter().map(pages).sum::<Result<usize, Error>>()?
        };
        let mut cursor = Cursor::new(u64::from(IMAGE) + executable.image().len() as u64);
        let stacks_at = cursor.take(cores * u64::from(STACK));
        let local_at = cursor.take(cores * local_length);
        let list_at = cursor.take(16 * entries as u64);
        let pieces_at = cursor.take(staged);
        let copies_at = cursor.take(staged);
        if cursor.end() > self.end {
            return Ok(None);
        }
        let mut list = Vec::new();
        let mut locals = Vec::new();
        let mut at = pieces_at;
        for piece in self.pieces {
            locals.push(at);
            for page in piece.range()?.pieces(piece.start, piece.length()) {
                list.extend([
                    generation.bits(page.bank),
                    word(page.address),
                    word(at + page.at),
                    word(page.length),
                ]);
            }
            at += piece.length();
        }
        let mut common = self.common();
        common
            .set(common::LIST, word(list_at))
            .set(common::LIST_LENGTH, word(entries as u64))
            .set(common::COPY, word(copies_at - pieces_at));
        Ok(Some(Layout {
            common,
            cores: self.cores,
            image: executable.image().into(),
            state: self.state(bindings, &locals, self.cores)?,
            tables: vec![(word(list_at), list)],
            local_at: word(local_at),
            local_length: word(local_length),
            stacks_at: word(stacks_at),
        }))
    }

    /// A table of all pages, and places for as many as fit, for one core.
    fn paged(&self, bindings: &[Binding]) -> Result<Layout<'a>, Error> {
        let executable: &'a Executable = &self.dispatch.executable;
        let generation = executable.generation();
        let image = executable.paged(self.dispatch.function)?;
        let local_length = self.local_length();
        let page = u64::from(PAGE);
        let span = |piece: &DramRange| piece.start / page..piece.end.div_ceil(page);
        let pages: u64 = self.pieces.iter().map(|piece| span(piece).count() as u64).sum();
        let mut cursor = Cursor::new(u64::from(IMAGE) + image.len() as u64);
        let stacks_at = cursor.take(u64::from(STACK));
        let local_at = cursor.take(local_length);
        let table_at = cursor.take(u64::from(ENTRY) * pages);
        let origins_at = cursor.take(u64::from(ENTRY) * pages);
        let left = self.end.saturating_sub(cursor.end() + 2 * ALIGNMENT);
        let places = left / (PLACE + 4);
        if places < LEAST_PLACES {
            return Err(self.too_large(pages, cursor.end(), image.len()));
        }
        let holders_at = cursor.take(4 * places);
        let places_at = cursor.take(places * PLACE);
        let mut origins = Vec::new();
        let mut locals = Vec::new();
        let mut next = u64::from(first_address(word(table_at)));
        for piece in self.pieces {
            locals.push(next + piece.start % page);
            for number in span(piece) {
                for part in piece.range()?.pieces(number * page, page) {
                    origins.extend([generation.bits(part.bank), word(part.address)]);
                }
                next += page;
            }
        }
        let mut common = self.common();
        common
            .set(common::PLACES, word(places))
            .set(common::PLACES_AT, word(places_at))
            .set(common::HOLDERS, word(holders_at))
            .set(common::ORIGIN, word(origins_at - table_at));
        let count = |number: u64| word(number) as usize;
        Ok(Layout {
            common,
            cores: 1,
            image: image.into(),
            state: self.state(bindings, &locals, 1)?,
            tables: vec![
                (word(table_at), vec![ABSENT; 2 * count(pages)]),
                (word(origins_at), origins),
                (word(holders_at), vec![0; count(places)]),
            ],
            local_at: word(local_at),
            local_length: word(local_length),
            stacks_at: word(stacks_at),
        })
    }

    /// IREE's state of the dispatch.
    fn state(&self, bindings: &[Binding], pieces: &[u64], cores: usize) -> Result<Vec<u8>, Error> {
        let pointer = |binding: &Binding| {
            #[expect(
                clippy::indexing_slicing,
                reason = "there is an address for each piece that was gathered"
            )]
            let start = pieces[binding.piece];
            (word(start + binding.offset), word(binding.length))
        };
        let pointers: Vec<(u32, u32)> = bindings.iter().map(pointer).collect();
        let state = library::Dispatch {
            workgroup_size: self.dispatch.workgroup_size,
            workgroup_count: self.workgroups,
            concurrency: u8::try_from(self.tiles * cores).unwrap_or(u8::MAX),
            constants: &self.dispatch.constants,
            bindings: &pointers,
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

    /// Why a dispatch does not fit into a tile, not even a few pages at a time.
    fn too_large(&self, pages: u64, needed: u64, code: usize) -> Error {
        let message = format!(
            "function {:?} does not fit into the {} bytes that a tile has for it (l1= has the other {}): {needed} \
             are taken before there is a place for a page of its \
             bindings, by its code ({code}), its stack ({STACK}), workgroup-local memory ({}) and the table of the \
             {pages} pages that its bindings have ({}); bind less, or compile for smaller workgroups",
            self.function.name,
            self.end,
            u64::from(self.dispatch.executable.generation().l1) - self.end,
            self.local_length(),
            2 * u64::from(ENTRY) * pages,
        );
        Failure::new(Code::ResourceExhausted, message).into()
    }
}
