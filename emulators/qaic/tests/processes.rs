// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A client that is another process: its memory is reached as a kernel reaches it, and its death releases all it has.
//!
//! The other process is this test again, with a role in its environment. Its requests are made here in its name, with
//! addresses of its own, as a supervisor of unmodified programs makes them.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be, and uses some of what is shared"
)]

#[path = "emulator/common.rs"]
mod common;

use common::{Buffers, LONG, Program, card, image, open, options, passthrough};
use emulator_core::{EmulatedMachine, Errno, Process, System};
use emulator_qaic::Emulator;
use emulator_qaic::programs::Call as Dispatched;
use hal_backend::{HostCall, HostRange};
use hal_kernel::ProgramHost;
use hal_qaic_abi::container::{Bases, Network, Plan};
use hal_qaic_abi::nnc::command::{
    self, ActivateRequest, ActivateResponse, LoadElfRequest, LoadElfResponse, activation,
};
use hal_qaic_abi::nnc::user::{Ask, Message};
use hal_qaic_abi::uapi::{
    AttachSlice, AttachSliceHeader, Call, CreateBo, Execute, ExecuteEntry, ExecuteHeader, ManageMessage,
    MmapBo, Wait,
};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const ROLE: &str = "EMULATOR_ROLE";

/// How much memory the other process has for what its requests point to.
const ROOM: usize = 1 << 16;

/// Another process.
struct Remote {
    process: Child,
    memory: File,
    /// The address of its memory.
    room: u64,
}

impl Remote {
    fn start(test: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ROLE, "1").stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let room = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("room ")?.parse().ok());
        let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", process.id()));
        Self { process, memory: memory.unwrap(), room: room.unwrap() }
    }

    /// The other process: it allocates memory, and lives until it is killed.
    fn live() -> ! {
        let room = vec![0_u8; ROOM].leak();
        println!("\nroom {}", room.as_ptr().addr());
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    /// Puts bytes into its room: their address.
    fn put(&self, at: u64, bytes: &[u8]) -> u64 {
        self.write(self.room + at, bytes).unwrap();
        self.room + at
    }
}

impl Process for Remote {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.memory.read_exact_at(bytes, address).map_err(|_| Errno::FAULT)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.memory.write_all_at(bytes, address).map_err(|_| Errno::FAULT)
    }

    fn pin(&self, _: u64, _: u64) -> Result<HostRange, Errno> {
        Err(Errno::FAULT)
    }

    fn descriptor(&self, _: i32) -> Result<OwnedFd, Errno> {
        Err(Errno::BADF)
    }

    fn install(&self, _: OwnedFd) -> Result<i32, Errno> {
        Err(Errno::MFILE)
    }

    fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A file that the other process has open.
struct Client {
    emulator: Arc<Emulator>,
    remote: Remote,
    file: Option<OwnedFd>,
}

impl Client {
    fn call<T: IntoBytes + FromBytes + Immutable + KnownLayout>(
        &self,
        call: Call,
        mut argument: T,
    ) -> (Result<(), Errno>, T) {
        let file = self.file.as_ref().unwrap().as_fd();
        let result = self.emulator.answer(&self.remote, file, call.request(), argument.as_mut_bytes());
        (result, argument)
    }

