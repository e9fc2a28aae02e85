// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The report as JSON, for programs.

use super::{
    Cause, Device, HostWait, Operation, Place, Queue, Reason, Report, Step, TimelineName, Wait, Waiter,
};
use std::fmt::Write as _;
use std::time::Duration;

impl Report {
    /// The report as JSON: `causes`, each with its sentence as `text`, then `devices` and `host_waits`, with everything
    /// that the text has.
    pub fn to_json(&self) -> String {
        object([
            ("causes", list(self.causes.iter().map(|cause| self.cause_json(cause)))),
            ("is_partial", self.is_partial().to_string()),
            ("devices", list(self.process.devices.iter().map(|device| self.device_json(device)))),
            ("host_waits", list(self.process.host_waits.iter().map(|wait| self.host_wait_json(wait)))),
        ])
    }

    fn cause_json(&self, cause: &Cause) -> String {
        let mut fields = vec![
            ("kind", quoted(kind(&cause.reason))),
            ("text", quoted(&self.sentence(&cause.reason))),
            ("holds_up", cause.holds_up.to_string()),
        ];
        match &cause.reason {
            Reason::Unpromised { waiter, step, reached } => {
                fields.extend([
                    ("waiter", self.waiter_json(*waiter)),
                    ("waits_for", self.step_json(*step)),
                    ("reached", optional(*reached)),
                ]);
            }
            Reason::Notification { waiter, step } => {
                fields.extend([("waiter", self.waiter_json(*waiter)), ("waits_for", self.step_json(*step))]);
            }
            Reason::Cycle(places) => {
                fields.push(("operations", list(places.iter().map(|place| self.place_json(*place)))));
            }
            Reason::Device(place) | Reason::Host(place) | Reason::Thread(place) => {
                fields.push(("operation", self.place_json(*place)));
            }
            Reason::Submission { device, queue } | Reason::Lock { device, queue } => {
                fields.extend([("device", self.device_name_json(*device)), ("queue", queue.to_string())]);
            }
            Reason::Delivery { device, timeline } => {
                fields.extend([
                    ("device", self.device_name_json(*device)),
                    ("semaphore", self.timeline_json(*timeline)),
                ]);
            }
        }
        object(fields)
    }

    fn waiter_json(&self, waiter: Waiter) -> String {
        match waiter {
            Waiter::Operation(place) => self.place_json(place),
            Waiter::Host(_) => quoted("host"),
        }
    }

    fn device_name_json(&self, number: usize) -> String {
        quoted(self.process.devices.get(number).map_or("", |device| &device.name))
    }

    fn place_json(&self, place: Place) -> String {
        let operation = self.operation(place);
        object([
            ("device", self.device_name_json(place.device)),
            ("queue", place.queue.to_string()),
            ("id", optional(operation.map(|operation| operation.id))),
            ("epoch", optional(operation.and_then(|operation| operation.epoch))),
            ("text", quoted(operation.map_or("", |operation| &operation.text))),
        ])
    }

    fn device_json(&self, device: &Device) -> String {
        let snapshot = &device.snapshot;
        let undelivered = snapshot.undelivered.iter().map(|steps| {
            object([
                ("semaphore", self.timeline_json(steps.timeline)),
                ("is_delivering", steps.is_delivering.to_string()),
                ("waiting", steps.waiting.to_string()),
            ])
        });
        object([
            ("name", quoted(&device.name)),
            ("lost", snapshot.lost.as_ref().map_or("null".to_owned(), |lost| quoted(&lost.to_string()))),
            ("is_closing", snapshot.is_closing.to_string()),
            ("callbacks", snapshot.callbacks.to_string()),
            ("undelivered", list(undelivered)),
            ("queues", list(snapshot.queues.iter().map(|queue| self.queue_json(queue)))),
        ])
    }

