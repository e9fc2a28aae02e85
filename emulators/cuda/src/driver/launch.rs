// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Modules, functions and launches.

use super::Driver;
use super::memory::{Allocation, KernelView, Kind, Life, Wanted};
use super::report::Rule;
use super::status::{Error, Outcome};
use crate::ptx;
use crate::simt::{Launch, Trap, run};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The most threads of a block.
pub const MOST_THREADS: u32 = 1024;
/// The most threads of a block in each direction.
pub const MOST_BLOCK: [u32; 3] = [1024, 1024, 64];
/// The most blocks in each direction.
pub const MOST_GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];
/// Bytes of shared memory of a block without being asked for more.
pub const SHARED: u32 = 48 << 10;
/// Bytes of shared memory of a block, if they were asked for.
pub const MOST_SHARED: u32 = 163 << 10;

/// A module.
pub struct Module {
    /// Its context.
    pub context: u64,
    /// What its text declares.
    pub parsed: ptx::Module,
    /// Its variables.
    pub globals: Vec<Arc<Allocation>>,
    /// The handles of its functions, by their names.
    pub functions: Mutex<HashMap<String, u64>>,
}

/// A kernel of a module.
pub struct Function {
    /// Its module.
    pub module: Arc<Module>,
    /// The handle of that.
    pub module_handle: u64,
    /// Which kernel.
    pub index: usize,
    /// Dynamic shared memory that launches may have.
    pub most_dynamic: Mutex<u32>,
}

impl Function {
    /// The kernel.
    pub fn kernel(&self) -> &ptx::Kernel {
        static NONE: std::sync::LazyLock<ptx::Kernel> = std::sync::LazyLock::new(ptx::Kernel::default);
        self.module.parsed.kernels.get(self.index).unwrap_or(&NONE)
    }

    /// Dynamic shared memory that a launch may have unless it was asked for more.
    pub fn default_dynamic(&self) -> u32 {
        SHARED.saturating_sub(self.kernel().shared_bytes)
    }
}

/// A launch that is ready.
pub struct Kernel {
    /// Its function.
    pub function: Arc<Function>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of each.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared: u32,
    /// The parameters' bytes.
    pub parameters: Vec<u8>,
}

impl Kernel {
    /// Checks a launch before anything is done.
    ///
    /// # Errors
    /// What CUDA answers.
    pub fn check(&self, driver: &Driver) -> Outcome {
        let kernel = self.function.kernel();
        let bad = |error: Error, text: String| {
            driver.report.broken(Rule::BadLaunch, || format!("{}: {text}", kernel.name));
            Err(error)
        };
        let (grid, block) = (self.grid, self.block);
        if grid.iter().zip(MOST_GRID).any(|(size, most)| !(1..=most).contains(size)) {
            return bad(Error::INVALID_VALUE, format!("a grid of {grid:?} blocks"));
        }
        let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
        if block.iter().zip(MOST_BLOCK).any(|(size, most)| !(1..=most).contains(size))
            || threads > u64::from(MOST_THREADS)
        {
            return bad(Error::INVALID_VALUE, format!("blocks of {block:?} threads"));
        }
        let allowed = kernel.max_block.map(|it| it.iter().map(|&size| u64::from(size)).product::<u64>());
        if allowed.is_some_and(|most| threads > most) || kernel.exact_block.is_some_and(|it| it != block) {
            return bad(Error::INVALID_VALUE, format!("blocks of {block:?} threads, not as declared"));
        }
        let most = *self.function.most_dynamic.lock();
        if self.shared > most {
            return bad(
                Error::INVALID_VALUE,
                format!("{} bytes of dynamic shared memory, of {most}", self.shared),
            );
        }
        Ok(())
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.function.kernel().name
    }

    pub(super) fn run(
        &self,
        driver: &Driver,
        seed: u64,
        budget: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<u64, Trap> {
        let globals: Vec<u64> = self.function.module.globals.iter().map(|it| it.address).collect();
        let launch = Launch {
            kernel: self.function.kernel(),
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.shared,
            parameters: &self.parameters,
            globals: &globals,
            seed,
            budget,
            stop,
        };
        run(&launch, &KernelView { space: &driver.memory, report: &driver.report })
    }
}

impl Driver {
    /// Loads a text; what is refused is said.
    pub(crate) fn load(&self, context: u64, device: i32, text: &str) -> Result<Module, (Error, String)> {
        let parsed = ptx::Module::parse(text).map_err(|refusal| {
            self.report.broken(Rule::BadModule, || refusal.to_string());
            let error = if refusal.is_newer { Error::UNSUPPORTED_PTX_VERSION } else { Error::INVALID_PTX };
            (error, refusal.to_string())
        })?;
        let mut globals = Vec::new();
        for global in &parsed.globals {
            let size = (global.bytes.len() as u64).max(1);
            let wanted = Wanted { size, kind: Kind::Global, context, device, life: Life::Live };
            let memory = self.memory.allocate(&wanted).map_err(|error| (error, String::new()))?;
            let to = memory.host(memory.address);
            // SAFETY: new memory of that size, which nobody else knows.
            unsafe { std::ptr::copy_nonoverlapping(global.bytes.as_ptr(), to, global.bytes.len()) };
            globals.push(memory);
        }
        Ok(Module { context, parsed, globals, functions: Mutex::default() })
    }
}
