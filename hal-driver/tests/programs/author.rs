// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Writes a legal program from a seed.
//!
//! Legal means that semaphores order everything that has to be ordered: a step waits for every earlier step that
//! uses the same bytes, unless both only read or other waits order them already. Nothing else is ordered, neither
//! by queues nor by the submitting threads. A timeline fails from its first signal on or never, since a wait for a
//! value that was reached before a failure may end either way.

use crate::common::random::Random;
use crate::oracle::{Before, Illegal, World};
use crate::program::{
    Access, Action, At, Base, BufferPart, BufferSpec, Command, Count, Dispatch, Ends, FileSpec, Kernel,
    Memory, Program, ProgramStep, Recorded, Recording, Visit,
};
use hal_semaphore::Code;

/// The limits of programs of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) devices: usize,
    /// Devices from this number on use no other device's memory.
    pub(crate) in_reach: usize,
    /// True for programs beyond IREE's own driver, which every device of this project runs: any pattern, fills that
    /// begin and end anywhere, copies that overlap, recordings that name subspans of stream-ordered buffers or have
    /// long updates.
    pub(crate) beyond: bool,
    /// The device fails the program's only dispatch.
    pub(crate) broken: bool,
}

/// The least common multiple of all alignments of a binding's offset.
const BINDING: usize = 64;

pub(crate) fn write(seed: u64, rules: Rules) -> Program {
    let mut author = Author::new(seed, rules);
    author.scene();
    let steps = author.random.pick(&[4, 12, 25, 40, 60]);
    let broken = author.random.below(steps);
    for step in 0..steps {
        author.next();
        if rules.broken && step == broken {
            author.fail_on_the_device();
        }
    }
    author.submit_in_some_order();
    author.program
}

struct Author {
    random: Random,
    rules: Rules,
    program: Program,
    world: World,
    before: Vec<Before>,
    accesses: Vec<Vec<Access>>,
    /// The last step that signals each timeline.
    tips: Vec<usize>,
    /// Transient buffers with their allocating steps, until they are deallocated.
    transients: Vec<(usize, usize)>,
    /// The places of workgroup counts.
    counts: Vec<BufferPart>,
    /// The likelihood of failures: `None` for none, or once in so many steps.
    fails: Option<usize>,
}

impl Author {
    fn new(seed: u64, rules: Rules) -> Self {
        let mut random = Random::new(seed);
        let fails = random.one_in(3).then(|| random.pick(&[5, 15, 30]));
        let program = Program {
            seed,
            buffers: Vec::new(),
            files: Vec::new(),
            timelines: Vec::new(),
            recordings: Vec::new(),
            steps: Vec::new(),
            order: Vec::new(),
        };
        Self {
            random,
            rules,
            program,
            world: World::default(),
            before: Vec::new(),
            accesses: Vec::new(),
            tips: Vec::new(),
            transients: Vec::new(),
            counts: Vec::new(),
            fails,
        }
    }

    /// The objects before the first step.
    fn scene(&mut self) {
        for _ in 0..self.random.between(2, 5) {
            let memory = self.random.pick(&[Memory::Mapped, Memory::Mapped, Memory::Local, Memory::Imported]);
            let device = self.random.below(self.rules.devices);
            let length = self.length();
            self.program.buffers.push(BufferSpec { device, length, memory });
        }
        for _ in 0..self.random.below(3) {
            let length = self.random.between(1, 3000);
            let file = FileSpec { bytes: self.random.bytes(length), in_memory: self.random.one_in(3) };
            self.program.files.push(file);
        }
        self.world = World::new(&self.program);
        for _ in 0..self.random.below(3) {
            self.reusable();
        }
    }

    fn length(&mut self) -> usize {
        match self.random.below(12) {
            0 | 1 => self.random.between(1, 40),
            2 | 3 => self.random.pick(&[4095, 4096, 4097]),
            4 if self.random.one_in(20) => self.random.between(4 << 20, 9 << 20),
            4 | 5 => self.random.between(60_000, 140_000),
            _ => self.random.between(100, 3000),
        }
    }

    fn affinity(&mut self) -> u64 {
        self.random.pick(&[u64::MAX, u64::MAX, 1, 1, 2, 3, 4])
    }