    fn queue_json(&self, queue: &Queue) -> String {
        object([
            ("index", queue.index.to_string()),
            ("is_locked", queue.is_locked.to_string()),
            ("is_full", queue.is_full.to_string()),
            ("is_submitting", queue.is_submitting.to_string()),
            ("submitted", queue.submitted.to_string()),
            ("reported", queue.reported.to_string()),
            ("omitted", queue.omitted.to_string()),
            ("operations", list(queue.operations.iter().map(|operation| self.operation_json(operation)))),
        ])
    }

    fn operation_json(&self, operation: &Operation) -> String {
        object([
            ("id", operation.id.to_string()),
            ("epoch", optional(operation.epoch)),
            ("stage", quoted(operation.stage.name())),
            ("text", quoted(&operation.text)),
            ("stands", operation.stands.to_string()),
            ("seconds", age(operation.age)),
            ("waits", list(operation.waits.iter().map(|wait| self.wait_json(wait)))),
            ("signals", list(operation.signals.iter().map(|step| self.step_json(*step)))),
        ])
    }

    fn wait_json(&self, wait: &Wait) -> String {
        let behind = wait.behind.map_or("null".to_owned(), |(queue, epoch)| {
            object([("queue", queue.to_string()), ("epoch", epoch.to_string())])
        });
        object([
            ("waits_for", self.step_json(wait.step)),
            ("reached", optional(wait.reached)),
            ("behind", behind),
            ("promised_by", self.promise_json(wait.step)),
        ])
    }

    fn promise_json(&self, step: Step) -> String {
        self.promise(step).map_or("null".to_owned(), |place| self.place_json(place))
    }

    fn host_wait_json(&self, wait: &HostWait) -> String {
        object([
            ("waits_for", self.step_json(wait.step)),
            ("reached", wait.reached.to_string()),
            ("count", wait.count.to_string()),
            ("seconds", age(wait.age)),
            ("promised_by", self.promise_json(wait.step)),
        ])
    }

    fn step_json(&self, step: Step) -> String {
        object([("semaphore", self.timeline_json(step.timeline)), ("value", step.value.to_string())])
    }

    fn timeline_json(&self, timeline: TimelineName) -> String {
        let address = match timeline {
            TimelineName::Foreign(identity) => Some(identity),
            TimelineName::Numbered { .. } => self.process.addresses.get(&timeline).copied(),
        };
        let (device, number) = match timeline {
            TimelineName::Foreign(_) => (None, None),
            TimelineName::Numbered { engine, number } => {
                let mut devices = self.process.devices.iter();
                let device = devices.find(|device| device.snapshot.engine == engine);
                (device.map(|device| quoted(&device.name)), Some(number))
            }
        };
        object([
            ("device", device.unwrap_or("null".to_owned())),
            ("number", optional(number)),
            ("address", address.map_or("null".to_owned(), |address| quoted(&format!("{address:#x}")))),
        ])
    }
}

fn kind(reason: &Reason) -> &'static str {
    match reason {
        Reason::Unpromised { .. } => "unpromised",
        Reason::Cycle(_) => "cycle",
        Reason::Device(_) => "device",
        Reason::Host(_) => "host",
        Reason::Submission { .. } => "submission",
        Reason::Lock { .. } => "lock",
        Reason::Thread(_) => "thread",
        Reason::Notification { .. } => "notification",
        Reason::Delivery { .. } => "delivery",
    }
}

fn object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<String> =
        fields.into_iter().map(|(name, value)| format!("{}: {value}", quoted(name))).collect();
    format!("{{{}}}", fields.join(", "))
}

fn list(values: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", values.into_iter().collect::<Vec<_>>().join(", "))
}

fn optional(number: Option<u64>) -> String {
    number.map_or("null".to_owned(), |number| number.to_string())
}

fn age(age: Option<Duration>) -> String {
    age.map_or("null".to_owned(), |age| format!("{:.3}", age.as_secs_f64()))
}

fn quoted(text: &str) -> String {
    let mut json = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            letter if u32::from(letter) < 0x20 => {
                let _ = write!(json, "\\u{:04x}", u32::from(letter));
            }
            letter => json.push(letter),
        }
    }
    json.push('"');
    json
}
