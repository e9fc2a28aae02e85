// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Dispatches as a device gets them, and those that the driver refuses.

use crate::common::properties::{QUEUE, properties};
use crate::common::{Buffer, Device, Executable, List, check, reference};
use hal_backend::{
    Command, Completer, Completion, DeviceInfo, DeviceSpec, Driver, Failure, Function, HostLoader, HostRange,
    Job, LoadRequest, Loaded, MemoryRequest, Parameters, Properties, Rejected, Workgroups,
};
use hal_semaphore::{Code, QueueId};
use hal_sys as sys;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A dispatch that the device got: the workgroup size, and the workgroup count or the bytes that contain it.
#[derive(Clone, Debug, PartialEq)]
enum SeenDispatch {
    Count([u32; 3], [u32; 3]),
    Bytes([u32; 3], u64),
}

static SEEN: Mutex<Vec<SeenDispatch>> = Mutex::new(Vec::new());

/// The number of polls of polled devices.
pub(crate) static POLLS: AtomicUsize = AtomicUsize::new(0);
/// The number of commands that came to these.
pub(crate) static COMMANDS: AtomicUsize = AtomicUsize::new(0);

/// A device that records dispatches and does nothing. With `polled` it reports by poll. IREE has room for sixteen
/// drivers in a process, so one driver serves both.
struct Noting;

impl Driver for Noting {
    type Device = NotingDevice;

    const NAME: &'static str = "noting";
    const FULL_NAME: &'static str = "a device that notes what it is asked to run";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open(&self, _path: &str, parameters: &mut Parameters<'_>) -> Result<NotingDevice, Failure> {
        let is_polled = parameters.take("polled")?.is_some();
        Ok(NotingDevice { is_polled, ..NotingDevice::default() })
    }
}

#[derive(Default)]
struct NotingDevice {
    completer: OnceLock<Completer>,
    is_polled: bool,
    /// The last job of a polled device, until it is reported.
    last: Mutex<Option<(QueueId, u64)>>,
}

impl hal_backend::Device for NotingDevice {
    type Memory = HostRange;
    type Executable = ();
    type Event = ();

    fn properties(&self) -> Properties {
        let completion = if self.is_polled { Completion::Poll } else { Completion::Callback };
        Properties { queues: DeviceSpec { completion, ..QUEUE }, ..properties("noting") }
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<HostRange, Failure> {
        HostRange::allocate(request.length, 64)
    }

    fn host_view(&self, memory: &HostRange) -> Option<HostRange> {
        Some(memory.clone())
    }

    fn supports(&self, format: &str, _host: &dyn HostLoader) -> bool {
        format == "noting"
    }

    fn load(&self, _request: &LoadRequest<'_>, _host: &dyn HostLoader) -> Result<Loaded<()>, Failure> {
        let sized = Function { bindings: 1, workgroup_size: [4, 2, 0], ..Function::default() };
        let open = Function { bindings: 1, ..Function::default() };
        Ok(Loaded { executable: (), functions: vec![sized, open] })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        if self.is_polled {
            COMMANDS.fetch_add(job.commands.len(), Ordering::SeqCst);
            *self.last.lock().unwrap() = Some((job.queue, job.epoch));
            return Ok(());
        }
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        for command in job.commands.iter() {
            if let Command::Dispatch(dispatch) = command {
                seen.push(match &dispatch.workgroups {
                    Workgroups::Count(count) => SeenDispatch::Count(dispatch.workgroup_size, *count),
                    Workgroups::Indirect(place) => SeenDispatch::Bytes(dispatch.workgroup_size, place.length),
                });
            }
        }
        drop(seen);
        let (queue, epoch) = (job.queue, job.epoch);
        drop(job);
        self.completer.get().unwrap().complete(queue, epoch).unwrap();
        Ok(())
    }

    fn poll(&self) {
        POLLS.fetch_add(1, Ordering::SeqCst);
        let last = self.last.lock().unwrap().take();
        if let Some((queue, epoch)) = last {
            self.completer.get().unwrap().complete(queue, epoch).unwrap();
        }
    }

    fn abort(&self, _why: &Failure) {}
}

pub(crate) fn open(uri: &str) -> Device {
    static REGISTER: Once = Once::new();
    REGISTER
        .call_once(|| unsafe { check(hal_driver::register::<Noting>(crate::common::registry())).unwrap() });
    Device::open(uri).unwrap()
}

/// A dispatch, submitted by itself or recorded and executed.
struct DispatchCall<'a> {
    device: &'a Device,
    executable: &'a Executable,
    function: u32,
    config: sys::iree_hal_dispatch_config_t,
    binding: sys::iree_hal_buffer_ref_t,
    flags: u32,
}

