"""Conversations in the form of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import fulmen

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]


def test_an_answer_has_the_form_of_openai(model: fulmen.Model) -> None:
    answer = model.chat(MESSAGES, template="chatml", max_tokens=8)
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] == "length" and choice["index"] == 0
    usage = answer["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_chunks_are_the_answer(model: fulmen.Model) -> None:
    stream = model.chat(MESSAGES, template="chatml", max_tokens=8, stream=True)
    chunks = list(stream)
    assert chunks[0]["choices"][0]["delta"].get("role") == "assistant"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == stream.result["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_async_chat(cpu_model: fulmen.Model) -> None:
    async def collect() -> int:
        stream = cpu_model.chat(MESSAGES, template="chatml", max_tokens=5, stream=True)
        return len([chunk async for chunk in stream])

    assert asyncio.run(collect()) > 2


def test_a_longer_conversation_runs_only_what_is_new(cpu_model: fulmen.Model) -> None:
    first = cpu_model.chat(MESSAGES, template="chatml", max_tokens=8)
    more = MESSAGES + [dict(first["choices"][0]["message"]), {"role": "user", "content": "And then?"}]
    again = cpu_model.chat(more, template="chatml", max_tokens=8)
    assert again["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]


def test_parts_of_text(cpu_model: fulmen.Model) -> None:
    parts = [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "a story."}]
    messages = [MESSAGES[0], {"role": "user", "content": parts}]
    tokenizer = cpu_model.tokenizer
    assert tokenizer.apply_chat_template(messages, template="chatml") == tokenizer.apply_chat_template(
        MESSAGES, template="chatml"
    )


def test_without_a_template_it_says_so(cpu_model: fulmen.Model) -> None:
    assert not cpu_model.tokenizer.has_chat_template
    with pytest.raises(fulmen.ModelError, match="the model has no chat template"):
        cpu_model.chat(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ([{"content": "Hi"}], fulmen.ArgumentError, r"messages\[0\]: the role must be a string, got none"),
        ([{"role": "user"}], fulmen.ArgumentError, "the content must be text, got none"),
        ([{"role": "user", "content": 5}], fulmen.ArgumentError, "got a number"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], fulmen.ArgumentError, "parts"),
        (["Hi"], fulmen.ArgumentError, "an object with role and content, got a string"),
        ([{"role": "user", "content": "\ud800"}], fulmen.ArgumentError, "not valid"),
        ([{"role": "user", "content": {1, 2}}], TypeError, None),
        (5, TypeError, None),
    ],
)
def test_wrong_messages_are_exceptions(
    cpu_model: fulmen.Model, messages: Any, error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        cpu_model.chat(messages, template="chatml")


def test_unknown_templates_are_named(cpu_model: fulmen.Model) -> None:
    with pytest.raises(fulmen.TemplateError, match="vicuna"):
        cpu_model.chat(MESSAGES, template="vicuna")


def test_a_template_that_loops_is_stopped(cpu_model: fulmen.Model) -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}"
    with pytest.raises(fulmen.TemplateError):
        cpu_model.chat(MESSAGES, template=loop)


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
            # The built-in model would write line breaks between the tokens of JSON.
            "x-guidance": {"whitespace_flexible": False},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("choice", ["required", named("weather")])
def test_required_calls_are_calls(cpu_model: fulmen.Model, choice: Any) -> None:
    stream = cpu_model.chat(
        MESSAGES,
        template="chatml",
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_tokens=80,
        stream=True,
    )
    chunks = list(stream)
    (choice,) = stream.result["choices"]
    assert choice["finish_reason"] == "tool_calls" == chunks[-1]["choices"][0]["finish_reason"]
    message = choice["message"]
    assert message["content"] is None
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Rome")
    deltas = [chunk["choices"][0]["delta"].get("tool_calls", []) for chunk in chunks]
    assert [{**call, "index": 0}] == [delta for list_ in deltas for delta in list_]


def test_calls_and_text_are_apart(cpu_model: fulmen.Model) -> None:
    written = r'I look\.\n<tool_call>\{"name": "now", "arguments": \{\}\}</tool_call>'
    pieces: list[str] = []
    answer = cpu_model.chat(
        MESSAGES, template="chatml", tools=[WEATHER, NOW], regex=written, on_piece=pieces.append
    )
    message = answer["choices"][0]["message"]
    assert message["content"] == "I look." == "".join(pieces)
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "now", "arguments": "{}"}]
    # Without tools it is text.
    answer = cpu_model.chat(MESSAGES, template="chatml", regex=written)
    assert "<tool_call>" in (answer["choices"][0]["message"]["content"] or "")


def test_thoughts_are_apart(cpu_model: fulmen.Model) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"
    stream = cpu_model.chat(MESSAGES, template=template, max_tokens=5, stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in stream]
    message = stream.result["choices"][0]["message"]
    assert message["content"] == "" and message["reasoning_content"]
    thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert thoughts == message["reasoning_content"]


def test_earlier_calls_are_part_of_the_conversation(cpu_model: fulmen.Model) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    answer = cpu_model.chat(messages, template="chatml", tools=[NOW], max_tokens=4)
    assert answer["usage"]["completion_tokens"] == 4
    bad = [{**messages[2], "tool_calls": [{"function": {"name": "now", "arguments": "[1]"}}]}]
    with pytest.raises(fulmen.ArgumentError, match="arguments of a call must be a JSON object"):
        cpu_model.chat(bad, template="chatml", tools=[NOW])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": [{"name": "x"}]}, r"tools\[0\] must be an object of the type"),
        ({"tools": [named("a b")]}, "expected a name of letters"),
        ({"tools": [NOW], "tool_choice": "maybe"}, 'tool_choice must be "auto"'),
        ({"tools": [NOW], "tool_choice": named("later")}, "tool_choice must be one of the tools"),
        ({"tool_choice": "required"}, "tool_choice must be one of the tools, got no tools"),
        ({"tools": [NOW], "tool_choice": "required", "regex": "a"}, "a required call cannot have"),
    ],
)
def test_wrong_tools_are_exceptions(cpu_model: fulmen.Model, options: Any, words: str) -> None:
    with pytest.raises(fulmen.ArgumentError, match=words):
        cpu_model.chat(MESSAGES, template="chatml", **options)


def test_log_probabilities_are_part_of_an_answer(model: fulmen.Model) -> None:
    stream = model.chat(MESSAGES, template="chatml", max_tokens=6, logprobs=2, stream=True)
    chunks = list(stream)
    (choice,) = stream.result["choices"]
    assert choice["logprobs"] is not None
    content = choice["logprobs"]["content"]
    assert len(content) == 6 == stream.result["usage"]["completion_tokens"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode().strip() == (
        choice["message"]["content"] or ""
    ).strip()
    for entry in content:
        assert entry["logprob"] <= 0 and entry["token"] == bytes(entry["bytes"]).decode("utf-8", "replace")
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["token"] == entry["token"], "greedy takes the most likely token"
    told = []
    for chunk in chunks:
        logprobs = chunk["choices"][0]["logprobs"]
        told += logprobs["content"] if logprobs else []
    assert told == content, "each chunk has those of its tokens"
    plain = model.chat(MESSAGES, template="chatml", max_tokens=6)
    assert plain["choices"][0]["logprobs"] is None
    assert plain["choices"][0]["message"] == choice["message"]


def test_tags_of_calls_are_seen_with_log_probabilities(cpu_model: fulmen.Model) -> None:
    written = r'<tool_call>\{"name": "now", "arguments": \{\}\}</tool_call>'
    answer = cpu_model.chat(MESSAGES, template="chatml", tools=[NOW], regex=written, logprobs=0)
    (choice,) = answer["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]
    assert choice["logprobs"] is not None and choice["logprobs"]["content"][0]["top_logprobs"] == []


def test_usage_has_the_tokens_that_were_cached(cpu_model: fulmen.Model) -> None:
    options: Any = {"template": "chatml", "max_tokens": 3}
    other = [{"role": "user", "content": "Something else entirely."}]
    cpu_model.chat(other, **options)
    first = cpu_model.chat(MESSAGES, **options)["usage"]
    again = cpu_model.chat(MESSAGES, **options)["usage"]
    cached = first["prompt_tokens_details"]["cached_tokens"]
    assert cached < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"] + 1


@pytest.mark.parametrize("logprobs", [None, 0])
def test_without_parallel_calls_an_answer_ends_behind_its_first(
    cpu_model: fulmen.Model, logprobs: int | None
) -> None:
    call = r'<tool_call>\{"name": "now", "arguments": \{\}\}</tool_call>'
    options: Any = {"template": "chatml", "tools": [NOW], "regex": rf"Look\.{call}{call} And on\."}
    options["logprobs"] = logprobs
    both = cpu_model.chat(MESSAGES, **options)
    assert len(both["choices"][0]["message"]["tool_calls"]) == 2
    stream = cpu_model.chat(MESSAGES, **options, parallel_tool_calls=False, stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in stream]
    alone = cpu_model.chat(MESSAGES, **options, parallel_tool_calls=False)
    for answer in (stream.result, alone):
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == "Look."
        assert len(choice["message"]["tool_calls"]) == 1
        assert answer["usage"]["completion_tokens"] < both["usage"]["completion_tokens"]
    assert [len(delta.get("tool_calls", [])) for delta in deltas if "tool_calls" in delta] == [1]
    assert "".join(delta.get("content", "") for delta in deltas) == "Look."
