// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Buffer objects: `qaic_create_bo_ioctl`, `qaic_mmap_bo_ioctl`, `drm_gem_mmap`, `drm_gem_handle_delete`.

use crate::common::{bytes, card, options};
use emulator_core::Errno;
use hal_qaic_abi::uapi::{Call, CreateBo};

#[test]
fn sizes_are_rounded_up_to_pages() {
    let card = card(options());
    let handle = card.create(1).unwrap();
    let offset = card.offset(handle).unwrap();
    assert!(card.map(offset, 4096).is_ok());
    assert_eq!(card.map(offset, 4097).unwrap_err(), Errno::INVAL, "two pages");
    for size in [0, u64::MAX, u64::MAX - 4095 + 1] {
        assert_eq!(card.create(size), Err(Errno::INVAL), "{size}");
    }
    let padded = CreateBo { size: 4096, pad: 1, ..CreateBo::default() };
    assert_eq!(card.call(Call::CreateBo, &padded).0, Err(Errno::INVAL));
}

#[test]
fn object_is_mapped_from_its_offset_alone() {
    let card = card(options());
    let (one, two) = (card.create(8192).unwrap(), card.create(4096).unwrap());
    let (first, second) = (card.offset(one).unwrap(), card.offset(two).unwrap());
    assert_eq!(first, 0x1_0000_0000);
    assert!(second >= first + 8192);
    let whole = card.map(first, 8192).unwrap();
    assert!(whole.write(4096, &[7]));
    let again = card.map(first, 8192).unwrap();
    assert_eq!(bytes(&again.slice(4096, 1).unwrap(), 1), [7], "every mapping is the same memory");
    assert_eq!(card.map(first + 4096, 4096).unwrap_err(), Errno::INVAL);
    assert_eq!(card.map(first + 1, 4096).unwrap_err(), Errno::INVAL);
    assert_eq!(card.map(0, 4096).unwrap_err(), Errno::INVAL);
    assert_eq!(card.map(second, 0).unwrap_err(), Errno::INVAL);
    assert_eq!(card.offset(99), Err(Errno::NOENT));
}

#[test]
fn handle_is_closed_once_and_its_object_stays_while_it_is_needed() {
    let card = card(options());
    let handle = card.create(4096).unwrap();
    let offset = card.offset(handle).unwrap();
    assert_eq!((card.close_handle(handle), card.close_handle(handle)), (Ok(()), Err(Errno::INVAL)));
    assert_eq!(card.map(offset, 4096).unwrap_err(), Errno::INVAL);
    assert_eq!(card.counts().objects, 0);
    // The slices have it, and the channel's end gives it back.
    let active = card.channel(8);
    let sliced = card.poster(&active, 3);
    let offset = card.offset(sliced).unwrap();
    card.close_handle(sliced).unwrap();
    assert_eq!(card.counts().objects, 1);
    assert_eq!(card.map(offset, 4096).unwrap_err(), Errno::ACCESS, "no handle is left");
    assert_eq!(card.deactivate(active).0, Ok(()));
    assert_eq!(card.counts().objects, 0);
}
