//! Runs a program on devices, as a C program would, and says where it came to something else than it must.

use crate::common::{self, Buffer, Commands, Device, Executable, Semaphore, Tracker, check};
use crate::oracle::{Causes, Cell, World};
use crate::program::{
    Action, At, Base, Command, Count, Dispatch, Ends, Kernel, Memory, Part, Program, Recorded, Visit,
};
use hal_semaphore::Code;
use hal_sys as sys;
use std::alloc::Layout;
use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The compiled forms of the functions that programs call: where they are, and what they are.
const FORMATS: [(&str, &str); 2] = [
    #[cfg(target_arch = "x86_64")]
    ("llvm_cpu", "embedded-elf-x86_64"),
    #[cfg(target_arch = "aarch64")]
    ("llvm_cpu", "embedded-elf-arm_64"),
    ("vmvx", "vmvx-bytecode-fb"),
];

const ALIGNMENT: usize = 4096;

/// Devices in one group, and the functions that programs call, loaded on each.
pub(crate) struct Machine {
    devices: Vec<Device>,
    uris: Vec<String>,
    /// By device, executable and format.
    kernels: Vec<Vec<[Executable; 2]>>,
    group: *mut sys::iree_hal_device_group_t,
}

unsafe impl Send for Machine {}
unsafe impl Sync for Machine {}

fn testdata() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../iree/testdata")
}

impl Machine {
    pub(crate) fn open(uris: &[&str]) -> common::Result<Arc<Self>> {
        static MACHINES: AtomicUsize = AtomicUsize::new(40_000);
        let uris: Vec<String> = uris
            .iter()
            .map(|uri| uri.replace('@', &MACHINES.fetch_add(1, Ordering::Relaxed).to_string()))
            .collect();
        let devices = uris.iter().map(|uri| Device::open(uri)).collect::<common::Result<Vec<_>>>()?;
        let group = Tracker::new().group_of(&devices.iter().collect::<Vec<_>>())?;
        let kernels = devices.iter().map(load).collect::<common::Result<_>>()?;
        Ok(Arc::new(Self { devices, uris, kernels, group }))
    }

    fn is_iree(&self, device: usize) -> bool {
        self.uris[device].starts_with("local-")
    }

    /// IREE's own driver has one queue, and does not fold affinities.
    fn affinity(&self, device: usize, affinity: u64) -> u64 {
        if self.is_iree(device) { u64::MAX } else { affinity }
    }

    /// IREE's own driver refuses an operation whose wait has failed already; whoever submits it fails its signals.
    fn refuses_late(&self, device: usize) -> bool {
        self.is_iree(device)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kernels.clear();
        self.devices.clear();
        unsafe { sys::iree_hal_device_group_release(self.group) };
    }
}

