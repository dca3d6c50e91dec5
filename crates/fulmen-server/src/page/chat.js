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

// What of the conversations is in the browser, as text.
const kept = () => {
  try {
    return localStorage.getItem("fulmen.conversations");
  } catch {
    return null;
  }
};

let known = kept();
let conversations = stored("conversations", []);
let current = conversations.find((c) => c.id === stored("current", null)) || null;
let settings = stored("settings", {});
// The answer that is being written: its message, and what stops it.
let running = null;
// The message whose edit box is open.
let editing = null;
// The node of each message that is shown.
const nodes = new WeakMap();
let bounds = {};

function say(text) {
  element("status").textContent = text;
}

function save() {
  store("conversations", conversations);
  known = kept();
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
    const label = "Delete " + (conversation.title || "New conversation");
    const remove = make("button", { type: "button", "aria-label": label }, "✕");
    remove.onclick = () => {
      conversations = conversations.filter((other) => other !== conversation);
      if (conversation === current) return select(null);
      save();
      drawConversations();
      element("new").focus();
    };
    return make("li", { "aria-current": String(conversation === current) }, open, remove);
  });
  element("conversations").replaceChildren(...items);
}

// Another tab has changed the conversations. What is being written or edited here stays as it is here. After
// a reload, the page also hears of what it has saved itself.
function takeOthers() {
  if (kept() === known) return;
  known = kept();
  const busy = running || editing;
  conversations = stored("conversations", []);
  const at = conversations.findIndex(({ id }) => id === current?.id);
  if (busy && at < 0) conversations.unshift(current);
  else if (busy) conversations[at] = current;
  else current = conversations[at] || null;
  drawConversations();
  if (!busy) drawMessages();
}

function select(conversation) {
  stop();
  current = conversation;
  element("figures").textContent = "";
  editing = null;
  save();
  drawConversations();
  drawMessages();
  element("messages").scrollTop = element("messages").scrollHeight;
  toggleSide(false);
  element("input").focus();
}

// Messages. Nodes that are shown already stay, and with them the focus and an open edit box.
function replaceAfter(parent, children, same) {
  let kept = 0;
  while (kept < children.length && kept < parent.childNodes.length && same(parent.childNodes[kept], children[kept])) kept += 1;
  while (parent.childNodes.length > kept) parent.lastChild.remove();
  parent.append(...children.slice(kept));
}

const update = (parent, children) => replaceAfter(parent, children, (old, child) => old.isEqualNode(child));

function drawMessages() {
  const messages = current ? current.messages : [];
  const empty = () => [make("p", { class: "empty" }, "Say something to the model.")];
  const shown = messages.length ? messages.map(messageNode) : empty();
  replaceAfter(element("messages"), shown, (old, node) => old === node);
}

function action(label, run) {
  const button = make("button", { type: "button" }, label);
  button.onclick = run;
  return button;
}

// The node of a message, as the message is now.
function messageNode(message) {
  if (message === editing) return nodes.get(message);
  let node = nodes.get(message);
  if (!node) {
    node = make("article", { class: "message " + message.role, "aria-label": message.role });
    node.append(make("div", { class: "text" }), make("div", { class: "actions" }));
    nodes.set(message, node);
  }
  drawThoughts(node, message);
  update(node.querySelector(":scope > .text"), contents(message));
  update(node.querySelector(":scope > .actions"), actions(node, message));
  return node;
}

// Thoughts are open until the answer begins; then they are as the user leaves them.
function drawThoughts(node, message) {
  if (!message.reasoning) return;
  let thoughts = node.querySelector(":scope > details");
  if (!thoughts) {
    thoughts = make("details", {}, make("summary", {}, "Thoughts"), make("div", {}));
    thoughts.open = !message.content;
    node.prepend(thoughts);
  }
  thoughts.lastChild.textContent = message.reasoning;
  if (message.content && !thoughts.dataset.closed) {
    thoughts.dataset.closed = "yes";
    thoughts.open = false;
  }
}

function contents(message) {
  if (message.role === "user") return [document.createTextNode(message.content)];
  const shown = markdown(message.content || "");
  if (message.note) shown.push(make("p", { class: "note" }, message.note));
  if (message.error) shown.push(make("p", { class: "error", role: "alert" }, message.error));
  return shown;
}

function actions(node, message) {
  if (message.role === "user") return [action("Edit", () => edit(node, message))];
  const shown = [copyButton(() => message.content)];
  const last = message === current.messages.at(-1) && message !== running?.message;
  if (last) shown.push(action("Again", () => regenerate(message)));
  if (message.figures) shown.push(make("span", {}, message.figures));
  return shown;
}

