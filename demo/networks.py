# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Networks that other people made, from packages on PyPI, as judges of every device.

Each is compiled for any processor and for the one it runs on, whose vectors ask more of the memory that they are
given, and runs from a module that was read and from one that was mapped. A device's result is that of IREE's
local-sync, bit for bit; but for devices with cores of their own, for which those networks that an emulator has time
for are compiled: their floats are not the host's, and results are compared with a tolerance.
"""

import importlib.metadata
import importlib.util
import json
import pathlib

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference, version_converter
from harness import COMPILER, DEVICES, LOCAL, OUT, RISCV32, TILES, Failed, attempt, check, invoke, note, run

# What all of them are converted to: what IREE's importer knows best.
OPSET = 17

PROCESSORS = {
    name: ["--iree-hal-local-target-device-backends=llvm-cpu", f"--iree-llvmcpu-target-cpu={name}"]
    for name in ("generic", "host")
}
# How each is given its parameters: copied to the device, or as pages of the file. The code has no part in that.
MODES = {"generic": "preload", "host": "mmap"}

# How far a result may be from that of the host where floats are not the host's: what layer upon layer leaves of the
# last bits. A classifier's numbers are mostly small, and are compared as numbers of their size.
TOLERANCE = {"tolerance": 1e-3, "least": 1e-6}


def folder(package):
    """Where a package is; it is not imported, since it would want packages that are not needed here."""
    found = importlib.util.find_spec(package)
    if found is None:
        raise Failed(
            f"the package {package} is missing; remove the Python environment in the target folder and try again"
        )
    return pathlib.Path(found.submodule_search_locations[0])


def with_weights(model):
    """Puts weights where onnx's own test data has one number for all of them, as whatever mixes two up would go
    unseen.
    """
    generator = np.random.default_rng(7)
    shapes = {value.name: numpy_helper.to_array(value) for value in model.graph.initializer}
    uses = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            uses.setdefault(name, (node.op_type, position))
    nodes = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            nodes.append(node)
            continue
        shape = [int(length) for length in shapes[node.input[0]]]
        use, position = uses.get(node.output[0], ("", 0))
        if use == "BatchNormalization":
            # A scale and a variance are around one, a shift and a mean around nothing.
            values = generator.uniform(-0.1, 0.1, shape) + (position in (1, 4))
        else:
            values = generator.standard_normal(shape) * np.sqrt(2 / max(1, np.prod(shape[1:])))
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def with_shape(value, shape):
    """Settles the shape of an input or an output."""
    for dimension, length in zip(value.type.tensor_type.shape.dim, shape):
        dimension.Clear()
        dimension.dim_value = length


class Network:
    """Where a network is, and what it is given. Its first dimension is the batch, which is one."""

    def __init__(self, name, package, path, values, weights=False, on_tiles=False, processors=PROCESSORS):
        self.name, self.package, self.path, self.values, self.weights = name, package, path, values, weights
        self.tiles = TILES if on_tiles else []
        self.processors = processors
        self.file = name.replace(" ", "-")

    def load(self):
        """The network as it is imported."""
        model = onnx.load(folder(self.package.replace("-", "_")) / self.path)
        # Before version 4 every weight was an input, too.
        model.ir_version = max(model.ir_version, 8)
        weights = {value.name for value in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in weights]
        del model.graph.input[:]
        model.graph.input.extend(inputs)
        if self.weights:
            with_weights(model)
        with_shape(model.graph.input[0], self.values.shape)
        for value in model.graph.output:
            with_shape(value, [1])
        if model.opset_import[0].version < OPSET:
            model = version_converter.convert_version(model, OPSET)
        del model.graph.value_info[:]
        return shape_inference.infer_shapes(model)

    def compile(self):
        """A module for each kind of processor."""
        imported = OUT / f"{self.file}.mlir"
        stamp = OUT / f"{self.file}.made"
        flags = PROCESSORS | {"riscv32": RISCV32}
        processors = {name: flags[name] for name in [*self.processors, *(["riscv32"] if self.tiles else [])]}
        targets = {processor: OUT / f"{self.file}.{processor}.vmfb" for processor in processors}
        version = [importlib.metadata.version(package) for package in (self.package, "iree-base-compiler")]
        wanted = json.dumps([version, LOCAL, processors, pathlib.Path(__file__).read_text()])
        if all(target.is_file() for target in targets.values()) and stamp.is_file() and stamp.read_text() == wanted:
            return targets
        print(f"importing {self.name}", flush=True)
        exported = OUT / f"{self.file}.onnx"
        onnx.save(self.load(), exported)
        steps = [[pathlib.Path(COMPILER).with_name("iree-import-onnx"), exported, "-o", imported]]
        for processor, target in targets.items():
            steps.append([COMPILER, *LOCAL, *processors[processor], imported, "-o", target])
        for number, step in enumerate(steps):
            if number > 0:
                print(f"compiling {self.name} for {list(processors)[number - 1]}", flush=True)
            run(step, timeout=1800)
        exported.unlink()
        imported.unlink()
        stamp.write_text(wanted)
        return targets

    def invoke(self, module, device, mode, timeout=120):
        """The result of the network's only function, and how long it took."""
        return invoke(module, [device], [self.values], [f"--module_mode={mode}"], timeout)


def picture(*shape):
    """A picture, of noise."""
    return np.random.default_rng(3).random(shape, dtype=np.float32)


LIGHT = "backend/test/data/light"

NETWORKS = [
    Network(
        "file types",
        "magika",
        "models/standard_v3_3/model.onnx",
        np.random.default_rng(3).integers(0, 257, (1, 2048), dtype=np.int32),
        on_tiles=True,
    ),
    Network(
        "text orientation",
        "rapidocr-onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        picture(1, 3, 48, 192),
    ),
    Network(
        "squeezenet",
        "onnx",
        f"{LIGHT}/light_squeezenet.onnx",
        picture(1, 3, 224, 224),
        weights=True,
        on_tiles=True,
    ),
    # The largest, for which a card that copies all weights for each dispatch needs its time: once.
    Network(
        "resnet50",
        "onnx",
        f"{LIGHT}/light_resnet50.onnx",
        picture(1, 3, 224, 224),
        weights=True,
        processors=["host"],
    ),
]


def run_all():
    """Every network on every device."""
    for network in NETWORKS:

        def compared(network=network):
            modules = network.compile()
            for processor in network.processors:
                module = modules[processor]
                label = f"{network.name} for {processor}"
                expected, _ = network.invoke(module, "local-sync", "preload")
                if not np.isfinite(expected).all() or len(np.unique(expected)) < 2:
                    raise Failed(f"{label}: the result of local-sync says nothing")
                mode = MODES[processor]
                for device in DEVICES:

                    def once(device=device, mode=mode, module=module, expected=expected):
                        result, took = network.invoke(module, device, mode)
                        same = result.dtype == expected.dtype and result.tobytes() == expected.tobytes()
                        note(label, f"{device}, {mode}", "0.0e+00" if same else "-", took, same)

                    attempt(label, f"{device}, {mode}", once)

            for device in network.tiles:

                def on_tiles(device=device):
                    result, took = network.invoke(modules["riscv32"], device, "preload", timeout=900)
                    check(f"{network.name} for riscv32", device, result, took, expected, **TOLERANCE)

                attempt(f"{network.name} for riscv32", device, on_tiles)

        attempt(network.name, "every device", compared)
