// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Recordings that are executed again.

use crate::support::{Bench, Rig, fill, host_bytes, span, whole};
use emulator_testbench::{List, until_known};
use hal_backend::{Code, Command, Commands, Recording, Workgroups};
use hal_cuda::{Memory, NvidiaDevice};
use std::sync::Arc;

/// The executions before the one that makes a graph.
const BEFORE: u32 = 2;

/// Commands on four words that depend on each other through barriers only, some of them empty and some between commands
/// that may change places.
fn commands(bench: &Bench, memory: &Arc<Memory>) -> Vec<Command<NvidiaDevice>> {
    let part = |word: u64| span(memory, word * 64, 64);
    let add = |word, amount| bench.add(&part(word), amount, Workgroups::Count([1; 3]));
    let copy = |from, to| Command::Copy { source: part(from), target: part(to) };
    let five = host_bytes(&[5, 0, 0, 0].repeat(16));
    vec![
        Command::Barrier,
        add(0, 1),
        fill(&[2, 0, 0, 0], part(1)),
        Command::Update { source: five, target: part(2) },
        fill(&[1, 0, 0], span(memory, 3 * 64, 63)),
        Command::Barrier,
        Command::Barrier,
        copy(0, 4),
        add(1, 1),
        add(2, 2),
        Command::Barrier,
        add(4, 10),
        Command::Barrier,
        copy(4, 5),
        copy(1, 6),
        // No workgroups, nothing to do.
        bench.add(&part(0), 99, Workgroups::Count([0, 1, 1])),
        Command::Barrier,
    ]
}

/// The first word of each part after so many executions.
fn expected(executions: u32) -> [u32; 7] {
    [executions, 3, 7, 1, executions + 10, executions + 10, 3]
}

struct Recorded {
    memory: Arc<Memory>,
    commands: Commands<NvidiaDevice>,
    recording: Arc<Recording>,
}

impl Recorded {
    fn new(bench: &Bench, recording: &Arc<Recording>) -> Self {
        let memory = bench.memory(0, 1024);
        bench.run(0, fill(&[0], whole(&memory, 1024))).unwrap();
        let commands = Commands::Own(commands(bench, &memory).into_iter().collect());
        Self { memory, commands, recording: recording.clone() }
    }

    fn list(&self) -> List<NvidiaDevice> {
        List { commands: self.commands.clone(), recording: Some(self.recording.clone()) }
    }

    fn check(&self, bench: &Bench, executions: u32) {
        let words = bench.words(0, &whole(&self.memory, 7 * 64));
        let mut first: Vec<u32> = words.chunks(16).map(|part| part[0]).collect();
        // The fourth byte is the first one of the pattern again.
        first[3] &= 0x00ff_ffff;
        assert_eq!(first, expected(executions), "after {executions}");
    }
}

/// The third execution with the same memory makes a graph, and from then on it is launched.
pub(crate) fn graphs(rig: &Rig) {
    // What `trim` gives back waits for the card.
    rig.allow("free-blocks");
    let bench = rig.bench("");
    let recording = Arc::default();
    let recorded = Recorded::new(&bench, &recording);
    rig.control("reset");
    for execution in 1..=8_u32 {
        bench.run(0, recorded.list()).unwrap();
        let launched = execution.saturating_sub(BEFORE).into();
        assert_eq!(rig.count("cuGraphLaunch"), launched);
        assert_eq!(rig.count("cuGraphInstantiate"), u64::from(launched > 0));
        recorded.check(&bench, execution);
    }
    // In flight together, on two queues: each has a graph of its own.
    let pending: Vec<_> = (0..8).map(|_| bench.bench.submit(0, recorded.list())).collect();
    pending.iter().for_each(|timeline| until_known(timeline).unwrap());
    recorded.check(&bench, 16);
    for _ in 0..4 {
        bench.run(1, recorded.list()).unwrap();
    }
    assert_eq!(rig.count("cuGraphInstantiate"), 2);
    // Other memory is another graph.
    let other = Recorded::new(&bench, &recording);
    for _ in 0..4 {
        bench.run(0, other.list()).unwrap();
    }
    other.check(&bench, 4);
    assert_eq!((rig.count("cuGraphInstantiate"), rig.count("cuGraphDestroy")), (3, 3));
    assert_eq!(rig.count("cuGraphExecDestroy"), 0);
    hal_backend::Device::trim(bench.device());
    assert_eq!(rig.count("cuGraphExecDestroy"), 3);
    bench.run(0, other.list()).unwrap();
    other.check(&bench, 5);
}

