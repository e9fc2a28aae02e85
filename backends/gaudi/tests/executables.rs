// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Containers that do not fit what they run are refused when they are loaded, with what is wrong and what to do; and what goes
//! wrong only when a program runs is told by its own words, not by the reset that it led to.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod support;

use emulator_testbench::Testbench;
use hal_backend::{
    Code, Command, Device, Dispatch, Failure, Function, HostCall, HostLoader, HostProgram, LoadRequest,
    Loaded, Workgroups,
};
use hal_gaudi::executable::wrap::wrap;
use hal_gaudi::executable::{Container, FORMAT, Patch, PatchKind};
use hal_gaudi::generation::Generation;
use hal_gaudi::packet::dispatch;
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

/// It could only name a program of another executable.
#[test]
fn container_without_its_host_executable_is_refused_when_it_is_loaded() {
    for (name, generation) in [("gaudi1", Generation::Gaudi1), ("gaudi2", Generation::Gaudi2)] {
        let uri = machine(&format!("generation={name}"));
        let device = open(&uri);
        // Another executable's, which has the number that the packet may name.
        let other = load(&device, "host", &[]).unwrap();
        let mut container = wrap(&functions(), generation).unwrap();
        for number in [None, Some(1_u64)] {
            if let Some(number) = number {
                let step = &mut container.entries[0].steps[0];
                step.patches.retain(|patch| patch.kind != PatchKind::Program);
                step.template[dispatch::PROGRAM..dispatch::PROGRAM + 8]
                    .copy_from_slice(&number.to_le_bytes());
            }
            let refused = load(&device, FORMAT, &container.write()).map(|_| ()).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            for part in
                ["entry 0: \"sum\"", "step 0", "loaded without one", "load the host executable's own file"]
            {
                assert!(refused.message().contains(part), "{part:?} is not in {refused}");
            }
        }
        assert_eq!(support::emulator(&uri).counts(0).hard_resets, 0);
        drop(other);
    }
}

/// Each way in which a container can disagree with the functions that it is for.
#[test]
#[expect(clippy::too_many_lines, reason = "one story, told from its beginning to its end")]
fn container_that_disagrees_with_its_functions_is_refused_with_both_numbers() {
    let refused = |change: &dyn Fn(&mut Container)| {
        let mut container = wrap(&functions(), Generation::Gaudi2).unwrap();
        container.check_programs(Generation::Gaudi2, &functions()).unwrap();
        change(&mut container);
        let read = Container::read(&container.write(), Generation::Gaudi2, true).unwrap();
        read.check_programs(Generation::Gaudi2, &functions()).unwrap_err().message().to_owned()
    };
    fn set(container: &mut Container, entry: usize, at: usize, value: u32) {
        let template = &mut container.entries[entry].steps[0].template;
        template[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn unpatch(container: &mut Container, entry: usize, kind: PatchKind) {
        container.entries[entry].steps[0].patches.retain(|patch| patch.kind != kind);
    }
    fn patch(container: &mut Container, entry: usize, at: usize, kind: PatchKind) {
        let offset = u32::try_from(at).unwrap();
        container.entries[entry].steps[0].patches.push(Patch { offset, kind });
    }
    let check = |change: &dyn Fn(&mut Container), parts: &[&str]| {
        let message = refused(change);
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    };
    let counts =
        ["entry 0: \"sum\": step 0: DISPATCH at template offset 0", "brings 0 bindings and 0 constants"];
    check(&|container| set(container, 0, dispatch::FUNCTION, 1), &counts);
    check(&|container| set(container, 0, dispatch::FUNCTION, 1), &["function 1, \"scale\", takes 2 and 1"]);
    check(
        &|container| set(container, 1, dispatch::FUNCTION, 0),
        &["brings 2 bindings and 1 constants", "takes 0 and 0"],
    );
    check(
        &|container| set(container, 1, dispatch::FUNCTION, 2),
        &["runs function 2", "has 2 (numbered from 0)"],
    );
    check(
        &|container| unpatch(container, 1, PatchKind::Program),
        &["another executable's", "patch Program", "8 to 16"],
    );
    check(
        &|container| {
            unpatch(container, 1, PatchKind::Program);
            patch(container, 1, dispatch::PROGRAM, PatchKind::BindingAddress { binding: 0, addend: 0 });
        },
        &["another executable's"],
    );
    check(
        &|container| patch(container, 1, dispatch::FUNCTION, PatchKind::Constant { constant: 0 }),
        &["writes the function's number", "one entry for each"],
    );
    let own = ["workgroup-local memory by itself", "patch LocalMemory", "20 to 24"];
    check(
        &|container| {
            unpatch(container, 1, PatchKind::LocalMemory);
            set(container, 1, dispatch::LOCAL_MEMORY, (1 << 28) + 1);
        },
        &own,
    );
    check(
        &|container| {
            unpatch(container, 1, PatchKind::LocalMemory);
            patch(container, 1, dispatch::LOCAL_MEMORY, PatchKind::Constant { constant: 0 });
        },
        &own,
    );
}

#[test]
fn failure_of_a_program_is_told_with_the_reset_that_it_led_to() {
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
