"""OpenAI's and Anthropic's own clients against a server with the built-in model: clients.py URL"""

import sys

import anthropic
import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Once upon a time"}]


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


def openai_chat():
    options = dict(model=model, messages=messages, max_tokens=20, temperature=0, seed=1)
    whole = client.chat.completions.create(**options)
    text = whole.choices[0].message.content
    check("chat", text and whole.usage.completion_tokens == 20, whole)
    check("finish reason", whole.choices[0].finish_reason == "length", whole)
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("streamed chat", streamed == text, (streamed, text))
    check("usage of a stream", chunks[-1].usage.completion_tokens == 20, chunks[-1])
    several = client.chat.completions.create(**(options | {"n": 3, "temperature": 1}), top_p=0.9)
    check("n", [c.index for c in several.choices] == [0, 1, 2], several)
    rich = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    tokens = rich.choices[0].logprobs.content
    check("logprobs", len(tokens) == 20 and all(len(t.top_logprobs) == 3 for t in tokens), tokens)
    check("greedy is the most likely", all(t.logprob == t.top_logprobs[0].logprob for t in tokens), tokens)
    word = next(part for part in text.split() if len(part) > 3)
    stopped = client.chat.completions.create(**options, stop=[word])
    check("stop", word not in stopped.choices[0].message.content, stopped)
    penalized = client.chat.completions.create(
        **options, frequency_penalty=1.5, presence_penalty=0.5, extra_body={"top_k": 40, "min_p": 0.05}
    )
    check("penalties", penalized.choices[0].message.content, penalized)


def openai_rest():
    prompt = "Once upon a time"
    done = client.completions.create(model=model, prompt=prompt, max_tokens=8, temperature=0, echo=True)
    check("completions with echo", done.choices[0].text.startswith(prompt), done)
    parts = client.completions.create(model=model, prompt=prompt, max_tokens=8, temperature=0, stream=True)
    streamed = "".join(part.choices[0].text for part in parts)
    check("streamed completions", prompt + streamed == done.choices[0].text, streamed)
    batch = client.completions.create(model=model, prompt=["One day", "Once"], max_tokens=4)
    check("several prompts", len(batch.choices) == 2, batch)
    cached = client.completions.create(model=model, prompt="a b c d " * 60, max_tokens=1)
    again = client.completions.create(model=model, prompt="a b c d " * 60, max_tokens=1)
    check("cached tokens", again.usage.prompt_tokens_details.cached_tokens > 0, (cached, again))
    vectors = client.embeddings.create(model=model, input=["a bird", "a cat"])
    length = sum(x * x for x in vectors.data[1].embedding)
    check("embeddings", len(vectors.data) == 2 and abs(length - 1) < 1e-3, length)
    answer = client.responses.create(model=model, input="Once upon a time", max_output_tokens=10)
    check("responses", answer.output_text and answer.status == "incomplete", answer)
    kinds = [event.type for event in client.responses.create(model=model, input="One", stream=True)]
    check("streamed responses", kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds)


def openai_errors():
    create = client.chat.completions.create
    bad = openai.BadRequestError
    refused("bad temperature", bad, lambda: create(model=model, messages=messages, temperature=-1))
    refused("no messages", openai.BadRequestError, lambda: create(model=model, messages=[]))
    refused("unknown model", openai.NotFoundError, lambda: create(model="none", messages=messages))
    long = [{"role": "user", "content": "word " * 50_000}]
    refused("too long", openai.BadRequestError, lambda: create(model=model, messages=long))
    unknown = {"no_such_field": 1}
    refused("unknown field", bad, lambda: create(model=model, messages=messages, extra_body=unknown))
    stream = create(model=model, messages=messages, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    check("cancelled stream", True)


def anthropic_messages():
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    greedy = {"temperature": 0}
    options = dict(model=model, max_tokens=20, messages=messages, extra_body=greedy)
    whole = client.messages.create(**options)
    check("messages", whole.content[0].text and whole.stop_reason == "max_tokens", whole)
    with client.messages.stream(**options) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("streamed messages", streamed == whole.content[0].text, (streamed, whole))
    check("final message", final.usage.output_tokens == 20 and final.stop_reason == "max_tokens", final)
    counted = client.messages.count_tokens(model=model, messages=messages, system="Be brief.")
    check("count_tokens", counted.input_tokens > 4, counted)
    other = options | {"model": "x"}
    refused("no such model", anthropic.NotFoundError, lambda: client.messages.create(**other))
    bad = options | {"max_tokens": 0}
    refused("max_tokens 0", anthropic.BadRequestError, lambda: client.messages.create(**bad))


openai_chat()
openai_rest()
openai_errors()
anthropic_messages()
