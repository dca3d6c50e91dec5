"""Schemas, regular expressions and grammars."""

from __future__ import annotations

import json
import re
from typing import Literal

import pydantic
import pytest
from pydantic import BaseModel, Field

import fulmen

PROMPT = "Once upon a time"


class Pet(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)
    tame: bool


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "legs"],
    "additionalProperties": False,
}


def test_a_schema_of_a_dictionary(model: fulmen.Model) -> None:
    text = model.generate(PROMPT, schema=SCHEMA, max_tokens=200)
    assert text.finish_reason == "stop"
    value = json.loads(text)
    assert value == text.parsed and value["kind"] in ("cat", "dog") and 0 <= value["legs"] <= 9
    assert list(value) == ["kind", "legs"]


def test_a_schema_of_text(cpu_model: fulmen.Model) -> None:
    assert cpu_model.generate(PROMPT, schema=json.dumps(SCHEMA), max_tokens=200).parsed["kind"]


def test_a_pydantic_model(cpu_model: fulmen.Model) -> None:
    text = cpu_model.generate(PROMPT, schema=Pet, max_tokens=300)
    assert isinstance(text.parsed, Pet) and 0 <= text.parsed.age <= 99 and len(text.parsed.name) <= 8
    assert list(json.loads(text)) == ["name", "age", "tame"], "no other keys"


def test_any_object(cpu_model: fulmen.Model) -> None:
    text = cpu_model.generate(PROMPT, schema=True, max_tokens=20)
    assert text.startswith("{")


@pytest.mark.parametrize("pattern", ["(yes|no)", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "a{3}b?"])
def test_a_regular_expression(model: fulmen.Model, pattern: str) -> None:
    text = model.generate(PROMPT, regex=pattern, max_tokens=40)
    assert re.fullmatch(pattern, text), text


def test_a_grammar(model: fulmen.Model) -> None:
    text = model.generate(PROMPT, grammar='start: "<" WORD ">"\nWORD: /[a-z]{1,5}/', max_tokens=40)
    assert re.fullmatch("<[a-z]{1,5}>", text), text


def test_a_text_that_was_cut_is_not_parsed(cpu_model: fulmen.Model) -> None:
    text = cpu_model.generate(PROMPT, schema=SCHEMA, max_tokens=3)
    assert text.finish_reason == "length" and text.parsed is None


def test_constraints_in_a_stream(cpu_model: fulmen.Model) -> None:
    stream = cpu_model.generate(PROMPT, regex="(yes|no)", stream=True)
    assert "".join(stream) in ("yes", "no")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema": {"type": "objekt"}}, "objekt"),
        ({"schema": "{"}, "not JSON"),
        ({"schema": 5}, "must be a dict, a str or a pydantic model, got int"),
        ({"regex": "("}, "regular expression"),
        ({"regex": "(" * 500 + "a" + ")" * 500}, "levels deep"),
        ({"regex": "a" * (2 << 20)}, "at most"),
        ({"grammar": "start: nothing"}, "grammar"),
        ({"schema": {"$ref": "http://example.com/schema"}}, "schema"),
    ],
)
def test_wrong_grammars_are_exceptions(
    cpu_model: fulmen.Model, options: dict[str, object], words: str | None
) -> None:
    with pytest.raises(fulmen.ArgumentError, match=words):
        cpu_model.generate(PROMPT, **options)  # type: ignore[call-overload]


def test_a_model_that_refuses_keeps_the_text(cpu_model: fulmen.Model) -> None:
    class Never(BaseModel):
        kind: Literal["cat"]

        @pydantic.field_validator("kind")
        @classmethod
        def refuse(cls, kind: str) -> str:
            raise ValueError("no cats")

    text = cpu_model.generate("As JSON: ", schema=Never, max_tokens=60)
    assert json.loads(text) == {"kind": "cat"}
    with pytest.raises(pydantic.ValidationError, match="no cats"):
        text.parsed