fn load(device: &Device) -> common::Result<Vec<[Executable; 2]>> {
    Kernel::MODULES
        .iter()
        .map(|module| {
            let [elf, vmvx] = FORMATS.map(|(folder, format)| {
                let path = testdata().join(folder).join(module).with_extension("bin");
                let bytes = std::fs::read(&path)
                    .unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask build`", path.display()));
                device.load(format, &bytes)
            });
            Ok([elf?, vmvx?])
        })
        .collect()
}

/// Memory of the program's own, at the beginning of a page.
struct Pages(*mut u8, Layout);

impl Pages {
    fn with(bytes: &[u8]) -> Self {
        let layout = Layout::from_size_align(bytes.len().max(1), ALIGNMENT).unwrap();
        unsafe {
            let pages = Self(std::alloc::alloc_zeroed(layout), layout);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), pages.0, bytes.len());
            pages
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unsafe { std::alloc::dealloc(self.0, self.1) };
    }
}

enum Bytes {
    Descriptor(std::fs::File),
    Memory(Pages),
}

/// A file and what each device calls it.
struct File {
    bytes: Bytes,
    length: usize,
    handle: *mut sys::iree_io_file_handle_t,
    imported: Vec<*mut sys::iree_hal_file_t>,
}

impl File {
    fn with(bytes: &[u8], in_memory: bool, devices: &[Device]) -> common::Result<Self> {
        let access = sys::IREE_IO_FILE_ACCESS_READ | sys::IREE_IO_FILE_ACCESS_WRITE;
        let (allocator, release) = (unsafe { sys::iree_allocator_system() }, Default::default());
        let mut handle = null_mut();
        let length = bytes.len();
        let bytes = if in_memory {
            let pages = Pages::with(bytes);
            let span = sys::iree_byte_span_t { data: pages.0, data_length: length };
            check(unsafe {
                sys::iree_io_file_handle_wrap_host_allocation(
                    access,
                    span,
                    release,
                    allocator,
                    &raw mut handle,
                )
            })?;
            Bytes::Memory(pages)
        } else {
            use std::os::fd::AsRawFd;
            let file = unnamed(bytes);
            let primitive = sys::iree_io_file_handle_primitive_t {
                type_: sys::IREE_IO_FILE_HANDLE_TYPE_FD,
                value: sys::iree_io_file_handle_primitive_value_t { fd: file.as_raw_fd() },
            };
            check(unsafe {
                sys::iree_io_file_handle_wrap(access, 0, primitive, release, allocator, &raw mut handle)
            })?;
            Bytes::Descriptor(file)
        };
        let mut file = Self { bytes, length, handle, imported: Vec::new() };
        for device in devices {
            let access = sys::IREE_HAL_MEMORY_ACCESS_READ | sys::IREE_HAL_MEMORY_ACCESS_WRITE;
            let mut imported = null_mut();
            check(unsafe {
                sys::iree_hal_file_import(device.0, u64::MAX, access as u16, handle, 0, &raw mut imported)
            })?;
            file.imported.push(imported);
        }
        Ok(file)
    }

    fn read(&self) -> Vec<u8> {
        match &self.bytes {
            Bytes::Memory(pages) => unsafe { std::slice::from_raw_parts(pages.0, self.length) }.to_vec(),
            Bytes::Descriptor(file) => {
                use std::os::unix::fs::FileExt;
                let mut bytes = vec![0; self.length];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        unsafe {
            for file in self.imported.drain(..) {
                sys::iree_hal_file_release(file);
            }
            sys::iree_io_file_handle_release(self.handle);
        }
    }
}

/// A file that is gone with its descriptor.
fn unnamed(bytes: &[u8]) -> std::fs::File {
    use std::io::Write;
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let name = format!("hal-programs-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// A program that runs. Kept for good where it does not end, as devices may still call it.
struct Scene {
    program: Program,
    expected: World,
    patience: Duration,
    troubles: Mutex<Vec<String>>,
    /// How often each step's function was called.
    calls: Vec<AtomicUsize>,
    timelines: Vec<Semaphore>,
    reusable: Vec<Option<Commands>>,
    buffers: Vec<OnceLock<Buffer>>,
    files: Vec<File>,
    /// Behind the buffers that it is imported as.
    _pages: Vec<Pages>,
    machine: Arc<Machine>,
}

unsafe impl Send for Scene {}
unsafe impl Sync for Scene {}

fn params(memory: Memory) -> sys::iree_hal_buffer_params_t {
    let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_INDIRECT_PARAMETERS;
    let mapped = usage | sys::IREE_HAL_BUFFER_USAGE_MAPPING;
    let device_local = sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
    let (type_, usage) = match memory {
        Memory::Local => (device_local, usage),
        Memory::Mapped | Memory::Transient => (device_local | sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE, mapped),
        Memory::Imported => {
            (sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE, mapped)
        }
    };
    sys::iree_hal_buffer_params_t { type_, usage, ..Default::default() }
}

/// Runs a program. What comes back says where it differs from what is expected; nothing if it does not.
pub(crate) fn run(
    machine: &Arc<Machine>,
    program: &Program,
    expected: &World,
    patience: Duration,
) -> Vec<String> {
    let scene = match Scene::set(machine, program, expected, patience) {
        Ok(scene) => Arc::new(scene),
        Err(error) => return vec![format!("nothing began: {}", error.text)],
    };
    let threads: Vec<_> = (0..program.threads())
        .map(|thread| {
            let scene = scene.clone();
            std::thread::spawn(move || scene.submit_all(thread))
        })
        .collect();
    for thread in threads {
        if thread.join().is_err() {
            scene.trouble("a submitting thread panicked".into());
        }
    }
    let ended = scene.wait_for_the_end();
    if ended && !scene.has_trouble() {
        scene.compare();
    }
    let troubles = std::mem::take(&mut *scene.troubles.lock().unwrap());
    if !ended {
        std::mem::forget(scene);
    }
    troubles
}

impl Scene {
    fn set(
        machine: &Arc<Machine>,
        program: &Program,
        expected: &World,
        patience: Duration,
    ) -> common::Result<Self> {
        let mut pages = Vec::new();
        let mut buffers = Vec::new();
        for spec in &program.buffers {
            let device = &machine.devices[spec.device];
            let cell = OnceLock::new();
            if spec.memory == Memory::Imported {
                let memory = Pages::with(&vec![0; spec.length]);
                let imported = device.import(params(spec.memory), memory.0, spec.length)?;
                pages.push(memory);
                drop(cell.set(imported));
            } else if spec.memory != Memory::Transient {
                let buffer = device.try_buffer_of(params(spec.memory), spec.length)?;
                let done = device.semaphore(0);
                device.fill(&common::List::none(), &done.at(1), &buffer, (0, spec.length), &[0])?;
                done.wait(1)?;
                drop(cell.set(buffer));
            }
            buffers.push(cell);
        }
        let files = program.files.iter();
        let files = files.map(|file| File::with(&file.bytes, file.in_memory, &machine.devices));
        let files = files.collect::<common::Result<_>>()?;
        let mut scene = Self {
            program: program.clone(),
            expected: expected.clone(),
            patience,
            troubles: Mutex::new(Vec::new()),
            calls: program.steps.iter().map(|_| AtomicUsize::new(0)).collect(),
            timelines: program.timelines.iter().map(|&device| machine.devices[device].semaphore(0)).collect(),
            reusable: Vec::new(),
            buffers,
            files,
            _pages: pages,
            machine: machine.clone(),
        };
        for (at, recording) in program.recordings.iter().enumerate() {
            let commands = if recording.one_shot { None } else { Some(scene.record(at)?) };
            scene.reusable.push(commands);
        }
        Ok(scene)
    }

    fn trouble(&self, text: String) {
        self.troubles.lock().unwrap().push(text);
    }

    fn has_trouble(&self) -> bool {
        !self.troubles.lock().unwrap().is_empty()
    }

    fn device(&self, device: usize) -> *mut sys::iree_hal_device_t {
        self.machine.devices[device].0
    }

    /// A buffer, or a subspan of it that goes when the reference does, as soon as another thread has made it.
    fn buffer(&self, part: &Part) -> (Buffer, usize) {
        let Base::Buffer(number) = part.base else { panic!("{part} has no buffer of its own") };
        let begin = Instant::now();
        let buffer = loop {
            match self.buffers[number].get() {
                Some(buffer) => break buffer.0,
                // The step that makes it was refused, or hangs.
                None if begin.elapsed() > self.patience || self.has_trouble() => {
                    panic!("b{number} was never made")
                }
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        };
        unsafe {
            let Some((offset, length)) = part.span else {
                sys::iree_hal_buffer_retain(buffer);
                return (Buffer(buffer), part.offset);
            };
            let (mut span, system) = (null_mut(), sys::iree_allocator_system());
            check(sys::iree_hal_buffer_subspan(buffer, offset, length, system, &raw mut span)).unwrap();
            (Buffer(span), part.offset - offset)
        }
    }

    /// What a command buffer or a dispatch is given for a part. What it names is kept in `kept`.
    fn reference(&self, part: &Part, kept: &mut Vec<Buffer>) -> sys::iree_hal_buffer_ref_t {
        match part.base {
            Base::Slot(slot) => unsafe {
                sys::iree_hal_make_indirect_buffer_ref(slot as u32, part.offset, part.length)
            },
            Base::Buffer(_) => {
                let (buffer, offset) = self.buffer(part);
                let raw = buffer.0;
                kept.push(buffer);
                unsafe { sys::iree_hal_make_buffer_ref(raw, offset, part.length) }
            }
        }
    }

    fn record(&self, number: usize) -> common::Result<Commands> {
        let recording = &self.program.recordings[number];
        let mut mode = 0;
        if recording.one_shot {
            mode |= sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT;
        }
        if !recording.validated {
            mode |= sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED;
        }
        let (categories, device) = (sys::IREE_HAL_COMMAND_CATEGORY_ANY, self.device(recording.device));
        unsafe {
            let mut raw = null_mut();
            check(sys::iree_hal_command_buffer_create(
                device,
                mode,
                categories,
                u64::MAX,
                recording.slots,
                &raw mut raw,
            ))?;
            let commands = Commands(raw);
            check(sys::iree_hal_command_buffer_begin(raw))?;
            for recorded in &recording.commands {
                match recorded {
                    Recorded::Barrier => check(sys::iree_hal_command_buffer_execution_barrier(
                        raw,
                        sys::IREE_HAL_EXECUTION_STAGE_COMMAND_RETIRE,
                        sys::IREE_HAL_EXECUTION_STAGE_COMMAND_ISSUE,
                        0,
                        0,
                        null(),
                        0,
                        null(),
                    ))?,
                    Recorded::Command(command) => self.record_command(raw, recording.device, command)?,
                }
            }
            check(sys::iree_hal_command_buffer_end(raw))?;
            Ok(commands)
        }
    }

    fn record_command(
        &self,
        commands: *mut sys::iree_hal_command_buffer_t,
        device: usize,
        command: &Command,
    ) -> common::Result {
        let mut kept = Vec::new();
        unsafe {
            match command {
                Command::Fill { target, pattern } => {
                    let mut copied = pattern.clone();
                    let status = sys::iree_hal_command_buffer_fill_buffer(
                        commands,
                        self.reference(target, &mut kept),
                        copied.as_ptr().cast(),
                        copied.len(),
                        0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Update { target, bytes } => {
                    let mut copied = shifted(bytes);
                    let status = sys::iree_hal_command_buffer_update_buffer(
                        commands,
                        copied.as_ptr().cast(),
                        SHIFT,
                        self.reference(target, &mut kept),
                        0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Copy { source, target } => check(sys::iree_hal_command_buffer_copy_buffer(
                    commands,
                    self.reference(source, &mut kept),
                    self.reference(target, &mut kept),
                    0,
                )),
                Command::Dispatch(dispatch) => self.with_dispatch(
                    device,
                    dispatch,
                    |executable, function, config, constants, list, flags| {
                        sys::iree_hal_command_buffer_dispatch(
                            commands,
                            executable,
                            function,
                            config,
                            constants,
                            list,
                            flags.into(),
                        )
                    },
                ),
            }
        }
    }

    /// Calls with what a dispatch is given, and overwrites it before it goes.
    fn with_dispatch(
        &self,
        device: usize,
        dispatch: &Dispatch,
        call: impl FnOnce(
            *mut sys::iree_hal_executable_t,
            sys::iree_hal_executable_function_t,
            sys::iree_hal_dispatch_config_t,
            sys::iree_const_byte_span_t,
            sys::iree_hal_buffer_ref_list_t,
            u32,
        ) -> sys::iree_status_t,
    ) -> common::Result {
        let (module, function) = dispatch.kernel.place();
        let executable = &self.machine.kernels[device][module][dispatch.format];
        let mut kept = Vec::new();
        let mut config = sys::iree_hal_dispatch_config_t { workgroup_count: [1; 3], ..Default::default() };
        let mut flags = 0;
        match &dispatch.count {
            Count::Fixed(count) => config.workgroup_count[0] = *count,
            Count::Buffer(part) => {
                config.workgroup_count = [u32::MAX; 3];
                config.workgroup_count_ref = self.reference(part, &mut kept);
                flags = sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_PARAMETERS;
            }
        }
        let mut words = dispatch.kernel.constants().to_vec();
        let constants =
            sys::iree_const_byte_span_t { data: words.as_ptr().cast(), data_length: words.len() * 4 };
        let mut references: Vec<_> =
            dispatch.bindings.iter().map(|part| self.reference(part, &mut kept)).collect();
        let list = sys::iree_hal_buffer_ref_list_t { count: references.len(), values: references.as_ptr() };
        let status = unsafe {
            let function = sys::iree_hal_executable_function_from_index(function);
            call(executable.0, function, config, constants, list, flags)
        };
        words.fill(u32::MAX);
        references.fill(sys::iree_hal_buffer_ref_t::default());
        check(status)
    }

    fn submit_all(self: &Arc<Self>, thread: usize) {
        for &number in &self.program.order {
            if self.program.steps[number].thread != thread {
                continue;
            }
            if let Err(error) = self.submit(number) {
                if self.machine.refuses_late(self.program.steps[number].device)
                    && self.is_cause(&self.expected.failures[number], &error)
                {
                    for at in &self.program.steps[number].signals {
                        self.timelines[at.timeline].fail(error.code, &error.text);
                    }
                    continue;
                }
                self.trouble(format!("step {number} was refused: {:?} {}", error.code, error.text));
                // Whoever waits for it is not to wait for good.
                for at in &self.program.steps[number].signals {
                    self.timelines[at.timeline].fail(Code::Cancelled, "a step before was refused");
                }
            }
        }
    }

    fn submit(self: &Arc<Self>, number: usize) -> common::Result {
        let step = &self.program.steps[number];
        let device = self.device(step.device);
        let affinity = self.machine.affinity(step.device, step.affinity);
        let mut edges = Edges::of(self, &step.waits, &step.signals);
        let (waits, signals) = edges.raw();
        let submitted = unsafe {
            match &step.action {
                Action::Barrier => {
                    check(sys::iree_hal_device_queue_barrier(device, affinity, waits, signals, 0))
                }
                Action::Command(command) | Action::Broken(command) => {
                    self.submit_command(step.device, affinity, waits, signals, command)
                }
                Action::Execute { recording, table } => {
                    let one_shot;
                    let commands = match &self.reusable[*recording] {
                        Some(commands) => commands,
                        None => {
                            one_shot = self.record(*recording)?;
                            &one_shot
                        }
                    };
                    let mut kept = Vec::new();
                    let mut bindings: Vec<sys::iree_hal_buffer_binding_t> = table
                        .iter()
                        .map(|part| {
                            let reference = self.reference(part, &mut kept);
                            sys::iree_hal_buffer_binding_t {
                                buffer: reference.buffer,
                                offset: reference.offset,
                                length: reference.length,
                            }
                        })
                        .collect();
                    let table = sys::iree_hal_buffer_binding_table_t {
                        count: bindings.len(),
                        bindings: bindings.as_ptr(),
                    };
                    let status = sys::iree_hal_device_queue_execute(
                        device, affinity, waits, signals, commands.0, table, 0,
                    );
                    bindings.fill(sys::iree_hal_buffer_binding_t::default());
                    check(status)
                }
                Action::Allocate(buffer) => {
                    let (params, length) = (params(Memory::Transient), self.program.buffers[*buffer].length);
                    let (pool, mut made) = (null_mut(), null_mut());
                    check(sys::iree_hal_device_queue_alloca(
                        device,
                        affinity,
                        waits,
                        signals,
                        pool,
                        params,
                        length,
                        0,
                        &raw mut made,
                    ))
                    .map(|()| drop(self.buffers[*buffer].set(Buffer(made))))
                }
                Action::Deallocate(buffer) => {
                    let buffer = self.buffer(&Part::of_buffer(*buffer, 0, 0)).0;
                    check(sys::iree_hal_device_queue_dealloca(device, affinity, waits, signals, buffer.0, 0))
                }
                Action::ReadFile { file, offset, target } => {
                    let (buffer, at) = self.buffer(target);
                    let (file, offset) = (self.files[*file].imported[step.device], *offset as u64);
                    check(sys::iree_hal_device_queue_read(
                        device,
                        affinity,
                        waits,
                        signals,
                        file,
                        offset,
                        buffer.0,
                        at,
                        target.length,
                        0,
                    ))
                }
                Action::WriteFile { source, file, offset } => {
                    let (buffer, at) = self.buffer(source);
                    let (file, offset) = (self.files[*file].imported[step.device], *offset as u64);
                    check(sys::iree_hal_device_queue_write(
                        device,
                        affinity,
                        waits,
                        signals,
                        buffer.0,
                        at,
                        file,
                        offset,
                        source.length,
                        0,
                    ))
                }
                Action::Call { ends, .. } => {
                    // A function that is never called leaves its ticket behind.
                    let ticket: Ticket = (Arc::downgrade(self), number);
                    let user_data = Box::into_raw(Box::new(ticket)).cast();
                    let call = sys::iree_hal_host_call_t { fn_: Some(called), user_data };
                    let flags = if *ends == Ends::Detached {
                        u64::from(sys::IREE_HAL_HOST_CALL_FLAG_NON_BLOCKING)
                    } else {
                        0
                    };
                    let mut arguments = [number as u64, !number as u64, 1, 2];
                    let status = sys::iree_hal_device_queue_host_call(
                        device,
                        affinity,
                        waits,
                        signals,
                        call,
                        arguments.as_ptr(),
                        flags,
                    );
                    arguments.fill(u64::MAX);
                    check(status)
                }
                Action::Host(visit) => self.be_the_host(number, visit.as_ref()),
                Action::Fail(code) => {
                    for at in &step.signals {
                        self.timelines[at.timeline].fail(*code, &cause(number));
                    }
                    Ok(())
                }
            }
        };
        edges.overwrite();
        submitted
    }

    fn submit_command(
        &self,
        number: usize,
        affinity: u64,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        command: &Command,
    ) -> common::Result {
        let device = self.device(number);
        unsafe {
            match command {
                Command::Fill { target, pattern } => {
                    let (buffer, offset) = self.buffer(target);
                    let mut copied = pattern.clone();
                    let (bytes, count) = (copied.as_ptr().cast(), copied.len());
                    let status = sys::iree_hal_device_queue_fill(
                        device,
                        affinity,
                        waits,
                        signals,
                        buffer.0,
                        offset,
                        target.length,
                        bytes,
                        count,
                        0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Update { target, bytes } => {
                    let (buffer, offset) = self.buffer(target);
                    let mut copied = shifted(bytes);
                    let (source, length) = (copied.as_ptr().cast(), target.length);
                    let status = sys::iree_hal_device_queue_update(
                        device, affinity, waits, signals, source, SHIFT, buffer.0, offset, length, 0,
                    );
                    copied.fill(0xEE);
                    check(status)
                }
                Command::Copy { source, target } => {
                    let ((from, from_offset), (to, to_offset)) = (self.buffer(source), self.buffer(target));
                    let length = target.length;
                    check(sys::iree_hal_device_queue_copy(
                        device,
                        affinity,
                        waits,
                        signals,
                        from.0,
                        from_offset,
                        to.0,
                        to_offset,
                        length,
                        0,
                    ))
                }
                Command::Dispatch(dispatch) => self.with_dispatch(
                    number,
                    dispatch,
                    |executable, function, config, constants, list, flags| {
                        sys::iree_hal_device_queue_dispatch(
                            device,
                            affinity,
                            waits,
                            signals,
                            executable,
                            function,
                            config,
                            constants,
                            list,
                            flags.into(),
                        )
                    },
                ),
            }
        }
    }

    /// Waits as a thread, visits, and signals.
    fn be_the_host(&self, number: usize, visit: Option<&Visit>) -> common::Result {
        let step = &self.program.steps[number];
        for at in &step.waits {
            wait(&self.timelines[at.timeline], at.value, self.patience)?;
        }
        self.visit(number, visit)?;
        for at in &step.signals {
            self.timelines[at.timeline].signal(at.value)?;
        }
        Ok(())
    }

    fn visit(&self, number: usize, visit: Option<&Visit>) -> common::Result {
        let Some(Visit { part, bytes }) = visit else { return Ok(()) };
        let (buffer, offset) = self.buffer(part);
        let mut found = vec![0_u8; part.length];
        unsafe {
            let (memory, length) = (found.as_mut_ptr().cast(), found.len());
            check(sys::iree_hal_buffer_map_read(buffer.0, offset, memory, length))?;
            let memory = bytes.as_ptr().cast();
            check(sys::iree_hal_buffer_map_write(buffer.0, offset, memory, bytes.len()))?;
        }
        let expected = self.expected.seen[number].as_ref().unwrap();
        if let Some(text) = difference(&found, expected, part.offset) {
            self.trouble(format!("step {number} found in {part}: {text}"));
        }
        Ok(())
    }

    /// A step's function is called by its queue.
    fn call(
        self: Arc<Self>,
        number: usize,
        context: &sys::iree_hal_host_call_context_t,
    ) -> sys::iree_status_t {
        let step = &self.program.steps[number];
        for at in &step.waits {
            if self.timelines[at.timeline].value().is_ok_and(|value| value < at.value) {
                self.trouble(format!("step {number} was called before s{}@{}", at.timeline, at.value));
            }
        }
        let Action::Call { visit, ends } = &step.action else { panic!("step {number} has no function") };
        let listed = if *ends == Ends::Detached { 0 } else { step.signals.len() };
        if context.signal_semaphore_list.count != listed || context.device != self.device(step.device) {
            self.trouble(format!("step {number} was called with another list, or for another device"));
        }
        if let Err(error) = self.visit(number, visit.as_ref()) {
            self.trouble(format!("step {number} could not look: {}", error.text));
        }
        self.calls[number].fetch_add(1, Ordering::AcqRel);
        match ends {
            Ends::Well | Ends::Detached => null_mut(),
            Ends::Failed(code) => common::failure(*code, &cause(number)),
            Ends::Deferred => {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(200));
                    for at in &self.program.steps[number].signals {
                        if let Err(error) = self.timelines[at.timeline].signal(at.value) {
                            self.trouble(format!("step {number} could not signal later: {}", error.text));
                        }
                    }
                });
                // A status without a message is its code.
                sys::IREE_STATUS_DEFERRED as usize as sys::iree_status_t
            }
        }
    }

    /// Waits until every timeline has come to where it must, and says whether all of them came to something.
    fn wait_for_the_end(&self) -> bool {
        let mut left = Some(Instant::now() + self.patience);
        for (number, timeline) in self.expected.timelines.iter().enumerate() {
            let patience = left.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
            let ended = wait(&self.timelines[number], timeline.value, patience);
            match ended {
                Err(error) if error.code == Code::DeadlineExceeded => {
                    left = None;
                    let value = self.timelines[number].value();
                    self.trouble(format!("s{number} never came to {}: {value:?}", timeline.value));
                }
                Err(error) if timeline.causes.is_empty() => {
                    self.trouble(format!("s{number} failed: {:?} {}", error.code, error.text));
                }
                Err(error) => {
                    if !self.is_cause(&timeline.causes, &error) {
                        let causes = &timeline.causes;
                        let (code, text) = (error.code, error.text);
                        self.trouble(format!(
                            "s{number} failed with {code:?} {text:?}, and not for {causes:?}"
                        ));
                    }
                }
                Ok(()) if !timeline.causes.is_empty() => {
                    self.trouble(format!("s{number} is at {}, and had to fail", timeline.value));
                }
                Ok(()) => {
                    let value = self.timelines[number].value();
                    if !value.as_ref().is_ok_and(|value| *value == timeline.value) {
                        self.trouble(format!("s{number} is at {value:?}, and not at {}", timeline.value));
                    }
                }
            }
        }
        left.is_some() && self.wait_for_calls()
    }

    /// Whether an error is that of one of the steps.
    fn is_cause(&self, causes: &Causes, error: &common::Error) -> bool {
        causes.iter().any(|&step| {
            let action = &self.program.steps[step].action;
            // What a device says of its own failure is its own.
            let is_told = matches!(action, Action::Broken(_)) || error.text.contains(&cause(step));
            action.begins_to_fail() == Some(error.code) && is_told
        })
    }

    /// Every function was called once, or never where something before it failed.
    fn wait_for_calls(&self) -> bool {
        let begin = Instant::now();
        for (number, step) in self.program.steps.iter().enumerate() {
            let Action::Call { .. } = step.action else { continue };
            let begun = self.expected.causes(&step.waits).is_empty();
            let called = || self.calls[number].load(Ordering::Acquire);
            while begun && called() == 0 {
                if begin.elapsed() > self.patience {
                    self.trouble(format!("step {number} was never called"));
                    return false;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            if called() != usize::from(begun) {
                self.trouble(format!("step {number} was called {} times", called()));
            }
        }
        true
    }

    /// Looks at all that is left.
    fn compare(&self) {
        for (number, cells) in self.expected.buffers.iter().enumerate() {
            let Some(cells) = cells else { continue };
            let spec = self.program.buffers[number];
            match self.contents(number, spec.device, spec.length) {
                Ok(found) => {
                    if let Some(text) = difference(&found, cells, 0) {
                        self.trouble(format!("b{number} in the end: {text}"));
                    }
                }
                Err(error) => self.trouble(format!("b{number} cannot be read: {}", error.text)),
            }
        }
        for (number, cells) in self.expected.files.iter().enumerate() {
            if let Some(text) = difference(&self.files[number].read(), cells, 0) {
                self.trouble(format!("f{number} in the end: {text}"));
            }
        }
    }

    fn contents(&self, number: usize, device: usize, length: usize) -> common::Result<Vec<u8>> {
        let device = &self.machine.devices[device];
        let staging = device.try_buffer_of(params(Memory::Mapped), length)?;
        let (done, none) = (device.semaphore(0), common::List::none());
        device.copy(&none, &done.at(1), self.buffers[number].get().unwrap(), &staging, length)?;
        done.wait(1)?;
        Ok(staging.read())
    }
}

/// How far into its memory an update's bytes begin.
const SHIFT: usize = 3;

fn shifted(bytes: &[u8]) -> Vec<u8> {
    [[0xDD; SHIFT].as_slice(), bytes].concat()
}

fn cause(step: usize) -> String {
    format!("step {step} was told to fail.")
}

/// Waits so long; a failure is told in full.
fn wait(semaphore: &Semaphore, value: u64, patience: Duration) -> common::Result {
    let waited = unsafe {
        let timeout = sys::iree_make_timeout_ms(patience.as_millis() as i64);
        check(sys::iree_hal_semaphore_wait(semaphore.0, value, timeout, 0))
    };
    match waited {
        Err(error) if error.code != Code::DeadlineExceeded => Err(semaphore.value().err().unwrap_or(error)),
        other => other,
    }
}

fn difference(found: &[u8], expected: &[Cell], offset: usize) -> Option<String> {
    let differs = |(found, expected): (&u8, &Cell)| expected.is_some_and(|expected| expected != *found);
    let pairs = || found.iter().zip(expected);
    let first = pairs().position(differs)?;
    let count = pairs().filter(|&pair| differs(pair)).count();
    let (found, expected) = (found[first], expected[first]?);
    Some(format!("{found:#04x} instead of {expected:#04x} at {}, and {count} bytes differ", offset + first))
}

/// What a function is called with.
type Ticket = (Weak<Scene>, usize);

unsafe extern "C" fn called(
    user_data: *mut c_void,
    arguments: *const u64,
    context: *mut sys::iree_hal_host_call_context_t,
) -> sys::iree_status_t {
    let (scene, number) = *unsafe { Box::from_raw(user_data.cast::<Ticket>()) };
    let scene = scene.upgrade().expect("a program has not ended before its calls");
    let arguments = unsafe { std::slice::from_raw_parts(arguments, 4) };
    if arguments != [number as u64, !number as u64, 1, 2] {
        scene.trouble(format!("step {number} was called with {arguments:x?}"));
    }
    scene.call(number, unsafe { &*context })
}

/// Semaphore lists that are overwritten after the call.
struct Edges {
    waits: (Vec<*mut sys::iree_hal_semaphore_t>, Vec<u64>),
    signals: (Vec<*mut sys::iree_hal_semaphore_t>, Vec<u64>),
}

impl Edges {
    fn of(scene: &Scene, waits: &[At], signals: &[At]) -> Self {
        let list = |points: &[At]| points.iter().map(|at| (scene.timelines[at.timeline].0, at.value)).unzip();
        Self { waits: list(waits), signals: list(signals) }
    }

    fn raw(&mut self) -> (sys::iree_hal_semaphore_list_t, sys::iree_hal_semaphore_list_t) {
        let raw =
            |list: &mut (Vec<*mut sys::iree_hal_semaphore_t>, Vec<u64>)| sys::iree_hal_semaphore_list_t {
                count: list.0.len(),
                semaphores: list.0.as_mut_ptr(),
                payload_values: list.1.as_mut_ptr(),
            };
        (raw(&mut self.waits), raw(&mut self.signals))
    }

    fn overwrite(&mut self) {
        for list in [&mut self.waits, &mut self.signals] {
            list.0.fill(null_mut());
            list.1.fill(u64::MAX);
        }
    }
}
