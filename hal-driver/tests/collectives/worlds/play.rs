// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Runs a world on devices with several threads, and judges the outcome.

use super::model::{self, Bytes, ELEMENTS, REDUCTIONS};
use super::plan::*;
use crate::common::random::Random;
use crate::common::scarce::Scarce;
use crate::common::{Buffer, Commands, Device, Error, List, Result, Semaphore, barrier, check};
use crate::rig::*;
use hal_semaphore::Code;
use hal_sys as sys;
use std::collections::{BTreeMap, BTreeSet};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The longest time of a whole world, and of the release of a device, on a busy machine.
const BOUND: Duration = Duration::from_secs(120);
const RELEASE: Duration = Duration::from_secs(15);

/// The causes in failures' messages.
const ON_FIRE: &str = "bank 3 is on fire";
const NEVER_CAME: &str = "the program has not come to this";

/// One execution of a device's command buffer.
struct Execution {
    event: usize,
    device: usize,
    time: usize,
    /// The earlier executions that it waits for.
    waits: Vec<usize>,
    /// Its buffers, and whether it writes them: later executions wait for these.
    uses: Vec<(usize, bool)>,
}

fn executions(world: &World) -> Vec<Execution> {
    let mut all: Vec<Execution> = Vec::new();
    // The last writer of each buffer, and its readers since.
    let mut writer: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut readers: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    let mut last: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (event, of) in world.events.iter().enumerate() {
        for time in 0..of.times {
            for script in &of.scripts {
                let device = script.device;
                let number = all.len();
                let mut waits: BTreeSet<usize> = BTreeSet::new();
                waits.extend(last.get(&(event, device)));
                if time == 0 {
                    waits.extend(script.after.iter().filter_map(|place| last.get(place)));
                }
                for (buffer, writes) in script.uses() {
                    waits.extend(writer.get(&(device, buffer)));
                    if writes {
                        waits.extend(readers.get(&(device, buffer)).into_iter().flatten());
                    }
                }
                for (buffer, writes) in script.uses() {
                    if writes {
                        writer.insert((device, buffer), number);
                        readers.remove(&(device, buffer));
                    }
                }
                for (buffer, writes) in script.uses() {
                    if !writes {
                        readers.entry((device, buffer)).or_default().push(number);
                    }
                }
                waits.remove(&number);
                last.insert((event, device), number);
                let (waits, uses) = (waits.into_iter().collect(), script.uses().collect());
                all.push(Execution { event, device, time, waits, uses });
            }
        }
    }
    all
}

/// The executions that may fail: those with the fault, those that wait for them, and all of every group of theirs.
fn may_fail(world: &World, executions: &[Execution]) -> Vec<bool> {
    let is_root = |one: &Execution| match world.fault {
        WorldFault::None => false,
        WorldFault::Gate { event, device } | WorldFault::Mismatch { event, device } => {
            (one.event, one.device) == (event, device)
        }
        WorldFault::Device { device } => {
            // Also through its memory.
            let owns = |(buffer, _): &(usize, bool)| world.memory[one.device][*buffer].owner == device;
            one.device == device || one.uses.iter().any(owns)
        }
        WorldFault::Released { device, .. } => {
            let owns = |(buffer, _): &(usize, bool)| world.memory[one.device][*buffer].owner == device;
            one.device == device || one.uses.iter().any(owns)
        }
        WorldFault::Absent { event, device } => one.device == device && one.event >= event,
    };
    let mut may: Vec<bool> = executions.iter().map(is_root).collect();
    let mut groups: BTreeSet<usize> = BTreeSet::new();
    loop {
        let before = (may.iter().filter(|may| **may).count(), groups.len());
        for (number, one) in executions.iter().enumerate() {
            let event = &world.events[one.event];
            let own = event.groups_of(event.script_of(one.device).unwrap());
            may[number] |= one.waits.iter().any(|&wait| may[wait]) || !own.is_disjoint(&groups);
            if may[number] {
                groups.extend(own);
            }
        }
        if before == (may.iter().filter(|may| **may).count(), groups.len()) {
            return may;
        }
    }
}

