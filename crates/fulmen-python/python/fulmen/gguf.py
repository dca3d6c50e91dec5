"""GGUF files: reading, writing, quantizing.

>>> import fulmen.gguf, numpy as np, tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny.gguf"
>>> fulmen.gguf.write(path, {"general.name": "tiny"}, {"x": np.arange(4, dtype=np.float32)})
>>> file = fulmen.gguf.File(path)
>>> file.metadata["general.name"], file.array("x")
('tiny', array([0., 1., 2., 3.], dtype=float32))
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Mapping, Union

import numpy as np
from numpy.typing import NDArray

from . import _fulmen
from ._errors import ArgumentError
from ._numpy import as_array, check_float, flat_bytes, flat_f32
from ._progress import Progress, reporter

__all__ = [
    "Blocks",
    "File",
    "Quantized",
    "Tensor",
    "dequantize",
    "quantize",
    "quantize_array",
    "types",
    "write",
]


@dataclass(frozen=True)
class Blocks:
    """Elements in a format of GGUF, such as ``Q4_K``: the bytes as they are stored."""

    #: The bytes, one row of ``uint8``.
    data: NDArray[np.uint8]
    #: The name of the format.
    dtype: str
    #: The shape in elements, rows first.
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        block, size = _fulmen.block_of(self.dtype)
        width = self.shape[-1] if self.shape else 0
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or not self.data.flags.c_contiguous:
            got = f"{self.data.dtype.name} of shape {self.data.shape}"
            raise ArgumentError(f"Blocks: the data must be one contiguous row of uint8, got {got}")
        if width % block or not self.shape:
            raise ArgumentError(
                f"Blocks: the rows of {self.dtype} must be a multiple of {block}, got shape {self.shape}"
            )
        expected = math.prod(self.shape) // block * size
        if len(self.data) != expected:
            raise ArgumentError(f"Blocks: the number of bytes must be {expected}, got {len(self.data)}")

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return len(self.data)


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file: its name, its shape (rows first, as numpy has it), its type and its size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class File:
    """An open GGUF file, or the first of several shards. Nothing in it is trusted: a damaged file raises
    :class:`fulmen.FormatError`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._native = _fulmen.GgufReader(path)
        entries = self._native.tensors()
        tensors = [Tensor(name, tuple(shape), kind, size) for name, shape, kind, size in entries]
        #: The tensors by name, in the order of the file.
        self.tensors: dict[str, Tensor] = {tensor.name: tensor for tensor in tensors}

    @property
    def version(self) -> int:
        """The version of the format."""
        return self._native.version()

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata."""
        return self._native.metadata()

    def _tensor(self, name: str) -> Tensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise ArgumentError(f"there is no tensor {name!r}") from None

    def blocks(self, name: str) -> Blocks:
        """A tensor as it is stored."""
        tensor = self._tensor(name)
        return Blocks(self._native.data(name), tensor.dtype, tensor.shape)

    def array(self, name: str) -> NDArray[np.float32]:
        """A tensor as f32, dequantized where needed."""
        return dequantize(self.blocks(name))

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"<fulmen.gguf.File of {len(self.tensors)} tensors>"


def quantize_array(array: Any, dtype: str) -> Blocks:
    """An array in a format of GGUF: ``q4_0``, ``q8_0``, ``q4_k``, …, ``f16``, ``bf16``, ``f32``.

    >>> import fulmen.gguf, numpy as np
    >>> blocks = fulmen.gguf.quantize_array(np.ones((2, 32), np.float32), "q8_0")
    >>> blocks.nbytes, bool(np.allclose(fulmen.gguf.dequantize(blocks), 1, atol=1e-3))
    (68, True)
    """
    array = as_array(array)
    block, _ = _fulmen.block_of(dtype)
    if array.ndim == 0 or array.shape[-1] % block:
        name = dtype.upper()
        raise ArgumentError(f"quantize: the rows of {name} must be a multiple of {block}, got {array.shape}")
    data = _fulmen.quantize_array(flat_f32("quantize", array), dtype)
    return Blocks(data, dtype.upper(), array.shape)


def dequantize(blocks: Blocks) -> NDArray[np.float32]:
    """The elements of blocks as f32, bit for bit what the package ``gguf`` computes."""
    elements = math.prod(blocks.shape)
    return _fulmen.dequantize(blocks.data, blocks.dtype, elements).reshape(blocks.shape)


def write(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Union[Blocks, Any]],
    *,
    replace: bool = False,
) -> None:
    """Writes a GGUF file, which appears when it is complete. Values of the metadata are bools, ints, floats,
    strings and lists of one of them; tensors are arrays of f32, f16 or bf16, or :class:`Blocks`."""
    entries = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, Blocks):
            array = as_array(tensor)
            kind = check_float("write", array)
            entries.append((name, list(array.shape), kind, flat_bytes(array)))
        else:
            entries.append((name, list(tensor.shape), tensor.dtype, tensor.data))
    _fulmen.write_gguf(path, dict(metadata), entries, replace)


@dataclass(frozen=True)
class Quantized:
    """The bytes of all tensors before and after."""

    before: int
    after: int


def quantize(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str = "q4_k_m",
    *,
    replace: bool = False,
    threads: int | None = None,
    progress: Progress = None,
    cancel: _fulmen.CancelToken | None = None,
) -> Quantized:
    """Converts a model to a smaller type (:func:`types`). The new file appears when it is complete.
    ``cancel`` ends it from another thread."""
    with reporter(progress, "quantize", "el") as report:
        sizes = _fulmen.quantize_file(os.fspath(path), out, type, replace, threads, report, cancel)
        return Quantized(*sizes)


def types() -> list[str]:
    """The types that a model can be quantized to."""
    return _fulmen.recipes()
