// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Fixed work for counting instructions: from IREE's C call to the completed signal, on one thread, with a device that
//! does nothing and completes at once, or sixteen jobs at a time.
//!
//! `cargo bench -p hal-driver --bench instructions` runs this under callgrind and checks the budgets below. Every
//! operation runs once before it is counted, so the count is its steady cost.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(clippy::unwrap_used, reason = "a failed expectation ends the benchmark")]

mod callgrind;
#[path = "../../tests/common/mod.rs"]
mod common;

use common::{Buffer, Device, Semaphore, check, view};
use hal_backend::{
    Completer, Completion, DeviceInfo, DeviceSpec, Driver, Failure, Function, Heap, HostLoader, HostRange,
    Job, LoadRequest, Loaded, MemoryRequest, NativeWaits, Parameters, Properties, Rejected,
};
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// The most instructions of each operation. Lowered when a change makes it cheaper; raised only with a reason in
/// the commit.
const BUDGETS: [callgrind::Budget; 18] = [
    ("gate_barrier_chain", 1_760),
    ("gate_fill_chain", 3_200),
    ("gate_fill_cross_queue", 3_280),
    ("gate_copy_chain", 3_350),
    ("gate_update_chain", 3_440),
    ("gate_blocked_fills", 3_620),
    ("gate_fan_out_in", 3_030),
    ("gate_fan_out_in_fills", 4_580),
    ("gate_alloca_dealloca", 12_900),
    ("gate_fills_behind", 2_480),
    ("gate_allocas_behind", 13_750),
    ("gate_fills_submitted", 1_630),
    ("gate_copies_submitted", 1_700),
    ("gate_updates_submitted", 1_790),
    ("gate_ownership", 75),
    // Another thread releases the memory of an execution, which the next one takes: these vary by 5 %.
    ("gate_execute_100", 4_500),
    ("gate_execute_100_bound", 166_000),
    ("gate_record_100", 395_000),
];

/// The number of jobs that the device completes at a time.
static AT_A_TIME: AtomicU64 = AtomicU64::new(1);

/// The operations of each gate.
const COUNT: u64 = 1000;

// ------------------------------------------------------------------------------------------------------------------
// A device that does nothing
// ------------------------------------------------------------------------------------------------------------------

struct Nothing;

impl Driver for Nothing {
    type Device = NothingDevice;

    const NAME: &'static str = "nothing";
    const FULL_NAME: &'static str = "a device that does nothing, at once";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open(&self, _path: &str, _parameters: &mut Parameters<'_>) -> Result<NothingDevice, Failure> {
        Ok(NothingDevice::default())
    }
}

#[derive(Default)]
struct NothingDevice {
    completer: OnceLock<Completer>,
    submitted: AtomicU64,
}

impl hal_backend::Device for NothingDevice {
    type Memory = HostRange;
    type Executable = ();
    type Event = ();

