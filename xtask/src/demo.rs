// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask demo`: real models on every device, each result checked against numpy, or against IREE's local-sync;
//! and `cargo xtask replay`, which records and replays them.

use crate::iree::{Flavour, Plugin, Tree};
use crate::{setup, with, workspace};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    plugin: Plugin,
    /// Only on cards, through the nodes that a supervisor shows, as on a machine that has them
    #[arg(long, conflicts_with = "plugin")]
    nodes: bool,
    /// Without the trained networks from PyPI, and, where no MPI is installed, without jobs of several processes
    #[arg(long)]
    quick: bool,
}

/// Builds what the demo runs, and runs it: on every device of ours, or on those of a plugin.
pub(crate) fn run(options: &Options) -> Result<bool> {
    // Before minutes are spent.
    let alone = match setup::mpi() {
        Ok(_) => false,
        Err(missing) if options.quick => {
            println!("without jobs of several processes: {missing:#}");
            true
        }
        Err(missing) => {
            bail!("{missing:#}\n  without jobs of several processes: cargo xtask demo --quick");
        }
    };
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    tree.build(&["iree-run-module", "embed", "overlap", "ranks"])?;
    tree.build(&["hal_runtime_archives"])?;
    if !options.quick {
        tree.python().networks()?;
    }
    let root = workspace::root()?;
    let built = workspace::cargo_with_bar()
        .args(["build", "--quiet", "--locked", "--package", "hal-driver", "--example", "embed"])
        .current_dir(&root)
        .env("HAL_LIBCLANG", tree.python().libclang().unwrap_or_default())
        .status()
        .context("starting cargo")?;
    if !built.success() {
        bail!("the Rust program that embeds the runtime does not build");
    }
    let mut demo = script(&tree, "demo.py")?;
    if options.nodes {
        demo.env("HAL_SUPERVISOR", with::supervisor()?);
    }
    if options.quick {
        demo.env("HAL_DEMO_QUICK", "1");
    }
    if alone {
        demo.env("HAL_DEMO_ALONE", "1");
    }
    let status = demo
        .env("HAL_DEMO_DEVICES", options.plugin.driver.join(" "))
        .env("HAL_RUST_EXAMPLE", workspace::target()?.join("debug/examples/embed"))
        .status()
        .context("starting the demo")?;
    Ok(status.success())
}

/// `cargo xtask replay`: what models do on one device, recorded and replayed on the others by IREE's own tools.
pub(crate) fn replay() -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, None)?;
    tree.build(&["iree-run-module", "iree-run-replay"])?;
    let status = script(&tree, "replays.py")?.status().context("starting the replays")?;
    Ok(status.success())
}

/// A script of the demo's folder, told where things are.
fn script(tree: &Tree, name: &str) -> Result<Command> {
    let root = workspace::root()?;
    let mut command = Command::new(tree.python().program("python"));
    command
        .arg(root.join("demo").join(name))
        .env("HAL_TOOLS", tree.folder().join("tools"))
        .env("HAL_DEMO_DIR", tree.folder().join("demo"))
        .env("HAL_IREE_COMPILE", tree.python().program("iree-compile"))
        .env("HAL_EXAMPLES", root.join("hal-driver/examples"));
    Ok(command)
}

