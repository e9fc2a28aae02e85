// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel driver's answers to each request that needs no network: the table that also runs on a real
//! card, behind the node that `HAL_QAIC_NODE` names. Rules that need a network on a channel are in the other
//! files.

use emulator_core::{Errno, Linux, System};
use emulator_qaic::Emulator;
use hal_qaic_abi::nnc::transaction::{
    ACTIVATE_FROM_USER, DEACTIVATE_FROM_USER, DMA_TRANSFER_FROM_USER, PASSTHROUGH_FROM_USER,
    PASSTHROUGH_TO_DEVICE, STATUS_FROM_USER,
};
use hal_qaic_abi::uapi::{
    AttachSlice, AttachSliceHeader, Call, CreateBo, DetachSlice, Execute, ExecuteEntry, ExecuteHeader,
    GemClose, ManageMessage, MmapBo, PerfStats, PerfStatsEntry, PerfStatsHeader, Semaphore, SliceEntry, Wait,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An address where no memory is.
const NOWHERE: u64 = 64;

/// A card, real or emulated.
struct Site {
    is_real: bool,
    kernel: Arc<dyn System>,
    file: Option<OwnedFd>,
}

impl Site {
    fn open() -> Self {
        let real = std::env::var_os("HAL_QAIC_NODE");
        let is_real = real.is_some();
        let (kernel, node): (Arc<dyn System>, PathBuf) = match real {
            Some(node) => (Arc::new(Linux), node.into()),
            None => (Emulator::new(crate::common::options()).unwrap(), "/dev/accel/accel0".into()),
        };
        let file =
            kernel.open(Path::new(&node)).unwrap_or_else(|errno| panic!("{}: {errno}", node.display()));
        Self { is_real, kernel, file: Some(file) }
    }

    fn raw(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.kernel.ioctl(self.file.as_ref().unwrap().as_fd(), request, argument)
    }

    fn call<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
        &self,
        call: Call,
        mut argument: T,
    ) -> (Result<(), Errno>, T) {
        let result = self.raw(call.request(), argument.as_mut_bytes());
        (result, argument)
    }

    fn says<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
        &self,
        call: Call,
        argument: T,
    ) -> Result<(), Errno> {
        self.call(call, argument).0
    }

    /// A message of these words, said to have so many bytes and transactions.
    fn manage(&self, words: &[u32], len: u32, count: u32) -> Result<(), Errno> {
        let mut memory: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.resize(4096, 0);
        self.says(Call::Manage, ManageMessage { len, count, data: memory.as_mut_ptr() as u64 })
    }

    fn object(&self) -> u32 {
        let (result, made) = self.call(Call::CreateBo, CreateBo { size: 4096, ..CreateBo::default() });
        assert_eq!(result, Ok(()));
        made.handle
    }

    /// The answer to slices of a page, on a channel without a process.
    fn attach(&self, change: fn(&mut AttachSliceHeader, &mut SliceEntry)) -> Result<(), Errno> {
        let handle = self.object();
        let mut hdr = AttachSliceHeader { count: 1, dbc_id: CHANNEL, handle, dir: 1, size: 4096 };
        let mut entry = SliceEntry { size: 4096, ..SliceEntry::default() };
        change(&mut hdr, &mut entry);
        let result = self.says(Call::AttachSlice, AttachSlice { hdr, data: (&raw const entry) as u64 });
        self.says(Call::GemClose, GemClose { handle, pad: 0 }).unwrap();
        result
    }

    fn execute(&self, call: Call, count: u32, channel: u32, memory: bool) -> Result<(), Errno> {
        let entries = [ExecuteEntry::default(); 4];
        let data = if memory { entries.as_ptr() as u64 } else { NOWHERE };
        self.says(call, Execute { hdr: ExecuteHeader { count, dbc_id: channel }, data })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kernel.close(self.file.take().unwrap());
    }
}

/// A channel that this client has not been given.
const CHANNEL: u32 = 15;

/// A request, and what is said to it.
struct Row {
    name: &'static str,
    ask: fn(&Site) -> Result<(), Errno>,
    says: Result<(), Errno>,
    /// The answer of an older kernel.
    said: Option<Errno>,
}

const fn refused(name: &'static str, errno: Errno, ask: fn(&Site) -> Result<(), Errno>) -> Row {
    Row { name, ask, says: Err(errno), said: None }
}

const fn taken(name: &'static str, ask: fn(&Site) -> Result<(), Errno>) -> Row {
    Row { name, ask, says: Ok(()), said: None }
}

const STATUS: [u32; 2] = [STATUS_FROM_USER, 8];

const CORE: &[Row] = &[
    refused("a request of another type", Errno::NOTTY, |site| site.raw(0xc010_4840, &mut [0; 16])),
    refused("an unknown number", Errno::INVAL, |site| site.raw(0xc010_645f, &mut [0; 16])),
    refused("the end of an unknown handle", Errno::INVAL, |site| {
        site.says(Call::GemClose, GemClose { handle: 999, pad: 0 })
    }),
];

