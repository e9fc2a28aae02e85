# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Runs modules whose functions compare their own results, on each device, with IREE's own tools.

Started by `cargo xtask test --only checks`, with `--benchmark` if there is an `iree-benchmark-module`. The modules are
in `checks/`: every function without arguments is a test of `iree-check-module`.
"""

import re
import subprocess
import sys

import numpy as np
from harness import (
    CUDA,
    CUDA_CARDS,
    DEVICES,
    LLVM_CPU,
    LOCAL,
    OUT,
    RISCV32,
    RISCV32_PLAIN,
    ROOT,
    SLOW_TILES,
    TILES,
    TOOLS,
    VMVX,
)
from harness import Failed, attempt, check, compile_model, invoke, note, summary, text

CHECKS = ROOT / "demo/checks"

# Floats of 64 bits stay what they are.
PLAIN = ["--iree-input-demote-f64-to-f32=false"]

# What each kind of device runs: the name of the compiled module ends like this.
KINDS = [
    ("", LOCAL + LLVM_CPU, DEVICES),
    ("-vmvx", LOCAL + VMVX, ["mock", "gaudi://emulated", "qaic://emulated"]),
    ("-riscv32", LOCAL + RISCV32, TILES),
    ("-riscv32-plain", LOCAL + RISCV32_PLAIN, SLOW_TILES),
    ("-cuda", CUDA, CUDA_CARDS),
]

# IREE's compiler has no arithmetic on 64-bit floats for the small cores, and none on 16-bit floats for bytecode.
NOT_COMPILED = {"doubles": ["-riscv32", "-riscv32-plain"], "halves": ["-vmvx"]}

BENCHMARK = "--benchmark" in sys.argv
STATISTICS = ["--print_device_statistics"]
DISPATCHES = ["--dispatch_statistics", "--benchmark_min_time=2x"]

TWO = ["--iree-hal-target-device=first=local[0]", "--iree-hal-target-device=second=local[1]"]
PAIRS = [
    ["mock://0", "mock://1"],
    ["mock", "local-task"],
    ["local-task", "gaudi://emulated"],
    ["gaudi://emulated?generation=gaudi1", "qaic://emulated"],
    ["qaic://emulated", "mock://0?heaps=2"],
]


def tests(source):
    """The names of the tests in a module."""
    return re.findall(r"^func\.func @(\w+)\(\)", source.read_text(), re.MULTILINE)


def run_checks(source, module, devices):
    """Runs the tests of a module; how long that took."""
    arguments = [TOOLS / "iree-check-module", f"--module={module}", *(f"--device={device}" for device in devices)]
    printed, took = text(arguments)
    passed = re.findall(r"\[ +OK \] \w+\.(\w+)", printed)
    if passed != tests(source):
        raise Failed(f"of {source} ran {passed}, and not {tests(source)}:\n{printed}")
    return took


def passes(source, module, devices):
    def body():
        took = run_checks(source, module, devices)
        note(source.stem, " ".join(devices), "-", took, True)

    attempt(source.stem, " ".join(devices), body)


def is_refused(source, module, device):
    """A wrong result fails, and the failure names the test, the device and both values."""
    title = f"{source.stem}, as a failure"

    def body():
        try:
            run_checks(source, module, [device])
        except Failed as error:
            said = str(error)
            good = all(word in said for word in [*tests(source), f"--device={device}", "2xi32=2 2", "2xi32=2 3"])
            note(title, device, "-", None, good)
            return
        raise Failed(f"{source} passed")

    attempt(title, device, body)


def in_place(module, device):
    """Functions that write into the memory of their caller."""
    x = np.linspace(-2, 2, 64, dtype=np.float32)
    zeros = np.zeros(64, dtype=np.float32)
    # The last has two tensors between its dispatches, in memory that begins at multiples of 64 bytes.
    for function, inputs, expected in [
        ("into_an_output", [x, zeros], x + x),
        ("over_the_input", [x], x * x),
        ("with_scratch_memory", [x, zeros, "&512xi8=0"], 2 * x * x + 2 * x),
    ]:

        def body(function=function, inputs=inputs, expected=expected):
            result, took = invoke(module, [device], inputs, [f"--function={function}"])
            check(function, device, result, took, expected)

        attempt(function, device, body)


def names_functions(title, tool, flags, module, device):
    """The statistics that a tool prints name each function that was dispatched."""

    def body():
        x = OUT / "statistics.npy"
        np.save(x, np.ones(64, dtype=np.float32))
        arguments = [TOOLS / tool, f"--module={module}", f"--device={device}", "--function=into_an_output", *flags]
        arguments = [str(argument) for argument in [*arguments, f"--input=@{x}", f"--input=@{x}"]]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
        printed = done.stdout + done.stderr
        if done.returncode != 0 or "into_an_output_dispatch_0" not in printed:
            raise Failed(f"{' '.join(arguments)}\n{printed}")
        note(title, device, "-", None, True)

    attempt(title, device, body)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for source in sorted(CHECKS.glob("*.mlir")):
        if source.stem == "two_devices":
            module = compile_model(source, "checks-two_devices", TWO + LLVM_CPU)
            for pair in PAIRS:
                passes(source, module, pair)
            continue
        for suffix, flags, devices in KINDS:
            if not devices or suffix in NOT_COMPILED.get(source.stem, []):
                continue
            module = compile_model(source, f"checks-{source.stem}{suffix}", PLAIN + flags)
            for device in devices:
                if source.stem == "wrong":
                    is_refused(source, module, device)
                elif source.stem == "tools":
                    in_place(module, device)
                    names_functions("device statistics", "iree-run-module", STATISTICS, module, device)
                    if BENCHMARK:
                        names_functions("dispatch statistics", "iree-benchmark-module", DISPATCHES, module, device)
                else:
                    passes(source, module, [device])
    wrong = summary()
    if not BENCHMARK:
        print("not run: the statistics of dispatches, for which iree-benchmark-module is missing")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"error: {error}")
