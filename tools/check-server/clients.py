"""OpenAI's and Anthropic's own clients against a server: clients.py URL

Every parameter, in whole answers and in streams. Calls of tools are in calls.py, which needs a chat model.
"""

import asyncio
import json
import math
import re
import sys
import time
import urllib.request

import anthropic
import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Once upon a time"}]
greedy = dict(model=model, messages=messages, max_tokens=20, temperature=0, seed=1)


def check(name, holds, found=None):
    if not holds:
        sys.exit(f"{name}: {found!r}")
    print("ok:", name)


def refused(name, error, call):
    try:
        call()
    except error as problem:
        return check(name, True, problem)
    sys.exit(f"{name}: it was not refused")


class Chat:
    """An answer, whole or put together from a stream."""

    def __init__(self, options, stream):
        self.texts, self.reasons, self.logprobs, self.usage = {}, {}, {}, None
        if not stream:
            done = client.chat.completions.create(**options)
            self.usage = done.usage
            for choice in done.choices:
                self.take(choice, choice.message.content)
            return
        options = options | {"stream": True, "stream_options": {"include_usage": True}}
        for chunk in client.chat.completions.create(**options):
            self.usage = chunk.usage or self.usage
            for choice in chunk.choices:
                self.take(choice, choice.delta.content)

    def take(self, choice, text):
        self.texts[choice.index] = self.texts.get(choice.index, "") + (text or "")
        self.reasons[choice.index] = choice.finish_reason or self.reasons.get(choice.index)
        if choice.logprobs:
            self.logprobs.setdefault(choice.index, []).extend(choice.logprobs.content or [])

    @property
    def text(self):
        return self.texts[0]


def both(name, holds, **options):
    """Checks the whole answer and the stream, which must be the same text."""
    body = greedy | options
    whole, streamed = Chat(body, False), Chat(body, True)
    for way, answer in ((name, whole), (name + ", streamed", streamed)):
        check(way, holds(answer), vars(answer))
    if body["temperature"] == 0 or "seed" in options:
        check(name + ", streamed, is the same", streamed.texts == whole.texts, (streamed.texts, whole.texts))
    return whole


def openai_chat():
    full = lambda a: a.text and a.usage.completion_tokens == 20 and a.reasons == {0: "length"}
    text = both("chat", full).text
    counted = lambda a: a.usage.completion_tokens == 7
    both("max_completion_tokens", counted, max_tokens=openai.omit, max_completion_tokens=7)
    hot = dict(temperature=1.2, top_p=0.9)
    several = both("n", lambda a: sorted(a.texts) == [0, 1, 2], n=3, seed=5, **hot)
    check("n gives different texts", len(set(several.texts.values())) > 1, several.texts)
    draw = lambda seed: Chat(greedy | hot | {"seed": seed}, False).text
    check("the same seed, the same text", draw(7) == draw(7))
    check("other seeds, other texts", len({draw(seed) for seed in range(4)}) > 1)

    def likely(answer):
        tokens = answer.logprobs[0]
        top = all(len(t.top_logprobs) == 3 and t.logprob == t.top_logprobs[0].logprob for t in tokens)
        joined = b"".join(bytes(t.bytes) for t in tokens).decode()
        return top and len(tokens) == 20 and joined == answer.text and all(t.logprob <= 0 for t in tokens)

    both("logprobs", likely, logprobs=True, top_logprobs=3)
    word = next(part for part in text.split() if len(part) > 3)
    ended = lambda a: word not in a.text and text.startswith(a.text) and a.reasons == {0: "stop"}
    both("stop", ended, stop=[word, "never so"])
    both("stop as one string", ended, stop=word)
    alone = lambda a: a.usage.completion_tokens == 20 and a.text
    longer = Chat(greedy | {"max_tokens": 60}, False).text
    for name in ("frequency_penalty", "presence_penalty"):
        both(name, lambda a: a.text != longer, max_tokens=60, **{name: 2})
    other = {"repetition_penalty": 1.8}
    both("repetition_penalty", lambda a: a.text != longer, max_tokens=60, extra_body=other)
    both("top_k", lambda a: a.text == text, temperature=1, seed=3, extra_body={"top_k": 1})
    both("min_p", lambda a: a.text == text, temperature=1, seed=3, extra_body={"min_p": 1.0})
    both("top_p", lambda a: a.text == text, temperature=1, seed=3, top_p=1e-6)
    both("ignore_eos", alone, extra_body={"ignore_eos": True})
    rich = client.chat.completions.create(**greedy, logprobs=True, top_logprobs=2)
    first = rich.choices[0].logprobs.content[0]
    ids = tokens_of(first.token)
    if len(ids) == 1:
        banned = lambda a: a.logprobs[0][0].token != first.token
        both("logit_bias", banned, logit_bias={str(ids[0]): -100}, logprobs=True, top_logprobs=1)


