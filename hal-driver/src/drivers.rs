// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The drivers of cards, each with the emulated cards that are injected into it: none without the feature `emulated`.

macro_rules! cards {
    ($($feature:literal: $driver:ident, $backend:ident, $emulator:ident;)*) => {
        $(
            #[cfg(all(feature = $feature, feature = "emulated"))]
            pub(crate) type $driver = $backend::$driver<$emulator::Emulated>;
            #[cfg(all(feature = $feature, not(feature = "emulated")))]
            pub(crate) type $driver = $backend::$driver;
        )*
    };
}

cards! {
    "gaudi": Gaudi, hal_gaudi, emulator_gaudi;
    "qaic": Qaic, hal_qaic, emulator_qaic;
    "tenstorrent": Tenstorrent, hal_tenstorrent, emulator_tenstorrent;
}
