# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Calls under way, on threads, and that fail; profiles."""

import asyncio
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import iree_hal
import numpy as np
import pytest
from conftest import DEMO, EXAMPLES, LOCAL, RISCV32, TARGET

SLOW = "mock://0?latency=200ms"


def test_submit_returns_before_the_device_has_ended(two):
    module = iree_hal.Module(two, SLOW)
    assert module.square.is_asynchronous
    x = np.arange(1024, dtype=np.float32)
    begin = time.monotonic()
    futures = [module.square.submit(x), module.twice.submit(x)]
    assert time.monotonic() - begin < 0.2 and not futures[0].done()
    assert (futures[0].result().numpy() == x * x).all() and (futures[1].result(timeout=60).numpy() == x + x).all()
    assert futures[0].done() and futures[1].done()


def test_program_that_hangs_is_explained_from_another_thread(two, tmp_path):
    module = iree_hal.Module(two, "mock://0?latency=5s")
    future = module.square.submit(np.arange(1024, dtype=np.float32))
    with pytest.raises(TimeoutError):
        future.result(timeout=0.1)
    text = iree_hal.stall_report()
    report = json.loads(iree_hal.stall_report(json=True))
    assert not future.done()
    (cause,) = report["causes"]
    assert cause["kind"] == "device" and "square_dispatch_0" in cause["text"]
    assert "the device has had epoch" in text and "square_dispatch_0" in text
    (device,) = [device for device in report["devices"] if device["name"] == "mock://0"]
    assert device["queues"][0]["operations"][0]["stage"] == "on_device"
    found = tmp_path / "report.json"
    found.write_text(iree_hal.stall_report(json=True))
    subprocess.run([sys.executable, DEMO / "waits.py", found, tmp_path / "waits.svg"], capture_output=True)
    assert "square_dispatch_0" in (tmp_path / "waits.dot").read_text(encoding="utf-8")
    future.result()


def test_future_stands_for_its_result(two, device):
    module = iree_hal.Module(two, device)
    x = np.arange(1024, dtype=np.float32)
    chained = module.twice.submit(module.square.submit(module.twice.submit(x)))
    assert (chained.result().numpy() == 8 * x * x).all()
    assert (module.square(module.twice.submit(x)).numpy() == 4 * x * x).all()


def test_function_without_fences_is_submitted_on_a_thread(compile, device):
    module = iree_hal.Module(compile(EXAMPLES / "two_functions.mlir"), device)
    assert not module.square.is_asynchronous
    x = np.arange(1024, dtype=np.float32)
    assert (module.twice.submit(module.square.submit(x)).result(60).numpy() == 2 * x * x).all()


def test_wait_for_a_future_ends_in_time(two):
    future = iree_hal.Module(two, "mock://0?latency=2s").square.submit(np.ones(1024, np.float32))
    with pytest.raises(TimeoutError, match="not ended in this time"):
        future.result(timeout=0.05)
    assert future.result(60).numpy()[0] == 1


def test_future_is_awaited_beside_other_work(two):
    module = iree_hal.Module(two, SLOW)
    ticks = []

    async def tick():
        while len(ticks) < 5:
            ticks.append(None)
            await asyncio.sleep(0.01)

    async def main():
        x = np.ones(1024, np.float32)
        result, _ = await asyncio.gather(module.square.submit(x), tick())
        return result

    assert asyncio.run(main()).numpy()[0] == 1 and len(ticks) == 5


@pytest.mark.parametrize("asynchronous", [True, False])
def test_interpreter_is_free_while_a_call_waits(two, compile, asynchronous):
    path = two if asynchronous else compile(EXAMPLES / "two_functions.mlir")
    module = iree_hal.Module(path, "mock://0?latency=500ms")
    x = module.devices[0].array(np.ones(1024, np.float32))
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    module.square(x)
    during = counted[0] - before
    stop.set()
    thread.join()
    assert during > 20


def test_threads_share_a_module_and_a_device(compile):
    device = iree_hal.Device("mock://0?queues=4")
    shared = iree_hal.Module(compile(EXAMPLES / "two_functions.mlir"), device)
    wrong = []

    def work(number):
        own = iree_hal.Module(compile(EXAMPLES / "two_functions.mlir"), device)
        for round in range(50):
            x = np.full(1024, number * 100 + round, np.float32)
            for module in (shared, own):
                if not (module.square(x).numpy() == x * x).all():
                    wrong.append((number, round))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_device_that_is_missing_says_what_to_do():
    with pytest.raises(iree_hal.Error, match="gaudi://emulated") as caught:
        iree_hal.Device("gaudi")
    assert caught.value.code == "NOT_FOUND" and isinstance(caught.value, RuntimeError)


def test_unknown_driver_is_refused_with_those_that_there_are():
    for use in (iree_hal.Device, iree_hal.devices):
        with pytest.raises(iree_hal.Error, match="nonesuch, there are .*local-task.*") as caught:
            use("nonesuch")
        assert caught.value.code == "NOT_FOUND"
        assert all(driver in str(caught.value) for driver in iree_hal.drivers())


def test_parameters_without_an_address_are_refused_with_where_they_stand():
    with pytest.raises(iree_hal.Error, match="parameters stand behind ://, as in mock://[?]queues=2"):
        iree_hal.Device("mock?queues=2")


def test_module_for_another_processor_says_to_compile_it_for_the_device(compile):
    module = compile(EXAMPLES / "two_functions.mlir", *LOCAL, *RISCV32)
    with pytest.raises(iree_hal.Error, match="compile it for mock") as caught:
        iree_hal.Module(module, "mock")
    assert caught.value.code == "INCOMPATIBLE"
    x = np.arange(1024, dtype=np.float32)
    assert (iree_hal.Module(module, "tenstorrent://emulated").square(x).numpy() == x * x).all()


