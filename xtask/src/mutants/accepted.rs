// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The survivors that were looked at and are accepted, each with the reason.
//!
//! The list is a TOML file of `[[accepted]]` tables, one `key = "text"` a line. It names a line by its text and not by
//! its number, so that it stays right while lines move. `"*"` stands for every line, or every operator; several operators,
//! or ids, are separated by commas. An entry whose line has changed is an [error](check): nobody has looked at the line as it is now.

use super::catalog::Mutant;
use anyhow::{Context, Result, bail};
use std::path::Path;

/// An entry of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Accepted {
    /// Relative to the crate.
    pub(super) file: String,
    /// The text of the line as it should be.
    pub(super) line: String,
    /// What makes it wrong, in one way or several.
    pub(super) operator: String,
    /// The ids of the only mutants that are meant; of all that look so, if there is none.
    pub(super) id: String,
    /// Why no test need notice.
    pub(super) reason: String,
}

impl Accepted {
    /// Whether it is accepted only until there is a test.
    pub(super) fn is_open(&self) -> bool {
        self.reason.starts_with("open:")
    }

    pub(super) fn covers(&self, mutant: &Mutant) -> bool {
        let is = |pattern: &str, text: &str| pattern == "*" || pattern == text;
        let is_one_of = |list: &str, text: &str| list.split(", ").any(|pattern| is(pattern, text));
        self.file == mutant.file
            && is(&self.line, &mutant.original)
            && is_one_of(&self.operator, &mutant.operator)
            && (self.id.is_empty() || is_one_of(&self.id, &mutant.id))
    }

    /// The same with each of its operators alone, and with each of its ids.
    fn parts(&self) -> impl Iterator<Item = Self> {
        let operators = self.operator.split(", ");
        let by_operator = operators.map(|operator| Self { operator: operator.into(), ..self.clone() });
        by_operator.chain(self.id.split(", ").map(|id| Self { id: id.into(), ..self.clone() }))
    }
}

/// Refuses a list with entries that no mutant is like, also by one of their operators or ids, and names them.
pub(super) fn check(list: &[Accepted], mutants: &[Mutant]) -> Result<()> {
    let is_stale = |part: &Accepted| !mutants.iter().any(|mutant| part.covers(mutant));
    let stale: Vec<String> = list
        .iter()
        .filter_map(|entry| entry.parts().find(is_stale))
        .map(|Accepted { file, line, operator, id, .. }| format!("{file} `{line}` [{operator}] {id}"))
        .collect();
    if stale.is_empty() {
        return Ok(());
    }
    bail!("no line can be wrong in this way any more; look at it as it is now: {}", stale.join("; "))
}

/// Reads the list; an absent file is an empty one.
pub(super) fn read(path: &Path) -> Result<Vec<Accepted>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Accepted>> {
    let mut list: Vec<Accepted> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[accepted]]" {
            list.push(Accepted::default());
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { bail!("line {number}: no `key = \"text\"`") };
        let value = unquote(value.trim()).with_context(|| format!("line {number}: text should be quoted"))?;
        let entry = list.last_mut().with_context(|| format!("line {number} stands before [[accepted]]"))?;
        match key.trim() {
            "file" => entry.file = value,
            "line" => entry.line = value,
            "operator" => entry.operator = value,
            "id" => entry.id = value,
            "reason" => entry.reason = value,
            other => {
                bail!("line {number}: there is no {other}; there are file, line, operator, id and reason")
            }
        }
    }
    for entry in &list {
        let Accepted { file, line, operator, reason, id: _ } = entry;
        if [file, line, operator, reason].into_iter().any(|text| text.is_empty()) {
            bail!("an entry needs file, line, operator and reason: {entry:?}");
        }
    }
    Ok(list)
}

fn unquote(value: &str) -> Option<String> {
    for quote in ["'''", "'"] {
        if let Some(text) = value.strip_prefix(quote) {
            return text.strip_suffix(quote).map(str::to_owned);
        }
    }
    let text = value.strip_prefix('"')?.strip_suffix('"')?;
    let (mut plain, mut escaped) = (String::new(), false);
    for c in text.chars() {
        if c == '\\' && !escaped {
            escaped = true;
            continue;
        }
        escaped = false;
        plain.push(c);
    }
    Some(plain)
}

