"""Ollama's own client against a server: ollama_client.py URL"""

import sys

import ollama

url = sys.argv[1]
client = ollama.Client(host=url)


def check(name, holds, found=None):
    if not holds:
        sys.exit(f"ollama: {name}: {found!r}")
    print("ok: ollama:", name)


model = client.list().models[0].model
shown = client.show(model)
check("the models", shown.modelinfo and shown.details.format == "gguf", shown)
check("what they can", "completion" in shown.capabilities, shown.capabilities)
messages = [{"role": "user", "content": "Once upon a time"}]
options = {"temperature": 0, "num_predict": 12, "seed": 1}
whole = client.chat(model=model, messages=messages, options=options)
check("chat", whole.message.content and whole.eval_count == 12 and whole.done_reason == "length", whole)
parts = list(client.chat(model=model + ":latest", messages=messages, options=options, stream=True))
text = "".join(part.message.content for part in parts)
check("its stream is the same", text == whole.message.content and parts[-1].done, text)
check("loaded models", client.ps().models[0].model == model)
asked = dict(model=model, prompt="Once upon a time", options=options)
generated = client.generate(**asked, logprobs=True, top_logprobs=2)
tokens = generated.logprobs
joined = "".join(token.token for token in tokens)
check("generate with log-probabilities", joined == generated.response and len(tokens) == 12, generated)
check("the most likely tokens", all(len(token.top_logprobs) == 2 for token in tokens), tokens)
schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 9}}, "required": ["age"],
          "additionalProperties": False}
formed = client.chat(model=model, messages=messages, options=options | {"num_predict": 60}, format=schema)
check("a format", formed.message.content.startswith("{"), formed.message.content)
embedded = client.embed(model=model, input=["a", "b"]).embeddings
check("embeddings", len(embedded) == 2 and abs(sum(x * x for x in embedded[0]) - 1) < 1e-3)
cut = client.embed(model=model, input="many words " * 9000, truncate=True)
check("a text that is cut", cut.prompt_eval_count > 100, cut.prompt_eval_count)
for name, more in (("num_ctx", {"options": {"num_ctx": 10**6}}), ("model", {"model": "none"})):
    try:
        client.chat(**(dict(model=model, messages=messages) | more))
        check(f"{name} is refused", False)
    except ollama.ResponseError as problem:
        check(f"{name} is refused", name in problem.error and problem.status_code in (400, 404), problem)
