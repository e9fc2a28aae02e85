// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The arithmetic: the elements of several ranks, as bytes, become one.
//!
//! It works in blocks that stay in the cache. A block of each operand is read before the result is written, so a
//! result may replace an operand if it has exactly the same place.
//!
//! # The order
//!
//! If steps are rounded, their order affects the result. The order is a tree over the ranks that depends on their
//! number only ([`Tree`]), so partial results can be computed wherever that costs least and every rank gets the
//! same bits.

use crate::element::{Element, Reduction};
use crate::tree::Tree;
use hal_backend::HostRange;
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};

/// The bytes of each rank in a block. A multiple of every element's size.
const PIECE: usize = 8 << 10;

/// The size of a page.
const PAGE: usize = 4 << 10;

/// An element as it is in memory.
trait Scalar: Copy + 'static {
    const SIZE: usize;
    fn from_bytes(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
}

/// A way to fold several elements into one.
trait Fold<T> {
    /// A partial result of several elements.
    type Partial: Scalar;
    fn first(value: T) -> Self::Partial;
    fn next(left: Self::Partial, right: Self::Partial) -> Self::Partial;
    fn last(result: Self::Partial, ranks: u32) -> T;
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

            // Inlined: the length is known at the call, and nothing is checked.
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let Ok(bytes) = bytes.try_into() else { unreachable!("an element is cut out with its own size") };
                <$type>::from_ne_bytes(bytes)
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

scalars!(i8, u8, i16, u16, i32, u32, i64, u64, i128, f16, f32, f64, bf16);

macro_rules! fold {
    ($fold:ident for $type:ty as $partial:ty: $first:expr, $next:expr, $last:expr) => {
        impl Fold<$type> for $fold {
            type Partial = $partial;

            fn first(value: $type) -> $partial {
                let first: fn($type) -> $partial = $first;
                first(value)
            }

            fn next(left: $partial, right: $partial) -> $partial {
                let next: fn($partial, $partial) -> $partial = $next;
                next(left, right)
            }

            fn last(result: $partial, ranks: u32) -> $type {
                let last: fn($partial, u32) -> $type = $last;
                last(result, ranks)
            }
        }
    };
}

macro_rules! integers {
    ($($type:ty, $wide:ty;)*) => {$(
        fold!(Sum for $type as $type: |v| v, |a, b| a.wrapping_add(b), |r, _| r);
        fold!(Product for $type as $type: |v| v, |a, b| a.wrapping_mul(b), |r, _| r);
        fold!(Minimum for $type as $type: |v| v, |a, b| a.min(b), |r, _| r);
        fold!(Maximum for $type as $type: |v| v, |a, b| a.max(b), |r, _| r);
        // The wider type cannot overflow, as the number of ranks has 31 bits.
        fold!(Average for $type as $wide: |v| <$wide>::from(v), |a, b| a + b, |r, ranks| {
            let average = r / <$wide>::from(ranks);
            debug_assert!(<$type>::try_from(average).is_ok(), "the average of numbers of a type is one of the type");
            #[expect(clippy::cast_possible_truncation, reason = "the average of numbers of a type is one of the type")]
            let average = average as $type;
            average
        });
    )*};
}

integers!(i8, i64; u8, i64; i16, i64; u16, i64; i32, i64; u32, i64; i64, i128; u64, i128;);

macro_rules! floats {
    ($($type:ty as $partial:ident: $widen:expr, $narrow:expr, $ranks:expr;)*) => {$(
        fold!(Sum for $type as $partial: $widen, |a, b| a + b, |r, _| {
            let n: fn($partial) -> $type = $narrow; n(r)
        });
        fold!(Product for $type as $partial: $widen, |a, b| a * b, |r, _| {
            let n: fn($partial) -> $type = $narrow; n(r)
        });
        fold!(Minimum for $type as $partial: $widen, |a, b| $partial::least(a, b), |r, _| {
            let n: fn($partial) -> $type = $narrow; n(r)
        });
        fold!(Maximum for $type as $partial: $widen, |a, b| $partial::greatest(a, b), |r, _| {
            let n: fn($partial) -> $type = $narrow; n(r)
        });
        fold!(Average for $type as $partial: $widen, |a, b| a + b, |r, ranks| {
            let n: fn($partial) -> $type = $narrow; let count: fn(u32) -> $partial = $ranks; n(r / count(ranks))
        });
    )*};
}

floats! {
    f16 as f32: f16::to_f32, f16::from_f32, nearest;
    bf16 as f32: bf16::to_f32, bf16::from_f32, nearest;
    f32 as f32: |v| v, |v| v, nearest;
    f64 as f64: |v| v, |v| v, f64::from;
}

/// A number of ranks, which `f32` represents exactly up to sixteen million.
#[expect(clippy::cast_precision_loss, reason = "no group has more ranks")]
fn nearest(ranks: u32) -> f32 {
    ranks as f32
}

/// Minimum and maximum that propagate not-a-number, and order -0 below +0.
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

macro_rules! by_element {
    ($element:expr, $reduction:expr, $function:ident($($argument:expr),*)) => {{
        macro_rules! by_reduction {
            ($type:ty) => {
                match $reduction {
                    Reduction::Sum => $function::<$type, Sum>($($argument),*),
                    Reduction::Product => $function::<$type, Product>($($argument),*),
                    Reduction::Minimum => $function::<$type, Minimum>($($argument),*),
                    Reduction::Maximum => $function::<$type, Maximum>($($argument),*),
                    Reduction::Average => $function::<$type, Average>($($argument),*),
                }
            };
        }
        match $element {
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
    }};
}

/// Reduces bytes `offset..offset + length` of each source, along a tree over the sources, and passes the result to
/// `write` block by block: the place, counted from `offset`, and the bytes. Both are whole elements, and inside
/// each source.
pub fn reduce(
    element: Element,
    reduction: Reduction,
    sources: &[HostRange],
    span: (u64, u64),
    write: &mut dyn FnMut(u64, &[u8]),
) {
    by_element!(element, reduction, pieces(sources, span, write));
}

/// A reduction whose partial results are bytes, so that they can be computed in one place and passed on to another.
///
/// A partial result has the width of the steps ([`Reduction`]): the element's, or a larger one.
#[derive(Clone, Copy, Debug)]
pub struct Folding {
    element: Element,
    reduction: Reduction,
}

impl Folding {
    /// The folding of a reduction of elements of one type.
    pub fn new(element: Element, reduction: Reduction) -> Self {
        Self { element, reduction }
    }

    /// The bytes of an element.
    pub fn size(self) -> u64 {
        self.element.size()
    }

    /// The bytes of the partial result for one element.
    pub fn width(self) -> u64 {
        by_element!(self.element, self.reduction, width())
    }

    /// True if a single element is a partial result as it is.
    pub fn is_plain(self) -> bool {
        self.width() == self.element.size()
    }

    /// True if a partial result of all ranks is the result as it is.
    pub fn is_closed(self) -> bool {
        self.is_plain() && self.reduction != Reduction::Average
    }

    /// Converts elements to partial results.
    pub fn open(self, elements: &HostRange, partials: &HostRange) {
        if self.is_plain() {
            let fits = partials.copy_from(elements);
            debug_assert!(fits, "as many partial results as elements");
            return;
        }
        by_element!(self.element, self.reduction, open(elements, partials));
    }

    /// Combines partial results in pairs. The left ones are of lower ranks.
    pub fn combine(self, left: &HostRange, right: &HostRange, target: &HostRange) {
        by_element!(self.element, self.reduction, combine(left, right, target));
    }

    /// Converts partial results of all ranks to results.
    pub fn close(self, partials: &HostRange, ranks: u32, elements: &HostRange) {
        if self.is_closed() {
            let fits = elements.copy_from(partials);
            debug_assert!(fits, "as many results as partial ones");
            return;
        }
        by_element!(self.element, self.reduction, close(partials, ranks, elements));
    }
}

fn width<T: Scalar, F: Fold<T>>() -> u64 {
    F::Partial::SIZE as u64
}

/// The most bytes that are combined on the stack: a small operation allocates nothing.
const SMALL: usize = 512;

/// The bytes that are combined at once, as many as fit into registers. A multiple of every partial result's size.
const BLOCK: usize = 64;

/// The elements of a block whose widest form has this size.
fn piece_of(size: usize) -> usize {
    PIECE / size.max(1)
}

/// Reads elements into the beginning of `bytes`, and returns what was read.
fn read_piece<'a>(source: &HostRange, at: u64, bytes: &'a mut [u8], length: usize) -> &'a [u8] {
    let (piece, _) = bytes.split_at_mut(length);
    let read = source.read(at, piece);
    debug_assert!(read, "an operand is as long as its operation says");
    piece
}