/// A graph goes after its recording, when the queue next remembers an execution; and there are so many at most.
pub(crate) fn graphs_released(rig: &Rig) {
    const MOST: usize = 64;
    let bench = rig.bench("");
    let memory = bench.memory(0, 1024);
    bench.run(0, fill(&[0], whole(&memory, 1024))).unwrap();
    let own = || Commands::Own(commands(&bench, &memory).into_iter().collect());
    let execute = |recording: &Arc<Recording>, times: u32| {
        for _ in 0..times {
            bench.run(0, List { commands: own(), recording: Some(recording.clone()) }).unwrap();
        }
    };
    let recording = Arc::default();
    execute(&recording, BEFORE + 1);
    drop(recording);
    assert_eq!(rig.count("cuGraphExecDestroy"), 0);
    let kept: Vec<Arc<Recording>> = (0..MOST + 1).map(|_| Arc::default()).collect();
    execute(&kept[0], BEFORE + 1);
    assert_eq!((rig.count("cuGraphExecDestroy"), rig.count("cuGraphInstantiate")), (1, 2));
    // Executed once each, they take no graph's place.
    kept.iter().skip(1).for_each(|recording| execute(recording, 1));
    let launched = rig.count("cuGraphLaunch");
    execute(&kept[0], 1);
    assert_eq!(rig.count("cuGraphLaunch"), launched + 1);
    kept.iter().skip(1).for_each(|recording| execute(recording, BEFORE + 1));
    assert_eq!(rig.count("cuGraphInstantiate") - rig.count("cuGraphExecDestroy"), MOST as u64);
}

/// What is executed command by command: few commands, numbers of workgroups in memory, copies within themselves, bytes
/// of the host, and lists that run once.
pub(crate) fn no_graphs(rig: &Rig) {
    let bench = rig.bench("");
    let memory = bench.memory(0, 1024);
    bench.run(0, fill(&[0], whole(&memory, 1024))).unwrap();
    let counts = bench.memory(1, 12);
    bench.run(0, crate::support::update(&[1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], whole(&counts, 12))).unwrap();
    let part = |word: u64| span(&memory, word * 64, 64);
    let bytes = host_bytes(&[1; 64]);
    let last = [
        None,
        Some(bench.add(&part(0), 1, Workgroups::Indirect(whole(&counts, 12)))),
        Some(Command::Copy { source: span(&memory, 0, 64), target: span(&memory, 4, 64) }),
        Some(Command::Copy { source: crate::support::host(&bytes), target: part(3) }),
    ];
    let recording: Arc<Recording> = Arc::default();
    for last in last {
        let few = if last.is_some() { 8 } else { 7 };
        for _ in 0..5 {
            let commands = (0..few).map(|_| bench.add(&part(1), 1, Workgroups::Count([1; 3])));
            let commands = Commands::Own(commands.chain(last.clone()).collect());
            bench.run(0, List { commands, recording: Some(recording.clone()) }).unwrap();
        }
    }
    for _ in 0..5 {
        let commands = Commands::Own(commands(&bench, &memory).into_iter().collect());
        bench.run(0, List { commands, recording: None }).unwrap();
    }
    assert_eq!((rig.count("cuGraphCreate"), rig.count("cuGraphLaunch")), (0, 0));
}

/// A graph that CUDA does not make is not asked for again; a launch that it refuses fails the job.
pub(crate) fn graphs_refused(rig: &Rig) {
    let bench = rig.bench("");
    let recording = Arc::default();
    let recorded = Recorded::new(&bench, &recording);
    for execution in 1..=6 {
        if execution == BEFORE + 1 {
            rig.control("fault=out-of-memory@1");
        }
        bench.run(0, recorded.list()).unwrap();
        recorded.check(&bench, execution);
    }
    assert_eq!((rig.count("cuGraphInstantiate"), rig.count("cuGraphLaunch")), (1, 0));
    let other = Recorded::new(&bench, &recording);
    for _ in 0..=BEFORE {
        bench.run(0, other.list()).unwrap();
    }
    rig.control("fault=launch-error@1");
    let failure = bench.run(0, other.list()).unwrap_err();
    assert_eq!(failure.code(), Code::ResourceExhausted, "{failure}");
    assert!(failure.message().contains("cuGraphLaunch"), "{failure}");
    bench.run(0, other.list()).unwrap();
    other.check(&bench, BEFORE + 2);
}
