// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The Python classes of modules and functions.

use crate::convert::{self, Declared};
use crate::device::Device;
use crate::future::{Future, RunningCall, ThreadedCall, single};
use crate::runtime::{self, ArgumentKind, Element, Program, StartedCall, Value};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{
    PyAttributeError, PyBufferError, PyKeyError, PyOverflowError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;

/// A compiled module with its state, loaded for one device or several.
///
/// `source` is the path of a `.vmfb` or its bytes. `device` is a `Device`, a URI, or a list of either for a module
/// that was compiled for several. `parameters` gives the files of the module's parameters by scope: `{"model":
/// "model.safetensors"}`.
///
/// Functions are attributes: `module.main(x)`. A module takes one call at a time, and calls of other threads wait;
/// load it again for concurrent calls.
#[pyclass(frozen, module = "iree_hal")]
pub(crate) struct Module {
    program: Arc<Program>,
    functions: Vec<NamedFunction>,
    devices: Vec<Py<Device>>,
}

/// A name, and its functions: a call with fences is preferred for `submit`.
#[derive(Clone)]
struct NamedFunction {
    plain: Option<runtime::Function>,
    fenced: Option<runtime::Function>,
    name: String,
}

impl Module {
    fn find(&self, name: &str) -> Option<Function> {
        let entry = self.functions.iter().find(|entry| entry.name == name)?;
        let chosen = entry.plain.as_ref().or(entry.fenced.as_ref())?;
        Some(Function {
            declared: declared(&chosen.declaration),
            plain: chosen.clone(),
            fenced: entry.fenced.clone(),
            program: self.program.clone(),
        })
    }
}

#[pymethods]
impl Module {
    #[new]
    #[pyo3(signature = (source, device, *, parameters=None))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        device: &Bound<'_, PyAny>,
        parameters: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        runtime::check_not_forked()?;
        let bytes = bytes(source)?;
        let devices = devices(device, 0)?;
        let opened: Vec<_> = devices.iter().map(|device| device.get().inner().clone()).collect();
        let parameters = parameters.map(files).transpose()?.unwrap_or_default();
        let program = py.detach(|| Program::load(&bytes, &opened, &parameters))?;
        let functions = entries(program.functions()?);
        Ok(Self { program: Arc::new(program), functions, devices })
    }

    /// The module's own name.
    #[getter]
    fn name(&self) -> String {
        self.program.name()
    }

    /// The names of its functions.
    #[getter]
    fn functions(&self) -> Vec<&str> {
        self.functions.iter().map(|entry| entry.name.as_str()).collect()
    }

    /// The devices that it was loaded for.
    #[getter]
    fn devices(&self, py: Python<'_>) -> Vec<Py<Device>> {
        self.devices.iter().map(|device| device.clone_ref(py)).collect()
    }

    fn __getitem__(&self, name: &str) -> PyResult<Function> {
        self.find(name).ok_or_else(|| PyKeyError::new_err(self.unknown(name)))
    }

    fn __getattr__(&self, name: &str) -> PyResult<Function> {
        self.find(name).ok_or_else(|| PyAttributeError::new_err(self.unknown(name)))
    }

    fn __dir__(&self) -> Vec<&str> {
        [self.functions(), vec!["devices", "functions", "name"]].concat()
    }

    fn __repr__(&self) -> String {
        format!("<iree_hal.Module {}: {}>", self.name(), self.functions().join(", "))
    }
}

impl Module {
    fn unknown(&self, name: &str) -> String {
        format!("the module {} has no function {name}; it has {}", self.name(), self.functions().join(", "))
    }
}

/// A function of a module.
#[pyclass(frozen, module = "iree_hal")]
pub(crate) struct Function {
    plain: runtime::Function,
    fenced: Option<runtime::Function>,
    declared: Vec<Declared>,
    program: Arc<Program>,
}

/// An argument: a value, or the result of a call that is under way.
enum Argument {
    There(Value),
    Running(RunningCall),
}

