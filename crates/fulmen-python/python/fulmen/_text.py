"""Text that was generated, or is being generated."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Generic, Iterator, TypeVar

from . import _fulmen
from ._errors import ArgumentError

__all__ = ["BatchStream", "Stream", "Text", "TokenLogprob"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its log-probability, and the most likely tokens at its place with theirs."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


class Text(str):
    """A generated text: a string that knows how it came about.

    >>> import fulmen
    >>> text = fulmen.Model.load(device="cpu").generate("Once upon a time", max_tokens=8)
    >>> isinstance(text, str), len(text.tokens), text.finish_reason
    (True, 8, 'length')
    """

    __slots__ = (
        "_parsed",
        "_schema",
        "cached_tokens",
        "decode_seconds",
        "finish_reason",
        "logprobs",
        "prefill_seconds",
        "prompt_tokens",
        "stop",
        "tokens",
    )

    #: The tokens, with the one that ended the text.
    tokens: list[int]
    #: ``stop`` (the text is complete), ``length`` (a limit was reached) or ``cancelled``.
    finish_reason: str
    #: The stop string that ended the text.
    stop: str | None
    #: Tokens of the prompt.
    prompt_tokens: int
    #: Tokens of the prompt that were in the KV cache already.
    cached_tokens: int
    #: Seconds until the first token.
    prefill_seconds: float
    #: Seconds from the first token to the last.
    decode_seconds: float
    #: Log-probabilities, if ``logprobs`` was given.
    logprobs: list[TokenLogprob]
    _schema: Any
    _parsed: Any

    @staticmethod
    def _of(answer: _fulmen.Answer, schema: Any = None) -> Text:
        text = Text(answer["text"])
        text.tokens = answer["tokens"]
        text.finish_reason = answer["finish_reason"]
        text.stop = answer["stop"]
        text.prompt_tokens = answer["prompt_tokens"]
        text.cached_tokens = answer["cached_tokens"]
        text.prefill_seconds = answer["prefill_seconds"]
        text.decode_seconds = answer["decode_seconds"]
        text.logprobs = [TokenLogprob(*entry) for entry in answer["logprobs"]]
        complete = text.finish_reason == "stop" and text.stop is None
        text._schema = schema if complete else None
        text._parsed = None
        return text

    @property
    def parsed(self) -> Any:
        """With a schema: the value, or the instance of the pydantic model; ``None`` if the text is not
        complete. A model may refuse with its validators what its schema allows: then this raises pydantic's
        ``ValidationError``."""
        if self._parsed is None and self._schema is not None:
            validate = getattr(self._schema, "model_validate_json", None)
            self._parsed = validate(str(self)) if validate is not None else json.loads(self)
        return self._parsed

    @property
    def tokens_per_second(self) -> float:
        """Tokens decoded per second, not counting the first."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0


Piece = TypeVar("Piece")


class _Pieces(Generic[Piece]):
    """An iterator, synchronous or asynchronous, over pieces of text."""

    def __init__(self, native: _fulmen.Stream, schema: Any = None) -> None:
        self._native = native
        self._schema = schema

    def _convert(self, index: int, piece: str) -> Piece:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        piece = self._native.next()
        if piece is None:
            raise StopIteration
        return self._convert(*piece)

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        # Often the next piece is there already.
        piece = self._native.next(0.0)
        if piece is not None and not piece[1]:
            loop = asyncio.get_running_loop()
            try:
                piece = await loop.run_in_executor(None, self._native.next)
            except asyncio.CancelledError:
                self.cancel()
                raise
        if piece is None:
            raise StopAsyncIteration
        return self._convert(*piece)

    def cancel(self) -> None:
        """Ends the generation, from any thread. Pieces that are there already can still be taken."""
        self._native.cancel()

    def close(self) -> None:
        """The same as :meth:`cancel`."""
        self._native.cancel()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._native.cancel()

    def _answers(self) -> list[Text]:
        answers = self._native.results()
        if answers is None:
            self._native.finish()
            answers = self._native.results()
        return [Text._of(answer, self._schema) for answer in answers or []]


_Self = TypeVar("_Self", bound="_Pieces[Any]")


class Stream(_Pieces[str]):
    """A text that is being generated: an iterator over its pieces, for ``for`` and for ``async for``.

    >>> import fulmen
    >>> model = fulmen.Model.load(device="cpu")
    >>> stream = model.generate("Once upon a time", max_tokens=8, stream=True)
    >>> "".join(stream) == stream.result
    True
    """

    def _convert(self, index: int, piece: str) -> str:
        return piece

    @property
    def result(self) -> Text:
        """The whole text. Waits for the end, if it has not come yet."""
        return self._answers()[0]


class BatchStream(_Pieces["tuple[int, str]"]):
    """Texts that are being generated together: an iterator over pieces with the index of their prompt."""

    def _convert(self, index: int, piece: str) -> tuple[int, str]:
        return index, piece

    @property
    def results(self) -> list[Text]:
        """All texts, in the order of their prompts. Waits for the end, if it has not come yet."""
        return self._answers()


def schema_text(schema: Any) -> str:
    """The JSON text of a schema: a dictionary, a text, ``True`` for any object, or a pydantic model."""
    if schema is True:
        return '{"type": "object"}'
    if isinstance(schema, str):
        return schema
    if isinstance(schema, dict):
        return json.dumps(schema)
    make = getattr(schema, "model_json_schema", None)
    if make is None:
        kind = type(schema).__name__
        raise ArgumentError(f"generate: the schema must be a dict, a str or a pydantic model, got {kind}")
    return json.dumps(_closed(make()))


def _closed(schema: Any) -> Any:
    """A schema of pydantic without the keys that a model would ignore: objects have their properties only."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if "properties" in closed and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
