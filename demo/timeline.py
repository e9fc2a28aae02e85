# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Draws a profile of a device, and writes it as a trace: one lane for each queue, what the device did, and when.

    timeline.py PROFILE.jsonl OUT.svg OUT.json TITLE

The input is what `iree-profile export --format=ireeperf-jsonl` writes. The picture is for a page; the trace is in
Chrome's format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.
"""

import collections
import colorsys
import html
import json
import pathlib
import re
import sys

WIDTH, LEFT, LANE, GAP, TOP = 1100, 130, 34, 34, 84
INK = "#222"
# The picture follows the reader's colour scheme.
STYLE = (
    "<style>.ground{fill:#fff}@media(prefers-color-scheme:dark)"
    f'{{[fill="{INK}"]{{fill:#e6edf3}}.ground{{fill:#0d1117}}}}</style>'
)


def read(path):
    """The spans of each lane, and when the host handed each operation over."""
    lanes, submitted = {}, []
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        lane = (record.get("physical_device_ordinal", 0), record.get("queue_ordinal", 0))
        if record["record_type"] == "dispatch_event" and record.get("derived_time_available"):
            begin, end = record["start_driver_host_cpu_time_ns"], record["end_driver_host_cpu_time_ns"]
            lanes.setdefault(lane, {}).setdefault("dispatch", []).append((begin, end, record["key"]))
        elif record["record_type"] == "queue_device_event" and record.get("derived_time_available"):
            begin, end = record["start_driver_host_cpu_time_ns"], record["end_driver_host_cpu_time_ns"]
            lanes.setdefault(lane, {}).setdefault("operation", []).append((begin, end, record["op"]))
        elif record["record_type"] == "queue_event":
            submitted.append((record["host_time_ns"], record["ready_host_time_ns"], record["op"], lane))
    if not lanes:
        raise SystemExit(
            "the profile has no spans: take it with "
            "--device_profiling_mode=queue-events,dispatch-events,device-queue-events, "
            "of a device that has a clock (Device::clock of its backend)"
        )
    return lanes, sorted(submitted)


def natural(name):
    """Names in the order in which people count: 2 before 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


# Twelve that are told apart at a glance: no two are nearer than 36 in CIELAB, where neighbours of a rainbow of
# twelve are at 18.
PALETTE = "#4e79a7 #f28e2b #8cd17d #911eb4 #bcbd22 #ff9da7 #86bcb6 #800000 #4363d8 #1b5e20 #c2185b #8c564b".split()


def colours(names):
    """A colour for each name, none twice: of the palette first, then as far from the one before as can be."""
    found = dict(zip(names, PALETTE))
    for number, name in enumerate(names[len(PALETTE) :]):
        shade = (0.62, 0.48, 0.74)[number // 8 % 3]
        red, green, blue = colorsys.hls_to_rgb((0.52 + number * 0.618034) % 1.0, shade, 0.55)
        found[name] = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
    return found


def span_of(lanes):
    """When the device was first at work, and when last."""
    times = [time for lane in lanes.values() for spans in lane.values() for span in spans for time in span[:2]]
    return min(times), max(times)


def title_of(text):
    return f"<title>{html.escape(text)}</title>"


def lane_rows(lane, spans, x, y, scale, colour):
    """The bars of one queue."""
    yield f'<text x="8" y="{y + 22}" fill="{INK}">device {lane[0]} queue {lane[1]}</text>'
    for kind, inset, least in (("operation", 0, 1.0), ("dispatch", 5, 0.8)):
        for begin, finish, name in spans.get(kind, []):
            width = max(least, (finish - begin) * scale)
            fill = colour.get(name, "#ddd") if kind == "dispatch" else "#ddd"
            text = title_of(f"{name}: {(finish - begin) / 1000:.1f} µs")
            box = f'x="{x(begin):.1f}" y="{y + inset}" width="{width:.1f}" height="{LANE - 2 * inset}"'
            yield f'<rect {box} fill="{fill}">{text}</rect>'


def listed(names):
    """Names in their order, each once, with how often it is there: "alloca ×2, execute"."""
    counts = collections.Counter(names)
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts.items())


