// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The table of what was measured, its goals, and whether the model on paper (`docs/collectives.md`) says how
//! times grow.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How often jobs take turns, whose figures are medians of rounds.
pub(crate) const TURNS: usize = 3;

/// What this is measured against: the least part of plain MPI's bandwidth from this size on, also with more ranks
/// than processors, the most microseconds above its latency, and the least part of the ideal that is reached when
/// computing and moving go
/// on at once. Groups within a process are compared with processes that share memory.
const BANDWIDTH: f64 = 0.95;
const SHARED_BANDWIDTH: f64 = 0.9;
const LARGE: u64 = 64 << 10;
const LATENCY: f64 = 1.5;
const OVERLAP: f64 = 0.9;

/// Microseconds, by way, case, number of ranks and number of bytes: the median of all turns.
pub(crate) struct Figures(pub(crate) BTreeMap<(String, String, u32, u64), f64>);

impl Figures {
    /// Reads what ranks have printed.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let line = |line: &str| {
            let mut words = line.split(' ');
            let (way, case) = (words.next()?.to_owned(), words.next()?.to_owned());
            let (ranks, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(((way, case, ranks, bytes), words.next()?.parse().ok()?))
        };
        let lines = text.lines().map(|text| line(text).ok_or_else(|| format!("a rank wrote {text:?}")));
        let mut all: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for line in lines {
            let (figure, time) = line?;
            all.entry(figure).or_default().push(time);
        }
        Ok(Self(all.into_iter().map(|(figure, times)| (figure, median(times))).collect()))
    }
}

/// The middle of some values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Bytes that cross the link of each rank at least, in GB/s.
fn bus_bandwidth(case: &str, ranks: u32, bytes: u64, microseconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sizes that are measured are small enough")]
    let bytes = bytes as f64;
    let others = f64::from(ranks - 1);
    let moved =
        if case.starts_with("all_gather") { others * bytes } else { 2.0 * others / f64::from(ranks) * bytes };
    moved / microseconds / 1e3
}

/// Times of one case from 2 to 8 ranks by the model of the documentation, from those of 2: a step for each
/// doubling, and twice the operand, slower where ranks share processors.
pub(crate) fn model(two_small: f64, two_large: f64, ranks: u32, processors: u32) -> (f64, f64) {
    let shared = |ranks: u32| (f64::from(ranks) / f64::from(processors)).max(1.0);
    let contention = shared(ranks) / shared(2);
    let moved = 2.0 * f64::from(ranks - 1) / f64::from(ranks);
    (two_small * f64::from(ranks).log2() * contention, two_large * moved * contention)
}

struct Goals {
    met: usize,
    judged: usize,
}

impl Goals {
    fn judge(&mut self, reached: bool) -> &'static str {
        self.judged += 1;
        self.met += usize::from(reached);
        if reached { "ok" } else { "NOT MET" }
    }
}

pub(crate) fn report(figures: &Figures, processors: u32) -> String {
    let mut text = format!(
        "{processors} processors, which more ranks than that share; medians of {TURNS} turns. \
         Bytes: sent by a rank. GB/s: bytes that cross the link of each rank at least.\n\
         \"process\": ranks of one process; \"sleeps\": a rank that is woken at the end instead of polling. Plain: \
         MPI's own non-blocking collectives, by the same launcher in the same run; for ranks of one process over \
         shared memory.\n"
    );
    let mut goals = Goals { met: 0, judged: 0 };
    let _ = writeln!(
        text,
        "\n{:<16}{:<20}{:>6}{:>10}{:>12}{:>12}{:>8}  goal",
        "way", "case", "ranks", "bytes", "µs", "plain µs", "GB/s"
    );
    for ((way, case, ranks, bytes), &time) in figures
        .0
        .iter()
        .filter(|((way, case, ..), _)| !way.starts_with("plain") && !case.starts_with("overlap"))
    {
        let theirs = if way == "process" { "plain-shared".into() } else { way.replace("ours", "plain") };
        let of = |case: String| figures.0.get(&(theirs.clone(), case, *ranks, *bytes)).copied();
        let plain = of(case.replace("_sleeps", ""));
        let goal = match plain {
            Some(plain) if *bytes <= 8 && !case.ends_with("sleeps") => {
                let above = time - plain;
                format!("≤{LATENCY} µs above: {above:.1} {}", goals.judge(above <= LATENCY))
            }
            Some(plain)
                if *bytes * u64::from(if case.starts_with("all_gather") { *ranks } else { 1 }) >= LARGE =>
            {
                let part = plain / time;
                let least = if *ranks > processors { SHARED_BANDWIDTH } else { BANDWIDTH };
                format!("≥{least} of its bandwidth: {part:.2} {}", goals.judge(part >= least))
            }
            _ => String::new(),
        };
        let plain = plain.map_or("-".to_owned(), |plain| format!("{plain:.1}"));
        let _ = writeln!(
            text,
            "{way:<16}{case:<20}{ranks:>6}{bytes:>10}{time:>12.1}{plain:>12}{:>8.2}  {goal}",
            bus_bandwidth(case, *ranks, *bytes, time)
        );
    }
    overlaps(figures, processors, &mut text, &mut goals);
    growth(figures, processors, &mut text);
    let _ = writeln!(text, "\n{} of {} goals met in this run", goals.met, goals.judged);
    text
}

