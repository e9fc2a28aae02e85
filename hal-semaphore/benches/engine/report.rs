// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The table: a figure a row, as text for people and as a line of JSON for programs.

use std::fmt::Write as _;
use std::path::Path;

/// The measurements so far.
#[derive(Default)]
pub(crate) struct Report {
    lines: String,
    judged: u32,
    met: u32,
}

impl Report {
    /// The rows that follow are about this.
    pub(crate) fn section(&self, title: &str) {
        println!("\n{title}\n{:<66}{:>9}{:>12} {:<14}{:>9}  met", "", "n", "", "", "goal");
    }

    /// A note on the rows around it.
    pub(crate) fn note(&self, text: &str) {
        println!("  {text}");
    }

    /// A figure that has no goal.
    pub(crate) fn row(&mut self, case: &str, n: u64, value: f64, unit: &str) {
        self.add(case, n, value, unit, None);
    }

    /// A figure that is to be `goal` or less.
    pub(crate) fn judged(&mut self, case: &str, n: u64, value: f64, unit: &str, goal: f64) {
        self.add(case, n, value, unit, Some(goal));
    }

    fn add(&mut self, case: &str, n: u64, value: f64, unit: &str, goal: Option<f64>) {
        // A missing measurement is neither met nor missed.
        let met = goal.filter(|_| value.is_finite()).map(|goal| value <= goal);
        self.judged += u32::from(met.is_some());
        self.met += u32::from(met == Some(true));
        let verdict = match met {
            Some(true) => "yes",
            Some(false) => "NO",
            None if goal.is_some() => "not measured",
            None => "",
        };
        let shown = goal.map_or(String::new(), |goal| format!("≤ {goal}"));
        println!("{case:<66}{n:>9}{value:>12.3} {unit:<14}{shown:>9}  {verdict}");
        let number = |value: f64| if value.is_finite() { value.to_string() } else { "null".to_owned() };
        let goal = goal.map_or("null".to_owned(), number);
        let met = met.map_or("null".to_owned(), |met| met.to_string());
        let value = number(value);
        // Names and units are this program's own, and have nothing to escape.
        let _ = writeln!(
            self.lines,
            r#"{{"case":"{case}","n":{n},"value":{value},"unit":"{unit}","goal":{goal},"met":{met}}}"#
        );
    }

    /// How busy the machine is, with others too: what to make of the times.
    pub(crate) fn load(&mut self, when: &str) {
        let load = std::fs::read_to_string("/proc/loadavg").ok();
        let load = load.and_then(|load| load.split(' ').next()?.parse().ok());
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        self.row(
            &format!("load average {when}, n processors"),
            processors,
            load.unwrap_or(f64::NAN),
            "threads",
        );
    }

    /// Returns how many goals are met, and writes the lines of JSON where cargo builds.
    pub(crate) fn finish(&self, write: bool) {
        println!("\n{} of {} goals met in this run", self.met, self.judged);
        if write {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("engine-bench.json");
            match std::fs::write(&path, &self.lines) {
                Ok(()) => println!("everything measured: {}", path.display()),
                Err(error) => println!("{} cannot be written: {error}", path.display()),
            }
        }
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value that this part of the values does not exceed.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and the last index")]
    let index = ((values.len() as f64 * part) as usize).min(last);
    values.get(index).copied().unwrap_or(f64::NAN)
}
