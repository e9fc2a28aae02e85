# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""IREE's runtime with the drivers of this repository.

    import iree_hal, numpy

    module = iree_hal.Module("model.vmfb", "mock")
    result = module.main(numpy.ones((4, 8), numpy.float32)).numpy()

`devices()` lists the devices; a `Device` is opened by its URI; a `Module` is loaded for devices. Its functions take
numpy arrays, numbers, and any object with DLPack, and return arrays. `submit` begins a call and returns a `Future`.
Failures are an `Error` with the runtime's text and code. `stall_report()` says what a program that hangs waits for.
"""

try:
    from ._native import (
        Array,
        Device,
        DeviceInfo,
        Error,
        Function,
        Future,
        Module,
        Profile,
        devices,
        drivers,
        stall_report,
    )
except ModuleNotFoundError as missing:
    if missing.name != __name__ + "._native":
        raise
    raise ModuleNotFoundError(
        f"this is the source of iree_hal, without its extension module: {__path__[0]}; install the package "
        "(pip install ./python), and start Python in another folder, or without the source's in PYTHONPATH",
        name=missing.name,
    ) from None

__all__ = [
    "Array",
    "Device",
    "DeviceInfo",
    "Error",
    "Function",
    "Future",
    "Module",
    "Profile",
    "devices",
    "drivers",
    "stall_report",
]
