// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The expected outcome of a program, computed step by step on plain bytes.
//!
//! A step that waits for a failure never runs. Unwritten bytes are `None`, and so is everything computed from them.

use crate::program::{
    Action, At, Base, BufferPart, Command, Count, Dispatch, Kernel, Memory, Program, ProgramStep, Recorded,
    Visit,
};
use std::collections::{BTreeMap, BTreeSet};

/// A byte that has a value, or one that is unwritten.
pub(crate) type Cell = Option<u8>;

/// The steps whose failure may be observed: none if everything succeeds.
pub(crate) type Causes = BTreeSet<usize>;

/// The state of a program between two steps.
#[derive(Clone, Default)]
pub(crate) struct World {
    /// `None` while a stream-ordered buffer has no memory.
    pub(crate) buffers: Vec<Option<Vec<Cell>>>,
    pub(crate) files: Vec<Vec<Cell>>,
    /// The causes of each step's failure.
    pub(crate) failures: Vec<Causes>,
    pub(crate) timelines: Vec<Timeline>,
    /// The bytes that the visit of each step must find.
    pub(crate) seen: Vec<Option<Vec<Cell>>>,
}

#[derive(Clone, Default)]
pub(crate) struct Timeline {
    pub(crate) value: u64,
    pub(crate) causes: Causes,
}

