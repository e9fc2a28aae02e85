// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory that is imported and exported by file descriptor, between devices, drivers and processes.

use crate::common::{Buffer, Device, List, Result, check, counting_release, wait_until};
use hal_semaphore::Code;
use hal_sys as sys;
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::FdFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

const DEVICES: [&str; 5] = [
    "mock",
    "template",
    "gaudi://emulated?generation=gaudi1&seed=9801",
    "gaudi://emulated?generation=gaudi2&seed=9802",
    "tenstorrent://emulated?seed=9803",
];

const LENGTH: usize = 5000;
const ROUNDS: usize = 20_000;
const EXPORTABLE: u32 = sys::IREE_HAL_BUFFER_COMPATIBILITY_EXPORTABLE;

fn host(usage: sys::iree_hal_buffer_usage_t) -> sys::iree_hal_buffer_params_t {
    let type_ = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
    sys::iree_hal_buffer_params_t {
        type_,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT | usage,
        ..Default::default()
    }
}

fn shared() -> sys::iree_hal_buffer_params_t {
    host(sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT)
}

/// Memory of the device's own.
fn own() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t { type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL, ..shared() }
}

/// A buffer's descriptor and size.
fn export(device: &Device, buffer: &Buffer) -> Result<(OwnedFd, usize)> {
    let mut external = sys::iree_hal_external_buffer_t::default();
    unsafe {
        let kind = sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD;
        let (allocator, out) = (device.allocator(), &raw mut external);
        check(sys::iree_hal_allocator_export_buffer(allocator, buffer.0, kind, 0, out))?;
        Ok((OwnedFd::from_raw_fd(external.handle.opaque_fd.fd), external.size))
    }
}

fn import(
    device: &Device,
    number: RawFd,
    size: usize,
    release: sys::iree_hal_buffer_release_callback_t,
) -> Result<Buffer> {
    import_as(shared(), device, number, size, release)
}

fn import_as(
    params: sys::iree_hal_buffer_params_t,
    device: &Device,
    number: RawFd,
    size: usize,
    release: sys::iree_hal_buffer_release_callback_t,
) -> Result<Buffer> {
    let mut external = sys::iree_hal_external_buffer_t {
        type_: sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD,
        size,
        ..Default::default()
    };
    external.handle.opaque_fd.fd = number;
    let mut buffer = null_mut();
    unsafe {
        let (allocator, external, out) = (device.allocator(), &raw mut external, &raw mut buffer);
        check(sys::iree_hal_allocator_import_buffer(allocator, params, external, release, out))?;
    }
    Ok(Buffer(buffer))
}

/// Fills a part of a buffer, on the device.
fn fill(device: &Device, buffer: &Buffer, range: (usize, usize), byte: u8) {
    let done = device.semaphore(0);
    device.fill(&List::none(), &done.at(1), buffer, range, &[byte]).unwrap();
    done.wait(1).unwrap();
}

/// The bytes of a buffer that the host cannot map.
fn copied(device: &Device, buffer: &Buffer) -> Vec<u8> {
    let (host, done) = (device.try_buffer_of(host(0), LENGTH).unwrap(), device.semaphore(0));
    device.copy(&List::none(), &done.at(1), buffer, &host, LENGTH).unwrap();
    done.wait(1).unwrap();
    host.read()
}

fn no_callback() -> sys::iree_hal_buffer_release_callback_t {
    sys::iree_hal_buffer_release_callback_t::default()
}

fn compatibility(device: &Device, params: sys::iree_hal_buffer_params_t) -> u32 {
    let (allocator, nothing) = (device.allocator(), null_mut());
    unsafe {
        sys::iree_hal_allocator_query_buffer_compatibility(allocator, params, LENGTH, nothing, null_mut())
    }
}

