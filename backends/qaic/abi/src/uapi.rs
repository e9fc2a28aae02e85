// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel's interface: request numbers, structures, limits.
//!
//! Every size and offset is asserted when this is compiled, and compared by a test with `qaic_accel.txt`, which a C
//! compiler printed from the headers of Linux 6.12 (those of 6.12.107 and 7.3 agree). Fields are named as the kernel
//! names them; padding must be zero.
//!
//! Requests are told apart by their number alone: the kernel takes a request of any direction and size with a number
//! that it knows. That is why [`Call::PartitionDevice`] is dangerous, and why nothing is sent before the name of the
//! driver is known.

/// `_IOC` of a direction, a type, a number and a size.
const fn request(direction: u32, number: u8, size: usize) -> u32 {
    assert!(size < 1 << 14);
    #[expect(clippy::cast_possible_truncation, reason = "asserted to fit in the fourteen bits of a request")]
    let size = size as u32;
    direction << 30 | size << 16 | (b'd' as u32) << 8 | number as u32
}

const WRITE: u32 = 1;
const READ_WRITE: u32 = 3;

/// The first number that is a driver's own.
const COMMAND_BASE: u8 = 0x40;

/// The calls of the driver, and those of the DRM core that its clients need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A message to the device, and its answer.
    Manage,
    /// Takes a buffer object.
    CreateBo,
    /// The offset to map a buffer object at.
    MmapBo,
    /// Says which pieces of a buffer object go where.
    AttachSlice,
    /// Queues buffer objects.
    Execute,
    /// Queues buffer objects of which only the beginning is transferred.
    PartialExecute,
    /// Waits for a buffer object.
    Wait,
    /// How the last execution of buffer objects went.
    PerfStats,
    /// Ends what [`AttachSlice`](Call::AttachSlice) began.
    DetachSlice,
    /// Makes a device of some of a device's resources. **Only in the vendor's own driver**: its number is that of
    /// [`DetachSlice`](Call::DetachSlice) upstream, which would then detach the buffer object that has the partition's
    /// number as its handle. Never to be sent unless the driver is known to be the vendor's.
    PartitionDevice,
    /// The name and version of the driver.
    Version,
    /// Gives a handle back.
    GemClose,
    /// A dma-buf of a handle.
    HandleToDescriptor,
    /// A handle of a dma-buf.
    DescriptorToHandle,
}

impl Call {
    /// Every call.
    pub const ALL: [Call; 14] = [
        Call::Manage,
        Call::CreateBo,
        Call::MmapBo,
        Call::AttachSlice,
        Call::Execute,
        Call::PartialExecute,
        Call::Wait,
        Call::PerfStats,
        Call::DetachSlice,
        Call::PartitionDevice,
        Call::Version,
        Call::GemClose,
        Call::HandleToDescriptor,
        Call::DescriptorToHandle,
    ];

    /// How many bytes its argument has.
    pub const fn size(self) -> usize {
        match self {
            Call::Manage
            | Call::CreateBo
            | Call::MmapBo
            | Call::Execute
            | Call::PartialExecute
            | Call::Wait
            | Call::PerfStats => 16,
            Call::AttachSlice => 32,
            Call::DetachSlice | Call::PartitionDevice | Call::GemClose => 8,
            Call::Version => 64,
            Call::HandleToDescriptor | Call::DescriptorToHandle => 12,
        }
    }

    /// Its number, by which the kernel distinguishes it.
    pub const fn number(self) -> u8 {
        match self {
            Call::Version => 0x00,
            Call::GemClose => 0x09,
            Call::HandleToDescriptor => 0x2d,
            Call::DescriptorToHandle => 0x2e,
            Call::PartitionDevice => Call::DetachSlice.number(),
            _ => COMMAND_BASE + self as u8,
        }
    }

    /// The request to make.
    pub const fn request(self) -> u32 {
        let direction = match self {
            Call::AttachSlice
            | Call::Execute
            | Call::PartialExecute
            | Call::Wait
            | Call::DetachSlice
            | Call::GemClose => WRITE,
            _ => READ_WRITE,
        };
        request(direction, self.number(), self.size())
    }

    /// The call that an upstream kernel takes a request for: by its type and number, whatever else it says.
    pub fn of_request(request: u32) -> Option<Self> {
        let [number, kind, ..] = request.to_le_bytes();
        let upstream = |call: &Call| *call != Call::PartitionDevice && call.number() == number;
        Self::ALL.into_iter().find(upstream).filter(|_| kind == b'd')
    }
}

