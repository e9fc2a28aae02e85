# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""A tour of the package, to be read from top to bottom: `python tour.py MODULE.vmfb [DEVICE]`.

The module is hal-driver/examples/two_functions.mlir, compiled with --iree-execution-model=async-external.
"""

import sys

import iree_hal
import numpy as np

path, uri = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "mock"

# The devices that every driver lists.
for info in iree_hal.devices():
    print(f"{info.uri:<24} {info.name}")

# A module is loaded for a device; its functions are attributes.
device = iree_hal.Device(uri)
module = iree_hal.Module(path, device)
print(module, module.square.declaration)

# Numpy arrays go in, arrays of the device come out.
x = np.arange(1024, dtype=np.float32)
squares = module.square(x)
print(squares, squares.numpy()[:4])

# Two calls at once, and one behind the other, without the host between them.
first, second = module.square.submit(x), module.twice.submit(x)
both = module.twice.submit(first)
assert (first.result().numpy() == x * x).all()
assert (second.result().numpy() == 2 * x).all()
assert (both.result().numpy() == 2 * x * x).all()

# Other libraries take and give arrays by DLPack.
taken = np.from_dlpack(squares)
given = device.from_dlpack(np.ones(1024, np.float32))
assert (module.twice(given).numpy() == 2).all() and (taken == x * x).all()

# Errors say what to do.
try:
    iree_hal.Device("mock://0?colour=red")
except iree_hal.Error as error:
    print(error)

print("1024 squares on", device.uri, "are right")
