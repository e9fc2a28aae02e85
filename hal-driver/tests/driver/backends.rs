// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Backends with unexpected behaviour that their traits permit: the driver stays memory-safe whatever they answer.

use crate::common::pool::Pool;
use crate::common::properties::{HEAP, QUEUE, properties};
use crate::common::{Buffer, Device, List, Semaphore, Tracker, check, wait_until};
use hal_backend::{
    Command, Commands, Completer, DeviceInfo, DeviceSpec, Driver, Failure, Heap, HostLoader, HostRange,
    Inferred, Job, LoadRequest, Loaded, MemoryRequest, Parameters, Place, Properties, Purpose, QueueId,
    Rejected, Span,
};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::time::{Duration, Instant};

/// The oddity of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Oddity {
    /// Each host view of an allocation is other memory.
    FreshViews,
    /// It keeps imported memory until it is trimmed.
    KeepsImports,
    /// The device sees the host's writes after a flush, and the host the device's after an invalidation.
    NotCoherent,
    /// It ends jobs when it is stopped, and has no more memory once [`IS_EMPTY`] is set.
    Slow,
    NoHeaps,
    NoQueues,
    CrookedAlignment,
    NoName,
    /// It panics when it is asked whether its memory can be exported.
    Panics,
    /// It records memory requests in [`REQUESTS`].
    Remembers,
    /// It has no room for its first job, and returns it without its commands.
    Forgets,
    /// It ends three jobs at a time, and reports the last of them.
    InThrees,
}

const ODDITIES: [(&str, Oddity); 12] = [
    ("fresh-views", Oddity::FreshViews),
    ("keeps-imports", Oddity::KeepsImports),
    ("not-coherent", Oddity::NotCoherent),
    ("slow", Oddity::Slow),
    ("no-heaps", Oddity::NoHeaps),
    ("no-queues", Oddity::NoQueues),
    ("crooked-alignment", Oddity::CrookedAlignment),
    ("no-name", Oddity::NoName),
    ("panics", Oddity::Panics),
    ("remembers", Oddity::Remembers),
    ("forgets", Oddity::Forgets),
    ("in-threes", Oddity::InThrees),
];

struct Odd;

impl Driver for Odd {
    type Device = OddDevice;

    const NAME: &'static str = "odd";
    const FULL_NAME: &'static str = "a device that keeps to its traits literally";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open(&self, path: &str, _parameters: &mut Parameters<'_>) -> Result<OddDevice, Failure> {
        let (_, oddity) = ODDITIES.into_iter().find(|(name, _)| *name == path).unwrap();
        let (kept, jobs, was_full) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Ok(OddDevice { oddity, completer: OnceLock::new(), kept, jobs, was_full })
    }
}

struct OddDevice {
    oddity: Oddity,
    completer: OnceLock<Completer>,
    kept: Mutex<Vec<HostRange>>,
    /// The jobs that have not ended.
    jobs: Mutex<Vec<(QueueId, u64)>>,
    /// True after it had no room once.
    was_full: AtomicBool,
}

/// An allocation; imports are counted.
struct OddMemory {
    range: HostRange,
    /// The host's view, if that is other memory.
    view: Option<HostRange>,
    imported: bool,
}

/// True when the slow device has no memory left; an allocation then blocks until this is cleared.
static IS_EMPTY: AtomicBool = AtomicBool::new(false);
static IS_ASKED: AtomicBool = AtomicBool::new(false);
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// The requests of the device that records them.
static REQUESTS: Mutex<Vec<MemoryRequest>> = Mutex::new(Vec::new());

/// The number of imported allocations.
static IMPORTED: AtomicUsize = AtomicUsize::new(0);

impl Drop for OddMemory {
    fn drop(&mut self) {
        IMPORTED.fetch_sub(usize::from(self.imported), Ordering::SeqCst);
    }
}

impl hal_backend::Device for OddDevice {
    type Memory = OddMemory;
    type Executable = ();
    type Event = ();

