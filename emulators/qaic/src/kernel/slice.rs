// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Slices: the destinations of a buffer object's parts (`qaic_attach_slice_bo_ioctl`,
//! `qaic_detach_slice_bo_ioctl`).

use super::object::Slicing;
use crate::bus::Segment;
use crate::machine::{Card, Machine};
use crate::options::{MemoryCounter, Options};
use emulator_core::drm::take;
use emulator_core::{Errno, PAGE, Process};
use hal_qaic_abi::dbc::{self, Request, doorbell, request};
use hal_qaic_abi::uapi::{
    AttachSlice, CHANNELS, DetachSlice, FROM_DEVICE, Semaphore, SliceEntry, TO_DEVICE, sem,
};
use zerocopy::FromBytes;

/// A slice of an object: its part of an execution.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// The elements of the ring, without the number of an execution.
    pub(crate) requests: Vec<Request>,
}

/// `invalid_sem`.
fn is_valid(semaphore: &Semaphore) -> bool {
    semaphore.val <= sem::VALUE_MAX
        && semaphore.index < sem::COUNT
        && semaphore.presync <= 1
        && semaphore.pad == 0
        && semaphore.flags & !(sem::IN_SYNC_FENCE | sem::OUT_SYNC_FENCE) == 0
        && semaphore.cmd <= sem::WAIT_GT_0
}

impl MemoryCounter {
    /// A number of bytes, as the kernel compares it with 64 bits.
    fn total(self, bytes: u64) -> u64 {
        if self == Self::Int { self.within(bytes) } else { bytes }
    }

    /// A number of bytes within a segment, as the kernel adds it to an address: the lower half, signed or
    /// unsigned.
    fn within(self, bytes: u64) -> u64 {
        let half = bytes & HALF;
        if self == Self::Int && half > HALF / 2 { half | !HALF } else { half }
    }
}

/// The value in 32 bits.
const HALF: u64 = u32::MAX as u64;

/// `qaic_validate_req`: the error in an entry by itself. If sizes are counted in `int`, the end of a slice may
/// overflow.
fn validate(entry: &SliceEntry, total: u64, counter: MemoryCounter) -> Result<(), Errno> {
    let semaphores = [&entry.sem0, &entry.sem1, &entry.sem2, &entry.sem3];
    let valid = matches!(entry.db_len, 0 | 8 | 16 | 32) && semaphores.into_iter().all(is_valid);
    let (end, overflows) = entry.offset.overflowing_add(entry.size);
    let inside = end <= total && (!overflows || counter == MemoryCounter::Int);
    if valid && inside { Ok(()) } else { Err(Errno::INVAL) }
}

/// The segments of memory of a slice (`clone_range_of_sgt_for_slice`). A slice without a size stands for a
/// page.
///
/// The slice begins in the segment around its first byte and ends in the one around its last byte, as they are
/// counted. With `int`, a segment that reaches beyond 2 GiB has no end, and one behind it is never found: the
/// slice then covers memory that is not the object's.
fn cut(segments: &[Segment], entry: &SliceEntry, counter: MemoryCounter) -> Result<Vec<Segment>, Errno> {
    let begin = entry.offset;
    let end = begin.wrapping_add(if entry.size == 0 { PAGE } else { entry.size });
    let (mut total, mut begun, mut first, mut last) = (0, None, None, None);
    for (place, segment) in segments.iter().enumerate() {
        let next = counter.total(u64::wrapping_add(total, segment.length));
        if begin >= total && begin < next {
            begun.get_or_insert(place);
            first = Some((place, counter.within(begin.wrapping_sub(total))));
        }
        if end >= total && end <= next {
            last = Some((place, counter.within(end.wrapping_sub(total))));
            break;
        }
        total = next;
    }
    let ((first, skip), (last, stop)) = first.zip(last).ok_or(Errno::INVAL)?;
    if begun != Some(first) {
        // The kernel has counted more segments than it copies, and reads behind the end of its table.
        return Err(Errno::FAULT);
    }
    let found = segments.iter().zip(0..).take(last + 1).skip(first);
    let pieces = found.map(|(segment, place)| {
        let skip = if place == first { skip } else { 0 };
        let stop = if place == last { stop } else { segment.length };
        Segment { address: segment.address.wrapping_add(skip), length: stop.wrapping_sub(skip) & HALF }
    });
    Ok(pieces.collect())
}

