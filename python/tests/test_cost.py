# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""What a small call costs, beside IREE's own package: the same module, driver and arrays.

The number of rounds is fixed before anything is measured, and one measurement decides. In each round each side has its turn, in an
order that turns with the rounds, so that what else the machine does meets all of them; what is judged is the median of the rounds'
ratios, which a burst of other work in one turn does not move.
"""

import statistics
import time

import iree.runtime as rt
import iree_hal
import numpy as np
from conftest import LLVM_CPU, LOCAL, MODELS

ROUNDS, CALLS = 201, 50

# A call with ours is to cost at most this much of one with theirs.
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
        print(f"\na call of a one-operation module with numpy arrays, and its result as one; medians of {ROUNDS} rounds:")
        for name, cost in costs.items():
            print(f"  {name:<28}{statistics.median(cost):8.1f} µs")
        print(f"  ours to theirs, in the same round: {ratio:.2f}")
    assert ratio < MOST
