// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Tensix tile: its memory, its five cores and the registers that control them.

use crate::core_bus::CoreBus;
use crate::counts::Counts;
use crate::noc::{Interface, Tile, interface_register};
use crate::violation::Violation;
use tenstorrent_riscv::{Hart, Isa, Outcome, Trap};

/// How much memory a tile has.
pub const L1_BYTES: u32 = 1536 << 10;

/// Registers that control a tile's cores.
pub mod register {
    /// A bit for each core that is held.
    pub const SOFT_RESET: u64 = 0xffb1_21b0;
    /// Where T0, T1 and T2 start.
    pub const T_START: [u64; 3] = [0xffb1_2228, 0xffb1_222c, 0xffb1_2230];
    /// Which of these count: a bit each.
    pub const T_START_ENABLE: u64 = 0xffb1_2234;
    /// Where NC starts.
    pub const NC_START: u64 = 0xffb1_2238;
    /// Whether that counts.
    pub const NC_START_ENABLE: u64 = 0xffb1_223c;
}

/// Where a tile's own interface to the network is.
pub(crate) const INTERFACE: u64 = 0xffb2_0000;
/// How long it is.
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

    /// Its bit in [`register::SOFT_RESET`].
    pub const fn reset_bit(self) -> u32 {
        match self {
            Core::B => 1 << 11,
            Core::T0 => 1 << 12,
            Core::T1 => 1 << 13,
            Core::T2 => 1 << 14,
            Core::Nc => 1 << 18,
        }
    }

    /// How much memory of its own it has.
    const fn local_bytes(self) -> usize {
        match self {
            Core::B | Core::Nc => 8 << 10,
            Core::T0 | Core::T1 | Core::T2 => 4 << 10,
        }
    }
}

/// All cores held.
const ALL_HELD: u32 = Core::B.reset_bit()
    | Core::T0.reset_bit()
    | Core::T1.reset_bit()
    | Core::T2.reset_bit()
    | Core::Nc.reset_bit();

/// Why a core does not go on until it is reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An instruction that cannot be executed.
    Trap(Trap),
    /// An `ecall` or `ebreak` before this address. Hardware waits for a debugger.
    Paused(u32),
    /// A rule that it broke, at about this address.
    Violation(u32, Violation),
}

/// What the cores' resets and starts are set to.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) soft_reset: u32,
    t_start: [u32; 3],
    t_start_enable: u32,
    nc_start: u32,
    nc_start_enable: u32,
}

impl Control {
    fn new() -> Self {
        Self { soft_reset: ALL_HELD, t_start: [0; 3], t_start_enable: 0, nc_start: 0, nc_start_enable: 0 }
    }

    /// The register at an address.
    pub(crate) fn register(&mut self, address: u64) -> Option<&mut u32> {
        let [t0, t1, t2] = &mut self.t_start;
        match address {
            register::SOFT_RESET => Some(&mut self.soft_reset),
            _ if address == register::T_START[0] => Some(t0),
            _ if address == register::T_START[1] => Some(t1),
            _ if address == register::T_START[2] => Some(t2),
            register::T_START_ENABLE => Some(&mut self.t_start_enable),
            register::NC_START => Some(&mut self.nc_start),
            register::NC_START_ENABLE => Some(&mut self.nc_start_enable),
            _ => None,
        }
    }

    /// Where a core starts, if that was said.
    fn start(&self, core: Core) -> Option<u32> {
        let [t0, t1, t2] = self.t_start;
        let enabled = |bits: u32, bit: u32| bits >> bit & 1 == 1;
        match core {
            Core::B => Some(0),
            Core::T0 => enabled(self.t_start_enable, 0).then_some(t0),
            Core::T1 => enabled(self.t_start_enable, 1).then_some(t1),
            Core::T2 => enabled(self.t_start_enable, 2).then_some(t2),
            Core::Nc => enabled(self.nc_start_enable, 0).then_some(self.nc_start),
        }
    }
}

/// A core, held or not.
#[derive(Clone, Debug)]
struct CoreState {
    /// While it is not held.
    hart: Option<Hart>,
    /// While it is not held and does not go on.
    stop: Option<Stop>,
    /// Whether it jumps to itself, for ever: nothing interrupts these cores. Only a reset or a write to the tile's memory ends that.
    parked: bool,
    local: Vec<u8>,
}

/// A tile.
#[derive(Clone, Debug)]
pub(crate) struct Tensix {
    tile: Tile,
    /// Empty until it is written or executed.
    l1: Vec<u8>,
    cores: [CoreState; 5],
    /// Which core executed last.
    last: Option<Core>,
    /// How many instructions its cores have executed.
    instructions: u64,
    pub(crate) control: Control,
    /// Whether its cores' resets are out of order: what the network writes there is lost.
    pub(crate) stuck: bool,
    pub(crate) interface: Interface,
}