def told(event, start, end):
    """When an operation was submitted, and how much later nothing kept it from running any more."""
    time, ready, name, _ = event
    where = f"at {(time - start) / 1000:.1f} µs; "
    if time < start:
        where = f"{(start - time) / 1000:.1f} µs before the picture begins; "
    elif time > end:
        where = f"{(time - end) / 1000:.1f} µs after the picture ends; "
    return f"{name}: submitted {where}ready {(ready - time) / 1000:.1f} µs later"


def marker(place, y, title, label, side):
    """A triangle, and a label that begins or ends at it."""
    yield f'<path d="M{place - 4:.1f} {y - 11} h8 l-4 8 z" fill="{INK}">{title_of(title)}</path>'
    if label:
        x = place - 4 if side == "start" else place + 4
        anchor = f'text-anchor="{side}" fill="{INK}" font-size="10"'
        yield f'<text x="{x:.1f}" y="{y - 14}" {anchor}>{html.escape(label)}</text>'


def markers(lane, submitted, x, y, start, end):
    """A triangle where an operation was submitted, with its name where there is room. All that was submitted before
    the picture begins is one triangle at its left edge, and what came after its end one at the right.
    """
    own = [event for event in submitted if event[3] == lane]
    before = [event for event in own if event[0] < start]
    after = [event for event in own if event[0] > end]
    free, limit = 0.0, float(WIDTH)

    def edge(events, word):
        return "\n".join(told(event, start, end) for event in events), f"{listed(event[2] for event in events)} {word}"

    if before:
        title, label = edge(before, "submitted before")
        yield from marker(LEFT - 8.0, y, title, label, "start")
        free = LEFT + 6.0 * len(label)
    if after:
        title, label = edge(after, "submitted after")
        yield from marker(WIDTH - 10.0, y, title, label, "end")
        limit -= 20 + 6.0 * len(label)
    for event in own:
        if start <= event[0] <= end:
            place, label = x(event[0]), f"{event[2]} submitted"
            has_room = free <= place and place + 6 * len(label) <= limit
            yield from marker(place, y, told(event, start, end), label if has_room else "", "start")
            free = place + 6 * (len(label) + 1) if has_room else free


def axis_rows(start, end, x, axis):
    """Vertical lines at round times since the picture begins."""
    step = 10 ** (len(str(max(1, int((end - start) / 8)))) - 1)
    step *= max(1, round((end - start) / 8 / step))
    for tick in range(0, int(end - start) + 1, step):
        yield f'<path d="M{x(start + tick):.1f} {TOP - 4} V{axis}" stroke="#bbb" stroke-width="0.5"/>'
        place = f'x="{x(start + tick):.1f}" y="{axis + 14}"'
        yield f'<text {place} fill="{INK}" text-anchor="middle">{tick / 1000:g} µs</text>'


def legend_rows(names, colour, row):
    for number, name in enumerate(names):
        left, base = LEFT + number % 2 * 480, row + number // 2 * 18
        yield f'<rect x="{left}" y="{base - 10}" width="12" height="12" fill="{colour[name]}"/>'
        yield f'<text x="{left + 18}" y="{base}" fill="{INK}">{html.escape(name)}</text>'


