// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Copies and sets.

use super::Call;
use crate::driver::memory::Target;
use crate::driver::report::Rule;
use crate::driver::status::{Error, Outcome};
use crate::driver::stream::{Op, Rows};

/// The largest pitch: `CU_DEVICE_ATTRIBUTE_MAX_PITCH`.
const MOST_PITCH: usize = i32::MAX as usize;

/// Rows to copy: `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Copy2D {
    /// The source.
    pub(super) from: Side2D,
    /// The destination.
    pub(super) to: Side2D,
    /// Bytes of a row.
    pub(super) width: usize,
    /// How many.
    pub(super) height: usize,
}

/// One side of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Side2D {
    /// Bytes to skip.
    pub(super) x: usize,
    /// Rows to skip.
    pub(super) y: usize,
    /// The host's 1, the device's 2, either 4.
    pub(super) kind: u32,
    /// The address on the host.
    pub(super) host: u64,
    /// The address on the device.
    pub(super) device: u64,
    /// Not supported.
    pub(super) array: u64,
    /// From one row to the next.
    pub(super) pitch: usize,
}

const _: () = assert!(size_of::<Copy2D>() == 128);

/// Where the rows of a side begin, and what lies between the beginnings of two.
pub(super) fn side(
    (kind, host, device): (u32, u64, u64),
    (x, y): (usize, usize),
    pitch: usize,
    width: usize,
) -> Outcome<(u64, usize)> {
    let base = match kind {
        1 => host,
        2 | 4 => device,
        _ => return Err(Error::NOT_SUPPORTED),
    };
    let row = x.checked_add(width).ok_or(Error::INVALID_VALUE)?;
    let pitch = if pitch == 0 { row } else { pitch };
    // The notes on pitches at `cuMemcpy2D`.
    if pitch < row || pitch > MOST_PITCH {
        return Err(Error::INVALID_VALUE);
    }
    let skipped = y.checked_mul(pitch).and_then(|rows| rows.checked_add(x)).ok_or(Error::INVALID_VALUE)?;
    Ok((base.checked_add(skipped as u64).ok_or(Error::INVALID_VALUE)?, pitch))
}

/// Checks both sides of a copy.
pub(super) fn sides(call: Call, to: u64, from: u64, rows: Rows) -> Outcome<(Target, Target)> {
    let spans = |pitch: usize| {
        let before = rows.height.saturating_sub(1).checked_mul(pitch);
        before.and_then(|before| before.checked_add(rows.width)).ok_or(Error::INVALID_VALUE)
    };
    if rows.height > 1 && (rows.to_pitch < rows.width || rows.from_pitch < rows.width) {
        return Err(Error::INVALID_VALUE);
    }
    let memory = &call.driver.memory;
    let from = memory.target(&call.driver.report, from, spans(rows.from_pitch)? as u64)?;
    let to = memory.target(&call.driver.report, to, spans(rows.to_pitch)? as u64)?;
    Ok((to, from))
}

/// Which memory the name of a function gives its sides.
#[derive(Clone, Copy)]
enum Direction {
    Any,
    ToDevice,
    FromDevice,
    WithinDevice,
}

/// Checks both sides of a copy, and that they are what the function's name says.
fn operands(
    call: Call,
    direction: Direction,
    to: u64,
    from: u64,
    rows: Rows,
) -> Outcome<Option<(Target, Target)>> {
    if rows.width == 0 || rows.height == 0 {
        return Ok(None);
    }
    let overlaps = |pitch: usize| {
        let length = (rows.height - 1).saturating_mul(pitch).saturating_add(rows.width) as u64;
        to < from.saturating_add(length) && from < to.saturating_add(length)
    };
    let (to_side, from_side) = sides(call, to, from, rows)?;
    // An address of the device may be of pinned memory, and one of the host is never of the device's own.
    let fits = match direction {
        Direction::Any => true,
        Direction::ToDevice => !to_side.is_pageable() && !from_side.is_device(),
        Direction::FromDevice => !from_side.is_pageable() && !to_side.is_device(),
        Direction::WithinDevice => !to_side.is_pageable() && !from_side.is_pageable(),
    };
    if !fits {
        return Err(Error::INVALID_VALUE);
    }
    if rows.height == 1 && overlaps(rows.to_pitch) {
        call.driver.report.broken(Rule::CopyOverlaps, || format!("{}: {from:#x} to {to:#x}", call.name));
    }
    Ok(Some((to_side, from_side)))
}

/// An asynchronous copy. What it waits for: "API synchronization behavior" of the driver interface's manual, "Memcpy".
fn submit(call: Call, stream: u64, direction: Direction, to: u64, from: u64, rows: Rows) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    let Some((to, from)) = operands(call, direction, to, from, rows)? else { return Ok(()) };
    let is_within_host = !to.is_device() && !from.is_device();
    let rule = if is_within_host { Rule::HostCopy } else { Rule::PageableCopy };
    let blocks = is_within_host || to.is_pageable() || from.is_pageable();
    let done = call.driver.submit(&context, &stream, Op::Copy(to, from, rows));
    if blocks {
        call.driver.report.broken(rule, || {
            format!("{}: {} bytes; the call waits for all before it", call.name, rows.width * rows.height)
        });
        done.wait();
    }
    Ok(())
}

