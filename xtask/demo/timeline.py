"""Draws a profile of a device as an SVG: one lane for each queue, what the device did, and when.

    timeline.py PROFILE.jsonl OUT.svg TITLE

The input is what `iree-profile export --format=ireeperf-jsonl` writes.
"""

import json
import pathlib
import sys

WIDTH, LEFT, LANE, GAP, TOP = 1100, 120, 34, 26, 64
COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f", "#af7aa1"]
INK = "#222"


def read(path):
    """The spans of each lane, and when the host handed each operation over."""
    lanes, ready = {}, []
    for line in pathlib.Path(path).read_text().splitlines():
        record = json.loads(line)
        lane = (record.get("physical_device_ordinal", 0), record.get("queue_ordinal", 0))
        if record["record_type"] == "dispatch_event" and record.get("derived_time_available"):
            begin, end = record["start_driver_host_cpu_time_ns"], record["end_driver_host_cpu_time_ns"]
            lanes.setdefault(lane, {}).setdefault("dispatch", []).append((begin, end, record["key"]))
        elif record["record_type"] == "queue_device_event" and record.get("derived_time_available"):
            begin, end = record["start_driver_host_cpu_time_ns"], record["end_driver_host_cpu_time_ns"]
            lanes.setdefault(lane, {}).setdefault("operation", []).append((begin, end, record["op"]))
        elif record["record_type"] == "queue_event":
            ready.append((record["host_time_ns"], record["ready_host_time_ns"], record["op"], lane))
    return lanes, ready


def draw(lanes, ready, title):
    """The picture."""
    times = [time for lane in lanes.values() for spans in lane.values() for span in spans for time in span[:2]]
    times += [event[0] for event in ready]
    if not times:
        raise SystemExit("the profile has no spans: was it taken with queue, dispatch and device queue events?")
    start, end = min(times), max(times)
    scale = (WIDTH - LEFT - 20) / max(1, end - start)

    def x(time):
        return LEFT + (time - start) * scale

    names = sorted({name for lane in lanes.values() for _, _, name in lane.get("dispatch", [])})
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    out, y = [], TOP
    for lane in sorted(lanes):
        out.append(f'<text x="8" y="{y + 22}" fill="{INK}">device {lane[0]} queue {lane[1]}</text>')
        for begin, finish, name in lanes[lane].get("operation", []):
            width = max(1.0, (finish - begin) * scale)
            text = f"{name}: {(finish - begin) / 1000:.1f} us"
            out.append(f'<rect x="{x(begin):.1f}" y="{y}" width="{width:.1f}" height="{LANE}" fill="#ddd"><title>{text}</title></rect>')
        for begin, finish, name in lanes[lane].get("dispatch", []):
            width = max(0.8, (finish - begin) * scale)
            text = f"{name}: {(finish - begin) / 1000:.1f} us"
            out.append(f'<rect x="{x(begin):.1f}" y="{y + 5}" width="{width:.1f}" height="{LANE - 10}" fill="{colour[name]}"><title>{text}</title></rect>')
        for submitted, released, name, where in ready:
            if where == lane:
                text = f"{name}: submitted, and ready {(released - submitted) / 1000:.1f} us later"
                out.append(f'<path d="M{x(submitted):.1f} {y - 10} l4 8 h-8 z" fill="{INK}"><title>{text}</title></path>')
        y += LANE + GAP
    axis = y + 4
    step = 10 ** (len(str(int((end - start) / 8))) - 1)
    step *= max(1, round((end - start) / 8 / step))
    for tick in range(0, int(end - start) + 1, step):
        out.append(f'<path d="M{x(start + tick):.1f} {TOP - 16} V{axis}" stroke="#bbb" stroke-width="0.5"/>')
        out.append(f'<text x="{x(start + tick):.1f}" y="{axis + 14}" fill="{INK}" text-anchor="middle">{tick / 1000:g} us</text>')
    row = axis + 40
    for number, name in enumerate(names):
        column, line = number % 2, number // 2
        left, base = LEFT + column * 480, row + line * 18
        out.append(f'<rect x="{left}" y="{base - 10}" width="12" height="12" fill="{colour[name]}"/>')
        out.append(f'<text x="{left + 18}" y="{base}" fill="{INK}">{name}</text>')
    height = row + (len(names) + 1) // 2 * 18 + 10
    head = f'<text x="8" y="22" fill="{INK}" font-size="15">{title}</text>'
    note = f'<text x="8" y="40" fill="{INK}">grey: an operation on its queue; colours: its dispatches; triangles: when it was submitted</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/>{head}{note}{"".join(out)}</svg>\n'
    )


if __name__ == "__main__":
    profile, target, title = sys.argv[1:4]
    lanes, ready = read(profile)
    pathlib.Path(target).write_text(draw(lanes, ready, title))
