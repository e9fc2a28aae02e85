// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The library, opened by its file, and its functions by their names.

use std::ffi::{CString, c_char, c_void};

/// A kernel that adds its third parameter to words; one that runs for a while; one that reads an address.
pub(crate) const TEXT: &str = "
.version 7.6
.target sm_80
.address_size 64
.visible .global .align 4 .u32 factor = 3;
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
.visible .entry read(.param .u64 from)
{
.reg .b32 %r<4>;
.reg .b64 %d<4>;
ld.param.u64 %d1, [from];
ld.global.u32 %r1, [%d1];
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

/// The library.
pub(crate) struct Library(libloading::Library);

/// Calls a function of the library, by the name that is exported, and returns its result.
macro_rules! call {
    ($library:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let address = $library.address(stringify!($name));
        // SAFETY: the arguments are those that CUDA's header gives this function.
        unsafe { call!(@function address, $($argument),*) }
    }};
    (@function $address:expr, $($argument:expr),*) => {{
        // Every argument is a whole number of 64 bits or a pointer in a register, as far as the callee can tell.
        let function: unsafe extern "C" fn($(call!(@type $argument)),*) -> i32 = std::mem::transmute($address);
        function($(crate::library::Argument::bits($argument)),*)
    }};
    (@type $argument:expr) => { u64 };
}
pub(crate) use call;

/// What can be passed: the callee reads as many bits of it as it wants.
pub(crate) trait Argument {
    fn bits(self) -> u64;
}

macro_rules! arguments {
    ($($type:ty),*) => { $(impl Argument for $type {
        fn bits(self) -> u64 { self as u64 }
    })* };
}
arguments!(i32, u32, u64, usize, i64, u8);

impl<T> Argument for *const T {
    fn bits(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl<T> Argument for *mut T {
    fn bits(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl<T> Argument for &mut T {
    fn bits(self) -> u64 {
        std::ptr::from_mut(self).bits()
    }
}

impl<T> Argument for &T {
    fn bits(self) -> u64 {
        std::ptr::from_ref(self).bits()
    }
}

impl Argument for extern "C" fn(*mut c_void) {
    fn bits(self) -> u64 {
        (self as *const c_void).bits()
    }
}

impl Library {
    pub(crate) fn open() -> Self {
        let file = std::env::current_exe().expect("this program").with_file_name("libemulator_cuda.so");
        // SAFETY: the library was built with this test; loading it runs nothing that asks for more.
        Self(unsafe { libloading::Library::new(&file) }.unwrap_or_else(|error| panic!("{error}")))
    }

    pub(crate) fn address(&self, name: &str) -> *const c_void {
        // SAFETY: only the address is taken.
        let symbol = unsafe { self.0.get::<*const c_void>(name.as_bytes()) };
        let symbol = symbol.unwrap_or_else(|error| panic!("{name}: {error}"));
        // SAFETY: a symbol of a function is its address.
        unsafe { symbol.into_raw().into_raw() }
    }

    pub(crate) fn control(&self, text: &str) {
        let text = CString::new(text).expect("a text");
        assert_eq!(call!(self, emulator_cuda_control(text.as_ptr())), 0, "{text:?}");
    }

    /// How often a rule was broken or a function called.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let text = CString::new(name).expect("a text");
        let address = self.address("emulator_cuda_count");
        // SAFETY: its declaration.
        unsafe {
            let function: unsafe extern "C" fn(*const c_char) -> u64 = std::mem::transmute(address);
            function(text.as_ptr())
        }
    }

    /// All counts.
    pub(crate) fn counts(&self) -> String {
        let address = self.address("emulator_cuda_counts");
        let mut text = vec![0; 1 << 16];
        // SAFETY: its declaration; the buffer is as long as is said.
        let length = unsafe {
            let function: unsafe extern "C" fn(*mut u8, usize) -> usize = std::mem::transmute(address);
            function(text.as_mut_ptr(), text.len())
        };
        text.truncate(length);
        String::from_utf8(text).expect("a text")
    }

    /// Initialises, and makes a context.
    pub(crate) fn begin(&self) -> u64 {
        assert_eq!(call!(self, cuInit(0)), 0);
        let mut context = 0_u64;
        assert_eq!(call!(self, cuCtxCreate_v2(&mut context, 0, 0)), 0);
        context
    }

    pub(crate) fn stream(&self) -> u64 {
        let mut stream = 0_u64;
        assert_eq!(call!(self, cuStreamCreate(&mut stream, 1)), 0);
        stream
    }

    pub(crate) fn event(&self) -> u64 {
        let mut event = 0_u64;
        assert_eq!(call!(self, cuEventCreate(&mut event, 2)), 0);
        event
    }

    pub(crate) fn allocate(&self, size: usize) -> u64 {
        let mut address = 0_u64;
        assert_eq!(call!(self, cuMemAlloc_v2(&mut address, size)), 0);
        address
    }

    pub(crate) fn pinned(&self, size: usize) -> *mut u64 {
        let mut address = std::ptr::null_mut::<u64>();
        assert_eq!(call!(self, cuMemHostAlloc(&mut address, size, 0)), 0);
        address
    }

    pub(crate) fn module(&self) -> u64 {
        let text = CString::new(TEXT).expect("a text");
        let mut module = 0_u64;
        assert_eq!(call!(self, cuModuleLoadData(&mut module, text.as_ptr())), 0);
        module
    }

    pub(crate) fn function(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("a text");
        let mut function = 0_u64;
        let module = self.module();
        assert_eq!(call!(self, cuModuleGetFunction(&mut function, module, name.as_ptr())), 0);
        function
    }

    /// Launches with parameters that are given as words.
    pub(crate) fn launch(
        &self,
        function: u64,
        blocks: u32,
        threads: u32,
        stream: u64,
        parameters: &[u64],
    ) -> i32 {
        let pointers: Vec<*const u64> = parameters.iter().map(std::ptr::from_ref).collect();
        let null = std::ptr::null::<u64>();
        call!(self, cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers.as_ptr(), null))
    }

    /// Words of the device.
    pub(crate) fn words(&self, from: u64, count: usize) -> Vec<u32> {
        let mut words = vec![0_u32; count];
        assert_eq!(call!(self, cuMemcpyDtoH_v2(words.as_mut_ptr(), from, count * 4)), 0);
        words
    }
}
