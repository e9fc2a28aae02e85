// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Questions about a card, many of which are answered in every state. rule(info-in-reset)
//!
//! The emulator answers the questions that a card's firmware would: for a card that is warm, and at work as
//! much as it has to do.

use crate::card::{Card, Context, Status};
use crate::injection;
use crate::machine::{Guard, Machine};
use emulator_core::Process;
use emulator_core::drm::take;
use emulator_core::{Errno, clock};
use hal_gaudi_abi::uapi::{
    DeviceStatus, DramUsage, HwIpInfo, InfoIn, OpenStats, PageSizes, ResetCount, SyncManager, info, status,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// An older kernel's description of the hardware ends with the size of a device-memory page.
const SHORT_INFO: usize = 216;

/// How many sync managers a question can name.
const MANAGERS: u32 = 8;

/// Milliwatts of an idle card, of a card at work, and the limit.
const IDLE_POWER: u64 = 60_000;
const BUSY_POWER: u64 = 200_000;
const MOST_POWER: u64 = 350_000;

/// The status of a card: the number, and the text that sysfs shows.
pub(crate) fn status_of(card: &Card) -> (u32, &'static str) {
    match card.status {
        Status::Operational => (status::OPERATIONAL, "operational"),
        Status::InReset => (status::IN_RESET, "in reset"),
        Status::Releasing => (status::IN_RESET_AFTER_DEVICE_RELEASE, "in reset after device release"),
        Status::Malfunction | Status::Gone => (status::MALFUNCTION, "disabled"),
    }
}

/// Copies a text into an array that ends in a zero.
fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, &letter) in bytes.iter_mut().take(N - 1).zip(text.as_bytes()) {
        *byte = letter;
    }
    bytes
}

/// An answer that consists of words.
fn words<const N: usize>(values: [u64; N]) -> Vec<u8> {
    values.as_bytes().to_vec()
}

fn bytes(value: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    value.as_bytes().to_vec()
}

/// Questions that are answered in every state.
fn is_always_answered(question: u32) -> bool {
    matches!(
        question,
        info::HW_IP_INFO
            | info::DEVICE_STATUS
            | info::RESET_COUNT
            | info::HW_EVENTS
            | info::HW_EVENTS_AGGREGATE
            | info::CS_COUNTERS
            | info::CLK_THROTTLE_REASON
            | info::SYNC_MANAGER
            | info::OPEN_STATS
            | info::LAST_ERR_OPEN_DEV_TIME
            | info::CS_TIMEOUT_EVENT
            | info::RAZWI_EVENT
            | info::UNDEFINED_OPCODE_EVENT
            | info::DEV_MEM_ALLOC_PAGE_SIZES
            | info::GET_EVENTS
            | info::PAGE_FAULT_EVENT
            | info::USER_MAPPINGS
            | info::UNREGISTER_EVENTFD
            | info::HW_ERR_EVENT
            | info::FW_ERR_EVENT
            | info::USER_ENGINE_ERR_EVENT
            | info::DRAM_USAGE
    )
}

/// The least and the greatest size of an answer.
fn room(question: u32) -> std::ops::RangeInclusive<u32> {
    match question {
        info::GET_EVENTS => 8..=u32::MAX,
        info::ENGINE_STATUS => 1024..=1 << 20,
        info::USER_MAPPINGS | info::HW_ERR_EVENT | info::FW_ERR_EVENT | info::USER_ENGINE_ERR_EVENT => {
            0..=u32::MAX
        }
        _ => 1..=u32::MAX,
    }
}

