// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Opens, closes, and what users see of each other.

use crate::common::{LONG, card, faulty, open, options, try_open};
use emulator_core::SupervisedMachine;
use emulator_core::drm::{VERSION, Version};
use emulator_core::{Errno, System};
use emulator_qaic::{Emulator, Options};
use hal_qaic_abi::uapi::{Call, TO_DEVICE};
use std::os::fd::AsFd;
use std::path::Path;
use zerocopy::IntoBytes;

#[test]
fn any_number_of_users_share_a_card_and_see_nothing_of_each_other() {
    let one = card(options());
    let two = open(&one.emulator, 0);
    // Handles are each user's own, from 1, the lowest that is free.
    assert_eq!((one.create(1), one.create(1), two.create(1)), (Ok(1), Ok(2), Ok(1)));
    assert_eq!((one.close_handle(1), one.create(1)), (Ok(()), Ok(1)));
    assert_eq!(two.offset(2), Err(Errno::NOENT));
    // A mapping needs a handle.
    let offset = one.offset(1).unwrap();
    assert_eq!(two.map(offset, 4096).unwrap_err(), Errno::ACCESS);
    // So does a channel.
    let active = one.channel(8);
    let handle = two.create(4096).unwrap();
    assert_eq!(two.attach(handle, active.channel, TO_DEVICE, &[<_>::default()]), Err(Errno::INVAL));
    assert_eq!(two.execute(active.channel, &[handle]), Err(Errno::PERM));
    assert_eq!(two.wait(active.channel, handle, 1), Err(Errno::PERM));
    assert_eq!(two.deactivate(active).0, Err(Errno::PERM));
    assert_eq!(one.counts().users, 2);
}

#[test]
fn close_gives_everything_back() {
    let one = card(options());
    let two = open(&one.emulator, 0);
    let active = one.channel(8);
    let stuck = one.stuck(&active);
    one.execute(active.channel, &[stuck]).unwrap();
    let mine = two.channel(8);
    let handle = two.poster(&mine, 3);
    let counts = one.close();
    assert_eq!((counts.users, counts.channels, counts.activations, counts.loaded), (1, 1, 1, 1));
    assert_eq!(counts.objects, 1);
    // The other user goes on.
    two.execute(mine.channel, &[handle]).unwrap();
    assert_eq!(two.wait(mine.channel, handle, LONG), Ok(()));
    let counts = two.close();
    let left = (counts.users, counts.objects, counts.mapped, counts.channels, counts.activations);
    assert_eq!((left, counts.loaded, counts.allocated_bytes), ((0, 0, 0, 0, 0), 0, 0));
}

#[test]
fn close_releases_handles_then_notifies_the_device_then_releases_channels() {
    // The device does not answer the notification of the end, so that this takes a while.
    let mut options = faulty(&["control-lost:3"]);
    options.module.control_resp_timeout_s = 4;
    let card = card(options);
    let machine = card.emulator.clone();
    let active = card.channel(8);
    card.poster(&active, 3);
    card.create(4096).unwrap();
    assert_eq!(card.counts().objects, 2);
    card.abandon();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| machine.release_closed_files());
        while machine.counts(0).messages < 3 {
            std::thread::yield_now();
        }
        let counts = machine.counts(0);
        assert_eq!((counts.users, counts.objects, counts.channels), (1, 1, 1));
        assert!(!ending.join().unwrap());
    });
    let counts = machine.counts(0);
    assert_eq!((counts.users, counts.objects, counts.channels), (0, 0, 0));
}

#[test]
fn mapping_holds_the_file_open() {
    let card = card(options());
    let emulator = card.emulator.clone();
    let memory = {
        let handle = card.create(4096).unwrap();
        card.memory(handle, 4096)
    };
    assert!(memory.write(0, &[1]));
    assert_eq!(card.close().users, 1);
    drop(memory);
    assert_eq!(emulator.counts(0).users, 0);
}

#[test]
fn core_knows_requests_by_their_number() {
    let card = card(options());
    let file = card.file().as_fd();
    let ask = |request: u32, bytes: &mut [u8]| card.emulator.ioctl(file, request, bytes);
    assert_eq!(ask(0xc010_4841, &mut [0; 16]), Err(Errno::NOTTY), "another type");
    assert_eq!(ask(0xc010_6449, &mut [0; 16]), Err(Errno::INVAL), "another number");
    // Eight bytes of a creation: the rest is zero, and only as much comes back.
    let mut bytes = [0; 8];
    bytes[0] = 1;
    assert_eq!(ask(0xc008_6441, &mut bytes), Ok(()));
    assert_eq!(card.offset(1), Ok(0x1_0000_0000));
    assert_eq!(ask(Call::HandleToDescriptor.request(), &mut [0; 12]), Err(Errno::OPNOTSUPP));
    let mut name = [0_u8; 8];
    let mut version = Version { name: name.as_mut_ptr() as u64, name_length: 8, ..Version::default() };
    assert_eq!(ask(VERSION, version.as_mut_bytes()), Ok(()));
    assert_eq!((&name[..4], version.name_length), (b"qaic".as_slice(), 4));
}

#[test]
fn file_system_shows_cards_and_parameters() {
    let machine = Emulator::new(Options { cards: 2, ..options() }).unwrap();
    assert_eq!(machine.list(Path::new("/sys/class/accel")).unwrap(), ["accel0", "accel1"]);
    let read = |path: &str| machine.read(Path::new(path));
    assert_eq!(read("/sys/class/accel/accel1/device/vendor").unwrap(), "0x17cb\n");
    assert_eq!(read("/sys/class/accel/accel1/device/device").unwrap(), "0xa100\n");
    let uevent = read("/sys/class/accel/accel1/device/uevent").unwrap();
    assert!(uevent.contains("DRIVER=qaic\n") && uevent.contains("PCI_ID=17CB:A100\n"), "{uevent}");
    assert!(uevent.contains("PCI_SLOT_NAME=0000:21:00.0\n"), "{uevent}");
    assert_eq!(read("/sys/class/accel/accel2/device/vendor"), Err(Errno::NOENT));
    assert_eq!(read("/sys/module/qaic/parameters/control_resp_timeout_s").unwrap(), "60\n");
    assert_eq!(machine.list(Path::new("/sys/module/qaic/parameters")).unwrap().len(), 5);
    assert_eq!(try_open(&machine, 2).err(), Some(Errno::NOENT));
    assert_eq!(machine.open(Path::new("/dev/accel/accel_controlD0")).err(), Some(Errno::NOENT));
}
