# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Records what models do on one device, and replays it on the others: with IREE's own recorder and replay.

Started by `cargo xtask demo --replay`. A replay asks a device for all that was
asked of the recorded one, in the same order. What it computes is not compared: IREE's replay does not know it.
"""

import subprocess
import sys

import numpy as np
from demo import random, safetensors
from harness import LLVM_CPU, LOCAL, MODELS, OUT, RISCV32, TOOLS
from harness import Failed, attempt, compile_model, note, run, summary

# IREE's local drivers report no parameters of functions, and its replay takes two executables for different ones
# if they report different parameters.
RECORDED = [
    "local-task",
    "mock://?reflection=none",
    "template://?reflection=none",
    "gaudi://emulated?generation=gaudi1&reflection=none",
    "gaudi://emulated?generation=gaudi2&reflection=none",
    "qaic://emulated?reflection=none",
]

REPLAYED = [
    "local-sync",
    "local-task",
    "mock://?reflection=none",
    "mock://?reflection=none&queues=3&fault=jitter",
    "template://?reflection=none",
    "gaudi://emulated?generation=gaudi1&reflection=none",
    "gaudi://emulated?generation=gaudi2&reflection=none",
    "qaic://emulated?reflection=none",
]

# Devices with cores of their own run modules that are compiled for those, and so replay each other's recordings.
TILES = ["tenstorrent://emulated?reflection=none", "tenstorrent://emulated?board=p100a&reflection=none"]

# A device that fails, and the code that a replay ends with.
FAULTS = [
    ("mock://?reflection=none&fault=fail:dispatch:1", "DATA_LOSS"),
    ("mock://?reflection=none&fault=lose:2", "UNAVAILABLE"),
]


def record(name, module, devices, inputs, extra=()):
    """Runs a model with IREE's recorder; where the recording is."""
    target = OUT / f"{name}.ireereplay"
    target.unlink(missing_ok=True)
    arguments = [TOOLS / "iree-run-module", f"--module={module}", "--function=main", *extra]
    arguments += [f"--device={device}" for device in devices]
    for number, value in enumerate(inputs):
        path = OUT / f"replay-input{number}.npy"
        np.save(path, value)
        arguments.append(f"--input=@{path}")
    run([*arguments, f"--device_replay_output={target}"])
    return target


def replay(recording, devices):
    """The arguments of a replay."""
    return [TOOLS / "iree-run-replay", *(f"--device={device}" for device in devices), recording]


def passes(what, recording, devices):
    def body():
        took = run(replay(recording, devices))
        note(what, " ".join(devices), "-", took, True)

    attempt(what, " ".join(devices), body)


def fails(what, recording, device, code):
    def body():
        done = subprocess.run(map(str, replay(recording, [device])), capture_output=True, text=True, timeout=120)
        good = done.returncode != 0 and code in done.stderr
        note(f"{what}, as {code}", device, "-", None, good)
        if not good:
            print(done.stdout + done.stderr, file=sys.stderr)

    attempt(what, device, body)


def differs(recording):
    """Why reflection=none is there. Once this passes, IREE's replay no longer asks for it."""

    def body():
        arguments = map(str, replay(recording, ["mock"]))
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
        note("told of parameters", "mock", "-", None, done.returncode != 0 and "ABI mismatch" in done.stderr)

    attempt("told of parameters", "mock", body)


def models():
    """A name, a module, inputs and further flags."""
    shapes = random((4, 8), (4, 8), (4, 8))
    yield "elementwise", compile_model(MODELS / "elementwise.mlir", "elementwise", LOCAL + LLVM_CPU), shapes, ()
    block = random((32, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 256), (256, 64), scale=0.1)
    yield "transformer", compile_model(MODELS / "transformer.mlir", "transformer", LOCAL + LLVM_CPU), block, ()
    weights, bias, x = random((256, 128), (128,), (8, 256), scale=0.2)
    file = OUT / "replay.safetensors"
    safetensors(file, {"weights": weights, "bias": bias})
    module = compile_model(MODELS / "parameters.mlir", "parameters", LOCAL + LLVM_CPU)
    for policy in ("reference", "capture-ranges"):
        flags = (f"--parameters=model={file}", f"--device_replay_file_policy={policy}")
        yield f"parameters by {policy}", module, [x], flags


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for name, module, inputs, flags in models():
        for number, origin in enumerate(RECORDED):
            what = f"{name} of {origin.split(':')[0]}"
            recording = record(f"{name.replace(' ', '-')}-{number}", module, [origin], inputs, flags)
            for device in REPLAYED:
                passes(what, recording, [device])
            for device, code in FAULTS:
                fails(what, recording, device, code)
            if (name, number) == ("elementwise", 0):
                differs(recording)

    module = compile_model(MODELS / "elementwise.mlir", "elementwise.riscv32", LOCAL + RISCV32)
    for number, origin in enumerate(TILES):
        recording = record(f"tiles-{number}", module, [origin], random((4, 8), (4, 8), (4, 8)))
        for device in TILES:
            passes(f"elementwise of {origin}", recording, [device])

    ordinals = [f"--iree-hal-target-device={name}=local[{at}]" for at, name in enumerate(("first", "second", "third"))]
    module = compile_model(MODELS / "devices.mlir", "devices", ordinals + LLVM_CPU)
    none = "reflection=none"
    sets = [
        ["local-task", "local-task", "local-task"],
        [f"mock://0?{none}", f"mock://1?{none}", "local-task"],
        [f"gaudi://emulated/0?{none}", f"mock://0?{none}", f"gaudi://emulated/1?{none}"],
    ]
    for number, origin in enumerate(sets):
        recording = record(f"devices-{number}", module, origin, random((1024,), (1024,)))
        for devices in sets:
            passes(f"three devices, set {number}", recording, devices)
    return 1 if summary() else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"error: {error}")