impl DispatchCall<'_> {
    /// The outcome of both, which must be equal.
    fn run(&self) -> Result<SeenDispatch, (Code, String)> {
        let ways = [self.queued(), self.recorded()];
        let [queued, recorded] = ways.map(|way| way.map_err(|error| (error.code, error.text)));
        assert_eq!(queued, recorded);
        queued
    }

    fn seen(&self, done: &crate::common::Semaphore) -> SeenDispatch {
        done.wait(1).unwrap();
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap()
    }

    fn queued(&self) -> crate::common::Result<SeenDispatch> {
        let done = self.device.semaphore(0);
        let (waits, signals) = (List::none(), done.at(1));
        unsafe {
            let function = sys::iree_hal_executable_function_from_index(self.function);
            let bindings = sys::iree_hal_buffer_ref_list_t { count: 1, values: &raw const self.binding };
            let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
            check(sys::iree_hal_device_queue_dispatch(
                self.device.0,
                1,
                waits.raw(),
                signals.raw(),
                self.executable.0,
                function,
                self.config,
                constants,
                bindings,
                self.flags.into(),
            ))?;
        }
        Ok(self.seen(&done))
    }

    fn recorded(&self) -> crate::common::Result<SeenDispatch> {
        let commands = self.device.record(0, |commands| unsafe {
            let function = sys::iree_hal_executable_function_from_index(self.function);
            let bindings = sys::iree_hal_buffer_ref_list_t { count: 1, values: &raw const self.binding };
            let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
            check(sys::iree_hal_command_buffer_dispatch(
                commands,
                self.executable.0,
                function,
                self.config,
                constants,
                bindings,
                self.flags.into(),
            ))
        })?;
        let done = self.device.semaphore(0);
        self.device.execute(1, &List::none(), &done.at(1), &commands, &[])?;
        Ok(self.seen(&done))
    }
}

#[test]
fn program_may_hide_the_parameters_of_functions() {
    drop(open("noting"));
    for (uri, expected) in [("noting", 1), ("noting://?reflection=full", 1), ("noting://?reflection=none", 0)]
    {
        let executable = Device::open(uri).unwrap().load("noting", &[1]).unwrap();
        let (mut info, mut parameters) = (
            sys::iree_hal_executable_function_info_t::default(),
            [sys::iree_hal_executable_function_parameter_t { size: 99, ..Default::default() }; 4],
        );
        unsafe {
            let function = sys::iree_hal_executable_function_from_index(0);
            check(sys::iree_hal_executable_function_info(executable.0, function, &raw mut info)).unwrap();
            let (capacity, out) = (parameters.len(), parameters.as_mut_ptr());
            check(sys::iree_hal_executable_function_parameters(executable.0, function, capacity, out))
                .unwrap();
        }
        assert_eq!((info.binding_count, usize::from(info.parameter_count)), (1, expected), "{uri}");
        let reported = parameters.iter().filter(|parameter| parameter.size != 99).count();
        assert_eq!(reported, expected, "{uri}");
    }
    let refused = Device::open("noting://?reflection=some").err().unwrap();
    assert!(
        refused.code == Code::InvalidArgument && refused.text.contains("full or none"),
        "{}",
        refused.text
    );
}

/// A buffer for workgroup counts.
fn counts(device: &Device) -> Buffer {
    let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_INDIRECT_PARAMETERS;
    device.try_buffer_of(sys::iree_hal_buffer_params_t { usage, ..crate::common::params() }, 64).unwrap()
}

