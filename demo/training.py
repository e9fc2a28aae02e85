# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""A step of training, divided by its data: each rank has the same weights and its share of the batch.

The gradients of all ranks are added up, and each rank takes the same step. All of them have to come to the weights
and the loss of the undivided batch, which numpy works out.
"""

import numpy as np
from harness import LLVM_CPU, LOCAL, OUT, compile_model
from sharded import all_reduce, everywhere, tensor

BATCH, INPUTS, HIDDEN, OUTPUTS, RATE = 32, 24, 40, 8, 0.25
RANKS = (2, 4)


def step(ranks):
    """The step of one rank of so many, in one flat result: the loss, then the new weights."""
    rows = BATCH // ranks
    x, y, h = tensor(rows, INPUTS), tensor(rows, OUTPUTS), tensor(rows, HIDDEN)
    w1, w2 = tensor(INPUTS, HIDDEN), tensor(HIDDEN, OUTPUTS)
    one, flat1, flat2 = tensor(1), tensor(INPUTS * HIDDEN), tensor(HIDDEN * OUTPUTS)
    result = tensor(1 + INPUTS * HIDDEN + HIDDEN * OUTPUTS)
    lines = [f"func.func @main(%x: {x}, %y: {y}, %w1: {w1}, %w2: {w2}) -> {result} {{"]

    def dot(name, left, right, kinds, contracting):
        lines.append(
            f"  %{name} = stablehlo.dot_general %{left}, %{right}, contracting_dims = {contracting} : "
            f"({kinds[0]}, {kinds[1]}) -> {kinds[2]}"
        )

    dot("h0", "x", "w1", (x, w1, h), "[1] x [0]")
    lines.append(f"  %h = stablehlo.tanh %h0 : {h}")
    dot("p", "h", "w2", (h, w2, y), "[1] x [0]")
    lines += [
        f"  %d = stablehlo.subtract %p, %y : {y}",
        f"  %dd = stablehlo.multiply %d, %d : {y}",
        "  %zero = stablehlo.constant dense<0.0> : tensor<f32>",
        f"  %l = stablehlo.reduce(%dd init: %zero) applies stablehlo.add across dimensions = [0, 1] : "
        f"({y}, tensor<f32>) -> tensor<f32>",
        f"  %l1 = stablehlo.reshape %l : (tensor<f32>) -> {one}",
    ]
    # Back from the error: to the second weights, through tanh, and to the first.
    dot("g2", "h", "d", (h, y, w2), "[0] x [0]")
    dot("b", "d", "w2", (y, w2, h), "[1] x [1]")
    lines += [
        f"  %hh = stablehlo.multiply %h, %h : {h}",
        f"  %ones = stablehlo.constant dense<1.0> : {h}",
        f"  %s = stablehlo.subtract %ones, %hh : {h}",
        f"  %bs = stablehlo.multiply %b, %s : {h}",
    ]
    dot("g1", "x", "bs", (x, h, w1), "[0] x [0]")
    lines += [
        all_reduce("sum1", "g1", ranks, w1),
        all_reduce("sum2", "g2", ranks, w2),
        all_reduce("loss", "l1", ranks, one),
    ]
    for name, kind in (("1", w1), ("2", w2)):
        lines += [
            f"  %rate{name} = stablehlo.constant dense<{2 * RATE / BATCH}> : {kind}",
            f"  %c{name} = stablehlo.multiply %sum{name}, %rate{name} : {kind}",
            f"  %n{name} = stablehlo.subtract %w{name}, %c{name} : {kind}",
        ]
    lines += [
        f"  %f1 = stablehlo.reshape %n1 : ({w1}) -> {flat1}",
        f"  %f2 = stablehlo.reshape %n2 : ({w2}) -> {flat2}",
        f"  %r = stablehlo.concatenate %loss, %f1, %f2, dim = 0 : ({one}, {flat1}, {flat2}) -> {result}",
        f"  return %r : {result}",
        "}",
    ]
    return "\n".join(lines) + "\n"


def undivided(x, y, w1, w2):
    """The loss and the new weights of the whole batch, in numpy."""
    h = np.tanh(x @ w1)
    error = h @ w2 - y
    second = h.T @ error
    first = x.T @ ((error @ w2.T) * (1 - h * h))
    scale = 2 * RATE / BATCH
    return np.concatenate([[np.sum(error * error)], (w1 - scale * first).ravel(), (w2 - scale * second).ravel()])


def run_all(random):
    """In one process on several devices, and in a process for each."""
    x, y, w1, w2 = random((BATCH, INPUTS), (BATCH, OUTPUTS), (INPUTS, HIDDEN), (HIDDEN, OUTPUTS), scale=0.3)
    expected = undivided(*(value.astype(np.float64) for value in (x, y, w1, w2)))
    for ranks in RANKS:
        source = OUT / f"training{ranks}.mlir"
        source.write_text(step(ranks))
        module = compile_model(source, f"training{ranks}", ["--iree-input-type=stablehlo", *LOCAL, *LLVM_CPU])
        names = []
        for name, value, is_divided in [("x", x, True), ("y", y, True), ("w1", w1, False), ("w2", w2, False)]:
            for rank in range(ranks):
                share = np.split(value, ranks)[rank] if is_divided else value
                np.save(OUT / f"training-{name}-{rank}.npy", np.ascontiguousarray(share))
            names.append(str(OUT / f"training-{name}-{{rank}}.npy"))
        everywhere("training step", ranks, module, names, expected)