impl Tensix {
    pub(crate) fn new(tile: Tile) -> Self {
        let core = |core: Core| CoreState {
            hart: None,
            stop: None,
            parked: false,
            local: vec![0; core.local_bytes()],
        };
        Self {
            tile,
            l1: Vec::new(),
            cores: Core::ALL.map(core),
            last: None,
            instructions: 0,
            control: Control::new(),
            stuck: false,
            interface: Interface::default(),
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

    /// Why a core stopped, if it did.
    pub(crate) fn stopped(&self, core: Core) -> Option<&Stop> {
        self.cores.get(core as usize)?.stop.as_ref()
    }

    /// Stops a core until its next reset.
    pub(crate) fn stop(&mut self, core: Core, violation: Violation) {
        let state = self.core(core);
        let pc = state.hart.as_ref().map_or(0, Hart::pc);
        state.stop.get_or_insert(Stop::Violation(pc, violation));
    }

    /// Whether a core would execute anything.
    pub(crate) fn is_running(&self) -> bool {
        self.cores.iter().any(|core| core.hart.is_some() && core.stop.is_none() && !core.parked)
    }

    /// What it has done.
    pub(crate) fn counts(&self) -> Counts {
        Counts { instructions: self.instructions, ..self.interface.counts() }
    }

    /// How many cores are not held.
    pub(crate) fn released(&self) -> usize {
        self.cores.iter().filter(|core| core.hart.is_some()).count()
    }

    /// Holds and lets go the cores as the register says.
    pub(crate) fn apply_resets(&mut self) {
        for core in Core::ALL {
            let held = self.control.soft_reset & core.reset_bit() != 0;
            let start = self.control.start(core);
            let state = self.core(core);
            match (held, &state.hart) {
                (true, _) => (state.hart, state.stop, state.parked) = (None, None, false),
                (false, Some(_)) => {}
                (false, None) => {
                    state.hart = Some(Hart::new(Isa::Blackhole, start.unwrap_or(0)));
                    state.stop = start.is_none().then_some(Stop::Violation(0, Violation::NoStart(core)));
                }
            }
        }
    }

    /// Lets a core execute at most so many instructions: fewer, where it has something done by the network or by the registers that
    /// control cores. How many it did.
    pub(crate) fn run(&mut self, core: Core, budget: u64) -> u64 {
        let [b, t0, t1, t2, nc] = &mut self.cores;
        let state = match core {
            Core::B => b,
            Core::T0 => t0,
            Core::T1 => t1,
            Core::T2 => t2,
            Core::Nc => nc,
        };
        let (Some(hart), None, false) = (&mut state.hart, &state.stop, state.parked) else { return 0 };
        if self.l1.is_empty() {
            self.l1.resize(L1_BYTES as usize, 0);
        }
        let mut bus = CoreBus {
            core,
            tile: self.tile,
            l1: &mut self.l1,
            local: &mut state.local,
            control: &mut self.control,
            interface: &mut self.interface,
            violation: None,
        };
        let before = hart.executed();
        // What the network wrote it was told; what other cores did it was not.
        let alone = self.last == Some(core);
        let outcome = if alone { hart.resume(&mut bus, budget) } else { hart.run(&mut bus, budget) };
        self.last = Some(core);
        let violation = bus.violation;
        let done = hart.executed() - before;
        self.instructions += done;
        state.parked = outcome == Outcome::Idle;
        state.stop = match (outcome, violation) {
            (Outcome::Budget | Outcome::Pause | Outcome::Idle, _) => None,
            (Outcome::Call | Outcome::Break, _) => Some(Stop::Paused(hart.pc())),
            (Outcome::Trap(trap), Some(violation)) => Some(Stop::Violation(trap.pc, violation)),
            (Outcome::Trap(trap), None) => Some(Stop::Trap(trap)),
        };
        done
    }

    /// Reads memory or registers, from the network.
    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Violation> {
        let unmapped = Violation::Unmapped { tile: self.tile, address, length: bytes.len() };
        if in_l1(address, bytes.len()) {
            let start = usize::try_from(address).unwrap_or(usize::MAX);
            match self.l1.get(start..).and_then(|rest| rest.get(..bytes.len())) {
                Some(found) => bytes.copy_from_slice(found),
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
            Some(offset) => interface_register(self.tile, u32::try_from(offset).ok()?),
            None => self.control.register(address).copied(),
        }
    }

    /// Writes memory or registers, from the network.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Violation> {
        if in_l1(address, bytes.len()) {
            if self.l1.is_empty() {
                self.l1.resize(L1_BYTES as usize, 0);
            }
            let start = usize::try_from(address).unwrap_or(usize::MAX);
            if let Some(place) = self.l1.get_mut(start..).and_then(|rest| rest.get_mut(..bytes.len())) {
                place.copy_from_slice(bytes);
            }
            let (changed, length) = (word(start), word(bytes.len()));
            for core in &mut self.cores {
                core.parked = false;
                if let Some(hart) = &mut core.hart {
                    hart.changed(changed, length);
                }
            }
            return Ok(());
        }
        let unmapped = Violation::Unmapped { tile: self.tile, address, length: bytes.len() };
        let value = bytes.try_into().map(u32::from_le_bytes);
        let (Ok(value), Some(register)) = (value, self.control.register(address)) else {
            return Err(unmapped);
        };
        if self.stuck && address == register::SOFT_RESET {
            return Ok(());
        }
        *register = value;
        self.apply_resets();
        Ok(())
    }
}

/// A number that is at most as large as a tile's memory.
fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(L1_BYTES)
}

fn in_l1(address: u64, length: usize) -> bool {
    address.checked_add(length as u64).is_some_and(|end| end <= u64::from(L1_BYTES))
}