/// One test, as the device records in one place.
#[test]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
fn dispatch_is_run_as_it_was_asked_for_or_refused() {
    let (device, other) = (open("noting"), open("noting"));
    let executable = device.load("noting", &[1]).unwrap();
    let foreign = other.load("noting", &[1]).unwrap();
    let (buffer, counts) = (device.buffer(64), counts(&device));
    let config = sys::iree_hal_dispatch_config_t { workgroup_count: [5, 6, 7], ..Default::default() };
    let plain = || DispatchCall {
        device: &device,
        executable: &executable,
        function: 0,
        config,
        binding: reference(&buffer),
        flags: 0,
    };
    let refused = |dispatch: DispatchCall<'_>, code: Code, says: &str| {
        let (found, text) = dispatch.run().unwrap_err();
        assert!(found == code && text.contains(says), "{found:?} {text:?} is not {code:?} {says:?}");
    };

    // The workgroup size is the function's own, the requested one, or refused.
    let sized = |function, workgroup_size| DispatchCall {
        function,
        config: sys::iree_hal_dispatch_config_t { workgroup_size, ..config },
        ..plain()
    };
    assert_eq!(sized(0, [0; 3]).run(), Ok(SeenDispatch::Count([4, 2, 1], [5, 6, 7])));
    assert_eq!(sized(1, [0; 3]).run(), Ok(SeenDispatch::Count([1, 1, 1], [5, 6, 7])));
    assert_eq!(sized(0, [8, 1, 1]).run(), Ok(SeenDispatch::Count([8, 1, 1], [5, 6, 7])));
    refused(sized(0, [8, 0, 1]), Code::InvalidArgument, "all are 0 for the function's own");

    // A workgroup count in a buffer has twelve bytes.
    let counted = |offset, length| DispatchCall {
        config: sys::iree_hal_dispatch_config_t {
            workgroup_count_ref: sys::iree_hal_buffer_ref_t { offset, length, ..reference(&counts) },
            ..config
        },
        flags: sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_PARAMETERS,
        ..plain()
    };
    let whole = usize::MAX;
    for (offset, length) in [(0, 12), (52, 12), (52, whole), (4, 60), (0, whole)] {
        assert_eq!(
            counted(offset, length).run(),
            Ok(SeenDispatch::Bytes([4, 2, 1], 12)),
            "{offset}, {length}"
        );
    }
    for (offset, length) in [(0, 8), (0, 0), (56, 12), (56, whole)] {
        refused(counted(offset, length), Code::OutOfRange, "bytes");
    }
    refused(counted(2, 12), Code::InvalidArgument, "a multiple of 4");
    let mut unfit = counted(0, 12);
    unfit.config.workgroup_count_ref = sys::iree_hal_buffer_ref_t { length: 12, ..reference(&buffer) };
    refused(unfit, Code::PermissionDenied, "DISPATCH_INDIRECT_PARAMETERS");

    // A binding needs dispatch usage.
    let usage = sys::IREE_HAL_BUFFER_USAGE_TRANSFER;
    let params = sys::iree_hal_buffer_params_t { usage, ..crate::common::params() };
    let transfers = device.try_buffer_of(params, 64).unwrap();
    let unfit = DispatchCall { binding: reference(&transfers), ..plain() };
    refused(unfit, Code::PermissionDenied, "IREE_HAL_BUFFER_USAGE_DISPATCH_STORAGE");

    // The requested workgroup-local memory, which each executing thread gets.
    let local = |bytes| DispatchCall {
        config: sys::iree_hal_dispatch_config_t { dynamic_workgroup_local_memory: bytes, ..config },
        ..plain()
    };
    assert!(local(1 << 28).run().is_ok());
    for bytes in [(1 << 28) + 1, u32::MAX] {
        refused(local(bytes), Code::ResourceExhausted, &format!("{bytes} bytes of workgroup-local memory"));
    }

    refused(DispatchCall { flags: 1 << 20, ..plain() }, Code::InvalidArgument, "0x100000");
    let hints = sys::IREE_HAL_DISPATCH_FLAG_ALLOW_INLINE_EXECUTION
        | sys::IREE_HAL_DISPATCH_FLAG_BORROW_RESOURCE_LIFETIMES;
    assert!(DispatchCall { flags: hints, ..plain() }.run().is_ok());

    let text = "prepare it with this device's cache";
    refused(DispatchCall { executable: &foreign, ..plain() }, Code::InvalidArgument, text);
    // Nor does a command buffer take it to another device.
    let commands = device.record(0, |commands| unsafe {
        let function = sys::iree_hal_executable_function_from_index(0);
        let binding = reference(&buffer);
        let bindings = sys::iree_hal_buffer_ref_list_t { count: 1, values: &raw const binding };
        let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
        let executable = executable.0;
        check(sys::iree_hal_command_buffer_dispatch(
            commands, executable, function, config, constants, bindings, 0,
        ))
    });
    let (commands, never) = (commands.unwrap(), other.semaphore(3));
    let elsewhere = other.execute(1, &List::none(), &never.at(4), &commands, &[]).unwrap_err();
    assert_eq!(elsewhere.code, Code::InvalidArgument, "{}", elsewhere.text);
    assert_eq!(never.value().unwrap(), 3);
    // Without a binding table every buffer must be named.
    let missing = DispatchCall { binding: sys::iree_hal_buffer_ref_t::default(), ..plain() };
    assert_eq!(missing.queued().unwrap_err().code, Code::InvalidArgument);
    let commands = device.record(0, |commands| unsafe {
        let function = sys::iree_hal_executable_function_from_index(0);
        let bindings = sys::iree_hal_buffer_ref_list_t { count: 1, values: &raw const missing.binding };
        let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
        let executable = executable.0;
        check(sys::iree_hal_command_buffer_dispatch(
            commands, executable, function, config, constants, bindings, 0,
        ))
    });
    let done = device.semaphore(0);
    device.execute(1, &List::none(), &done.at(1), &commands.unwrap(), &[]).unwrap();
    let failed = done.wait(1).unwrap_err();
    assert!(
        failed.code == Code::OutOfRange && failed.text.contains("slot 0 is past the end"),
        "{}",
        failed.text
    );
}

