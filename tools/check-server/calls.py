"""Required calls of tools through both clients, on a chat model: calls.py URL"""

import json
import sys

import anthropic
import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id
parameters = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
messages = [{"role": "user", "content": "How warm is it in Oslo? Use celsius."}]
nothing = {"type": "object", "properties": {}, "additionalProperties": False}
tools = [
    {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": parameters}},
    {"type": "function", "function": {"name": "get_time", "parameters": nothing}},
]


def check(name, holds, found=None):
    if not holds:
        sys.exit(f"calls: {name}: {found!r}")
    print("ok: calls:", name)


named = {"type": "function", "function": {"name": "get_weather"}}
options = dict(model=model, messages=messages, tools=tools, temperature=0, max_tokens=200)
options["parallel_tool_calls"] = False
done = client.chat.completions.create(**options, tool_choice=named).choices[0]
calls = done.message.tool_calls
check("a named tool is called", done.finish_reason == "tool_calls" and len(calls) == 1, done)
call = calls[0]
arguments = json.loads(call.function.arguments)
valid = call.function.name == "get_weather" and set(arguments) == {"city", "unit"}
check("with valid arguments", valid, call)
done = client.chat.completions.create(**options, tool_choice="required").choices[0]
name = done.message.tool_calls[0].function.name
check("a required tool is called", name in ("get_weather", "get_time"), done)
listed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
only = {"type": "allowed_tools", "allowed_tools": listed}
allowed = client.chat.completions.create(**options, tool_choice=only).choices[0].message.tool_calls
check("only an allowed tool is called", [call.function.name for call in allowed] == ["get_time"], allowed)
form = {"type": "json_schema", "json_schema": {"name": "warm", "schema": {
    "type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"],
    "additionalProperties": False}}}
either = client.chat.completions.create(**options, response_format=form).choices[0].message
called = [call.function.name in ("get_weather", "get_time") for call in either.tool_calls or []]
valid = all(called) if called else isinstance(json.loads(either.content)["warm"], bool)
check("an answer is a call or has its format", valid, either)
parts = list(client.chat.completions.create(**options, tool_choice=named, stream=True))
streamed = [c for part in parts for choice in part.choices for c in choice.delta.tool_calls or []]
text = "".join(c.function.arguments or "" for c in streamed)
check("streamed arguments are the same", json.loads(text) == arguments, text)
check("and come as they are written", len(streamed) > 5, streamed)
history = messages + [
    {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
    {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"},
]
after = client.chat.completions.create(**(options | {"messages": history}), tool_choice="none").choices[0]
check("an answer after the result", after.message.content and not after.message.tool_calls, after)

claude = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=600)
tool = {"name": "get_weather", "description": "Weather", "input_schema": parameters}
message = claude.messages.create(
    model=model,
    max_tokens=200,
    messages=messages,
    tools=[tool],
    tool_choice={"type": "tool", "name": "get_weather"},
)
used = [block for block in message.content if block.type == "tool_use"]
seen = message.stop_reason == "tool_use" and set(used[0].input) == set(arguments)
check("Anthropic's client sees it", seen, message)
asked = dict(model=model, max_tokens=200, messages=messages, tools=[tool])
one = {"type": "any", "disable_parallel_tool_use": True}
with claude.messages.stream(**asked, tool_choice=one) as stream:
    pieces = [event.partial_json for event in stream if event.type == "input_json"]
    final = stream.get_final_message()
used = [block.input for block in final.content if block.type == "tool_use"]
same = json.loads("".join(pieces)) == used[0]
check("its stream has the arguments in pieces", len(pieces) > 5 and same, pieces)

flat = [{"type": "function", "name": "get_weather", "parameters": parameters, "strict": True}]
asked = dict(model=model, input=messages[0]["content"], tools=flat, tool_choice="required")
kind = "response.function_call_arguments.delta"
with client.responses.stream(**asked, parallel_tool_calls=False) as stream:
    deltas = [event.delta for event in stream if event.type == kind]
    final = stream.get_final_response()
called = [item for item in final.output if item.type == "function_call"]
whole = json.loads(called[0].arguments)
check("and that of responses", len(deltas) > 5 and json.loads("".join(deltas)) == whole, deltas)

functions = [{"type": "function", "name": "get_weather", "parameters": parameters, "strict": True}]
sky = [{"type": "namespace", "name": "sky", "description": "Of the sky", "tools": functions}]
asked = dict(asked, tools=sky, parallel_tool_calls=False)
called = [item for item in client.responses.create(**asked).output if item.type == "function_call"]
check("a call has its namespace", (called[0].name, called[0].namespace) == ("get_weather", "sky"), called)

# The model is small and may not call the tool; if it does, the arguments are those of the schema.
function = {"name": "get_weather", "parameters": parameters, "strict": True}
free = dict(model=model, messages=messages, tools=[{"type": "function", "function": function}], max_tokens=60)
for seed in range(2):
    done = client.chat.completions.create(**free, seed=seed).choices[0]
    found = [set(json.loads(call.function.arguments)) for call in done.message.tool_calls or []]
    check("strict tools", all(keys == {"city", "unit"} for keys in found), done)
