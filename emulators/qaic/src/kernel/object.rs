// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Buffer objects (`qaic_create_bo_ioctl`, `qaic_mmap_bo_ioctl`, `drm_gem_mmap`).

use super::slice::Slice;
use crate::bus::Segment;
use crate::injection;
use crate::machine::{Card, Cards, Machine};
use emulator_core::drm::{give, take};
use emulator_core::process::keeping;
use emulator_core::{Errno, PAGE};
use hal_backend::HostRange;
use hal_qaic_abi::uapi::{CreateBo, GemClose, MmapBo};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// The first offset for mappings (`DRM_FILE_PAGE_OFFSET_START`).
const FIRST_OFFSET: u64 = 0x1_0000_0000;

/// A buffer object. It lives while a handle, its slices or the device use it.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) memory: HostRange,
    /// The user that has a handle to it.
    holder: Option<u32>,
    /// Its slices, if it is sliced.
    pub(crate) slicing: Option<Slicing>,
    /// True if it is in flight (`xfer_list`).
    pub(crate) queued: bool,
    /// True if waits for it return at once (`xfer_done`).
    pub(crate) complete: bool,
    /// The number that its requests have.
    pub(crate) request_id: u16,
    /// How many slices of the last execution have completed.
    pub(crate) slices_done: u32,
    pub(crate) stats: Stats,
}

/// The slices of an object.
#[derive(Debug)]
pub(crate) struct Slicing {
    pub(crate) channel: u32,
    /// The object's memory as the device sees it.
    pub(crate) segments: Vec<Segment>,
    pub(crate) slices: Vec<Slice>,
}

impl Slicing {
    /// How many ring elements all slices take (`total_slice_nents`).
    pub(crate) fn elements(&self) -> usize {
        self.slices.iter().map(|slice| slice.requests.len()).sum()
    }
}

/// The times at which the last execution of an object was requested, submitted and completed, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) received: u64,
    pub(crate) submitted: u64,
    pub(crate) processed: u64,
    pub(crate) level_before: u32,
}

/// The buffer objects of a card, by the offset at which a program maps each. None is used twice.
#[derive(Debug)]
pub(crate) struct Objects {
    objects: BTreeMap<u64, Object>,
    next: u64,
}

impl Default for Objects {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), next: FIRST_OFFSET }
    }
}

impl Objects {
    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn get(&self, object: u64) -> Option<&Object> {
        self.objects.get(&object)
    }

    pub(crate) fn get_mut(&mut self, object: u64) -> Option<&mut Object> {
        self.objects.get_mut(&object)
    }

    /// An object that a handle, a channel or a slicing uses, to change.
    #[expect(clippy::expect_used, reason = "what holds an object keeps it")]
    pub(crate) fn live(&mut self, object: u64) -> &mut Object {
        self.get_mut(object).expect("an object that is held")
    }

    fn add(&mut self, memory: HostRange, holder: u32) -> u64 {
        let offset = self.next;
        self.next += memory.length();
        let object = Object {
            memory,
            holder: Some(holder),
            slicing: None,
            queued: false,
            complete: true,
            request_id: 0,
            slices_done: 0,
            stats: Stats::default(),
        };
        self.objects.insert(offset, object);
        offset
    }

    /// Removes an object without a user.
    pub(crate) fn remove_if_unused(&mut self, object: u64) {
        let held = |object: &Object| object.holder.is_some() || object.queued || object.slicing.is_some();
        if self.objects.get(&object).is_some_and(|object| !held(object)) {
            self.objects.remove(&object);
        }
    }
}

impl Card {
    /// Releases the handle to an object.
    pub(crate) fn drop_handle(&mut self, object: u64) {
        self.objects.live(object).holder = None;
        self.objects.remove_if_unused(object);
    }
}

/// Kept while a process maps an object: the file stays open, as for any mapping.
struct ObjectMapping {
    file: Option<OwnedFd>,
    machine: Weak<Machine>,
}

impl Drop for ObjectMapping {
    fn drop(&mut self) {
        drop(self.file.take());
        if let Some(machine) = self.machine.upgrade() {
            let mut state = machine.lock();
            machine.reap(&mut state);
        }
    }
}

impl Machine {
    /// `qaic_create_bo_ioctl`: the size is rounded up to pages before it is found to be zero.
    pub(crate) fn create(&self, number: usize, user: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let request: CreateBo = take(argument)?;
        let size = request.size.checked_next_multiple_of(PAGE).unwrap_or(0);
        if request.pad != 0 || size == 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        let Cards { cards, files, .. } = &mut **state;
        let card = &mut cards[number];
        card.online()?;
        if card.injections.strikes(injection::ALLOC) {
            return Err(Errno::NOMEM);
        }
        let file = files.find(|file| (file.card, file.user) == (number, user)).ok_or(Errno::NODEV)?;
        let memory = files.memory(file, card.objects.next, size).map_err(|_| Errno::NOMEM)?;
        let object = card.objects.add(memory, user);
        let handle = card.user(user)?.handle(object);
        give(argument, &CreateBo { handle, ..request });
        Ok(())
    }

    /// `qaic_mmap_bo_ioctl`: returns the offset for mapping an object. Padding is not checked.
    pub(crate) fn mapping(&self, number: usize, user: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let request: MmapBo = take(argument)?;
        let mut state = self.lock();
        let card = &mut state.cards[number];
        card.online()?;
        let offset = card.user(user)?.object(request.handle).ok_or(Errno::NOENT)?;
        give(argument, &MmapBo { offset, ..request });
        Ok(())
    }

    /// `drm_gem_handle_delete`: an object that is sliced or queued stays until it is not.
    pub(crate) fn close_handle(&self, number: usize, user: u32, argument: &[u8]) -> Result<(), Errno> {
        let request: GemClose = take(argument)?;
        let mut state = self.lock();
        let card = &mut state.cards[number];
        let object = card.user(user)?.close(request.handle).ok_or(Errno::INVAL)?;
        card.drop_handle(object);
        Ok(())
    }

    /// The memory of an object that a user may map: exactly from its offset, at most its size, and only with a
    /// handle (`drm_gem_mmap`, `drm_vma_offset_exact_lookup_locked`, `drm_gem_mmap_obj`).
    pub(crate) fn mappable(
        &self,
        number: usize,
        user: u32,
        length: u64,
        offset: u64,
    ) -> Result<HostRange, Errno> {
        let state = self.lock();
        let card = &state.cards[number];
        let object = card.objects.get(offset).ok_or(Errno::INVAL)?;
        let memory = object.memory.slice(0, length).ok_or(Errno::INVAL)?;
        if object.holder == Some(user) { Ok(memory) } else { Err(Errno::ACCESS) }
    }

    /// Maps an object into this process.
    pub(crate) fn see(
        self: &Arc<Self>,
        number: usize,
        user: u32,
        file: OwnedFd,
        length: u64,
        offset: u64,
    ) -> Result<HostRange, Errno> {
        let range = self.mappable(number, user, length, offset)?;
        Ok(keeping(range, Box::new(ObjectMapping { file: Some(file), machine: Arc::downgrade(self) })))
    }
}