/// True if an execution must fail: it has the fault, or is its peer.
fn must_fail(world: &World, one: &Execution) -> bool {
    let (WorldFault::Gate { event, device } | WorldFault::Mismatch { event, device }) = world.fault else {
        return false;
    };
    let here = &world.events[event];
    let is_shared = |group: &usize| {
        let of_group = |one: &&Collective| one.group == *group && world.needs_all(one);
        here.collectives.iter().any(|one| of_group(&one))
            && world.groups[*group].rank_of(device).is_some()
            && world.groups[*group].rank_of(one.device).is_some()
    };
    one.event == event && here.collectives.iter().any(|one| is_shared(&one.group))
}

/// The buffers in the slots of an execution.
type Bindings = Vec<sys::iree_hal_buffer_binding_t>;

struct Recorder<'a> {
    commands: *mut sys::iree_hal_command_buffer_t,
    memory: &'a [Buffer],
    bindings: Bindings,
}

impl Recorder<'_> {
    fn reference(&mut self, place: &NamedRange) -> sys::iree_hal_buffer_ref_t {
        let buffer = self.memory[place.buffer].0;
        let Some(begin) = place.slot else {
            let (offset, length) = (place.offset, place.named);
            return sys::iree_hal_buffer_ref_t { buffer, offset, length, ..Default::default() };
        };
        let slot = u32::try_from(self.bindings.len()).unwrap();
        self.bindings.push(sys::iree_hal_buffer_binding_t { buffer, offset: begin, length: LENGTH - begin });
        unsafe { sys::iree_hal_make_indirect_buffer_ref(slot, place.offset - begin, place.named) }
    }

    fn item(
        &mut self,
        world: &World,
        event: &Event,
        device: usize,
        item: &Item,
        channels: &[Option<Channel>],
        mismatch: bool,
    ) -> Result {
        if item.barrier {
            barrier(self.commands)?;
        }
        let commands = self.commands;
        match &item.what {
            What::Fill { target, pattern } => {
                let target = self.reference(target);
                let pattern = pattern.as_ptr().cast();
                unsafe { check(sys::iree_hal_command_buffer_fill_buffer(commands, target, pattern, 4, 0)) }
            }
            What::Copy { source, target } => {
                let (source, target) = (self.reference(source), self.reference(target));
                unsafe { check(sys::iree_hal_command_buffer_copy_buffer(commands, source, target, 0)) }
            }
            What::Update { target, byte } => {
                let bytes = vec![*byte; target.length];
                let target = self.reference(target);
                unsafe {
                    let source = bytes.as_ptr().cast();
                    check(sys::iree_hal_command_buffer_update_buffer(commands, source, 0, target, 0))
                }
            }
            What::Collective { number, send, recv } => {
                let one = &event.collectives[*number];
                let group = &world.groups[one.group];
                let (rank, ranks) = (group.rank_of(device).unwrap(), group.members.len());
                let kind = match one.kind {
                    SEND if rank == one.to => RECV,
                    kind => kind,
                };
                let param = match kind {
                    SEND => one.to,
                    RECV | BROADCAST | REDUCE => one.from,
                    SEND_RECV => (((rank + ranks - 1) % ranks) << 16) | ((rank + 1) % ranks),
                    _ => 0,
                };
                let reduces = [ALL_REDUCE, REDUCE, REDUCE_SCATTER].contains(&kind);
                let reduction = if reduces { REDUCTIONS[one.reduction as usize] } else { 0 };
                let element = &ELEMENTS[if mismatch { one.element ^ 1 } else { one.element }];
                let op = packed(kind, reduction, element.code);
                let mut reference = |place: &Option<NamedRange>| {
                    place.as_ref().map(|place| self.reference(place)).unwrap_or_default()
                };
                let (send, recv) = (reference(send), reference(recv));
                let (channel, param) =
                    (channels[one.group].as_ref().unwrap().0, u32::try_from(param).unwrap());
                unsafe {
                    check(sys::iree_hal_command_buffer_collective(
                        commands, channel, op, param, send, recv, one.count,
                    ))
                }
            }
        }
    }
}

