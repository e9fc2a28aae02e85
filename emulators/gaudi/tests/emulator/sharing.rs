// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Device memory that goes to another device.

use crate::common::{BOTH, bytes, card, host, open, options, try_open};
use emulator_core::Errno;
use emulator_gaudi::{Emulator, Options};
use hal_gaudi_abi::generation::Generation;
use std::os::fd::OwnedFd;

/// `O_RDWR | O_CLOEXEC`.
const EXPORTABLE: u32 = 0o2_000_002;
const SECOND: Generation = Generation::Gaudi2;

fn registering(generation: Generation) -> Options {
    Options { register: true, ..options(generation) }
}

#[test]
fn exported_memory_is_neither_unmapped_nor_freed() {
    let card = card(options(SECOND));
    let handle = card.alloc(1).unwrap();
    let address = card.map_device(handle).unwrap();
    let first = card.export(address, 8192, 4096, EXPORTABLE).unwrap();
    let copy = first.try_clone().unwrap();
    assert_eq!((card.unmap(address), card.free(handle)), (Err(Errno::INVAL), Err(Errno::INVAL)));
    drop(first);
    assert_eq!(card.unmap(address), Err(Errno::INVAL), "a copy is as good");
    drop(copy);
    assert_eq!((card.unmap(address), card.free(handle)), (Ok(()), Ok(())));
}

#[test]
fn card_is_busy_until_its_last_dma_buf_has_gone() {
    for generation in BOTH {
        let card = card(options(generation));
        let machine = card.machine().clone();
        let address = card.dram(4096);
        let buffer = card.export(address, 4096, 0, EXPORTABLE).unwrap();
        card.close();
        assert_eq!(try_open(&machine, 0).err(), Some(Errno::BUSY), "{generation}");
        drop(buffer);
        let again = open(&machine, 0);
        assert_eq!(again.close().hard_resets, 0);
    }
}

#[test]
fn another_card_accesses_registered_memory() {
    for generation in BOTH {
        let machine = Emulator::new(registering(generation)).unwrap();
        let (exporter, importer) = (open(&machine, 0), open(&machine, 1));
        let memory = exporter.dram(1 << 20);
        let length = 64 << 10;
        exporter.execute(0, &exporter.fill([1, 2, 3, 4], memory, 2 * length));
        let offset = if generation == SECOND { length } else { 0 };
        let base = if generation == SECOND { memory } else { memory + length };
        let buffer = exporter.export(base, length, offset, EXPORTABLE).unwrap();
        assert_eq!(importer.register(&buffer, length + 4096), Err(Errno::INVAL), "more than there is");
        assert_eq!(importer.register(&buffer, 100), Err(Errno::INVAL), "part of a page");
        let address = importer.register(&buffer, length).unwrap();
        drop(buffer);
        let target = host(length);
        let to = importer.map_host(&target);
        importer.execute(4, &importer.copy(address, to, length));
        assert_eq!(bytes(&target, 0, length as usize), [1, 2, 3, 4].repeat(length as usize / 4));
        importer.execute(4, &importer.fill([9; 4], address, 64));
        let near = host(4096);
        let seen = exporter.map_host(&near);
        exporter.execute(4, &exporter.copy(memory + length, seen, 128));
        assert_eq!(bytes(&near, 0, 128), [[9; 64].as_slice(), &[1, 2, 3, 4].repeat(16)].concat());
        if generation == SECOND {
            assert_eq!(exporter.unmap(memory), Err(Errno::INVAL), "the attachment holds it");
        }
        importer.unmap(address).unwrap();
        if generation == SECOND {
            assert_eq!(exporter.unmap(memory), Ok(()));
        }
    }
}

#[test]
fn only_dma_bufs_are_registered() {
    let card = card(registering(SECOND));
    let file = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    assert_eq!(card.register(&file, 4096), Err(Errno::INVAL));
    let off = crate::common::card(options(SECOND));
    let address = off.dram(1);
    let buffer = off.export(address, 4096, 0, EXPORTABLE).unwrap();
    assert_eq!(off.register(&buffer, 4096), Err(Errno::INVAL), "not upstream");
}

/// rule(export-offset)
#[test]
fn older_drivers_map_other_memory_than_at_the_offset() {
    let old = Options { abi: hal_gaudi_abi::uapi::Abi::Old, ..registering(SECOND) };
    let machine = Emulator::new(old).unwrap();
    let (exporter, importer) = (open(&machine, 0), open(&machine, 1));
    let memory = exporter.dram(1 << 20);
    exporter.execute(0, &exporter.fill([1; 4], memory, 4096));
    exporter.execute(0, &exporter.fill([2; 4], memory + 4096, 4096));
    let buffer = exporter.export(memory, 4096, 4096, EXPORTABLE).unwrap();
    let address = importer.register(&buffer, 4096).unwrap();
    let target = host(4096);
    importer.execute(4, &importer.copy(address, importer.map_host(&target), 4096));
    assert_eq!(bytes(&target, 0, 64), [1; 64]);
}
