// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A kernel and a device for tests, as honest as the tests of a queue need them: objects, slices, channels, two
//! networks.
//!
//! It does everything at once, when it is queued, unless a test has it [hold](FakeCard::hold) what is queued, and
//! checks of a request what the tests are about. The emulator is what shows the rules of the kernel.

use crate::kmd::{Errno, System};
use emulator_qaic::programs::{Call as Dispatched, CallOutcome, OUTCOME, Program};
use hal_backend::{HostCall, HostProgram, HostRange};
use hal_kernel::drm;
use hal_qaic_abi::container::metadata::{HARDWARE, METADATA};
use hal_qaic_abi::nnc::command::{
    self, ActivateRequest, ActivateResponse, Command, DeactivateResponse, LoadConstantsResponse,
    LoadElfResponse, StatusResponse, UnloadConstantsResponse, UnloadElfResponse, kind,
};
use hal_qaic_abi::nnc::user::{Answer, Ask, Message, asks};
use hal_qaic_abi::nnc::{COMMANDS, Version};
use hal_qaic_abi::uapi::{
    AttachSlice, Call, CreateBo, DetachSlice, Execute, ExecuteEntry, GemClose, MESSAGE_MAX, ManageMessage,
    MmapBo, PartialExecuteEntry, PerfStats, PerfStatsEntry, SliceEntry, TO_DEVICE, Wait,
};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// The address of every network's memory, and how much there is for each.
const DDR: u64 = 1 << 32;
const ROOM: usize = 4 << 20;

/// An object of the kernel.
struct Object {
    view: HostRange,
    /// The channel, the direction and the slices.
    sliced: Option<(u32, u32, Vec<SliceEntry>)>,
    queued: bool,
}

/// An execution that is held: its channel and its objects.
type Held = (u32, Vec<(u32, u64)>);

/// A channel, and the network behind it.
struct Channel {
    activation: u32,
    image: Arc<[u8]>,
    elements: u32,
    ddr: HostRange,
}

#[derive(Default)]
struct FakeCardState {
    objects: BTreeMap<u32, Object>,
    channels: BTreeMap<u32, Channel>,
    images: BTreeMap<u32, Arc<[u8]>>,
    constants: Vec<u8>,
    programs: BTreeMap<u64, Arc<dyn HostProgram>>,
    next: u32,
    calls: Vec<Call>,
    /// True if transfers fail, which the kernel does not say.
    failing: bool,
    /// True if executions stay in the ring.
    holding: bool,
    /// Those that do, in order.
    held: Vec<Held>,
    /// The kernel's times for each execution, to queue it and on the device, in microseconds.
    took: (u32, u32),
    /// How long was asked for in each wait, in milliseconds.
    waits: Vec<u32>,
    /// The checksum of metadata that came with the last network.
    metadata_crc: u32,
    /// The errors of calls, each once. With `EPIPE` comes the crash that it stands for.
    faults: Vec<(Call, Errno)>,
}

/// The kernel and the device.
pub(crate) struct FakeCard {
    state: Mutex<FakeCardState>,
    /// How many channels the device has.
    channels: usize,
    /// How many elements each object takes.
    elements: AtomicU32,
}