/// A running world.
struct RunningWorld<'a> {
    world: &'a World,
    executions: Vec<Execution>,
    /// The program's references. One may be released before the end.
    devices: Vec<Mutex<Option<Device>>>,
    memory: Vec<Vec<Buffer>>,
    done: Vec<Semaphore>,
    gates: BTreeMap<(usize, usize), Semaphore>,
    submitted: AtomicUsize,
    is_gone: AtomicBool,
    /// Executions that were not submitted, as their rank is absent.
    absent: Mutex<Vec<usize>>,
    begin: Instant,
}

impl RunningWorld<'_> {
    fn record(
        &self,
        device: &Device,
        event: usize,
        number: usize,
        channels: &[Option<Channel>],
    ) -> Result<(Commands, Bindings)> {
        let (world, of) = (self.world, &self.world.events[event]);
        let script = of.script_of(number).unwrap();
        let mismatch = world.fault == WorldFault::Mismatch { event, device: number };
        let slots = script.items.iter().map(|item| match &item.what {
            What::Fill { target, .. } | What::Update { target, .. } => usize::from(target.slot.is_some()),
            What::Copy { source, target } => {
                [source, target].iter().filter(|place| place.slot.is_some()).count()
            }
            What::Collective { send, recv, .. } => {
                send.iter().chain(recv).filter(|place| place.slot.is_some()).count()
            }
        });
        let slots = slots.sum();
        unsafe {
            let mut commands = null_mut();
            let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED
                | if script.one_shot { sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT } else { 0 };
            check(sys::iree_hal_command_buffer_create(
                device.0,
                mode,
                3,
                u64::MAX,
                slots,
                &raw mut commands,
            ))?;
            let commands = Commands(commands);
            check(sys::iree_hal_command_buffer_begin(commands.0))?;
            let memory = &self.memory[number];
            let mut recorder = Recorder { commands: commands.0, memory, bindings: Vec::new() };
            for item in &script.items {
                recorder.item(world, of, number, item, channels, mismatch)?;
            }
            let bindings = recorder.bindings;
            check(sys::iree_hal_command_buffer_end(commands.0))?;
            Ok((commands, bindings))
        }
    }

    /// Submits the executions of one thread of a device, in order.
    #[expect(clippy::too_many_lines, reason = "one sequence of steps")]
    fn submit_all(&self, device: Device, number: usize, thread: usize, mut channels: Vec<Option<Channel>>) {
        let mut device = Some(device);
        let mut recorded: Option<(usize, Commands, Bindings)> = None;
        for (index, one) in self.executions.iter().enumerate() {
            let event = &self.world.events[one.event];
            if (one.device, event.thread) != (number, thread) {
                continue;
            }
            if let WorldFault::Absent { event, device } = self.world.fault
                && device == number
                && one.event >= event
            {
                self.absent.lock().unwrap().push(index);
                continue;
            }
            self.release_in_time(number);
            if self.is_released(number) {
                device = None;
                channels.clear();
                self.done[index].fail(Code::Aborted, NEVER_CAME);
                continue;
            }
            let Some(device) = &device else { continue };
            let script = event.script_of(number).unwrap();
            if recorded.as_ref().is_none_or(|(event, ..)| *event != one.event) {
                match self.record(device, one.event, number, &channels) {
                    Ok((commands, bindings)) => recorded = Some((one.event, commands, bindings)),
                    Err(error) => {
                        self.done[index].fail(error.code, &format!("not recorded: {}", error.text));
                        continue;
                    }
                }
            }
            let (_, commands, bindings) = recorded.as_ref().unwrap();
            let mut waits: Vec<(&Semaphore, u64)> =
                one.waits.iter().map(|&wait| (&self.done[wait], 1)).collect();
            if one.time == 0
                && let Some(gate) = self.gates.get(&(one.event, number))
            {
                waits.push((gate, 1));
            }
            let (waits, signals) = (List::of(&waits), self.done[index].at(1));
            let table =
                sys::iree_hal_buffer_binding_table_t { count: bindings.len(), bindings: bindings.as_ptr() };
            let executed = unsafe {
                let (waits, signals) = (waits.raw(), signals.raw());
                check(sys::iree_hal_device_queue_execute(
                    device.0,
                    script.affinity,
                    waits,
                    signals,
                    commands.0,
                    table,
                    0,
                ))
            };
            if let Err(error) = executed {
                self.done[index].fail(error.code, &format!("refused: {}", error.text));
            }
            if script.release_at_once && one.time + 1 == event.times {
                recorded = None;
            }
        }
    }

    /// Counts a submission, and releases the device when its count is reached.
    fn release_in_time(&self, number: usize) {
        let WorldFault::Released { device, after } = self.world.fault else { return };
        if device == number && self.submitted.fetch_add(1, Ordering::SeqCst) >= after {
            self.is_gone.store(true, Ordering::SeqCst);
            let gone = self.devices[device].lock().unwrap().take();
            drop(gone);
        }
    }

    fn is_released(&self, number: usize) -> bool {
        matches!(self.world.fault, WorldFault::Released { device, .. } if device == number)
            && self.is_gone.load(Ordering::SeqCst)
    }

    /// Gives the host's signals, each after its delay.
    fn open_gates(&self) {
        let mut gates: Vec<_> = self.gates.iter().collect();
        let delay = |(event, device): &(usize, usize)| {
            self.world.events[*event].script_of(*device).unwrap().gate.unwrap_or_default()
        };
        gates.sort_by_key(|(place, _)| delay(place));
        for (place, gate) in gates {
            let due = self.begin + Duration::from_millis(delay(place));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (event, device) = *place;
            if self.world.fault == (WorldFault::Gate { event, device }) {
                gate.fail(Code::DataLoss, ON_FIRE);
            } else {
                gate.signal(1).unwrap();
            }
        }
    }

    /// Waits until everything has ended. The memory of a failed execution belongs to the program again at once: it
    /// writes there, and returns the bytes.
    fn wait(&self) -> (Vec<Result>, BTreeMap<(usize, usize), u8>) {
        let mut outcomes: Vec<Option<Result>> = self.done.iter().map(|_| None).collect();
        let mut canaries = BTreeMap::new();
        while outcomes.iter().any(Option::is_none) {
            assert!(
                self.begin.elapsed() < BOUND,
                "{}: never ended: {:?}",
                self.what(),
                self.unended(&outcomes)
            );
            for (index, done) in self.done.iter().enumerate() {
                if outcomes[index].is_some() {
                    continue;
                }
                let outcome = match done.value() {
                    Ok(0) => continue,
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                };
                let has_failed = outcome.is_err();
                outcomes[index] = Some(outcome);
                if has_failed {
                    self.put_canaries(index, &outcomes, &mut canaries);
                }
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        (outcomes.into_iter().flatten().collect(), canaries)
    }

    fn unended(&self, outcomes: &[Option<Result>]) -> Vec<(usize, usize, usize)> {
        let open = self.executions.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_none());
        open.map(|(one, _)| (one.event, one.device, one.time)).collect()
    }

    fn put_canaries(
        &self,
        index: usize,
        outcomes: &[Option<Result>],
        canaries: &mut BTreeMap<(usize, usize), u8>,
    ) {
        let device = self.executions[index].device;
        for (buffer, _) in self.executions[index].uses.iter().filter(|(_, writes)| *writes) {
            // The executions that it waits for may still run, if another one that it waits for has failed.
            let uses =
                |one: &Execution| one.device == device && one.uses.iter().any(|(other, _)| other == buffer);
            let before = self.executions[..index].iter().zip(outcomes);
            let is_ours = before.filter(|(one, _)| uses(one)).all(|(_, outcome)| outcome.is_some());
            let canary = 0xC0 + u8::try_from(index % 60).unwrap();
            if is_ours
                && !canaries.contains_key(&(device, *buffer))
                && self.write(device, *buffer, &[canary; LENGTH]).is_ok()
            {
                canaries.insert((device, *buffer), canary);
            }
        }
    }

    /// The owner of a buffer's memory, if the program still has it.
    fn owner(&self, device: usize, buffer: usize) -> Option<Device> {
        self.devices[self.world.memory[device][buffer].owner].lock().unwrap().as_ref().map(Device::again)
    }

    fn write(&self, device: usize, buffer: usize, bytes: &[u8]) -> std::result::Result<(), ()> {
        let memory = &self.memory[device][buffer];
        if self.world.memory[device][buffer].visible {
            memory.write(0, bytes);
            return Ok(());
        }
        let owner = self.owner(device, buffer).ok_or(())?;
        let written = owner.semaphore(0);
        let updated = owner.update_on(u64::MAX, &List::none(), &written.at(1), bytes, (memory, 0));
        updated.and_then(|()| written.wait(1)).map_err(drop)
    }

    fn read(&self, device: usize, buffer: usize) -> Option<Vec<u8>> {
        let memory = &self.memory[device][buffer];
        if self.world.memory[device][buffer].visible {
            return Some(memory.read());
        }
        let owner = self.owner(device, buffer)?;
        let (copy, copied) = (owner.try_buffer(LENGTH).ok()?, owner.semaphore(0));
        owner.copy(&List::none(), &copied.at(1), memory, &copy, LENGTH).ok()?;
        copied.wait(1).ok().map(|()| copy.read())
    }

    fn what(&self) -> String {
        format!("seed {} ({:?}) on {:?}", self.world.seed, self.world.fault, self.world.uris)
    }
}