    fn properties(&self) -> Properties {
        Properties {
            identifier: "nothing".into(),
            aliases: Vec::new(),
            queues: DeviceSpec {
                queues: 2,
                native_waits: NativeWaits::Epochs,
                completion: Completion::Callback,
            },
            heaps: vec![Heap {
                host_visible: true,
                coherent: true,
                device_local: true,
                max_allocation: 1 << 30,
                alignment: 64,
                import_alignment: None,
            }],
            concurrency: 1,
            host_processor: false,
        }
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<HostRange, Failure> {
        HostRange::allocate(request.length, 64)
    }

    fn supports(&self, format: &str, _host: &dyn HostLoader) -> bool {
        format == "nothing"
    }

    fn load(&self, _request: &LoadRequest<'_>, _host: &dyn HostLoader) -> Result<Loaded<()>, Failure> {
        let function = Function { name: "nothing".into(), bindings: 2, constants: 0, workgroup_size: [1; 3] };
        Ok(Loaded { executable: (), functions: vec![function] })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        let (queue, epoch) = (job.queue, job.epoch);
        drop(job);
        let submitted = self.submitted.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(completer) = self.completer.get()
            && submitted.is_multiple_of(AT_A_TIME.load(Ordering::Relaxed))
        {
            let _ = completer.complete(queue, epoch);
        }
        Ok(())
    }

    fn abort(&self, _why: &Failure) {}
}

// ------------------------------------------------------------------------------------------------------------------
// The work
// ------------------------------------------------------------------------------------------------------------------

struct Setup {
    device: Device,
    timeline: Semaphore,
    /// The timeline's value.
    at: u64,
    source: Buffer,
    target: Buffer,
    executable: *mut sys::iree_hal_executable_t,
    commands: *mut sys::iree_hal_command_buffer_t,
    indirect: *mut sys::iree_hal_command_buffer_t,
    /// A semaphore of IREE's own, and the objects that are passed with it.
    plain: *mut sys::iree_async_semaphore_t,
    owned: Mutex<Vec<Owned>>,
    /// A semaphore for each operation of a fan, and their value.
    fan: Vec<Semaphore>,
    fanned: u64,
    /// The reference counts while nothing is under way.
    idle_references: [i32; 5],
}

/// The references of an operation, and the values that it waits for and signals, as in the `ownership` floor of
/// `cargo xtask bench`.
struct Owned {
    semaphore: *mut sys::iree_async_semaphore_t,
    buffers: [*mut sys::iree_hal_buffer_t; 2],
    #[expect(dead_code, reason = "another thread would read this")]
    values: [u64; 2],
}

impl Setup {
    fn new() -> Self {
        let device = Device::open_in_group("nothing").unwrap();
        let (source, target) = (device.buffer(4096), device.buffer(4096));
        let executable = executable(&device);
        let commands = record(&device, executable, 0, Some((&source, &target)));
        let indirect = record(&device, executable, 0, None);
        let timeline = device.semaphore(0);
        let mut plain = null_mut();
        unsafe {
            let allocator = sys::iree_allocator_system();
            check(sys::iree_async_semaphore_create(null_mut(), 0, 4, allocator, &raw mut plain)).unwrap();
        }
        let owned = Mutex::default();
        let fan = (0..COUNT).map(|_| device.semaphore(0)).collect();
        let (at, fanned, idle_references) = (0, 0, [0; 5]);
        let mut rig = Self {
            device,
            timeline,
            at,
            source,
            target,
            executable,
            commands,
            indirect,
            plain,
            owned,
            fan,
            fanned,
            idle_references,
        };
        rig.idle_references = rig.references();
        rig
    }

    /// Runs an operation for each value of the timeline.
    fn chain(&mut self, mut operation: impl FnMut(&Self, &SemaphoreLists, u64)) {
        for _ in 0..COUNT {
            operation(self, &self.lists(self.at), self.at);
            self.at += 1;
        }
        self.is_done();
    }

    /// Runs one operation. Work that it leaves to another thread is done when [`end_all`](Setup::end_all) returns:
    /// the time at which memory is returned affects the cost of the next operation.
    fn one(&mut self, operation: impl FnOnce(&Self, &SemaphoreLists)) {
        operation(self, &self.lists(self.at));
        self.at += 1;
        self.is_done();
    }

    /// The same on a device that completes late.
    fn behind(&mut self, case: fn(&mut Self)) {
        AT_A_TIME.store(16, Ordering::Relaxed);
        case(self);
        AT_A_TIME.store(1, Ordering::Relaxed);
        self.fill(&self.lists(self.at), 1, &self.target);
        self.at += 1;
        self.is_done();
    }

    /// Ends what a case has left under way. Not counted.
    fn end_all(&mut self) {
        if AT_A_TIME.swap(1, Ordering::Relaxed) > 1 {
            self.fill(&self.lists(self.at), 1, &self.target);
            self.at += 1;
            self.is_done();
        }
        for Owned { semaphore, buffers, .. } in self.owned.get_mut().unwrap().drain(..) {
            unsafe {
                sys::iree_async_semaphore_release(semaphore);
                for buffer in buffers {
                    sys::iree_hal_buffer_release(buffer);
                }
            }
        }
        while self.references() != self.idle_references {
            std::thread::yield_now();
        }
    }

