# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Models in bf16 on Tenstorrent's tiles: products on the scalar cores, and on the matrix engine, side by side."""

import re
import subprocess

import numpy as np
from harness import LOCAL, MODELS, OUT, RISCV32, TARGET, TILES, TOOLS, Failed, attempt, compile_model, note, run

# Of the norm: bf16 has 8 bits of fraction, and each model rounds several times.
TOLERANCE = 5e-3


def bf16(x):
    """The nearest values that bf16 has."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def perceptron(x, w1, b1, w2):
    hidden = bf16(np.maximum(x.astype(np.float64) @ w1 + b1, 0))
    return hidden.astype(np.float64) @ w2


def transformer(x, wq, wk, wv, wo, w1, w2):
    def product(a, b):
        return bf16(a).astype(np.float64) @ bf16(b).astype(np.float64)

    heads = [bf16(product(x, weight)).reshape(64, 4, 32).transpose(1, 0, 2) for weight in (wq, wk, wv)]
    scores = product(heads[0], heads[1].transpose(0, 2, 1)) * 0.25
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    joined = bf16(product(weights, heads[2])).transpose(1, 0, 2).reshape(64, 128)
    y = x + product(joined, wo)
    return y + product(np.tanh(product(y, w1)), w2)


def inputs(*shapes):
    """Values that are the same in every run; those of a shape with a type are in bf16."""
    generator = np.random.default_rng(11)
    for dimensions, kind in shapes:
        value = (generator.standard_normal(dimensions) * 0.1).astype(np.float32)
        yield (bf16(value) if kind == "bf16" else value), kind


PERCEPTRON = [((128, 256), "bf16"), ((256, 512), "bf16"), ((512,), "f32"), ((512, 100), "bf16")]
TRANSFORMER = [((64, 128), "f32"), *[((128, 128), "bf16")] * 4, ((128, 512), "bf16"), ((512, 128), "bf16")]

COUNTS = ("instructions", "engine words", "packets", "bytes")


def counts(report):
    """What the card's tiles did, from the line that the emulator writes at the end."""
    instructions = re.search(r"(\d+) instructions", report)
    words = re.search(r"(\d+) engine words", report)
    network = re.findall(r"(\d+) packets with (\d+) bytes", report)
    return [
        int(instructions[1]),
        int(words[1]),
        sum(int(packets) for packets, _ in network),
        sum(int(length) for _, length in network),
    ]


def invoke(module, device, values):
    """Runs a model; its result, how long it took, and the counts."""
    report, result = OUT / "products-report.txt", OUT / "products-result.npy"
    for file in (report, result):
        file.unlink(missing_ok=True)
    arguments = [TOOLS / "iree-run-module", f"--module={module}", "--function=main", f"--output=@{result}"]
    # On as many tiles as on any other machine: what is read and written depends on that.
    arguments.append(f"--device={device}?tiles=2&report={report}")
    for number, (value, kind) in enumerate(values):
        file = OUT / f"products-input{number}.bin"
        stored = (value.view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else value
        file.write_bytes(stored.tobytes())
        arguments.append(f"--input={'x'.join(map(str, value.shape))}x{kind}=@{file}")
    took = run(arguments)
    return np.load(result), took, counts(report.read_text())


def rules():
    """The module that leaves products of bf16 to the engine."""
    file = OUT / "products.mlir"
    program = TARGET / "debug/tenstorrent-products"
    done = subprocess.run([program, "bf16"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr)
    if not file.exists() or file.read_text() != done.stdout:
        file.write_text(done.stdout)
    return file


def run_all():
    """Both models with each way of multiplying, and what the tiles did for it."""
    for device in TILES:
        engine = RISCV32 + [f"--iree-preprocessing-transform-spec-filename={rules()}"]
        table = []
        for model, shapes, expected in (
            ("perceptron_bf16", PERCEPTRON, perceptron),
            ("transformer_bf16", TRANSFORMER, transformer),
        ):
            values = list(inputs(*shapes))
            wanted = expected(*(value for value, _ in values))
            for way, flags in (("scalar cores", RISCV32), ("matrix engine", engine)):
                name = f"{model}, {way}"

                def body():
                    file = f"{model}-{way.replace(' ', '-')}"
                    module = compile_model(MODELS / f"{model}.mlir", file, LOCAL + flags)
                    result, took, counted = invoke(module, device, values)
                    error = np.linalg.norm(result - wanted) / np.linalg.norm(wanted)
                    note(name, device, f"{error:.1e}", took, result.shape == wanted.shape and error <= TOLERANCE)
                    table.append((name, counted, error))

                attempt(name, device, body)
        print(f"\nof which {device} did, network and cores of its tiles:\n")
        print(f"{'':36}" + "".join(f"{what:>14}" for what in (*COUNTS, "error")))
        for name, counted, error in table:
            print(f"{name:36}" + "".join(f"{count:>14,}" for count in counted) + f"{error:>14.1e}")
        print(flush=True)
