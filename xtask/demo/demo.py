"""Compiles the sample models, runs them on each device, and checks every result against numpy.

Started by `cargo xtask demo`, which says in the environment where things are. The expected values are computed here,
in another language and by other code than what runs on the device.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import time

import numpy as np

MODELS = pathlib.Path(__file__).parent / "models"
TOOLS = pathlib.Path(os.environ["HAL_TOOLS"])
OUT = pathlib.Path(os.environ["HAL_DEMO_DIR"])
COMPILER = os.environ["HAL_IREE_COMPILE"]
EXAMPLES = pathlib.Path(os.environ["HAL_EXAMPLES"])

LLVM_CPU = ["--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
VMVX = ["--iree-hal-local-target-device-backends=vmvx"]
LOCAL = ["--iree-hal-target-device=local"]

# Where each model runs. The local driver of IREE's own is here so that a reader sees the same model beside it.
DEVICES = [
    "mock",
    "mock://0?queues=4&workers=2&latency=20us",
    "gaudi://emulated?generation=gaudi1",
    "gaudi://emulated?generation=gaudi2",
    "local-task",
]

# Those of them that the programs below run on: all but IREE's own.
OURS = DEVICES[:-1]
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
    done = subprocess.run([COMPILER, *flags, str(source), "-o", str(target)], capture_output=True, text=True)
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        raise Failed(f"iree-compile could not compile {source}:\n{done.stderr}")
    stamp.write_text(wanted)
    return target


def run(arguments):
    """Runs a program; how long it took."""
    begin = time.perf_counter()
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=120)
    took = time.perf_counter() - begin
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    return took


def invoke(module, devices, inputs, extra=()):
    """Runs a model's main function; its result and how long it took."""
    arguments = [TOOLS / "iree-run-module", f"--module={module}", "--function=main", *extra]
    arguments += [f"--device={device}" for device in devices]
    for number, value in enumerate(inputs):
        path = OUT / f"input{number}.npy"
        np.save(path, value)
        arguments.append(f"--input=@{path}")
    result = OUT / "result.npy"
    result.unlink(missing_ok=True)
    arguments.append(f"--output=@{result}")
    took = run(arguments)
    return np.load(result), took


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


ROWS = []
WRONG = 0


def check(model, device, result, took, expected, tolerance=2e-5):
    """Compares a result and notes it."""
    global WRONG
    expected = np.asarray(expected)
    if result.shape != expected.shape or not np.isfinite(result).all():
        error = float("inf")
    else:
        error = float(np.max(np.abs(result - expected) / np.maximum(1.0, np.abs(expected)), initial=0.0))
    good = error <= tolerance
    WRONG += not good
    ROWS.append((model, device, f"{error:.1e}", f"{took * 1000:.0f} ms", "ok" if good else "WRONG"))
    print(f"{model} on {device}: {'ok' if good else 'WRONG'}", flush=True)


def attempt(model, device, body):
    """Does one thing; what goes wrong is noted and the rest goes on."""
    global WRONG
    try:
        body()
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        WRONG += 1
        ROWS.append((model, device, "-", "-", "FAILED"))
        print(f"{model} on {device}: FAILED\n{error}", file=sys.stderr, flush=True)


def simple(name, cases, expected, flags, label=None, extra=()):
    """A model with one function, on each device."""
    label = label or name
    module = compile_model(MODELS / f"{name}.mlir", label.replace(" ", "-"), LOCAL + flags)
    for device in DEVICES:
        for inputs in cases:
            def body(device=device, inputs=inputs):
                result, took = invoke(module, [device], inputs, extra)
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

    weights, bias, x = random((256, 128), (128,), (8, 256), scale=0.2)
    file = OUT / "model.safetensors"
    safetensors(file, {"weights": weights, "bias": bias})
    simple("parameters", [[x]], lambda x: x @ weights + bias, LLVM_CPU, extra=[f"--parameters=model={file}"])

    two = compile_model(
        EXAMPLES / "two_functions.mlir", "two_functions", LOCAL + LLVM_CPU + ["--iree-execution-model=async-external"]
    )
    for device in OURS:
        def both(device=device):
            # The program compares its results itself, in C, and fails if one is wrong.
            took = run([TOOLS / "embed", two, device])
            ROWS.append(("two in flight", device, "0.0e+00", f"{took * 1000:.0f} ms", "ok"))
            print(f"two in flight on {device}: ok", flush=True)

        attempt("two in flight", device, both)

    for device in CARDS:
        def overlap(device=device):
            took = run([TOOLS / "overlap", device])
            ROWS.append(("overlapped transfers", device, "0.0e+00", f"{took * 1000:.0f} ms", "ok"))
            print(f"overlapped transfers on {device}: ok", flush=True)

        attempt("overlapped transfers", device, overlap)

    plain = compile_model(EXAMPLES / "two_functions.mlir", "two_functions_sync", LOCAL + LLVM_CPU)

    def embedded():
        took = run([os.environ["HAL_RUST_EXAMPLE"], plain])
        ROWS.append(("Rust program", "mock", "0.0e+00", f"{took * 1000:.0f} ms", "ok"))
        print("Rust program on mock: ok", flush=True)

    attempt("Rust program", "mock", embedded)

    ordinals = [f"--iree-hal-target-device={name}=local[{at}]" for at, name in enumerate(("first", "second", "third"))]
    several = compile_model(MODELS / "devices.mlir", "devices", ordinals + LLVM_CPU)
    sets = [
        ["mock://0", "mock://1", "local-task"],
        ["local-task", "mock://1", "mock://0"],
        ["gaudi://emulated/0", "mock://0", "gaudi://emulated/1"],
    ]
    for devices in sets:
        def across(devices=devices):
            x, y = random((1024,), (1024,))
            result, took = invoke(several, devices, [x, y])
            check("three devices", " ".join(devices), result, took, 2 * (x + y) ** 2 - x)

        attempt("three devices", " ".join(devices), across)

    widths = [max(len(row[column]) for row in ROWS + [HEAD]) for column in range(len(HEAD))]
    print()
    for row in [HEAD, *ROWS]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(f"\n{len(ROWS) - WRONG} passed, {WRONG} failed")
    return 1 if WRONG else 0


HEAD = ("model", "device", "error", "time", "result")

if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"error: {error}")
