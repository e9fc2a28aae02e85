// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Programs: a module with the devices that it runs on, and calls of its functions.

use super::buffer::CacheLine;
use super::device::Device;
use super::instance::{Instance, allocator};
use super::object::Ref;
use super::status::{Error, Result, check};
use super::value::{self, ArgumentKind, Value};
use super::{text, view};
use hal_sys as sys;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A loaded module with its state, on its devices.
///
/// IREE's contexts take one call at a time: calls of other threads wait.
pub(crate) struct Program {
    // Dropped in this order: the context's modules read the archive.
    context: Mutex<Ref<sys::iree_vm_context_t>>,
    module: Ref<sys::iree_vm_module_t>,
    devices: Vec<Device>,
    _archive: Box<[CacheLine]>,
}

/// A function of a program.
///
/// # Invariants
///
/// `function` belongs to the module of the program that it is called with.
#[derive(Clone)]
pub(crate) struct Function {
    /// Its name, without `$async`.
    pub(crate) name: String,
    /// The declaration with the types of arguments and results, if the module has one.
    pub(crate) declaration: String,
    /// The kinds of its arguments, without the fences of an asynchronous one.
    pub(crate) arguments: Vec<ArgumentKind>,
    /// True if it takes fences, and returns before its work is done.
    pub(crate) is_asynchronous: bool,
    function: sys::iree_vm_function_t,
}

// SAFETY: a name of a function, and no more; the program that is called with it has its module, by the invariant.
unsafe impl Send for Function {}
// SAFETY: as for `Send`.
unsafe impl Sync for Function {}

impl Function {
    /// An error of a call. IREE's lists refuse unexpected elements without naming the function, so its declaration
    /// is added.
    fn explain(&self, mut error: Error) -> Error {
        if error.message.contains("/vm/list.c:") {
            let declaration = if self.declaration.is_empty() { &self.name } else { &self.declaration };
            let text = error.message.trim_end_matches([';', ' ']);
            error.message = format!("{text}; are the arguments what the function takes? {declaration}");
        }
        error
    }
}

/// A call that has begun: its results exist, and are ready when its fence is reached.
pub(crate) struct StartedCall {
    /// The results.
    pub(crate) results: Vec<Value>,
    fence: Ref<sys::iree_hal_fence_t>,
    semaphore: Ref<sys::iree_hal_semaphore_t>,
}

/// Adds what to do to an error about a module that was compiled for another device or processor.
fn with_devices(mut error: Error, devices: &[Device]) -> Error {
    if error.code == "INCOMPATIBLE" && error.message.contains("#hal.device.target<") {
        let names: Vec<_> = devices.iter().map(Device::identifier).collect();
        error.message += &format!(
            "; the module was compiled for another kind of device or processor, which this message names last: \
             compile it for {}",
            names.join(" and ")
        );
    }
    error
}

impl Program {
    /// Loads a module for devices, with parameter files by scope, and runs its initialisers.
    pub(crate) fn load(bytes: &[u8], devices: &[Device], parameters: &[(String, String)]) -> Result<Self> {
        let instance = Instance::get()?;
        let archive = aligned(bytes);
        let span = sys::iree_const_byte_span_t { data: archive.as_ptr().cast(), data_length: bytes.len() };
        // SAFETY: each object is owned as soon as it exists; the archive lives longer than the module, which frees
        // nothing.
        unsafe {
            let module = Ref::make(|out| {
                sys::iree_vm_bytecode_module_create(
                    instance.vm.as_ptr(),
                    0,
                    span,
                    sys::iree_allocator_null(),
                    allocator(),
                    out,
                )
            })?;
            let hal = hal_module(instance, devices)?;
            let parameters =
                if parameters.is_empty() { None } else { Some(parameter_module(instance, parameters)?) };
            let modules: Vec<*mut sys::iree_vm_module_t> = [Some(&hal), parameters.as_ref(), Some(&module)]
                .into_iter()
                .flatten()
                .map(Ref::as_ptr)
                .collect();
            let context = Ref::make(|out| {
                sys::iree_vm_context_create_with_modules(
                    instance.vm.as_ptr(),
                    sys::IREE_VM_CONTEXT_FLAG_NONE,
                    modules.len(),
                    modules.as_ptr().cast_mut(),
                    allocator(),
                    out,
                )
            })
            .map_err(|error| with_devices(error, devices))?;
            Ok(Self { context: Mutex::new(context), module, devices: devices.to_vec(), _archive: archive })
        }
    }

