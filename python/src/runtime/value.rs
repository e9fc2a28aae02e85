// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The arguments and results of functions: numbers, arrays, and lists of them.

use super::buffer::View;
use super::instance::allocator;
use super::object::Ref;
use super::status::{Error, Result, check};
use hal_sys as sys;

/// How the machine passes an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentKind {
    I32,
    I64,
    F32,
    F64,
    /// An array, a list, or another object.
    Object,
}

/// An argument or a result.
#[derive(Clone)]
pub(crate) enum Value {
    /// An absent object.
    None,
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    Array(View),
    List(Vec<Value>),
}

pub(super) type List = Ref<sys::iree_vm_list_t>;

/// An empty list for any values.
pub(super) fn list(capacity: usize) -> Result<List> {
    // SAFETY: the list is owned as soon as it exists.
    Ref::make(|out| unsafe {
        sys::iree_vm_list_create(sys::iree_vm_make_undefined_type_def(), capacity, allocator(), out)
    })
}

/// Appends an object to a list, which adds a reference.
///
/// # Safety
///
/// The reference is one that the caller owns, and gives up.
pub(super) unsafe fn push_object(list: &List, mut object: sys::iree_vm_ref_t) -> Result {
    // SAFETY: `list` keeps the list alive, by the invariant of `Ref`; a reference that was not moved is released.
    unsafe {
        let pushed = check(sys::iree_vm_list_push_ref_move(list.as_ptr(), &raw mut object));
        sys::iree_vm_ref_release(&raw mut object);
        pushed
    }
}

/// Adds a value to a list.
pub(super) fn push(list: &List, value: &Value) -> Result {
    // SAFETY: `list` keeps the list alive, by the invariant of `Ref`; references are retained for it.
    unsafe {
        let number = match value {
            Value::None => return push_object(list, sys::iree_vm_ref_null()),
            Value::Array(view) => {
                return push_object(list, sys::iree_hal_buffer_view_retain_ref(view.0.as_ptr()));
            }
            Value::List(values) => {
                let inner = self::list(values.len())?;
                values.iter().try_for_each(|value| push(&inner, value))?;
                return push_object(list, sys::iree_vm_list_retain_ref(inner.as_ptr()));
            }
            Value::I32(number) => sys::iree_vm_value_make_i32(*number),
            Value::I64(number) => sys::iree_vm_value_make_i64(*number),
            Value::F32(number) => sys::iree_vm_value_make_f32(*number),
            Value::F64(number) => sys::iree_vm_value_make_f64(*number),
        };
        check(sys::iree_vm_list_push_value(list.as_ptr(), &raw const number))
    }
}

/// The values of a list.
pub(super) fn values(list: &List) -> Result<Vec<Value>> {
    // SAFETY: `list` keeps the list alive, by the invariant of `Ref`.
    let count = unsafe { sys::iree_vm_list_size(list.as_ptr()) };
    (0..count).map(|at| value(list, at)).collect()
}

fn value(list: &List, at: usize) -> Result<Value> {
    // SAFETY: `list` keeps the list alive, by the invariant of `Ref`, and it has this element; what a reference of
    // it refers to is retained before the list can go.
    unsafe {
        let mut variant = std::mem::zeroed::<sys::iree_vm_variant_t>();
        check(sys::iree_vm_list_get_variant_assign(list.as_ptr(), at, &raw mut variant))?;
        if sys::iree_vm_variant_is_ref(variant) {
            return object(variant.__bindgen_anon_1.ref_);
        }
        // An element that was never set, or set to nothing.
        if !sys::iree_vm_variant_is_value(variant) {
            return Ok(Value::None);
        }
        let mut number = std::mem::zeroed::<sys::iree_vm_value_t>();
        check(sys::iree_vm_list_get_value(list.as_ptr(), at, &raw mut number))?;
        Ok(match number.type_ {
            sys::IREE_VM_VALUE_TYPE_I8 => Value::I32(number.__bindgen_anon_1.i8_.into()),
            sys::IREE_VM_VALUE_TYPE_I16 => Value::I32(number.__bindgen_anon_1.i16_.into()),
            sys::IREE_VM_VALUE_TYPE_I32 => Value::I32(number.__bindgen_anon_1.i32_),
            sys::IREE_VM_VALUE_TYPE_I64 => Value::I64(number.__bindgen_anon_1.i64_),
            sys::IREE_VM_VALUE_TYPE_F32 => Value::F32(number.__bindgen_anon_1.f32_),
            sys::IREE_VM_VALUE_TYPE_F64 => Value::F64(number.__bindgen_anon_1.f64_),
            _ => Value::None,
        })
    }
}

/// # Safety
///
/// The object of the reference is alive.
unsafe fn object(reference: sys::iree_vm_ref_t) -> Result<Value> {
    if reference.ptr.is_null() {
        return Ok(Value::None);
    }
    // SAFETY: what the reference refers to is alive, as the function asks; each cast is checked by its type.
    unsafe {
        if reference.type_ == sys::iree_hal_buffer_view_registration
            && let Some(view) = Ref::retained(reference.ptr.cast())
        {
            return Ok(Value::Array(View(view)));
        }
        if let Some(list) = Ref::retained(sys::iree_vm_list_deref(reference)) {
            return values(&list).map(Value::List);
        }
    }
    Err(Error::new(
        "UNIMPLEMENTED",
        "the function returned an object that is neither an array nor a list, which this package cannot show",
    ))
}
