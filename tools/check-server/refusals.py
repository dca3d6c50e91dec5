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
    endless = chat | {"max_tokens": 4000, "stream": True, "extra_body": {"ignore_eos": True}}
    running = client.chat.completions.create(**endless)
    first = next(iter(running))
    check("one request runs", first.choices)
    waited = {}

    def wait():
        waited["answer"] = of_openai(key).chat.completions.create(**chat)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    # The place is taken once the server has read the request; until then another may be answered with it.
    problem = None
    for _ in range(200):
        try:
            of_openai(key).with_options(timeout=0.5).chat.completions.create(**chat)
        except openai.RateLimitError as error:
            problem = error
            break
        except openai.APITimeoutError:
            time.sleep(0.05)
    check("openai with a full queue", problem is not None)
    after = problem.response.headers.get("retry-after", "")
    check("retry-after", after.isdigit() and int(after) >= 1, after)
    message = of_anthropic(key).messages.create
    refused("anthropic with a full queue", anthropic.RateLimitError, lambda: message(**chat))
    running.close()
    waiting.join(60)
    check("the waiting request is answered", waited["answer"].choices[0].message.content)
    check("and so is the next one", client.chat.completions.create(**chat).choices)


keys()
full_queue()
