// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The library and its counts, devices on it, kernels, and commands.

use crate::container::{self, Export};
use emulator_testbench::{List, Testbench};
use hal_backend::{
    Code, Command, Device, Dispatch, Driver, Failure, HostLoader, HostProgram, HostRange, LoadRequest,
    MemoryRequest, Pattern, Place, Span, Workgroups,
};
use hal_cuda::{Executable, Memory, Nvidia, NvidiaDevice};
use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The way in which streams wait, for the process.
pub(crate) const WAITS: &str = "HAL_CUDA_WAITS";

/// Adds its second constant to as many words as its first says; waits a while; reads an address; copies words.
pub(crate) const TEXT: &str = "
.version 7.0
.target sm_60
.address_size 64
.visible .entry add(.param .u64 to, .param .u32 count, .param .u32 amount)
.maxntid 64, 1, 1
{
.reg .pred %p<4>;
.reg .b32 %r<9>;
.reg .b64 %d<4>;
ld.param.u64 %d1, [to];
ld.param.u32 %r1, [count];
ld.param.u32 %r2, [amount];
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mov.u32 %r5, %tid.x;
mad.lo.s32 %r6, %r3, %r4, %r5;
setp.ge.u32 %p1, %r6, %r1;
@%p1 bra $end;
mul.wide.u32 %d2, %r6, 4;
add.s64 %d3, %d1, %d2;
ld.global.u32 %r7, [%d3];
add.s32 %r8, %r7, %r2;
st.global.u32 [%d3], %r8;
$end:
ret;
}
.visible .entry busy(.param .u32 rounds)
{
.reg .pred %p<4>;
.reg .b32 %r<4>;
ld.param.u32 %r1, [rounds];
$loop:
sub.s32 %r1, %r1, 1;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra $loop;
ret;
}
";

pub(crate) const ADD: usize = 0;
pub(crate) const BUSY: usize = 1;

/// No host executables.
struct NoLoader;

impl HostLoader for NoLoader {
    fn supports(&self, _: &str) -> bool {
        false
    }

    fn load(&self, _: &LoadRequest<'_>, _: usize) -> Result<Arc<dyn HostProgram>, Failure> {
        Err(Failure::new(Code::Unimplemented, "no host executables"))
    }
}

/// The library in software, opened by its file.
pub(crate) struct Rig {
    library: libloading::Library,
    path: String,
    allowed: Mutex<BTreeSet<&'static str>>,
}

impl Rig {
    pub(crate) fn open() -> Self {
        let file = std::env::current_exe().unwrap().with_file_name("libemulator_cuda.so");
        // SAFETY: the library was built with this test; loading it runs nothing that asks for more.
        let library = unsafe { libloading::Library::new(&file) }.unwrap_or_else(|error| panic!("{error}"));
        Self { library, path: file.to_str().unwrap().to_owned(), allowed: Mutex::default() }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The URI of a card, with more parameters.
    pub(crate) fn uri(&self, path: &str, more: &str) -> String {
        let waits = std::env::var(WAITS).unwrap_or_else(|_| "events".to_owned());
        format!("nvidia://{path}?library={}&waits={waits}{more}", self.path)
    }

    pub(crate) fn device(&self, more: &str) -> NvidiaDevice {
        Nvidia::<hal_cuda::NoEmulation>::open_uri(&self.uri("0", more)).unwrap()
    }

    pub(crate) fn bench(&self, more: &str) -> Bench {
        Bench::new(self.device(more))
    }

    pub(crate) fn control(&self, text: &str) {
        let text = CString::new(text).unwrap();
        // SAFETY: its declaration.
        let result = unsafe {
            let function =
                self.library.get::<unsafe extern "C" fn(*const c_char) -> i32>(b"emulator_cuda_control");
            function.unwrap()(text.as_ptr())
        };
        assert_eq!(result, 0, "{text:?}");
    }

    /// How often a rule was broken or a function called.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let text = CString::new(name).unwrap();
        // SAFETY: its declaration.
        unsafe {
            let function =
                self.library.get::<unsafe extern "C" fn(*const c_char) -> u64>(b"emulator_cuda_count");
            function.unwrap()(text.as_ptr())
        }
    }

