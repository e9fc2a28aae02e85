// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The objects of the calls, and the text of an answer.

use crate::common::{self, Buffer, Commands, Device, Executable, File, List, Result, Semaphore, check};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;

pub(crate) const LENGTH: usize = 64;

/// A new device for each call, and the objects that most calls need, which are dropped first.
pub(crate) struct Bench {
    /// A buffer with all access and usage bits.
    pub(crate) buffer: Buffer,
    /// The same, of half the length.
    pub(crate) small: Buffer,
    pub(crate) done: Semaphore,
    pub(crate) device: Device,
}

/// The name of an answer.
fn name(code: Code) -> &'static str {
    match code {
        Code::Cancelled => "CANCELLED",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Incompatible => "INCOMPATIBLE",
        _ => "another code",
    }
}

/// The answer of a call that is synchronous.
pub(crate) fn answer<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "ok".into(),
        Err(error) => name(error.code).into(),
    }
}

impl Bench {
    pub(crate) fn new(uri: &str) -> Self {
        Self::on(Device::open_in_group(uri).unwrap())
    }

    pub(crate) fn on(device: Device) -> Self {
        let buffer = device.try_buffer_of(params(), LENGTH).unwrap();
        let small = device.try_buffer_of(params(), LENGTH / 2).unwrap();
        let done = device.semaphore(5);
        Self { device, buffer, small, done }
    }

    /// A buffer with fewer bits.
    pub(crate) fn buffer_of(
        &self,
        usage: sys::iree_hal_buffer_usage_bits_t,
        access: sys::iree_hal_memory_access_bits_t,
    ) -> Buffer {
        let params = sys::iree_hal_buffer_params_t { usage, access: access as u16, ..params() };
        self.device.try_buffer_of(params, LENGTH).unwrap()
    }

    /// The answer of a queue operation: of the call, or else of its signal.
    pub(crate) fn queued(
        &self,
        call: impl FnOnce(
            *mut sys::iree_hal_device_t,
            sys::iree_hal_semaphore_list_t,
            sys::iree_hal_semaphore_list_t,
        ) -> sys::iree_status_t,
    ) -> String {
        let (none, signals) = (List::none(), self.done.at(6));
        self.outcome(check(call(self.device.0, none.raw(), signals.raw())))
    }

    /// The outcome of a submission that signals 6.
    pub(crate) fn outcome(&self, submitted: Result) -> String {
        if let Err(error) = submitted {
            return name(error.code).into();
        }
        match wait(&self.done, 6) {
            Ok(()) => "ok".into(),
            Err(error) if error.code == Code::DeadlineExceeded => "never ends".into(),
            Err(error) => format!("later {}", name(error.code)),
        }
    }

    /// A fill of the buffer.
    pub(crate) fn fill(&self, offset: usize, length: usize, pattern: usize) -> String {
        self.fill_of(&self.buffer, offset, length, pattern, 0)
    }

    pub(crate) fn fill_of(
        &self,
        buffer: &Buffer,
        offset: usize,
        length: usize,
        pattern: usize,
        flags: u64,
    ) -> String {
        let bytes = [7_u8; 32];
        self.queued(|device, waits, signals| unsafe {
            let bytes = bytes.as_ptr().cast();
            sys::iree_hal_device_queue_fill(
                device, 1, waits, signals, buffer.0, offset, length, bytes, pattern, flags,
            )
        })
    }

    pub(crate) fn copy(&self, source: (&Buffer, usize), target: (&Buffer, usize), length: usize) -> String {
        self.queued(|device, waits, signals| unsafe {
            sys::iree_hal_device_queue_copy(
                device, 1, waits, signals, source.0.0, source.1, target.0.0, target.1, length, 0,
            )
        })
    }

    pub(crate) fn update(&self, offset: usize, length: usize) -> String {
        let bytes = [7_u8; 256];
        self.queued(|device, waits, signals| unsafe {
            let (bytes, target) = (bytes.as_ptr().cast(), self.buffer.0);
            sys::iree_hal_device_queue_update(device, 1, waits, signals, bytes, 0, target, offset, length, 0)
        })
    }

    pub(crate) fn read_file(&self, offset: u64, length: usize) -> String {
        let file = File::with(&[1; LENGTH]);
        let (none, signals) = (List::none(), self.done.at(6));
        self.outcome(self.device.read_file(&none, &signals, &file, offset, &self.buffer, length))
    }

    /// Records commands and executes them with a table, and says which call failed.
    pub(crate) fn executed(
        &self,
        slots: usize,
        table: &[sys::iree_hal_buffer_binding_t],
        record: impl FnOnce(*mut sys::iree_hal_command_buffer_t) -> sys::iree_status_t,
    ) -> String {
        match self.record(0, slots, record) {
            Ok(commands) => self.execute(&commands, table),
            Err(error) => format!("{} recorded", name(error.code)),
        }
    }

