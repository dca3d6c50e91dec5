"""Arrays on a GPU, against numpy."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest

import fulmen
from conftest import DEVICES

pytestmark = pytest.mark.skipif("wgpu" not in DEVICES, reason="no device of wgpu")
RNG = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(make: Callable[..., fulmen.Value], *arrays: Any) -> np.ndarray:
    batch = fulmen.Batch()
    return batch.run(make(*(batch.upload(array) for array in arrays)))


erf = np.vectorize(math.erf)

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "relu": (fulmen.relu, lambda x: np.maximum(x, 0)),
    "sigmoid": (fulmen.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (fulmen.tanh, np.tanh),
    "silu": (fulmen.silu, lambda x: x / (1 + np.exp(-x))),
    "gelu": (fulmen.gelu, lambda x: x / 2 * (1 + erf(x / np.sqrt(2)))),
    "gelu_tanh": (
        lambda x: fulmen.gelu(x, approximate=True),
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "exp": (fulmen.exp, np.exp),
    "neg": (lambda x: -x, np.negative),
    "abs": (abs, np.abs),
    "add scalar": (lambda x: x + 2.5, lambda x: x + 2.5),
    "radd scalar": (lambda x: 2 + x, lambda x: x + 2),
    "sub scalar": (lambda x: x - 1.5, lambda x: x - 1.5),
    "rsub scalar": (lambda x: 1.5 - x, lambda x: 1.5 - x),
    "mul scalar": (lambda x: x * 3, lambda x: x * 3),
    "rmul scalar": (lambda x: -0.5 * x, lambda x: x * -0.5),
    "div scalar": (lambda x: x / 3, lambda x: x / 3),
    "rdiv scalar": (lambda x: 2 / (x * x + 1), lambda x: 2 / (x * x + 1)),
    "clamp": (lambda x: x.clamp(-0.5, 0.25), lambda x: np.clip(x, -0.5, 0.25)),
    "maximum": (lambda x: fulmen.maximum(x, 0.1), lambda x: np.maximum(x, 0.1)),
    "minimum": (lambda x: fulmen.minimum(x, 0.1), lambda x: np.minimum(x, 0.1)),
    "f16 and back": (lambda x: x.astype("float16").astype("float32"), lambda x: x.astype(np.float16)),
    "chain": (lambda x: fulmen.relu(x * 2 + 1) * x - x, lambda x: np.maximum(x * 2 + 1, 0) * x - x),
}


@pytest.mark.parametrize("name", UNARY)
def test_elementwise(name: str) -> None:
    ours, numpy_s = UNARY[name]
    x = normal(5, 67)
    np.testing.assert_allclose(run(ours, x), numpy_s(x.astype(np.float64)), rtol=2e-5, atol=2e-5)


def test_log_and_sqrt() -> None:
    x = np.abs(normal(100)) + 0.01
    np.testing.assert_allclose(run(fulmen.log, x), np.log(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run(fulmen.sqrt, x), np.sqrt(x), rtol=1e-5)


SHAPES = [
    ((4, 6), (4, 6)),
    ((4, 6), (6,)),
    ((4, 6), (1, 6)),
    ((4, 6), (4, 1)),
    ((4, 6), ()),
    ((4, 6), (1,)),
    ((6,), (4, 6)),
    ((4, 1), (4, 6)),
    ((2, 3, 5), (5,)),
    ((2, 3, 5), (3, 5)),
    ((2, 3, 5), (2, 3, 1)),
]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_broadcasting(op: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = normal(*left), np.abs(normal(*right)) + 0.5
    ours = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "maximum": fulmen.maximum,
        "minimum": fulmen.minimum,
    }[op]
    numpy_s = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}.get(
        op, getattr(np, op, None)
    )
    assert numpy_s is not None
    result = run(ours, a, b)
    assert result.shape == np.broadcast_shapes(left, right)
    np.testing.assert_allclose(result, numpy_s(a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 64, 33), (17, 31, 5), (64, 128, 96), (3, 257, 2)])
def test_matmul(m: int, k: int, n: int) -> None:
    a, b = normal(m, k), normal(k, n)
    expected = a.astype(np.float64) @ b
    np.testing.assert_allclose(run(lambda x, y: x @ y, a, b), expected, rtol=1e-4, atol=1e-4)
    nt = run(lambda x, y: x.matmul_nt(y), a, np.ascontiguousarray(b.T))
    np.testing.assert_allclose(nt, expected, rtol=1e-4, atol=1e-4)


def test_a_layer_in_operators() -> None:
    x, w, bias = normal(8, 16), normal(16, 12), normal(12)
    result = run(lambda x, w, bias: fulmen.relu(x @ w + bias), x, w, bias)
    np.testing.assert_allclose(result, np.maximum(x @ w + bias, 0), rtol=1e-4, atol=1e-5)


def test_a_row_times_a_matrix() -> None:
    x, w = normal(16), normal(16, 12)
    result = run(lambda x, w: x @ w, x, w)
    assert result.shape == (12,)
    np.testing.assert_allclose(result, x @ w, rtol=1e-4, atol=1e-5)


def test_operators_with_arrays_of_numpy(batch: fulmen.Batch) -> None:
    x, w = normal(4, 3), normal(3, 5)
    value = batch.upload(x)
    np.testing.assert_allclose(batch.run(value @ w), x @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.run(w.T @ value.T), w.T @ x.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.run(x + value), 2 * x, rtol=1e-6)
    np.testing.assert_allclose(batch.run(x - value * 0.5), x / 2, rtol=1e-6)


def test_norms_and_softmax() -> None:
    x, gain, shift = normal(6, 40), normal(40), normal(40)
    mean, var = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    rms = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * gain
    np.testing.assert_allclose(run(fulmen.rms_norm, x, gain), rms, rtol=1e-4, atol=1e-5)
    layer = (x - mean) / np.sqrt(var + 1e-5) * gain + shift
    np.testing.assert_allclose(run(fulmen.layer_norm, x, gain, shift), layer, rtol=1e-4, atol=1e-4)
    soft = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(
        run(fulmen.softmax, x), soft / soft.sum(1, keepdims=True), rtol=1e-4, atol=1e-6
    )


def test_reductions() -> None:
    x, y = normal(1000), normal(1000)
    np.testing.assert_allclose(run(lambda x: x.sum(), x), x.sum(dtype=np.float64), rtol=1e-3, atol=1e-3)
    assert run(lambda x: x.max(), x) == x.max()
    assert run(lambda x: x.min(), x) == x.min()
    np.testing.assert_allclose(run(lambda x, y: x.dot(y), x, y), x @ y, rtol=1e-3, atol=1e-3)
    assert run(lambda x: x.sum(), x).shape == ()


def test_transposing_and_reshaping() -> None:
    x = normal(5, 7)
    np.testing.assert_array_equal(run(lambda x: x.T, x), x.T)
    np.testing.assert_array_equal(run(lambda x: (x + 0).reshape(7, -1), x), x.reshape(7, 5))


@pytest.mark.parametrize(
    "array",
    [
        normal(6, 8)[::2],
        normal(6, 8)[:, ::-1],
        normal(6, 8).T,
        np.asfortranarray(normal(4, 5)),
        normal(6, 8).astype(">f4"),
        np.broadcast_to(normal(8), (4, 8)),
        normal(0),
        normal(0, 4),
        normal(1),
        np.float32(2.5),
        normal(65537),
    ],
    ids=["rows", "reversed", "transposed", "fortran", "big endian", "broadcast", "empty", "no rows", "one",
         "scalar", "odd"],
)  # fmt: skip
def test_strides_and_sizes(array: np.ndarray) -> None:
    result = run(lambda x: x + 1.0, array)
    assert result.shape == np.shape(array) and result.dtype == np.float32
    np.testing.assert_array_equal(result, np.asarray(array, np.float32) + 1)


def test_a_read_only_array_can_be_uploaded() -> None:
    x = normal(10)
    x.flags.writeable = False
    np.testing.assert_array_equal(run(lambda x: x * 2, x), x * 2)


def test_half_and_bfloat() -> None:
    x = normal(100)
    half, brain = x.astype(np.float16), x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(lambda x: x + 0, half), half.astype(np.float32))
    np.testing.assert_array_equal(run(lambda x: x + 0, brain), brain.astype(np.float32))
    batch = fulmen.Batch()
    assert batch.upload(half).dtype == "float16" and batch.upload(brain).dtype == "float32"
    a, b = normal(4, 8), normal(8, 6).astype(np.float16)
    expected = a @ b.astype(np.float32)
    np.testing.assert_allclose(run(lambda a, b: a @ b, a, b), expected, rtol=1e-3, atol=1e-3)


def test_lists_and_numbers() -> None:
    np.testing.assert_array_equal(run(lambda x: x * 2, [[1, 2], [3, 4.5]]), [[2, 4], [6, 9]])


class OnlyDLPack:
    """An array of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_dlpack_in_and_out(batch: fulmen.Batch) -> None:
    x = normal(3, 4)
    y = batch.upload(OnlyDLPack(x)) * 2
    batch.execute()
    np.testing.assert_array_equal(np.from_dlpack(y), x * 2)
    np.testing.assert_array_equal(np.asarray(y), x * 2)
    assert y.__dlpack_device__() == (1, 0)


