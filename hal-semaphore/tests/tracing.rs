// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The spans of operations, as a program's subscriber prints them.

use hal_semaphore::testing::{Job, SoftBackend, device};
use hal_semaphore::{Action, Affinity, Code, Engine, Failure, Semaphore};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::Subscriber;
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// What a subscriber has printed.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The lines that `program` causes: each span as it closes, and each event, without times.
fn traced(program: impl FnOnce(&Engine<SoftBackend>)) -> Vec<String> {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .with_writer(lines.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let engine = Engine::new(SoftBackend::new(device(2))).expect("an engine");
        program(&engine);
    });
    let text = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

fn semaphore(engine: &Engine<SoftBackend>) -> Semaphore {
    Semaphore::new(engine, 0).expect("a semaphore")
}

/// The lines in which a word stands behind the operation with this field, in order.
fn of<'a>(lines: &'a [String], field: &str) -> Vec<&'a str> {
    lines.iter().filter(|line| line.contains(field)).map(|line| line.trim()).collect()
}

#[test]
fn operation_is_seen_from_submission_to_completion() {
    let lines = traced(|engine| {
        let (input, output) = (semaphore(engine), semaphore(engine));
        let _request = tracing::info_span!("request", user = 7).entered();
        engine
            .submit(Affinity::queue(1), &[(input.clone(), 1)], &[(output, 5)], Action::Queue(Job::new(1)))
            .expect("the submission is valid");
        input.signal(1).expect("a signal");
        engine.backend().run_until_idle();
    });
    let seen = of(&lines, "request{user=7}:operation{kind=\"work of the device\" waits=");
    let steps = ["submission: close", "wait: close", "device: close", "completed", "close"];
    assert_eq!(seen.len(), steps.len(), "{lines:#?}");
    for (line, step) in seen.iter().zip(steps) {
        assert!(line.contains(step), "{step}: {lines:#?}");
    }
    assert!(seen[2].contains("waits=\"semaphore 0 ≥ 1\" signals=\"semaphore 1 = 5\""), "{lines:#?}");
    assert!(seen[2].contains("queue=1 epoch=1"), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("completion{queue=1 epoch=1}: close")), "{lines:#?}");
}

#[test]
fn failure_is_a_warning_with_its_cause_for_each_operation_that_it_ends() {
    let lines = traced(|engine| {
        let (first, second) = (semaphore(engine), semaphore(engine));
        let parity = Failure::new(Code::DataLoss, "parity error in bank 3");
        let submit = |waits: &[(Semaphore, u64)], signal: &Semaphore, job| {
            engine
                .submit(Affinity::queue(0), waits, &[(signal.clone(), 1)], Action::Queue(job))
                .expect("the submission is valid");
        };
        submit(&[(first.clone(), 1)], &second, Job::new(2));
        submit(&[], &first, Job::failing(1, parity));
        engine.backend().run_until_idle();
    });
    let failed = of(&lines, "parity error in bank 3");
    assert!(failed.len() == 2 && failed.iter().all(|line| line.starts_with("WARN")), "{lines:#?}");
}

#[test]
fn barrier_and_refused_operation_are_seen() {
    let lines = traced(|engine| {
        let (input, output) = (semaphore(engine), semaphore(engine));
        engine
            .submit(Affinity::ANY, &[(input.clone(), 1)], &[(output.clone(), 1)], Action::Barrier)
            .expect("the submission is valid");
        input.signal(1).expect("a signal");
        engine
            .submit(Affinity::ANY, &[], &[(output, 1)], Action::Barrier)
            .expect_err("a timeline only grows");
    });
    let seen = of(&lines, "operation{kind=\"barrier\"");
    assert!(seen.iter().any(|line| line.contains("wait: close")), "{lines:#?}");
    assert!(seen.iter().any(|line| line.ends_with("completed")), "{lines:#?}");
    assert!(seen.iter().any(|line| line.contains("refused") && line.contains("at 1 already")), "{lines:#?}");
}

#[test]
fn full_device_is_seen() {
    let lines = traced(|engine| {
        let output = semaphore(engine);
        engine.backend().set_device_capacity(1);
        for value in 1..=2 {
            engine
                .submit(Affinity::queue(0), &[], &[(output.clone(), value)], Action::Queue(Job::new(value)))
                .expect("the submission is valid");
        }
        engine.backend().run_until_idle();
        assert_eq!(output.query().expect("no failure"), 2);
    });
    assert!(lines.iter().any(|line| line.contains("not taken by the device")), "{lines:#?}");
}

/// A subscriber that calls the engine and panics.
struct Wild(Mutex<Option<Semaphore>>);

impl Subscriber for Wild {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        if let Some(semaphore) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            semaphore.query().expect("no failure");
        }
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("a subscriber panics");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn subscriber_that_panics_or_calls_the_engine_changes_nothing() {
    let engine = Engine::new(SoftBackend::new(device(1))).expect("an engine");
    let output = semaphore(&engine);
    let wild = Wild(Mutex::new(Some(output.clone())));
    tracing::subscriber::with_default(wild, || {
        for value in 1..=3 {
            engine
                .submit(Affinity::ANY, &[], &[(output.clone(), value)], Action::Queue(Job::new(value)))
                .expect("the submission is valid");
            engine.backend().run_until_idle();
        }
    });
    assert_eq!((output.query().expect("no failure"), engine.counts().operations), (3, 0));
}
