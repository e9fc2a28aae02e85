# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The pictures that waits.py makes of reports."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

DEMO = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(DEMO))

import waits  # noqa: E402


def semaphore(number, value):
    """A value of a semaphore of the device `mock`."""
    return {"semaphore": {"device": "mock", "number": number, "address": None}, "value": value}


def place(number):
    """An operation by its number, on queue 0 of `mock`."""
    return {"device": "mock", "queue": 0, "id": number, "epoch": None, "text": "fill"}


def operation(number, waits_for, promised_by):
    """A blocked fill."""
    wait = {"waits_for": waits_for, "reached": 0, "behind": None, "promised_by": promised_by}
    return {"id": number, "text": 'a "fill"', "stage": "on_host", "seconds": 2.5, "waits": [wait], "signals": []}


def report(causes, operations, host_waits=()):
    """A report of one device with one queue."""
    queue = {"index": 0, "is_locked": False, "is_full": True, "omitted": 3, "operations": operations}
    return {"causes": causes, "devices": [{"name": "mock", "queues": [queue]}], "host_waits": list(host_waits)}


def test_cycle_is_red_and_its_arrows_go_round():
    places = [place(0), place(1)]
    operations = [operation(0, semaphore(0, 1), places[1]), operation(1, semaphore(1, 1), places[0])]
    drawn = waits.graph(report([{"kind": "cycle", "operations": places}], operations)).splitlines()
    assert '"mock/0/0" -> "mock/0/1" [label="semaphore 0 of mock = 1"];' in drawn
    assert '"mock/0/1" -> "mock/0/0" [label="semaphore 1 of mock = 1"];' in drawn
    assert sum(waits.RED in line for line in drawn) == 2
    text = "\n".join(drawn)
    assert 'a \\"fill\\"\\non host for 2.5 s' in text and "and 3 more" in text


def test_value_that_nobody_has_promised_is_red():
    step = semaphore(0, 3)
    host = {"waits_for": semaphore(1, 1), "reached": 0, "count": 2, "promised_by": place(0)}
    cause = {"kind": "unpromised", "waiter": place(0), "waits_for": step, "reached": 2}
    drawn = waits.graph(report([cause], [operation(0, step, None)], [host])).splitlines()
    (value,) = [line for line in drawn if "nobody has promised it" in line]
    assert waits.RED in value and '"host 0" [label="the host, 2 times"];' in drawn
    assert '"host 0" -> "mock/0/0" [label="semaphore 1 of mock = 1"];' in drawn


def test_long_queue_is_cut():
    operations = [operation(number, semaphore(0, 1), None) for number in range(100)]
    drawn = waits.graph(report([], operations))
    assert "and 73 more" in drawn and drawn.count("subgraph") == 1


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not here")
def test_dot_draws_it(tmp_path):
    found = tmp_path / "r.json"
    found.write_text(json.dumps(report([], [operation(0, semaphore(0, 1), None)])))
    subprocess.run([sys.executable, DEMO / "waits.py", found, tmp_path / "r.svg"], check=True)
    assert "<svg" in (tmp_path / "r.svg").read_text(encoding="utf-8")


def test_without_graphviz_it_says_how_to_have_it(tmp_path):
    found = tmp_path / "r.json"
    found.write_text(json.dumps(report([], [])))
    command = [sys.executable, DEMO / "waits.py", found, tmp_path / "r.svg"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode != 0 and "apt-get install graphviz" in done.stderr and (tmp_path / "r.dot").is_file()
