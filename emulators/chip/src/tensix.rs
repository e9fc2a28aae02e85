// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Tensix tile: its memory, its five cores and the registers that control them.

use crate::core_bus::CoreBus;
use crate::counts::ChipCounts;
use crate::engine::{Engine, EngineError, EngineSlot};
use crate::family::{Family, Starts};
use crate::memory::zeros;
use crate::noc::{Interface, Location, NocTransfer, Tile};
use crate::violation::Violation;
use emulator_riscv::{Hart, RunOutcome, Trap};
use std::ops::Range;

/// The register with a bit for each core in reset.
pub const SOFT_RESET: u64 = 0xffb1_21b0;

/// The base address of a tile's own interface to the network.
pub(crate) const INTERFACE: u64 = 0xffb2_0000;
/// Its length.
pub(crate) const INTERFACE_BYTES: u64 = 0x1_0000;

/// A core of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Core {
    /// The first, which starts at address 0.
    B,
    /// The first of three beside the matrix engine.
    T0,
    /// The second of them.
    T1,
    /// The third of them.
    T2,
    /// The one for the network.
    Nc,
}

impl Core {
    /// Every core.
    pub const ALL: [Core; 5] = [Core::B, Core::T0, Core::T1, Core::T2, Core::Nc];

    /// Its bit in [`SOFT_RESET`].
    pub const fn reset_bit(self) -> u32 {
        match self {
            Core::B => 1 << 11,
            Core::T0 => 1 << 12,
            Core::T1 => 1 << 13,
            Core::T2 => 1 << 14,
            Core::Nc => 1 << 18,
        }
    }
}

/// The addresses at which T0, T1, T2 and NC start that are told no other (`SoftReset.md` of both chips).
const STARTS: [u32; 4] = [0x6000, 0xa000, 0xe000, 0x1_2000];

/// The bits of [`SOFT_RESET`] that hold parts of the matrix engine (`SoftReset.md`). Above are none.
const ENGINE_BITS: u32 = 0x007f_ffff & !ALL_HELD;

/// All cores in reset.
const ALL_HELD: u32 = Core::B.reset_bit()
    | Core::T0.reset_bit()
    | Core::T1.reset_bit()
    | Core::T2.reset_bit()
    | Core::Nc.reset_bit();

/// The reason why a core has stopped until it is reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreStop {
    /// An instruction that cannot be executed.
    Trap(Trap),
    /// An `ecall` or `ebreak` before this address. Hardware waits for a debugger.
    Paused(u32),
    /// A rule that it broke, at about this address.
    Violation(u32, Violation),
}

/// The reset and start registers of the cores.
#[derive(Clone, Debug)]
pub(crate) struct CoreControl {
    tile: Tile,
    pub(crate) starts: &'static Starts,
    pub(crate) soft_reset: u32,
    t_start: [u32; 3],
    t_start_enable: u32,
    nc_start: u32,
    nc_start_enable: u32,
    beside: u32,
    /// The register that a core wrote last of those with starts and the one beside, until it is read back, where they
    /// are behind another way than [`SOFT_RESET`].
    unread: Option<u64>,
}

impl CoreControl {
    fn new(tile: Tile, starts: &'static Starts) -> Self {
        let soft_reset = ALL_HELD;
        Self {
            tile,
            starts,
            soft_reset,
            t_start: [0; 3],
            t_start_enable: 0,
            nc_start: 0,
            nc_start_enable: 0,
            beside: 0,
            unread: None,
        }
    }

    /// The register at an address, for a core of the tile, or else for the network.
    fn register(&mut self, address: u64, by: Option<Core>) -> Option<&mut u32> {
        if address == SOFT_RESET {
            return Some(&mut self.soft_reset);
        }
        let starts = self.starts;
        if !by.map_or(starts.over_network, |core| starts.reached_by(core)) {
            return None;
        }
        match address {
            _ if Some(address) == starts.beside => Some(&mut self.beside),
            _ if address == starts.t_enable => Some(&mut self.t_start_enable),
            _ if address == starts.nc => Some(&mut self.nc_start),
            _ if address == starts.nc_enable => Some(&mut self.nc_start_enable),
            _ => {
                starts.t.iter().zip(&mut self.t_start).find(|(at, _)| **at == address).map(|(_, start)| start)
            }
        }
    }

