// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables and executable caches: IREE's objects around what the device has loaded.

use crate::ffi::constants::{PARAMETER_BINDING, PARAMETER_CONSTANT};
use crate::ffi::object::{Header, HostAllocator, Out, Retained, allocate, free, required, resource, slice};
use crate::ffi::status::{Result, guard, guard_or, invalid, text, view};
use crate::memory::allocator::Memory;
use hal_backend::{Device, LoadRequest, Loaded, Parameters};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The device's parameter `reflection`: whether C can query the parameters of functions.
///
/// IREE's own local drivers report none, and its replay rejects an executable if this differs between the recording
/// device and the replaying one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reflection {
    Full,
    None,
}

impl Reflection {
    /// Reads the parameter.
    pub(crate) fn take(parameters: &mut Parameters<'_>) -> Result<Self> {
        match parameters.take("reflection")? {
            None | Some("full") => Ok(Self::Full),
            Some("none") => Ok(Self::None),
            Some(other) => Err(invalid(format!("reflection is {other:?}; it takes full or none"))),
        }
    }
}

/// An executable of ours, as C sees it.
#[repr(C)]
struct Object {
    resource: Header,
    allocator: HostAllocator,
    functions: Vec<hal_backend::Function>,
    reflection: Reflection,
    loaded: Box<dyn AnyLoaded>,
    /// The device that loaded it. Only this device can run it.
    device: DeviceIdentity,
    /// True if its functions get plain addresses.
    has_addresses: bool,
    profile_id: u64,
}

/// What some device has loaded.
trait AnyLoaded: Any + Send + Sync {
    /// A buffer over a variable of it.
    fn global(
        &self,
        name: &str,
        affinity: sys::iree_hal_queue_affinity_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>>;
}

/// What a device has loaded, and the device's memory.
struct LoadedBy<D: Device> {
    executable: Arc<D::Executable>,
    memory: Arc<Memory<D>>,
}

impl<D: Device> AnyLoaded for LoadedBy<D> {
    fn global(
        &self,
        name: &str,
        affinity: sys::iree_hal_queue_affinity_t,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let (memory, length) = self.memory.device.global(&self.executable, name)?;
        self.memory.wrap_global(memory, length, affinity)
    }
}

/// The identity of a device. It keeps the device alive, so that no other device gets the same address.
pub(crate) type DeviceIdentity = Arc<dyn Any + Send + Sync>;

pub(crate) fn is_same_device(one: &DeviceIdentity, other: &DeviceIdentity) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// A counted reference to an executable of ours.
#[derive(Clone)]
pub(crate) struct Executable {
    object: Retained<sys::iree_hal_executable_t>,
}

/// A function that was looked up in an executable.
///
/// # Invariants
///
/// The executable that it is used with has this function.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) index: usize,
}

impl Executable {
    /// Retains an executable of C's.
    ///
    /// # Safety
    ///
    /// It is alive, or null.
    pub(crate) unsafe fn of(executable: *mut sys::iree_hal_executable_t) -> Result<Self> {
        // SAFETY: the executable is alive or null, as the function asks.
        let object =
            unsafe { Retained::retain(executable) }.ok_or_else(|| invalid("there is no executable"))?;
        // SAFETY: every HAL object begins with the resource header.
        let vtable = unsafe { (*object.get().cast::<sys::iree_hal_resource_t>()).vtable };
        if !std::ptr::eq(vtable.cast(), &raw const VTABLE) {
            return Err(invalid(
                "the executable was prepared by another driver; prepare it with this device's cache",
            ));
        }
        Ok(Self { object })
    }

    fn object(&self) -> &Object {
        // SAFETY: ours, as `of` has found out, and alive by this reference, by the invariant of `Retained`.
        unsafe { &*self.object.get().cast::<Object>() }
    }

    /// The function that C names.
    pub(crate) fn function(&self, function: sys::iree_hal_executable_function_t) -> Result<Function> {
        lookup(self.object(), function).map(|(index, _)| Function { index })
    }

    /// Checks that a call has the constants and bindings that the function takes.
    pub(crate) fn check(&self, function: &Function, constants: usize, bindings: usize) -> Result {
        let known = self.known(function);
        let (takes, buffers) = (usize::from(known.constants), usize::from(known.bindings));
        if constants < takes || bindings < buffers {
            let message = format!(
                "function {:?} takes {takes} constants and {buffers} bindings, and got {constants} and {bindings}",
                known.name
            );
            return Err(invalid(message));
        }
        Ok(())
    }