/// A new instance of IREE's virtual machine clears its type names for a moment, for every thread.
#[test]
fn device_opened_beside_a_bytecode_executable_that_runs_does_it_no_harm() {
    let _types = crate::common::keep_types();
    let device = Device::open("mock").unwrap();
    let bytes = crate::common::testdata("vmvx/command_buffer_dispatch_constants_bindings_test.bin");
    let executable = device.load("vmvx-bytecode-fb", &bytes).unwrap();
    let buffers = [device.buffer(16), device.buffer(16)];
    let (done, constants) = (device.semaphore(0), [1, 2]);
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(2) {
                Device::open("mock")?;
            }
            Ok::<(), crate::common::Error>(())
        });
        for point in 0_u64.. {
            if opened.is_finished() {
                break;
            }
            let (waits, signals) = (done.at(point), done.at(point + 1));
            device
                .dispatch(1, &waits, &signals, &executable, &constants, &[&buffers[0], &buffers[1]])
                .unwrap();
            done.wait(point + 1).unwrap();
        }
        opened.join().unwrap().unwrap();
    });
}

/// Devices that run host executables, and those that run their own.
pub(crate) const DEVICES: [(&str, &str, &str); 8] = [
    ("mock", "vmvx-bytecode-fb", "vmvx"),
    ("template", "vmvx-bytecode-fb", "vmvx"),
    ("gaudi://emulated?generation=gaudi1&seed=9701", "vmvx-bytecode-fb", "vmvx"),
    ("gaudi://emulated?generation=gaudi2&seed=9702", "vmvx-bytecode-fb", "vmvx"),
    ("qaic://emulated?seed=9703", "vmvx-bytecode-fb", "vmvx"),
    ("tenstorrent://emulated?board=n150&seed=9704", "embedded-elf-riscv_32", "riscv32_bits"),
    ("tenstorrent://emulated?board=p150&seed=9705", "embedded-elf-riscv_32", "riscv32_bits"),
    ("nvidia://emulated", "PTXE", "cuda_sm80"),
];

/// The suite's function that makes the numbers of its first buffer absolute, into its second.
pub(crate) fn first_function(device: &Device, format: &str, folder: &str) -> Executable {
    let bytes = crate::common::testdata(&format!("{folder}/command_buffer_dispatch_test.bin"));
    device.load(format, &bytes).unwrap()
}

/// A buffer's address for functions.
fn address(device: &Device, buffer: &Buffer) -> crate::common::Result<u64> {
    let mut external = sys::iree_hal_external_buffer_t::default();
    let kind = sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION;
    unsafe {
        let (allocator, out) = (device.allocator(), &raw mut external);
        check(sys::iree_hal_allocator_export_buffer(allocator, buffer.0, kind, 0, out))?;
        Ok(external.handle.device_allocation.ptr)
    }
}

/// Submits a dispatch with arguments of the program's own making, by itself or in a command buffer.
fn queue_with(
    device: &Device,
    executable: &Executable,
    arguments: &[u8],
    done: &List,
    flag: u32,
    recorded: bool,
) -> crate::common::Result {
    let config = sys::iree_hal_dispatch_config_t { workgroup_count: [1; 3], ..Default::default() };
    let none = sys::iree_hal_buffer_ref_list_t { count: 0, values: std::ptr::null() };
    let (data, data_length) = (arguments.as_ptr(), arguments.len());
    let constants = sys::iree_const_byte_span_t { data, data_length };
    let function = unsafe { sys::iree_hal_executable_function_from_index(0) };
    let (executable, flags, waits) = (executable.0, flag.into(), List::none());
    if recorded {
        let commands = device.record(0, |commands| unsafe {
            check(sys::iree_hal_command_buffer_dispatch(
                commands, executable, function, config, constants, none, flags,
            ))
        })?;
        return device.execute(1, &waits, done, &commands, &[]);
    }
    check(unsafe {
        let (waits, signals) = (waits.raw(), done.raw());
        sys::iree_hal_device_queue_dispatch(
            device.0, 1, waits, signals, executable, function, config, constants, none, flags,
        )
    })
}

const DIRECT: u32 = sys::IREE_HAL_DISPATCH_FLAG_CUSTOM_DIRECT_ARGUMENTS;

