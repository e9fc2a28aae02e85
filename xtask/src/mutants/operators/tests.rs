// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

use super::*;

/// Each mutation of a snippet as its operator and the line that it makes.
fn of(source: &str) -> Vec<(String, String)> {
    let line = |mutation: &Mutation| {
        let text = mutation.apply(source);
        (mutation.operator.clone(), text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    mutations(source).iter().map(line).collect()
}

fn operators(source: &str) -> Vec<String> {
    of(source).into_iter().map(|(operator, _)| operator).collect()
}

fn is(found: &[(String, String)], operator: &str, text: &str) -> bool {
    found.iter().any(|(name, line)| name == operator && line == text)
}

#[test]
fn comparisons_are_told_from_generics() {
    let found = of("let a = b.c() < d && e >= f;");
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(is(&found, "< to <=", "let a = b.c() <= d && e >= f;"));
    assert!(is(&found, "&& to ||", "let a = b.c() < d || e >= f;"));
    assert!(is(&found, ">= to >", "let a = b.c() < d && e > f;"));
    assert_eq!(operators("let a: Vec<Option<u8>> = <X as Y<'_>>::new(|| &&b);"), [""; 0]);
}

#[test]
fn conditions_become_true_and_false() {
    let found = of("if !a { b } else if c == d { e }");
    assert!(is(&found, "if true", "if true { b } else if c == d { e }"));
    assert!(is(&found, "if false", "if !a { b } else if false { e }"));
    assert!(is(&found, "! dropped", "if a { b } else if c == d { e }"));
    assert!(is(&found, "== to !=", "if !a { b } else if c != d { e }"));
    assert_eq!(found.len(), 6, "{found:?}");
    assert_eq!(operators("while a() { b }"), ["while false"]);
    assert_eq!(operators("match a { b if c => d, }"), ["if true", "if false"]);
}

#[test]
fn pattern_that_binds_is_left_alone() {
    assert_eq!(operators("if let Some(a) = b { c }"), [""; 0]);
    assert_eq!(operators("if let Some(a) = b && c { d }"), ["&& to ||"]);
    assert_eq!(operators("let Some(a) = b else { return };"), [""; 0]);
}

#[test]
fn statements_with_an_effect_are_dropped() {
    let found = of("{ a.b(|| { c(); d }); let e = f(g); *h.i() += 1; j = k; l }");
    assert!(is(&found, "statement dropped", "{ let e = f(g); *h.i() += 1; j = k; l }"));
    assert!(is(&found, "statement dropped", "{ a.b(|| { d }); let e = f(g); *h.i() += 1; j = k; l }"));
    assert!(is(&found, "statement dropped", "{ a.b(|| { c(); d }); let e = f(g); j = k; l }"));
    assert!(is(&found, "statement dropped", "{ a.b(|| { c(); d }); let e = f(g); *h.i() += 1; l }"));
    assert!(is(&found, "+= to -=", "{ a.b(|| { c(); d }); let e = f(g); *h.i() -= 1; j = k; l }"));
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(operators("struct A { a: fn(u8), b: C }"), [""; 0]);
}

#[test]
fn ways_out_are_dropped_where_that_is_not_an_empty_condition() {
    assert_eq!(operators("if a { return; } b"), ["if true", "if false"]);
    let found = of("{ a(); return b; }");
    assert!(is(&found, "statement dropped", "{ a(); }"), "{found:?}");
    assert!(is(
        &of("match a { b => continue, c => d, }"),
        "continue dropped",
        "match a { b => {}, c => d, }"
    ));
}

#[test]
fn values_are_swapped() {
    assert_eq!(operators("{ a = true; b(false) }"), ["statement dropped", "true to false", "false to true"]);
    assert_eq!(operators("a.min(b) + 1"), ["min to max", "+ 1 dropped"]);
    assert_eq!(operators("min(a, b) + 10"), [""; 0]);
    assert_eq!(operators("x(Some(a)).y()"), ["Some to None"]);
    assert!(is(&of("x.load(Ordering::Acquire)"), "Acquire to Relaxed", "x.load(Ordering::Relaxed)"));
}

#[test]
fn bodies_of_functions_without_a_result_or_with_a_bool() {
    let found = of("pub(crate) fn a<T: B<C>>(d: T) { e(d); f(); }");
    assert!(is(&found, "body dropped", "pub(crate) fn a<T: B<C>>(d: T) {}"), "{found:?}");
    let found = of("fn a(&self) -> bool { b }");
    assert!(is(&found, "body true", "fn a(&self) -> bool { true }"), "{found:?}");
    assert!(is(&found, "body false", "fn a(&self) -> bool { false }"));
    assert_eq!(operators("fn a(b: impl Fn(u8) -> C) -> D { e }"), [""; 0]);
    assert_eq!(operators("trait A { fn a(&self); fn b(&self) {} }"), [""; 0]);
}

#[test]
fn body_that_is_the_value_already_is_left_alone() {
    assert_eq!(operators("fn a(&self) -> bool { false }"), ["body true"]);
}

#[test]
fn body_of_one_statement_is_dropped_once() {
    assert_eq!(operators("fn a() { b(); }"), ["body dropped"]);
}

#[test]
fn deliberate_defects_and_checks_are_left_alone() {
    assert_eq!(operators("if is_mutated(Mutation::A) { b }"), [""; 0]);
    assert_eq!(operators("if !is_mutated(Mutation::A) { b }"), [""; 0]);
    assert_eq!(operators("debug_assert!(a == b); #[cfg(test)] mod tests { fn a() { b(); } }"), [""; 0]);
}

#[test]
fn code_that_only_a_deliberate_defect_runs_is_left_alone() {
    assert_eq!(operators("if is_mutated(Mutation::A) { a(); b(); } c"), [""; 0]);
    assert_eq!(operators("if is_mutated(Mutation::A) && !a() { b(); }"), [""; 0]);
    assert_eq!(operators("if a && !is_mutated(Mutation::A) { b(); c(); }").len(), 5);
    assert_eq!(operators("if is_mutated(Mutation::A) || !a() { b(); c(); }").len(), 6);
}

#[test]
fn same_under_another_name_is_left_out() {
    assert_eq!(operators("{ d(); if a { b(); } c }"), ["statement dropped", "if true", "if false"]);
    // A condition that is not made false, or one of two ways.
    assert_eq!(operators("if let Some(a) = b { c(); }"), ["statement dropped"]);
    let two_ways = ["if true", "if false", "statement dropped", "statement dropped"];
    assert_eq!(operators("if a { b(); } else { c(); }"), two_ways);
    assert_eq!(operators("{ let a = b(); drop(a); }"), [""; 0]);
    assert_eq!(operators("{ let a = b(); drop(a); c }"), ["statement dropped"]);
}

#[test]
fn anchor_is_the_line_that_a_reader_looks_at() {
    let source = "fn a(\n) {\n    b();\n    c();\n}";
    let lines: Vec<_> = mutations(source)
        .iter()
        .map(|mutation| source.get(..mutation.anchor).unwrap().lines().count().max(1))
        .collect();
    assert_eq!(lines, [1, 3, 4]);
}
