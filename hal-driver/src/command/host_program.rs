// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's host executables, loaded by IREE's own loaders and run a few workgroups at a time.
//!
//! The loaders (embedded ELF, VMVX bytecode, system libraries) come with IREE's runtime. Their executables are
//! plain functions over binding pointers, so any device with threads and memory can run them: the mock device and
//! the compute engines of emulated cards do, through [`HostProgram`].

use crate::ffi::object::{HostAllocator, Retained};
use crate::ffi::status::{Result, check, invalid, text, view};
use hal_backend::{Function, HostCall, HostLoader, HostProgram, Inferred, LoadRequest, MOST_LAYERS};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::Arc;

/// The most loaders that IREE may have.
const CAPACITY: usize = 8;

/// The most bytes of a format's name.
const NAME: usize = 128;

/// The most workgroup-local memory of a call: as much as a function can request itself. Every worker thread has its
/// own.
const MOST_LOCAL_MEMORY: u32 = 1 << 28;

/// The loaders of this process, created with the first device and never dropped.
static SHARED: Mutex<Option<Arc<Loaders>>> = Mutex::new(None);

pub(crate) struct Loaders {
    loaders: Vec<Retained<sys::iree_hal_executable_loader_t>>,
    _plugins: Retained<sys::iree_hal_executable_plugin_manager_t>,
}

impl Loaders {
    /// The loaders that all devices share.
    ///
    /// The bytecode loader creates an instance of IREE's virtual machine. Each new instance clears the process-wide
    /// type names of the machine before it writes them again, and a program that runs on another thread may see
    /// them missing. So the loader is created once and lives until the process ends.
    pub(crate) fn shared() -> Result<Arc<Self>> {
        let mut shared = SHARED.lock();
        if let Some(loaders) = &*shared {
            return Ok(loaders.clone());
        }
        // SAFETY: the allocator of the process outlives everything in it.
        let loaders = Self::new(unsafe { HostAllocator::new(sys::iree_allocator_system()) })?;
        Ok(shared.insert(loaders).clone())
    }

    fn new(allocator: HostAllocator) -> Result<Arc<Self>> {
        let mut plugins = std::ptr::null_mut();
        let mut loaders = [std::ptr::null_mut(); CAPACITY];
        let mut count = 0;
        // SAFETY: everything is created by IREE's own functions and adopted once.
        unsafe {
            check(sys::iree_hal_executable_plugin_manager_create_from_flags(
                allocator.raw(),
                &raw mut plugins,
            ))?;
            let plugins = Retained::adopt(plugins).ok_or_else(|| invalid("there is no plugin manager"))?;
            check(sys::iree_hal_create_all_available_executable_loaders(
                plugins.get(),
                loaders.len(),
                &raw mut count,
                loaders.as_mut_ptr(),
                allocator.raw(),
            ))?;
            let loaders =
                loaders.into_iter().take(count).filter_map(|loader| Retained::adopt(loader)).collect();
            Ok(Arc::new(Self { loaders, _plugins: plugins }))
        }
    }

    fn loader(&self, format: &str) -> Option<&Retained<sys::iree_hal_executable_loader_t>> {
        // SAFETY: the loader is retained; the name is borrowed for the call.
        self.loaders.iter().find(|loader| unsafe {
            sys::iree_hal_executable_loader_query_support(loader.get(), 0, view(format))
        })
    }

    /// The format of an executable, among those that devices run.
    ///
    /// # Safety
    ///
    /// The bytes are valid for the call, and are an executable if their length is zero, for "not known".
    pub(crate) unsafe fn infer_format(
        &self,
        caching_mode: sys::iree_hal_executable_caching_mode_t,
        data: sys::iree_const_byte_span_t,
        runs: impl Fn(&str) -> bool,
    ) -> Result<Inferred> {
        for loader in &self.loaders {
            let (mut name, mut length) = ([0_u8; NAME], data.data_length);
            // SAFETY: the bytes are valid, as the caller promises; the loader is retained, and the name has as many
            // bytes as it says.
            let inferred = unsafe {
                check(sys::iree_hal_executable_loader_infer_format(
                    loader.get(),
                    caching_mode,
                    data,
                    name.len(),
                    name.as_mut_ptr().cast(),
                    &raw mut length,
                ))
            };
            match inferred {
                Err(failure) if failure.code() == Code::Incompatible => continue,
                Err(failure) => return Err(failure),
                Ok(()) => {}
            }
            // A loader may claim bytes of any format. A format that no device runs is not reported.
            let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok());
            if let Some(format) = name.filter(|name| runs(name)) {
                return Ok(Inferred { format: format.to_owned(), length: length as u64 });
            }
        }
        Err(Failure::new(Code::Incompatible, "the bytes are no executable that this device knows"))
    }
}

