# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Compiles the sample models, runs them on each device, and checks every result against numpy.

Started by `cargo xtask demo`. The expected values are computed here,
in another language and by other code than what runs on the device.
"""

import json
import struct
import sys

import collectives
import networks
import numpy as np
import products
import sharded
import training
from harness import (
    CARDS,
    CUDA,
    CUDA_CARDS,
    DEVICES,
    EXAMPLES,
    FLAGS,
    GIVEN,
    LLVM_CPU,
    LOCAL,
    MODELS,
    OURS,
    OUT,
    RISCV32,
    RISCV32_PLAIN,
    SLOW_TILES,
    SUPERVISOR,
    TARGET,
    TILES,
    TOOLS,
    VMVX,
)
from harness import Failed, attempt, check, compile_model, invoke, note, run, summary


def random(*shapes, scale=1.0):
    """Values that are the same in every run."""
    generator = np.random.default_rng(7)
    return [(generator.standard_normal(shape) * scale).astype(np.float32) for shape in shapes]


def conv3x3(x, w):
    """A 3x3 convolution over a 1 x height x width x channels image, padded by one."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = x.shape[1:3]
    out = np.zeros((1, height, width, w.shape[3]), dtype=np.float64)
    for i in range(3):
        for j in range(3):
            out += padded[:, i : i + height, j : j + width, :].astype(np.float64) @ w[i, j].astype(np.float64)
    return out


def convolution(image, w1, b1, w2, b2, w3):
    first = np.maximum(conv3x3(image, w1) + b1, 0)
    second = np.maximum(conv3x3(first, w2) + b2, 0)
    pooled = second.reshape(1, 8, 2, 8, 2, 16).max(axis=(2, 4))
    return pooled.reshape(1, 1024) @ w3


def transformer(x, wq, wk, wv, wo, w1, w2):
    x, wq, wk, wv, wo, w1, w2 = (value.astype(np.float64) for value in (x, wq, wk, wv, wo, w1, w2))
    heads = [(x @ weight).reshape(32, 4, 16).transpose(1, 0, 2) for weight in (wq, wk, wv)]
    scores = heads[0] @ heads[1].transpose(0, 2, 1) * 0.25
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    joined = (weights @ heads[2]).transpose(1, 0, 2).reshape(32, 64)
    y = x + joined @ wo
    return y + np.tanh(y @ w1) @ w2


def safetensors(path, tensors):
    """Writes a parameter file."""
    header, offset = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for value in tensors.values():
            file.write(value.tobytes())


def simple(name, cases, expected, flags, label=None, extra=()):
    """A model with one function, on each device that runs what it is compiled to."""
    label = label or name
    source, file = MODELS / f"{name}.mlir", label.replace(" ", "-")
    modules = dict.fromkeys(DEVICES, compile_model(source, file, LOCAL + flags))
    if TILES and flags is LLVM_CPU:
        modules |= dict.fromkeys(TILES, compile_model(source, f"{file}-riscv32", LOCAL + RISCV32))
        modules |= dict.fromkeys(SLOW_TILES, compile_model(source, f"{file}-riscv32-plain", LOCAL + RISCV32_PLAIN))
    if CUDA_CARDS and flags is LLVM_CPU:
        modules |= dict.fromkeys(CUDA_CARDS, compile_model(source, f"{file}-cuda", CUDA))
    for device, module in modules.items():
        for inputs in cases:

            def body(device=device, module=module, inputs=inputs):
                result, took = invoke(module, [device], inputs, ["--function=main", *extra])
                check(label, device, result, took, expected(*inputs))

            attempt(label, device, body)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    shapes = [(4, 8), (33, 77), (1, 1)]
    elementwise = [random(shape, shape, shape) for shape in shapes]
    simple("elementwise", elementwise, lambda a, b, c: np.maximum(a * b + c, 0), LLVM_CPU)
    simple("elementwise", elementwise[:1], lambda a, b, c: np.maximum(a * b + c, 0), VMVX, "elementwise vmvx")
    network = random((1, 16, 16, 3), (3, 3, 3, 8), (8,), (3, 3, 8, 16), (16,), (1024, 10), scale=0.3)
    simple("convolution", [network], convolution, LLVM_CPU)
    block = random((32, 64), (64, 64), (64, 64), (64, 64), (64, 64), (64, 256), (256, 64), scale=0.1)
    simple("transformer", [block], transformer, LLVM_CPU)
    if not GIVEN and not SUPERVISOR:
        # Of devices of several kinds, and of processes with a machine each.
        collectives.run_all()
        sharded.run_all(block, transformer(*block))
        training.run_all(random)
        sharded.say_commands()

    products.run_all()

    weights, bias, x = random((256, 128), (128,), (8, 256), scale=0.2)
    file = OUT / "model.safetensors"
    safetensors(file, {"weights": weights, "bias": bias})
    simple("parameters", [[x]], lambda x: x @ weights + bias, LLVM_CPU, extra=[f"--parameters=model={file}"])

    source, external = EXAMPLES / "two_functions.mlir", ["--iree-execution-model=async-external"]
    two = dict.fromkeys(OURS, compile_model(source, "two_functions", LOCAL + LLVM_CPU + external))
    if TILES:
        two |= dict.fromkeys(TILES, compile_model(source, "two_functions-riscv32", LOCAL + RISCV32 + external))
    if CUDA_CARDS:
        two |= dict.fromkeys(CUDA_CARDS, compile_model(source, "two_functions-cuda", CUDA + external))
    for device, module in two.items():

        def both(device=device, module=module):
            # The program compares its results itself, in C, and fails if one is wrong.
            took = run([TOOLS / "embed", module, device])
            note("two in flight", device, "0.0e+00", took, True)

        attempt("two in flight", device, both)

    for device in CARDS:

        def overlap(device=device):
            took = run([TOOLS / "overlap", device])
            note("overlapped transfers", device, "0.0e+00", took, True)

        attempt("overlapped transfers", device, overlap)

    plain = compile_model(EXAMPLES / "two_functions.mlir", "two_functions_sync", LOCAL + LLVM_CPU)

    def embedded():
        took = run([TARGET / "debug/examples/embed", plain])
        note("Rust program", "mock", "0.0e+00", took, True)

    attempt("Rust program", "mock", embedded)

    ordinals = [f"--iree-hal-target-device={name}=local[{at}]" for at, name in enumerate(("first", "second", "third"))]
    several = compile_model(MODELS / "devices.mlir", "devices", ordinals + LLVM_CPU)
    sets = [["local-task", device, f"{device}://0"] for device in GIVEN] or [
        ["mock://0", "mock://1", "local-task"],
        ["local-task", "mock://1", "mock://0"],
        ["gaudi://emulated/0", "mock://0", "gaudi://emulated/1"],
        ["mock://0?heaps=2", "gaudi://emulated/0", "local-task"],
    ]
    for devices in sets:

        def across(devices=devices):
            x, y = random((1024,), (1024,))
            result, took = invoke(several, devices, [x, y])
            check("three devices", " ".join(devices), result, took, 2 * (x + y) ** 2 - x)

        attempt("three devices", " ".join(devices), across)

    if not FLAGS.quick:
        networks.run_all()
    return 1 if summary() else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"error: {error}")