    /// Buffers that a device can use and that have memory.
    fn buffers(&self, device: usize) -> Vec<usize> {
        let isolated = device >= self.rules.in_reach;
        let of_device = |&buffer: &usize| {
            let spec = self.program.buffers[buffer];
            self.world.buffers[buffer].is_some() && (!isolated || spec.device == device)
        };
        (0..self.program.buffers.len()).filter(of_device).collect()
    }

    /// A part of some buffer, at a multiple of `alignment`, with a length that is a multiple of `unit`, of at most
    /// `most` bytes.
    fn part(&mut self, device: usize, alignment: usize, unit: usize, most: usize) -> Option<BufferPart> {
        let candidates = self.buffers(device);
        let fits: Vec<usize> =
            candidates.into_iter().filter(|&buffer| self.program.buffers[buffer].length >= unit).collect();
        if fits.is_empty() {
            return None;
        }
        let buffer = self.random.pick(&fits);
        Some(self.part_of(buffer, alignment, unit, most))
    }

    fn part_of(&mut self, buffer: usize, alignment: usize, unit: usize, most: usize) -> BufferPart {
        let whole = self.program.buffers[buffer].length;
        let offset = if self.random.one_in(4) {
            0
        } else {
            self.random.below((whole - unit) / alignment + 1) * alignment
        };
        let room = ((whole - offset).min(most) / unit).max(1);
        let units = match self.random.below(4) {
            0 => room,
            1 => 1,
            _ => self.random.between(1, room),
        };
        let length = units * unit;
        let span = self.random.one_in(3).then(|| {
            let begin = self.random.below(offset / alignment + 1) * alignment;
            let end = self.random.between(offset + length, whole);
            (begin, end - begin)
        });
        BufferPart { base: Base::Buffer(buffer), offset, length, span }
    }

    /// A part of this length, if there is one.
    fn part_like(&mut self, device: usize, length: usize, apart_from: &BufferPart) -> Option<BufferPart> {
        for _ in 0..8 {
            let part = self.part(device, 1, length, length)?;
            if self.rules.beyond || !part.overlaps(apart_from) {
                return Some(part);
            }
        }
        None
    }

    fn fill(&mut self, device: usize) -> Option<Command> {
        if self.rules.beyond {
            let target = self.part(device, 1, 1, 9000)?;
            let length = self.random.between(1, 16);
            return Some(Command::Fill { target, pattern: self.random.bytes(length) });
        }
        let length = self.random.pick(&[1, 2, 4]);
        let target = self.part(device, length, length, 1 << 30)?;
        Some(Command::Fill { target, pattern: self.random.bytes(length) })
    }

    fn update(&mut self, device: usize) -> Option<Command> {
        let most = self.random.pick(&[64, 3000, 60_000]);
        let target = self.part(device, 1, 1, most)?;
        Some(Command::Update { target, bytes: self.random.bytes(target.length) })
    }

    /// Three words that a dispatch can use as its workgroup count.
    fn count(&mut self, device: usize) -> Option<Command> {
        let target = self.part(device, 4, 12, 12)?;
        self.counts.push(BufferPart { span: None, ..target });
        let words = [self.random.below(33) as u32, 1, 1];
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Some(Command::Update { target, bytes })
    }

    fn copy(&mut self, device: usize) -> Option<Command> {
        let most = self.random.pick(&[64, 3000, 1 << 30]);
        let source = self.part(device, 1, 1, most)?;
        let target = self.part_like(device, source.length, &source)?;
        Some(Command::Copy { source, target })
    }

    fn kernel(&mut self) -> Kernel {
        match self.random.below(7) {
            0 => Kernel::Scale([self.random.next() as u32, self.random.next() as u32]),
            1 => Kernel::Constants([7, self.random.next() as u32, 0, u32::MAX]),
            2 => Kernel::Negate,
            3 => Kernel::Double,
            4 => Kernel::Counts,
            _ => Kernel::Numbers,
        }
    }

    fn dispatch(&mut self, device: usize) -> Option<Command> {
        let kernel = self.kernel();
        let mut bindings: Vec<BufferPart> = Vec::new();
        for &length in kernel.bindings() {
            let part = (0..8)
                .filter_map(|_| self.part(device, BINDING, length, length))
                .find(|part| bindings.iter().all(|other| !part.overlaps(other)))?;
            bindings.push(part);
        }
        if kernel == Kernel::Counts {
            self.counts.push(BufferPart { span: None, ..bindings[0] });
        }
        let count = if kernel == Kernel::Numbers { self.numbers(device, &bindings) } else { Count::Fixed(1) };
        let format = self.random.below(2);
        Some(Command::Dispatch(Dispatch { kernel, format, bindings, count }))
    }