impl HostLoader for Loaders {
    fn supports(&self, format: &str) -> bool {
        self.loader(format).is_some()
    }

    fn load(&self, request: &LoadRequest<'_>, workers: usize) -> Result<Arc<dyn HostProgram>> {
        let format = request.format;
        let Some(loader) = self.loader(format) else {
            return Err(Failure::new(
                Code::NotFound,
                format!("no host loader takes executables of format {format:?}"),
            ));
        };
        let params = sys::iree_hal_executable_params_t {
            queue_affinity: u64::MAX,
            caching_mode: 0,
            executable_format: view(format),
            executable_data: sys::iree_const_byte_span_t {
                data: request.data.as_ptr(),
                data_length: request.data.len(),
            },
            constant_count: request.constants.len(),
            constants: request.constants.as_ptr(),
        };
        let mut executable = std::ptr::null_mut();
        // SAFETY: the loader is retained; it copies what it keeps, since nothing says that it may alias.
        let executable = unsafe {
            check(sys::iree_hal_executable_loader_try_load(
                loader.get(),
                &raw const params,
                workers,
                &raw mut executable,
            ))?;
            Retained::adopt(executable)
        };
        let executable =
            executable.ok_or_else(|| invalid("the loader reported success but returned no executable"))?;
        Ok(Arc::new(Program::new(executable, workers)?))
    }
}

/// A loaded host executable.
struct Program {
    executable: Retained<sys::iree_hal_executable_t>,
    functions: Vec<Function>,
    /// The workgroup-local memory of each function, in bytes.
    local_memory: Vec<u32>,
    /// One lock for each worker: a loader may keep state by worker number.
    workers: Box<[Mutex<()>]>,
}

thread_local! {
    /// This thread's workgroup-local memory, as large as the largest call so far.
    static SCRATCH: Cell<Vec<u128>> = const { Cell::new(Vec::new()) };
}

/// Calls `run` with this thread's workgroup-local memory. A thread that is exiting may have none any more, and gets
/// some for the call.
fn with_scratch<R>(run: impl FnOnce(&mut Vec<u128>) -> R) -> R {
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    let result = run(&mut scratch);
    let _ = SCRATCH.try_with(|place| place.set(scratch));
    result
}

/// Refuses more workgroup-local memory than a call may have.
pub(crate) fn check_local_memory(bytes: u32) -> Result {
    if bytes <= MOST_LOCAL_MEMORY {
        return Ok(());
    }
    let message = format!(
        "a dispatch asks for {bytes} bytes of workgroup-local memory; it can have at most {MOST_LOCAL_MEMORY}"
    );
    Err(Failure::new(Code::ResourceExhausted, message))
}

/// The workgroup-local memory of a call: the function's own, which its format limits, and the dispatch's, which was
/// checked when it was recorded. Memory that was accepted is never refused at run time.
fn local_memory(own: u32, asked: u32) -> Result<u32> {
    check_local_memory(asked)?;
    Ok(own.saturating_add(asked))
}

/// Grows a thread's workgroup-local memory to this size; fails if there is no memory.
fn grow(scratch: &mut Vec<u128>, bytes: u32) -> Result {
    let words = (bytes as usize).div_ceil(size_of::<u128>());
    let more = words.saturating_sub(scratch.len());
    scratch.try_reserve_exact(more).map_err(|_| {
        let message = format!("there is no memory for {bytes} bytes of workgroup-local memory");
        Failure::new(Code::ResourceExhausted, message)
    })?;
    scratch.resize(scratch.len() + more, 0);
    Ok(())
}