    pub(crate) fn record(
        &self,
        mode: u32,
        slots: usize,
        record: impl FnOnce(*mut sys::iree_hal_command_buffer_t) -> sys::iree_status_t,
    ) -> Result<Commands> {
        let commands = self.commands(mode, slots)?;
        unsafe {
            check(sys::iree_hal_command_buffer_begin(commands.0))?;
            check(record(commands.0))?;
            check(sys::iree_hal_command_buffer_end(commands.0))?;
        }
        Ok(commands)
    }

    pub(crate) fn commands(&self, mode: u32, slots: usize) -> Result<Commands> {
        let mut commands = null_mut();
        let any = sys::IREE_HAL_COMMAND_CATEGORY_ANY;
        unsafe {
            let (device, out) = (self.device.0, &raw mut commands);
            check(sys::iree_hal_command_buffer_create(device, mode, any, u64::MAX, slots, out))?;
        }
        Ok(Commands(commands))
    }

    pub(crate) fn execute(&self, commands: &Commands, table: &[sys::iree_hal_buffer_binding_t]) -> String {
        self.queued(|device, waits, signals| unsafe {
            let table = sys::iree_hal_buffer_binding_table_t { count: table.len(), bindings: table.as_ptr() };
            sys::iree_hal_device_queue_execute(device, 1, waits, signals, commands.0, table, 0)
        })
    }

    /// The format of executables that the device runs, and the folder of the suite's.
    fn executables(&self) -> (&'static str, &'static str) {
        const EVERYWHERE: (&str, &str) = ("vmvx-bytecode-fb", "vmvx");
        const OTHERS: [(&str, &str); 2] = [("embedded-elf-riscv_32", "riscv32_plain"), ("PTXE", "cuda_sm80")];
        let runs = |format: &str| matches!(self.device.query("hal.executable.format", format), Ok(1));
        std::iter::once(EVERYWHERE).chain(OTHERS).find(|&(format, _)| runs(format)).unwrap()
    }

    /// The format of executables that the device runs.
    pub(crate) fn format(&self) -> &'static str {
        self.executables().0
    }

    /// The suite's function of two bindings of 16 bytes and two constants, as the device runs it.
    pub(crate) fn function(&self) -> Vec<u8> {
        common::testdata(&format!(
            "{}/command_buffer_dispatch_constants_bindings_test.bin",
            self.executables().1
        ))
    }

    /// The same, loaded.
    pub(crate) fn executable(&self) -> Executable {
        self.device.load(self.format(), &self.function()).unwrap()
    }
}

/// A correct dispatch of [`Bench::executable`].
pub(crate) struct BenchDispatch {
    pub(crate) function: u32,
    pub(crate) config: sys::iree_hal_dispatch_config_t,
    pub(crate) constants: usize,
    pub(crate) bindings: Vec<sys::iree_hal_buffer_ref_t>,
    pub(crate) flags: u64,
}

impl BenchDispatch {
    pub(crate) fn of(bench: &Bench) -> Self {
        let config = sys::iree_hal_dispatch_config_t { workgroup_count: [1; 3], ..Default::default() };
        let binding = |offset| sys::iree_hal_buffer_ref_t {
            buffer: bench.buffer.0,
            offset,
            length: 16,
            ..Default::default()
        };
        Self { function: 0, config, constants: 8, bindings: vec![binding(0), binding(32)], flags: 0 }
    }

    /// With a workgroup count in a buffer.
    pub(crate) fn counted(bench: &Bench, count: &Buffer, offset: usize, length: usize) -> Self {
        let mut dispatch = Self::of(bench);
        dispatch.config.workgroup_count_ref =
            sys::iree_hal_buffer_ref_t { buffer: count.0, offset, length, ..Default::default() };
        dispatch.flags = u64::from(sys::IREE_HAL_DISPATCH_FLAG_DYNAMIC_INDIRECT_PARAMETERS);
        dispatch
    }

    pub(crate) fn run(&self, bench: &Bench) -> String {
        let executable = bench.executable();
        let words = [1_u32; 8];
        bench.queued(|device, waits, signals| unsafe {
            let function = sys::iree_hal_executable_function_from_index(self.function);
            let constants =
                sys::iree_const_byte_span_t { data: words.as_ptr().cast(), data_length: self.constants };
            let bindings = sys::iree_hal_buffer_ref_list_t {
                count: self.bindings.len(),
                values: self.bindings.as_ptr(),
            };
            let (executable, config, flags) = (executable.0, self.config, self.flags);
            sys::iree_hal_device_queue_dispatch(
                device, 1, waits, signals, executable, function, config, constants, bindings, flags,
            )
        })
    }
}

pub(crate) fn params() -> sys::iree_hal_buffer_params_t {
    let usage = common::params().usage | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_INDIRECT_PARAMETERS;
    sys::iree_hal_buffer_params_t { usage, ..common::params() }
}

/// Waits for as long as anything here takes; returns a failure with its message.
pub(crate) fn wait(semaphore: &Semaphore, value: u64) -> Result {
    let waited = unsafe {
        let timeout = sys::iree_make_timeout_ms(60_000);
        check(sys::iree_hal_semaphore_wait(semaphore.0, value, timeout, 0))
    };
    match waited {
        Err(error) if error.code != Code::DeadlineExceeded => Err(semaphore.value().err().unwrap_or(error)),
        other => other,
    }
}
