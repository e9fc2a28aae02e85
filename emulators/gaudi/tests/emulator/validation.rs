// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver's rules, one row for each: what is asked, of which generation, and what it says.

use crate::common::{BOTH, Card, card, hardware, host, options};
use emulator_core::Errno;
use hal_backend::HostRange;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::packet;
use hal_gaudi_abi::uapi::{
    Call, CbIn, CbOut, Chunk, CsIn, InfoIn, MemAlloc, MemExport, MemFree, MemMapDevice, MemMapHost, MemUnmap,
    NO_SEQUENCE, WaitIn, WaitOut, cb, chunk, cs, info, mem, wait,
};
use hal_kernel::ProgramHost;
use std::os::fd::AsFd;
use std::time::Duration;

/// The request.
type Ask = fn(&Card) -> Result<(), Errno>;

/// One rule.
struct Row {
    name: &'static str,
    /// Of which generations it is a rule.
    of: &'static [Generation],
    ask: Ask,
    says: Result<(), Errno>,
}

const FIRST: &[Generation] = &[Generation::Gaudi1];
const SECOND: &[Generation] = &[Generation::Gaudi2];
const ALL: &[Generation] = &BOTH;

const fn row(name: &'static str, of: &'static [Generation], ask: Ask, says: Result<(), Errno>) -> Row {
    Row { name, of, ask, says }
}

fn question(card: &Card, change: fn(&mut InfoIn)) -> Result<(), Errno> {
    let mut answer = [0_u8; 64];
    let mut request = InfoIn {
        return_pointer: answer.as_mut_ptr() as u64,
        return_size: 64,
        op: info::HW_IP_INFO,
        ..InfoIn::default()
    };
    change(&mut request);
    card.ask::<_, [u8; 24]>(Call::Info, &request).map(drop)
}

fn buffer(card: &Card, request: CbIn) -> Result<(), Errno> {
    card.ask::<_, CbOut>(Call::CommandBuffer, &request).map(drop)
}

/// A command buffer of the kernel, and what becomes of something done with it.
fn with_buffer(card: &Card, then: impl FnOnce(u64) -> Result<(), Errno>) -> Result<(), Errno> {
    let handle = card.create(4096).unwrap();
    let result = then(handle);
    let _ = card.destroy(handle);
    result
}

/// A good submission of a NOP, changed. Whatever is refused must say so in its answer, but for `EAGAIN`.
/// rule(cs-answer)
fn submission(card: &Card, change: impl FnOnce(&mut CsIn, &mut Vec<Chunk>)) -> Result<(), Errno> {
    commands(card, &Card::nop(), change)
}

fn commands(
    card: &Card,
    packets: &[u8],
    change: impl FnOnce(&mut CsIn, &mut Vec<Chunk>),
) -> Result<(), Errno> {
    let commands = card.commands(packets);
    let mut chunks = vec![card.chunk(&commands, 0, packets.len())];
    let mut request = CsIn { num_chunks_execute: 1, ..CsIn::default() };
    change(&mut request, &mut chunks);
    if request.chunks_execute == 0 {
        request.chunks_execute = chunks.as_ptr() as u64;
    }
    if chunks.len() != 1 {
        request.num_chunks_execute = u32::try_from(chunks.len()).unwrap();
    }
    let (result, answer): (_, hal_gaudi_abi::uapi::CsOut) = card.call(Call::Submit, &request);
    match result {
        Ok(()) => assert_eq!((card.finish(answer.seq).status, answer.status), (wait::COMPLETED, 0)),
        Err(error) => {
            let status = answer.status.cast_signed();
            assert_eq!((answer.seq, status), (NO_SEQUENCE, -error.raw_os_error()), "of {error}");
        }
    }
    card.give_back(commands);
    result
}

fn packet(operation: u32, words: usize) -> Vec<u8> {
    let mut bytes = vec![0; words * 8];
    bytes[4..8].copy_from_slice(&(operation << 24).to_le_bytes());
    bytes
}

fn waiting(card: &Card, change: fn(&mut WaitIn)) -> Result<(), Errno> {
    let mut request = WaitIn::default();
    change(&mut request);
    card.ask::<_, WaitOut>(Call::Wait, &request).map(drop)
}