const MESSAGES: &[Row] = &[
    taken("a good message", |site| site.manage(&STATUS, 8, 1)),
    refused("longer than its memory", Errno::INVAL, |site| site.manage(&STATUS, 4097, 1)),
    refused("memory that is not there", Errno::FAULT, |site| {
        site.says(Call::Manage, ManageMessage { len: 8, count: 1, data: NOWHERE })
    }),
    refused("no transactions", Errno::INVAL, |site| site.manage(&STATUS, 8, 0)),
    refused("513 transactions", Errno::INVAL, |site| site.manage(&STATUS, 8, 513)),
    refused("shorter than a header", Errno::INVAL, |site| site.manage(&STATUS, 4, 1)),
    refused("fewer bytes than transactions", Errno::INVAL, |site| site.manage(&STATUS, 8, 2)),
    refused("bytes behind the last one", Errno::INVAL, |site| site.manage(&[STATUS[0], 8, 0, 0], 16, 1)),
    refused("shorter than its own header", Errno::INVAL, |site| site.manage(&[STATUS[0], 4], 8, 1)),
    refused("longer than the message", Errno::INVAL, |site| site.manage(&[STATUS[0], 16], 8, 1)),
    refused("an unknown kind", Errno::INVAL, |site| site.manage(&[99, 8], 8, 1)),
    refused("a kind for the device", Errno::INVAL, |site| site.manage(&[PASSTHROUGH_TO_DEVICE, 8], 8, 1)),
    refused("a command of half a word", Errno::INVAL, |site| {
        site.manage(&[PASSTHROUGH_FROM_USER, 12, 1], 12, 1)
    }),
    refused("rings without elements", Errno::INVAL, |site| {
        site.manage(&[ACTIVATE_FROM_USER, 24, 0, 0, 0, 0], 24, 1)
    }),
    refused("an activation with padding", Errno::INVAL, |site| {
        site.manage(&[ACTIVATE_FROM_USER, 24, 8, 0, 0, 1], 24, 1)
    }),
    refused("channel 16 deactivated", Errno::INVAL, |site| {
        site.manage(&[DEACTIVATE_FROM_USER, 16, 16, 0], 16, 1)
    }),
    refused("a deactivation with padding", Errno::INVAL, |site| {
        site.manage(&[DEACTIVATE_FROM_USER, 16, CHANNEL, 1], 16, 1)
    }),
    refused("another user's channel", Errno::PERM, |site| {
        site.manage(&[DEACTIVATE_FROM_USER, 16, CHANNEL, 0], 16, 1)
    }),
    // The size of a transaction's kind is not checked: zeros follow the message.
    refused("a deactivation that is a header is of channel 0", Errno::PERM, |site| {
        site.manage(&[DEACTIVATE_FROM_USER, 8], 8, 1)
    }),
    refused("an activation that is a header has no elements", Errno::INVAL, |site| {
        site.manage(&[ACTIVATE_FROM_USER, 8], 8, 1)
    }),
    refused("an empty transfer", Errno::INVAL, |site| {
        site.manage(&[DMA_TRANSFER_FROM_USER, 32, 0, 0, 64, 0, 0, 0], 32, 1)
    }),
    // Until a fix of 2025-10 the kernel put EINVAL in the place of whatever had stopped it in the middle of a message.
    Row {
        said: Some(Errno::INVAL),
        ..refused("a transfer of memory that is not there", Errno::FAULT, |site| {
            site.manage(&[DMA_TRANSFER_FROM_USER, 32, 0, 0, 64, 0, 64, 0], 32, 1)
        })
    },
    refused("a transfer past the end of addresses", Errno::INVAL, |site| {
        site.manage(&[DMA_TRANSFER_FROM_USER, 32, 0, 0, u32::MAX, u32::MAX, 64, 0], 32, 1)
    }),
];

const OBJECTS: &[Row] = &[
    taken("an object of one byte", |site| {
        let (result, made) = site.call(Call::CreateBo, CreateBo { size: 1, ..CreateBo::default() });
        site.says(Call::MmapBo, MmapBo { handle: made.handle, ..MmapBo::default() })?;
        site.says(Call::GemClose, GemClose { handle: made.handle, pad: 0 })?;
        result
    }),
    refused("an object of no bytes", Errno::INVAL, |site| site.says(Call::CreateBo, CreateBo::default())),
    refused("an object with padding", Errno::INVAL, |site| {
        site.says(Call::CreateBo, CreateBo { size: 4096, pad: 1, ..CreateBo::default() })
    }),
    refused("an object of all addresses", Errno::INVAL, |site| {
        site.says(Call::CreateBo, CreateBo { size: u64::MAX, ..CreateBo::default() })
    }),
    refused("the mapping of an unknown handle", Errno::NOENT, |site| {
        site.says(Call::MmapBo, MmapBo { handle: 999, ..MmapBo::default() })
    }),
];

