// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Rust program that embeds the IREE runtime and runs a module on a device of this repository.
//!
//! `cargo run -p hal-driver --example embed -- MODULE.vmfb [DEVICE]` calls the module's `square` function (see
//! `two_functions.mlir`) with 1,024 numbers and checks the results. IREE's runtime is C; an owner releases each of
//! its objects that is used here.

use hal_driver::sys;
use std::ffi::CString;
use std::ptr::null_mut;

const COUNT: usize = 1024;

/// An error with IREE's message.
type Result<T = ()> = std::result::Result<T, String>;

/// Consumes a status.
fn check(status: sys::iree_status_t) -> Result {
    if status.is_null() {
        return Ok(());
    }
    let mut text = vec![0_u8; 4096];
    let mut length = 0;
    // SAFETY: the buffer has as many bytes as it says, and the status is ours.
    unsafe {
        sys::iree_status_format(status, text.len(), text.as_mut_ptr().cast(), &raw mut length);
        sys::iree_status_free(status);
    }
    text.truncate(length);
    Err(String::from_utf8_lossy(&text).into_owned())
}

fn view(text: &str) -> sys::iree_string_view_t {
    sys::iree_string_view_t { data: text.as_ptr().cast(), size: text.len() }
}

/// An object that is released at the end.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Owned<T> {
    /// An object from a C constructor.
    fn make(
        release: unsafe extern "C" fn(*mut T),
        make: impl FnOnce(*mut *mut T) -> sys::iree_status_t,
    ) -> Result<Self> {
        let mut object = null_mut();
        check(make(&raw mut object))?;
        Ok(Self(object, release))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: made by C and released once.
        unsafe { self.1(self.0) }
    }
}

fn open(uri: &str) -> Result<Owned<sys::iree_hal_device_t>> {
    // SAFETY: the registry is IREE's own; the pool and the device are owned as soon as they exist.
    unsafe {
        let registry = sys::iree_hal_driver_registry_default();
        let allocator = sys::iree_allocator_system();
        check(hal_driver::hal_drivers_register_all(registry))?;
        let options = sys::iree_async_proactor_pool_options_default();
        let pool = Owned::make(sys::iree_async_proactor_pool_release, |out| {
            sys::iree_async_proactor_pool_create(1, std::ptr::null(), options, allocator, out)
        })?;
        let params = sys::iree_hal_device_create_params_t { next: std::ptr::null(), proactor_pool: pool.0 };
        Owned::make(sys::iree_hal_device_release, |out| {
            sys::iree_hal_create_device(registry, view(uri), &raw const params, allocator, out)
        })
    }
}

/// Calls a function with one row of numbers.
fn call(session: &Owned<sys::iree_runtime_session_t>, name: &str, input: &[f32]) -> Result<Vec<f32>> {
    // SAFETY: everything that is borrowed to a call lives through it.
    unsafe {
        let device = sys::iree_runtime_session_device(session.0);
        let shape = [input.len()];
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
            usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
            ..Default::default()
        };
        let bytes =
            sys::iree_const_byte_span_t { data: input.as_ptr().cast(), data_length: size_of_val(input) };
        let argument = Owned::make(sys::iree_hal_buffer_view_release, |out| {
            sys::iree_hal_buffer_view_allocate_buffer_copy(
                device,
                sys::iree_hal_device_allocator(device),
                shape.len(),
                shape.as_ptr().cast(),
                sys::IREE_HAL_ELEMENT_TYPE_FLOAT_32,
                sys::IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
                params,
                bytes,
                out,
            )
        })?;
        let mut call = sys::iree_runtime_call_t::default();
        check(sys::iree_runtime_call_initialize_by_name(session.0, view(name), &raw mut call))?;
        let outcome = (|| {
            check(sys::iree_runtime_call_inputs_push_back_buffer_view(&raw mut call, argument.0))?;
            check(sys::iree_runtime_call_invoke(&raw mut call, 0))?;
            let result = Owned::make(sys::iree_hal_buffer_view_release, |out| {
                sys::iree_runtime_call_outputs_pop_front_buffer_view(&raw mut call, out)
            })?;
            let mut values = vec![0.0_f32; input.len()];
            check(sys::iree_hal_device_transfer_d2h(
                device,
                sys::iree_hal_buffer_view_buffer(result.0),
                0,
                values.as_mut_ptr().cast(),
                size_of_val(input),
                0,
                sys::iree_infinite_timeout(),
            ))?;
            Ok(values)
        })();
        sys::iree_runtime_call_deinitialize(&raw mut call);
        outcome
    }
}

fn run(module: &str, uri: &str) -> Result<usize> {
    let module = CString::new(module).map_err(|error| error.to_string())?;
    // SAFETY: as for `call`; the options are initialised by IREE before they are used.
    let session = unsafe {
        let allocator = sys::iree_allocator_system();
        let mut options = sys::iree_runtime_instance_options_t::default();
        sys::iree_runtime_instance_options_initialize(&raw mut options);
        let instance = Owned::make(sys::iree_runtime_instance_release, |out| {
            sys::iree_runtime_instance_create(&raw const options, allocator, out)
        })?;
        let device = open(uri)?;
        let mut options = sys::iree_runtime_session_options_t::default();
        sys::iree_runtime_session_options_initialize(&raw mut options);
        let session = Owned::make(sys::iree_runtime_session_release, |out| {
            sys::iree_runtime_session_create_with_device(
                instance.0,
                &raw const options,
                device.0,
                allocator,
                out,
            )
        })?;
        check(sys::iree_runtime_session_append_bytecode_module_from_file(session.0, module.as_ptr()))?;
        session
    };
    let input: Vec<f32> = (0_u16..).take(COUNT).map(|number| f32::from(number) * 0.5 - 100.0).collect();
    let output = call(&session, "module.square", &input)?;
    Ok(output.iter().zip(&input).filter(|(y, x)| **y != **x * **x).count())
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(module) = arguments.next() else {
        eprintln!("usage: embed MODULE.vmfb [DEVICE]");
        std::process::exit(2);
    };
    let uri = arguments.next().unwrap_or_else(|| "mock".into());
    match run(&module, &uri) {
        Ok(wrong) => {
            println!("{COUNT} squares on {uri}, {wrong} wrong");
            std::process::exit(i32::from(wrong != 0));
        }
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
    }
}
