// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The report as text: the causes first, then every operation.

use super::{
    HostWait, Operation, Place, Queue, Reason, Report, Snapshot, Stage, Step, TimelineName, Wait, Waiter,
};
use std::fmt;
use std::time::Duration;

/// How many causes the text has, and how many operations of each queue.
const CAUSES: usize = 8;
const OPERATIONS: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        for cause in self.causes.iter().take(CAUSES) {
            write!(f, "- {}", self.sentence(&cause.reason))?;
            match cause.holds_up {
                0 | 1 => writeln!(f)?,
                count => writeln!(f, " (holds up {count})")?,
            }
        }
        if self.causes.len() > CAUSES {
            writeln!(f, "- and {} more", self.causes.len() - CAUSES)?;
        }
        for number in 0..self.process.devices.len() {
            self.device(f, number)?;
        }
        self.host(f)
    }
}

impl Report {
    fn operations(&self) -> impl Iterator<Item = &Operation> {
        let queues = self.process.devices.iter().flat_map(|device| &device.snapshot.queues);
        queues.flat_map(|queue| &queue.operations)
    }

    fn head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operations, stand) =
            (self.operations().count(), self.operations().filter(|operation| operation.stands).count());
        let hosts = self.process.host_waits.iter().map(|wait| wait.count);
        let (hosts, devices) = (hosts.sum::<usize>(), self.process.devices.len());
        writeln!(
            f,
            "stall report: {stand} of {operations} operations and {hosts} waits of the host stand still on {devices} \
             devices"
        )?;
        if self.causes.is_empty() && stand + hosts > 0 {
            writeln!(f, "- each waits for something that moves")?;
        }
        if self.is_partial() {
            writeln!(f, "- some operations were not seen: a value may be promised by one of them")?;
        }
        Ok(())
    }

    /// The name of a device.
    fn device_name(&self, number: usize) -> &str {
        self.process.devices.get(number).map_or("a device", |device| &device.name)
    }

    fn queue_name(&self, device: usize, queue: usize) -> String {
        format!("queue {queue} of {}", self.device_name(device))
    }

    /// A timeline, as those say who wait on a device.
    fn timeline(&self, timeline: TimelineName, device: Option<usize>) -> String {
        let (engine, number) = match timeline {
            TimelineName::Foreign(identity) => {
                return format!("a semaphore of another driver ({identity:#x})");
            }
            TimelineName::Numbered { engine, number } => (engine, number),
        };
        let owner = self.process.devices.iter().position(|device| device.snapshot.engine == engine);
        let mut text = format!("semaphore {number}");
        match owner {
            Some(owner) if Some(owner) == device => {}
            Some(owner) => text += &format!(" of {}", self.device_name(owner)),
            None => text += " of a device that is gone",
        }
        text
    }

    /// The same, with the address by which the program knows it.
    fn addressed(&self, timeline: TimelineName, device: Option<usize>) -> String {
        let text = self.timeline(timeline, device);
        let address = self.process.addresses.get(&timeline);
        address.map_or(text.clone(), |address| format!("{text} ({address:#x})"))
    }

    /// An operation: where it is, and what it does.
    fn name(&self, place: Place) -> String {
        let Some(operation) = self.operation(place) else { return "an operation".to_owned() };
        let queue = self.queue_name(place.device, place.queue);
        match operation.epoch {
            Some(epoch) => format!("epoch {epoch} of {queue} ({})", operation.text),
            None => format!("{queue} ({})", operation.text),
        }
    }

    /// A cause in one sentence.
    pub fn sentence(&self, reason: &Reason) -> String {
        match reason {
            Reason::Unpromised { waiter, step, reached } => {
                let (who, device) = self.waiter(*waiter);
                let text = reach(&self.timeline(step.timeline, device), *step, *reached);
                format!("{who} waits for {text}; {}", self.unpromised(*step))
            }
            Reason::Notification { waiter, step } => {
                let (who, device) = self.waiter(*waiter);
                let timeline = self.timeline(step.timeline, device);
                format!(
                    "{who} is not notified that {timeline} has reached {}: a thread may be inside of a callback",
                    step.value
                )
            }
            Reason::Cycle(places) => self.cycle(places),
            Reason::Device(place) => {
                let mut text = match self.operation(*place).and_then(|operation| operation.age) {
                    Some(age) => {
                        format!("the device has had {} for {} or longer", self.name(*place), seconds(age))
                    }
                    None => format!("the device has {}, and has not reported its end", self.name(*place)),
                };
                let device = self.process.devices.get(place.device);
                if device.is_some_and(|device| device.snapshot.callbacks > 0) {
                    text += ", unless the thread that reports it is inside of a callback";
                }
                text
            }
            Reason::Host(place) => match self.operation(*place).and_then(|operation| operation.age) {
                Some(age) => {
                    format!("the host has been at {} for {} or longer", self.name(*place), seconds(age))
                }
                None => format!("the host is at {}, which has not ended", self.name(*place)),
            },
            Reason::Submission { device, queue } => {
                let queue = self.queue_name(*device, *queue);
                format!("a thread hands work of {queue} to the device, and does not come back from there")
            }
            Reason::Lock { device, queue } => {
                let queue = self.queue_name(*device, *queue);
                format!("a thread has the lock of {queue} and keeps it: what the queue has is not known")
            }
            Reason::Thread(place) => {
                let name = self.name(*place);
                format!("{name} could go on, and no thread comes to it: one may be inside of a callback")
            }
            Reason::Delivery { device, timeline } => {
                let (timeline, device) = (self.timeline(*timeline, None), self.device_name(*device));
                format!(
                    "{device} has signalled {timeline}, and its driver, or a callback that it calls, does not return"
                )
            }
        }
    }

    /// Who waits, and on which device.
    fn waiter(&self, waiter: Waiter) -> (String, Option<usize>) {
        match waiter {
            Waiter::Operation(place) => (self.name(place), Some(place.device)),
            Waiter::Host(_) => ("the host".to_owned(), None),
        }
    }

    fn cycle(&self, places: &[Place]) -> String {
        let nexts = places.iter().cycle().skip(1);
        let links = places.iter().zip(nexts).map(|(place, next)| {
            let (name, next_name) = (self.name(*place), self.name(*next));
            let link = self.link(*place, *next);
            let own = if place == next { "itself".to_owned() } else { next_name };
            match link {
                Some(wait) => {
                    let timeline = self.timeline(wait.step.timeline, Some(place.device));
                    let reach = reach(&timeline, wait.step, wait.reached);
                    format!("{name} waits for {reach}; that is for {own} to signal")
                }
                None => format!("{name} comes behind {own}"),
            }
        });
        format!("a cycle: {}", links.collect::<Vec<_>>().join("; "))
    }

    /// The wait of an operation that another one is to end.
    fn link(&self, place: Place, next: Place) -> Option<Wait> {
        let (waiter, signaller) = (self.operation(place)?, self.operation(next)?);
        let ends = |wait: &&Wait| {
            let is_enough =
                |step: &Step| step.timeline == wait.step.timeline && step.value >= wait.step.value;
            signaller.signals.iter().any(is_enough)
        };
        waiter.waits.iter().find(ends).copied()
    }

    fn device(&self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        let Some(device) = self.process.devices.get(number) else { return Ok(()) };
        let Snapshot { lost, is_closing, queues, undelivered, callbacks, .. } = &device.snapshot;
        let has_something = queues.iter().any(|queue| queue.is_locked || !queue.operations.is_empty());
        if !has_something && lost.is_none() && !is_closing && undelivered.is_empty() {
            return writeln!(f, "{}: nothing to do", device.name);
        }
        write!(f, "{}:", device.name)?;
        if let Some(failure) = lost {
            write!(f, " lost ({failure})")?;
        }
        if *is_closing {
            write!(f, " being released")?;
        }
        if *callbacks > 0 {
            write!(f, " callbacks that are due or run: {callbacks}")?;
        }
        writeln!(f)?;
        for (place, queue) in queues.iter().enumerate() {
            self.queue(f, number, place, queue)?;
        }
        for steps in undelivered {
            let timeline = self.timeline(steps.timeline, Some(number));
            writeln!(
                f,
                "  signals of {timeline} that have not returned: {}",
                steps.waiting + usize::from(steps.is_delivering)
            )?;
        }
        Ok(())
    }

    fn queue(&self, f: &mut fmt::Formatter<'_>, device: usize, place: usize, queue: &Queue) -> fmt::Result {
        if queue.is_locked {
            return writeln!(f, "  queue {place}: its lock is taken");
        }
        if queue.operations.is_empty() {
            return Ok(());
        }
        let count = queue.operations.len() + queue.omitted;
        write!(f, "  queue {place}: {count} operations",)?;
        write!(f, ", the device has accepted epoch {} and reported {}", queue.submitted, queue.reported)?;
        writeln!(f, "{}", if queue.is_full { ", and is full" } else { "" })?;
        for (number, operation) in queue.operations.iter().enumerate().take(OPERATIONS) {
            self.line(f, Place { device, queue: place, operation: number }, operation)?;
        }
        match count.saturating_sub(OPERATIONS) {
            0 => Ok(()),
            more => writeln!(f, "    and {more} more"),
        }
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, place: Place, operation: &Operation) -> fmt::Result {
        match operation.epoch {
            Some(epoch) => write!(f, "    epoch {epoch}: ")?,
            None => write!(f, "    no epoch yet: ")?,
        }
        write!(f, "{}, {}", operation.text, words(operation.stage))?;
        match operation.age {
            Some(age) => write!(f, " for {} or longer", seconds(age))?,
            None if !operation.stands => write!(f, ", moving")?,
            None => {}
        }
        writeln!(f)?;
        for wait in &operation.waits {
            writeln!(f, "      waits for {}", self.wait(wait, place.device))?;
        }
        for step in &operation.signals {
            let timeline = self.addressed(step.timeline, Some(place.device));
            writeln!(f, "      is to signal {timeline} to {}", step.value)?;
        }
        Ok(())
    }

    fn wait(&self, wait: &Wait, device: usize) -> String {
        let timeline = self.addressed(wait.step.timeline, Some(device));
        let text = reach(&timeline, wait.step, wait.reached);
        match wait.behind {
            Some((queue, epoch)) => {
                format!("{text}; left to the device, behind epoch {epoch} of queue {queue}")
            }
            None => format!("{text}; {}", self.promised(wait.step, wait.reached)),
        }
    }

    /// Who ends a wait for a step.
    fn promised(&self, step: Step, reached: Option<u64>) -> String {
        match self.promise(step) {
            _ if reached.is_some_and(|reached| reached >= step.value) => {
                "who waits is not notified".to_owned()
            }
            Some(place) => format!("{} is to signal it", self.name(place)),
            None => self.unpromised(step),
        }
    }

    /// What is known of who promises a step that no operation signals.
    fn unpromised(&self, step: Step) -> String {
        match step.timeline {
            TimelineName::Foreign(_) => {
                format!("whether its own driver has promised {} is not known here", step.value)
            }
            TimelineName::Numbered { .. } if self.is_partial() => {
                format!("no operation that was seen has promised {}", step.value)
            }
            TimelineName::Numbered { .. } => format!("nobody has promised {}", step.value),
        }
    }

    fn host(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.process.host_waits.is_empty() {
            return Ok(());
        }
        writeln!(f, "the host (threads, callbacks, descriptors, other drivers):")?;
        for HostWait { step, reached, count, age, .. } in self.process.host_waits.iter().take(OPERATIONS) {
            let timeline = self.addressed(step.timeline, None);
            write!(f, "  {count} waits for {}", reach(&timeline, *step, Some(*reached)))?;
            match age {
                Some(age) => writeln!(f, "; for {} or longer", seconds(*age))?,
                None => writeln!(f)?,
            }
            writeln!(f, "    {}", self.promised(*step, Some(*reached)))?;
        }
        match self.process.host_waits.len().saturating_sub(OPERATIONS) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
}

fn reach(timeline: &str, step: Step, reached: Option<u64>) -> String {
    match reached {
        Some(reached) => format!("{timeline} to reach {}; it is at {reached}", step.value),
        None => format!("{timeline} to reach {}", step.value),
    }
}

fn words(stage: Stage) -> &'static str {
    match stage {
        Stage::Blocked => "blocked",
        Stage::Ready => "a thread is about to go on with it",
        Stage::Queued => "queued on the host",
        Stage::Submitting => "being handed to the device",
        Stage::OnDevice => "on the device",
        Stage::BehindDevice => "ends with the work before it",
        Stage::Reported => "reported by the device",
        Stage::OnHost => "run by the host",
    }
}

fn seconds(age: Duration) -> String {
    format!("{:.1} s", age.as_secs_f64())
}
