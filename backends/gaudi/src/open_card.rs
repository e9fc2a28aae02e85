// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards that this process has open, each once.
//!
//! The kernel lets one file at a time use a card. A process that opens a device twice, as programs do without a
//! thought, would be refused because it has the card itself. So a call that opens a card that this process has open
//! already gets the same one: its memory, and its limits. Devices keep queues of their own.

use crate::kmd::{CARDS, Card, System};
use crate::memory::Heap;
use hal_backend::Failure;
use hal_gaudi_abi::programs::CardPrograms;
use hal_kernel::cards::{CardHandle, NamedCard, descriptor};
use hal_kernel::registry::Registry;
use hal_kernel::{CardFile, CardKey};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

/// An open card, and what there is once for it.
pub(crate) struct OpenCard {
    pub(crate) card: Arc<Card>,
    pub(crate) device: Arc<Heap>,
    pub(crate) host: Arc<Heap>,
    /// How many submissions are in flight, of all devices.
    pub(crate) in_flight: Arc<AtomicUsize>,
}

/// The cards that are open.
static OPEN: Registry<CardKey, OpenCard> = Registry::new();

impl OpenCard {
    /// An open card with its heaps.
    pub(crate) fn of(card: Arc<Card>) -> Self {
        let (device, host) = (Heap::device(&card), Heap::host(&card));
        Self { card, device, host, in_flight: Arc::default() }
    }

    /// The card that a path names: opened, unless this process has it open. A call waits until a lost card is closed.
    pub(crate) fn open(card: &NamedCard<dyn CardPrograms>, patience: Duration) -> Result<Arc<Self>, Failure> {
        match &card.handle {
            CardHandle::Node(node) => Self::open_node(card.system.clone(), card.key.clone(), node, patience),
            CardHandle::Descriptor(number) => {
                let (file, name) = (descriptor(*number)?, format!("descriptor {number}"));
                Self::adopt(card.system.clone(), card.key.clone(), (file, name), patience)
            }
        }
    }

    /// The card behind a node.
    pub(crate) fn open_node(
        system: Arc<dyn System>,
        key: CardKey,
        path: &Path,
        patience: Duration,
    ) -> Result<Arc<Self>, Failure> {
        let end = Instant::now() + patience;
        loop {
            let open = OPEN.open(key.clone(), end, |registration| {
                let file = |left| CardFile::open(&CARDS, system.clone(), path, left);
                Card::start(Some(registration), end, file).map(Self::of)
            })?;
            // Its file may have ended since it was opened, and none of its users have found out.
            if open.card.is_usable() {
                return Ok(open);
            }
        }
    }