/// `encode_reqs`: the elements of a slice, one for each segment of memory.
///
/// Every element has the semaphore command before the transfer. Only the last one has the other commands, the
/// doorbell and the completion, and waits for the transfers before it: by the semaphore, or else by a fence.
fn encode(entry: &SliceEntry, direction: u32, pieces: &[Segment]) -> Result<Vec<Request>, Errno> {
    let mut semaphores = [entry.sem0, entry.sem1, entry.sem2, entry.sem3];
    if entry.db_len != 0 && !entry.db_addr.is_multiple_of(u64::from(entry.db_len / 8)) {
        return Err(Errno::INVAL);
    }
    if semaphores.iter().filter(|semaphore| semaphore.presync == 1).count() > 1 {
        return Err(Errno::INVAL);
    }
    let presync = semaphores.iter().position(|semaphore| semaphore.presync == 1);
    let way = match (entry.size, direction) {
        (0, _) => 0,
        (_, TO_DEVICE) => request::INBOUND,
        _ => request::OUTBOUND,
    };
    let mut address = entry.dev_addr;
    let mut requests: Vec<Request> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (source, target) =
            if direction == TO_DEVICE { (piece.address, address) } else { (address, piece.address) };
        let mut element = Request {
            cmd: request::BULK | way,
            src_addr: source,
            dest_addr: target,
            len: u32::try_from(piece.length).map_err(|_| Errno::INVAL)?,
            ..Request::default()
        };
        for (place, (word, semaphore)) in element.sem_cmd.iter_mut().zip(&semaphores).enumerate() {
            if Some(place) == presync {
                *word = dbc::encode(semaphore);
            }
        }
        address = address.wrapping_add(piece.length);
        requests.push(element);
    }
    if pieces.len() > 1
        && presync.is_none()
        && let Some(first) = semaphores.first_mut()
    {
        first.flags |= if direction == TO_DEVICE { sem::IN_SYNC_FENCE } else { sem::OUT_SYNC_FENCE };
    }
    if let Some(last) = requests.last_mut() {
        last.cmd |= request::COMPLETION;
        last.db_addr = entry.db_addr;
        last.db_data = entry.db_data;
        last.db_len = match entry.db_len {
            32 => doorbell::ENABLED | doorbell::BITS_32,
            16 => doorbell::ENABLED | doorbell::BITS_16,
            8 => doorbell::ENABLED | doorbell::BITS_8,
            _ => 0,
        };
        for (word, semaphore) in last.sem_cmd.iter_mut().zip(&semaphores) {
            *word = dbc::encode(semaphore);
        }
    }
    Ok(requests)
}

