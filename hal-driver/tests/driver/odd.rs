// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Calls with arbitrary numbers and flags: impossible ones are refused by name, and nothing panics.

use crate::cards::{card, steps};
use crate::common::random::Random;
use crate::common::{Buffer, Commands, Device, Executable, File, List, Result, Semaphore, check, params};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::{null, null_mut};

const LENGTH: usize = 256;

/// The calls on each device.
const CALLS: usize = 700;

/// Values of a length, an offset or a semaphore.
const NUMBERS: [usize; 16] = [
    0,
    1,
    3,
    4,
    16,
    64,
    LENGTH / 2,
    LENGTH - 1,
    LENGTH,
    LENGTH + 1,
    4096,
    1 << 40,
    isize::MAX as usize,
    1 << 63,
    usize::MAX - 1,
    usize::MAX,
];

/// Draws arguments.
impl Random {
    fn number(&mut self) -> usize {
        NUMBERS[self.below(NUMBERS.len())]
    }

    /// Usually no bit or one.
    fn flags(&mut self) -> u64 {
        match self.below(4) {
            0 => 1 << self.below(64),
            1 => self.next(),
            _ => 0,
        }
    }

    fn flags32(&mut self) -> u32 {
        (self.flags() % (1 << 32)).try_into().unwrap()
    }

    fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len())]
    }
}

/// The objects of the calls.
struct RandomCalls {
    random: Random,
    buffers: Vec<Buffer>,
    semaphores: Vec<Semaphore>,
    commands: Vec<Commands>,
    executable: Option<Executable>,
    file: *mut sys::iree_hal_file_t,
    /// The content of the file.
    _bytes: File,
    device: Device,
}

impl RandomCalls {
    fn new(device: Device, executable: Option<Executable>, seed: u64) -> Self {
        let transient = device.alloca(&List::none(), &List::none(), LENGTH).unwrap();
        let buffers = vec![device.buffer(LENGTH), device.local_buffer(LENGTH), transient];
        let semaphores = (0..3).map(|_| device.semaphore(0)).collect();
        let bytes = File::with(&[3; LENGTH]);
        let file = bytes.import(&device);
        Self {
            random: Random::new(seed),
            buffers,
            semaphores,
            commands: Vec::new(),
            executable,
            file,
            _bytes: bytes,
            device,
        }
    }

    fn list(&mut self) -> List {
        match self.random.below(4) {
            0 => {
                let value = self.random.number() as u64;
                self.random.one_of(&self.semaphores).at(value)
            }
            1 => {
                let semaphore = self.random.one_of(&self.semaphores);
                let next = semaphore.value().map_or(1, |value| value + 1);
                semaphore.at(next)
            }
            _ => List::none(),
        }
    }

    fn buffer(&mut self) -> *mut sys::iree_hal_buffer_t {
        if self.random.below(20) == 0 { null_mut() } else { self.random.one_of(&self.buffers).0 }
    }

    fn reference(&mut self) -> sys::iree_hal_buffer_ref_t {
        let (buffer, offset, length) = (self.buffer(), self.random.number(), self.random.number());
        let mut reference = sys::iree_hal_buffer_ref_t { buffer, offset, length, ..Default::default() };
        if self.random.below(3) == 0 {
            reference.buffer = null_mut();
            // The last slot of a table is slow to allocate.
            let far = if self.random.below(40) == 0 { 0xFF_FFFF } else { 77 };
            reference.set_buffer_slot(*self.random.one_of(&[0, 1, 2, far]));
        }
        reference
    }

    /// A queue operation.
    fn queue(&mut self) -> Result {
        let (waits, signals, affinity) = (List::none(), self.list(), self.random.flags());
        let (buffer, other) = (self.buffer(), self.buffer());
        let (offset, far, length) = (self.random.number(), self.random.number(), self.random.number());
        let (flags, small, kind) = (self.random.flags(), self.random.below(20), self.random.below(9));
        let (device, bytes) = (self.device.0, [7_u8; 4096]);
        let (waits, signals) = (waits.raw(), signals.raw());
        let bytes = bytes.as_ptr().cast();
        check(unsafe {
            match kind {
                0 => sys::iree_hal_device_queue_fill(
                    device, affinity, waits, signals, buffer, offset, length, bytes, small, flags,
                ),
                1 => sys::iree_hal_device_queue_update(
                    device, affinity, waits, signals, bytes, small, buffer, offset, length, flags,
                ),
                2 => sys::iree_hal_device_queue_copy(
                    device, affinity, waits, signals, buffer, offset, other, far, length, flags,
                ),
                3 => sys::iree_hal_device_queue_read(
                    device,
                    affinity,
                    waits,
                    signals,
                    self.file,
                    offset as u64,
                    buffer,
                    far,
                    length,
                    flags,
                ),
                4 => sys::iree_hal_device_queue_write(
                    device, affinity, waits, signals, buffer, far, self.file, 0, length, flags,
                ),
                5 => sys::iree_hal_device_queue_barrier(device, affinity, waits, signals, flags),
                // IREE reads the buffer first.
                6 if !buffer.is_null() => {
                    sys::iree_hal_device_queue_dealloca(device, affinity, waits, signals, buffer, flags)
                }
                7 => return self.execute(affinity, waits, signals, flags),
                _ => return self.dispatch(affinity, waits, signals, flags),
            }
        })
    }

