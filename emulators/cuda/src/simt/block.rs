// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Blocks of a grid, one after the other.

use super::access::{Memory, View};
use super::warp::{Pause, Warp};
use super::{Fault, LANES, Launch, Trap};
use crate::ptx::Kernel;
use crate::ptx::instruction::{Class, Constant, Special};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A barrier at which some threads wait for others that have returned.
const LEFT: &str = "a barrier that some threads of the block returned without";
/// A barrier that is not aligned.
const DIVIDED: &str = "different barriers in one warp or block";

/// What a launch's warps share.
pub(super) struct Context<'a, 'm> {
    pub(super) kernel: &'a Kernel,
    pub(super) parameters: &'a [u8],
    pub(super) view: View<'m>,
    /// Instructions of warps so far.
    pub(super) steps: u64,
    pub(super) budget: u64,
    pub(super) stop: &'a AtomicBool,
    /// At how many instructions the two are looked at next.
    pub(super) look_at: u64,
}

impl Context<'_, '_> {
    /// Whether the launch is to be given up; a loop asks this.
    #[cold]
    pub(super) fn give_up(&mut self) -> Option<Fault> {
        self.look_at = self.steps + LOOK;
        if self.stop.load(Relaxed) {
            return Some(Fault::Stopped);
        }
        (self.steps > self.budget).then_some(Fault::Endless)
    }
}

/// Instructions between two looks.
const LOOK: u64 = 1 << 12;

pub(super) fn run(launch: &Launch<'_>, memory: &dyn Memory) -> Result<u64, Trap> {
    let kernel = launch.kernel;
    assert!(launch.parameters.len() >= kernel.parameter_bytes as usize, "parameters are missing");
    let shared = kernel.shared_bytes.saturating_add(launch.dynamic_shared);
    let mut context = Context {
        kernel,
        parameters: launch.parameters,
        view: View::new(memory, kernel, shared),
        steps: 0,
        budget: launch.budget.unwrap_or(u64::MAX),
        stop: launch.stop,
        look_at: 0,
    };
    let threads: u32 = launch.block.iter().product();
    let count = (threads as usize).div_ceil(LANES);
    let mut warps: Vec<Warp> = (0..count).map(|number| Warp::new(kernel, launch, threads, number)).collect();
    let blocks: u64 = launch.grid.iter().map(|&size| u64::from(size)).product();
    let order = Order::new(blocks, launch.seed);
    for number in 0..blocks {
        if launch.stop.load(Relaxed) {
            return Err(trap(launch, Fault::Stopped, order.at(number), None));
        }
        let at = order.at(number);
        run_block(&mut context, &mut warps, position(launch.grid, at))
            .map_err(|(fault, place)| trap(launch, fault, at, place))?;
    }
    Ok(context.steps)
}

/// A fault of a thread, by its number in the block, at an instruction.
type Located = (Fault, Option<(usize, usize)>);

fn run_block(context: &mut Context<'_, '_>, warps: &mut [Warp], block: [u32; 3]) -> Result<(), Located> {
    context.view.forget_shared();
    for warp in warps.iter_mut() {
        warp.begin(context.kernel, block);
    }
    loop {
        let mut waits = false;
        let mut barrier = None;
        for (number, warp) in warps.iter_mut().enumerate() {
            let outcome = warp.run(context);
            match outcome {
                Ok(Pause::Returned) => {}
                Ok(Pause::Barrier(which)) => {
                    waits = true;
                    if *barrier.get_or_insert(which) != which {
                        return Err((Fault::Stuck(DIVIDED), None));
                    }
                }
                Err((fault, lane, pc)) => return Err((fault, Some((number * LANES + lane, pc)))),
            }
        }
        if !waits {
            return Ok(());
        }
        if warps.iter().any(Warp::has_returned) {
            return Err((Fault::Stuck(LEFT), None));
        }
        warps.iter_mut().for_each(Warp::release);
    }
}

fn trap(launch: &Launch<'_>, fault: Fault, block: u64, place: Option<(usize, usize)>) -> Trap {
    let (thread, pc) = place.unwrap_or((0, usize::MAX));
    Trap {
        fault,
        kernel: launch.kernel.name.clone(),
        block: position(launch.grid, block),
        thread: position(launch.block, thread as u64),
        source_line: launch.kernel.sources.get(pc).cloned().unwrap_or_default(),
    }
}

/// The coordinates of a number, in a box of this size.
#[expect(clippy::cast_possible_truncation, reason = "remainders of 32 bits")]
pub(super) fn position(size: [u32; 3], number: u64) -> [u32; 3] {
    let [x, y, _] = size.map(|size| u64::from(size.max(1)));
    [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
}

/// The order of the blocks: `number * step + begin`, modulo their count, with a step without a common divisor.
struct Order {
    count: u64,
    begin: u64,
    step: u64,
}

impl Order {
    fn new(count: u64, seed: u64) -> Self {
        if seed == 0 || count < 2 {
            return Self { count: count.max(1), begin: 0, step: 1 };
        }
        let mixed = crate::random::mix(seed);
        let mut step = (mixed >> 17) % count;
        while greatest_divisor(step, count) != 1 {
            step = (step + 1) % count;
        }
        Self { count, begin: mixed % count, step }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a remainder of 64 bits")]
    fn at(&self, number: u64) -> u64 {
        let product = u128::from(number) * u128::from(self.step) + u128::from(self.begin);
        (product % u128::from(self.count)) as u64
    }
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// What a register of a warp holds from the beginning, for each lane.
pub(super) fn initial(constant: Constant, launch: &Launch<'_>, warp: usize, lane: usize) -> u64 {
    let thread = position(launch.block, (warp * LANES + lane) as u64);
    let axis = |values: [u32; 3], axis: u8| values.get(usize::from(axis)).copied().unwrap_or(0);
    match constant {
        Constant::Bits(bits) => bits,
        Constant::Global(number, offset) => {
            let base = launch.globals.get(number as usize).copied().unwrap_or(0);
            base.wrapping_add_signed(offset)
        }
        Constant::Special(special) => match special {
            Special::Tid(at) => u64::from(axis(thread, at)),
            Special::Ntid(at) => u64::from(axis(launch.block, at)),
            // Set anew for each block.
            Special::Ctaid(_) => 0,
            Special::Nctaid(at) => u64::from(axis(launch.grid, at)),
            Special::LaneId => lane as u64,
            Special::WarpId => warp as u64,
        },
    }
}

/// The registers that change with the block, and the axis that each holds.
pub(super) fn block_registers(kernel: &Kernel) -> Vec<(usize, usize)> {
    let constants = kernel.constants.iter();
    constants
        .filter_map(|(slot, constant)| match (slot.class, constant) {
            (Class::W, Constant::Special(Special::Ctaid(axis))) => {
                Some((slot.index as usize, usize::from(*axis)))
            }
            _ => None,
        })
        .collect()
}