/// Where functions get plain addresses, the program may pass these itself; elsewhere that is refused, and nothing
/// happens.
#[test]
fn program_makes_the_arguments_itself_where_functions_get_addresses() {
    let _types = crate::common::keep_types();
    let natives = [
        ("mock", "embedded-elf-x86_64", "llvm_cpu"),
        ("mock://0?heaps=2", "embedded-elf-x86_64", "llvm_cpu"),
        ("template", "embedded-elf-x86_64", "llvm_cpu"),
    ];
    let natives = natives.map(|(uri, format, folder)| (uri.to_owned(), format, folder));
    for (uri, format, folder) in devices_of("87").chain(natives) {
        let device = Device::open(&uri).unwrap();
        let executable = first_function(&device, format, folder);
        // Memory of the device itself, where there is such.
        let (host, input, output) = (device.buffer(8), device.local_buffer(8), device.local_buffer(8));
        let (done, takes) = (device.semaphore(0), ["mock", "template", "nvidia"]);
        if !takes.iter().any(|name| uri.starts_with(name)) {
            for recorded in [false, true] {
                let why = "CUSTOM_DIRECT_ARGUMENTS";
                let refused =
                    queue_with(&device, &executable, &[0; 16], &done.at(1), DIRECT, recorded).unwrap_err();
                assert!(refused.code == Code::Unavailable && refused.text.contains(why), "{}", refused.text);
            }
            let refused = address(&device, &input).unwrap_err();
            assert!(
                refused.code == Code::Unavailable && refused.text.contains("no plain addresses"),
                "{uri}"
            );
            assert_eq!(done.value().unwrap(), 0, "{uri}");
            continue;
        }
        let whole = address(&device, &input).unwrap();
        assert_eq!(address(&device, &input.subspan(4, 4)).unwrap(), whole + 4, "{uri}");
        let arguments = [whole, address(&device, &output).unwrap()].map(u64::to_le_bytes).concat();
        for (recorded, number) in [(false, -2.5_f32), (true, -3.5)] {
            host.write(0, [number, 4.0].map(f32::to_le_bytes).as_flattened());
            let before = done.value().unwrap();
            device.copy(&List::none(), &done.at(before + 1), &host, &input, 8).unwrap();
            done.wait(before + 1).unwrap();
            queue_with(&device, &executable, &arguments, &done.at(before + 2), DIRECT, recorded).unwrap();
            done.wait(before + 2).unwrap();
            device.copy(&List::none(), &done.at(before + 3), &output, &host, 8).unwrap();
            done.wait(before + 3).unwrap();
            assert_eq!(host.read(), [-number, 4.0].map(f32::to_le_bytes).as_flattened(), "{uri} {recorded}");
            for length in [0, 8, 12, 15] {
                let cut = &arguments[..length];
                let refused =
                    queue_with(&device, &executable, cut, &done.at(99), DIRECT, recorded).unwrap_err();
                assert!(
                    refused.code == Code::InvalidArgument && refused.text.contains("bytes"),
                    "{}",
                    refused.text
                );
            }
            assert_eq!(done.value().unwrap(), before + 3, "{uri}");
        }
    }
}

/// A thread that ends runs its destructors, which may make a program's last calls.
#[test]
fn thread_that_ends_may_make_calls() {
    struct AtEnd(Option<Box<dyn FnOnce()>>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            if let Some(call) = self.0.take() {
                call();
            }
        }
    }
    thread_local! {
        static AT_END: std::cell::RefCell<AtEnd> = const { std::cell::RefCell::new(AtEnd(None)) };
    }
    let _types = crate::common::keep_types();
    let (sender, outcome) = std::sync::mpsc::channel();
    let run = move || {
        // Before the driver has anything on this thread, so that this is destroyed last.
        AT_END.with_borrow_mut(|at_end| at_end.0 = None);
        let (device, owner) = (Device::open("mock").unwrap(), Device::open("mock://0?heaps=2").unwrap());
        let executable = first_function(&device, "embedded-elf-x86_64", "llvm_cpu");
        let (input, output, theirs) = (device.buffer(8), device.buffer(8), owner.local_buffer(8));
        let done = device.semaphore(0);
        let call = move |value| {
            // Short work, which such a thread does itself.
            let signals = done.at(value);
            device.dispatch(1, &List::none(), &signals, &executable, &[], &[&input, &output])?;
            done.wait_for(value, 60_000)?;
            // As local devices map what the host cannot map.
            let (_owner, theirs) = (&owner, &theirs);
            let (mode, access) = (sys::IREE_HAL_MAPPING_MODE_SCOPED, sys::IREE_HAL_MEMORY_ACCESS_ANY);
            let mut mapping = sys::iree_hal_buffer_mapping_t::default();
            unsafe {
                let (mapping, access) = (&raw mut mapping, access.try_into().unwrap());
                check(sys::iree_hal_buffer_map_range(theirs.0, mode, access, 0, 8, mapping))?;
                (*mapping).contents.data.write(u8::try_from(value).unwrap());
                check(sys::iree_hal_buffer_unmap_range(mapping))?;
                check(sys::iree_hal_buffer_map_range(theirs.0, mode, access, 0, 8, mapping))?;
                assert_eq!(u64::from((*mapping).contents.data.read()), value);
                check(sys::iree_hal_buffer_unmap_range(mapping))
            }
        };
        (1..=32).try_for_each(&call).unwrap();
        let at_end = move || drop(sender.send((33..=64).try_for_each(call)));
        AT_END.with_borrow_mut(|place| place.0 = Some(Box::new(at_end)));
    };
    std::thread::spawn(run).join().unwrap();
    outcome.recv().unwrap().unwrap();
}