/// Counts of outcomes.
#[derive(Default, Debug)]
pub(super) struct Tally {
    pub(super) worlds: usize,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    pub(super) canaries: usize,
    pub(super) compared: usize,
    pub(super) unused: usize,
}

/// The channels of each device, by group; `None` for groups in which it is no rank.
fn channels(world: &World, devices: &[Device]) -> Vec<Vec<Option<Channel>>> {
    let mut channels: Vec<Vec<Option<Channel>>> =
        devices.iter().map(|_| world.groups.iter().map(|_| None).collect()).collect();
    for (number, group) in world.groups.iter().enumerate().take(world.created) {
        let id = fresh_id();
        let count = i32::try_from(group.members.len()).unwrap();
        for (rank, &device) in (0..).zip(&group.members) {
            channels[device][number] = Some(devices[device].channel(&id, "world", (rank, count)).unwrap());
        }
    }
    for split in &world.splits {
        for (rank, &device) in world.groups[split.of].members.iter().enumerate() {
            let (color, key) = split.calls[rank];
            let part = channels[device][split.of].as_ref().unwrap().split(color, key).unwrap();
            match split.parts.iter().find(|(own, _)| *own == color) {
                Some((_, group)) => channels[device][*group] = part,
                None => assert!(part.is_none(), "a rank without a color has a channel"),
            }
        }
    }
    for (device, own) in channels.iter().enumerate() {
        for (group, channel) in world.groups.iter().zip(own) {
            let place = channel.as_ref().map(Channel::place);
            let count = i32::try_from(group.members.len()).unwrap();
            let expected = group.rank_of(device).map(|rank| (i32::try_from(rank).unwrap(), count));
            assert_eq!(place, expected, "device {device} of seed {}", world.seed);
        }
    }
    channels
}

