// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The arithmetic: elements of several ranks, as bytes, become one.
//!
//! It is done in pieces that stay in the cache. A piece of each rank is read before the result is written anywhere, so a
//! result may go where one of the ranks' elements were, if it goes exactly there.

use crate::element::{Element, Reduction};
use hal_backend::HostRange;
use half::{bf16, f16};

/// How many bytes of each rank a piece has. Every element's size divides it.
const PIECE: usize = 8 << 10;

/// An element as it is in memory.
trait Scalar: Copy + 'static {
    const SIZE: usize;
    fn from_bytes(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
}

/// One way to make one of several.
trait Fold<T> {
    type Step: Copy;
    fn first(value: T) -> Self::Step;
    fn next(so_far: Self::Step, value: T) -> Self::Step;
    fn last(result: Self::Step, ranks: u32) -> T;
}

struct Sum;
struct Product;
struct Minimum;
struct Maximum;
struct Average;

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            const SIZE: usize = size_of::<$type>();

            fn from_bytes(bytes: &[u8]) -> Self {
                // Whoever asks has as many bytes.
                bytes.try_into().map(<$type>::from_ne_bytes).unwrap_or_default()
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

scalars!(i8, u8, i16, u16, i32, u32, i64, u64, f16, f32, f64, bf16);

macro_rules! fold {
    ($fold:ident for $type:ty as $step:ty: $first:expr, $next:expr, $last:expr) => {
        impl Fold<$type> for $fold {
            type Step = $step;

            fn first(value: $type) -> $step {
                let first: fn($type) -> $step = $first;
                first(value)
            }

            fn next(so_far: $step, value: $type) -> $step {
                let next: fn($step, $type) -> $step = $next;
                next(so_far, value)
            }

            fn last(result: $step, ranks: u32) -> $type {
                let last: fn($step, u32) -> $type = $last;
                last(result, ranks)
            }
        }
    };
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        fold!(Sum for $type as $type: |v| v, |a, b| a.wrapping_add(b), |r, _| r);
        fold!(Product for $type as $type: |v| v, |a, b| a.wrapping_mul(b), |r, _| r);
        fold!(Minimum for $type as $type: |v| v, |a, b| a.min(b), |r, _| r);
        fold!(Maximum for $type as $type: |v| v, |a, b| a.max(b), |r, _| r);
        fold!(Average for $type as i128: |v| i128::from(v), |a, b| a + i128::from(b), |r, ranks| {
            // The average of numbers of a type is one of the type.
            <$type>::try_from(r / i128::from(ranks)).unwrap_or_default()
        });
    )*};
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! floats {
    ($($type:ty as $step:ident: $widen:expr, $narrow:expr, $ranks:expr;)*) => {$(
        fold!(Sum for $type as $step: $widen, |a, b| { let w: fn($type) -> $step = $widen; a + w(b) }, |r, _| {
            let n: fn($step) -> $type = $narrow; n(r)
        });
        fold!(Product for $type as $step: $widen, |a, b| { let w: fn($type) -> $step = $widen; a * w(b) }, |r, _| {
            let n: fn($step) -> $type = $narrow; n(r)
        });
        fold!(Minimum for $type as $step: $widen, |a, b| {
            let w: fn($type) -> $step = $widen; $step::least(a, w(b))
        }, |r, _| { let n: fn($step) -> $type = $narrow; n(r) });
        fold!(Maximum for $type as $step: $widen, |a, b| {
            let w: fn($type) -> $step = $widen; $step::greatest(a, w(b))
        }, |r, _| { let n: fn($step) -> $type = $narrow; n(r) });
        fold!(Average for $type as $step: $widen, |a, b| {
            let w: fn($type) -> $step = $widen; a + w(b)
        }, |r, ranks| {
            let n: fn($step) -> $type = $narrow; let count: fn(u32) -> $step = $ranks; n(r / count(ranks))
        });
    )*};
}

floats! {
    f16 as f32: f16::to_f32, f16::from_f32, nearest;
    bf16 as f32: bf16::to_f32, bf16::from_f32, nearest;
    f32 as f32: |v| v, |v| v, nearest;
    f64 as f64: |v| v, |v| v, f64::from;
}

