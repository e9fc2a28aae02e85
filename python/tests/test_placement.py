# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Results in memory that the program gives, work on the queues that the module names, workspaces of the program."""

import iree_hal
import numpy as np
import pytest
from conftest import DEVICES, HERE


@pytest.fixture(scope="module")
def source(compile):
    return compile(HERE / "placement.mlir")


@pytest.mark.parametrize("uri", DEVICES)
def test_result_is_in_the_memory_that_was_given(source, uri):
    device = iree_hal.Device(uri)
    module = iree_hal.Module(source, device)
    for x in ([1, 2, 3, 4], [5, 6, 7, 8]):
        x = np.array(x, np.float32)
        given = device.array(np.zeros(4, np.float32))
        result = module.into(x, given)
        assert np.array_equal(given.numpy(), 2 * x)
        assert np.array_equal(result.numpy(), 2 * x)


def test_memory_of_the_program_gets_the_result_in_place(source):
    device = iree_hal.Device("mock")
    memory = np.zeros(4 + 4096, np.float32)
    start = -memory.ctypes.data % 4096 // 4
    memory = memory[start : start + 4]
    given = device.array(memory, copy=False)
    result = iree_hal.Module(source, device).into(np.arange(4, dtype=np.float32), given)
    assert np.array_equal(memory, [0, 2, 4, 6])
    assert np.shares_memory(result.numpy(), memory)


def test_memory_of_another_shape_is_refused(source):
    device = iree_hal.Device("mock")
    with pytest.raises(iree_hal.Error) as refused:
        iree_hal.Module(source, device).into(np.ones(4, np.float32), device.array(np.zeros(3, np.float32)))
    assert refused.value.code == "INVALID_ARGUMENT", refused.value


@pytest.mark.parametrize("uri", DEVICES)
def test_work_runs_on_the_queues_that_the_module_names(source, uri):
    module = iree_hal.Module(source, uri)
    assert np.array_equal(module.on_queues(np.arange(4, dtype=np.float32)).numpy(), [0, 4, 16, 36])


@pytest.mark.parametrize("uri", DEVICES)
def test_workspace_is_the_programs(source, uri):
    device = iree_hal.Device(uri)
    module = iree_hal.Module(source, device)
    x = np.eye(64, dtype=np.float32) * 2
    size = module.cube_transients_size(x, device.array(np.zeros(1, np.int8)))
    workspace = device.array(np.zeros(size, np.int8))
    assert np.array_equal(module.cube(x, workspace).numpy(), np.eye(64, dtype=np.float32) * 32)
    assert workspace.numpy().any(), "the steps between are in it"
