// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `cargo xtask bench --edges`: what an edge between two operations costs on IREE's local-task, on mock and on every
//! emulated card, in the rows of IREE's benchmark of its amdgpu queues.

use crate::bench::machine;
use crate::iree::{Flavour, Plugin, Tree};
use crate::{cts, workspace};
use anyhow::{Context, Result};
use fs_err as fs;
use std::fmt::Write as _;
use std::process::Command;

/// The devices of the table: IREE's own, one in software, and the emulated cards.
const DEVICES: [&str; 6] = [
    "local-task",
    "mock",
    "gaudi://emulated",
    "nvidia://emulated",
    "qaic://emulated",
    "tenstorrent://emulated",
];

/// What a row costs on a device: nanoseconds for each operation.
#[derive(Clone, Debug, PartialEq)]
struct Cost {
    row: String,
    device: String,
    submit: f64,
    total: f64,
    first: f64,
}

pub(crate) fn run(quick: bool, plugin: &Plugin) -> Result<bool> {
    let tree = Tree::configure(Flavour::Plain, Some(plugin))?;
    tree.build(&["hal_edges"])?;
    let data = cts::testdata(&tree)?;
    let lines = tree.folder().join("edges.jsonl");
    let devices = DEVICES.into_iter().chain(plugin.driver.iter().map(String::as_str));
    let devices: Vec<&str> = devices.collect();
    let mut command = Command::new(tree.tool("hal_edges"));
    command.arg(&lines).arg(if quick { "4" } else { "16" }).arg(&data).args(&devices);
    workspace::run(&mut command, "the benchmark failed")?;
    let text = fs::read_to_string(&lines)?;
    let costs: Vec<Cost> = text
        .lines()
        .map(|line| parse(line).with_context(|| format!("hal_edges wrote {line:?}")))
        .collect::<Result<_>>()?;
    println!(
        "\n{}\nmicroseconds for each operation: its submission / until the host has seen the last signal\n",
        machine()
    );
    print!("{}", table(&costs, &devices, |cost| format!("{} / {}", micros(cost.submit), micros(cost.total))));
    println!("\nthe first use of semaphores: until the host has seen the last signal\n");
    print!("{}", table(&costs, &devices, |cost| micros(cost.first)));
    let json = workspace::target()?.join("edges.json");
    let body: Vec<&str> = text.lines().collect();
    workspace::write(&json, &format!("[\n{}\n]\n", body.join(",\n")))?;
    println!("\neverything measured: {}", json.display());
    Ok(true)
}

/// A line of hal_edges: an object of strings and numbers, written by our own program.
fn parse(line: &str) -> Option<Cost> {
    let value = |key: &str| line.split(&format!("\"{key}\":")).nth(1);
    let word = |key: &str| value(key)?.split('"').nth(1);
    let number = |key: &str| value(key)?.split([',', '}']).next()?.parse::<f64>().ok();
    let (name, count) = (word("row")?, number("count")?);
    Some(Cost {
        row: if count > 1.0 { format!("{name}: {count}") } else { name.to_owned() },
        device: word("device")?.to_owned(),
        submit: number("submit")?,
        total: number("total")?,
        first: number("first")?,
    })
}

fn micros(nanoseconds: f64) -> String {
    let micros = nanoseconds / 1e3;
    if micros < 10.0 { format!("{micros:.2}") } else { format!("{micros:.0}") }
}

/// The table as pages have it. A device that cannot do a row has a dash.
fn table(costs: &[Cost], devices: &[&str], shown: impl Fn(&Cost) -> String) -> String {
    let mut rows: Vec<&str> = costs.iter().map(|cost| cost.row.as_str()).collect();
    rows.dedup();
    let name = |device: &str| device.trim_end_matches("://emulated").to_owned();
    let mut text = String::from("| row: operations |");
    devices.iter().for_each(|device| _ = write!(text, " {} |", name(device)));
    text += "\n|---|";
    devices.iter().for_each(|_| text += "---|");
    text += "\n";
    for row in rows {
        let _ = write!(text, "| {row} |");
        for device in devices {
            let cost = costs.iter().find(|cost| cost.row == row && cost.device == *device);
            let _ = write!(text, " {} |", cost.map_or("–".to_owned(), &shown));
        }
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_read_and_has_its_place_in_the_table() {
        let line = |device: &str, total: u32| {
            format!(
                r#"{{"row":"edges, two queues","count":20,"device":"{device}","submit":420.0,{}"first":9000.0}}"#,
                format_args!(r#""total":{total}.0,"#)
            )
        };
        let costs: Vec<Cost> = [line("mock", 4580), line("qaic://emulated", 45_800)]
            .iter()
            .map(|line| parse(line).unwrap())
            .collect();
        let text = table(&costs, &["local-task", "mock", "qaic://emulated"], |cost| {
            format!("{} / {}", micros(cost.submit), micros(cost.total))
        });
        assert!(
            text.starts_with("| row: operations | local-task | mock | qaic |\n|---|---|---|---|\n"),
            "{text}"
        );
        assert!(text.ends_with("| edges, two queues: 20 | – | 0.42 / 4.58 | 0.42 / 46 |\n"), "{text}");
        assert!(parse("nonsense").is_none());
    }
}
