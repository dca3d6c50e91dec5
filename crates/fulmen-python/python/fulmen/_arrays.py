"""Arrays on a GPU: the command batch and the matmul cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping, Union

import numpy as np
from numpy.typing import NDArray

from . import _fulmen
from ._errors import ArgumentError
from ._numpy import as_array, check_float, flat_bytes, flat_f32, flat_output
from .gguf import Blocks, quantize_array

__all__ = [
    "Batch",
    "KernelTime",
    "MatmulCache",
    "Profile",
    "Value",
    "Weight",
    "exp",
    "gelu",
    "layer_norm",
    "log",
    "maximum",
    "minimum",
    "relu",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "sqrt",
    "tanh",
]


@dataclass(frozen=True)
class KernelTime:
    """The time of one kernel on the device, in microseconds."""

    label: str
    start_us: float
    duration_us: float


@dataclass(frozen=True)
class Profile:
    """The time of each kernel of a run."""

    kernels: list[KernelTime]
    #: The device cannot time kernels inside a pass, so each ran in one of its own, which adds to its time.
    split_passes: bool

    @property
    def total_us(self) -> float:
        """From the start of the first kernel to the end of the last, in microseconds."""
        return self.kernels[-1].start_us + self.kernels[-1].duration_us if self.kernels else 0.0

    @staticmethod
    def _of(times: _fulmen.Times) -> Profile:
        kernels, split = times
        return Profile([KernelTime(*time) for time in kernels], split)


Operand = Union["Value", float, int, "NDArray[Any]"]


class Value:
    """An array of a batch: recorded now, computed when the batch runs."""

    __slots__ = ("_value", "batch", "dtype", "shape")
    # Operators between arrays of numpy and values are those of values.
    __array_ufunc__ = None

    def __init__(
        self, batch: Batch, value: _fulmen.BatchValue, shape: tuple[int, ...], dtype: str = "float32"
    ) -> None:
        self.batch = batch
        self._value = value
        #: The shape, as numpy has it.
        self.shape = shape
        #: How it is stored: ``float32`` or ``float16``.
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a value without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<fulmen.Value {self.dtype} {self.shape}>"

    def numpy(self) -> NDArray[np.float32]:
        """Its elements; see :meth:`Batch.read`."""
        return self.batch.read(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.batch.read(self)
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.batch.read(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _unary(self, op: str, dtype: str = "float32") -> Value:
        return Value(self.batch, self.batch._native.unary(op, self._value), self.shape, dtype)

    def _reduce(self, op: str) -> Value:
        return Value(self.batch, self.batch._native.unary(op, self._value), ())

    def _other(self, other: Operand) -> Value:
        if isinstance(other, Value):
            return other
        return self.batch.upload(np.float32(other) if isinstance(other, (int, float)) else other)

    def _binary(self, op: str, other: Operand) -> Value:
        """``self op other``, where one of them may be broadcast."""
        a, b = self, self._other(other)
        native = self.batch._native
        if a.shape == b.shape:
            return Value(self.batch, native.binary(op, a._value, b._value), a.shape)
        if _is_row(a.shape, b.shape):
            return Value(self.batch, native.with_row(op, a._value, b._value), a.shape)
        if _is_column(a.shape, b.shape):
            return Value(self.batch, native.with_column(op, a._value, b._value), a.shape)
        if _is_row(b.shape, a.shape) or _is_column(b.shape, a.shape):
            if op in ("add", "mul", "maximum", "minimum"):
                return b._binary(op, a)
            if op == "sub":
                return (-b)._binary("add", a)
            ones = self.batch.upload(np.ones(b.shape, np.float32))
            return ones._binary("div", b)._binary("mul", a)
        raise ArgumentError(f"{op}: the shapes must fit each other, got {a.shape} and {b.shape}")

    def __add__(self, other: Operand) -> Value:
        if isinstance(other, (int, float)):
            return Value(self.batch, self.batch._native.add_scalar(self._value, other), self.shape)
        return self._binary("add", other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Value:
        if isinstance(other, (int, float)):
            return self + -other
        return self._binary("sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return (-self) + other

    def __mul__(self, other: Operand) -> Value:
        if isinstance(other, (int, float)):
            return Value(self.batch, self.batch._native.scale(self._value, other), self.shape)
        return self._binary("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("div", other)

    def __rtruediv__(self, other: Operand) -> Value:
        if isinstance(other, (int, float)):
            other = np.full(self.shape, other, np.float32)
        return self._other(other)._binary("div", self)

    def __neg__(self) -> Value:
        return self._unary("neg")

    def __abs__(self) -> Value:
        return self._unary("abs")

    def __matmul__(self, other: Operand) -> Value:
        return self._matmul(self._other(other), False)

    def __rmatmul__(self, other: Operand) -> Value:
        return self._other(other)._matmul(self, False)

    def matmul_nt(self, weight: Operand) -> Value:
        """``self @ weight.T`` for a weight ``[n, k]``, as weights are stored."""
        return self._matmul(self._other(weight), True)

    def _matmul(self, other: Value, transposed: bool) -> Value:
        a, b = self.shape, other.shape
        # A row is one of a matrix, as numpy has it.
        m, k = (1, a[0]) if len(a) == 1 else a if len(a) == 2 else (-1, -1)
        if m < 0 or len(b) != 2:
            raise ArgumentError(f"matmul: the shapes must be those of matrices, got {a} and {b}")
        inner, n = (b[1], b[0]) if transposed else b
        if inner != k:
            raise ArgumentError(f"matmul: the inner sizes must be equal, got {a} and {b}")
        value = self.batch._native.matmul(self._value, other._value, m, k, n, transposed)
        return Value(self.batch, value, (n,) if len(a) == 1 else (m, n))

    @property
    def T(self) -> Value:
        """The transposed matrix."""
        if len(self.shape) != 2:
            raise ArgumentError(f"transpose: the shape must be that of a matrix, got {self.shape}")
        rows, columns = self.shape
        value = self.batch._native.transpose(self._value, rows, columns)
        return Value(self.batch, value, (columns, rows), self.dtype)

    def reshape(self, *shape: int) -> Value:
        """The same elements in another shape; one size may be -1."""
        known = math.prod(size for size in shape if size != -1)
        if shape.count(-1) == 1 and known > 0 and self.size % known == 0:
            shape = tuple(self.size // known if size == -1 else size for size in shape)
        if any(size < 0 for size in shape) or math.prod(shape) != self.size:
            raise ArgumentError(f"reshape: the shape must have {self.size} elements, got {shape}")
        return Value(self.batch, self._value, shape, self.dtype)

    def clamp(self, low: float, high: float) -> Value:
        """At least ``low`` and at most ``high``."""
        return Value(self.batch, self.batch._native.clamp(self._value, low, high), self.shape)

    def sum(self) -> Value:
        """The sum of all elements."""
        return self._reduce("sum")

    def max(self) -> Value:
        """The largest element."""
        return self._reduce("max")

    def min(self) -> Value:
        """The smallest element."""
        return self._reduce("min")

    def dot(self, other: Operand) -> Value:
        """The sum of the products of all elements."""
        other = self._other(other)
        return Value(self.batch, self.batch._native.binary("dot", self._value, other._value), ())

    def astype(self, dtype: Any) -> Value:
        """Stored as ``float32`` or ``float16``."""
        name = np.dtype(dtype).name
        if name not in ("float32", "float16"):
            raise ArgumentError(f"astype: the dtype must be float32 or float16, got {name}")
        return self._unary("to_f16" if name == "float16" else "to_f32", name)


def _is_row(shape: tuple[int, ...], row: tuple[int, ...]) -> bool:
    """Whether ``row`` is one row of ``shape``, or one element, which is a row, too."""
    while row and row[0] == 1:
        row = row[1:]
    return math.prod(row) > 0 and (row == () or shape[len(shape) - len(row) :] == row)


def _is_column(shape: tuple[int, ...], column: tuple[int, ...]) -> bool:
    return len(shape) > 1 and column == (*shape[:-1], 1) and math.prod(column) > 0


class Batch:
    """Records array operations, and runs them as one submission with fused kernels.

    >>> import fulmen, numpy as np
    >>> batch = fulmen.Batch()
    >>> a = batch.upload(np.array([[1, 2], [3, 4]], np.float32))
    >>> b = batch.upload(np.eye(2, dtype=np.float32))
    >>> y = fulmen.relu(a @ b - 2.5)
    >>> batch.execute()
    >>> batch.read(y)
    array([[0. , 0. ],
           [0.5, 1.5]], dtype=float32)
    >>> batch.write(a, np.full((2, 2), 10, np.float32))   # new data, the same compiled batch
    >>> batch.run(y)
    array([[7.5, 7.5],
           [7.5, 7.5]], dtype=float32)

    ``device`` is ``auto``, ``wgpu`` or one of its devices, such as ``wgpu:1``. With ``fuse=False`` every
    operation is a kernel of its own, with ``share_memory=False`` every value has memory of its own.
    """

    def __init__(self, device: str = "auto", *, fuse: bool = True, share_memory: bool = True) -> None:
        self._native = _fulmen.CommandBatch(device, fuse, share_memory)

    @property
    def device(self) -> str:
        """The name of the device."""
        return self._native.device_name()

    def upload(self, array: Any) -> Value:
        """An array for the device: f32, f16 (stored as f16), bf16 of ml_dtypes (stored as f32), a list of
        numbers, or an array of another library through DLPack. It is copied when this is called."""
        array = as_array(array)
        half = array.dtype == np.float16
        value = self._native.upload(flat_f32("upload", array), half)
        return Value(self, value, array.shape, "float16" if half else "float32")

    def write(self, value: Value, array: Any) -> None:
        """Replaces the data of an upload; the next run uses it."""
        array = as_array(array)
        if array.shape != value.shape:
            raise ArgumentError(f"write: the shape must be {value.shape}, got {array.shape}")
        self._native.write(value._value, flat_f32("write", array))

    def execute(self) -> None:
        """Runs what was recorded. Does not wait for the device; reading does."""
        self._native.execute()

    def replay(self, inputs: Mapping[Value, Any] = {}) -> None:
        """Writes new inputs and runs again."""
        for value, array in inputs.items():
            self.write(value, array)
        self._native.execute()

    def read(self, value: Value, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The elements of a value, as the last run left them; into ``out``, if it is given."""
        if out is not None:
            self._native.read_into(value._value, flat_output("read", out, value.shape))
            return out
        return self._native.read(value._value).reshape(value.shape)

    def run(self, value: Value) -> NDArray[np.float32]:
        """Runs what was recorded and reads a value, in one submission."""
        return self._native.run(value._value).reshape(value.shape)

    def profile(self) -> Profile:
        """Runs what was recorded, with the time of each kernel."""
        return Profile._of(self._native.profile())

    @property
    def operations(self) -> int:
        """Recorded operations."""
        return self._native.counts()[0]

    @property
    def launches(self) -> int | None:
        """Kernels that a run launches; ``None`` before the first run."""
        return self._native.counts()[2]

    def __repr__(self) -> str:
        return f"<fulmen.Batch of {self.operations} operations on {self.device}>"


