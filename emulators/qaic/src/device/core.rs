// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cores of a network: they wait for its inputs, run its program, and release its outputs.
//!
//! A doorbell wakes them. They run while semaphore [`ARRIVED`] counts a call and all its bindings, one call at
//! a time, on the network's memory.

use super::network::SharedNetwork;
use crate::injection;
use crate::machine::{Guard, Machine, State, Unit};
use crate::programs::{ARRIVED, Call, CallOutcome, DONE};
use emulator_core::machine::MachineGuard as Lock;
use emulator_core::share::Dispatch;
use hal_backend::{Code, HostProgram, HostRange};
use std::sync::Arc;

/// The state of a channel's cores: awake, running or hung.
#[derive(Debug, Default)]
pub(crate) struct NetworkCores {
    /// True if a doorbell was written since they last ran out of work.
    pub(crate) rung: bool,
    pub(crate) running: bool,
    /// True if they never finish.
    hung: bool,
}

/// How many inputs a call has: itself, and its bindings.
fn inputs(network: &SharedNetwork) -> u16 {
    u16::try_from(network.program.capacities.len() + 1).unwrap_or(u16::MAX)
}

impl Machine {
    /// Wakes the cores of a channel, if a doorbell was written and all inputs of a call have arrived.
    pub(crate) fn ring_core(&self, state: &mut State, number: usize, channel: u32) {
        let card = &mut state.cards[number];
        let bridge = &mut card.bridges[channel];
        let Some((network, _)) = &bridge.network else { return };
        let core = &bridge.core;
        let idle = core.rung && !core.running && !core.hung;
        if idle && bridge.semaphores.value(ARRIVED) >= inputs(network) {
            self.core.offer(state, Unit::Core { card: number, channel });
        }
    }

    /// Serves a channel's cores, for one call.
    pub(crate) fn compute(&self, state: &mut Guard<'_>, number: usize, channel: u32, worker: usize) {
        let card = &mut state.cards[number];
        let bridge = &mut card.bridges[channel];
        let Some((network, _)) = bridge.network.clone() else { return };
        let inputs = inputs(&network);
        let ready = bridge.core.rung && !bridge.core.running && !bridge.core.hung;
        if !ready || bridge.semaphores.value(ARRIVED) < inputs {
            return;
        }
        card.counts.calls += 1;
        let (reset, crash) =
            (card.injections.strikes(injection::RESET), card.injections.strikes(injection::CRASH));
        if reset || (crash && !self.options.restarts) {
            self.reset(state, number);
            return;
        }
        if crash {
            self.crash(state, number, channel);
            return;
        }
        let hung = card.injections.strikes(injection::HANG);
        let deadlocked = card.injections.strikes(injection::DEADLOCK);
        let bridge = &mut card.bridges[channel];
        bridge.semaphores.take(ARRIVED, inputs);
        bridge.core.rung = bridge.semaphores.value(ARRIVED) > 0;
        bridge.core.hung = hung;
        if hung {
            return;
        }
        bridge.core.running = true;
        let program = state.program(network.program.program);
        Lock::unlocked(state, || {
            let outcome = match program {
                Some(program) => self.call(&network, program, worker),
                None => failed(Code::NotFound, format!("there is no program {}", network.program.program)),
            };
            let written = network.ddr.memory.write(network.layout.outcome, &outcome.write());
            debug_assert!(written, "an outcome has its place in the network's memory");
        });
        let bridge = &mut state.cards[number].bridges[channel];
        if bridge.is_of(&network) && !deadlocked {
            bridge.semaphores.add(DONE, inputs);
        }
        if bridge.is_of(&network) || bridge.network.is_none() {
            bridge.core.running = false;
        }
        self.core.wake(number);
        self.ring(state, number, channel);
        self.ring_core(state, number, channel);
    }

    /// Runs the call in a network's memory.
    fn call(&self, network: &SharedNetwork, program: Arc<dyn HostProgram>, worker: usize) -> CallOutcome {
        let capacities = &network.program.capacities;
        let length = Call::length(usize::from(network.program.constants), capacities.len());
        let mut bytes = vec![0; length];
        let read = network.ddr.memory.read(network.layout.call, &mut bytes);
        let call = match Call::read(&bytes) {
            Ok(call) if read && call.lengths.len() == capacities.len() => call,
            Ok(_) => {
                return failed(
                    Code::InvalidArgument,
                    "the call has other bindings than the network".to_owned(),
                );
            }
            Err(fault) => return failed(Code::InvalidArgument, fault.to_string()),
        };
        let places = network.layout.bindings.iter().zip(capacities).zip(&call.lengths);
        let bindings: Option<Vec<HostRange>> = places
            .map(|((&at, &capacity), &length)| {
                network.ddr.memory.slice(at, length).filter(|_| length <= capacity)
            })
            .collect();
        let Some(bindings) = bindings else {
            return failed(Code::OutOfRange, "a binding of the call is longer than the network's".to_owned());
        };
        let dispatch = Dispatch {
            program,
            abort: network.abort.clone(),
            function: network.program.function as usize,
            workgroup_size: call.workgroup_size,
            workgroups: call.workgroups,
            constants: call.constants,
            bindings,
            local_memory: call.local_memory,
        };
        match self.core.run(dispatch, worker) {
            Ok(()) if network.is_aborted() => failed(Code::Aborted, "the network was stopped".to_owned()),
            Ok(()) => CallOutcome::Done,
            Err(failure) => failed(failure.code(), failure.message().to_owned()),
        }
    }
}

/// An outcome with one of IREE's codes.
fn failed(code: Code, message: String) -> CallOutcome {
    CallOutcome::Failed { code: code as u32, message }
}