    fn properties(&self) -> Properties {
        let heap = Heap {
            coherent: self.oddity != Oddity::NotCoherent,
            max_allocation: if self.oddity == Oddity::Slow { 64 << 10 } else { HEAP.max_allocation },
            alignment: if self.oddity == Oddity::CrookedAlignment { 48 } else { HEAP.alignment },
            import_alignment: (self.oddity == Oddity::KeepsImports).then_some(64),
            ..HEAP
        };
        Properties {
            queues: DeviceSpec { queues: usize::from(self.oddity != Oddity::NoQueues), ..QUEUE },
            heaps: if self.oddity == Oddity::NoHeaps { Vec::new() } else { vec![heap] },
            ..properties(if self.oddity == Oddity::NoName { "" } else { "odd" })
        }
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<OddMemory, Failure> {
        if self.oddity == Oddity::Slow && IS_EMPTY.load(Ordering::SeqCst) {
            IS_ASKED.store(true, Ordering::SeqCst);
            wait_until(|| !IS_HELD.load(Ordering::SeqCst));
            return Err(Failure::new(Code::ResourceExhausted, "there is no more"));
        }
        if self.oddity == Oddity::Remembers {
            REQUESTS.lock().unwrap().push(*request);
        }
        let bytes = || HostRange::allocate(request.length, 64);
        let (range, view) = (bytes()?, bytes()?);
        let view = (self.oddity == Oddity::NotCoherent).then_some(view);
        Ok(OddMemory { range, view, imported: false })
    }

    fn import(&self, range: HostRange) -> Result<OddMemory, Failure> {
        self.kept.lock().unwrap().push(range.clone());
        IMPORTED.fetch_add(1, Ordering::SeqCst);
        Ok(OddMemory { range, view: None, imported: true })
    }

    fn exports(&self, _heap: usize) -> bool {
        assert!(self.oddity != Oddity::Panics, "on purpose");
        false
    }

    fn host_view(&self, memory: &OddMemory) -> Option<HostRange> {
        match self.oddity {
            Oddity::FreshViews => HostRange::allocate(memory.range.length(), 64).ok(),
            _ => Some(memory.view.as_ref().unwrap_or(&memory.range).clone()),
        }
    }

    fn flush(&self, memory: &OddMemory, offset: u64, length: u64) -> Result<(), Failure> {
        let Some(view) = &memory.view else { return Ok(()) };
        move_bytes(view, &memory.range, offset, length);
        Ok(())
    }

    fn invalidate(&self, memory: &OddMemory, offset: u64, length: u64) -> Result<(), Failure> {
        let Some(view) = &memory.view else { return Ok(()) };
        move_bytes(&memory.range, view, offset, length);
        Ok(())
    }

    fn supports(&self, format: &str, _host: &dyn HostLoader) -> bool {
        format == "odd"
    }

    fn load(&self, _request: &LoadRequest<'_>, _host: &dyn HostLoader) -> Result<Loaded<()>, Failure> {
        Ok(Loaded { executable: (), functions: Vec::new() })
    }

    fn infer_format(&self, data: &[u8]) -> Option<Inferred> {
        data.starts_with(b"ODD!").then(|| Inferred { format: "odd".to_owned(), length: 4 })
    }

    fn submit(&self, mut job: Job<Self>) -> Result<(), Rejected<Self>> {
        let (queue, epoch) = (job.queue, job.epoch);
        if self.oddity == Oddity::Forgets && !self.was_full.swap(true, Ordering::SeqCst) {
            job.commands = Commands::Own(smallvec::SmallVec::new());
            self.completer.get().unwrap().unblock().unwrap();
            return Err(Rejected::Full(Box::new(job)));
        }
        if self.oddity == Oddity::Slow {
            self.jobs.lock().unwrap().push((queue, epoch));
            return Ok(());
        }
        job.commands.iter().for_each(perform);
        drop(job);
        if self.oddity == Oddity::InThrees {
            let mut jobs = self.jobs.lock().unwrap();
            jobs.push((queue, epoch));
            if jobs.len() < 3 {
                return Ok(());
            }
            jobs.clear();
        }
        self.completer.get().unwrap().complete(queue, epoch).unwrap();
        Ok(())
    }

    fn abort(&self, _why: &Failure) {
        for (queue, epoch) in std::mem::take(&mut *self.jobs.lock().unwrap()) {
            self.completer.get().unwrap().complete(queue, epoch).unwrap();
        }
    }

    fn trim(&self) {
        self.kept.lock().unwrap().clear();
    }
}

fn move_bytes(from: &HostRange, to: &HostRange, offset: u64, length: u64) {
    let part = |range: &HostRange| range.slice(offset, length).unwrap();
    assert!(part(to).copy_from(&part(from)));
}

/// The bytes as the device has them.
fn bytes_of(span: &Span<OddDevice>) -> HostRange {
    match &span.place {
        Place::Device(memory, offset) => memory.range.slice(*offset, span.length).unwrap(),
        Place::Host(range) => range.clone(),
    }
}

fn perform(command: &Command<OddDevice>) {
    match command {
        Command::Fill { target, pattern } => assert!(bytes_of(target).fill(pattern.bytes())),
        Command::Copy { source, target } => assert!(bytes_of(target).copy_from(&bytes_of(source))),
        _ => {}
    }
}

fn register() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| unsafe { check(hal_driver::register::<Odd>(crate::common::registry())).unwrap() });
}

