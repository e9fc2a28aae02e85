// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Constants of IREE's whose C type is wider than the field that has them, each with the field's type.
#![expect(
    clippy::cast_possible_truncation,
    reason = "IREE declares the numbers as plain enumerations and keeps them in smaller fields"
)]

use hal_sys as sys;

pub(crate) type Access = sys::iree_hal_memory_access_t;

pub(crate) const ACCESS_READ: Access = sys::IREE_HAL_MEMORY_ACCESS_READ as Access;
pub(crate) const ACCESS_WRITE: Access = sys::IREE_HAL_MEMORY_ACCESS_WRITE as Access;
pub(crate) const ACCESS_UNALIGNED: Access = sys::IREE_HAL_MEMORY_ACCESS_UNALIGNED as Access;
pub(crate) const ACCESS_ANY: Access = sys::IREE_HAL_MEMORY_ACCESS_ANY as Access;
pub(crate) const ACCESS_ALL: Access = sys::IREE_HAL_MEMORY_ACCESS_ALL as Access;

pub(crate) const WAIT_FOR_ALL: sys::iree_async_wait_mode_t =
    sys::IREE_ASYNC_WAIT_MODE_ALL as sys::iree_async_wait_mode_t;

pub(crate) const NOP: sys::iree_async_operation_type_t =
    sys::IREE_ASYNC_OPERATION_TYPE_NOP as sys::iree_async_operation_type_t;
pub(crate) const NOTIFICATION_WAIT: sys::iree_async_operation_type_t =
    sys::IREE_ASYNC_OPERATION_TYPE_NOTIFICATION_WAIT as sys::iree_async_operation_type_t;

pub(crate) const HANDLE_POLL: sys::iree_async_operation_type_t =
    sys::IREE_ASYNC_OPERATION_TYPE_HANDLE_POLL as sys::iree_async_operation_type_t;

pub(crate) const FILE_DESCRIPTOR: sys::iree_async_primitive_type_t =
    sys::IREE_ASYNC_PRIMITIVE_TYPE_FD as sys::iree_async_primitive_type_t;

pub(crate) const POLL_READABLE: sys::iree_async_poll_events_t =
    sys::IREE_ASYNC_POLL_EVENT_IN as sys::iree_async_poll_events_t;
pub(crate) const POLL_BROKEN: sys::iree_async_poll_events_t =
    (sys::IREE_ASYNC_POLL_EVENT_ERR | sys::IREE_ASYNC_POLL_EVENT_HUP) as sys::iree_async_poll_events_t;

pub(crate) type ParameterType = sys::iree_hal_executable_function_parameter_type_t;

pub(crate) const PARAMETER_BINDING: ParameterType =
    sys::IREE_HAL_EXECUTABLE_FUNCTION_PARAMETER_TYPE_BINDING as ParameterType;
pub(crate) const PARAMETER_CONSTANT: ParameterType =
    sys::IREE_HAL_EXECUTABLE_FUNCTION_PARAMETER_TYPE_CONSTANT as ParameterType;