    /// Checks the arguments that a program made for a function itself: addresses, then constants.
    pub(crate) fn check_arguments(&self, function: &Function, length: usize) -> Result {
        if !self.object().has_addresses {
            let message = "functions of this device get no plain addresses, so no arguments of a program's own \
                           (IREE_HAL_DISPATCH_FLAG_CUSTOM_DIRECT_ARGUMENTS); pass constants and bindings";
            return Err(Failure::new(Code::Unavailable, message));
        }
        let known = self.known(function);
        let (bindings, constants) = (known.bindings, known.constants);
        let takes = 8 * usize::from(bindings) + 4 * usize::from(constants);
        if length == takes {
            return Ok(());
        }
        Err(invalid(format!(
            "the arguments of function {:?} have {takes} bytes, not {length}: {bindings} addresses of 8 bytes and \
             {constants} constants of 4",
            known.name
        )))
    }

    /// Checks that the executable was loaded for this device.
    pub(crate) fn check_device(&self, device: &DeviceIdentity) -> Result {
        if is_same_device(&self.object().device, device) {
            return Ok(());
        }
        Err(invalid("the executable was prepared for another device; prepare it with this device's cache"))
    }

    /// The function's workgroup size; zeros if it leaves it open.
    pub(crate) fn workgroup_size(&self, function: &Function) -> [u32; 3] {
        self.known(function).workgroup_size
    }

    /// The device's executable.
    pub(crate) fn loaded<D: Device>(&self) -> Result<Arc<D::Executable>> {
        let loaded: &dyn Any = &*self.object().loaded;
        let loaded = loaded.downcast_ref::<LoadedBy<D>>().map(|loaded| loaded.executable.clone());
        loaded.ok_or_else(|| invalid("the executable was prepared for another kind of device"))
    }

    /// Its id in a profile.
    pub(crate) fn profile_id(&self) -> u64 {
        self.object().profile_id
    }

    pub(crate) fn name(&self, function: &Function) -> &str {
        &self.known(function).name
    }

    fn known(&self, function: &Function) -> &hal_backend::Function {
        #[expect(
            clippy::indexing_slicing,
            reason = "the executable has the function, by the invariant of `Function`"
        )]
        &self.object().functions[function.index]
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_executable_t {
        self.object.get()
    }
}

fn lookup(
    object: &Object,
    function: sys::iree_hal_executable_function_t,
) -> Result<(usize, &hal_backend::Function)> {
    let count = object.functions.len();
    // SAFETY: plain arithmetic on a number, in C.
    let index = unsafe {
        if sys::iree_hal_executable_function_is_index_in_range(function, count) {
            sys::iree_hal_executable_function_index(function) as usize
        } else {
            usize::MAX
        }
    };
    match object.functions.get(index) {
        Some(known) => Ok((index, known)),
        None => {
            let message = format!("there is no function {:#x}; the executable has {count}", function.value);
            Err(Failure::new(Code::OutOfRange, message))
        }
    }
}

static VTABLE: sys::iree_hal_executable_vtable_t = sys::iree_hal_executable_vtable_t {
    destroy: Some(destroy),
    function_count: Some(function_count),
    function_info: Some(function_info),
    function_parameters: Some(function_parameters),
    lookup_function_by_name: Some(lookup_function_by_name),
    lookup_global_by_name: Some(lookup_global_by_name),
};

static PROFILE_IDS: AtomicU64 = AtomicU64::new(1);

/// # Safety
///
/// C passes a live executable of ours.
unsafe fn object<'a>(executable: *mut sys::iree_hal_executable_t) -> &'a Object {
    // SAFETY: ours and alive, as the caller promises.
    unsafe { &*executable.cast::<Object>() }
}

unsafe extern "C" fn destroy(executable: *mut sys::iree_hal_executable_t) {
    guard_or((), || {
        let object = executable.cast::<Object>();
        // SAFETY: the last reference is gone.
        unsafe {
            let allocator = (*object).allocator;
            free(allocator, object);
        }
    });
}

unsafe extern "C" fn function_count(executable: *mut sys::iree_hal_executable_t) -> usize {
    // SAFETY: C passes a live executable of ours.
    unsafe { object(executable).functions.len() }
}

/// The number of parameters that C sees: bindings, then constants.
fn parameter_count(object: &Object, function: &hal_backend::Function) -> u16 {
    match object.reflection {
        Reflection::Full => function.bindings.saturating_add(function.constants),
        Reflection::None => 0,
    }
}

