// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ownership of C objects as types: retained references, objects of ours, out-parameters.

use crate::ffi::status::{Result, check, invalid};
use hal_semaphore::Failure;
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};

/// A reference-counted C object.
///
/// # Safety
///
/// `retain` and `release` count references of a live object, on any thread.
pub(crate) unsafe trait Counted {
    ///
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn retain(object: *mut Self);

    /// Removes a reference; removing the last one destroys the object.
    ///
    /// # Safety
    ///
    /// The caller owns the reference.
    unsafe fn release(object: *mut Self);
}

macro_rules! counted {
    ($($object:ident => $retain:ident, $release:ident;)*) => {$(
        // SAFETY: IREE's own functions, which count atomically.
        unsafe impl Counted for sys::$object {
            unsafe fn retain(object: *mut Self) {
                // SAFETY: the object is alive, as the caller promises.
                unsafe { sys::$retain(object) }
            }

            unsafe fn release(object: *mut Self) {
                // SAFETY: the reference is the caller's, as it promises.
                unsafe { sys::$release(object) }
            }
        }
    )*};
}

counted! {
    iree_async_frontier_tracker_t => iree_async_frontier_tracker_retain, iree_async_frontier_tracker_release;
    iree_async_notification_t => iree_async_notification_retain, iree_async_notification_release;
    iree_async_proactor_pool_t => iree_async_proactor_pool_retain, iree_async_proactor_pool_release;
    iree_hal_allocator_t => iree_hal_allocator_retain, iree_hal_allocator_release;
    iree_hal_buffer_t => iree_hal_buffer_retain, iree_hal_buffer_release;
    iree_hal_channel_provider_t => iree_hal_channel_provider_retain, iree_hal_channel_provider_release;
    iree_hal_command_buffer_t => iree_hal_command_buffer_retain, iree_hal_command_buffer_release;
    iree_hal_device_t => iree_hal_device_retain, iree_hal_device_release;
    iree_hal_executable_loader_t => iree_hal_executable_loader_retain, iree_hal_executable_loader_release;
    iree_hal_executable_plugin_manager_t =>
        iree_hal_executable_plugin_manager_retain, iree_hal_executable_plugin_manager_release;
    iree_hal_executable_t => iree_hal_executable_retain, iree_hal_executable_release;
    iree_hal_file_t => iree_hal_file_retain, iree_hal_file_release;
    iree_hal_pool_t => iree_hal_pool_retain, iree_hal_pool_release;
    iree_hal_semaphore_t => iree_hal_semaphore_retain, iree_hal_semaphore_release;
    iree_hal_slab_provider_t => iree_hal_slab_provider_retain, iree_hal_slab_provider_release;
}

/// An object that is kept alive for `'a` elsewhere: by C during a call, or by a reference.
///
/// # Invariants
///
/// The object is alive for `'a`.
pub(crate) struct Borrowed<'a, T>(NonNull<T>, PhantomData<&'a T>);

impl<T> Clone for Borrowed<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Borrowed<'_, T> {}

impl<'a, T> Borrowed<'a, T> {
    /// The object at a pointer, unless it is null.
    ///
    /// # Safety
    ///
    /// The object is alive for `'a`, or the pointer is null.
    pub(crate) unsafe fn new(object: *mut T) -> Option<Self> {
        NonNull::new(object).map(|object| Self(object, PhantomData))
    }

    /// The pointer, for a call to C.
    pub(crate) fn get(self) -> *mut T {
        self.0.as_ptr()
    }

    /// The same; null is refused with the message `missing`.
    ///
    /// # Safety
    ///
    /// As for [`new`](Self::new).
    pub(crate) unsafe fn required(object: *mut T, missing: &str) -> Result<Self> {
        // SAFETY: the object is alive for `'a` or null, as the caller promises.
        unsafe { Self::new(object) }.ok_or_else(|| invalid(missing))
    }
}

impl<T: Counted> Borrowed<'_, T> {
    /// A new reference.
    pub(crate) fn retain(self) -> Retained<T> {
        // SAFETY: the object is alive for `'a`, by the invariant of `Borrowed`. The result owns the new reference,
        // as `Retained` requires.
        unsafe { T::retain(self.get()) };
        Retained(self.0)
    }
}

/// A counted reference: clone retains, drop releases.
///
/// # Invariants
///
/// The object is alive, and one of its references is this one's.
pub(crate) struct Retained<T: Counted>(NonNull<T>);

// SAFETY: IREE's objects are counted atomically and used from any thread.
unsafe impl<T: Counted> Send for Retained<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Counted> Sync for Retained<T> {}