const SLICES: &[Row] = &[
    refused("no slices", Errno::INVAL, |site| site.attach(|hdr, _| hdr.count = 0)),
    refused("no direction", Errno::INVAL, |site| site.attach(|hdr, _| hdr.dir = 0)),
    refused("both directions", Errno::INVAL, |site| site.attach(|hdr, _| hdr.dir = 3)),
    refused("slices for channel 16", Errno::INVAL, |site| site.attach(|hdr, _| hdr.dbc_id = 16)),
    refused("slices of an unknown handle", Errno::NOENT, |site| site.attach(|hdr, _| hdr.handle = 999)),
    refused("slices for another user's channel", Errno::INVAL, |site| site.attach(|_, _| ())),
    refused("slices that are not there", Errno::FAULT, |site| {
        let hdr = AttachSliceHeader { count: 1, dbc_id: CHANNEL, handle: 1, dir: 1, size: 0 };
        site.says(Call::AttachSlice, AttachSlice { hdr, data: NOWHERE })
    }),
    refused("a slice past its object", Errno::INVAL, |site| site.attach(|_, entry| entry.offset = 1)),
    refused("a doorbell of 7 bits", Errno::INVAL, |site| site.attach(|_, entry| entry.db_len = 7)),
    refused("a semaphore's value of 13 bits", Errno::INVAL, |site| {
        site.attach(|_, entry| entry.sem0 = Semaphore { val: 4096, ..Semaphore::default() })
    }),
    refused("semaphore 32", Errno::INVAL, |site| {
        site.attach(|_, entry| entry.sem1 = Semaphore { index: 32, ..Semaphore::default() })
    }),
    refused("a semaphore's command 7", Errno::INVAL, |site| {
        site.attach(|_, entry| entry.sem3 = Semaphore { cmd: 7, ..Semaphore::default() })
    }),
    refused("the end of slices that there are none of", Errno::INVAL, |site| {
        let handle = site.object();
        let result = site.says(Call::DetachSlice, DetachSlice { handle, pad: 0 });
        site.says(Call::GemClose, GemClose { handle, pad: 0 })?;
        result
    }),
    refused("the end of slices with padding", Errno::INVAL, |site| {
        site.says(Call::DetachSlice, DetachSlice { handle: 1, pad: 1 })
    }),
    refused("the end of slices of an unknown handle", Errno::NOENT, |site| {
        site.says(Call::DetachSlice, DetachSlice { handle: 999, pad: 0 })
    }),
];

const EXECUTIONS: &[Row] = &[
    refused("no objects", Errno::INVAL, |site| site.execute(Call::Execute, 0, CHANNEL, true)),
    refused("no objects in part", Errno::INVAL, |site| site.execute(Call::PartialExecute, 0, CHANNEL, true)),
    refused("objects that are not there", Errno::FAULT, |site| {
        site.execute(Call::Execute, 1, CHANNEL, false)
    }),
    refused("an execution on channel 16", Errno::INVAL, |site| site.execute(Call::Execute, 1, 16, true)),
    refused("an execution on another user's channel", Errno::PERM, |site| {
        site.execute(Call::Execute, 1, CHANNEL, true)
    }),
    refused("a wait with padding", Errno::INVAL, |site| {
        site.says(Call::Wait, Wait { handle: 1, timeout: 1, dbc_id: CHANNEL, pad: 1 })
    }),
    refused("a wait on channel 16", Errno::INVAL, |site| {
        site.says(Call::Wait, Wait { handle: 1, timeout: 1, dbc_id: 16, pad: 0 })
    }),
    refused("a wait on another user's channel", Errno::PERM, |site| {
        site.says(Call::Wait, Wait { handle: 1, timeout: 1, dbc_id: CHANNEL, pad: 0 })
    }),
    refused("statistics of channel 16", Errno::INVAL, |site| {
        let hdr = PerfStatsHeader { count: 1, pad: 0, dbc_id: 16 };
        site.says(Call::PerfStats, PerfStats { hdr, data: NOWHERE })
    }),
    refused("statistics of an unknown handle", Errno::NOENT, |site| {
        let mut entry = PerfStatsEntry { handle: 999, ..PerfStatsEntry::default() };
        let hdr = PerfStatsHeader { count: 1, pad: 0, dbc_id: CHANNEL };
        site.says(Call::PerfStats, PerfStats { hdr, data: (&raw mut entry) as u64 })
    }),
    refused("statistics that have no place", Errno::FAULT, |site| {
        let hdr = PerfStatsHeader { count: 1, pad: 0, dbc_id: CHANNEL };
        site.says(Call::PerfStats, PerfStats { hdr, data: NOWHERE })
    }),
];

#[test]
fn driver_answers_as_in_the_table() {
    let site = Site::open();
    let name = |result: &Result<(), Errno>| match result {
        Ok(()) => "ok".to_owned(),
        Err(errno) => format!("{errno} (errno {})", errno.raw_os_error()),
    };
    let (mut wrong, mut asked) = (Vec::new(), 0);
    for row in [CORE, MESSAGES, OBJECTS, SLICES, EXECUTIONS].into_iter().flatten() {
        let said = (row.ask)(&site);
        println!("{:44} {}", row.name, name(&said));
        asked += 1;
        let is_older = site.is_real && row.said.is_some_and(|errno| said == Err(errno));
        if said != row.says && !is_older {
            wrong.push(format!("{}: {} instead of {}", row.name, name(&said), name(&row.says)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(asked > 50, "only {asked} rows");
}
