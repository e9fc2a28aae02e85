// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The backing of a buffer: an allocation of a device, and the HAL device that it belongs to.

use crate::ffi::object::Retained;
use crate::ffi::status::Result;
use crate::memory::shared_memory::SharedMemory;
use crate::memory::statistics::CountedBytes;
use crate::memory::virtual_addresses::VirtualAddresses;
use hal_backend::{Device, HostRange};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::Mutex;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

/// An allocation of some device, as far as a buffer's slots need it.
pub(crate) trait Backing: Send + Sync {
    /// The host's view of the whole allocation: the same each time, and valid as long as the allocation.
    fn host_view(&self) -> Option<HostRange>;
    /// Makes the host's writes visible to the device.
    fn flush(&self, offset: u64, length: u64) -> Result;
    /// Makes the device's writes visible to the host.
    fn invalidate(&self, offset: u64, length: u64) -> Result;
    /// The address of the allocation for functions, if they get addresses.
    fn address(&self) -> Option<u64>;
    /// A descriptor of the whole allocation, for other processes and devices.
    fn descriptor(&self) -> Result<OwnedFd>;
    /// The C device that owns it.
    fn parent(&self) -> &Parent;
}

/// An allocation and its device.
///
/// The fields are dropped in order: the allocation and the host's view before the device, so that an allocation
/// without other users is freed while its device exists. Work that uses it belongs to a queue, which keeps the
/// device.
pub(crate) struct DeviceMemory<D: Device> {
    memory: Arc<D::Memory>,
    /// The host's view, once it was needed. A backend may make a new one each time; this one stays as long as the
    /// allocation.
    view: OnceLock<Option<HostRange>>,
    device: Arc<D>,
    /// The C device.
    parent: Arc<Parent>,
    /// The shared memory that it was imported from, if that has a descriptor.
    shared: Option<Arc<SharedMemory>>,
    /// Subtracts the allocation from a statistic when it is dropped.
    _counted: Option<CountedBytes>,
}

impl<D: Device> DeviceMemory<D> {
    pub(crate) fn new(
        device: Arc<D>,
        parent: Arc<Parent>,
        memory: D::Memory,
        shared: Option<Arc<SharedMemory>>,
        counted: Option<CountedBytes>,
    ) -> Arc<Self> {
        let (memory, view) = (Arc::new(memory), OnceLock::new());
        Arc::new(Self { memory, view, device, parent, shared, _counted: counted })
    }
}

/// An allocation of some device, and the device's address.
///
/// # Invariants
///
/// The backing is a [`DeviceMemory`] of the device at this address, which it keeps.
pub(crate) struct AnyMemory {
    backing: Arc<dyn Backing>,
    device: *const (),
    /// The addresses that it is, if memory comes and goes there.
    addresses: Option<Arc<VirtualAddresses>>,
}

// SAFETY: a backing may be used from any thread, and the address is only compared.
unsafe impl Send for AnyMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for AnyMemory {}

impl<D: Device> From<Arc<DeviceMemory<D>>> for AnyMemory {
    fn from(memory: Arc<DeviceMemory<D>>) -> Self {
        let device = Arc::as_ptr(&memory.device).cast();
        Self { backing: memory, device, addresses: None }
    }
}

impl AnyMemory {
    /// An import of reserved addresses.
    pub(super) fn reserved<D: Device>(
        memory: Arc<DeviceMemory<D>>,
        addresses: Arc<VirtualAddresses>,
    ) -> Self {
        Self { addresses: Some(addresses), ..memory.into() }
    }

    /// The addresses, if they are reserved ones.
    #[inline]
    pub(super) fn addresses(&self) -> Option<&VirtualAddresses> {
        self.addresses.as_deref()
    }

    /// The memory, if it is that of `device`. Called for each buffer of each transfer, so it compares the device,
    /// not the type.
    #[inline]
    pub(super) fn of<D: Device>(&self, device: &Arc<D>) -> Option<&Arc<D::Memory>> {
        if self.device != Arc::as_ptr(device).cast() {
            return None;
        }
        // SAFETY: the backing keeps the device at this address, by the invariant, and `device` is alive: both are
        // the same device, which has one type. So the backing is memory of devices of that type, by the invariant.
        let memory = unsafe { &*Arc::as_ptr(&self.backing).cast::<DeviceMemory<D>>() };
        Some(&memory.memory)
    }
}

impl Deref for AnyMemory {
    type Target = dyn Backing;

    fn deref(&self) -> &Self::Target {
        &*self.backing
    }
}

impl<D: Device> Backing for DeviceMemory<D> {
    fn host_view(&self) -> Option<HostRange> {
        self.view.get_or_init(|| self.device.host_view(&self.memory)).clone()
    }

    fn flush(&self, offset: u64, length: u64) -> Result {
        self.device.flush(&self.memory, offset, length)
    }

    fn invalidate(&self, offset: u64, length: u64) -> Result {
        self.device.invalidate(&self.memory, offset, length)
    }

    fn address(&self) -> Option<u64> {
        self.device.addresses().map(|address| address(&self.memory))
    }

    fn descriptor(&self) -> Result<OwnedFd> {
        match &self.shared {
            Some(shared) => shared.descriptor(),
            None => self.device.export(&self.memory),
        }
    }

    fn parent(&self) -> &Parent {
        &self.parent
    }
}

/// A C device, for objects that do not keep it: buffers may outlive it.
///
/// # Invariants
///
/// The pointer is null or a device whose structure is not freed while the lock is held. The device may be in its
/// teardown, with no reference left.
#[derive(Default)]
pub(crate) struct Parent {
    device: AtomicPtr<sys::iree_hal_device_t>,
    lock: Mutex<()>,
}

impl Parent {
    /// The device's address, for comparisons and messages only; null if it is gone.
    pub(crate) fn address(&self) -> *mut sys::iree_hal_device_t {
        self.device.load(Ordering::Acquire)
    }

    /// A reference to the device, unless it is gone or in its teardown.
    pub(crate) fn retain(&self) -> Option<Retained<sys::iree_hal_device_t>> {
        let _stays = self.lock.lock();
        let device = NonNull::new(self.address())?.as_ptr();
        // SAFETY: the structure is alive, by the invariant; it begins with its count, which IREE changes by
        // atomics. The counted reference is ours.
        unsafe {
            let resource = device.cast::<sys::iree_hal_resource_t>();
            let count = AtomicI32::from_ptr(&raw mut (*resource).ref_count);
            let more = |count: i32| (count > 0).then_some(count + 1);
            count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
            Retained::adopt(device)
        }
    }

    /// Sets the device, when it exists.
    ///
    /// # Safety
    ///
    /// It is [forgotten](Self::forget) before it is freed.
    pub(crate) unsafe fn is(&self, device: *mut sys::iree_hal_device_t) {
        self.device.store(device, Ordering::Release);
    }

    /// Prevents [`detach`](Self::detach) while the guard lives.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// Clears the device, when it has no reference any more.
    pub(crate) fn forget(&self) {
        let _locked = self.lock.lock();
        self.device.store(std::ptr::null_mut(), Ordering::Release);
    }
}

#[cold]
pub(crate) fn owner_is_gone() -> Failure {
    let message = "the buffer's device was released, and only it could access the buffer's memory; copy the \
                   buffer before releasing its device";
    Failure::new(Code::FailedPrecondition, message)
}