/// Arguments of a program's own with workgroup counts from a buffer, in a recording that threads execute at once,
/// for memory that comes and goes.
#[test]
fn arguments_of_the_programs_own_are_read_at_each_execution() {
    let _types = crate::common::keep_types();
    let natives = [("mock".to_owned(), "embedded-elf-x86_64", "llvm_cpu")];
    for (uri, format, folder) in devices_of("87").filter(|(uri, ..)| uri.starts_with("nvidia")).chain(natives)
    {
        let device = Device::open(&uri).unwrap();
        let executable = first_function(&device, format, folder);
        let done = device.semaphore(0);
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
            usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
            ..Default::default()
        };
        let both = device.alloca_of(&List::none(), &done.at(1), params, 64).unwrap();
        done.wait(1).unwrap();
        let whole = address(&device, &both).unwrap();
        let arguments = [whole, whole + 32].map(u64::to_le_bytes).concat();
        let usage = sys::IREE_HAL_BUFFER_USAGE_DISPATCH_INDIRECT_PARAMETERS;
        let usage = crate::common::params().usage | usage;
        let counts = device
            .try_buffer_of(sys::iree_hal_buffer_params_t { usage, ..crate::common::params() }, 12)
            .unwrap();
        counts.write(0, [1_u32; 3].map(u32::to_le_bytes).as_flattened());
        let config =
            sys::iree_hal_dispatch_config_t { workgroup_count_ref: reference(&counts), ..Default::default() };
        let none = sys::iree_hal_buffer_ref_list_t { count: 0, values: std::ptr::null() };
        let function = unsafe { sys::iree_hal_executable_function_from_index(0) };
        let constants =
            sys::iree_const_byte_span_t { data: arguments.as_ptr(), data_length: arguments.len() };
        let indirect = sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_PARAMETERS;
        let raw = executable.0;
        let commands = device.record(0, |commands| unsafe {
            let flags = (DIRECT | indirect).into();
            check(sys::iree_hal_command_buffer_dispatch(
                commands, raw, function, config, constants, none, flags,
            ))
        });
        let commands = commands.unwrap();
        device.fill(&List::none(), &done.at(2), &both, (0, 64), &(-1.5_f32).to_le_bytes()).unwrap();
        done.wait(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let done = device.semaphore(0);
                    for value in 1..=100 {
                        device.execute(1, &List::none(), &done.at(value), &commands, &[]).unwrap();
                        done.wait(value).unwrap();
                    }
                });
            }
        });
        let seen = device.buffer(64);
        device.copy(&List::none(), &done.at(3), &both, &seen, 64).unwrap();
        done.wait(3).unwrap();
        let seen = seen.read();
        assert_eq!((&seen[..4], &seen[32..36]), (&(-1.5_f32).to_le_bytes()[..], &1.5_f32.to_le_bytes()[..]));
        device.dealloca(&List::none(), &done.at(4), &both).unwrap();
        done.wait(4).unwrap();
        assert_eq!(address(&device, &both).unwrap_err().code, Code::FailedPrecondition, "{uri}");
    }
}

/// Compiled modules put several values into one stream-ordered buffer. Where each is adds up: the part of the buffer,
/// the binding's offset in it, and in a command buffer the slot's.
#[test]
fn values_in_one_transient_buffer_are_apart() {
    const LENGTH: usize = 8;
    let _types = crate::common::keep_types();
    for (uri, format, folder) in devices_of("88") {
        let device = Device::open(&uri).unwrap();
        let executable = first_function(&device, format, folder);
        let (host, done) = (device.buffer(LENGTH), device.semaphore(0));
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
            usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
            ..Default::default()
        };
        let whole = device.alloca_of(&List::none(), &done.at(1), params, 2048).unwrap();
        let part = whole.subspan(256, 1792);
        device.fill(&done.at(1), &done.at(2), &whole, (0, 2048), &[9]).unwrap();
        host.write(0, [-2.5_f32, 4.0].map(f32::to_le_bytes).as_flattened());
        device.copy_on(1, &done.at(2), &done.at(3), (&host, 0), (&part, 512), LENGTH).unwrap();
        let function = unsafe { sys::iree_hal_executable_function_from_index(0) };
        let config = sys::iree_hal_dispatch_config_t { workgroup_count: [1; 3], ..Default::default() };
        let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
        // From one value into the next, then from that one by a slot into the third.
        let bindings = [512, 1024].map(|offset| sys::iree_hal_buffer_ref_t {
            offset,
            length: LENGTH,
            ..reference(&part)
        });
        let list = sys::iree_hal_buffer_ref_list_t { count: 2, values: bindings.as_ptr() };
        let (waits, signals) = (done.at(3), done.at(4));
        let (waits, signals, raw) = (waits.raw(), signals.raw(), executable.0);
        check(unsafe {
            sys::iree_hal_device_queue_dispatch(
                device.0, 1, waits, signals, raw, function, config, constants, list, 0,
            )
        })
        .unwrap();
        let slots = [1024, 1536].map(|offset| sys::iree_hal_buffer_ref_t {
            offset,
            length: LENGTH,
            ..Default::default()
        });
        let list = sys::iree_hal_buffer_ref_list_t { count: 2, values: slots.as_ptr() };
        let commands = device.record(1, |commands| unsafe {
            check(sys::iree_hal_command_buffer_dispatch(commands, raw, function, config, constants, list, 0))
        });
        device.execute(1, &done.at(4), &done.at(5), &commands.unwrap(), &[&part]).unwrap();
        let seen = device.buffer(2048);
        device.copy(&done.at(5), &done.at(6), &whole, &seen, 2048).unwrap();
        done.wait(6).unwrap();
        let mut expected = vec![9; 2048];
        for (offset, first) in [(768, -2.5_f32), (1280, 2.5), (1792, 2.5)] {
            let bytes = [first, 4.0].map(f32::to_le_bytes).concat();
            expected[offset..offset + LENGTH].copy_from_slice(&bytes);
        }
        assert_eq!(seen.read(), expected, "{uri}");
    }
}

