"""Random programs of array operations, against numpy in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fulmen
from conftest import DEVICES

pytestmark = pytest.mark.skipif("wgpu" not in DEVICES, reason="no device of wgpu")
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

floats = st.floats(-8, 8, width=32)


def arrays(shape: Any) -> Any:
    return hnp.arrays(np.float32, shape, elements=floats)


STEPS = {
    "relu": (lambda x, y: fulmen.relu(x), lambda x, y: np.maximum(x, 0)),
    "tanh": (lambda x, y: fulmen.tanh(x), lambda x, y: np.tanh(x)),
    "sigmoid": (lambda x, y: fulmen.sigmoid(x), lambda x, y: 1 / (1 + np.exp(-x))),
    "scale": (lambda x, y: x * 0.5, lambda x, y: x * 0.5),
    "shift": (lambda x, y: x - 0.25, lambda x, y: x - 0.25),
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "sub": (lambda x, y: y - x, lambda x, y: y - x),
    "mul": (lambda x, y: fulmen.tanh(x) * y, lambda x, y: np.tanh(x) * y),
    "max": (lambda x, y: fulmen.maximum(x, y), lambda x, y: np.maximum(x, y)),
    "clamp": (lambda x, y: x.clamp(-2, 2), lambda x, y: np.clip(x, -2, 2)),
}


@SETTINGS
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 70)).flatmap(lambda s: st.tuples(arrays(s), arrays(s))),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    st.booleans(),
)
def test_chains(data: tuple[np.ndarray, np.ndarray], steps: list[str], fuse: bool) -> None:
    a, b = data
    batch = fulmen.Batch(fuse=fuse)
    x, y = batch.upload(a), batch.upload(b)
    ours, expected = x, a.astype(np.float64)
    for step in steps:
        ours = STEPS[step][0](ours, y)
        expected = STEPS[step][1](expected, b.astype(np.float64))
    np.testing.assert_allclose(batch.run(ours), expected, rtol=1e-4, atol=1e-4)


@SETTINGS
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 80), st.integers(1, 40)),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_matmuls(sizes: tuple[int, int, int], transposed: bool, seed: int) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if transposed else (k, n)).astype(np.float32)
    batch = fulmen.Batch()
    y = batch.upload(a).matmul_nt(b) if transposed else batch.upload(a) @ b
    expected = a.astype(np.float64) @ (b.T if transposed else b)
    np.testing.assert_allclose(batch.run(y), expected, rtol=1e-3, atol=1e-3)


@SETTINGS
@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=12).flatmap(arrays), st.integers(0, 3))
def test_uploads_of_any_strides_come_back(array: np.ndarray, cut: int) -> None:
    view = array[cut % max(len(array), 1) :][::-1]
    batch = fulmen.Batch()
    value = batch.upload(view)
    batch.execute()
    np.testing.assert_array_equal(batch.read(value), view)


@SETTINGS
@given(st.integers(1, 6), st.integers(1, 100), st.integers(0, 2**32 - 1))
def test_softmax_rows_sum_to_one(rows: int, width: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(0, 5, (rows, width)).astype(np.float32)
    batch = fulmen.Batch()
    result = batch.run(fulmen.softmax(batch.upload(x)))
    expected = np.exp(x - x.max(1, keepdims=True).astype(np.float64))
    np.testing.assert_allclose(result, expected / expected.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.sum(1), 1, rtol=1e-5)


@SETTINGS
@given(
    st.sampled_from(["f32", "f16", "bf16", "q8_0", "q5_1", "q4_0", "q4_k", "q6_k", "q2_k"]),
    st.integers(0, 999),
)
def test_quantized_weights_multiply(dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((9, 256)).astype(np.float32)
    blocks = fulmen.gguf.quantize_array(w, dtype)
    back = fulmen.gguf.dequantize(blocks)
    tolerance = {"q2_k": 0.15, "q4_0": 0.02, "q4_k": 0.02, "q5_1": 0.01}.get(dtype, 2e-3)
    assert ((back - w) ** 2).sum() / (w**2).sum() < tolerance
    if dtype in ("q5_1", "q2_k"):
        return
    x = rng.standard_normal((3, 256)).astype(np.float32)
    cache = fulmen.MatmulCache(exact=True)
    cache.upload("w", blocks)
    np.testing.assert_allclose(cache.matmul("w", x), x @ back.T, rtol=2e-3, atol=2e-2)