    /// The module's own name.
    pub(crate) fn name(&self) -> String {
        // SAFETY: the name lives as long as the module.
        unsafe { text(sys::iree_vm_module_name(self.module.as_ptr())) }
    }

    /// The device that arguments go to: the first.
    pub(crate) fn device(&self) -> Option<&Device> {
        self.devices.first()
    }

    /// The functions that the module exports, in its order.
    pub(crate) fn functions(&self) -> Result<Vec<Function>> {
        // SAFETY: `self.module` keeps the module alive, by the invariant of `Ref`.
        let count = unsafe { sys::iree_vm_module_signature(self.module.as_ptr()) }.export_function_count;
        let mut functions = Vec::with_capacity(count);
        for ordinal in 0..count {
            let function = self.function(ordinal)?;
            // Functions of the runtime itself.
            if !function.name.starts_with("__") {
                functions.push(function);
            }
        }
        Ok(functions)
    }

    fn function(&self, ordinal: usize) -> Result<Function> {
        // SAFETY: `self.module` keeps the module alive, by the invariant of `Ref`, and what it says of a function
        // lives as long.
        unsafe {
            let mut function = std::mem::zeroed::<sys::iree_vm_function_t>();
            check(sys::iree_vm_module_lookup_function_by_ordinal(
                self.module.as_ptr(),
                sys::IREE_VM_FUNCTION_LINKAGE_EXPORT as sys::iree_vm_function_linkage_t,
                ordinal,
                &raw mut function,
            ))?;
            let attribute =
                |key| text(sys::iree_vm_function_lookup_attr_by_name(&raw const function, view(key)));
            let convention = text(sys::iree_vm_function_signature(&raw const function).calling_convention);
            let mut arguments = kinds(&convention);
            let is_asynchronous = attribute("iree.abi.model") == "coarse-fences";
            if is_asynchronous {
                // Without the fences to wait for and to signal.
                arguments.truncate(arguments.len().saturating_sub(2));
            }
            let name = text(sys::iree_vm_function_name(&raw const function));
            Ok(Function {
                name: name.strip_suffix("$async").map_or(name.clone(), str::to_owned),
                declaration: attribute("iree.abi.declaration"),
                arguments,
                is_asynchronous,
                function,
            })
        }
    }

    /// Calls a function and waits for it. A function with fences is begun and waited for.
    pub(crate) fn call(&self, function: &Function, arguments: &[Value]) -> Result<Vec<Value>> {
        if function.is_asynchronous {
            let started = self.begin(function, arguments, &[])?;
            started.wait(None)?;
            return Ok(started.results);
        }
        let inputs = value::list(arguments.len())?;
        arguments.iter().try_for_each(|argument| value::push(&inputs, argument))?;
        self.invoke(function, &inputs)
    }

