// OpenAI's own JavaScript client against a server: node clients.mjs URL
import OpenAI from "openai";

const url = process.argv[2];
const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });

function check(name, holds, found) {
  if (!holds) {
    console.error(`js: ${name}: ${JSON.stringify(found)}`);
    process.exit(1);
  }
  console.log("ok: js:", name);
}

async function refused(name, status, call) {
  try {
    await call();
  } catch (error) {
    return check(name, error.status === status && error.message, [error.status, error.message]);
  }
  check(name, false, "it was not refused");
}

const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Once upon a time" }];
const options = { model, messages, max_tokens: 20, temperature: 0, seed: 1 };

const whole = await client.chat.completions.create(options);
const text = whole.choices[0].message.content;
check("chat", text && whole.usage.completion_tokens <= 20, whole);
let streamed = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({
  ...options,
  stream: true,
  stream_options: { include_usage: true },
})) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
check("streamed chat", streamed === text, [streamed, text]);
check("usage of a stream", usage.completion_tokens === whole.usage.completion_tokens, usage);

// Parameters, in a whole answer and in a stream, which must be the same texts.
async function both(name, holds, more) {
  const body = { ...options, ...more };
  const take = (into, choice, text) => {
    const seen = (into[choice.index] ??= { text: "", logprobs: [], reason: null });
    seen.text += text ?? "";
    seen.logprobs.push(...(choice.logprobs?.content ?? []));
    seen.reason = choice.finish_reason ?? seen.reason;
  };
  const [all, parts] = [{}, {}];
  const done = await client.chat.completions.create(body);
  for (const choice of done.choices) take(all, choice, choice.message.content);
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
    for (const choice of chunk.choices) take(parts, choice, chunk.choices[0] && choice.delta.content);
  }
  check(name, holds(all, done), all);
  const texts = (answers) => Object.values(answers).map(({ text }) => text);
  check(name + ", streamed", holds(parts) && texts(parts).join("|") === texts(all).join("|"), [all, parts]);
}

await both("n", (a) => Object.keys(a).length === 3, { n: 3, temperature: 1, seed: 5, top_p: 0.9 });
await both("logprobs", (a) => a[0].logprobs.length === 20 && a[0].logprobs[0].top_logprobs.length === 2, {
  logprobs: true,
  top_logprobs: 2,
});
const word = text.split(" ").find((part) => part.length > 3);
await both("stop", (a) => !a[0].text.includes(word) && a[0].reason === "stop", { stop: [word] });
await both("max_completion_tokens", (a) => a[0].reason === "length" && a[0].text.length < text.length, {
  max_tokens: undefined,
  max_completion_tokens: 5,
});
const longer = (await client.chat.completions.create({ ...options, max_tokens: 60 })).choices[0].message.content;
await both("frequency_penalty", (a) => a[0].text !== longer, { max_tokens: 60, frequency_penalty: 2 });
await both("presence_penalty", (a) => a[0].text !== longer, { max_tokens: 60, presence_penalty: 2 });
await both("top_k and min_p", (a) => a[0].text === text, { temperature: 1, top_k: 1, min_p: 0.05 });
await both("regex", (a) => /^[0-9]{3}$/.test(a[0].text), { response_format: { type: "regex", pattern: "[0-9]{3}" } });
await both("json_object", (a) => a[0].text.trimStart().startsWith("{"), { response_format: { type: "json_object" } });

const schema = {
  type: "object",
  properties: { answer: { enum: ["yes", "no"] }, count: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["answer", "count"],
  additionalProperties: false,
};
const constrained = await client.chat.completions.create({
  ...options,
  max_tokens: 60,
  response_format: { type: "json_schema", json_schema: { name: "reply", schema, strict: true } },
});
const reply = JSON.parse(constrained.choices[0].message.content);
check("JSON schema", ["yes", "no"].includes(reply.answer) && Number.isInteger(reply.count), reply);

const done = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 8, temperature: 0 });
check("completions", done.choices[0].text.length > 0, done);
const vectors = await client.embeddings.create({ model, input: ["a bird", "a cat"] });
check("embeddings", vectors.data.length === 2 && vectors.data[1].embedding.length > 10, vectors.data.length);
const response = await client.responses.create({ model, input: "Once upon a time", max_output_tokens: 10 });
check("responses", response.output_text.length > 0, response);
const kinds = [];
for await (const event of await client.responses.create({ model, input: "One", max_output_tokens: 4, stream: true })) {
  kinds.push(event.type);
}
check("streamed responses", kinds[0] === "response.created" && kinds.at(-1).startsWith("response."), kinds);

await refused("bad temperature", 400, () => client.chat.completions.create({ ...options, temperature: -1 }));
await refused("unknown model", 404, () => client.chat.completions.create({ ...options, model: "none" }));
await refused("unknown field", 400, () => client.chat.completions.create({ ...options, no_such_field: 1 }));

const stream = await client.chat.completions.create({
  ...options,
  max_tokens: undefined,
  stream: true,
  ignore_eos: true,
});
for await (const _ of stream) {
  stream.controller.abort();
  break;
}
check("cancelled stream", true);
