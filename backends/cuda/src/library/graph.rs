// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Graphs, and what streams and graphs have in common: operations are put on both.
//!
//! A graph is made node by node, and not by capturing a stream: a captured stream is a chain, while a job's commands
//! are ordered by its barriers only, so that the card may run what is between two barriers at once.

use super::memory::Part;
use super::module::Function;
use super::stream::{Element, Shape, Stream, packed};
use super::table::{CopyNode, CopySide, Handle, KernelNode, SetNode};
use super::{Context, CudaError, Current, call};
use std::sync::Arc;

/// Where operations are put: on a stream, or into a graph.
pub(crate) trait Issue {
    /// Operations of a stream that one operation here is.
    const OPERATIONS: u64;

    /// Launches a function with its parameters in one buffer.
    fn launch(
        &mut self,
        current: &Current<'_>,
        function: &Function,
        shape: &Shape,
        parameters: &[u8],
    ) -> Result<(), CudaError>;

    /// Copies as many bytes as the shorter of both has; they must not overlap.
    fn copy(&mut self, current: &Current<'_>, to: Part, from: Part) -> Result<(), CudaError>;

    /// Repeats a value, over whole ones; the part begins at a multiple of the value's size.
    fn set(&mut self, current: &Current<'_>, to: Part, element: Element) -> Result<(), CudaError>;
}

impl Issue for &Stream {
    const OPERATIONS: u64 = 1;

    fn launch(
        &mut self,
        current: &Current<'_>,
        function: &Function,
        shape: &Shape,
        parameters: &[u8],
    ) -> Result<(), CudaError> {
        Stream::launch(self, current, function, shape, parameters)
    }

    fn copy(&mut self, current: &Current<'_>, to: Part, from: Part) -> Result<(), CudaError> {
        Stream::copy(self, current, to, from)
    }

    fn set(&mut self, current: &Current<'_>, to: Part, element: Element) -> Result<(), CudaError> {
        Stream::set(self, current, to, element)
    }
}

/// A graph that is being made.
pub(crate) struct GraphBuilder {
    context: Arc<Context>,
    handle: Handle,
    /// The nodes that the next ones are behind, and those that are not behind each other since the last barrier.
    before: Vec<Handle>,
    beside: Vec<Handle>,
    functions: Vec<Function>,
}

impl GraphBuilder {
    pub(crate) fn new(current: &Current<'_>) -> Result<Self, CudaError> {
        let mut handle = 0;
        // SAFETY: the result is ours.
        unsafe { call!(current.library(), cuGraphCreate(&raw mut handle, 0)) }?;
        Ok(Self {
            context: current.context().clone(),
            handle,
            before: Vec::new(),
            beside: Vec::new(),
            functions: Vec::new(),
        })
    }

    /// Orders what follows behind everything so far.
    pub(crate) fn barrier(&mut self, current: &Current<'_>) -> Result<(), CudaError> {
        match self.beside.len() {
            0 => {}
            1 => self.before = std::mem::take(&mut self.beside),
            count => {
                let mut node = 0;
                // SAFETY: the graph exists, and has as many nodes as the list; the result is ours.
                unsafe {
                    call!(
                        current.library(),
                        cuGraphAddEmptyNode(&raw mut node, self.handle, self.beside.as_ptr(), count)
                    )
                }?;
                self.beside.clear();
                self.before = vec![node];
            }
        }
        Ok(())
    }

    /// Adds a node behind the last barrier: `call` makes it, of the nodes that it is behind.
    fn add(
        &mut self,
        call: impl FnOnce(*mut Handle, *const Handle, usize) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let mut node = 0;
        call(&raw mut node, self.before.as_ptr(), self.before.len())?;
        self.beside.push(node);
        Ok(())
    }

    /// The graph, ready to be launched.
    pub(crate) fn finish(mut self, current: &Current<'_>) -> Result<Graph, CudaError> {
        let mut handle = 0;
        let (no_node, no_log) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the graph exists, and the result is ours; without a log, its size is zero.
        unsafe {
            call!(current.library(), cuGraphInstantiate(&raw mut handle, self.handle, no_node, no_log, 0))
        }?;
        let functions = std::mem::take(&mut self.functions);
        Ok(Graph { context: self.context.clone(), handle, _functions: functions })
    }
}

impl Drop for GraphBuilder {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: destroyed once; a graph that was made of it goes on.
            let _ = unsafe { call!(current.library(), cuGraphDestroy(self.handle)) };
        }
    }
}

impl Issue for GraphBuilder {
    const OPERATIONS: u64 = 0;

    fn launch(
        &mut self,
        current: &Current<'_>,
        function: &Function,
        shape: &Shape,
        parameters: &[u8],
    ) -> Result<(), CudaError> {
        let length = parameters.len();
        let extra = packed(parameters, &length);
        let node = KernelNode {
            function: function.handle(),
            grid: shape.grid,
            block: shape.block,
            shared: shape.shared,
            parameters: std::ptr::null(),
            extra: extra.as_ptr(),
        };
        let graph = self.handle;
        // SAFETY: the graph and its nodes exist, and so does the function as long as the graph, which keeps it. The
        // parameters are copied before the call returns. What the function does with them is the program's.
        self.add(|made, before, count| unsafe {
            call!(current.library(), cuGraphAddKernelNode(made, graph, before, count, &raw const node))
        })?;
        self.functions.push(function.clone());
        Ok(())
    }

    fn copy(&mut self, current: &Current<'_>, to: Part, from: Part) -> Result<(), CudaError> {
        const UNIFIED: u32 = 4;
        let side = |part: Part| CopySide { kind: UNIFIED, address: part.address(), ..CopySide::default() };
        let width = to.length().min(from.length());
        let node = CopyNode { from: side(from), to: side(to), width, height: 1, depth: 1 };
        let (graph, context) = (self.handle, current.context().handle());
        // SAFETY: the graph and its nodes exist; both parts have so many bytes. Whoever launches the graph keeps them.
        self.add(|made, before, count| unsafe {
            call!(
                current.library(),
                cuGraphAddMemcpyNode(made, graph, before, count, &raw const node, context)
            )
        })
    }

    fn set(&mut self, current: &Current<'_>, to: Part, element: Element) -> Result<(), CudaError> {
        let (value, size) = match element {
            Element::One(value) => (value.into(), 1),
            Element::Two(value) => (value.into(), 2),
            Element::Four(value) => (value, 4_u32),
        };
        let width = to.length() / size as usize;
        let node = SetNode { to: to.address(), pitch: 0, value, size, width, height: 1 };
        let (graph, context) = (self.handle, current.context().handle());
        // SAFETY: the graph and its nodes exist; so many values are inside the part, which whoever launches the graph
        // keeps.
        self.add(|made, before, count| unsafe {
            call!(
                current.library(),
                cuGraphAddMemsetNode(made, graph, before, count, &raw const node, context)
            )
        })
    }
}

/// A graph that can be launched, on one stream. Dropped when no launch of it is pending.
pub(crate) struct Graph {
    context: Arc<Context>,
    handle: Handle,
    /// Kept as long as the graph.
    _functions: Vec<Function>,
}

impl Graph {
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(current) = self.context.enter() {
            // SAFETY: destroyed once.
            let _ = unsafe { call!(current.library(), cuGraphExecDestroy(self.handle)) };
        }
    }
}