    fn numbers(&mut self, device: usize, bindings: &[BufferPart]) -> Count {
        let reach = self.buffers(device);
        let usable = |part: &&BufferPart| {
            matches!(part.base, Base::Buffer(buffer) if reach.contains(&buffer))
                && bindings.iter().all(|binding| !binding.overlaps(part))
                && self.world.count(part).is_ok()
        };
        let known: Vec<BufferPart> = self.counts.iter().filter(usable).copied().collect();
        if known.is_empty() || self.random.one_in(2) {
            return Count::Fixed(self.random.below(33) as u32);
        }
        Count::Buffer(self.random.pick(&known))
    }

    fn command(&mut self, device: usize) -> Option<Command> {
        match self.random.below(10) {
            0 | 1 => self.fill(device),
            2 | 3 => self.update(device),
            4..=6 => self.copy(device),
            7 => self.count(device),
            _ if self.rules.broken => self.copy(device),
            _ => self.dispatch(device),
        }
    }

    /// The dispatch that the device fails. It works on its own buffer, as the content of a failed dispatch's output
    /// is unspecified.
    fn fail_on_the_device(&mut self) {
        let buffer = self.program.buffers.len();
        self.program.buffers.push(BufferSpec { device: 0, length: 128, memory: Memory::Mapped });
        let bindings = vec![BufferPart::of_buffer(buffer, 0, 128)];
        let format = self.random.below(2);
        let dispatch = Dispatch { kernel: Kernel::Numbers, format, bindings, count: Count::Fixed(1) };
        self.add(0, Action::Broken(Command::Dispatch(dispatch)));
        // No later step uses it.
        self.world.grow(&self.program);
        self.world.buffers[buffer] = None;
    }

    /// A reusable command buffer, on slots and on buffers that exist from the beginning.
    fn reusable(&mut self) {
        let device = self.random.below(self.rules.devices);
        self.record(device, false);
    }

    /// Records some commands, if any fits.
    fn record(&mut self, device: usize, one_shot: bool) -> Option<usize> {
        let mut commands: Vec<Recorded> = Vec::new();
        let mut open: Vec<Access> = Vec::new();
        let mut slots = 0;
        for _ in 0..self.random.between(1, 6) {
            let Some(mut command) = self.command(device) else { continue };
            // The content of a slot's buffer is unknown, and a count has to be known.
            let counted =
                matches!(&command, Command::Dispatch(dispatch) if matches!(dispatch.count, Count::Buffer(_)));
            if counted && !one_shot {
                continue;
            }
            let mut more_slots = slots;
            if self.random.one_in(2) {
                into_slots(&mut self.random, &mut command, &mut more_slots);
            }
            if !self.rules.beyond && !self.is_recordable(&command) {
                continue;
            }
            slots = more_slots;
            let accesses = command.accesses();
            // Two slots may turn out to be the same bytes.
            let may_meet = |a: &Access, b: &Access| {
                let is_slot = |access: &Access| matches!(access.part.base, Base::Slot(_));
                (a.writes || b.writes) && (is_slot(a) || is_slot(b) || a.conflicts(b))
            };
            let meets = accesses.iter().any(|access| open.iter().any(|other| may_meet(access, other)));
            if meets || self.random.one_in(4) {
                commands.push(Recorded::Barrier);
                open.clear();
            }
            open.extend(accesses);
            commands.push(Recorded::Command(command));
        }
        if commands.is_empty() {
            return None;
        }
        let validated = !self.rules.beyond && self.random.one_in(2);
        self.program.recordings.push(Recording { device, commands, slots, one_shot, validated });
        Some(self.program.recordings.len() - 1)
    }