def relu(x: Value) -> Value:
    """``max(x, 0)``."""
    return x._unary("relu")


def sigmoid(x: Value) -> Value:
    """``1 / (1 + exp(-x))``."""
    return x._unary("sigmoid")


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return x._unary("tanh")


def silu(x: Value) -> Value:
    """``x * sigmoid(x)``."""
    return x._unary("silu")


def gelu(x: Value, *, approximate: bool = False) -> Value:
    """GELU, exact or with a hyperbolic tangent."""
    return x._unary("gelu_tanh" if approximate else "gelu")


def exp(x: Value) -> Value:
    """e to the power of each element."""
    return x._unary("exp")


def log(x: Value) -> Value:
    """The natural logarithm."""
    return x._unary("log")


def sqrt(x: Value) -> Value:
    """The square root."""
    return x._unary("sqrt")


def maximum(a: Value, b: Operand) -> Value:
    """The larger of each two elements."""
    return a._binary("maximum", b)


def minimum(a: Value, b: Operand) -> Value:
    """The smaller of each two elements."""
    return a._binary("minimum", b)


def softmax(x: Value) -> Value:
    """Softmax along the last axis."""
    if not x.shape:
        raise ArgumentError("softmax: the value must have an axis, got shape ()")
    return Value(x.batch, x.batch._native.softmax(x._value, x.shape[-1]), x.shape)