/// Arithmetic of rank 0 on a processor of its own beside an all-reduce: the ideal is the longer of both.
fn overlaps(figures: &Figures, processors: u32, text: &mut String, goals: &mut Goals) {
    if processors < 2 {
        let _ = writeln!(text, "\nComputing and moving at once: not measured, as that needs two processors.");
        return;
    }
    let _ = writeln!(
        text,
        "\nRank 0 computes on one processor; what moves has the {} others.\n\
         {:<16}{:>6}{:>12}{:>14}{:>12}  overlap, goal ≥{OVERLAP}",
        processors - 1,
        "way",
        "ranks",
        "moving µs",
        "computing µs",
        "both µs",
    );
    for ((way, _, ranks, bytes), &both) in
        figures.0.iter().filter(|((_, case, ..), _)| case == "overlap_both")
    {
        let of = |case: &str| figures.0.get(&(way.clone(), case.to_owned(), *ranks, *bytes)).copied();
        let (Some(moves), Some(computes)) = (of("overlap_moves"), of("overlap_computes")) else { continue };
        let part = moves.max(computes) / both;
        let _ = writeln!(
            text,
            "{way:<16}{ranks:>6}{moves:>12.0}{computes:>14.0}{both:>12.0}  {part:.2} {}",
            goals.judge(part >= OVERLAP)
        );
    }
}

/// How all-reduces grow, and what the model makes of those of two ranks; and what it says of ranks that are not here.
fn growth(figures: &Figures, processors: u32, text: &mut String) {
    let _ = writeln!(
        text,
        "\n{:<16}{:>6}{:>12}{:>10}{:>14}{:>10}",
        "way", "ranks", "8 bytes µs", "model", "16 MiB µs", "model"
    );
    for way in ["ours-shared", "ours-tcp"] {
        let of =
            |ranks: u32, bytes: u64| figures.0.get(&(way.into(), "all_reduce".into(), ranks, bytes)).copied();
        let (Some(small), Some(large)) = (of(2, 8), of(2, 16 << 20)) else { continue };
        for ranks in [2, 4, 8] {
            let (Some(own_small), Some(own_large)) = (of(ranks, 8), of(ranks, 16 << 20)) else { continue };
            let (small, large) = model(small, large, ranks, processors);
            let _ = writeln!(
                text,
                "{way:<16}{ranks:>6}{own_small:>12.1}{small:>10.1}{own_large:>14.0}{large:>10.0}"
            );
        }
        for ranks in [1_000, 100_000] {
            // Of ranks with a processor each; a thousand are no power of two, and their pairs have two steps
            // and the operand twice more.
            let pairs = if u32::is_power_of_two(ranks) { 0.0 } else { 2.0 };
            let steps = f64::from(ranks.ilog2()) + pairs;
            let _ = writeln!(
                text,
                "{way:<16}{ranks:>6}{:>12}{:>10.1}{:>14}{:>10.0}",
                "-",
                small * steps,
                "-",
                large * (2.0 + pairs)
            );
        }
    }
}