fn open(path: &str) -> crate::common::Result<Device> {
    register();
    Device::open(&format!("odd://{path}"))
}

/// A scoped mapping of a whole buffer.
struct Mapped(sys::iree_hal_buffer_mapping_t);

impl Mapped {
    fn new(buffer: &Buffer) -> Self {
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let access = sys::IREE_HAL_MEMORY_ACCESS_READ | sys::IREE_HAL_MEMORY_ACCESS_WRITE;
        unsafe {
            check(sys::iree_hal_buffer_map_range(
                buffer.0,
                sys::IREE_HAL_MAPPING_MODE_SCOPED,
                u16::try_from(access).unwrap(),
                0,
                sys::iree_hal_buffer_byte_length(buffer.0),
                &raw mut mapping,
            ))
            .unwrap();
        }
        Self(mapping)
    }

    fn data(&self) -> *mut u8 {
        self.0.contents.data
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut self.0)).unwrap() };
    }
}

#[test]
fn mapping_shows_the_same_memory_each_time_whatever_the_backend_gives() {
    let device = open("fresh-views").unwrap();
    let plain = device.buffer(4096);
    let done = device.semaphore(0);
    let transient = device.alloca(&List::none(), &done.at(1), 4096).unwrap();
    done.wait(1).unwrap();
    for buffer in [plain, transient] {
        let (first, second) = (Mapped::new(&buffer), Mapped::new(&buffer));
        assert_eq!(first.data(), second.data());
        unsafe { first.data().write_bytes(7, 4096) };
        drop(first);
        assert_eq!(unsafe { second.data().add(4095).read() }, 7);
        drop(second);
        assert!(buffer.read() == [7; 4096]);
    }
}

#[test]
fn backend_gets_the_purpose_of_memory() {
    let device = open("remembers").unwrap();
    // The stream-ordered pool takes its first slab when the device is created.
    let slab = REQUESTS.lock().unwrap().pop().unwrap();
    assert_eq!((slab.heap, slab.alignment, slab.purpose), (0, 64, Purpose::Pool));
    assert!(slab.length >= 4096, "{slab:?}");
    let asked = |usage: sys::iree_hal_buffer_usage_bits_t, alignment, length: usize| {
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
            usage,
            min_alignment: alignment,
            ..Default::default()
        };
        drop(device.try_buffer_of(params, length).unwrap());
        let requests = std::mem::take(&mut *REQUESTS.lock().unwrap());
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests[0]
    };
    let expected = |length, alignment, purpose| MemoryRequest { heap: 0, length, alignment, purpose };
    let transfer = sys::IREE_HAL_BUFFER_USAGE_TRANSFER;
    assert_eq!(asked(sys::IREE_HAL_BUFFER_USAGE_DEFAULT, 0, 100), expected(100, 1, Purpose::Dispatch));
    for usage in [
        sys::IREE_HAL_BUFFER_USAGE_DISPATCH_UNIFORM_READ,
        sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_READ,
        sys::IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE_WRITE,
        sys::IREE_HAL_BUFFER_USAGE_DISPATCH_IMAGE_READ,
        sys::IREE_HAL_BUFFER_USAGE_DISPATCH_IMAGE_WRITE,
    ] {
        assert_eq!(asked(usage | transfer, 32, 4096), expected(4096, 32, Purpose::Dispatch), "{usage}");
    }
    // Workgroup counts are read from it, and no function uses it.
    let counts = sys::IREE_HAL_BUFFER_USAGE_DISPATCH_INDIRECT_PARAMETERS;
    assert_eq!(asked(counts | transfer, 16, 12), expected(12, 16, Purpose::Transfer));
    assert_eq!(asked(transfer, 0, 0), expected(1, 1, Purpose::Transfer), "nothing is a byte");
    // Stream-ordered buffers are pieces of the existing slab.
    let done = device.semaphore(0);
    let transient = device.alloca(&List::none(), &done.at(1), 4096).unwrap();
    done.wait(1).unwrap();
    assert!(REQUESTS.lock().unwrap().is_empty());
    drop(transient);
}