impl Machine {
    /// A question.
    pub(crate) fn info(
        &self,
        process: &dyn Process,
        number: usize,
        control: bool,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let request: InfoIn = take(argument)?;
        let op = request.op;
        if control && matches!(op, info::REGISTER_EVENTFD | info::UNREGISTER_EVENTFD | info::GET_EVENTS) {
            return Err(Errno::OPNOTSUPP);
        }
        if request.pad != 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        if !is_always_answered(op) {
            state.cards[number].ready()?;
        }
        match op {
            info::REGISTER_EVENTFD => return register_eventfd(process, &mut state, number, request.dcore_id),
            info::UNREGISTER_EVENTFD => {
                let context = own(&mut state, number)?;
                return context.notify.take().map(drop).ok_or(Errno::INVAL);
            }
            _ => {}
        }
        if !room(op).contains(&request.return_size) || request.return_pointer == 0 {
            return Err(Errno::INVAL);
        }
        let answer = match op {
            info::USER_MAPPINGS => self.mappings(&state, number, argument, &request)?,
            info::ENGINE_STATUS => self.engine_status(&state, number, argument, &request)?,
            info::HW_ERR_EVENT | info::FW_ERR_EVENT | info::USER_ENGINE_ERR_EVENT => {
                error_event(&state, number, op, request.return_size)?
            }
            _ => self.answer(&mut state, number, &request)?,
        };
        drop(state);
        let room = usize::try_from(request.return_size).map_err(|_| Errno::INVAL)?;
        process.write(request.return_pointer, answer.get(..room.min(answer.len())).unwrap_or_default())
    }

    /// The bytes of an answer.
    fn answer(&self, state: &mut Guard<'_>, number: usize, request: &InfoIn) -> Result<Vec<u8>, Errno> {
        let card = &mut state.cards[number];
        Ok(match request.op {
            info::HW_IP_INFO => {
                let mut answer = bytes(&self.hardware_info(number));
                if card.injections.has(injection::SHORT_INFO) {
                    answer.truncate(SHORT_INFO);
                }
                answer
            }
            info::DRAM_USAGE => {
                let used = card.context.as_ref().map_or(0, |context| context.allocated);
                let free = self.options.dram.saturating_sub(used);
                bytes(&DramUsage { dram_free_mem: free, ctx_dram_mem: used })
            }
            info::DEVICE_STATUS => bytes(&DeviceStatus { status: status_of(card).0, pad: 0 }),
            // rule(reset-count)
            info::RESET_COUNT => bytes(&ResetCount { hard_reset_cnt: card.resets, soft_reset_cnt: 0 }),
            info::SYNC_MANAGER => self.sync_manager(request.dcore_id)?,
            info::OPEN_STATS => bytes(&OpenStats {
                open_counter: card.counts.opens,
                last_open_period_ms: card.last_period,
                is_compute_ctx_active: card.owner.is_some().into(),
                compute_ctx_in_release: card.releasing.into(),
                reserved: [0; 6],
            }),
            // There is only one page size, which is no power of two on the second generation.
            info::DEV_MEM_ALLOC_PAGE_SIZES => bytes(&PageSizes { page_order_bitmask: 0 }),
            info::CS_TIMEOUT_EVENT => bytes(&card.errors.timeout.unwrap_or_default()),
            // Without an error nothing is written. rule(errors-captured)
            info::PAGE_FAULT_EVENT => card.errors.page_fault.as_ref().map_or_else(Vec::new, bytes),
            info::RAZWI_EVENT => Vec::new(),
            info::UNDEFINED_OPCODE_EVENT => undefined_opcode(card),
            info::GET_EVENTS => {
                words([card.context.as_mut().map_or(0, |context| std::mem::take(&mut context.events))])
            }
            info::HW_EVENTS => self.events(card, |[since, _]| since),
            info::HW_EVENTS_AGGREGATE => self.events(card, |[_, ever]| ever),
            info::CS_COUNTERS => counters(card),
            // No card is ever throttled.
            info::CLK_THROTTLE_REASON => words([0; 5]),
            info::LAST_ERR_OPEN_DEV_TIME => words([card.opened_at]),
            info::HW_IDLE => words([is_idle(card).into(), 0, 0, 0, 0]),
            info::DEVICE_UTILIZATION => {
                // rule(utilisation)
                words([(power(card) - IDLE_POWER) * 100 / (MOST_POWER - IDLE_POWER)])
            }
            info::POWER => words([power(card)]),
            // Millijoules.
            info::TOTAL_ENERGY => words([clock() / 1_000_000_000 * IDLE_POWER]),
            info::PLL_FREQUENCY => {
                // rule(pll-index)
                let most = if self.hardware.dram_virtual { 12 } else { 10 };
                if request.dcore_id >= most {
                    return Err(Errno::INVAL);
                }
                bytes(&[800_u16, 400, 200, 100])
            }
            info::PCI_COUNTERS => words([0, card.counts.bytes_moved, 0]),
            info::DRAM_PENDING_ROWS => bytes(&0_u32),
            // The driver has room for one of the rows that were replaced, of all that the firmware knows.
            // rule(info-sizes)
            info::DRAM_REPLACED_ROWS => words([0]),
            info::CLK_RATE => words([1000 << 32 | 1000]),
            info::TIME_SYNC => words([clock(), clock(), 0]),
            _ => return Err(Errno::INVAL),
        })
    }

