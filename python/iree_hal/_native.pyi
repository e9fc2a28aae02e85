# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Types of the extension module; `iree_hal` has all of its names."""

import os
from collections.abc import Buffer, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

class _Exports(Protocol):
    """What DLPack asks of an object."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# What functions take: arrays, numbers, lists where the module takes lists, and futures of any of them.
type _Argument = Array | Future | ArrayLike | _Exports | Sequence[_Argument] | None
# What they give: one result as it is, several as a tuple, lists as lists.
type _Result = Array | int | float | None | list[_Result] | tuple[_Result, ...]

class Error(RuntimeError):
    """What the runtime or a device says went wrong."""

    code: str
    """IREE's name of it, such as "NOT_FOUND"."""

def drivers() -> list[str]:
    """The names of all drivers of this package, IREE's own local ones included."""

def devices(driver: str | None = None) -> list[DeviceInfo]:
    """The devices that one driver finds, or all of them, without opening any."""

def stall_report(*, json: bool = False) -> str:
    """What this process waits for, on all devices of this project's drivers: for a program that hangs."""

class DeviceInfo:
    """A device that a driver has found."""

    @property
    def driver(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uri(self) -> str: ...

class Device:
    """A device, opened by its URI."""

    def __init__(self, uri: str) -> None: ...
    @property
    def uri(self) -> str: ...
    @property
    def name(self) -> str: ...
    def array(
        self, object: ArrayLike | _Exports | Array, dtype: str | None = None, *, copy: bool | None = True
    ) -> Array:
        """An array on the device; `copy=False` uses the memory in place or raises BufferError, None where it can."""

    def from_dlpack(self, object: _Exports, *, copy: bool | None = None) -> Array:
        """What another library exports, on the device."""

    def profile(self, path: str | os.PathLike[str]) -> Profile:
        """Writes what the device does to a file while the block runs."""

class Profile:
    """A profile of a device: taken between `with` and the end of its block."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Array:
    """An array on a device; read-only where the host sees it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def numpy(self) -> NDArray[Any]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def item(self) -> Any: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Future:
    """The results of a call, which may not be there yet."""

    def result(self, timeout: float | None = None) -> Any: ...
    def done(self) -> bool: ...
    def __await__(self) -> Generator[Any, Any, Any]: ...

class Function:
    """A function of a module."""

    def __call__(self, *arguments: _Argument) -> Any: ...
    def submit(self, *arguments: _Argument) -> Future: ...
    @property
    def name(self) -> str: ...
    @property
    def declaration(self) -> str: ...
    @property
    def is_asynchronous(self) -> bool: ...

class Module:
    """A compiled module with its state, loaded for one device or several."""

    def __init__(
        self,
        source: str | os.PathLike[str] | Buffer,
        device: Device | str | Sequence[Device | str],
        *,
        parameters: Mapping[str, str | os.PathLike[str] | Sequence[str | os.PathLike[str]]] | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def functions(self) -> list[str]: ...
    @property
    def devices(self) -> list[Device]: ...
    def __getitem__(self, name: str) -> Function: ...
    def __getattr__(self, name: str) -> Function: ...