    /// True if IREE's own driver records a command: it refuses subspans of stream-ordered buffers that have no
    /// memory yet, and updates of more than 2,040 bytes with its own header.
    fn is_recordable(&self, command: &Command) -> bool {
        let is_early = |access: &Access| match access.part.base {
            Base::Buffer(buffer) => {
                access.part.span.is_some() && self.program.buffers[buffer].memory == Memory::Transient
            }
            Base::Slot(_) => false,
        };
        let is_long = matches!(command, Command::Update { target, .. } if target.length > 1900);
        !is_long && !command.accesses().iter().any(is_early)
    }

    /// An execution, with a table in which no command overlaps itself.
    fn execute(&mut self, device: usize) -> Option<Action> {
        let reusable = |&at: &usize| {
            let recording = &self.program.recordings[at];
            !recording.one_shot && recording.device == device
        };
        let known: Vec<usize> = (0..self.program.recordings.len()).filter(reusable).collect();
        let recording = if known.is_empty() || self.random.one_in(2) {
            self.record(device, true)?
        } else {
            self.random.pick(&known)
        };
        // A slot needs as many bytes as its commands use.
        let mut needs = vec![1_usize; self.program.recordings[recording].slots];
        for access in self.slot_accesses(recording) {
            if let Base::Slot(slot) = access.part.base {
                needs[slot] = needs[slot].max(access.part.end());
            }
        }
        for _ in 0..8 {
            let table: Option<Vec<BufferPart>> =
                needs.iter().map(|&need| self.part(device, BINDING, need, need)).collect();
            let table = table?;
            // A count may have been overwritten since, at least by an earlier command of the recording.
            let commands = &self.program.recordings[recording].commands;
            let is_legal = self.world.clone().execute(commands, &table).is_ok();
            let action = Action::Execute { recording, table };
            if is_legal && self.is_apart(&action) {
                return Some(action);
            }
        }
        None
    }

    fn slot_accesses(&self, recording: usize) -> Vec<Access> {
        let recorded = self.program.recordings[recording].commands.iter();
        recorded
            .flat_map(|recorded| match recorded {
                Recorded::Command(command) => command.accesses(),
                Recorded::Barrier => Vec::new(),
            })
            .collect()
    }

    /// True if no command writes what it also uses otherwise.
    fn is_apart(&self, action: &Action) -> bool {
        let Action::Execute { recording, table } = action else { return true };
        self.program.recordings[*recording].commands.iter().all(|recorded| {
            let Recorded::Command(command) = recorded else { return true };
            let accesses: Vec<Access> = command
                .accesses()
                .into_iter()
                .map(|access| Access { part: access.part.resolved(table), ..access })
                .collect();
            let may_overlap = self.rules.beyond && matches!(command, Command::Copy { .. });
            may_overlap
                || accesses
                    .iter()
                    .enumerate()
                    .all(|(at, access)| accesses.iter().skip(at + 1).all(|other| !access.conflicts(other)))
        })
    }

    fn visit(&mut self) -> Option<Visit> {
        let mapped = |&buffer: &usize| {
            let spec = self.program.buffers[buffer];
            self.world.buffers[buffer].is_some() && spec.memory != Memory::Local
        };
        let mapped: Vec<usize> = (0..self.program.buffers.len()).filter(mapped).collect();
        if mapped.is_empty() {
            return None;
        }
        let buffer = self.random.pick(&mapped);
        let part = self.part_of(buffer, 1, 1, 2000);
        Some(Visit { part, bytes: self.random.bytes(part.length) })
    }

    fn file(&mut self, device: usize) -> Option<Action> {
        if self.program.files.is_empty() {
            return None;
        }
        let file = self.random.below(self.program.files.len());
        let size = self.program.files[file].bytes.len();
        let part = self.part(device, 1, 1, size)?;
        let offset = self.random.below(size - part.length + 1);
        if self.random.one_in(2) {
            return Some(Action::ReadFile { file, offset, target: part });
        }
        // The content that is written to a file has to be known.
        let known = self.world.get(&part).is_ok_and(|cells| cells.iter().all(Option::is_some));
        known.then_some(Action::WriteFile { source: part, file, offset })
    }

    fn call(&mut self) -> Action {
        let ends = match self.random.below(6) {
            0 => Ends::Deferred,
            1 => Ends::Detached,
            _ => Ends::Well,
        };
        // A detached call is ordered with nothing.
        let visit = if ends == Ends::Detached || self.random.one_in(4) { None } else { self.visit() };
        Action::Call { visit, ends }
    }