#[derive(Debug, clap::Args)]
pub(crate) struct ProfileOptions {
    #[command(flatten)]
    plugin: Plugin,
    /// What iree-run-module is given; the demo's transformer block, if nothing is. On mock, or what --driver says, where no device is named
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// What a timeline is drawn from.
const FAMILIES: &str = "queue-events,dispatch-events,device-queue-events";

/// `cargo xtask profile`: runs a model with profiling and draws what its queues did.
pub(crate) fn profile(options: &ProfileOptions) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(&options.plugin))?;
    let device = options.plugin.driver.first().map_or("mock", String::as_str);
    tree.build(&["iree-run-module", "iree-profile"])?;
    let folder = tree.folder().join("profile");
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let (bundle, lines) = (folder.join("run.ireeprof"), folder.join("run.jsonl"));
    let (picture, trace) = (folder.join("run.svg"), folder.join("run.trace.json"));
    let root = workspace::root()?;
    let arguments = match options.arguments.as_slice() {
        [] => match transformer(&tree, &folder, device)? {
            Some(arguments) => arguments,
            None => return Ok(false),
        },
        given => on_device(given, device),
    };
    let steps: [(&str, Command); 3] = [
        ("iree-run-module", {
            let mut command = Command::new(tree.tool("iree-run-module"));
            command.args(&arguments).arg(format!("--device_profiling_mode={FAMILIES}"));
            command
                .arg(format!("--device_profiling_output={}", bundle.display()))
                .stdout(std::process::Stdio::null());
            command
        }),
        ("iree-profile", {
            let mut command = Command::new(tree.tool("iree-profile"));
            command
                .args(["export", "--format=ireeperf-jsonl"])
                .arg(format!("--output={}", lines.display()))
                .arg(&bundle);
            command
        }),
        ("the drawing", {
            let mut command = Command::new(tree.python().program("python"));
            command.arg(root.join("demo/timeline.py")).args([&lines, &picture, &trace]);
            command.arg(if options.arguments.is_empty() {
                format!("a transformer block on {device}")
            } else {
                "a run".into()
            });
            command
        }),
    ];
    for (what, mut command) in steps {
        if !command.status().with_context(|| format!("starting {what}"))?.success() {
            eprintln!("{what} failed");
            return Ok(false);
        }
    }
    println!(
        "timeline: {}\ntrace:    {} (open it in ui.perfetto.dev)\nin words: {} explain {}",
        picture.display(),
        trace.display(),
        tree.tool("iree-profile").display(),
        bundle.display()
    );
    Ok(true)
}

/// What a run is given, on this device where none is named: IREE's own, which is taken then, has no clock of its queues.
fn on_device(given: &[String], device: &str) -> Vec<String> {
    let is_named = given.iter().any(|argument| argument == "--device" || argument.starts_with("--device="));
    let more = (!is_named).then(|| format!("--device={device}"));
    given.iter().cloned().chain(more).collect()
}

/// Compiles the demo's transformer block, and says how it is run; nothing, if it does not compile.
fn transformer(tree: &Tree, folder: &Path, device: &str) -> Result<Option<Vec<String>>> {
    let module = folder.join("transformer.vmfb");
    let compiled = Command::new(tree.python().program("iree-compile"))
        .args(["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"])
        .arg("--iree-llvmcpu-target-cpu=host")
        .arg(workspace::root()?.join("demo/models/transformer.mlir"))
        .arg("-o")
        .arg(&module)
        .status()
        .context("starting iree-compile")?;
    if !compiled.success() {
        return Ok(None);
    }
    let mut arguments = vec![
        format!("--device={device}"),
        format!("--module={}", module.display()),
        "--function=main".into(),
    ];
    let shapes = ["32x64", "64x64", "64x64", "64x64", "64x64", "64x256", "256x64"];
    arguments.extend(shapes.map(|shape| format!("--input={shape}xf32=0.01")));
    Ok(Some(arguments))
}

#[cfg(test)]
mod tests {
    use crate::workspace;
    use std::process::Command;

    /// A profile of one queue: 12 dispatches of 12 functions in one operation that began a millisecond after it was submitted.
    fn profile() -> String {
        let span = |begin: u32, end: u32| {
            format!(
                "\"physical_device_ordinal\":0,\"queue_ordinal\":0,\"derived_time_available\":true,\
                 \"start_driver_host_cpu_time_ns\":{begin},\"end_driver_host_cpu_time_ns\":{end}"
            )
        };
        let mut lines = vec![
            "{\"record_type\":\"queue_event\",\"op\":\"execute\",\"host_time_ns\":1000,\"ready_host_time_ns\":3000}".to_owned(),
            format!("{{\"record_type\":\"queue_device_event\",\"op\":\"execute\",{}}}", span(1_000_000, 1_012_000)),
        ];
        lines.extend((0..12).map(|number| {
            let begin = 1_000_000 + number * 1000;
            format!(
                "{{\"record_type\":\"dispatch_event\",\"key\":\"f_{number}\",{}}}",
                span(begin, begin + 900)
            )
        }));
        lines.join("\n")
    }