/// The device's bytes of a buffer.
fn on_device(device: &Device, buffer: &Buffer) -> Vec<u8> {
    let (seen, done) = (device.buffer(LENGTH), device.semaphore(0));
    device.copy(&List::none(), &done.at(1), buffer, &seen, LENGTH).unwrap();
    done.wait(1).unwrap();
    seen.read()
}

/// A stream-ordered buffer, from this pool or the device's.
fn alloca(device: &Device, pool: *mut sys::iree_hal_pool_t, done: &Semaphore) -> Buffer {
    let (waits, signals, mut buffer) = (List::none(), done.at(1), null_mut());
    let flags = u64::from(sys::IREE_HAL_ALLOCA_FLAG_ALLOW_POOL_WAIT_FRONTIER);
    unsafe {
        let (raw, params, out) = (device.0, crate::common::params(), &raw mut buffer);
        let (waits, signals) = (waits.raw(), signals.raw());
        check(sys::iree_hal_device_queue_alloca(raw, 1, waits, signals, pool, params, LENGTH, flags, out))
            .unwrap();
    }
    Buffer(buffer)
}

const LENGTH: usize = 4096;

#[test]
fn write_of_either_side_is_seen_by_the_other_where_it_was_made_visible() {
    register();
    let tracker = Tracker::new();
    let device = Device::open_in("odd://not-coherent", &tracker).unwrap();
    let axis = tracker.axis_of_another_device();
    let pool = Pool::behind(&device, axis, 1);
    tracker.advance(axis, 1);
    let there = [device.semaphore(0), device.semaphore(0)];
    let transients = [alloca(&device, null_mut(), &there[0]), alloca(&device, pool.raw(), &there[1])];
    there.iter().for_each(|there| there.wait(1).unwrap());
    let [own, of_pool] = transients;
    for buffer in [device.buffer(LENGTH), own, of_pool] {
        let fill = |byte: u8| {
            let done = device.semaphore(0);
            device.fill(&List::none(), &done.at(1), &buffer, (0, LENGTH), &[byte]).unwrap();
            done.wait(1).unwrap();
        };
        // Mapping invalidates, and unmapping flushes.
        fill(5);
        assert!(buffer.read() == [5; LENGTH]);
        unsafe { Mapped::new(&buffer).data().write_bytes(6, LENGTH) };
        assert!(on_device(&device, &buffer) == [6; LENGTH]);
        // A persistent mapping names its range.
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let access = sys::IREE_HAL_MEMORY_ACCESS_READ | sys::IREE_HAL_MEMORY_ACCESS_WRITE;
        let mut expected = vec![6; LENGTH];
        unsafe {
            let (mode, access) = (sys::IREE_HAL_MAPPING_MODE_PERSISTENT, u16::try_from(access).unwrap());
            let mapping = &raw mut mapping;
            check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, 0, LENGTH, mapping)).unwrap();
            let data = (*mapping).contents.data;
            data.write_bytes(7, LENGTH);
            check(sys::iree_hal_buffer_mapping_flush_range(mapping, 100, 50)).unwrap();
            expected[100..150].fill(7);
            assert!(on_device(&device, &buffer) == expected);
            fill(8);
            check(sys::iree_hal_buffer_mapping_invalidate_range(mapping, 200, 20)).unwrap();
            expected.fill(7);
            expected[200..220].fill(8);
            assert!(std::slice::from_raw_parts(data, LENGTH) == expected);
            check(sys::iree_hal_buffer_unmap_range(mapping)).unwrap();
        }
        assert!(on_device(&device, &buffer) == expected, "what was mapped is flushed at the end");
        // The test holds the only reference, so dropping it returns the memory to the pool.
        buffer.wait_until_it_is_ours_alone();
    }
}