    /// How many objects the library has, once no other thread drops any.
    pub(crate) fn settled(&self) -> u64 {
        let mut before = self.count("live");
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let after = self.count("live");
            if after == before {
                return after;
            }
            before = after;
        }
    }

    /// Waits until the library has so many objects: the last reference to one may be another thread's.
    pub(crate) fn await_live(&self, wanted: u64, place: &str) {
        let limit = Instant::now() + Duration::from_secs(60);
        while self.count("live") != wanted {
            assert!(Instant::now() < limit, "{place}: {} objects, of {wanted}", self.count("live"));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// All counts.
    pub(crate) fn counts(&self) -> String {
        let mut text = vec![0; 1 << 16];
        // SAFETY: its declaration; the buffer is as long as is said.
        let length = unsafe {
            let function =
                self.library.get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(b"emulator_cuda_counts");
            function.unwrap()(text.as_mut_ptr(), text.len())
        };
        text.truncate(length);
        String::from_utf8(text).unwrap()
    }

    /// The function of the library with this name and no argument but a result.
    pub(crate) fn current_context(&self) -> u64 {
        let mut context = 0;
        // SAFETY: its declaration.
        unsafe {
            let function = self.library.get::<unsafe extern "C" fn(*mut u64) -> i32>(b"cuCtxGetCurrent");
            function.unwrap()(&raw mut context);
        }
        context
    }

    /// Makes a context of the program's own, which is current on this thread then.
    pub(crate) fn push_context(&self) -> u64 {
        let mut context = 0;
        // SAFETY: their declarations.
        unsafe {
            let init = self.library.get::<unsafe extern "C" fn(u32) -> i32>(b"cuInit").unwrap();
            let create =
                self.library.get::<unsafe extern "C" fn(*mut u64, u32, i32) -> i32>(b"cuCtxCreate_v2");
            assert_eq!((init(0), create.unwrap()(&raw mut context, 0, 0)), (0, 0));
        }
        context
    }

    /// Ends a context of the program's own; below it nothing is current.
    pub(crate) fn pop_context(&self, context: u64) {
        // SAFETY: its declaration.
        unsafe {
            let destroy = self.library.get::<unsafe extern "C" fn(u64) -> i32>(b"cuCtxDestroy_v2").unwrap();
            assert_eq!(destroy(context), 0);
        }
        assert_eq!(self.current_context(), 0);
    }

    /// A rule that the case breaks on purpose.
    pub(crate) fn allow(&self, rule: &'static str) {
        self.allowed.lock().unwrap().insert(rule);
    }

    /// Checks that no rule of CUDA's was broken.
    pub(crate) fn assert_clean(&self) {
        let counts = self.counts();
        let broken = counts.lines().filter_map(|line| line.strip_prefix("broken "));
        let allowed = self.allowed.lock().unwrap();
        let wrong: Vec<_> =
            broken.filter(|line| !allowed.iter().any(|rule| line.starts_with(rule))).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// A device below an engine, with its kernels.
pub(crate) struct Bench {
    pub(crate) bench: Testbench<NvidiaDevice>,
    kernels: Arc<Executable>,
}

pub(crate) fn load(device: &NvidiaDevice, data: &[u8]) -> Result<Arc<Executable>, Failure> {
    let request = LoadRequest { format: "PTXE", data, constants: &[] };
    device.load(&request, &NoLoader).map(|loaded| Arc::new(loaded.executable))
}

pub(crate) fn kernels() -> Vec<u8> {
    container::build(&[TEXT], &[Export::new("add", 64, 1, 2), Export::new("busy", 1, 0, 1)])
}

impl Bench {
    pub(crate) fn new(device: NvidiaDevice) -> Self {
        let kernels = load(&device, &kernels()).unwrap();
        Self::with(device, kernels)
    }

    pub(crate) fn with(device: NvidiaDevice, kernels: Arc<Executable>) -> Self {
        Self { bench: Testbench::new(Arc::new(device)), kernels }
    }

    pub(crate) fn device(&self) -> &NvidiaDevice {
        self.bench.device()
    }

    /// Memory of a heap.
    pub(crate) fn memory(&self, heap: usize, length: u64) -> Arc<Memory> {
        Arc::new(self.device().allocate(&MemoryRequest::new(heap, length)).unwrap())
    }

    /// A dispatch that adds to words; one workgroup has 64 of them.
    pub(crate) fn add(
        &self,
        target: &Part,
        amount: u32,
        workgroups: Workgroups<NvidiaDevice>,
    ) -> Command<NvidiaDevice> {
        let count = u32::try_from(target.length / 4).unwrap();
        self.dispatch(ADD, workgroups, &[count, amount], vec![target.clone()])
    }

    pub(crate) fn dispatch(
        &self,
        function: usize,
        workgroups: Workgroups<NvidiaDevice>,
        constants: &[u32],
        bindings: Vec<Part>,
    ) -> Command<NvidiaDevice> {
        Command::Dispatch(Box::new(Dispatch {
            executable: self.kernels.clone(),
            function,
            workgroup_size: [1; 3],
            workgroups,
            local_memory: 0,
            constants: constants.iter().copied().collect(),
            bindings: bindings.into_iter().collect(),
        }))
    }

    /// The bytes of a part, read through a queue.
    pub(crate) fn read(&self, queue: usize, part: &Part) -> Vec<u8> {
        let pinned = self.memory(1, part.length);
        let copy = Command::Copy { source: part.clone(), target: whole(&pinned, part.length) };
        self.bench.run(queue, copy).unwrap();
        bytes(&self.device().host_view(&pinned).unwrap())
    }

    pub(crate) fn words(&self, queue: usize, part: &Part) -> Vec<u32> {
        self.read(queue, part).chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    pub(crate) fn run(&self, queue: usize, command: impl Into<List<NvidiaDevice>>) -> Result<(), Failure> {
        self.bench.run(queue, command)
    }
}

pub(crate) type Part = Span<NvidiaDevice>;

pub(crate) fn span(memory: &Arc<Memory>, offset: u64, length: u64) -> Part {
    Span { place: Place::Device(memory.clone(), offset), length }
}

pub(crate) fn whole(memory: &Arc<Memory>, length: u64) -> Part {
    span(memory, 0, length)
}

pub(crate) fn host(range: &HostRange) -> Part {
    Span { place: Place::Host(range.clone()), length: range.length() }
}

/// Host memory with some bytes.
pub(crate) fn host_bytes(bytes: &[u8]) -> HostRange {
    let range = HostRange::allocate(bytes.len() as u64, 64).unwrap();
    assert!(range.write(0, bytes));
    range
}

pub(crate) fn bytes(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}

pub(crate) fn update(bytes: &[u8], target: Part) -> Command<NvidiaDevice> {
    Command::Update { source: host_bytes(bytes), target }
}

pub(crate) fn fill(pattern: &[u8], target: Part) -> Command<NvidiaDevice> {
    Command::Fill { target, pattern: Pattern::new(pattern).unwrap() }
}

/// Pseudo-random numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = hal_backend::splitmix64(self.0);
        self.0 % limit
    }
}
