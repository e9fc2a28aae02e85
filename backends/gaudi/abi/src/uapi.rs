// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The bytes of the habanalabs kernel interface: request numbers, structures, constants.
//!
//! The kernel's argument types are unions; here each operation has a structure of its own, as large as the union that
//! it is a member of. Every size and offset is asserted when this is compiled, and compared by a test with
//! `habanalabs.txt`, which a C compiler printed from the headers of Linux 6.12 (those of 6.12.107 and 7.3 agree).
//!
//! Fields are named as the kernel names them, and `reserved` where a member does not use a part of its union: the
//! kernel wants zeros there.

/// Which numbers the kernel's driver listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Abi {
    /// The DRM numbers of upstream kernels since 6.7.
    Drm,
    /// The numbers of type `'H'`, of older kernels and of the vendor's own driver.
    Old,
}

/// The calls of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Questions about the device.
    Info,
    /// Command buffers of the kernel.
    CommandBuffer,
    /// Submissions.
    Submit,
    /// Waits.
    Wait,
    /// Device memory and mappings.
    Memory,
}

/// `_IOWR` of a type, a number and a size.
const fn iowr(kind: u8, number: u8, size: usize) -> u32 {
    assert!(size < 1 << 14);
    #[expect(clippy::cast_possible_truncation, reason = "asserted to fit in the fourteen bits of a request")]
    let size = size as u32;
    3 << 30 | size << 16 | (kind as u32) << 8 | number as u32
}

impl Call {
    /// Every call.
    pub const ALL: [Call; 5] = [Call::Info, Call::CommandBuffer, Call::Submit, Call::Wait, Call::Memory];

    /// How many bytes its argument has.
    pub const fn size(self) -> usize {
        match self {
            Call::Info | Call::CommandBuffer => 24,
            Call::Submit => 48,
            Call::Wait => 56,
            Call::Memory => 40,
        }
    }

    /// The request to make, for a driver with these numbers.
    pub const fn request(self, abi: Abi) -> u32 {
        match abi {
            Abi::Drm => iowr(b'd', 0x40 + self as u8, self.size()),
            Abi::Old => iowr(b'H', 1 + self as u8, self.size()),
        }
    }
}

const _: () = {
    assert!(Call::Info.request(Abi::Drm) == 0xc018_6440);
    assert!(Call::CommandBuffer.request(Abi::Drm) == 0xc018_6441);
    assert!(Call::Submit.request(Abi::Drm) == 0xc030_6442);
    assert!(Call::Wait.request(Abi::Drm) == 0xc038_6443);
    assert!(Call::Memory.request(Abi::Drm) == 0xc028_6444);
    assert!(Call::Info.request(Abi::Old) == 0xc018_4801);
    assert!(Call::Memory.request(Abi::Old) == 0xc028_4805);
};

