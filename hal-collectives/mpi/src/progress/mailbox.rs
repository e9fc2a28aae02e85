// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Notices on their way, on the base communicator.

use crate::library::{Call, Handle, Library, Number, What};
use crate::notice::{Generation, LENGTH, Notice, TAG};
use hal_backend::HostRange;
use hal_collectives::Result;
use hal_semaphore::Failure;
use std::collections::VecDeque;
use std::time::Instant;

/// The length of a notice, as MPI counts it.
const COUNT: i32 = 1024;
const _: () = assert!(COUNT as usize == LENGTH);

/// See the [module documentation](self). Whoever calls it with a library may call MPI.
pub(super) struct Mailbox {
    rank: u32,
    base: Option<Handle>,
    /// The receive of the next notice.
    inbox: Option<Call>,
    /// Why none can be received.
    failure: Option<Failure>,
    /// Those of this process to itself.
    own: VecDeque<(Generation, Notice)>,
    /// Those that wait for the base, or until MPI may be called.
    outbox: Vec<(u32, Generation, Notice)>,
    sending: Vec<Call>,
    /// But for those of a process that stood still, as a test does on a busy machine.
    #[cfg(test)]
    pub(super) sent: usize,
}

impl Mailbox {
    pub(super) fn new(rank: u32) -> Self {
        Self {
            rank,
            base: None,
            inbox: None,
            failure: None,
            own: VecDeque::new(),
            outbox: Vec::new(),
            sending: Vec::new(),
            #[cfg(test)]
            sent: 0,
        }
    }

    /// The base communicator, if it was made.
    pub(super) fn base(&self) -> Option<Handle> {
        self.base
    }

    pub(super) fn set_base(&mut self, base: Handle) {
        self.base = Some(base);
    }

    /// True if notices are taken from MPI.
    pub(super) fn listens(&self) -> bool {
        self.inbox.is_some()
    }

    /// True if notices are on their way to others.
    pub(super) fn sends(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Sends a notice to a rank of the job: with a library at once, otherwise when there is one.
    pub(super) fn send(&mut self, library: Option<&Library>, to: u32, of: Generation, notice: Notice) {
        if to == self.rank {
            return self.own.push_back((of, notice));
        }
        #[cfg(test)]
        {
            self.sent += usize::from(!matches!(notice, Notice::StoodStill { .. }));
        }
        match library.zip(self.base) {
            Some((library, base)) => self.begin(library, base, to, &notice.to_bytes(of)),
            None => self.outbox.push((to, of, notice)),
        }
    }

    fn begin(&mut self, library: &Library, base: Handle, to: u32, bytes: &[u8]) {
        let Ok(memory) = HostRange::allocate(LENGTH as u64, 64) else { return };
        let written = memory.write(0, bytes);
        debug_assert!(written, "a notice has its length");
        let mut call = call(What::Send { to, tag: TAG }, [Some(memory), None]);
        if library.begin(base, &mut call).is_ok() {
            self.sending.push(call);
        }
    }

    /// Sends what waits, and tests what is on its way.
    pub(super) fn flush(&mut self, library: &Library) {
        if self.sending.is_empty() && self.outbox.is_empty() {
            return;
        }
        self.sending.retain_mut(|call| !library.has_ended(call).unwrap_or(true));
        if let Some(base) = self.base {
            for (to, of, notice) in std::mem::take(&mut self.outbox) {
                self.begin(library, base, to, &notice.to_bytes(of));
            }
        }
    }

    /// The next notice of this process to itself.
    pub(super) fn take_own(&mut self) -> Option<(Generation, Notice)> {
        self.own.pop_front()
    }

    /// Why no notice can be received, if that is so.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The next notice of another process that has come. After a failure none comes.
    pub(super) fn receive(&mut self, library: &Library) -> Result<Option<(Generation, Notice)>> {
        let Some(base) = self.base.filter(|_| self.failure.is_none()) else { return Ok(None) };
        self.receive_at(library, base).inspect_err(|failure| self.failure = Some(failure.clone()))
    }

    fn receive_at(&mut self, library: &Library, base: Handle) -> Result<Option<(Generation, Notice)>> {
        let inbox = match &mut self.inbox {
            Some(inbox) => inbox,
            inbox => {
                let memory = HostRange::allocate(LENGTH as u64, 64)?;
                let mut call = call(What::Receive { from: None, tag: TAG }, [None, Some(memory)]);
                library.begin(base, &mut call)?;
                inbox.insert(call)
            }
        };
        let has_ended = library.has_ended(inbox)?;
        Ok(self.inbox.take_if(|_| has_ended).as_ref().and_then(read))
    }

    /// Sends what is left until `end`, and receives no more. Returns a notice that came meanwhile. Without a library
    /// the receive cannot be cancelled and stays, as MPI would give the next notice to it.
    pub(super) fn close(&mut self, library: Option<&Library>, end: Instant) -> Option<(Generation, Notice)> {
        let library = library?;
        let inbox = self.inbox.take();
        while !(self.sending.is_empty() && self.outbox.is_empty()) && Instant::now() < end {
            self.flush(library);
        }
        let mut inbox = inbox?;
        library.cancel(&mut inbox);
        while !library.has_ended(&mut inbox).unwrap_or(true) && Instant::now() < end {}
        // The memory is zeroed, which is no notice, unless one came before it was cancelled.
        read(&inbox)
    }
}

fn call(what: What, memory: [Option<HostRange>; 2]) -> Call {
    Call::new(what, memory, (COUNT, Number::Byte), None)
}

/// The notice that was received.
fn read(inbox: &Call) -> Option<(Generation, Notice)> {
    let mut bytes = [0; LENGTH];
    let read = inbox.received()?.read(0, &mut bytes);
    debug_assert!(read, "a notice has its length");
    Notice::from_bytes(&bytes)
}
