"""100 JSON schemas with bounded lengths: every answer that is complete must be valid.

    schemas.py URL [COUNT]     a sample of COUNT schemas, evenly spread; all by default

Answers that end by length are counted apart, and may not be many.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=600)
model = client.models.list().data[0].id


def object_of(properties, required=None):
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def array_of(items, least, most):
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def schemas():
    short = {"type": "string", "maxLength": 12}
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    flag = {"type": "boolean"}
    # Strings: lengths, patterns, formats.
    for length in range(1, 9):
        yield object_of({"text": {"type": "string", "minLength": length // 2, "maxLength": 2 * length}})
    for pattern in ["^[a-z]{3}$", "^[0-9]{2}-[0-9]{2}$", "^(cat|dog)s?$", "^#[0-9a-f]{6}$",
                    "^[A-Z][a-z]{1,6}$", "^\\d{4}$", "^v[0-9]\\.[0-9]$", "^[01]{1,8}$"]:
        yield object_of({"code": {"type": "string", "pattern": pattern}})
    for kind in ["date", "date-time", "uuid", "ipv4", "ipv6"]:
        yield object_of({"value": {"type": "string", "format": kind}})
    # Numbers: ranges of both kinds.
    for low, high in [(0, 1), (-5, 5), (10, 99), (100, 1000), (-1000, -1), (7, 7), (0, 65535), (-1, 0)]:
        yield object_of({"n": {"type": "integer", "minimum": low, "maximum": high}})
    for low, high in [(0, 1), (-1.5, 1.5), (0.25, 0.75), (99, 101)]:
        yield object_of({"x": {"type": "number", "minimum": low, "maximum": high}})
    yield object_of({"n": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10}})
    yield object_of({"n": {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5}})
    # Enumerations and constants of every type.
    for values in [["a"], ["red", "green", "blue"], [1, 2, 3], [True], [None, "x"],
                   [1.5, "mixed", False, None],
                   ["with \"quotes\"", "back\\slash"], ["\u00e9t\u00e9", "\u65e5\u672c"]]:
        yield object_of({"choice": {"enum": values}})
    for value in ["fixed", 42, True, None, {"a": 1}, [1, 2]]:
        yield object_of({"value": {"const": value}})
    # Arrays: bounds, tuples, nesting.
    for least, most in [(0, 0), (0, 2), (1, 1), (2, 4), (3, 3), (5, 6)]:
        yield object_of({"items": array_of(digit, least, most)})
    yield object_of({"names": array_of(short, 1, 3)})
    yield object_of({"flags": array_of(flag, 2, 5)})
    yield object_of({"grid": array_of(array_of(digit, 2, 2), 2, 2)})
    yield object_of({"pair": {"type": "array", "prefixItems": [short, digit], "items": False, "minItems": 2}})
    yield object_of({"points": array_of(object_of({"x": digit, "y": digit}), 1, 3)})
    yield array_of(digit, 1, 4)
    yield array_of(object_of({"name": short}), 1, 2)
    # Objects: optional fields, nesting, references, recursion that is bounded by its arrays.
    for count in range(1, 8):
        properties = {f"field_{at}": [short, digit, flag][at % 3] for at in range(count)}
        yield object_of(properties)
        yield object_of(properties, required=list(properties)[:1])
    for depth in range(1, 6):
        nested = digit
        for level in range(depth):
            nested = object_of({f"level_{level}": nested})
        yield nested
    age = {"$ref": "#/$defs/age"}
    yield {"$defs": {"age": digit}} | object_of({"mine": age, "yours": age})
    yield {"$defs": {"p": object_of({"name": short, "age": digit})}} | object_of(
        {"people": array_of({"$ref": "#/$defs/p"}, 1, 2)}
    )
    leaf = {"$defs": {"tree": object_of({"v": digit, "kids": array_of({"$ref": "#/$defs/tree"}, 0, 1)})}}
    yield leaf | {"$ref": "#/$defs/tree"}
    # Alternatives.
    yield object_of({"id": {"anyOf": [digit, short]}})
    yield object_of({"maybe": {"anyOf": [flag, {"type": "null"}]}})
    yield {"anyOf": [object_of({"cat": flag}), object_of({"dog": digit})]}
    yield object_of({"shape": {"anyOf": [
        object_of({"kind": {"const": "circle"}, "radius": digit}),
        object_of({"kind": {"const": "box"}, "width": digit, "height": digit}),
    ]}})
    for kinds in [["integer", "null"], ["boolean", "null"]]:
        yield object_of({"value": {"type": kinds, "maximum": 99, "minimum": 0}})
    # Plain values at the top.
    yield {"type": "boolean"}
    yield {"type": "integer", "minimum": 1, "maximum": 6}
    yield {"enum": ["yes", "no"]}
    yield {"type": "null"}
    yield {"type": "string", "maxLength": 5}
    # What applications ask for.
    yield object_of({"name": short, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "email": {
        "type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.(com|org)$"}})
    yield object_of({"sentiment": {"enum": ["positive", "neutral", "negative"]}, "score": {
        "type": "number", "minimum": 0, "maximum": 1}})
    step = object_of({"explanation": short, "output": short})
    yield object_of({"steps": array_of(step, 1, 2), "final": short})
    yield object_of({"city": short, "unit": {"enum": ["C", "F"]}, "days": array_of(digit, 1, 3)})
    yield object_of({"title": short, "tags": array_of({"enum": ["a", "b", "c"]}, 0, 3), "draft": flag})


def answer(number, schema):
    prompt = f"Give an example, number {number}, as JSON:"
    done = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=300,
        temperature=1,
        seed=number,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    )
    choice = done.choices[0]
    if choice.finish_reason == "length":
        return "length", None
    try:
        value = json.loads(choice.message.content)
        jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError) as problem:
        return "wrong", f"{json.dumps(schema)}: {choice.message.content!r}: {str(problem).splitlines()[0]}"
    return "valid", None


every = list(schemas())
if len(every) < 100:
    sys.exit(f"there are only {len(every)} schemas")
count = int(sys.argv[2]) if len(sys.argv) > 2 else len(every)
picked = [(at * len(every) // count) for at in range(min(count, len(every)))]
with ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda at: answer(at, every[at]), picked))
wrong = [problem for kind, problem in results if kind == "wrong"]
cut = sum(kind == "length" for kind, _ in results)
print(f"schemas: {len(results)} answers, {len(results) - len(wrong) - cut} valid, {cut} ended by length")
if wrong:
    sys.exit("\n".join(wrong))
if cut > len(results) // 10:
    sys.exit("too many answers ended by length")