    /// A message in its memory: the answer.
    fn manage(&self, asks: &[Ask<'_>]) -> Vec<u8> {
        let mut message = Message::new();
        asks.iter().for_each(|ask| message.ask(ask).unwrap());
        let (len, count) = (message.bytes().len() as u32, message.count());
        let data = self.remote.put(0, message.memory());
        let (result, answer) = self.call(Call::Manage, ManageMessage { len, count, data });
        assert_eq!(result, Ok(()));
        let mut bytes = vec![0; answer.len as usize];
        self.remote.read(data, &mut bytes).unwrap();
        bytes
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario, from its beginning to its end")]
fn client_that_is_killed_in_the_middle_of_a_call_leaves_nothing_behind() {
    if std::env::var_os(ROLE).is_some() {
        Remote::live();
    }
    let other = card(options());
    let emulator = other.emulator.clone();
    let (begun, wait) = std::sync::mpsc::channel();
    let slow = Program(move |_: &HostCall<'_>, _: u64| {
        let _ = begun.send(());
        std::thread::sleep(Duration::from_millis(50));
    });
    let image = image(emulator.load(Arc::new(slow)), 0, &[4096]);
    let remote = Remote::start("client_that_is_killed_in_the_middle_of_a_call_leaves_nothing_behind");
    let file = emulator.open(Path::new("/dev/accel/accel0")).unwrap();
    let mut client = Client { emulator: emulator.clone(), remote, file: Some(file) };

    // The image is in its memory, and so is everything else that its requests point to.
    let address = client.remote.put(8192, &image);
    let size = image.len() as u64;
    let request = LoadElfRequest { tag: 100.into(), length: size.into(), ..Default::default() };
    let request = command::request(&request, &[]);
    let transfer = Ask::DmaTransfer { tag: 100, address, size };
    let loaded: LoadElfResponse = passthrough(&client.manage(&[Ask::Passthrough(&request), transfer]));
    let request = ActivateRequest {
        elf_id: loaded.elf_id,
        wants_channel: 1.into(),
        initial_state: activation::READY.into(),
        ..Default::default()
    };
    let request = command::request(&request, &[]);
    let rings = Ask::Activate { elements: 64, options: 0 };
    let active: ActivateResponse = passthrough(&client.manage(&[Ask::Passthrough(&request), rings]));
    let channel = active.channel.get();
    let bases = Bases { ddr: active.ddr_base.get(), multicast: active.multicast_base.get() };
    let plan = Plan::new(&Network::read(&image).unwrap()).unwrap();
    let mut handles = Vec::new();
    for group in &plan.groups {
        let (result, made) =
            client.call(Call::CreateBo, CreateBo { size: group.length, ..CreateBo::default() });
        assert_eq!(result, Ok(()));
        let slices = group.slices(bases, 0).unwrap();
        let data = client.remote.put(4096, slices.as_bytes());
        let count = slices.len() as u32;
        let hdr =
            AttachSliceHeader { count, dbc_id: channel, handle: made.handle, dir: group.dir(), size: 0 };
        assert_eq!(client.call(Call::AttachSlice, AttachSlice { hdr, data }).0, Ok(()));
        handles.push(made.handle);
    }
    let call =
        Dispatched { workgroups: [1; 3], workgroup_size: [1; 3], lengths: vec![4096], ..Default::default() };
    let (_, place) = client.call(Call::MmapBo, MmapBo { handle: handles[0], ..MmapBo::default() });
    let memory = emulator.map(client.file.as_ref().unwrap().as_fd(), 4096, place.offset).unwrap();
    assert!(memory.write(0, &call.write()));
    drop(memory);
    let entries: Vec<ExecuteEntry> = handles.iter().map(|&handle| ExecuteEntry { handle, dir: 0 }).collect();
    let data = client.remote.put(4096, entries.as_bytes());
    let hdr = ExecuteHeader { count: entries.len() as u32, dbc_id: channel };
    assert_eq!(client.call(Call::Execute, Execute { hdr, data }).0, Ok(()));
    wait.recv().unwrap();

    // It dies, and the kernel closes its files.
    let before = emulator.counts(0);
    assert_eq!((before.users, before.channels, before.activations), (2, 1, 1));
    client.remote.process.kill().unwrap();
    client.remote.process.wait().unwrap();
    emulator.close(client.file.take().unwrap());
    let after = emulator.counts(0);
    let left = [after.objects, after.mapped, after.channels, after.waits, after.activations, after.loaded];
    assert_eq!((after.users, left, after.allocated_bytes), (1, [0; 6], 0), "{after:?}");
    // The memory of its requests is gone, and others do not notice.
    assert_eq!(client.remote.read(address, &mut [0; 8]), Err(Errno::FAULT));
    let again = open(&emulator, 0);
    let buffers = Buffers::new(&again, again.activate(&image, 64), &image);
    assert!(buffers.memory[0].write(0, &call.write()));
    again.execute(buffers.active.channel, &buffers.handles).unwrap();
    let last = *buffers.handles.last().unwrap();
    assert_eq!(again.wait(buffers.active.channel, last, LONG), Ok(()));
    let stranger = Wait { handle: last, timeout: 1, dbc_id: buffers.active.channel, pad: 0 };
    assert_eq!(other.call(Call::Wait, &stranger).0, Err(Errno::PERM));
}
