// Markdown to nodes. Text becomes text nodes and never HTML, so nothing that a model writes is run.
"use strict";

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Code, strong text, emphasis, strikethrough, links, and addresses without one.
const INLINE = new RegExp(
  [
    "(`+)(.+?)\\1",
    "\\*\\*(.+?)\\*\\*(?!\\*)|(?<!\\w)__(.+?)__(?!\\w)",
    "\\*([^\\s*](?:.*?[^\\s*])?)\\*|(?<!\\w)_([^\\s_](?:.*?[^\\s_])?)_(?!\\w)",
    "~~(.+?)~~",
    "\\[([^\\]\\n]+)\\]\\(([^()\\s]+)\\)",
    "\\b(https?://[^\\s<>`]*[^\\s<>`.,:;!?'\")\\]*_])",
  ].join("|"),
);

// What is inside a line. Links lead to the web or to mail only.
function inline(text) {
  const nodes = [];
  let rest = text;
  for (let found; (found = INLINE.exec(rest)); ) {
    if (found.index > 0) nodes.push(rest.slice(0, found.index));
    const [all, , code, strong, strong2, emphasis, emphasis2, struck, label, link, address] = found;
    if (code !== undefined) nodes.push(make("code", {}, code.trim() || code));
    else if (strong || strong2) nodes.push(make("strong", {}, ...inline(strong || strong2)));
    else if (emphasis || emphasis2) nodes.push(make("em", {}, ...inline(emphasis || emphasis2)));
    else if (struck) nodes.push(make("del", {}, ...inline(struck)));
    else if (address) nodes.push(anchor(address, address));
    else if (/^(https?:|mailto:)/i.test(link)) nodes.push(anchor(link, ...(/https?:/.test(label) ? [label] : inline(label))));
    else nodes.push(all);
    rest = rest.slice(found.index + all.length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

function anchor(href, ...children) {
  return make("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

// Browsers give the clipboard to pages of this machine and of HTTPS only; the older way works on all.
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const focused = document.activeElement;
  const box = make("textarea", { class: "hidden" });
  box.value = text;
  document.body.append(box);
  box.select();
  const copied = document.execCommand("copy");
  box.remove();
  focused?.focus();
  if (!copied) throw new Error("the browser did not copy");
}

function copyButton(text) {
  const button = make("button", { type: "button" }, "Copy");
  const tell = (word) => {
    button.textContent = word;
    setTimeout(() => (button.textContent = "Copy"), 2000);
  };
  button.onclick = () => copyText(text()).then(() => tell("Copied"), () => tell("Not copied"));
  return button;
}

function codeBlock(lines) {
  const text = lines.join("\n");
  const button = copyButton(() => text);
  return make("div", { class: "code" }, make("pre", { tabindex: "0" }, make("code", {}, text)), button);
}

// An item, which may be a task that is done or not.
function item(text) {
  const task = /^\[([ xX])\]\s+(.*)$/.exec(text);
  if (!task) return make("li", {}, ...inline(text));
  const state = task[1] === " " ? {} : { checked: "" };
  const label = task[1] === " " ? "To do" : "Done";
  const box = make("input", { type: "checkbox", disabled: "", "aria-label": label, ...state });
  return make("li", { class: "task" }, box, ...inline(task[2]));
}

function list(lines, start) {
  const pattern = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;
  const first = pattern.exec(lines[start]);
  const depth = first[1].length;
  const node = make(/\d/.test(first[2]) ? "ol" : "ul");
  if (node.tagName === "OL") node.setAttribute("start", parseInt(first[2], 10));
  let at = start;
  while (at < lines.length) {
    const found = pattern.exec(lines[at]);
    if (found && found[1].length > depth && node.lastChild) {
      const [inner, next] = list(lines, at);
      node.lastChild.append(inner);
      at = next;
    } else if (found && found[1].length === depth) {
      node.append(item(found[3]));
      at += 1;
    } else if (!found && lines[at].trim() && /^\s+/.test(lines[at]) && node.lastChild) {
      node.lastChild.append(" ", ...inline(lines[at].trim()));
      at += 1;
    } else break;
  }
  return [node, at];
}

function table(lines, start) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const sides = cells(lines[start + 1]).map((cell) => (/^:-*:$/.test(cell) ? "center" : /:$/.test(cell) ? "right" : ""));
  const cell = (tag, text, side) => {
    const node = make(tag, {}, ...inline(text));
    if (side) node.style.textAlign = side;
    return node;
  };
  const row = (line, tag) => make("tr", {}, ...cells(line).map((text, i) => cell(tag, text, sides[i])));
  const body = make("tbody");
  let at = start + 2;
  while (at < lines.length && lines[at].includes("|")) body.append(row(lines[at++], "td"));
  return [make("table", {}, make("thead", {}, row(lines[start], "th")), body), at];
}

function markdown(text) {
  const lines = text.split("\n");
  const nodes = [];
  const begins = /^(#{1,6}\s|\s*([-*+]|\d+[.)])\s|>|\s*(```|~~~)|\s*([-*_])(\s*\4){2,}\s*$)/;
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      let end = at + 1;
      while (end < lines.length && !lines[end].trim().startsWith(fence[1])) end += 1;
      nodes.push(codeBlock(lines.slice(at + 1, end)));
      at = end + 1;
    } else if (heading) {
      nodes.push(make("h" + Math.min(6, heading[1].length + 1), {}, ...inline(heading[2])));
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      nodes.push(make("hr"));
      at += 1;
    } else if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      const [node, next] = list(lines, at);
      nodes.push(node);
      at = Math.max(next, at + 1);
    } else if (line.startsWith(">")) {
      let end = at;
      while (end < lines.length && lines[end].startsWith(">")) end += 1;
      nodes.push(make("blockquote", {}, ...markdown(lines.slice(at, end).map((l) => l.replace(/^>\s?/, "")).join("\n"))));
      at = end;
    } else if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] || "")) {
      const [node, next] = table(lines, at);
      nodes.push(node);
      at = next;
    } else if (!line.trim()) {
      at += 1;
    } else {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() && !begins.test(lines[end])) end += 1;
      const parts = lines.slice(at, end).flatMap((part, i) => [...(i ? [make("br")] : []), ...inline(part)]);
      nodes.push(make("p", {}, ...parts));
      at = end;
    }
  }
  return nodes;
}
