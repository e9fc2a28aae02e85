# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""The rules of a trace in Chrome's format, which viewers take no other traces for.

The rules are those of "Trace Event Format" (Google), and what Perfetto drops: spans of a thread that overlap without
one being inside of the other, spans that end before they begin, ends without beginnings, flows that are bound to
nothing.
"""

import collections

NAMES = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}
FIELDS = {
    "M": ("name", "pid", "args"),
    "X": ("name", "ts", "dur", "pid", "tid"),
    "B": ("name", "ts", "pid", "tid"),
    "E": ("ts", "pid", "tid"),
}
FIELDS |= {"i": ("name", "ts", "pid", "tid"), "s": ("name", "cat", "id", "ts", "pid", "tid")}
FIELDS |= {"f": FIELDS["s"]}


def nanoseconds(number):
    """A time as Perfetto reads it: whole nanoseconds."""
    return round(number * 1000)


def shape(event):
    """What is wrong with an event by itself."""
    kind = event.get("ph")
    if kind not in FIELDS:
        return [f"no kind of event that is looked at here: {event}"]
    wrong = [f"{field} is missing in {event}" for field in FIELDS[kind] if field not in event]
    wrong += [
        f"{field} is no time in {event}" for field in ("ts", "dur") if not isinstance(event.get(field, 0), int | float)
    ]
    if kind == "M" and NAMES.get(event.get("name"), "") not in event.get("args", {}):
        wrong.append(f"a name without what it names in {event}")
    if kind == "i" and event.get("s", "t") not in ("t", "p", "g"):
        wrong.append(f"an instant of nothing in {event}")
    # Perfetto takes both for the system's idle thread.
    return wrong + [f"{field} is 0 in {event}" for field in ("pid", "tid") if event.get(field) == 0]


def nesting(events):
    """What a thread's spans do that they may not, in the order in which a reader has them: by time, then as they
    stand.
    """
    wrong, begun, ends = [], [], []
    for event in sorted(events, key=lambda event: event["ts"]):
        now = nanoseconds(event["ts"])
        if event["ph"] == "B":
            begun.append(event)
        elif event["ph"] == "E":
            if not begun:
                wrong.append(f"nothing has begun that ends in {event}")
            elif (name := begun.pop()["name"]) != event.get("name", name):
                wrong.append(f"something else ends in {event}")
        elif event["ph"] == "X":
            end = now + nanoseconds(event["dur"])
            ends = [other for other in ends if other > now]
            if end < now:
                wrong.append(f"it ends before it begins: {event}")
            if ends and ends[-1] < end:
                wrong.append(f"it overlaps the end of another one: {event}")
            ends.append(end)
    return wrong + [f"it does not end: {event}" for event in begun]


def bound(events):
    """Flows without a beginning or an end, and ends that come first."""
    ways = collections.defaultdict(lambda: ([], []))
    for event in events:
        if event["ph"] in "sf":
            ways[event["cat"], event["name"], event["id"]][event["ph"] == "f"].append(event["ts"])
    return [
        f"the flow {way} has {len(starts)} beginnings and {len(ends)} ends, or ends first"
        for way, (starts, ends) in ways.items()
        if len(starts) != 1 or not ends or min(ends) < starts[0]
    ]


def unnamed(events):
    """Threads and processes that have events and no names."""
    named = {(event["name"], event["pid"], event.get("tid")) for event in events if event["ph"] == "M"}
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    wrong = [
        f"process {pid} has no name"
        for pid in sorted({pid for pid, _ in used})
        if ("process_name", pid, None) not in named
    ]
    return wrong + [f"thread {place} has no name" for place in sorted(used) if ("thread_name", *place) not in named]


def broken(trace):
    """The rules that a trace breaks; empty if it keeps all of them."""
    events = trace["traceEvents"]
    wrong = [what for event in events for what in shape(event)]
    if wrong:
        return wrong
    threads = collections.defaultdict(list)
    for event in events:
        if event["ph"] in "XBE":
            threads[event["pid"], event["tid"]].append(event)
    wrong = [what for spans in threads.values() for what in nesting(spans)]
    return wrong + bound(events) + unnamed(events)