def draw(lanes, submitted, title):
    """The picture, from a little before the device begins to its end: what was submitted before or after that is at
    its edges.
    """
    first, end = span_of(lanes)
    start = max(min([first, *(event[0] for event in submitted)]), first - (end - first) // 12)
    scale = (WIDTH - LEFT - 20) / max(1, end - start)

    def x(time):
        return LEFT + (time - start) * scale

    names = sorted({name for lane in lanes.values() for _, _, name in lane.get("dispatch", [])}, key=natural)
    colour = colours(names)
    out, y = [], TOP + 16
    for lane in sorted(lanes):
        out += lane_rows(lane, lanes[lane], x, y, scale, colour)
        out += markers(lane, submitted, x, y, start, end)
        y += LANE + GAP
    out += axis_rows(start, end, x, y - 12)
    row = y + 30
    out += legend_rows(names, colour, row)
    height = row + (len(names) + 1) // 2 * 18 + 10
    note = "grey: an operation on its queue; coloured: its dispatches; triangle: when it was submitted; hover for times"
    head = f'<text x="8" y="22" fill="{INK}" font-size="15">{html.escape(title)}</text>'
    head += f'<text x="8" y="42" fill="{INK}">{note}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="11">'
        f'{STYLE}<rect class="ground" width="100%" height="100%"/>{head}{"".join(out)}</svg>\n'
    )


def rows(spans):
    """The spans of a queue in rows: in one row none overlaps another, but a dispatch that is inside of its operation.

    Operations overlap where a device begins the next one before the last has ended. Perfetto drops what is not inside
    of the span that it begins in.
    """
    order = {"operation": 0, "dispatch": 1}
    spans = sorted((begin, order[kind], end, kind, name) for kind, some in spans.items() for begin, end, name in some)
    free = []
    for begin, _, end, kind, name in spans:

        def fits(row):
            inside = kind == "dispatch" and end <= row["operation"]
            return row["dispatch"] <= begin and (inside or row["operation"] <= begin)

        # First the row with the operation that it is a part of.
        places = [place for place, row in enumerate(free) if fits(row)]
        place = min(places, key=lambda place: (free[place]["operation"] <= begin, place), default=len(free))
        if place == len(free):
            free.append({"operation": 0, "dispatch": 0})
        free[place][kind] = end
        yield place, begin, end, kind, name


# As many queues as a device can have: what does not fit beside a queue's other spans has a thread of that many
# further on.
QUEUES = 64


def names_of(places, title):
    """What processes and threads are called, and where they stand: the rows of a queue below each other."""
    for device in sorted({device for device, _, _ in places}):
        yield {"ph": "M", "name": "process_name", "pid": device + 1, "args": {"name": f"device {device}: {title}"}}
    for index, (device, queue, row) in enumerate(sorted(places)):
        place = {"pid": device + 1, "tid": row * QUEUES + queue + 1}
        name = f"queue {queue}" if row == 0 else f"queue {queue}, beside ({row + 1})"
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": index}}


def trace(lanes, submitted, title):
    """The same in Chrome's trace format: a process for each device, a thread for each queue, microseconds since the
    first event.

    Readers keep times in floats, in which a time of day in microseconds is good for a quarter of one at best.
    Perfetto takes process 0 and thread 0 for the system's idle thread, so both are numbered from 1; their names count
    as everywhere else.
    """
    origin = min([span_of(lanes)[0], *(event[0] for event in submitted)])
    events, places = [], {(*lane, 0) for lane in lanes} | {(*event[3], 0) for event in submitted}
    for (device, queue), spans in sorted(lanes.items()):
        for row, begin, end, kind, name in rows(spans):
            places.add((device, queue, row))
            place = {"pid": device + 1, "tid": row * QUEUES + queue + 1}
            span = {"ts": (begin - origin) / 1000, "dur": (end - begin) / 1000}
            events.append({"ph": "X", "cat": kind, "name": name, **span, **place})
    for time, ready, name, (device, queue) in submitted:
        waited = {"ready after (us)": (ready - time) / 1000}
        place = {"ts": (time - origin) / 1000, "pid": device + 1, "tid": queue + 1}
        events.append({"ph": "i", "s": "t", "cat": "submitted", "name": f"{name} submitted", **place, "args": waited})
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": [*names_of(places, title), *events]}, indent=1) + "\n"


if __name__ == "__main__":
    profile, picture, events, title = sys.argv[1:5]
    lanes, submitted = read(profile)
    pathlib.Path(picture).write_text(draw(lanes, submitted, title), encoding="utf-8")
    pathlib.Path(events).write_text(trace(lanes, submitted, title), encoding="utf-8")