    /// The reference counts of the rig's objects.
    fn references(&self) -> [i32; 5] {
        let objects: [*mut sys::iree_hal_resource_t; 5] = [
            self.source.0.cast(),
            self.target.0.cast(),
            self.executable.cast(),
            self.commands.cast(),
            self.indirect.cast(),
        ];
        objects.map(|object| {
            let references = unsafe { AtomicI32::from_ptr(&raw mut (*object).ref_count) };
            references.load(Ordering::Acquire)
        })
    }

    fn is_done(&self) {
        let done = AT_A_TIME.load(Ordering::Relaxed) > 1 || self.timeline.value().unwrap() == self.at;
        assert!(done, "everything is done at once");
    }

    /// The lists from a value of the timeline to the next.
    fn lists(&self, at: u64) -> SemaphoreLists {
        SemaphoreLists { semaphore: self.timeline.0, values: [at, at + 1] }
    }

    fn barrier(&self, lists: &SemaphoreLists) {
        self.barrier_between(1, lists.waits(), lists.signals());
    }

    fn barrier_between(
        &self,
        affinity: u64,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
    ) {
        unsafe {
            check(sys::iree_hal_device_queue_barrier(self.device.0, affinity, waits, signals, 0)).unwrap();
        }
    }

    fn fill(&self, lists: &SemaphoreLists, affinity: u64, target: &Buffer) {
        self.fill_between(lists.waits(), lists.signals(), affinity, target);
    }

    fn fill_between(
        &self,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        affinity: u64,
        target: &Buffer,
    ) {
        let (device, pattern) = (self.device.0, 7_u32);
        let bytes = (&raw const pattern).cast();
        unsafe {
            check(sys::iree_hal_device_queue_fill(
                device, affinity, waits, signals, target.0, 0, 4096, bytes, 4, 0,
            ))
            .unwrap();
        }
    }

    fn copy(&self, lists: &SemaphoreLists) {
        let (device, source, target) = (self.device.0, self.source.0, self.target.0);
        let (waits, signals) = (lists.waits(), lists.signals());
        unsafe {
            check(sys::iree_hal_device_queue_copy(device, 1, waits, signals, source, 0, target, 0, 4096, 0))
                .unwrap();
        }
    }

    fn execute(&self, lists: &SemaphoreLists, commands: *mut sys::iree_hal_command_buffer_t, bound: bool) {
        let bindings = [&self.source, &self.target].map(|buffer| sys::iree_hal_buffer_binding_t {
            buffer: buffer.0,
            offset: 0,
            length: 64,
        });
        let table = sys::iree_hal_buffer_binding_table_t {
            count: if bound { bindings.len() } else { 0 },
            bindings: bindings.as_ptr(),
        };
        let (device, waits, signals) = (self.device.0, lists.waits(), lists.signals());
        unsafe {
            check(sys::iree_hal_device_queue_execute(device, 1, waits, signals, commands, table, 0)).unwrap();
        }
    }
}

/// A wait and a signal, in C's cheapest form.
struct SemaphoreLists {
    semaphore: *mut sys::iree_hal_semaphore_t,
    values: [u64; 2],
}

impl SemaphoreLists {
    fn waits(&self) -> sys::iree_hal_semaphore_list_t {
        self.list(&self.values[0])
    }

    fn signals(&self) -> sys::iree_hal_semaphore_list_t {
        self.list(&self.values[1])
    }