    /// The program's sync objects: those behind the driver's, which are all in the first manager.
    /// rule(sync-manager)
    fn sync_manager(&self, manager: u32) -> Result<Vec<u8>, Errno> {
        let hardware = self.hardware;
        let [object, monitor, queue] = match manager {
            0 => [hardware.first_sob, hardware.first_monitor, hardware.first_cq],
            1..MANAGERS => [0, 0, hardware.other_cq],
            _ => return Err(Errno::INVAL),
        };
        Ok(bytes(&SyncManager {
            first_available_sync_object: object,
            first_available_monitor: monitor,
            first_available_cq: queue,
            reserved: 0,
        }))
    }

    /// How often each event was reported.
    fn events(&self, card: &Card, which: impl Fn([u32; 2]) -> u32) -> Vec<u8> {
        let count = |number: u32| {
            let counted = u16::try_from(number).ok().and_then(|number| card.events.get(&number));
            counted.map_or(0, |&counted| which(counted))
        };
        (0..self.hardware.events).flat_map(|number| count(number).to_le_bytes()).collect()
    }

    /// The mappings at the time of a page fault. The count is returned in the request.
    fn mappings(
        &self,
        state: &Guard<'_>,
        number: usize,
        argument: &mut [u8],
        request: &InfoIn,
    ) -> Result<Vec<u8>, Errno> {
        let errors = &state.cards[number].errors;
        if errors.page_fault.is_none() {
            return Ok(Vec::new());
        }
        let answer: Vec<u8> =
            errors.mappings.iter().flat_map(|&(address, length)| words([address, length])).collect();
        say_count(argument, errors.mappings.len());
        if (request.return_size as usize) < answer.len() {
            return Err(Errno::NOMEM);
        }
        Ok(answer)
    }

    /// The state of the engines, for people. The length is returned in the request.
    fn engine_status(
        &self,
        state: &Guard<'_>,
        number: usize,
        argument: &mut [u8],
        request: &InfoIn,
    ) -> Result<Vec<u8>, Errno> {
        let card = &state.cards[number];
        let mut text = "queue  is_idle\n-----  -------\n".to_owned();
        for queue in 0..self.hardware.queues {
            let what = card.context.as_ref().and_then(|context| context.queues.get(&queue));
            let is_busy = what.is_some_and(|what| what.running || !what.items.is_empty());
            text.push_str(&format!("{queue:<7}{}\n", if is_busy { 'N' } else { 'Y' }));
        }
        // rule(engine-status)
        if text.len() > request.return_size as usize {
            return Err(Errno::NOMEM);
        }
        say_count(argument, text.len());
        Ok(text.into_bytes())
    }

