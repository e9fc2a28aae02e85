# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Arguments and results of functions: numbers, arrays of each type, several results, nested lists."""

import iree.runtime as rt
import iree_hal
import ml_dtypes
import numpy as np
import pytest
from conftest import HERE, LOCAL, VMVX

TYPES = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "complex64",
    "complex128",
]


@pytest.fixture(scope="module")
def module(values):
    return iree_hal.Module(values, "mock")


def test_numbers_go_through_as_the_judge_says(module, values):
    config = rt.Config("local-task")
    judged = rt.load_vm_module(rt.VmModule.mmap(config.vm_instance, str(values)), config)
    given = (1 << 20, 1 << 40, 0.1, 0.1)
    ours = module.numbers(*given)
    assert ours == tuple(judged.numbers(*given))
    assert [type(number) for number in ours] == [int, int, float, float]
    assert ours[2] != ours[3] == 0.2


def test_number_that_does_not_fit_is_refused(module):
    with pytest.raises(OverflowError):
        module.numbers(1 << 31, 0, 0, 0)
    with pytest.raises(TypeError):
        module.numbers("one", 0, 0, 0)


@pytest.mark.parametrize("call", ["__call__", "submit"])
def test_none_in_place_of_an_array_names_the_argument(module, call):
    with pytest.raises(TypeError, match="argument %input0 of scale: it takes an array of float32 and got None"):
        getattr(module.scale, call)(None, 0.5)


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (ValueError, ("text", 0.5), "argument %input0 of scale: .*text"),
        (TypeError, ([1.0], "half"), "argument %input1 of scale: "),
        (TypeError, ([1.0], None), "argument %input1 of scale: "),
        (ValueError, ([[1.0], [1.0, 2.0]], 0.5), "argument %input0 of scale: "),
    ],
    ids=["text", "no number", "none", "ragged"],
)
def test_argument_that_cannot_be_taken_is_named(module, kind, arguments, words):
    with pytest.raises(kind, match=words) as caught:
        module.scale(*arguments)
    assert caught.value.__cause__ is not None


def test_array_that_dlpack_cannot_give_is_named_as_an_argument(module):
    class Strided:
        dtype, given = np.dtype(np.float32), np.ones(6, np.float32)[::2]

        def __dlpack__(self, **options):
            return self.given.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.given.__dlpack_device__()

    with pytest.raises(BufferError, match="argument %input0 of scale: the array is not contiguous"):
        module.scale(Strided(), 0.5)


def test_error_of_an_argument_of_the_programs_own_comes_as_it_is(module):
    class Broken:
        def __array__(self, *_, **__):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        module.scale(Broken(), 0.5)


def test_function_without_arguments_or_results_gives_none(module):
    assert module.nothing() is None


def test_several_results_are_a_tuple(module):
    doubled, seven = module.two(np.array([1, -2], np.int32))
    assert doubled.numpy().tolist() == [2, -4] and doubled.dtype == "int32"
    assert seven.shape == () and seven.item() == 7


def test_list_in_a_list_comes_back(module):
    number, (array, again) = module.swap([np.array([1.5, 2.5], np.float32), 7])
    assert (number, again) == (7, 7)
    assert array.numpy().tolist() == [1.5, 2.5]


def test_element_that_is_nothing_comes_back_as_none(module):
    # The function takes no array from a list with another object in its place.
    for first in (None, [7]):
        assert module.swap([first, 7]) == [7, [None, 7]]


def test_list_of_another_length_is_refused_with_the_declaration(module):
    for wrong in ([], [7]):
        with pytest.raises(iree_hal.Error, match="swap.*!util.list"):
            module.swap(wrong)


def test_numbers_without_a_type_become_what_is_declared(module):
    for given in ([1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3], np.float32)):
        result = module.scale(given, 0.5).numpy()
        assert result.dtype == np.float32 and result.tolist() == [0.5, 1.0, 1.5]


def test_array_of_another_type_is_refused_with_the_runtimes_words(module):
    with pytest.raises(iree_hal.Error, match="f32|float") as caught:
        module.scale(np.array([1.0, 2.0]), 0.5)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_wrong_number_of_arguments_shows_the_declaration(module):
    with pytest.raises(TypeError, match=r"scale takes 2 arguments and got 1.*tensor<\?xf32>"):
        module.scale([1.0])


