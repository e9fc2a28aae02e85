// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver as a C program sees it, with a thin Rust layer for tests.
#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object here is alive as long as its wrapper")]
#![allow(clippy::unwrap_used, reason = "a failed expectation ends the test")]

pub(crate) mod chain;
pub(crate) mod forbidden;
pub(crate) mod pool;
pub(crate) mod properties;
pub(crate) mod random;
pub(crate) mod scarce;
pub(crate) mod sink;

use hal_semaphore::Code;
use hal_sys as sys;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn iree_hal_local_task_driver_module_register(
        registry: *mut sys::iree_hal_driver_registry_t,
    ) -> sys::iree_status_t;
    fn iree_hal_local_sync_driver_module_register(
        registry: *mut sys::iree_hal_driver_registry_t,
    ) -> sys::iree_status_t;
}

/// Guards the type names of IREE's virtual machine, which are process-wide. Each new instance clears them for a
/// moment, and code that runs in another instance then misreads its buffers and crashes.
static TYPES: RwLock<()> = RwLock::new(());

/// Prevents devices of IREE's own from creating an instance while the guard lives.
pub(crate) fn keep_types() -> RwLockReadGuard<'static, ()> {
    TYPES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Stops this process for so many seconds.
pub(crate) fn stop(seconds: u32) {
    let process = std::process::id();
    let go_on = format!(
        "until grep -q '^State:.*stopped' /proc/{process}/status; do sleep 0.05; done; sleep {seconds}; \
         kill -CONT {process}"
    );
    let mut helper = std::process::Command::new("sh").args(["-c", &go_on]).spawn().unwrap();
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    // The call may return, and another thread be the one that is stopped first.
    assert!(helper.wait().unwrap().success());
}

/// An error as a C program reads it.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) code: Code,
    pub(crate) text: String,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Error>;

pub(crate) fn view(text: &str) -> sys::iree_string_view_t {
    sys::iree_string_view_t { data: text.as_ptr().cast(), size: text.len() }
}

/// Consumes a status.
pub(crate) fn check(status: sys::iree_status_t) -> Result {
    if status.is_null() {
        return Ok(());
    }
    unsafe {
        let mut buffer = vec![0_u8; 4096];
        let mut length = 0;
        sys::iree_status_format(status, buffer.len(), buffer.as_mut_ptr().cast(), &raw mut length);
        buffer.truncate(length);
        let code = Code::from_number(u32::try_from(status as usize & 0x1F).unwrap());
        sys::iree_status_free(status);
        Err(Error { code, text: String::from_utf8_lossy(&buffer).into_owned() })
    }
}

/// A new status.
pub(crate) fn failure(code: Code, text: &str) -> sys::iree_status_t {
    unsafe { sys::iree_status_allocate_copy(code as u32, view(""), 0, view(text)) }
}

