// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An open card's description of itself, for people and for reports.

use crate::device::GaudiDevice;
use crate::generation::{Capabilities, Generation};
use crate::ipc::Way;
use crate::kmd::uapi::{Abi, DramUsage, OpenStats, PageSizes, ResetCount, info};
use hal_backend::Failure;
use std::fmt;

/// The description of an open card.
#[derive(Clone, Debug)]
pub struct Info {
    /// The path that it was opened by.
    pub node: String,
    /// True for an emulated card.
    pub emulated: bool,
    /// Its generation.
    pub generation: Generation,
    /// Its name on the card.
    pub card: String,
    /// Its firmware.
    pub firmware: String,
    /// Which numbers its driver listens to.
    pub abi: Abi,
    /// The state that it is in.
    pub state: &'static str,
    /// Resets since its driver was loaded: of everything, and of the engines alone.
    pub resets: (u32, u32),
    /// How often it was opened.
    pub opened: u64,
    /// Bytes of device memory: all, and free.
    pub memory: (u64, u64),
    /// Pages of device memory, as sizes that can be asked for.
    pub pages: Vec<u64>,
    /// How many submissions may be in flight.
    pub in_flight: usize,
    /// How it reaches memory of other cards, or why it does not.
    pub sharing: Result<Way, Failure>,
}

/// Text of the kernel's, up to its end.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).trim().to_owned()
}

impl GaudiDevice {
    /// Asks the card for its identity and its state. Answers that an older driver lacks stay zero or empty.
    pub fn info(&self) -> Info {
        let card = self.card();
        let hardware = card.hardware();
        let resets = card.info::<ResetCount>(info::RESET_COUNT).unwrap_or_default();
        let usage = card.info::<DramUsage>(info::DRAM_USAGE).unwrap_or_default();
        let pages = card.info::<PageSizes>(info::DEV_MEM_ALLOC_PAGE_SIZES).unwrap_or_default();
        let mut pages: Vec<u64> =
            (0..64).filter(|bit| pages.page_order_bitmask >> bit & 1 == 1).map(|bit| 1 << bit).collect();
        if pages.is_empty() && hardware.dram_page_size > 0 {
            pages.push(hardware.dram_page_size);
        }
        Info {
            node: card.name().to_owned(),
            emulated: self.is_emulated(),
            generation: card.generation(),
            card: text(&hardware.card_name),
            firmware: text(&hardware.cpucp_version),
            abi: card.abi(),
            state: card.state(),
            resets: (resets.hard_reset_cnt, resets.soft_reset_cnt),
            opened: card.info::<OpenStats>(info::OPEN_STATS).unwrap_or_default().open_counter,
            memory: (hardware.dram_size, usage.dram_free_mem),
            pages,
            in_flight: card.generation().in_flight(),
            sharing: self.ipc().way(),
        }
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.emulated { "emulated " } else { "" };
        let abi = match self.abi {
            Abi::Drm => "DRM numbers",
            Abi::Old => "old numbers, of type 'H'",
        };
        writeln!(f, "card:       {what}{} ({}), {}", self.generation, self.card, self.node)?;
        writeln!(f, "driver:     habanalabs, {abi}; firmware {}", self.firmware)?;
        writeln!(f, "state:      {}", self.state)?;
        writeln!(
            f,
            "resets:     {} hard, {} soft; opened {} times",
            self.resets.0, self.resets.1, self.opened
        )?;
        let mib = |bytes: u64| bytes >> 20;
        let pages: Vec<String> = self.pages.iter().map(|&page| format!("{} MiB", mib(page))).collect();
        let (all, free) = (mib(self.memory.0), mib(self.memory.1));
        writeln!(f, "memory:     {all} MiB, {free} MiB free, in pages of {}", pages.join(" or "))?;
        writeln!(f, "in flight:  {} submissions", self.in_flight)?;
        match &self.sharing {
            Ok(way) => writeln!(f, "sharing:    memory of other cards is {way}"),
            Err(failure) => writeln!(f, "sharing:    not possible: {}", failure.message()),
        }
    }
}