impl Function {
    fn arguments(&self, objects: &Bound<'_, PyTuple>) -> PyResult<Vec<Argument>> {
        let kinds = &self.plain.arguments;
        if objects.len() != kinds.len() {
            return Err(PyTypeError::new_err(format!(
                "{} takes {} arguments and got {}{}",
                self.plain.name,
                kinds.len(),
                objects.len(),
                if self.plain.declaration.is_empty() {
                    String::new()
                } else {
                    format!(": {}", self.plain.declaration)
                }
            )));
        }
        let declared = self.declared.iter().copied().chain(std::iter::repeat(Declared::Unknown));
        objects
            .iter()
            .zip(kinds)
            .zip(declared)
            .enumerate()
            .map(|(number, ((object, kind), declared))| {
                self.argument(&object, *kind, declared)
                    .map_err(|error| self.about_argument(objects.py(), number, error))
            })
            .collect()
    }

    /// An error of an argument's type or value, with the argument's name. Other errors are the program's own.
    fn about_argument(&self, py: Python<'_>, number: usize, error: PyErr) -> PyErr {
        let kind = error.get_type(py);
        let is_known = kind.is(py.get_type::<PyTypeError>())
            || kind.is(py.get_type::<PyValueError>())
            || kind.is(py.get_type::<PyOverflowError>())
            || kind.is(py.get_type::<PyBufferError>());
        if !is_known {
            return error;
        }
        let text = format!("{}: {}", self.name_of_argument(number), error.value(py));
        let named = PyErr::from_type(kind, text);
        named.set_cause(py, Some(error));
        named
    }

    /// The name of an argument for messages, as `argument %input0 of square`; its number if the module does not
    /// name it.
    fn name_of_argument(&self, number: usize) -> String {
        let name = &self.plain.name;
        match argument_texts(&self.plain.declaration).nth(number).and_then(|text| text.split_once(':')) {
            Some((argument, _)) => format!("argument %{argument} of {name}"),
            None => format!("argument {} of {name}", number + 1),
        }
    }

    fn argument(
        &self,
        object: &Bound<'_, PyAny>,
        kind: ArgumentKind,
        declared: Declared,
    ) -> PyResult<Argument> {
        if let Ok(future) = object.cast::<Future>() {
            return Ok(Argument::Running(future.get().work().clone()));
        }
        convert::argument(object, kind, declared, self.program.device(), 0).map(Argument::There)
    }
}

#[pymethods]
impl Function {
    /// Calls the function and waits for its results, without the interpreter lock.
    #[pyo3(signature = (*arguments))]
    fn __call__(&self, py: Python<'_>, arguments: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        runtime::check_not_forked()?;
        let arguments = self.arguments(arguments)?;
        let results = py.detach(|| self.program.call(&self.plain, &wait_for_values(arguments)?))?;
        convert::results(py, &results, &self.program)
    }

    /// Begins a call and returns a `Future`. Arguments may be futures.
    ///
    /// A function that was compiled with `--iree-execution-model=async-external` returns before the device has
    /// begun; any other runs on a thread, which waits.
    #[pyo3(signature = (*arguments))]
    fn submit(&self, py: Python<'_>, arguments: &Bound<'_, PyTuple>) -> PyResult<Future> {
        runtime::check_not_forked()?;
        let arguments = self.arguments(arguments)?;
        let program = self.program.clone();
        let threaded = |argument: &Argument| matches!(argument, Argument::Running(RunningCall::Threaded(_)));
        let work = match &self.fenced {
            Some(function) if !arguments.iter().any(threaded) => {
                let started = py.detach(|| {
                    let (values, after) = chain(arguments)?;
                    self.program.begin(function, &values, &after)
                })?;
                RunningCall::Begun(Arc::new(started))
            }
            _ => {
                let (kept, function) = (program.clone(), self.plain.clone());
                RunningCall::Threaded(ThreadedCall::run(move || {
                    kept.call(&function, &wait_for_values(arguments)?)
                })?)
            }
        };
        Ok(Future::new(work, program))
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.plain.name
    }

    /// The declaration, if the module has one.
    #[getter]
    fn declaration(&self) -> &str {
        &self.plain.declaration
    }

    /// True if `submit` returns before the device has begun, without a thread.
    #[getter]
    fn is_asynchronous(&self) -> bool {
        self.fenced.is_some()
    }

    fn __repr__(&self) -> String {
        let name = if self.plain.declaration.is_empty() { &self.plain.name } else { &self.plain.declaration };
        format!("<iree_hal.Function {name}>")
    }
}

/// The values of arguments, once all are ready.
fn wait_for_values(arguments: Vec<Argument>) -> runtime::Result<Vec<Value>> {
    arguments
        .into_iter()
        .map(|argument| match argument {
            Argument::There(value) => Ok(value),
            Argument::Running(work) => single(&work.wait(None)?),
        })
        .collect()
}

