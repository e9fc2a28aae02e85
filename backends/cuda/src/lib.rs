// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! NVIDIA's cards, through CUDA's driver interface.
//!
//! `nvidia://` drives a card through `libcuda.so.1`, which NVIDIA's driver installs, and runs what IREE's compiler
//! makes for CUDA (`--iree-hal-target-device=cuda`). The library is looked for when a device is listed or opened;
//! programs link and run without it. IREE's own driver is `cuda`; one program may have both. `nvidia://emulated` runs
//! the same code on a library in software. What that cannot show is said in `docs/cuda.md`.
//!
//! # Devices
//!
//! | path | device |
//! |---|---|
//! | `nvidia://` | the first card |
//! | `nvidia://N` | the card with this number, as CUDA counts |
//! | `nvidia://GPU-…` | the card with this identity, as `nvidia-smi -L` writes it |
//! | `nvidia://0000:01:00.0` | the card at a place on the bus |
//! | `nvidia://emulated`, `nvidia://emulated/N` | a card in software; never taken unless it is named |
//!
//! The variable `HAL_NVIDIA_DEFAULT` of the environment sets another path for `nvidia://`.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | `library/` | CUDA's functions behind safe ones; all unsafe code |
//! | `memory.rs` | the card's memory, pinned memory, imports |
//! | `executable/` | IREE's executables for CUDA |
//! | `queue/` | jobs on streams (`encode.rs`), graphs (`graphs.rs`), waits (`order.rs`), completions (`mod.rs`), |
//! | | long and paused jobs, faults (`watcher.rs`) |
//! | `fill.rs`, `kernels.ptx` | fills that CUDA has no function for |
//! | `device.rs`, `options.rs` | what the driver sees; the parameters of a URI |

mod device;
mod executable;
mod fill;
mod library;
mod memory;
mod options;
mod queue;

pub use device::NvidiaDevice;
pub use executable::Executable;
pub use library::Symbols;
pub use memory::Memory;

use hal_backend::{Code, DeviceInfo, Driver, Failure, Parameter, Parameters};
use library::{Gpu, Library};
use options::{Options, PARAMETERS};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Cards in software: a library that is linked into the program.
///
/// # Safety
///
/// [`symbols`](Self::symbols) gives addresses of functions with the signatures of CUDA's driver interface.
pub unsafe trait Emulation: Send + Sync + 'static {
    /// The parameters that [`symbols`](Self::symbols) takes, beside the driver's own.
    const PARAMETERS: &'static [Parameter];

    /// The emulated devices that the driver lists behind the system's.
    fn devices() -> Vec<DeviceInfo>;

    /// The library, after setting what the parameters ask for.
    fn symbols(parameters: &mut Parameters<'_>) -> Result<Symbols, Failure>;
}

/// The emulation of a build for real cards: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEmulation;

// SAFETY: it gives no addresses.
unsafe impl Emulation for NoEmulation {
    const PARAMETERS: &'static [Parameter] = &[];

    fn devices() -> Vec<DeviceInfo> {
        Vec::new()
    }

    fn symbols(_: &mut Parameters<'_>) -> Result<Symbols, Failure> {
        let message = "nvidia://emulated is a card in software, and this build has none: build hal-driver with its \
                       feature `emulated`, or use the tools that `cargo xtask build` makes, which have it";
        Err(Failure::new(Code::Unimplemented, message))
    }
}

/// The driver behind `nvidia://`. `E` injects cards in software, or none.
pub struct Nvidia<E = NoEmulation>(PhantomData<fn() -> E>);

impl<E> fmt::Debug for Nvidia<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvidia")
    }
}

/// The variable that names the default card.
const DEFAULT: &str = "HAL_NVIDIA_DEFAULT";

/// The path of emulated cards.
const EMULATED: &str = "emulated";

impl<E: Emulation> Driver for Nvidia<E> {
    type Device = NvidiaDevice;

