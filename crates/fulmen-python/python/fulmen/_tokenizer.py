"""Text to tokens and back."""

from __future__ import annotations

import json
import os
from typing import Any, Iterable, Literal, Mapping, Sequence, overload

from . import _fulmen

__all__ = ["Tokenizer"]


class Tokenizer:
    """The tokenizer of a model, with its chat template.

    >>> import fulmen
    >>> tokenizer = fulmen.Tokenizer.load()
    >>> ids = tokenizer.encode("Once upon a time")
    >>> tokenizer.decode(ids)
    'Once upon a time'
    """

    def __init__(self, native: _fulmen.Tokenizer) -> None:
        self._native = native

    @staticmethod
    def load(path: str | os.PathLike[str] | None = None) -> Tokenizer:
        """Reads the tokenizer of a GGUF file or a folder, without weights; without a path, that of the
        built-in model."""
        return Tokenizer(_fulmen.Tokenizer.load(None if path is None else os.fspath(path)))

    def encode(self, text: str, *, prompt: bool = False, special: bool = False) -> list[int]:
        """The tokens of a text.

        ``prompt`` adds the tokens that the model wants at the beginning and the end of a prompt. With
        ``special``, text of control tokens such as ``<|im_end|>`` becomes these tokens; text that users wrote
        must not.
        """
        return self._native.encode(text, prompt, special)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of tokens; with ``special``, that of control tokens, too."""
        return self._native.decode(list(ids), special)

    def token(self, id: int) -> str | None:
        """The text of a token as the file has it; ``None`` if there is no such token."""
        return self._native.token(id)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a token, which may be part of a character."""
        return self._native.token_bytes(id)

    def special_token(self, text: str) -> int | None:
        """The control token with this text."""
        return self._native.special_token(text)

    def __len__(self) -> int:
        return self._native.vocab_size()

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self._native.vocab_size()

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self._native.bos()

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return self._native.eos()

    @property
    def end_token_ids(self) -> list[int]:
        """The tokens that end generation."""
        return self._native.ends()

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a chat template."""
        return self._native.has_chat_template()

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: Literal[False] = False,
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
        template: str | None = None,
        **variables: Any,
    ) -> str: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: Literal[True],
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
        template: str | None = None,
        **variables: Any,
    ) -> list[int]: ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
        template: str | None = None,
        **variables: Any,
    ) -> str | list[int]:
        """A conversation as the model was trained to continue it: its text, or its tokens.

        ``template`` is another template, or the name of a family (``chatml``, ``llama3``, ``llama2``). Other
        keyword arguments, such as ``tools``, are variables of the template.

        >>> import fulmen
        >>> tokenizer = fulmen.Tokenizer.load()
        >>> tokenizer.apply_chat_template([{"role": "user", "content": "Hi!"}], template="chatml")
        '<|im_start|>user\\nHi!<|im_end|>\\n<|im_start|>assistant\\n'
        """
        text, tokens = self._native.chat_prompt(
            json.dumps(list(messages)),
            add_generation_prompt,
            thinking,
            json.dumps(variables) if variables else None,
            template,
        )
        return tokens if tokenize else text

    def __repr__(self) -> str:
        return f"<fulmen.Tokenizer of {self.vocab_size} tokens>"