    /// Begins a call of a function with fences, after other calls that have begun.
    pub(crate) fn begin(
        &self,
        function: &Function,
        arguments: &[Value],
        after: &[Arc<StartedCall>],
    ) -> Result<StartedCall> {
        let device = self.device().ok_or_else(|| {
            Error::new("FAILED_PRECONDITION", "only a module with a device can begin a call")
        })?;
        let semaphore = device.semaphore()?;
        let inputs = value::list(arguments.len() + 2)?;
        arguments.iter().try_for_each(|argument| value::push(&inputs, argument))?;
        // SAFETY: semaphore, fences and list are kept alive by their `Ref`s; lists keep references of their own.
        let fence = unsafe {
            let fence =
                Ref::make(|out| sys::iree_hal_fence_create_at(semaphore.as_ptr(), 1, allocator(), out))?;
            match join(after)? {
                Some(wait) => value::push_object(&inputs, sys::iree_hal_fence_retain_ref(wait.as_ptr()))?,
                None => value::push_object(&inputs, sys::iree_vm_ref_null())?,
            }
            value::push_object(&inputs, sys::iree_hal_fence_retain_ref(fence.as_ptr()))?;
            fence
        };
        let results = self.invoke(function, &inputs)?;
        Ok(StartedCall { results, fence, semaphore })
    }

    fn invoke(&self, function: &Function, inputs: &value::List) -> Result<Vec<Value>> {
        let outputs = value::list(1)?;
        let context = self.context.lock();
        // SAFETY: context and lists are kept alive by their `Ref`s, and the function is of a module of the context,
        // by the invariant of `Function`.
        unsafe {
            check(sys::iree_vm_invoke(
                context.as_ptr(),
                function.function,
                sys::IREE_VM_INVOCATION_FLAG_NONE,
                std::ptr::null(),
                inputs.as_ptr(),
                outputs.as_ptr(),
                allocator(),
            ))
            .map_err(|error| function.explain(error))?;
        }
        drop(context);
        value::values(&outputs)
    }
}

impl StartedCall {
    /// Waits until the work is done, for at most `timeout`. A failure on the device is the error.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result {
        // SAFETY: `self.semaphore` keeps the semaphore alive, by the invariant of `Ref`.
        unsafe {
            let limit = match timeout.and_then(|timeout| i64::try_from(timeout.as_nanos()).ok()) {
                Some(nanoseconds) => sys::iree_make_timeout_ns(nanoseconds),
                None => sys::iree_infinite_timeout(),
            };
            let semaphore = self.semaphore.as_ptr();
            let waited =
                check(sys::iree_hal_semaphore_wait(semaphore, 1, limit, sys::IREE_ASYNC_WAIT_FLAG_NONE));
            // IREE's own drivers answer a wait with a bare code; a query has the message.
            let mut value = 0;
            waited.or_else(|failure| {
                check(sys::iree_hal_semaphore_query(semaphore, &raw mut value))?;
                Err(if failure.is_deadline() { Error::not_ended() } else { failure })
            })
        }
    }

    /// True if the work is done or has failed.
    pub(crate) fn is_done(&self) -> bool {
        let mut value = 0;
        // SAFETY: `self.semaphore` keeps the semaphore alive, by the invariant of `Ref`.
        let asked = unsafe { check(sys::iree_hal_semaphore_query(self.semaphore.as_ptr(), &raw mut value)) };
        asked.is_err() || value >= 1
    }
}

/// One fence for several calls; `None` for none.
fn join(after: &[Arc<StartedCall>]) -> Result<Option<Ref<sys::iree_hal_fence_t>>> {
    if after.is_empty() {
        return Ok(None);
    }
    let mut fences: Vec<_> = after.iter().map(|started| started.fence.as_ptr()).collect();
    // SAFETY: `after` keeps the fences alive for the call, by the invariant of `Ref`.
    Ref::make(|out| unsafe { sys::iree_hal_fence_join(fences.len(), fences.as_mut_ptr(), allocator(), out) })
        .map(Some)
}