    /// The card behind a descriptor of the program's.
    pub(crate) fn adopt(
        system: Arc<dyn System>,
        key: CardKey,
        (file, name): (BorrowedFd<'_>, String),
        patience: Duration,
    ) -> Result<Arc<Self>, Failure> {
        let end = Instant::now() + patience;
        loop {
            let open = OPEN.open(key.clone(), end, |registration| {
                // The file is open already: there is no other close to wait for.
                registration.free();
                let file = |_| CardFile::adopt(system.clone(), file, name.clone());
                Card::start(Some(registration), Instant::now(), file).map(Self::of)
            })?;
            if open.card.is_usable() {
                return Ok(open);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dma::{Dma, Request};
    use crate::generation::Generation;
    use crate::kmd::{DmabufHolder, Errno, EventFd, LossCause, Progress, borrow, cards};
    use emulator_gaudi::{Emulator, Options};
    use hal_backend::{Code, HostRange, Parameters};
    use parking_lot::Mutex;
    use std::os::fd::{AsFd, AsRawFd};

    fn open(emulator: &Arc<Emulator>, patience: Duration) -> Result<Arc<OpenCard>, Failure> {
        let node = Path::new("/dev/accel/accel0");
        let key = CardKey::emulated(emulator, node);
        OpenCard::open_node(emulator.clone(), key, node, patience)
    }

    #[test]
    fn second_open_of_a_card_gets_the_same_one() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let one = open(&emulator, Duration::ZERO).unwrap();
        assert!(Arc::ptr_eq(&one, &open(&emulator, Duration::ZERO).unwrap()));
    }

    /// A request that finds the loss is enough; its users need not have released the card.
    #[test]
    fn card_that_is_known_to_be_lost_is_not_given_out() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let lost = open(&emulator, Duration::ZERO).unwrap();
        emulator.pull_out(0);
        let heap = lost.host.allocate(4096).unwrap_err();
        assert!(heap.message().contains("gone"), "{heap}");
        assert!(lost.card.is_open(), "it is closed too early");
        let refused =
            open(&emulator, Duration::from_millis(10)).map(|_| "a lost card was given out").unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
    }

    /// Nothing was asked of the card since.
    #[test]
    fn card_that_was_pulled_out_is_not_given_out() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let lost = open(&emulator, Duration::ZERO).unwrap();
        emulator.pull_out(0);
        let refused = open(&emulator, Duration::from_millis(10)).map(|_| "a lost card was given out");
        assert_eq!(refused.unwrap_err().code(), Code::NotFound);
        assert!(lost.card.is_open(), "it is closed too early");
        let file = emulator.open(Path::new("/dev/accel/accel1")).unwrap();
        let _lost = adopt(file.as_fd()).unwrap();
        emulator.pull_out(1);
        assert!(
            adopt(file.as_fd()).map(|_| "a lost card was given out").unwrap_err().message().contains("gone")
        );
    }

    type Transfer = fn(&Dma) -> Result<Request, Failure>;

    /// Without a device, whose threads would do it.
    #[test]
    fn card_that_a_transfer_finds_lost_is_closed() {
        for generation in [Generation::Gaudi1, Generation::Gaudi2] {
            let transfers: [Transfer; 2] = [
                |dma| dma.host_to_device(&HostRange::allocate(4096, 64)?, 1 << 40),
                |dma| dma.fill([1; 4], 1 << 40, 4096),
            ];
            for (number, transfer) in transfers.into_iter().enumerate() {
                let emulator = Emulator::new(Options::of(generation)).unwrap();
                let shared = open(&emulator, Duration::ZERO).unwrap();
                let dma = Dma::of(&shared);
                emulator.pull_out(0);
                let failure = transfer(&dma).unwrap_err();
                assert!(failure.message().contains("gone"), "{number}: {failure}");
                assert!(!shared.card.is_open(), "{generation} {number}: it is kept open");
                let later = transfer(&dma).unwrap_err();
                assert_eq!(later.code(), Code::Unavailable, "{number}: {later}");
            }
        }
    }

    /// A holder of a card's memory, which opens the card when it goes.
    struct Opener {
        emulator: Arc<Emulator>,
        card: Arc<Card>,
        got: Mutex<Option<Result<bool, Code>>>,
    }

    impl DmabufHolder for Opener {
        fn release(&self, _: &str) {
            // A second close does not report that the card is closed.
            self.card.close();
            let (begin, patience) = (Instant::now(), Duration::from_millis(300));
            let opened = open(&self.emulator, patience);
            assert!(begin.elapsed() >= patience, "it was said to be closed");
            let got =
                opened.map(|shared| Arc::ptr_eq(&shared.card, &self.card)).map_err(|failure| failure.code());
            *self.got.lock() = Some(got);
        }
    }

    /// Those who have its memory may take their time, and its file is there until they have.
    #[test]
    fn card_that_is_being_closed_is_not_given_out() {
        let ends: [fn(&Card); 2] =
            [Card::close, |card| card.lose(&Failure::new(Code::Unavailable, "it was on fire"))];
        for (number, end) in ends.into_iter().enumerate() {
            let emulator = Emulator::new(Options::default()).unwrap();
            let shared = open(&emulator, Duration::ZERO).unwrap();
            let opener = Arc::new(Opener {
                emulator: emulator.clone(),
                card: shared.card.clone(),
                got: Mutex::default(),
            });
            let holder: Arc<dyn DmabufHolder> = opener.clone();
            shared.card.is_held_by(Arc::downgrade(&holder));
            end(&shared.card);
            assert_eq!(*opener.got.lock(), Some(Err(Code::Unavailable)), "{number}");
            assert!(!Arc::ptr_eq(&shared, &open(&emulator, Duration::from_secs(20)).unwrap()), "{number}");
        }
    }

    /// A program that has lost its card can open it again at once.
    #[test]
    fn threads_that_open_lose_and_close_a_card_at_once_all_get_one() {
        for generation in [Generation::Gaudi1, Generation::Gaudi2] {
            let emulator = Emulator::new(Options::of(generation)).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let emulator = &emulator;
                    scope.spawn(move || {
                        for round in 0..12 {
                            let shared = open(emulator, Duration::from_secs(60)).unwrap();
                            if (round + thread) % 3 == 0 {
                                let begin = Instant::now();
                                shared.card.lose(&Failure::new(Code::Unavailable, "it was on fire"));
                                let next = open(emulator, Duration::from_secs(60)).unwrap();
                                assert!(
                                    !Arc::ptr_eq(&shared, &next),
                                    "{generation}: it was known to be lost"
                                );
                                assert!(
                                    begin.elapsed() < Duration::from_secs(30),
                                    "{generation}: it was closed"
                                );
                            }
                        }
                    });
                }
            });
            let last = open(&emulator, Duration::from_secs(60)).unwrap();
            assert!(last.card.is_open());
            assert_eq!(last.card.state(), "operational", "{generation}");
        }
    }

    /// The card that a URI with this descriptor names.
    fn adopt(file: BorrowedFd<'_>) -> Result<Arc<OpenCard>, Failure> {
        let mut parameters = Parameters::new(CARDS.driver, []);
        let path = format!("fd/{}", file.as_raw_fd());
        let named = CARDS.resolve::<emulator_gaudi::Emulated, _>(&path, &mut parameters, cards)?;
        OpenCard::open(&named, Duration::ZERO)
    }

    /// The descriptor of the machine's open card, which was not given away.
    fn file_of(emulator: &Arc<Emulator>) -> BorrowedFd<'static> {
        let names = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.file_name());
        let mut files = names.filter_map(|name| borrow(name.to_str()?.parse().ok()?));
        files.find(|&file| Emulator::of(file).is_some_and(|found| Arc::ptr_eq(&found, emulator))).unwrap()
    }

    #[test]
    fn card_is_the_same_by_its_node_and_by_a_descriptor() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let shared = open(&emulator, Duration::ZERO).unwrap();
        assert!(Arc::ptr_eq(&shared, &adopt(file_of(&emulator)).unwrap()));
        let emulator = Emulator::new(Options::default()).unwrap();
        let file = emulator.open(Path::new("/dev/accel/accel0")).unwrap();
        let shared = adopt(file.as_fd()).unwrap();
        assert!(Arc::ptr_eq(&shared, &open(&emulator, Duration::ZERO).unwrap()));
    }

    /// An adopted file need not be closed first: the program may never do that.
    #[test]
    fn card_of_the_programs_that_is_lost_is_asked_again_at_once() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let file = emulator.open(Path::new("/dev/accel/accel0")).unwrap();
        let lost = adopt(file.as_fd()).unwrap();
        assert!(Arc::ptr_eq(&lost, &adopt(file.as_fd()).unwrap()));
        emulator.pull_out(0);
        lost.host.allocate(4096).unwrap_err();
        assert!(lost.card.is_open(), "it is closed too early");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let again = adopt(file.as_fd());
            sender.send(again.map(drop).map_err(|failure| failure.message().to_owned()))
        });
        let again =
            receiver.recv_timeout(Duration::from_secs(20)).expect("it waits for the file to be closed");
        assert!(again.is_err_and(|said| said.contains("gone")));
    }

    #[test]
    fn descriptor_of_a_lost_card_that_is_still_held_is_refused_in_time() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let lost = open(&emulator, Duration::ZERO).unwrap();
        let file = file_of(&emulator);
        emulator.pull_out(0);
        lost.host.allocate(4096).unwrap_err();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(adopt(file).map(drop)));
        let refused =
            receiver.recv_timeout(Duration::from_secs(20)).expect("it waits for the lost card's holder");
        assert!(refused.unwrap_err().message().contains("gone"));
        drop(lost);
    }

    type Question = fn(&OpenCard);

    /// Whatever request finds it, and whether or not its caller reports it. Failures of submissions and waits are
    /// judged by their callers.
    #[test]
    fn card_that_any_request_finds_gone_is_not_given_out() {
        let questions: [(&str, bool, Question); 4] = [
            ("its state", true, |shared| assert_eq!(shared.card.state(), "gone")),
            ("memory", true, |shared| assert_eq!(shared.card.allocate(4096), Err(Errno::NODEV))),
            ("a submission", false, |shared| {
                assert_eq!(shared.card.submit(0, 0, 8, None), Err(Errno::NODEV))
            }),
            ("a wait", false, |shared| {
                assert_eq!(shared.card.wait(1, Duration::ZERO), Progress::Lost(Errno::NODEV));
            }),
        ];
        for (what, says_why, ask) in questions {
            let emulator = Emulator::new(Options::default()).unwrap();
            let lost = open(&emulator, Duration::ZERO).unwrap();
            emulator.pull_out(0);
            ask(&lost);
            assert_eq!(lost.card.loss_cause().is_some(), says_why, "{what}");
            assert!(open(&emulator, Duration::from_millis(10)).is_err(), "{what}: a lost card was given out");
        }
    }

    /// The first reason is the one, for all users of the card, and wakes those that sleep.
    #[test]
    fn lost_card_reports_the_first_cause_to_all_waiters() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let shared = open(&emulator, Duration::ZERO).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let card = shared.card.clone();
        std::thread::spawn(move || sender.send(card.wait_for_loss(&EventFd::new().unwrap())));
        shared.card.lose(&Failure::new(Code::Unavailable, "it was on fire"));
        shared.card.lose(&Failure::new(Code::Unavailable, "it was wet"));
        let heard = receiver.recv_timeout(Duration::from_secs(20)).expect("it was not woken");
        assert!(matches!(heard, Some(LossCause::Lost(why)) if why.message() == "it was on fire"));
    }

    #[test]
    fn card_whose_driver_reports_a_reset_is_not_given_out() {
        let emulator = Emulator::new(Options::default()).unwrap();
        let shared = open(&emulator, Duration::ZERO).unwrap();
        emulator.report_error(0);
        assert!(matches!(shared.card.wait_for_loss(&EventFd::new().unwrap()), Some(LossCause::Notified)));
        assert!(shared.card.is_open(), "it is closed too early");
        assert!(open(&emulator, Duration::from_millis(10)).is_err(), "a lost card was given out");
    }

    /// The driver's notices are not listened to here: what it refuses while it resets is all there is.
    #[test]
    fn card_that_refuses_memory_as_it_is_reset_is_known_to_be_lost() {
        let mut options = Options::default();
        options.execution.speed = 100;
        let emulator = Emulator::new(options).unwrap();
        let shared = open(&emulator, Duration::ZERO).unwrap();
        emulator.report_error(0);
        let end = Instant::now() + Duration::from_secs(20);
        let refused = loop {
            match shared.card.allocate(4096) {
                Ok(memory) => shared.card.free(memory).unwrap_or_default(),
                Err(errno) => break errno,
            }
            assert!(Instant::now() < end, "it is not reset");
        };
        assert_eq!(refused, Errno::BUSY);
        assert!(matches!(shared.card.loss_cause(), Some(LossCause::Refused(Errno::BUSY))));
    }
}
