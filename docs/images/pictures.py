# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Draws the pictures of the pages: `python3 docs/images/pictures.py` writes the SVG files of this folder anew. With
`--check` it names those that are out of date, and writes none.

Each file follows the reader's colour scheme. The bars are read from the table in `docs/performance.md`.
"""

import pathlib
import re
import sys
from html import escape

HERE = pathlib.Path(__file__).parent

STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#1f2328}
.b{font-weight:600}.s{font-size:11.5px;fill:#4d565f}
.m{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:12px}
.ground{fill:#fff}.plain{fill:#f6f8fa;stroke:#6e7781}.ship{fill:#ddf4ff;stroke:#0969da}
.rig{fill:#fff4c2;stroke:#9a6700}.done{fill:#dafbe1;stroke:#1a7f37}
.region{fill:none;stroke:#6e7781;stroke-dasharray:5 4}
.line{fill:none;stroke:#4d565f;stroke-width:1.5}.dash{stroke-dasharray:5 4}.faint{fill:none;stroke:#d0d7de}
.head{fill:#4d565f}.goal{fill:none;stroke:#cf222e;stroke-width:2}.white{fill:#fff}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}.s{fill:#aab4be}.ground{fill:#0d1117}.plain{fill:#1c2128;stroke:#8b949e}
.ship{fill:#0c2d4d;stroke:#58a6ff}.rig{fill:#3b2e0a;stroke:#d29922}.done{fill:#12361f;stroke:#3fb950}
.region{stroke:#8b949e}.line{stroke:#aab4be}.faint{stroke:#30363d}.head{fill:#aab4be}.goal{stroke:#ff7b72}
.white{fill:#0d1117}}
"""


class Picture:
    """A picture of one size, to which shapes are added from back to front."""

    def __init__(self, name, title, width, height):
        self.name, self.width, self.height, self.parts = name, width, height, []
        self.title = title

    def add(self, text):
        self.parts.append(text)

    def box(self, x, y, w, h, kind, lines=(), radius=6):
        """A box with centred lines, of which the first is bold."""
        self.add(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{radius}"/>')
        top = y + h / 2 - (len(lines) - 1) * 8.5 + 4.5
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + number * 17, line, "b" if number == 0 else "s", "middle")

    def text(self, x, y, text, kind="", anchor="start"):
        self.add(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points, kind="line", arrow=True):
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        end = ' marker-end="url(#arrow)"' if arrow else ""
        self.add(f'<polyline class="{kind}" points="{path}"{end}/>')

    def svg(self):
        """The text of the file."""
        arrow = (
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto" markerUnits="userSpaceOnUse"><path class="head" d="M0,0 8,4 0,8z"/></marker></defs>'
        )
        title, body = escape(self.title), "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-label="{title}">\n<title>{title}</title>\n'
            f'<style>{STYLE}</style>\n{arrow}\n<rect class="ground" width="100%" height="100%"/>\n{body}\n</svg>\n')