    fn list(&self, value: &u64) -> sys::iree_hal_semaphore_list_t {
        let semaphores = (&raw const self.semaphore).cast_mut();
        sys::iree_hal_semaphore_list_t {
            count: 1,
            semaphores,
            payload_values: std::ptr::from_ref(value).cast_mut(),
        }
    }
}

fn executable(device: &Device) -> *mut sys::iree_hal_executable_t {
    unsafe {
        let (mut cache, mut executable) = (null_mut(), null_mut());
        check(sys::iree_hal_executable_cache_create(device.0, view("nothing"), &raw mut cache)).unwrap();
        let data = [0_u8; 16];
        let params = sys::iree_hal_executable_params_t {
            queue_affinity: u64::MAX,
            caching_mode: 0,
            executable_format: view("nothing"),
            executable_data: sys::iree_const_byte_span_t { data: data.as_ptr(), data_length: data.len() },
            constant_count: 0,
            constants: std::ptr::null(),
        };
        check(sys::iree_hal_executable_cache_prepare_executable(
            cache,
            &raw const params,
            &raw mut executable,
        ))
        .unwrap();
        sys::iree_hal_executable_cache_release(cache);
        executable
    }
}

/// Records a command buffer of a hundred dispatches on these buffers or those of a binding table.
fn record(
    device: &Device,
    executable: *mut sys::iree_hal_executable_t,
    mode: u32,
    buffers: Option<(&Buffer, &Buffer)>,
) -> *mut sys::iree_hal_command_buffer_t {
    unsafe {
        let mut commands = null_mut();
        let capacity = if buffers.is_some() { 0 } else { 2 };
        check(sys::iree_hal_command_buffer_create(device.0, mode, u32::MAX, 1, capacity, &raw mut commands))
            .unwrap();
        check(sys::iree_hal_command_buffer_begin(commands)).unwrap();
        let mut references = [sys::iree_hal_buffer_ref_t::default(); 2];
        for (slot, reference) in references.iter_mut().enumerate() {
            *reference = match buffers {
                Some((source, target)) => {
                    sys::iree_hal_make_buffer_ref(if slot == 0 { source.0 } else { target.0 }, 0, 64)
                }
                None => sys::iree_hal_make_indirect_buffer_ref(u32::try_from(slot).unwrap(), 0, 64),
            };
        }
        let bindings = sys::iree_hal_buffer_ref_list_t { count: 2, values: references.as_ptr() };
        for _ in 0..100 {
            check(sys::iree_hal_command_buffer_dispatch(
                commands,
                executable,
                sys::iree_hal_executable_function_from_index(0),
                sys::iree_hal_make_static_dispatch_config(1, 1, 1),
                sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 },
                bindings,
                0,
            ))
            .unwrap();
        }
        check(sys::iree_hal_command_buffer_end(commands)).unwrap();
        commands
    }
}

fn barrier_chain(rig: &mut Setup) {
    rig.chain(|rig, lists, _| rig.barrier(lists));
}

fn fill_chain(rig: &mut Setup) {
    rig.chain(|rig, lists, _| rig.fill(lists, 1, &rig.target));
}

fn fill_cross_queue(rig: &mut Setup) {
    rig.chain(|rig, lists, at| rig.fill(lists, 1 << (at % 2), &rig.target));
}

fn copy_chain(rig: &mut Setup) {
    rig.chain(|rig, lists, _| rig.copy(lists));
}

fn update_chain(rig: &mut Setup) {
    let bytes = [5_u8; 1024];
    rig.chain(|rig, lists, _| {
        let (waits, signals, source) = (lists.waits(), lists.signals(), bytes.as_ptr().cast());
        unsafe {
            let target = rig.target.0;
            check(sys::iree_hal_device_queue_update(
                rig.device.0,
                1,
                waits,
                signals,
                source,
                0,
                target,
                0,
                1024,
                0,
            ))
            .unwrap();
        }
    });
}

fn blocked_fills(rig: &mut Setup) {
    let first = rig.at + 1;
    for value in first..first + COUNT {
        rig.fill(&rig.lists(value), 1, &rig.target);
    }
    rig.timeline.signal(first).unwrap();
    rig.at = first + COUNT;
    assert_eq!(rig.timeline.value().unwrap(), rig.at, "everything is done at once");
}

