// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reference-counted host memory that several agents may access: the only unsafe code of this crate.
//!
//! A HAL buffer is memory that a program, worker threads and devices share, in an order that semaphores define and
//! no type system checks. [`HostRange`] checks what it can: a range is inside its allocation, and the allocation
//! lives as long as any range of it. It cannot check the order: two jobs that a program forgot to order may write
//! the same bytes at once, as on any device, and the bytes are then unspecified. Therefore nothing here creates a
//! Rust reference to the contents; bytes go in and out by copy.

use hal_semaphore::{Code, Failure};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A range of host memory. Clones and [slices](HostRange::slice) are the same memory and keep it alive.
///
/// # Invariants
///
/// `length` bytes from `start` on are valid for reads, and for writes if anything writes through the range, on any
/// thread, for as long as a clone of `owner` lives; without an owner for ever.
#[derive(Clone)]
pub struct HostRange {
    start: NonNull<u8>,
    length: usize,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: valid on any thread, by the invariant; contents are only ever copied, and their order is the program's
// business, as the module says.
unsafe impl Send for HostRange {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostRange {}

/// The alignment of any allocation.
const NATURAL: usize = 16;

/// The size of a huge page. Memory from this size on uses huge pages if the system has some: one address
/// translation in place of 512, also for the system when another process reads the memory.
const HUGE: usize = 2 << 20;

/// The size of a page.
const PAGE: usize = 4 << 10;

/// Memory from this size on begins at the middle of a page, if its alignment permits.
///
/// `rep movsb`, with which Linux copies what a socket sends, took twelve times as long on an AMD EPYC if the target
/// lay 1 to 31 bytes behind the source, both counted from the beginnings of their pages. The target is the rest of
/// a page after earlier messages, a few headers behind its beginning: just there for a source that begins with a
/// page.
const PLACED: usize = 64 << 10;
const HALF_A_PAGE: usize = PAGE / 2;

/// An allocation.
///
/// # Invariants
///
/// `start` is [zeroed memory](zeroed) of this layout, and only this frees it.
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation is plain memory; only its drop touches it here.
unsafe impl Send for Allocation {}
// SAFETY: as for `Send`.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed here alone, by the invariant.
        unsafe { free(self.start, self.layout) }
    }
}

/// Zeroed memory, for [`free`]. Large memory is the system's own: an allocator may use memory again, which it zeroes
/// before the system can be asked for huge pages, and pages that were touched stay small.
///
/// # Safety
///
/// The layout is not of size zero.
unsafe fn zeroed(layout: Layout) -> Option<NonNull<u8>> {
    #[cfg(target_os = "linux")]
    if layout.size() >= HUGE {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let (both, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a mapping of its own, anywhere.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), layout.size(), both, private) };
        return NonNull::new(mapped.ok()?.cast());
    }
    // SAFETY: the layout is not of size zero, as the caller promises.
    NonNull::new(unsafe { alloc_zeroed(layout) })
}

/// Frees memory.
///
/// # Safety
///
/// It is from [`zeroed`] with this layout, and nothing uses it any more.
unsafe fn free(start: NonNull<u8>, layout: Layout) {
    #[cfg(target_os = "linux")]
    if layout.size() >= HUGE {
        // SAFETY: a whole mapping, as the caller promises.
        let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), layout.size()) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
        return;
    }
    // SAFETY: as the caller promises.
    unsafe { dealloc(start.as_ptr(), layout) }
}