def layers():
    """Product and rig."""
    it = Picture("layers.svg", "The layers: what ships, and the rig that tests it", 960, 516)
    it.text(20, 24, "What ships", "b")
    it.text(670, 24, "The rig: nothing that ships names it", "b")
    it.box(20, 40, 610, 42, "plain", ["your program · iree-run-module · Python"])
    it.line([(420, 82), (420, 110)])
    it.text(432, 100, "IREE's C interface", "s")
    it.box(20, 112, 180, 56, "ship", ["hal-collectives", "groups of ranks"])
    it.box(210, 112, 420, 56, "ship", ["hal-driver", "every object of IREE's interface, once for all devices"])
    it.line([(420, 168), (420, 190)])
    it.box(20, 192, 610, 56, "ship",
           ["hal-semaphore, the engine", "which work goes to the device now, which waits there, which is blocked"])
    it.line([(325, 248), (325, 272)])
    it.text(337, 264, "the traits of hal-backend", "s")
    for number, name in enumerate(("mock", "template", "nvidia", "gaudi", "qaic", "tenstorrent")):
        it.box(20 + 103 * number, 274, 95, 40, "ship", [name])
    it.line([(273, 314), (273, 436)])
    it.box(214, 438, 107, 42, "plain", ["libcuda.so.1"])
    it.line([(482, 314), (482, 346)])
    it.box(329, 348, 301, 56, "ship", ["hal-kernel", "files, requests, mappings, nodes"])
    it.line([(482, 404), (482, 436)])
    it.box(329, 438, 301, 42, "plain", ["Linux: the card's kernel driver, the card"])
    it.text(20, 344, "mock and template are", "s")
    it.text(20, 361, "devices in software;", "s")
    it.text(20, 378, "they need no kernel.", "s")
    it.box(670, 40, 270, 456, "region")
    it.text(805, 70, "emulators/", "m", "middle")
    it.box(686, 112, 238, 56, "rig", ["trait Emulation", "the feature emulated links the rig"])
    it.line([(686, 140), (632, 140)], "line dash")
    it.box(686, 192, 114, 56, "rig", ["supervisor", "other programs"])
    it.box(810, 192, 114, 56, "rig", ["testbench", "for tests"])
    it.box(686, 274, 238, 40, "rig", ["core"])
    it.box(680, 348, 46, 40, "rig", ["cuda"])
    it.box(730, 348, 54, 40, "rig", ["gaudi"])
    it.box(788, 348, 44, 40, "rig", ["qaic"])
    it.box(836, 348, 94, 40, "rig", ["tenstorrent"])
    it.text(805, 404, "emulated libraries, kernel drivers, cards", "s", "middle")
    it.line([(680, 368), (632, 368)], "line dash")
    it.line([(873, 412), (873, 428)])
    it.box(686, 430, 238, 56, "rig", ["chip, riscv, ttsim", "Tenstorrent's simulated chip"])
    return it


def tile():
    """A Tenstorrent tile's memory during a dispatch."""
    it = Picture("tile.svg", "A tile's memory during a dispatch: with all bindings, and page by page", 960, 560)
    columns = (
        (110, "All bindings fit", (
            (34, "plain", "where core B starts", "0x0000"),
            (46, "plain", "words of the dispatch, IREE's state", "0x2000"),
            (60, "ship", "the executable's image", "0x3000"),
            (46, "ship", "a stack of 32 KiB for each core", ""),
            (40, "ship", "workgroup-local memory", ""),
            (34, "plain", "list of the bindings' pages in DRAM", ""),
            (74, "done", "the bindings", ""),
            (74, "done", "a copy of each, to see what changed", ""),
        )),
        (570, "Page by page", (
            (34, "plain", "where core B starts", "0x0000"),
            (46, "plain", "words of the dispatch, IREE's state", "0x2000"),
            (60, "ship", "the image, with page look-ups", "0x3000"),
            (46, "ship", "one stack of 32 KiB", ""),
            (40, "ship", "workgroup-local memory", ""),
            (46, "plain", "tables: each page, here and in DRAM", ""),
            (68, "done", "places: a page of 4 KiB and its copy", ""),
            (68, "done", "… as many as fit", ""),
        )),
    )
    for x, title, parts in columns:
        it.text(x + 160, 28, title, "b", "middle")
        y = 44
        for height, kind, name, address in parts:
            it.box(x, y, 320, height, kind, radius=0)
            it.text(x + 160, y + height / 2 + 4.5, name, "", "middle")
            it.text(x - 10, y + 14, address, "m", "end")
            y += height
        it.box(x, y, 320, 60, "rig", radius=0)
        it.text(x + 160, y + 27, "buffers, l1= KiB", "", "middle")
        it.text(x + 160, y + 45, "at one address in all tiles", "s", "middle")
        it.text(x - 10, y + 14, "1,472 KiB", "m", "end")
        it.text(x - 10, y + 62, "1,536 KiB", "m", "end")
    it.text(20, 546, "Not to scale. A Blackhole's tile with l1=64; a Wormhole's has 1,464 KiB.", "s")
    return it