#[test]
fn two_devices_have_one_memory_by_its_descriptor() {
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    let mut imports = 0;
    for from in DEVICES {
        let owner = Device::open(from).unwrap();
        assert_ne!(compatibility(&owner, shared()) & EXPORTABLE, 0, "{from}");
        for to in DEVICES {
            let buffer = owner.try_buffer_of(shared(), LENGTH).unwrap();
            assert_eq!(buffer.read(), [0; LENGTH], "{from}");
            let (descriptor, size) = export(&owner, &buffer).unwrap();
            assert_eq!(size, LENGTH);
            let other = Device::open(to).unwrap();
            let same = import(&other, descriptor.as_raw_fd(), size, counting_release(&RELEASED)).unwrap();
            // The descriptor of the import is the program's, and no longer needed.
            drop(descriptor);
            fill(&owner, &buffer, (0, LENGTH), 0xA5);
            assert_eq!(same.read(), [0xA5; LENGTH], "{from} to {to}");
            fill(&other, &same, (100, 200), 0x5A);
            // The memory stays for its other users, although its creator has released it.
            let expected: Vec<u8> =
                (0..LENGTH).map(|at| if (100..300).contains(&at) { 0x5A } else { 0xA5 }).collect();
            assert_eq!(buffer.read(), expected, "{from} to {to}");
            drop(buffer);
            assert_eq!(same.read(), expected, "{from} to {to}");
            assert_eq!(RELEASED.load(Ordering::SeqCst), imports, "{from} to {to}");
            drop((same, other));
            imports += 1;
            assert_eq!(RELEASED.load(Ordering::SeqCst), imports, "{from} to {to}");
        }
    }
}

/// Runs one of these tests again in another process, which finds the descriptor in its standard input and learns by
/// a variable that it is the other process.
fn in_another_process(test: &str, other: &str, input: Stdio) {
    let name = format!("{}::{test}", module_path!().rsplit("::").next().unwrap());
    let mut command = Command::new(std::env::current_exe().unwrap());
    let child = command.args([&name, "--exact"]).env(other, "1").stdin(input).output().unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn two_processes_have_one_memory_by_its_descriptor() {
    const OTHER: &str = "EXTERNAL_OTHER";
    if std::env::var_os(OTHER).is_some() {
        let device = Device::open("mock").unwrap();
        let buffer = import(&device, std::io::stdin().as_raw_fd(), LENGTH, no_callback()).unwrap();
        assert_eq!(buffer.read(), [1; LENGTH]);
        fill(&device, &buffer, (8, LENGTH - 8), 2);
        return;
    }
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let buffer = device.try_buffer_of(shared(), LENGTH).unwrap();
        fill(&device, &buffer, (0, LENGTH), 1);
        let (descriptor, _) = export(&device, &buffer).unwrap();
        // The driver's descriptors are not inherited by other programs.
        assert!(rustix::io::fcntl_getfd(&descriptor).unwrap().contains(FdFlags::CLOEXEC));
        in_another_process("two_processes_have_one_memory_by_its_descriptor", OTHER, descriptor.into());
        let bytes = buffer.read();
        assert_eq!(bytes.split_at(8), (&[1; 8][..], &[2; LENGTH - 8][..]), "{uri}");
    }
}

/// Shared memory of the program.
fn memory(length: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create("external", flags).unwrap();
    rustix::fs::ftruncate(&descriptor, length).unwrap();
    rustix::fs::fcntl_add_seals(&descriptor, seals).unwrap();
    descriptor
}

fn refused<T>(outcome: Result<T>, code: Code, text: &str) {
    let error = outcome.err().unwrap();
    assert_eq!(error.code, code, "{}", error.text);
    assert!(error.text.contains(text), "{}", error.text);
}

#[test]
fn descriptor_is_taken_if_its_memory_stays() {
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let take = |descriptor: BorrowedFd<'_>, size| {
            import(&device, descriptor.as_raw_fd(), size, counting_release(&RELEASED))
        };
        let sealed = memory(8192, SealFlags::SHRINK);
        // The descriptor has more memory than is imported, and the program's position in it stays.
        rustix::fs::seek(&sealed, SeekFrom::Start(7)).unwrap();
        assert_eq!(take(sealed.as_fd(), LENGTH).unwrap().read(), [0; LENGTH]);
        assert_eq!(rustix::fs::seek(&sealed, SeekFrom::Current(0)).unwrap(), 7);
        RELEASED.store(0, Ordering::SeqCst);
        refused(take(sealed.as_fd(), 8193), Code::OutOfRange, "8192 bytes");
        refused(take(sealed.as_fd(), 0), Code::OutOfRange, "8192 bytes");
        let open = memory(8192, SealFlags::GROW);
        refused(take(open.as_fd(), LENGTH), Code::FailedPrecondition, "F_SEAL_SHRINK");
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        refused(take(file.as_fd(), 64), Code::FailedPrecondition, "F_SEAL_SHRINK");
        let fixed = memory(8192, SealFlags::SHRINK | SealFlags::WRITE);
        refused(take(fixed.as_fd(), LENGTH), Code::Unavailable, "cannot be mapped");
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        refused(take(pipe.as_fd(), LENGTH), Code::InvalidArgument, "cannot be read");
        refused(import(&device, -1, LENGTH, counting_release(&RELEASED)), Code::InvalidArgument, "-1 is no");
        // Refused memory is not reported as released.
        assert_eq!(RELEASED.load(Ordering::SeqCst), 0, "{uri}");
    }
}