/// One signal releases an operation for each semaphore of the fan, and one operation waits for all of these.
fn fan(
    rig: &mut Setup,
    affinity: u64,
    operation: impl Fn(&Setup, sys::iree_hal_semaphore_list_t, sys::iree_hal_semaphore_list_t),
) {
    let begin = rig.at + 1;
    rig.fanned += 1;
    let values = vec![rig.fanned; rig.fan.len()];
    let here = rig.lists(begin);
    let mut all: Vec<_> = rig.fan.iter().map(|semaphore| semaphore.0).collect();
    for (semaphore, value) in all.iter_mut().zip(&values) {
        let one = sys::iree_hal_semaphore_list_t {
            count: 1,
            semaphores: semaphore,
            payload_values: std::ptr::from_ref(value).cast_mut(),
        };
        operation(rig, here.waits(), one);
    }
    let every = sys::iree_hal_semaphore_list_t {
        count: all.len(),
        semaphores: all.as_mut_ptr(),
        payload_values: values.as_ptr().cast_mut(),
    };
    rig.barrier_between(affinity, every, here.signals());
    rig.timeline.signal(begin).unwrap();
    rig.at = begin + 1;
    rig.is_done();
}

/// Barriers, which end on the host.
fn fan_out_in(rig: &mut Setup) {
    fan(rig, u64::MAX, |rig, waits, signals| rig.barrier_between(u64::MAX, waits, signals));
}

/// Work of the device on the queue of the operation that waits for all of it.
fn fan_out_in_fills(rig: &mut Setup) {
    fan(rig, 1, |rig, waits, signals| rig.fill_between(waits, signals, 1, &rig.target));
}

fn alloca_dealloca(rig: &mut Setup) {
    for _ in 0..COUNT {
        let (before, there, filled) = (rig.lists(rig.at), rig.lists(rig.at + 1), rig.lists(rig.at + 2));
        let (device, mut buffer) = (rig.device.0, null_mut());
        unsafe {
            let (pool, params) = (null_mut(), common::params());
            let (waits, signals) = (before.waits(), before.signals());
            let out = &raw mut buffer;
            check(sys::iree_hal_device_queue_alloca(
                device,
                1,
                waits,
                signals,
                pool,
                params,
                1 << 16,
                0,
                out,
            ))
            .unwrap();
            let buffer = Buffer(buffer);
            rig.fill(&there, 1, &buffer);
            check(sys::iree_hal_device_queue_dealloca(
                device,
                1,
                filled.waits(),
                filled.signals(),
                buffer.0,
                0,
            ))
            .unwrap();
        }
        rig.at += 3;
    }
    rig.is_done();
}

fn fills_behind(rig: &mut Setup) {
    rig.behind(fill_chain);
}

/// Counts only the submitting thread: other threads report, retire and notify.
fn fills_submitted(rig: &mut Setup) {
    AT_A_TIME.store(u64::MAX, Ordering::Relaxed);
    fill_chain(rig);
}

fn copies_submitted(rig: &mut Setup) {
    AT_A_TIME.store(u64::MAX, Ordering::Relaxed);
    copy_chain(rig);
}

fn updates_submitted(rig: &mut Setup) {
    AT_A_TIME.store(u64::MAX, Ordering::Relaxed);
    update_chain(rig);
}

/// The work that IREE requires of any driver whose device runs on another thread: references to the semaphore and
/// to both buffers, a check whether there is anything to wait for, and an entry in a locked list.
fn ownership(rig: &mut Setup) {
    let (semaphore, buffers, owned) = (rig.plain, [rig.source.0, rig.target.0], &rig.owned);
    for at in 0..COUNT {
        let reached = unsafe {
            sys::iree_async_semaphore_retain(semaphore);
            for buffer in buffers {
                sys::iree_hal_buffer_retain(buffer);
            }
            sys::iree_async_semaphore_query(semaphore) >= at
        };
        let values = [if reached { 0 } else { at }, at + 1];
        owned.lock().unwrap().push(Owned { semaphore, buffers, values });
    }
}