impl FakeCard {
    pub(crate) fn new(channels: usize, elements: u32) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), channels, elements: elements.into() })
    }

    fn elements(&self) -> u32 {
        self.elements.load(Ordering::Relaxed)
    }

    /// From here on each object takes so many elements, as one does whose memory is in more pieces.
    pub(crate) fn scatter(&self, elements: u32) {
        self.elements.store(elements, Ordering::Relaxed);
    }

    /// Every call since this was asked last.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().calls)
    }

    /// From here on the kernel says this of how long each execution took to queue and on the device, in microseconds.
    pub(crate) fn took(&self, submit: u32, device: u32) {
        self.state.lock().took = (submit, device);
    }

    /// How long each wait was to take at most since this was asked last, in milliseconds.
    pub(crate) fn waits(&self) -> Vec<u32> {
        std::mem::take(&mut self.state.lock().waits)
    }

    /// The checksum of metadata that came with the last network.
    pub(crate) fn metadata_crc(&self) -> u32 {
        self.state.lock().metadata_crc
    }

    /// The next such call fails so.
    pub(crate) fn fail(&self, call: Call, errno: Errno) {
        self.state.lock().faults.push((call, errno));
    }

    /// From here on executions stay in their rings.
    pub(crate) fn hold(&self) {
        self.state.lock().holding = true;
    }

    /// How many executions are in each ring.
    pub(crate) fn held(&self) -> BTreeMap<u32, usize> {
        let mut rings = BTreeMap::new();
        for (channel, _) in &self.state.lock().held {
            *rings.entry(*channel).or_insert(0) += 1;
        }
        rings
    }

    /// The oldest execution of a channel goes on.
    pub(crate) fn release(&self, channel: u32) {
        let mut state = self.state.lock();
        let place = state.held.iter().position(|(held, _)| *held == channel).unwrap();
        let (_, queued) = state.held.remove(place);
        state.perform(channel, &queued);
    }

    /// From here on all transfers fail, and the kernel says that they have ended.
    pub(crate) fn fail_transfers(&self) {
        self.state.lock().failing = true;
    }

    /// Every channel's sub-system crashes.
    pub(crate) fn crash(&self) {
        self.state.lock().crash();
    }

    /// How many objects, channels and images there are.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.objects.len(), state.channels.len(), state.images.len())
    }

    /// The constants that were loaded.
    pub(crate) fn constants(&self) -> Vec<u8> {
        self.state.lock().constants.clone()
    }
}

impl hal_kernel::ProgramHost for FakeCard {
    fn load(&self, program: Arc<dyn HostProgram>) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let number = u64::from(state.next);
        state.programs.insert(number, program);
        number
    }

    fn unload(&self, number: u64) {
        self.state.lock().programs.remove(&number);
    }

    fn workers(&self) -> usize {
        1
    }
}

fn take<T: FromBytes>(argument: &[u8]) -> T {
    T::read_from_bytes(argument).unwrap()
}

/// The entries that a request points to.
///
/// # Safety
///
/// There are as many at that address, and they stay for as long as this is used.
unsafe fn entries<'a, T>(address: u64, count: u32) -> &'a mut [T] {
    // SAFETY: `count` of them are at `address`, as the function asks.
    unsafe { std::slice::from_raw_parts_mut(address as *mut T, count as usize) }
}