/// No device reads arguments from a buffer.
#[test]
fn arguments_in_a_buffer_are_refused_by_name() {
    let device = Device::open("mock").unwrap();
    let executable = first_function(&device, "vmvx-bytecode-fb", "vmvx");
    let done = device.semaphore(0);
    for flag in [
        sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_ARGUMENTS,
        sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_ARGUMENTS,
    ] {
        for recorded in [false, true] {
            let refused =
                queue_with(&device, &executable, &[0; 16], &done.at(1), flag, recorded).unwrap_err();
            assert!(
                refused.code == Code::Unavailable && refused.text.contains("from a buffer"),
                "{}",
                refused.text
            );
        }
    }
    assert_eq!(done.value().unwrap(), 0);
}

/// Constants are behind the addresses.
#[test]
fn arguments_of_a_programs_own_have_constants_behind_addresses() {
    let _types = crate::common::keep_types();
    for (uri, format, folder) in [
        ("mock", "embedded-elf-x86_64", "llvm_cpu"),
        ("template", "vmvx-bytecode-fb", "vmvx"),
        ("nvidia://emulated", "PTXE", "cuda_sm80"),
    ] {
        let device = Device::open(uri).unwrap();
        let name = "command_buffer_dispatch_constants_bindings_test.bin";
        let executable = device.load(format, &crate::common::testdata(&format!("{folder}/{name}"))).unwrap();
        let outputs = [device.buffer(16), device.buffer(16)];
        let input = device.buffer(16);
        input.write(0, [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).as_flattened());
        let (done, constants) = (device.semaphore(0), [3_u32, 5]);
        device
            .dispatch(1, &List::none(), &done.at(1), &executable, &constants, &[&input, &outputs[0]])
            .unwrap();
        let addresses = [&input, &outputs[1]].map(|buffer| address(&device, buffer).unwrap().to_le_bytes());
        let arguments = [addresses.concat(), constants.map(u32::to_le_bytes).concat()].concat();
        queue_with(&device, &executable, &arguments, &done.at(2), DIRECT, false).unwrap();
        done.wait(2).unwrap();
        assert_ne!(outputs[0].read(), [0; 16], "{uri}");
        assert_eq!(outputs[1].read(), outputs[0].read(), "{uri}");
    }
}

/// The same devices with cards of a test's own: those of one seed are one card for all tests.
pub(crate) fn devices_of(test: &str) -> impl Iterator<Item = (String, &'static str, &'static str)> {
    DEVICES
        .into_iter()
        .map(move |(uri, format, folder)| (uri.replace("seed=97", &format!("seed={test}")), format, folder))
}

/// A function that reads eight bytes and writes eight.
pub(crate) struct Absolute {
    executable: Executable,
    input: Buffer,
    output: Buffer,
}

impl Absolute {
    pub(crate) fn new(device: &Device, format: &str, folder: &str) -> Self {
        let executable = first_function(device, format, folder);
        let (input, output) = (device.buffer(8), device.buffer(8));
        input.write(0, [-2.5_f32, 4.0].map(f32::to_le_bytes).as_flattened());
        output.write(0, &[7; 8]);
        Self { executable, input, output }
    }

    /// Queues it with a grid, or with one that is in a buffer.
    fn queue(
        &self,
        device: &Device,
        signals: &List,
        count: [u32; 3],
        place: Option<&Buffer>,
    ) -> crate::common::Result {
        let bindings = [reference(&self.input), reference(&self.output)];
        let mut config = sys::iree_hal_dispatch_config_t { workgroup_count: count, ..Default::default() };
        let mut flags = 0;
        if let Some(place) = place {
            config.workgroup_count_ref = sys::iree_hal_buffer_ref_t { length: 12, ..reference(place) };
            flags = u64::from(sys::IREE_HAL_DISPATCH_FLAG_STATIC_INDIRECT_PARAMETERS);
        }
        unsafe {
            let function = sys::iree_hal_executable_function_from_index(0);
            let bindings = sys::iree_hal_buffer_ref_list_t { count: 2, values: bindings.as_ptr() };
            let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
            let (waits, executable) = (List::none(), self.executable.0);
            check(sys::iree_hal_device_queue_dispatch(
                device.0,
                1,
                waits.raw(),
                signals.raw(),
                executable,
                function,
                config,
                constants,
                bindings,
                flags,
            ))
        }
    }