const _: () = {
    assert!(Call::Manage.request() == 0xc010_6440);
    assert!(Call::CreateBo.request() == 0xc010_6441);
    assert!(Call::MmapBo.request() == 0xc010_6442);
    assert!(Call::AttachSlice.request() == 0x4020_6443);
    assert!(Call::Execute.request() == 0x4010_6444);
    assert!(Call::PartialExecute.request() == 0x4010_6445);
    assert!(Call::Wait.request() == 0x4010_6446);
    assert!(Call::PerfStats.request() == 0xc010_6447);
    assert!(Call::DetachSlice.request() == 0x4008_6448);
    assert!(Call::PartitionDevice.request() == 0xc008_6448);
    assert!(Call::Version.request() == 0xc040_6400);
    assert!(Call::GemClose.request() == 0x4008_6409);
    assert!(Call::HandleToDescriptor.request() == 0xc00c_642d);
    assert!(Call::DescriptorToHandle.request() == 0xc00c_642e);
};

// The name in `qaic_accel.txt` follows the structure's own; it is empty for what is not in that table.
hal_kernel::layouts! {
    /// The header of each transaction of a message.
    TransactionHeader = "qaic_manage_trans_hdr", 8 {
        /// One of [`nnc::transaction`](crate::nnc::transaction). The kernel's name is `type`.
        kind: u32 = 0,
        /// How many bytes the transaction has, this header included.
        len: u32 = 4,
    }

    /// Bytes of this process that the device reads while the message is on its way.
    DmaTransfer = "qaic_manage_trans_dma_xfer", 32 {
        hdr: TransactionHeader = 0,
        tag: u32 = 8,
        pad: u32 = 12,
        addr: u64 = 16,
        size: u64 = 24,
    }

    /// Asks for a DMA bridge channel.
    ActivateToDevice = "qaic_manage_trans_activate_to_dev", 24 {
        hdr: TransactionHeader = 0,
        queue_size: u32 = 8,
        eventfd: u32 = 12,
        options: u32 = 16,
        pad: u32 = 20,
    }

    /// The channel that was given.
    ActivateFromDevice = "qaic_manage_trans_activate_from_dev", 24 {
        hdr: TransactionHeader = 0,
        status: u32 = 8,
        dbc_id: u32 = 12,
        options: u64 = 16,
    }

    /// Gives a channel back.
    Deactivate = "qaic_manage_trans_deactivate", 16 {
        hdr: TransactionHeader = 0,
        dbc_id: u32 = 8,
        pad: u32 = 12,
    }

    /// Asks for the device's versions.
    StatusToDevice = "qaic_manage_trans_status_to_dev", 8 {
        hdr: TransactionHeader = 0,
    }

    /// The device's versions.
    StatusFromDevice = "qaic_manage_trans_status_from_dev", 24 {
        hdr: TransactionHeader = 0,
        major: u16 = 8,
        minor: u16 = 10,
        status: u32 = 12,
        status_flags: u64 = 16,
    }

    /// A message: how many bytes of transactions, how many transactions, and where they are.
    ManageMessage = "qaic_manage_msg", 16 {
        len: u32 = 0,
        count: u32 = 4,
        data: u64 = 8,
    }

    /// Takes a buffer object.
    CreateBo = "qaic_create_bo", 16 {
        size: u64 = 0,
        handle: u32 = 8,
        pad: u32 = 12,
    }

    /// The offset to map a buffer object at.
    MmapBo = "qaic_mmap_bo", 16 {
        handle: u32 = 0,
        pad: u32 = 4,
        offset: u64 = 8,
    }

    /// One command to a semaphore of the channel.
    Semaphore = "qaic_sem", 8 {
        /// Twelve bits.
        val: u16 = 0,
        /// Five bits.
        index: u8 = 2,
        /// 1 before the transfer, 0 after it.
        presync: u8 = 3,
        /// One of [`sem`].
        cmd: u8 = 4,
        /// Of [`sem::IN_SYNC_FENCE`] and [`sem::OUT_SYNC_FENCE`].
        flags: u8 = 5,
        pad: u16 = 6,
    }

    /// One piece of a buffer object.
    SliceEntry = "qaic_attach_slice_entry", 72 {
        /// Nothing is transferred if it is zero.
        size: u64 = 0,
        sem0: Semaphore = 8,
        sem1: Semaphore = 16,
        sem2: Semaphore = 24,
        sem3: Semaphore = 32,
        dev_addr: u64 = 40,
        db_addr: u64 = 48,
        db_data: u32 = 56,
        /// In bits: 0 for no doorbell, 8, 16 or 32.
        db_len: u32 = 60,
        offset: u64 = 64,
    }

    /// The settings that all pieces of a buffer object share.
    AttachSliceHeader = "qaic_attach_slice_hdr", 24 {
        count: u32 = 0,
        dbc_id: u32 = 4,
        handle: u32 = 8,
        /// [`TO_DEVICE`] or [`FROM_DEVICE`].
        dir: u32 = 12,
        /// Ignored.
        size: u64 = 16,
    }

    /// Says which pieces of a buffer object go where.
    AttachSlice = "qaic_attach_slice", 32 {
        hdr: AttachSliceHeader = 0,
        /// The address of the [`SliceEntry`]s.
        data: u64 = 24,
    }

    /// A buffer object to queue.
    ExecuteEntry = "qaic_execute_entry", 8 {
        handle: u32 = 0,
        /// Ignored: the direction is that of the slices.
        dir: u32 = 4,
    }

    /// A buffer object to queue, and how many of its bytes.
    PartialExecuteEntry = "qaic_partial_execute_entry", 16 {
        handle: u32 = 0,
        /// Ignored.
        dir: u32 = 4,
        /// From the beginning of the object.
        resize: u64 = 8,
    }

    /// How many objects to queue, on which channel.
    ExecuteHeader = "qaic_execute_hdr", 8 {
        count: u32 = 0,
        dbc_id: u32 = 4,
    }

    /// The objects to queue, for both calls that do.
    Execute = "qaic_execute", 16 {
        hdr: ExecuteHeader = 0,
        /// The address of the entries.
        data: u64 = 8,
    }

    /// A wait.
    Wait = "qaic_wait", 16 {
        handle: u32 = 0,
        /// In milliseconds. Zero stands for what the module's parameter says.
        timeout: u32 = 4,
        dbc_id: u32 = 8,
        pad: u32 = 12,
    }

    /// How many questions about executions.
    PerfStatsHeader = "qaic_perf_stats_hdr", 8 {
        count: u16 = 0,
        pad: u16 = 2,
        dbc_id: u32 = 4,
    }

    /// Questions about executions.
    PerfStats = "qaic_perf_stats", 16 {
        hdr: PerfStatsHeader = 0,
        /// The address of the entries, which have handles, and get answers.
        data: u64 = 8,
    }

    /// How the last execution of a buffer object went.
    PerfStatsEntry = "qaic_perf_stats_entry", 24 {
        handle: u32 = 0,
        queue_level_before: u32 = 4,
        num_queue_element: u32 = 8,
        submit_latency_us: u32 = 12,
        device_latency_us: u32 = 16,
        pad: u32 = 20,
    }

    /// Ends the slicing of a buffer object.
    DetachSlice = "qaic_detach_slice", 8 {
        handle: u32 = 0,
        pad: u32 = 4,
    }

    /// Makes or removes a partition, in the vendor's own driver.
    PartitionDevice = "", 8 {
        partition_id: u32 = 0,
        remove: u16 = 4,
        pad: u16 = 6,
    }

    /// Gives a handle back.
    GemClose = "", 8 {
        handle: u32 = 0,
        pad: u32 = 4,
    }

    /// A handle and a descriptor of the same memory.
    PrimeHandle = "", 12 {
        handle: u32 = 0,
        flags: u32 = 4,
        fd: i32 = 8,
    }
}

