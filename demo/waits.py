# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Draws a report of a program that hangs: who waits for whom.

    waits.py REPORT.json OUT.svg

The input is the report as JSON (docs/programs.md, "When a program hangs"). Graphviz's `dot` lays the picture out; its
input is kept beside it, as OUT.dot. What the report names as a cause is red.
"""

import json
import pathlib
import shutil
import subprocess
import sys

# So many operations of a queue are drawn; those behind them wait for them.
DRAWN = 30
RED = "#c2185b"


def quoted(text):
    """A string of the language of dot."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def attributes(**given):
    """What stands in brackets behind a node or an edge."""
    return "[" + ", ".join(f"{name}={quoted(str(value))}" for name, value in given.items() if value) + "]"


def name_of(step):
    """A semaphore and a value, as people say it."""
    semaphore = step["semaphore"]
    if semaphore["device"] is None:
        return f"semaphore {semaphore['address']} of another driver = {step['value']}"
    return f"semaphore {semaphore['number']} of {semaphore['device']} = {step['value']}"


def identity(operation):
    """The node of an operation."""
    return f"{operation['device']}/{operation['queue']}/{operation['id']}"


def stuck(report):
    """The nodes and the steps that the report names as causes."""
    nodes, steps = set(), set()
    for cause in report["causes"]:
        for operation in cause.get("operations", [cause.get("operation")]):
            nodes |= {identity(operation)} if operation else set()
        if cause["kind"] == "unpromised":
            steps.add(name_of(cause["waits_for"]))
    return nodes, steps


def edge(waiter, wait, steps):
    """The arrow from who waits to who has promised, or to the value that nobody has promised."""
    step = name_of(wait["waits_for"])
    if wait["promised_by"]:
        return [f"{quoted(waiter)} -> {quoted(identity(wait['promised_by']))} {attributes(label=step)};"]
    color = RED if step in steps else ""
    label = f"{step}\nit is at {wait['reached']}; nobody has promised it"
    return [
        f"{quoted(step)} {attributes(label=label, shape='ellipse', color=color, fontcolor=color)};",
        f"{quoted(waiter)} -> {quoted(step)} {attributes(color=color)};",
    ]


def queue(device, queue, nodes, steps):
    """The box of a queue, and the arrows of its operations."""
    title = f"queue {queue['index']} of {device}"
    title += ", whose lock a thread keeps" if queue["is_locked"] else ""
    title += ", full" if queue["is_full"] else ""
    box, arrows = [f"subgraph {quoted('cluster ' + title)} {{ label={quoted(title)};"], []
    for operation in queue["operations"][:DRAWN]:
        node = f"{device}/{queue['index']}/{operation['id']}"
        stage, seconds = operation["stage"].replace("_", " "), operation["seconds"]
        label = f"{operation['text']}\n{stage}" + (f" for {seconds:.1f} s" if seconds is not None else "")
        color = RED if node in nodes else ""
        box.append(f"  {quoted(node)} {attributes(label=label, color=color, penwidth=2 if color else '')};")
        for wait in operation["waits"]:
            arrows += edge(node, wait, steps)
    more = max(len(queue["operations"]) - DRAWN, 0) + queue["omitted"]
    if more:
        box.append(f"  {quoted(title + ' more')} {attributes(label=f'and {more} more', shape='plain')};")
    return [*box, "}"], arrows


def graph(report):
    """The report in the language of dot."""
    nodes, steps = stuck(report)
    lines = ['digraph waits { rankdir=LR; node [shape=box, fontname="sans"]; edge [fontname="sans", fontsize=10];']
    arrows = []
    for device in report["devices"]:
        for each in device["queues"]:
            if each["operations"] or each["is_locked"]:
                box, more = queue(device["name"], each, nodes, steps)
                lines += box
                arrows += more
    for number, wait in enumerate(report["host_waits"]):
        node, count = f"host {number}", wait["count"]
        label = "the host" if count == 1 else f"the host, {count} times"
        lines.append(f"{quoted(node)} {attributes(label=label)};")
        arrows += edge(node, wait, steps)
    return "\n".join([*lines, *arrows, "}", ""])


def main(report, picture):
    """Draws a report."""
    lines, picture = graph(json.loads(pathlib.Path(report).read_text(encoding="utf-8"))), pathlib.Path(picture)
    dot = picture.with_suffix(".dot")
    dot.write_text(lines, encoding="utf-8")
    if shutil.which("dot") is None:
        raise SystemExit(f"Graphviz is missing (Debian and Ubuntu: apt-get install graphviz); its input is {dot}")
    subprocess.run(["dot", "-Tsvg", f"-o{picture}", dot], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
