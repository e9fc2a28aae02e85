// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reports of completions: made at once, or kept until the device is polled.
//!
//! With `completion=callback` the worker that ends a job reports it. Otherwise reports are kept in order, and
//! [`Reports::deliver`] makes them when [`Device::poll`](hal_backend::Device::poll) is called. With
//! `completion=descriptor` a pipe is readable while reports are kept: it has one byte from the first kept report to
//! the poll that takes it.
//!
//! # Order
//!
//! Completions of a queue are reported in order, and several threads may poll at once. So one of them delivers, and
//! another one that comes in the meantime returns. A report that is kept after the delivering thread has taken them
//! is found by the next poll, which is certain to come: from the pipe, or from the thread that polls a device with
//! work.

use hal_backend::{Completion, Failure, QueueId, Reporter};
use parking_lot::Mutex;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

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
    reader: Option<PipeReader>,
}

#[derive(Default)]
struct Due {
    reports: Vec<Report>,
    /// The other end of the pipe; `None` once it has hung up.
    writer: Option<PipeWriter>,
    /// True while there is a byte in the pipe.
    is_readable: bool,
}

impl Reports {
    pub(crate) fn new(completion: Completion) -> Result<Self, Failure> {
        let (reader, writer) = match completion {
            Completion::Callback => return Ok(Self { reporter: Reporter::default(), kept: None }),
            Completion::Poll => (None, None),
            Completion::Descriptor => {
                let (reader, writer) = std::io::pipe().map_err(|error| {
                    let message =
                        format!("the mock device could not create the pipe that it reports by: {error}");
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
            Some(kept) => kept.due.lock().add(report),
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

    /// Closes the pipe for good.
    pub(crate) fn hang_up(&self) {
        if let Some(kept) = &self.kept {
            drop(kept.due.lock().writer.take());
        }
    }
}

impl Due {
    fn add(&mut self, report: Report) {
        self.reports.push(report);
        if let Some(writer) = &mut self.writer
            && !self.is_readable
        {
            // An empty pipe whose other end is open takes a byte.
            self.is_readable = writer.write_all(&[1]).is_ok();
        }
    }
}

impl KeptReports {
    /// Takes the kept reports, and makes the pipe unreadable.
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
