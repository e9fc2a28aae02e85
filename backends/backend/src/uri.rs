// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of a device's URI, read with messages that say what would have been right.

use hal_semaphore::{Code, Failure};
use std::fmt::Display;
use std::str::FromStr;

/// The `key=value` pairs behind the `?` of a device's URI. A parameter that the backend has not taken when it is done is refused.
#[derive(Debug)]
pub struct Parameters<'a> {
    driver: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Parameters<'a> {
    /// Parameters of a URI of this driver.
    pub fn new(driver: &'a str, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self { driver, pairs: pairs.into_iter().collect(), known: Vec::new() }
    }

    /// The value of a key, if it is there. A key that is given twice is refused.
    pub fn take(&mut self, key: &'static str) -> Result<Option<&'a str>, Failure> {
        self.known.push(key);
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
        self.known.push(key);
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
        let Some(text) = self.take(key)? else { return Ok(default) };
        match text.parse::<T>() {
            Ok(number) if number >= least && number <= most => Ok(number),
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
        self.known.sort_unstable();
        let why = if self.known.is_empty() {
            "is unknown; this device takes no parameters".to_owned()
        } else {
            format!("is unknown; this device takes {}", self.known.join(", "))
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