/// An executable of the conformance suite, which `cargo xtask build` compiles; in the folder that `HAL_TESTDATA`
/// names, if it is set.
pub(crate) fn testdata(path: &str) -> Vec<u8> {
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../iree/testdata");
    let folder = std::env::var_os("HAL_TESTDATA").map_or(beside, PathBuf::from);
    let path = folder.join(path);
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask build`", path.display()))
}

static REGISTER: Once = Once::new();

pub(crate) fn registry() -> *mut sys::iree_hal_driver_registry_t {
    unsafe {
        let registry = sys::iree_hal_driver_registry_default();
        REGISTER.call_once(|| {
            check(hal_driver::iree_hal_mock_driver_module_register(registry)).unwrap();
            check(hal_driver::iree_hal_gaudi_driver_module_register(registry)).unwrap();
            check(hal_driver::iree_hal_nvidia_driver_module_register(registry)).unwrap();
            check(hal_driver::iree_hal_qaic_driver_module_register(registry)).unwrap();
            check(hal_driver::iree_hal_template_driver_module_register(registry)).unwrap();
            check(hal_driver::iree_hal_tenstorrent_driver_module_register(registry)).unwrap();
            check(iree_hal_local_task_driver_module_register(registry)).unwrap();
            check(iree_hal_local_sync_driver_module_register(registry)).unwrap();
        });
        registry
    }
}

/// The addresses of calls that were submitted and not made. A program is not notified of a call that is never made,
/// so its closure stays; a leak checker finds it here.
static UNMADE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Waits until a condition holds, for a minute at most.
pub(crate) fn wait_until(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "the condition does not hold after a minute");
        std::thread::yield_now();
    }
}

/// A release callback that counts its calls. The counter outlives the imported buffer.
pub(crate) fn counting_release(count: &AtomicUsize) -> sys::iree_hal_buffer_release_callback_t {
    unsafe extern "C" fn released(count: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
        unsafe { &*count.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
    }
    let user_data = std::ptr::from_ref(count).cast_mut().cast();
    sys::iree_hal_buffer_release_callback_t { fn_: Some(released), user_data }
}

/// A device, and its group if it is in one.
pub(crate) struct Device(pub(crate) *mut sys::iree_hal_device_t, *mut sys::iree_hal_device_group_t);

unsafe impl Send for Device {}
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn open(uri: &str) -> Result<Self> {
        Self::open_polled(uri).map(|(device, _)| device)
    }

    /// Checks that opening a URI fails with a code, and with a text that contains `says`.
    pub(crate) fn cannot_be_opened(uri: &str, code: Code, says: &str) {
        let Err(failed) = Self::open(uri) else { panic!("{uri} was opened") };
        assert_eq!(failed.code, code, "{uri}: {}", failed.text);
        assert!(failed.text.contains(says), "{uri}: {}", failed.text);
    }

    /// A device, and the proactor that only it keeps.
    pub(crate) fn open_polled(uri: &str) -> Result<(Self, Proactor)> {
        Self::open_with(uri, unsafe { sys::iree_allocator_system() })
    }

    /// The same, with an allocator for the driver and the device.
    pub(crate) fn open_with(uri: &str, allocator: sys::iree_allocator_t) -> Result<(Self, Proactor)> {
        unsafe {
            let (pool, proactor) = new_pool()?;
            let opened = Self::create(view(uri), pool, allocator);
            sys::iree_async_proactor_pool_release(pool);
            opened.map(|device| (device, proactor))
        }
    }

    /// A device with a pool of proactors that others may share.
    pub(crate) fn open_with_pool(uri: &str, pool: *mut sys::iree_async_proactor_pool_t) -> Result<Self> {
        Self::create(view(uri), pool, unsafe { sys::iree_allocator_system() })
    }

    /// A device by any bytes as its name.
    pub(crate) fn open_named(uri: &[u8]) -> Result<Self> {
        let uri = sys::iree_string_view_t { data: uri.as_ptr().cast(), size: uri.len() };
        unsafe {
            let (pool, _) = new_pool()?;
            let opened = Self::create(uri, pool, sys::iree_allocator_system());
            sys::iree_async_proactor_pool_release(pool);
            opened
        }
    }

    pub(crate) fn create(
        uri: sys::iree_string_view_t,
        pool: *mut sys::iree_async_proactor_pool_t,
        allocator: sys::iree_allocator_t,
    ) -> Result<Self> {
        // IREE's own drivers create an instance of its virtual machine each time.
        let name = if uri.size > 0 {
            unsafe { std::slice::from_raw_parts(uri.data.cast::<u8>(), uri.size) }
        } else {
            &[]
        };
        let is_own = name.starts_with(b"local-");
        let _alone = is_own.then(|| TYPES.write().unwrap_or_else(PoisonError::into_inner));
        let params = sys::iree_hal_device_create_params_t { next: std::ptr::null(), proactor_pool: pool };
        let (mut device, params) = (null_mut(), &raw const params);
        unsafe {
            let out = &raw mut device;
            check(sys::iree_hal_create_device(registry(), uri, params, allocator, out))?;
        }
        Ok(Self(device, null_mut()))
    }

    /// A device in its own group, which IREE's local driver needs to run anything.
    pub(crate) fn open_in_group(uri: &str) -> Result<Self> {
        Self::open_in(uri, &Tracker::new())
    }

    /// The same with this tracker.
    pub(crate) fn open_in(uri: &str, tracker: &Tracker) -> Result<Self> {
        let mut device = Self::open(uri)?;
        device.join(tracker)?;
        Ok(device)
    }

    /// Gives it a group with this tracker.
    pub(crate) fn join(&mut self, tracker: &Tracker) -> Result {
        self.1 = tracker.group(self)?;
        Ok(())
    }

    /// A new reference.
    pub(crate) fn again(&self) -> Self {
        unsafe { sys::iree_hal_device_retain(self.0) };
        Self(self.0, null_mut())
    }

    pub(crate) fn semaphore(&self, initial: u64) -> Semaphore {
        unsafe {
            let mut semaphore = null_mut();
            check(sys::iree_hal_semaphore_create(self.0, u64::MAX, initial, 0, &raw mut semaphore)).unwrap();
            Semaphore(semaphore)
        }
    }

    pub(crate) fn allocator(&self) -> *mut sys::iree_hal_allocator_t {
        unsafe { sys::iree_hal_device_allocator(self.0) }
    }

    pub(crate) fn try_buffer(&self, length: usize) -> Result<Buffer> {
        self.try_buffer_of(params(), length)
    }

    /// A buffer of the device's own memory, which the host may not be able to map.
    pub(crate) fn local_buffer(&self, length: usize) -> Buffer {
        self.try_local_buffer(length).unwrap()
    }

    /// The same with these access bits.
    pub(crate) fn local_buffer_for(
        &self,
        access: sys::iree_hal_memory_access_bits_t,
        length: usize,
    ) -> Buffer {
        let access = access.try_into().unwrap();
        self.try_buffer_of(sys::iree_hal_buffer_params_t { access, ..local() }, length).unwrap()
    }

    pub(crate) fn try_local_buffer(&self, length: usize) -> Result<Buffer> {
        self.try_buffer_of(local(), length)
    }

    pub(crate) fn try_buffer_of(
        &self,
        params: sys::iree_hal_buffer_params_t,
        length: usize,
    ) -> Result<Buffer> {
        unsafe {
            let mut buffer = null_mut();
            check(sys::iree_hal_allocator_allocate_buffer(
                self.allocator(),
                params,
                length,
                &raw mut buffer,
            ))?;
            Ok(Buffer(buffer))
        }
    }

    pub(crate) fn buffer(&self, length: usize) -> Buffer {
        self.try_buffer(length).unwrap()
    }

    /// Imports host memory as a buffer, which must not outlive the memory.
    pub(crate) fn import(
        &self,
        params: sys::iree_hal_buffer_params_t,
        memory: *mut u8,
        length: usize,
    ) -> Result<Buffer> {
        self.import_until(params, memory, length, sys::iree_hal_buffer_release_callback_t::default())
    }

    /// The same with a release callback.
    pub(crate) fn import_until(
        &self,
        params: sys::iree_hal_buffer_params_t,
        memory: *mut u8,
        length: usize,
        release: sys::iree_hal_buffer_release_callback_t,
    ) -> Result<Buffer> {
        unsafe {
            let mut external = sys::iree_hal_external_buffer_t {
                type_: sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
                size: length,
                ..Default::default()
            };
            external.handle.host_allocation.ptr = memory.cast();
            let mut buffer = null_mut();
            let (allocator, external) = (self.allocator(), &raw mut external);
            check(sys::iree_hal_allocator_import_buffer(
                allocator,
                params,
                external,
                release,
                &raw mut buffer,
            ))?;
            Ok(Buffer(buffer))
        }
    }

    pub(crate) fn fill(
        &self,
        waits: &List,
        signals: &List,
        target: &Buffer,
        range: (usize, usize),
        pattern: &[u8],
    ) -> Result {
        self.fill_on(u64::MAX, waits, signals, target, range, pattern)
    }

    pub(crate) fn fill_on(
        &self,
        affinity: u64,
        waits: &List,
        signals: &List,
        target: &Buffer,
        (offset, length): (usize, usize),
        pattern: &[u8],
    ) -> Result {
        unsafe {
            check(sys::iree_hal_device_queue_fill(
                self.0,
                affinity,
                waits.raw(),
                signals.raw(),
                target.0,
                offset,
                length,
                pattern.as_ptr().cast(),
                pattern.len(),
                0,
            ))
        }
    }

    pub(crate) fn copy(
        &self,
        waits: &List,
        signals: &List,
        source: &Buffer,
        target: &Buffer,
        length: usize,
    ) -> Result {
        self.copy_on(u64::MAX, waits, signals, (source, 0), (target, 0), length)
    }

    pub(crate) fn copy_on(
        &self,
        affinity: u64,
        waits: &List,
        signals: &List,
        (source, source_offset): (&Buffer, usize),
        (target, target_offset): (&Buffer, usize),
        length: usize,
    ) -> Result {
        unsafe {
            check(sys::iree_hal_device_queue_copy(
                self.0,
                affinity,
                waits.raw(),
                signals.raw(),
                source.0,
                source_offset,
                target.0,
                target_offset,
                length,
                0,
            ))
        }
    }

    pub(crate) fn update_on(
        &self,
        affinity: u64,
        waits: &List,
        signals: &List,
        bytes: &[u8],
        (target, offset): (&Buffer, usize),
    ) -> Result {
        unsafe {
            check(sys::iree_hal_device_queue_update(
                self.0,
                affinity,
                waits.raw(),
                signals.raw(),
                bytes.as_ptr().cast(),
                0,
                target.0,
                offset,
                bytes.len(),
                0,
            ))
        }
    }

    pub(crate) fn barrier(&self, waits: &List, signals: &List) -> Result {
        unsafe { check(sys::iree_hal_device_queue_barrier(self.0, u64::MAX, waits.raw(), signals.raw(), 0)) }
    }

    pub(crate) fn alloca(&self, waits: &List, signals: &List, length: usize) -> Result<Buffer> {
        self.alloca_of(waits, signals, params(), length)
    }

    pub(crate) fn alloca_of(
        &self,
        waits: &List,
        signals: &List,
        params: sys::iree_hal_buffer_params_t,
        length: usize,
    ) -> Result<Buffer> {
        unsafe {
            let mut buffer = null_mut();
            check(sys::iree_hal_device_queue_alloca(
                self.0,
                u64::MAX,
                waits.raw(),
                signals.raw(),
                null_mut(),
                params,
                length,
                0,
                &raw mut buffer,
            ))?;
            Ok(Buffer(buffer))
        }
    }

    pub(crate) fn dealloca(&self, waits: &List, signals: &List, buffer: &Buffer) -> Result {
        unsafe {
            check(sys::iree_hal_device_queue_dealloca(self.0, 1, waits.raw(), signals.raw(), buffer.0, 0))
        }
    }

    /// A host call of a closure, which must not outlive what it borrows: the test waits for it.
    pub(crate) fn host_call(
        &self,
        waits: &List,
        signals: &List,
        flags: u64,
        call: Box<dyn FnOnce() -> sys::iree_status_t + Send>,
    ) -> Result {
        unsafe extern "C" fn trampoline(
            user_data: *mut c_void,
            _arguments: *const u64,
            _context: *mut sys::iree_hal_host_call_context_t,
        ) -> sys::iree_status_t {
            UNMADE.lock().unwrap().retain(|&call| call != user_data as usize);
            let call =
                unsafe { Box::from_raw(user_data.cast::<Box<dyn FnOnce() -> sys::iree_status_t + Send>>()) };
            call()
        }
        unsafe {
            let user_data: *mut c_void = Box::into_raw(Box::new(call)).cast();
            UNMADE.lock().unwrap().push(user_data as usize);
            let call = sys::iree_hal_host_call_t { fn_: Some(trampoline), user_data };
            let arguments = [0_u64; 4];
            check(sys::iree_hal_device_queue_host_call(
                self.0,
                u64::MAX,
                waits.raw(),
                signals.raw(),
                call,
                arguments.as_ptr(),
                flags,
            ))
        }
    }

    pub(crate) fn query(&self, category: &str, key: &str) -> Result<i64> {
        let mut value = 0;
        unsafe { check(sys::iree_hal_device_query_i64(self.0, view(category), view(key), &raw mut value))? };
        Ok(value)
    }
}

/// A new pool of one proactor, and the proactor. The caller owns both.
pub(crate) fn new_pool() -> Result<(*mut sys::iree_async_proactor_pool_t, Proactor)> {
    let (mut pool, mut proactor) = (null_mut(), null_mut());
    unsafe {
        let (options, system) =
            (sys::iree_async_proactor_pool_options_default(), sys::iree_allocator_system());
        check(sys::iree_async_proactor_pool_create(1, std::ptr::null(), options, system, &raw mut pool))?;
        check(sys::iree_async_proactor_pool_get(pool, 0, &raw mut proactor))?;
    }
    Ok((pool, Proactor(proactor)))
}

/// A pool of a program's own over a device's memory. The caller owns it, and releases its buffers first.
pub(crate) fn own_pool(device: &Device) -> Result<*mut sys::iree_hal_pool_t> {
    let (mut backend, mut pool) = (sys::iree_hal_queue_pool_backend_t::default(), null_mut());
    unsafe {
        check(sys::iree_hal_device_query_queue_pool_backend(device.0, u64::MAX, &raw mut backend))?;
        let (provider, notification) = (backend.slab_provider, backend.notification);
        let (options, system) = (Default::default(), sys::iree_allocator_system());
        check(sys::iree_hal_passthrough_pool_create(options, provider, notification, system, &raw mut pool))?;
    }
    Ok(pool)
}

/// Runs a closure on the thread that polls a new pool, which the closure owns.
pub(crate) fn on_a_polling_thread(call: impl FnOnce(*mut sys::iree_async_proactor_pool_t) + Send + 'static) {
    let (pool, proactor) = new_pool().unwrap();
    let address = pool as usize;
    proactor.run(move || call(address as *mut sys::iree_async_proactor_pool_t));
}

/// Records a full barrier.
pub(crate) fn barrier(commands: *mut sys::iree_hal_command_buffer_t) -> Result {
    let stage = sys::IREE_HAL_EXECUTION_STAGE_TRANSFER;
    unsafe {
        check(sys::iree_hal_command_buffer_execution_barrier(
            commands,
            stage,
            stage,
            0,
            0,
            std::ptr::null(),
            0,
            std::ptr::null(),
        ))
    }
}

/// A proactor that exists as long as its device.
pub(crate) struct Proactor(*mut sys::iree_async_proactor_t);

impl Proactor {
    /// Runs a closure on the polling thread.
    pub(crate) fn run(&self, call: impl FnOnce() + Send + 'static) {
        struct Call {
            operation: sys::iree_async_nop_operation_t,
            call: Box<dyn FnOnce() + Send>,
        }
        unsafe extern "C" fn trampoline(
            user_data: *mut c_void,
            _operation: *mut sys::iree_async_operation_t,
            status: sys::iree_status_t,
            _flags: sys::iree_async_completion_flags_t,
        ) {
            check(status).unwrap();
            let call = unsafe { Box::from_raw(user_data.cast::<Call>()) };
            (call.call)();
        }
        let (operation, call) = (sys::iree_async_nop_operation_t::default(), Box::new(call));
        let call = Box::into_raw(Box::new(Call { operation, call }));
        unsafe {
            let kind = sys::IREE_ASYNC_OPERATION_TYPE_NOP.try_into().unwrap();
            let base = &raw mut (*call).operation.base;
            sys::iree_async_operation_initialize(base, kind, 0, Some(trampoline), call.cast());
            check(sys::iree_async_proactor_submit_one(self.0, base)).unwrap();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        unsafe {
            sys::iree_hal_device_release(self.0);
            sys::iree_hal_device_group_release(self.1);
        }
    }
}

/// A frontier tracker, for the devices of a group.
pub(crate) struct Tracker(*mut sys::iree_async_frontier_tracker_t);

impl Tracker {
    pub(crate) fn new() -> Self {
        Self::with(unsafe { sys::iree_allocator_system() })
    }

    /// A tracker with an allocator.
    pub(crate) fn with(allocator: sys::iree_allocator_t) -> Self {
        Self::create(unsafe { sys::iree_async_frontier_tracker_options_default() }, allocator)
    }

    /// A tracker whose memory is counted while it exists.
    pub(crate) fn counted(count: &'static AtomicUsize) -> Self {
        unsafe extern "C" fn counting(
            count: *mut c_void,
            command: sys::iree_allocator_command_t,
            parameters: *const c_void,
            pointer: *mut *mut c_void,
        ) -> sys::iree_status_t {
            unsafe {
                let (count, system) = (&*count.cast::<AtomicUsize>(), sys::iree_allocator_system());
                match command {
                    sys::IREE_ALLOCATOR_COMMAND_MALLOC | sys::IREE_ALLOCATOR_COMMAND_CALLOC => {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    sys::IREE_ALLOCATOR_COMMAND_FREE => {
                        count.fetch_sub(1, Ordering::SeqCst);
                    }
                    _ => {}
                }
                system.ctl.unwrap()(system.self_, command, parameters, pointer)
            }
        }
        let self_ = std::ptr::from_ref(count).cast_mut().cast();
        Self::with(sys::iree_allocator_t { self_, ctl: Some(counting) })
    }

    /// A tracker with room for so many axes.
    pub(crate) fn of_axes(axis_table_capacity: u32) -> Self {
        let defaults = unsafe { sys::iree_async_frontier_tracker_options_default() };
        let options = sys::iree_async_frontier_tracker_options_t { axis_table_capacity, ..defaults };
        Self::create(options, unsafe { sys::iree_allocator_system() })
    }

    fn create(options: sys::iree_async_frontier_tracker_options_t, allocator: sys::iree_allocator_t) -> Self {
        unsafe {
            let mut tracker = null_mut();
            check(sys::iree_async_frontier_tracker_create(options, allocator, &raw mut tracker)).unwrap();
            Self(tracker)
        }
    }

    /// A group of one device, owned by the caller.
    pub(crate) fn group(&self, device: &Device) -> Result<*mut sys::iree_hal_device_group_t> {
        unsafe {
            let allocator = sys::iree_allocator_system();
            let mut group = null_mut();
            let created =
                sys::iree_hal_device_group_create_from_device(device.0, self.0, allocator, &raw mut group);
            check(created).map(|()| group)
        }
    }

    /// A group of several devices, owned by the caller.
    pub(crate) fn group_of(&self, devices: &[&Device]) -> Result<*mut sys::iree_hal_device_group_t> {
        unsafe {
            let allocator = sys::iree_allocator_system();
            let mut builder = sys::iree_hal_device_group_builder_t::default();
            sys::iree_hal_device_group_builder_initialize(&raw mut builder, self.0);
            for device in devices {
                check(sys::iree_hal_device_group_builder_add_device(&raw mut builder, device.0))?;
            }
            let mut group = null_mut();
            let built =
                sys::iree_hal_device_group_builder_finalize(&raw mut builder, allocator, &raw mut group);
            check(built).map(|()| group)
        }
    }

    /// An axis that no device here advances.
    pub(crate) fn axis_of_another_device(&self) -> sys::iree_async_axis_t {
        unsafe {
            let options = sys::iree_async_frontier_tracker_options_default();
            let axis = sys::iree_async_axis_make_queue(options.session_epoch, 0, 99, 0);
            check(sys::iree_async_frontier_tracker_register_axis(self.0, axis, null_mut())).unwrap();
            axis
        }
    }

    /// Advances an axis to an epoch.
    pub(crate) fn advance(&self, axis: sys::iree_async_axis_t, epoch: u64) {
        unsafe { sys::iree_async_frontier_tracker_advance(self.0, axis, epoch) };
    }

    /// Fails an axis: no later epoch will come.
    pub(crate) fn fail(&self, axis: sys::iree_async_axis_t, why: sys::iree_status_t) {
        unsafe { sys::iree_async_frontier_tracker_fail_axis(self.0, axis, why) };
    }

    /// True if an epoch of the first queue of the first device has completed.
    pub(crate) fn reached(&self, epoch: u64) -> bool {
        unsafe {
            let options = sys::iree_async_frontier_tracker_options_default();
            let axis = sys::iree_async_axis_make_queue(options.session_epoch, 0, 0, 0);
            sys::iree_async_frontier_tracker_query_epoch(self.0, axis, epoch)
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        unsafe { sys::iree_async_frontier_tracker_release(self.0) };
    }
}

pub(crate) fn params() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_MAPPING,
        ..Default::default()
    }
}

fn local() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    }
}

pub(crate) struct Buffer(pub(crate) *mut sys::iree_hal_buffer_t);

unsafe impl Send for Buffer {}
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A part of the buffer, which keeps the whole.
    pub(crate) fn subspan(&self, offset: usize, length: usize) -> Self {
        let mut part = null_mut();
        unsafe {
            let system = sys::iree_allocator_system();
            check(sys::iree_hal_buffer_subspan(self.0, offset, length, system, &raw mut part)).unwrap();
        }
        Self(part)
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        unsafe {
            let mut bytes = vec![0; sys::iree_hal_buffer_byte_length(self.0)];
            check(sys::iree_hal_buffer_map_read(self.0, 0, bytes.as_mut_ptr().cast(), bytes.len())).unwrap();
            bytes
        }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let source = bytes.as_ptr().cast();
        unsafe { check(sys::iree_hal_buffer_map_write(self.0, offset, source, bytes.len())).unwrap() };
    }

    /// True if its first byte can be mapped now.
    pub(crate) fn is_mappable(&self) -> bool {
        unsafe {
            let mut mapping = sys::iree_hal_buffer_mapping_t::default();
            let access = sys::IREE_HAL_MEMORY_ACCESS_READ.try_into().unwrap();
            let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
            let mapped =
                check(sys::iree_hal_buffer_map_range(self.0, mode, access, 0, 1, &raw mut mapping)).is_ok();
            check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap();
            mapped
        }
    }

    /// Waits until its reference count is one.
    pub(crate) fn wait_until_it_is_ours_alone(&self) {
        let references = unsafe { AtomicI32::from_ptr((&raw mut (*self.0).resource.ref_count).cast()) };
        let until = Instant::now() + Duration::from_secs(60);
        while references.load(Ordering::Acquire) > 1 {
            assert!(Instant::now() < until, "something keeps the buffer");
            std::thread::yield_now();
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unsafe { sys::iree_hal_buffer_release(self.0) };
    }
}

/// A file that can be read and written by descriptor, but not mapped.
pub(crate) struct File {
    file: std::fs::File,
    handle: *mut sys::iree_io_file_handle_t,
    access: sys::iree_hal_memory_access_t,
}

impl File {
    /// A file with these bytes.
    pub(crate) fn with(bytes: &[u8]) -> Self {
        Self::of(bytes, sys::IREE_IO_FILE_ACCESS_READ | sys::IREE_IO_FILE_ACCESS_WRITE)
    }

    /// The same, read-only.
    pub(crate) fn read_only(bytes: &[u8]) -> Self {
        Self::of(bytes, sys::IREE_IO_FILE_ACCESS_READ)
    }

    fn of(bytes: &[u8], access: sys::iree_io_file_access_t) -> Self {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("hal-driver-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(bytes).unwrap();
        let primitive = sys::iree_io_file_handle_primitive_t {
            type_: sys::IREE_IO_FILE_HANDLE_TYPE_FD,
            value: sys::iree_io_file_handle_primitive_value_t { fd: file.as_raw_fd() },
        };
        let mut handle = null_mut();
        unsafe {
            let (release, allocator) = (Default::default(), sys::iree_allocator_system());
            check(sys::iree_io_file_handle_wrap(access, 0, primitive, release, allocator, &raw mut handle))
                .unwrap();
        }
        let writes = access & sys::IREE_IO_FILE_ACCESS_WRITE != 0;
        let access = sys::IREE_HAL_MEMORY_ACCESS_READ
            | if writes { sys::IREE_HAL_MEMORY_ACCESS_WRITE } else { sys::IREE_HAL_MEMORY_ACCESS_NONE };
        Self { file, handle, access: access.try_into().unwrap() }
    }

    pub(crate) fn import(&self, device: &Device) -> *mut sys::iree_hal_file_t {
        let access = self.access;
        let mut file = null_mut();
        unsafe {
            check(sys::iree_hal_file_import(device.0, u64::MAX, access, self.handle, 0, &raw mut file))
                .unwrap();
        }
        file
    }

    /// Its content.
    pub(crate) fn read(&self) -> Vec<u8> {
        use std::io::{Read, Seek};
        let mut file = self.file.try_clone().unwrap();
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }
}

impl Drop for File {
    fn drop(&mut self) {
        unsafe { sys::iree_io_file_handle_release(self.handle) };
    }
}

impl Device {
    pub(crate) fn read_file(
        &self,
        waits: &List,
        signals: &List,
        file: &File,
        offset: u64,
        target: &Buffer,
        length: usize,
    ) -> Result {
        unsafe {
            let file = file.import(self);
            let (waits, signals) = (waits.raw(), signals.raw());
            let all = u64::MAX;
            let read = sys::iree_hal_device_queue_read(
                self.0, all, waits, signals, file, offset, target.0, 0, length, 0,
            );
            sys::iree_hal_file_release(file);
            check(read)
        }
    }

    pub(crate) fn write_file(
        &self,
        waits: &List,
        signals: &List,
        source: &Buffer,
        file: &File,
        offset: u64,
        length: usize,
    ) -> Result {
        unsafe {
            let file = file.import(self);
            let (waits, signals) = (waits.raw(), signals.raw());
            let all = u64::MAX;
            let written = sys::iree_hal_device_queue_write(
                self.0, all, waits, signals, source.0, 0, file, offset, length, 0,
            );
            sys::iree_hal_file_release(file);
            check(written)
        }
    }
}

/// A loaded executable.
pub(crate) struct Executable(pub(crate) *mut sys::iree_hal_executable_t);

unsafe impl Send for Executable {}
unsafe impl Sync for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        unsafe { sys::iree_hal_executable_release(self.0) };
    }
}

impl Device {
    pub(crate) fn load(&self, format: &str, bytes: &[u8]) -> Result<Executable> {
        unsafe {
            let mut cache = null_mut();
            check(sys::iree_hal_executable_cache_create(self.0, view("test"), &raw mut cache))?;
            let params = sys::iree_hal_executable_params_t {
                queue_affinity: u64::MAX,
                caching_mode: 0,
                executable_format: view(format),
                executable_data: sys::iree_const_byte_span_t {
                    data: bytes.as_ptr(),
                    data_length: bytes.len(),
                },
                constant_count: 0,
                constants: std::ptr::null(),
            };
            let mut executable = null_mut();
            let loaded = check(sys::iree_hal_executable_cache_prepare_executable(
                cache,
                &raw const params,
                &raw mut executable,
            ));
            sys::iree_hal_executable_cache_release(cache);
            loaded.map(|()| Executable(executable))
        }
    }

    /// Dispatches one workgroup of an executable's first function.
    pub(crate) fn dispatch(
        &self,
        affinity: u64,
        waits: &List,
        signals: &List,
        executable: &Executable,
        constants: &[u32],
        bindings: &[&Buffer],
    ) -> Result {
        unsafe {
            let config = sys::iree_hal_dispatch_config_t {
                workgroup_size: [1; 3],
                workgroup_count: [1; 3],
                ..Default::default()
            };
            let constants = sys::iree_const_byte_span_t {
                data: constants.as_ptr().cast(),
                data_length: std::mem::size_of_val(constants),
            };
            let references: Vec<sys::iree_hal_buffer_ref_t> = bindings
                .iter()
                .map(|buffer| sys::iree_hal_buffer_ref_t {
                    buffer: buffer.0,
                    length: sys::iree_hal_buffer_byte_length(buffer.0),
                    ..Default::default()
                })
                .collect();
            let list =
                sys::iree_hal_buffer_ref_list_t { count: references.len(), values: references.as_ptr() };
            check(sys::iree_hal_device_queue_dispatch(
                self.0,
                affinity,
                waits.raw(),
                signals.raw(),
                executable.0,
                sys::iree_hal_executable_function_from_index(0),
                config,
                constants,
                list,
                0,
            ))
        }
    }
}

/// A recorded command buffer.
pub(crate) struct Commands(pub(crate) *mut sys::iree_hal_command_buffer_t);

unsafe impl Sync for Commands {}

impl Drop for Commands {
    fn drop(&mut self) {
        unsafe { sys::iree_hal_command_buffer_release(self.0) };
    }
}

impl Device {
    /// A command buffer without IREE's validation, recorded by `record`.
    pub(crate) fn record(
        &self,
        slots: usize,
        record: impl FnOnce(*mut sys::iree_hal_command_buffer_t) -> Result,
    ) -> Result<Commands> {
        self.record_for(u64::MAX, slots, record)
    }

    /// The same for some queues.
    pub(crate) fn record_for(
        &self,
        affinity: u64,
        slots: usize,
        record: impl FnOnce(*mut sys::iree_hal_command_buffer_t) -> Result,
    ) -> Result<Commands> {
        unsafe {
            let mut commands = null_mut();
            let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED;
            check(sys::iree_hal_command_buffer_create(self.0, mode, 3, affinity, slots, &raw mut commands))?;
            let commands = Commands(commands);
            check(sys::iree_hal_command_buffer_begin(commands.0))?;
            record(commands.0)?;
            check(sys::iree_hal_command_buffer_end(commands.0))?;
            Ok(commands)
        }
    }

    /// Executes commands with whole buffers in the slots.
    pub(crate) fn execute(
        &self,
        affinity: u64,
        waits: &List,
        signals: &List,
        commands: &Commands,
        slots: &[&Buffer],
    ) -> Result {
        unsafe {
            let bindings: Vec<sys::iree_hal_buffer_binding_t> = slots
                .iter()
                .map(|buffer| sys::iree_hal_buffer_binding_t {
                    buffer: buffer.0,
                    offset: 0,
                    length: sys::iree_hal_buffer_byte_length(buffer.0),
                })
                .collect();
            let table =
                sys::iree_hal_buffer_binding_table_t { count: bindings.len(), bindings: bindings.as_ptr() };
            let (waits, signals) = (waits.raw(), signals.raw());
            check(sys::iree_hal_device_queue_execute(self.0, affinity, waits, signals, commands.0, table, 0))
        }
    }
}

/// A command's reference to a whole buffer, or to the whole of a slot.
pub(crate) fn reference(buffer: &Buffer) -> sys::iree_hal_buffer_ref_t {
    let length = unsafe { sys::iree_hal_buffer_byte_length(buffer.0) };
    sys::iree_hal_buffer_ref_t { buffer: buffer.0, length, ..Default::default() }
}

pub(crate) struct Semaphore(pub(crate) *mut sys::iree_hal_semaphore_t);

unsafe impl Send for Semaphore {}
unsafe impl Sync for Semaphore {}

impl Semaphore {
    pub(crate) fn at(&self, value: u64) -> List {
        List::of(&[(self, value)])
    }

    pub(crate) fn value(&self) -> Result<u64> {
        let mut value = 0;
        unsafe { check(sys::iree_hal_semaphore_query(self.0, &raw mut value))? };
        Ok(value)
    }

    pub(crate) fn signal(&self, value: u64) -> Result {
        unsafe { check(sys::iree_hal_semaphore_signal(self.0, value, std::ptr::null())) }
    }

    /// Calls a closure when a value is reached, on any thread.
    pub(crate) fn when(&self, value: u64, call: impl FnOnce() + Send + 'static) {
        self.when_known(value, |outcome| {
            outcome.unwrap();
            call();
        });
    }

    /// The same, also when the value can no longer be reached.
    pub(crate) fn when_known(&self, value: u64, call: impl FnOnce(Result) + Send + 'static) {
        struct Call {
            timepoint: sys::iree_async_semaphore_timepoint_t,
            call: Box<dyn FnOnce(Result) + Send>,
        }
        unsafe extern "C" fn trampoline(
            user_data: *mut c_void,
            _timepoint: *mut sys::iree_async_semaphore_timepoint_t,
            status: sys::iree_status_t,
        ) {
            let call = unsafe { Box::from_raw(user_data.cast::<Call>()) };
            (call.call)(check(status));
        }
        let (timepoint, call) = (sys::iree_async_semaphore_timepoint_t::default(), Box::new(call));
        let call = Box::into_raw(Box::new(Call { timepoint, call }));
        unsafe {
            (*call).timepoint.callback = Some(trampoline);
            (*call).timepoint.user_data = call.cast();
            let timepoint = &raw mut (*call).timepoint;
            check(sys::iree_async_semaphore_acquire_timepoint(self.0.cast(), value, timepoint)).unwrap();
        }
    }

    pub(crate) fn fail(&self, code: Code, text: &str) {
        unsafe { sys::iree_hal_semaphore_fail(self.0, failure(code, text)) };
    }

    /// Waits for longer than anything takes that is to end, on a busy machine; returns a failure with its message.
    pub(crate) fn wait(&self, value: u64) -> Result {
        self.wait_for(value, 100_000)
    }

    /// Waits for at most this many milliseconds; returns a failure with its message.
    pub(crate) fn wait_for(&self, value: u64, milliseconds: i64) -> Result {
        let waited = unsafe {
            let timeout = sys::iree_make_timeout_ms(milliseconds);
            check(sys::iree_hal_semaphore_wait(self.0, value, timeout, 0))
        };
        match waited {
            Err(error) if error.code != Code::DeadlineExceeded => Err(self.value().err().unwrap_or(error)),
            other => other,
        }
    }
}

impl Clone for Semaphore {
    fn clone(&self) -> Self {
        unsafe { sys::iree_hal_semaphore_retain(self.0) };
        Self(self.0)
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        unsafe { sys::iree_hal_semaphore_release(self.0) };
    }
}

/// Semaphores and values for a call.
pub(crate) struct List {
    semaphores: Vec<Semaphore>,
    pointers: Vec<*mut sys::iree_hal_semaphore_t>,
    values: Vec<u64>,
}

impl List {
    pub(crate) fn none() -> Self {
        Self::of(&[])
    }

    pub(crate) fn of(points: &[(&Semaphore, u64)]) -> Self {
        let semaphores: Vec<Semaphore> = points.iter().map(|(semaphore, _)| (*semaphore).clone()).collect();
        let pointers = semaphores.iter().map(|semaphore| semaphore.0).collect();
        Self { semaphores, pointers, values: points.iter().map(|(_, value)| *value).collect() }
    }

    pub(crate) fn raw(&self) -> sys::iree_hal_semaphore_list_t {
        sys::iree_hal_semaphore_list_t {
            count: self.semaphores.len(),
            semaphores: self.pointers.as_ptr().cast_mut(),
            payload_values: self.values.as_ptr().cast_mut(),
        }
    }
}
