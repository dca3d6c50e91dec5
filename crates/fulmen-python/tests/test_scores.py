"""Embeddings, logits and scores, against each other and against numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Callable

import numpy as np
import pytest

import fulmen

PROMPT = "Once upon a time, there was a little girl"


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    rows = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)))


def assert_close(got: np.ndarray, expected: np.ndarray) -> None:
    """As close as 8-bit activations allow.

    Batches of other sizes and other devices add in another order. That is 1e-14 of normalized mean-square
    error, until it changes one rounding of an activation to 8 bits: up to 2e-4 with the built-in model.
    Between logits of different tokens it is a thousand times that and more.
    """
    error = np.square(got - expected, dtype=np.float64).sum() / np.square(expected, dtype=np.float64).sum()
    assert error < 1e-3, error


def test_logits_predict_what_greedy_decoding_takes(model: fulmen.Model) -> None:
    logits = model.logits("Once upon a time")
    assert logits.shape == (2048,) and logits.dtype == np.float32
    assert int(logits.argmax()) == model.generate("Once upon a time", max_tokens=1).tokens[0]


def test_logits_of_all_tokens(model: fulmen.Model) -> None:
    tokens = model.tokenizer.encode(PROMPT, prompt=True)
    rows = model.logits(PROMPT, all=True)
    assert rows.shape == (len(tokens), 2048)
    # Matmuls of one row and of several round differently.
    assert_close(rows[-1], model.logits(PROMPT))
    assert_close(rows[2], model.logits(tokens[:3]))


def test_devices_give_the_same_logits(model: fulmen.Model, cpu_model: fulmen.Model) -> None:
    assert_close(model.logits(PROMPT), cpu_model.logits(PROMPT))


def test_scores_are_log_softmax_of_the_logits(model: fulmen.Model) -> None:
    score = model.score(PROMPT)
    tokens = model.tokenizer.encode(PROMPT, prompt=True)
    before = len(tokens) - len(model.tokenizer.encode(PROMPT))
    first = max(before, 1)
    rows = log_softmax(model.logits(tokens, all=True))
    expected = [rows[at - 1, tokens[at]] for at in range(first, len(tokens))]
    assert score.tokens == tokens[first:]
    np.testing.assert_allclose(score.logprobs, expected, atol=2e-2)
    assert math.isclose(score.total, sum(expected), abs_tol=0.1)
    assert math.isclose(score.perplexity, math.exp(-np.mean(expected)), rel_tol=2e-2)


def test_a_prefix_is_not_scored(model: fulmen.Model) -> None:
    score = model.score(" time", prefix="Once upon a")
    assert len(score.logprobs) == 1 and score.logprobs[0] > -0.1
    assert model.score(" dog", prefix="Once upon a").total < score.total


def test_perplexity(cpu_model: fulmen.Model) -> None:
    story = PROMPT + cpu_model.generate(PROMPT)
    result = cpu_model.perplexity(story, window=64, stride=32)
    assert 1.0 < result.value < 3.0 and result.scored > 50 and result.error > 0 and result.seconds > 0
    assert cpu_model.perplexity("zebra quartz vortex jumble kitchen", window=64, stride=32).value > 50


def test_perplexity_reports_progress(cpu_model: fulmen.Model) -> None:
    seen: list[tuple[int, int]] = []
    cpu_model.perplexity(PROMPT * 5, window=16, stride=8, progress=lambda *at: seen.append(at))
    assert len(seen) > 3 and 0 < seen[-1][0] <= seen[-1][1] and seen == sorted(seen)


def test_embeddings(model: fulmen.Model) -> None:
    rows = model.embed(["a little girl", "a small girl", "the engine exploded"])
    width = model.info.embedding
    assert rows.shape == (3, width) and rows.dtype == np.float32
    assert_close(model.embed("a little girl"), rows[0])
    unit = model.embed(["a little girl", "a small girl"], normalize=True)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-5)


def test_many_texts_are_embedded_as_each_is_alone(cpu_model: fulmen.Model) -> None:
    texts = [PROMPT[: 5 + at % 30] for at in range(70)]
    rows = cpu_model.embed(texts)
    for at in range(0, 70, 11):
        assert_close(rows[at], cpu_model.embed(texts[at]))
    # A text that fills the context has no room for the token that the engine draws.
    with fulmen.Model.load(device="cpu", context=16) as model:
        texts = ["a " * count for count in range(1, 40)]
        full = next(text for text in texts if len(model.tokenizer.encode(text, prompt=True)) == 16)
        assert_close(model.embed([full, "a"])[0], model.embed(full))
        with pytest.raises(fulmen.ContextError, match="text 1: "):
            model.embed(["a", full * 2])


@pytest.mark.parametrize("pooling", [1, 2, 3])
def test_embeddings_are_pooled_as_the_file_says(
    story_path: Path, tmp_path: Path, cpu_model: fulmen.Model, pooling: int
) -> None:
    texts = ["a little girl", "the engine exploded"]
    with fulmen.Model.load(pooled(story_path, tmp_path, pooling), device="cpu") as model:
        rows = model.embed(texts)
    for row, text in zip(rows, texts):
        tokens = cpu_model.tokenizer.encode(text, prompt=True)
        ends = range(1, len(tokens) + 1) if pooling == 1 else [1 if pooling == 2 else len(tokens)]
        states = [cpu_model._native.embed([tokens[:end]])[0] for end in ends]
        assert_close(row, np.mean(states, axis=0, dtype=np.float64))


def test_a_pooling_without_embeddings_of_texts(story_path: Path, tmp_path: Path) -> None:
    with fulmen.Model.load(pooled(story_path, tmp_path, 4), device="cpu") as model:
        with pytest.raises(fulmen.FulmenError, match="pooling_type.* is 4"):
            model.embed("a little girl")


def pooled(story_path: Path, folder: Path, pooling: int) -> Path:
    """The built-in model with another pooling."""
    file = fulmen.gguf.File(story_path)
    architecture = file.metadata["general.architecture"]
    tensors = {name: file.blocks(name) for name in file.tensors}
    path = folder / f"pooling-{pooling}.gguf"
    fulmen.gguf.write(path, {**file.metadata, f"{architecture}.pooling_type": pooling}, tensors)
    return path


def test_an_embedding_times_the_output_matrix_is_the_logits(
    cpu_model: fulmen.Model, story_path: Path
) -> None:
    file = fulmen.gguf.File(story_path)
    name = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    logits = file.array(name) @ cpu_model.embed(PROMPT)
    assert int(logits.argmax()) == int(cpu_model.logits(PROMPT).argmax())
    np.testing.assert_allclose(logits, cpu_model.logits(PROMPT), atol=0.5)


def test_no_texts_are_no_rows(cpu_model: fulmen.Model) -> None:
    assert cpu_model.embed([]).shape == (0, cpu_model.info.embedding)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda m: m.logits([]), fulmen.ArgumentError),
        (lambda m: m.logits([99999]), fulmen.ArgumentError),
        (lambda m: m.embed([None]), TypeError),
        (lambda m: m.score([99999]), fulmen.ArgumentError),
        (lambda m: m.perplexity("one", window=64), fulmen.ArgumentError),
        (lambda m: m.perplexity(PROMPT, window=1), fulmen.ArgumentError),
        (lambda m: m.perplexity(PROMPT, window=8, stride=8), fulmen.ArgumentError),
        (lambda m: m.embed("word " * 5000), fulmen.ContextError),
    ],
)
def test_wrong_calls_are_exceptions(
    cpu_model: fulmen.Model, call: Callable[[fulmen.Model], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(cpu_model)