unsafe extern "C" fn function_info(
    executable: *mut sys::iree_hal_executable_t,
    function: sys::iree_hal_executable_function_t,
    out: *mut sys::iree_hal_executable_function_info_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live executable of ours, and where the answer goes. The name lives with the executable.
        let (object, out) = unsafe { (object(executable), Out::new(out)) };
        let (_, known) = lookup(object, function)?;
        out.set(sys::iree_hal_executable_function_info_t {
            name: view(&known.name),
            constant_count: known.constants,
            binding_count: known.bindings,
            parameter_count: parameter_count(object, known),
            workgroup_size: known.workgroup_size,
            ..Default::default()
        });
        Ok(())
    })
}

unsafe extern "C" fn function_parameters(
    executable: *mut sys::iree_hal_executable_t,
    function: sys::iree_hal_executable_function_t,
    capacity: usize,
    out: *mut sys::iree_hal_executable_function_parameter_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live executable of ours.
        let object = unsafe { object(executable) };
        let (_, known) = lookup(object, function)?;
        if capacity > 0 && out.is_null() {
            return Err(invalid(format!("{capacity} parameters were requested with a null pointer")));
        }
        let capacity = capacity.min(parameter_count(object, known).into());
        let binding = (PARAMETER_BINDING, 8_u8);
        let constant = (PARAMETER_CONSTANT, 4_u8);
        let bindings = (0..known.bindings).map(|at| (binding, at));
        let constants = (0..known.constants).map(|at| (constant, at.saturating_mul(4)));
        for (at, ((kind, size), offset)) in bindings.chain(constants).enumerate().take(capacity) {
            let parameter = sys::iree_hal_executable_function_parameter_t {
                type_: kind,
                size,
                offset,
                ..Default::default()
            };
            // SAFETY: C passes room for `capacity` of them.
            unsafe { out.add(at).write(parameter) };
        }
        Ok(())
    })
}

unsafe extern "C" fn lookup_function_by_name(
    executable: *mut sys::iree_hal_executable_t,
    name: sys::iree_string_view_t,
    out: *mut sys::iree_hal_executable_function_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live executable of ours, a name for the call, and where the answer goes.
        let (object, name, out) = unsafe { (object(executable), text(name), Out::new(out)) };
        let found = object.functions.iter().position(|function| function.name == name);
        let index = found.and_then(|index| u32::try_from(index).ok()).ok_or_else(|| {
            Failure::new(Code::NotFound, format!("the executable has no function {name:?}"))
        })?;
        // SAFETY: plain arithmetic on a number, in C.
        out.set(unsafe { sys::iree_hal_executable_function_from_index(index) });
        Ok(())
    })
}

unsafe extern "C" fn lookup_global_by_name(
    executable: *mut sys::iree_hal_executable_t,
    name: sys::iree_string_view_t,
    queue_affinity: sys::iree_hal_queue_affinity_t,
    out: *mut *mut sys::iree_hal_buffer_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live executable of ours, a name for the call, and where the answer goes.
        let (object, name, out) = unsafe { (object(executable), text(name), Out::new(out)) };
        if name.is_empty() {
            return Err(invalid("a variable is looked up by its name, and none was given"));
        }
        out.set(object.loaded.global(name, queue_affinity)?.into_raw());
        Ok(())
    })
}

/// An executable cache, as C sees it. It caches nothing: the device loads.
#[repr(C)]
struct Cache<D: Device> {
    resource: Header,
    memory: Arc<Memory<D>>,
    host: Arc<crate::command::host_program::Loaders>,
    reflection: Reflection,
}

/// A new cache, owned by the caller.
pub(crate) fn create_cache<D: Device>(
    memory: Arc<Memory<D>>,
    host: Arc<crate::command::host_program::Loaders>,
    reflection: Reflection,
    out: Out<*mut sys::iree_hal_executable_cache_t>,
) -> Result {
    let resource = resource(const { &CacheTable::<D>::VTABLE });
    let allocator = memory.allocator;
    let cache = Cache { resource, memory, host, reflection };
    out.set(allocate(allocator, cache)?.as_ptr().cast());
    Ok(())
}

/// The refusal of bytes of unknown length (0), which only the host's loaders read.
fn unmeasured() -> Failure {
    let message = "no host loader recognises the executable, and the device's own formats are recognised only \
                   in bytes of a known length: give their length";
    Failure::new(Code::InvalidArgument, message)
}

/// Writes the name of a format and its terminating zero, if C has room for both.
///
/// # Safety
///
/// There is room for `capacity` characters.
unsafe fn write_name(name: &str, out: *mut std::ffi::c_char, capacity: usize) -> Result {
    if name.len() >= capacity {
        let message = format!("the name of the format, {name:?}, does not fit into {capacity} characters");
        return Err(Failure::new(Code::OutOfRange, message));
    }
    // SAFETY: there is room for `capacity` characters, as the caller promises, and these are fewer.
    unsafe {
        out.cast::<u8>().copy_from(name.as_ptr(), name.len());
        out.add(name.len()).write(0);
    }
    Ok(())
}

