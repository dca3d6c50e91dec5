"""Arrays as the engine takes them."""

from __future__ import annotations

import ctypes
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
    if hasattr(value, "__dlpack__"):
        return from_dlpack(value)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if value is None:
        raise ArgumentError("expected an array of numbers, got None")
    try:
        return np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"expected an array of numbers: {error}") from error


# What DLPack calls device types; others have their number as name.
_DEVICES = {2: "CUDA", 3: "CUDA host", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed"}
_CPU = 1
#: The code of bfloat in a type of DLPack, and that of unsigned integers.
_BFLOAT, _UINT = 4, 1


def from_dlpack(value: Any) -> NDArray[Any]:
    """An array of another library, without a copy. It must be on the CPU."""
    call = "an array of another library"
    try:
        kind = int(value.__dlpack_device__()[0])
        if kind != _CPU:
            where = _DEVICES.get(kind, f"device type {kind}")
            raise ArgumentError(f"{call}: the device must be the CPU, got {where}; copy it to the CPU first")
        capsule = _Capsule(value.__dlpack__())
        array: NDArray[Any] = np.from_dlpack(capsule)
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        raise ArgumentError(f"{call}: {error}") from error
    if not capsule.bfloat16:
        return array
    try:
        import ml_dtypes
    except ImportError:
        raise ArgumentError(f"{call}: bfloat16 needs the package ml_dtypes") from None
    return array.view(ml_dtypes.bfloat16)


class _DLTensor(ctypes.Structure):
    """The beginning of a tensor of DLPack."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class _Capsule:
    """An exported tensor. numpy knows no bfloat16, so its elements are unsigned integers here."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # An error of the call, such as for a capsule with another name, is raised by ctypes.
        try:
            address = pointer(capsule, b"dltensor")
        except ValueError as error:
            raise ArgumentError(f"an array of another library: {error}") from error
        tensor = _DLTensor.from_address(address)
        self.bfloat16 = (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1)
        if self.bfloat16:
            tensor.code = _UINT

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)


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
    flags = array.flags
    if array.dtype == F32 and flags.c_contiguous and flags.aligned:
        return array.reshape(-1)
    check_float(call, array)
    return np.require(array, np.float32, ["C", "A"]).reshape(-1)


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
    if not out.flags.aligned:
        raise ArgumentError(f"{call}: the output must be aligned to its elements, got an unaligned array")
    if not out.flags.writeable:
        raise ArgumentError(f"{call}: the output must be writeable, got a read-only array")
    return out.reshape(-1)
