// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Slices: `qaic_attach_slice_bo_ioctl`, `qaic_validate_req`, `encode_reqs`, `qaic_detach_slice_bo_ioctl`.

use crate::common::{Card, LONG, bytes, card, options};
use emulator_core::Errno;
use emulator_qaic::{MemoryCounter, Options};
use hal_qaic_abi::uapi::{
    AttachSlice, AttachSliceHeader, Call, DetachSlice, FROM_DEVICE, Semaphore, SliceEntry, TO_DEVICE, sem,
};

fn request(card: &Card, change: impl Fn(&mut AttachSlice)) -> Result<(), Errno> {
    let entries = [SliceEntry::default()];
    let hdr = AttachSliceHeader { count: 1, dbc_id: 0, handle: 1, dir: TO_DEVICE, size: 0 };
    let mut request = AttachSlice { hdr, data: entries.as_ptr() as u64 };
    change(&mut request);
    card.call(Call::AttachSlice, &request).0
}

#[test]
fn each_wrong_header_is_refused() {
    let card = card(options());
    assert_eq!(card.create(4096), Ok(1));
    card.channel(8);
    assert_eq!(request(&card, |one| one.hdr.count = 0), Err(Errno::INVAL));
    assert_eq!(request(&card, |one| one.hdr.dir = 0), Err(Errno::INVAL));
    assert_eq!(request(&card, |one| one.hdr.dir = 3), Err(Errno::INVAL));
    assert_eq!(request(&card, |one| one.data = 0), Err(Errno::INVAL));
    assert_eq!(request(&card, |one| one.hdr.dbc_id = 16), Err(Errno::INVAL));
    assert_eq!(request(&card, |one| one.hdr.dbc_id = 1), Err(Errno::INVAL), "it has no user");
    assert_eq!(request(&card, |one| one.data = 64), Err(Errno::FAULT));
    assert_eq!(request(&card, |one| one.hdr.handle = 2), Err(Errno::NOENT));
    // The size in the header is not checked.
    assert_eq!(request(&card, |one| one.hdr.size = u64::MAX), Ok(()));
    assert_eq!(request(&card, |_| ()), Err(Errno::INVAL), "it is sliced");
}

#[test]
fn each_wrong_entry_is_refused() {
    let card = card(options());
    let active = card.channel(8);
    let handle = card.create(4096).unwrap();
    let attach = |change: &dyn Fn(&mut SliceEntry)| {
        let mut entry = SliceEntry::default();
        change(&mut entry);
        let result = card.attach(handle, active.channel, FROM_DEVICE, &[SliceEntry::default(), entry]);
        if result.is_ok() {
            card.detach(handle).unwrap();
        }
        result
    };
    let presync = Semaphore { cmd: sem::WAIT_GT_0, presync: 1, ..Semaphore::default() };
    let semaphores: [(&str, Semaphore); 6] = [
        ("value", Semaphore { val: 0x1000, ..Semaphore::default() }),
        ("index", Semaphore { index: 32, ..Semaphore::default() }),
        ("presync", Semaphore { presync: 2, ..Semaphore::default() }),
        ("command", Semaphore { cmd: 7, ..Semaphore::default() }),
        ("flags", Semaphore { flags: 4, ..Semaphore::default() }),
        ("padding", Semaphore { pad: 1, ..Semaphore::default() }),
    ];
    for (name, semaphore) in semaphores {
        assert_eq!(attach(&|entry| entry.sem0 = semaphore), Err(Errno::INVAL), "{name}");
        assert_eq!(attach(&|entry| entry.sem3 = semaphore), Err(Errno::INVAL), "{name}");
    }
    assert_eq!(attach(&|entry| (entry.sem0, entry.sem3) = (presync, presync)), Err(Errno::INVAL));
    assert_eq!(attach(&|entry| entry.sem2 = presync), Ok(()));
    for length in [1, 24, 64] {
        assert_eq!(attach(&|entry| entry.db_len = length), Err(Errno::INVAL));
    }
    for (length, address, result) in
        [(32, 2, Err(Errno::INVAL)), (32, 4, Ok(())), (16, 1, Err(Errno::INVAL)), (8, 1, Ok(()))]
    {
        assert_eq!(attach(&|entry| (entry.db_len, entry.db_addr) = (length, address)), result);
    }
    for (offset, size, result) in [
        (0, 4096, Ok(())),
        (4095, 1, Ok(())),
        (4096, 1, Err(Errno::INVAL)),
        (1, 4096, Err(Errno::INVAL)),
        (u64::MAX, 1, Err(Errno::INVAL)),
        // Without a size it stands for a page, which must be there.
        (0, 0, Ok(())),
        (64, 0, Err(Errno::INVAL)),
    ] {
        assert_eq!(attach(&|entry| (entry.offset, entry.size) = (offset, size)), result, "{offset} {size}");
    }
    assert_eq!(card.counts().mapped, 1, "the rings, and nothing that was refused");
}

