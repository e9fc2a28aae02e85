// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Makes a failing program smaller, as long as the rest is legal and fails.

use crate::oracle;
use crate::program::{Action, At, Command, Program, Recorded};
use std::time::{Duration, Instant};

/// The smallest failing program found within `time`.
pub(crate) fn shrink(program: &Program, time: Duration, fails: impl Fn(&Program) -> bool) -> Program {
    let begin = Instant::now();
    let mut best = program.clone();
    let mut chunk = (best.steps.len() / 2).max(1);
    loop {
        let mut smaller = false;
        for candidate in candidates(&best, chunk) {
            if begin.elapsed() > time {
                return best;
            }
            if oracle::judge(&candidate).is_ok() && fails(&candidate) {
                best = candidate;
                smaller = true;
                break;
            }
        }
        if !smaller && chunk == 1 {
            return best;
        }
        if !smaller {
            chunk /= 2;
        }
    }
}

/// Programs that are a little smaller or simpler.
fn candidates(program: &Program, chunk: usize) -> Vec<Program> {
    let mut candidates = Vec::new();
    for begin in (0..program.steps.len()).step_by(chunk).rev() {
        let mut smaller = program.clone();
        for step in (begin..program.steps.len().min(begin + chunk)).rev() {
            remove_step(&mut smaller, step);
        }
        candidates.push(smaller);
    }
    if chunk > 1 {
        return candidates;
    }
    for (number, recording) in program.recordings.iter().enumerate() {
        for command in 0..recording.commands.len() {
            let removed = recording.commands[command].clone();
            // Without a barrier there may be a race.
            if matches!(removed, Recorded::Command(_)) && recording.commands.len() > 1 {
                let mut smaller = program.clone();
                smaller.recordings[number].commands.remove(command);
                candidates.push(smaller);
            }
        }
    }
    let mut plainer = |change: &dyn Fn(&mut Program)| {
        let mut changed = program.clone();
        change(&mut changed);
        if format!("{changed:?}") != format!("{program:?}") {
            candidates.push(changed);
        }
    };
    plainer(&|program| program.order.sort_unstable());
    plainer(&|program| program.steps.iter_mut().for_each(|step| step.thread = 0));
    plainer(&|program| program.steps.iter_mut().for_each(|step| step.affinity = u64::MAX));
    plainer(&|program| program.steps.iter_mut().for_each(|step| without_span(&mut step.action)));
    candidates
}

fn without_span(action: &mut Action) {
    let Action::Command(command) = action else { return };
    match command {
        Command::Fill { target, .. } | Command::Update { target, .. } => target.span = None,
        Command::Copy { source, target } => (source.span, target.span) = (None, None),
        Command::Dispatch(dispatch) => dispatch.bindings.iter_mut().for_each(|part| part.span = None),
    }
}

/// Removes a step. Its waiters wait for its own waits instead.
fn remove_step(program: &mut Program, number: usize) {
    let removed = program.steps.remove(number);
    for step in &mut program.steps {
        if !step.waits.iter().any(|at| removed.signals.contains(at)) {
            continue;
        }
        let kept = step.waits.iter().filter(|at| !removed.signals.contains(at));
        let mut waits: Vec<At> = kept.copied().collect();
        waits.extend(removed.waits.iter().copied().filter(|at| !step.waits.contains(at)));
        step.waits = waits;
    }
    program.order.retain(|&step| step != number);
    for step in &mut program.order {
        *step -= usize::from(*step > number);
    }
}
