// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's synchronisation primitives, which the model checkers replace by their own.
//!
//! Everything that orders two threads in this crate comes from here: [`Mutex`], the atomics, fences, and
//! [`Event`]. Under `--cfg loom` and `--cfg shuttle` the same names are the checkers' versions, so the checkers
//! explore the code that ships. Reference counts are the standard library's everywhere: no decision of the
//! engine depends on one.

#[cfg(not(any(loom, shuttle)))]
mod imp {
    pub(crate) use parking_lot::MutexGuard as Guard;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
    pub(crate) use std::thread_local as local;

    use crate::adaptive_spin::{AdaptiveSpin, now};
    use std::time::Duration;

    /// How long a thread spins for the lock before it sleeps. The lock is held for bookkeeping only, usually
    /// for less than a microsecond.
    const SPIN: Duration = Duration::from_micros(20);

    /// Shared by all locks: whether spinning pays depends on other threads' use of the processors.
    static LOCKS: AdaptiveSpin = AdaptiveSpin::new();

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.lock_awake().unwrap_or_else(|| self.0.lock())
        }

        /// Takes the lock if it is free.
        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock()
        }

        /// Takes the lock if that is possible without sleeping.
        #[inline]
        fn lock_awake(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock().or_else(|| self.spin())
        }

        // Without it the thread sleeps sooner.
        #[cfg_attr(mutants, mutants::skip)]
        #[cold]
        fn spin(&self) -> Option<Guard<'_, T>> {
            let mut guard = None;
            LOCKS.spin_until(SPIN, || {
                if !self.0.is_locked() {
                    guard = self.0.try_lock();
                }
                guard.is_some()
            });
            guard
        }
    }

    /// A lock that the same thread often releases and takes again, with bounded waiting for other threads.
    #[derive(Debug, Default)]
    pub(crate) struct FairMutex<T> {
        mutex: Mutex<T>,
        sleepers: AtomicU64,
        /// Since when one of them sleeps, by [`now`]; zero while none does.
        since: AtomicU64,
    }

    /// How long a thread sleeps for the lock before `unlock` hands it over. A handover costs a change of
    /// threads, during which none has the lock.
    const HAND_OVER_AFTER: u64 = 5_000;

    impl<T> FairMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self { mutex: Mutex::new(value), sleepers: AtomicU64::new(0), since: AtomicU64::new(0) }
        }

        #[inline]
        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.mutex.0.try_lock()
        }

        #[inline]
        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.mutex.lock_awake().unwrap_or_else(|| self.sleep())
        }

        #[cold]
        fn sleep(&self) -> Guard<'_, T> {
            if self.sleepers.fetch_add(1, Ordering::Relaxed) == 0 {
                self.since.store(now(), Ordering::Relaxed);
            }
            let guard = self.mutex.0.lock();
            let others = self.sleepers.fetch_sub(1, Ordering::Relaxed) > 1;
            self.since.store(if others { now() } else { 0 }, Ordering::Relaxed);
            guard
        }

        /// Releases the lock, for threads that take it often.
        // A guard that is dropped releases the lock too; this decides who has it next.
        #[cfg_attr(mutants, mutants::skip)]
        #[inline]
        pub(crate) fn unlock(&self, guard: Guard<'_, T>) {
            if self.has_overdue_sleeper(now) {
                Guard::unlock_fair(guard);
            }
        }

        #[inline]
        fn has_overdue_sleeper(&self, now: impl FnOnce() -> u64) -> bool {
            let since = self.since.load(Ordering::Relaxed);
            since != 0 && now().saturating_sub(since) > HAND_OVER_AFTER
        }
    }

    /// Wakes the threads that wait when it is notified.
    #[derive(Debug, Default)]
    pub(crate) struct Event(event_listener::Event);

    impl Event {
        /// Waits for a notification, also one that comes while `skip` runs, unless `skip` returns true.
        pub(crate) fn wait_unless(&self, skip: impl FnOnce() -> bool, timeout: Option<Duration>) {
            use event_listener::Listener as _;
            let listener = self.0.listen();
            match timeout {
                _ if skip() => {}
                None => listener.wait(),
                Some(timeout) => drop(listener.wait_timeout(timeout)),
            }
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify(usize::MAX);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::thread::{scope, sleep, yield_now};
        use std::time::Instant;

        #[test]
        fn lock_without_sleepers_is_released_without_handover() {
            let mutex = FairMutex::new(());
            mutex.unlock(mutex.lock());
            assert!(!mutex.has_overdue_sleeper(|| u64::MAX));
        }

        /// Two threads sleep for the lock, one after the other: the time counts from when the first fell
        /// asleep, then from when that one got the lock, and no more when the second has it.
        #[test]
        fn handover_is_due_by_the_thread_that_sleeps_longest() {
            let mutex = FairMutex::new(());
            let state = || (mutex.sleepers.load(Ordering::SeqCst), mutex.since.load(Ordering::SeqCst));
            let sleeps = |count| {
                let begin = Instant::now();
                while state().0 != count || state().1 == 0 {
                    assert!(begin.elapsed() < Duration::from_secs(5), "{count} sleep: {:?}", state());
                    yield_now();
                }
            };
            let take = || {
                let guard = mutex.lock();
                let seen = state();
                mutex.unlock(guard);
                seen
            };
            let begin = now();
            let guard = mutex.lock();
            scope(|scope| {
                let first = scope.spawn(take);
                sleeps(1);
                let since = state().1;
                assert!(since >= begin);
                let second = scope.spawn(take);
                sleeps(2);
                sleep(Duration::from_millis(1));
                assert_eq!(state(), (2, since));
                assert!(!mutex.has_overdue_sleeper(|| since + HAND_OVER_AFTER));
                assert!(mutex.has_overdue_sleeper(|| since + HAND_OVER_AFTER + 1));
                mutex.unlock(guard);
                let mut seen = [first, second].map(|thread| thread.join().expect("it gets the lock"));
                seen.sort_unstable();
                assert_eq!(seen[0], (0, 0));
                assert!(seen[1].0 == 1 && seen[1].1 > since, "{seen:?}");
            });
        }
    }
}

