"""What the clients of OpenAI and Anthropic make of a server that refuses them: refusals.py URL KEY

The server needs the API key KEY, runs one request at a time and lets one wait.
"""

import sys
import threading
import time

import anthropic
import openai

url, key = sys.argv[1:]
messages = [{"role": "user", "content": "Once upon a time"}]


def check(name, holds, found=None):
    if not holds:
        sys.exit(f"{name}: {found!r}")
    print("ok:", name)


def refused(name, error, call):
    try:
        call()
    except error as problem:
        check(name, True)
        return problem
    sys.exit(f"{name}: it was not refused")


def of_openai(api_key):
    return openai.OpenAI(base_url=url + "/v1", api_key=api_key, max_retries=0, timeout=60)


def of_anthropic(api_key):
    return anthropic.Anthropic(base_url=url, api_key=api_key, max_retries=0, timeout=60)


client = of_openai(key)
model = client.models.list().data[0].id
chat = dict(model=model, messages=messages, max_tokens=4)


def keys():
    for name in ("wrong", key + "x", key[:-1]):
        create = of_openai(name).chat.completions.create
        refused(f"openai with key {name}", openai.AuthenticationError, lambda: create(**chat))
        refused("its stream", openai.AuthenticationError, lambda: create(**chat, stream=True))
        message = of_anthropic(name).messages.create
        refused(f"anthropic with key {name}", anthropic.AuthenticationError, lambda: message(**chat))
    check("openai with its key", client.chat.completions.create(**chat).choices)
    check("anthropic with its key", of_anthropic(key).messages.create(**chat).content)


def full_queue():
    """Clients that ask again and again keep the one place and the queue taken."""
    long = chat | {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
    done = threading.Event()
    counts = {"answers": 0, "refused": 0}

    def ask():
        asked = of_openai(key)
        while not done.is_set():
            try:
                asked.chat.completions.create(**long)
                counts["answers"] += 1
            except openai.RateLimitError:
                counts["refused"] += 1
                time.sleep(0.01)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()

    def first_refusal(error, call):
        for _ in range(200):
            try:
                call()
            except error as problem:
                return problem
        return None

    problem = first_refusal(openai.RateLimitError, lambda: client.chat.completions.create(**chat))
    check("openai with a full queue", problem is not None, counts)
    after = problem.response.headers.get("retry-after", "")
    check("retry-after", after.isdigit() and int(after) >= 1, after)
    streamed = lambda: client.chat.completions.create(**chat, stream=True)
    check("its stream", first_refusal(openai.RateLimitError, streamed) is not None, counts)
    message = of_anthropic(key).messages.create
    problem = first_refusal(anthropic.RateLimitError, lambda: message(**chat))
    check("anthropic with a full queue", problem is not None, counts)
    done.set()
    for thread in threads:
        thread.join(60)
    check("others were answered meanwhile", counts["answers"] > 0, counts)
    patient = of_openai(key).with_options(max_retries=5)
    check("the next request is answered", patient.chat.completions.create(**chat).choices)


keys()
full_queue()
