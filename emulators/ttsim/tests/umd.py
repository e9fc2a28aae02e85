# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Uses a simulated board with the vendor's user-space driver: umd.py LIBRARY PROGRAM CASES, both in JSON."""
import json
import sys

import tt_umd

library, program, cases = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
device = tt_umd.create_simulation_tt_device(library)
device.init_tt_device()
print("arch", device.get_arch())
print("board", device.get_board_type())

# Where the driver thinks that everything is, from what the board says of itself.
chip = device.get_soc_descriptor()
for name, kind in [("tensix", tt_umd.CoreType.TENSIX), ("dram", tt_umd.CoreType.DRAM)]:
    cores = chip.get_cores(kind, tt_umd.CoordSystem.TRANSLATED)
    print(name, *sorted(f"{core.x:02}-{core.y:02}" for core in cores))
ports = chip.get_cores(tt_umd.CoreType.DRAM, tt_umd.CoordSystem.LOGICAL)
for bank in sorted({port.x for port in ports}):
    cores = [chip.translate_coord_to(port, tt_umd.CoordSystem.TRANSLATED) for port in ports if port.x == bank]
    print("bank", bank, *sorted(f"{core.x:02}-{core.y:02}" for core in cores))

# Memory of tiles and banks: what is written is read, and banks are apart from each other.
for index, (x, y) in enumerate(cases["tiles"]):
    device.noc_write(x, y, 0x10000, bytes((at + index) % 256 for at in range(4096)))
for index, (x, y) in enumerate(cases["tiles"]):
    found = bytes(device.noc_read(x, y, 0x10000, 4096))
    assert found == bytes((at + index) % 256 for at in range(4096)), (x, y)
print("memory", len(cases["tiles"]))

# A program on a core: the core is reset, loaded, released, and waited for.
x, y = cases["tiles"][0]
reset = 0xFFB121B0
device.noc_write32(x, y, reset, 0x47800)
device.noc_write(x, y, 0, b"".join(word.to_bytes(4, "little") for word in program))
device.noc_write32(x, y, cases["done"], 0)
device.noc_write32(x, y, reset, 0x47000)
for _ in range(20000):
    if device.noc_read32(x, y, cases["done"]) == 1:
        break
else:
    raise SystemExit("the program did not end")
device.noc_write32(x, y, reset, 0x47800)
bx, by = cases["result"]
print("program", bytes(device.noc_read(bx, by, cases["address"], cases["length"])).hex())