def tokens_of(text):
    body = {"prompt": text, "add_special_tokens": False}
    return client.post(url + "/tokenize", body=body, cast_to=object)["tokens"]


def constrained():
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    valid = lambda a: isinstance(json.loads(a.text)["yes"], bool) and a.reasons == {0: "stop"}
    both("json_schema", valid, response_format=form, max_tokens=60)

    def is_object(answer):
        if answer.reasons == {0: "length"}:
            return answer.text.lstrip().startswith("{")
        return isinstance(json.loads(answer.text), dict)

    both("json_object", is_object, response_format={"type": "json_object"}, max_tokens=120)
    pattern = "[0-9]{3}-(cat|dog)"
    matches = lambda a: re.fullmatch(pattern, a.text) and a.reasons == {0: "stop"}
    both("regex", matches, extra_body={"response_format": {"type": "regex", "pattern": pattern}})
    lark = {"type": "grammar", "grammar": 'start: "(" start ")" | "x"'}
    balanced = lambda a: re.fullmatch(r"\(*x?\)*", a.text) and a.text.count("(") >= a.text.count(")")
    both("grammar", balanced, extra_body={"response_format": lark}, max_tokens=40)
    wrong = {"response_format": {"type": "regex", "pattern": "("}}
    create = client.chat.completions.create
    refused("a wrong regex", openai.BadRequestError, lambda: create(**greedy, extra_body=wrong))


def openai_completions():
    prompt = "Once upon a time"
    options = dict(model=model, prompt=prompt, max_tokens=8, temperature=0)
    create = client.completions.create
    done = create(**options, echo=True)
    check("completions with echo", done.choices[0].text.startswith(prompt), done)
    streamed = "".join(part.choices[0].text for part in create(**options, stream=True) if part.choices)
    check("streamed completions", prompt + streamed == done.choices[0].text, streamed)
    batch = create(**(options | {"prompt": ["One day", "Once"]}), n=2)
    check("several prompts and n", [c.index for c in batch.choices] == [0, 1, 2, 3], batch)
    tokens = create(**(options | {"prompt": tokens_of(prompt)}))
    check("a prompt of tokens", tokens.choices[0].text, tokens)

    def logprobs(parts):
        found = [p for part in parts for choice in part.choices for p in [choice.logprobs] if p]
        texts = [text for p in found for text in p.tokens]
        values = [value for p in found for value in p.token_logprobs]
        top = [options for p in found for options in p.top_logprobs]
        return texts, values, top

    for name, parts in (("", [create(**options, logprobs=2)]), (", streamed",
                        list(create(**options, logprobs=2, stream=True)))):
        texts, values, top = logprobs(parts)
        check("logprobs of completions" + name, "".join(texts) == streamed and len(top) == 8, texts)
        check("which are finite" + name, all(v <= 0 and math.isfinite(v) for v in values), values)
    word = next(part for part in streamed.split() if len(part) > 2)
    for stream in (False, True):
        parts = create(**options, stop=[word], stream=stream)
        parts = list(parts) if stream else [parts]
        text = "".join(choice.text for part in parts for choice in part.choices)
        check(f"stop of completions, stream {stream}", word not in text, text)
    biased = create(**options, logit_bias={str(tokens_of(streamed)[0]): -100}).choices[0].text
    check("logit_bias of completions", biased != streamed, biased)
    hot = options | {"temperature": 1, "seed": 9, "frequency_penalty": 0.5, "presence_penalty": 0.5}
    check("seed of completions", create(**hot).choices[0].text == create(**hot).choices[0].text)
    long = options | {"prompt": "a b c d " * 60, "max_tokens": 1}
    cached, again = create(**long), create(**long)
    check("cached tokens", again.usage.prompt_tokens_details.cached_tokens > 0, (cached, again))


def openai_rest():
    vectors = client.embeddings.create(model=model, input=["a bird", "a cat"])
    length = sum(x * x for x in vectors.data[1].embedding)
    check("embeddings", len(vectors.data) == 2 and abs(length - 1) < 1e-3, length)
    answer = client.responses.create(model=model, input="Once upon a time", max_output_tokens=10)
    check("responses", answer.output_text and answer.status == "incomplete", answer)
    options = dict(model=model, input="One", instructions="Be brief.", max_output_tokens=6, temperature=0)
    whole = client.responses.create(**options)
    events = list(client.responses.create(**options, stream=True))
    kinds = [event.type for event in events]
    begun = kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    check("streamed responses", begun, kinds)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    check("streamed responses are the same", text == whole.output_text, (text, whole.output_text))


