"""What Python costs: decoding, array round trips, replays. Prints figures as JSON, asserts nothing.

python overhead.py [DEVICE] [MODEL]     the device of the model; arrays run on wgpu, where there is a device

scripts/bench-python compares them with those of Rust.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Callable

import numpy as np

import fulmen


def best(rounds: int, work: Callable[[], float]) -> float:
    """The shortest time of several rounds."""
    return min(work() for _ in range(rounds))


def decode(device: str, path: str | None) -> dict[str, float]:
    """Tokens per second, of whole texts and of streams."""
    model = fulmen.Model.load(path, device=device, progress=False)
    tokens = 128 if model.info.context > 200 else 64
    prompt = "Once upon a time"
    model.generate(prompt, max_tokens=tokens, ignore_end=True)
    whole, streamed = [], []
    for _ in range(5):
        text = model.generate(prompt, max_tokens=tokens, ignore_end=True)
        stream = model.generate(prompt, max_tokens=tokens, ignore_end=True, stream=True)
        for _ in stream:
            pass
        whole.append(text.tokens_per_second)
        streamed.append(stream.result.tokens_per_second)
    return {"decode_per_second": max(whole), "streamed_per_second": max(streamed)}


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


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    path = sys.argv[2] if len(sys.argv) > 2 else None
    figures = decode(device, path)
    if any(found.backend == "wgpu" for found in fulmen.devices()):
        figures.update({**round_trip(), **replays()})
    print(json.dumps(figures))
