// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Modules and their functions.

use super::memory::Part;
use super::table::{Address, Handle};
use super::{Context, CudaError, Current, call};
use std::ffi::{CStr, c_void};
use std::sync::Arc;

/// A module.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: Handle,
}

impl Module {
    /// Loads PTX. The compiler's log comes with an error.
    pub(crate) fn load(current: &Current<'_>, text: &CStr) -> Result<Arc<Self>, (CudaError, String)> {
        const ERROR_LOG: i32 = 5;
        const ERROR_LOG_SIZE: i32 = 6;
        let mut log = vec![0_u8; 8192];
        let options = [ERROR_LOG, ERROR_LOG_SIZE];
        // A size is passed in place of a pointer to it, and CUDA writes over it how many bytes the log has.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(log.len())];
        let mut handle = 0;
        // SAFETY: the text ends with a zero; there are as many options as values, which may be written, and the log is
        // as long as is said.
        let loaded = unsafe {
            call!(
                current.library(),
                cuModuleLoadDataEx(
                    &raw mut handle,
                    text.as_ptr().cast(),
                    2,
                    options.as_ptr(),
                    values.as_mut_ptr()
                )
            )
        };
        match loaded {
            Ok(()) => Ok(Arc::new(Self { context: current.context().clone(), handle })),
            Err(error) => {
                let said = CStr::from_bytes_until_nul(&log).unwrap_or_default();
                Err((error, said.to_string_lossy().trim().to_owned()))
            }
        }
    }

    /// A function of it. Reading its attributes loads it: the first launch would wait for the whole card otherwise.
    pub(crate) fn function(
        self: &Arc<Self>,
        current: &Current<'_>,
        name: &CStr,
    ) -> Result<Function, CudaError> {
        let mut handle = 0;
        // SAFETY: the module exists, the name ends with a zero, and the result is ours.
        unsafe {
            call!(current.library(), cuModuleGetFunction(&raw mut handle, self.handle, name.as_ptr()))
        }?;
        Ok(Function { _module: self.clone(), handle })
    }

    /// The memory of a variable of it; `None` if it has none of that name.
    pub(crate) fn variable(
        self: &Arc<Self>,
        current: &Current<'_>,
        name: &CStr,
    ) -> Result<Option<Variable>, CudaError> {
        let (mut address, mut length) = (0, 0);
        // SAFETY: the module exists, the name ends with a zero, and the results are ours.
        let found = unsafe {
            call!(
                current.library(),
                cuModuleGetGlobal(&raw mut address, &raw mut length, self.handle, name.as_ptr())
            )
        };
        match found {
            Ok(()) => Ok(Some(Variable { _module: self.clone(), address, length })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: unloaded once, when no function of it is left.
            let _ = unsafe { call!(current.library(), cuModuleUnload(self.handle)) };
        }
    }
}

/// A variable of a module.
pub(crate) struct Variable {
    /// Keeps the variable.
    _module: Arc<Module>,
    address: Address,
    length: usize,
}

impl Variable {
    pub(crate) fn whole(&self) -> Part {
        Part::of_variable(self.address, self.length)
    }
}

/// A function of a module.
#[derive(Clone)]
pub(crate) struct Function {
    /// Keeps the function.
    _module: Arc<Module>,
    handle: Handle,
}

impl Function {
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    fn attribute(&self, current: &Current<'_>, attribute: i32) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: the function exists as long as its module, and the result is ours.
        unsafe { call!(current.library(), cuFuncGetAttribute(&raw mut value, attribute, self.handle)) }?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// The most threads of a block, by the registers that it needs.
    pub(crate) fn most_threads(&self, current: &Current<'_>) -> Result<u32, CudaError> {
        self.attribute(current, 0)
    }

    /// Bytes of its own shared memory.
    pub(crate) fn shared(&self, current: &Current<'_>) -> Result<u32, CudaError> {
        self.attribute(current, 1)
    }

    /// Allows launches with so much dynamic shared memory.
    pub(crate) fn allow_shared(&self, current: &Current<'_>, bytes: u32) -> Result<(), CudaError> {
        const MAX_DYNAMIC_SHARED: i32 = 8;
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function exists as long as its module.
        unsafe { call!(current.library(), cuFuncSetAttribute(self.handle, MAX_DYNAMIC_SHARED, bytes)) }
    }
}