/// Device memory with a handle that is mapped, and what becomes of something done with it.
fn with_memory(card: &Card, then: impl FnOnce(u64, u64) -> Result<(), Errno>) -> Result<(), Errno> {
    let handle = card.alloc(1).unwrap();
    let address = card.map_device(handle).unwrap();
    let result = then(handle, address);
    card.unmap(address).unwrap();
    card.free(handle).unwrap();
    result
}

/// Host memory that is mapped, and what becomes of something done with it.
fn with_host(card: &Card, then: impl FnOnce(&HostRange, u64) -> Result<(), Errno>) -> Result<(), Errno> {
    let memory = host(8192);
    let address = card.map_host(&memory);
    let result = then(&memory, address);
    let _ = card.unmap(address);
    result
}

/// A page that can be read and not written.
fn constant() -> u64 {
    let rights = rustix::mm::ProtFlags::READ;
    let flags = rustix::mm::MapFlags::PRIVATE;
    unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), 8192, rights, flags).unwrap() as u64 }
}

fn raw(card: &Card, request: u32, length: usize) -> Result<(), Errno> {
    card.kernel.ioctl(card.file().as_fd(), request, &mut vec![0; length])
}

/// `O_RDWR | O_CLOEXEC`.
const EXPORTABLE: u32 = 0o2 | 0o2_000_000;

fn export(card: &Card, request: MemExport) -> Result<(), Errno> {
    let request = MemExport { op: mem::EXPORT_DMABUF_FD, ..request };
    card.memory(&request).map(|number| {
        use std::os::fd::FromRawFd;
        drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(i32::try_from(number).unwrap()) });
    })
}

fn good_export(addr: u64) -> MemExport {
    MemExport { addr, mem_size: 4096, flags: EXPORTABLE, ..MemExport::default() }
}

const INVAL: Result<(), Errno> = Err(Errno::INVAL);
const FAULT: Result<(), Errno> = Err(Errno::FAULT);
const PERM: Result<(), Errno> = Err(Errno::PERM);

static CORE: &[Row] = &[
    row("core: an unknown number", ALL, |card| raw(card, 0xc018_6450, 24), INVAL),
    row("core: another type", ALL, |card| raw(card, 0xc018_7840, 24), Err(Errno::NOTTY)),
    row("core: the old driver's numbers", ALL, |card| raw(card, 0xc018_4801, 24), Err(Errno::NOTTY)),
    row("core: the version", ALL, |card| raw(card, 0xc040_6400, 64), Ok(())),
    row("core: a smaller argument is filled up with zeros", ALL, |card| raw(card, 0xc008_6440, 8), INVAL),
    row("core: a larger argument is cut off", ALL, |card| raw(card, 0xc040_6444, 64), INVAL),
    // rule(debug-mode)
    row("core: debugging what is not debugged", ALL, |card| raw(card, 0xc028_6445, 40), FAULT),
];

static INFO: &[Row] = &[
    row("info: hardware", ALL, |card| question(card, |_| {}), Ok(())),
    row("info: padding", ALL, |card| question(card, |request| request.pad = 1), INVAL),
    row("info: no room", ALL, |card| question(card, |request| request.return_size = 0), INVAL),
    row("info: no address", ALL, |card| question(card, |request| request.return_pointer = 0), INVAL),
    row("info: a bad address", ALL, |card| question(card, |request| request.return_pointer = 64), FAULT),
    row("info: an unknown question", ALL, |card| question(card, |request| request.op = 999), INVAL),
    row(
        "info: no eventfd to take back",
        ALL,
        |card| question(card, |request| request.op = info::UNREGISTER_EVENTFD),
        INVAL,
    ),
    row(
        "info: a descriptor that is not open",
        ALL,
        |card| {
            question(card, |request| {
                request.op = info::REGISTER_EVENTFD;
                request.dcore_id = 99_999;
            })
        },
        Err(Errno::BADF),
    ),
    row(
        "info: a descriptor that is no eventfd",
        ALL,
        |card| {
            question(card, |request| {
                request.op = info::REGISTER_EVENTFD;
                request.dcore_id = 0;
            })
        },
        INVAL,
    ),
];

