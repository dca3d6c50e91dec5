"""The Hugging Face folders of crates/fulmen-engine/tests/golden/transformers.json: their weights are made
from the names of the tensors, here and in `transformers.rs` beside that file. Imported by golden-transformers
and golden-architectures."""
import json
import math
import pathlib
import struct

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "crates/fulmen-engine/tests/golden/transformers.json"


def hashes(name, count):
    """Numbers of 64 bits from the name of a tensor (FNV-1a) and a position (SplitMix64)."""
    seed = 0xcbf29ce484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001b3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return z ^ (z >> np.uint64(31))


def values(name, shape, mean, spread):
    """Evenly distributed f32 values from `mean - spread` to `mean + spread`; of bytes, the `spread` numbers
    from `mean` on."""
    random = hashes(name, math.prod(shape))
    if is_bytes(name):
        return (mean + random % np.uint64(spread)).astype(np.uint8).reshape(shape)
    even = (random >> np.uint64(40)).astype(np.float64) / 2**23 - 1.0
    return (mean + spread * even).astype(np.float32).reshape(shape)


def is_bytes(name):
    """Whether a tensor is a part of MXFP4."""
    return name.endswith(("_blocks", "_scales"))


def write(folder, config, tensors):
    """Writes `config.json` and the weights: of each tensor name, shape, mean, spread."""
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {"__metadata__": {"format": "pt"}}, []
    at = 0
    for name, shape, mean, spread in tensors:
        data.append(values(name, shape, mean, spread).tobytes())
        dtype = "U8" if is_bytes(name) else "F32"
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data[-1])]}
        at += len(data[-1])
    header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"".join(data))


def goldens():
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else []
