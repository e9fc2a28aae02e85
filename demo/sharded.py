# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""A transformer block divided over several ranks, each with its share of the heads and of the hidden layer.

Two sums over all ranks make the shares whole again, as in any tensor-parallel model. Every rank has to come to the
result of the undivided block, which numpy works out.
"""

import os
import re
import shlex

import numpy as np
from collectives import attempt_job, job
from harness import LLVM_CPU, LOCAL, OUT, TOOLS, Failed, attempt, check, compile_model, text

# What jobs were run with, and what for.
COMMANDS = []

ROWS, WIDTH, HEADS, HEAD, HIDDEN = 32, 64, 4, 16, 256


def tensor(*shape):
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def all_reduce(name, value, ranks, shape):
    group = ", ".join(map(str, range(ranks)))
    return f"""
  %{name} = "stablehlo.all_reduce"(%{value}) ({{
  ^bb0(%{name}_a: tensor<f32>, %{name}_b: tensor<f32>):
    %{name}_c = stablehlo.add %{name}_a, %{name}_b : tensor<f32>
    stablehlo.return %{name}_c : tensor<f32>
  }}) {{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
       replica_groups = dense<[[{group}]]> : tensor<1x{ranks}xi64>, use_global_device_ids}} : ({shape}) -> {shape}"""


def block(ranks):
    """The block of one of so many ranks."""
    heads, hidden = HEADS // ranks, HIDDEN // ranks
    own = heads * HEAD
    x, flat = tensor(ROWS, WIDTH), tensor(ROWS, own)
    split, scores = tensor(heads, ROWS, HEAD), tensor(heads, ROWS, ROWS)
    lines = [
        f"func.func @main(%x: {x}, %wq: {tensor(WIDTH, own)}, %wk: {tensor(WIDTH, own)}, "
        f"%wv: {tensor(WIDTH, own)}, %wo: {tensor(own, WIDTH)}, %w1: {tensor(WIDTH, hidden)}, "
        f"%w2: {tensor(hidden, WIDTH)}) -> {x} {{"
    ]

    def dot(name, left, right, kinds, contracting, batching=""):
        lines.append(
            f"  %{name} = stablehlo.dot_general %{left}, %{right}, {batching}contracting_dims = {contracting} : "
            f"({kinds[0]}, {kinds[1]}) -> {kinds[2]}"
        )

    for name in "qkv":
        dot(name + "0", "x", "w" + name, (x, tensor(WIDTH, own), flat), "[1] x [0]")
        lines.append(f"  %{name}1 = stablehlo.reshape %{name}0 : ({flat}) -> {tensor(ROWS, heads, HEAD)}")
        lines.append(
            f"  %{name} = stablehlo.transpose %{name}1, dims = [1, 0, 2] : " f"({tensor(ROWS, heads, HEAD)}) -> {split}"
        )
    batch = "batching_dims = [0] x [0], "
    dot("s0", "q", "k", (split, split, scores), "[2] x [2]", batch)
    row = tensor(heads, ROWS)
    lines += [
        f"  %scale = stablehlo.constant dense<0.25> : {scores}",
        f"  %s = stablehlo.multiply %s0, %scale : {scores}",
        "  %zero = stablehlo.constant dense<0.0> : tensor<f32>",
        f"  %e = stablehlo.exponential %s : {scores}",
        f"  %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : "
        f"({scores}, tensor<f32>) -> {row}",
        f"  %sums = stablehlo.broadcast_in_dim %sum, dims = [0, 1] : ({row}) -> {scores}",
        f"  %p = stablehlo.divide %e, %sums : {scores}",
    ]
    dot("o0", "p", "v", (scores, split, split), "[2] x [1]", batch)
    lines += [
        f"  %o1 = stablehlo.transpose %o0, dims = [1, 0, 2] : ({split}) -> {tensor(ROWS, heads, HEAD)}",
        f"  %o = stablehlo.reshape %o1 : ({tensor(ROWS, heads, HEAD)}) -> {flat}",
    ]
    dot("a0", "o", "wo", (flat, tensor(own, WIDTH), x), "[1] x [0]")
    lines += [all_reduce("a", "a0", ranks, x), f"  %y = stablehlo.add %x, %a : {x}"]
    dot("h0", "y", "w1", (x, tensor(WIDTH, hidden), tensor(ROWS, hidden)), "[1] x [0]")
    lines.append(f"  %h = stablehlo.tanh %h0 : {tensor(ROWS, hidden)}")
    dot("m0", "h", "w2", (tensor(ROWS, hidden), tensor(hidden, WIDTH), x), "[1] x [0]")
    lines += [all_reduce("m", "m0", ranks, x), f"  %z = stablehlo.add %y, %m : {x}", f"  return %z : {x}", "}"]
    return "\n".join(lines) + "\n"


def inputs(ranks, weights):
    """Writes what each rank has; the files, with the rank's place in their names left open."""
    x, wq, wk, wv, wo, w1, w2 = weights
    names = []
    for name, value, axis in [
        ("x", x, None),
        ("wq", wq, 1),
        ("wk", wk, 1),
        ("wv", wv, 1),
        ("wo", wo, 0),
        ("w1", w1, 1),
        ("w2", w2, 0),
    ]:
        for rank in range(ranks):
            share = value if axis is None else np.split(value, ranks, axis)[rank]
            np.save(OUT / f"sharded-{name}-{rank}.npy", np.ascontiguousarray(share))
        names.append(str(OUT / f"sharded-{name}-{{rank}}.npy"))
    return names


