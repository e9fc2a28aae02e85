// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a device's URI: their declaration, and reading them with messages that name the allowed values.

use hal_semaphore::{Code, Failure};
use std::fmt::Display;
use std::fmt::Write as _;
use std::str::FromStr;

/// The declaration of one parameter. Help, messages and the table of the driver's page come from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key before the `=`.
    pub name: &'static str,
    /// The allowed values: words divided by `|`, or one placeholder in capitals such as `N`, `SIZE` or `TIME`.
    pub values: &'static str,
    /// The value of a device whose URI does not have the parameter.
    pub default: &'static str,
    /// The effect, and the limits of a number, in one sentence without its full stop. Markdown.
    pub effect: &'static str,
}

impl Parameter {
    /// The parameters as a Markdown table, for the driver's page.
    pub fn table(parameters: &[Self]) -> String {
        let mut table = String::from("| parameter | default | what it does |\n|---|---|---|\n");
        for Self { name, values, default, effect } in parameters {
            let values = values.replace('|', "\\|");
            let _ = writeln!(table, "| `{name}={values}` | {default} | {effect} |");
        }
        table
    }

    /// The parameters as lines of text, for `--dump_devices`.
    pub fn help(parameters: &[Self]) -> String {
        let mut help = String::from("- parameters:\n");
        for Self { name, values, default, effect } in parameters {
            let _ = writeln!(help, "  - {name}={values} (default: {default}): {}", without_markdown(effect));
        }
        help
    }
}

/// A text without the marks of code and with only the words of its links.
fn without_markdown(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, link)) = rest.split_once('[')
        && let Some((words, target)) = link.split_once("](")
        && let Some((_, after)) = target.split_once(')')
    {
        plain.extend([before, words]);
        rest = after;
    }
    plain.push_str(rest);
    plain.replace('`', "")
}

/// The `key=value` pairs behind the `?` of a device's URI.
///
/// A driver takes those it knows. [`finish`](Self::finish) refuses the rest.
#[derive(Debug)]
pub struct Parameters<'a> {
    driver: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
    declared: Vec<&'static str>,
    taken: Vec<&'static str>,
}

impl<'a> Parameters<'a> {
    /// Parameters of a URI of this driver.
    pub fn new(driver: &'a str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { driver, pairs: pairs.into_iter().collect(), declared: Vec::new(), taken: Vec::new() }
    }

    /// Adds declarations. The refusal of an unknown parameter lists what was declared or taken.
    pub fn declare(&mut self, parameters: &[Parameter]) {
        self.declared.extend(parameters.iter().map(|parameter| parameter.name));
    }

