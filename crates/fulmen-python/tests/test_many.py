"""Many prompts at once, in the engine."""

from __future__ import annotations

import threading

import pytest

import fulmen

PROMPTS = ["Once upon a time", "One day", "The little dog", "Lily and Ben"]


def test_each_prompt_gets_its_text(model: fulmen.Model) -> None:
    texts = model.generate_many(PROMPTS, max_tokens=10)
    assert len(texts) == 4 and all(len(text.tokens) == 10 for text in texts)
    assert texts[0].startswith(", there was a")
    assert len(set(texts)) > 1


def test_the_order_is_that_of_the_prompts(cpu_model: fulmen.Model) -> None:
    texts = cpu_model.generate_many(PROMPTS * 10, max_tokens=4)
    for at, text in enumerate(texts):
        assert text == texts[at % 4]


def test_pieces_come_with_the_index_of_their_prompt(model: fulmen.Model) -> None:
    stream = model.generate_many(PROMPTS, max_tokens=6, stream=True)
    parts = [""] * 4
    for index, piece in stream:
        parts[index] += piece
    assert parts == stream.results


def test_callback_of_many(cpu_model: fulmen.Model) -> None:
    parts = [""] * 4

    def add(index: int, piece: str) -> None:
        parts[index] += piece

    assert cpu_model.generate_many(PROMPTS, max_tokens=6, on_piece=add) == parts


def test_stop_strings_of_many(cpu_model: fulmen.Model) -> None:
    for text in cpu_model.generate_many(PROMPTS, max_tokens=60, stop=["."]):
        assert "." not in text and text.stop == "." and text.finish_reason == "stop"


def test_schema_of_many(cpu_model: fulmen.Model) -> None:
    for text in cpu_model.generate_many(PROMPTS, regex=" (yes|no)"):
        assert text in (" yes", " no")


def test_seeds_of_many_repeat(cpu_model: fulmen.Model) -> None:
    first = cpu_model.generate_many(PROMPTS[:1] * 3, max_tokens=12, temperature=1.2, seed=7)
    again = cpu_model.generate_many(PROMPTS[:1] * 3, max_tokens=12, temperature=1.2, seed=7)
    assert first == again and len(set(first)) > 1


def test_no_prompts(cpu_model: fulmen.Model) -> None:
    assert cpu_model.generate_many([]) == []


def test_cancelling_many(cpu_model: fulmen.Model) -> None:
    stream = cpu_model.generate_many(PROMPTS * 8, ignore_end=True, stream=True)
    next(stream)
    threading.Timer(0.05, stream.cancel).start()
    results = stream.results
    assert len(results) == 32
    assert {text.finish_reason for text in results} <= {"cancelled", "length"}
    assert cpu_model.generate_many(PROMPTS, max_tokens=3)


def test_more_prompts_than_the_engine_queues(cpu_model: fulmen.Model) -> None:
    texts = cpu_model.generate_many(["One day"] * 1100, max_tokens=1)
    assert len(texts) == 1100 and len(set(texts)) == 1


@pytest.mark.parametrize(
    ("prompts", "error", "words"),
    [
        ("Once", fulmen.ArgumentError, "must be a list"),
        (["Once", []], fulmen.ArgumentError, "prompt 1: the prompt is empty"),
        ([[10**7]], fulmen.ArgumentError, "outside the vocabulary"),
        (["x " * 9000], fulmen.ContextError, "leaves no room in a context"),
        ([None], TypeError, None),
    ],
)
def test_wrong_prompts_of_many(
    cpu_model: fulmen.Model, prompts: object, error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        cpu_model.generate_many(prompts)  # type: ignore[call-overload]
    assert cpu_model.generate_many(["One day"], max_tokens=2)
