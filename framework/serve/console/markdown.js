// A Markdown subset as DOM nodes: no HTML, no images, and only http, https, and mailto links.

import { button, h, visible } from "./dom.js";
import { T } from "./text.js";

const LONG = 60000;
const SHOWN = 8000;
const INLINE = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(\*[^*\s][^*\n]*\*)|(!?\[[^\]\n]{0,300}\]\([^()\s]{0,2000}\))/g;
const SAFE = /^(https?:\/\/|mailto:)/i;

// `figure.numbersIn` splits a text at its numbers; `figure.node` returns a node for a number whose
// step is known, or null.
export function render(text, figure = null) {
  const shown = visible(text);
  if (shown.length > LONG) return [long(shown)];
  const lines = shown.split("\n");
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (/^\s*$/.test(line)) { at += 1; continue; }
    if (/^```/.test(line)) {
      const end = lines.findIndex((one, n) => n > at && /^```/.test(one));
      const stop = end < 0 ? lines.length : end;
      found.push(h("pre", { tabindex: 0 }, lines.slice(at + 1, stop).join("\n")));
      at = stop + 1;
    } else if (/^#{1,6} /.test(line)) {
      found.push(h("p", { class: "heading" }, inline(line.replace(/^#+ /, ""), figure)));
      at += 1;
    } else if (/^\s*\|.*\|\s*$/.test(line) && /^[\s|:-]+$/.test(lines[at + 1] ?? "x")) {
      const rows = taken(lines, at, (one) => /^\s*\|/.test(one));
      found.push(grid(rows, figure));
      at += rows.length;
    } else if (/^\s*([-*+]|\d+[.)]) /.test(line)) {
      const items = taken(lines, at, (one) => /^\s*([-*+]|\d+[.)]) /.test(one));
      const tag = /^\s*\d/.test(line) ? "ol" : "ul";
      found.push(h(tag, null, items.map((one) => h("li", null, inline(one.replace(/^\s*([-*+]|\d+[.)]) /, ""), figure)))));
      at += items.length;
    } else {
      const some = taken(lines, at, (one, n) => n === at || !/^(\s*$|```|#{1,6} |\s*([-*+]|\d+[.)]) |\s*\|.*\|\s*$)/.test(one));
      found.push(h("p", null, some.flatMap((one, n) => [n ? h("br") : null, ...inline(one, figure)])));
      at += some.length;
    }
  }
  return found;
}

function taken(lines, from, fits) {
  let to = from;
  while (to < lines.length && fits(lines[to], to)) to += 1;
  return lines.slice(from, Math.max(to, from + 1));
}

function long(text) {
  const node = h("div", null, h("p", { class: "long" }, text.slice(0, SHOWN)));
  node.append(button(T.whole(text.length), () => node.replaceChildren(h("p", { class: "long" }, text))));
  return node;
}

function grid(rows, figure) {
  const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((one) => one.trim());
  const [head, , ...body] = rows;
  return h("div", { class: "scroll", tabindex: 0 }, h("table", null,
    h("thead", null, h("tr", null, cells(head).map((one) => h("th", { scope: "col" }, inline(one, figure))))),
    h("tbody", null, body.map((row) => h("tr", null, cells(row).map((one) => h("td", null, inline(one, figure))))))));
}

function inline(text, figure) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    found.push(...plain(text.slice(at, match.index), figure), piece(match[0], figure));
    at = match.index + match[0].length;
  }
  found.push(...plain(text.slice(at), figure));
  return found;
}

function piece(text, figure) {
  if (text.startsWith("`")) return h("code", null, text.slice(1, -1));
  if (text.startsWith("**")) return h("strong", null, plain(text.slice(2, -2), figure));
  if (text.startsWith("*")) return h("em", null, plain(text.slice(1, -1), figure));
  const [, picture, name, target] = /^(!?)\[(.*)\]\((.*)\)$/.exec(text);
  if (picture) return T.image(name);
  if (!SAFE.test(target)) return text;
  // Show the URL next to the link text, which may be misleading.
  return h("span", null,
    h("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, name || target),
    name && name !== target ? h("small", { class: "quiet" }, ` (${target})`) : null);
}

function plain(text, figure) {
  if (!figure || !text) return text ? [text] : [];
  return [...figure.numbersIn(text)].map((piece) => (typeof piece === "string" ? piece : figure.node(piece) ?? piece.text));
}
