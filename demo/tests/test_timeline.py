# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The pictures and traces that timeline.py makes of profiles. `cargo xtask wheel --test` runs these tests, and so
does pytest.
"""

import json
import math
import pathlib
import re
import subprocess
import sys

import pytest
from trace_rules import broken

DEMO = pathlib.Path(__file__).parents[1]


@pytest.fixture
def drawn(tmp_path):
    """Draws a profile; the picture, and the trace as text and as data."""

    def draw(events):
        profile, picture, trace = tmp_path / "p.jsonl", tmp_path / "p.svg", tmp_path / "p.json"
        profile.write_text("\n".join(json.dumps(event) for event in events))
        command = [sys.executable, DEMO / "timeline.py", profile, picture, trace, "a <run>"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        text = trace.read_text(encoding="utf-8")
        return picture.read_text(encoding="utf-8"), text, json.loads(text)

    return draw


def span(record, begin, end, queue=0, **more):
    """An event with a begin and an end by the device's clock."""
    return {
        "record_type": record,
        "physical_device_ordinal": 0,
        "queue_ordinal": queue,
        "derived_time_available": True,
        "start_driver_host_cpu_time_ns": begin,
        "end_driver_host_cpu_time_ns": end,
        **more,
    }


def submitted(op, time, ready=None, **more):
    return {"record_type": "queue_event", "op": op, "host_time_ns": time, "ready_host_time_ns": ready or time, **more}


def one_queue(time=1000, ready=3000):
    """12 dispatches of 12 functions in one operation that begins a millisecond after it is submitted."""
    operation = span("queue_device_event", 1_000_000, 1_012_000, op="execute")
    begins = [1_000_000 + number * 1000 for number in range(12)]
    dispatches = [span("dispatch_event", begin, begin + 900, key=f"f_{at}") for at, begin in enumerate(begins)]
    return [submitted("execute", time, ready), operation, *dispatches]


def time_of_day():
    """One operation of 250 ns, 1,250 ns after its submission, at a time of day as profiles have it."""
    now = 1_700_000_000_000_000_001
    place = {"physical_device_ordinal": 0, "queue_ordinal": 0}
    return [
        submitted("fill", now, now + 50, **place),
        span("queue_device_event", now + 1250, now + 1500, op="fill"),
    ]


def overlaps():
    """Operations of one queue, each with a dispatch, of which the second begins before the first has ended; and another
    queue that was only submitted to."""
    return [
        span("queue_device_event", 1000, 11_000, 1, op="execute"),
        span("queue_device_event", 6000, 16_000, 1, op="execute"),
        span("queue_device_event", 16_000, 17_000, 1, op="execute"),
        span("dispatch_event", 1000, 10_000, 1, key="first"),
        span("dispatch_event", 12_000, 16_000, 1, key="second"),
        span("dispatch_event", 13_000, 15_000, 1, key="beside"),
        submitted("barrier", 900, 950, queue_ordinal=3),
    ]