#[cfg(any(loom, shuttle))]
mod imp {
    #[cfg(loom)]
    use loom as checker;
    #[cfg(shuttle)]
    use shuttle as checker;

    pub(crate) use checker::sync::MutexGuard as Guard;
    pub(crate) use checker::sync::atomic::{AtomicU64, Ordering, fence};
    pub(crate) use checker::thread_local as local;

    use std::sync::PoisonError;
    use std::time::Duration;

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(checker::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(checker::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// Every schedule of the checkers is fair.
    #[derive(Debug, Default)]
    pub(crate) struct FairMutex<T>(Mutex<T>);

    impl<T> FairMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock()
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.0.lock()
        }

        #[cfg_attr(mutants, mutants::skip)]
        #[expect(clippy::unused_self, reason = "the other one checks for sleepers")]
        pub(crate) fn unlock(&self, guard: Guard<'_, T>) {
            drop(guard);
        }
    }

    /// Counts notifications; a thread waits for the count to change. The checkers have no clock: a wait with a
    /// timeout ends at once.
    #[derive(Debug, Default)]
    pub(crate) struct Event {
        count: Mutex<u64>,
        moved: checker::sync::Condvar,
    }

    impl Event {
        pub(crate) fn wait_unless(&self, skip: impl FnOnce() -> bool, timeout: Option<Duration>) {
            let seen = *self.count.lock();
            if skip() {
                return;
            }
            if timeout.is_some() {
                checker::thread::yield_now();
                return;
            }
            let mut count = self.count.lock();
            while *count == seen {
                count = self.moved.wait(count).unwrap_or_else(PoisonError::into_inner);
            }
        }

        pub(crate) fn notify_all(&self) {
            *self.count.lock() += 1;
            self.moved.notify_all();
        }
    }
}

pub(crate) use imp::*;