struct CacheTable<D>(PhantomData<D>);

impl<D: Device> CacheTable<D> {
    const VTABLE: sys::iree_hal_executable_cache_vtable_t = sys::iree_hal_executable_cache_vtable_t {
        destroy: Some(Self::destroy),
        infer_format: Some(Self::infer_format),
        can_prepare_format: Some(Self::can_prepare_format),
        prepare_executable: Some(Self::prepare_executable),
    };

    /// # Safety
    ///
    /// C passes a live cache of ours.
    unsafe fn of<'a>(cache: *mut sys::iree_hal_executable_cache_t) -> &'a Cache<D> {
        // SAFETY: ours and alive, as the caller promises.
        unsafe { &*cache.cast::<Cache<D>>() }
    }

    unsafe extern "C" fn destroy(cache: *mut sys::iree_hal_executable_cache_t) {
        guard_or((), || {
            let object = cache.cast::<Cache<D>>();
            // SAFETY: the last reference is gone.
            unsafe {
                let allocator = Self::of(cache).memory.allocator;
                free(allocator, object);
            }
        });
    }

    unsafe extern "C" fn infer_format(
        cache: *mut sys::iree_hal_executable_cache_t,
        caching_mode: sys::iree_hal_executable_caching_mode_t,
        data: sys::iree_const_byte_span_t,
        capacity: usize,
        format: *mut std::ffi::c_char,
        out_size: *mut usize,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live cache of ours and lets us use the rest for the call.
            unsafe {
                let cache = Self::of(cache);
                if data.data.is_null() {
                    return Err(invalid("there are no bytes from which to infer an executable's format"));
                }
                let inferred = match cache.memory.device.infer_format(slice(data.data, data.data_length)?) {
                    Some(inferred) => inferred,
                    None => {
                        let runs = |format: &str| cache.memory.device.supports(format, &*cache.host);
                        let inferred = cache.host.infer_format(caching_mode, data, runs);
                        inferred
                            .map_err(|failure| if data.data_length == 0 { unmeasured() } else { failure })?
                    }
                };
                write_name(&inferred.format, format, capacity)?;
                Out::new(out_size).set(usize::try_from(inferred.length).unwrap_or(usize::MAX));
            }
            Ok(())
        })
    }

    unsafe extern "C" fn can_prepare_format(
        cache: *mut sys::iree_hal_executable_cache_t,
        _caching_mode: sys::iree_hal_executable_caching_mode_t,
        format: sys::iree_string_view_t,
    ) -> bool {
        // SAFETY: C passes a live cache of ours and a name for the call.
        guard_or(false, || unsafe {
            let cache = Self::of(cache);
            cache.memory.device.supports(text(format), &*cache.host)
        })
    }

    unsafe extern "C" fn prepare_executable(
        cache: *mut sys::iree_hal_executable_cache_t,
        params: *const sys::iree_hal_executable_params_t,
        out: *mut *mut sys::iree_hal_executable_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live cache of ours and lets us use the rest for the call.
            let (cache, out) = unsafe { (Self::of(cache), Out::new(out)) };
            // SAFETY: the parameters are C's, alive for the call, or null, which is refused.
            let params = unsafe { required(params, "the preparation of an executable needs parameters")? };
            // SAFETY: what the parameters point to is C's, alive for the call, and as long as they say.
            let request = unsafe {
                LoadRequest {
                    format: text(params.executable_format),
                    data: slice(params.executable_data.data, params.executable_data.data_length)?,
                    constants: slice(params.constants, params.constant_count)?,
                }
            };
            let Memory { device, allocator, .. } = &*cache.memory;
            if !device.supports(request.format, &*cache.host) {
                let message = format!("this device runs no executables of format {:?}", request.format);
                return Err(Failure::new(Code::NotFound, message));
            }
            let Loaded { executable, functions } = device.load(&request, &*cache.host)?;
            let object = Object {
                resource: resource(&raw const VTABLE),
                allocator: *allocator,
                functions,
                reflection: cache.reflection,
                loaded: Box::new(LoadedBy { executable: Arc::new(executable), memory: cache.memory.clone() }),
                device: device.clone(),
                has_addresses: device.addresses().is_some(),
                profile_id: PROFILE_IDS.fetch_add(1, Ordering::Relaxed),
            };
            out.set(allocate(*allocator, object)?.as_ptr().cast());
            Ok(())
        })
    }
}
