// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How emulated cards are injected into a driver that does not know them.
//!
//! A driver is generic over [`Emulation`], and everything that it knows of emulated cards is this trait. The
//! emulators' crates implement it; `hal-driver` puts the two together where its feature `emulated` is on. A build for
//! real cards has [`NoEmulation`], which lists no emulated card and answers with how to get one.

use crate::system::System;
use hal_backend::{Code, DeviceInfo, Failure, HostProgram, Parameter, Parameters};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Emulated cards of one driver. `P` is what the driver asks of them to run host programs, if they do.
pub trait Emulation<P: ?Sized>: Send + Sync + 'static {
    /// The parameters that [`find`](Self::find) takes, beside the driver's own.
    const PARAMETERS: &'static [Parameter];

    /// The emulated devices that a driver lists behind the system's.
    fn devices() -> Vec<DeviceInfo>;

    /// Finds or creates the machine that the parameters describe, and returns its card `number` of a kind, such as
    /// `emulated`. Opens no card. Equal parameters find the same machine.
    fn find(kind: &str, number: usize, parameters: &mut Parameters<'_>) -> Result<EmulatedCard<P>, Failure>;

    /// The emulated card that an open file is of, if it is of one in this process.
    fn of_file(file: BorrowedFd<'_>) -> Option<EmulatedCard<P>>;

    /// True if another process emulates the cards that the system lists.
    fn is_supervised() -> bool;

    /// Runs host programs for the cards that the system lists, if another process emulates these.
    fn supervisor() -> Result<Option<Arc<P>>, Failure>;
}

/// A card of an emulated machine.
pub struct EmulatedCard<P: ?Sized> {
    /// The machine, as the system that the card is opened on.
    pub system: Arc<dyn System>,
    /// The card's node in that machine.
    pub node: PathBuf,
    /// Runs host programs for the card, if it runs any.
    pub programs: Option<Arc<P>>,
    /// How many threads of this process execute what the machine's cards are given.
    pub workers: usize,
}

/// Keeps host programs for a device that is software, and runs them when the device's commands name them.
pub trait ProgramHost: Send + Sync {
    /// Keeps a program, and returns its number.
    fn load(&self, program: Arc<dyn HostProgram>) -> u64;

    /// Releases a program. Calls of it that are under way go on.
    fn unload(&self, number: u64);

    /// The number of threads that run programs, for a program's loader.
    fn workers(&self) -> usize;
}

/// The emulation of a build for real cards: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEmulation;

impl<P: ?Sized> Emulation<P> for NoEmulation {
    const PARAMETERS: &'static [Parameter] = &[];

    fn devices() -> Vec<DeviceInfo> {
        Vec::new()
    }

    fn find(kind: &str, number: usize, _: &mut Parameters<'_>) -> Result<EmulatedCard<P>, Failure> {
        let message = format!(
            "{kind}/{number} is an emulated card, and this build has no emulators: build hal-driver with its feature \
             `emulated`, or use the tools that `cargo xtask build` makes, which have it"
        );
        Err(Failure::new(Code::Unimplemented, message))
    }

    fn of_file(_: BorrowedFd<'_>) -> Option<EmulatedCard<P>> {
        None
    }

    fn is_supervised() -> bool {
        false
    }

    fn supervisor() -> Result<Option<Arc<P>>, Failure> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_without_emulators_says_how_to_get_them() {
        let mut parameters = Parameters::new("gaudi", []);
        let found = <NoEmulation as Emulation<dyn ProgramHost>>::find("emulated", 1, &mut parameters);
        let refused = found.map(|_| ()).unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
        assert!(refused.message().contains("emulated/1"), "{refused}");
        assert!(refused.message().contains("feature `emulated`"), "{refused}");
        assert!(<NoEmulation as Emulation<dyn ProgramHost>>::devices().is_empty());
    }
}
