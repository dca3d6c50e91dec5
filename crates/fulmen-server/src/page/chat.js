// The chat: conversations in the browser's storage, answers streamed from /v1/chat/completions.
"use strict";

const element = (id) => document.getElementById(id);
const PARAMETERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const stored = (name, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem("fulmen." + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
};
const store = (name, value) => {
  try {
    localStorage.setItem("fulmen." + name, JSON.stringify(value));
  } catch {
    say("The browser's storage is full; this conversation is not kept.");
  }
};

let conversations = stored("conversations", []);
let current = conversations.find((c) => c.id === stored("current", null)) || null;
let settings = stored("settings", {});
let running = null;
let bounds = {};

function say(text) {
  element("status").textContent = text;
}

function save() {
  store("conversations", conversations);
  store("current", current && current.id);
}

function headers() {
  const fields = { "content-type": "application/json" };
  if (settings.key) fields.authorization = "Bearer " + settings.key;
  return fields;
}

async function problem(response) {
  try {
    const body = await response.json();
    return body.error?.message || JSON.stringify(body);
  } catch {
    return response.status + " " + response.statusText;
  }
}

// Conversations.
function drawConversations() {
  const items = conversations.map((conversation) => {
    const open = make("button", { type: "button" }, conversation.title || "New conversation");
    open.onclick = () => select(conversation);
    const remove = make("button", { type: "button", "aria-label": "Delete " + conversation.title }, "✕");
    remove.onclick = () => {
      if (conversation === current) select(null);
      conversations = conversations.filter((other) => other !== conversation);
      save();
      drawConversations();
    };
    return make("li", { "aria-current": String(conversation === current) }, open, remove);
  });
  element("conversations").replaceChildren(...items);
}

function select(conversation) {
  running?.abort();
  current = conversation;
  save();
  drawConversations();
  drawMessages();
  toggleSide(false);
  element("input").focus();
}

// Messages.
function drawMessages() {
  const list = element("messages");
  const messages = current ? current.messages : [];
  if (!messages.length) {
    list.replaceChildren(make("p", { class: "empty" }, "Say something to the model."));
    return;
  }
  list.replaceChildren(...messages.map((message, index) => messageNode(message, index)));
  list.scrollTop = list.scrollHeight;
}

function action(label, run) {
  const button = make("button", { type: "button" }, label);
  button.onclick = run;
  return button;
}

function messageNode(message, index) {
  const text = make("div", { class: "text" });
  const actions = make("div", { class: "actions" });
  const node = make("article", { class: "message " + message.role, "aria-label": message.role });
  if (message.role === "user") {
    text.textContent = message.content;
    actions.append(action("Edit", () => edit(node, message, index)));
  } else {
    if (message.reasoning) {
      const thoughts = make("details", {}, make("summary", {}, "Thoughts"), make("div", {}, message.reasoning));
      thoughts.open = !message.content;
      node.append(thoughts);
    }
    text.append(...markdown(message.content || ""));
    if (message.error) text.append(make("p", { class: "error", role: "alert" }, message.error));
    actions.append(action("Copy", () => navigator.clipboard.writeText(message.content)));
    if (index === current.messages.length - 1) actions.append(action("Again", () => regenerate(index)));
    if (message.figures) actions.append(make("span", {}, message.figures));
  }
  node.append(text, actions);
  return node;
}

function edit(node, message, index) {
  const box = make("textarea", { rows: "3", "aria-label": "Edit the message" });
  box.value = message.content;
  const done = action("Send", () => {
    if (!box.value.trim()) return;
    running?.abort();
    current.messages.length = index;
    current.messages.push({ role: "user", content: box.value });
    answer();
  });
  node.replaceChildren(box, make("div", { class: "actions" }, done, action("Cancel", drawMessages)));
  box.focus();
}

function regenerate(index) {
  current.messages.length = index;
  answer();
}

// Answers.
function request() {
  const messages = current.messages
    .filter((message) => !message.error || message.content)
    .map(({ role, content }) => ({ role, content }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  const body = { model: element("model").value, messages, stream: true, stream_options: { include_usage: true } };
  for (const name of PARAMETERS) if (settings[name] != null && settings[name] !== "") body[name] = Number(settings[name]);
  return body;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      const data = part.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function answer() {
  const conversation = current;
  const message = { role: "assistant", content: "", reasoning: "" };
  const body = request();
  conversation.messages.push(message);
  const control = new AbortController();
  running = control;
  setRunning(true);
  drawMessages();
  const begun = performance.now();
  const meter = { first: 0, tokens: 0, prompt: 0, begun, model: body.model };
  try {
    const options = { method: "POST", headers: headers(), body: JSON.stringify(body), signal: control.signal };
    const response = await fetch("v1/chat/completions", options);
    if (!response.ok) throw new Error(await problem(response));
    await take(events(response), conversation, message, meter);
    say("The answer is complete.");
  } catch (error) {
    if (error.name !== "AbortError") message.error = error.message;
    say(error.name === "AbortError" ? "Stopped." : error.message);
  }
  // A model that was loaded by this request has not told its bound yet.
  if (meter.first && !(body.model in bounds)) await loadBounds();
  message.figures = figures(meter);
  if (running === control) {
    running = null;
    setRunning(false);
  }
  conversation.title ||= conversation.messages[0].content.slice(0, 60);
  save();
  drawConversations();
  if (conversation === current) drawMessages();
}

// Draws at most once a frame, however fast tokens come.
async function take(stream, conversation, message, meter) {
  let planned = false;
  const draw = () => {
    planned = false;
    if (conversation !== current) return;
    const list = element("messages");
    const near = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    list.lastChild.replaceWith(messageNode(message, conversation.messages.length - 1));
    if (near) list.scrollTop = list.scrollHeight;
    element("figures").textContent = figures(meter);
  };
  for await (const chunk of stream) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) meter.tokens = chunk.usage.completion_tokens;
    if (chunk.usage) meter.prompt = chunk.usage.prompt_tokens;
    const delta = chunk.choices[0]?.delta;
    if (!delta?.content && !delta?.reasoning_content) continue;
    meter.first ||= performance.now();
    meter.last = performance.now();
    meter.tokens += 1;
    message.content += delta.content || "";
    message.reasoning += delta.reasoning_content || "";
    if (!planned) requestAnimationFrame(draw);
    planned = true;
  }
}

// The share of the memory-bandwidth bound of a rate, in the middle of the answer.
function shareOfBound(rate, { model, prompt, tokens }) {
  const bound = bounds[model];
  if (!bound || !prompt) return "";
  const bytes = bound.bytes_per_token + bound.bytes_per_position * (prompt + tokens / 2);
  const share = (rate * bytes) / bound.bytes_per_second;
  return share > 1 ? "above the memory-bandwidth bound" : `${Math.round(100 * share)} % of the memory-bandwidth bound`;
}

function figures(meter) {
  const { first, last, tokens, begun } = meter;
  if (!first) return "";
  // Tokens that came in one piece have no rate of their own.
  const rate = last - first > 50 ? ((tokens - 1) / (last - first)) * 1000 : (tokens / (last - begun)) * 1000;
  const parts = [`${Math.round(first - begun)} ms to the first token`];
  if (tokens > 1) parts.unshift(`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tok/s`);
  if (tokens > 1) parts.push(shareOfBound(rate, meter));
  return parts.filter(Boolean).join(" · ");
}

function setRunning(on) {
  element("send").textContent = on ? "Stop" : "Send";
  element("send").setAttribute("aria-label", on ? "Stop the answer" : "Send the message");
}

function send() {
  const input = element("input");
  const text = input.value.trim();
  if (!text) return;
  if (!current) {
    current = { id: Date.now(), title: "", messages: [] };
    conversations.unshift(current);
  }
  current.messages.push({ role: "user", content: text });
  input.value = "";
  grow();
  answer();
}

function grow() {
  const input = element("input");
  input.style.height = "auto";
  input.style.height = input.scrollHeight + 2 + "px";
}

// Models and settings.
async function loadBounds() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (response.ok) takeBounds((await response.json()).data);
  } catch {
    // Without it, no share is shown.
  }
}