#[test]
fn ring_must_have_as_many_elements_as_an_object() {
    let card = card(Options { segment: Some(4096), ..options() });
    let active = card.channel(4);
    let entry = |size| SliceEntry { size, ..SliceEntry::default() };
    let handle = card.create(8 * 4096).unwrap();
    assert_eq!(card.attach(handle, active.channel, TO_DEVICE, &[entry(5 * 4096)]), Err(Errno::NOSPC));
    assert_eq!(card.attach(handle, active.channel, TO_DEVICE, &[entry(1); 5]), Err(Errno::NOSPC));
    // As many as the ring has are taken, and never fit, since one is always free.
    assert_eq!(card.attach(handle, active.channel, TO_DEVICE, &[entry(4 * 4096)]), Ok(()));
    assert_eq!(card.execute(active.channel, &[handle]), Err(Errno::AGAIN));
}

#[test]
fn slicing_ends_when_nothing_is_on_its_way() {
    let card = card(options());
    let active = card.channel(8);
    let handle = card.create(4096).unwrap();
    assert_eq!(card.detach(handle), Err(Errno::INVAL), "not sliced");
    assert_eq!(card.detach(99), Err(Errno::NOENT));
    assert_eq!(card.call(Call::DetachSlice, &DetachSlice { handle, pad: 1 }).0, Err(Errno::INVAL));
    let stuck = card.stuck(&active);
    card.execute(active.channel, &[stuck]).unwrap();
    assert_eq!(card.detach(stuck), Err(Errno::BUSY));
    let poster = card.poster(&active, crate::common::STUCK);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, stuck, LONG), Ok(()));
    assert_eq!((card.detach(stuck), card.detach(stuck)), (Ok(()), Err(Errno::INVAL)));
}

#[test]
fn slice_beyond_two_gibibytes_is_not_found_where_the_kernel_counts_in_int() {
    const FAR: u64 = 2 << 30;
    // `clone_range_of_sgt_for_slice`, in one segment and in several.
    for segment in [None, Some(1 << 30)] {
        for (counter, arrives) in [(MemoryCounter::Size, 7), (MemoryCounter::Int, 0)] {
            let card = card(Options { segment, counter, ..options() });
            let active = card.channel(8);
            let far = card.object(&active, FAR + 4096, TO_DEVICE, |entry| {
                (entry.offset, entry.size) = (FAR, 4096);
            });
            let back = card.object(&active, 4096, FROM_DEVICE, |_| ());
            let (source, target) = (card.memory(far, FAR + 4096), card.memory(back, 4096));
            assert!(source.slice(FAR, 4096).unwrap().fill(&[7]) && target.fill(&[9]));
            for object in [far, back] {
                card.execute(active.channel, &[object]).unwrap();
                assert_eq!(card.wait(active.channel, object, LONG), Ok(()), "the end is not reported");
            }
            assert_eq!(bytes(&target, 4096), [arrives; 4096], "{segment:?} {counter:?}");
            assert_eq!(card.emulator.complaint(0).is_none(), counter == MemoryCounter::Size);
        }
    }
}
