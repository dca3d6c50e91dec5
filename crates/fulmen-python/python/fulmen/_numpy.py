"""Arrays as the engine takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._errors import ArgumentError

#: The names that the engine has for types of arrays.
FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

F32 = np.dtype(np.float32)


def as_array(value: Any) -> NDArray[Any]:
    """A numpy array of anything that is one, exports DLPack for the CPU, or is a list of numbers (f32)."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        try:
            array: NDArray[Any] = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise ArgumentError(f"an array of another library: {error}") from error
        return array
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if value is None:
        raise ArgumentError("expected an array of numbers, got None")
    try:
        return np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"expected an array of numbers: {error}") from error


def check_float(call: str, array: NDArray[Any]) -> str:
    """The engine's name of the type of an array of floats."""
    name = FLOATS.get(array.dtype.name)
    if name is None:
        raise ArgumentError(
            f"{call}: the dtype must be float32, float16 or bfloat16, got {array.dtype.name}; "
            "use .astype(numpy.float32)"
        )
    return name


def flat_f32(call: str, array: NDArray[Any]) -> NDArray[np.float32]:
    """All elements as one row of f32: the memory of the array itself where it is such a row already."""
    # Replays of small batches spend most of their time here: the name of a type is slow.
    if array.dtype == F32 and array.flags.c_contiguous:
        return array.reshape(-1)
    check_float(call, array)
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1)


def flat_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array, in row-major order."""
    row = np.ascontiguousarray(array).reshape(-1)
    native = row if row.dtype.isnative else row.astype(row.dtype.newbyteorder("="))
    return native.view(np.uint8)


def flat_output(call: str, out: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """An array that results are written to, as one row."""
    if not isinstance(out, np.ndarray) or out.dtype != np.float32:
        got = out.dtype.name if isinstance(out, np.ndarray) else type(out).__name__
        raise ArgumentError(f"{call}: the output must be an array of float32, got {got}")
    if out.shape != shape:
        raise ArgumentError(f"{call}: the shape of the output must be {shape}, got {out.shape}")
    if not out.flags.c_contiguous:
        raise ArgumentError(f"{call}: the output must be contiguous, got strides {out.strides}")
    if not out.flags.writeable:
        raise ArgumentError(f"{call}: the output must be writeable, got a read-only array")
    return out.reshape(-1)
