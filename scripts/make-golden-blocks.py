#!/usr/bin/env python3
"""Makes the golden vectors of the block formats.

For every format it draws bytes from a seeded generator and lets the `gguf` package decode them. The Rust
test `golden_blocks` decodes the same bytes and compares bit for bit.

    python3 -m venv venv && venv/bin/pip install gguf numpy
    venv/bin/python scripts/make-golden-blocks.py            # writes crates/fulmen-core/tests/golden/*.bin
    venv/bin/python scripts/make-golden-blocks.py --errors   # prints the errors of gguf's own quantizers

A file holds, little endian: the number of elements (u32), the number of block bytes (u32), the block bytes,
and the expected values as f32 bits.

Random bytes give random scales, which may be infinite or NaN by chance; they are replaced by finite ones in
most blocks, and the last blocks of a file get infinities, NaN, subnormals and negative zeros on purpose.

gguf does not decode Q8_K (it is a format for activations that files do not hold); its values are computed
here by its definition, d * q in single precision.
"""

import argparse
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "crates" / "fulmen-core" / "tests" / "golden"

# Where the half-precision scales stand in a block: the offset of each in bytes.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
PLAIN = ["F32", "F16", "BF16"]

INF, MINUS_INF, NAN, MINUS_ZERO, SUBNORMAL, MOST = 0x7C00, 0xFC00, 0x7E00, 0x8000, 0x83A5, 0x7BFF
# The scales of the last blocks; formats with one scale use the first of each pair.
SPECIAL = [(INF, 0x3C00), (0x3800, MINUS_INF), (NAN, 0x2C01), (MINUS_ZERO, MINUS_ZERO), (SUBNORMAL, MOST)]


def half_bytes(bits: int) -> np.ndarray:
    return np.array([bits], dtype="<u2").view(np.uint8)


def draw_blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    """Bytes of some blocks, one block per row."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    ordinary = 2 if elements == 256 else 9
    blocks = rng.integers(0, 256, (ordinary + len(SPECIAL), size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        special = SPECIAL[i - ordinary] if i >= ordinary else None
        for k, at in enumerate(SCALES[name]):
            finite = np.float16(rng.normal() * 0.01).view(np.uint16)
            block[at : at + 2] = half_bytes(special[k] if special else int(finite))
    return blocks


def draw_q8_k(rng: np.random.Generator) -> np.ndarray:
    scales = [0.0123, -3.5, np.inf, np.nan, -0.0, 1e-45]
    blocks = rng.integers(0, 256, (len(scales), 292), dtype=np.uint8)
    for block, scale in zip(blocks, scales):
        block[:4] = np.array([scale], dtype="<f4").view(np.uint8)
    return blocks


def draw_mxfp4(rng: np.random.Generator) -> np.ndarray:
    """Every exponent that is special, and some others."""
    exponents = [0, 1, 2, 3, 100, 120, 127, 128, 200, 252, 253, 254, 255]
    blocks = rng.integers(0, 256, (len(exponents), 17), dtype=np.uint8)
    blocks[:, 0] = exponents
    return blocks


def draw_plain(name: str, rng: np.random.Generator) -> np.ndarray:
    """All kinds of values: random bits, and the ends of every range."""
    if name == "F32":
        bits = rng.integers(0, 1 << 32, 200, dtype=np.uint32)
        bits[:8] = [0, 1 << 31, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF]
        return bits.astype("<u4").view(np.uint8)
    bits = rng.integers(0, 1 << 16, 300, dtype=np.uint16)
    bits[:12] = [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, INF, MINUS_INF, NAN, MOST, 0x7F80, 0xFF80]
    return bits.astype("<u2").view(np.uint8)


def decode(name: str, data: np.ndarray) -> np.ndarray:
    if name == "Q8_K":
        d = data[:, :4].copy().view("<f4")
        q = data[:, 4:260].copy().view(np.int8).astype(np.float32)
        return d * q
    return quants.dequantize(data, GGMLQuantizationType[name])


def write(name: str) -> None:
    # One generator per format: adding a format leaves the files of the others as they are.
    rng = np.random.default_rng(list(name.encode()))
    if name in PLAIN:
        data = draw_plain(name, rng)
    elif name == "Q8_K":
        data = draw_q8_k(rng)
    elif name == "MXFP4":
        data = draw_mxfp4(rng)
    else:
        data = draw_blocks(name, rng)
    with np.errstate(all="ignore"):
        values = decode(name, data).astype("<f4", copy=False).ravel()
    data = data.ravel()
    header = np.array([values.size, data.size], dtype="<u4")
    path = GOLDEN / f"{name.lower()}.bin"
    path.write_bytes(header.tobytes() + data.tobytes() + values.tobytes())
    print(f"{path.name}: {values.size} elements, {path.stat().st_size} bytes")


def print_errors() -> None:
    """The normalized mean squared error of gguf's own quantizers on Gaussian data."""
    x = np.random.default_rng(1).normal(size=(64, 4096)).astype(np.float32)
    for name in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"]:
        kind = GGMLQuantizationType[name]
        y = quants.dequantize(quants.quantize(x, kind), kind)
        print(f"{name}: {np.mean((x - y) ** 2) / np.mean(x**2):.3e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the golden vectors of the block formats.")
    parser.add_argument("--errors", action="store_true", help="print the errors of gguf's own quantizers")
    if parser.parse_args().errors:
        print_errors()
    else:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for format_name in [*PLAIN, *SCALES, "Q8_K", "MXFP4"]:
            write(format_name)