/// Converts elements of one size to elements of another, in blocks.
fn convert(
    (source, from): (&HostRange, usize),
    (target, to): (&HostRange, usize),
    each: impl Fn(&[u8], &mut [u8]),
) {
    if source.length().max(target.length()) <= SMALL as u64 {
        let (old, new) = (&mut [0; SMALL], &mut [0; SMALL]);
        return convert_by((source, from), (target, to), SMALL / from.max(to), (old, new), each);
    }
    let most = piece_of(from.max(to));
    let (old, new) = (&mut vec![0; most * from], &mut vec![0; most * to]);
    convert_by((source, from), (target, to), most, (old, new), each);
}

/// The same, so many elements at a time, for which both buffers have room.
fn convert_by(
    (source, from): (&HostRange, usize),
    (target, to): (&HostRange, usize),
    most: usize,
    (old, new): (&mut [u8], &mut [u8]),
    each: impl Fn(&[u8], &mut [u8]),
) {
    let count = source.length() / from as u64;
    let mut done = 0;
    while done < count {
        let some = usize::try_from(count - done).map_or(most, |left| left.min(most));
        let piece = read_piece(source, done * from as u64, old, some * from);
        let (results, _) = new.split_at_mut(some * to);
        for (value, result) in piece.chunks_exact(from).zip(results.chunks_exact_mut(to)) {
            each(value, result);
        }
        let written = target.write(done * to as u64, results);
        debug_assert!(written, "a target is as long as its operation says");
        done += some as u64;
    }
}