impl Program {
    fn new(executable: Retained<sys::iree_hal_executable_t>, workers: usize) -> Result<Self> {
        let (mut functions, mut local_memory) = (Vec::new(), Vec::new());
        // SAFETY: a loader of IREE's local executables has made the executable; `executable` keeps it alive, by the
        // invariant of `Retained`, and with it its attributes.
        unsafe {
            let local = executable.get().cast::<sys::iree_hal_local_executable_t>();
            let attributes = (*local).dispatch_attrs;
            for index in 0..sys::iree_hal_executable_function_count(executable.get()) {
                let number =
                    u32::try_from(index).map_err(|_| invalid("the executable has too many functions"))?;
                let mut info = sys::iree_hal_executable_function_info_t::default();
                let function = sys::iree_hal_executable_function_from_index(number);
                check(sys::iree_hal_executable_function_info(executable.get(), function, &raw mut info))?;
                functions.push(Function {
                    name: text(info.name).to_owned(),
                    bindings: info.binding_count,
                    constants: info.constant_count,
                    workgroup_size: info.workgroup_size,
                });
                let pages =
                    if attributes.is_null() { 0 } else { (*attributes.add(index)).local_memory_pages };
                local_memory
                    .push(u32::from(pages) * sys::IREE_HAL_EXECUTABLE_WORKGROUP_LOCAL_MEMORY_PAGE_SIZE);
            }
        }
        let workers = (0..workers).map(|_| Mutex::default()).collect();
        Ok(Self { executable, functions, local_memory, workers })
    }

    /// The local memory that a function requests itself.
    #[expect(
        clippy::indexing_slicing,
        reason = "there is one for each function, and the function was checked"
    )]
    fn own_memory(&self, function: usize) -> u32 {
        self.local_memory[function]
    }

    /// Refuses a call with so many bindings and constants that compiled code would take for valid.
    fn check(&self, call: &HostCall<'_>, workgroups: &Range<u64>, given: (usize, usize)) -> Result {
        let Some(function) = self.functions.get(call.function) else {
            return Err(invalid(format!("the executable has no function number {}", call.function)));
        };
        let takes = (usize::from(function.bindings), usize::from(function.constants));
        if given.0 < takes.0 || given.1 < takes.1 {
            let message = format!(
                "function {:?} takes {} bindings and {} constants, and got {} and {}",
                function.name, takes.0, takes.1, given.0, given.1
            );
            return Err(invalid(message));
        }
        if workgroups.end > call.total() {
            let message = format!("there is no workgroup {} of {}", workgroups.end, call.total());
            return Err(invalid(message));
        }
        Ok(())
    }
}

/// The coordinates of a workgroup in the grid, from its number.
#[expect(
    clippy::expect_used,
    reason = "the number is below the product of the counts, and each count fits where it goes"
)]
fn place_of(number: u64, [count_x, count_y, _]: [u32; 3]) -> (u32, u32, u16) {
    let (row, plane) = (u64::from(count_x), u64::from(count_x) * u64::from(count_y));
    let within = number % plane;
    let (x, y) = (u32::try_from(within % row), u32::try_from(within / row));
    (
        x.expect("less than a count"),
        y.expect("less than a count"),
        u16::try_from(number / plane).expect("a dispatch is at most 65,535 workgroups deep"),
    )
}

impl HostProgram for Program {
    fn functions(&self) -> &[Function] {
        &self.functions
    }

    fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, worker: usize) -> Result {
        self.check(call, &workgroups, (call.bindings.len(), call.constants.len()))?;
        let bindings = call.bindings.iter().map(|range| (range.address().cast(), range.length())).unzip();
        self.run_bound(call, bindings, call.constants, workgroups, worker)
    }

    fn run_with_addresses(&self, call: &HostCall<'_>, workgroups: Range<u64>, worker: usize) -> Result {
        let takes = self.functions.get(call.function).map_or(0, |function| usize::from(function.bindings));
        let (addresses, constants) = call.constants.split_at_checked(2 * takes).ok_or_else(|| {
            let words = call.constants.len();
            invalid(format!("a call of function {} has {words} words for {takes} addresses", call.function))
        })?;
        self.check(call, &workgroups, (takes, constants.len()))?;
        let bindings = addresses.as_chunks().0.iter().map(|&[low, high]| {
            let address = usize::try_from(u64::from(high) << 32 | u64::from(low)).unwrap_or(0);
            // The length is the program's alone to know.
            (std::ptr::with_exposed_provenance_mut(address), usize::MAX - address)
        });
        self.run_bound(call, bindings.unzip(), constants, workgroups, worker)
    }
}

