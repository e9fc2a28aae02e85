# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Shared by the tests: models that are compiled once, and IREE's own runtime as the judge.

`iree.runtime` is IREE's package on PyPI, built from the same release. On its local-task driver a module gives the same
bits, since the same code runs on the same processor.
"""

import os
import pathlib
import subprocess

import iree.runtime as rt
import iree_hal
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COMPILER = TARGET / "python/bin/iree-compile"
MODELS = ROOT / "demo/models"
EXAMPLES = ROOT / "hal-driver/examples"
DEMO = ROOT / "demo"
HERE = pathlib.Path(__file__).parent

LOCAL = ["--iree-hal-target-device=local"]
LLVM_CPU = ["--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
# For the cores of a Tenstorrent card, which cannot run host code (docs/tenstorrent.md).
RISCV32 = (ROOT / "demo/riscv32.flags").read_text().split()
CUDA = ["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"]
VMVX = ["--iree-hal-local-target-device-backends=vmvx"]

# This project's devices, and IREE's own through this package.
DEVICES = [
    "mock",
    "mock://0?heaps=2&waits=events&queues=3",
    "gaudi://emulated",
    "qaic://emulated",
    "local-task",
]


@pytest.fixture(scope="session")
def compile(tmp_path_factory):
    """Compiles a source, each way once."""
    folder = tmp_path_factory.mktemp("modules")
    made = {}

    def compiled(source, *flags):
        key = (source, flags)
        if key not in made:
            target = folder / f"{source.stem}-{len(made)}.vmfb"
            command = [COMPILER, *(flags or LOCAL + LLVM_CPU), source, "-o", target]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made[key] = target
        return made[key]

    return compiled


@pytest.fixture(scope="session")
def values(compile):
    """Functions with every kind of argument and result."""
    return compile(HERE / "values.mlir", *LOCAL, *VMVX, "--iree-input-demote-f64-to-f32=false")


@pytest.fixture(scope="session")
def two(compile):
    """Functions that take fences."""
    return compile(EXAMPLES / "two_functions.mlir", *LOCAL, *LLVM_CPU, "--iree-execution-model=async-external")


@pytest.fixture(scope="session")
def judge():
    """The result of a module's function with IREE's own package on local-task."""

    def called(module, name, inputs, parameters=None):
        config = rt.Config("local-task")
        modules = []
        if parameters:
            modules.append(rt.create_io_parameters_module(config.vm_instance, *parameters))
        modules.append(rt.create_hal_module(config.vm_instance, config.device))
        modules.append(rt.VmModule.mmap(config.vm_instance, str(module)))
        loaded = rt.load_vm_modules(*modules, config=config)
        result = loaded[-1][name](*inputs)
        return [np.asarray(one.to_host()) for one in (result if isinstance(result, (list, tuple)) else [result])]

    return called


@pytest.fixture(params=DEVICES)
def device(request):
    """Each device in turn."""
    return iree_hal.Device(request.param)


def same(ours, theirs):
    """The same bits, shape and type."""
    ours = ours.numpy()
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert ours.tobytes() == theirs.tobytes()


def random(*shapes, scale=1.0):
    """Values that are the same in every run."""
    generator = np.random.default_rng(7)
    return [(generator.standard_normal(shape) * scale).astype(np.float32) for shape in shapes]
