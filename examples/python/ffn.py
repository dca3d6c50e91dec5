"""The feed-forward layer of a transformer with the command batch, against numpy.

python ffn.py [DEVICE]

The operations are recorded, fused, and run as one submission; new inputs replay what was compiled.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from numpy.typing import NDArray

import fulmen

ROWS, WIDTH, INNER = 16, 256, 704


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-1]), np.float32)


def main(arguments: list[str]) -> None:
    rng = np.random.default_rng(0)
    gain = np.ones(WIDTH, np.float32)
    gate, up, down = normal(rng, INNER, WIDTH), normal(rng, INNER, WIDTH), normal(rng, WIDTH, INNER)

    batch = fulmen.Batch(arguments[0] if arguments else "auto")
    x = batch.upload(normal(rng, ROWS, WIDTH))
    h = fulmen.rms_norm(x, gain)
    y = x + (fulmen.silu(h.matmul_nt(gate)) * h.matmul_nt(up)).matmul_nt(down)
    batch.execute()
    print(f"{batch.operations} operations in {batch.launches} launches on {batch.device}")

    for _ in range(3):
        data = normal(rng, ROWS, WIDTH)
        began = time.perf_counter()
        batch.write(x, data)
        result = batch.run(y)
        seconds = time.perf_counter() - began
        normed = data / np.sqrt((data * data).mean(1, keepdims=True) + 1e-6)
        a = normed @ gate.T
        expected = data + (a / (1 + np.exp(-a)) * (normed @ up.T)) @ down.T
        error = float(np.abs(result - expected).max())
        print(f"{seconds * 1e3:.2f} ms, largest error {error:.1e}")
        assert error < 1e-3


if __name__ == "__main__":
    main(sys.argv[1:])