/// "An imported one stays the program's", and so does its offset: the program reads on from there.
#[test]
fn descriptor_is_left_where_the_program_had_it() {
    use rustix::fs::SeekFrom;
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let sealed = memory(8192, SealFlags::SHRINK);
        rustix::fs::seek(&sealed, SeekFrom::Start(100)).unwrap();
        drop(import(&device, sealed.as_raw_fd(), LENGTH, no_callback()).unwrap());
        assert_eq!(rustix::fs::seek(&sealed, SeekFrom::Current(0)), Ok(100), "{uri}");
        refused(import(&device, sealed.as_raw_fd(), 9000, no_callback()), Code::OutOfRange, "8192 bytes");
        assert_eq!(rustix::fs::seek(&sealed, SeekFrom::Current(0)), Ok(100), "{uri}");
        let buffer = device.try_buffer_of(shared(), LENGTH).unwrap();
        let (exported, _) = export(&device, &buffer).unwrap();
        assert_eq!(rustix::fs::seek(&exported, SeekFrom::Current(0)), Ok(0), "{uri}");
    }
}

/// Another process may truncate the memory and then seal it during the import: imported memory is complete.
#[test]
fn memory_that_shrinks_while_it_is_taken_is_refused_or_whole() {
    let device = Device::open("mock").unwrap();
    let mut taken = 0;
    for round in 0..ROUNDS {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create("external", flags).unwrap();
        rustix::fs::ftruncate(&descriptor, 8192).unwrap();
        let begin = std::sync::Barrier::new(2);
        let buffer = std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                rustix::fs::ftruncate(&descriptor, 0).unwrap();
                rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK).unwrap();
            });
            begin.wait();
            import(&device, descriptor.as_raw_fd(), 8192, no_callback()).ok()
        });
        if buffer.is_some() {
            assert!(rustix::fs::fstat(&descriptor).unwrap().st_size >= 8192, "in round {round}");
            taken += 1;
        }
    }
    assert_eq!(taken, 0, "unsealed memory is not taken, and sealed memory has nothing in it");
}

/// The holder of a buffer's descriptor can neither shorten nor lengthen it, nor seal it so that others cannot map
/// it.
#[test]
fn exported_descriptor_is_sealed_for_good() {
    let device = Device::open("mock").unwrap();
    let buffer = device.try_buffer_of(shared(), LENGTH).unwrap();
    let (descriptor, _) = export(&device, &buffer).unwrap();
    for length in [0, 1 << 20] {
        assert_eq!(rustix::fs::ftruncate(&descriptor, length), Err(rustix::io::Errno::PERM));
    }
    let sealed = rustix::fs::fcntl_add_seals(&descriptor, SealFlags::FUTURE_WRITE);
    assert_eq!(sealed, Err(rustix::io::Errno::PERM));
}

/// The number of descriptors of shared memory in this process, all close-on-exec.
fn open_descriptors() -> usize {
    let is_memory = |entry: &std::fs::DirEntry| {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        let name = link.to_string_lossy();
        name.contains("memfd:iree-hal-buffer") || name.contains("memfd:leaks")
    };
    let closes = |entry: &std::fs::DirEntry| {
        let number: RawFd = entry.file_name().to_str().unwrap().parse().unwrap();
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_getfd(descriptor).unwrap().contains(FdFlags::CLOEXEC)
    };
    let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    all.filter(is_memory).inspect(|entry| assert!(closes(entry), "{entry:?}")).count()
}

/// Alone, as it counts.
#[test]
fn no_descriptor_is_left_open() {
    const ALONE: &str = "EXTERNAL_ALONE";
    if std::env::var_os(ALONE).is_none() {
        in_another_process("no_descriptor_is_left_open", ALONE, Stdio::null());
        return;
    }
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        for seals in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SHRINK | SealFlags::WRITE] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let descriptor = rustix::fs::memfd_create("leaks", flags).unwrap();
            rustix::fs::ftruncate(&descriptor, 8192).unwrap();
            rustix::fs::fcntl_add_seals(&descriptor, seals).unwrap();
            for size in [0, 100, 8192, 9000] {
                drop(import(&device, descriptor.as_raw_fd(), size, no_callback()));
            }
            let buffer = device.try_buffer_of(shared(), LENGTH).unwrap();
            let exported = [export(&device, &buffer).unwrap(), export(&device, &buffer).unwrap()];
            let again = import(&device, exported[0].0.as_raw_fd(), LENGTH, no_callback()).unwrap();
            fill(&device, &again, (0, 10), 1);
            assert!(open_descriptors() > 4, "{uri}: the driver's and the program's");
        }
        drop(device);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while open_descriptors() > 0 && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(open_descriptors(), 0, "{uri}");
    }
}

