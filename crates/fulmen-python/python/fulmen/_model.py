"""Models: text, chats, embeddings, logits, scores."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Literal, Mapping, Sequence, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

from . import _fulmen
from ._chat import ChatCompletion, ChatStream
from ._errors import ArgumentError, FileError
from ._progress import Progress, reporter
from ._text import BatchStream, Stream, Text, schema_text
from ._tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ChatOptions", "GenerateOptions", "Model", "ModelInfo", "Perplexity", "Score"]

log = logging.getLogger("fulmen")


class GenerateOptions(TypedDict, total=False):
    """How text is generated: see :meth:`Model.generate`."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repeat_window: int
    seed: int | None
    stop: str | Sequence[str] | None
    schema: Any
    regex: str | None
    grammar: str | None
    special: bool
    ignore_end: bool
    logprobs: int | None
    cancel: _fulmen.CancelToken | None


class ChatOptions(GenerateOptions, total=False):
    """How a conversation is answered: see :meth:`Model.chat`."""

    on_piece: Callable[[str], object] | None
    template: str | None
    thinking: bool | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool


@dataclass(frozen=True)
class ModelInfo:
    """The key figures of a model."""

    architecture: str
    layers: int
    embedding: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    model_context: int
    context: int
    kv: str
    weight_bytes: int
    parameters: int
    device: str
    device_name: str