/// The HAL module with the devices.
fn hal_module(instance: &Instance, devices: &[Device]) -> Result<Ref<sys::iree_vm_module_t>> {
    // SAFETY: each object is owned as soon as it exists; the builder is taken down however it ends.
    unsafe {
        let options = sys::iree_async_frontier_tracker_options_default();
        let tracker = Ref::make(|out| sys::iree_async_frontier_tracker_create(options, allocator(), out))?;
        let mut builder = std::mem::zeroed::<sys::iree_hal_device_group_builder_t>();
        sys::iree_hal_device_group_builder_initialize(&raw mut builder, tracker.as_ptr());
        let group = devices
            .iter()
            .try_for_each(|device| {
                check(sys::iree_hal_device_group_builder_add_device(&raw mut builder, device.as_ptr()))
            })
            .and_then(|()| {
                Ref::make(|out| {
                    sys::iree_hal_device_group_builder_finalize(&raw mut builder, allocator(), out)
                })
            });
        sys::iree_hal_device_group_builder_deinitialize(&raw mut builder);
        let group = group?;
        Ref::make(|out| {
            sys::iree_hal_module_create(
                instance.vm.as_ptr(),
                sys::iree_hal_module_device_policy_default(),
                group.as_ptr(),
                sys::IREE_HAL_MODULE_FLAG_NONE,
                sys::iree_hal_module_debug_sink_null(),
                allocator(),
                out,
            )
        })
    }
}

/// The module of parameters: one provider for each scope, with all its files.
fn parameter_module(instance: &Instance, files: &[(String, String)]) -> Result<Ref<sys::iree_vm_module_t>> {
    let mut scopes: Vec<(&str, Ref<sys::iree_io_parameter_index_t>)> = Vec::new();
    // SAFETY: each object is owned as soon as it exists; an index keeps the files that it names.
    unsafe {
        for (scope, path) in files {
            let index = match scopes.iter().find(|(known, _)| known == scope) {
                Some((_, index)) => index.clone(),
                None => {
                    let index = Ref::make(|out| sys::iree_io_parameter_index_create(allocator(), out))?;
                    scopes.push((scope, index.clone()));
                    index
                }
            };
            let mode = sys::IREE_IO_FILE_MODE_READ
                | sys::IREE_IO_FILE_MODE_SHARE_READ
                | sys::IREE_IO_FILE_MODE_ASYNC;
            let file =
                Ref::make(|out| sys::iree_io_file_handle_open(mode.into(), view(path), allocator(), out))?;
            check(sys::iree_io_parse_file_index(view(path), file.as_ptr(), index.as_ptr(), allocator()))?;
        }
        let providers = scopes
            .iter()
            .map(|(scope, index)| {
                let concurrent =
                    sys::IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS as usize;
                Ref::make(|out| {
                    sys::iree_io_parameter_index_provider_create(
                        view(scope),
                        index.as_ptr(),
                        concurrent,
                        allocator(),
                        out,
                    )
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let pointers: Vec<_> = providers.iter().map(Ref::as_ptr).collect();
        Ref::make(|out| {
            sys::iree_io_parameters_module_create(
                instance.vm.as_ptr(),
                pointers.len(),
                pointers.as_ptr(),
                allocator(),
                out,
            )
        })
    }
}

/// The kinds of the arguments in a calling convention such as `0rIr_r`.
fn kinds(convention: &str) -> Vec<ArgumentKind> {
    let arguments = convention.strip_prefix('0').unwrap_or_default().split('_').next().unwrap_or_default();
    arguments
        .chars()
        .filter_map(|letter| match letter {
            'i' => Some(ArgumentKind::I32),
            'I' => Some(ArgumentKind::I64),
            'f' => Some(ArgumentKind::F32),
            'F' => Some(ArgumentKind::F64),
            'r' => Some(ArgumentKind::Object),
            _ => None,
        })
        .collect()
}

/// The bytes, aligned so that constants of a module can be used in place.
fn aligned(bytes: &[u8]) -> Box<[CacheLine]> {
    bytes
        .chunks(64)
        .map(|chunk| {
            let mut line = CacheLine([0; 64]);
            line.0.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            line
        })
        .collect()
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => "NOT_FOUND",
            std::io::ErrorKind::PermissionDenied => "PERMISSION_DENIED",
            _ => "UNAVAILABLE",
        };
        Error::new(code, format!("the module {} cannot be read: {error}", path.display()))
    })
}
