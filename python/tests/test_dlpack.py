# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""DLPack, both ways. numpy is the other side: its implementation judges ours."""

import ctypes
import gc
import weakref

import iree_hal
import numpy as np
import pytest


def address(array):
    return array.__array_interface__["data"][0]


def test_array_goes_to_numpy_without_a_copy():
    array = iree_hal.Device("mock").array(np.arange(6, dtype=np.float32).reshape(2, 3))
    first, second = np.from_dlpack(array), np.from_dlpack(array)
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert address(first) == address(second) == address(array.numpy())
    assert not first.flags.writeable


def test_array_goes_to_numpy_from_each_device(device):
    given = np.arange(1000, dtype=np.int64)
    taken = np.from_dlpack(device.array(given))
    assert (taken == given).all()


def test_export_outlives_the_array():
    device = iree_hal.Device("mock")
    taken = np.from_dlpack(device.array(np.arange(100000, dtype=np.int32)))
    gc.collect()
    noise = [device.array(np.full(100000, 7, np.int32)) for _ in range(4)]
    assert taken.sum() == 4999950000 and len(noise) == 4


def test_capsule_that_is_not_taken_frees_what_it_keeps():
    array = iree_hal.Device("mock").array(np.arange(4, dtype=np.int32))
    for arguments in ({}, {"max_version": (1, 0)}):
        capsule = array.__dlpack__(**arguments)
        assert "dltensor" in repr(capsule)
        del capsule
    assert array.numpy().tolist() == [0, 1, 2, 3]


def aligned(count, dtype):
    """An array that begins where devices can use it in place."""
    size = np.dtype(dtype).itemsize
    raw = np.zeros(count * size + 4096, np.uint8)
    start = -address(raw) % 4096
    return raw[start : start + count * size].view(dtype)


def test_memory_is_used_in_place_where_the_device_can():
    device = iree_hal.Device("mock")
    given = aligned(1024, np.float32)
    for array in (device.from_dlpack(given, copy=False), device.array(given, copy=False)):
        given[:] = 1
        assert array.numpy()[0] == 1
        given[:] = 2
        assert array.numpy()[0] == 2 and address(array.numpy()) == address(given)


def test_memory_in_place_is_let_go_of():
    device = iree_hal.Device("mock")

    class Owner(np.ndarray):
        pass

    given = aligned(1024, np.float32).view(Owner)
    gone = weakref.ref(given)
    array = device.array(given, copy=False)
    del given
    gc.collect()
    assert gone() is not None
    del array
    gc.collect()
    assert gone() is None


def test_copy_does_not_see_later_changes(device):
    given = aligned(16, np.int32)
    array = device.array(given)
    given[:] = 9
    assert array.numpy().tolist() == [0] * 16


def test_device_that_cannot_use_memory_in_place_copies_or_refuses():
    device = iree_hal.Device("mock")
    given = np.zeros(1025, np.float32)[1:]
    given = given if address(given) % 64 else np.zeros(1026, np.float32)[1:-1]
    assert address(given) % 64 != 0
    assert device.from_dlpack(given).numpy().tolist() == given.tolist()
    with pytest.raises(BufferError, match="in place"):
        device.from_dlpack(given, copy=False)


def test_what_dlpack_cannot_say_is_refused():
    device = iree_hal.Device("mock")
    with pytest.raises(BufferError, match="contiguous"):
        device.from_dlpack(np.zeros((4, 4), np.float32)[:, ::2])
    with pytest.raises(AttributeError):
        device.from_dlpack([1, 2, 3])
    array = device.array([1.0], "float32")
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 0))
    assert array.__dlpack_device__() == (1, 0)


class Maker:
    """An array with the given fields in DLPack's structure; its elements are `float32`."""

    def __init__(self, rank, shape, strides):
        numbers = lambda list: None if list is None else (ctypes.c_int64 * len(list))(*list)
        self.memory = (ctypes.c_float * 8)()
        self.shape, self.strides = numbers(shape), numbers(strides)

        class Structure(ctypes.Structure):
            _fields_ = [
                ("data", ctypes.c_void_p),
                ("device", ctypes.c_int32 * 2),
                ("rank", ctypes.c_int32),
                ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64),
                ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p),
            ]

        place = lambda numbers: None if numbers is None else ctypes.addressof(numbers)
        self.structure = Structure(
            ctypes.addressof(self.memory), (1, 0), rank, 2, 32, 1, place(self.shape), place(self.strides), 0, None, None
        )

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.structure), b"dltensor", None)


def test_strides_of_an_array_without_elements_mean_nothing():
    maker = Maker(2, [3, 0], [1, 1])
    assert iree_hal.Device("mock").from_dlpack(maker).shape == (3, 0)


def test_dimensions_that_are_not_told_are_refused():
    device = iree_hal.Device("mock")
    assert device.from_dlpack(Maker(1, [8], None)).shape == (8,)
    assert device.from_dlpack(Maker(0, None, None)).shape == ()
    with pytest.raises(BufferError, match="2 dimensions"):
        device.from_dlpack(Maker(2, None, None))