// The name in `habanalabs.txt` follows the structure's own, then the prefix of its fields there.
hal_kernel::layouts! {
    /// A question: where the answer goes, and which.
    InfoIn = "hl_info_args" "", 24 {
        /// The address of the answer.
        return_pointer: u64 = 0,
        /// How many bytes may be written there.
        return_size: u32 = 8,
        /// The question, one of [`info`].
        op: u32 = 12,
        /// The argument of some questions; a union of one-word members.
        dcore_id: u32 = 16,
        /// Must be zero.
        pad: u32 = 20,
    }

    /// The description of the hardware.
    HwIpInfo = "hl_info_hw_ip_info" "", 304 {
        sram_base_address: u64 = 0,
        dram_base_address: u64 = 8,
        dram_size: u64 = 16,
        sram_size: u32 = 24,
        num_of_events: u32 = 28,
        device_id: u32 = 32,
        module_id: u32 = 36,
        decoder_enabled_mask: u32 = 40,
        first_available_interrupt_id: u16 = 44,
        server_type: u16 = 46,
        cpld_version: u32 = 48,
        psoc_pci_pll_nr: u32 = 52,
        psoc_pci_pll_nf: u32 = 56,
        psoc_pci_pll_od: u32 = 60,
        psoc_pci_pll_div_factor: u32 = 64,
        tpc_enabled_mask: u8 = 68,
        dram_enabled: u8 = 69,
        security_enabled: u8 = 70,
        mme_master_slave_mode: u8 = 71,
        cpucp_version: [u8; 128] = 72,
        card_name: [u8; 16] = 200,
        tpc_enabled_mask_ext: u64 = 216,
        dram_page_size: u64 = 224,
        edma_enabled_mask: u32 = 232,
        number_of_user_interrupts: u16 = 236,
        reserved1: u8 = 238,
        reserved2: u8 = 239,
        reserved3: u64 = 240,
        device_mem_alloc_default_page_size: u64 = 248,
        reserved4: u64 = 256,
        reserved5: u64 = 264,
        reserved6: u32 = 272,
        reserved7: u8 = 276,
        revision_id: u8 = 277,
        tpc_interrupt_id: u16 = 278,
        rotator_enabled_mask: u32 = 280,
        reserved9: u32 = 284,
        engine_core_interrupt_reg_addr: u64 = 288,
        reserved_dram_size: u64 = 296,
    }

    /// How much device memory is free, and how much this context has.
    DramUsage = "hl_info_dram_usage" "", 16 {
        dram_free_mem: u64 = 0,
        ctx_dram_mem: u64 = 8,
    }

    /// The state of the device, one of [`status`].
    DeviceStatus = "hl_info_device_status" "", 8 {
        status: u32 = 0,
        pad: u32 = 4,
    }

    /// How often the device was reset.
    ResetCount = "hl_info_reset_count" "", 8 {
        hard_reset_cnt: u32 = 0,
        soft_reset_cnt: u32 = 4,
    }

    /// Which sync objects a program may use itself.
    SyncManager = "hl_info_sync_manager" "", 16 {
        first_available_sync_object: u32 = 0,
        first_available_monitor: u32 = 4,
        first_available_cq: u32 = 8,
        reserved: u32 = 12,
    }

    /// The user of the device.
    OpenStats = "hl_open_stats_info" "", 24 {
        open_counter: u64 = 0,
        last_open_period_ms: u64 = 8,
        is_compute_ctx_active: u8 = 16,
        compute_ctx_in_release: u8 = 17,
        reserved: [u8; 6] = 18,
    }

    /// The page sizes that device memory can be had in: bit `n` for `1 << n` bytes.
    PageSizes = "hl_info_dev_memalloc_page_sizes" "", 8 {
        page_order_bitmask: u64 = 0,
    }

    /// The last submission that timed out.
    TimeoutEvent = "hl_info_cs_timeout_event" "", 16 {
        timestamp: u64 = 0,
        seq: u64 = 8,
    }

    /// The last access by the device to memory that is not mapped.
    PageFault = "hl_page_fault_info" "", 24 {
        timestamp: u64 = 0,
        addr: u64 = 8,
        engine_id: u16 = 16,
        reserved: [u16; 3] = 18,
    }

    /// An operation on a command buffer of the kernel, one of [`cb`].
    CbIn = "hl_cb_in" "", 24 {
        cb_handle: u64 = 0,
        op: u32 = 8,
        cb_size: u32 = 12,
        ctx_id: u32 = 16,
        flags: u32 = 20,
    }

    /// A handle of a command buffer.
    CbOut = "hl_cb_out" "", 8 {
        cb_handle: u64 = 0,
    }

    /// One command buffer of a submission, and the queue that it is for.
    Chunk = "hl_cs_chunk" "", 64 {
        /// A handle or a device address, as [`chunk::USER_ALLOC_CB`] says; an address of sequence numbers for a wait.
        cb_handle: u64 = 0,
        queue_index: u32 = 8,
        /// Bytes of commands; how many sequence numbers, for a wait.
        cb_size: u32 = 12,
        cs_chunk_flags: u32 = 16,
        collective_engine_id: u32 = 20,
        pad: [u64; 5] = 24,
    }

    /// A submission.
    CsIn = "hl_cs_in" "", 48 {
        chunks_restore: u64 = 0,
        /// The address of the chunks.
        chunks_execute: u64 = 8,
        seq: u64 = 16,
        num_chunks_restore: u32 = 24,
        num_chunks_execute: u32 = 28,
        /// Seconds, with [`cs::CUSTOM_TIMEOUT`].
        timeout: u32 = 32,
        cs_flags: u32 = 36,
        ctx_id: u32 = 40,
        /// Must be zero.
        pad: u32 = 44,
    }

    /// The outcome of a submission.
    CsOut = "hl_cs_out" "", 24 {
        seq: u64 = 0,
        status: u32 = 8,
        sob_base_addr_offset: u32 = 12,
        sob_count_before_submission: u16 = 16,
        reserved: [u16; 3] = 18,
    }

    /// A wait for a submission, or for the first of some.
    WaitIn = "hl_wait_cs_in" "", 56 {
        /// A sequence number; the address of some, with [`wait::MULTI_CS`].
        seq: u64 = 0,
        timeout_us: u64 = 8,
        ctx_id: u32 = 16,
        flags: u32 = 20,
        /// How many, with [`wait::MULTI_CS`].
        seq_arr_len: u8 = 24,
        /// Must be zero.
        pad: [u8; 7] = 25,
        cq_counters_offset: u64 = 32,
        timestamp_handle: u64 = 40,
        timestamp_offset: u64 = 48,
    }

    /// How a wait ended.
    WaitOut = "hl_wait_cs_out" "", 24 {
        status: u32 = 0,
        flags: u32 = 4,
        timestamp_nsec: u64 = 8,
        cs_completion_map: u32 = 16,
        pad: u32 = 20,
    }

    /// Takes device memory.
    MemAlloc = "hl_mem_in" "alloc.", 40 {
        mem_size: u64 = 0,
        page_size: u64 = 8,
        reserved: u64 = 16,
        op: u32 = 24,
        flags: u32 = 28,
        ctx_id: u32 = 32,
        num_of_elements: u32 = 36,
    }

    /// Gives device memory back.
    MemFree = "hl_mem_in" "free.", 40 {
        handle: u64 = 0,
        reserved: [u64; 2] = 8,
        op: u32 = 24,
        flags: u32 = 28,
        ctx_id: u32 = 32,
        num_of_elements: u32 = 36,
    }

    /// Makes device memory addressable.
    MemMapDevice = "hl_mem_in" "map_device.", 40 {
        hint_addr: u64 = 0,
        handle: u64 = 8,
        reserved: u64 = 16,
        op: u32 = 24,
        flags: u32 = 28,
        ctx_id: u32 = 32,
        num_of_elements: u32 = 36,
    }

    /// Makes host memory addressable by the device, with [`mem::USERPTR`].
    MemMapHost = "hl_mem_in" "map_host.", 40 {
        host_virt_addr: u64 = 0,
        hint_addr: u64 = 8,
        mem_size: u64 = 16,
        op: u32 = 24,
        flags: u32 = 28,
        ctx_id: u32 = 32,
        num_of_elements: u32 = 36,
    }

    /// Ends a mapping, whatever it is of.
    MemUnmap = "hl_mem_in" "unmap.", 40 {
        device_virt_addr: u64 = 0,
        reserved: [u64; 2] = 8,
        op: u32 = 24,
        flags: u32 = 28,
        ctx_id: u32 = 32,
        num_of_elements: u32 = 36,
    }

    /// Makes a dma-buf of device memory.
    MemExport = "hl_mem_in" "export_dmabuf_fd.", 40 {
        addr: u64 = 0,
        mem_size: u64 = 8,
        offset: u64 = 16,
        op: u32 = 24,
        /// `O_CLOEXEC` and an access mode.
        flags: u32 = 28,
        ctx_id: u32 = 32,
        num_of_elements: u32 = 36,
    }

    /// Makes an imported dma-buf addressable: only in the vendor's kernel, and not in every one.
    MemRegister = "hl_mem_in" "reg_dmabuf_fd.", 40 {
        fd: u64 = 0,
        length: u64 = 8,
        reserved: u64 = 16,
        op: u32 = 24,
        flags: u32 = 28,
        ctx_id: u32 = 32,
        num_of_elements: u32 = 36,
    }

    /// The result of a memory operation: an address, a handle, or a descriptor in the lower half.
    MemOut = "hl_mem_out" "", 16 {
        handle: u64 = 0,
        reserved: u64 = 8,
    }
}