static BUFFERS: &[Row] = &[
    row("cb: an unknown operation", ALL, |card| buffer(card, CbIn { op: 7, ..CbIn::default() }), INVAL),
    row(
        "cb: as large as can be",
        ALL,
        |card| card.create(cb::MAX_SIZE).and_then(|one| card.destroy(one)),
        Ok(()),
    ),
    row("cb: too large", ALL, |card| card.create(cb::MAX_SIZE + 1).map(drop), INVAL),
    row(
        "cb: of no size is a page",
        ALL,
        |card| {
            let handle = card.create(0).unwrap();
            let seen = card.see(handle, 4096).map(drop);
            card.destroy(handle).unwrap();
            seen
        },
        Ok(()),
    ),
    row(
        "cb: destroyed twice",
        ALL,
        |card| with_buffer(card, |one| card.destroy(one).and_then(|()| card.destroy(one))),
        INVAL,
    ),
    row(
        "cb: questions about none",
        ALL,
        |card| buffer(card, CbIn { op: cb::INFO, ..CbIn::default() }),
        INVAL,
    ),
    row(
        "cb: the address of one that has none",
        ALL,
        |card| {
            with_buffer(card, |one| {
                let flags = cb::FLAG_GET_DEVICE_VA;
                buffer(card, CbIn { op: cb::INFO, cb_handle: one, flags, ..CbIn::default() })
            })
        },
        INVAL,
    ),
    row("mmap: exactly as large", ALL, |card| with_buffer(card, |one| card.see(one, 4096).map(drop)), Ok(())),
    row("mmap: of another size", ALL, |card| with_buffer(card, |one| card.see(one, 8192).map(drop)), INVAL),
    row("mmap: of no handle", ALL, |card| card.see(0x5000, 4096).map(drop), INVAL),
    row(
        "mmap: twice",
        ALL,
        |card| {
            with_buffer(card, |one| {
                let _first = card.see(one, 4096).unwrap();
                card.see(one, 4096).map(drop)
            })
        },
        INVAL,
    ),
    row(
        "mmap: again after the first has ended",
        ALL,
        |card| {
            with_buffer(card, |one| {
                drop(card.see(one, 4096).unwrap());
                card.see(one, 4096).map(drop)
            })
        },
        Ok(()),
    ),
];

