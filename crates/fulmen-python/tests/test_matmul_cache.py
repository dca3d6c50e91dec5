"""Weights that stay on a GPU."""

from __future__ import annotations

from typing import Any, Callable

import ml_dtypes
import numpy as np
import pytest

import fulmen
from conftest import DEVICES

pytestmark = pytest.mark.skipif("wgpu" not in DEVICES, reason="no device of wgpu")
RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("m", [1, 2, 7, 33])
def test_f32(cache: fulmen.MatmulCache, m: int) -> None:
    w, x = normal(24, 64), normal(m, 64)
    cache.upload("w", w)
    np.testing.assert_allclose(cache.matmul("w", x), x @ w.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_as_they_are(cache: fulmen.MatmulCache, dtype: Any) -> None:
    w, x = normal(16, 32).astype(dtype), normal(3, 32)
    cache.upload("w", w)
    assert cache["w"].dtype == ("F16" if dtype is np.float16 else "BF16")
    np.testing.assert_allclose(cache.matmul("w", x), x @ w.astype(np.float32).T, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k"])
def test_block_formats(cache: fulmen.MatmulCache, dtype: str) -> None:
    w, x = normal(16, 512), normal(2, 512)
    cache.upload("w", w, dtype=dtype)
    back = fulmen.gguf.dequantize(fulmen.gguf.quantize_array(w, dtype))
    expected = x @ back.T
    assert cache["w"].shape == (16, 512) and cache["w"].dtype == dtype.upper()
    error = ((cache.matmul("w", x) - expected) ** 2).sum() / (expected**2).sum()
    assert error < 1e-3


def test_one_row_and_an_output(cache: fulmen.MatmulCache) -> None:
    w, x = normal(5, 8), normal(8)
    cache.upload("w", w)
    result = cache.matmul("w", x)
    assert result.shape == (5,)
    out = np.empty(5, np.float32)
    assert cache.matmul("w", x, out=out) is out
    np.testing.assert_array_equal(out, result)


def test_names(cache: fulmen.MatmulCache) -> None:
    cache.upload("b", normal(2, 4))
    cache.upload("a", normal(3, 4))
    assert cache.keys() == ["a", "b"] and len(cache) == 2 and "a" in cache and "c" not in cache
    cache.upload("a", normal(7, 4), replace=True)
    assert cache["a"].shape == (7, 4)
    cache.remove("a")
    assert "a" not in cache and "of 1 weights" in repr(cache)
    with pytest.raises(KeyError):
        cache["a"]


def test_kernels_and_profile(cache: fulmen.MatmulCache) -> None:
    cache.upload("w", normal(64, 64))
    assert cache.kernels("w", 4)
    try:
        assert cache.profile("w", 4).total_us > 0
    except fulmen.UnsupportedError as error:
        pytest.skip(str(error))


def test_a_budget_evicts_what_was_used_least_recently() -> None:
    cache = fulmen.MatmulCache(budget=3000, evict=True)
    cache.upload("a", normal(8, 32))
    cache.upload("b", normal(8, 32))
    cache.upload("c", normal(16, 32))
    assert "c" in cache and "a" not in cache
    with pytest.raises(fulmen.ArgumentError, match="evicted"):
        cache.matmul("a", normal(1, 32))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: c.matmul("none", normal(1, 4)), fulmen.ArgumentError, 'there is no weight "none"'),
        (lambda c: c.remove("none"), fulmen.ArgumentError, "there is no weight"),
        (lambda c: c.upload("w", normal(2, 4)), fulmen.ArgumentError, "there is a weight"),
        (lambda c: c.upload("x", normal(2, 4), replace=True), fulmen.ArgumentError, "there is no weight"),
        (lambda c: c.matmul("w", normal(1, 5)), fulmen.ArgumentError, "matmul_cached"),
        (lambda c: c.matmul("w", normal(0, 4)), fulmen.ArgumentError, "m must be"),
        (lambda c: c.matmul("w", normal(2, 2, 4)), fulmen.ArgumentError, "a matrix or a row"),
        (lambda c: c.matmul("w", np.zeros((1, 4))), fulmen.ArgumentError, "float64"),
        (lambda c: c.upload("v", normal(4)), fulmen.ArgumentError, "matrix"),
        (lambda c: c.upload("v", normal(0, 4)), fulmen.ArgumentError, None),
        (lambda c: c.upload("v", normal(2, 33), dtype="q8_0"), fulmen.ArgumentError, "a multiple of 32"),
        (lambda c: c.upload("v", normal(2, 32), dtype="q9"), fulmen.ArgumentError, "unknown type name"),
        (lambda c: c.upload("v", normal(2, 256), dtype="q3_k"), fulmen.ArgumentError, "upload_weight_as"),
        (lambda c: c.upload("v", np.full((1, 32), np.nan, np.float32), dtype="q8_0"), ValueError, "finite"),
        (lambda c: c.upload(5, normal(2, 4)), TypeError, None),
        (lambda c: c.upload("\ud800", normal(2, 4)), UnicodeEncodeError, None),
    ],
)
def test_wrong_calls_are_exceptions(
    cache: fulmen.MatmulCache, call: Callable[..., Any], error: type[Exception], words: str | None
) -> None:
    cache.upload("w", normal(3, 4))
    with pytest.raises(error, match=words):
        call(cache)
    assert cache.matmul("w", normal(1, 4)).shape == (1, 3)


def test_a_budget_without_eviction_is_an_error() -> None:
    cache = fulmen.MatmulCache(budget=100)
    with pytest.raises(MemoryError, match="out of memory"):
        cache.upload("w", normal(64, 64))