def test_replay_with_new_inputs(batch: fulmen.Batch) -> None:
    x = batch.upload(normal(4, 4))
    w = batch.upload(normal(4, 4))
    y = fulmen.relu(x @ w)
    batch.execute()
    launches = batch.launches
    for _ in range(5):
        a, b = normal(4, 4), normal(4, 4)
        batch.replay({x: a, w: b})
        np.testing.assert_allclose(batch.read(y), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-5)
    assert batch.launches == launches


def test_reading_into_an_array(batch: fulmen.Batch) -> None:
    x = normal(8, 3)
    y = batch.upload(x) + 1
    batch.execute()
    out = np.empty((8, 3), np.float32)
    assert batch.read(y, out=out) is out
    np.testing.assert_array_equal(out, x + 1)


def test_fusion_makes_one_launch_of_a_chain() -> None:
    for fuse, launches in ((True, 1), (False, 3)):
        batch = fulmen.Batch(fuse=fuse)
        y = fulmen.relu(batch.upload(normal(100)) * 2 + 1)
        batch.execute()
        assert batch.launches == launches and batch.operations == 3
        assert y.numpy().shape == (100,)


def test_every_value_can_be_read(batch: fulmen.Batch) -> None:
    x = normal(10)
    a = batch.upload(x)
    b = a * 2
    c = b + 1
    batch.execute()
    np.testing.assert_array_equal(batch.read(c), x * 2 + 1)
    np.testing.assert_array_equal(batch.read(b), x * 2)
    np.testing.assert_array_equal(batch.read(a), x)


