// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The drivers of a library: their registration, and their declarations in the C header.

use crate::common::check;
use hal_semaphore::Code;
use hal_sys as sys;
use std::collections::BTreeSet;
use std::ptr::null_mut;

/// A registry with every driver of the library, and the names in it.
fn registered() -> (*mut sys::iree_hal_driver_registry_t, BTreeSet<String>) {
    let mut registry = null_mut();
    let (mut count, mut infos) = (0, null_mut());
    // SAFETY: the registry is the caller's to free; the list is copied before it is freed.
    unsafe {
        let allocator = sys::iree_allocator_system();
        check(sys::iree_hal_driver_registry_allocate(allocator, &raw mut registry)).unwrap();
        check(hal_driver::hal_drivers_register_all(registry)).unwrap();
        check(sys::iree_hal_driver_registry_enumerate(registry, allocator, &raw mut count, &raw mut infos))
            .unwrap();
        let names = (0..count).map(|at| {
            let name = (*infos.add(at)).driver_name;
            String::from_utf8_lossy(std::slice::from_raw_parts(name.data.cast(), name.size)).into_owned()
        });
        let names = names.collect();
        sys::iree_allocator_free(allocator, infos.cast());
        (registry, names)
    }
}

/// The names in the header's registration functions.
fn declared() -> BTreeSet<String> {
    let header = include_str!("../../include/hal_drivers.h");
    let functions = header.split("iree_hal_").filter_map(|rest| rest.split_once("_driver_module_register"));
    functions.map(|(name, _)| name.to_owned()).filter(|name| !name.contains(' ')).collect()
}

/// With every feature, registering all drivers registers those of the header.
#[cfg(all(feature = "gaudi", feature = "mock", feature = "qaic", feature = "template"))]
#[test]
fn registering_all_adds_what_the_header_declares() {
    let (registry, names) = registered();
    assert_eq!(names, declared());
    // SAFETY: nothing of the registry is in use.
    unsafe { sys::iree_hal_driver_registry_free(registry) };
}

#[test]
fn registering_all_twice_is_refused() {
    let (registry, names) = registered();
    assert!(names.is_subset(&declared()), "{names:?}");
    // SAFETY: the registry is there until it is freed below.
    let again = unsafe { check(hal_driver::hal_drivers_register_all(registry)) }.unwrap_err();
    assert_eq!(again.code, Code::AlreadyExists, "{}", again.text);
    // SAFETY: nothing of the registry is in use.
    unsafe { sys::iree_hal_driver_registry_free(registry) };
}