    /// The keys that were taken although nothing declares them.
    pub fn undeclared(&self) -> Vec<&'static str> {
        self.taken.iter().copied().filter(|key| !self.declared.contains(key)).collect()
    }

    /// The keys that are declared and were not taken.
    pub fn untaken(&self) -> Vec<&'static str> {
        self.declared.iter().copied().filter(|key| !self.taken.contains(key)).collect()
    }

    /// The path and the parameters of a URI of this driver. The scheme may be left out.
    pub fn of_uri(driver: &'a str, uri: &'a str) -> (&'a str, Self) {
        let rest = uri.strip_prefix(driver).and_then(|rest| rest.strip_prefix("://")).unwrap_or(uri);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        (path, Self::new(driver, pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))))
    }

    /// The value of a key, if it is there. A key that is given twice is refused.
    pub fn take(&mut self, key: &'static str) -> Result<Option<&'a str>, Failure> {
        self.taken.push(key);
        let mut found = None;
        let mut twice = false;
        self.pairs.retain(|&(name, value)| {
            if name == key {
                twice |= found.is_some();
                found = Some(value);
            }
            name != key
        });
        if twice {
            return Err(self.refuse(key, "is given twice"));
        }
        Ok(found)
    }

    /// Every value of a key, in order.
    pub fn take_all(&mut self, key: &'static str) -> Vec<&'a str> {
        self.taken.push(key);
        let mut found = Vec::new();
        self.pairs.retain(|&(name, value)| {
            if name == key {
                found.push(value);
            }
            name != key
        });
        found
    }

    /// A number between two others, inclusive.
    pub fn number<T>(&mut self, key: &'static str, default: T, least: T, most: T) -> Result<T, Failure>
    where
        T: FromStr + PartialOrd + Display,
    {
        Ok(self.optional_number(key, least, most)?.unwrap_or(default))
    }

    /// A number between two others, inclusive, if it is given.
    pub fn optional_number<T>(&mut self, key: &'static str, least: T, most: T) -> Result<Option<T>, Failure>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.take(key)? else { return Ok(None) };
        match text.parse::<T>() {
            Ok(number) if number >= least && number <= most => Ok(Some(number)),
            _ => Err(self.refuse(key, &format!("is {text:?}; it takes a number from {least} to {most}"))),
        }
    }

    /// A number of bytes: plain, or with `k`, `m`, `g` or `t` behind it, in powers of 1,024.
    pub fn bytes(&mut self, key: &'static str) -> Result<Option<u64>, Failure> {
        let Some(text) = self.take(key)? else { return Ok(None) };
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match text.get(digits.len()..).unwrap_or("").to_ascii_lowercase().as_str() {
            "" | "b" => Some(0),
            "k" | "kb" | "kib" => Some(10),
            "m" | "mb" | "mib" => Some(20),
            "g" | "gb" | "gib" => Some(30),
            "t" | "tb" | "tib" => Some(40),
            _ => None,
        };
        let bytes = unit.and_then(|shift: u32| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
        match bytes {
            Some(bytes) => Ok(Some(bytes)),
            None => {
                Err(self.refuse(key, &format!("is {text:?}; it takes a size such as 65536, 512k, 64m or 2g")))
            }
        }
    }

    /// A value that is one of some words.
    pub fn choice(
        &mut self,
        key: &'static str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>, Failure> {
        let Some(text) = self.take(key)? else { return Ok(None) };
        match words.iter().find(|&&word| word == text) {
            Some(word) => Ok(Some(word)),
            None => Err(self.refuse(key, &format!("is {text:?}; it takes {}", words.join(", ")))),
        }
    }

    /// The failure to return when a key's value makes no sense.
    pub fn refuse(&self, key: &str, why: &str) -> Failure {
        Failure::new(Code::InvalidArgument, format!("{}: parameter {key} {why}", self.driver))
    }

    /// Refuses the parameters that were not taken.
    pub fn finish(mut self) -> Result<(), Failure> {
        let Some(&(key, _)) = self.pairs.first() else { return Ok(()) };
        let mut known = std::mem::take(&mut self.declared);
        known.append(&mut self.taken);
        known.sort_unstable();
        known.dedup();
        let why = if known.is_empty() {
            "is unknown; this device takes no parameters".to_owned()
        } else {
            format!("is unknown; this device takes {}", known.join(", "))
        };
        Err(self.refuse(key, &why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_and_the_rest_is_refused_by_name() {
        let mut parameters = Parameters::new("mock", [("queues", "3"), ("colour", "red")]);
        assert_eq!(parameters.number("queues", 2, 1, 64).unwrap(), 3);
        assert_eq!(parameters.number("workers", 2, 1, 64).unwrap(), 2);
        let refused = parameters.finish().unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert_eq!(refused.message(), "mock: parameter colour is unknown; this device takes queues, workers");
    }

    const DECLARED: [Parameter; 2] = [
        Parameter {
            name: "mode",
            values: "slow|sure",
            default: "sure",
            effect: "how `it` works ([more](a.md))",
        },
        Parameter { name: "queues", values: "N", default: "2", effect: "queues, 1 to 64" },
    ];

    #[test]
    fn declared_parameters_are_listed_in_the_refusal_and_compared_with_what_was_taken() {
        let mut parameters = Parameters::new("mock", [("colour", "red")]);
        parameters.declare(&DECLARED);
        assert_eq!(parameters.untaken(), ["mode", "queues"]);
        assert_eq!(parameters.number("queues", 2, 1, 64).unwrap(), 2);
        assert_eq!(parameters.take("depth").unwrap(), None);
        assert_eq!(parameters.untaken(), ["mode"]);
        assert_eq!(parameters.undeclared(), ["depth"]);
        let refused = parameters.finish().unwrap_err();
        let says = "mock: parameter colour is unknown; this device takes depth, mode, queues";
        assert_eq!(refused.message(), says);
    }

    #[test]
    fn the_table_and_the_help_have_a_line_for_each_parameter() {
        let table = "| parameter | default | what it does |\n|---|---|---|\n\
                     | `mode=slow\\|sure` | sure | how `it` works ([more](a.md)) |\n\
                     | `queues=N` | 2 | queues, 1 to 64 |\n";
        assert_eq!(Parameter::table(&DECLARED), table);
        let help = "- parameters:\n  \
                      - mode=slow|sure (default: sure): how it works (more)\n  \
                      - queues=N (default: 2): queues, 1 to 64\n";
        assert_eq!(Parameter::help(&DECLARED), help);
    }

    #[test]
    fn nonsense_is_refused_with_what_would_be_right() {
        for (key, value, says) in [
            ("n", "0", "n is \"0\"; it takes a number from 1 to 8"),
            ("n", "9", "n is \"9\""),
            ("n", "two", "n is \"two\""),
            ("n", "", "n is \"\""),
        ] {
            let mut parameters = Parameters::new("mock", [(key, value)]);
            let refused = parameters.number("n", 1, 1, 8).unwrap_err();
            assert!(refused.message().contains(says), "{refused}");
        }
        let mut parameters = Parameters::new("mock", [("mode", "fast"), ("twice", "1"), ("twice", "2")]);
        assert!(parameters.choice("mode", &["slow", "sure"]).unwrap_err().message().contains("slow, sure"));
        assert!(parameters.take("twice").unwrap_err().message().contains("given twice"));
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("12", 12), ("512k", 512 << 10), ("64M", 64 << 20), ("2GiB", 2 << 30), ("1t", 1 << 40)]
        {
            assert_eq!(Parameters::new("mock", [("memory", text)]).bytes("memory").unwrap(), Some(bytes));
        }
        for text in ["", "k", "-1", "1x", "99999999999t"] {
            let refused = Parameters::new("mock", [("memory", text)]).bytes("memory").unwrap_err();
            assert!(refused.message().contains("64m"), "{refused}");
        }
    }
}