    /// True if a word is one of these, for the tile's cores. On Wormhole they are among the configuration of the
    /// engine.
    pub(crate) fn has(&self, address: u32) -> bool {
        let Starts { t: [first, ..], nc_enable, beside, .. } = *self.starts;
        let address = u64::from(address);
        (first..=nc_enable).contains(&address) || Some(address) == beside
    }

    /// The value of a register that can be read.
    pub(crate) fn read(&mut self, address: u64, by: Option<Core>) -> Option<u32> {
        let value = *self.register(address, by)?;
        if self.unread == Some(address) {
            self.unread = None;
        }
        self.starts.is_readable(address).then_some(value)
    }

    /// Writes a register; `None` if there is none. On Wormhole, a core reads back what it wrote last about starts
    /// before it writes [`SOFT_RESET`]: else cores may be released before.
    pub(crate) fn write(
        &mut self,
        address: u64,
        by: Option<Core>,
        value: u32,
    ) -> Option<Result<(), Violation>> {
        let unread = self.unread.filter(|_| by.is_some() && address == SOFT_RESET);
        let behind_another_way = by.is_some() && address != SOFT_RESET && !self.starts.over_network;
        let (tile, bits) = (self.tile, value & ENGINE_BITS);
        let is_beside = Some(address) == self.starts.beside;
        let register = self.register(address, by)?;
        if let Some(stored) = unread {
            return Some(Err(Violation::Unordered { stored, register: address }));
        }
        if address == SOFT_RESET && bits != 0 {
            return Some(Err(Violation::EngineReset { tile, bits }));
        }
        if is_beside && value != 0 {
            let reason = EngineError::Configuration { word: 0, bits: value };
            return Some(Err(Violation::EngineAccess { tile, reason }));
        }
        *register = value;
        if behind_another_way {
            self.unread = Some(address);
        }
        Some(Ok(()))
    }

    /// The start address of a core.
    fn start(&self, core: Core) -> u32 {
        let [t0, t1, t2] = self.t_start;
        let [t0_own, t1_own, t2_own, nc_own] = STARTS;
        let (enabled, start, own) = match core {
            Core::B => return 0,
            Core::T0 => (self.t_start_enable & 1, t0, t0_own),
            Core::T1 => (self.t_start_enable & 2, t1, t1_own),
            Core::T2 => (self.t_start_enable & 4, t2, t2_own),
            Core::Nc => (self.nc_start_enable & 1, self.nc_start, nc_own),
        };
        if enabled != 0 { start } else { own }
    }
}

/// A core, in reset or not.
#[derive(Clone, Debug)]
struct CoreState {
    /// While it is not in reset.
    hart: Option<Hart>,
    /// While it is not in reset and has stopped.
    stop: Option<CoreStop>,
    /// True while it jumps to itself: nothing interrupts these cores. Only a reset or a write to the
    /// tile's memory ends that.
    idle: bool,
    local: Vec<u8>,
    /// See [`CoreBus::stored`].
    stored: Option<u32>,
}

/// A tile.
#[derive(Clone, Debug)]
pub(crate) struct Tensix {
    family: &'static Family,
    tile: Tile,
    /// Empty until it is written or executed.
    l1: Vec<u8>,
    cores: [CoreState; 5],
    /// The core that executed last.
    last: Option<Core>,
    /// How many instructions its cores have executed.
    instructions: u64,
    engine: EngineSlot,
    pub(crate) control: CoreControl,
    /// True if its reset register is broken: writes of the network to it are lost.
    pub(crate) stuck: bool,
    pub(crate) interface: Interface,
}

/// An address in a tile's memory, as an offset of that.
#[expect(clippy::cast_possible_truncation, reason = "it has less than 4 GiB")]
const fn offset(address: u64) -> usize {
    address as usize
}

