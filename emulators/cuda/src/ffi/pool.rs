// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Pools, and memory that is allocated and freed in the order of streams.

use super::{Call, get, put};
use crate::driver::Pool;
use crate::driver::memory::{Kind, Life};
use crate::driver::report::Rule;
use crate::driver::status::{Error, Outcome};
use crate::driver::stream::Op;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

/// Where memory is: `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Location {
    /// A device is 1.
    pub(super) kind: i32,
    /// The device.
    pub(super) id: i32,
}

/// What a pool is: `CUmemPoolProps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Properties {
    /// Pinned memory is 1.
    pub(super) allocation: i32,
    /// Which handles other processes get.
    pub(super) handles: i32,
    /// Where.
    pub(super) location: Location,
    /// Not used on this system.
    pub(super) security: *mut c_void,
    /// The most that it has; 0 for as much as there is.
    pub(super) most: usize,
    /// What for.
    pub(super) usage: u16,
    /// Zeros.
    pub(super) reserved: [u8; 54],
}

/// Who may access: `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Access {
    /// From where.
    pub(super) location: Location,
    /// Nothing, reads, or both: 0, 1, 3.
    pub(super) flags: i32,
}

const _: () = assert!(size_of::<Properties>() == 88 && size_of::<Access>() == 12);

pub(super) unsafe fn default(call: Call, pool: *mut u64, device: i32) -> Outcome {
    call.driver.device(device)?;
    // SAFETY: the caller's promise.
    unsafe { put(pool, call.driver.pools(device).1) }
}

pub(super) unsafe fn current(call: Call, pool: *mut u64, device: i32) -> Outcome {
    call.driver.device(device)?;
    // SAFETY: the caller's promise.
    unsafe { put(pool, call.driver.pools(device).0) }
}

pub(super) unsafe fn set_current(call: Call, device: i32, pool: u64) -> Outcome {
    call.driver.device(device)?;
    let (_, first) = call.driver.pools(device);
    let mut objects = call.driver.objects();
    if objects.pools.get(&pool).is_none_or(|it| it.device != device) {
        return Err(Error::INVALID_VALUE);
    }
    objects.device_pools.insert(device, (pool, first));
    Ok(())
}

pub(super) unsafe fn allocate(call: Call, address: *mut u64, size: usize, stream: u64) -> Outcome {
    let (context, _) = call.stream(stream)?;
    let (pool, _) = call.driver.pools(context.device);
    // SAFETY: the caller's promise.
    unsafe { allocate_from(call, address, size, pool, stream) }
}

pub(super) unsafe fn allocate_from(
    call: Call,
    address: *mut u64,
    size: usize,
    pool: u64,
    stream: u64,
) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    let device = call.driver.objects().pools.get(&pool).map(|it| it.device);
    if device.ok_or_else(|| call.driver.bad_handle("pool", pool))? != context.device || address.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let made = call.driver.allocate(&context, Kind::Pool(pool), size as u64, Life::Pending)?;
    let at = made.address;
    call.driver.submit(&context, &stream, Op::Life(made, Life::Live));
    // SAFETY: the caller's promise.
    unsafe { put(address, at) }
}

pub(super) unsafe fn free(call: Call, address: u64, stream: u64) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    if address == 0 {
        return Ok(());
    }
    let found = call.driver.memory.at(address).filter(|found| found.address == address);
    let is_leaving = found.as_ref().is_some_and(|found| found.is_leaving.swap(true, Relaxed));
    if is_leaving || call.driver.memory.was_freed(address) {
        call.driver.report.broken(Rule::UseAfterFree, || format!("{}: {address:#x}, again", call.name));
        return Err(Error::INVALID_VALUE);
    }
    let found = found.ok_or(Error::INVALID_VALUE)?;
    if !matches!(found.kind, Kind::Device | Kind::Pool(_)) {
        found.is_leaving.store(false, Relaxed);
        return Err(Error::INVALID_VALUE);
    }
    call.driver.submit(&context, &stream, Op::Life(found, Life::Freed));
    Ok(())
}