static SUBMIT: &[Row] = &[
    row("cs: a good one", ALL, |card| submission(card, |_, _| {}), Ok(())),
    row("cs: padding", ALL, |card| submission(card, |cs, _| cs.pad = 1), INVAL),
    row("cs: no chunks", ALL, |card| submission(card, |_, chunks| chunks.clear()), INVAL),
    // rule(cs-chunks)
    row(
        "cs: too many chunks",
        ALL,
        |card| submission(card, |_, chunks| chunks.resize(513, chunks[0])),
        INVAL,
    ),
    row("cs: chunks that are not there", ALL, |card| submission(card, |cs, _| cs.chunks_execute = 64), FAULT),
    row(
        "cs: two kinds at once",
        ALL,
        |card| submission(card, |cs, _| cs.cs_flags = cs::SIGNAL | cs::WAIT),
        INVAL,
    ),
    row(
        "cs: a queue that is not there",
        FIRST,
        |card| submission(card, |_, chunks| chunks[0].queue_index = 113),
        INVAL,
    ),
    row(
        "cs: a queue that is not there",
        SECOND,
        |card| submission(card, |_, chunks| chunks[0].queue_index = 261),
        INVAL,
    ),
    row(
        "cs: the driver's queue",
        FIRST,
        |card| submission(card, |_, chunks| chunks[0].queue_index = 8),
        INVAL,
    ),
    row(
        "cs: the driver's queue",
        SECOND,
        |card| submission(card, |_, chunks| chunks[0].queue_index = 260),
        INVAL,
    ),
    // rule(cs-user-buffer)
    row(
        "cs: the flag of device addresses, for an external queue",
        FIRST,
        |card| submission(card, |_, chunks| chunks[0].cs_chunk_flags = chunk::USER_ALLOC_CB),
        Ok(()),
    ),
    row(
        "cs: a buffer of the kernel",
        SECOND,
        |card| submission(card, |_, chunks| chunks[0].cs_chunk_flags = 0),
        INVAL,
    ),
    row(
        "cs: an unknown handle",
        FIRST,
        |card| submission(card, |_, chunks| chunks[0].cb_handle += 1 << 20),
        INVAL,
    ),
    row("cs: less than a packet", FIRST, |card| submission(card, |_, chunks| chunks[0].cb_size = 4), INVAL),
    row(
        "cs: more than the buffer",
        FIRST,
        |card| submission(card, |_, chunks| chunks[0].cb_size = 4104),
        INVAL,
    ),
    row(
        "cs: nothing but internal queues",
        FIRST,
        |card| {
            with_host(card, |_, address| {
                submission(card, |_, chunks| {
                    (chunks[0].cb_handle, chunks[0].queue_index) = (address, 9);
                })
            })
        },
        INVAL,
    ),
    row(
        "cs: an address where no commands can be",
        SECOND,
        |card| submission(card, |_, chunks| chunks[0].cb_handle = 0x1000),
        FAULT,
    ),
    row(
        "cs: in stages",
        SECOND,
        |card| submission(card, |cs, _| cs.cs_flags = cs::STAGED_SUBMISSION | cs::STAGED_FIRST),
        PERM,
    ),
    row(
        "cs: the driver's own packet",
        FIRST,
        |card| commands(card, &packet(packet::opcode::MSG_PROT, 2), |_, _| {}),
        PERM,
    ),
    row(
        "cs: a transfer that has to be patched",
        FIRST,
        |card| commands(card, &packet(packet::opcode::CP_DMA, 2), |_, _| {}),
        PERM,
    ),
    row("cs: a stop", FIRST, |card| commands(card, &packet(packet::opcode::STOP, 1), |_, _| {}), PERM),
    row(
        "cs: registers in bulk",
        FIRST,
        |card| commands(card, &packet(packet::opcode::WREG_BULK, 1), |_, _| {}),
        PERM,
    ),
    row(
        "cs: an operation that does not exist",
        FIRST,
        |card| commands(card, &packet(0x1d, 1), |_, _| {}),
        INVAL,
    ),
    row(
        "cs: half a packet",
        FIRST,
        |card| commands(card, &packet(packet::opcode::LIN_DMA, 2), |_, _| {}),
        INVAL,
    ),
    row(
        "signal: two chunks",
        ALL,
        |card| {
            submission(card, |cs, chunks| {
                cs.cs_flags = cs::SIGNAL;
                chunks.push(chunks[0]);
            })
        },
        INVAL,
    ),
    row("signal: an internal queue", FIRST, |card| card.signal(9).map(drop), INVAL),
    row("signal: a network queue", SECOND, |card| card.signal(200).map(drop), INVAL),
    row(
        "signal: a transfer queue",
        ALL,
        |card| card.signal(4).map(|signal| assert_eq!(card.finish(signal.seq).flags, 0)),
        Ok(()),
    ),
    row(
        "wait: for two signals",
        ALL,
        |card| {
            submission(card, |cs, chunks| {
                cs.cs_flags = cs::WAIT;
                chunks[0].cb_size = 2;
            })
        },
        INVAL,
    ),
    row("wait: for a signal that was never made", ALL, |card| card.wait_signal(0, 1 << 40).map(drop), INVAL),
    row(
        "wait: for something that is no signal",
        ALL,
        |card| {
            let commands = card.commands(&Card::nop());
            let sequence = card.run(&commands, 0, 8).unwrap();
            let result = card.wait_signal(1, sequence).map(drop);
            card.finish(sequence);
            card.give_back(commands);
            result
        },
        INVAL,
    ),
    row(
        "wait: a number that is not there",
        ALL,
        |card| {
            let request = CsIn { cs_flags: cs::WAIT, ..CsIn::default() };
            card.submit_with(&request, &[Chunk { cb_handle: 64, cb_size: 1, ..Chunk::default() }]).0
        },
        FAULT,
    ),
];

