// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! CUDA's driver library, behind safe functions. All unsafe code of this crate is in this folder.
//!
//! [`Library`] finds the library and its functions; [`Gpu`] is a card, [`Context`] what a device of ours has on one.
//! Almost every function of CUDA's works on the context that is current on the calling thread, so here each needs a
//! [`Current`], the proof that it is: [`Context::enter`] makes it current and remembers the one before, which belongs
//! to somebody else, and dropping the proof restores that.
//!
//! # Memory
//!
//! A [`Part`] is an address and a length inside memory that one of the owners in [`memory`] has. What is put on a
//! stream happens later: who submits keeps the owners until the stream has done it.
//!
//! # Errors
//!
//! A function that fails gives a [`CudaError`]. Objects are destroyed when they are dropped, and an error of that is
//! ignored: it has been reported before, or the context is lost, and goes as a whole.

pub(crate) mod context;
mod error;
pub(crate) mod gpu;
pub(crate) mod graph;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod stream;
mod table;

pub(crate) use context::{Context, ContextKind, Current};
pub(crate) use error::CudaError;
pub(crate) use gpu::{Attribute, Gpu};
pub(crate) use graph::Issue;
pub(crate) use memory::Part;

use error::NOT_INITIALIZED;
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use table::{Missing, Table};

/// The library of NVIDIA's driver.
const DEFAULT: &str = "libcuda.so.1";

/// The first release of NVIDIA's driver whose library has every function.
const OLDEST: &str = "515";

/// Calls a function of the table, inside an unsafe block.
macro_rules! call {
    ($library:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $library.check(stringify!($function), ($library.table.$function)($($argument),*))
    };
}
use call;

/// Finds an exported function of a library by its name; null if it has none.
pub type Symbols = fn(&CStr) -> *const c_void;

/// A library, for the rest of the process: its threads may run at any time.
pub(crate) struct Library {
    table: Table,
}

/// Libraries that were opened, by their names.
static LIBRARIES: Mutex<BTreeMap<String, Arc<Library>>> = Mutex::new(BTreeMap::new());

impl Library {
    /// The library of this name, or NVIDIA's.
    pub(crate) fn open(name: Option<&str>) -> Result<Arc<Self>, Failure> {
        let mut libraries = LIBRARIES.lock();
        let path = name.unwrap_or(DEFAULT);
        if let Some(library) = libraries.get(path) {
            return Ok(library.clone());
        }
        // SAFETY: loading runs the library's initialisers; whoever names a library wants that.
        let opened = unsafe { libloading::Library::new(path) };
        let loaded = opened.map_err(|error| not_found(name, &error.to_string()))?;
        let symbol = |name: &CStr| {
            // SAFETY: only the address is taken.
            let address =
                unsafe { loaded.get::<*const c_void>(name.to_bytes_with_nul()).ok()?.try_as_raw_ptr() };
            NonNull::new(address?)
        };
        // SAFETY: a library of this name has CUDA's functions under their names; it is never unloaded, below.
        let library = unsafe { Self::new(path, symbol) };
        std::mem::forget(loaded);
        let library = Arc::new(library?);
        libraries.insert(path.to_owned(), library.clone());
        Ok(library)
    }

    /// A library that is linked into the program.
    ///
    /// # Safety
    ///
    /// The addresses are those of functions of CUDA's driver interface.
    pub(crate) unsafe fn linked(name: &str, symbols: Symbols) -> Result<Arc<Self>, Failure> {
        let symbol = |name: &CStr| NonNull::new(symbols(name).cast_mut());
        // SAFETY: as the caller promises.
        unsafe { Self::new(name, symbol) }.map(Arc::new)
    }

    /// Looks the functions up, and initialises the library.
    ///
    /// # Safety
    ///
    /// `symbol` returns the address of the function that CUDA exports under this name, which stays valid.
    unsafe fn new(path: &str, symbol: impl Fn(&CStr) -> Option<NonNull<c_void>>) -> Result<Self, Failure> {
        type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> i32;
        let missing = Missing { function: c"cuGetProcAddress", version: 11_030 };
        let get = symbol(missing.function).ok_or_else(|| too_old(path, missing))?;
        // SAFETY: the function of this name has this signature.
        let get = unsafe { std::mem::transmute::<NonNull<c_void>, GetProcAddress>(get) };
        let last = Cell::new(0);
        let find = |name: &CStr, version| {
            let mut address = std::ptr::null_mut();
            // SAFETY: the name ends with a zero, and the result is ours. Without flags, a null stream is the
            // default stream, which nothing here uses.
            last.set(unsafe { get(name.as_ptr(), &raw mut address, version, 0) });
            NonNull::new(address).filter(|_| last.get() == 0)
        };
        // SAFETY: `cuGetProcAddress` returns the form of the version.
        let table = unsafe { Table::new(find) }.map_err(|missing| match last.get() {
            NOT_INITIALIZED => {
                let name = "CUDA_ERROR_NOT_INITIALIZED".to_owned();
                let error = CudaError { function: "cuGetProcAddress", number: NOT_INITIALIZED, name };
                error.failure(format_args!("opening {path}"))
            }
            _ => too_old(path, missing),
        })?;
        let library = Self { table };
        // SAFETY: the function takes a number.
        unsafe { call!(library, cuInit(0)) }
            .map_err(|error| error.failure(format_args!("opening {path}")))?;
        Ok(library)
    }

    /// The result of a function as CUDA returns it.
    #[inline]
    fn check(&self, function: &'static str, number: i32) -> Result<(), CudaError> {
        if number == 0 { Ok(()) } else { Err(self.error(function, number)) }
    }

    #[cold]
    fn error(&self, function: &'static str, number: i32) -> CudaError {
        let mut name = std::ptr::null();
        // SAFETY: the result is ours, and a text of the library's own.
        let name = unsafe {
            let known = (self.table.cuGetErrorName)(number, &raw mut name) == 0 && !name.is_null();
            known.then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        };
        CudaError { function, number, name: name.unwrap_or_else(|| "an error without a name".to_owned()) }
    }

    /// The version of CUDA that the library implements: 12090 is 12.9.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: the result is ours.
        unsafe { call!(self, cuDriverGetVersion(&raw mut version)) }?;
        Ok(version)
    }

    /// The cards.
    pub(crate) fn gpus(self: &Arc<Self>) -> Result<Vec<Gpu>, CudaError> {
        let mut count = 0;
        // SAFETY: the result is ours.
        unsafe { call!(self, cuDeviceGetCount(&raw mut count)) }?;
        (0..count).map(|number| Gpu::new(self.clone(), number)).collect()
    }
}

fn not_found(name: Option<&str>, error: &str) -> Failure {
    let message = match name {
        Some(name) => format!("library={name} cannot be loaded: {error}; name CUDA's driver library, a file"),
        None => format!(
            "NVIDIA's driver library cannot be loaded: {error}; install NVIDIA's driver, release {OLDEST} or newer, or \
             name the library with library=PATH"
        ),
    };
    Failure::new(Code::NotFound, message)
}

fn too_old(path: &str, missing: Missing) -> Failure {
    let message = format!(
        "{path} has no {missing}: it is too old or no library of CUDA's; install NVIDIA's driver, release {OLDEST} or \
         newer"
    );
    Failure::new(Code::Incompatible, message)
}
