"""Answers in the form of OpenAI's chat API."""

from __future__ import annotations

import time
import uuid
from typing import AsyncIterator, Iterable, Iterator, TypedDict

from . import _fulmen
from ._text import Stream
from ._tokenizer import Tokenizer

__all__ = ["ChatChunk", "ChatCompletion", "ChatMessage", "ChatStream", "ToolCall"]


class Function(TypedDict):
    """The function of a call: its name, and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: str
    function: Function


class _Message(TypedDict):
    role: str
    content: str | None


class ChatMessage(_Message, total=False):
    """A message of an answer. The content is ``None`` if there are only calls of tools."""

    reasoning_content: str
    tool_calls: list[ToolCall]


class TopLogprob(TypedDict):
    """One of the most likely tokens: its text, bytes and log-probability."""

    token: str
    bytes: list[int]
    logprob: float


class ChatLogprob(TopLogprob):
    """A token of an answer, and the most likely ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """The log-probabilities of the tokens of an answer."""

    content: list[ChatLogprob]


class Choice(TypedDict):
    """One answer. It has log-probabilities if ``logprobs`` was given."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class PromptDetails(TypedDict):
    """What is known of the tokens of a prompt: how many were in the KV cache already."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens that an answer took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class ChatCompletion(TypedDict):
    """An answer."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ToolCallDelta(ToolCall):
    """A call of a tool, and its number in the answer."""

    index: int


class Delta(TypedDict, total=False):
    """What a piece of an answer adds."""

    role: str
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]


class ChunkChoice(TypedDict):
    """A piece of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatChunk(TypedDict):
    """A piece of an answer."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]


class ChatStream:
    """An answer that is being generated: an iterator over chunks, for ``for`` and for ``async for``."""

    def __init__(
        self, stream: Stream, model: str, reader: _fulmen.AnswerReader, tokenizer: Tokenizer | None
    ) -> None:
        """``tokenizer`` is that of log-probabilities, if they are wanted."""
        self._tokenizer = tokenizer
        # Log-probabilities of pieces that no chunk had yet, and the number of those that chunks had.
        self._waiting: list[_fulmen.Logprob] = []
        self._told = 0
        self._stream = stream
        self._model = model
        self._reader = reader
        self._key = uuid.uuid4().hex
        self._created = int(time.time())
        self._calls = 0
        self._ended = False
        self._ready = [self._chunk({"role": "assistant", "content": ""})]

    def _chunk(self, delta: Delta, finish_reason: str | None = None) -> ChatChunk:
        return {
            "id": f"chatcmpl-{self._key}",
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": 0,
                    "delta": delta,
                    "logprobs": self._logprobs(self._taken()) if delta.get("role") is None else None,
                    "finish_reason": finish_reason,
                }
            ],
        }

    def _taken(self) -> list[_fulmen.Logprob]:
        taken, self._waiting = self._waiting, []
        self._told += len(taken)
        return taken

    def _logprobs(self, entries: Iterable[_fulmen.Logprob]) -> ChatLogprobs | None:
        if self._tokenizer is None:
            return None
        content: list[ChatLogprob] = []
        for token, logprob, top in entries:
            tops = [self._logprob(*entry) for entry in top]
            content.append({**self._logprob(token, logprob), "top_logprobs": tops})
        return {"content": content}

    def _logprob(self, token: int, logprob: float) -> TopLogprob:
        known = self._tokenizer is not None and token < self._tokenizer.vocab_size
        data = self._tokenizer.token_bytes(token) if self._tokenizer is not None and known else b""
        # JSON has no infinity.
        finite = max(logprob, -9999.0)
        return {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": finite}

    def _push(self, piece: str) -> None:
        if self._tokenizer is not None:
            self._waiting += self._stream._native.logprobs()
        self._read(*self._reader.push(piece))

    def _call(self, index: int, name: str, arguments: str) -> ToolCall:
        function: Function = {"name": name, "arguments": arguments}
        return {"id": f"call_{self._key}_{index}", "type": "function", "function": function}

    def _read(self, reasoning: str, content: str, calls: list[tuple[str, str]]) -> None:
        """Adds what a piece of text turned out to be."""
        delta: Delta = {}
        if reasoning:
            delta["reasoning_content"] = reasoning
        if content:
            delta["content"] = content
        if calls:
            numbered = enumerate(calls, self._calls)
            delta["tool_calls"] = [{**self._call(at, *call), "index": at} for at, call in numbered]
            self._calls += len(calls)
        if delta:
            self._ready.append(self._chunk(delta))

    def _finish(self) -> None:
        self._ended = True
        if self._tokenizer is not None:
            entries = self._stream.result.logprobs[self._told + len(self._waiting) :]
            self._waiting += [(entry.token, entry.logprob, entry.top) for entry in entries]
        self._read(*self._reader.finish())
        self._ready.append(self._chunk({}, self._finish_reason(self._calls)))

    def _finish_reason(self, calls: int) -> str:
        result = self._stream.result
        called = calls > 0 and result.finish_reason == "stop" and result.stop is None
        return "tool_calls" if called else result.finish_reason

    def __iter__(self) -> Iterator[ChatChunk]:
        return self

    def __next__(self) -> ChatChunk:
        while not self._ready:
            if self._ended:
                raise StopIteration
            try:
                self._push(next(self._stream))
            except StopIteration:
                self._finish()
        return self._ready.pop(0)

    def __aiter__(self) -> AsyncIterator[ChatChunk]:
        return self

    async def __anext__(self) -> ChatChunk:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            try:
                self._push(await self._stream.__anext__())
            except StopAsyncIteration:
                self._finish()
        return self._ready.pop(0)

    def cancel(self) -> None:
        """Ends the generation, from any thread."""
        self._stream.cancel()

    @property
    def result(self) -> ChatCompletion:
        """The whole answer. Waits for the end, if it has not come yet."""
        text = self._stream.result
        reasoning, content, calls = self._reader.parse(text)
        message: ChatMessage = {"role": "assistant", "content": None if calls and not content else content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [self._call(at, *call) for at, call in enumerate(calls)]
        generated = len(text.tokens)
        entries = ((entry.token, entry.logprob, entry.top) for entry in text.logprobs)
        return {
            "id": f"chatcmpl-{self._key}",
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": self._logprobs(entries),
                    "finish_reason": self._finish_reason(len(calls)),
                }
            ],
            "usage": {
                "prompt_tokens": text.prompt_tokens,
                "completion_tokens": generated,
                "total_tokens": text.prompt_tokens + generated,
                "prompt_tokens_details": {"cached_tokens": text.cached_tokens},
            },
        }