static WAITS: &[Row] = &[
    row("wait_cs: what was not submitted", ALL, |card| waiting(card, |wait| wait.seq = 1 << 40), INVAL),
    row("wait_cs: of several", SECOND, |card| waiting(card, |wait| wait.flags = wait::MULTI_CS), PERM),
    row("wait_cs: of none", FIRST, |card| waiting(card, |wait| wait.flags = wait::MULTI_CS), Ok(())),
    row(
        "wait_cs: of several, with padding, where there is none",
        SECOND,
        |card| waiting(card, |wait| (wait.flags, wait.pad[3]) = (wait::MULTI_CS, 1)),
        INVAL,
    ),
    row(
        "wait_cs: of too many",
        FIRST,
        |card| waiting(card, |wait| (wait.flags, wait.seq_arr_len) = (wait::MULTI_CS, 33)),
        INVAL,
    ),
    row(
        "wait_cs: of several that are not there",
        FIRST,
        |card| waiting(card, |wait| (wait.flags, wait.seq_arr_len, wait.seq) = (wait::MULTI_CS, 2, 64)),
        FAULT,
    ),
    row(
        "wait_cs: of several, with padding",
        FIRST,
        |card| waiting(card, |wait| (wait.flags, wait.seq_arr_len, wait.pad[3]) = (wait::MULTI_CS, 1, 1)),
        INVAL,
    ),
    row("wait_cs: an interrupt", FIRST, |card| waiting(card, |wait| wait.flags = wait::INTERRUPT), PERM),
];

static MEMORY: &[Row] = &[
    row(
        "memory: an unknown operation",
        ALL,
        |card| card.memory(&MemAlloc { op: 50, ..MemAlloc::default() }).map(drop),
        INVAL,
    ),
    row(
        "memory: registering is not upstream",
        ALL,
        |card| card.memory(&MemAlloc { op: mem::REGISTER_DMABUF_FD, ..MemAlloc::default() }).map(drop),
        INVAL,
    ),
    row("alloc: nothing", ALL, |card| card.alloc(0).map(drop), INVAL),
    row("alloc: without an end", SECOND, |card| card.alloc(u64::MAX).map(drop), Err(Errno::NOMEM)),
    row("alloc: more than there is", SECOND, |card| card.alloc(1 << 40).map(drop), Err(Errno::NOMEM)),
    row("free: an unknown handle", SECOND, |card| card.free(12345), INVAL),
    row("free: what is mapped", SECOND, |card| with_memory(card, |handle, _| card.free(handle)), INVAL),
    row("map: an unknown handle", ALL, |card| card.map_device(12345).map(drop), INVAL),
    row(
        "map: twice, for two addresses",
        SECOND,
        |card| {
            with_memory(card, |handle, first| {
                let second = card.map_device(handle).unwrap();
                assert_ne!(first, second);
                card.unmap(second)
            })
        },
        Ok(()),
    ),
    row(
        "map: at an address that is taken",
        SECOND,
        |card| {
            with_memory(card, |handle, hint_addr| {
                let request = MemMapDevice {
                    handle,
                    hint_addr,
                    op: mem::MAP,
                    flags: mem::FORCE_HINT,
                    ..MemMapDevice::default()
                };
                card.memory(&request).map(drop)
            })
        },
        Err(Errno::NOMEM),
    ),
    row("map: host memory of no size", ALL, |card| card.map_host_at(0x10_0000, 0).map(drop), INVAL),
    row(
        "map: host memory without an end",
        ALL,
        |card| card.map_host_at(u64::MAX - 5000, 8192).map(drop),
        INVAL,
    ),
    row("map: host memory that is not there", ALL, |card| card.map_host_at(4096, 4096).map(drop), FAULT),
    row(
        "map: host memory that may not be written",
        ALL,
        |card| card.map_host_at(constant(), 4096).map(drop),
        FAULT,
    ),
    row(
        "map: host memory with a hint that cannot be followed",
        ALL,
        |card| {
            let memory = host(4096);
            let request = MemMapHost {
                host_virt_addr: memory.address() as u64,
                hint_addr: 5,
                mem_size: 4096,
                op: mem::MAP,
                flags: mem::USERPTR,
                ..MemMapHost::default()
            };
            card.memory(&request).and_then(|address| card.unmap(address))
        },
        Ok(()),
    ),
    row(
        "map: host memory keeps its place in the page",
        ALL,
        |card| {
            let memory = host(8192).slice(100, 5000).unwrap();
            let address = card.map_host(&memory);
            assert_eq!(address % 4096, 100);
            card.unmap(address)
        },
        Ok(()),
    ),
    row("unmap: what is not mapped", ALL, |card| card.unmap(0x1234_5000), INVAL),
    row(
        "unmap: from the middle",
        ALL,
        |card| with_host(card, |_, address| card.unmap(address + 4096)),
        INVAL,
    ),
    row("unmap: one byte beside", ALL, |card| with_host(card, |_, address| card.unmap(address + 1)), INVAL),
    row(
        "unmap: twice",
        ALL,
        |card| with_host(card, |_, address| card.unmap(address).and_then(|()| card.unmap(address))),
        INVAL,
    ),
    row(
        "unmap: memory that was never mapped by anybody",
        ALL,
        |card| {
            let info: hal_gaudi_abi::uapi::HwIpInfo = card.info(info::HW_IP_INFO).unwrap();
            card.memory(&MemUnmap {
                device_virt_addr: info.sram_base_address,
                op: mem::UNMAP,
                ..MemUnmap::default()
            })
            .map(drop)
        },
        INVAL,
    ),
    row(
        "free: a number of bytes that was never taken",
        FIRST,
        |card| card.memory(&MemFree { handle: 1, op: mem::FREE, ..MemFree::default() }).map(drop),
        Ok(()),
    ),
    row(
        "blocks: not on this generation",
        FIRST,
        |card| card.memory(&MemFree { op: mem::MAP_BLOCK, ..MemFree::default() }).map(drop),
        PERM,
    ),
];

