"""What a small call costs, beside IREE's own package: the same module, driver and arrays, in turns, the least of many rounds."""

import time

import iree.runtime as rt
import iree_hal
import numpy as np
from conftest import LLVM_CPU, LOCAL, MODELS

ROUNDS, CALLS = 60, 50


def least(calls, best):
    """Microseconds for one call of each, the least of all rounds and of what was measured before."""
    best = best or {name: float("inf") for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - begin) / CALLS * 1e6)
    return best


def test_small_call_costs_less_than_with_irees_package(compile, capsys):
    module = compile(MODELS / "elementwise.mlir", *LOCAL, *LLVM_CPU)
    inputs = [np.ones((4, 8), np.float32)] * 3
    config = rt.Config("local-sync")
    theirs = rt.load_vm_module(rt.VmModule.mmap(config.vm_instance, str(module)), config).main
    ours = iree_hal.Module(module, "local-sync").main
    mock = iree_hal.Module(module, "mock").main
    calls = {
        "iree.runtime, local-sync": lambda: theirs(*inputs).to_host(),
        "iree_hal, local-sync": lambda: ours(*inputs).numpy(),
        "iree_hal, mock": lambda: mock(*inputs).numpy(),
    }
    costs = None
    # Beside busy programs the least of a few rounds is not yet what a call costs.
    for _ in range(4):
        costs = least(calls, costs)
        if costs["iree_hal, local-sync"] < costs["iree.runtime, local-sync"]:
            break
    with capsys.disabled():
        print("\na call of a one-operation module with numpy arrays, and its result as one:")
        for name, cost in costs.items():
            print(f"  {name:<28}{cost:8.1f} µs")
    assert costs["iree_hal, local-sync"] < costs["iree.runtime, local-sync"]
