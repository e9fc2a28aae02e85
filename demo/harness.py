# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Compiles a model, runs it on a device, and notes the result.

`cargo xtask demo` builds what this uses, in cargo's target folder, and starts the scripts with the flags below.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
MODELS = ROOT / "demo/models"
EXAMPLES = ROOT / "hal-driver/examples"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
TOOLS = TARGET / "iree/tools"
OUT = TARGET / "iree/demo"
COMPILER = TARGET / "python/bin/iree-compile"

flags = argparse.ArgumentParser()
flags.add_argument("--device", action="append", default=[], help="run on this device in place of the drivers' own")
flags.add_argument("--supervisor", help="show programs the nodes of emulated cards, by this supervisor")
flags.add_argument("--quick", action="store_true", help="leave out the trained networks")
flags.add_argument("--without-mpi", action="store_true", help="leave out jobs of several processes")
# A module of this folder may be imported by a program with flags of its own.
FLAGS, _ = flags.parse_known_args()

LLVM_CPU = ["--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
VMVX = ["--iree-hal-local-target-device-backends=vmvx"]
LOCAL = ["--iree-hal-target-device=local"]
# For the small cores of a Tensix tile, as docs/tenstorrent.md says.
RISCV32 = (pathlib.Path(__file__).parent / "riscv32.flags").read_text().split()
# The same for a Wormhole's, which have neither floats nor bit operations: the driver replaces floats, and nothing
# else.
RISCV32_PLAIN = [flag.replace("+m,+f,+zba,+zbb", "+m,+f") for flag in RISCV32]

# Where each model runs. The local driver of IREE's own is here so that a reader sees the same model beside it.
GIVEN = FLAGS.device
DEVICES = (
    [*GIVEN, "local-task"]
    if GIVEN
    else [
        "mock",
        "mock://0?queues=4&workers=2&latency=20us",
        "gaudi://emulated?generation=gaudi1",
        "gaudi://emulated?generation=gaudi2",
        "qaic://emulated",
        "local-task",
    ]
)

SUPERVISOR = FLAGS.supervisor
EMULATED = re.compile(r"(gaudi|qaic)://emulated(?:/(\d+))?(\?\S*)?")
if SUPERVISOR:
    DEVICES = [device for device in DEVICES if EMULATED.match(device)]

# Those whose cores run executables for 32-bit RISC-V, and no others. Their floats are not the host's to the last bit.
TILES = [] if GIVEN or SUPERVISOR else ["tenstorrent://emulated"]
# Floats in software take up to eight times as long: models are small here.
SLOW_TILES = [f"{device}?board=n150" for device in TILES]

# Those that run what is compiled for NVIDIA's cards. Their floats are not the host's to the last bit either.
CUDA = ["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"]
CUDA_CARDS = [] if GIVEN or SUPERVISOR else ["nvidia://emulated", "nvidia://emulated?waits=epochs&streams=4"]

# Those of them that our own programs register, and so run on: neither IREE's own, nor those of other drivers.
OURS = [] if GIVEN else [device for device in DEVICES if not device.startswith("local")]
CARDS = [device for device in DEVICES if device.startswith("gaudi://")]


class Failed(Exception):
    """A model that did not do what it should; what it said is in the message."""


def compile_model(source, name, flags):
    """Compiles a model, unless that has been done."""
    target = OUT / f"{name}.vmfb"
    stamp = OUT / f"{name}.flags"
    wanted = json.dumps(flags)
    fresh = target.is_file() and target.stat().st_mtime > source.stat().st_mtime
    if fresh and stamp.is_file() and stamp.read_text() == wanted:
        return target
    print(f"compiling {name}", flush=True)
    done = subprocess.run([str(COMPILER), *flags, str(source), "-o", str(target)], capture_output=True, text=True)
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        raise Failed(f"iree-compile could not compile {source}:\n{done.stderr}")
    stamp.write_text(wanted)
    return target


def through_nodes(arguments):
    """The same program under a supervisor, with the devices behind nodes instead of its own emulator."""
    machines = {f"{found[1]}://emulated{found[3] or ''}" for text in arguments for found in EMULATED.finditer(text)}
    if not SUPERVISOR or not machines:
        return arguments
    if len(machines) > 1:
        raise Failed(f"one supervisor has one machine, not {', '.join(sorted(machines))}")
    arguments = [EMULATED.sub(lambda found: f"{found[1]}://{found[2] or 0}", text) for text in arguments]
    return [SUPERVISOR, machines.pop(), "--", *arguments]


def run(arguments, timeout=120):
    """Runs a program; how long it took."""
    return text(arguments, timeout)[1]


def text(arguments, timeout=120):
    """Runs a program; what it printed, and how long it took."""
    arguments = through_nodes([str(argument) for argument in arguments])
    begin = time.perf_counter()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout)
    took = time.perf_counter() - begin
    if done.returncode != 0:
        raise Failed(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout, took


def invoke(module, devices, inputs, extra=("--function=main",), timeout=120):
    """Runs a function of a model, the main one if nothing else is said; its result and how long it took. An input is
    an array, or a text for the tool to read."""
    arguments = [TOOLS / "iree-run-module", f"--module={module}", *extra]
    arguments += [f"--device={device}" for device in devices]
    for number, value in enumerate(inputs):
        if isinstance(value, str):
            arguments.append(f"--input={value}")
            continue
        path = OUT / f"input{number}.npy"
        np.save(path, value)
        arguments.append(f"--input=@{path}")
    result = OUT / "result.npy"
    result.unlink(missing_ok=True)
    arguments.append(f"--output=@{result}")
    took = run(arguments, timeout)
    return np.load(result), took


ROWS = []


def note(model, device, error, took, good):
    """Puts a row into the table."""
    ROWS.append((model, device, error, "-" if took is None else f"{took * 1000:.0f} ms", "ok" if good else "WRONG"))
    print(f"{model} on {device}: {'ok' if good else 'WRONG'}", flush=True)


def check(model, device, result, took, expected, tolerance=2e-5, least=1.0):
    """Compares a result and notes it: errors are relative, but for values below the least one."""
    expected = np.asarray(expected)
    if result.shape != expected.shape or not np.isfinite(result).all():
        error = float("inf")
    else:
        error = float(np.max(np.abs(result - expected) / np.maximum(least, np.abs(expected)), initial=0.0))
    note(model, device, f"{error:.1e}", took, error <= tolerance)


def attempt(model, device, body):
    """Does one thing; what goes wrong is noted and the rest goes on."""
    try:
        body()
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        ROWS.append((model, device, "-", "-", "FAILED"))
        print(f"{model} on {device}: FAILED\n{error}", file=sys.stderr, flush=True)


HEAD = ("model", "device", "error", "time", "result")


def summary():
    """Prints the table; how many went wrong."""
    widths = [max(len(row[column]) for row in ROWS + [HEAD]) for column in range(len(HEAD))]
    print()
    for row in [HEAD, *ROWS]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    wrong = sum(row[-1] != "ok" for row in ROWS)
    print(f"\n{len(ROWS) - wrong} passed, {wrong} failed")
    return wrong