impl Card {
    /// `detach_slice_bo`: an object is as before it was sliced. Waits for it return at once.
    #[expect(
        clippy::expect_used,
        reason = "a channel knows those that are sliced, and a program's is checked first"
    )]
    pub(crate) fn detach(&mut self, number: u64) {
        let object = self.objects.live(number);
        object.complete = true;
        let slicing = object.slicing.take().expect("an object that is sliced");
        self.bus.unmap(&slicing.segments);
        self.channels[slicing.channel].sliced.retain(|&object| object != number);
        self.objects.remove_if_unused(number);
    }

    /// `qaic_attach_slicing_bo`, `qaic_map_one_slice`: the slices of an object for a channel.
    fn slice(
        &mut self,
        number: u64,
        request: &AttachSlice,
        entries: &[SliceEntry],
        options: &Options,
    ) -> Result<(), Errno> {
        let object = self.objects.get(number).ok_or(Errno::NOENT)?;
        let segments = self.bus.map_pieces(&object.memory, options.segment);
        let slices = entries.iter().map(|entry| {
            let requests = encode(entry, request.hdr.dir, &cut(&segments, entry, options.counter)?)?;
            Ok(Slice { offset: entry.offset, size: entry.size, requests })
        });
        let slices = slices.collect::<Result<Vec<_>, Errno>>();
        let elements = self.channel(request.hdr.dbc_id)?.rings.as_ref().map_or(0, |rings| rings.elements);
        let slicing = slices.and_then(|slices| {
            let slicing = Slicing { channel: request.hdr.dbc_id, segments: segments.clone(), slices };
            // Compared with all elements, although one is always free.
            if slicing.elements() > elements as usize { Err(Errno::NOSPC) } else { Ok(slicing) }
        });
        match slicing {
            Ok(slicing) => {
                self.channel(request.hdr.dbc_id)?.sliced.push(number);
                self.objects.live(number).slicing = Some(slicing);
                Ok(())
            }
            Err(error) => {
                self.bus.unmap(&segments);
                Err(error)
            }
        }
    }
}

impl Machine {
    /// `qaic_attach_slice_bo_ioctl`.
    pub(crate) fn attach(
        &self,
        process: &dyn Process,
        number: usize,
        user: u32,
        argument: &[u8],
    ) -> Result<(), Errno> {
        let request: AttachSlice = take(argument)?;
        let header = &request.hdr;
        if header.count == 0 || ![TO_DEVICE, FROM_DEVICE].contains(&header.dir) || request.data == 0 {
            return Err(Errno::INVAL);
        }
        {
            let state = self.lock();
            state.cards[number].online()?;
        }
        if header.dbc_id >= CHANNELS {
            return Err(Errno::INVAL);
        }
        let entries: Vec<SliceEntry> = read_all(process, request.data, header.count, Errno::INVAL)?;
        let mut state = self.lock();
        let card = &mut state.cards[number];
        card.online()?;
        let wanted = card.user(user)?.object(header.handle).ok_or(Errno::NOENT)?;
        let object = card.objects.get(wanted).ok_or(Errno::NOENT)?;
        let size = object.memory.length();
        entries.iter().try_for_each(|entry| validate(entry, size, self.options.counter))?;
        if object.slicing.is_some() || card.channel(header.dbc_id)?.user != Some(user) {
            return Err(Errno::INVAL);
        }
        card.slice(wanted, &request, &entries, &self.options)
    }

    /// `qaic_detach_slice_bo_ioctl`.
    pub(crate) fn detach(&self, number: usize, user: u32, argument: &[u8]) -> Result<(), Errno> {
        let request: DetachSlice = take(argument)?;
        if request.pad != 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        let card = &mut state.cards[number];
        card.online()?;
        let wanted = card.user(user)?.object(request.handle).ok_or(Errno::NOENT)?;
        let object = card.objects.get(wanted).ok_or(Errno::NOENT)?;
        let (channel, queued) = (object.slicing.as_ref().ok_or(Errno::INVAL)?.channel, object.queued);
        if card.channel(channel)?.user != Some(user) {
            return Err(Errno::INVAL);
        }
        if queued {
            return Err(Errno::BUSY);
        }
        card.detach(wanted);
        // `qaic_init_bo` completes the waits for it.
        self.core.wake(number);
        Ok(())
    }
}

/// The most that the kernel copies at once (`KMALLOC_MAX_SIZE`, with pages of 4 KiB).
const KMALLOC_MAX: u64 = 4 << 20;

