"""Graphs on every device, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

import fulmen
from conftest import DEVICES

RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


def ffn() -> tuple[fulmen.Graph, dict[str, np.ndarray]]:
    g = fulmen.Graph()
    x = g.input("x", 3, 64)
    h = g.rms_norm(x, g.vector("norm", 64))
    h = g.gate_up(h, g.weight("gate", 96, 64), g.weight("up", 96, 64))
    g.output("y", g.linear(h, g.weight("down", 64, 96), residual=x))
    weights = {"norm": normal(64), "gate": normal(96, 64), "up": normal(96, 64), "down": normal(64, 96)}
    return g, weights


@pytest.mark.parametrize("device", DEVICES)
def test_a_feed_forward_layer(device: str) -> None:
    g, w = ffn()
    program = g.compile(device, w)
    assert program.device.startswith(device) and program.arena_bytes > 0
    for _ in range(3):
        x = normal(3, 64)
        h = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w["norm"]
        expected = (silu(h @ w["gate"].T) * (h @ w["up"].T)) @ w["down"].T + x
        result = program(x=x)["y"]
        np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["f16", "q8_0", "q4_k"])
def test_weights_in_formats_of_gguf(device: str, dtype: str) -> None:
    g = fulmen.Graph()
    g.output("y", g.linear(g.input("x", 2, 256), g.weight("w", 40, 256, dtype)))
    blocks = fulmen.gguf.quantize_array(normal(40, 256), dtype)
    x = normal(2, 256)
    result = g.run({"x": x}, {"w": blocks}, device=device)["y"]
    expected = x @ fulmen.gguf.dequantize(blocks).T
    assert ((result - expected) ** 2).sum() / (expected**2).sum() < 1e-3


@pytest.mark.parametrize("device", DEVICES)
def test_elementwise_and_rows(device: str) -> None:
    g = fulmen.Graph()
    a, b = g.input("a", 4, 32), g.input("b", 4, 32)
    g.output("sum", a + b)
    g.output("product", a * b)
    g.output("scaled", a * 0.5)
    g.output("silu", g.silu(a))
    g.output("relu2", g.relu2(a))
    g.output("swiglu", g.swiglu(a, b))
    g.output("capped", g.soft_cap(a, 2.0))
    g.output("softmax", g.softmax(a, 0.7))
    g.output("best", g.argmax(a))
    x, y = normal(4, 32), normal(4, 32)
    out = g.run({"a": x, "b": y}, device=device)
    soft = np.exp(0.7 * x - (0.7 * x).max(1, keepdims=True))
    expected = {
        "sum": x + y,
        "product": x * y,
        "scaled": x / 2,
        "silu": silu(x),
        "relu2": np.maximum(x, 0) ** 2,
        "swiglu": silu(x) * y,
        "capped": 2 * np.tanh(x / 2),
        "softmax": soft / soft.sum(1, keepdims=True),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(out[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(out["best"].reshape(-1), x.argmax(1))


@pytest.mark.parametrize("device", DEVICES)
def test_embedding_and_attention(device: str) -> None:
    heads, dim, rows = 2, 16, 5
    g = fulmen.Graph()
    x = g.embed(g.weight("table", 20, heads * dim), g.indices("tokens", rows))
    g.output("x", x)
    g.output("y", g.attention(x, x, x, heads=heads, head_dim=dim))
    table, tokens = normal(20, heads * dim), np.array([3, 1, 4, 1, 19], np.uint32)
    out = g.run({"tokens": tokens}, {"table": table}, device=device)
    rows_of = table[tokens]
    np.testing.assert_array_equal(out["x"], rows_of)
    expected = np.zeros_like(rows_of)
    for head in range(heads):
        part = rows_of[:, head * dim : (head + 1) * dim]
        scores = part @ part.T / np.sqrt(dim)
        scores[np.triu_indices(rows, 1)] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        expected[:, head * dim : (head + 1) * dim] = weights / weights.sum(1, keepdims=True) @ part
    np.testing.assert_allclose(out["y"], expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("neox", [False, True])
def test_rope(neox: bool) -> None:
    g = fulmen.Graph()
    x = g.input("x", 3, 8)
    g.output("y", g.rope(x, g.indices("p", 3), head_dim=8, neox=neox))
    data, positions = normal(3, 8), np.array([0, 1, 7])
    result = g.run({"x": data, "p": positions}, device="cpu")["y"]
    angles = positions[:, None] * 10000.0 ** (-np.arange(4) / 4)
    first, second = (data[:, :4], data[:, 4:]) if neox else (data[:, ::2], data[:, 1::2])
    sin, cos = np.sin(angles), np.cos(angles)
    turned = (first * cos - second * sin, first * sin + second * cos)
    expected = np.concatenate(turned, 1) if neox else np.stack(turned, 2).reshape(3, 8)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_printing_and_drawing(tmp_path: Path) -> None:
    g, weights = ffn()
    assert "rms_norm(x, norm)" in str(g) and "return y" in str(g)
    assert "gate_up" in g.fused()
    assert g.to_dot().startswith("digraph") and "gate" in g.to_dot(fused=True)
    path = tmp_path / "graph.dot"
    g.draw(path)
    assert path.read_text() == g.to_dot()
    assert "y" in str(g.compile("cpu", weights))


def test_steps_of_a_program() -> None:
    g, weights = ffn()
    program = g.compile("cpu", weights, keep_all=True)
    program.write("x", normal(3, 64))
    assert program.run() > 0
    assert program.read("y").shape == (3, 64) and program.read("x").shape == (3, 64)


def compiled() -> fulmen.Program:
    g, weights = ffn()
    return g.compile("cpu", weights)


def with_graph(make: Callable[[fulmen.Graph], Any]) -> Callable[[], Any]:
    return lambda: make(fulmen.Graph())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (with_graph(lambda g: (g.input("x", 1, 2), g.input("x", 1, 2))), fulmen.GraphError, "is taken"),
        (with_graph(lambda g: g.linear(g.input("x", 1, 2), g.weight("w", 3, 4))), ValueError, "linear"),
        (with_graph(lambda g: g.add(g.input("x", 1, 2), g.input("y", 2, 1))), fulmen.GraphError, "binary"),
        (with_graph(lambda g: g.weight("w", 2, 33, "q8_0")), fulmen.GraphError, "multiple"),
        (with_graph(lambda g: g.weight("w", 2, 32, "q99")), fulmen.ArgumentError, "unknown type name"),
        (with_graph(lambda g: g.input("x", -1, 2)), OverflowError, None),
        (with_graph(lambda g: g.input("x", 2**33, 2)), OverflowError, None),
        (with_graph(lambda g: g.soft_cap(g.input("x", 1, 2), 0.0)), fulmen.GraphError, "cap"),
        (with_graph(lambda g: g.rms_norm(g.input("x", 1, 4), g.vector("n", 4), -1)), fulmen.GraphError, None),
        (with_graph(lambda g: g.silu(fulmen.Graph().input("x", 1, 2))), fulmen.GraphError, "another graph"),
        (with_graph(lambda g: g.output("y", g.input("x", 1, 2))), fulmen.GraphError, "already named"),
        (lambda: ffn()[0].compile("cpu", {}), fulmen.GraphError, "bound"),
        (lambda: ffn()[0].compile("cpu", {"none": normal(1)}), fulmen.ArgumentError, "no weight 'none'"),
        (lambda: ffn()[0].compile("cpu", {"norm": normal(63)}), fulmen.ArgumentError, "the shape of 'norm'"),
        (lambda: ffn()[0].compile("cpu", {"norm": np.zeros(64)}), fulmen.ArgumentError, "float64"),
        (lambda: ffn()[0].compile("abacus", {}), fulmen.ArgumentError, "unknown device"),
        (lambda: compiled()(x=normal(3, 63)), fulmen.ArgumentError, "the shape of 'x'"),
        (lambda: compiled()(x=np.zeros((3, 64))), fulmen.ArgumentError, "float64"),
        (lambda: compiled()(z=normal(3, 64)), fulmen.ArgumentError, "no input 'z'"),
        (lambda: compiled().read("z"), fulmen.ArgumentError, "no tensor 'z'"),
    ],
)
def test_wrong_calls_are_exceptions(
    call: Callable[[], Any], error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_token_outside_the_table_is_an_exception() -> None:
    g = fulmen.Graph()
    g.output("y", g.embed(g.weight("t", 4, 8), g.indices("i", 2)) * 1.0)
    program = g.compile("cpu", {"t": normal(4, 8)})
    with pytest.raises(fulmen.FulmenError):
        program(i=np.array([0, 4]))
    with pytest.raises(fulmen.ArgumentError, match="integers"):
        program(i=np.array([0.0, 1.0]))
    with pytest.raises(fulmen.ArgumentError, match="u32"):
        program(i=np.array([-1, 1]))
    assert program(i=np.array([0, 3]))["y"].shape == (2, 8)


def test_a_drawing_that_fails_is_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = fulmen.Graph()
    g.output("y", g.silu(g.input("x", 1, 4)))
    with pytest.raises(fulmen.FileError, match="draw: "):
        g.draw(tmp_path / "no" / "such.dot")
    dot = tmp_path / "dot"
    dot.write_text("#!/bin/sh\necho 'what is that?' >&2\nexit 3\n")
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(fulmen.FileError, match="dot could not draw .*x.abc: what is that"):
        g.draw(tmp_path / "x.abc")
