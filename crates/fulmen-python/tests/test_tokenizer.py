"""Tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fulmen

TOKENIZER = fulmen.Tokenizer.load()


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=100))
def test_every_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_ids_and_texts() -> None:
    ids = TOKENIZER.encode("Once upon a time")
    assert len(ids) == 4 and all(0 <= id < len(TOKENIZER) for id in ids)
    assert b"".join(TOKENIZER.token_bytes(id) for id in ids) == b"Once upon a time"
    assert TOKENIZER.token(10**6) is None
    assert TOKENIZER.vocab_size == len(TOKENIZER) == 2048
    assert "2048" in repr(TOKENIZER)


def test_end_tokens() -> None:
    assert TOKENIZER.end_token_ids and TOKENIZER.eos_token_id in TOKENIZER.end_token_ids
    assert TOKENIZER.decode(TOKENIZER.end_token_ids) == ""
    assert TOKENIZER.decode(TOKENIZER.end_token_ids, special=True) != ""


def test_control_tokens_in_text_stay_text() -> None:
    end = TOKENIZER.end_token_ids[0]
    name = TOKENIZER.decode([end], special=True)
    assert TOKENIZER.special_token(name) == end
    assert end not in TOKENIZER.encode(name)
    assert TOKENIZER.encode(name, special=True) == [end]


def test_the_tokenizer_of_a_file_and_of_a_model(story_path: Path, cpu_model: fulmen.Model) -> None:
    text = "The quick brown fox."
    expected = TOKENIZER.encode(text)
    assert fulmen.Tokenizer.load(story_path).encode(text) == expected
    assert cpu_model.tokenizer.encode(text) == expected


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: TOKENIZER.decode([10**6]), fulmen.ArgumentError, "outside the vocabulary of 2048"),
        (lambda: TOKENIZER.token_bytes(10**6), fulmen.ArgumentError, "outside the vocabulary"),
        (lambda: TOKENIZER.decode([-1]), OverflowError, None),
        (lambda: TOKENIZER.decode("abc"), TypeError, None),
        (lambda: TOKENIZER.encode("\udfff"), UnicodeEncodeError, None),
        (lambda: TOKENIZER.encode(b"bytes"), TypeError, None),
        (lambda: fulmen.Tokenizer.load("/no/such.gguf"), fulmen.FileError, "No such file"),
    ],
)
def test_wrong_calls_are_exceptions(
    call: Callable[[], object], error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        call()
