// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables: loaded modules, and their functions with everything that a launch needs.

pub(crate) mod container;

use crate::library::module::{Function as CudaFunction, Module, Variable};
use crate::library::stream::Shape;
use crate::library::{Attribute, Context, CudaError, Current, Gpu};
use container::{Container, Export, FORMAT};
use hal_backend::container::{Name, ParseError};
use hal_backend::{Code, Dispatch, Failure, Function, LoadRequest, Loaded, Workgroups};
use std::ffi::CString;
use std::sync::Arc;

/// What a card can launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    grid: [u32; 3],
    block: [u32; 3],
    threads: u32,
    shared: u32,
}

impl Limits {
    pub(crate) fn of(gpu: &Gpu) -> Result<Self, CudaError> {
        let of = |attribute| gpu.attribute(attribute);
        Ok(Self {
            grid: [of(Attribute::MaxGridX)?, of(Attribute::MaxGridY)?, of(Attribute::MaxGridZ)?],
            block: [of(Attribute::MaxBlockX)?, of(Attribute::MaxBlockY)?, of(Attribute::MaxBlockZ)?],
            threads: of(Attribute::MaxThreads)?,
            shared: of(Attribute::MaxShared)?,
        })
    }
}

/// A loaded executable.
pub struct Executable {
    modules: Vec<Arc<Module>>,
    kernels: Vec<Kernel>,
}

impl std::fmt::Debug for Executable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executable").field("functions", &self.kernels.len()).finish_non_exhaustive()
    }
}

/// A function of it.
pub(crate) struct Kernel {
    pub(crate) function: CudaFunction,
    name: String,
    block: [u32; 3],
    /// Bytes of dynamic shared memory that it always has, and the most that a launch may have.
    shared: u32,
    most_shared: u32,
    pub(crate) bindings: usize,
    pub(crate) constants: usize,
    most_grid: [u32; 3],
}

