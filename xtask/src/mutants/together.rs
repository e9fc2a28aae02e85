// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Many mutants in one build.
//!
//! Building is most of what a mutant costs, so a file gets all of its wrong lines at once, each behind a question which of them is
//! meant: a statement `a();` becomes `{ if crate::wrong_line(7) { } else { a(); } }`, and the environment of the tests says
//! that it is number 7. What is guarded is the smallest statement, condition, arm or value around what is replaced; inside
//! a mutant's own branch nothing else is wrong.
//!
//! Not every mutant compiles: one that the compiler objects to in its own branch is left out, and tried on its own. And not every
//! piece of code means the same inside braces (a temporary goes sooner): where the compiler objects to a piece as it is, the
//! piece is given up, and its mutants go to the next larger one around it. What stands in constants cannot ask, and is
//! left out.

use super::operators::Mutation;
use anyhow::{Context, Result};
use proc_macro2::Span;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The variable that names the wrong line.
pub(super) const VARIABLE: &str = "WRONG_LINE";

/// What the crate's root gets for it.
pub(super) const SWITCH: &str = r#"
pub(crate) fn wrong_line(number: usize) -> bool {
    static MEANT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let meant = || std::env::var("WRONG_LINE").ok().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    *MEANT.get_or_init(meant) == number
}
"#;

/// A file with some of its wrong lines in it.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub(super) text: String,
    /// Those that are in it.
    pub(super) mutants: Vec<usize>,
    /// Bytes of the text, and what to do without if the compiler objects to them; the innermost come last.
    places: Vec<(Range<usize>, Blamed)>,
}

/// What the compiler objects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blamed {
    /// A mutant, as its own branch does not compile.
    Mutant(usize),
    /// A piece of the source, as it does not mean the same inside braces.
    Piece(Range<usize>),
}

impl Rendered {
    /// What is to blame where the compiler objects: the innermost there is.
    pub(super) fn blamed(&self, at: usize) -> Option<&Blamed> {
        self.places.iter().rev().find(|(place, _)| place.contains(&at)).map(|(_, blamed)| blamed)
    }

    /// The mutants whose branches are in a part of the text.
    pub(super) fn within(&self, part: &Range<usize>) -> Vec<usize> {
        let inside = |place: &Range<usize>| part.start <= place.start && place.end <= part.end;
        let mutants = self.places.iter().filter(|(place, _)| inside(place));
        mutants
            .filter_map(|(_, blamed)| match blamed {
                Blamed::Mutant(number) => Some(*number),
                Blamed::Piece(_) => None,
            })
            .collect()
    }
}

/// Puts mutants, each with its number, into a file, and braces around no piece that was given up. Those for which there is
/// no place are not in it.
pub(super) fn render(
    source: &str,
    mutants: &[(usize, &Mutation)],
    given_up: &HashSet<Range<usize>>,
) -> Result<Rendered> {
    let file = syn::parse_file(source).context("a file of the crate cannot be parsed")?;
    let mut finder = Finder::default();
    finder.visit_file(&file);
    let mut places = finder.places;
    places.retain(|place| !given_up.contains(place));
    places.sort_by_key(|place| (place.start, std::cmp::Reverse(place.end)));
    places.dedup();
    let mut guards: Vec<Guard<'_>> = Vec::new();
    for &(number, mutation) in mutants {
        let around =
            |place: &&Range<usize>| place.start <= mutation.range.start && mutation.range.end <= place.end;
        let Some(place) = places.iter().rfind(around) else { continue };
        match guards.iter_mut().find(|guard| guard.place == *place) {
            Some(guard) => guard.mutants.push((number, mutation)),
            None => guards.push(Guard { place: place.clone(), mutants: vec![(number, mutation)] }),
        }
    }
    guards.sort_by_key(|guard| (guard.place.start, std::cmp::Reverse(guard.place.end)));
    let mut rendered = Rendered::default();
    let mut left = guards.as_slice();
    rendered.piece(source, 0..source.len(), &mut left);
    Ok(rendered)
}

/// A piece of code, and what may be wrong in it.
struct Guard<'a> {
    place: Range<usize>,
    mutants: Vec<(usize, &'a Mutation)>,
}

impl Rendered {
    /// Writes a piece of the source, with the guards inside it.
    fn piece(&mut self, source: &str, piece: Range<usize>, left: &mut &[Guard<'_>]) {
        let mut at = piece.start;
        while let Some((guard, rest)) = left.split_first().filter(|(guard, _)| guard.place.start < piece.end)
        {
            *left = rest;
            self.text += &source[at..guard.place.start];
            at = guard.place.end;
            self.guard(source, guard, left);
        }
        self.text += &source[at..piece.end];
    }

    fn guard(&mut self, source: &str, guard: &Guard<'_>, left: &mut &[Guard<'_>]) {
        let begin = self.text.len();
        let outer = self.places.len();
        self.mutants.extend(guard.mutants.iter().map(|&(number, _)| number));
        self.places.push((begin..begin, Blamed::Piece(guard.place.clone())));
        self.text.push_str("{ ");
        for &(number, mutation) in &guard.mutants {
            let _ = write!(self.text, "if crate::wrong_line({number}) {{ ");
            let branch = self.text.len();
            self.text += &wrong(source, &guard.place, mutation);
            self.places.push((branch..self.text.len(), Blamed::Mutant(number)));
            self.text.push_str(" } else ");
        }
        self.text.push_str("{ ");
        self.piece(source, guard.place.clone(), left);
        self.text.push_str(" } }");
        let end = self.text.len();
        #[expect(clippy::indexing_slicing, reason = "it was added above")]
        let (place, _) = &mut self.places[outer];
        *place = begin..end;
    }
}

