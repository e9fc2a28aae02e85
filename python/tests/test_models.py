# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Models on each device give the bits that IREE's own package gives on local-task."""

import subprocess

import iree.runtime as rt
import iree_hal
import numpy as np
import pytest
from conftest import CUDA, LLVM_CPU, LOCAL, MODELS, RISCV32, TARGET, VMVX, random, same

BLOCK = ((32, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 256), (256, 64))
PICTURE = ((1, 16, 16, 3), (3, 3, 3, 8), (8,), (3, 3, 8, 16), (16,), (1024, 10))


@pytest.mark.parametrize(
    "name, shapes, flags",
    [
        ("elementwise", ((33, 77),) * 3, LLVM_CPU),
        ("elementwise", ((4, 8),) * 3, VMVX),
        ("convolution", PICTURE, LLVM_CPU),
        ("transformer", BLOCK, LLVM_CPU),
    ],
)
def test_demo_model_gives_the_judges_bits(compile, judge, device, name, shapes, flags):
    module = compile(MODELS / f"{name}.mlir", *LOCAL, *flags)
    inputs = random(*shapes, scale=0.3)
    (expected,) = judge(module, "main", inputs)
    assert len(np.unique(expected)) > 2
    same(iree_hal.Module(module, device).main(*inputs), expected)


@pytest.mark.parametrize(
    "device, name, shapes, flags",
    [
        ("tenstorrent://emulated", "convolution", PICTURE, LOCAL + RISCV32),
        ("nvidia://emulated", "elementwise", ((33, 77),) * 3, CUDA),
        ("nvidia://emulated", "transformer", BLOCK, CUDA),
    ],
)
def test_model_for_a_cards_own_cores_is_the_judges_within_a_tolerance(compile, judge, device, name, shapes, flags):
    source = MODELS / f"{name}.mlir"
    inputs = random(*shapes, scale=0.3)
    (expected,) = judge(compile(source, *LOCAL, *LLVM_CPU), "main", inputs)
    taken = iree_hal.Module(compile(source, *flags), device).main(*inputs)
    np.testing.assert_allclose(taken.numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["tenstorrent://emulated", "nvidia://emulated"])
def test_module_for_the_host_is_refused_by_a_card_with_cores_of_its_own(compile, device):
    module = compile(MODELS / "elementwise.mlir", *LOCAL, *LLVM_CPU)
    with pytest.raises(iree_hal.Error, match="unavailable.*embedded-elf-x86_64"):
        iree_hal.Module(module, device).main(*random((4, 8), (4, 8), (4, 8)))


def safetensors(path, tensors):
    """Writes a parameter file."""
    import json
    import struct

    header, offset = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(value.tobytes() for value in tensors.values()))


def test_parameters_come_from_files_by_scope(compile, judge, device, tmp_path):
    module = compile(MODELS / "parameters.mlir")
    weights, bias, x = random((256, 128), (128,), (8, 256), scale=0.2)
    file = tmp_path / "model.safetensors"
    safetensors(file, {"weights": weights, "bias": bias})
    index = rt.ParameterIndex()
    index.load(str(file))
    (expected,) = judge(module, "main", [x], [index.create_provider("model")])
    same(iree_hal.Module(module, device, parameters={"model": file}).main(x), expected)
    with pytest.raises(iree_hal.Error, match="nowhere"):
        iree_hal.Module(module, device, parameters={"model": tmp_path / "nowhere.safetensors"})


def test_module_of_three_devices_runs_on_them(compile):
    ordinals = [f"--iree-hal-target-device={name}=local[{at}]" for at, name in enumerate(("first", "second", "third"))]
    module = compile(MODELS / "devices.mlir", *ordinals, *LLVM_CPU)
    x, y = random((1024,), (1024,))
    program = iree_hal.Module(module, ["mock://0", iree_hal.Device("gaudi://emulated"), "local-task"])
    assert [device.uri for device in program.devices] == ["mock://0", "gaudi://emulated", "local-task"]
    np.testing.assert_allclose(program.main(x, y).numpy(), 2 * (x + y) ** 2 - x, rtol=1e-5, atol=1e-5)


# Published networks, as `cargo xtask demo` compiles them.
NETWORKS = {
    "file-types": np.random.default_rng(3).integers(0, 257, (1, 2048), dtype=np.int32),
    "text-orientation": np.random.default_rng(3).random((1, 3, 48, 192), dtype=np.float32),
    "squeezenet": np.random.default_rng(3).random((1, 3, 224, 224), dtype=np.float32),
    "resnet50": np.random.default_rng(3).random((1, 3, 224, 224), dtype=np.float32),
}


@pytest.fixture(scope="module")
def networks():
    """The folder with the compiled networks, which the demo's code compiles if they are missing."""
    folder = TARGET / "iree/demo"
    folder.mkdir(parents=True, exist_ok=True)
    command = "import networks\nfor network in networks.NETWORKS: network.compile()"
    python = TARGET / "python/bin/python"
    done = subprocess.run([python, "-c", command], cwd=MODELS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_network_of_others_gives_the_judges_bits(judge, networks, name):
    module, values = networks / f"{name}.host.vmfb", NETWORKS[name]
    config = rt.Config("local-task")
    vm = rt.VmModule.mmap(config.vm_instance, str(module))
    (function,) = [each for each in vm.function_names if not each.startswith("__") and not each.endswith("$async")]
    (expected,) = judge(module, function, [values])
    for uri in ("mock", "gaudi://emulated"):
        program = iree_hal.Module(module, uri)
        same(program[function](values), expected)
