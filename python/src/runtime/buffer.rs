// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Arrays on devices: created from the host's bytes or memory, and read by the host.

use super::device::Device;
use super::element::Element;
use super::instance::allocator;
use super::object::Ref;
use super::process::is_forked;
use super::status::{Error, Result, check};
use hal_sys as sys;
use smallvec::SmallVec;
use std::ffi::c_void;
use std::ptr::NonNull;

/// Dimensions, outermost first.
pub(crate) type Shape = SmallVec<[usize; 4]>;

/// An array on a device: a buffer with a shape and a type.
#[derive(Clone)]
pub(crate) struct View(pub(super) Ref<sys::iree_hal_buffer_view_t>);

/// Host memory of the program, with an owner that lives until the device has released it.
///
/// # Invariants
///
/// `length` bytes from `data` on are valid for reads on any thread as long as `owner` lives.
pub(crate) struct Foreign {
    /// The address of the first byte.
    pub(crate) data: NonNull<c_void>,
    /// The number of bytes.
    pub(crate) length: usize,
    /// Dropped when nothing uses the memory any more, on any thread.
    #[expect(dead_code, reason = "kept for its destructor")]
    pub(crate) owner: Box<dyn Send>,
}

// SAFETY: the owner goes along, and the memory may be read on any thread, by the invariant.
unsafe impl Send for Foreign {}

/// The usages of buffers, apart from mapping.
const USAGE: sys::iree_hal_buffer_usage_t =
    sys::IREE_HAL_BUFFER_USAGE_DEFAULT as sys::iree_hal_buffer_usage_t;

/// The host's access to arrays.
#[expect(clippy::cast_possible_truncation, reason = "a flag of the 16-bit type that IREE has for it")]
const READ: sys::iree_hal_memory_access_t = sys::IREE_HAL_MEMORY_ACCESS_READ as sys::iree_hal_memory_access_t;