/// Why a program is illegal.
#[derive(Debug)]
pub(crate) struct Illegal(pub(crate) &'static str);

const NO_MEMORY: Illegal = Illegal("a buffer has no memory");
const NO_SLOT: Illegal = Illegal("a slot outside a recording");
const OUTSIDE: Illegal = Illegal("bytes outside a buffer");

type Legal<T = ()> = Result<T, Illegal>;

impl World {
    pub(crate) fn new(program: &Program) -> Self {
        let mut world = Self::default();
        for file in &program.files {
            world.files.push(file.bytes.iter().copied().map(Some).collect());
        }
        world.grow(program);
        world
    }

    /// Adds the objects that the program has got since.
    pub(crate) fn grow(&mut self, program: &Program) {
        for buffer in program.buffers.iter().skip(self.buffers.len()) {
            let exists = buffer.memory != Memory::Transient;
            // All buffers are zeroed at first.
            self.buffers.push(exists.then(|| vec![Some(0); buffer.length]));
        }
        self.timelines.resize(program.timelines.len(), Timeline::default());
    }

    /// The causes of the failed waits.
    pub(crate) fn causes(&self, waits: &[At]) -> Causes {
        waits.iter().flat_map(|at| self.timelines[at.timeline].causes.iter().copied()).collect()
    }

    /// Performs the next step.
    pub(crate) fn step(&mut self, program: &Program, number: usize) -> Legal {
        let step = &program.steps[number];
        let mut causes = self.causes(&step.waits);
        let mut seen = None;
        if causes.is_empty() {
            match &step.action {
                Action::Barrier => {}
                Action::Command(command) => self.command(command, &[])?,
                Action::Execute { recording, table } => {
                    self.execute(&program.recordings[*recording].commands, table)?;
                }
                Action::Allocate(buffer) => {
                    self.buffers[*buffer] = Some(vec![None; program.buffers[*buffer].length]);
                }
                Action::Deallocate(buffer) => {
                    self.buffers[*buffer].take().ok_or(NO_MEMORY)?;
                }
                Action::ReadFile { file, offset, target } => {
                    let bytes = self.files[*file][*offset..offset + target.length].to_vec();
                    self.put(target, bytes)?;
                }
                Action::WriteFile { source, file, offset } => {
                    let bytes = self.get(source)?;
                    self.files[*file][*offset..offset + source.length].copy_from_slice(&bytes);
                }
                Action::Call { visit, .. } | Action::Host(visit) => seen = self.visit(visit.as_ref())?,
                Action::Fail(_) | Action::Broken(_) => {}
            }
            if step.action.begins_to_fail().is_some() {
                causes.insert(number);
            }
        } else {
            self.forget(program, &step.action);
        }
        for at in &step.signals {
            let timeline = &mut self.timelines[at.timeline];
            // A timeline fails from its first signal on, or never: no wait for it can be early or late.
            let has_begun = timeline.value > 0 || !timeline.causes.is_empty();
            if has_begun && timeline.causes.is_empty() != causes.is_empty() {
                return Err(Illegal("a timeline fails after it has gone well"));
            }
            timeline.causes.extend(causes.iter().copied());
            timeline.value = at.value;
        }
        self.failures.push(causes);
        self.seen.push(seen);
        Ok(())
    }

    /// Completes the causes: a signal to a timeline that has failed may fail it first.
    fn finish(&mut self, program: &Program) {
        loop {
            let mut grown = false;
            for (number, step) in program.steps.iter().enumerate() {
                let before = self.failures[number].len();
                let causes = self.causes(&step.waits);
                self.failures[number].extend(causes);
                grown |= self.failures[number].len() > before;
                for at in &step.signals {
                    let timeline = &mut self.timelines[at.timeline].causes;
                    let before = timeline.len();
                    timeline.extend(self.failures[number].iter().copied());
                    grown |= timeline.len() > before;
                }
            }
            if !grown {
                return;
            }
        }
    }

    /// Records that a step has failed: the bytes that it would have written are unknown, as a device may have done
    /// it all the same, behind work that failed on the device. Whether a buffer still has memory is unspecified.
    fn forget(&mut self, program: &Program, action: &Action) {
        if program.fails_on_a_device() {
            for access in program.accesses(action).iter().filter(|access| access.writes) {
                // Without memory there is nothing to write.
                let _ = self.put(&access.part, vec![None; access.part.length]);
            }
            if let Some((file, begin, end, true)) = Program::file_access(action) {
                self.files[file][begin..end].fill(None);
            }
        }
        if let Action::Deallocate(buffer) = action {
            self.buffers[*buffer] = None;
        }
    }

    pub(crate) fn execute(&mut self, commands: &[Recorded], table: &[BufferPart]) -> Legal {
        for binding in table {
            self.get(binding)?;
        }
        for recorded in commands {
            if let Recorded::Command(command) = recorded {
                self.command(command, table)?;
            }
        }
        Ok(())
    }

    fn visit(&mut self, visit: Option<&Visit>) -> Legal<Option<Vec<Cell>>> {
        let Some(Visit { part, bytes }) = visit else { return Ok(None) };
        let seen = self.get(part)?;
        self.put(part, bytes.iter().copied().map(Some).collect())?;
        Ok(Some(seen))
    }

    pub(crate) fn get(&self, part: &BufferPart) -> Legal<Vec<Cell>> {
        let Base::Buffer(buffer) = part.base else { return Err(NO_SLOT) };
        let bytes = self.buffers[buffer].as_ref().ok_or(NO_MEMORY)?;
        bytes.get(part.offset..part.end()).map(<[Cell]>::to_vec).ok_or(OUTSIDE)
    }

    fn put(&mut self, part: &BufferPart, cells: Vec<Cell>) -> Legal {
        let Base::Buffer(buffer) = part.base else { return Err(NO_SLOT) };
        let bytes = self.buffers[buffer].as_mut().ok_or(NO_MEMORY)?;
        bytes.get_mut(part.offset..part.end()).ok_or(OUTSIDE)?.copy_from_slice(&cells);
        Ok(())
    }

    fn command(&mut self, command: &Command, table: &[BufferPart]) -> Legal {
        match command {
            Command::Fill { target, pattern } => {
                let cells = pattern.iter().copied().map(Some).cycle().take(target.length).collect();
                self.put(&target.resolved(table), cells)
            }
            Command::Update { target, bytes } => {
                self.put(&target.resolved(table), bytes.iter().copied().map(Some).collect())
            }
            Command::Copy { source, target } => {
                let cells = self.get(&source.resolved(table))?;
                self.put(&target.resolved(table), cells)
            }
            Command::Dispatch(dispatch) => self.dispatch(dispatch, table),
        }
    }

    /// The workgroup count in three words, if the function supports it.
    pub(crate) fn count(&self, part: &BufferPart) -> Legal<u32> {
        let cells = self.get(part)?;
        match words(&cells)[..] {
            [Some(count), Some(1), Some(1)] if count <= 32 => Ok(count),
            _ => Err(Illegal("a workgroup count that was not written")),
        }
    }

    fn dispatch(&mut self, dispatch: &Dispatch, table: &[BufferPart]) -> Legal {
        let bindings: Vec<BufferPart> = dispatch.bindings.iter().map(|part| part.resolved(table)).collect();
        let count = match &dispatch.count {
            Count::Fixed(count) => *count,
            Count::Buffer(part) => self.count(&part.resolved(table))?,
        };
        let (target, inputs) = bindings.split_last().ok_or(NO_SLOT)?;
        let input = |world: &Self| -> Legal<Vec<Option<u32>>> {
            Ok(words(&world.get(inputs.first().ok_or(NO_SLOT)?)?))
        };
        let each = |words: Vec<Option<u32>>, function: &dyn Fn(u32) -> u32| {
            words.into_iter().map(|word| word.map(function)).collect()
        };
        let output: Vec<Option<u32>> = match dispatch.kernel {
            Kernel::Scale([scale, offset]) => {
                each(input(self)?, &|word| word.wrapping_mul(scale).wrapping_add(offset))
            }
            Kernel::Constants(constants) => constants.map(Some).to_vec(),
            Kernel::Negate => each(input(self)?, &u32::wrapping_neg),
            Kernel::Double => each(input(self)?, &|word| word.wrapping_mul(2)),
            Kernel::Numbers => (0..count).map(Some).collect(),
            Kernel::Counts => vec![Some(4), Some(1), Some(1)],
        };
        if count == 0 {
            return Ok(());
        }
        let mut cells = self.get(target)?;
        for (cells, word) in cells.chunks_exact_mut(4).zip(output) {
            match word {
                Some(word) => cells.copy_from_slice(&word.to_ne_bytes().map(Some)),
                None => cells.fill(None),
            }
        }
        self.put(target, cells)
    }
}

fn words(cells: &[Cell]) -> Vec<Option<u32>> {
    let word = |cells: &[Cell]| {
        let bytes: Option<Vec<u8>> = cells.iter().copied().collect();
        Some(u32::from_ne_bytes(bytes?.try_into().ok()?))
    };
    cells.chunks_exact(4).map(word).collect()
}

/// The expected outcome of a legal program.
pub(crate) fn judge(program: &Program) -> Legal<World> {
    let mut world = World::new(program);
    for number in 0..program.steps.len() {
        world.step(program, number)?;
    }
    world.finish(program);
    if are_ordered(program, &world) { Ok(world) } else { Err(Illegal("a race")) }
}

/// The facts that are known when a step begins.
#[derive(Clone, Default)]
pub(crate) struct Before {
    /// The steps that have ended.
    pub(crate) steps: BTreeSet<usize>,
    /// The values of timelines. A step that has ended may still be signalling its other timelines.
    values: BTreeMap<usize, u64>,
}

impl Before {
    /// Waits for a value that a step signals, given what was known when that step began.
    pub(crate) fn wait(&mut self, at: At, signaller: usize, before: &Before) {
        self.steps.insert(signaller);
        self.steps.extend(before.steps.iter().copied());
        self.reach(at);
        for (&timeline, &value) in &before.values {
            self.reach(At { timeline, value });
        }
    }

    fn reach(&mut self, at: At) {
        let value = self.values.entry(at.timeline).or_default();
        *value = at.value.max(*value);
    }

    pub(crate) fn has_reached(&self, at: At) -> bool {
        at.value == 0 || self.values.get(&at.timeline).is_some_and(|&value| value >= at.value)
    }
}

/// True if semaphores order every two steps of which one writes what the other uses, and every two signals of a
/// timeline.
fn are_ordered(program: &Program, world: &World) -> bool {
    let uses: Vec<_> = program
        .steps
        .iter()
        .map(|step| (program.accesses(&step.action), Program::file_access(&step.action)))
        .collect();
    let meet = |a: usize, b: usize| {
        let files = uses[a].1.zip(uses[b].1);
        uses[a].0.iter().any(|access| uses[b].0.iter().any(|other| access.conflicts(other)))
            || files.is_some_and(|(a, b)| a.0 == b.0 && (a.3 || b.3) && a.1 < b.2 && b.1 < a.2)
    };
    let mut before: Vec<Before> = Vec::new();
    let mut values = vec![0; program.timelines.len()];
    for (number, step) in program.steps.iter().enumerate() {
        let mut known = Before::default();
        for at in &step.waits {
            // The step that signals the value, or the first later one whose value covers it.
            let signals = |step: &ProgramStep| {
                step.signals.iter().any(|signal| signal.timeline == at.timeline && signal.value >= at.value)
            };
            let Some(signaller) = program.steps[..number].iter().position(signals) else { return false };
            known.wait(*at, signaller, &before[signaller]);
        }
        let ran = |step: usize| program.fails_on_a_device() || world.failures[step].is_empty();
        let races =
            (0..number).any(|a| ran(a) && ran(number) && !known.steps.contains(&a) && meet(a, number));
        let is_early = |at: &At| {
            let last = At { value: values[at.timeline], ..*at };
            at.value <= last.value || !known.has_reached(last)
        };
        if races || step.signals.iter().any(is_early) {
            return false;
        }
        for at in &step.signals {
            values[at.timeline] = at.value;
        }
        before.push(known);
    }
    true
}
