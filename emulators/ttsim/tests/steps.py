# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Does some steps on a board that the vendor's user-space driver opened: steps.py LIBRARY FILE.

The file has a list of ["write", x, y, address, bytes in hexadecimal], ["run", x, y, address] until the word there is
one, and ["read", x, y, address, length].
"""
import ctypes
import json
import sys

import tt_umd

device = tt_umd.create_simulation_tt_device(sys.argv[1])
device.init_tt_device()
# The same library as the driver's: the clock runs only when it is told to.
library = ctypes.CDLL(sys.argv[1])
with open(sys.argv[2]) as file:
    steps = json.load(file)
for kind, x, y, address, *rest in steps:
    if kind == "write":
        device.noc_write(x, y, address, bytes.fromhex(rest[0]))
    elif kind == "read":
        print("read", bytes(device.noc_read(x, y, address, rest[0])).hex())
    else:
        for _ in range(10000):
            library.libttsim_clock(1000)
            if device.noc_read32(x, y, address) == 1:
                break
        else:
            raise SystemExit(f"the core did not end: {address:#x}")
