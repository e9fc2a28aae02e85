// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The HAL driver and its factory: names, enumeration, and opening devices by path or number.

use crate::command::collectives::channel::CollectiveSettings;
use crate::command::executable::Reflection;
use crate::device::HalDevice;
use crate::ffi::object::{
    Borrowed, Header, HostAllocator, Out, allocate, free, named, required, resource, slice,
};
use crate::ffi::process::OpenDevice;
use crate::ffi::status::{Result, check, guard, guard_or, invalid, text, view};
use crate::launcher_rank::expand;
use crate::stall::StallSettings;
use hal_backend::{DeviceInfo, Driver, Parameter, Parameters};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

/// The parameters of every device of every driver, beside the driver's [own](Driver::PARAMETERS).
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "reflection",
        values: "full|none",
        default: "full",
        effect: "whether programs see the parameters of functions; replays of recordings need `none`",
    },
    Parameter {
        name: "collective_rank",
        values: "N",
        default: "the program's",
        effect: "the device's rank in [collectives](collectives.md), if the program gives none",
    },
    Parameter {
        name: "collective_count",
        values: "N",
        default: "the program's",
        effect: "the number of ranks, given with `collective_rank`",
    },
    Parameter {
        name: "collective_timeout",
        values: "SECONDS",
        default: "600",
        effect: "how long an operation waits for ranks that do not come",
    },
    Parameter {
        name: "collective_piece",
        values: "N",
        default: "4194304",
        effect: "the most bytes of a [piece](collectives.md#the-design), and up to four times as many where each \
                 rank has a part; the same for all ranks",
    },
    Parameter {
        name: "collective_check",
        values: "on|first|off",
        default: "first",
        effect: "which operations processes [compare](collectives.md#when-a-rank-fails) first: all, the first of each \
                 shape, or none; the same for all ranks",
    },
    crate::stall::PARAMETER,
];

/// The C object.
#[repr(C)]
struct HalDriver<R: Driver> {
    resource: Header,
    allocator: HostAllocator,
    driver: Arc<R>,
}

impl<R: Driver> HalDriver<R> {
    /// # Safety
    ///
    /// The driver is one of ours and alive for `'a`.
    unsafe fn of<'a>(driver: *mut sys::iree_hal_driver_t) -> &'a Self {
        // SAFETY: ours and alive, as the caller promises.
        unsafe { &*driver.cast::<Self>() }
    }

    /// Opens a device from C's arguments.
    ///
    /// # Safety
    ///
    /// The text of the pairs is valid for the call, and the proactor pool of the parameters alive, or null.
    unsafe fn open(
        &self,
        path: &str,
        pairs: &[sys::iree_string_pair_t],
        params: &sys::iree_hal_device_create_params_t,
        allocator: HostAllocator,
    ) -> Result<*mut sys::iree_hal_device_t> {
        let expanded = |pair: &sys::iree_string_pair_t| {
            // SAFETY: the text is valid for the call, as the caller promises, and every reading of the union is a
            // pair of text.
            let (key, value) = unsafe {
                let key = named(pair.__bindgen_anon_1.first, "the name of a device's parameter")?;
                (key, named(pair.__bindgen_anon_2.second, "the value of a device's parameter")?)
            };
            // The others of its group would never come: they are devices of this process, which has one number.
            if key == "collective_rank" && value.contains("rank}") {
                return Err(invalid(format!(
                    "{}: parameter {key} is {value:?}, but it numbers ranks of devices of one process; leave \
                     {key} and collective_count out, and the processes of an MPI job are the ranks of one group",
                    R::NAME
                )));
            }
            Ok((key, expand(value)?))
        };
        let pairs = pairs.iter().map(expanded).collect::<Result<Vec<_>>>()?;
        let pairs = pairs.iter().map(|(key, value)| (*key, &**value));
        let mut parameters = Parameters::new(R::NAME, pairs);
        parameters.declare(PARAMETERS);
        parameters.declare(R::PARAMETERS);
        let reflection = Reflection::take(&mut parameters)?;
        let membership = CollectiveSettings::take(&mut parameters)?;
        let path = expand(path)?;
        let stall = StallSettings::take(R::NAME, &path, &mut parameters)?;
        let open = OpenDevice::new()?;
        let device = self.driver.open(&path, &mut parameters)?;
        let undeclared = parameters.undeclared();
        debug_assert!(R::PARAMETERS.is_empty() || undeclared.is_empty(), "not in PARAMETERS: {undeclared:?}");
        parameters.finish()?;
        // SAFETY: the pool is alive during the call or null, as the caller promises.
        let proactors =
            unsafe { Borrowed::required(params.proactor_pool, "device creation needs a proactor pool")? };
        HalDevice::create(open, device, proactors, reflection, membership, stall, allocator)
    }