function takeBounds(models) {
  for (const { id, loaded, bound } of models) if (loaded) bounds[id] = bound || null;
}

async function loadModels() {
  const picker = element("model");
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await problem(response));
    const { data } = await response.json();
    takeBounds(data);
    picker.replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
    if (data.some(({ id }) => id === settings.model)) picker.value = settings.model;
    say("");
  } catch (error) {
    picker.replaceChildren(make("option", { value: "" }, "no models: " + error.message));
    say(error.message);
    if (/key/i.test(error.message)) toggleSettings(true);
  }
}

function toggleSettings(on) {
  element("settings").hidden = !on;
  element("open-settings").setAttribute("aria-expanded", String(on));
}

function toggleSide(on) {
  element("side").classList.toggle("open", on);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function begin() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(settings.theme || (dark.matches ? "dark" : "light"));
  dark.onchange = () => settings.theme || setTheme(dark.matches ? "dark" : "light");
  for (const name of [...PARAMETERS, "system", "key"]) {
    element(name).value = settings[name] ?? "";
    element(name).onchange = () => {
      settings[name] = element(name).value;
      store("settings", settings);
      if (name === "key") loadModels();
    };
  }
  element("model").onchange = () => {
    settings.model = element("model").value;
    store("settings", settings);
  };
  element("theme").onclick = () => {
    settings.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(settings.theme);
    store("settings", settings);
  };
  element("forget").onclick = () => {
    if (!confirm("Delete all conversations?")) return;
    conversations = [];
    select(null);
  };
  element("new").onclick = () => select(null);
  element("open-side").onclick = () => toggleSide(true);
  element("close-side").onclick = () => toggleSide(false);
  element("open-settings").onclick = () => toggleSettings(element("settings").hidden);
  element("input").oninput = grow;
  element("input").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!running) send();
    }
  };
  document.onkeydown = (event) => {
    if (event.key !== "Escape") return;
    running?.abort();
    toggleSide(false);
  };
  element("form").onsubmit = (event) => {
    event.preventDefault();
    if (running) running.abort();
    else send();
  };
  drawConversations();
  drawMessages();
  loadModels();
}

begin();