/// Asks the system for huge pages, for the part of the memory that fills whole ones. It is no error if it has none.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: NonNull<u8>, size: usize) {
    let whole = size - size % HUGE;
    if whole > 0 {
        // SAFETY: the memory is ours alone yet, and the advice changes none of its bytes.
        let _ =
            unsafe { rustix::mm::madvise(start.as_ptr().cast(), whole, rustix::mm::Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_start: NonNull<u8>, _size: usize) {}

/// Zeros, for as many bytes as a caller chooses: an ordinary allocation ends the process where there is no memory.
pub fn zeros(length: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| {
        let message =
            format!("the host has no {length} bytes left; free memory, or raise its limit (ulimit -v)");
        Failure::new(Code::ResourceExhausted, message)
    })?;
    bytes.resize(length, 0);
    Ok(bytes)
}

impl HostRange {
    /// Allocates zeroed memory, aligned to `alignment`, a power of two. Large memory begins at an odd multiple of
    /// half a page if that is aligned enough; see `PLACED`.
    pub fn allocate(length: u64, alignment: usize) -> Result<Self, Failure> {
        let exhausted = || {
            let message = format!(
                "the host has no {length} bytes left for a buffer; free memory, or raise its limit (ulimit -v, \
                 ulimit -l)"
            );
            Failure::new(Code::ResourceExhausted, message)
        };
        let alignment = alignment.max(1).checked_next_power_of_two().ok_or_else(exhausted)?;
        let size = usize::try_from(length).map_err(|_| exhausted())?;
        let skipped = if size >= PLACED && alignment <= HALF_A_PAGE { HALF_A_PAGE } else { 0 };
        let boundary = match size {
            HUGE.. => alignment.max(HUGE),
            PLACED.. => alignment.max(PAGE),
            _ => alignment,
        };
        // Aligned by hand: an allocator that is asked for more than its own alignment writes the zeros itself, and
        // so touches every page that the system would have provided zeroed and untouched.
        let natural = boundary.clamp(1, NATURAL);
        let padding = (boundary - natural).checked_add(skipped).ok_or_else(exhausted)?;
        let padded = size.max(1).checked_add(padding).ok_or_else(exhausted)?;
        let layout = Layout::from_size_align(padded, natural).map_err(|_| exhausted())?;
        // SAFETY: the layout is not of size zero.
        let first = unsafe { zeroed(layout) }.ok_or_else(exhausted)?;
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(Allocation { start: first, layout });
        // SAFETY: the padding has room for the boundary and for the skipped half page.
        let (begin, start) = unsafe {
            let begin = first.add(first.align_offset(boundary));
            (begin, begin.add(skipped))
        };
        ask_for_huge_pages(begin, skipped + size);
        Ok(Self { start, length: size, owner: Some(owner) })
    }

    /// Memory that lives as long as `owner`; for ever without one.
    ///
    /// # Safety
    ///
    /// `start` is valid for reads and writes (or for reads alone, if nothing ever writes through this range) of
    /// `length` bytes as long as a clone of `owner` lives.
    pub unsafe fn from_raw(start: *mut u8, length: usize, owner: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        Self { start: NonNull::new(start).unwrap_or(NonNull::dangling()), length, owner }
    }

    /// True if another clone or slice of it lives. If none does, their accesses have ended.
    pub fn is_shared(&self) -> bool {
        let shared = self.owner.as_ref().is_none_or(|owner| Arc::strong_count(owner) > 1);
        // The acquire fence pairs with the release of the last other reference: its holder's accesses are visible here.
        fence(Ordering::Acquire);
        shared
    }

    /// The number of bytes.
    #[inline]
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// The address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A part of it; `None` if it is not inside.
    #[inline]
    pub fn slice(&self, offset: u64, length: u64) -> Option<Self> {
        let HostPart { start, length, .. } = self.part(offset, length)?;
        Some(Self { start, length, owner: self.owner.clone() })
    }

    /// The same in place of the whole, without reference counting.
    #[inline]
    pub fn into_slice(self, offset: u64, length: u64) -> Option<Self> {
        let HostPart { start, length, .. } = self.part(offset, length)?;
        Some(Self { start, length, owner: self.owner })
    }

    /// A borrowed part of it, without reference counting; `None` if it is not inside.
    #[inline]
    pub fn part(&self, offset: u64, length: u64) -> Option<HostPart<'_>> {
        self.whole().part(offset, length)
    }

    /// All of it, borrowed.
    #[inline]
    pub fn whole(&self) -> HostPart<'_> {
        HostPart { start: self.start, length: self.length, whole: PhantomData }
    }

    /// Copies all of `source` here; see [`HostPart::copy_from`].
    #[must_use]
    pub fn copy_from(&self, source: &HostRange) -> bool {
        self.whole().copy_from(source.whole())
    }

    /// Writes `bytes` at `offset`. False if they do not fit; then nothing is written.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        self.part(offset, bytes.len() as u64).is_some_and(|target| target.write(bytes))
    }

    /// Reads into `bytes` from `offset`. False if there are not as many; then nothing is read.
    #[must_use]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        self.part(offset, bytes.len() as u64).is_some_and(|source| source.read(bytes))
    }

    /// Fills all of it; see [`HostPart::fill`].
    #[must_use]
    pub fn fill(&self, pattern: &[u8]) -> bool {
        self.whole().fill(pattern)
    }
}