class Lanes:
    """Lanes of a picture, one below the other, in which time goes to the right."""

    def __init__(self, picture, top, title, names):
        self.picture = picture
        picture.text(20, top, title, "b")
        self.y = {name: top + 40 + 40 * number for number, name in enumerate(names)}
        for name, y in self.y.items():
            picture.text(20, y + 4, name, "s")
            picture.line([(130, y), (940, y)], "faint", arrow=False)

    def span(self, lane, start, end, kind, text):
        self.picture.box(start, self.y[lane] - 12, end - start, 24, kind, radius=3)
        self.picture.text((start + end) / 2, self.y[lane] + 4, text, "s", "middle")

    def event(self, x, text, lanes):
        """Something that the first lane does, and an arrow that passes it on through the others."""
        first, *rest = lanes
        self.picture.add(f'<circle class="head" cx="{x}" cy="{self.y[first]}" r="4"/>')
        self.picture.text(x + 8, self.y[first] - 8, text, "s")
        if rest:
            down = self.y[rest[-1]] > self.y[first]
            gap = -12 if down else 12
            self.picture.line([(x, self.y[first] + (4 if down else -4)), (x, self.y[rest[-1]] + gap)])


def waits():
    """Signal before wait, wait before signal, and a wait that the device does."""
    it = Picture("waits.svg", "Signal before wait, wait before signal, and a wait that is left to the device", 960, 560)
    lanes = Lanes(it, 24, "Signal before wait: the wait is reached, and B goes to the device at once",
                  ["program", "timeline x", "device"])
    lanes.event(180, "signal x = 1", ["program", "timeline x"])
    lanes.span("timeline x", 180, 940, "done", "x = 1")
    lanes.event(420, "submit B, waits for x ≥ 1", ["program", "device"])
    lanes.span("timeline x", 180, 940, "done", "x = 1")
    lanes.span("device", 420, 620, "ship", "B")
    lanes = Lanes(it, 194, "Wait before signal: B is blocked on the host, and the signal releases it",
                  ["program", "timeline x", "device"])
    lanes.event(180, "submit B, waits for x ≥ 1", ["program", "timeline x"])
    lanes.event(420, "signal x = 1", ["program", "device"])
    lanes.span("timeline x", 180, 420, "rig", "B blocked, an entry of x's list")
    lanes.span("timeline x", 420, 940, "done", "x = 1")
    lanes.span("device", 420, 620, "ship", "B")
    lanes = Lanes(it, 364, "Left to the device: A promises x = 1, so B goes to the device at once, with a native wait",
                  ["program", "timeline x", "device, queue 0", "device, queue 1"])
    lanes.event(180, "submit A, signals x = 1", ["program", "device, queue 0"])
    lanes.event(400, "submit B, waits for x ≥ 1", ["program", "device, queue 1"])
    lanes.span("timeline x", 180, 620, "plain", "promise: A's epoch will signal x = 1")
    lanes.span("device, queue 0", 180, 600, "ship", "A")
    lanes.span("device, queue 1", 400, 600, "rig", "B waits for A's epoch")
    lanes.span("device, queue 1", 600, 800, "ship", "B")
    lanes.span("timeline x", 620, 940, "done", "x = 1, when A is reported")
    return it


