// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The order within a queue depends on this: one hardware queue signals, another waits. On emulated cards of both
//! generations, or on the card that the environment names, which says so first of all.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use hal_backend::HostRange;
use hal_gaudi::GaudiDevice;
use hal_gaudi::generation::{Capabilities, Lane};
use hal_gaudi::kmd::Progress;
use hal_gaudi::packet;
use std::time::Duration;
use support::{both, bytes, open, pattern, range};

const LENGTH: u64 = 4 << 20;

/// Commands where a card finds them, for as long as this lives.
struct Commands<'a> {
    device: &'a GaudiDevice,
    /// A command buffer's handle, or a device address.
    name: u64,
    length: u32,
    memory: HostRange,
}

impl<'a> Commands<'a> {
    fn new(device: &'a GaudiDevice, packets: &[u8]) -> Self {
        let card = device.card();
        let (name, memory) = if card.generation().copies_command_buffers() {
            card.create_command_buffer(4096).unwrap()
        } else {
            let memory = range(4096);
            (card.map_host(&memory).unwrap(), memory)
        };
        assert!(memory.write(0, packets));
        Self { device, name, length: packets.len() as u32, memory }
    }

    fn submit(&self, queue: u32) -> u64 {
        self.device.card().submit(queue, self.name, self.length, None).unwrap()
    }

    fn give_back(self) {
        let Self { device, name, memory, .. } = self;
        let card = device.card();
        if card.generation().copies_command_buffers() {
            // The mapping holds the buffer.
            drop(memory);
            card.destroy_command_buffer(name).unwrap();
        } else {
            card.unmap(name).unwrap();
            drop(memory);
        }
    }
}

fn finish(device: &GaudiDevice, sequence: u64) {
    let progress = device.card().wait(sequence, Duration::from_secs(20));
    assert!(matches!(progress, Progress::Done { .. }), "submission {sequence}: {progress:?}");
}

/// Makes a lane wait for all that another has: what comes next on it is behind that.
fn order(device: &GaudiDevice, first: u32, then: u32) {
    let card = device.card();
    let signal = card.signal(first, None).unwrap_or_else(|errno| {
        panic!("queue {first} takes no signal ({errno}): the backend keeps the order on the host, which costs a wait \
         at each change of lane")
    });
    card.wait_for_signal(then, signal, None).unwrap_or_else(|errno| {
        panic!("queue {then} does not wait for signal {signal} of queue {first}: {errno}")
    });
}

#[test]
fn signal_of_one_hardware_queue_orders_another() {
    for uri in both() {
        let device = open(&uri);
        let card = device.card();
        let generation = card.generation();
        let queue = |lane| generation.hardware_queue(lane, 0);
        let (one, two) = (device.ipc().allocate(LENGTH).unwrap(), device.ipc().allocate(LENGTH).unwrap());
        let (source, target) = (range(LENGTH), range(LENGTH));
        let (from, to) = (card.map_host(&source).unwrap(), card.map_host(&target).unwrap());
        let copy =
            |source, target| Commands::new(&device, &packet::copy(generation, source, target, LENGTH as u32));
        let steps = [
            (queue(Lane::HostToDevice), copy(from, one.address())),
            (queue(Lane::DeviceToDevice), copy(one.address(), two.address())),
            (queue(Lane::DeviceToHost), copy(two.address(), to)),
        ];
        for round in 0..4 {
            let content = bytes(&pattern(LENGTH, round));
            assert!(source.write(0, &content));
            let mut last: Option<(u32, u64)> = None;
            // Nothing is waited for before all is submitted.
            for (queue, commands) in &steps {
                if let Some((before, _)) = last.filter(|(before, _)| before != queue) {
                    order(&device, before, *queue);
                }
                last = Some((*queue, commands.submit(*queue)));
            }
            finish(&device, last.unwrap().1);
            assert!(bytes(&target) == content, "{uri}: round {round} arrived before it was sent");
        }
        steps.into_iter().for_each(|(_, commands)| commands.give_back());
        card.unmap(from).unwrap();
        card.unmap(to).unwrap();
    }
}

#[test]
fn signals_behind_each_other_come_each_in_turn() {
    for uri in both() {
        let device = open(&uri);
        let generation = device.card().generation();
        let (down, up) = (
            generation.hardware_queue(Lane::HostToDevice, 0),
            generation.hardware_queue(Lane::DeviceToHost, 0),
        );
        let nop = Commands::new(&device, &(u64::from(packet::opcode::NOP) << 56).to_le_bytes());
        // More often than a sync object of the driver's would count if it were not set back.
        for _ in 0..200 {
            let mut last = nop.submit(down);
            for (first, then) in [(down, up), (up, down)] {
                order(&device, first, then);
                last = nop.submit(then);
            }
            finish(&device, last);
        }
        nop.give_back();
    }
}