/// The addresses and the lengths of bindings.
type BoundMemory = (SmallVec<[*mut c_void; 8]>, SmallVec<[usize; 8]>);

impl Program {
    /// Runs a call that was checked.
    fn run_bound(
        &self,
        call: &HostCall<'_>,
        (pointers, lengths): BoundMemory,
        constants: &[u32],
        workgroups: Range<u64>,
        worker: usize,
    ) -> Result {
        let Some(alone) = self.workers.get(worker) else {
            let count = self.workers.len();
            return Err(invalid(format!("there is no worker {worker}: the program was loaded for {count}")));
        };
        let local_memory = local_memory(self.own_memory(call.function), call.local_memory)?;
        let [count_x, count_y, count_z] = call.workgroups;
        let [size_x, size_y, size_z] = call.workgroup_size;
        let layers = |number: u32| {
            u16::try_from(number).map_err(|_| {
                invalid(format!("{number} workgroups in z, and a host executable has at most {MOST_LAYERS}"))
            })
        };
        let state = sys::iree_hal_executable_dispatch_state_v0_t {
            workgroup_size_x: size_x,
            workgroup_size_y: size_y,
            workgroup_size_z: layers(size_z)?,
            constant_count: u16::try_from(constants.len()).map_err(|_| invalid("too many constants"))?,
            workgroup_count_x: count_x,
            workgroup_count_y: count_y,
            workgroup_count_z: layers(count_z)?,
            max_concurrency: u8::try_from(call.concurrency).unwrap_or(u8::MAX),
            binding_count: u8::try_from(pointers.len()).map_err(|_| invalid("too many bindings"))?,
            constants: constants.as_ptr(),
            binding_ptrs: pointers.as_ptr(),
            binding_lengths: lengths.as_ptr(),
        };
        let _alone = alone.lock();
        with_scratch(|scratch| {
            grow(scratch, local_memory)?;
            let mut place = sys::iree_hal_executable_workgroup_state_v0_t {
                processor_id: u32::try_from(worker).unwrap_or(u32::MAX),
                local_memory: if local_memory > 0 {
                    scratch.as_mut_ptr().cast()
                } else {
                    std::ptr::null_mut()
                },
                local_memory_size: local_memory,
                ..Default::default()
            };
            for number in workgroups {
                (place.workgroup_id_x, place.workgroup_id_y, place.workgroup_id_z) =
                    place_of(number, call.workgroups);
                // SAFETY: a local executable, as in `new`, which `self` keeps alive, by the invariant of
                // `Retained`; the state describes bindings that the call keeps, as many as the function takes; no
                // other thread has the worker's number, which is below the number that the loader got.
                unsafe {
                    check(sys::iree_hal_local_executable_issue_call(
                        self.executable.get().cast(),
                        call.function,
                        &raw const state,
                        &raw const place,
                        place.processor_id,
                    ))?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An executable that names another one can request memory without an IREE program having done so.
    #[test]
    fn workgroup_local_memory_grows_up_to_its_limit() {
        let mut scratch = Vec::new();
        for (bytes, words) in [(0, 0), (1, 1), (4096, 256), (16, 256)] {
            grow(&mut scratch, bytes).unwrap();
            assert_eq!(scratch.len(), words, "{bytes}");
        }
        let own = u32::from(u16::MAX) * sys::IREE_HAL_EXECUTABLE_WORKGROUP_LOCAL_MEMORY_PAGE_SIZE;
        for most in [0, own] {
            assert_eq!(local_memory(most, MOST_LOCAL_MEMORY).unwrap(), most + MOST_LOCAL_MEMORY);
            for asked in [MOST_LOCAL_MEMORY + 1, u32::MAX] {
                let refused = local_memory(most, asked).unwrap_err();
                assert_eq!(refused.code(), Code::ResourceExhausted);
            }
        }
    }
}
