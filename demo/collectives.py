# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Compiled modules with collectives, each on devices of one process and in a process for each rank; and what the
documentation has people type.

The cases are those of IREE's own test of collectives, written anew in StableHLO: what is a mesh there is groups of
ranks here.
"""

import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import time

import numpy as np
from harness import COMPILER, FLAGS, LLVM_CPU, LOCAL, OUT, TOOLS, Failed, attempt, check, compile_model, note, text

DOCUMENTATION = pathlib.Path(__file__).parents[1] / "docs/collectives.md"


def environment():
    """Where jobs may run as root and have more ranks than processors, as in a container that tests."""
    return os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PATH": os.pathsep.join([str(TOOLS), str(pathlib.Path(COMPILER).parent), os.environ["PATH"]]),
    }


def tensor(shape):
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def attributes(groups):
    rows = "x".join(map(str, np.shape(groups)))
    return (
        f"channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, "
        f"replica_groups = dense<{groups}> : tensor<{rows}xi64>"
    )


def all_reduce(shape, groups):
    kind = tensor(shape)
    return f"""func.func @main(%x: {kind}) -> {kind} {{
  %y = "stablehlo.all_reduce"(%x) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }}) {{{attributes(groups)}, use_global_device_ids}} : ({kind}) -> {kind}
  return %y : {kind}
}}
"""


def all_to_all(shape, result, groups):
    """Rows go to the ranks of the group, and those that come are beside each other in the result."""
    one, two = tensor(shape), tensor(result)
    return f"""func.func @main(%x: {one}) -> {two} {{
  %y = "stablehlo.all_to_all"(%x) {{split_dimension = 0 : i64, concat_dimension = 0 : i64,
    split_count = {len(groups[0])} : i64, {attributes(groups)}}} : ({one}) -> {one}
  %z = stablehlo.reshape %y : ({one}) -> {two}
  return %z : {two}
}}
"""


def all_gather(shape, dimension, groups):
    result = [size * len(groups[0]) if number == dimension else size for number, size in enumerate(shape)]
    one, two = tensor(shape), tensor(result)
    return f"""func.func @main(%x: {one}) -> {two} {{
  %y = "stablehlo.all_gather"(%x) {{all_gather_dim = {dimension} : i64, {attributes(groups)},
    use_global_device_ids}} : ({one}) -> {two}
  return %y : {two}
}}
"""


def reduce_scatter(shape, dimension, groups):
    result = [size // len(groups[0]) if number == dimension else size for number, size in enumerate(shape)]
    one, two = tensor(shape), tensor(result)
    return f"""func.func @main(%x: {one}) -> {two} {{
  %y = "stablehlo.reduce_scatter"(%x) ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }}) {{scatter_dimension = {dimension} : i64, {attributes(groups)}, use_global_device_ids}} : ({one}) -> {two}
  return %y : {two}
}}
"""


def permute(shape, pairs):
    """A rank that is no target gets zeros."""
    kind = tensor(shape)
    return f"""func.func @main(%x: {kind}) -> {kind} {{
  %y = "stablehlo.collective_permute"(%x) {{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>}} : ({kind}) -> {kind}
  return %y : {kind}
}}
"""


FOUR = [[1, 2], [3, 4], [5, 6], [7, 8]]
HALVES = [[[1], [2]], [[3], [4]], [[5], [6]], [[7], [8]]]
TWO = [[1, 2, 3, 4], [5, 6, 7, 8]]
SQUARE = [[1, 2], [3, 4]]
NEXT = [[5, 6], [7, 8]]
# What each is called, the program, what each rank has, and what each gets.
CASES = [
    ("one rank, all-reduce", all_reduce((4,), [[0]]), TWO[:1], TWO[:1]),
    ("one rank, all-to-all", all_to_all((2, 2), (2, 2), [[0]]), [SQUARE], [SQUARE]),
    ("two ranks, all-reduce", all_reduce((4,), [[0, 1]]), TWO, [[6, 8, 10, 12]] * 2),
    (
        "four ranks, all-reduce of neighbours",
        all_reduce((2,), [[0, 1], [2, 3]]),
        FOUR,
        [[4, 6], [4, 6], [12, 14], [12, 14]],
    ),
    ("four ranks, all-reduce across", all_reduce((2,), [[0, 2], [1, 3]]), FOUR, [[6, 8], [10, 12], [6, 8], [10, 12]]),
    (
        "four ranks, all-to-all across",
        all_to_all((2, 1), (1, 2), [[0, 2], [1, 3]]),
        HALVES,
        [[[1, 5]], [[3, 7]], [[2, 6]], [[4, 8]]],
    ),
    (
        "two ranks, all-gather of columns",
        all_gather((2, 2), 1, [[0, 1]]),
        [SQUARE, NEXT],
        [[[1, 2, 5, 6], [3, 4, 7, 8]]] * 2,
    ),
    (
        "four ranks, all-gather across, the last first",
        all_gather((1, 2), 0, [[2, 0], [3, 1]]),
        [[row] for row in FOUR],
        [[FOUR[2], FOUR[0]], [FOUR[3], FOUR[1]]] * 2,
    ),
    (
        "two ranks, reduce-scatter of columns",
        reduce_scatter((2, 2), 1, [[0, 1]]),
        [SQUARE, NEXT],
        [[[6], [10]], [[8], [12]]],
    ),
    ("four ranks, in a circle", permute((2,), [[0, 1], [1, 2], [2, 3], [3, 0]]), FOUR, [FOUR[3], *FOUR[:3]]),
    ("four ranks, some to others", permute((2,), [[0, 3], [2, 2]]), FOUR, [[0, 0], [0, 0], FOUR[2], FOUR[0]]),
]


def printed(output, shape):
    """What a program printed of results of a shape."""
    name = "x".join(map(str, shape)) + "xf32="
    lines = [line[len(name) :] for line in output.splitlines() if line.startswith(name)]
    return [np.array(re.findall(r"[-+0-9.eE]+", line), dtype=np.float64).reshape(shape) for line in lines]


def case(number, name, source, given, expected):
    ranks = len(given)
    file = OUT / f"collective{number}.mlir"
    if not file.is_file() or file.read_text() != source:
        file.write_text(source)
    flags = ["--iree-input-type=stablehlo", *LOCAL, *LLVM_CPU]
    for rank, value in enumerate(given):
        np.save(OUT / f"collective{number}-{rank}.npy", np.array(value, dtype=np.float32))
    expected = np.array(expected, dtype=np.float32)
    model = f"collectives: {name}"

    def together():
        module = compile_model(file, f"collective{number}", flags)
        devices = ",".join(["mock", "gaudi://emulated/0", "mock://1", "gaudi://emulated/1"][:ranks])
        output, took = text(
            [TOOLS / "ranks", module, "module.main", devices, f"@{OUT}/collective{number}-{{rank}}.npy"]
        )
        found = printed(output, expected.shape[1:])
        if len(found) != ranks:
            raise Failed(output)
        check(model, devices, np.stack(found), took, expected)

    def apart():
        module = compile_model(file, f"collective{number}", flags)
        names = f"{OUT}/collective{number}-$OMPI_COMM_WORLD_RANK"
        one = (
            f"iree-run-module --device=mock --module={shlex.quote(str(module))} --function=main "
            f"--input=@{names}.npy --output=@{names}-result.npy"
        )
        took = job(f"mpirun -n {ranks} sh -c {shlex.quote(one)}")[1]
        found = [np.load(OUT / f"collective{number}-{rank}-result.npy") for rank in range(ranks)]
        check(model, "mock by mpirun", np.stack(found), took, expected)

    attempt(model, "devices of one process", together)
    attempt_job(model, "mock by mpirun", apart)


def attempt_job(model, device, body):
    """Does one thing that runs in several processes, unless no MPI is here."""
    if not FLAGS.without_mpi:
        attempt(model, device, body)


def job(command, folder=None, timeout=120):
    """Runs a line as a person types it; what it printed, and how long it took."""
    begin = time.perf_counter()
    done = subprocess.run(
        ["sh", "-ec", command], capture_output=True, text=True, timeout=timeout, cwd=folder, env=environment()
    )
    if done.returncode != 0:
        raise Failed(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout, time.perf_counter() - begin


def documentation():
    """What the documentation has people type, one block after the other in an empty folder: each prints what it says
    it prints. What needs other machines stands in blocks of `bash`, not of `sh`.
    """
    blocks = re.findall(
        r"```sh\n(.*?)```(?:\n+(?:It|Each rank) prints[^\n]*\n+```\n(.*?)```)?", DOCUMENTATION.read_text(), re.DOTALL
    )
    if not any(prints for _, prints in blocks):
        raise Failed(f"{DOCUMENTATION} has no commands whose results it names")
    took = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for commands, prints in blocks:
            output, seconds = job(commands, folder)
            took += seconds
            want = [line for line in prints.splitlines() if line]
            lines = output.splitlines()
            missing = [line for line in want if lines.count(line) < want.count(line)]
            if missing:
                raise Failed(f"{commands}\nprinted\n{output}\nand not {missing}")
    note("docs/collectives.md", "as a user types it", "0.0e+00", took, True)


def run_all():
    for number, (name, source, given, expected) in enumerate(CASES):
        case(number, name, source, given, expected)
    attempt_job("docs/collectives.md", "as a user types it", documentation)