impl Tensix {
    pub(crate) fn new(family: &'static Family, location: Location) -> Self {
        let own_bytes = |core| match core {
            Core::B | Core::Nc => family.own_bytes.0,
            Core::T0 | Core::T1 | Core::T2 => family.own_bytes.1,
        };
        let core = |core: Core| CoreState {
            hart: None,
            stop: None,
            idle: false,
            local: vec![0; own_bytes(core)],
            stored: None,
        };
        Self {
            family,
            tile: location.tile,
            l1: Vec::new(),
            cores: Core::ALL.map(core),
            last: None,
            instructions: 0,
            engine: EngineSlot::new(location.tile, family.engine),
            control: CoreControl::new(location.tile, &family.starts),
            interface: Interface::new(&family.noc, location),
            stuck: false,
        }
    }

    fn core(&mut self, core: Core) -> &mut CoreState {
        let [b, t0, t1, t2, nc] = &mut self.cores;
        match core {
            Core::B => b,
            Core::T0 => t0,
            Core::T1 => t1,
            Core::T2 => t2,
            Core::Nc => nc,
        }
    }

    /// The reason why a core stopped, if it did.
    pub(crate) fn stopped(&self, core: Core) -> Option<&CoreStop> {
        self.cores.get(core as usize)?.stop.as_ref()
    }

    /// Stops a core until its next reset.
    pub(crate) fn stop(&mut self, core: Core, violation: Violation) {
        let state = self.core(core);
        let pc = state.hart.as_ref().map_or(0, Hart::pc);
        state.stop.get_or_insert(CoreStop::Violation(pc, violation));
    }

    /// True if a core would execute anything.
    pub(crate) fn is_running(&self) -> bool {
        self.cores.iter().any(|core| core.hart.is_some() && core.stop.is_none() && !core.idle)
    }

    /// Its counts.
    pub(crate) fn counts(&self) -> ChipCounts {
        let engine = self.engine.used().map(Engine::counts).unwrap_or_default();
        ChipCounts { instructions: self.instructions, engine, ..self.interface.counts() }
    }

    /// How many cores are not in reset.
    pub(crate) fn released(&self) -> usize {
        self.cores.iter().filter(|core| core.hart.is_some()).count()
    }

    /// Resets and starts the cores as the register says.
    pub(crate) fn apply_resets(&mut self) {
        let isa = self.family.isa;
        for core in Core::ALL {
            let held = self.control.soft_reset & core.reset_bit() != 0;
            let start = self.control.start(core);
            let is_held = self.core(core).hart.is_none();
            let engine = self.engine.used_mut();
            match (engine, held, is_held) {
                (Some(engine), true, false) => engine.hold(core),
                (Some(engine), false, true) => engine.release(),
                _ => {}
            }
            let state = self.core(core);
            match (held, &state.hart) {
                (true, _) => {
                    (state.hart, state.stop, state.idle, state.stored) = (None, None, false, None);
                }
                (false, Some(_)) => {}
                (false, None) => state.hart = Some(Hart::new(isa, start)),
            }
        }
    }

    /// Lets a core execute at most this many instructions: fewer, if it requests a transfer or writes a
    /// register that controls cores. Returns how many it executed.
    pub(crate) fn run(&mut self, core: Core, budget: u64) -> u64 {
        let [b, t0, t1, t2, nc] = &mut self.cores;
        let state = match core {
            Core::B => b,
            Core::T0 => t0,
            Core::T1 => t1,
            Core::T2 => t2,
            Core::Nc => nc,
        };
        let (Some(hart), None, false) = (&mut state.hart, &state.stop, state.idle) else { return 0 };
        if self.l1.is_empty() {
            match zeros(self.family.l1_bytes as usize) {
                Ok(memory) => self.l1 = memory,
                Err(violation) => {
                    state.stop = Some(CoreStop::Violation(hart.pc(), violation));
                    return 0;
                }
            }
        }
        let mut bus = CoreBus {
            core,
            l1: &mut self.l1,
            local: &mut state.local,
            control: &mut self.control,
            interface: &mut self.interface,
            engine: &mut self.engine,
            stored: state.stored,
            violation: None,
        };
        let before = hart.executed();
        // It was notified of writes by the network, but not of writes by other cores.
        let alone = self.last == Some(core);
        let outcome = if alone { hart.resume(&mut bus, budget) } else { hart.run(&mut bus, budget) };
        self.last = Some(core);
        let violation = bus.violation;
        state.stored = bus.stored;
        let done = hart.executed() - before;
        self.instructions += done;
        state.idle = outcome == RunOutcome::Idle;
        state.stop = match (outcome, violation) {
            (RunOutcome::Budget | RunOutcome::Pause | RunOutcome::Wait | RunOutcome::Idle, _) => None,
            (RunOutcome::Call | RunOutcome::Break, _) => Some(CoreStop::Paused(hart.pc())),
            (RunOutcome::Trap(trap), Some(violation)) => Some(CoreStop::Violation(trap.pc, violation)),
            (RunOutcome::Trap(trap), None) => Some(CoreStop::Trap(trap)),
        };
        if let Some(written) = self.engine.used_mut().and_then(Engine::take_written) {
            self.changed(written);
        }
        done
    }