def test_profile(batch: fulmen.Batch) -> None:
    y = batch.upload(normal(64, 64)) @ normal(64, 64)
    try:
        profile = batch.profile()
    except fulmen.UnsupportedError as error:
        pytest.skip(str(error))
    assert profile.kernels and profile.total_us > 0 and profile.kernels[0].label
    assert batch.read(y).shape == (64, 64)


def test_nan_and_infinity() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-42], np.float32)
    np.testing.assert_array_equal(run(lambda x: x + 0, x)[:3], x[:3])
    assert np.isnan(run(fulmen.relu, x)[0])


def test_threads_with_batches_of_their_own() -> None:
    results: dict[int, bool] = {}

    def work(at: int) -> None:
        x = np.full((50, 50), at, np.float32)
        results[at] = bool(np.all(run(lambda v: v @ x, x) == at * at * 50))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(6), True)


def test_one_batch_from_several_threads(batch: fulmen.Batch) -> None:
    x = batch.upload(np.ones(100, np.float32))
    y = x * 3
    batch.execute()
    seen: list[bool] = []

    def work() -> None:
        for _ in range(10):
            batch.execute()
            seen.append(bool((batch.read(y) == 3).all()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40 and all(seen)


def two(make: Callable[[fulmen.Value, fulmen.Value], Any]) -> Callable[[], Any]:
    return lambda: make(fulmen.Batch().upload(normal(4)), fulmen.Batch().upload(normal(4)))


def one(make: Callable[[fulmen.Batch], Any]) -> Callable[[], Any]:
    return lambda: make(fulmen.Batch())


def read_only() -> np.ndarray:
    out = np.empty((4,), np.float32)
    out.flags.writeable = False
    return out


def ran(batch: fulmen.Batch) -> tuple[fulmen.Batch, fulmen.Value]:
    y = batch.upload(normal(4)) + 1
    batch.execute()
    return batch, y


def read_into(out: Any) -> Callable[[], Any]:
    def call() -> Any:
        batch, y = ran(fulmen.Batch())
        return batch.read(y, out=out)

    return call


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (two(lambda a, b: a + b), fulmen.ArgumentError, "one of this batch"),
        (two(lambda a, b: a.batch.read(b)), fulmen.ArgumentError, "one of this batch"),
        (two(lambda a, b: a.batch.write(b, normal(4))), fulmen.ArgumentError, "one of this batch"),
        (two(lambda a, b: a.dot(b)), fulmen.ArgumentError, "one of this batch"),
        (one(lambda b: b.upload(np.zeros(3))), fulmen.ArgumentError, "got float64"),
        (one(lambda b: b.upload(np.zeros(3, np.int32))), fulmen.ArgumentError, "got int32"),
        (one(lambda b: b.upload(np.zeros(3, complex))), fulmen.ArgumentError, "got complex128"),
        (one(lambda b: b.upload(np.array(["a"]))), fulmen.ArgumentError, "dtype"),
        (one(lambda b: b.upload("text")), fulmen.ArgumentError, "numbers"),
        (one(lambda b: b.upload(None)), fulmen.ArgumentError, None),
        (one(lambda b: b.upload([[1], [1, 2]])), fulmen.ArgumentError, None),
        (one(lambda b: b.upload(normal(3)) + b.upload(normal(4))), fulmen.ArgumentError, "shapes"),
        (one(lambda b: b.upload(normal(3, 4)) @ b.upload(normal(3, 4))), fulmen.ArgumentError, "inner"),
        (one(lambda b: b.upload(normal(2, 3, 4)) @ normal(4, 4)), fulmen.ArgumentError, "matrices"),
        (one(lambda b: b.upload(normal(2, 0)) @ normal(0, 3)), fulmen.ArgumentError, "k must be at least 1"),
        (one(lambda b: b.upload(normal(3)).T), fulmen.ArgumentError, "matrix"),
        (one(lambda b: b.upload(normal(3)).reshape(2, 2)), fulmen.ArgumentError, "3 elements"),
        (one(lambda b: b.upload(normal(3)).astype("int8")), fulmen.ArgumentError, "got int8"),
        (one(lambda b: fulmen.softmax(b.upload(np.float32(1)))), fulmen.ArgumentError, "axis"),
        (one(lambda b: fulmen.softmax(b.upload(normal(2, 0)))), fulmen.ArgumentError, "multiple of 0"),
        (one(lambda b: fulmen.rms_norm(b.upload(normal(2, 6)), normal(4), -1.0)), ValueError, "eps"),
        (one(lambda b: fulmen.rms_norm(b.upload(normal(2, 6)), normal(5))), ValueError, "multiple of 5"),
        (one(lambda b: fulmen.layer_norm(b.upload(normal(2, 6)), normal(6), normal(5))), ValueError, "beta"),
        (one(lambda b: b.read(b.upload(normal(3)) * 2)), fulmen.ArgumentError, "read"),
        (one(lambda b: b.write(ran(b)[1], normal(4))), fulmen.ArgumentError, "one that was uploaded"),
        (one(lambda b: b.write(b.upload(normal(4)), normal(5))), fulmen.ArgumentError, "the shape must be"),
        (one(lambda b: b.upload(normal(3)) + "x"), fulmen.ArgumentError, "numbers"),
        (one(lambda b: b.upload(normal(3)) * 10**400), OverflowError, None),
        (read_into(np.empty(4)), fulmen.ArgumentError, "float64"),
        (read_into(np.empty(5, np.float32)), fulmen.ArgumentError, "the shape of the output"),
        (read_into(np.empty(8, np.float32)[::2]), fulmen.ArgumentError, "contiguous"),
        (read_into(read_only()), fulmen.ArgumentError, "read-only"),
        (read_into([0, 0, 0, 0]), fulmen.ArgumentError, "got list"),
        (lambda: fulmen.Batch("cuda"), fulmen.ArgumentError, "the device must be auto, wgpu"),
        (lambda: fulmen.Batch("cpu"), fulmen.ArgumentError, "the device must be auto, wgpu"),
        (lambda: fulmen.Batch("wgpu:99"), fulmen.DeviceNotFoundError, "no GPU adapter is number 99"),
        (lambda: fulmen.Batch("quantum"), fulmen.ArgumentError, "unknown device"),
        (lambda: fulmen.Batch(5), TypeError, None),  # type: ignore[arg-type]
    ],
)
def test_wrong_calls_are_exceptions(
    call: Callable[[], Any], error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        call()


def test_misaligned_arrays_are_copied(batch: fulmen.Batch, cache: fulmen.MatmulCache) -> None:
    x = np.frombuffer(bytearray(4 * 16 + 1), np.float32, 16, offset=1).reshape(4, 4)
    assert not x.flags.aligned
    x[:] = normal(4, 4)
    np.testing.assert_array_equal(batch.run(batch.upload(x) * 2), x * 2)
    cache.upload("w", np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(cache.matmul("w", x), x)
    y = batch.upload(normal(4, 4)) + 1
    batch.execute()
    with pytest.raises(fulmen.ArgumentError, match="read: the output must be aligned"):
        batch.read(y, out=x)


def test_an_output_is_not_the_input(cache: fulmen.MatmulCache) -> None:
    cache.upload("w", np.eye(4, dtype=np.float32))
    x = normal(4, 4)
    with pytest.raises(fulmen.ArgumentError, match="must not be in the memory of the input"):
        cache.matmul("w", x, out=x)
    with pytest.raises(fulmen.ArgumentError, match="memory of the input"):
        cache.matmul("w", x[:2], out=x[1:3])


def capsule_code(capsule: Any, code: int) -> Any:
    """An exported tensor whose elements are said to be of another kind."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # Behind the pointer, the device and the number of dimensions.
    ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = code
    return capsule


class Bfloat16(OnlyDLPack):
    """bf16 in DLPack, as PyTorch exports it."""

    def __dlpack__(self, **options: Any) -> Any:
        return capsule_code(self.array.view(np.uint16).__dlpack__(**options), 4)

    def __dlpack_device__(self) -> Any:
        return (1, 0)


class OnDevice:
    """A tensor of a GPU, which is an array, too, until it is asked for one."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("memory of another device is not asked for")

    def __dlpack_device__(self) -> Any:
        return (self.kind, 0)

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise TypeError("can't convert device type tensor to numpy")


def test_dlpack_of_bf16(batch: fulmen.Batch) -> None:
    x = normal(3, 4).astype(ml_dtypes.bfloat16)
    value = batch.upload(Bfloat16(x)) + 0.0
    np.testing.assert_array_equal(batch.run(value), x.astype(np.float32))


@pytest.mark.parametrize(("kind", "name"), [(2, "CUDA"), (10, "ROCm"), (99, "device type 99")])
def test_dlpack_of_another_device_is_refused(batch: fulmen.Batch, kind: int, name: str) -> None:
    with pytest.raises(fulmen.ArgumentError, match=f"the device must be the CPU, got {name}"):
        batch.upload(OnDevice(kind))


def test_dlpack_of_other_types_is_an_exception(batch: fulmen.Batch) -> None:
    with pytest.raises(fulmen.ArgumentError, match="int32"):
        batch.upload(OnlyDLPack(np.zeros(4, np.int32)))


def beside(busy: Callable[[], object], asked: Callable[[], object]) -> tuple[float, int]:
    """Runs `busy` in a thread, asks in another one meanwhile, and counts what this thread does until both
    have ended; with the seconds that `busy` took."""
    begun, took = threading.Event(), []

    def work() -> None:
        began = time.perf_counter()
        begun.set()
        busy()
        took.append(time.perf_counter() - began)

    worker = threading.Thread(target=work)
    worker.start()
    begun.wait()
    time.sleep(0.05)
    asking = threading.Thread(target=asked)
    asking.start()
    beats = 0
    while worker.is_alive():
        beats += 1
        time.sleep(0.005)
    asking.join()
    return took[0], beats


def test_asking_a_busy_batch_does_not_hold_up_other_threads() -> None:
    for operations in (100, 400, 1600, 6400):
        batch = fulmen.Batch(fuse=False)
        x = batch.upload(normal(1 << 16))
        for _ in range(operations):
            x = fulmen.tanh(x)
        seconds, beats = beside(lambda: batch.run(x), lambda: batch.launches)
        # A run that was over at once shows nothing.
        if seconds > 0.5:
            assert beats > 5
            return
    pytest.skip("no run takes half a second here")


def test_asking_a_busy_cache_does_not_hold_up_other_threads() -> None:
    for size in (1024, 2048, 4096):
        cache = fulmen.MatmulCache()
        cache.upload("w", normal(size, size))
        x = normal(size, size)
        asked = lambda: (cache["w"], cache.keys(), cache.kernels("w"), cache.device)  # noqa: E731
        seconds, beats = beside(lambda: cache.matmul("w", x), asked)
        if seconds > 0.5:
            assert beats > 5
            return
    pytest.skip("no matmul takes half a second here")