    const NAME: &'static str = "nvidia";
    const FULL_NAME: &'static str = "NVIDIA cards (CUDA's driver library, or one in software)";
    const PARAMETERS: &'static [Parameter] = PARAMETERS;

    fn create() -> Self {
        Self(PhantomData)
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        // Without a library there is no card, and opening one says why.
        let gpus = Library::open(None).ok().and_then(|library| library.gpus().ok()).unwrap_or_default();
        let mut devices: Vec<_> = gpus.iter().filter_map(info).collect();
        devices.extend(E::devices());
        Ok(devices)
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<NvidiaDevice, Failure> {
        let options = Options::read(parameters)?;
        let default = std::env::var(DEFAULT).ok().filter(|_| path.is_empty());
        let path = default.as_deref().unwrap_or(path);
        let is_emulated =
            path.strip_prefix(EMULATED).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_emulated {
            parameters.declare(E::PARAMETERS);
            let symbols = E::symbols(parameters)?;
            // SAFETY: they are functions of CUDA's driver interface, by the promise of the trait.
            let library = unsafe { Library::linked("the library in software", symbols) }?;
            let number = path.strip_prefix(EMULATED).and_then(|rest| rest.strip_prefix('/')).unwrap_or("0");
            return NvidiaDevice::open(&choose(&library, path, number)?, &options);
        }
        let library = Library::open(options.library.as_deref()).map_err(|why| {
            Failure::new(why.code(), format!("nvidia://{path}: {}{}", why.message(), instead()))
        })?;
        let wanted = if path.is_empty() { "0" } else { path };
        NvidiaDevice::open(&choose(&library, path, wanted)?, &options)
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        let about = match info.path.as_str() {
            EMULATED => String::new(),
            number => Library::open(None)
                .and_then(|library| choose(&library, number, number))
                .map_or_else(|why| format!("\n- {}", why.message()), |gpu| about(&gpu)),
        };
        format!(
            "# {}{about}\n- executables: {}, {}\n- queues: streams, in order",
            info.name,
            executable::container::FORMAT,
            executable::container::CACHE_FORMAT
        )
    }

    fn parameters(&self, info: &DeviceInfo) -> Vec<Parameter> {
        let more = if info.path.starts_with(EMULATED) { E::PARAMETERS } else { &[] };
        [PARAMETERS, more].concat()
    }
}

/// What may be used where a card is missing.
fn instead() -> &'static str {
    "; or ask for nvidia://emulated, a card in software"
}

/// What a list says of a card.
fn info(gpu: &Gpu) -> Option<DeviceInfo> {
    Some(DeviceInfo { path: gpu.number.to_string(), name: gpu.name().ok()? })
}

/// More about a card.
fn about(gpu: &Gpu) -> String {
    let known = || {
        let capability = (
            gpu.attribute(library::Attribute::CapabilityMajor)?,
            gpu.attribute(library::Attribute::CapabilityMinor)?,
        );
        let version = gpu.version()?;
        Ok::<_, library::CudaError>(format!(
            "\n- identity: {}, at {}\n- compute capability: {}.{}\n- memory: {} MiB\n- driver: CUDA {}.{}",
            gpu.uuid()?,
            gpu.address()?,
            capability.0,
            capability.1,
            gpu.memory()? >> 20,
            version / 1000,
            version % 1000 / 10
        ))
    };
    known().unwrap_or_else(|error| format!("\n- {error}"))
}

/// The card that a path names.
fn choose(library: &Arc<Library>, path: &str, wanted: &str) -> Result<Gpu, Failure> {
    let gpus = library.gpus().map_err(|error| error.failure("listing the cards"))?;
    let is_wanted = |gpu: &Gpu| {
        let is = |known: Result<String, _>| known.is_ok_and(|known| known.eq_ignore_ascii_case(wanted));
        gpu.number.to_string() == wanted || is(gpu.address()) || is(gpu.uuid())
    };
    if let Some(gpu) = gpus.iter().find(|gpu| is_wanted(gpu)) {
        return Ok(gpu.clone());
    }
    let known: Vec<String> = gpus
        .iter()
        .map(|gpu| {
            let [uuid, address] = [gpu.uuid(), gpu.address()].map(Result::unwrap_or_default);
            format!("{} ({uuid}, {address})", gpu.number)
        })
        .collect();
    let message = match known.as_slice() {
        [] => format!("nvidia://{path}: the library lists no card{}", instead()),
        known => format!("there is no nvidia://{path}; the cards are {}", known.join(", ")),
    };
    Err(Failure::new(Code::NotFound, message))
}
