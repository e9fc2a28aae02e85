// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which card a URI opens, and what is said where none is.

use crate::container::{self, Export};
use crate::support::{Rig, TEXT, load};
use hal_backend::{Code, Driver, Failure};
use hal_cuda::{NoEmulation, Nvidia};

fn open(uri: &str) -> Result<(), Failure> {
    Nvidia::<NoEmulation>::open_uri(uri).map(drop)
}

/// Checks what is said of a URI that opens nothing.
fn refused(uri: &str, code: Code, parts: &[&str]) {
    let failure = open(uri).unwrap_err();
    assert_eq!(failure.code(), code, "{uri}: {failure}");
    assert_eq!(emulator_testbench::circular_advice(uri, failure.message()), None, "{uri}: {failure}");
    for part in parts {
        assert!(failure.message().contains(part), "{uri}: {part:?} is not in {failure}");
    }
}

pub(crate) fn paths(rig: &Rig) {
    rig.control("devices=3");
    let paths = ["", "0", "2", "0000:02:00.0", "GPU-656d756c-6174-6f72-2d63-7564612d0001"];
    for path in paths {
        open(&rig.uri(path, "")).unwrap_or_else(|failure| panic!("{path}: {failure}"));
    }
    refused(&rig.uri("3", ""), Code::NotFound, &["nvidia://3", "0 (GPU-", "2 (GPU-"]);
    refused(&rig.uri("x", ""), Code::NotFound, &["nvidia://x", "0 (GPU-"]);
    refused("nvidia://emulated", Code::Unimplemented, &["feature `emulated`"]);
}

pub(crate) fn parameters(rig: &Rig) {
    refused(&rig.uri("0", "&streams=9"), Code::InvalidArgument, &["streams", "from 1 to 8"]);
    refused(&rig.uri("0", "&context=mine"), Code::InvalidArgument, &["own, primary"]);
    refused(&rig.uri("0", "&colour=red"), Code::InvalidArgument, &["colour", "streams, waits"]);
    refused("nvidia://0?waits=never", Code::InvalidArgument, &["events, epochs"]);
    emulator_testbench::assert_declared(
        Nvidia::<NoEmulation>::PARAMETERS,
        &[("library", rig.path())],
        |parameters| Nvidia::<NoEmulation>::create().open("0", parameters).map(drop),
    );
}

pub(crate) fn no_card(rig: &Rig) {
    rig.control("devices=0");
    refused(&rig.uri("0", ""), Code::NotFound, &["CUDA_ERROR_NO_DEVICE", "nvidia-smi", "nvidia://emulated"]);
}

pub(crate) fn libraries(_: &Rig) {
    refused("nvidia://0?library=/nowhere.so", Code::NotFound, &["/nowhere.so", "cannot be loaded"]);
    refused("nvidia://0?library=libm.so.6", Code::Incompatible, &["libm.so.6", "cuGetProcAddress", "515"]);
    // Machines of tests have no card.
    if let Err(failure) = open("nvidia://") {
        for part in ["libcuda.so.1", "install NVIDIA's driver", "library=PATH", "nvidia://emulated"] {
            assert!(failure.message().contains(part), "{failure}");
        }
        assert_eq!(failure.code(), Code::NotFound);
        assert!(Nvidia::<NoEmulation>::create().enumerate().unwrap().is_empty());
    }
}

pub(crate) fn primary(rig: &Rig) {
    // What one gives back waits for what the other one has under way in the context.
    rig.allow("free-blocks");
    let one = rig.bench("&context=primary");
    let two = rig.bench("&context=primary");
    assert_eq!(rig.count("cuCtxCreate"), 0);
    for bench in [&one, &two] {
        bench.run(0, emulator_testbench::fill(bench.device())).unwrap();
    }
}

pub(crate) fn executables(rig: &Rig) {
    rig.allow("bad-module");
    let device = rig.device("");
    let says = |data: &[u8], code: Code, parts: &[&str]| {
        let failure = load(&device, data).unwrap_err();
        assert_eq!(failure.code(), code, "{failure}");
        for part in parts {
            assert!(failure.message().contains(part), "{part:?} is not in {failure}");
        }
    };
    let one = |text: &str, export: Export| container::build(&[text], &[export]);
    load(&device, &one(TEXT, Export::new("add", 64, 1, 2))).unwrap();
    says(b"CDA", Code::Incompatible, &["cuda-nvptx-fb executable", "--iree-hal-target-device=cuda"]);
    says(
        &one(".version 7.0\n.target sm_60\nnonsense", Export::new("add", 1, 0, 0)),
        Code::InvalidArgument,
        &["module 0", "CUDA_ERROR_INVALID_PTX", "cuModuleLoadDataEx"],
    );
    says(&one(TEXT, Export::new("absent", 1, 0, 0)), Code::NotFound, &["export 0", "\"absent\""]);
    says(&one(TEXT, Export::new("add", 65, 1, 2)), Code::Incompatible, &["[65, 1, 1]", "64 at most"]);
    let mut export = Export::new("add", 64, 1, 2);
    export.shared = 1 << 20;
    says(&one(TEXT, export), Code::Incompatible, &["1048576 bytes of shared memory"]);
}

/// An executable that was cut anywhere, or of which bytes were changed, is loaded or refused, and the device works.
pub(crate) fn damaged(rig: &Rig) {
    rig.allow("bad-module");
    rig.control("quiet");
    let bench = rig.bench("");
    let whole_one = crate::support::kernels();
    for length in 0..whole_one.len() {
        let failure = load(bench.device(), &whole_one[..length]).unwrap_err();
        assert!(matches!(failure.code(), Code::Incompatible | Code::InvalidArgument), "{length}: {failure}");
    }
    let mut random = crate::support::Random::new(3);
    for _ in 0..1500 {
        let mut changed = whole_one.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(changed.len() as u64) as usize;
            changed[at] = random.below(256) as u8;
        }
        if let Err(failure) = load(bench.device(), &changed) {
            assert_eq!(failure.origin(), hal_backend::Origin::Operation, "{failure}");
        }
    }
    bench.run(0, emulator_testbench::fill(bench.device())).unwrap();
}
