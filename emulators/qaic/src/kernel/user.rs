// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Users: open files, each with buffer objects and channels of its own (`qaic_open`, `qaic_postclose`).

use crate::injection;
use crate::machine::{Card, Guard, Machine, Status};
use emulator_core::Errno;
use emulator_core::file::Opened;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// The data of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserFile {
    pub(crate) card: usize,
    pub(crate) user: u32,
}

/// A user of a card.
#[derive(Debug, Default)]
pub(crate) struct User {
    /// Its buffer objects, by handle.
    pub(crate) handles: BTreeMap<u32, u64>,
    /// The handles below the last one that have no object.
    free: BTreeSet<u32>,
    /// Transfers in several chunks that it has begun.
    pub(crate) chunks: u32,
}

impl User {
    /// Gives a handle to an object: the lowest that is free, from 1 (`drm_gem_handle_create_tail`).
    pub(crate) fn handle(&mut self, object: u64) -> u32 {
        let next = || self.handles.last_key_value().map_or(1, |(last, _)| last.saturating_add(1));
        let handle = self.free.pop_first().unwrap_or_else(next);
        self.handles.insert(handle, object);
        handle
    }

    /// Closes a handle. Returns its object.
    pub(crate) fn close(&mut self, handle: u32) -> Option<u64> {
        let object = self.handles.remove(&handle)?;
        self.free.insert(handle);
        Some(object)
    }

    /// The object of a handle (`drm_gem_object_lookup`).
    pub(crate) fn object(&self, handle: u32) -> Option<u64> {
        self.handles.get(&handle).copied()
    }
}

impl Card {
    /// A user that is known to exist.
    pub(crate) fn user(&mut self, user: u32) -> Result<&mut User, Errno> {
        self.users.get_mut(&user).ok_or(Errno::NODEV)
    }
}

impl Machine {
    /// Opens a card (`qaic_open`): any number of times, while the device is online.
    pub(crate) fn open(&self, number: usize) -> Result<OwnedFd, Errno> {
        let mut state = self.lock();
        self.reap(&mut state);
        // Numbers of users are unique among all cards: the lowest that is free (`qaic_usrs`).
        let used = |user: &u32| state.cards.iter().any(|card| card.users.contains_key(user));
        let user = (0..u32::MAX).find(|user| !used(user)).ok_or(Errno::NOMEM)?;
        let card = state.cards.find_mut(number).ok_or(Errno::NOENT)?;
        if card.status == Status::Gone {
            return Err(Errno::NOENT);
        }
        if card.injections.strikes(injection::BOOT) {
            return Err(Errno::NODEV);
        }
        card.online()?;
        let opened = Opened::new("qaic")?;
        card.users.insert(user, User::default());
        card.counts.opens += 1;
        Ok(state.files.insert(opened, UserFile { card: number, user }))
    }

    /// Closes a descriptor.
    pub(crate) fn close(&self, file: OwnedFd) {
        drop(file);
        let mut state = self.lock();
        self.reap(&mut state);
    }

    /// Ends every user whose last descriptor and mapping are gone.
    pub(crate) fn reap(&self, state: &mut Guard<'_>) {
        for (_, file) in state.files.take_closed() {
            self.end_user(state, file);
        }
    }

    /// Ends a file (`drm_file_free`): releases its handles, notifies the device, and releases every channel of
    /// the user (`qaic_postclose`). Objects that are sliced or in flight go with their channel.
    fn end_user(&self, state: &mut Guard<'_>, file: UserFile) {
        let UserFile { card: number, user } = file;
        let card = &mut state.cards[number];
        let handles = card.user(user).map(|user| std::mem::take(&mut user.handles)).unwrap_or_default();
        for object in handles.into_values() {
            card.drop_handle(object);
        }
        if card.status == Status::Online {
            self.terminate(state, number, user);
            let card = &state.cards[number];
            let channels = card.channels.iter().zip(0..);
            let owned: Vec<u32> = channels
                .filter(|(channel, _)| channel.user == Some(user))
                .map(|(_, channel)| channel)
                .collect();
            for channel in owned {
                self.release_channel(state, number, channel);
            }
        }
        state.cards[number].users.remove(&user);
        self.core.wake(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many that looking for a free one among all would not end.
    #[test]
    fn handle_is_the_lowest_that_is_free_however_many_there_are() {
        const MANY: u32 = 300_000;
        let mut user = User::default();
        assert!((1..=MANY).all(|handle| user.handle(7) == handle));
        for handle in [MANY, 40, 9, MANY / 2] {
            assert_eq!((user.close(handle), user.close(handle)), (Some(7), None));
        }
        assert!([9, 40, MANY / 2, MANY, MANY + 1].into_iter().all(|handle| user.handle(8) == handle));
    }
}