    /// The path of the device with this number, counted from 1.
    fn path(&self, id: sys::iree_hal_device_id_t) -> Result<String> {
        if id == 0 {
            return Ok(String::new());
        }
        let devices = self.driver.enumerate()?;
        match devices.get(id - 1) {
            Some(info) => Ok(info.path.clone()),
            None => {
                let message = format!("{} has no device number {id}; it has {}", R::NAME, devices.len());
                Err(Failure::new(Code::NotFound, message))
            }
        }
    }
}

struct Table<R>(PhantomData<R>);

type Raw = *mut sys::iree_hal_driver_t;

impl<R: Driver> Table<R> {
    const VTABLE: sys::iree_hal_driver_vtable_t = sys::iree_hal_driver_vtable_t {
        destroy: Some(Self::destroy),
        query_available_devices: Some(Self::query_available_devices),
        dump_device_info: Some(Self::dump_device_info),
        create_device_by_id: Some(Self::create_device_by_id),
        create_device_by_path: Some(Self::create_device_by_path),
    };

    const INFO: sys::iree_hal_driver_info_t = sys::iree_hal_driver_info_t {
        driver_name: sys::iree_string_view_t { data: R::NAME.as_ptr().cast(), size: R::NAME.len() },
        full_name: sys::iree_string_view_t { data: R::FULL_NAME.as_ptr().cast(), size: R::FULL_NAME.len() },
    };

    const FACTORY: &'static sys::iree_hal_driver_factory_t = &sys::iree_hal_driver_factory_t {
        self_: std::ptr::null_mut(),
        enumerate: Some(Self::enumerate),
        try_create: Some(Self::try_create),
    };

    unsafe extern "C" fn enumerate(
        _factory: *mut c_void,
        out_count: *mut usize,
        out_infos: *mut *const sys::iree_hal_driver_info_t,
    ) -> sys::iree_status_t {
        // SAFETY: C passes where the answers go; the information is constant.
        unsafe {
            Out::new(out_count).set(1);
            Out::new(out_infos).set(const { &Self::INFO });
        }
        crate::ffi::status::OK
    }

    unsafe extern "C" fn try_create(
        _factory: *mut c_void,
        name: sys::iree_string_view_t,
        allocator: sys::iree_allocator_t,
        out: *mut Raw,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a name for the call and where the driver goes.
            let (name, out) = unsafe { (text(name), Out::new(out)) };
            if name != R::NAME {
                return Err(Failure::new(Code::Unavailable, format!("this is {}, not {name}", R::NAME)));
            }
            // SAFETY: C's host allocators outlive their allocations.
            let allocator = unsafe { HostAllocator::new(allocator) };
            let driver = HalDriver {
                resource: resource(const { &Self::VTABLE }),
                allocator,
                driver: Arc::new(R::create()),
            };
            out.set(allocate(allocator, driver)?.as_ptr().cast());
            Ok(())
        })
    }

    unsafe extern "C" fn destroy(driver: Raw) {
        guard_or((), || {
            let object = driver.cast::<HalDriver<R>>();
            // SAFETY: the last reference is gone.
            unsafe {
                let allocator = (*object).allocator;
                free(allocator, object);
            }
        });
    }

    unsafe extern "C" fn query_available_devices(
        driver: Raw,
        allocator: sys::iree_allocator_t,
        out_count: *mut usize,
        out_infos: *mut *mut sys::iree_hal_device_info_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live driver of ours and where the answers go.
            let (driver, count, infos) =
                unsafe { (HalDriver::<R>::of(driver), Out::new(out_count), Out::new(out_infos)) };
            let devices = driver.driver.enumerate()?;
            // SAFETY: C passes the allocator of the result.
            let allocator = unsafe { HostAllocator::new(allocator) };
            infos.set(list(&devices, allocator)?);
            count.set(devices.len());
            Ok(())
        })
    }

    unsafe extern "C" fn dump_device_info(
        driver: Raw,
        id: sys::iree_hal_device_id_t,
        builder: *mut sys::iree_string_builder_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live driver of ours.
            let driver = unsafe { HalDriver::<R>::of(driver) };
            let devices = driver.driver.enumerate()?;
            let Some(info) = devices.get(id.max(1) - 1) else {
                return Err(Failure::new(Code::NotFound, format!("{} has no device number {id}", R::NAME)));
            };
            let parameters = [&driver.driver.parameters(info), PARAMETERS].concat();
            let description =
                format!("{}\n{}", driver.driver.describe(info).trim_end(), Parameter::help(&parameters));
            // SAFETY: C passes a builder to append to.
            unsafe { check(sys::iree_string_builder_append_string(builder, view(&description))) }
        })
    }

    unsafe extern "C" fn create_device_by_id(
        driver: Raw,
        id: sys::iree_hal_device_id_t,
        param_count: usize,
        params: *const sys::iree_string_pair_t,
        create_params: *const sys::iree_hal_device_create_params_t,
        allocator: sys::iree_allocator_t,
        out: *mut *mut sys::iree_hal_device_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live driver of ours and lets us use the rest for the call.
            unsafe {
                let driver = HalDriver::<R>::of(driver);
                let (path, allocator) = (driver.path(id)?, HostAllocator::new(allocator));
                let device = driver.open(
                    &path,
                    slice(params, param_count)?,
                    required(create_params, CREATION)?,
                    allocator,
                )?;
                Out::new(out).set(device);
            }
            Ok(())
        })
    }

    unsafe extern "C" fn create_device_by_path(
        driver: Raw,
        _driver_name: sys::iree_string_view_t,
        path: sys::iree_string_view_t,
        param_count: usize,
        params: *const sys::iree_string_pair_t,
        create_params: *const sys::iree_hal_device_create_params_t,
        allocator: sys::iree_allocator_t,
        out: *mut *mut sys::iree_hal_device_t,
    ) -> sys::iree_status_t {
        guard(|| {
            // SAFETY: C passes a live driver of ours and lets us use the rest for the call.
            unsafe {
                let (driver, allocator) = (HalDriver::<R>::of(driver), HostAllocator::new(allocator));
                let device = driver.open(
                    named(path, "the path of a device")?,
                    slice(params, param_count)?,
                    required(create_params, CREATION)?,
                    allocator,
                )?;
                Out::new(out).set(device);
            }
            Ok(())
        })
    }
}