def results(output, shape):
    """The results of all ranks that the program of several ranks has printed."""
    lines = [line for line in output.splitlines() if re.match(r"\d+x.*f32=", line)]
    numbers = [re.findall(r"[-+0-9.eE]+", line.split("=", 1)[1]) for line in lines]
    return [np.array(values, dtype=np.float64).reshape(shape) for values in numbers]


def run_all(weights, expected):
    """In one process on several devices, and in a process for each."""
    for ranks in (2, 4):
        source = OUT / f"sharded{ranks}.mlir"
        source.write_text(block(ranks))
        module = compile_model(source, f"sharded{ranks}", ["--iree-input-type=stablehlo", *LOCAL, *LLVM_CPU])
        everywhere("tensor parallel", ranks, module, inputs(ranks, weights), expected)


def everywhere(model, ranks, module, names, expected):
    """Runs a divided model on devices of one process and in a process for each rank, and looks at every rank's
    result.
    """
    model = f"{model}, {ranks} ranks"
    mixed = ["gaudi://emulated/0", "mock://1", "gaudi://emulated/1", "mock://0"][:ranks]
    for devices in ([f"mock://{at % 2}" for at in range(ranks)], mixed):

        def together(devices=devices):
            output, took = text(
                [TOOLS / "ranks", module, "module.main", ",".join(devices), *["@" + name for name in names]]
            )
            found = results(output, expected.shape)
            if len(found) != ranks:
                raise Failed(output)
            for result in found:
                # Printed with six digits.
                check(model, " ".join(devices), result, took, expected, 2e-4)

        attempt(model, " ".join(devices), together)
    for device in ("mock", "gaudi://emulated/{rank}?cards=4"):

        def apart(device=device):
            # What is run is what is printed, for a person to copy.
            program = shlex.join(
                [str(TOOLS / "iree-run-module"), f"--device={device}", f"--module={module}", "--function=main"]
            )
            own = [f"--input=@{name}" for name in names] + [f"--output=@{OUT / 'sharded-result-{rank}.npy'}"]
            program += "".join(f" {value}" for value in own).replace("{rank}", "$OMPI_COMM_WORLD_RANK")
            root = "--allow-run-as-root " if os.getuid() == 0 else ""
            command = f"mpirun {root}--oversubscribe -n {ranks} sh -c {shlex.quote(program)}"
            COMMANDS.append((f"{model}, {device}", command))
            took = job(command)[1]
            for rank in range(ranks):
                result = np.load(OUT / f"sharded-result-{rank}.npy")
                check(model, f"{device} by mpirun", result, took, expected)

        attempt_job(model, f"{device} by mpirun", apart)


def say_commands():
    """What was run in a process for each rank, for a person to copy."""
    for what, command in COMMANDS:
        print(f"\n# {what}\n{command}")