/// A buffer object goes to the device.
pub const TO_DEVICE: u32 = 1;

/// A buffer object comes from the device.
pub const FROM_DEVICE: u32 = 2;

/// How many bytes the transactions of a message may have, and its answer has at most: the answer is written over the
/// message, so that there must always be room for so many.
pub const MESSAGE_MAX: usize = 4096;

/// How many transactions a message may have (`qaic_manage`).
pub const TRANSACTIONS_MAX: usize = MESSAGE_MAX / size_of::<TransactionHeader>();

/// How many DMA bridge channels a device has.
pub const CHANNELS: u32 = 16;

/// The size of a buffer object is rounded up to this.
pub const PAGE: u64 = 4096;
/// Up to where slices of an object may reach, on kernels before 6.14 (6.13.9, 6.12.21 and 6.6.85 of older lines):
/// they count an object's memory in a signed number of 32 bits, and find other memory beyond
/// (`clone_range_of_sgt_for_slice`).
pub const REACH: u64 = 1 << 31;
/// How long such an object may be: with more the number begins anew, and memory below [`REACH`] may not be found
/// either.
pub const COUNTED: u64 = (1 << 32) - PAGE;

/// Commands and flags of semaphores.
pub mod sem {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const NOP: u8 = 0;
    pub const INIT: u8 = 1;
    pub const INC: u8 = 2;
    pub const DEC: u8 = 3;
    pub const WAIT_EQUAL: u8 = 4;
    pub const WAIT_GT_EQ: u8 = 5;
    /// Waits for more than zero, and takes one.
    pub const WAIT_GT_0: u8 = 6;
    pub const OUT_SYNC_FENCE: u8 = 1;
    pub const IN_SYNC_FENCE: u8 = 2;
    /// The most that a semaphore can count to.
    pub const VALUE_MAX: u16 = (1 << 12) - 1;
    /// How many semaphores a channel has.
    pub const COUNT: u8 = 32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_kernel::{Field, Layout};