/// Questions of [`Call::Info`].
pub mod info {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const HW_IP_INFO: u32 = 0;
    pub const HW_EVENTS: u32 = 1;
    pub const DRAM_USAGE: u32 = 2;
    pub const HW_IDLE: u32 = 3;
    pub const DEVICE_STATUS: u32 = 4;
    pub const DEVICE_UTILIZATION: u32 = 6;
    pub const HW_EVENTS_AGGREGATE: u32 = 7;
    pub const CLK_RATE: u32 = 8;
    pub const RESET_COUNT: u32 = 9;
    pub const TIME_SYNC: u32 = 10;
    pub const CS_COUNTERS: u32 = 11;
    pub const PCI_COUNTERS: u32 = 12;
    pub const CLK_THROTTLE_REASON: u32 = 13;
    pub const SYNC_MANAGER: u32 = 14;
    pub const TOTAL_ENERGY: u32 = 15;
    pub const PLL_FREQUENCY: u32 = 16;
    pub const POWER: u32 = 17;
    pub const OPEN_STATS: u32 = 18;
    pub const DRAM_REPLACED_ROWS: u32 = 21;
    pub const DRAM_PENDING_ROWS: u32 = 22;
    pub const LAST_ERR_OPEN_DEV_TIME: u32 = 23;
    pub const CS_TIMEOUT_EVENT: u32 = 24;
    pub const RAZWI_EVENT: u32 = 25;
    pub const DEV_MEM_ALLOC_PAGE_SIZES: u32 = 26;
    pub const REGISTER_EVENTFD: u32 = 28;
    pub const UNREGISTER_EVENTFD: u32 = 29;
    pub const GET_EVENTS: u32 = 30;
    pub const UNDEFINED_OPCODE_EVENT: u32 = 31;
    pub const ENGINE_STATUS: u32 = 32;
    pub const PAGE_FAULT_EVENT: u32 = 33;
    pub const USER_MAPPINGS: u32 = 34;
    pub const HW_ERR_EVENT: u32 = 36;
    pub const FW_ERR_EVENT: u32 = 37;
    pub const USER_ENGINE_ERR_EVENT: u32 = 38;
}

