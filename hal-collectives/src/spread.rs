// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Work that several threads share: each thread takes grains of it.
//!
//! The owner of the work begins, and others help: threads that wait for an operation anyway ([`Helper`]), and
//! threads of this module on the remaining processors. These start when there is work and end after some idle time;
//! their number does not grow with that of the operations.
//!
//! # Memory
//!
//! A helper holds the work only while it helps, and is counted under the same lock under which it takes the work.
//! The owner removes the work from the list, waits until no helper is counted, and then owns it alone again: what
//! it releases then is released.

use hal_backend::AdaptiveSpin;
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a thread stays without work.
const IDLE: Duration = Duration::from_secs(2);

/// The most threads, on any number of processors.
const MOST: usize = 15;

/// How long an owner works before it calls other threads than those that wait: about as long as it takes to wake one.
const CALL_AFTER: Duration = Duration::from_micros(20);

/// How long an owner spins for the last grains of its helpers before it sleeps: longer than a grain takes.
const SPIN: Duration = Duration::from_micros(100);

/// One for all work: whether spinning pays depends on the load of the processors.
static LAST_GRAINS: AdaptiveSpin = AdaptiveSpin::new();

/// The function that does a grain.
type GrainFn = Arc<dyn Fn(u32) + Send + Sync>;

struct SharedWork {
    /// `None` when the owner has taken it back. A helper holds it only while it is counted.
    each: Mutex<Option<GrainFn>>,
    grains: u32,
    /// The first grain of the owner.
    first: u32,
    /// The grains that the owner has taken, and in the upper half those of the helpers: in one word, as no grain is
    /// left when both together have all.
    taken: AtomicU64,
    helpers: Mutex<Helpers>,
    /// Notified when a helper has gone.
    gone: Condvar,
}

/// The kind of thread that takes a grain.
#[derive(Clone, Copy)]
enum Taker {
    Owner,
    Helper,
}

impl SharedWork {
    /// Takes a grain, if one is left: the owner from its first one upwards, the helpers from the one below it
    /// downwards.
    fn next(&self, by: Taker) -> Option<u32> {
        let one = match by {
            Taker::Owner => 1,
            Taker::Helper => 1 << u32::BITS,
        };
        let (own, others) = split(self.taken.fetch_add(one, Ordering::Relaxed));
        let (grains, first) = (u64::from(self.grains), u64::from(self.first));
        let grain = match by {
            Taker::Owner => first + own,
            Taker::Helper => first + grains - 1 - others.min(grains - 1),
        };
        u32::try_from(grain % grains).ok().filter(|_| own + others < grains)
    }

    fn is_any_left(&self) -> bool {
        let (own, others) = split(self.taken.load(Ordering::Relaxed));
        own + others < u64::from(self.grains)
    }
}

/// The grains that the owner has taken, and those of the helpers.
fn split(taken: u64) -> (u64, u64) {
    (taken & u64::from(u32::MAX), taken >> u32::BITS)
}

#[derive(Default)]
struct Helpers {
    count: usize,
    /// The panic of a helper.
    panic: Option<Box<dyn Any + Send>>,
}

struct Pool {
    /// Work that may have grains left.
    open: VecDeque<Arc<SharedWork>>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { open: VecDeque::new(), threads: 0, idle: 0 });
static NEWS: Condvar = Condvar::new();

/// The number of shared works, readable without the lock.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// The number of waiting threads that offer help.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// True if there is unfinished work.
pub(crate) fn is_busy() -> bool {
    BUSY.load(Ordering::Relaxed) > 0
}

/// The offer of a waiting thread to help, for as long as it lives.
pub struct Helper(());

impl Helper {
    /// Offers this thread's help until this is dropped.
    pub fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Does a grain of some work, if there is any.
    pub fn help(&self) -> bool {
        is_busy() && take().is_some_and(|taken| taken.one())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Work in which this thread is counted.
struct CountedWork(Arc<SharedWork>, Taker);

/// The first work with grains left. A thread that takes it is counted before the lock is released, and so before
/// its owner can take it back.
fn take() -> Option<CountedWork> {
    let mut pool = POOL.lock();
    take_from(&mut pool)
}

fn take_from(pool: &mut Pool) -> Option<CountedWork> {
    while let Some(work) = pool.open.front() {
        if work.is_any_left() {
            work.helpers.lock().count += 1;
            return Some(CountedWork(work.clone(), Taker::Helper));
        }
        pool.open.pop_front();
    }
    None
}

impl CountedWork {
    /// Does one grain; false if there was none left.
    fn one(&self) -> bool {
        let Some(number) = self.0.next(self.1) else { return false };
        let each = self.0.each.lock().clone();
        if let Some(each) = each
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| each(number)))
        {
            drop(each);
            self.0.helpers.lock().panic = Some(panic);
        }
        true
    }
}

