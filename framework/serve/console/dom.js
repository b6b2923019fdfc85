// DOM helpers. Untrusted data is always inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "testid") node.setAttribute("data-testid", value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

export function button(label, onclick, props) {
  return h("button", { type: "button", onclick, ...props }, label);
}

// Set text only if it differs, because every write triggers a style recalculation.
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

// Reconcile the children of a node with a list of items by key. `update` changes existing children.
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.capgraphNodes ??= new Map();
  const wanted = new Set(items.map(keyOf));
  for (const [key, node] of known) if (!wanted.has(key)) { node.remove(); known.delete(key); }
  let before = null;
  for (const item of items) {
    const key = keyOf(item);
    let node = known.get(key);
    if (!node) { node = make(item); known.set(key, node); }
    const place = before ? before.nextSibling : parent.firstChild;
    if (node !== place) parent.insertBefore(node, place);
    update?.(node, item);
    before = node;
  }
}

// Show invisible characters as escapes, because control characters and bidi overrides can deceive
// readers. Joiners and variation selectors are kept for emoji.
const HIDDEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2028\u2029\u2800\u3164\uffa0\u{e0000}-\u{e0fff}]/gu;

export function visible(text) {
  return String(text).replace(/\r\n?/g, "\n").replace(HIDDEN,
    (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
}

export function json(value, most = 20000) {
  const text = visible(typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
  return text.length > most ? `${text.slice(0, most)}\n…` : text;
}

export function pre(value, props) {
  return h("pre", { tabindex: 0, ...props }, json(value));
}

// Return a table of plain objects without empty columns. `details` are shown below a row on request,
// and `labels` are the headings of columns whose names do not suffice.
export function table(items, columns, caption, details = [], labels = {}) {
  const words = (name) => labels[name] ?? name.replaceAll("_", " ");
  const used = columns.filter((name) => items.some((item) => shown(item[name]) !== ""));
  const extra = (item) => details.filter((name) => shown(item[name]) !== "");
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", { class: "records" },
      h("thead", null, h("tr", null, used.map((name) => h("th", { scope: "col" }, words(name))))),
      h("tbody", null, items.map((item) => [
        h("tr", null, used.map((name) => h("td", { "data-label": words(name), class: isWord(item[name]) ? "word" : null }, shown(item[name])))),
        extra(item).length ? h("tr", { class: "extra" }, h("td", { colspan: used.length },
          h("details", null, h("summary", null, DETAILS), h("dl", null, extra(item).map((name) => [h("dt", null, words(name)), h("dd", null, shown(item[name]))]))))) : null]))));
}

const DETAILS = "Details";
// A short word is not broken, because the other columns have enough room.
const isWord = (value) => typeof value === "string" && /^\S{1,14}$/.test(value);

export function columnsOf(items, first = []) {
  return [...new Set([...first, ...items.flatMap((item) => Object.keys(item))])];
}

function shown(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value) && value.every((one) => typeof one !== "object")) return visible(value.join(", "));
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en") : String(+value.toPrecision(6));
  return json(value, 400);
}

// Close a menu, a details element, on a click or a focus elsewhere and on Escape.
export function closesOutside(menu) {
  document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
  menu.addEventListener("focusout", (event) => { if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false; });
  menu.addEventListener("keydown", (event) => { if (event.key === "Escape") { menu.open = false; menu.firstChild.focus(); } });
}

export function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function when(time, short = false) {
  const date = new Date(typeof time === "number" ? time * (time < 1e11 ? 1000 : 1) : time);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleString("en", { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: short ? undefined : "2-digit", hour12: false });
}

// Import a module that is not part of the first page, and the stylesheet of such modules.
let styled = null;
export async function lazy(load) {
  styled ??= new Promise((done) => { document.head.append(h("link", { rel: "stylesheet", href: new URL("views.css", import.meta.url).href, onload: done, onerror: done })); });
  return (await Promise.all([load(), styled]))[0];
}