#[test]
fn buffer_without_a_descriptor_says_how_to_get_one() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let plain = device.try_buffer_of(host(0), LENGTH).unwrap();
        let text = "IREE_HAL_BUFFER_USAGE_SHARING_EXPORT";
        let code = if uri.starts_with("gaudi") { Code::InvalidArgument } else { Code::Unavailable };
        refused(export(&device, &plain), code, text);
        let part = device.try_buffer_of(shared(), LENGTH).unwrap().subspan(64, 128);
        refused(export(&device, &part), Code::InvalidArgument, "export the whole buffer");
        let done = device.semaphore(0);
        let transient = device.alloca(&List::none(), &done.at(1), LENGTH).unwrap();
        done.wait(1).unwrap();
        refused(export(&device, &transient), Code::Unavailable, "stream-ordered memory");
    }
}

/// The host cannot map a card's own memory, by its descriptor neither: what is not refused here would be mapped where
/// other buffers are.
#[test]
fn memory_of_a_card_is_host_memory_of_no_device() {
    for uri in DEVICES.into_iter().filter(|uri| uri.contains("emulated")) {
        let device = Device::open(uri).unwrap();
        let _first = device.try_buffer_of(own(), LENGTH).unwrap();
        let buffer = device.try_buffer_of(own(), LENGTH).unwrap();
        let (descriptor, size) = export(&device, &buffer).unwrap();
        for other in [&device, &Device::open("mock").unwrap(), &Device::open("template").unwrap()] {
            let taken = import(other, descriptor.as_raw_fd(), size, no_callback());
            refused(taken, Code::Unavailable, "allocate a buffer and copy into it");
        }
    }
}

#[test]
fn memory_of_a_card_is_exported_as_whole_pages() {
    for (at, generation) in ["gaudi1", "gaudi2"].into_iter().enumerate() {
        let open = |more: &str| {
            let uri = format!("gaudi://emulated?generation={generation}&seed={}{more}", 9810 + at);
            Device::open(&uri).unwrap()
        };
        let device = open("");
        assert_ne!(compatibility(&device, own()) & EXPORTABLE, 0);
        let buffer = device.try_buffer_of(own(), LENGTH).unwrap();
        let (descriptor, size) = export(&device, &buffer).unwrap();
        assert_eq!(size, LENGTH);
        let pages = rustix::fs::seek(&descriptor, SeekFrom::End(0)).unwrap();
        assert!(pages >= 8192 && pages.is_multiple_of(4096), "{pages}");

        let device = open("&dmabuf=off");
        assert_eq!(compatibility(&device, own()) & EXPORTABLE, 0);
        let buffer = device.try_buffer_of(own(), LENGTH).unwrap();
        refused(export(&device, &buffer), Code::FailedPrecondition, "dmabuf=off");
    }
}

