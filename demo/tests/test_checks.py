# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""What checks.py does where a module fails: a compiler and tools of the test's own stand in for IREE's."""

import os
import pathlib
import subprocess
import sys

DEMO = pathlib.Path(__file__).parents[1]

# Says that each test of the module passed, and that those of one fail on one device.
TOOL = """#!{python}
import pathlib, re, sys
flags = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
module, device = flags["--module"], flags["--device"]
source = pathlib.Path(module).read_text()
bad = "wrong.mlir" in source or ("state.mlir" in source and device == "qaic://emulated")
for name in re.findall(r"func.func @(\\w+)\\(\\)", source):
    print(f"[{{'  FAILED ' if bad else '      OK '}}] module.{{name}} (0 ms)")
    print("2xi32=2 2\\n2xi32=2 3" if bad else "")
sys.exit(bad)
"""

# The compiled module is the source, and its name.
COMPILER = """#!{python}
import pathlib, sys
source = pathlib.Path(next(word for word in sys.argv if word.endswith(".mlir")))
pathlib.Path(sys.argv[-1]).write_text(source.name + source.read_text())
"""

RUN = """#!{python}
import sys
sys.exit("no such tool")
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)


def test_module_with_a_wrong_value_fails_the_step_and_is_named_with_its_device_and_message(tmp_path):
    program(tmp_path / "iree/tools/iree-check-module", TOOL)
    program(tmp_path / "iree/tools/iree-run-module", RUN)
    program(tmp_path / "python/bin/iree-compile", COMPILER)
    environment = os.environ | {"CARGO_TARGET_DIR": str(tmp_path)}
    command = [sys.executable, DEMO / "checks.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stderr.splitlines() if line.endswith(": FAILED")]
    assert "state on qaic://emulated: FAILED" in failed
    assert "2xi32=2 3" in done.stderr, "what the tool said is shown"
    rows = done.stdout.splitlines()
    assert "wrong, as a failure on mock: ok" in rows, "a failure that is expected is no failure"
    assert "elementwise on mock: ok" in rows
    # Without a tool that runs functions, those rows fail, too.
    assert "over_the_input on mock: FAILED" in failed