/// Runs a world; stops early if its fault strikes before it begins.
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
pub(super) fn play(world: &World, tally: &mut Tally) {
    let scarce = Scarce::new(usize::MAX, false);
    {
        let opened =
            world.uris.iter().map(|uri| Device::open_with(uri, scarce.raw()).map(|(device, _)| device));
        let devices: Vec<Device> = opened.collect::<Result<_>>().unwrap();
        let mut random = Random::new(!world.seed);
        let mut bytes: Bytes =
            world.memory.iter().map(|all| all.iter().map(|_| random.bytes(LENGTH)).collect()).collect();
        let memory = world.memory.iter().map(|all| {
            let make = |memory: &Memory| {
                let owner = &devices[memory.owner];
                if memory.visible { owner.buffer(LENGTH) } else { owner.local_buffer(LENGTH) }
            };
            all.iter().map(make).collect()
        });
        let memory: Vec<Vec<Buffer>> = memory.collect();
        let channels = channels(world, &devices);
        let executions = executions(world);
        let done: Vec<Semaphore> = executions.iter().map(|one| devices[one.device].semaphore(0)).collect();
        let gated = world.events.iter().enumerate().flat_map(|(number, event)| {
            let has_gate = move |script: &&Script| {
                script.gate.is_some()
                    || world.fault == (WorldFault::Gate { event: number, device: script.device })
            };
            event.scripts.iter().filter(has_gate).map(move |script| (number, script.device))
        });
        let gates = gated.map(|place| (place, devices[random.below(devices.len())].semaphore(0))).collect();
        let play = RunningWorld {
            world,
            executions,
            devices: devices.into_iter().map(|device| Mutex::new(Some(device))).collect(),
            memory,
            done,
            gates,
            submitted: AtomicUsize::new(0),
            is_gone: AtomicBool::new(false),
            absent: Mutex::default(),
            begin: Instant::now(),
        };
        for (device, all) in bytes.iter().enumerate() {
            for (buffer, bytes) in all.iter().enumerate() {
                if play.write(device, buffer, bytes).is_err() {
                    tally.unused += 1;
                    return;
                }
            }
        }
        let (outcomes, canaries) = std::thread::scope(|scope| {
            let play = &play;
            scope.spawn(|| play.open_gates());
            let mut submitting = Vec::new();
            for (number, channels) in channels.into_iter().enumerate() {
                for thread in 0..2 {
                    let device = play.devices[number].lock().unwrap().as_ref().map(Device::again);
                    let channels = channels.clone();
                    // The other thread may have released it already.
                    let Some(device) = device else {
                        fail_all(play, number, thread);
                        continue;
                    };
                    submitting.push(scope.spawn(move || play.submit_all(device, number, thread, channels)));
                }
            }
            scope.spawn(move || {
                submitting.into_iter().for_each(|thread| thread.join().unwrap());
                if matches!(play.world.fault, WorldFault::Absent { .. }) {
                    std::thread::sleep(Duration::from_millis(2200));
                    for &index in &*play.absent.lock().unwrap() {
                        play.done[index].fail(Code::Aborted, NEVER_CAME);
                    }
                }
            });
            play.wait()
        });
        judge(&play, &outcomes, &canaries, &mut bytes, tally);
        tear_down(play, &mut random);
    }
    assert_eq!(scarce.left(), [0; 0], "seed {} leaves something behind", world.seed);
    tally.worlds += 1;
}

