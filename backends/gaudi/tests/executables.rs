// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Containers that do not fit what they run are refused when they are loaded, with what is wrong and what to do; and
//! a failure of a running program is reported with its own message, not only as the reset that follows.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use emulator_gaudi::programs::{DISPATCH, dispatch};
use emulator_testbench::Testbench;
use hal_backend::{
    Code, Command, Device, Dispatch, Failure, Function, HostCall, HostLoader, HostProgram, LoadRequest,
    Loaded, Workgroups,
};
use hal_gaudi::executable::{Container, Entry, FORMAT, Step};
use hal_gaudi::generation::{Generation, Lane};
use hal_gaudi::{Executable, GaudiDevice};
use std::ops::Range;
use std::sync::Arc;
use support::{machine, open};

const FAILED: &str = "function \"sum\" takes 300 pages of workgroup-local memory; there are 256";

/// A program of two functions, which fails when it runs.
struct Failing(Vec<Function>);

impl HostProgram for Failing {
    fn functions(&self) -> &[Function] {
        &self.0
    }

    fn run(&self, _: &HostCall<'_>, _: Range<u64>, _: usize) -> Result<(), Failure> {
        Err(Failure::new(Code::ResourceExhausted, FAILED))
    }
}

fn functions() -> Vec<Function> {
    let function = |name: &str, bindings, constants| Function {
        name: name.to_owned(),
        bindings,
        constants,
        workgroup_size: [1; 3],
    };
    vec![function("sum", 0, 0), function("scale", 2, 1)]
}

struct Loader;

impl HostLoader for Loader {
    fn supports(&self, format: &str) -> bool {
        format == "host"
    }

    fn load(&self, _: &LoadRequest<'_>, _: usize) -> Result<Arc<dyn HostProgram>, Failure> {
        Ok(Arc::new(Failing(functions())))
    }
}

fn load(device: &GaudiDevice, format: &str, data: &[u8]) -> Result<Loaded<Executable>, Failure> {
    device.load(&LoadRequest { format, data, constants: &[] }, &Loader)
}

/// The packet that calls a host program is the emulator's own: a container that names a program by its number is
/// refused.
#[test]
fn container_with_the_emulators_own_packet_is_refused_when_it_is_loaded() {
    for (name, generation) in [("gaudi1", Generation::Gaudi1), ("gaudi2", Generation::Gaudi2)] {
        let uri = machine(&format!("generation={name}"));
        let device = open(&uri);
        // Another executable's, which has the number that the packet names.
        let other = load(&device, "host", &[]).unwrap();
        let mut template = vec![0; dispatch::FIXED];
        for (at, value) in [
            (dispatch::LENGTH, u32::try_from(dispatch::FIXED).unwrap()),
            (dispatch::CONTROL, DISPATCH << 24),
            (dispatch::PROGRAM, 1),
        ] {
            template[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let step = Step { lane: Lane::Compute, template, patches: Vec::new() };
        let entry = Entry { name: "sum".into(), steps: vec![step], ..Entry::default() };
        let container = Container { generation: Some(generation), data: Vec::new(), entries: vec![entry] };
        let refused = load(&device, FORMAT, &container.write()).map(|_| ()).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        for part in ["entry 0: \"sum\"", "step 0", "operation 0x1f"] {
            assert!(refused.message().contains(part), "{part:?} is not in {refused}");
        }
        assert_eq!(support::emulator(&uri).counts(0).hard_resets, 0);
        drop(other);
    }
}

#[test]
fn failure_of_a_program_is_reported_with_its_reset() {
    for name in ["gaudi1", "gaudi2"] {
        let bench = Testbench::new(Arc::new(open(&machine(&format!("generation={name}")))));
        let executable = Arc::new(load(bench.device(), "host", &[]).unwrap().executable);
        let dispatch = || {
            Command::Dispatch(Box::new(Dispatch {
                executable: executable.clone(),
                function: 0,
                workgroup_size: [1; 3],
                workgroups: Workgroups::Count([1; 3]),
                local_memory: 0,
                constants: Default::default(),
                bindings: Default::default(),
            }))
        };
        for _ in 0..2 {
            let failed = bench.run(0, dispatch()).unwrap_err();
            assert!(failed.message().contains(FAILED), "{failed}");
            assert!(failed.message().contains("open it again"), "{failed}");
        }
    }
}
