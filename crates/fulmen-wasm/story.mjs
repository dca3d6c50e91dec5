// Runs the WebAssembly module under Node and compares its tokens with golden ones.
//
//   node story.mjs MODULE.wasm MODEL.gguf GOLDEN.json
//
// GOLDEN.json has `prompt`, `tokens` and `text`. Prints what was generated; exits 1 if it differs.
import { readFileSync } from "node:fs";
import process from "node:process";

const [modulePath, modelPath, goldenPath] = process.argv.slice(2);
if (goldenPath === undefined) {
    console.error("usage: node story.mjs MODULE.wasm MODEL.gguf GOLDEN.json");
    process.exit(2);
}

let memory;
const text = (at, length) => new TextDecoder().decode(new Uint8Array(memory.buffer, at, length));
const host = {
    now: () => performance.timeOrigin + performance.now(),
    log: (at, length) => console.error(text(at, length)),
};
const { instance } = await WebAssembly.instantiate(readFileSync(modulePath), { host });
const { fulmen_alloc, fulmen_generate, fulmen_answer } = instance.exports;
memory = instance.exports.memory;

// Memory may grow in any call, and its old buffer is detached then: each access makes a new view.
function give(bytes) {
    const at = fulmen_alloc(bytes.length);
    if (at === 0) throw new Error(`no room for ${bytes.length} bytes`);
    new Uint8Array(memory.buffer, at, bytes.length).set(bytes);
    return [at, bytes.length];
}

function generate(model, prompt, maxTokens) {
    const length = fulmen_generate(...give(model), ...give(new TextEncoder().encode(prompt)), maxTokens);
    return JSON.parse(text(fulmen_answer(), length));
}

const fail = (message) => {
    console.error(`story.mjs: ${message}`);
    process.exit(1);
};

const model = readFileSync(modelPath);
const golden = JSON.parse(readFileSync(goldenPath, "utf8"));

// A wrong file is an error in words, and the module goes on working after it.
for (const wrong of [new Uint8Array(0), model.subarray(0, 1000)]) {
    const refused = generate(wrong, golden.prompt, 1);
    if (typeof refused.error !== "string") fail(`a wrong file was accepted: ${JSON.stringify(refused)}`);
}

const start = performance.now();
const answer = generate(model, golden.prompt, golden.tokens.length);
if (answer.error !== undefined) fail(answer.error);
const seconds = ((performance.now() - start) / 1e3).toFixed(2);
console.log(`${golden.prompt}${answer.text}`);
console.log(`${answer.tokens.length} tokens in ${seconds} s, loading included`);
if (JSON.stringify(answer.tokens) !== JSON.stringify(golden.tokens) || answer.text !== golden.text) {
    fail(`expected the tokens ${golden.tokens} (${JSON.stringify(golden.text)}), got ${answer.tokens}`);
}