/// Bits of [`info::GET_EVENTS`].
pub mod event {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const UNDEFINED_OPCODE: u64 = 1 << 1;
    pub const DEVICE_RESET: u64 = 1 << 2;
    pub const CS_TIMEOUT: u64 = 1 << 3;
    pub const DEVICE_UNAVAILABLE: u64 = 1 << 4;
    pub const USER_ENGINE_ERROR: u64 = 1 << 5;
    pub const PAGE_FAULT: u64 = 1 << 8;
}

/// States of a device.
pub mod status {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const OPERATIONAL: u32 = 0;
    pub const IN_RESET: u32 = 1;
    pub const MALFUNCTION: u32 = 2;
    pub const NEEDS_RESET: u32 = 3;
    pub const IN_DEVICE_CREATION: u32 = 4;
    pub const IN_RESET_AFTER_DEVICE_RELEASE: u32 = 5;
}

/// Operations on command buffers, and their limits.
pub mod cb {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const CREATE: u32 = 0;
    pub const DESTROY: u32 = 1;
    pub const INFO: u32 = 2;
    pub const FLAG_MAP: u32 = 1;
    pub const FLAG_GET_DEVICE_VA: u32 = 2;
    pub const MAX_SIZE: u32 = 0x20_0000 - 32;
}

/// Flags of a submission, and its limits.
pub mod cs {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const FORCE_RESTORE: u32 = 0x1;
    pub const SIGNAL: u32 = 0x2;
    pub const WAIT: u32 = 0x4;
    pub const COLLECTIVE_WAIT: u32 = 0x8;
    pub const TIMESTAMP: u32 = 0x20;
    pub const STAGED_SUBMISSION: u32 = 0x40;
    pub const STAGED_FIRST: u32 = 0x80;
    pub const STAGED_LAST: u32 = 0x100;
    pub const CUSTOM_TIMEOUT: u32 = 0x200;
    pub const SKIP_RESET_ON_TIMEOUT: u32 = 0x400;
    pub const ENCAP_SIGNALS: u32 = 0x800;
    pub const RESERVE_SIGNALS_ONLY: u32 = 0x1000;
    pub const UNRESERVE_SIGNALS_ONLY: u32 = 0x2000;
    pub const ENGINE_CORE_COMMAND: u32 = 0x4000;
    pub const FLUSH_PCI_HBW_WRITES: u32 = 0x8000;
    pub const ENGINES_COMMAND: u32 = 0x10000;
    pub const MAX_CHUNKS: u32 = 512;
}

/// Flags of a chunk.
pub mod chunk {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const USER_ALLOC_CB: u32 = 1;
}

/// Flags and results of a wait.
pub mod wait {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const INTERRUPT: u32 = 0x2;
    pub const INTERRUPT_KERNEL_CQ: u32 = 0x10;
    pub const REGISTER_INTERRUPT: u32 = 0x20;
    /// The lowest bit of an interrupt's number.
    pub const INTERRUPT_SHIFT: u32 = 20;
    pub const ANY_CQ_INTERRUPT: u32 = 0xFFF;
    pub const ANY_DECODER_INTERRUPT: u32 = 0xFFE;
    pub const MULTI_CS: u32 = 0x4;
    pub const MULTI_CS_MAX: usize = 32;
    pub const COMPLETED: u32 = 0;
    pub const BUSY: u32 = 1;
    pub const TIMED_OUT: u32 = 2;
    pub const ABORTED: u32 = 3;
    pub const FLAG_GONE: u32 = 1;
    pub const FLAG_TIMESTAMP_VALID: u32 = 2;
}