    fn failure(&mut self) -> Action {
        let code = self.random.pick(&[Code::DataLoss, Code::Aborted, Code::NotFound, Code::Internal]);
        if self.random.one_in(3) {
            return Action::Fail(code);
        }
        Action::Call { visit: None, ends: Ends::Failed(code) }
    }

    /// Adds a random step, if it is possible.
    fn next(&mut self) {
        let device = self.random.below(self.rules.devices);
        if let Some(often) = self.fails
            && self.random.one_in(often)
        {
            let action = self.failure();
            return self.add(device, action);
        }
        let action = match self.random.below(30) {
            0 => Some(Action::Barrier),
            1..=3 => {
                let length = self.length();
                self.program.buffers.push(BufferSpec { device, length, memory: Memory::Transient });
                self.world.grow(&self.program);
                Some(Action::Allocate(self.program.buffers.len() - 1))
            }
            4 | 5 => {
                if self.transients.is_empty() {
                    return;
                }
                let at = self.random.below(self.transients.len());
                let (buffer, device) = self.transients.swap_remove(at);
                return self.add(device, Action::Deallocate(buffer));
            }
            6..=11 => self.execute(device),
            12 | 13 => self.file(device),
            14 | 15 => Some(self.call()),
            // A thread waits for a success, which is unknown for anything that a failing step has used.
            16 if self.rules.broken => Some(Action::Host(None)),
            16 => Some(Action::Host(self.visit())),
            _ => self.command(device).map(Action::Command),
        };
        if let Some(action) = action {
            self.add(device, action);
        }
    }

    /// A timeline value that is signalled when a step has ended, or later.
    fn point_behind(&mut self, step: usize) -> (At, usize) {
        let signals = &self.program.steps[step].signals;
        let at = signals[self.random.below(signals.len())];
        let tip = self.tips[at.timeline];
        if self.random.one_in(4) && tip != step {
            return (At { value: self.world.timelines[at.timeline].value, ..at }, tip);
        }
        (at, step)
    }

    fn wait_for(&mut self, step: usize, waits: &mut Vec<At>, known: &mut Before) {
        let (at, signaller) = self.point_behind(step);
        waits.push(at);
        known.wait(at, signaller, &self.before[signaller]);
    }

    /// Adds a step with the waits that it needs, and sometimes more.
    fn add(&mut self, device: usize, action: Action) {
        let number = self.program.steps.len();
        let accesses = self.program.accesses(&action);
        let file = Program::file_access(&action);
        let (mut waits, mut known) = (Vec::new(), Before::default());
        // If a device fails a step, later steps may run, and are ordered like any other.
        let may_run = self.rules.broken;
        let ran = |world: &World, step: usize| may_run || world.failures[step].is_empty();
        for step in (0..number).rev() {
            let meets =
                accesses.iter().any(|access| self.accesses[step].iter().any(|other| access.conflicts(other)));
            let other = Program::file_access(&self.program.steps[step].action);
            let meets_file =
                file.zip(other).is_some_and(|(a, b)| a.0 == b.0 && (a.3 || b.3) && a.1 < b.2 && b.1 < a.2);
            if (meets || meets_file) && !known.steps.contains(&step) && ran(&self.world, step) {
                self.wait_for(step, &mut waits, &mut known);
            }
        }
        let on_host = matches!(action, Action::Host(_) | Action::Fail(_));
        if number > 0 && !matches!(action, Action::Fail(_)) && self.random.one_in(3) {
            let step = self.random.below(number);
            if self.world.failures[step].is_empty() || (!on_host && self.random.one_in(3)) {
                self.wait_for(step, &mut waits, &mut known);
            }
        }
        let begins_to_fail = action.begins_to_fail().is_some();
        let fails = begins_to_fail || !self.world.causes(&waits).is_empty();
        let signals = self.signals(device, fails, begins_to_fail, &mut waits, &mut known);
        let step = ProgramStep {
            device,
            affinity: self.affinity(),
            thread: self.random.below(3),
            waits,
            signals,
            action,
        };
        self.program.steps.push(step);
        self.world.grow(&self.program);
        if let Err(Illegal(why)) = self.world.step(&self.program, number) {
            panic!("the author wrote an illegal step: {why}\n{}", self.program);
        }
        for at in &self.program.steps[number].signals {
            self.tips[at.timeline] = number;
        }
        self.before.push(known);
        self.accesses.push(accesses);
        if let Action::Allocate(buffer) = self.program.steps[number].action
            && self.world.failures[number].is_empty()
        {
            self.transients.push((buffer, device));
        }
    }

