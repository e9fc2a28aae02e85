// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What stands between the name and the type of an access to memory: order, scope, space and caches. One thread runs
//! at a time, and what it writes is there; which words go together, the sections `ld`, `st` and `atom` of PTX's manual
//! say.

use super::decode::Decoded;

/// The words of an access.
#[derive(Debug, Default)]
pub(super) struct Qualifiers<'a> {
    order: Option<&'a str>,
    scope: Option<&'a str>,
    space: Option<&'a str>,
    cache: Option<&'a str>,
    mmio: bool,
    nc: bool,
}

fn once<'a>(place: &mut Option<&'a str>, word: &'a str, error: &str) -> Decoded<()> {
    match place.replace(word) {
        None => Ok(()),
        Some(before) => Err(format!("`{before}` and `{word}`: {error}")),
    }
}

impl<'a> Qualifiers<'a> {
    /// Takes the next word.
    pub(super) fn take(&mut self, word: &'a str) -> Decoded<()> {
        match word {
            "volatile" | "weak" | "relaxed" | "acquire" | "release" | "acq_rel" => {
                once(&mut self.order, word, "they are mutually exclusive")
            }
            "cta" | "gpu" | "sys" => once(&mut self.scope, word, "there is one scope"),
            "mmio" => {
                self.mmio = true;
                Ok(())
            }
            "nc" => {
                self.nc = true;
                Ok(())
            }
            "ca" | "cg" | "cs" | "cv" | "lu" | "wb" | "wt" => {
                once(&mut self.cache, word, "there is one operation of a cache")
            }
            "L1::no_allocate" | "L1::evict_first" | "L1::evict_last" | "L1::evict_normal" => {
                once(&mut self.cache, word, "there is one operation of a cache")
            }
            _ => once(&mut self.space, word, "a form that is not known"),
        }
    }

    /// The space of a load.
    pub(super) fn of_load(&self) -> Decoded<Option<&'a str>> {
        self.deny("ld", &["release", "acq_rel", "wb", "wt"])?;
        if self.nc && (self.space != Some("global") || self.order.is_some()) {
            return Err("`nc` is for `global` memory, without an order: section `ld.global.nc`".to_owned());
        }
        self.ordered()
    }

    /// The space of a store.
    pub(super) fn of_store(&self) -> Decoded<Option<&'a str>> {
        self.deny("st", &["acquire", "acq_rel", "ca", "cv", "lu"])?;
        if self.nc {
            return Err("a store has no `nc`: section `st`".to_owned());
        }
        self.ordered()
    }

    /// The space of an atomic operation, which is relaxed and of the scope `gpu` unless it says something else.
    pub(super) fn of_atomic(&self) -> Decoded<Option<&'a str>> {
        self.deny("atom", &["volatile", "weak"])?;
        if self.nc || self.mmio || self.cache.is_some() {
            return Err("an atomic operation has none of these qualifiers: section `atom`".to_owned());
        }
        self.in_shared_or_global()
    }

    fn deny(&self, section: &str, words: &[&str]) -> Decoded<()> {
        let found = [self.order, self.cache].into_iter().flatten().find(|word| words.contains(word));
        found.map_or(Ok(()), |word| Err(format!("`{word}` is not of section `{section}`")))
    }

    fn ordered(&self) -> Decoded<Option<&'a str>> {
        let is_scoped = matches!(self.order, Some("relaxed" | "acquire" | "release"));
        if is_scoped != self.scope.is_some() {
            return Err("a scope goes with `relaxed`, `acquire` and `release`, which need one".to_owned());
        }
        if self.mmio && (self.order, self.scope) != (Some("relaxed"), Some("sys")) {
            return Err("`mmio` goes with `relaxed` and `sys`".to_owned());
        }
        if matches!(self.order, None | Some("weak")) {
            return Ok(self.space);
        }
        if self.cache.is_some_and(|word| !(is_scoped && word.starts_with("L1::"))) {
            return Err("no cache operation goes with this order".to_owned());
        }
        self.in_shared_or_global()
    }

    fn in_shared_or_global(&self) -> Decoded<Option<&'a str>> {
        match self.space {
            Some("const" | "local" | "param") => {
                Err("an order of memory is for `global` and `shared` and generic addresses".to_owned())
            }
            space => Ok(space),
        }
    }
}