impl<T: Counted> Retained<T> {
    /// Retains an object of C's.
    ///
    /// # Safety
    ///
    /// The object is alive, or the pointer is null.
    pub(crate) unsafe fn retain(object: *mut T) -> Option<Self> {
        // SAFETY: the object is alive or the pointer null, as the caller promises.
        unsafe { Borrowed::new(object) }.map(Borrowed::retain)
    }

    /// Takes over a reference from C.
    ///
    /// # Safety
    ///
    /// The caller owns a reference to the object, and no longer has it afterwards; or the pointer is null.
    pub(crate) unsafe fn adopt(object: *mut T) -> Option<Self> {
        NonNull::new(object).map(Self)
    }

    /// The pointer, for a call to C.
    pub(crate) fn get(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// The object, borrowed from this reference.
    pub(crate) fn borrow(&self) -> Borrowed<'_, T> {
        Borrowed(self.0, PhantomData)
    }

    /// Gives the reference to C.
    pub(crate) fn into_raw(self) -> *mut T {
        let object = self.0.as_ptr();
        std::mem::forget(self);
        object
    }
}

/// An object of the HAL.
///
/// # Safety
///
/// It begins with IREE's header of resources.
pub(crate) unsafe trait Resource: Counted {}

// SAFETY: a buffer's first field is the header.
unsafe impl Resource for sys::iree_hal_buffer_t {}
// SAFETY: a command buffer's first field is the header.
unsafe impl Resource for sys::iree_hal_command_buffer_t {}

impl<T: Resource> Retained<T> {
    /// Releases the reference unless it is the last one, which is returned: its release may call the program.
    pub(crate) fn release_unless_last(self) -> Option<Self> {
        let header = self.get().cast::<sys::iree_hal_resource_t>();
        // SAFETY: the object is alive, by the invariant of `Retained`, and begins with the header, whose count IREE
        // declares atomic and changes so.
        let count = unsafe { AtomicI32::from_ptr(&raw mut (*header).ref_count) };
        // With IREE's ordering of releases: every use of the object happens before its destruction.
        let fewer = |count: i32| (count > 1).then_some(count - 1);
        match count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer) {
            Ok(_) => {
                std::mem::forget(self);
                None
            }
            Err(_) => Some(self),
        }
    }
}

impl<T: Counted> Clone for Retained<T> {
    fn clone(&self) -> Self {
        // SAFETY: the object is alive by the reference that this owns; the new one is the clone's.
        unsafe { T::retain(self.get()) };
        Self(self.0)
    }
}

impl<T: Counted> Drop for Retained<T> {
    fn drop(&mut self) {
        // SAFETY: the reference of the invariant, given up once.
        unsafe { T::release(self.get()) };
    }
}

/// A host allocator of the program.
///
/// # Invariants
///
/// It may be used on any thread, as long as any of its allocations lives.
#[derive(Clone, Copy)]
pub(crate) struct HostAllocator(sys::iree_allocator_t);

// SAFETY: the invariant, as IREE asks of host allocators.
unsafe impl Send for HostAllocator {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostAllocator {}

impl HostAllocator {
    /// The allocator from C.
    ///
    /// # Safety
    ///
    /// It can be used on any thread, as long as anything lives that is made with it.
    pub(crate) unsafe fn new(allocator: sys::iree_allocator_t) -> Self {
        Self(allocator)
    }

    /// The allocator, for a call to C.
    pub(crate) fn raw(self) -> sys::iree_allocator_t {
        self.0
    }
}

/// Moves an object of ours into memory of C's host allocator, which must account for it.
pub(crate) fn allocate<T>(allocator: HostAllocator, value: T) -> Result<NonNull<T>> {
    const { assert!(align_of::<T>() <= 16, "host allocators align to 16 bytes") };
    let mut memory: *mut c_void = std::ptr::null_mut();
    // SAFETY: the allocator may be used, by its invariant; the out-parameter is ours.
    unsafe {
        check(sys::iree_allocator_malloc_uninitialized(allocator.raw(), size_of::<T>(), &raw mut memory))?
    };
    let object = memory.cast::<T>();
    // SAFETY: the memory is fresh, large enough and aligned.
    unsafe { object.write(value) };
    NonNull::new(object).ok_or_else(|| {
        hal_semaphore::Failure::new(hal_semaphore::Code::ResourceExhausted, "the host allocator is empty")
    })
}

/// Drops an object of ours and frees its memory.
///
/// # Safety
///
/// The object came from [`allocate`] with this allocator, and is not used any more.
pub(crate) unsafe fn free<T>(allocator: HostAllocator, object: *mut T) {
    // SAFETY: the object is the allocator's and not in use, as the caller promises.
    unsafe {
        object.drop_in_place();
        sys::iree_allocator_free(allocator.raw(), object.cast());
    }
}

/// Memory of the host allocator, zeroed at first.
///
/// # Invariants
///
/// `start` is a block of `allocator`, which only this frees.
pub(crate) struct HostMemory {
    start: NonNull<c_void>,
    allocator: HostAllocator,
}

// SAFETY: the memory is only allocated and freed here; users of its address answer for what they do there.
unsafe impl Send for HostMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(crate) fn zeroed(allocator: HostAllocator, length: usize) -> Result<Self> {
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: the allocator may be used, by its invariant; the out-parameter is ours.
        unsafe { check(sys::iree_allocator_malloc(allocator.raw(), length, &raw mut memory))? };
        let start = NonNull::new(memory).ok_or_else(|| invalid("memory has an address"))?;
        Ok(Self { start, allocator })
    }

