// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The semaphores of this process, for reports of what its threads wait for.
//!
//! A thread that waits for a fence or a list is in IREE's own list of the semaphore, and no slot of ours is called. So
//! each semaphore is in one of a few lists from its creation to its end. A report reads a semaphore under the lock of
//! its list, which its end takes first, and takes IREE's lock of it only if that is free.

use super::semaphore::Semaphore;
use hal_semaphore::stall::{HostWait, Step, TimelineName};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The number of lists: threads that make semaphores at the same time seldom meet.
const LISTS: usize = 16;

/// How long a report waits for the lock of a list.
const PATIENCE: Duration = Duration::from_millis(50);

/// The semaphores of one list.
#[repr(align(128))]
struct SemaphoreList(Mutex<Vec<Entry>>);

/// A semaphore, which is alive as long as it is in a list.
struct Entry(NonNull<Semaphore>);

// SAFETY: a semaphore is used from any thread.
unsafe impl Send for Entry {}

static SEMAPHORES: [SemaphoreList; LISTS] = [const { SemaphoreList(Mutex::new(Vec::new())) }; LISTS];

/// Where a semaphore is in its list. The lock of the list protects it.
pub(super) type ListPlace = AtomicUsize;

fn list_of(semaphore: NonNull<Semaphore>) -> &'static SemaphoreList {
    #[expect(clippy::indexing_slicing, reason = "a remainder of the number of lists")]
    &SEMAPHORES[(semaphore.addr().get() >> 7) % LISTS]
}

/// Adds a semaphore.
///
/// # Safety
///
/// The semaphore is initialised, in no list, and stays until it is [removed](remove).
pub(super) unsafe fn add(semaphore: NonNull<Semaphore>) {
    let mut list = list_of(semaphore).0.lock();
    // SAFETY: the semaphore is initialised, as the caller promises.
    unsafe { semaphore.as_ref() }.place().store(list.len(), Ordering::Relaxed);
    list.push(Entry(semaphore));
}

/// Removes a semaphore, before it ends.
///
/// # Safety
///
/// The semaphore was added, and is still there.
pub(super) unsafe fn remove(semaphore: NonNull<Semaphore>) {
    let mut list = list_of(semaphore).0.lock();
    // SAFETY: the semaphore is there, as the caller promises.
    let place = unsafe { semaphore.as_ref() }.place().load(Ordering::Relaxed);
    list.swap_remove(place);
    if let Some(Entry(moved)) = list.get(place) {
        // SAFETY: it is in the list, so it is there.
        unsafe { moved.as_ref() }.place().store(place, Ordering::Relaxed);
    }
}

/// The waits of the host for semaphores of ours, and the addresses of the semaphores. Without `addresses`, of the
/// semaphores that are waited for alone.
pub(crate) fn host_waits(addresses: bool) -> (Vec<HostWait>, HashMap<TimelineName, usize>) {
    let (mut waits, mut known) = (Vec::new(), HashMap::new());
    for list in &SEMAPHORES {
        let Some(list) = list.0.try_lock_for(PATIENCE) else { continue };
        for Entry(semaphore) in list.iter() {
            // SAFETY: it is in the list, whose lock this thread has, so it is there.
            let semaphore = unsafe { semaphore.as_ref() };
            let (timeline, reached) = (semaphore.name(), semaphore.value());
            let before = waits.len();
            for (value, count) in semaphore.host_waits() {
                let step = Step { timeline, value };
                waits.push(HostWait { step, reached, count, age: None });
            }
            if addresses || waits.len() > before {
                known.insert(timeline, semaphore.address());
            }
        }
    }
    (waits, known)
}
