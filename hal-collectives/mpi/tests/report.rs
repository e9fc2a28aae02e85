// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tests of the benchmark's report and of the words that it takes: `cargo bench` runs no tests.
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]
#![allow(dead_code, reason = "the benchmark uses the rest")]

#[path = "../benches/collectives/only.rs"]
mod only;
#[path = "../benches/collectives/report.rs"]
mod report;

use only::{asks_for_ranks, asks_for_way, check};
use report::{Figures, model, report};

#[test]
fn lines_become_figures_and_others_are_refused() {
    let figures = Figures::read("ours-tcp all_reduce 2 8 1.500\nplain-tcp all_reduce 2 8 1.000\n").unwrap();
    assert_eq!(figures.0.get(&("ours-tcp".into(), "all_reduce".into(), 2, 8)), Some(&1.5));
    assert!(Figures::read("ours all_reduce two").is_err());
    let report = report(&figures, 2);
    assert!(report.contains("≤1.5 µs above: 0.5 ok"), "{report}");
    assert!(report.contains("1 of 1 goals met"), "{report}");
}

#[test]
fn figure_of_several_turns_is_their_median() {
    let turns = [3.0, 100.0, 1.0].map(|time| format!("ours-tcp all_reduce_in_place 2 8 {time}\n")).concat();
    let figures = Figures::read(&turns).unwrap();
    assert_eq!(figures.0.into_values().collect::<Vec<_>>(), [3.0]);
}

#[test]
fn words_leave_out_others_of_their_sort_alone() {
    assert!(asks_for_way("", "tcp") && asks_for_ranks("", 8));
    let only = "shared 2ranks 4ranks all_reduce 8";
    assert!(asks_for_way(only, "shared") && !asks_for_way(only, "tcp") && !asks_for_way(only, "process"));
    assert!(asks_for_ranks(only, 4) && !asks_for_ranks(only, 8));
    assert!(asks_for_ranks("tcp 1048576", 8) && !asks_for_way("tcp 1048576", "shared"));
}

#[test]
fn word_that_names_nothing_is_refused_with_those_that_do() {
    for only in ["", "tcp", "shared 2ranks all_gather 8", "process 8ranks 16777216"] {
        assert!(check(only, true).is_ok(), "{only}");
    }
    for only in ["xxxx", "tcp 3ranks", "all_reduce 9", "all"] {
        let refused = check(only, false);
        let unknown = only.split(' ').next_back().unwrap_or_default();
        let says = format!("--only {unknown}: that is none of process, shared, tcp");
        assert!(refused.as_ref().is_err_and(|text| text.starts_with(&says)), "{refused:?}");
    }
    assert!(check("tcp 8ranks", false).is_ok() && check("tcp 8ranks", true).is_err());
}

#[test]
fn slower_than_the_goal_is_said() {
    let text = "ours-tcp all_reduce 2 1048576 200\nplain-tcp all_reduce 2 1048576 100\n";
    let report = report(&Figures::read(text).unwrap(), 2);
    assert!(report.contains("0.50 NOT MET") && report.contains("0 of 1"), "{report}");
}

#[test]
fn ranks_that_share_processors_have_a_lower_goal() {
    let text = "ours-tcp all_reduce 4 1048576 100\nplain-tcp all_reduce 4 1048576 92\n";
    let figures = Figures::read(text).unwrap();
    assert!(report(&figures, 2).contains("≥0.9 of its bandwidth: 0.92 ok"), "{}", report(&figures, 2));
    assert!(report(&figures, 4).contains("≥0.95 of its bandwidth: 0.92 NOT MET"), "{}", report(&figures, 4));
}

#[test]
fn model_has_a_step_for_each_doubling() {
    let (small, large) = model(1.0, 1.0, 8, 8);
    assert!((small - 3.0).abs() < 1e-9 && (large - 1.75).abs() < 1e-9);
    let (small, _) = model(1.0, 1.0, 8, 2);
    assert!((small - 12.0).abs() < 1e-9);
}