/// The piece of code with this mutant in it.
fn wrong(source: &str, place: &Range<usize>, mutation: &Mutation) -> String {
    let (head, tail) = (place.start..mutation.range.start, mutation.range.end..place.end);
    format!("{}{}{}", &source[head], mutation.by, &source[tail])
}

/// Finds what can stand inside braces and mean the same.
#[derive(Default)]
struct Finder {
    places: Vec<Range<usize>>,
}

impl Finder {
    fn add(&mut self, span: Span) {
        self.places.push(span.byte_range());
    }

    /// What is looked at; not what a pattern in it binds.
    fn add_condition(&mut self, condition: &syn::Expr) {
        match condition {
            syn::Expr::Let(_) => {}
            syn::Expr::Binary(binary) if binds(condition) => {
                self.add_condition(&binary.left);
                self.add_condition(&binary.right);
            }
            _ => self.add(condition.span()),
        }
    }
}

/// Whether a condition has a pattern.
fn binds(condition: &syn::Expr) -> bool {
    match condition {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder {
    // What is evaluated when the crate is built cannot ask for anything.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if function.sig.constness.is_none() {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if function.sig.constness.is_none() {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.add(block.span());
        visit::visit_block(self, block);
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        if matches!(statement, syn::Stmt::Expr(..) | syn::Stmt::Macro(_)) {
            self.add(statement.span());
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_local_init(&mut self, init: &'ast syn::LocalInit) {
        self.add(init.expr.span());
        visit::visit_local_init(self, init);
    }

    fn visit_expr_if(&mut self, branch: &'ast syn::ExprIf) {
        self.add_condition(&branch.cond);
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_while(&mut self, branch: &'ast syn::ExprWhile) {
        self.add_condition(&branch.cond);
        visit::visit_expr_while(self, branch);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let syn::Pat::Guard(pattern) = &arm.pat {
            self.add_condition(&pattern.guard);
        }
        self.add(arm.body.span());
        visit::visit_arm(self, arm);
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.add(closure.body.span());
        visit::visit_expr_closure(self, closure);
    }
}

#[cfg(test)]
mod tests {
    use super::super::operators;
    use super::*;

    /// The file with all of its mutants, each by its number.
    fn of(source: &str) -> String {
        let mutations = operators::mutations(source);
        let numbered: Vec<_> = mutations.iter().enumerate().collect();
        let rendered = render(source, &numbered, &HashSet::new()).unwrap();
        rendered.text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn condition_asks_which_line_is_wrong() {
        let text = of("fn a() -> u8 { if b < c { 1 } else { 2 } }");
        let expected = "if { if crate::wrong_line(0) { true } else if crate::wrong_line(1) { false } \
                        else if crate::wrong_line(2) { b <= c } else { b < c } } { 1 } else { 2 }";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn statement_is_dropped_in_a_branch_of_its_own() {
        let text = of("fn a() { b(); c(); }");
        assert!(text.contains("{ if crate::wrong_line(1) { } else { b(); } }"), "{text}");
        assert!(text.starts_with("fn a() { if crate::wrong_line(0) { {} } else { {"), "{text}");
    }

    #[test]
    fn pattern_that_binds_stays_bound() {
        let text = of("fn a() { if let Some(b) = c() && d == e { f(b); } g(); }");
        assert!(text.contains("&& { if crate::wrong_line("), "{text}");
        assert!(text.contains("{ d != e } else { d == e } } {"), "{text}");
    }

    #[test]
    fn every_rendering_is_a_file() {
        let source = include_str!("together.rs");
        let mutations = operators::mutations(source);
        let numbered: Vec<_> = mutations.iter().enumerate().collect();
        let rendered = render(source, &numbered, &HashSet::new()).unwrap();
        syn::parse_file(&rendered.text).unwrap();
        assert!(rendered.mutants.len() >= mutations.len() / 2);
    }

    #[test]
    fn constant_code_that_cannot_ask_is_left_out() {
        let source = "const A: bool = 1 < 2; const fn b(c: u8) -> bool { c < 3 }";
        let mutations = operators::mutations(source);
        let numbered: Vec<_> = mutations.iter().enumerate().collect();
        let rendered = render(source, &numbered, &HashSet::new()).unwrap();
        assert_eq!((rendered.text.as_str(), rendered.mutants.len()), (source, 0));
    }

    #[test]
    fn innermost_is_blamed() {
        let source = "fn a() { if b == c { d(); } }";
        let mutations = operators::mutations(source);
        let numbered: Vec<_> = mutations.iter().enumerate().collect();
        let rendered = render(source, &numbered, &HashSet::new()).unwrap();
        let wrong = mutations.iter().position(|mutation| mutation.operator == "== to !=").unwrap();
        let at = rendered.text.find("b != c").unwrap();
        assert_eq!(rendered.blamed(at), Some(&Blamed::Mutant(wrong)));
        let at = rendered.text.rfind("b == c").unwrap();
        assert_eq!(rendered.blamed(at), Some(&Blamed::Piece(12..18)));
        // Nothing stands at the signature.
        assert_eq!(rendered.blamed(0), None);
        assert_eq!(rendered.within(&(0..at)).len(), mutations.len());
    }

    #[test]
    fn mutants_of_a_piece_that_is_given_up_go_to_the_one_around_it() {
        let source = "fn a() { if b == c { d(); e(); } }";
        let mutations = operators::mutations(source);
        let numbered: Vec<_> = mutations.iter().enumerate().collect();
        let rendered = render(source, &numbered, &std::iter::once(12..18).collect()).unwrap();
        assert_eq!(rendered.mutants.len(), mutations.len());
        assert!(rendered.text.contains("{ if b != c { d(); e(); } }"), "{}", rendered.text);
        assert!(!rendered.text.contains("if { if"), "{}", rendered.text);
    }
}