impl Drop for CountedWork {
    fn drop(&mut self) {
        self.0.helpers.lock().count -= 1;
        self.0.gone.notify_all();
    }
}

/// The most threads of this module: one for each processor, without those of owners and of waiting threads.
fn room() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    let processors =
        *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from).min(MOST + 1));
    processors.saturating_sub(1 + WAITING.load(Ordering::Relaxed))
}

/// Does `grains` grains of some work, with any helpers. Returns the work, which no helper uses any more.
///
/// This thread begins with the grain `first` and goes on upwards and around; the helpers take the grains below it,
/// downwards. So if each thread that does work of a kind has its own first grain, it does much the same grains each
/// time, and finds them near its processor.
pub fn spread<W: Send + Sync + 'static>(
    work: W,
    grains: u32,
    first: u32,
    each: impl Fn(&W, u32) + Send + Sync + 'static,
) -> W {
    let shared = Arc::new(work);
    let theirs = shared.clone();
    let open = Arc::new(SharedWork {
        each: Mutex::new(Some(Arc::new(move |number| each(&theirs, number)))),
        grains,
        first,
        taken: AtomicU64::new(0),
        helpers: Mutex::default(),
        gone: Condvar::new(),
    });
    BUSY.fetch_add(1, Ordering::Relaxed);
    POOL.lock().open.push_back(open.clone());
    let own = CountedWork(open.clone(), Taker::Owner);
    open.helpers.lock().count += 1;
    let (begin, mut has_called) = (Instant::now(), false);
    while own.one() {
        // Threads that wait have come meanwhile, and are counted: others would be in their way.
        if !has_called && begin.elapsed() >= CALL_AFTER && open.is_any_left() {
            has_called = true;
            call(grains - 1);
        }
    }
    drop(own);
    POOL.lock().open.retain(|other| !Arc::ptr_eq(other, &open));
    LAST_GRAINS.spin_until(SPIN, || open.helpers.try_lock().is_some_and(|helpers| helpers.count == 0));
    let mut helpers = open.helpers.lock();
    while helpers.count > 0 {
        open.gone.wait(&mut helpers);
    }
    let panic = helpers.panic.take();
    drop(helpers);
    BUSY.fetch_sub(1, Ordering::Relaxed);
    drop(open.each.lock().take());
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
    match Arc::try_unwrap(shared) {
        Ok(work) => work,
        Err(_) => unreachable!("all counted helpers have released it"),
    }
}

/// Starts or wakes as many helpers as there is room for, at most one for each grain.
fn call(grains: u32) {
    let mut pool = POOL.lock();
    let wanted = room().min(grains as usize);
    let (woken, started) = (wanted.min(pool.idle), wanted.saturating_sub(pool.threads));
    pool.threads += started;
    drop(pool);
    for _ in 0..woken {
        NEWS.notify_one();
    }
    for _ in 0..started {
        let thread = std::thread::Builder::new().name("hal-spread".into());
        if thread.spawn(serve).is_err() {
            // No thread was started: the calling thread does the work.
            POOL.lock().threads -= 1;
        }
    }
}

