//! Questions about a card, most of which are answered in every state.

use crate::card::{Card, Context, Status};
use crate::fault;
use crate::machine::{Guard, Machine};
use hal_emulation::Process;
use hal_emulation::drm::take;
use hal_emulation::{Errno, clock};
use hal_gaudi_abi::uapi::{
    DeviceStatus, DramUsage, HwIpInfo, InfoIn, OpenStats, PageSizes, ResetCount, SyncManager, info, status,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::{FromZeros, IntoBytes};

/// How much of the hardware's description an older kernel knows: up to the size of a page of device memory.
const SHORT_INFO: usize = 216;

/// What the numbers say, and what sysfs does.
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

/// An answer made of words.
fn words<const N: usize>(values: [u64; N]) -> Vec<u8> {
    values.as_bytes().to_vec()
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
        if request.pad != 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        match request.op {
            info::REGISTER_EVENTFD | info::UNREGISTER_EVENTFD | info::GET_EVENTS if control => {
                return Err(Errno::OPNOTSUPP);
            }
            info::REGISTER_EVENTFD => {
                return self.register_eventfd(process, &mut state, number, request.dcore_id);
            }
            info::UNREGISTER_EVENTFD => {
                let context = own(&mut state, number)?;
                return context.notify.take().map(drop).ok_or(Errno::INVAL);
            }
            _ => {}
        }
        if request.return_size == 0 || request.return_pointer == 0 {
            return Err(Errno::INVAL);
        }
        let answer = self.answer(&mut state, number, request.op)?;
        drop(state);
        let room = usize::try_from(request.return_size).map_err(|_| Errno::INVAL)?;
        process.write(request.return_pointer, answer.get(..room.min(answer.len())).unwrap_or_default())
    }

    /// Takes the descriptor that a program wants to be told by.
    fn register_eventfd(
        &self,
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

    /// The bytes of an answer.
    fn answer(&self, state: &mut Guard<'_>, number: usize, question: u32) -> Result<Vec<u8>, Errno> {
        let card = state.cards.get_mut(number).ok_or(Errno::NODEV)?;
        let always = matches!(
            question,
            info::HW_IP_INFO
                | info::DRAM_USAGE
                | info::DEVICE_STATUS
                | info::RESET_COUNT
                | info::SYNC_MANAGER
                | info::OPEN_STATS
                | info::CS_TIMEOUT_EVENT
                | info::GET_EVENTS
                | info::UNDEFINED_OPCODE_EVENT
                | info::PAGE_FAULT_EVENT
                | info::DEV_MEM_ALLOC_PAGE_SIZES
        );
        let known = always || matches!(question, info::HW_IDLE | info::CLK_RATE | info::TIME_SYNC);
        if !known {
            return Err(Errno::INVAL);
        }
        if !always {
            card.ready()?;
        }
        Ok(match question {
            info::HW_IP_INFO => {
                let mut bytes = self.hardware_info(number).as_bytes().to_vec();
                if card.faults.has(fault::SHORT_INFO) {
                    bytes.truncate(SHORT_INFO);
                }
                bytes
            }
            info::DRAM_USAGE => {
                let used = card.context.as_ref().map_or(0, |context| context.allocated);
                let free = self.options.dram.saturating_sub(used);
                DramUsage { dram_free_mem: free, ctx_dram_mem: used }.as_bytes().to_vec()
            }
            info::DEVICE_STATUS => DeviceStatus { status: status_of(card).0, pad: 0 }.as_bytes().to_vec(),
            info::RESET_COUNT => {
                let hard = u32::try_from(card.counts.hard_resets).unwrap_or(u32::MAX);
                ResetCount { hard_reset_cnt: hard, soft_reset_cnt: card.soft_resets }.as_bytes().to_vec()
            }
            info::SYNC_MANAGER => SyncManager {
                first_available_sync_object: self.hardware.first_sob,
                first_available_monitor: self.hardware.first_monitor,
                first_available_cq: self.hardware.first_cq,
                reserved: 0,
            }
            .as_bytes()
            .to_vec(),
            info::OPEN_STATS => OpenStats {
                open_counter: card.counts.opens,
                last_open_period_ms: card.last_period,
                is_compute_ctx_active: card.owner.is_some().into(),
                compute_ctx_in_release: card.releasing.into(),
                reserved: [0; 6],
            }
            .as_bytes()
            .to_vec(),
            info::DEV_MEM_ALLOC_PAGE_SIZES => {
                // Nobody can choose: there is one size, which is no power of two on the second generation.
                PageSizes { page_order_bitmask: 0 }.as_bytes().to_vec()
            }
            info::CS_TIMEOUT_EVENT => {
                let found = card.context.as_ref().and_then(|context| context.timeout);
                found.unwrap_or_default().as_bytes().to_vec()
            }
            info::PAGE_FAULT_EVENT => {
                let found = card.context.as_ref().and_then(|context| context.page_fault);
                found.unwrap_or_default().as_bytes().to_vec()
            }
            info::UNDEFINED_OPCODE_EVENT => {
                let found = card.context.as_ref().and_then(|context| context.undefined);
                let (stamp, queue) = found.unwrap_or_default();
                // Behind the time, where the streams were, which is not told; then the engine and its stream.
                let mut answer = words([0; 36]);
                let places = [(0, stamp), (280, u64::from(queue / 4) | u64::from(queue % 4) << 32)];
                for (at, value) in places {
                    if let Some(place) = answer.get_mut(at..at + 8) {
                        place.copy_from_slice(&value.to_le_bytes());
                    }
                }
                answer
            }
            info::GET_EVENTS => {
                let events = card.context.as_mut().map_or(0, |context| std::mem::take(&mut context.events));
                words([events])
            }
            info::HW_IDLE => {
                let idle =
                    card.running == 0 && card.context.as_ref().is_none_or(|context| !context.is_busy());
                words([idle.into(), 0, 0, 0, 0])
            }
            info::CLK_RATE => words([0]),
            _ => {
                let host = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                words([clock(), u64::try_from(host.as_nanos()).unwrap_or(u64::MAX), 0])
            }
        })
    }

    fn hardware_info(&self, number: usize) -> HwIpInfo {
        let hardware = self.hardware;
        HwIpInfo {
            sram_base_address: hardware.sram_base + hardware.sram_reserved,
            dram_base_address: hardware.dram_base,
            dram_size: self.options.dram,
            sram_size: u32::try_from(hardware.sram_size - hardware.sram_reserved).unwrap_or(u32::MAX),
            device_id: hardware.device,
            module_id: u32::try_from(number).unwrap_or(0),
            dram_enabled: 1,
            cpucp_version: text("emulator"),
            card_name: text(hardware.card_name),
            tpc_enabled_mask: 0xFF,
            tpc_enabled_mask_ext: if hardware.dram_virtual { (1 << 24) - 1 } else { 0xFF },
            dram_page_size: hardware.dram_page,
            edma_enabled_mask: hardware.edma_mask,
            device_mem_alloc_default_page_size: hardware.dram_page,
            ..HwIpInfo::new_zeroed()
        }
    }
}

/// The context of a card, for its owner.
fn own<'a>(state: &'a mut Guard<'_>, number: usize) -> Result<&'a mut Context, Errno> {
    state.cards.get_mut(number).and_then(|card| card.context.as_mut()).ok_or(Errno::NODEV)
}

fn is_eventfd(file: &OwnedFd) -> bool {
    let number = file.as_fd().as_raw_fd();
    std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))
        .is_ok_and(|text| text.lines().any(|line| line.starts_with("eventfd-count:")))
}