static EXPORTS: &[Row] = &[
    row("export: a mapping", SECOND, |card| with_memory(card, |_, at| export(card, good_export(at))), Ok(())),
    row(
        "export: read only",
        SECOND,
        |card| with_memory(card, |_, at| export(card, MemExport { flags: 0o2_000_000, ..good_export(at) })),
        Ok(()),
    ),
    // rule(export-flags)
    row(
        "export: flags of nothing",
        SECOND,
        |card| with_memory(card, |_, at| export(card, MemExport { flags: 0, ..good_export(at) })),
        Ok(()),
    ),
    row(
        "export: other flags",
        SECOND,
        |card| {
            with_memory(card, |_, at| {
                export(card, MemExport { flags: EXPORTABLE | 0o4000, ..good_export(at) })
            })
        },
        Ok(()),
    ),
    row(
        "export: part of a page",
        SECOND,
        |card| with_memory(card, |_, at| export(card, MemExport { mem_size: 100, ..good_export(at) })),
        INVAL,
    ),
    row(
        "export: nothing",
        SECOND,
        |card| with_memory(card, |_, at| export(card, MemExport { mem_size: 0, ..good_export(at) })),
        INVAL,
    ),
    row(
        "export: from the middle, by its offset",
        SECOND,
        |card| with_memory(card, |_, at| export(card, MemExport { offset: 8192, ..good_export(at) })),
        Ok(()),
    ),
    row(
        "export: from the middle, by its address",
        SECOND,
        |card| with_memory(card, |_, at| export(card, good_export(at + 8192))),
        INVAL,
    ),
    row(
        "export: past the end",
        SECOND,
        |card| with_memory(card, |_, at| export(card, MemExport { offset: 768 << 20, ..good_export(at) })),
        INVAL,
    ),
    row("export: host memory", SECOND, |card| with_host(card, |_, at| export(card, good_export(at))), INVAL),
    row("export: an address of device memory", FIRST, |card| export(card, good_export(0x2000_0000)), Ok(())),
    row("export: below device memory", FIRST, |card| export(card, good_export(0x1000_0000)), INVAL),
    row("export: above device memory", FIRST, |card| export(card, good_export(32 << 30)), INVAL),
    row(
        "export: an offset",
        FIRST,
        |card| export(card, MemExport { offset: 4096, ..good_export(0x2000_0000) }),
        INVAL,
    ),
];

/// The name of an error.
fn errno(error: Errno) -> String {
    let names = [
        (Errno::INVAL, "EINVAL"),
        (Errno::FAULT, "EFAULT"),
        (Errno::PERM, "EPERM"),
        (Errno::NOTTY, "ENOTTY"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::BADF, "EBADF"),
        (Errno::BUSY, "EBUSY"),
        (Errno::AGAIN, "EAGAIN"),
    ];
    let name = names.iter().find(|(known, _)| *known == error);
    name.map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned())
}