def rms_norm(x: Value, gamma: Operand, eps: float = 1e-6) -> Value:
    """``x / sqrt(mean(x²) + eps) * gamma`` along the last axis."""
    gain = x._other(gamma)
    return Value(x.batch, x.batch._native.rms_norm(x._value, gain._value, eps), x.shape)


def layer_norm(x: Value, gamma: Operand, beta: Operand, eps: float = 1e-5) -> Value:
    """``(x - mean) / sqrt(variance + eps) * gamma + beta`` along the last axis."""
    gain, shift = x._other(gamma), x._other(beta)
    return Value(x.batch, x.batch._native.layer_norm(x._value, gain._value, shift._value, eps), x.shape)


@dataclass(frozen=True)
class Weight:
    """A weight of a cache."""

    dtype: str
    shape: tuple[int, int]
    nbytes: int


class MatmulCache:
    """Weights that stay on a GPU, multiplied by new inputs.

    >>> import fulmen, numpy as np
    >>> cache = fulmen.MatmulCache()
    >>> cache.upload("w", np.array([[1, 2], [3, 4]], np.float32))      # [n, k], as PyTorch's Linear has it
    >>> cache.matmul("w", np.array([[10, 1]], np.float32))             # x @ w.T
    array([[12., 34.]], dtype=float32)

    ``exact`` multiplies block formats by f32 activations instead of int8 ones. ``budget`` is the most bytes
    for weights; with ``evict`` those used least recently make room, otherwise there is an error.
    """

    def __init__(
        self, device: str = "auto", *, exact: bool = False, budget: int | None = None, evict: bool = False
    ) -> None:
        self._native = _fulmen.MatmulCache(device, exact, budget, evict)

    @property
    def device(self) -> str:
        """The name of the device."""
        return self._native.device_name()

    def upload(
        self, name: str, weight: Any, *, dtype: str | None = None, replace: bool = False
    ) -> None:
        """Uploads a weight ``[n, k]``: an array of f32, f16 or bf16, stored as it is, or
        :class:`fulmen.gguf.Blocks`. ``dtype``, such as ``q4_k``, quantizes it first."""
        if not isinstance(weight, Blocks):
            array = as_array(weight)
            if dtype is not None:
                weight = quantize_array(array, dtype)
            else:
                name_of_type = check_float("upload", array)
                weight = Blocks(flat_bytes(array), name_of_type, array.shape)
        if len(weight.shape) != 2:
            raise ArgumentError(f"upload: the shape must be that of a matrix, got {weight.shape}")
        rows, columns = weight.shape
        self._native.upload(name, weight.dtype, weight.data, rows, columns, replace)

    def remove(self, name: str) -> None:
        """Takes a weight off the device."""
        self._native.remove(name)

    def matmul(self, name: str, x: Any, *, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """``x @ weight.T`` for an input ``[m, k]``, or one row."""
        array = as_array(x)
        if array.ndim not in (1, 2):
            raise ArgumentError(f"matmul: the input must be a matrix or a row, got shape {array.shape}")
        m = array.shape[0] if array.ndim == 2 else 1
        data = flat_f32("matmul", array)
        if out is None:
            result, n = self._native.matmul(name, data, m)
            return result.reshape(*array.shape[:-1], n)
        weight = self._native.weight(name)
        row = flat_output("matmul", out, (*array.shape[:-1], weight[1] if weight else 0))
        if np.may_share_memory(row, data):
            raise ArgumentError("matmul: the output must not be in the memory of the input")
        self._native.matmul_into(name, data, m, row)
        return out

    def profile(self, name: str, m: int = 1) -> Profile:
        """The time of each kernel of a matmul of ``m`` rows."""
        return Profile._of(self._native.profile(name, m))

    def kernels(self, name: str, m: int = 1) -> list[str]:
        """The names of the kernels of a matmul of ``m`` rows."""
        return self._native.kernels(name, m)

    def __getitem__(self, name: str) -> Weight:
        weight = self._native.weight(name)
        if weight is None:
            raise KeyError(name)
        dtype, rows, columns, nbytes = weight
        return Weight(dtype, (rows, columns), nbytes)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._native.weight(name) is not None

    def __len__(self) -> int:
        return len(self._native.names())

    def keys(self) -> list[str]:
        """The names of all weights."""
        return self._native.names()

    def __repr__(self) -> str:
        return f"<fulmen.MatmulCache of {len(self)} weights on {self.device}>"