fn fail_all(play: &RunningWorld<'_>, number: usize, thread: usize) {
    for (index, one) in play.executions.iter().enumerate() {
        if (one.device, play.world.events[one.event].thread) == (number, thread) {
            play.done[index].fail(Code::Aborted, NEVER_CAME);
        }
    }
}

fn judge(
    play: &RunningWorld<'_>,
    outcomes: &[Result],
    canaries: &BTreeMap<(usize, usize), u8>,
    bytes: &mut Bytes,
    tally: &mut Tally,
) {
    let world = play.world;
    let may = may_fail(world, &play.executions);
    for ((one, outcome), may) in play.executions.iter().zip(outcomes).zip(may) {
        let at = format!("{}: event {} of device {}, time {}", play.what(), one.event, one.device, one.time);
        match outcome {
            Ok(()) => {
                tally.succeeded += 1;
                assert!(!must_fail(world, one), "{at} has succeeded");
            }
            Err(error) => {
                tally.failed += 1;
                assert!(may, "{at}: {}", error.text);
                explain(world, error, &at);
            }
        }
    }
    for event in &world.events {
        (0..event.times).for_each(|_| model::apply(world, event, bytes));
    }
    for (device, all) in bytes.iter().enumerate() {
        for (buffer, expected) in all.iter().enumerate() {
            let uses =
                |one: &Execution| one.device == device && one.uses.iter().any(|(other, _)| *other == buffer);
            let last = play.executions.iter().zip(outcomes).rev().find(|(one, _)| uses(one));
            let canary = canaries.get(&(device, buffer));
            let is_right = last.is_none_or(|(_, outcome)| outcome.is_ok());
            if canary.is_none() && !is_right {
                continue;
            }
            let Some(got) = play.read(device, buffer) else { continue };
            let what = format!("{}: buffer {buffer} of device {device}", play.what());
            match canary {
                Some(canary) => {
                    tally.canaries += 1;
                    let touched = play.executions.iter().zip(outcomes).filter(|(one, _)| uses(one));
                    let touched: Vec<_> =
                        touched.map(|(one, outcome)| (one.event, one.time, outcome)).collect();
                    let wrong = got.iter().position(|byte| byte != canary);
                    assert!(
                        wrong.is_none(),
                        "{what} was written after a failure, from byte {wrong:?} on: {touched:#?}"
                    );
                }
                None => {
                    tally.compared += 1;
                    let wrong = got.iter().zip(expected).position(|(got, expected)| got != expected);
                    assert!(wrong.is_none(), "{what} is wrong from byte {wrong:?} on: {:#?}", world.events);
                }
            }
        }
    }
}