    /// The line of the table that begins with these words, without them.
    fn line(words: &str) -> &'static str {
        let table = include_str!("../qaic_accel.txt");
        let mut lines = table.lines().filter_map(|line| line.strip_prefix(words));
        lines.find(|rest| rest.starts_with(' ')).unwrap_or_else(|| panic!("{words} is not in the table"))
    }

    #[test]
    fn every_structure_is_as_the_kernel_headers_have_it() {
        let mut compared = 0;
        for Layout { kernel, size, fields, .. } in LAYOUTS.iter().filter(|layout| !layout.kernel.is_empty()) {
            let text = line(&format!("struct {kernel}"));
            let (head, rest) = text.split_once(':').unwrap();
            assert!(head.split_whitespace().any(|word| word == format!("size={size}")), "{kernel}: {head}");
            // Headers of transactions are left out of the table.
            let mut known: Vec<&str> =
                rest.split_whitespace().filter(|word| !word.starts_with("hdr@")).collect();
            for Field { name, offset, size } in fields.iter().filter(|field| field.name != "hdr") {
                let field = if *name == "kind" { "type" } else { name };
                let here = format!("{field}@{offset}/{size}");
                let place = known.iter().position(|there| *there == here);
                known.remove(place.unwrap_or_else(|| panic!("{kernel}: {here} is not among {known:?}")));
                compared += 1;
            }
            assert!(known.is_empty(), "{kernel} has {known:?} as well");
        }
        assert!(compared >= 55, "only {compared} fields were compared");
    }

    #[test]
    fn every_request_is_as_the_kernel_headers_have_it() {
        for (name, call) in [
            ("MANAGE", Call::Manage),
            ("CREATE_BO", Call::CreateBo),
            ("MMAP_BO", Call::MmapBo),
            ("ATTACH_SLICE_BO", Call::AttachSlice),
            ("EXECUTE_BO", Call::Execute),
            ("PARTIAL_EXECUTE_BO", Call::PartialExecute),
            ("WAIT_BO", Call::Wait),
            ("PERF_STATS_BO", Call::PerfStats),
            ("DETACH_SLICE_BO", Call::DetachSlice),
        ] {
            let number = line(&format!("DRM_IOCTL_QAIC_{name}")).trim().trim_start_matches("0x");
            assert_eq!(u32::from_str_radix(number, 16).unwrap(), call.request(), "{name}");
            assert_eq!(Call::of_request(call.request()), Some(call));
        }
    }

    #[test]
    fn kernel_takes_the_vendors_partition_request_for_another() {
        assert_eq!(Call::of_request(Call::PartitionDevice.request()), Some(Call::DetachSlice));
        // Direction and size are ignored; the type counts.
        assert_eq!(Call::of_request(0x0000_6446), Some(Call::Wait));
        assert_eq!(Call::of_request(0x0000_4846), None);
        assert_eq!(Call::of_request(0xc010_64ff), None);
    }
}
