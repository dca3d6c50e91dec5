"""Graphs: built, printed, drawn, and run on any device."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from typing import Any, Mapping, Union

import numpy as np
from numpy.typing import NDArray

from . import _fulmen
from ._errors import ArgumentError, FileError, UnsupportedError
from ._numpy import as_array, check_float, flat_bytes, flat_f32
from .gguf import Blocks

__all__ = ["Graph", "Program", "Tensor"]


class Tensor:
    """A tensor of a graph: rows of one width."""

    __slots__ = ("_native", "graph")

    def __init__(self, graph: Graph, native: _fulmen.GraphTensor) -> None:
        self.graph = graph
        self._native = native

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and width."""
        return self.graph._native.shape(self._native)

    def __add__(self, other: Tensor) -> Tensor:
        return self.graph.add(self, other)

    def __mul__(self, other: Union[Tensor, float]) -> Tensor:
        if isinstance(other, Tensor):
            return self.graph.mul(self, other)
        return self.graph.scale(self, other)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<fulmen.graph.Tensor {self.shape}>"


class Graph:
    """A graph of a network: recorded without addresses, then fused and planned for a device.

    >>> import fulmen, numpy as np
    >>> g = fulmen.Graph()
    >>> x = g.input("x", 1, 2)
    >>> w = g.weight("w", 3, 2)
    >>> g.output("y", g.linear(x, w))
    >>> print(g)
    y: F32 1x3 = mul_mat(x, w)
    return y
    <BLANKLINE>
    >>> program = g.compile("cpu", {"w": np.array([[1, 0], [0, 1], [1, 1]], np.float32)})
    >>> program(x=np.array([[3, 4]], np.float32))["y"]
    array([[3., 4., 7.]], dtype=float32)
    """

    def __init__(self) -> None:
        self._native = _fulmen.Builder()

    def _made(self, native: _fulmen.GraphTensor) -> Tensor:
        return Tensor(self, native)

    def input(self, name: str, rows: int, width: int) -> Tensor:
        """An f32 tensor that the caller writes before a run."""
        return self._made(self._native.input(name, rows, width))

    def indices(self, name: str, rows: int) -> Tensor:
        """u32 values that the caller writes before a run: tokens, positions."""
        return self._made(self._native.indices(name, rows))

    def weight(self, name: str, rows: int, k: int, dtype: str = "f32") -> Tensor:
        """A weight ``[rows, k]`` or an embedding table, in any format of GGUF."""
        return self._made(self._native.weight(name, dtype, rows, k))

    def vector(self, name: str, length: int) -> Tensor:
        """A constant f32 vector: the gain of a norm, a bias."""
        return self._made(self._native.vector(name, length))

    def output(self, name: str, tensor: Tensor) -> None:
        """Names a computed tensor as a result."""
        self._native.output(name, tensor._native)

    def embed(self, table: Tensor, tokens: Tensor) -> Tensor:
        """Rows of a table by token."""
        return self._made(self._native.embed(table._native, tokens._native))

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """``x @ weight.T + bias + residual``."""
        return self._made(
            self._native.linear(
                x._native,
                weight._native,
                None if bias is None else bias._native,
                None if residual is None else residual._native,
            )
        )

    def gate_up(self, x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        """``silu(x @ gate.T) * (x @ up.T)``."""
        return self._made(self._native.gate_up(x._native, gate._native, up._native))

    def rms_norm(self, x: Tensor, gamma: Tensor, eps: float = 1e-6) -> Tensor:
        """RMS norm of each row."""
        return self._made(self._native.rms_norm(x._native, gamma._native, eps))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """``a + b``."""
        return self._made(self._native.binary("add", a._native, b._native))

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """``a * b``, element by element."""
        return self._made(self._native.binary("mul", a._native, b._native))

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """``silu(gate) * up``."""
        return self._made(self._native.binary("swiglu", gate._native, up._native))

    def silu(self, x: Tensor) -> Tensor:
        """``x * sigmoid(x)``."""
        return self._made(self._native.unary("silu", x._native))

    def gelu(self, x: Tensor, *, approximate: bool = False) -> Tensor:
        """GELU, exact or with a hyperbolic tangent."""
        return self._made(self._native.unary("gelu_tanh" if approximate else "gelu", x._native))

    def relu2(self, x: Tensor) -> Tensor:
        """``max(x, 0)²``."""
        return self._made(self._native.unary("relu2", x._native))

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """``x * factor``."""
        return self._made(self._native.unary("scale", x._native, factor))

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """``cap * tanh(x / cap)``."""
        return self._made(self._native.unary("soft_cap", x._native, cap))

    def softmax(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Softmax of ``x * scale`` over rows."""
        return self._made(self._native.softmax(x._native, scale))

    def argmax(self, x: Tensor) -> Tensor:
        """The index of the largest element of each row."""
        return self._made(self._native.argmax(x._native))

    def rope(
        self, x: Tensor, positions: Tensor, *, head_dim: int, base: float = 10000.0, neox: bool = False
    ) -> Tensor:
        """Rotary position embedding of every head."""
        return self._made(self._native.rope(x._native, positions._native, head_dim, base, neox))

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int,
        scale: float | None = None,
    ) -> Tensor:
        """Causal attention among the rows."""
        kv_heads = heads if kv_heads is None else kv_heads
        if scale is None:
            scale = 1 / math.sqrt(head_dim) if head_dim > 0 else 1.0
        return self._made(
            self._native.attention(q._native, k._native, v._native, heads, kv_heads, head_dim, scale)
        )

    def __str__(self) -> str:
        return self._native.print(False, False)

    def fused(self) -> str:
        """The graph after fusion, as text."""
        return self._native.print(True, False)

    def to_dot(self, *, fused: bool = False) -> str:
        """The graph as Graphviz DOT."""
        return self._native.print(fused, True)

    def draw(self, path: str | os.PathLike[str], *, fused: bool = False) -> None:
        """Draws the graph: DOT text for a path that ends with ``.dot``, otherwise what Graphviz's ``dot``
        makes of it, such as an SVG."""
        text = self.to_dot(fused=fused)
        kind = os.path.splitext(os.fspath(path))[1].lstrip(".")
        if kind == "dot":
            try:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                raise FileError(f"draw: {error}") from error
            return
        program = shutil.which("dot")
        if program is None:
            raise UnsupportedError("draw: Graphviz (dot) is not installed; a path with .dot gets its text")
        command = [program, f"-T{kind}", "-o", os.fspath(path)]
        try:
            subprocess.run(command, input=text.encode(), check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise FileError(f"draw: dot could not draw {os.fspath(path)}: {said}") from error
        except OSError as error:
            raise FileError(f"draw: {error}") from error

    def compile(
        self, device: str = "auto", weights: Mapping[str, Union[Blocks, Any]] = {}, *, keep_all: bool = False
    ) -> Program:
        """Fuses and plans the graph and binds it to a device with its weights: arrays or
        :class:`fulmen.gguf.Blocks`. With ``keep_all`` no two tensors share memory."""
        named = {name: (role, kind, rows, width) for name, role, kind, rows, width in self._native.tensors()}
        data = {}
        for name, weight in weights.items():
            role, kind, rows, width = named.get(name, ("", "", 0, 0))
            if role != "weight":
                raise ArgumentError(f"compile: there is no weight {name!r} in the graph")
            data[name] = _weight_bytes(name, weight, kind, rows, width)
        return Program(self._native.compile(device, data, keep_all), named)

    def run(
        self,
        inputs: Mapping[str, Any],
        weights: Mapping[str, Union[Blocks, Any]] = {},
        *,
        device: str = "auto",
    ) -> dict[str, NDArray[Any]]:
        """Compiles and runs it once."""
        return self.compile(device, weights)(**inputs)


def _weight_bytes(name: str, weight: Any, kind: str, rows: int, width: int) -> NDArray[np.uint8]:
    if isinstance(weight, Blocks):
        given, shape, data = weight.dtype, weight.shape, weight.data
    else:
        array = as_array(weight)
        given, shape, data = check_float("compile", array), array.shape, flat_bytes(array)
    if given.upper() != kind:
        raise ArgumentError(f"compile: the type of {name!r} must be {kind}, got {given.upper()}")
    if shape != (rows, width) and not (rows == 1 and shape == (width,)):
        raise ArgumentError(f"compile: the shape of {name!r} must be {(rows, width)}, got {shape}")
    return data


class Program:
    """A graph that is bound to a device: call it with its inputs, as often as wanted."""

    def __init__(self, native: _fulmen.Program, named: dict[str, tuple[str, str, int, int]]) -> None:
        self._native = native
        self._named = named

    @property
    def device(self) -> str:
        """The device that it runs on."""
        return self._native.device()

    @property
    def arena_bytes(self) -> int:
        """Bytes of the activations."""
        return self._native.arena_bytes()

    def write(self, name: str, array: Any) -> None:
        """Writes an input."""
        role, kind, rows, width = self._named.get(name, ("", "", 0, 0))
        if role != "input":
            raise ArgumentError(f"write: there is no input {name!r} in the graph")
        data: NDArray[Any]
        if kind == "U32":
            data = np.asarray(array)
            if data.dtype.kind not in "iu":
                raise ArgumentError(f"write: {name!r} must be integers, got {data.dtype.name}")
            if data.size and (data.min() < 0 or data.max() > np.iinfo(np.uint32).max):
                raise ArgumentError(f"write: {name!r} must fit into u32, got {data.min()} to {data.max()}")
            data = np.ascontiguousarray(data, dtype=np.uint32)
        else:
            data = as_array(array)
        fits = data.shape == (rows, width) or (1 in (rows, width) and data.shape == (rows * width,))
        if not fits:
            raise ArgumentError(f"write: the shape of {name!r} must be {(rows, width)}, got {data.shape}")
        row = data.reshape(-1) if kind == "U32" else flat_f32("write", data)
        self._native.write(name, row.view(np.uint8))

    def run(self) -> int:
        """Runs it and returns the number of kernels launched."""
        return self._native.run()

    def read(self, name: str) -> NDArray[Any]:
        """A named tensor."""
        if name not in self._named:
            raise ArgumentError(f"read: there is no tensor {name!r} in the graph")
        _, kind, rows, width = self._named[name]
        bytes = self._native.read(name)
        return bytes.view(np.uint32 if kind == "U32" else np.float32).reshape(rows, width)

    def __call__(self, **inputs: Any) -> dict[str, NDArray[Any]]:
        """Writes the inputs, runs, and returns all outputs."""
        for name, array in inputs.items():
            self.write(name, array)
        self._native.run()
        return {name: self.read(name) for name, entry in self._named.items() if entry[0] == "output"}

    def __str__(self) -> str:
        return self._native.text()