impl View {
    /// Copies the host's bytes to a device.
    pub(crate) fn upload(device: &Device, shape: &[usize], element: Element, bytes: &[u8]) -> Result<Self> {
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
            usage: USAGE,
            ..Default::default()
        };
        let span = sys::iree_const_byte_span_t { data: bytes.as_ptr().cast(), data_length: bytes.len() };
        // SAFETY: `device` keeps the device alive, by the invariant of `Ref`; shape and bytes are read during the
        // call only.
        Ref::make(|out| unsafe {
            sys::iree_hal_buffer_view_allocate_buffer_copy(
                device.as_ptr(),
                sys::iree_hal_device_allocator(device.as_ptr()),
                shape.len(),
                shape.as_ptr().cast(),
                element.iree,
                sys::IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
                params,
                span,
                out,
            )
        })
        .map(Self)
    }

    /// Imports host memory in place, if the device can use it. Otherwise returns the memory.
    pub(crate) fn import(
        device: &Device,
        shape: &[usize],
        element: Element,
        memory: Foreign,
    ) -> std::result::Result<Self, (Error, Foreign)> {
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
            usage: USAGE | sys::IREE_HAL_BUFFER_USAGE_MAPPING,
            ..Default::default()
        };
        let mut external = sys::iree_hal_external_buffer_t {
            type_: sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
            flags: sys::IREE_HAL_EXTERNAL_BUFFER_FLAG_NONE,
            size: memory.length,
            ..Default::default()
        };
        external.handle.host_allocation.ptr = memory.data.as_ptr();
        let kept = Box::into_raw(Box::new(memory));
        let callback = sys::iree_hal_buffer_release_callback_t { fn_: Some(release), user_data: kept.cast() };
        // SAFETY: `device` keeps the device alive, by the invariant of `Ref`; the memory stays until the callback,
        // which is called once if the import succeeds and never if it fails.
        let imported = Ref::make(|out| unsafe {
            let allocator = sys::iree_hal_device_allocator(device.as_ptr());
            sys::iree_hal_allocator_import_buffer(allocator, params, &raw mut external, callback, out)
        });
        match imported {
            Ok(buffer) => Self::of(&buffer, shape, element).map_err(|error| {
                let nothing = Foreign { data: NonNull::dangling(), length: 0, owner: Box::new(()) };
                (error, nothing)
            }),
            // SAFETY: the import failed, so the callback is not called and the box is still ours.
            Err(error) => Err((error, unsafe { *Box::from_raw(kept) })),
        }
    }

    fn of(buffer: &Ref<sys::iree_hal_buffer_t>, shape: &[usize], element: Element) -> Result<Self> {
        // SAFETY: `buffer` keeps the buffer alive, by the invariant of `Ref`, and the view retains it.
        Ref::make(|out| unsafe {
            sys::iree_hal_buffer_view_create(
                buffer.as_ptr(),
                shape.len(),
                shape.as_ptr().cast(),
                element.iree,
                sys::IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR,
                allocator(),
                out,
            )
        })
        .map(Self)
    }

    /// Its dimensions.
    pub(crate) fn shape(&self) -> Shape {
        // SAFETY: this keeps the view alive, by the invariant of `Ref`; its dimensions are as many as its rank.
        unsafe {
            let rank = sys::iree_hal_buffer_view_shape_rank(self.0.as_ptr());
            (0..rank).map(|at| sys::iree_hal_buffer_view_shape_dim(self.0.as_ptr(), at)).collect()
        }
    }

    /// The type of its elements; `None` for an unknown one.
    pub(crate) fn element(&self) -> Option<Element> {
        // SAFETY: this keeps the view alive, by the invariant of `Ref`.
        Element::of(unsafe { sys::iree_hal_buffer_view_element_type(self.0.as_ptr()) })
    }

    /// The size of its elements in bytes.
    pub(crate) fn length(&self) -> usize {
        // SAFETY: this keeps the view alive, by the invariant of `Ref`.
        unsafe { sys::iree_hal_buffer_view_byte_length(self.0.as_ptr()) }
    }

    fn buffer(&self) -> *mut sys::iree_hal_buffer_t {
        // SAFETY: this keeps the view alive, by the invariant of `Ref`, and every view has a buffer.
        unsafe { sys::iree_hal_buffer_view_buffer(self.0.as_ptr()) }
    }

    /// The device that has it, if any.
    pub(crate) fn device(&self) -> Option<Device> {
        // SAFETY: the view retains its buffer; the device that it is placed on is there as long as buffers of it
        // are used, as IREE's placement says.
        unsafe { Device::retained(sys::iree_hal_buffer_allocation_placement(self.buffer()).device) }
    }

    /// Its bytes on the host: in place if they can be mapped, otherwise a copy. `device` makes the copy if the
    /// buffer does not name its device.
    pub(crate) fn host(&self, device: &Device) -> Result<HostView> {
        // SAFETY: the view retains its buffer.
        let (memory, usage) = unsafe {
            (
                sys::iree_hal_buffer_memory_type(self.buffer()),
                sys::iree_hal_buffer_allowed_usage(self.buffer()),
            )
        };
        let visible = memory & sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE != 0;
        if visible && usage & sys::IREE_HAL_BUFFER_USAGE_MAPPING_SCOPED != 0 {
            let coherent = memory & sys::IREE_HAL_MEMORY_TYPE_HOST_COHERENT != 0;
            return self.map(coherent).map(HostView::Mapped);
        }
        self.download(&self.device().unwrap_or_else(|| device.clone())).map(HostView::Copied)
    }

    fn map(&self, coherent: bool) -> Result<Mapping> {
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        // SAFETY: the view retains its buffer, and so does the mapping until it is unmapped.
        unsafe {
            check(sys::iree_hal_buffer_map_range(
                self.buffer(),
                sys::IREE_HAL_MAPPING_MODE_SCOPED,
                READ,
                0,
                self.length(),
                &raw mut mapping,
            ))?;
            let mut mapping = Mapping(mapping);
            if !coherent {
                check(sys::iree_hal_buffer_mapping_invalidate_range(&raw mut mapping.0, 0, self.length()))?;
            }
            Ok(mapping)
        }
    }

    fn download(&self, device: &Device) -> Result<Box<[CacheLine]>> {
        let mut bytes = vec![CacheLine([0; 64]); self.length().div_ceil(64)].into_boxed_slice();
        // SAFETY: `device` keeps the device alive and the view its buffer, by the invariant of `Ref`; the bytes are
        // as many as are asked for.
        unsafe {
            check(sys::iree_hal_device_transfer_d2h(
                device.as_ptr(),
                self.buffer(),
                0,
                bytes.as_mut_ptr().cast(),
                self.length(),
                sys::IREE_HAL_TRANSFER_BUFFER_FLAG_DEFAULT,
                sys::iree_infinite_timeout(),
            ))?;
        }
        Ok(bytes)
    }
}

/// Called when nothing uses imported memory any more.
unsafe extern "C" fn release(kept: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
    // SAFETY: the box of the import, which is released once.
    drop(unsafe { Box::from_raw(kept.cast::<Foreign>()) });
}

/// A cache line: the alignment of copies and of modules, whose constants are used in place.
#[derive(Clone)]
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub(super) [u8; 64]);

/// A buffer's mapped bytes.
///
/// # Invariants
///
/// IREE made the mapping, which retains its buffer, and only this ends it.
pub(crate) struct Mapping(sys::iree_hal_buffer_mapping_t);

// SAFETY: a mapping is memory and a reference to its buffer, by the invariant, which is counted atomically.
unsafe impl Send for Mapping {}
// SAFETY: it is only read through.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        // SAFETY: mapped, and unmapped here alone, by the invariant.
        let unmapped = unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut self.0)) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// An array's bytes on the host.
pub(crate) enum HostView {
    /// The device's own memory.
    Mapped(Mapping),
    /// A copy.
    Copied(Box<[CacheLine]>),
}

impl HostView {
    /// The address of the bytes, valid as long as this.
    pub(crate) fn data(&self) -> *const u8 {
        match self {
            HostView::Mapped(mapping) => mapping.0.contents.data.cast_const().cast(),
            HostView::Copied(lines) => lines.as_ptr().cast(),
        }
    }

    pub(crate) fn is_copy(&self) -> bool {
        matches!(self, HostView::Copied(_))
    }
}
