"""The exceptions of fulmen. Each has the message of the engine, and is a built-in one where one fits."""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "CancelledError",
    "ClosedError",
    "ConstraintError",
    "ContextError",
    "DeviceError",
    "DeviceLostError",
    "DeviceNotFoundError",
    "EngineError",
    "FileError",
    "ForkError",
    "FormatError",
    "FulmenError",
    "GraphError",
    "HubError",
    "InternalError",
    "ModelError",
    "OutOfMemoryError",
    "TemplateError",
    "TokenizerError",
    "UnsupportedError",
]


class FulmenError(Exception):
    """Any error of fulmen."""


class ArgumentError(FulmenError, ValueError):
    """An argument that cannot be used: which call, what was expected, what was given."""


class ContextError(ArgumentError):
    """A prompt or a context that is too long."""


class ConstraintError(ArgumentError):
    """A schema, regular expression or grammar that is invalid or exceeds its limits."""


class GraphError(ArgumentError):
    """A graph that cannot be built or bound."""


class ModelError(FulmenError):
    """A model that cannot be loaded or run."""


class FormatError(ModelError, ValueError):
    """A model file that is damaged, or not one at all."""


class TokenizerError(ModelError):
    """A tokenizer that is invalid or not supported."""


class TemplateError(ModelError):
    """A chat template that is invalid, or that refuses a conversation."""


class FileError(FulmenError, OSError):
    """A file that cannot be read or written."""


class HubError(FulmenError, OSError):
    """A download from a hub that failed."""


class OutOfMemoryError(FulmenError, MemoryError):
    """Not enough memory on the device or the host."""


class DeviceError(FulmenError, RuntimeError):
    """A device or its driver failed."""


class DeviceNotFoundError(DeviceError):
    """A device that does not exist or cannot be used."""


class DeviceLostError(DeviceError):
    """A device that is gone, with everything on it."""


class UnsupportedError(FulmenError, NotImplementedError):
    """Something that a device cannot do."""


class EngineError(FulmenError, RuntimeError):
    """The engine for many sequences refused a request or ended it."""


class CancelledError(FulmenError):
    """Work that was cancelled."""


class ClosedError(FulmenError, RuntimeError):
    """An object that was closed."""


class ForkError(FulmenError, RuntimeError):
    """An object of the parent process, used after a fork."""


class InternalError(FulmenError, RuntimeError):
    """A defect of fulmen."""


# They are the package's own, also in messages and pickles.
for _name in __all__:
    globals()[_name].__module__ = "fulmen"