    /// What the script makes of a profile: the picture and the trace.
    fn drawn(name: &str, text: &str) -> Result<(String, String), String> {
        let folder = std::env::temp_dir().join(format!("timeline-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (lines, picture, trace) = (folder.join("p.jsonl"), folder.join("p.svg"), folder.join("p.json"));
        std::fs::write(&lines, text).unwrap();
        let script = workspace::root().unwrap().join("demo/timeline.py");
        let output = Command::new("python3")
            .arg(script)
            .args([&lines, &picture, &trace])
            .arg("a <run>")
            .output()
            .unwrap();
        let made = (std::fs::read_to_string(picture), std::fs::read_to_string(trace));
        std::fs::remove_dir_all(&folder).unwrap();
        match made {
            (Ok(picture), Ok(trace)) => Ok((picture, trace)),
            _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    #[test]
    fn names_are_in_order_with_colours_that_are_told_apart() {
        let (picture, _) = drawn("colours", &profile()).unwrap();
        let legend: Vec<(&str, &str)> = picture
            .split("height=\"12\" fill=\"")
            .skip(1)
            .filter_map(|rest| {
                let (colour, rest) = rest.split_once('"')?;
                Some((colour, rest.split_once("\"#222\">")?.1.split('<').next()?))
            })
            .collect();
        let names: Vec<&str> = legend.iter().map(|(_, name)| *name).collect();
        let expected: Vec<String> = (0..12).map(|number| format!("f_{number}")).collect();
        assert_eq!(names, expected);
        for (number, (one, _)) in legend.iter().enumerate() {
            for (other, _) in &legend[number + 1..] {
                let away = distance(one, other);
                assert!(away > 30.0, "{one} and {other} look alike: {away:.0}");
            }
        }
        assert!(picture.contains("a &lt;run&gt;"));
    }

    /// How far two colours are from each other for the eye: in CIELAB, where a step of about 2 can just be seen.
    fn distance(one: &str, other: &str) -> f64 {
        let lab = |colour: &str| {
            let linear = |at: usize| {
                let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
                if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
            };
            let (red, green, blue) = (linear(1), linear(3), linear(5));
            let root = |part: f64| if part > 0.008856 { part.cbrt() } else { 7.787 * part + 16.0 / 116.0 };
            let x = root((0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047);
            let y = root(0.2126 * red + 0.7152 * green + 0.0722 * blue);
            let z = root((0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883);
            [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
        };
        lab(one).iter().zip(lab(other)).map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn operations_submitted_outside_of_the_picture_are_one_triangle_with_all_names_at_each_edge() {
        let submitted = |op: &str, time: u32| {
            format!(
                "{{\"record_type\":\"queue_event\",\"op\":\"{op}\",\"host_time_ns\":{time},\"ready_host_time_ns\":{time}}}"
            )
        };
        let outside = [("alloca", 2000), ("alloca", 3000), ("dealloca", 2_000_000), ("barrier", 2_500_000)];
        let lines = outside.map(|(op, time)| submitted(op, time)).join("\n");
        let (picture, _) = drawn("edges", &format!("{}\n{lines}", profile())).unwrap();
        assert!(picture.contains(">execute, alloca ×2 submitted before<"), "{picture}");
        assert!(picture.contains(">dealloca, barrier submitted after<"), "{picture}");
        assert!(picture.contains("barrier: submitted 1488.0 µs after the picture ends"), "{picture}");
        let triangles: Vec<f64> =
            picture.split("<path d=\"M").filter(|rest| rest.contains(" h8 l-4 8 z")).map(begin).collect();
        assert_eq!(triangles, [118.0, 1086.0]);
    }

    /// The number that a text begins with.
    fn begin(text: &str) -> f64 {
        text.split(' ').next().unwrap().parse().unwrap()
    }

    /// On a machine without MPI `--quick` promises to go without them.
    #[test]
    fn every_job_of_several_processes_is_one_that_may_be_left_out() {
        let folder = workspace::root().unwrap().join("demo");
        let mut jobs = 0;
        for file in ["collectives.py", "sharded.py", "training.py", "demo.py", "networks.py"] {
            let text = std::fs::read_to_string(folder.join(file)).unwrap();
            let is_job = |line: &&str| line.contains("attempt") && line.contains("by mpirun");
            for line in text.lines().filter(is_job) {
                assert!(line.trim_start().starts_with("attempt_job("), "{file}: {line}");
                jobs += 1;
            }
        }
        assert!(jobs >= 2, "the jobs are called something else now");
    }

    #[test]
    fn run_that_names_no_device_is_profiled_on_the_one_that_the_command_is_for() {
        let given = |arguments: &[&str]| {
            super::on_device(&arguments.iter().map(ToString::to_string).collect::<Vec<_>>(), "acme")
        };
        assert_eq!(given(&["--module=m", "--device_profiling_x=1"])[2..], ["--device=acme"]);
        for named in [&["--device=mock", "--module=m"][..], &["--module=m", "--device", "mock"]] {
            assert_eq!(given(named), named);
        }
    }

    #[test]
    fn picture_begins_where_the_device_does() {
        let (picture, _) = drawn("begin", &profile()).unwrap();
        let first = picture.split("fill=\"#ddd\"").next().unwrap().rsplit("<rect x=\"").next().unwrap();
        let x: f64 = first.split('"').next().unwrap().parse().unwrap();
        assert!(x < 130.0 + 970.0 / 8.0, "the first bar begins at {x}");
    }

    #[test]
    fn trace_has_each_span_in_microseconds() {
        let (_, trace) = drawn("trace", &profile()).unwrap();
        assert_eq!(trace.matches("\"ph\": \"X\"").count(), 13);
        assert!(trace.contains("\"dur\": 12.0") && trace.contains("\"thread_name\""), "{trace}");
        assert!(trace.contains("\"execute submitted\""));
    }

    /// One queue's operation of 250 ns, 1,250 ns after its submission, at a time of day as profiles have it.
    fn profile_of_today() -> String {
        let submitted = 1_700_000_000_000_000_001_u64;
        let (begin, end) = (submitted + 1250, submitted + 1500);
        let place = "\"physical_device_ordinal\":0,\"queue_ordinal\":0";
        let ready = submitted + 50;
        format!(
            "{{\"record_type\":\"queue_event\",\"op\":\"fill\",{place},\"host_time_ns\":{submitted},\"ready_host_time_ns\":{ready}}}\n\
             {{\"record_type\":\"queue_device_event\",\"op\":\"fill\",{place},\"derived_time_available\":true,\
             \"start_driver_host_cpu_time_ns\":{begin},\"end_driver_host_cpu_time_ns\":{end}}}"
        )
    }

    #[test]
    fn trace_counts_from_the_first_event_since_a_time_of_day_in_microseconds_is_too_coarse() {
        let (_, trace) = drawn("today", &profile_of_today()).unwrap();
        assert!(trace.contains("\"ts\": 0.0,"), "{trace}");
        assert!(trace.contains("\"ts\": 1.25,") && trace.contains("\"dur\": 0.25,"), "{trace}");
    }

    #[test]
    fn trace_numbers_devices_and_queues_from_one_since_perfetto_takes_zero_for_the_idle_thread() {
        let (_, trace) = drawn("numbers", &profile_of_today()).unwrap();
        assert!(trace.contains("\"pid\": 1") && trace.contains("\"tid\": 1"), "{trace}");
        assert!(!trace.contains("\"pid\": 0") && !trace.contains("\"tid\": 0"), "{trace}");
        assert!(
            trace.contains("\"name\": \"queue 0\"") && trace.contains("\"name\": \"device 0: a <run>\""),
            "{trace}"
        );
    }

    /// What a reader would not take of a trace.
    fn broken_rules(name: &str, trace: &str) -> String {
        let path = std::env::temp_dir().join(format!("rules-{name}-{}.json", std::process::id()));
        std::fs::write(&path, trace).unwrap();
        let script = workspace::root().unwrap().join("demo/trace_rules.py");
        let output = Command::new("python3").arg(script).arg(&path).output().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Operations of one queue of which the second begins before the first has ended, each with a dispatch, and another queue that was
    /// only submitted to.
    fn profile_of_overlaps() -> String {
        let span = |begin: u32, end: u32| {
            format!(
                "\"physical_device_ordinal\":0,\"queue_ordinal\":1,\"derived_time_available\":true,\
                 \"start_driver_host_cpu_time_ns\":{begin},\"end_driver_host_cpu_time_ns\":{end}"
            )
        };
        let operation = |begin, end| {
            format!("{{\"record_type\":\"queue_device_event\",\"op\":\"execute\",{}}}", span(begin, end))
        };
        let dispatch = |name: &str, begin, end| {
            format!("{{\"record_type\":\"dispatch_event\",\"key\":\"{name}\",{}}}", span(begin, end))
        };
        let barrier = "{\"record_type\":\"queue_event\",\"op\":\"barrier\",\"queue_ordinal\":3,\
                       \"host_time_ns\":900,\"ready_host_time_ns\":950}";
        [
            operation(1000, 11_000),
            operation(6000, 16_000),
            operation(16_000, 17_000),
            dispatch("first", 1000, 10_000),
            dispatch("second", 12_000, 16_000),
            dispatch("beside", 13_000, 15_000),
            barrier.to_owned(),
        ]
        .join("\n")
    }

    #[test]
    fn trace_keeps_the_rules_of_its_format_also_where_operations_overlap() {
        for (name, profile) in
            [("one", profile()), ("day", profile_of_today()), ("overlaps", profile_of_overlaps())]
        {
            let (_, trace) = drawn(&format!("rules-{name}"), &profile).unwrap();
            assert_eq!(broken_rules(name, &trace), "", "{name}: {trace}");
        }
        let (_, trace) = drawn("beside", &profile_of_overlaps()).unwrap();
        // The second operation with its dispatch, and two names; what went on beside that dispatch is where there is room.
        assert_eq!(trace.matches("\"tid\": 66").count(), 2 + 2, "{trace}");
        assert!(trace.contains("\"queue 1, beside (2)\"") && trace.contains("\"queue 3\""), "{trace}");
    }

    #[test]
    fn rules_of_the_trace_format_are_noticed_to_be_broken() {
        let names = "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"p\"}},\
                     {\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":1,\"args\":{\"name\":\"t\"}}";
        let at = |ph: &str, ts: u32, more: &str| {
            format!("{{\"ph\":\"{ph}\",\"name\":\"n\",\"cat\":\"c\",\"ts\":{ts},\"pid\":1,\"tid\":1{more}}}")
        };
        let told = |name: &str, events: &[String]| {
            broken_rules(name, &format!("{{\"traceEvents\":[{names},{}]}}", events.join(",")))
        };
        let span = |ts, dur: &str| at("X", ts, &format!(",\"dur\":{dur}"));
        let flow = |ph, ts| at(ph, ts, ",\"id\":7");
        assert_eq!(
            told("right", &[at("B", 0, ""), span(1, "1"), at("E", 2, ""), flow("s", 0), flow("f", 1)]),
            ""
        );
        for (name, events, what) in [
            ("overlap", vec![span(0, "5"), span(3, "5")], "overlaps"),
            ("backwards", vec![span(3, "-1")], "before it begins"),
            ("endless", vec![at("B", 0, "")], "does not end"),
            ("unbegun", vec![at("E", 0, "")], "nothing has begun"),
            ("loose", vec![flow("f", 0)], "0 beginnings"),
            ("early", vec![flow("s", 2), flow("f", 1)], "ends first"),
            (
                "timeless",
                vec!["{\"ph\":\"X\",\"name\":\"n\",\"pid\":1,\"tid\":1}".to_owned()],
                "ts is missing",
            ),
            ("idle", vec![at("i", 0, "").replace("\"tid\":1", "\"tid\":0")], "tid is 0"),
            ("nameless", vec![at("i", 0, "").replace("\"tid\":1", "\"tid\":2")], "no name"),
        ] {
            let told = told(name, &events);
            assert!(told.contains(what), "{name}: {told:?}");
        }
    }

    #[test]
    fn operation_submitted_inside_of_the_picture_has_its_time_there() {
        let profile = profile().replace(
            "\"host_time_ns\":1000,\"ready_host_time_ns\":3000",
            "\"host_time_ns\":1005000,\"ready_host_time_ns\":1006500",
        );
        let (picture, _) = drawn("inside", &profile).unwrap();
        assert!(picture.contains("execute: submitted at 5.0 µs; ready 1.5 µs later"), "{picture}");
    }

    #[test]
    fn profile_without_spans_says_what_to_ask_for_and_that_the_device_needs_a_clock() {
        let refused = drawn("empty", "").unwrap_err();
        for part in [super::FAMILIES, "Device::clock"] {
            assert!(refused.contains(part), "{refused}");
        }
    }
}