def operation():
    """The way of an operation."""
    it = Picture("operation.svg", "The way of an operation, in five steps", 960, 400)
    rows = (("program", 40), ("hal-driver", 110), ("engine", 200), ("backend, device", 310))
    for name, y in rows:
        it.text(20, y + 4, name, "b")
        it.line([(156, y), (940, y)], "faint", arrow=False)
    it.box(160, 84, 170, 52, "ship", ["1 the call", "checks, keeps, captures"])
    it.box(250, 174, 170, 52, "ship", ["2 admission", "each wait its class"])
    it.box(250, 246, 170, 34, "rig", ["blocked: in a list"])
    it.box(440, 174, 130, 52, "ship", ["3 submission", "without the lock"])
    it.box(440, 84, 130, 52, "ship", ["work.rs", "buffers to memory"])
    it.box(590, 284, 150, 52, "ship", ["4 the device", "in queue order"])
    it.box(700, 174, 150, 52, "ship", ["5 retirement", "after its causes"])
    it.line([(200, 44), (200, 82)])
    it.text(208, 66, "queue_fill", "s")
    it.line([(290, 136), (290, 172)])
    it.line([(420, 200), (438, 200)])
    it.line([(505, 172), (505, 138)])
    it.line([(572, 110), (620, 110), (620, 282)])
    it.text(630, 150, "a job", "s")
    it.line([(720, 284), (720, 228)])
    it.text(730, 262, "reports an epoch", "s")
    it.line([(335, 226), (335, 244)])
    it.line([(420, 263), (505, 263), (505, 228)], "line dash")
    it.text(512, 262, "released", "s")
    it.line([(800, 172), (800, 46)])
    it.text(810, 66, "signals, then waiters,", "s")
    it.text(810, 82, "then resources", "s")
    it.line([(840, 226), (840, 380), (335, 380), (335, 282)], "line dash")
    it.text(345, 372, "a signal of other work, or of the host, releases what is blocked", "s")
    return it


def nanoseconds(cell):
    """The middle of a cell such as `1.1 to 5.6 µs`, or nothing."""
    unit = {"ns": 1, "µs": 1e3, "ms": 1e6}.get(cell.split()[-1])
    if unit is None:
        return None
    ends = [float(number.replace(",", "")) * unit for number in re.findall(r"[0-9][0-9,.]*", cell)]
    return (ends[0] * ends[-1]) ** 0.5


def performance():
    """The bars of the table in `docs/performance.md`."""
    rows = []
    for line in (HERE.parent / "performance.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 5:
            continue
        task, mock = nanoseconds(cells[2]), nanoseconds(cells[3])
        goal = re.match(r"([0-9.]+) × task", cells[4])
        if task and mock:
            missed = re.search(r"task: ([0-9.]+) to ([0-9.]+)", cells[4])
            ratio = (float(missed[1]) + float(missed[2])) / 2 if missed else mock / task
            rows.append((cells[0], ratio, float(goal[1]) if goal else None, "rig" if missed else "done"))
    left, wide, top = 300, 500, 64
    it = Picture("performance.svg", "Time of mock as a share of local-task's", 960, top + 26 * len(rows) + 46)
    it.text(20, 24, "Time of mock / time of local-task: shorter is faster", "b")
    bottom = top + 26 * len(rows)
    for tenth in range(0, 13, 2):
        x = left + wide * tenth / 12
        it.line([(x, top - 8), (x, bottom)], "line" if tenth == 10 else "faint", arrow=False)
        it.text(x, top - 14, f"{tenth / 10:g}", "s", "middle")
    for number, (name, ratio, goal, kind) in enumerate(rows):
        y = top + 26 * number
        it.text(left - 12, y + 14, name, "s", "end")
        it.box(left, y + 2, round(wide * min(ratio, 1.2) / 1.2, 1), 16, kind, radius=0)
        if goal:
            x = left + wide * goal / 1.2
            it.line([(x, y - 1), (x, y + 21)], "goal", arrow=False)
        it.text(left + wide + 16, y + 14, f"{ratio:.2f}", "s")
    it.box(20, bottom + 16, 14, 14, "done", radius=0)
    it.text(42, bottom + 28, "goal met in every run", "s")
    it.box(200, bottom + 16, 14, 14, "rig", radius=0)
    it.text(222, bottom + 28, "not in every run", "s")
    it.line([(350, bottom + 14), (350, bottom + 32)], "goal", arrow=False)
    it.text(360, bottom + 28, "the goal. Each bar is the middle of three runs.", "s")
    return it


if __name__ == "__main__":
    pictures = [draw() for draw in (layers, operation, performance, tile, waits)]
    stale = [it for it in pictures if (HERE / it.name).read_text() != it.svg()]
    if sys.argv[1:] == ["--check"]:
        sys.exit(", ".join(f"docs/images/{it.name} is out of date" for it in stale) or 0)
    for it in stale:
        (HERE / it.name).write_text(it.svg())