def test_address_with_a_nul_is_refused():
    for use in (iree_hal.Device, iree_hal.devices):
        with pytest.raises(ValueError, match="NUL"):
            use("mock\0://0")


def test_parameters_are_paths_by_scope(two):
    for wrong in ({"a": 3}, {"a": ["x", 3]}, {3: "x"}):
        with pytest.raises(TypeError, match="parameters.*scope.*path"):
            iree_hal.Module(two, "mock", parameters=wrong)


def test_unknown_parameter_is_refused_by_name():
    with pytest.raises(iree_hal.Error, match="colour"):
        iree_hal.Device("mock://0?colour=red")


def test_file_that_is_no_module_is_refused(tmp_path):
    wrong = tmp_path / "wrong.vmfb"
    wrong.write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(iree_hal.Error):
        iree_hal.Module(wrong, "mock")
    with pytest.raises(iree_hal.Error, match="cannot be read") as caught:
        iree_hal.Module(tmp_path / "nowhere.vmfb", "mock")
    assert caught.value.code == "NOT_FOUND"
    with pytest.raises(TypeError, match="path|bytes"):
        iree_hal.Module(7, "mock")
    with pytest.raises(TypeError, match="Device"):
        iree_hal.Module(wrong, 7)


def test_unknown_function_names_those_that_there_are(two):
    module = iree_hal.Module(two, "mock")
    with pytest.raises(AttributeError, match="square, twice"):
        module.cube
    with pytest.raises(KeyError, match="square, twice"):
        module["cube"]


@pytest.mark.parametrize("uri", ["mock://0?fault=fail:dispatch:1", "mock://0?fault=lose:1"])
def test_failure_of_the_device_is_an_exception(two, uri):
    module = iree_hal.Module(two, uri)
    x = np.ones(1024, np.float32)
    with pytest.raises(iree_hal.Error, match="as fault=.* asked"):
        for _ in range(3):
            module.square.submit(x).result(60)


def test_devices_are_listed_with_what_opens_them():
    assert {"mock", "gaudi", "nvidia", "qaic", "tenstorrent", "local-task", "local-sync"} <= set(iree_hal.drivers())
    listed = iree_hal.devices()
    assert {info.driver for info in listed} >= {"mock", "local-task"}
    for info in iree_hal.devices("mock"):
        assert iree_hal.Device(info.uri).name == "mock"
    with pytest.raises(iree_hal.Error):
        iree_hal.devices("nothing")


def test_profile_is_what_irees_own_tool_reads(two, tmp_path):
    device = iree_hal.Device("mock")
    module = iree_hal.Module(two, device)
    path = tmp_path / "run.ireeprof"
    with device.profile(path):
        module.square(np.ones(1024, np.float32))
    assert path.stat().st_size > 500
    tool = TARGET / "iree/tools/iree-profile"
    result = subprocess.run([tool, "summary", path], capture_output=True, text=True)
    assert result.returncode == 0 and "dispatch" in result.stdout, result.stdout + result.stderr
    with pytest.raises(iree_hal.Error), device.profile(path), device.profile(tmp_path / "second.ireeprof"):
        pass


def test_tour_runs_on_each_device(two, device):
    tour = pathlib.Path(__file__).parents[1] / "examples/tour.py"
    result = subprocess.run([sys.executable, tour, two, device.uri], capture_output=True, text=True)
    assert result.returncode == 0 and "are right" in result.stdout, result.stdout + result.stderr


def test_time_to_wait_is_a_number(two, device):
    future = iree_hal.Module(two, device).square.submit(np.ones(1024, np.float32))
    with pytest.raises(ValueError, match="not a number"):
        future.result(timeout=float("nan"))
    for without_end in (float("inf"), 1e300, 1e18):
        assert future.result(timeout=without_end).numpy().shape == (1024,)


FORKED = """
import os, signal, sys
import iree_hal, numpy as np

module = iree_hal.Module(sys.argv[1], "mock")
given = np.ones(1024, np.float32)
future = module.square.submit(given)
result = future.result()
child = os.fork()
if child == 0:
    # A call that waits for a thread of the parent would wait for ever: the alarm ends it.
    signal.alarm(30)
    if sys.argv[2] == "works":
        works = [
            lambda: module.square(given),
            lambda: module.square.submit(given),
            lambda: iree_hal.Device("mock"),
            lambda: module.devices[0].array(given),
            lambda: future.result(),
            lambda: future.done(),
            lambda: result.numpy(),
            lambda: np.asarray(result),
        ]
        for number, work in enumerate(works):
            try:
                work()
                os._exit(10 + number)
            except iree_hal.Error as error:
                if error.code != "FAILED_PRECONDITION" or "forked" not in str(error):
                    os._exit(50 + number)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert module.square(given).numpy().shape == (1024,)
"""


@pytest.mark.parametrize("what", ["works", "ends"])
def test_forked_process_is_refused_and_ends(two, what):
    done = subprocess.run([sys.executable, "-c", FORKED, two, what], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_process_that_forks_before_it_opens_a_device_has_devices(two):
    early = """
import os, sys
import iree_hal, numpy as np
child = os.fork()
result = iree_hal.Module(sys.argv[1], "mock").square(np.ones(1024, np.float32)).numpy()
assert result.shape == (1024,)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", early, two], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_source_that_is_imported_in_place_of_the_package_says_what_to_do(tmp_path):
    source = tmp_path / "iree_hal"
    source.mkdir()
    shutil.copy(pathlib.Path(iree_hal.__file__), source)
    done = subprocess.run([sys.executable, "-c", "import iree_hal"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "ModuleNotFoundError" in done.stderr
    assert "pip install ./python" in done.stderr and str(source) in done.stderr and "another folder" in done.stderr
