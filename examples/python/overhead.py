"""What Python costs: generating text, array round trips, replays of small batches. Asserts nothing.

python overhead.py DEVICE MODEL TOKENS CONTEXT     MODEL may be empty: the built-in one

Each line of standard input names what is timed: ``generate`` (seconds of a text with one token, and of one
with TOKENS), ``stream`` (seconds from the first piece of a text to its end) or ``arrays`` (microseconds;
without a device of wgpu there are none). Each is answered by a line of JSON. scripts/bench-python compares
the times with those of Rust.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Callable

import numpy as np

import fulmen

PROMPT = "Once upon a time"


def generate(model: fulmen.Model, tokens: int) -> dict[str, float]:
    """Seconds of a text with one token, and of one with so many, each from an empty KV cache."""
    began = time.perf_counter()
    model.generate(PROMPT, max_tokens=1, ignore_end=True)
    first = time.perf_counter()
    text = model.generate(PROMPT, max_tokens=tokens, ignore_end=True)
    ended = time.perf_counter()
    return {"first": first - began, "whole": ended - first, "prompt_tokens": text.prompt_tokens}


def stream(model: fulmen.Model, tokens: int) -> dict[str, float]:
    """Seconds from the first piece of a text to its end."""
    pieces = model.generate(PROMPT, max_tokens=tokens, ignore_end=True, stream=True)
    next(pieces)
    first = time.perf_counter()
    for _ in pieces:
        pass
    return {"decode": time.perf_counter() - first}


def arrays() -> dict[str, float]:
    """Microseconds of work on arrays."""
    if not any(found.backend == "wgpu" for found in fulmen.devices()):
        return {}
    return {**round_trip(), **replays()}


def best(rounds: int, work: Callable[[], float]) -> float:
    """The shortest time of several rounds."""
    return min(work() for _ in range(rounds))


def round_trip() -> dict[str, float]:
    """Microseconds of writing 64 MiB to the GPU and of reading them."""
    batch = fulmen.Batch(share_memory=False)
    data = np.arange(16 << 20, dtype=np.float32)
    value = batch.upload(data)
    batch.execute()
    out = np.zeros_like(data)
    writes, reads = [], []
    for _ in range(7):
        began = time.perf_counter()
        batch.write(value, data)
        batch.execute()
        wrote = time.perf_counter()
        batch.read(value, out=out)
        reads.append(time.perf_counter() - wrote)
        writes.append(wrote - began)
    assert (out == data).all()
    return {"write_us": min(writes) * 1e6, "read_us": min(reads) * 1e6}


class Idle:
    """Stands for the module of Rust: a call does nothing."""

    def execute(self) -> None:
        """Nothing."""

    def write(self, value: object, array: object) -> None:
        """Nothing."""


def replays() -> dict[str, float]:
    """Microseconds of one of 100 replays of a small batch, without and with a new input, and of their parts:
    the layer of Python around the module, a call into the module, and its call that writes an input."""
    batch = fulmen.Batch()
    x = batch.upload(np.ones(64, np.float32))
    value = fulmen.relu(x * 2)
    batch.run(value)
    native = batch._native
    array = np.full(64, 3, np.float32)

    def hundred(call: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(100):
            call()
        return (time.perf_counter() - began) / 100 * 1e6

    def replay(inputs: dict[fulmen.Value, np.ndarray]) -> float:
        each = hundred(lambda: batch.replay(inputs))
        batch.read(value)
        return each

    def write() -> float:
        each = hundred(lambda: native.write(x._value, array))
        batch.run(value)
        return each

    whole = best(20, lambda: replay({}))
    with_input = best(20, lambda: replay({x: array}))
    assert (batch.read(value) == 6).all()
    # A call into the module that takes the batch's lock.
    call = best(20, lambda: hundred(native.counts))
    write_call = best(20, write)
    batch._native = Idle()  # type: ignore[assignment]
    layer = best(20, lambda: hundred(batch.replay))
    layer_input = best(20, lambda: hundred(lambda: batch.replay({x: array})))
    return {
        "replay_us": whole,
        "replay_input_us": with_input,
        "call_us": call,
        "input_us": write_call,
        "layer_us": layer,
        "layer_input_us": layer_input,
    }


def main() -> None:
    device, path, tokens, context = sys.argv[1:]
    model = fulmen.Model.load(path or None, device=device, context=int(context), progress=False)
    commands: dict[str, Callable[[], dict[str, float]]] = {
        "generate": lambda: generate(model, int(tokens)),
        "stream": lambda: stream(model, int(tokens)),
        "arrays": arrays,
    }
    for line in sys.stdin:
        print(json.dumps(commands[line.strip()]()), flush=True)


if __name__ == "__main__":
    main()