def openai_errors():
    create = client.chat.completions.create
    bad = openai.BadRequestError
    refused("bad temperature", bad, lambda: create(model=model, messages=messages, temperature=-1))
    refused("no messages", bad, lambda: create(model=model, messages=[]))
    refused("unknown model", openai.NotFoundError, lambda: create(model="none", messages=messages))
    long = [{"role": "user", "content": "word " * 50_000}]
    refused("too long", bad, lambda: create(model=model, messages=long))
    refused("too long a stream", bad, lambda: create(model=model, messages=long, stream=True))
    unknown = {"no_such_field": 1}
    refused("unknown field", bad, lambda: create(model=model, messages=messages, extra_body=unknown))
    refused("logit_bias of no token", bad, lambda: create(**greedy, logit_bias={"99999999": 1}))
    refused("too many choices", bad, lambda: create(**greedy, n=1000))
    cancelled = metric("fulmen_cancelled_total")
    stream = create(model=model, messages=messages, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    ended = lambda counts: counts[0] > cancelled and counts[1] == 0
    for _ in range(100):
        # The engine gives the slot back at its next step.
        counts = metric("fulmen_cancelled_total"), metric("fulmen_engine_running")
        if ended(counts):
            break
        time.sleep(0.1)
    check("a closed stream ends its request", ended(counts), counts)


def metric(name):
    """A figure of the server, of all models together."""
    with urllib.request.urlopen(url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))


async def async_clients():
    """Streams at the same time, and one that is left early."""
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none") as asked:

        async def answer():
            stream = await asked.chat.completions.create(**greedy, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(answer() for _ in range(4)))
        check("async streams", all(texts), texts)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as asked:
        message = await asked.messages.create(model=model, max_tokens=8, messages=messages)
        check("async messages", message.content[0].text, message)


def formats():
    """Schemas of responses; tools of a model without a form for calls."""
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}},
              "required": ["age"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "age", "schema": schema}
    text = {"format": form}
    answer = client.responses.create(model=model, input="How old?", text=text, max_output_tokens=60)
    if answer.status == "completed":
        check("responses keep a schema", json.loads(answer.output_text)["age"] <= 99, answer.output_text)
    check("responses repeat the format", answer.text.format.name == "age", answer.text)
    if model != "builtin":
        return  # calls.py has a format beside tools
    tools = [{"type": "function", "function": {"name": "a"}}]
    asked = dict(model=model, messages=messages, tools=tools, response_format={"type": "json_object"})
    create = client.chat.completions.create
    refused("tools of a model that knows none", openai.BadRequestError, lambda: create(**asked))


def anthropic_messages():
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=600)
    options = dict(model=model, max_tokens=20, messages=messages, extra_body={"temperature": 0})

    def both(name, holds, **more):
        whole = client.messages.create(**(options | more))
        with client.messages.stream(**(options | more)) as stream:
            streamed = "".join(stream.text_stream)
            final = stream.get_final_message()
        check(name, holds(whole), whole)
        check(name + ", streamed", holds(final) and streamed == whole.content[0].text, (streamed, whole))
        return whole

    cut = lambda m: m.stop_reason == "max_tokens" and m.usage.output_tokens == 20 and m.content[0].text
    text = both("messages", cut).content[0].text
    word = next(part for part in text.split() if len(part) > 3)
    stopped = lambda m: m.stop_reason == "stop_sequence" and m.stop_sequence == word
    both("stop_sequences", stopped, stop_sequences=[word])
    both("a system prompt", lambda m: m.usage.output_tokens == 20, system="You are brief.")
    sampled = {"temperature": 1, "top_k": 1, "top_p": 0.9}
    both("top_k and top_p", lambda m: m.content[0].text == text, extra_body=sampled)
    thought = both("thinking switched off", cut, thinking={"type": "disabled"})
    check("no thoughts", [block.type for block in thought.content] == ["text"], thought)
    counted = client.messages.count_tokens(model=model, messages=messages, system="Be brief.")
    check("count_tokens", counted.input_tokens > 4, counted)
    listed = client.models.list().data[0]
    known = listed.id == model and listed.type == "model" and listed.created_at.year > 2000
    check("the models", known, listed)
    between = dict(options, messages=messages + [{"role": "system", "content": "Be brief."}])
    check("a system message between others", client.messages.create(**between).content)
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    kept = dict(options, context_management=keep, betas=["context-management-2025-06-27"])
    check("thoughts are kept", client.beta.messages.create(**kept).content)
    omitted = {"type": "adaptive", "display": "omitted"}
    both("thoughts are left out", lambda m: m.content[0].text == text, thinking=omitted)
    long = dict(options, messages=[{"role": "user", "content": "many words " * 9000}])
    try:
        client.messages.create(**long)
        check("a prompt that is too long", False)
    except anthropic.BadRequestError as problem:
        check("a prompt that is too long", "prompt is too long: " in str(problem), problem)
    other = options | {"model": "x"}
    refused("no such model", anthropic.NotFoundError, lambda: client.messages.create(**other))
    bad = options | {"max_tokens": 0}
    refused("max_tokens 0", anthropic.BadRequestError, lambda: client.messages.create(**bad))


openai_chat()
constrained()
openai_completions()
openai_rest()
openai_errors()
formats()
asyncio.run(async_clients())
anthropic_messages()