    /// Tells the cores that other agents than they wrote memory.
    #[expect(clippy::cast_possible_truncation, reason = "offsets and lengths of this memory have 32 bits")]
    fn changed(&mut self, written: Range<u64>) {
        let (start, length) = (written.start as u32, (written.end - written.start) as u32);
        for core in &mut self.cores {
            core.idle = false;
            if let Some(hart) = &mut core.hart {
                hart.changed(start, length);
            }
        }
    }

    /// The network coordinates.
    pub(crate) fn place(&self) -> Tile {
        self.tile
    }

    /// Reads memory or registers, from the network.
    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Violation> {
        let unmapped = Violation::Unmapped { tile: self.tile, address, length: bytes.len() };
        if self.in_l1(address, bytes.len()) {
            let start = offset(address);
            match self.l1.get(start..).and_then(|rest| rest.get(..bytes.len())) {
                Some(found) => bytes.copy_from_slice(found),
                // It has no memory before the first write.
                None => bytes.fill(0),
            }
            return Ok(());
        }
        let value = match bytes.len() {
            4 => self.register(address),
            _ => None,
        };
        bytes.copy_from_slice(&value.ok_or(unmapped)?.to_le_bytes());
        Ok(())
    }

    fn register(&mut self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(INTERFACE).filter(|&offset| offset < INTERFACE_BYTES);
        match offset {
            Some(offset) => self.interface.setting(u32::try_from(offset).ok()?),
            None => self.control.read(address, None),
        }
    }

    /// Writes memory or registers, from the network.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Violation> {
        if self.in_l1(address, bytes.len()) {
            if self.l1.is_empty() {
                self.l1 = zeros(self.family.l1_bytes as usize)?;
            }
            let start = offset(address);
            #[expect(
                clippy::indexing_slicing,
                reason = "the access is in this memory, and the memory is there"
            )]
            self.l1[start..start + bytes.len()].copy_from_slice(bytes);
            self.changed(address..address + bytes.len() as u64);
            return Ok(());
        }
        let unmapped = Violation::Unmapped { tile: self.tile, address, length: bytes.len() };
        let value = bytes.try_into().map(u32::from_le_bytes);
        let Ok(value) = value else { return Err(unmapped) };
        if self.stuck && address == SOFT_RESET {
            return Ok(());
        }
        self.control.write(address, None, value).ok_or(unmapped)??;
        self.apply_resets();
        Ok(())
    }

    /// Refuses a transfer between memory and the network that is not in order with the matrix engine.
    pub(crate) fn check_transfer(&self, transfer: &NocTransfer) -> Result<(), Violation> {
        let NocTransfer { local_address, length, write, .. } = *transfer;
        let range = local_address..local_address.saturating_add(length.into());
        self.engine.used().map_or(Ok(()), |engine| engine.check_transfer(&range, !write))
    }

    fn in_l1(&self, address: u64, length: usize) -> bool {
        let end = address.checked_add(length as u64);
        end.is_some_and(|end| end <= u64::from(self.family.l1_bytes))
    }
}