/// An allocation that retries while its device is torn down must not wait for memory: nothing would wake it any
/// more.
#[test]
fn allocation_that_finds_no_memory_when_its_device_is_going_is_cancelled() {
    const PIECE: usize = 4000;
    let device = open("slow").unwrap();
    // Both halves of the only slab.
    let (there, order) = (device.semaphore(0), device.semaphore(0));
    let first = device.alloca(&List::none(), &there.at(1), PIECE).unwrap();
    let second = device.alloca(&List::none(), &there.at(2), PIECE).unwrap();
    there.wait(2).unwrap();
    // One of them is being returned, behind a job that ends when the device is stopped.
    device.fill_on(1, &List::none(), &order.at(1), &first, (0, 64), &[1]).unwrap();
    device.dealloca(&order.at(1), &order.at(2), &first).unwrap();
    let (go, now) = (device.semaphore(0), device.semaphore(0));
    let third = device.alloca(&go.at(1), &now.at(1), PIECE).unwrap();
    IS_EMPTY.store(true, Ordering::SeqCst);
    IS_HELD.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| go.signal(1).unwrap());
        wait_until(|| IS_ASKED.load(Ordering::SeqCst));
        scope.spawn(move || drop(device));
        std::thread::sleep(Duration::from_millis(100));
        IS_HELD.store(false, Ordering::SeqCst);
    });
    let error = now.wait(1).unwrap_err();
    assert_eq!(error.code, Code::Cancelled, "{}", error.text);
    drop((first, second, third));
}

#[test]
fn exported_memory_is_what_mappings_show() {
    let device = open("fresh-views").unwrap();
    let buffer = device.buffer(4096);
    let mut external = sys::iree_hal_external_buffer_t::default();
    unsafe {
        let kind = sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION;
        let external = &raw mut external;
        check(sys::iree_hal_allocator_export_buffer(device.allocator(), buffer.0, kind, 0, external))
            .unwrap();
        external.read().handle.host_allocation.ptr.cast::<u8>().write_bytes(9, 4096);
    }
    assert!(buffer.read() == [9; 4096]);
}

/// The observations of a release callback: the number of calls, the imported memory of the device, and the buffer's
/// length.
#[derive(Default)]
struct ReleaseLog {
    times: AtomicUsize,
    imported: AtomicUsize,
    length: AtomicUsize,
}

impl ReleaseLog {
    fn callback(&self) -> sys::iree_hal_buffer_release_callback_t {
        unsafe extern "C" fn log(user_data: *mut c_void, buffer: *mut sys::iree_hal_buffer_t) {
            let log = unsafe { &*user_data.cast::<ReleaseLog>() };
            log.imported.store(IMPORTED.load(Ordering::SeqCst), Ordering::SeqCst);
            log.length.store(unsafe { sys::iree_hal_buffer_byte_length(buffer) }, Ordering::SeqCst);
            // Last, as the test waits for it.
            log.times.fetch_add(1, Ordering::SeqCst);
        }
        sys::iree_hal_buffer_release_callback_t {
            fn_: Some(log),
            user_data: std::ptr::from_ref(self).cast_mut().cast(),
        }
    }
}

/// Shared memory of the program, as a buffer of the device.
fn import_descriptor(device: &Device, log: &ReleaseLog) -> Buffer {
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::os::fd::AsRawFd;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create("import", flags).unwrap();
    rustix::fs::ftruncate(&descriptor, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK).unwrap();
    let mut external = sys::iree_hal_external_buffer_t {
        type_: sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD,
        size: 4096,
        ..Default::default()
    };
    external.handle.opaque_fd.fd = descriptor.as_raw_fd();
    let mut buffer = null_mut();
    unsafe {
        let (params, release) = (crate::common::params(), log.callback());
        let (allocator, external) = (device.allocator(), &raw mut external);
        check(sys::iree_hal_allocator_import_buffer(allocator, params, external, release, &raw mut buffer))
            .unwrap();
    }
    Buffer(buffer)
}

