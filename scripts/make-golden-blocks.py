#!/usr/bin/env python3
"""Makes the golden vectors of the block formats.

For every format it draws bytes from a seeded generator and lets the `gguf` package decode them. The Rust
test `golden_blocks` decodes the same bytes and compares bit for bit.

    python3 -m venv venv && venv/bin/pip install gguf numpy
    venv/bin/python scripts/make-golden-blocks.py            # writes crates/fulmen-core/tests/golden/*.bin
    venv/bin/python scripts/make-golden-blocks.py --errors   # prints the errors of gguf's own quantizers
    venv/bin/python scripts/make-golden-blocks.py --grids    # writes crates/fulmen-core/src/quant/grids.rs

A file holds, little endian: the number of elements (u32), the number of block bytes (u32), the block bytes,
and the expected values as f32 bits.

Random bytes give random scales, which may be infinite or NaN by chance; they are replaced by finite ones in
most blocks, and the last blocks of a file get infinities, NaN, subnormals and negative zeros on purpose.

gguf does not decode Q8_K (it is a format for activations that files do not hold); its values are computed
here by its definition, d * q in single precision.
"""

import argparse
import subprocess
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
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
}
PLAIN = ["F32", "F16", "BF16"]

# The entries of the grids, and in how many entries a block has its elements.
GRIDS = {
    "IQ2_XXS": (256, 32),
    "IQ2_XS": (512, 32),
    "IQ2_S": (1024, 32),
    "IQ3_XXS": (256, 64),
    "IQ3_S": (512, 64),
}

INF, MINUS_INF, NAN, MINUS_ZERO, SUBNORMAL, MOST = 0x7C00, 0xFC00, 0x7E00, 0x8000, 0x83A5, 0x7BFF
# The scales of the last blocks; formats with one scale use the first of each pair.
SPECIAL = [(INF, 0x3C00), (0x3800, MINUS_INF), (NAN, 0x2C01), (MINUS_ZERO, MINUS_ZERO), (SUBNORMAL, MOST)]


def half_bytes(bits: int) -> np.ndarray:
    return np.array([bits], dtype="<u2").view(np.uint8)


def draw_blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    """Bytes of some blocks, one block per row."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    entries, per_block = GRIDS.get(name, (2, 1))
    ordinary = entries // per_block if elements == 256 else 9
    blocks = rng.integers(0, 256, (ordinary + len(SPECIAL), size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        special = SPECIAL[i - ordinary] if i >= ordinary else None
        for k, at in enumerate(SCALES[name]):
            finite = np.float16(rng.normal() * 0.01).view(np.uint16)
            block[at : at + 2] = half_bytes(special[k] if special else int(finite))
    if name in GRIDS:
        for entry in range(entries):
            set_entry(name, blocks[entry // per_block], entry % per_block, entry)
    return blocks


def set_entry(name: str, block: np.ndarray, at: int, entry: int) -> None:
    """Sets one of the entries of the grid that a block has its elements in, so that every entry occurs."""
    if name == "IQ2_XXS":
        block[2 + 8 * (at // 4) + at % 4] = entry
    elif name == "IQ2_XS":
        # The upper seven bits are signs.
        block[2 + 2 * at] = entry & 255
        block[3 + 2 * at] = block[3 + 2 * at] & 0xFE | entry >> 8
    else:
        block[2 + at] = entry & 255
        bits, high = {"IQ2_S": (2, 66), "IQ3_S": (1, 66)}.get(name, (0, 0))
        if bits:
            of_byte = 8 // bits
            shift, mask = bits * (at % of_byte), (1 << bits) - 1
            byte = int(block[high + at // of_byte]) & ~(mask << shift)
            block[high + at // of_byte] = byte | (entry >> 8) << shift


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


def packed_grid(name: str) -> tuple[list[int], list[int]]:
    """The magnitudes of a grid, and per entry the indices of its values, the first one lowest."""
    kind = getattr(quants, name)
    kind.init_grid()
    magnitudes = sorted({int(value) for value in np.unique(kind.grid)})
    bits = (len(magnitudes) - 1).bit_length()
    indices = np.searchsorted(magnitudes, kind.grid.reshape(kind.grid_shape))
    shifts = bits * np.arange(kind.grid_shape[1])
    return magnitudes, [int(entry) for entry in (indices << shifts).sum(axis=1)]


def write_grids() -> None:
    """The grids of IQ2 and IQ3, whose entries are those of gguf, in the form that Rust expands."""
    text = GRIDS_HEADER
    for name in ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]:
        magnitudes, packed = packed_grid(name)
        wide = getattr(quants, name).grid_shape[1]
        line = " of 8 elements each, 2 bits" if wide == 8 else " of 4 elements each, 3 bits"
        text += f"\n/// The entries of {name}'s grid:{line} per element.\n"
        text += f"pub(super) const {name}: ([i8; {len(magnitudes)}], [u16; {len(packed)}]) = (\n"
        text += f"    [{', '.join(map(str, magnitudes))}],\n    [\n"
        for at in range(0, len(packed), 12):
            text += "        " + " ".join(f"{entry:#06x}," for entry in packed[at : at + 12]) + "\n"
        text += "    ],\n);\n"
    path = HERE.parent / "crates" / "fulmen-core" / "src" / "quant" / "grids.rs"
    path.write_text(text)
    subprocess.run(["rustfmt", "--edition", "2024", str(path)], check=True)


GRIDS_HEADER = """\
//! The grids of the IQ2 and IQ3 formats: for each, the magnitudes that elements can have, and per entry the
//! index of the magnitude of each of its elements, the first one in the lowest bits.
//!
//! Written by `scripts/make-golden-blocks.py --grids`.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the golden vectors of the block formats.")
    parser.add_argument("--errors", action="store_true", help="print the errors of gguf's own quantizers")
    parser.add_argument("--grids", action="store_true", help="write the grids of IQ2 and IQ3")
    arguments = parser.parse_args()
    if arguments.errors:
        print_errors()
    elif arguments.grids:
        write_grids()
    else:
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for format_name in [*PLAIN, *SCALES, "Q8_K", "MXFP4"]:
            write(format_name)