    fn execute(
        &mut self,
        affinity: u64,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        flags: u64,
    ) -> Result {
        let bindings: Vec<_> = (0..self.random.below(4))
            .map(|_| sys::iree_hal_buffer_binding_t {
                buffer: self.buffer(),
                offset: self.random.number(),
                length: self.random.number(),
            })
            .collect();
        let commands = match self.commands.len() {
            0 => null_mut(),
            count => self.commands[self.random.below(count)].0,
        };
        let table =
            sys::iree_hal_buffer_binding_table_t { count: bindings.len(), bindings: bindings.as_ptr() };
        check(unsafe {
            sys::iree_hal_device_queue_execute(
                self.device.0,
                affinity,
                waits,
                signals,
                commands,
                table,
                flags,
            )
        })
    }

    fn dispatch(
        &mut self,
        affinity: u64,
        waits: sys::iree_hal_semaphore_list_t,
        signals: sys::iree_hal_semaphore_list_t,
        flags: u64,
    ) -> Result {
        let references: Vec<_> = (0..self.random.below(4)).map(|_| self.reference()).collect();
        let config = sys::iree_hal_dispatch_config_t {
            workgroup_size: [1, 0, 1].map(|size| size * self.random.flags32()),
            workgroup_count: [1; 3],
            workgroup_count_ref: self.reference(),
            dynamic_workgroup_local_memory: self.random.flags32(),
        };
        let list = sys::iree_hal_buffer_ref_list_t { count: references.len(), values: references.as_ptr() };
        let function = sys::iree_hal_executable_function_t { value: self.random.flags() };
        let executable = self.executable.as_ref().map_or(null_mut(), |executable| executable.0);
        let constants = sys::iree_const_byte_span_t { data: null(), data_length: self.random.below(2) };
        check(unsafe {
            sys::iree_hal_device_queue_dispatch(
                self.device.0,
                affinity,
                waits,
                signals,
                executable,
                function,
                config,
                constants,
                list,
                flags,
            )
        })
    }

    /// A recording, which is kept if it succeeded.
    fn record(&mut self) -> Result {
        let mut commands = null_mut();
        let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED
            | *self.random.one_of(&[0, sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT]);
        let (affinity, slots) = (self.random.flags(), *self.random.one_of(&[0, 1, 3, 1 << 25, usize::MAX]));
        let device = self.device.0;
        unsafe {
            let any = sys::IREE_HAL_COMMAND_CATEGORY_ANY;
            check(sys::iree_hal_command_buffer_create(
                device,
                mode,
                any,
                affinity,
                slots,
                &raw mut commands,
            ))?;
        }
        let commands = Commands(commands);
        check(unsafe { sys::iree_hal_command_buffer_begin(commands.0) })?;
        for _ in 0..self.random.below(4) {
            let (target, source, flags) = (self.reference(), self.reference(), self.random.flags());
            let (bytes, small) = ([5_u8; 4096], self.random.below(20));
            let bytes = bytes.as_ptr().cast();
            check(unsafe {
                match self.random.below(4) {
                    0 => sys::iree_hal_command_buffer_fill_buffer(commands.0, target, bytes, small, flags),
                    1 => sys::iree_hal_command_buffer_copy_buffer(commands.0, source, target, flags),
                    // The update reads as many bytes as the slot's length says; there are no more than these.
                    2 if !target.buffer.is_null() || target.length <= 4000 => {
                        sys::iree_hal_command_buffer_update_buffer(commands.0, bytes, small, target, flags)
                    }
                    _ => sys::iree_hal_command_buffer_flush_buffer(commands.0, target),
                }
            })?;
        }
        check(unsafe { sys::iree_hal_command_buffer_end(commands.0) })?;
        self.commands.push(commands);
        Ok(())
    }