fn open<T: Scalar, F: Fold<T>>(elements: &HostRange, partials: &HostRange) {
    convert((elements, T::SIZE), (partials, F::Partial::SIZE), |value, step| {
        F::first(T::from_bytes(value)).write(step);
    });
}

fn close<T: Scalar, F: Fold<T>>(partials: &HostRange, ranks: u32, elements: &HostRange) {
    convert((partials, F::Partial::SIZE), (elements, T::SIZE), |step, value| {
        F::last(F::Partial::from_bytes(step), ranks).write(value);
    });
}

fn combine<T: Scalar, F: Fold<T>>(left: &HostRange, right: &HostRange, target: &HostRange) {
    if left.length() <= SMALL as u64 {
        return combine_by::<T, F>((left, right, target), &mut [0; SMALL]);
    }
    let most = piece_of(F::Partial::SIZE) * F::Partial::SIZE;
    let mut memory = vec![0; most + PAGE];
    let at = place_for(memory.as_ptr() as usize, target.address() as usize);
    combine_by::<T, F>((left, right, target), memory.get_mut(at..at + most).unwrap_or_default());
}

/// The offset in a buffer at `memory` for results that go to `target`: half a page away from it, both counted from
/// the beginnings of their pages. A copy takes twice as long if its target is 1 to 31 bytes behind.
fn place_for(memory: usize, target: usize) -> usize {
    target.wrapping_add(PAGE / 2).wrapping_sub(memory) % PAGE
}