/// Operations of [`Call::Memory`], and their flags.
pub mod mem {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const ALLOC: u32 = 0;
    pub const FREE: u32 = 1;
    pub const MAP: u32 = 2;
    pub const UNMAP: u32 = 3;
    pub const MAP_BLOCK: u32 = 4;
    pub const EXPORT_DMABUF_FD: u32 = 5;
    pub const TS_ALLOC: u32 = 6;
    pub const REGISTER_DMABUF_FD: u32 = 99;
    pub const CONTIGUOUS: u32 = 1;
    pub const SHARED: u32 = 2;
    pub const USERPTR: u32 = 4;
    pub const FORCE_HINT: u32 = 8;
}

/// The kinds of handles that can be mapped.
pub mod handle {
    /// A command buffer.
    pub const COMMAND_BUFFER: u64 = 1 << 60;
    /// A block of registers.
    pub const BLOCK: u64 = 1 << 61;
    /// Times that are written when interrupts come.
    pub const TIMESTAMPS: u64 = 1 << 63;
    /// Every bit that says what kind it is.
    pub const KIND: u64 = 0x1f << 59;
}

/// Sequence numbers of submissions that were not made: the signal that they would wait for had come.
pub const NO_SEQUENCE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use hal_kernel::{Field, Layout};

    /// A structure of the table, with its size and its fields.
    type Structure = (String, Option<usize>, Vec<(String, usize, usize)>);

    fn table() -> Vec<Structure> {
        let text = include_str!("../habanalabs.txt");
        let structures =
            text.lines().filter(|line| line.starts_with("struct ") || line.starts_with("union "));
        structures
            .map(|line| {
                let (head, fields) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
                let name = head.split_whitespace().nth(1).unwrap();
                let size = head.split_whitespace().find_map(|word| word.strip_prefix("size="));
                let fields = fields
                    .split_whitespace()
                    .map(|field| {
                        let (name, place) = field.split_once('@').unwrap();
                        let (offset, size) = place.split_once('/').unwrap();
                        (name.to_owned(), offset.parse().unwrap(), size.parse().unwrap())
                    })
                    .collect();
                (name.to_owned(), size.and_then(|size| size.parse().ok()), fields)
            })
            .collect()
    }

    #[test]
    fn every_structure_is_as_the_kernel_headers_have_it() {
        let table = table();
        for &Layout { kernel, size, .. } in LAYOUTS {
            let (_, known, _) = table.iter().find(|(name, ..)| name == kernel).expect(kernel);
            assert_eq!(*known, Some(size), "{kernel}");
        }
        let fields = LAYOUTS.iter().flat_map(|&Layout { kernel, prefix, fields, .. }| {
            fields.iter().map(move |&Field { name, offset, size }| (kernel, prefix, name, offset, size))
        });
        let mut compared = 0;
        for (kernel, prefix, field, offset, size) in fields {
            let (_, _, fields) = table.iter().find(|(name, ..)| name == kernel).expect(kernel);
            let full = format!("{prefix}{field}");
            let known = fields.iter().find(|(name, ..)| *name == full || *name == field);
            if let Some(&(_, known_offset, known_size)) = known {
                assert_eq!((offset, size), (known_offset, known_size), "{kernel}.{full}");
                compared += 1;
            } else {
                // Fields that the headers leave unnamed, and the vendor's own operation, which they do not have.
                let unnamed = field.starts_with("reserved") || field == "pad";
                assert!(unnamed || prefix == "reg_dmabuf_fd.", "{kernel}.{full} is not in the table");
            }
        }
        assert!(compared > 120, "only {compared} fields were compared");
    }

    #[test]
    fn every_request_is_as_the_kernel_headers_have_it() {
        let text = include_str!("../habanalabs.txt");
        for (name, call) in [
            ("DRM_IOCTL_HL_INFO", Call::Info),
            ("DRM_IOCTL_HL_CB", Call::CommandBuffer),
            ("DRM_IOCTL_HL_CS", Call::Submit),
            ("DRM_IOCTL_HL_WAIT_CS", Call::Wait),
            ("DRM_IOCTL_HL_MEMORY", Call::Memory),
        ] {
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).expect(name);
            let number = line.split_whitespace().nth(1).and_then(|text| text.strip_prefix("0x")).unwrap();
            assert_eq!(u32::from_str_radix(number, 16).unwrap(), call.request(Abi::Drm), "{name}");
        }
    }
}
