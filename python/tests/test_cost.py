# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The cost of a small call, compared with IREE's own package: the same module, driver and arrays.

The number of rounds is fixed, and one measurement decides. Each round measures every side once, in an order that
rotates, so that other work on the machine affects all of them. The median of the rounds' ratios is judged, which a
burst of other work in one measurement does not change.
"""

import statistics
import time

import iree.runtime as rt
import iree_hal
import numpy as np
from conftest import LLVM_CPU, LOCAL, MODELS

ROUNDS, CALLS = 201, 50

# The highest allowed ratio of a call's cost to one with IREE's package.
MOST = 0.8

THEIRS, OURS, MOCK = "iree.runtime, local-sync", "iree_hal, local-sync", "iree_hal, mock"


def measure(calls):
    """Microseconds for one call of each, of every round."""
    names, costs = list(calls), {name: [] for name in calls}
    for round in range(ROUNDS):
        first = round % len(names)
        for name in names[first:] + names[:first]:
            call = calls[name]
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            costs[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return costs


def test_small_call_costs_less_than_with_irees_package(compile, capsys):
    module = compile(MODELS / "elementwise.mlir", *LOCAL, *LLVM_CPU)
    inputs = [np.ones((4, 8), np.float32)] * 3
    config = rt.Config("local-sync")
    theirs = rt.load_vm_module(rt.VmModule.mmap(config.vm_instance, str(module)), config).main
    ours = iree_hal.Module(module, "local-sync").main
    mock = iree_hal.Module(module, "mock").main
    costs = measure(
        {
            THEIRS: lambda: theirs(*inputs).to_host(),
            OURS: lambda: ours(*inputs).numpy(),
            MOCK: lambda: mock(*inputs).numpy(),
        }
    )
    ratio = statistics.median(ours / theirs for ours, theirs in zip(costs[OURS], costs[THEIRS]))
    with capsys.disabled():
        print(f"\na call of a one-operation module, numpy arrays in and out; medians of {ROUNDS} rounds:")
        for name, cost in costs.items():
            print(f"  {name:<28}{statistics.median(cost):8.1f} µs")
        print(f"  ours to theirs, in the same round: {ratio:.2f}")
    assert ratio < MOST