/// Combines in blocks as long as the buffer. The buffer goes to the target as a whole, which writes cache lines
/// that another processor has just read without fetching them. The operands are read in place: copying one of them
/// into the buffer first took half as long again.
fn combine_by<T: Scalar, F: Fold<T>>(
    (left, right, target): (&HostRange, &HostRange, &HostRange),
    place: &mut [u8],
) {
    let (size, most) = (F::Partial::SIZE, place.len());
    let length = left.length();
    let mut done = 0;
    while done < length {
        let some = usize::try_from(length - done).map_or(most, |left| left.min(most));
        let (results, _) = place.split_at_mut(some);
        let mut blocks = results.chunks_mut(BLOCK);
        let operands = left.part(done, some as u64).zip(right.part(done, some as u64));
        let read = operands.is_some_and(|(left, right)| {
            left.each_with::<BLOCK>(right, |lefts, rights| {
                for (left, right) in lefts.chunks_exact_mut(size).zip(rights.chunks_exact(size)) {
                    F::next(F::Partial::from_bytes(left), F::Partial::from_bytes(right)).write(left);
                }
                blocks.next().into_iter().for_each(|block| block.copy_from_slice(lefts));
            })
        });
        debug_assert!(read, "an operand is as long as its operation says");
        let written = target.write(done, results);
        debug_assert!(written, "a target is as long as its operation says");
        done += some as u64;
    }
}

/// Elements as partial results.
fn opened<T: Scalar, F: Fold<T>>(elements: &[u8]) -> impl Iterator<Item = F::Partial> {
    elements.chunks_exact(T::SIZE).map(|value| F::first(T::from_bytes(value)))
}

fn pieces<T: Scalar, F: Fold<T>>(
    sources: &[HostRange],
    (offset, length): (u64, u64),
    write: &mut dyn FnMut(u64, &[u8]),
) {
    #[expect(clippy::cast_possible_truncation, reason = "ranks are 32-bit numbers")]
    let ranks = sources.len() as u32;
    if ranks == 0 {
        return;
    }
    let tree = Tree::new(ranks);
    let most = usize::try_from(length).map_or(PIECE, |length| length.min(PIECE));
    // A small operation allocates nothing.
    let mut bytes: SmallVec<[u8; 64]> = smallvec![0; most];
    let Some(none) = opened::<T, F>(&bytes).next() else { return };
    let block = most / T::SIZE;
    // A block for each subtree that waits for its right sibling, the largest first, and one for the present leaf.
    let mut partials: SmallVec<[F::Partial; 16]> = smallvec![none; block * (tree.height() + 1)];
    let mut done = 0;
    while done < length {
        let count = usize::try_from(length - done).map_or(most, |left| left.min(most));
        let mut waiting = 0;
        for leaf in 0..tree.leaves() {
            let (_, partial) = partials.split_at_mut(waiting * block);
            let of_leaf = tree.ranks_of(leaf).filter_map(|rank| sources.get(rank as usize));
            for (number, source) in of_leaf.enumerate() {
                let piece = read_piece(source, offset + done, &mut bytes, count);
                let steps = partial.iter_mut().zip(opened::<T, F>(piece));
                if number == 0 {
                    steps.for_each(|(step, value)| *step = value);
                } else {
                    steps.for_each(|(step, value)| *step = F::next(*step, value));
                }
            }
            for _ in 0..leaf.trailing_ones() {
                let (left, right) = partials.split_at_mut(waiting * block);
                waiting -= 1;
                let (_, left) = left.split_at_mut(waiting * block);
                let (right, _) = right.split_at(count / T::SIZE);
                for (left, &right) in left.iter_mut().zip(right) {
                    *left = F::next(*left, right);
                }
            }
            waiting += 1;
        }
        let (piece, _) = bytes.split_at_mut(count);
        for (&step, value) in partials.iter().zip(piece.chunks_exact_mut(T::SIZE)) {
            F::last(step, ranks).write(value);
        }
        write(done, piece);
        done += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_for_results_is_half_a_page_away_from_where_they_go() {
        for (memory, target) in [(0, 0), (16, 0), (0x7010, 0x9000), (0x1234_5678, 0x800), (0xFF0, 0x10)] {
            let at = place_for(memory, target);
            assert!(at < PAGE);
            assert_eq!((memory + at) % PAGE, (target + PAGE / 2) % PAGE);
        }
    }
}
