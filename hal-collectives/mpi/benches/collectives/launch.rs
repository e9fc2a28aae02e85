// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Starts ranks of this program and of plain MPI in turns, and reports what they print.

use crate::only::{asks_for_ranks, asks_for_way, check};
use crate::report::{Figures, TURNS, report};
use std::path::Path;
use std::process::{Command, Stdio};

/// How processes reach each other: what Open MPI is told, and for how many ranks it is measured.
const WAYS: [(&str, &str, &[u32]); 2] =
    [("shared", "self,vader", &[2, 4, 8]), ("tcp", "self,tcp", &[2, 4, 8])];

/// Measures everything, or what the words of `only` name.
pub(crate) fn run(quick: bool, only: &str) -> Result<(), String> {
    check(only, quick)?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let plain = folder.join("plain_mpi");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/collectives/plain_mpi.c");
    output(
        "compiling plain MPI's calls (mpicc, which libopenmpi-dev has)",
        Command::new("mpicc").args(["-O2", "-Wall", "-Wextra", "-o"]).args([&plain, &source]),
    )?;
    let ours = std::env::current_exe().map_err(|error| format!("finding this program: {error}"))?;
    let began = std::time::Instant::now();
    let mut text = String::new();
    if asks_for_way(only, "process") {
        let alone = || {
            let mut alone = Command::new(&ours);
            alone.args(["--rank", "process", "--only", only]);
            alone
        };
        for _ in 0..TURNS {
            text += &output("measuring: within a process", &mut alone())?;
            text += &output("measuring: within a process, beside arithmetic", alone().arg("--overlap"))?;
        }
    }
    for (way, transports, ranks) in WAYS.into_iter().filter(|(way, ..)| asks_for_way(only, way)) {
        for ranks in ranks.iter().filter(|&&ranks| (!quick || ranks == 2) && asks_for_ranks(only, ranks)) {
            let job = |program: &Path| {
                let mut job = Command::new("mpirun");
                // Unbound, as a rank has a thread that moves the data of operations that it does not wait for.
                job.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                job.args(["--mca", "btl", transports]).stdin(Stdio::null());
                job.args(["-n", &ranks.to_string()]).arg(program);
                job
            };
            let own = || {
                let mut own = job(&ours);
                own.args(["--rank", &format!("ours-{way}"), "--only", only]);
                own
            };
            // In turns, as a machine is faster at one time than at another, and as the pages that a process gets lie
            // well in the caches or not: both were seen to be a fifth of a figure.
            for _ in 0..TURNS {
                let what = format!("measuring: plain MPI, {way}, {ranks} ranks");
                text += &output(&what, job(&plain).arg(format!("plain-{way}")))?;
                let what = format!("measuring: ours, {way}, {ranks} ranks");
                text += &output(&what, &mut own())?;
                text += &output(&format!("{what}, beside arithmetic"), own().arg("--overlap"))?;
            }
        }
    }
    let file = folder.join("bench-collectives.txt");
    std::fs::write(&file, &text).map_err(|error| format!("writing {}: {error}", file.display()))?;
    let version = output("the version of MPI", Command::new("mpirun").arg("--version"))?;
    println!("\n{}, {} s", version.lines().next().unwrap_or_default(), began.elapsed().as_secs());
    print!("{}", report(&Figures::read(&text)?, processors()));
    println!("\neverything measured: {}", file.display());
    Ok(())
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |number| u32::try_from(number.get()).unwrap_or(u32::MAX))
}

fn output(what: &str, command: &mut Command) -> Result<String, String> {
    println!("{what}");
    let output = command.output().map_err(|error| format!("{what}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{what}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