#[test]
fn release_callback_comes_once_behind_everything_that_had_the_memory() {
    let mut bytes = vec![0_u8; 8192];
    let start = bytes.as_ptr().align_offset(64);
    let memory = bytes[start..].as_mut_ptr();
    released_last(|device, log| {
        device.import_until(crate::common::params(), memory, 4096, log.callback()).unwrap()
    });
    released_last(import_descriptor);
}

fn released_last(import: impl FnOnce(&Device, &ReleaseLog) -> Buffer) {
    let device = open("keeps-imports").unwrap();
    let log = ReleaseLog::default();
    let buffer = import(&device, &log);
    let done = device.semaphore(0);
    device.fill(&List::none(), &done.at(1), &buffer, (0, 4096), &[1]).unwrap();
    done.wait(1).unwrap();
    drop(buffer);
    // An operation releases its buffers after its signals.
    wait_until(|| IMPORTED.load(Ordering::SeqCst) == 0);
    // The buffer is gone, and the backend still has the range.
    assert_eq!(log.times.load(Ordering::SeqCst), 0);
    unsafe { check(sys::iree_hal_allocator_trim(device.allocator())).unwrap() };
    // The operation may release the memory a moment before its range.
    wait_until(|| log.times.load(Ordering::SeqCst) > 0);
    assert_eq!(log.times.load(Ordering::SeqCst), 1);
    assert_eq!(log.imported.load(Ordering::SeqCst), 0, "the device's side of the memory goes first");
    assert_eq!(log.length.load(Ordering::SeqCst), 4096);
}

#[test]
fn import_that_is_refused_makes_no_callback() {
    let device = open("keeps-imports").unwrap();
    let log = ReleaseLog::default();
    let refused = device.import_until(crate::common::params(), null_mut(), 4096, log.callback());
    assert_eq!(refused.err().unwrap().code, Code::InvalidArgument);
    assert_eq!(log.times.load(Ordering::SeqCst), 0);
}

#[test]
fn backend_without_import_is_not_importable() {
    let device = open("fresh-views").unwrap();
    let (params, mut bytes) = (crate::common::params(), vec![0_u8; 8192]);
    let compatibility = unsafe {
        let (allocator, none, nowhere) = (device.allocator(), null_mut(), null_mut());
        sys::iree_hal_allocator_query_buffer_compatibility(allocator, params, 4096, none, nowhere)
    };
    assert_ne!(compatibility & sys::IREE_HAL_BUFFER_COMPATIBILITY_ALLOCATABLE, 0);
    assert_eq!(compatibility & sys::IREE_HAL_BUFFER_COMPATIBILITY_IMPORTABLE, 0);
    let start = bytes.as_ptr().align_offset(64);
    let refused = device.import(params, bytes[start..].as_mut_ptr(), 4096).err().unwrap();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.text.contains("allocate a buffer and copy"), "{}", refused.text);
}

#[test]
fn profile_of_a_device_without_a_clock_is_refused_with_what_it_lacks() {
    let device = open("remembers").unwrap();
    for (family, name) in [
        (sys::IREE_HAL_DEVICE_PROFILING_DATA_DISPATCH_EVENTS, "dispatch-events"),
        (sys::IREE_HAL_DEVICE_PROFILING_DATA_DEVICE_QUEUE_EVENTS, "device-queue-events"),
    ] {
        let families = family | sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS;
        let refused = crate::common::sink::Sink::begin_with(&device, families).err().unwrap();
        assert_eq!(refused.code, Code::Unimplemented, "{}", refused.text);
        for part in ["no clock", "Device::clock", name] {
            assert!(refused.text.contains(part), "{}", refused.text);
        }
    }
}