#[test]
fn driver_answers_as_in_the_table() {
    let mut wrong = Vec::new();
    let mut asked = 0;
    let cards = match hardware() {
        Some(card) => vec![card],
        None => BOTH.map(|generation| card(options(generation))).into(),
    };
    for card in cards {
        let generation = card.generation;
        for row in [CORE, INFO, BUFFERS, SUBMIT, WAITS, MEMORY, EXPORTS].into_iter().flatten() {
            if !row.of.contains(&generation) {
                continue;
            }
            let name = |result: &Result<(), Errno>| match result {
                Ok(()) => "ok".to_owned(),
                Err(error) => errno(*error),
            };
            let said = (row.ask)(&card);
            println!("{:8} {:52} {}", generation.to_string(), row.name, name(&said));
            asked += 1;
            if said != row.says {
                wrong.push(format!(
                    "{generation}: {}: {} instead of {}",
                    row.name,
                    name(&said),
                    name(&row.says)
                ));
            }
        }
        if card.emulator.is_some() {
            let counts = card.close();
            assert_eq!((counts.hard_resets, counts.leaked_at_close), (0, 0), "{generation}: rows clean up");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(asked > 60, "only {asked} rows");
}

#[test]
fn full_window_is_refused_and_leaves_the_argument() {
    use crate::common::{Gate, Program, dispatch};
    use std::sync::Arc;
    let card = card(options(Generation::Gaudi2));
    let gate = Arc::new(Gate::default());
    let inner = gate.clone();
    let program = card.machine().load(Arc::new(Program(
        move |_: &hal_backend::HostCall<'_>, _: std::ops::Range<u64>| {
            inner.pass();
            Ok(())
        },
    )));
    let packet = dispatch(program, 0, [1; 3], &[], &[]);
    let commands = card.commands(&packet);
    let mut last = 0;
    for _ in 0..64 {
        last = card.run(&commands, 0, packet.len()).unwrap();
    }
    let chunk = card.chunk(&commands, 1, packet.len());
    let request = CsIn { cs_flags: cs::CUSTOM_TIMEOUT, timeout: 77, ..CsIn::default() };
    let full = CsIn { chunks_execute: (&raw const chunk) as u64, num_chunks_execute: 1, ..request };
    let (result, left): (_, CsIn) = card.call(Call::Submit, &full);
    assert_eq!((result, left), (Err(Errno::AGAIN), full));
    assert_eq!(card.wait_for(1, Duration::ZERO).1.status, wait::BUSY);
    gate.open();
    card.finish(1);
    assert_eq!(card.run(&commands, 1, packet.len()), Ok(last + 1));
    card.finish(last);
    assert_eq!(card.finish(1).flags, wait::FLAG_GONE);
    card.finish(last + 1);
    card.give_back(commands);
    assert_eq!(card.close().hard_resets, 0);
}

#[test]
fn core_identifies_itself_only_by_its_own_numbers() {
    use emulator_core::drm;
    use emulator_gaudi::Options;
    use hal_gaudi_abi::uapi::Abi;
    use zerocopy::IntoBytes;
    for abi in [Abi::Drm, Abi::Old] {
        let card = card(Options { abi, ..options(Generation::Gaudi2) });
        let mut name = [0_u8; 32];
        let mut version =
            drm::Version { name: name.as_mut_ptr() as u64, name_length: 32, ..drm::Version::default() };
        let result = card.kernel.ioctl(card.file().as_fd(), drm::VERSION, version.as_mut_bytes());
        match abi {
            Abi::Drm => {
                assert_eq!((result, version.name_length), (Ok(()), 10));
                assert_eq!(&name[..12], b"habanalabs\0\0");
            }
            Abi::Old => assert_eq!(result, Err(Errno::NOTTY)),
        }
        assert_eq!(card.status(), 0, "{abi:?}");
        let found = crate::common::identify(&*card.kernel, card.file());
        assert_eq!(found, Some((abi, Generation::Gaudi2)), "the numbers are found out by asking");
    }
}