impl Executable {
    /// Loads an executable.
    pub(crate) fn load(
        context: &Arc<Context>,
        limits: &Limits,
        request: &LoadRequest<'_>,
    ) -> Result<Loaded<Self>, Failure> {
        if !request.constants.is_empty() {
            let message = format!(
                "{} specialisation constants; a {FORMAT} executable takes none",
                request.constants.len()
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let container = Container::read(request.data).map_err(|error| error.failure(FORMAT))?;
        let current = context.enter().map_err(|error| error.failure("loading an executable"))?;
        let modules: Vec<_> = container
            .modules
            .iter()
            .enumerate()
            .map(|(number, text)| load_module(&current, number, text))
            .collect::<Result<_, _>>()?;
        let (mut kernels, mut functions) = (Vec::new(), Vec::new());
        for (number, export) in container.exports.iter().enumerate() {
            #[expect(clippy::indexing_slicing, reason = "the container's check has found the module")]
            let module = &modules[export.module];
            kernels.push(Kernel::load(&current, limits, module, number, export)?);
            functions.push(Function {
                name: export.name.to_owned(),
                bindings: u16::try_from(export.bindings).unwrap_or(u16::MAX),
                constants: u16::try_from(export.constants).unwrap_or(u16::MAX),
                workgroup_size: export.block,
            });
        }
        Ok(Loaded { executable: Self { modules, kernels }, functions })
    }

    /// The variable of this name, in the first module that has it.
    pub(crate) fn variable(&self, context: &Arc<Context>, name: &str) -> Result<Variable, Failure> {
        let none = || Failure::new(Code::NotFound, format!("the executable has no variable {}", Name(name)));
        let text = CString::new(name).map_err(|_| none())?;
        let failed = |error: CudaError| error.failure(format_args!("looking up variable {}", Name(name)));
        let current = context.enter().map_err(failed)?;
        let found = self.modules.iter().find_map(|module| module.variable(&current, &text).transpose());
        found.ok_or_else(none)?.map_err(failed)
    }

    /// The function with this number.
    pub(crate) fn kernel(&self, number: usize) -> Result<&Kernel, Failure> {
        self.kernels.get(number).ok_or_else(|| {
            let message = format!("there is no function {number}; the executable has {}", self.kernels.len());
            Failure::new(Code::OutOfRange, message)
        })
    }
}

fn load_module(current: &Current<'_>, number: usize, text: &str) -> Result<Arc<Module>, Failure> {
    let text = CString::new(text).map_err(|_| {
        let error = ParseError::invalid("a zero inside its PTX").within(format_args!("module {number}"));
        error.failure(FORMAT)
    })?;
    Module::load(current, &text).map_err(|(error, log)| {
        let said = if log.is_empty() { String::new() } else { format!(" ({log})") };
        error.failure(format_args!("{FORMAT} executable: module {number}{said}"))
    })
}

impl Kernel {
    fn load(
        current: &Current<'_>,
        limits: &Limits,
        module: &Arc<Module>,
        number: usize,
        export: &Export<'_>,
    ) -> Result<Self, Failure> {
        let place = format!("{FORMAT} executable: export {number} ({})", Name(export.kernel));
        let unfit = |message: String| Failure::new(Code::Incompatible, format!("{place}: {message}"));
        let name = CString::new(export.kernel)
            .map_err(|_| Failure::new(Code::InvalidArgument, format!("{place}: a zero inside its name")))?;
        let (function, most_threads, own) = module
            .function(current, &name)
            .and_then(|function| {
                let (threads, own) = (function.most_threads(current)?, function.shared(current)?);
                Ok((function, threads, own))
            })
            .map_err(|error| error.failure(&place))?;
        let most = limits.threads.min(most_threads);
        let threads = export.block.iter().fold(1_u64, |all, &size| all.saturating_mul(size.into()));
        let is_large = export.block.iter().zip(limits.block).any(|(&size, most)| size > most);
        if is_large || threads > most.into() {
            return Err(unfit(format!(
                "its blocks have {:?} threads, and the card takes {most} at most; compile for this card",
                export.block
            )));
        }
        let most_shared = limits.shared.saturating_sub(own);
        if export.shared > most_shared {
            return Err(unfit(format!(
                "its blocks have {} bytes of shared memory, and the card has {most_shared}; compile for this card",
                export.shared
            )));
        }
        function.allow_shared(current, most_shared).map_err(|error| error.failure(&place))?;
        Ok(Self {
            function,
            name: export.name.to_owned(),
            block: export.block,
            shared: export.shared,
            most_shared,
            bindings: export.bindings,
            constants: export.constants as usize,
            most_grid: limits.grid,
        })
    }

    /// The shape of a launch of so many blocks, with more shared memory; `None` for no blocks.
    pub(crate) fn shape(&self, grid: [u32; 3], more_shared: u32) -> Result<Option<Shape>, Failure> {
        let invalid = |message: String| {
            Failure::new(Code::InvalidArgument, format!("a dispatch of {}: {message}", Name(&self.name)))
        };
        if grid.contains(&0) {
            return Ok(None);
        }
        if grid.iter().zip(self.most_grid).any(|(&size, most)| size > most) {
            let message = format!("{grid:?} workgroups are too many; the card takes {:?}", self.most_grid);
            return Err(invalid(message));
        }
        let shared = self.shared.checked_add(more_shared).filter(|&all| all <= self.most_shared);
        let shared = shared.ok_or_else(|| {
            invalid(format!(
                "{more_shared} more bytes of local memory are too many; the card has {} for a workgroup, of which the \
                 function takes {}",
                self.most_shared, self.shared
            ))
        })?;
        Ok(Some(Shape { grid, block: self.block, shared }))
    }

    /// The words that a dispatch with so many bindings has in its constants: without any, all parameters.
    pub(crate) fn words(&self, bindings: usize) -> usize {
        self.constants + if bindings == 0 { 2 * self.bindings } else { 0 }
    }

    /// Checks a dispatch as far as that is possible before it runs.
    pub(crate) fn check<D>(&self, dispatch: &Dispatch<D>) -> Result<(), Failure>
    where
        D: hal_backend::Device,
    {
        let (constants, bindings) = (dispatch.constants.len(), dispatch.bindings.len());
        if constants < self.words(bindings) || (bindings < self.bindings && bindings > 0) {
            let message = format!(
                "a dispatch of {}: it takes {} constants and {} bindings, and got {constants} and {bindings}",
                Name(&self.name),
                self.constants,
                self.bindings
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let grid = match &dispatch.workgroups {
            Workgroups::Count(grid) => *grid,
            Workgroups::Indirect(_) => [1; 3],
        };
        self.shape(grid, dispatch.local_memory).map(drop)
    }
}