pub(super) unsafe fn create(call: Call, pool: *mut u64, properties: *const Properties) -> Outcome {
    // SAFETY: the caller's promise.
    let properties = unsafe { get(properties) }?;
    if properties.allocation != 1 || properties.location.kind != 1 || properties.reserved != [0; 54] {
        return Err(Error::INVALID_VALUE);
    }
    if properties.handles != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    let device = properties.location.id;
    call.driver.device(device)?;
    let mut objects = call.driver.objects();
    let handle = objects.handle();
    let most = properties.most as u64;
    objects.pools.insert(handle, Pool { device, most, settings: HashMap::new(), used: (0, 0) });
    // SAFETY: the caller's promise.
    unsafe { put(pool, handle) }
}

pub(super) unsafe fn destroy(call: Call, pool: u64) -> Outcome {
    let mut objects = call.driver.objects();
    let Some(found) = objects.pools.get(&pool) else {
        drop(objects);
        return Err(call.driver.bad_handle("pool", pool));
    };
    let (used, device) = (found.used.0, found.device);
    if let Some((current, first)) = objects.device_pools.get_mut(&device) {
        if *first == pool {
            return Err(Error::INVALID_VALUE);
        }
        if *current == pool {
            *current = *first;
        }
    }
    objects.pools.remove(&pool);
    drop(objects);
    // After an error that stays nothing is freed any more.
    if used > 0 && call.driver.sticky.check().is_ok() {
        call.driver.report.broken(Rule::DestroyedInUse, || format!("a pool with {used} bytes in use"));
    }
    Ok(())
}

fn check(call: Call, pool: u64) -> Outcome {
    let is_known = call.driver.objects().pools.contains_key(&pool);
    if is_known { Ok(()) } else { Err(call.driver.bad_handle("pool", pool)) }
}

pub(super) unsafe fn trim(call: Call, pool: u64, _: usize) -> Outcome {
    check(call, pool)
}

pub(super) unsafe fn set_attribute(call: Call, pool: u64, attribute: i32, value: *const c_void) -> Outcome {
    check(call, pool)?;
    // SAFETY: the caller's promise: the first three are numbers of 32 bits, the others of 64.
    let value = unsafe {
        match attribute {
            1..=3 => u64::from(get(value.cast::<u32>())?),
            4 | 6 | 8 => get(value.cast::<u64>())?,
            _ => return Err(Error::INVALID_VALUE),
        }
    };
    let mut objects = call.driver.objects();
    let Some(found) = objects.pools.get_mut(&pool) else { return Err(Error::INVALID_HANDLE) };
    if matches!(attribute, 6 | 8) {
        // The highest value can only begin anew.
        if value != 0 {
            return Err(Error::INVALID_VALUE);
        }
        found.used.1 = found.used.0;
    } else {
        found.settings.insert(attribute, value);
    }
    Ok(())
}

pub(super) unsafe fn attribute(call: Call, pool: u64, attribute: i32, value: *mut c_void) -> Outcome {
    check(call, pool)?;
    let objects = call.driver.objects();
    let Some(found) = objects.pools.get(&pool) else { return Err(Error::INVALID_HANDLE) };
    let set = |or: u64| found.settings.get(&attribute).copied().unwrap_or(or);
    // SAFETY: the caller's promise: the first three are numbers of 32 bits, the others of 64.
    unsafe {
        match attribute {
            1..=3 => put(value.cast::<u32>(), u32::try_from(set(1)).unwrap_or(1)),
            4 => put(value.cast::<u64>(), set(0)),
            5 | 7 => put(value.cast::<u64>(), found.used.0),
            6 | 8 => put(value.cast::<u64>(), found.used.1),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

pub(super) unsafe fn set_access(call: Call, pool: u64, map: *const Access, count: usize) -> Outcome {
    check(call, pool)?;
    let own = call.driver.objects().pools.get(&pool).map(|it| it.device);
    for at in 0..count {
        // SAFETY: the caller's promise.
        let access = unsafe { get(map.wrapping_add(at)) }?;
        call.driver.device(access.location.id)?;
        if access.location.kind != 1 || !matches!(access.flags, 0 | 1 | 3) {
            return Err(Error::INVALID_VALUE);
        }
        // The programming guide on pools: what their own device may access cannot be revoked.
        if access.flags == 0 && own == Some(access.location.id) {
            return Err(Error::INVALID_VALUE);
        }
    }
    Ok(())
}

pub(super) unsafe fn access(call: Call, flags: *mut i32, pool: u64, location: *const Location) -> Outcome {
    check(call, pool)?;
    // SAFETY: the caller's promise.
    unsafe {
        call.driver.device(get(location)?.id)?;
        put(flags, 3)
    }
}