fn serve() {
    let mut pool = POOL.lock();
    let mut until = Instant::now() + IDLE;
    loop {
        if let Some(taken) = take_from(&mut pool) {
            drop(pool);
            while taken.one() {}
            drop(taken);
            pool = POOL.lock();
            until = Instant::now() + IDLE;
            continue;
        }
        pool.idle += 1;
        let timed_out = NEWS.wait_until(&mut pool, until).timed_out();
        pool.idle -= 1;
        // Unless it was woken just then.
        if timed_out && (pool.open.is_empty() || room() == 0) {
            pool.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    /// Held by tests that count the threads.
    static COUNTED: Mutex<()> = Mutex::new(());

    #[test]
    fn each_grain_is_done_once_and_the_work_comes_back() {
        for grains in [1, 2, 7, 100] {
            let counts: Vec<AtomicU32> = (0..grains).map(|_| AtomicU32::new(0)).collect();
            let counts = spread(counts, grains, 0, |counts, number| {
                counts[number as usize].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn owner_goes_up_from_its_first_grain_and_helpers_go_down_from_there_until_each_is_taken() {
        let (each, helpers, gone) = (Mutex::new(None), Mutex::default(), Condvar::new());
        let work = SharedWork { each, grains: 5, first: 3, taken: AtomicU64::new(0), helpers, gone };
        let takers = [
            Taker::Owner,
            Taker::Helper,
            Taker::Helper,
            Taker::Owner,
            Taker::Owner,
            Taker::Owner,
            Taker::Helper,
            Taker::Owner,
        ];
        let taken = takers.map(|by| (work.next(by), work.is_any_left()));
        let numbers = [Some(3), Some(2), Some(1), Some(4), Some(0), None, None, None];
        assert_eq!(taken.map(|(number, _)| number), numbers);
        assert_eq!(taken.map(|(_, left)| left), [true, true, true, true, false, false, false, false]);
    }

    /// The owner's first grain takes as long as it works alone, and two that wait for each other need two threads.
    fn needs_two() {
        spread(Barrier::new(2), 3, 0, |both, number| {
            if number > 0 {
                both.wait();
            } else {
                std::thread::sleep(CALL_AFTER);
            }
        });
    }

    /// The second time it is the one that is idle.
    #[test]
    fn helper_comes_and_an_idle_one_is_woken() {
        let _alone = COUNTED.lock();
        if room() == 0 {
            // One processor: no helper comes, and the owner does everything.
            let owner = std::thread::current().id();
            spread((), 9, 0, move |(), _| assert_eq!(std::thread::current().id(), owner));
            return;
        }
        let times = [(); 6].map(|()| {
            let begin = Instant::now();
            needs_two();
            let time = begin.elapsed();
            std::thread::sleep(Duration::from_millis(20));
            time
        });
        // Without a wake-up it would come each time when its idle time is over. On a busy machine one is late anyway.
        assert!(times[1..].iter().any(|time| *time < IDLE / 2), "{times:?}");
    }

    /// If as many threads wait as there are processors, no other helper comes, even one whose idle time is just
    /// over.
    #[test]
    fn threads_that_wait_help_in_place_of_others() {
        let _alone = COUNTED.lock();
        if room() > 0 {
            needs_two();
            std::thread::sleep(IDLE - Duration::from_millis(100));
        }
        let waiting: Vec<Helper> = (0..=MOST).map(|_| Helper::begin()).collect();
        assert_eq!(room(), 0);
        let begun = Arc::new(Barrier::new(2));
        let theirs = begun.clone();
        let owner = std::thread::spawn(move || {
            spread(Mutex::new(Vec::new()), 2, 0, move |done, _| {
                done.lock().push(std::thread::current().id());
                // Two grains that wait for each other: one for the owner, and one for a helper.
                theirs.wait();
            })
            .into_inner()
        });
        std::thread::sleep(Duration::from_millis(300));
        let end = Instant::now() + Duration::from_secs(60);
        while !waiting.iter().any(Helper::help) {
            assert!(Instant::now() < end, "there was nothing to help with");
        }
        let mut done = owner.join().unwrap();
        done.retain(|thread| *thread == std::thread::current().id());
        assert_eq!(done.len(), 1);
        drop(waiting);
    }

    #[test]
    fn panic_of_a_grain_reaches_the_owner_and_the_work_is_free_then() {
        /// As many as no other test has.
        const GRAINS: u32 = 71;
        struct SetOnDrop(Arc<AtomicBool>);
        impl Drop for SetOnDrop {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let gone = Arc::new(AtomicBool::new(false));
        let state = SetOnDrop(gone.clone());
        let caught = catch_unwind(AssertUnwindSafe(|| {
            spread(state, GRAINS, 0, |_, number| assert!(number != 5, "grain 5"));
        }));
        assert!(caught.is_err() && gone.load(Ordering::Relaxed));
        assert!(!POOL.lock().open.iter().any(|work| work.grains == GRAINS));
    }
}
