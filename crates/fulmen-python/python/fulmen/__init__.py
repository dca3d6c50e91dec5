"""Fulmen: language models, arrays and graphs on CPUs and GPUs.

>>> import fulmen
>>> model = fulmen.Model.load(device="cpu")       # or Model.load("model.gguf"): the device is chosen
>>> print(model.generate("Once upon a time", max_tokens=12))
, there was a little girl named Lola who lived in

One package serves the CPU, any GPU through Vulkan, Metal or DX12, and NVIDIA GPUs through CUDA: drivers are
found at run time (:func:`devices`).
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from dataclasses import dataclass

from . import _fulmen, gguf
from ._arrays import (
    Batch,
    KernelTime,
    MatmulCache,
    Profile,
    Value,
    Weight,
    exp,
    gelu,
    layer_norm,
    log,
    maximum,
    minimum,
    relu,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    sqrt,
    tanh,
)
from ._chat import ChatChunk, ChatCompletion, ChatMessage, ChatStream, ToolCall
from ._errors import (
    ArgumentError,
    CancelledError,
    ClosedError,
    ConstraintError,
    ContextError,
    DeviceError,
    DeviceLostError,
    DeviceNotFoundError,
    EngineError,
    FileError,
    ForkError,
    FormatError,
    FulmenError,
    GraphError,
    HubError,
    InternalError,
    ModelError,
    OutOfMemoryError,
    TemplateError,
    TokenizerError,
    UnsupportedError,
)
from ._graph import Graph, Program, Tensor
from ._model import ChatOptions, GenerateOptions, Model, ModelInfo, Perplexity, Score
from ._text import BatchStream, Stream, Text, TokenLogprob
from ._tokenizer import Tokenizer
from .gguf import quantize

CancelToken = _fulmen.CancelToken
__version__ = _fulmen.__version__

__all__ = [
    "ArgumentError",
    "Batch",
    "BatchStream",
    "CancelToken",
    "CancelledError",
    "ChatChunk",
    "ChatCompletion",
    "ChatMessage",
    "ChatOptions",
    "ChatStream",
    "ClosedError",
    "ConstraintError",
    "ContextError",
    "Device",
    "DeviceError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "EngineError",
    "FileError",
    "ForkError",
    "FormatError",
    "FulmenError",
    "GenerateOptions",
    "Graph",
    "GraphError",
    "HubError",
    "InternalError",
    "KernelTime",
    "MatmulCache",
    "Model",
    "ModelError",
    "ModelInfo",
    "OutOfMemoryError",
    "Perplexity",
    "Profile",
    "Program",
    "Score",
    "Stream",
    "TemplateError",
    "Tensor",
    "Text",
    "TokenLogprob",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "UnsupportedError",
    "Value",
    "Weight",
    "devices",
    "exp",
    "gelu",
    "gguf",
    "layer_norm",
    "log",
    "maximum",
    "minimum",
    "quantize",
    "relu",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "sqrt",
    "tanh",
    "unavailable_backends",
]


@dataclass(frozen=True)
class Device:
    """A device of this machine."""

    #: ``cpu``, ``wgpu`` or ``cuda``.
    backend: str
    #: Its number among the devices of its backend.
    index: int
    name: str
    #: ``cpu``, ``discrete gpu``, ``integrated gpu``, ``software gpu`` or ``other``.
    kind: str
    driver: str
    #: Bytes of memory, and of free memory, where the driver reports it.
    memory: int | None
    free: int | None
    #: Whether ``auto`` takes it.
    best: bool
    #: What selects it, such as ``cuda:0``.
    selector: str
    #: Why it cannot be used; ``None`` if it can.
    unusable: str | None
    #: Limits and features.
    facts: dict[str, int | bool | str]


def devices() -> list[Device]:
    """All devices of this machine.

    >>> import fulmen
    >>> [device.name != "" for device in fulmen.devices() if device.backend == "cpu"]
    [True]
    """
    return [Device(**device) for device in _fulmen.devices()]


def unavailable_backends() -> dict[str, str]:
    """The backends that found no device, and why."""
    return _fulmen.unavailable()


logging.getLogger("fulmen").addHandler(logging.NullHandler())
# Mesa's device-select layer asks the desktop which GPU it uses, and complains on stderr where there is none.
# A choice that the user made through the layer is respected.
if sys.platform == "linux" and not os.path.isabs(os.environ.get("XDG_RUNTIME_DIR", "")):
    if "MESA_VK_DEVICE_SELECT" not in os.environ:
        os.environ.setdefault("NODEVICE_SELECT", "1")
# Work in other threads ends before the interpreter and the drivers do.
atexit.register(_fulmen.shutdown)
