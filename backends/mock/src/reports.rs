// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reports of completions: made at once, or kept until the device is polled.
//!
//! With `completion=callback` the worker that ends a job reports it. Otherwise reports are kept in order, and
//! [`Reports::deliver`] makes them when [`Device::poll`](hal_backend::Device::poll) is called. With
//! `completion=descriptor` a socket is readable while reports are kept: it has one byte from the first kept report to
//! the poll that takes it. It is no pipe, since a program that has closed one end of a pipe is killed by a write to
//! the other.
//!
//! # Order
//!
//! Completions of a queue are reported in order, and several threads may poll at once. So one of them delivers, and
//! another one that comes in the meantime returns. A report that is kept after the delivering thread has taken them
//! is found by the next poll, which is certain to come: from the socket, or from the thread that polls a device with
//! work.

use hal_backend::{Completion, Failure, QueueId, Reporter};
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// A job that has ended, with all before it on its queue.
pub(crate) struct Done {
    pub(crate) id: QueueId,
    pub(crate) epoch: u64,
    pub(crate) outcome: Result<(), Failure>,
}

enum Report {
    Done(Done),
    Lost(Failure),
}

/// The reports of a device.
pub(crate) struct Reports {
    reporter: Reporter,
    kept: Option<KeptReports>,
}

struct KeptReports {
    due: Mutex<Due>,
    /// Held by the delivering thread.
    delivering: Mutex<()>,
    reader: Option<UnixStream>,
}

#[derive(Default)]
struct Due {
    reports: Vec<Report>,
    /// The other end of the socket; `None` once it has hung up.
    writer: Option<UnixStream>,
    /// True while there is a byte in the socket.
    is_readable: bool,
}

impl Reports {
    pub(crate) fn new(completion: Completion) -> Result<Self, Failure> {
        let (reader, writer) = match completion {
            Completion::Callback => return Ok(Self { reporter: Reporter::default(), kept: None }),
            Completion::Poll => (None, None),
            Completion::Descriptor => {
                let (reader, writer) = UnixStream::pair().map_err(|error| {
                    let message =
                        format!("the mock device could not create the sockets that it reports by: {error}");
                    Failure::new(hal_backend::Code::ResourceExhausted, message)
                })?;
                (Some(reader), Some(writer))
            }
        };
        let due = Mutex::new(Due { writer, ..Due::default() });
        let kept = Some(KeptReports { due, delivering: Mutex::new(()), reader });
        Ok(Self { reporter: Reporter::default(), kept })
    }

    pub(crate) fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    /// Reports that jobs of a queue have ended.
    pub(crate) fn done(&self, done: Done) {
        self.bring(Report::Done(done));
    }

    /// Reports the loss of the device.
    pub(crate) fn lost(&self, failure: Failure) {
        self.bring(Report::Lost(failure));
    }

    fn bring(&self, report: Report) {
        match &self.kept {
            None => self.report_now(report),
            Some(kept) => {
                let added = kept.due.lock().add(report);
                if let Err(error) = added {
                    self.reporter.lose(unwritable(&error));
                }
            }
        }
    }

    fn report_now(&self, report: Report) {
        match report {
            Report::Done(Done { id, epoch, outcome }) => self.reporter.ended(id, epoch, outcome),
            Report::Lost(failure) => self.reporter.lose(failure),
        }
    }

    /// Makes the kept reports.
    pub(crate) fn deliver(&self) {
        let Some(kept) = &self.kept else { return };
        let Some(_delivering) = kept.delivering.try_lock() else { return };
        for report in kept.take() {
            self.report_now(report);
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kept.as_ref()?.reader.as_ref()?.as_fd())
    }

    /// Closes the socket for good.
    pub(crate) fn hang_up(&self) {
        if let Some(kept) = &self.kept {
            drop(kept.due.lock().writer.take());
        }
    }
}

/// The loss of a device whose socket the program has closed: nobody polls it any more.
fn unwritable(error: &std::io::Error) -> Failure {
    let message = format!(
        "the mock device is lost: the socket that it reports by cannot be written ({error}); did the program close \
         descriptors that are not its own? open the device again"
    );
    Failure::new(hal_backend::Code::Unavailable, message)
}

impl Due {
    /// Keeps a report. An empty socket whose other end is open takes a byte, so an error is one that was closed.
    fn add(&mut self, report: Report) -> std::io::Result<()> {
        self.reports.push(report);
        if let Some(writer) = &mut self.writer
            && !self.is_readable
        {
            writer.write_all(&[1])?;
            self.is_readable = true;
        }
        Ok(())
    }
}

impl KeptReports {
    /// Takes the kept reports, and makes the socket unreadable.
    fn take(&self) -> Vec<Report> {
        let mut due = self.due.lock();
        if std::mem::take(&mut due.is_readable)
            && let Some(mut reader) = self.reader.as_ref()
        {
            // The byte is there, so this does not block.
            let _ = reader.read(&mut [0]);
        }
        std::mem::take(&mut due.reports)
    }
}