/// An entry to paste into the list; the reason is for the reader to find.
pub(super) fn entry(mutant: &Mutant) -> String {
    let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    format!(
        "[[accepted]]\nfile = {}\nline = {}\noperator = {}\nreason = \"\"\n",
        quote(&mutant.file),
        quote(&mutant.original),
        quote(&mutant.operator)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant() -> Mutant {
        Mutant {
            file: "src/a.rs".into(),
            original: "if a < 'b' && c == \"d\\n\" {".into(),
            operator: "< to <=".into(),
            ..Mutant::default()
        }
    }

    #[test]
    fn entry_that_is_pasted_covers_its_mutant() {
        let pasted = entry(&mutant());
        assert!(parse(&pasted).is_err(), "a reason is asked for");
        let list = parse(&pasted.replace("reason = \"\"", "reason = 'it\"s so'")).unwrap();
        assert_eq!((list[0].reason.as_str(), list[0].is_open()), ("it\"s so", false));
        assert!(list[0].covers(&mutant()));
        assert!(!list[0].covers(&Mutant { operator: "< to >".into(), ..mutant() }));
        assert!(!list[0].covers(&Mutant { original: "if a {".into(), ..mutant() }));
    }

    #[test]
    fn star_is_every_line_of_its_file() {
        let list =
            parse("[[accepted]]\nfile = 'src/a.rs'\nline = '*'\noperator = '*'\nreason = 'r'").unwrap();
        assert!(list[0].covers(&mutant()));
        assert!(!list[0].covers(&Mutant { file: "src/b.rs".into(), ..mutant() }));
    }

    #[test]
    fn id_tells_lines_that_look_the_same_apart() {
        let list =
            parse("[[accepted]]\nfile = 'src/a.rs'\nline = '*'\noperator = '*'\nid = '1e47'\nreason = 'r'");
        let list = list.unwrap();
        assert!(list[0].covers(&Mutant { id: "1e47".into(), ..mutant() }));
        assert!(!list[0].covers(&Mutant { id: "8c11".into(), ..mutant() }));
    }

    #[test]
    fn one_entry_covers_each_of_its_operators_and_no_other() {
        let list = "[[accepted]]\nfile = 'src/a.rs'\nline = '*'\noperator = 'if true, < to <='\nreason = 'r'";
        let list = parse(list).unwrap();
        assert!(list[0].covers(&mutant()));
        assert!(list[0].covers(&Mutant { operator: "if true".into(), ..mutant() }));
        assert!(!list[0].covers(&Mutant { operator: "if false".into(), ..mutant() }));
    }

    #[test]
    fn entry_whose_line_has_changed_is_refused_by_name() {
        let entry = |operator: &str, id: &str| Accepted {
            file: "src/a.rs".into(),
            line: mutant().original,
            operator: operator.into(),
            id: id.into(),
            reason: "r".into(),
        };
        let mutants = [mutant(), Mutant { operator: "if true".into(), id: "1e47".into(), ..mutant() }];
        for (operator, id) in [("< to <=", ""), ("if true", "1e47"), ("< to <=, if true", ""), ("*", "")] {
            check(&[entry(operator, id)], &mutants).unwrap();
        }
        for (operator, id) in
            [("< to >", ""), ("if true", "8c11"), ("if true, if false", ""), ("*", "1e47, 8c11")]
        {
            let message = check(&[entry(operator, id)], &mutants).unwrap_err().to_string();
            assert!(message.contains("src/a.rs `if a < 'b' && c == \"d\\n\" {`"), "{message}");
            let changed = Mutant { original: "if a < 'c' {".into(), ..mutant() };
            assert!(check(&[entry("< to <=", "")], &[changed]).is_err());
        }
    }

    #[test]
    fn line_that_is_not_understood_is_refused_with_its_number() {
        let message = |text| format!("{:#}", parse(text).unwrap_err());
        assert!(message("file = 'a'").contains("line 1"));
        assert!(message("# fine\n[[accepted]]\nfile = a").contains("line 3"));
        assert!(message("[[accepted]]\nwhy = 'a'").contains("why"));
    }
}
