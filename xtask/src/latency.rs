// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask bench --latency`: how long calls of a module take on several devices, side by side.
//!
//! The devices take turns, a process for each turn, so that what else the machine does meets all of them.

use crate::bench::time;
use crate::iree::{FOR_THIS_PROCESSOR, Flavour, Plugin, Tree};
use crate::workspace;
use anyhow::{Context, Result, bail};
use fs_err as fs;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The beginning of the flag that names a device.
const DEVICE: &str = "--device=";

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Calls {
    /// How often the devices take turns
    #[arg(long, default_value_t = 5, value_name = "N", requires = "latency")]
    turns: u32,
    /// --device=URI, several times; the rest as for iree-run-module: --module, --function, --input, --parameters;
    /// --calls, --warm_up and --in_flight are numbers
    #[arg(last = true, requires = "latency", value_name = "FLAGS")]
    arguments: Vec<String>,
}

/// The times of a device.
#[derive(Debug, Default, PartialEq)]
struct Timing {
    /// Nanoseconds of each call, one after the other.
    latencies: Vec<u64>,
    /// Calls that were under way together, and their nanoseconds.
    at_once: (u64, u64),
}

pub(crate) fn run(options: &Calls, plugin: &Plugin) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(plugin))?;
    tree.build(&["hal_latency"])?;
    let ours = plugin.driver.first().map_or("mock", String::as_str);
    let arguments = match options.arguments.as_slice() {
        [] => small_model(&tree, ours)?,
        given => given.to_vec(),
    };
    let (devices, rest): (Vec<&str>, Vec<&str>) =
        arguments.iter().map(String::as_str).partition(|argument| argument.starts_with(DEVICE));
    if devices.is_empty() {
        bail!(
            "no device: name some, as in cargo xtask bench --latency -- --device=mock --device=local-task \
             --module=FILE --function=NAME"
        );
    }
    let mut timings: Vec<Timing> = devices.iter().map(|_| Timing::default()).collect();
    for _ in 0..options.turns.max(1) {
        for (device, timing) in devices.iter().zip(&mut timings) {
            timing.take(&turn(&tree.tool("hal_latency"), device, &rest)?)?;
        }
    }
    print!("{}", table(&devices, &mut timings));
    Ok(true)
}

/// A model of one operation on a device of ours and on IREE's.
fn small_model(tree: &Tree, ours: &str) -> Result<Vec<String>> {
    let folder = tree.folder().join("bench");
    fs::create_dir_all(&folder)?;
    let module = folder.join("elementwise.vmfb");
    tree.compile(&workspace::root()?.join("demo/models/elementwise.mlir"), &module, &FOR_THIS_PROCESSOR)?;
    let mut arguments = vec![
        format!("--device={ours}"),
        "--device=local-task".into(),
        format!("--module={}", module.display()),
        "--function=main".into(),
    ];
    arguments.extend(["--input=4x8xf32=1", "--input=4x8xf32=2", "--input=4x8xf32=3"].map(String::from));
    Ok(arguments)
}

fn turn(program: &Path, device: &str, rest: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .arg(device)
        .args(rest)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    if !output.status.success() {
        bail!("the module did not run on {device}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Timing {
    /// Adds what one turn printed.
    fn take(&mut self, text: &str) -> Result<()> {
        for line in text.lines() {
            if let Some(numbers) = line.strip_prefix("latencies") {
                let numbers = numbers.split_whitespace().map(str::parse::<u64>);
                self.latencies
                    .extend(numbers.collect::<Result<Vec<_>, _>>().context("a latency that is no number")?);
            } else if let Some(numbers) = line.strip_prefix("at once ") {
                let (calls, nanoseconds) =
                    numbers.split_once(' ').context("two numbers for calls at once")?;
                self.at_once.0 += calls.parse::<u64>().context("a count of calls")?;
                self.at_once.1 += nanoseconds.parse::<u64>().context("the time of calls at once")?;
            }
        }
        if self.latencies.is_empty() || self.at_once.1 == 0 {
            bail!("hal_latency printed no times:\n{text}");
        }
        Ok(())
    }

    /// The latency that so many percent of the calls do not exceed. The latencies are sorted.
    fn percentile(&self, percent: usize) -> u64 {
        let at = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(at).copied().unwrap_or_default()
    }

    /// Calls in a second, several under way at once.
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    fn throughput(&self) -> f64 {
        self.at_once.0 as f64 * 1e9 / self.at_once.1 as f64
    }
}

/// A row for each device; ratios are to the first.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn table(devices: &[&str], timings: &mut [Timing]) -> String {
    timings.iter_mut().for_each(|timing| timing.latencies.sort_unstable());
    let names: Vec<&str> = devices.iter().map(|device| device.trim_start_matches(DEVICE)).collect();
    let wide = names.iter().map(|name| name.len()).max().unwrap_or_default().max(8);
    let mut text = format!(
        "{:<wide$}{:>9}{:>11}{:>11}{:>11}{:>11}{:>14}{:>10}\n",
        "device", "calls", "p50", "p90", "p99", "most", "calls/s", "p50 to 1"
    );
    let first = timings.first().map_or(1, |timing| timing.percentile(50)).max(1);
    for (name, timing) in names.iter().zip(timings) {
        let shown = |percent| time(timing.percentile(percent) as f64);
        let ratio = timing.percentile(50) as f64 / first as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name:<wide$}{:>9}{:>11}{:>11}{:>11}{:>11}{:>14.0}{ratio:>10.2}",
            timing.latencies.len(),
            shown(50),
            shown(90),
            shown(99),
            shown(100),
            timing.throughput()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_add_up_and_percentiles_are_of_all_calls() {
        let mut timing = Timing::default();
        let numbers =
            |range: std::ops::RangeInclusive<u64>| range.map(|n| format!(" {n}")).collect::<String>();
        timing.take(&format!("latencies{}\nat once 10 1000\n", numbers(51..=100))).unwrap();
        timing.take(&format!("latencies{}\nat once 10 3000\n", numbers(1..=50))).unwrap();
        let text = table(&["--device=mock"], std::slice::from_mut(&mut timing));
        let percentiles = [50, 90, 99, 100].map(|percent| timing.percentile(percent));
        assert_eq!(percentiles, [50, 90, 99, 100]);
        assert!((timing.throughput() - 5e6).abs() < 1.0);
        assert!(text.contains("50ns") && text.contains("5000000") && text.contains("1.00"), "{text}");
    }

    #[test]
    fn output_without_times_is_an_error() {
        assert!(Timing::default().take("EXEC @main\n").is_err());
        assert!(Timing::default().take("latencies 1 x\nat once 1 1\n").is_err());
    }
}