/// From this length on the memory's speed limits a fill.
const LONG_FILL: usize = 64 << 10;

/// A pattern as an eight-byte word, if its length divides eight.
fn word(pattern: &[u8]) -> Option<u64> {
    let mut bytes = [0; 8];
    if bytes.len() % pattern.len() != 0 {
        return None;
    }
    for (byte, &value) in bytes.iter_mut().zip(pattern.iter().cycle()) {
        *byte = value;
    }
    Some(u64::from_ne_bytes(bytes))
}

/// Stores a word repeatedly, without first reading the memory into the cache, if the processor can.
///
/// # Safety
///
/// The range is valid for writes of this many words.
unsafe fn store_words(start: NonNull<u8>, word: u64, words: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: so many words are valid there, as the caller promises; the direction flag is clear by the calling
    // convention.
    unsafe {
        std::arch::asm!(
            "rep stosq",
            inout("rcx") words => _,
            inout("rdi") start.as_ptr() => _,
            in("rax") word,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..words {
        // SAFETY: so many words are valid there, as the caller promises.
        unsafe { start.as_ptr().cast::<u64>().add(at).write_unaligned(word) };
    }
}

/// Stores a word repeatedly, bypassing the caches. In the pieces of a large fill, processors otherwise write
/// through the caches, which costs a fourth more and leaves them full of lines that are evicted before they are
/// read.
///
/// # Safety
///
/// The range is valid for writes of this many words.
unsafe fn stream_words(start: NonNull<u8>, word: u64, words: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: so many words are valid there, as the caller promises; what is streamed begins at a multiple of 16
    // bytes, and is visible to others before it is reported.
    unsafe {
        use std::arch::x86_64::{_mm_set1_epi64x, _mm_sfence, _mm_stream_si128};
        // The bytes before the first multiple of 16: at most one word and a part of one.
        let before = start.align_offset(16).min(words * 8);
        let last = words * 8 - (words * 8 - before) % 16;
        let bytes = word.to_ne_bytes();
        let edge = |range: std::ops::Range<usize>| {
            for (at, &byte) in range.clone().zip(bytes.iter().cycle().skip(range.start % 8)) {
                start.as_ptr().add(at).write(byte);
            }
        };
        edge(0..before);
        // After a partial word, the word continues at its next byte.
        let word = word.rotate_right(u32::try_from(before % 8).unwrap_or(0) * 8);
        let pair = _mm_set1_epi64x(word.cast_signed());
        for at in (before..last).step_by(16) {
            _mm_stream_si128(start.as_ptr().add(at).cast(), pair);
        }
        _mm_sfence();
        edge(last..words * 8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: so many words are valid there, as the caller promises.
    unsafe {
        store_words(start, word, words);
    }
}

/// A borrowed part of a [`HostRange`].
///
/// # Invariants
///
/// `length` bytes from `start` on are inside the range, so that its invariant holds for them during `'a`.
#[derive(Clone, Copy)]
pub struct HostPart<'a> {
    start: NonNull<u8>,
    length: usize,
    whole: PhantomData<&'a HostRange>,
}

// SAFETY: as for [`HostRange`].
unsafe impl Send for HostPart<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostPart<'_> {}

impl<'a> HostPart<'a> {
    /// The number of bytes.
    pub fn length(self) -> usize {
        self.length
    }

    /// The address of the first byte.
    pub fn address(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A part of it; `None` if it is not inside.
    #[inline]
    pub fn part(self, offset: u64, length: u64) -> Option<HostPart<'a>> {
        let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: inside, as just checked.
        Some(Self { start: unsafe { self.start.add(offset) }, length, whole: PhantomData })
    }

    /// True if both have a byte in common.
    pub fn overlaps(self, other: HostPart<'_>) -> bool {
        let (here, there) = (self.start.as_ptr() as usize, other.start.as_ptr() as usize);
        here < there + other.length && there < here + self.length
    }

    /// Copies `source` here. They may overlap. False if the lengths differ; then nothing is copied.
    #[must_use]
    pub fn copy_from(self, source: HostPart<'_>) -> bool {
        let fits = self.length == source.length;
        // What works in place has its bytes where they belong.
        if fits && source.start != self.start {
            // SAFETY: both are valid for this many bytes, by their invariants.
            unsafe { source.start.copy_to(self.start, self.length) };
        }
        fits
    }

    /// Writes `bytes`. False if the lengths differ; then nothing is written.
    #[inline]
    #[must_use]
    pub fn write(self, bytes: &[u8]) -> bool {
        let fits = self.length == bytes.len();
        if fits {
            // SAFETY: valid for this many bytes, by the invariant, and a shared slice does not change during the call.
            unsafe { self.start.as_ptr().copy_from(bytes.as_ptr(), bytes.len()) };
        }
        fits
    }

    /// Reads into `bytes`. False if the lengths differ; then nothing is read.
    #[must_use]
    pub fn read(self, bytes: &mut [u8]) -> bool {
        let fits = self.length == bytes.len();
        if fits {
            // SAFETY: valid for this many bytes, by the invariant, and the target is exclusive.
            unsafe { bytes.as_mut_ptr().copy_from(self.start.as_ptr(), bytes.len()) };
        }
        fits
    }

    /// Calls `each` with the bytes of both in order, `N` at a time and fewer at the end: few enough to stay in
    /// registers without a copy. `each` may write to the place of this part. False if the lengths differ; then
    /// nothing is called.
    #[must_use]
    pub fn each_with<const N: usize>(
        self,
        other: HostPart<'_>,
        mut show: impl FnMut(&mut [u8], &[u8]),
    ) -> bool {
        if self.length != other.length {
            return false;
        }
        let whole = self.length - self.length % N;
        for at in (0..whole).step_by(N) {
            // SAFETY: so many bytes are there in both, by their invariants.
            let [mut here, there]: [[u8; N]; 2] =
                unsafe { [self.start, other.start].map(|start| start.add(at).cast().read()) };
            show(&mut here, &there);
        }
        if whole < self.length {
            let (mut here, mut there) = ([0; N], [0; N]);
            let last = self.length - whole;
            let parts = here.get_mut(..last).zip(there.get_mut(..last));
            if let Some((here, there)) = parts {
                // SAFETY: so many bytes are there in both, by their invariants, and the targets are as long.
                unsafe {
                    here.as_mut_ptr().copy_from(self.start.add(whole).as_ptr(), last);
                    there.as_mut_ptr().copy_from(other.start.add(whole).as_ptr(), last);
                }
                show(here, there);
            }
        }
        true
    }

    /// Repeats `pattern` over all of it; the last repetition may be cut short. False for an empty pattern.
    #[must_use]
    pub fn fill(self, pattern: &[u8]) -> bool {
        self.fill_with(pattern, store_words)
    }

    /// The same for a part of memory that is larger than the caches.
    #[must_use]
    pub fn fill_past_caches(self, pattern: &[u8]) -> bool {
        self.fill_with(pattern, stream_words)
    }

    /// Fills; a long fill stores words with `store`.
    fn fill_with(self, pattern: &[u8], store: unsafe fn(NonNull<u8>, u64, usize)) -> bool {
        let Some(&first) = pattern.first() else { return false };
        if self.length < LONG_FILL && pattern.iter().all(|&byte| byte == first) {
            // SAFETY: valid for this many bytes, by the invariant.
            unsafe { self.start.write_bytes(first, self.length) };
            return true;
        }
        if let Some(word) = word(pattern).filter(|_| self.length >= LONG_FILL) {
            let words = self.length / 8;
            // SAFETY: so many words are inside the range.
            unsafe { store(self.start, word, words) };
            let rest = words * 8..self.length;
            // SAFETY: the rest of the range, and as much of the word.
            unsafe {
                let bytes = word.to_ne_bytes();
                self.start.as_ptr().add(rest.start).copy_from(bytes.as_ptr(), rest.len());
            }
            return true;
        }
        // One pattern, then doubling copies: long copies for any length of the pattern.
        let mut done = pattern.len().min(self.length);
        // SAFETY: `done` bytes are inside both.
        unsafe { self.start.as_ptr().copy_from(pattern.as_ptr(), done) };
        let turn = pattern.len() * (4096 / pattern.len().min(4096)).max(1);
        while done < self.length {
            let more = done.min(turn).min(self.length - done);
            // SAFETY: the source ends where the target begins, and the target is inside the range.
            unsafe { self.start.as_ptr().add(done).copy_from_nonoverlapping(self.start.as_ptr(), more) };
            done += more;
        }
        true
    }
}

impl fmt::Debug for HostPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostPart({:p}, {})", self.start, self.length)
    }
}

impl fmt::Debug for HostRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRange({:p}, {})", self.start, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use std::os::unix::fs::FileExt;

    fn bytes(range: &HostRange) -> Vec<u8> {
        let mut bytes = vec![0; range.length];
        assert!(range.read(0, &mut bytes));
        bytes
    }

    #[test]
    fn bytes_of_two_are_shown_in_their_order_however_many_there_are_and_stay_as_they_are() {
        for length in [0_u8, 1, 15, 16, 17, 100] {
            let all = [0, 100].map(|first| (first..first + length).collect::<Vec<u8>>());
            let ranges = all.each_ref().map(|bytes| {
                let range = HostRange::allocate(length.into(), 1).unwrap();
                assert!(range.write(0, bytes));
                range
            });
            let mut shown = [Vec::new(), Vec::new()];
            let fits = ranges[0].whole().each_with::<16>(ranges[1].whole(), |here, there| {
                assert!(!here.is_empty() && here.len() <= 16 && here.len() == there.len());
                shown[0].extend_from_slice(here);
                shown[1].extend_from_slice(there);
                here.fill(255);
            });
            assert!(fits);
            assert_eq!(shown, all);
            assert_eq!(ranges.each_ref().map(bytes), all);
        }
        let ranges = [4, 5].map(|length| HostRange::allocate(length, 1).unwrap());
        assert!(!ranges[0].whole().each_with::<4>(ranges[1].whole(), |_, _| panic!("they differ")));
    }

    #[test]
    fn slice_is_the_same_memory_and_keeps_it() {
        let whole = HostRange::allocate(16, 64).unwrap();
        assert_eq!(whole.address() as usize % 64, 0);
        let part = whole.slice(4, 8).unwrap();
        assert!(part.write(2, &[7, 8]));
        assert_eq!(bytes(&whole).iter().position(|&byte| byte == 7), Some(6));
        assert!(whole.is_shared() && part.is_shared());
        drop(whole);
        assert!(!part.is_shared());
        assert_eq!(bytes(&part), [0, 0, 7, 8, 0, 0, 0, 0]);
    }

    #[test]
    fn nothing_outside_is_touched() {
        let range = HostRange::allocate(8, 8).unwrap();
        assert!(range.slice(4, 5).is_none());
        assert!(range.slice(u64::MAX, 2).is_none());
        assert!(!range.write(7, &[1, 2]));
        assert!(!range.read(9, &mut []));
        assert!(range.part(u64::MAX, 1).is_none() && range.part(8, 0).is_some());
        assert!(!range.whole().write(&[0; 7]) && !range.whole().read(&mut [0; 9]));
        assert!(!range.copy_from(&HostRange::allocate(9, 8).unwrap()));
        assert_eq!(bytes(&range), [0; 8]);
        assert!(HostRange::allocate(u64::MAX, 64).is_err());
        assert!(HostRange::allocate(8, usize::MAX).is_err());
        for alignment in [1, 16, 64, 4096] {
            assert_eq!(HostRange::allocate(5, alignment).unwrap().address() as usize % alignment, 0);
        }
    }

    #[test]
    fn large_memory_begins_in_the_middle_of_a_page_unless_it_is_to_be_aligned_to_more() {
        for length in [PLACED, PLACED + 1, HUGE - 1, HUGE, 2 * HUGE + 7] {
            for alignment in [1, 64, HALF_A_PAGE] {
                let large = HostRange::allocate(length as u64, alignment).unwrap();
                assert_eq!(large.address() as usize % PAGE, HALF_A_PAGE, "{length} bytes, {alignment}");
                assert!(large.slice(length as u64 - 1, 1).unwrap().write(0, &[1]));
            }
            for alignment in [PAGE, 4 * PAGE, 2 * HUGE] {
                let large = HostRange::allocate(length as u64, alignment).unwrap();
                assert_eq!(large.address() as usize % alignment, 0, "{length} bytes, {alignment}");
            }
        }
    }

    /// The flags of the memory at an address, from `/proc/self/smaps`.
    #[cfg(target_os = "linux")]
    fn flags_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut found = false;
        for line in maps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let bounds =
                range.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
            if let Some((Ok(from), Ok(to))) = bounds {
                found = (from..to).contains(&address);
            } else if found && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.to_owned();
            }
        }
        panic!("{address:#x} is in no mapping");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn large_memory_is_asked_for_in_huge_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            // The system has no huge pages, and large memory is like any other.
            assert!(HostRange::allocate(2 * HUGE as u64, 64).unwrap().write(0, &[1]));
            return;
        }
        let is_asked_for = |address: usize| flags_of(address).split_whitespace().any(|flag| flag == "hg");
        let large = HostRange::allocate(3 * HUGE as u64 + 5, 64).unwrap();
        let first = large.address() as usize;
        assert_eq!(first % HUGE, HALF_A_PAGE);
        assert!(is_asked_for(first) && is_asked_for(first - HALF_A_PAGE + 3 * HUGE - 1));
        assert_eq!(bytes(&large.slice(3 * HUGE as u64, 5).unwrap()), [0; 5]);
    }

    /// Pages that something has touched before the system was asked for huge ones stay small.
    #[test]
    #[cfg(target_os = "linux")]
    fn large_memory_is_untouched_also_where_an_allocator_would_use_memory_again() {
        // Memory that is released has the GNU allocator keep what is smaller, which it then has used.
        for used in [12 * HUGE, 6 * HUGE] {
            drop(vec![1_u8; used]);
        }
        let large = HostRange::allocate(4 * HUGE as u64, 64).unwrap();
        // An entry for each page, with a bit for one that is in memory, and one for one that was swapped out.
        let mut entries = vec![0; 4 * HUGE / PAGE * 8];
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        pages.read_exact_at(&mut entries, (large.address() as usize / PAGE * 8) as u64).unwrap();
        let touched = entries.iter().skip(7).step_by(8).filter(|&&last| last >> 6 != 0).count();
        assert_eq!(touched, 0);
        assert!(bytes(&large).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn patterns_of_every_length_repeat() {
        for length in [0_usize, 1, 3, 7, 64, 4097, 10_000, LONG_FILL, LONG_FILL + 5] {
            for pattern in
                [&[5_u8][..], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4], &[9; 4], &[1, 2, 3, 4, 5, 6, 7, 8]]
            {
                // Any begin, and not a byte more.
                for (skipped, past_caches) in (0..17).flat_map(|skipped| [(skipped, false), (skipped, true)])
                {
                    let range = HostRange::allocate(length as u64 + 32, 16).unwrap();
                    let part = range.part(skipped, length as u64).unwrap();
                    let filled =
                        if past_caches { part.fill_past_caches(pattern) } else { part.fill(pattern) };
                    assert!(filled);
                    let skipped = usize::try_from(skipped).unwrap();
                    let mut expected = vec![0; length + 32];
                    for (byte, &value) in
                        expected.iter_mut().skip(skipped).take(length).zip(pattern.iter().cycle())
                    {
                        *byte = value;
                    }
                    assert!(bytes(&range) == expected, "{length} bytes of {pattern:?} from {skipped}");
                }
            }
        }
        assert!(!HostRange::allocate(1, 1).unwrap().fill(&[]));
    }

    #[test]
    fn overlapping_copies_keep_their_source() {
        let range = HostRange::allocate(6, 1).unwrap();
        assert!(range.write(0, &[1, 2, 3, 4, 5, 6]));
        assert!(range.slice(2, 4).unwrap().copy_from(&range.slice(0, 4).unwrap()));
        assert_eq!(bytes(&range), [1, 2, 1, 2, 3, 4]);
        let part = |offset, length| range.part(offset, length).unwrap();
        assert!(part(0, 4).overlaps(part(3, 1)) && part(3, 1).overlaps(part(0, 4)));
        assert!(!part(0, 3).overlaps(part(3, 3)) && !part(3, 3).overlaps(part(0, 3)));
    }
}