impl FakeCardState {
    /// The sub-system of every channel crashes: they are taken away, and their objects have no slices any more.
    fn crash(&mut self) {
        self.channels.clear();
        self.held.clear();
        self.objects.values_mut().for_each(|object| (object.sliced, object.queued) = (None, false));
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn attach(&mut self, attach: &AttachSlice, elements: u32) -> Result<(), Errno> {
        // SAFETY: `hdr.count` slices are at `data` until the system call returns, as the backend's `kmd` passes them.
        let slices = unsafe { entries::<SliceEntry>(attach.data, attach.hdr.count) }.to_vec();
        // Not `EPERM`, as of everything else: `qaic_attach_slice_bo_ioctl`.
        let channel = self.channels.get(&attach.hdr.dbc_id).ok_or(Errno::INVAL)?;
        if elements > channel.elements {
            return Err(Errno::NOSPC);
        }
        let object = self.objects.get_mut(&attach.hdr.handle).ok_or(Errno::NOENT)?;
        let inside = |slice: &SliceEntry| slice.offset + slice.size <= object.view.length();
        if object.sliced.is_some() || !slices.iter().all(inside) {
            return Err(Errno::INVAL);
        }
        object.sliced = Some((attach.hdr.dbc_id, attach.hdr.dir, slices));
        Ok(())
    }

    /// Does the transfers of one direction.
    fn transfer(&self, queued: &[(u32, u64)], dir: u32, ddr: &HostRange) {
        for (handle, resize) in queued {
            let object = &self.objects[handle];
            let (_, way, slices) = object.sliced.as_ref().unwrap();
            for slice in slices.iter().filter(|_| *way == dir) {
                let length = resize.saturating_sub(slice.offset).min(slice.size);
                let host = object.view.slice(slice.offset, length).unwrap();
                let device = ddr.slice(slice.dev_addr - DDR, length).unwrap();
                assert!(if dir == TO_DEVICE { device.copy_from(&host) } else { host.copy_from(&device) });
            }
        }
    }

    fn execute(&mut self, channel: u32, queued: &[(u32, u64)], elements: u32) -> Result<(), Errno> {
        let found = self.channels.get(&channel).ok_or(Errno::PERM)?;
        let in_ring = self.held.iter().filter(|(held, _)| *held == channel).map(|(_, queued)| queued.len());
        let count = in_ring.sum::<usize>() + queued.len();
        if elements * u32::try_from(count).unwrap() >= found.elements {
            return Err(Errno::AGAIN);
        }
        let sliced = |handle: &u32| self.objects[handle].sliced.as_ref().map(|sliced| sliced.0);
        let is_bad = |handle| sliced(handle) != Some(channel) || self.objects[handle].queued;
        if queued.iter().any(|(handle, _)| is_bad(handle)) {
            return Err(Errno::INVAL);
        }
        if self.holding {
            for (handle, _) in queued {
                self.objects.get_mut(handle).unwrap().queued = true;
            }
            self.held.push((channel, queued.to_vec()));
        } else if !self.failing {
            self.perform(channel, queued);
        }
        Ok(())
    }

    /// Does what was queued.
    fn perform(&mut self, channel: u32, queued: &[(u32, u64)]) {
        for (handle, _) in queued {
            self.objects.get_mut(handle).unwrap().queued = false;
        }
        let found = &self.channels[&channel];
        let ddr = found.ddr.clone();
        let program = Program::read(&found.image).unwrap();
        self.transfer(queued, TO_DEVICE, &ddr);
        match program {
            Some(program) => self.call(&program, &ddr),
            // The network of a compiler: its second page is its first, each byte one more.
            None => {
                let mut page = [0; 4096];
                assert!(ddr.read(0, &mut page));
                assert!(ddr.write(4096, &page.map(|byte: u8| byte.wrapping_add(1))));
            }
        }
        self.transfer(queued, hal_qaic_abi::uapi::FROM_DEVICE, &ddr);
    }

    fn call(&self, program: &Program, ddr: &HostRange) {
        let layout = program.layout().unwrap();
        let mut bytes = vec![0; Dispatched::length(program.constants.into(), program.capacities.len())];
        assert!(ddr.read(layout.call, &mut bytes));
        let call = Dispatched::read(&bytes).unwrap();
        let parts: Vec<_> = layout
            .bindings
            .iter()
            .zip(&call.lengths)
            .map(|(&at, &length)| ddr.part(at, length).unwrap())
            .collect();
        let host = HostCall {
            function: program.function as usize,
            workgroup_size: call.workgroup_size,
            workgroups: call.workgroups,
            constants: &call.constants,
            bindings: &parts,
            concurrency: 1,
            local_memory: call.local_memory,
        };
        let outcome = match self.programs[&program.program].run(&host, 0..host.total(), 0) {
            Ok(()) => CallOutcome::Done,
            Err(failure) => {
                CallOutcome::Failed { code: failure.code() as u32, message: failure.message().to_owned() }
            }
        };
        let bytes: [u8; OUTCOME] = outcome.write();
        assert!(ddr.write(layout.outcome, &bytes));
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    fn manage(&mut self, asked: &[Ask<'_>], channels: usize) -> (Message, Result<(), Errno>) {
        let mut reply = Message::new();
        let mut result = Ok(());
        let mut say = |bytes: &[u8]| reply.answer(&Answer::Passthrough(bytes)).unwrap();
        let transferred = || match asked.get(1) {
            Some(Ask::DmaTransfer { address, size, .. }) => {
                // SAFETY: what a transfer names stays until the message is answered.
                unsafe { entries::<u8>(*address, u32::try_from(*size).unwrap()) }.to_vec()
            }
            other => panic!("{other:?}"),
        };
        match asked {
            [Ask::Status] => {
                let version = Version { major: 5, minor: 0 };
                reply.answer(&Answer::Status { version, status: 0, flags: 0 }).unwrap();
            }
            [Ask::Passthrough(bytes), ..] => match command::kind(bytes).unwrap() {
                kind::STATUS_REQUEST => {
                    let mut status = StatusResponse::default();
                    status.device.commands_major = COMMANDS.major.into();
                    status.device.metadata_major = METADATA.major.into();
                    status.device.hardware_version = (u32::from(HARDWARE.major) << 16).into();
                    say(status.as_bytes());
                }
                kind::LOAD_CONSTANTS_EX_REQUEST => {
                    say(LoadConstantsResponse { constants_id: 1.into(), ..Default::default() }.as_bytes());
                }
                kind::LOAD_CONSTANTS_PAYLOAD_REQUEST => {
                    self.constants.extend(transferred());
                    say(LoadConstantsResponse { constants_id: 1.into(), ..Default::default() }.as_bytes());
                }
                kind::LOAD_ELF_REQUEST => {
                    let request: command::LoadElfRequest = command::read(bytes).unwrap().0;
                    self.metadata_crc = request.metadata_crc.get();
                    let number = self.number();
                    self.images.insert(number, transferred().into());
                    say(LoadElfResponse { elf_id: number.into(), ..Default::default() }.as_bytes());
                }
                kind::ACTIVATE_REQUEST => {
                    let request: ActivateRequest = command::read(bytes).unwrap().0;
                    let Some(Ask::Activate { elements, .. }) = asked.get(1) else { panic!("no channel") };
                    let free = (0..channels).map(|number| u32::try_from(number).unwrap());
                    match free.into_iter().find(|number| !self.channels.contains_key(number)) {
                        Some(channel) => {
                            let answer = ActivateResponse {
                                activation_id: self.number().into(),
                                channel: channel.into(),
                                ddr_base: DDR.into(),
                                ..ActivateResponse::default()
                            };
                            let image = self.images[&request.elf_id.get()].clone();
                            let ddr = HostRange::allocate(ROOM as u64, 4096).unwrap();
                            let activation = answer.activation_id.get();
                            let made = Channel { activation, image, elements: *elements, ddr };
                            self.channels.insert(channel, made);
                            say(answer.as_bytes());
                            reply.answer(&Answer::Activated { status: 0, channel, options: 0 }).unwrap();
                        }
                        None => {
                            say(ActivateResponse { status: (-14).into(), ..Default::default() }.as_bytes());
                            result = Err(Errno::CANCELED);
                        }
                    }
                }
                kind::DEACTIVATE_REQUEST => {
                    let Some(Ask::Deactivate { channel }) = asked.get(1) else { panic!("no channel") };
                    match self.channels.remove(channel) {
                        Some(gone) => assert_ne!(gone.activation, 0),
                        None => return (reply, Err(Errno::PERM)),
                    }
                    self.held.retain(|(held, _)| held != channel);
                    for object in self.objects.values_mut() {
                        if object.sliced.take_if(|sliced| sliced.0 == *channel).is_some() {
                            object.queued = false;
                        }
                    }
                    say(DeactivateResponse::default().as_bytes());
                }
                kind::UNLOAD_ELF_REQUEST => {
                    let request: command::UnloadElfRequest = command::read(bytes).unwrap().0;
                    assert!(self.images.remove(&request.elf_id.get()).is_some());
                    say(UnloadElfResponse::default().as_bytes());
                }
                kind::UNLOAD_CONSTANTS_REQUEST => say(UnloadConstantsResponse::default().as_bytes()),
                other => panic!("command {other}, such as {}", ActivateRequest::NAME),
            },
            other => panic!("{other:?}"),
        }
        (reply, result)
    }
}

impl System for FakeCard {
    fn open(&self, _: &Path) -> Result<OwnedFd, Errno> {
        memfd_create("node", MemfdFlags::CLOEXEC)
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind")]
    fn ioctl(&self, _: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let call = Call::of_request(request).ok_or(Errno::INVAL)?;
        let mut state = self.state.lock();
        state.calls.push(call);
        if let Some(place) = state.faults.iter().position(|(failing, _)| *failing == call) {
            let (_, errno) = state.faults.remove(place);
            if errno == Errno::PIPE {
                state.crash();
            }
            if errno == Errno::CANCELED {
                // A refusal is answered, here with nothing.
                let manage: ManageMessage = take(argument);
                argument.copy_from_slice(ManageMessage { len: 0, ..manage }.as_bytes());
            }
            return Err(errno);
        }
        match call {
            Call::Version => {
                let version: drm::Version = take(argument);
                // SAFETY: the request says that there is room for 32 bytes.
                unsafe { entries::<u8>(version.name, 4) }.copy_from_slice(b"qaic");
                argument.copy_from_slice(drm::Version { name_length: 4, ..version }.as_bytes());
                Ok(())
            }
            Call::Manage => {
                let mut manage: ManageMessage = take(argument);
                // SAFETY: a message has room for the largest answer.
                let memory = unsafe { &mut *(manage.data as *mut [u8; MESSAGE_MAX]) };
                let bytes = memory[..manage.len as usize].to_vec();
                let (mut reply, result) = state.manage(&asks(&bytes, manage.count).unwrap(), self.channels);
                memory.copy_from_slice(reply.memory());
                manage.len = u32::try_from(reply.bytes().len()).unwrap();
                argument.copy_from_slice(manage.as_bytes());
                result
            }
            Call::CreateBo => {
                let create: CreateBo = take(argument);
                let handle = state.number();
                let view = HostRange::allocate(create.size.next_multiple_of(4096), 4096).unwrap();
                state.objects.insert(handle, Object { view, sliced: None, queued: false });
                argument.copy_from_slice(CreateBo { handle, ..create }.as_bytes());
                Ok(())
            }
            Call::MmapBo => {
                let map: MmapBo = take(argument);
                argument.copy_from_slice(MmapBo { offset: u64::from(map.handle) << 32, ..map }.as_bytes());
                Ok(())
            }
            Call::AttachSlice => state.attach(&take(argument), self.elements()),
            Call::DetachSlice => {
                let detach: DetachSlice = take(argument);
                let object = state.objects.get_mut(&detach.handle).ok_or(Errno::NOENT)?;
                if object.queued {
                    return Err(Errno::BUSY);
                }
                object.sliced.take().map(drop).ok_or(Errno::INVAL)
            }
            Call::Execute => {
                let execute: Execute = take(argument);
                // SAFETY: `hdr.count` entries are at `data` until the system call returns, as the backend's `kmd`
                // passes them.
                let queued = unsafe { entries::<ExecuteEntry>(execute.data, execute.hdr.count) };
                let queued: Vec<_> = queued.iter().map(|entry| (entry.handle, u64::MAX)).collect();
                state.execute(execute.hdr.dbc_id, &queued, self.elements())
            }
            Call::PartialExecute => {
                let execute: Execute = take(argument);
                // SAFETY: `hdr.count` entries are at `data` until the system call returns, as for `Execute`.
                let queued = unsafe { entries::<PartialExecuteEntry>(execute.data, execute.hdr.count) };
                let queued: Vec<_> = queued.iter().map(|entry| (entry.handle, entry.resize)).collect();
                state.execute(execute.hdr.dbc_id, &queued, self.elements())
            }
            Call::Wait => {
                let wait: Wait = take(argument);
                state.waits.push(wait.timeout);
                match state.objects.get(&wait.handle) {
                    _ if !state.channels.contains_key(&wait.dbc_id) => Err(Errno::PERM),
                    Some(object) if object.queued => Err(Errno::TIMEDOUT),
                    _ => Ok(()),
                }
            }
            Call::PerfStats => {
                let stats: PerfStats = take(argument);
                // SAFETY: `hdr.count` entries are at `data` until the system call returns, as for `Execute`.
                let entries = unsafe { entries::<PerfStatsEntry>(stats.data, stats.hdr.count.into()) };
                for entry in entries {
                    let is_sliced = state.objects.get(&entry.handle).is_some_and(|one| one.sliced.is_some());
                    (entry.submit_latency_us, entry.device_latency_us) = state.took;
                    entry.num_queue_element = if is_sliced { self.elements() } else { 0 };
                }
                Ok(())
            }
            Call::GemClose => {
                let close: GemClose = take(argument);
                state.objects.remove(&close.handle).map(drop).ok_or(Errno::INVAL)
            }
            other => panic!("{other:?}"),
        }
    }

    fn map(&self, _: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        let state = self.state.lock();
        let handle = u32::try_from(offset >> 32).unwrap();
        let object = state.objects.get(&handle).ok_or(Errno::INVAL)?;
        assert_eq!(object.view.length(), length as u64);
        Ok(object.view.clone())
    }
}
