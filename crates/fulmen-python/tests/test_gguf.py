"""GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fulmen
from fulmen import gguf

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "a tiny model ☃",
    "a.bool": True,
    "an.int": 42,
    "a.negative": -3,
    "a.large": 2**40,
    "a.float": 0.5,
    "some.strings": ["a", "b", "ü"],
    "some.ints": [1, -2, 3],
    "some.floats": [0.5, 1.5],
    "some.bools": [True, False],
    "nothing": [],
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    x, half, brain = normal(3, 4), normal(5).astype(np.float16), normal(2, 2).astype(ml_dtypes.bfloat16)
    blocks = gguf.quantize_array(normal(2, 256), "q4_k")
    gguf.write(path, METADATA, {"x": x, "half": half, "brain": brain, "blocks": blocks})
    file = gguf.File(path)
    assert file.metadata == METADATA and file.version == 3 and len(file) == 4
    assert file.tensors["x"] == gguf.Tensor("x", (3, 4), "F32", 48)
    assert [tensor.dtype for tensor in file.tensors.values()] == ["F32", "F16", "BF16", "Q4_K"]
    np.testing.assert_array_equal(file.array("x"), x)
    np.testing.assert_array_equal(file.array("half"), half.astype(np.float32))
    np.testing.assert_array_equal(file.array("brain"), brain.astype(np.float32))
    np.testing.assert_array_equal(file.blocks("blocks").data, blocks.data)
    assert "4 tensors" in repr(file)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=20),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(width=32, allow_nan=False),
            st.text(max_size=30),
            st.lists(st.text(max_size=5), max_size=5),
            st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5),
        ),
        max_size=8,
    ).filter(lambda metadata: "general.alignment" not in metadata)
)
def test_any_metadata_comes_back(metadata: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        gguf.write(path, metadata, {})
        assert gguf.File(path).metadata == metadata


def test_the_built_in_model_as_a_file(story_path: Path) -> None:
    file = gguf.File(story_path)
    assert file.metadata["general.architecture"] and "token_embd.weight" in file.tensors
    assert file.array("token_embd.weight").shape[0] == 2048
    norm = next(name for name in file.tensors if "norm" in name)
    assert np.isfinite(file.array(norm)).all()


def test_quantizing_a_model(story_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.gguf"
    seen: list[tuple[int, int]] = []
    result = gguf.quantize(story_path, out, "q4_0", progress=lambda *at: seen.append(at))
    assert 0 < result.after < result.before
    assert seen[-1][0] == seen[-1][1] and seen == sorted(seen)
    with fulmen.Model.load(out, device="cpu") as model:
        assert len(model.generate("Once upon a time", max_tokens=8)) > 5
    with pytest.raises(fulmen.FileError, match="already exists"):
        gguf.quantize(story_path, out, "q8_0")
    fulmen.quantize(story_path, out, "q8_0", replace=True, threads=1)


def test_a_progress_that_raises_leaves_nothing(story_path: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        gguf.quantize(story_path, tmp_path / "never.gguf", "q4_0", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_types() -> None:
    assert "q4_k_m" in gguf.types() and "q8_0" in gguf.types()


FORMATS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
FORMATS += ["mxfp4", "iq4_nl", "iq4_xs"]


@pytest.mark.parametrize("dtype", FORMATS)
def test_blocks_are_close(dtype: str) -> None:
    x = normal(4, 512)
    blocks = gguf.quantize_array(x, dtype)
    assert blocks.shape == (4, 512) and blocks.dtype == dtype.upper()
    error = ((gguf.dequantize(blocks) - x) ** 2).sum() / (x**2).sum()
    assert error < 0.12
    again = gguf.dequantize(gguf.Blocks(blocks.data.copy(), dtype, (4, 512)))
    np.testing.assert_array_equal(again, gguf.dequantize(blocks))


# Bytes of a block of 256 elements.
READ_ONLY = {"iq2_xxs": 66, "iq2_xs": 74, "iq2_s": 82, "iq3_xxs": 98, "iq3_s": 110}


@pytest.mark.parametrize("dtype", READ_ONLY)
def test_types_that_are_only_read(dtype: str) -> None:
    blocks = gguf.Blocks(np.zeros(2 * READ_ONLY[dtype], dtype=np.uint8), dtype, (1, 512))
    np.testing.assert_array_equal(gguf.dequantize(blocks), np.zeros((1, 512), dtype=np.float32))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: gguf.File(p / "none.gguf"), fulmen.FileError, "No such file"),
        (lambda p: gguf.File(p), fulmen.FileError, "is a directory"),
        (lambda p: gguf.write(p / "a", {"k": object()}, {}), TypeError, "got object"),
        (lambda p: gguf.write(p / "a", {"k": [[1]]}, {}), TypeError, "a list of list"),
        (lambda p: gguf.write(p / "a", {"k": [1, "b"]}, {}), TypeError, None),
        (lambda p: gguf.write(p / "a", {"k": 2**64}, {}), OverflowError, None),
        (lambda p: gguf.write(p / "a", {"": 1}, {}), fulmen.FormatError, "key 0"),
        (lambda p: gguf.write(p / "a", {5: 1}, {}), TypeError, None),
        (lambda p: gguf.write(p / "a", {"general.alignment": 3}, {}), fulmen.FormatError, "alignment"),
        (lambda p: gguf.write(p / "a", {}, {"x": np.zeros(3)}), fulmen.ArgumentError, "float64"),
        (lambda p: gguf.write(p / "a", {}, {"x": np.float32(1)}), fulmen.ArgumentError, "dimensions"),
        (lambda p: gguf.write(p / "a", {}, {"x": normal(0)}), fulmen.ArgumentError, "dimension of 0"),
        (lambda p: gguf.write(p / "a", {}, {"x": normal(1, 1, 1, 1, 1)}), fulmen.ArgumentError, "four"),
        (lambda p: gguf.write(p / "no" / "a", {}, {}), fulmen.FileError, "folder does not exist"),
        (lambda p: gguf.write(p, {}, {}, replace=True), fulmen.FileError, "directory"),
        (lambda p: gguf.quantize(p / "none", p / "a"), fulmen.FileError, "No such file"),
        (lambda p: gguf.quantize(p / "none", p / "a", "q9"), fulmen.ArgumentError, "unknown type"),
        (lambda p: gguf.quantize(p / "none", p / "a", threads=0), fulmen.ArgumentError, "threads"),
        (lambda p: gguf.quantize_array(normal(33), "q8_0"), fulmen.ArgumentError, "a multiple of 32"),
        (lambda p: gguf.quantize_array(np.float32(1), "q8_0"), fulmen.ArgumentError, "multiple"),
        (lambda p: gguf.quantize_array(np.full(32, np.inf, np.float32), "q8_0"), ValueError, "finite"),
        (lambda p: gguf.quantize_array(normal(32), "u32"), fulmen.UnsupportedError, "U32"),
        (lambda p: gguf.quantize_array(normal(256), "iq2_xs"), fulmen.UnsupportedError, "IQ2_XS"),
        (lambda p: gguf.Blocks(np.zeros(33, np.uint8), "q8_0", (32,)), fulmen.ArgumentError, "must be 34"),
        (lambda p: gguf.Blocks(np.zeros(34, np.int8), "q8_0", (32,)), fulmen.ArgumentError, "uint8"),
        (lambda p: gguf.Blocks(np.zeros(68, np.uint8)[::2], "q8_0", (32,)), ValueError, "contiguous"),
        (lambda p: gguf.Blocks(np.zeros(0, np.uint8), "q8_0", ()), fulmen.ArgumentError, None),
    ],
)
def test_wrong_calls_are_exceptions(
    tmp_path: Path, call: Callable[[Path], Any], error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        call(tmp_path)
    assert not (tmp_path / "a").exists()


def test_a_tensor_that_is_not_there(story_path: Path) -> None:
    with pytest.raises(fulmen.ArgumentError, match="there is no tensor 'x'"):
        gguf.File(story_path).array("x")


def test_nothing_is_replaced_without_being_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    gguf.write(path, {"a": 1}, {})
    with pytest.raises(fulmen.FileError, match="already exists"):
        gguf.write(path, {"a": 2}, {})
    gguf.write(path, {"a": 3}, {}, replace=True)
    assert gguf.File(path).metadata == {"a": 3}
