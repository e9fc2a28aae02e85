// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages to a device's management processor, one at a time, on a thread of their own.
//!
//! A message blocks until the device has answered or the kernel has given up, which by itself takes a minute, and a
//! signal that interrupts it leaves unknown whether it was sent. So messages are sent by a thread that takes no
//! signals, and a caller waits as long as it wants to: with a timeout that is shorter than the kernel's, the caller
//! goes on, and the thread stays behind until the kernel gives up. What the device may still give to an abandoned
//! message is given back when the file is closed.
//!
//! A timeout that is longer than the kernel's is refused when the device is opened, rather than shortened.

use super::{Card, Errno, Error, ModuleSettings};
use hal_backend::{Code, Failure, TimeLimit};
use hal_qaic_abi::nnc::user::{Answer, Ask, Message, answers};
use hal_qaic_abi::uapi::ManageMessage;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the kernel waits by itself.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(60);

/// A message on its way.
struct ControlRequest {
    what: &'static str,
    message: Message,
    /// The memory that DMA transfers of the message read, until the kernel has released it.
    memory: Vec<Arc<[u8]>>,
    reply: SyncSender<Result<Reply, Error>>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    message: Message,
    length: usize,
    /// True if the kernel says that the device refused.
    pub(super) refused: bool,
}

impl Reply {
    /// Its answers.
    pub(super) fn answers(&mut self, what: &'static str) -> Result<Vec<Answer<'_>>, Error> {
        // A length beyond the message's own memory is none, and nothing is no answer.
        let bytes = self.message.memory().get(..self.length).unwrap_or_default();
        answers(bytes).map_err(|why| Error::Answer { what, why: why.to_string() })
    }
}

/// The way to a device's management processor.
#[derive(Debug)]
pub struct Control {
    /// To the thread that sends; taken when this is dropped.
    queue: Mutex<Option<Sender<ControlRequest>>>,
    thread: Option<JoinHandle<()>>,
    timeout: Duration,
    /// True if the last message was not answered.
    silent: AtomicBool,
}

impl Control {
    /// The way to this device, with this timeout if not the kernel's.
    pub fn new(card: &Arc<Card>, timeout: Option<Duration>) -> Result<Self, Failure> {
        let limit = ModuleSettings::read(&**card.system()).control_timeout().unwrap_or(KERNEL_TIMEOUT);
        let timeout = timeout.unwrap_or(limit);
        if timeout > limit {
            let message = format!(
                "{}: control_timeout={} is longer than the kernel waits, which is {} s; raise \
                 /sys/module/qaic/parameters/control_resp_timeout_s first",
                card.name(),
                timeout.as_secs(),
                limit.as_secs()
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let (queue, work) = channel();
        let served = card.clone();
        let name = "qaic-control";
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || serve(&served, &work));
        let thread = started.map_err(|error| Failure::without_thread(name, &error))?;
        let (queue, thread) = (Mutex::new(Some(queue)), Some(thread));
        Ok(Self { queue, thread, timeout, silent: AtomicBool::new(false) })
    }

    /// How long a message may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// True if the device has not answered the last message. The next one may take as long again.
    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Sends a message and waits for its answer. DMA transfers read `memory`, by address.
    pub(super) fn exchange(
        &self,
        what: &'static str,
        asks: &[Ask<'_>],
        memory: Vec<Arc<[u8]>>,
    ) -> Result<Reply, Error> {
        let mut message = Message::new();
        for ask in asks {
            message.ask(ask)?;
        }
        let (reply, answer) = sync_channel(1);
        let work = ControlRequest { what, message, memory, reply };
        let sent = self.queue.lock().as_ref().is_some_and(|queue| queue.send(work).is_ok());
        if !sent {
            return Err(Error::Gone);
        }
        // If both have the same time limit, the kernel's end comes first, so that its reason is reported.
        let patience = self.timeout + self.timeout / 8 + Duration::from_millis(100);
        let mut limit = TimeLimit::new(patience, Instant::now());
        let result = loop {
            let until = limit.next_look();
            match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(result) => break result,
                Err(RecvTimeoutError::Timeout) if !limit.look(Instant::now()).is_zero() => {}
                Err(RecvTimeoutError::Timeout) => break Err(Error::NoAnswer { what, waited: self.timeout }),
                Err(RecvTimeoutError::Disconnected) => break Err(Error::Gone),
            }
        };
        self.silent.store(matches!(result, Err(Error::NoAnswer { .. })), Ordering::Relaxed);
        result
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        *self.queue.get_mut() = None;
        // A thread with a message that the device does not answer stays behind.
        if let Some(thread) = self.thread.take().filter(|_| !self.is_silent()) {
            // A thread that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}

fn serve(card: &Card, queue: &Receiver<ControlRequest>) {
    block_signals();
    while let Ok(ControlRequest { what, message, memory, reply }) = queue.recv() {
        let result = send(card, what, message);
        drop(memory);
        // The caller may have gone on.
        let _ = reply.send(result);
    }
}

fn send(card: &Card, what: &'static str, mut message: Message) -> Result<Reply, Error> {
    let length = u32::try_from(message.bytes().len()).unwrap_or(u32::MAX);
    let count = message.count();
    let mut argument = ManageMessage { len: length, count, data: message.memory().as_mut_ptr() as u64 };
    let refused = match card.manage(&mut argument) {
        Ok(()) => false,
        // The device refuses, and its answer says why.
        Err(Errno::CANCELED) => true,
        Err(Errno::TIMEDOUT) => {
            let waited = ModuleSettings::read(&**card.system()).control_timeout().unwrap_or(KERNEL_TIMEOUT);
            return Err(Error::NoAnswer { what, waited });
        }
        Err(Errno::PIPE) => return Err(Error::Checksum { what }),
        // The kernel says the same of a device that is offline and of one that gives a channel which it does not have.
        Err(Errno::NODEV) if card.is_online() => {
            let why = "it names a channel that no device has".to_owned();
            return Err(Error::Answer { what, why });
        }
        Err(Errno::NODEV) => return Err(Error::Gone),
        // Its error for a message that it does not take, too; but these are made here, and of no other kind.
        Err(Errno::INVAL) => {
            let why = "the kernel takes it for no answer to this message (errno 22); use firmware and driver of one \
                       release, or look at the kernel's log"
                .to_owned();
            return Err(Error::Answer { what, why });
        }
        Err(errno) => return Err(Error::Kernel { what, errno }),
    };
    let length = usize::try_from(argument.len).unwrap_or(usize::MAX);
    Ok(Reply { message, length, refused })
}

/// A signal would interrupt a message, and then it is unknown whether it was sent.
fn block_signals() {
    // SAFETY: the set is initialised by the first call before the second reads it; changing the mask of this thread,
    // which is ours, touches no memory of others.
    unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}