/// A card whose kernel driver maps dma-bufs of others uses their memory where it is, until it lets go of it: also when
/// the owner has dropped the buffer, the device, or both.
#[test]
fn card_uses_the_memory_of_another_one_where_it_is() {
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    let mut imports = 0;
    for (at, from) in ["tenstorrent://emulated?", "tenstorrent://emulated?board=n150&", "gaudi://emulated?"]
        .into_iter()
        .enumerate()
    {
        let lender = format!("{from}seed={}", 9820 + at);
        for generation in ["gaudi1", "gaudi2"] {
            let owner = Device::open(&lender).unwrap();
            let user = format!("gaudi://emulated?generation={generation}&register=on&seed={}", 9830 + at);
            let user = Device::open(&user).unwrap();
            assert_ne!(compatibility(&owner, own()) & EXPORTABLE, 0, "{lender}");
            let buffer = owner.try_buffer_of(own(), LENGTH).unwrap();
            let beside = owner.try_buffer_of(own(), LENGTH).unwrap();
            let (descriptor, size) = export(&owner, &buffer).unwrap();
            let same =
                import_as(own(), &user, descriptor.as_raw_fd(), size, counting_release(&RELEASED)).unwrap();
            drop(descriptor);
            fill(&owner, &beside, (0, LENGTH), 0x11);
            fill(&owner, &buffer, (0, LENGTH), 0xA5);
            assert!(!same.is_mappable() && copied(&user, &same) == [0xA5; LENGTH], "{lender}");
            fill(&user, &same, (100, 200), 0x5A);
            let expected: Vec<u8> =
                (0..LENGTH).map(|at| if (100..300).contains(&at) { 0x5A } else { 0xA5 }).collect();
            let both = (copied(&owner, &buffer), copied(&owner, &beside));
            assert_eq!(both, (expected.clone(), vec![0x11; LENGTH]), "{lender}");
            // To the user's own memory and back, without the owner's doing.
            let local = user.try_buffer_of(own(), LENGTH).unwrap();
            let done = user.semaphore(0);
            user.copy(&List::none(), &done.at(1), &same, &local, LENGTH).unwrap();
            done.wait(1).unwrap();
            assert_eq!(copied(&user, &local), expected, "{lender}");
            drop((buffer, beside, owner));
            assert_eq!(copied(&user, &same), expected, "{lender}: the owner is gone");
            assert_eq!(RELEASED.load(Ordering::SeqCst), imports);
            drop(same);
            imports += 1;
            // An operation releases its buffers after its signals.
            wait_until(|| RELEASED.load(Ordering::SeqCst) == imports);
        }
    }
}

/// What cannot be had without a copy through the host is refused, with the reason and what to do.
#[test]
fn device_that_does_not_reach_memory_of_others_says_so() {
    let owner = Device::open("tenstorrent://emulated?seed=9840").unwrap();
    let buffer = owner.try_buffer_of(own(), LENGTH).unwrap();
    let (descriptor, size) = export(&owner, &buffer).unwrap();
    for (uri, text) in [
        ("tenstorrent://emulated?seed=9841", "imports no memory of other devices"),
        ("qaic://emulated?seed=9842", "cannot be mapped"),
        ("gaudi://emulated?seed=9843", "vendor's kernel driver"),
        ("gaudi://emulated?seed=9844&register=on&fault=no-p2p", "vendor's kernel driver"),
        ("gaudi://emulated?seed=9845&register=on&dmabuf=off", "dmabuf=off"),
    ] {
        let other = Device::open(uri).unwrap();
        let taken = import_as(own(), &other, descriptor.as_raw_fd(), size, no_callback());
        let code = if text == "dmabuf=off" { Code::FailedPrecondition } else { Code::Unavailable };
        refused(taken, code, text);
    }
    // Nor is it what it is not.
    let user = Device::open("gaudi://emulated?seed=9846&register=on").unwrap();
    for (number, size, code) in [
        (descriptor.as_raw_fd(), 8193, Code::Unavailable),
        (descriptor.as_raw_fd(), 0, Code::Unavailable),
        (descriptor.as_raw_fd(), usize::MAX, Code::Unavailable),
        (memory(8192, SealFlags::SHRINK).as_raw_fd(), 4096, Code::Unavailable),
        (-1, 4096, Code::InvalidArgument),
    ] {
        refused(import_as(own(), &user, number, size, no_callback()), code, "");
    }
}

/// Each buffer that is lent keeps a window, and gives it back when nobody has it any more, whoever let go of it last.
#[test]
fn windows_of_lent_memory_come_back() {
    let owner = Device::open("tenstorrent://emulated?seed=9850&fault=windows:34").unwrap();
    let user = Device::open("gaudi://emulated?seed=9851&register=on").unwrap();
    let buffer = owner.try_buffer_of(own(), LENGTH).unwrap();
    for round in 0..3 {
        let lent = [(); 2].map(|()| export(&owner, &buffer).unwrap().0);
        refused(export(&owner, &buffer), Code::ResourceExhausted, "its dma-bufs");
        let imports: Vec<Buffer> = lent
            .iter()
            .map(|lent| import_as(own(), &user, lent.as_raw_fd(), LENGTH, no_callback()).unwrap())
            .collect();
        drop(lent);
        refused(export(&owner, &buffer), Code::ResourceExhausted, "its dma-bufs");
        fill(&user, &imports[0], (0, LENGTH), round);
        drop(imports);
        assert_eq!(copied(&owner, &buffer), [round; LENGTH]);
    }
}