fn allocas_behind(rig: &mut Setup) {
    rig.behind(alloca_dealloca);
}

fn execute_100(rig: &mut Setup) {
    rig.one(|rig, lists| rig.execute(lists, rig.commands, false));
}

fn execute_100_bound(rig: &mut Setup) {
    rig.one(|rig, lists| rig.execute(lists, rig.indirect, true));
}

fn record_100(rig: &mut Setup) {
    let once = sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT;
    rig.one(|rig, lists| {
        let commands = record(&rig.device, rig.executable, once, Some((&rig.source, &rig.target)));
        rig.execute(lists, commands, false);
        unsafe { sys::iree_hal_command_buffer_release(commands) };
    });
}

/// A gate for each case: callgrind reports its counts by these names.
///
/// A gate covers all operations of its case, or each one separately.
macro_rules! gates {
    ($($gate:ident: $case:ident * $times:expr,)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $gate(rig: &mut Setup) {
                $case(rig);
            }
        )*

        fn work() {
            unsafe { check(hal_driver::register::<Nothing>(common::registry())).unwrap() };
            let mut rig = Setup::new();
            $(
                for case in [$case as fn(&mut Setup), |rig| $gate(rig)] {
                    for _ in 0..$times {
                        case(&mut rig);
                        rig.end_all();
                    }
                }
                println!("{} {}", stringify!($gate), COUNT);
            )*
            unsafe {
                sys::iree_hal_command_buffer_release(rig.commands);
                sys::iree_hal_command_buffer_release(rig.indirect);
                sys::iree_hal_executable_release(rig.executable);
                sys::iree_async_semaphore_release(rig.plain);
            }
        }
    };
}

fn main() -> std::process::ExitCode {
    callgrind::run(&BUDGETS, work)
}

gates! {
    gate_barrier_chain: barrier_chain * 1,
    gate_fill_chain: fill_chain * 1,
    gate_fill_cross_queue: fill_cross_queue * 1,
    gate_copy_chain: copy_chain * 1,
    gate_update_chain: update_chain * 1,
    gate_blocked_fills: blocked_fills * 1,
    gate_fan_out_in: fan_out_in * 1,
    gate_fan_out_in_fills: fan_out_in_fills * 1,
    gate_alloca_dealloca: alloca_dealloca * 1,
    gate_fills_behind: fills_behind * 1,
    gate_allocas_behind: allocas_behind * 1,
    gate_fills_submitted: fills_submitted * 1,
    gate_copies_submitted: copies_submitted * 1,
    gate_updates_submitted: updates_submitted * 1,
    gate_ownership: ownership * 1,
    gate_execute_100: execute_100 * COUNT,
    gate_execute_100_bound: execute_100_bound * COUNT,
    gate_record_100: record_100 * COUNT,
}

/// IREE's proactor sleeps in `io_uring_enter`, which callgrind takes for a call that returns at once, so that no other
/// thread ever runs again. Without io_uring IREE uses poll.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod no_io_uring {
    use std::arch::asm;
    use std::ffi::{c_int, c_long};

    const IO_URING_SETUP: c_long = 425;
    const ENOSYS: c_int = 38;

    unsafe extern "C" {
        fn __errno_location() -> *mut c_int;
    }

    /// The C library's `syscall`, without io_uring.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn syscall(
        number: c_long,
        a: c_long,
        b: c_long,
        c: c_long,
        d: c_long,
        e: c_long,
        f: c_long,
    ) -> c_long {
        let mut result = -c_long::from(ENOSYS);
        if number != IO_URING_SETUP {
            unsafe {
                asm!(
                    "syscall",
                    inlateout("rax") number => result,
                    in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                    lateout("rcx") _, lateout("r11") _,
                    options(nostack),
                );
            }
        }
        if (-4095..0).contains(&result) {
            unsafe { *__errno_location() = c_int::try_from(-result).unwrap_or(ENOSYS) };
            return -1;
        }
        result
    }
}