    fn hardware_info(&self, number: usize) -> HwIpInfo {
        let hardware = self.hardware;
        HwIpInfo {
            sram_base_address: hardware.sram_base + hardware.sram_reserved,
            dram_base_address: hardware.dram_base(self.options.dram),
            dram_size: self.options.dram,
            sram_size: u32::try_from(hardware.sram_size - hardware.sram_reserved).unwrap_or(u32::MAX),
            num_of_events: hardware.events,
            device_id: hardware.device.into(),
            module_id: u32::try_from(number).unwrap_or(0),
            decoder_enabled_mask: if hardware.dram_virtual { 0x3FF } else { 0 },
            first_available_interrupt_id: hardware.first_interrupt,
            tpc_enabled_mask: 0xFF,
            dram_enabled: 1,
            mme_master_slave_mode: hardware.master_slave,
            cpucp_version: text("emulator"),
            card_name: text(hardware.card_name),
            tpc_enabled_mask_ext: hardware.tpc_mask,
            dram_page_size: hardware.dram_page,
            edma_enabled_mask: hardware.edma_mask,
            number_of_user_interrupts: hardware.interrupts,
            device_mem_alloc_default_page_size: hardware.dram_page,
            tpc_interrupt_id: hardware.tpc_interrupt,
            rotator_enabled_mask: hardware.rotator_mask,
            reserved_dram_size: hardware.dram_reserved,
            ..HwIpInfo::new_zeroed()
        }
    }
}

/// Returns a count in place of the request's own parameter.
fn say_count(argument: &mut [u8], count: usize) {
    if let Some(place) = argument.get_mut(16..20) {
        place.copy_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// An error of the hardware, the firmware or an engine; without one nothing is written. rule(errors-captured)
fn error_event(state: &Guard<'_>, number: usize, question: u32, room: u32) -> Result<Vec<u8>, Errno> {
    let errors = &state.cards[number].errors;
    match errors.engine.filter(|_| question == info::USER_ENGINE_ERR_EVENT) {
        None => Ok(Vec::new()),
        Some(_) if room < 16 => Err(Errno::NOMEM),
        Some((stamp, engine)) => Ok(words([stamp, u64::from(engine) | 1 << 16])),
    }
}

/// The time of an unknown operation, and the stream and engine that met it.
fn undefined_opcode(card: &Card) -> Vec<u8> {
    let (stamp, queue) = card.errors.undefined.unwrap_or_default();
    // Behind the time are the addresses of the streams, which are not reported; then the engine and its stream.
    let mut answer = words([0; 36]);
    let places = [(0, stamp), (280, u64::from(queue / 4) | u64::from(queue % 4) << 32)];
    for (at, value) in places {
        if let Some(place) = answer.get_mut(at..at + 8) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }
    answer
}

/// Why submissions were refused, and how often: of all programs, and of the one that has the card open.
/// rule(cs-counters)
fn counters(card: &Card) -> Vec<u8> {
    let (all, own) = (card.drops, card.context.as_ref().map(|context| context.drops).unwrap_or_default());
    words([
        all.memory,
        own.memory,
        all.parsing,
        own.parsing,
        all.full,
        own.full,
        all.in_reset,
        own.in_reset,
        all.in_flight,
        own.in_flight,
        all.validation,
        own.validation,
    ])
}

fn is_idle(card: &Card) -> bool {
    card.running == 0 && card.context.as_ref().is_none_or(|context| !context.is_busy())
}

/// The power that the card takes now, in milliwatts.
fn power(card: &Card) -> u64 {
    if is_idle(card) { IDLE_POWER } else { BUSY_POWER }
}

/// Takes the eventfd that notifies a program.
fn register_eventfd(
    process: &dyn Process,
    state: &mut Guard<'_>,
    number: usize,
    descriptor: u32,
) -> Result<(), Errno> {
    let context = own(state, number)?;
    if context.notify.is_some() {
        return Err(Errno::INVAL);
    }
    let file = process.descriptor(i32::try_from(descriptor).map_err(|_| Errno::BADF)?)?;
    if !is_eventfd(&file) {
        return Err(Errno::INVAL);
    }
    context.notify = Some(file);
    Ok(())
}

/// The context of a card, for its owner.
fn own<'a>(state: &'a mut Guard<'_>, number: usize) -> Result<&'a mut Context, Errno> {
    state.cards[number].context.as_mut().ok_or(Errno::NODEV)
}

fn is_eventfd(file: &OwnedFd) -> bool {
    let number = file.as_fd().as_raw_fd();
    std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))
        .is_ok_and(|text| text.lines().any(|line| line.starts_with("eventfd-count:")))
}
