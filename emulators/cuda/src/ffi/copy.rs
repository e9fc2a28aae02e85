// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Copies and sets.

use super::Call;
use crate::driver::Context;
use crate::driver::memory::Target;
use crate::driver::report::Rule;
use crate::driver::status::{Error, Outcome};
use crate::driver::stream::{Op, Rows, Stream};
use std::sync::Arc;

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

impl Side2D {
    fn address(&self) -> Outcome<u64> {
        let base = match self.kind {
            1 => self.host,
            2 | 4 => self.device,
            _ => return Err(Error::NOT_SUPPORTED),
        };
        Ok(base + (self.y * self.pitch + self.x) as u64)
    }
}

/// Checks both sides of a copy, of which one at least is of the device.
pub(super) fn sides(call: Call, to: u64, from: u64, rows: Rows) -> Outcome<(Target, Target)> {
    let spans = |pitch: usize| ((rows.height.max(1) - 1) * pitch + rows.width) as u64;
    if rows.height > 1 && (rows.to_pitch < rows.width || rows.from_pitch < rows.width) {
        return Err(Error::INVALID_VALUE);
    }
    let memory = &call.driver.memory;
    let from = memory.target(&call.driver.report, from, spans(rows.from_pitch))?;
    let to = memory.target(&call.driver.report, to, spans(rows.to_pitch))?;
    Ok((to, from))
}

fn submit(call: Call, stream: u64, to: u64, from: u64, rows: Rows) -> Outcome {
    let (context, stream) = call.stream(stream)?;
    if rows.width == 0 || rows.height == 0 {
        return Ok(());
    }
    let (to, from) = sides(call, to, from, rows)?;
    let blocks = to.is_pageable() || from.is_pageable();
    let done = call.driver.submit(&context, &stream, Op::Copy(to, from, rows));
    if blocks {
        call.driver.report.broken(Rule::PageableCopy, || {
            format!("{}: {} bytes; the call waits for all before it", call.name, rows.width * rows.height)
        });
        done.wait();
    }
    Ok(())
}

fn default(call: Call) -> Outcome<(Arc<Context>, Arc<Stream>)> {
    call.stream(0)
}

fn now(call: Call, to: u64, from: u64, rows: Rows) -> Outcome {
    let (context, stream) = default(call)?;
    if rows.width == 0 || rows.height == 0 {
        return Ok(());
    }
    let (to, from) = sides(call, to, from, rows)?;
    call.driver.submit(&context, &stream, Op::Copy(to, from, rows)).wait();
    context.sticky.check()
}

pub(super) unsafe fn any(call: Call, to: u64, from: u64, size: usize) -> Outcome {
    now(call, to, from, Rows::one(size))
}

pub(super) unsafe fn any_async(call: Call, to: u64, from: u64, size: usize, stream: u64) -> Outcome {
    submit(call, stream, to, from, Rows::one(size))
}

unsafe fn read_plane(copy: *const Copy2D) -> Outcome<(u64, u64, Rows)> {
    // SAFETY: the caller's promise.
    let copy = unsafe { super::get(copy) }?;
    let pitch = |pitch: usize| if pitch == 0 { copy.width } else { pitch };
    let rows = Rows {
        width: copy.width,
        height: copy.height,
        to_pitch: pitch(copy.to.pitch),
        from_pitch: pitch(copy.from.pitch),
    };
    Ok((copy.to.address()?, copy.from.address()?, rows))
}

pub(super) unsafe fn plane(call: Call, copy: *const Copy2D) -> Outcome {
    // SAFETY: the caller's promise.
    let (to, from, rows) = unsafe { read_plane(copy) }?;
    now(call, to, from, rows)
}

pub(super) unsafe fn plane_async(call: Call, copy: *const Copy2D, stream: u64) -> Outcome {
    // SAFETY: the caller's promise.
    let (to, from, rows) = unsafe { read_plane(copy) }?;
    submit(call, stream, to, from, rows)
}

/// A value of some bytes in rows; `None` for the default stream, and the end is waited for.
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
    let done = call.driver.submit(&context, &on, Op::Set(to, value, bytes, rows));
    if stream.is_none() {
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
