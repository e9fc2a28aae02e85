// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Runs a program on devices, as a C program would, and reports the differences from its expected outcome.
//!
//! `calls.rs` makes the calls, `host.rs` is the host's part, `ending.rs` compares the outcome.

use crate::common::{self, Buffer, Commands, Semaphore, check};
use crate::machine::{File, Machine, Pages};
use crate::oracle::World;
use crate::program::{Base, BufferPart, Memory, Program};
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A running program. It is leaked if it does not end, as devices may still call it.
pub(crate) struct Scene {
    pub(crate) program: Program,
    pub(crate) expected: World,
    pub(crate) patience: Duration,
    pub(crate) troubles: Mutex<Vec<String>>,
    /// The number of calls of each step's function.
    pub(crate) calls: Vec<AtomicUsize>,
    pub(crate) timelines: Vec<Semaphore>,
    pub(crate) reusable: Vec<Option<Commands>>,
    pub(crate) buffers: Vec<OnceLock<Buffer>>,
    pub(crate) files: Vec<File>,
    /// Dropped after the buffers that import them.
    _pages: Vec<Pages>,
    pub(crate) machine: Arc<Machine>,
}

unsafe impl Send for Scene {}
unsafe impl Sync for Scene {}

pub(crate) fn params(memory: Memory) -> sys::iree_hal_buffer_params_t {
    let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_DISPATCH_INDIRECT_PARAMETERS;
    let mapped = usage | sys::IREE_HAL_BUFFER_USAGE_MAPPING;
    let device_local = sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
    let (type_, usage) = match memory {
        Memory::Local => (device_local, usage),
        Memory::Mapped | Memory::Transient => (device_local | sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE, mapped),
        Memory::Imported => {
            (sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE, mapped)
        }
    };
    sys::iree_hal_buffer_params_t { type_, usage, ..Default::default() }
}

/// Runs a program. Returns the differences from the expected outcome.
pub(crate) fn run(
    machine: &Arc<Machine>,
    program: &Program,
    expected: &World,
    patience: Duration,
) -> Vec<String> {
    let scene = match Scene::set(machine, program, expected, patience) {
        Ok(scene) => Arc::new(scene),
        Err(error) => return vec![format!("nothing began: {}", error.text)],
    };
    let threads: Vec<_> = (0..program.threads())
        .map(|thread| {
            let scene = scene.clone();
            std::thread::spawn(move || scene.submit_all(thread))
        })
        .collect();
    for thread in threads {
        if thread.join().is_err() {
            scene.trouble("a submitting thread panicked".into());
        }
    }
    let ended = scene.wait_for_the_end();
    if ended && !scene.has_trouble() {
        scene.compare();
    }
    let troubles = std::mem::take(&mut *scene.troubles.lock().unwrap());
    if !ended {
        std::mem::forget(scene);
    }
    troubles
}

impl Scene {
    pub(crate) fn set(
        machine: &Arc<Machine>,
        program: &Program,
        expected: &World,
        patience: Duration,
    ) -> common::Result<Self> {
        let mut pages = Vec::new();
        let mut buffers = Vec::new();
        for spec in &program.buffers {
            let device = &machine.devices[spec.device];
            let cell = OnceLock::new();
            if spec.memory == Memory::Imported {
                let memory = Pages::with(&vec![0; spec.length]);
                let imported = device.import(params(spec.memory), memory.0, spec.length)?;
                pages.push(memory);
                drop(cell.set(imported));
            } else if spec.memory != Memory::Transient {
                let buffer = device.try_buffer_of(params(spec.memory), spec.length)?;
                let done = device.semaphore(0);
                device.fill(&common::List::none(), &done.at(1), &buffer, (0, spec.length), &[0])?;
                done.wait(1)?;
                drop(cell.set(buffer));
            }
            buffers.push(cell);
        }
        let files = program.files.iter();
        let files = files.map(|file| File::with(&file.bytes, file.in_memory, &machine.devices));
        let files = files.collect::<common::Result<_>>()?;
        let mut scene = Self {
            program: program.clone(),
            expected: expected.clone(),
            patience,
            troubles: Mutex::new(Vec::new()),
            calls: program.steps.iter().map(|_| AtomicUsize::new(0)).collect(),
            timelines: program.timelines.iter().map(|&device| machine.devices[device].semaphore(0)).collect(),
            reusable: Vec::new(),
            buffers,
            files,
            _pages: pages,
            machine: machine.clone(),
        };
        for (at, recording) in program.recordings.iter().enumerate() {
            let commands = if recording.one_shot { None } else { Some(scene.record(at)?) };
            scene.reusable.push(commands);
        }
        Ok(scene)
    }

    pub(crate) fn trouble(&self, text: String) {
        self.troubles.lock().unwrap().push(text);
    }

    pub(crate) fn has_trouble(&self) -> bool {
        !self.troubles.lock().unwrap().is_empty()
    }

    pub(crate) fn device(&self, device: usize) -> *mut sys::iree_hal_device_t {
        self.machine.devices[device].0
    }

    /// A buffer, or a subspan of it that is dropped with the reference, as soon as another thread has created it.
    pub(crate) fn buffer(&self, part: &BufferPart) -> (Buffer, usize) {
        let Base::Buffer(number) = part.base else { panic!("{part} has no buffer of its own") };
        let begin = Instant::now();
        let buffer = loop {
            match self.buffers[number].get() {
                Some(buffer) => break buffer.0,
                // The step that creates it was refused, or hangs.
                None if begin.elapsed() > self.patience || self.has_trouble() => {
                    panic!("b{number} was never made")
                }
                None => std::thread::sleep(Duration::from_micros(20)),
            }
        };
        unsafe {
            let Some((offset, length)) = part.span else {
                sys::iree_hal_buffer_retain(buffer);
                return (Buffer(buffer), part.offset);
            };
            let (mut span, system) = (null_mut(), sys::iree_allocator_system());
            check(sys::iree_hal_buffer_subspan(buffer, offset, length, system, &raw mut span)).unwrap();
            (Buffer(span), part.offset - offset)
        }
    }
}