    /// Its address, valid as long as it lives.
    pub(crate) fn start(&self) -> *mut c_void {
        self.start.as_ptr()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: the block of the invariant, returned once.
        unsafe { sys::iree_allocator_free(self.allocator.raw(), self.start.as_ptr()) };
    }
}

/// A result for a C caller: written once, and only on success.
///
/// # Invariants
///
/// The pointer is null or valid for one write.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    ///
    /// The pointer is null or valid for one write during the call.
    pub(crate) unsafe fn new(out: *mut T) -> Self {
        Self(out)
    }

    pub(crate) fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for this write, by the invariant.
            unsafe { self.0.write(value) };
        }
    }
}

/// A slice of C's, borrowed for one call. A null pointer with elements is refused: treating it as empty would do
/// something else than was asked.
///
/// # Safety
///
/// `data` is null, or valid for `count` elements as long as the result is used, or `count` is zero.
#[inline]
pub(crate) unsafe fn slice<'a, T>(data: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(at_no_address(count));
    }
    // SAFETY: so many elements are valid there as long as the result is used, as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

#[cold]
fn at_no_address(count: usize) -> Failure {
    invalid(format!("{count} elements were passed with a null pointer"))
}

/// Text of C's that names something, borrowed for one call. Text that is not UTF-8 is refused: treating it as empty
/// would select something that it does not name, such as the default device.
///
/// # Safety
///
/// The view is valid as long as the result is used.
pub(crate) unsafe fn named<'a>(view: sys::iree_string_view_t, what: &str) -> Result<&'a str> {
    // SAFETY: valid as long as the result is used, as the caller promises.
    let bytes = unsafe { slice(view.data.cast::<u8>(), view.size)? };
    std::str::from_utf8(bytes).map_err(|error| invalid(format!("{what} is not UTF-8: {error}")))
}

/// A structure of C's, borrowed for one call. Null is refused with the message `what`.
///
/// # Safety
///
/// The pointer is null, or valid as long as the result is used.
pub(crate) unsafe fn required<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: null or valid, as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(format!("{what} (a null pointer was passed)")))
}

/// Bytes of C's from an offset on, borrowed for one call.
///
/// # Safety
///
/// `data` is null, or valid for `offset` and as many bytes behind it as long as the result is used, or `count` is zero.
#[inline]
pub(crate) unsafe fn bytes<'a>(data: *const c_void, offset: usize, count: usize) -> Result<&'a [u8]> {
    let data = data.cast::<u8>();
    let start = if data.is_null() { data } else { data.wrapping_add(offset) };
    // SAFETY: null or valid from the offset on, as the caller promises.
    unsafe { slice(start, count) }
}

/// A size of IREE's, which has as many bits as an address, as a size of ours, which has 64.
pub(crate) fn to_u64(size: sys::iree_device_size_t) -> u64 {
    size as u64
}

/// A length of IREE's, whose largest value means "to the end".
pub(crate) fn extent(length: sys::iree_device_size_t) -> u64 {
    if length == sys::iree_device_size_t::MAX { u64::MAX } else { to_u64(length) }
}

/// A size of ours as one of IREE's. A size that does not fit becomes the largest, which no memory has.
pub(crate) fn to_device_size(size: u64) -> sys::iree_device_size_t {
    sys::iree_device_size_t::try_from(size).unwrap_or(sys::iree_device_size_t::MAX)
}

/// The header of every HAL object. IREE counts references in it, on any thread, while others share the object.
#[repr(C)]
pub(crate) struct Header(UnsafeCell<sys::iree_hal_resource_t>);

/// The header of a new object, with one reference.
pub(crate) fn resource<V>(vtable: *const V) -> Header {
    Header(UnsafeCell::new(sys::iree_hal_resource_t { ref_count: 1, vtable: vtable.cast() }))
}

/// A pointer to C's data that the driver keeps but never reads.
pub(crate) struct Opaque(pub(crate) *mut c_void);

// SAFETY: never read here, only passed back to C.
unsafe impl Send for Opaque {}
// SAFETY: as for `Send`.
unsafe impl Sync for Opaque {}