@pytest.mark.parametrize("name", TYPES)
def test_array_of_each_type_comes_back(device, name):
    given = (np.arange(24) % 3).astype(name).reshape(2, 3, 4)
    array = device.array(given)
    assert (array.dtype, array.shape, array.nbytes, len(array)) == (name, (2, 3, 4), given.nbytes, 2)
    back = array.numpy()
    assert back.dtype == given.dtype and back.tolist() == given.tolist()


def test_shapes_without_elements_or_dimensions(device):
    assert device.array(np.float32(3.5)).item() == 3.5
    assert device.array(np.zeros((0, 4), np.int32)).numpy().shape == (0, 4)


def test_strided_array_is_copied_in_its_order(device):
    given = np.arange(12, dtype=np.int32).reshape(3, 4).T
    assert device.array(given).numpy().tolist() == given.tolist()


def test_what_is_no_array_is_refused(device):
    with pytest.raises(TypeError):
        device.array("text")
    with pytest.raises(TypeError):
        device.array(object())


@pytest.mark.parametrize(
    "given",
    [
        np.ones(3, ">f4"),
        np.array(["a", "b"]),
        np.array([None, 1]),
        np.zeros(2, [("x", "f4"), ("y", "i4")]),
        np.zeros(2, "M8[s]"),
    ],
    ids=["big-endian", "text", "objects", "structures", "times"],
)
def test_array_of_a_type_that_devices_do_not_have_names_it_and_those_that_there_are(device, given):
    with pytest.raises(TypeError) as caught:
        device.array(given)
    assert str(given.dtype) in str(caught.value) and "float32, " in str(caught.value)


def test_unknown_type_is_refused_with_those_that_there_are(device):
    with pytest.raises(TypeError, match="'float31'.*float32, "):
        device.array([1], "float31")


def test_view_of_a_device_is_read_only(device):
    array = device.array(np.arange(4, dtype=np.int32)).numpy()
    with pytest.raises(ValueError):
        array[0] = 1


@pytest.mark.parametrize("name", ["mock", "gaudi://emulated"])
def test_array_of_a_type_without_a_letter_in_the_buffer_protocol_becomes_numpys_by_asarray(name):
    # numpy itself does not fail if that protocol fails, and would make one object of the whole array.
    given = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    array = iree_hal.Device(name).array(given)
    for taken in (np.asarray(array), np.array(array)):
        assert taken.dtype == given.dtype and taken.tolist() == given.tolist()
    assert np.asarray(array, np.float32).tolist() == given.tolist()
    with pytest.raises(ValueError, match="copy"):
        array.__array__(copy=False)
    again = array.__array__(copy=True)
    again[0, 0] = 7
    assert array.numpy().tolist() == given.tolist()


def test_array_shows_itself_to_what_asks_by_array_and_copies_where_that_is_asked(device):
    given = np.arange(6, dtype=np.int32).reshape(2, 3)
    array = device.array(given)
    assert np.shares_memory(array.__array__(), array.__array__(copy=False))
    again = array.__array__(copy=True)
    again[0, 0] = 7
    assert array.__array__(np.dtype("int64")).tolist() == given.tolist()
    with pytest.raises(ValueError, match="copy"):
        array.__array__(np.dtype("int64"), copy=False)


def test_module_comes_from_a_file_or_from_bytes(values):
    for source in (values, str(values), values.read_bytes(), bytearray(values.read_bytes())):
        module = iree_hal.Module(source, "mock")
        assert "scale" in module.functions and module.name == "module"
        assert module["scale"]([2.0], 2.0).numpy().tolist() == [4.0]
    assert "scale" in dir(module) and "f32" in module.scale.declaration


def test_result_outlives_its_module(compile):
    result = iree_hal.Module(compile(HERE / "values.mlir", *LOCAL, *VMVX), "mock").two(np.array([3, 4], np.int32))[0]
    view = result.numpy()
    del result
    assert view.tolist() == [6, 8]


def test_list_that_is_in_itself_is_refused(module, device):
    cycle = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="in itself"):
        module.swap(cycle)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="64 deep"):
        module.swap(deep)
    with pytest.raises(ValueError, match="in itself"):
        iree_hal.Module(b"", cycle)
    # The test would have to recurse as deeply.
    while deep:
        deep = deep.pop()