/// The refusal of a device creation without parameters.
const CREATION: &str = "device creation needs parameters, with a proactor pool";

/// The devices in one block, as C frees it: the records, then their text.
fn list(devices: &[DeviceInfo], allocator: HostAllocator) -> Result<*mut sys::iree_hal_device_info_t> {
    let records = std::mem::size_of_val(&sys::iree_hal_device_info_t::default()) * devices.len();
    let bytes: usize = devices.iter().map(|info| info.path.len() + info.name.len()).sum();
    let mut memory: *mut c_void = std::ptr::null_mut();
    // SAFETY: the block has room for the records and for all the text behind them; each is written once.
    unsafe {
        check(sys::iree_allocator_malloc(allocator.raw(), (records + bytes).max(1), &raw mut memory))?;
        let infos = memory.cast::<sys::iree_hal_device_info_t>();
        let mut place = memory.cast::<u8>().add(records);
        let mut keep = |text: &str| {
            place.copy_from(text.as_ptr(), text.len());
            let view = sys::iree_string_view_t { data: place.cast(), size: text.len() };
            place = place.add(text.len());
            view
        };
        for (at, info) in devices.iter().enumerate() {
            infos.add(at).write(sys::iree_hal_device_info_t {
                device_id: at + 1,
                path: keep(&info.path),
                name: keep(&info.name),
            });
        }
        Ok(infos)
    }
}

/// Adds a driver to IREE's registry. If it is registered already the registry stays as it is and the status says
/// so.
///
/// # Safety
///
/// The registry is alive, or null, which is refused.
pub unsafe fn register<R: Driver>(registry: *mut sys::iree_hal_driver_registry_t) -> sys::iree_status_t {
    if registry.is_null() {
        return guard(|| Err(invalid(format!("there is no registry to add {} to", R::NAME))));
    }
    // SAFETY: the factory is constant and lives for ever.
    guard(|| unsafe { check(sys::iree_hal_driver_registry_register_factory(registry, Table::<R>::FACTORY)) })
}