/// A synchronous copy: one within a device's memory is not waited for, by the same section.
fn now(call: Call, direction: Direction, to: u64, from: u64, rows: Rows) -> Outcome {
    let (context, stream) = call.stream(0)?;
    let Some((to, from)) = operands(call, direction, to, from, rows)? else { return Ok(()) };
    let waits = !to.is_device() || !from.is_device();
    let done = call.driver.submit(&context, &stream, Op::Copy(to, from, rows));
    if waits {
        done.wait();
    }
    call.driver.sticky.check()
}

macro_rules! directions {
    ($($direction:ident $now:ident $submit:ident;)*) => {$(
        pub(super) unsafe fn $now(call: Call, to: u64, from: u64, size: usize) -> Outcome {
            now(call, Direction::$direction, to, from, Rows::one(size))
        }

        pub(super) unsafe fn $submit(call: Call, to: u64, from: u64, size: usize, stream: u64) -> Outcome {
            submit(call, stream, Direction::$direction, to, from, Rows::one(size))
        }
    )*};
}

directions! {
    Any any any_async;
    ToDevice to_device to_device_async;
    FromDevice from_device from_device_async;
    WithinDevice within_device within_device_async;
}

unsafe fn read_plane(copy: *const Copy2D) -> Outcome<(u64, u64, Rows)> {
    // SAFETY: the caller's promise.
    let copy = unsafe { super::get(copy) }?;
    let of = |it: &Side2D| side((it.kind, it.host, it.device), (it.x, it.y), it.pitch, copy.width);
    let ((to, to_pitch), (from, from_pitch)) = (of(&copy.to)?, of(&copy.from)?);
    Ok((to, from, Rows { width: copy.width, height: copy.height, to_pitch, from_pitch }))
}

pub(super) unsafe fn plane(call: Call, copy: *const Copy2D) -> Outcome {
    // SAFETY: the caller's promise.
    let (to, from, rows) = unsafe { read_plane(copy) }?;
    now(call, Direction::Any, to, from, rows)
}

pub(super) unsafe fn plane_async(call: Call, copy: *const Copy2D, stream: u64) -> Outcome {
    // SAFETY: the caller's promise.
    let (to, from, rows) = unsafe { read_plane(copy) }?;
    submit(call, stream, Direction::Any, to, from, rows)
}

/// A value of some bytes in rows; `None` for the default stream, where only a set of memory of the host is waited for
/// ("API synchronization behavior", "Memset").
fn set(call: Call, to: u64, value: u32, bytes: u8, rows: Rows, stream: Option<u64>) -> Outcome {
    let (context, on) = call.stream(stream.unwrap_or(0))?;
    if !to.is_multiple_of(u64::from(bytes)) || !rows.to_pitch.is_multiple_of(usize::from(bytes)) {
        return Err(Error::INVALID_VALUE);
    }
    if rows.width == 0 || rows.height == 0 {
        return Ok(());
    }
    let (to, _) = sides(call, to, to, rows)?;
    if to.is_pageable() {
        return Err(Error::INVALID_VALUE);
    }
    let waits = stream.is_none() && !to.is_device();
    let done = call.driver.submit(&context, &on, Op::Set(to, value, bytes, rows));
    if waits {
        done.wait();
    }
    Ok(())
}

pub(super) unsafe fn set8(call: Call, to: u64, value: u8, count: usize) -> Outcome {
    set(call, to, u32::from(value), 1, Rows::one(count), None)
}

pub(super) unsafe fn set16(call: Call, to: u64, value: u16, count: usize) -> Outcome {
    set(call, to, u32::from(value), 2, Rows::one(count.saturating_mul(2)), None)
}

pub(super) unsafe fn set32(call: Call, to: u64, value: u32, count: usize) -> Outcome {
    set(call, to, value, 4, Rows::one(count.saturating_mul(4)), None)
}

pub(super) unsafe fn set8_async(call: Call, to: u64, value: u8, count: usize, stream: u64) -> Outcome {
    set(call, to, u32::from(value), 1, Rows::one(count), Some(stream))
}

pub(super) unsafe fn set16_async(call: Call, to: u64, value: u16, count: usize, stream: u64) -> Outcome {
    set(call, to, u32::from(value), 2, Rows::one(count.saturating_mul(2)), Some(stream))
}

pub(super) unsafe fn set32_async(call: Call, to: u64, value: u32, count: usize, stream: u64) -> Outcome {
    set(call, to, value, 4, Rows::one(count.saturating_mul(4)), Some(stream))
}

pub(super) unsafe fn set_plane8(
    call: Call,
    to: u64,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: u64,
) -> Outcome {
    let rows = Rows { width, height, to_pitch: pitch, from_pitch: pitch };
    set(call, to, u32::from(value), 1, rows, Some(stream))
}

pub(super) unsafe fn set_plane32(
    call: Call,
    to: u64,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: u64,
) -> Outcome {
    let rows = Rows { width: width.saturating_mul(4), height, to_pitch: pitch, from_pitch: pitch };
    set(call, to, value, 4, rows, Some(stream))
}