#[test]
fn device_that_cannot_be_is_refused_when_it_is_opened() {
    for (path, what) in [
        ("no-heaps", "no memory"),
        ("no-queues", "queue"),
        ("crooked-alignment", "48"),
        ("no-name", "no name"),
    ] {
        let refused = open(path).err().unwrap();
        assert_eq!(refused.code, Code::Internal, "{path}: {}", refused.text);
        assert!(refused.text.contains(what), "{path}: {}", refused.text);
    }
}

#[test]
fn format_of_an_executable_is_the_backends_to_know() {
    let device = open("fresh-views").unwrap();
    let infer_of = |bytes: &[u8], length: usize| unsafe {
        let (mut cache, mut name, mut size) = (null_mut(), [0_u8; 16], 0);
        check(sys::iree_hal_executable_cache_create(device.0, crate::common::view("test"), &raw mut cache))
            .unwrap();
        let data = sys::iree_const_byte_span_t { data: bytes.as_ptr(), data_length: length };
        let inferred = check(sys::iree_hal_executable_cache_infer_format(
            cache,
            0,
            data,
            name.len(),
            name.as_mut_ptr().cast(),
            &raw mut size,
        ));
        sys::iree_hal_executable_cache_release(cache);
        inferred.map(|()| (String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(), size))
    };
    let infer = |bytes: &[u8]| infer_of(bytes, bytes.len());
    assert_eq!(infer(b"ODD!and more").unwrap(), ("odd".to_owned(), 4));
    assert_eq!(infer(b"nothing that anybody knows").unwrap_err().code, Code::Incompatible);
    // hal/executable_cache.h: the length may be unknown. A backend reads no bytes that may not exist.
    let mut bytes = [0; 4096];
    bytes[..4].copy_from_slice(b"ODD!");
    let refused = infer_of(&bytes, 0).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.text);
    assert!(refused.text.contains("give their length"), "{}", refused.text);
}

/// A full device returns a job, which is submitted again: work that was lost in between must not count as done.
#[test]
fn job_that_comes_back_without_its_command_fails_as_the_backends_bug() {
    let device = open("forgets").unwrap();
    let (buffer, done, next) = (device.buffer(64), device.semaphore(0), device.semaphore(0));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[7]).unwrap();
    let error = done.wait(1).unwrap_err();
    assert_eq!(error.code, Code::Internal, "{}", error.text);
    assert!(error.text.contains("bug of the backend"), "{}", error.text);
    // The queue goes on.
    device.fill(&List::none(), &next.at(1), &buffer, (0, 64), &[9]).unwrap();
    next.wait(1).unwrap();
    assert!(buffer.read() == [9; 64]);
}

#[test]
fn panic_of_the_backend_stops_at_the_allocator() {
    let device = open("panics").unwrap();
    let params = sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    };
    let (no_params, no_size) = (null_mut(), null_mut());
    let compatible = unsafe {
        sys::iree_hal_allocator_query_buffer_compatibility(device.allocator(), params, 64, no_params, no_size)
    };
    assert_eq!(compatible, 0);
}

/// The number of trackers that exist.
static GROUPS: AtomicUsize = AtomicUsize::new(0);

/// Jobs that end together are reported as one, so the report of a round epoch may be missing. Groups that are gone
/// are pruned all the same, while work goes on.
#[test]
fn groups_that_are_gone_are_forgotten_by_a_device_whose_jobs_end_together() {
    let device = open("in-threes").unwrap();
    let groups: Vec<_> =
        (0..20).map(|_| Tracker::counted(&GROUPS)).map(|one| (one.group(&device).unwrap(), one)).collect();
    let before = GROUPS.load(Ordering::SeqCst);
    for (group, tracker) in groups {
        unsafe { sys::iree_hal_device_group_release(group) };
        drop(tracker);
    }
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    for value in 0..1500 {
        device.fill(&List::none(), &done.at(value + 1), &buffer, (0, 64), &[1]).unwrap();
    }
    done.wait(1500).unwrap();
    let begin = Instant::now();
    while GROUPS.load(Ordering::SeqCst) > 3 && begin.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    let left = GROUPS.load(Ordering::SeqCst);
    assert!(left <= 3, "{left} of {before} trackers");
}