    /// The signals of a step: new timelines, or existing ones.
    fn signals(
        &mut self,
        device: usize,
        fails: bool,
        begins_to_fail: bool,
        waits: &mut Vec<At>,
        known: &mut Before,
    ) -> Vec<At> {
        let mut signals: Vec<At> = Vec::new();
        for _ in 0..if self.random.one_in(4) { 2 } else { 1 } {
            let goes_on = |timeline: &usize| {
                self.world.timelines[*timeline].causes.is_empty() != fails
                    && signals.iter().all(|at| at.timeline != *timeline)
            };
            let candidates: Vec<usize> = (0..self.program.timelines.len()).filter(goes_on).collect();
            let grown = self.random.pick(&[1, 1, 1, 5]);
            if candidates.is_empty() || begins_to_fail || self.random.one_in(5) {
                self.program.timelines.push(device);
                self.tips.push(usize::MAX);
                self.world.timelines.push(Default::default());
                let timeline = self.program.timelines.len() - 1;
                signals.push(At { timeline, value: grown });
                continue;
            }
            let timeline = self.random.pick(&candidates);
            let last = At { timeline, value: self.world.timelines[timeline].value };
            if !known.has_reached(last) {
                waits.push(last);
                let tip = self.tips[timeline];
                known.wait(last, tip, &self.before[tip]);
            }
            signals.push(At { timeline, value: last.value + grown });
        }
        signals
    }

    /// Submits steps long before their waits are signalled, if only semaphores have to order them: a buffer is used
    /// after the call that creates it, and the host waits only for submitted steps.
    fn submit_in_some_order(&mut self) {
        let steps = self.program.steps.len();
        let eager = self.random.pick(&[0, 2, 10]);
        let mut left: Vec<usize> = (0..steps).collect();
        let mut submitted = vec![false; steps];
        while !left.is_empty() {
            let ready: Vec<usize> =
                (0..left.len()).filter(|&at| self.may_submit(left[at], &submitted)).collect();
            let at = if eager > 0 && self.random.one_in(eager) { self.random.pick(&ready) } else { ready[0] };
            let step = left.remove(at);
            submitted[step] = true;
            self.program.order.push(step);
        }
        let threads = self.random.pick(&[1, 1, 2, 3]);
        for step in &mut self.program.steps {
            step.thread %= threads;
        }
    }

    fn may_submit(&self, step: usize, submitted: &[bool]) -> bool {
        let is_behind = match self.program.steps[step].action {
            Action::Host(_) => self.before[step].steps.iter().all(|&before| submitted[before]),
            // An allocation waits for no other step, and its uses come after it in the order of steps.
            _ => true,
        };
        is_behind && self.comes_after_its_buffers(step, submitted)
    }

    fn comes_after_its_buffers(&self, step: usize, submitted: &[bool]) -> bool {
        self.accesses[step].iter().all(|access| {
            let Base::Buffer(buffer) = access.part.base else { return true };
            let made = |other: &ProgramStep| matches!(other.action, Action::Allocate(made) if made == buffer);
            match self.program.steps.iter().position(made) {
                Some(made) if made != step => submitted[made],
                _ => true,
            }
        })
    }
}

/// Names some of a command's buffers by slots, each by its own slot, at an offset in it.
fn into_slots(random: &mut Random, command: &mut Command, slots: &mut usize) {
    let parts: Vec<(&mut BufferPart, usize)> = match command {
        Command::Fill { target, pattern } => {
            let alignment = pattern.len();
            vec![(target, alignment)]
        }
        Command::Update { target, .. } => vec![(target, 1)],
        Command::Copy { source, target } => vec![(source, 1), (target, 1)],
        Command::Dispatch(dispatch) => dispatch.bindings.iter_mut().map(|part| (part, BINDING)).collect(),
    };
    for (part, alignment) in parts {
        if part.length > 4000 || random.one_in(3) {
            continue;
        }
        *part =
            BufferPart { base: Base::Slot(*slots), offset: random.below(3) * alignment, span: None, ..*part };
        *slots += 1;
    }
}