/// Checks that a failure names its cause.
fn explain(world: &World, error: &Error, at: &str) {
    let causes: &[&str] = match world.fault {
        WorldFault::None => &[],
        WorldFault::Gate { .. } => &[ON_FIRE],
        WorldFault::Mismatch { .. } => &["is not the same for all"],
        WorldFault::Device { .. } => &["as fault=", "panic"],
        WorldFault::Absent { .. } => &["(collective_timeout)", NEVER_CAME],
        WorldFault::Released { .. } => &[
            "its device was released",
            "shut down",
            "device was released",
            // The failure of executions that the device has not submitted.
            NEVER_CAME,
            "(collective_timeout)",
        ],
    };
    assert!(causes.iter().any(|cause| error.text.contains(cause)), "{at}: {}", error.text);
}

/// Releases everything, in any order.
fn tear_down(play: RunningWorld<'_>, random: &mut Random) {
    let RunningWorld { devices, memory, done, gates, .. } = play;
    let mut all: Vec<Box<dyn FnOnce()>> = Vec::new();
    for device in devices {
        all.push(Box::new(move || {
            let begin = Instant::now();
            drop(device);
            assert!(begin.elapsed() < RELEASE, "a device is released in {:?}", begin.elapsed());
        }));
    }
    for buffer in memory.into_iter().flatten() {
        all.push(Box::new(move || drop(buffer)));
    }
    all.push(Box::new(move || drop(done)));
    all.push(Box::new(move || drop(gates)));
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at + 1));
    }
    all.into_iter().for_each(|release| release());
}