    /// A call that creates an object, which is released.
    #[expect(clippy::too_many_lines, reason = "one sequence of steps")]
    fn make(&mut self) -> Result {
        let device = self.device.0;
        let asked = sys::iree_hal_buffer_params_t {
            type_: self.random.flags32(),
            usage: self.random.flags32(),
            access: (self.random.flags() % (1 << 16)).try_into().unwrap(),
            min_alignment: self.random.number(),
            queue_affinity: self.random.flags(),
        };
        let asked = if self.random.below(2) == 0 { params() } else { asked };
        let length = self.random.number();
        unsafe {
            match self.random.below(6) {
                0 => {
                    let mut buffer = null_mut();
                    let allocator = self.device.allocator();
                    let made =
                        sys::iree_hal_allocator_allocate_buffer(allocator, asked, length, &raw mut buffer);
                    check(made).map(|()| drop(Buffer(buffer)))
                }
                1 => {
                    let (list, flags, mut buffer) = (self.list(), self.random.flags(), null_mut());
                    let (none, list) = (List::none(), list.raw());
                    let (none, out) = (none.raw(), &raw mut buffer);
                    let made = sys::iree_hal_device_queue_alloca(
                        device,
                        asked.queue_affinity,
                        none,
                        list,
                        null_mut(),
                        asked,
                        length,
                        flags,
                        out,
                    );
                    check(made).map(|()| drop(Buffer(buffer)))
                }
                2 => {
                    let initial = length as u64;
                    let mut semaphore = null_mut();
                    let (affinity, flags) = (self.random.flags(), self.random.flags());
                    let out = &raw mut semaphore;
                    check(sys::iree_hal_semaphore_create(device, affinity, initial, flags, out))
                        .map(|()| drop(Semaphore(semaphore)))
                }
                3 => {
                    let rank = |random: &mut Random| *random.one_of(&[-1, 0, 1, 7, i32::MIN, i32::MAX]);
                    let params = sys::iree_hal_channel_params_t {
                        rank: rank(&mut self.random),
                        count: rank(&mut self.random),
                        flags: self.random.flags(),
                        ..Default::default()
                    };
                    let mut channel = null_mut();
                    check(sys::iree_hal_channel_create(device, u64::MAX, params, &raw mut channel))
                        .map(|()| sys::iree_hal_channel_release(channel))
                }
                4 => {
                    let mut external = sys::iree_hal_external_buffer_t::default();
                    let (kind, flags, buffer) =
                        (self.random.flags32(), self.random.flags32(), self.random.one_of(&self.buffers).0);
                    let allocator = self.device.allocator();
                    let fd = sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD;
                    let out = &raw mut external;
                    if kind == fd {
                        return Ok(());
                    }
                    check(sys::iree_hal_allocator_export_buffer(allocator, buffer, kind, flags, out))
                }
                _ => {
                    let mut mapping = sys::iree_hal_buffer_mapping_t::default();
                    let (buffer, offset) = (self.random.one_of(&self.buffers).0, self.random.number());
                    let access = (self.random.flags() % (1 << 16)).try_into().unwrap();
                    let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
                    let out = &raw mut mapping;
                    check(sys::iree_hal_buffer_map_range(buffer, mode, access, offset, length, out))?;
                    check(sys::iree_hal_buffer_unmap_range(out))
                }
            }
        }
    }
}

impl Drop for RandomCalls {
    fn drop(&mut self) {
        unsafe { sys::iree_hal_file_release(self.file) };
    }
}

#[test]
fn calls_with_any_numbers_and_flags_are_done_or_refused() {
    let uris = [
        "mock://?memory=64m&heaps=2&queues=3",
        "template",
        "gaudi://emulated?generation=gaudi2&seed=9400",
        "nvidia://emulated",
        "qaic://emulated?seed=9401",
    ];
    let mut devices: Vec<_> = uris.iter().map(|uri| (*uri, Device::open(uri).unwrap(), None)).collect();
    let cards = card(1);
    let executable = steps(&cards);
    devices.push(("a card", cards, Some(executable)));
    for (seed, (name, device, executable)) in (1..).zip(devices) {
        let mut scene = RandomCalls::new(device, executable, 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        for number in 0..CALLS {
            let outcome = match scene.random.below(4) {
                0 => scene.record(),
                1 => scene.make(),
                _ => scene.queue(),
            };
            if let Err(refused) = outcome {
                let bug = refused.code == Code::Internal || refused.text.contains("panicked");
                assert!(!bug, "{name}, call {number}: {}", refused.text);
            }
            if scene.commands.len() > 20 {
                scene.commands.clear();
            }
            // A semaphore that has failed or has its largest value cannot be used.
            let fresh = scene.device.semaphore(0);
            let at = number % scene.semaphores.len();
            match scene.semaphores[at].value() {
                Ok(value) if value < 1 << 30 => {}
                Ok(_) => scene.semaphores[at] = fresh,
                Err(failed) => {
                    let bug = failed.code == Code::Internal || failed.text.contains("panicked");
                    assert!(!bug, "{name}, call {number}: {}", failed.text);
                    scene.semaphores[at] = fresh;
                }
            }
        }
        let (buffer, done) = (scene.device.buffer(64), scene.device.semaphore(0));
        scene.device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[9]).unwrap();
        done.wait(1).unwrap();
        assert_eq!(buffer.read(), [9; 64], "{name} works on");
    }
}
