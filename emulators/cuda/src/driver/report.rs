// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Broken rules and counts of calls.

use super::options::{Injection, Options};
use super::status::{Error, Outcome};
use parking_lot::Mutex;
use std::collections::BTreeMap;

macro_rules! rules {
    ($($(#[$attribute:meta])* $rule:ident = $name:literal,)*) => {
        /// What CUDA leaves undefined, or allows although it bites.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rule { $($(#[$attribute])* $rule,)* }

        impl Rule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$rule,)*];

            /// The rule's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)* }
            }
        }
    };
}

rules! {
    /// A function of CUDA, called from a host function of a stream. Refused.
    HostFunctionCalls = "host-function-calls",
    /// A function was called without a current context. Refused.
    NoContext = "no-context",
    /// A wait for an event that was never recorded: CUDA does not wait.
    EventNotRecorded = "event-not-recorded",
    /// A record of an event whose last one has not happened yet: who queries the event later sees the new one only.
    EventRecordedAgain = "event-recorded-again",
    /// An asynchronous copy from or to pageable memory, which blocks the caller.
    PageableCopy = "pageable-copy",
    /// An asynchronous copy from memory of the host to memory of the host, which blocks the caller.
    HostCopy = "host-copy",
    /// A copy between memory that overlaps: undefined.
    CopyOverlaps = "copy-overlaps",
    /// A launch into a stream that has as many as it takes, which blocks the caller.
    QueueFull = "queue-full",
    /// Memory that was freed, or whose free was submitted, is used. Refused, or a fault.
    UseAfterFree = "use-after-free",
    /// Memory is used before its stream-ordered allocation has happened. A fault.
    UseBeforeAllocation = "use-before-allocation",
    /// A kernel's access to what is not its memory. A fault.
    KernelFault = "kernel-fault",
    /// Memory of the host that overlaps with what is registered. Refused.
    Overlap = "registered-twice",
    /// A value is written without the fence that makes what was before it visible.
    MissingFence = "missing-fence",
    /// A free, or the end of a registration, while work is pending: it blocks the caller until all of it has ended.
    FreeBlocks = "free-blocks",
    /// A context, module or pool is destroyed while work that may use it is pending: undefined.
    DestroyedInUse = "destroyed-in-use",
    /// A handle that is none, or of something destroyed. Refused.
    BadHandle = "bad-handle",
    /// A launch with another number or size than the kernel has or allows. Refused.
    BadLaunch = "bad-launch",
    /// A module with an instruction that is not known. Refused.
    BadModule = "bad-module",
    /// Objects that a context still has when it is destroyed.
    Leak = "leak",
}

/// How often a broken rule is printed; then it is only counted.
const PRINTED: u64 = 8;

/// What was counted.
#[derive(Default)]
pub struct Report {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    options: Options,
    broken: BTreeMap<Rule, (u64, String)>,
    calls: BTreeMap<&'static str, u64>,
    /// Events of each kind since the faults were set.
    faults: Vec<(Injection, u64)>,
}

impl State {
    /// Counts an event of some faults, and returns one that is due.
    fn due(&mut self, is_it: impl Fn(&Injection) -> bool) -> Option<Injection> {
        for (_, left) in self.faults.iter_mut().filter(|(it, _)| is_it(it)) {
            *left -= 1;
        }
        let at = self.faults.iter().position(|(_, left)| *left == 0)?;
        Some(self.faults.swap_remove(at).0)
    }
}

impl Report {
    /// Changes the options.
    ///
    /// # Errors
    /// What is not an option.
    pub fn configure(&self, text: &str) -> Result<(), String> {
        let mut state = self.state.lock();
        let mut options = Options { faults: Vec::new(), ..state.options.clone() };
        options.apply(text)?;
        let faults = options.faults.clone();
        state.faults.extend(faults);
        state.options = options;
        Ok(())
    }

    /// The options.
    pub fn options(&self) -> Options {
        self.state.lock().options.clone()
    }

    /// Whether a fault of this kind is due; counts the event.
    pub fn is_due(&self, kind: &Injection) -> bool {
        self.state.lock().due(|it| it == kind).is_some()
    }

    /// Counts a broken rule.
    pub fn broken(&self, rule: Rule, text: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        let text = text();
        let quiet = state.options.quiet;
        let entry = state.broken.entry(rule).or_default();
        entry.0 += 1;
        if !quiet && entry.0 <= PRINTED {
            eprintln!("emulator-cuda: {}: {text}", rule.name());
        }
        entry.1 = text;
        if state.options.exit {
            std::process::exit(1);
        }
    }

    /// How often a rule was broken, and what was said last.
    pub fn count(&self, rule: Rule) -> (u64, String) {
        self.state.lock().broken.get(&rule).cloned().unwrap_or_default()
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The call is to fail.
    pub fn called(&self, function: &'static str) -> Outcome {
        let mut state = self.state.lock();
        *state.calls.entry(function).or_default() += 1;
        let is_it =
            |it: &Injection| matches!(it, Injection::Call(name, _) if name == function || name == "any");
        match state.due(is_it) {
            Some(Injection::Call(_, result)) => Err(Error(result)),
            _ => Ok(()),
        }
    }

    /// How often a function was called.
    pub fn calls(&self, function: &str) -> u64 {
        let state = self.state.lock();
        let is_it = |name: &str| name == function || function == "any";
        state.calls.iter().filter(|(name, _)| is_it(name)).map(|(_, count)| count).sum()
    }

    /// All counts, one in a line.
    pub fn table(&self) -> String {
        let state = self.state.lock();
        let calls = state.calls.iter().map(|(name, count)| format!("call {name} {count}\n"));
        let broken =
            state.broken.iter().map(|(rule, (count, _))| format!("broken {} {count}\n", rule.name()));
        calls.chain(broken).collect()
    }

    /// Begins to count anew.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.broken.clear();
        state.calls.clear();
        state.faults.clear();
    }
}