/// A number of ranks, which `f32` has exactly up to sixteen millions.
#[expect(clippy::cast_precision_loss, reason = "more ranks than that there are not")]
fn nearest(ranks: u32) -> f32 {
    ranks as f32
}

/// Minimum and maximum that take not a number along, and know that -0 is less than +0.
trait Extremes: Copy + PartialOrd {
    fn is_nan(self) -> bool;
    fn is_negative(self) -> bool;

    fn least(a: Self, b: Self) -> Self {
        if a.is_nan() || (!b.is_nan() && (a < b || (a == b && a.is_negative()))) { a } else { b }
    }

    fn greatest(a: Self, b: Self) -> Self {
        if a.is_nan() || (!b.is_nan() && (a > b || (a == b && !a.is_negative()))) { a } else { b }
    }
}

impl Extremes for f32 {
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }

    fn is_negative(self) -> bool {
        self.is_sign_negative()
    }
}

impl Extremes for f64 {
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }

    fn is_negative(self) -> bool {
        self.is_sign_negative()
    }
}

/// Reduces bytes `offset..offset + length` of each source, in the order of the sources, and gives the result to `write`
/// piece by piece: where it belongs, counted from `offset`, and its bytes. Both are whole elements, and inside each source.
pub fn reduce(
    element: Element,
    reduction: Reduction,
    sources: &[HostRange],
    (offset, length): (u64, u64),
    write: &mut dyn FnMut(u64, &[u8]),
) {
    let span = (offset, length);
    macro_rules! by_reduction {
        ($type:ty) => {
            match reduction {
                Reduction::Sum => pieces::<$type, Sum>(sources, span, write),
                Reduction::Product => pieces::<$type, Product>(sources, span, write),
                Reduction::Minimum => pieces::<$type, Minimum>(sources, span, write),
                Reduction::Maximum => pieces::<$type, Maximum>(sources, span, write),
                Reduction::Average => pieces::<$type, Average>(sources, span, write),
            }
        };
    }
    match element {
        Element::I8 => by_reduction!(i8),
        Element::U8 => by_reduction!(u8),
        Element::I16 => by_reduction!(i16),
        Element::U16 => by_reduction!(u16),
        Element::I32 => by_reduction!(i32),
        Element::U32 => by_reduction!(u32),
        Element::I64 => by_reduction!(i64),
        Element::U64 => by_reduction!(u64),
        Element::F16 => by_reduction!(f16),
        Element::F32 => by_reduction!(f32),
        Element::F64 => by_reduction!(f64),
        Element::Bf16 => by_reduction!(bf16),
    }
}

fn pieces<T: Scalar, F: Fold<T>>(
    sources: &[HostRange],
    (offset, length): (u64, u64),
    write: &mut dyn FnMut(u64, &[u8]),
) {
    let Some((first, rest)) = sources.split_first() else { return };
    let ranks = u32::try_from(sources.len()).unwrap_or(u32::MAX);
    let mut bytes = vec![0_u8; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
    let mut steps: Vec<F::Step> = Vec::with_capacity(bytes.len() / T::SIZE);
    let mut done = 0;
    while done < length {
        let count = usize::try_from(length - done).map_or(PIECE, |left| left.min(PIECE));
        let Some(piece) = bytes.get_mut(..count) else { return };
        let read = first.read(offset + done, piece);
        debug_assert!(read, "a source is as long as its operation says");
        steps.clear();
        steps.extend(piece.chunks_exact(T::SIZE).map(|value| F::first(T::from_bytes(value))));
        for source in rest {
            let read = source.read(offset + done, piece);
            debug_assert!(read, "a source is as long as its operation says");
            for (step, value) in steps.iter_mut().zip(piece.chunks_exact(T::SIZE)) {
                *step = F::next(*step, T::from_bytes(value));
            }
        }
        for (&step, value) in steps.iter().zip(piece.chunks_exact_mut(T::SIZE)) {
            F::last(step, ranks).write(value);
        }
        write(done, piece);
        done += count as u64;
    }
}