@dataclass(frozen=True)
class Score:
    """The log-probabilities of the tokens of a text, each after those before it."""

    tokens: list[int]
    logprobs: NDArray[np.float64]

    @property
    def total(self) -> float:
        """The log-probability of the whole text."""
        return float(self.logprobs.sum())

    @property
    def perplexity(self) -> float:
        """e to the mean of −ln p."""
        return math.exp(-float(self.logprobs.mean())) if len(self.logprobs) else math.nan


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text."""

    #: e to the mean of −ln p.
    value: float
    #: The standard error of the mean of −ln p.
    error: float
    #: Tokens scored.
    scored: int
    #: Seconds that it took.
    seconds: float


class Model:
    """A language model on a device.

    >>> import fulmen
    >>> model = fulmen.Model.load(device="cpu")          # the built-in model, which tells stories
    >>> model.generate("Once upon a time", max_tokens=4)
    ', there was a'
    >>> for piece in model.generate("Once upon a time", max_tokens=4, stream=True):
    ...     print(piece, end="|")
    ,| there| was| a|

    A model can be used from several threads. Calls that wait release the GIL.
    """

    def __init__(self, native: _fulmen.Model) -> None:
        self._native = native
        self._tokenizer: Tokenizer | None = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        context: int = 0,
        kv: str = "f16",
        threads: int | None = None,
        max_sequences: int = 64,
        batch_memory: int = 0,
        check_weights: bool = True,
        progress: Progress = None,
        cancel: _fulmen.CancelToken | None = None,
    ) -> Model:
        """Loads a GGUF file, a folder with safetensors, or a model of the download cache by its name; without
        a path, the small built-in model.

        ``device`` is ``auto``, ``cpu``, ``wgpu``, ``cuda`` or one of several, such as ``cuda:1``
        (:func:`fulmen.devices`). ``context`` is the longest sequence, 0 for that of the model, at most 4096.
        ``kv`` is the type of the KV cache: ``f16``, ``q8_0`` or ``f32``. ``threads`` is for the CPU.
        ``max_sequences`` and ``batch_memory`` (bytes for KV pages, 0 for as many as needed) are for lists of
        prompts. ``check_weights`` looks for NaN and infinity. ``cancel`` ends loading from another thread.
        """
        name = None if path is None else os.fspath(path)
        began = time.perf_counter()
        with reporter(progress, "load", "B") as report:
            native = _fulmen.Model.load(
                name, device, context, kv, threads, max_sequences, batch_memory, check_weights, report, cancel
            )
        model = cls(native)
        info = model.info
        log.info(
            "loaded %s: %s, %d parameters, on %s (%s) in %.2f s",
            name or "the built-in model",
            info.architecture,
            info.parameters,
            info.device,
            info.device_name,
            time.perf_counter() - began,
        )
        return model

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        update: bool = False,
        endpoint: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        progress: Progress = None,
        cancel: _fulmen.CancelToken | None = None,
        **options: Any,
    ) -> Model:
        """Loads a model of a hub, ``ORG/NAME[@REVISION][:FILE]``; downloads it unless it is in the cache.

        ``update`` asks the hub for a newer one. ``endpoint`` and ``cache_dir`` replace those of the
        environment (``HF_ENDPOINT``, ``HF_HUB_CACHE``). Other arguments are those of :meth:`load`.
        """
        path = None
        if not update and cache_dir is None and endpoint is None:
            try:
                path = _fulmen.find_model(name)
            except FileError:
                log.info("%s is not in the cache", name)
        if path is None:
            with reporter(progress, name, "B") as report:
                path = _fulmen.pull(name, endpoint, cache_dir, report, cancel)
        return cls.load(path, progress=progress, cancel=cancel, **options)

    def close(self) -> None:
        """Frees the model as soon as no call uses it. Later calls raise :class:`fulmen.ClosedError`."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.is_closed()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "<fulmen.Model, closed>"
        info = self.info
        return f"<fulmen.Model {info.architecture}, {info.parameters:,} parameters, on {info.device}>"

    @property
    def info(self) -> ModelInfo:
        """Its key figures."""
        return ModelInfo(**self._native.info())

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of its file, by GGUF keys."""
        return self._native.metadata()

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self._native.tokenizer())
        return self._tokenizer

    def _tokens(self, prompt: Any, special: bool = False) -> list[int]:
        if isinstance(prompt, str):
            return self._native.encode(prompt, special)
        tokens = list(prompt)
        if tokens and isinstance(tokens[0], str):
            raise ArgumentError("generate: a prompt is text or tokens; generate_many takes several prompts")
        return tokens

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        stream: Literal[False] = False,
        on_piece: Callable[[str], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Text: ...

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Unpack[GenerateOptions]
    ) -> Stream: ...

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        stream: bool = False,
        on_piece: Callable[[str], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Text | Stream:
        """Continues a prompt: text, or tokens.

        Returns the text, a :class:`Text`; with ``stream`` a :class:`Stream` of pieces for ``for`` and
        ``async for``. ``on_piece`` is called with each piece.

        By default the most likely token is taken; with a ``temperature`` above 0, tokens are drawn, ``seed``
        repeats them, and ``top_k``, ``top_p``, ``min_p`` and the penalties apply. ``max_tokens`` limits the
        text; ``stop`` has strings that end it. ``schema`` (a dict, JSON text, a pydantic model, or ``True``
        for any object), ``regex`` and ``grammar`` (Lark) restrict it to what matches. ``ignore_end`` goes on
        after an end token; ``special`` reads control tokens in the prompt; ``logprobs`` asks for the
        log-probabilities of each token and of so many alternatives. ``cancel``, a
        :class:`fulmen.CancelToken`, ends the text from another thread.

        >>> import fulmen
        >>> fulmen.Model.load(device="cpu").generate("The answer is", regex=" (yes|no)") in (" yes", " no")
        True
        """
        tokens = self._tokens(prompt, bool(options.get("special", False)))
        native, schema = _options(options)
        pieces = stream or on_piece is not None
        if options.get("logprobs") is not None:
            running = self._native.generate_many([tokens], native, pieces)
        else:
            running = self._native.generate(tokens, native, pieces, False)
        if stream:
            return Stream(running, schema)
        call = on_piece
        running.finish(None if call is None else lambda _, piece: call(piece))
        return Stream(running, schema).result

    @overload
    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        stream: Literal[False] = False,
        on_piece: Callable[[int, str], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Text]: ...

    @overload
    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        stream: Literal[True],
        **options: Unpack[GenerateOptions],
    ) -> BatchStream: ...

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        stream: bool = False,
        on_piece: Callable[[int, str], object] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Text] | BatchStream:
        """Continues many prompts together, by the engine for many sequences. The options are those of
        :meth:`generate`; prompt ``i`` draws with ``seed + i``. With ``stream``, pieces come with the index of
        their prompt.

        >>> import fulmen
        >>> model = fulmen.Model.load(device="cpu")
        >>> [str(text) for text in model.generate_many(["Once upon", "One day"], max_tokens=3)]
        [' a time,', ', a lively']
        """
        if isinstance(prompts, str):
            raise ArgumentError("generate_many: the prompts must be a list, got a str")
        special = bool(options.get("special", False))
        tokens = [self._tokens(prompt, special) for prompt in prompts]
        native, schema = _options(options)
        running = self._native.generate_many(tokens, native, stream or on_piece is not None)
        if stream:
            return BatchStream(running, schema)
        running.finish(on_piece)
        return BatchStream(running, schema).results

    async def generate_async(
        self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]
    ) -> Text:
        """:meth:`generate` without blocking the event loop."""
        stream: Stream = self.generate(prompt, **options, stream=True)
        async for _ in stream:
            pass
        return stream.result

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[False] = False,
        **options: Unpack[ChatOptions],
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> ChatStream: ...

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        on_piece: Callable[[str], object] | None = None,
        template: str | None = None,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> ChatCompletion | ChatStream:
        """Answers a conversation. Messages, tools and results have the form of OpenAI's API; the options are
        those of :meth:`generate`. ``template`` is for models without a chat template, ``thinking`` for those
        that can think first: thoughts are apart from the answer (``reasoning_content``). What the
        conversation has in common with the last one is not run again.

        ``tools`` are functions that the model may call, and ``tool_choice`` says whether it must: ``auto``,
        ``none``, ``required``, or a function. Calls are in ``tool_calls`` of the message. Without
        ``parallel_tool_calls`` the answer ends behind its first call. With ``logprobs``, the choice has those
        of all tokens, and the chunks of a stream those of their own.

        >>> import fulmen
        >>> model = fulmen.Model.load(device="cpu")
        >>> messages = [{"role": "user", "content": "Tell me a story."}]
        >>> answer = model.chat(messages, template="chatml", max_tokens=5)
        >>> answer["choices"][0]["message"]["role"], answer["usage"]["completion_tokens"]
        ('assistant', 5)
        """
        constrained = any(options.get(name) is not None for name in ("schema", "regex", "grammar"))
        tokens, reader = self.tokenizer._native.conversation(
            json.dumps(list(messages)),
            constrained,
            thinking,
            template,
            json.dumps(list(tools)),
            json.dumps(tool_choice),
            parallel_tool_calls,
        )
        required = reader.grammar()
        native, schema = _options(options, shown=reader.shown(), grammar=required or options.get("grammar"))
        pieces = stream or on_piece is not None
        logprobs = options.get("logprobs") is not None
        if logprobs:
            running = self._native.generate_many([tokens], native, pieces, reader)
        else:
            running = self._native.generate(tokens, native, pieces, True, reader)
        name = str(self.metadata.get("general.name", self.info.architecture))
        answer = ChatStream(Stream(running, schema), name, reader, self.tokenizer if logprobs else None)
        if stream:
            return answer
        for chunk in answer:
            piece = chunk["choices"][0]["delta"].get("content")
            if on_piece is not None and piece:
                on_piece(piece)
        return answer.result

    def embed(
        self,
        text: str | Sequence[str],
        *,
        normalize: bool = False,
        cancel: _fulmen.CancelToken | None = None,
    ) -> NDArray[np.float32]:
        """An embedding of a text, or one row for each of several texts, which run together: hidden states
        after the final norm, pooled as the model's file says (``pooling_type``: mean, first or last token),
        and those of the last token if it says nothing. ``normalize`` gives them length 1, so that their dot
        products are cosines. ``cancel`` ends the call from another thread.

        >>> import fulmen
        >>> fulmen.Model.load(device="cpu").embed(["a cat", "a dog"]).shape
        (2, 256)
        """
        texts = [text] if isinstance(text, str) else list(text)
        rows = self._native.embed([self._tokens(one) for one in texts], cancel)
        if normalize:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows = (rows / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
        return rows[0] if isinstance(text, str) else rows

    def logits(
        self,
        prompt: str | Sequence[int],
        *,
        all: bool = False,
        cancel: _fulmen.CancelToken | None = None,
    ) -> NDArray[np.float32]:
        """The logits after the last token of a prompt; with ``all`` after each of its tokens, as rows.

        >>> import fulmen
        >>> model = fulmen.Model.load(device="cpu")
        >>> model.tokenizer.decode([int(model.logits("Once upon a").argmax())])
        ' time'
        """
        tokens = self._tokens(prompt)
        rows = self._native.logits(tokens, 0 if all else max(len(tokens) - 1, 0), cancel)
        return rows if all else rows[0]

    def score(
        self,
        text: str | Sequence[int],
        *,
        prefix: str | Sequence[int] = "",
        cancel: _fulmen.CancelToken | None = None,
    ) -> Score:
        """The log-probabilities of the tokens of a text, after those of a prefix, which are not scored. The
        first token of all has none.

        >>> import fulmen
        >>> model = fulmen.Model.load(device="cpu")
        >>> likely, unlikely = (model.score(end, prefix="Once upon a").total for end in (" time", " dog"))
        >>> likely > unlikely
        True
        """
        before = self._tokens(prefix) if len(prefix) else self._tokens("")
        own = self.tokenizer.encode(text) if isinstance(text, str) else self._tokens(text)
        tokens, first = before + own, max(len(before), 1)
        return Score(tokens[first:], self._native.score(tokens, first, cancel))

    def perplexity(
        self,
        text: str | Sequence[int],
        *,
        window: int | None = None,
        stride: int | None = None,
        progress: Progress = None,
        cancel: _fulmen.CancelToken | None = None,
    ) -> Perplexity:
        """The perplexity of a text in windows. Without a ``stride`` the second half of each window is scored,
        as llama.cpp does; with one, every token but the first."""
        with reporter(progress, "perplexity", "tok") as report:
            tokens = self._tokens(text)
            return Perplexity(*self._native.perplexity(tokens, window, stride, report, cancel))

    def graph(self, step: str = "decode", rows: int = 1, *, fused: bool = True, dot: bool = False) -> str:
        """The graph of a decode or prefill step as text, or as Graphviz DOT."""
        return self._native.graph(step, rows, fused, dot)


def _options(options: GenerateOptions, **more: Any) -> tuple[_fulmen.Options, Any]:
    """The options of the engine, and the schema."""
    given: dict[str, Any] = {**options, **more}
    schema = given.pop("schema", None)
    stop = given.pop("stop", None)
    seed = given.pop("seed", None)
    if seed is None and given.get("temperature", 0.0):
        seed = random.getrandbits(64)
    native = _fulmen.Options(
        **given,
        stop=[stop] if isinstance(stop, str) else list(stop or ()),
        seed=0 if seed is None else seed,
        schema=None if schema is None else schema_text(schema),
    )
    return native, schema