def lab(colour):
    """A colour in CIELAB, where a step of about 2 can just be seen."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    x, y, z = (math.cbrt(part) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_names_are_in_order_with_colours_that_are_told_apart(drawn):
    picture, _, _ = drawn(one_queue())
    legend = re.findall(r'height="12" fill="(#\w{6})".*?"#222">(\w+)<', picture, re.DOTALL)
    assert [name for _, name in legend] == [f"f_{number}" for number in range(12)]
    for number, (one, _) in enumerate(legend):
        for other, _ in legend[number + 1 :]:
            assert math.dist(lab(one), lab(other)) > 30, f"{one} and {other} look alike"
    assert "a &lt;run&gt;" in picture


def test_operations_submitted_outside_of_the_picture_are_one_triangle_with_all_names_at_each_edge(drawn):
    outside = [("alloca", 2000), ("alloca", 3000), ("dealloca", 2_000_000), ("barrier", 2_500_000)]
    picture, _, _ = drawn(one_queue() + [submitted(op, time) for op, time in outside])
    assert ">execute, alloca ×2 submitted before<" in picture
    assert ">dealloca, barrier submitted after<" in picture
    assert "barrier: submitted 1488.0 µs after the picture ends" in picture
    triangles = [path for path in re.findall(r'<path d="M([^"]*)', picture) if " h8 l-4 8 z" in path]
    assert [float(path.split(" ")[0]) for path in triangles] == [118, 1086]


def test_operation_submitted_inside_of_the_picture_has_its_time_there(drawn):
    picture, _, _ = drawn(one_queue(1_005_000, 1_006_500))
    assert "execute: submitted at 5.0 µs; ready 1.5 µs later" in picture


def test_picture_begins_where_the_device_does(drawn):
    picture, _, _ = drawn(one_queue())
    first = picture.split('fill="#ddd"')[0].rsplit('<rect x="')[-1]
    assert float(first.split('"')[0]) < 130 + 970 / 8


def test_trace_has_each_span_in_microseconds(drawn):
    _, text, trace = drawn(one_queue())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 13
    assert '"dur": 12.0' in text and '"thread_name"' in text and '"execute submitted"' in text


def test_trace_counts_from_the_first_event_since_a_time_of_day_in_microseconds_is_too_coarse(drawn):
    _, text, _ = drawn(time_of_day())
    assert '"ts": 0.0,' in text and '"ts": 1.25,' in text and '"dur": 0.25,' in text


def test_trace_numbers_devices_and_queues_from_one_since_perfetto_takes_zero_for_the_idle_thread(drawn):
    _, text, trace = drawn(time_of_day())
    assert all(event["pid"] and event.get("tid", 1) for event in trace["traceEvents"])
    assert '"name": "queue 0"' in text and '"name": "device 0: a <run>"' in text


@pytest.mark.parametrize("profile", [one_queue, time_of_day, overlaps])
def test_trace_keeps_the_rules_of_its_format(drawn, profile):
    assert broken(drawn(profile())[2]) == []


def test_work_beside_other_work_of_its_queue_is_where_there_is_room(drawn):
    _, text, _ = drawn(overlaps())
    # The second operation with its dispatch, and two names.
    assert text.count('"tid": 66') == 2 + 2
    assert '"queue 1, beside (2)"' in text and '"queue 3"' in text


def at(ph, ts, **more):
    return {"ph": ph, "name": "n", "cat": "c", "ts": ts, "pid": 1, "tid": 1, **more}


NAMES = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "p"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "t"}},
]


@pytest.mark.parametrize(
    ("says", "events"),
    [
        ("overlaps", [at("X", 0, dur=5), at("X", 3, dur=5)]),
        ("before it begins", [at("X", 3, dur=-1)]),
        ("does not end", [at("B", 0)]),
        ("nothing has begun", [at("E", 0)]),
        ("0 beginnings", [at("f", 0, id=7)]),
        ("ends first", [at("s", 2, id=7), at("f", 1, id=7)]),
        ("ts is missing", [{"ph": "X", "name": "n", "pid": 1, "tid": 1}]),
        ("tid is 0", [at("i", 0) | {"tid": 0}]),
        ("no name", [at("i", 0) | {"tid": 2}]),
    ],
)
def test_broken_rule_is_noticed(says, events):
    assert says in "\n".join(broken({"traceEvents": NAMES + events}))


def test_whole_trace_breaks_no_rule():
    events = [at("B", 0), at("X", 1, dur=1), at("E", 2), at("s", 0, id=7), at("f", 1, id=7)]
    assert broken({"traceEvents": NAMES + events}) == []


def test_profile_without_spans_is_refused_with_what_to_ask_for(tmp_path):
    (tmp_path / "p.jsonl").write_text("")
    paths = [tmp_path / name for name in ("p.jsonl", "p.svg", "p.json")]
    done = subprocess.run([sys.executable, DEMO / "timeline.py", *paths, "x"], capture_output=True, text=True)
    assert done.returncode != 0
    # The families that `cargo xtask profile` asks IREE for.
    assert "queue-events,dispatch-events,device-queue-events" in done.stderr and "Device::clock" in done.stderr


def test_every_job_of_several_processes_may_be_left_out():
    """On a machine without MPI `--quick` goes without them."""
    files = ["collectives.py", "sharded.py", "training.py", "demo.py", "networks.py"]
    lines = [line.strip() for file in files for line in (DEMO / file).read_text().splitlines()]
    jobs = [line for line in lines if "attempt" in line and "by mpirun" in line]
    assert len(jobs) >= 2, "the jobs are called something else now"
    assert all(line.startswith("attempt_job(") for line in jobs)