/// The values of arguments, and the calls that fill them.
fn chain(arguments: Vec<Argument>) -> runtime::Result<(Vec<Value>, Vec<Arc<StartedCall>>)> {
    let mut after = Vec::new();
    let values = arguments
        .into_iter()
        .map(|argument| match argument {
            Argument::There(value) => Ok(value),
            Argument::Running(RunningCall::Begun(started)) => {
                let value = single(&started.results)?;
                after.push(started);
                Ok(value)
            }
            Argument::Running(work) => single(&work.wait(None)?),
        })
        .collect::<runtime::Result<_>>()?;
    Ok((values, after))
}

/// One entry for each name.
fn entries(functions: Vec<runtime::Function>) -> Vec<NamedFunction> {
    let mut entries: Vec<NamedFunction> = Vec::new();
    for function in functions {
        let at = entries.iter().position(|entry| entry.name == function.name).unwrap_or_else(|| {
            entries.push(NamedFunction { plain: None, fenced: None, name: function.name.clone() });
            entries.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "it was just found or added")]
        let entry = &mut entries[at];
        let place = if function.is_asynchronous { &mut entry.fenced } else { &mut entry.plain };
        *place = Some(function);
    }
    entries
}

/// The bytes of a module, from a file or as they are.
fn bytes(source: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(path) = source.extract::<PathBuf>() {
        return Ok(source.py().detach(|| runtime::read(&path))?);
    }
    let buffer: PyBuffer<u8> = PyBuffer::get(source)
        .map_err(|_| PyTypeError::new_err("a module is loaded from the path of a file or from its bytes"))?;
    buffer.to_vec(source.py())
}

/// Devices; those that are given as URIs are opened.
fn devices(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Vec<Py<Device>>> {
    convert::check_depth(depth)?;
    if let Ok(device) = object.cast::<Device>() {
        return Ok(vec![device.clone().unbind()]);
    }
    if let Ok(uri) = object.extract::<String>() {
        return Ok(vec![Py::new(object.py(), Device::open(object.py(), &uri)?)?]);
    }
    let mut found = Vec::new();
    for one in object
        .try_iter()
        .map_err(|_| PyTypeError::new_err("a device is a Device, a URI, or a list of them"))?
    {
        found.extend(devices(&one?, depth + 1)?);
    }
    Ok(found)
}

/// Parameter files by scope; a scope may have several.
fn files(parameters: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String)>> {
    let wrong = |_| {
        PyTypeError::new_err(
            "parameters map a scope to a path or a list of paths: {\"model\": \"model.safetensors\"}",
        )
    };
    let mut files = Vec::new();
    for (scope, paths) in parameters {
        let scope: String = scope.extract().map_err(wrong)?;
        let paths: Vec<PathBuf> = match paths.extract::<PathBuf>() {
            Ok(path) => vec![path],
            Err(_) => paths.extract().map_err(wrong)?,
        };
        for path in paths {
            files.push((scope.clone(), path.to_string_lossy().into_owned()));
        }
    }
    Ok(files)
}

/// The declared types of the arguments in `sync func @f(%x: tensor<4xf32>, …)`.
fn declared(declaration: &str) -> Vec<Declared> {
    argument_texts(declaration).map(|argument| one(argument).unwrap_or_default()).collect()
}

/// The text of each argument of a declaration, as `x: tensor<4xf32>, `.
fn argument_texts(declaration: &str) -> impl Iterator<Item = &str> {
    let rest = declaration.split_once('(').map_or("", |(_, rest)| rest);
    let arguments = rest.split(" -> ").next().unwrap_or(rest);
    arguments.split('%').skip(1)
}

/// The declared type of one argument, such as `x: tensor<?x4xf32>`.
fn one(argument: &str) -> Option<Declared> {
    if argument.contains("!util.list<") {
        return Some(Declared::List);
    }
    let (_, inside) = argument.split_once("tensor<")?;
    let inside = inside.rsplit_once('>')?.0.split(',').next()?;
    // Each dimension ends with an x; the x of `complex` ends none.
    let kind = match inside.find("complex") {
        Some(at) => inside.get(at..)?,
        None => inside.rsplit('x').next()?,
    };
    Element::declared(kind).map(Declared::Array)
}