    pub(crate) fn run(
        &self,
        device: &Device,
        count: [u32; 3],
        place: Option<&Buffer>,
    ) -> crate::common::Result<Vec<u8>> {
        let done = device.semaphore(0);
        self.queue(device, &done.at(1), count, place)?;
        done.wait(1)?;
        Ok(self.output.read())
    }

    pub(crate) fn recorded(&self, device: &Device, count: [u32; 3]) -> crate::common::Result<Vec<u8>> {
        let commands = device.record(0, |commands| unsafe {
            let bindings = [reference(&self.input), reference(&self.output)];
            let bindings = sys::iree_hal_buffer_ref_list_t { count: 2, values: bindings.as_ptr() };
            let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
            let config = sys::iree_hal_dispatch_config_t { workgroup_count: count, ..Default::default() };
            let (executable, function) = (self.executable.0, sys::iree_hal_executable_function_from_index(0));
            check(sys::iree_hal_command_buffer_dispatch(
                commands, executable, function, config, constants, bindings, 0,
            ))
        })?;
        let done = device.semaphore(0);
        device.execute(1, &List::none(), &done.at(1), &commands, &[])?;
        done.wait(1)?;
        Ok(self.output.read())
    }
}

/// IREE's own drivers run no workgroups, and signal.
#[test]
fn dispatch_without_workgroups_does_nothing_and_succeeds() {
    let _types = crate::common::keep_types();
    for (uri, format, folder) in DEVICES {
        let device = Device::open(uri).unwrap();
        let function = Absolute::new(&device, format, folder);
        for count in [[0; 3], [0, 1, 1], [1, 0, 1], [u32::MAX, u32::MAX, 0]] {
            assert_eq!(function.run(&device, count, None).unwrap(), [7; 8], "{uri}, {count:?}");
            assert_eq!(function.recorded(&device, count).unwrap(), [7; 8], "{uri}, {count:?}");
            let place = counts(&device);
            place.write(0, count.map(u32::to_le_bytes).as_flattened());
            assert_eq!(function.run(&device, [1; 3], Some(&place)).unwrap(), [7; 8], "{uri}, {count:?}");
        }
        assert_ne!(function.run(&device, [1; 3], None).unwrap(), [7; 8], "{uri}");
    }
}

/// A workgroup's place in z has 16 bits in IREE's local executables.
#[test]
fn grid_that_is_too_deep_is_refused_and_the_device_goes_on() {
    let _types = crate::common::keep_types();
    for (uri, format, folder) in DEVICES {
        let device = Device::open(uri).unwrap();
        let function = Absolute::new(&device, format, folder);
        for count in [[1, 1, 65_536], [1, u32::MAX, u32::MAX], [1, 1, u32::MAX]] {
            // The second time, the device reads them itself.
            let place = counts(&device);
            place.write(0, count.map(u32::to_le_bytes).as_flattened());
            for failure in [function.run(&device, count, None), function.run(&device, [1; 3], Some(&place))] {
                let failure = failure.unwrap_err();
                assert_eq!(failure.code, Code::InvalidArgument, "{uri}: {}", failure.text);
                for number in [count[2], 65_535].map(|number| number.to_string()) {
                    assert!(failure.text.contains(&number), "{uri}: {}", failure.text);
                }
            }
        }
        assert_ne!(function.run(&device, [1; 3], None).unwrap(), [7; 8], "{uri}");
    }
}

/// The counter of workgroups neither wraps, nor does a device that is released wait for them.
#[test]
fn grid_that_never_ends_is_given_up_with_its_device() {
    let _types = crate::common::keep_types();
    for (uri, format, folder) in DEVICES {
        if uri.starts_with("nvidia") {
            continue;
        }
        let device = Device::open(uri).unwrap();
        let function = Absolute::new(&device, format, folder);
        let done = device.semaphore(0);
        // Tenstorrent counts all workgroups in one word.
        let rest = if uri.starts_with("tenstorrent") { [1, 1] } else { [u32::MAX, 65_535] };
        function.queue(&device, &done.at(1), [u32::MAX, rest[0], rest[1]], None).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        drop((function, device));
        assert!(begin.elapsed() < Duration::from_secs(60), "{uri} took {:?}", begin.elapsed());
        assert!(done.wait(1).is_err(), "{uri}");
        let begin = Instant::now();
        let device = Device::open(uri).unwrap();
        let function = Absolute::new(&device, format, folder);
        assert_ne!(function.run(&device, [1; 3], None).unwrap(), [7; 8], "{uri}");
        assert!(begin.elapsed() < Duration::from_secs(60), "{uri} took {:?}", begin.elapsed());
    }
}