/// The structures at a program's address. `too_many` is the error if the kernel cannot allocate them at once.
pub(crate) fn read_all<T: FromBytes>(
    process: &dyn Process,
    address: u64,
    count: u32,
    too_many: Errno,
) -> Result<Vec<T>, Errno> {
    /// How many are read at a time, so that a count that is far too large fails before it takes memory.
    const CHUNK: usize = 512;
    if u64::from(count) * size_of::<T>() as u64 > KMALLOC_MAX {
        return Err(too_many);
    }
    let mut all = Vec::new();
    let mut bytes = vec![0; CHUNK * size_of::<T>()];
    let mut rest = count as usize;
    let mut at = address;
    while rest > 0 {
        let now = rest.min(CHUNK);
        let part = bytes.get_mut(..now * size_of::<T>()).ok_or(Errno::FAULT)?;
        process.read(at, part)?;
        for one in part.chunks_exact(size_of::<T>()) {
            all.push(T::read_from_bytes(one).map_err(|_| Errno::FAULT)?);
        }
        at = at.checked_add(part.len() as u64).ok_or(Errno::FAULT)?;
        rest -= now;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENTS: [Segment; 2] =
        [Segment { address: 0x1000, length: 4096 }, Segment { address: 0x9000, length: 4096 }];

    #[test]
    fn slice_is_cut_where_the_memory_is() {
        let entry = |offset, size| SliceEntry { offset, size, ..SliceEntry::default() };
        let cut = |offset, size| {
            let [narrow, wide] = [MemoryCounter::Int, MemoryCounter::Size]
                .map(|counter| cut(&SEGMENTS, &entry(offset, size), counter));
            assert_eq!(narrow, wide);
            wide.map(|pieces| pieces.iter().map(|piece| (piece.address, piece.length)).collect::<Vec<_>>())
        };
        assert_eq!(cut(0, 4096), Ok(vec![(0x1000, 4096)]));
        assert_eq!(cut(100, 200), Ok(vec![(0x1064, 200)]));
        assert_eq!(cut(4000, 200), Ok(vec![(0x1fa0, 96), (0x9000, 104)]));
        assert_eq!(cut(4096, 0), Ok(vec![(0x9000, 4096)]), "without a size it stands for a page");
        assert_eq!(cut(8192, 1), Err(Errno::INVAL));
        assert_eq!(cut(5000, 0), Err(Errno::INVAL), "not a whole page from there");
    }

    /// The parts of `begin..end` in segments of these lengths.
    fn cut_at(
        counter: MemoryCounter,
        lengths: &[u64],
        begin: u64,
        end: u64,
    ) -> Result<Vec<(u64, u64)>, Errno> {
        let place = |(number, &length): (usize, &u64)| Segment { address: (number as u64 + 1) << 40, length };
        let segments: Vec<Segment> = lengths.iter().enumerate().map(place).collect();
        let entry = SliceEntry { offset: begin, size: end - begin, ..SliceEntry::default() };
        let cut = cut(&segments, &entry, counter);
        cut.map(|pieces| pieces.iter().map(|piece| (piece.address, piece.length)).collect())
    }

    /// A gibibyte, and the first, second and third segment.
    const GIB: u64 = 1 << 30;
    const AT: [u64; 3] = [1 << 40, 2 << 40, 3 << 40];

    #[test]
    fn slice_beyond_two_gibibytes_is_of_other_memory_where_they_are_counted_in_int() {
        let cuts = |lengths: &[u64], begin, end| {
            [MemoryCounter::Size, MemoryCounter::Int]
                .map(|counter| cut_at(counter, lengths, begin, end).unwrap())
        };
        // The segment that reaches there has no end, so that it covers all that follows.
        let [right, wrong] = cuts(&[GIB; 3], 2 * GIB + 64, 2 * GIB + 128);
        assert_eq!((right, wrong), (vec![(AT[2] + 64, 64)], vec![(AT[1] + GIB + 64, 64)]));
        let [right, wrong] = cuts(&[GIB; 3], GIB + 64, 2 * GIB + 128);
        assert_eq!(right, [(AT[1] + 64, GIB - 64), (AT[2], 128)]);
        assert_eq!(wrong, [(AT[1] + 64, GIB + 64)]);
        // Within one segment, the offset is negative.
        let [right, wrong] = cuts(&[3 * GIB], 2 * GIB + 64, 2 * GIB + 128);
        assert_eq!((right, wrong), (vec![(AT[0] + 2 * GIB + 64, 64)], vec![(AT[0] + 64 - 2 * GIB, 64)]));
        // Sizes beyond 4 GiB wrap, and the memory below them is not found.
        let four = [GIB, 3 * GIB + 4096];
        assert_eq!(cut_at(MemoryCounter::Size, &four, GIB, GIB + 32), Ok(vec![(AT[1], 32)]));
        assert_eq!(cut_at(MemoryCounter::Int, &four, GIB, GIB + 32), Err(Errno::INVAL));
        // Or it is found twice, for which the kernel has no memory.
        let twice = [GIB, 7 * GIB / 2, GIB];
        assert_eq!(cut_at(MemoryCounter::Int, &twice, 3 * GIB / 4, 5 * GIB / 4), Err(Errno::FAULT));
    }

    proptest::proptest! {
        #[test]
        fn below_two_gibibytes_of_less_than_four_nothing_depends_on_the_counter(
            pages in proptest::collection::vec(1..=0x80_000_u64, 1..6),
            begin in 0..0x8000_0000_u64,
            length in 1..=0x8000_0000_u64,
        ) {
            let lengths: Vec<u64> = pages.iter().map(|pages| pages * PAGE).collect();
            let total: u64 = lengths.iter().sum();
            proptest::prop_assume!(total < 1 << 32);
            let end = (begin + length).min(total).min(1 << 31);
            proptest::prop_assume!(begin < end);
            let cuts = [MemoryCounter::Size, MemoryCounter::Int].map(|counter| cut_at(counter, &lengths, begin, end));
            proptest::prop_assert_eq!(&cuts[0], &cuts[1]);
            let bytes: u64 = cuts[0].as_ref().unwrap().iter().map(|(_, length)| length).sum();
            proptest::prop_assert_eq!(bytes, end - begin);
        }
    }

    #[test]
    fn only_the_last_element_synchronises_unless_before_the_transfer() {
        let entry = SliceEntry {
            size: 8192,
            sem0: Semaphore { cmd: sem::INC, val: 1, index: 3, ..Semaphore::default() },
            dev_addr: 0x7000_0000,
            db_addr: 0x40,
            db_data: 9,
            db_len: 16,
            ..SliceEntry::default()
        };
        let requests = encode(&entry, TO_DEVICE, &SEGMENTS).unwrap();
        let [first, last] = requests[..] else { panic!("{requests:?}") };
        assert_eq!(first.cmd, request::BULK | request::INBOUND);
        assert_eq!((first.src_addr, first.dest_addr, first.len), (0x1000, 0x7000_0000, 4096));
        assert_eq!((first.sem_cmd, first.db_len), ([0; 4], 0));
        assert_eq!(last.cmd, request::BULK | request::INBOUND | request::COMPLETION);
        assert_eq!((last.src_addr, last.dest_addr), (0x9000, 0x7000_1000));
        assert_eq!((last.db_addr, last.db_data, last.db_len), (0x40, 9, 0x81));
        // A fence, because no semaphore command precedes the transfer.
        assert_eq!(last.sem_cmd, [0xc203_0001, 0, 0, 0]);

        let wait = Semaphore { cmd: sem::WAIT_GT_0, presync: 1, ..Semaphore::default() };
        let requests = encode(&SliceEntry { sem1: wait, ..entry }, FROM_DEVICE, &SEGMENTS).unwrap();
        let [first, last] = requests[..] else { panic!("{requests:?}") };
        assert_eq!((first.src_addr, first.dest_addr), (0x7000_0000, 0x1000));
        assert_eq!(first.sem_cmd, [0, 0x8640_0000, 0, 0]);
        assert_eq!(last.sem_cmd, [0x8203_0001, 0x8640_0000, 0, 0], "no fence");
    }
}