function edit(node, message) {
  if (editing) closeEditor();
  editing = message;
  const box = make("textarea", { rows: "3", "aria-label": "Edit the message" });
  box.value = message.content;
  const done = action("Send", () => {
    if (!box.value.trim()) return;
    stop();
    editing = null;
    current.messages.length = current.messages.indexOf(message);
    current.messages.push({ role: "user", content: box.value });
    answer();
    element("send").focus();
  });
  const cancel = action("Cancel", () => {
    closeEditor();
    nodes.get(message).querySelector(".actions button").focus();
  });
  node.replaceChildren(box, make("div", { class: "actions" }, done, cancel));
  box.focus();
}

function closeEditor() {
  nodes.delete(editing);
  editing = null;
  drawMessages();
}

function regenerate(message) {
  stop();
  current.messages.length = current.messages.indexOf(message);
  answer();
  element("send").focus();
}

// Answers.
function request() {
  const messages = current.messages
    .filter((message) => message.role === "user" || message.content)
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
    if (done) throw new Error("The connection ended before the answer was complete.");
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

function stop() {
  running?.control.abort();
}

async function answer() {
  stop();
  const conversation = current;
  const body = request();
  // What is stored before the end is marked, so that a page that was left says so when it comes back.
  const message = { role: "assistant", content: "", reasoning: "", unfinished: true };
  conversation.messages.push(message);
  conversation.title ||= conversation.messages[0].content.slice(0, 60);
  const own = { control: new AbortController(), message };
  running = own;
  setRunning(true);
  save();
  drawConversations();
  drawMessages();
  element("messages").scrollTop = element("messages").scrollHeight;
  const begun = performance.now();
  const meter = { first: 0, tokens: 0, prompt: 0, begun, model: body.model };
  const end = await run(body, own, conversation, meter);
  // A model that was loaded by this request has not told its bound yet.
  if (meter.first && !(body.model in bounds)) await loadBounds();
  message.figures = figures(meter);
  delete message.unfinished;
  // Another answer may have begun since this one was stopped.
  if (running === own) {
    running = null;
    setRunning(false);
    element("figures").textContent = message.figures;
    say(end);
  }
  save();
  if (conversation === current) drawMessages();
}

// Asks, and takes the answer. Returns how it ended, in words.
async function run(body, { control, message }, conversation, meter) {
  try {
    const options = { method: "POST", headers: headers(), body: JSON.stringify(body), signal: control.signal };
    const response = await fetch("v1/chat/completions", options);
    if (response.status === 401) toggleSettings(true);
    if (!response.ok) throw new Error(await problem(response));
    await take(events(response), conversation, message, meter);
    return message.note || "The answer is complete.";
  } catch (error) {
    if (error.name === "AbortError") return "Stopped.";
    return (message.error = error.message);
  }
}

// Draws at most once a frame, however fast tokens come.
async function take(stream, conversation, message, meter) {
  let planned = false;
  const draw = () => {
    planned = false;
    if (conversation !== current || running?.message !== message) return;
    const list = element("messages");
    const near = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
    messageNode(message);
    if (near) list.scrollTop = list.scrollHeight;
    element("figures").textContent = figures(meter);
  };
  for await (const chunk of stream) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) meter.tokens = chunk.usage.completion_tokens;
    if (chunk.usage) meter.prompt = chunk.usage.prompt_tokens;
    const choice = chunk.choices[0];
    if (choice?.finish_reason === "length") message.note = "The answer was cut off: it has reached the largest number of tokens.";
    const delta = choice?.delta;
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
  // Screen readers read an answer when it is complete, not again with each piece.
  element("messages").setAttribute("aria-busy", String(on));
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

// On narrow screens, the conversations lie over the others. The focus goes with them.
function toggleSide(on) {
  const side = element("side");
  if (side.classList.contains("open") === on) return;
  side.classList.toggle("open", on);
  element("open-side").setAttribute("aria-expanded", String(on));
  element(on ? "close-side" : "open-side").focus();
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
  element("open-side").onclick = (event) => {
    event.stopPropagation();
    toggleSide(true);
  };
  document.querySelector("main").onclick = () => toggleSide(false);
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
    stop();
    toggleSide(false);
  };
  element("form").onsubmit = (event) => {
    event.preventDefault();
    if (running) stop();
    else send();
  };
  for (const message of conversations.flatMap((conversation) => conversation.messages)) {
    if (message.unfinished) message.note = "The page was left before this answer was complete.";
    delete message.unfinished;
  }
  addEventListener("pagehide", () => running && save());
  addEventListener("storage", ({ key }) => key === "fulmen.conversations" && takeOthers());
  drawConversations();
  drawMessages();
  element("messages").scrollTop = element("messages").scrollHeight;
  loadModels();
}

begin();
