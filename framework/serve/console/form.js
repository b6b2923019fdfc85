// Forms generated from a JSON schema. The server validates the values.

import { attr, button, h, json, put, visible } from "./dom.js";
import { T } from "./text.js";

const DATES = { date: { type: "date", length: 10 }, "date-time": { type: "datetime-local", length: 16 }, time: { type: "time", length: 5 } };
const DATE_TEXT = /^(\d{4}-\d\d-\d\d)?(T|\b)?(\d\d:\d\d)?/;
let count = 0;

// Return { node, read() -> value, changed() -> bool, problems(list of {path, message}) -> unplaced ones }
export function form(schema, value, onchange) {
  const state = { root: schema ?? {}, fields: new Map(), onchange: () => { mark(state); onchange?.(); } };
  const top = objectField(state, resolved(state.root, state.root), value ?? {}, []);
  const before = JSON.stringify(top.read());
  return {
    node: top.node,
    read: top.read,
    changed: () => JSON.stringify(top.read()) !== before,
    problems: (list) => showProblems(state, list),
  };
}

function resolved(schema, root) {
  let merged = schema ?? {};
  for (let depth = 0; depth < 8 && typeof merged.$ref === "string"; depth += 1) {
    const inner = merged.$ref.replace(/^#\//, "").split("/").reduce((at, part) => at?.[part], root) ?? {};
    merged = { ...inner, ...merged, $ref: inner.$ref };
  }
  const choices = (merged.anyOf ?? merged.oneOf ?? []).map((one) => resolved(one, root));
  const real = choices.filter((one) => one.type !== "null");
  if (real.length === 1) merged = { ...real[0], ...merged, type: merged.type ?? real[0].type, optional: real.length < choices.length };
  return merged;
}

function typeOf(value) {
  if (typeof value === "number") return "number";
  if (typeof value === "boolean") return "boolean";
  return Array.isArray(value) ? "array" : value && typeof value === "object" ? "object" : "string";
}

function field(state, schema, value, path, name, required) {
  const known = resolved(schema, state.root);
  const type = Array.isArray(known.type) ? known.type.find((one) => one !== "null") : known.type ?? typeOf(value);
  const items = type === "array" ? resolved(known.items, state.root) : null;
  if (known.enum || known.const !== undefined) return choiceField(state, known, value, path, name);
  if (type === "boolean") return boolField(state, known, value, path, name);
  if (type === "object" && known.properties) {
    const inner = objectField(state, known, value ?? {}, path);
    return { node: h("fieldset", null, h("legend", null, title(known, name)), inner.node), read: inner.read };
  }
  if (type === "integer" || type === "number") {
    return textField(state, known, value, path, name, { inputmode: "decimal", required, read: readNumber });
  }
  if (items?.properties) return rowsField(state, known, items, value, path, name);
  if (items && ["string", "integer", "number"].includes(items.type) && !items.enum) return chipsField(state, known, items, value, path, name);
  if (type === "array" || type === "object" || (value !== null && typeof value === "object")) {
    // Other arrays and objects are edited as JSON.
    return textField(state, known, value === undefined ? "" : json(value, Infinity), path, name, { lines: true, code: true, read: readJson });
  }
  const date = DATES[known.format];
  if (date && (!value || DATE_TEXT.exec(value)[0].length >= date.length)) return dateField(state, known, value, path, name, date);
  const isEmpty = value === null || value === undefined;
  return textField(state, known, value, path, name, { lines: String(value ?? "").length > 60, required, read: (text) => (text === "" && isEmpty ? null : text) });
}

function readNumber(text) {
  if (text.trim() === "") return null;
  const number = Number(text.replace(",", "."));
  return Number.isNaN(number) ? text : number;
}

function readJson(text) {
  if (text.trim() === "") return null;
  try { return JSON.parse(text); } catch { return text; }
}

function objectField(state, schema, value, path) {
  const names = [...new Set([...Object.keys(schema.properties ?? {}), ...Object.keys(value ?? {})])];
  const parts = names.map((name) => {
    const isPresent = Object.hasOwn(value, name);
    const inner = field(state, schema.properties?.[name] ?? {}, isPresent ? value[name] : schema.properties?.[name]?.default,
      [...path, name], name, schema.required?.includes(name));
    return { name, isPresent, inner };
  });
  return {
    node: h("div", { class: "fields" }, parts.map((part) => part.inner.node)),
    read: () => Object.fromEntries(parts
      .map(({ name, isPresent, inner }) => [name, inner.read(), isPresent])
      .filter(([, now, isPresent]) => isPresent || (now !== null && now !== undefined))
      .map(([name, now]) => [name, now])),
  };
}

// A title that pydantic derives from the name is replaced by the name's words.
function title(schema, name) {
  const words = name.replaceAll("_", " ");
  if (!schema.title || schema.title.toLowerCase() === words.toLowerCase()) return visible(words.charAt(0).toUpperCase() + words.slice(1));
  return visible(`${schema.title} (${name})`);
}

// Label a control, and register it for problems and marks of changes.
function labeled(state, schema, path, name, input, { read, initial, after = false, control = input, group = false }) {
  count += 1;
  const id = `field-${count}`;
  attr(input, "id", id);
  attr(input, "name", name);
  input.addEventListener("input", () => state.onchange());
  const label = h(group ? "legend" : "label", group ? null : { for: id }, title(schema, name));
  const was = h("small", { class: "was", hidden: true }, T.was(brief(initial)));
  const hint = schema.description ? h("small", { id: `${id}-hint`, class: "quiet" }, visible(schema.description)) : null;
  const error = h("p", { class: "problem", id: `${id}-error`, hidden: true });
  if (hint) attr(input, "aria-describedby", hint.id);
  const heading = h("span", { class: "name" }, label, was);
  const node = group
    ? h("fieldset", { class: "field wide" }, label, was, control, hint, error)
    : h("div", { class: after ? "field check" : "field" }, after ? [control, heading] : [heading, control], hint, error);
  state.fields.set(path.join("."), { node, was, input, error, hint, schema, read, initial: JSON.stringify(initial ?? null) });
  return { node, read };
}

function brief(value) {
  if (value === null || value === undefined || value === "") return "—";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return visible(text.length > 40 ? `${text.slice(0, 40)}…` : text);
}

function mark(state) {
  for (const { node, was, read, initial } of state.fields.values()) {
    const isChanged = JSON.stringify(read() ?? null) !== initial;
    attr(node, "data-changed", isChanged);
    was.hidden = !isChanged;
  }
}

function textField(state, schema, value, path, name, { inputmode, lines, code, read, required }) {
  const input = h(lines ? "textarea" : "input", {
    type: lines ? undefined : "text", inputmode, rows: lines ? 3 : undefined, autocomplete: "off",
    "aria-required": required ? "true" : undefined, spellcheck: code ? "false" : undefined, class: code ? "code" : undefined,
    value: value === null || value === undefined ? "" : String(value),
  });
  const initialText = input.value;
  const readInput = () => (input.value === initialText && !code ? value ?? read(initialText) : read(input.value));
  return labeled(state, schema, path, name, input, { read: readInput, initial: readInput() });
}

// A date keeps the part that its control does not show, such as the time zone.
function dateField(state, schema, value, path, name, { type, length }) {
  const input = h("input", { type, value: value ? value.slice(0, length) : "" });
  const read = () => (input.value === "" ? null : value && input.value === value.slice(0, length) ? value : input.value + (/(Z|[+-]\d\d:\d\d)$/.exec(value ?? "")?.[0] ?? ""));
  return labeled(state, schema, path, name, input, { read, initial: value ?? null });
}

function boolField(state, schema, value, path, name) {
  const input = h("input", { type: "checkbox" });
  input.checked = value === true;
  return labeled(state, schema, path, name, input, { after: true, read: () => input.checked, initial: input.checked });
}

function choiceField(state, schema, value, path, name) {
  const choices = schema.enum ?? [schema.const];
  const all = choices.includes(value) || value === undefined || value === null ? choices : [value, ...choices];
  const isEmpty = value === undefined || value === null;
  const input = h("select", null,
    isEmpty ? h("option", { value: "" }, T.unset) : null,
    all.map((one, n) => h("option", { value: String(n) }, visible(String(one)))));
  input.value = isEmpty ? "" : String(all.indexOf(value));
  return labeled(state, schema, path, name, input, { read: () => (input.value === "" ? null : all[Number(input.value)]), initial: value ?? null });
}

// A list of texts or numbers: one chip per item, and an input that adds one.
function chipsField(state, schema, items, value, path, name) {
  const list = h("span", { class: "chips" });
  const input = h("input", { type: "text", autocomplete: "off", placeholder: T.addItem, inputmode: items.type === "string" ? undefined : "decimal" });
  const convert = items.type === "string" ? (text) => text : readNumber;
  let values = [...(value ?? [])];
  const show = () => list.replaceChildren(...values.map((one, n) => h("span", { class: "upload", testid: "chip" }, visible(String(one)),
    button("×", () => { values = values.filter((_, other) => other !== n); show(); state.onchange(); input.focus(); }, { class: "small round", "aria-label": T.leaveOut(visible(String(one))) }))));
  const add = () => {
    const text = input.value.trim().replace(/,$/, "");
    if (!text) return;
    values = [...values, convert(text)];
    input.value = "";
    show();
    state.onchange();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === ",") { event.preventDefault(); add(); }
    if (event.key === "Backspace" && !input.value && values.length) { values = values.slice(0, -1); show(); state.onchange(); }
  });
  input.addEventListener("blur", add);
  show();
  const isAbsent = value === undefined || value === null;
  const read = () => (isAbsent && !values.length ? value ?? null : input.value.trim() ? [...values, convert(input.value.trim())] : values);
  return labeled(state, schema, path, name, input, { control: h("div", { class: "chipbox" }, list, input), read, initial: value ?? null });
}

// A list of objects: one row of fields per item.
function rowsField(state, schema, items, value, path, name) {
  const rows = h("div", { class: "rows" });
  const add = button(T.addRow, () => { fill([...read(), {}]); state.onchange(); rows.lastChild?.querySelector("input, select, textarea")?.focus(); }, { class: "small" });
  let inner = [];
  const read = () => inner.map((one) => one.read());
  function fill(values) {
    for (const key of [...state.fields.keys()]) if (key.startsWith(`${path.join(".")}.`)) state.fields.delete(key);
    inner = values.map((one, n) => objectField(state, items, one ?? {}, [...path, String(n)]));
    rows.replaceChildren(...inner.map((one, n) => h("div", { class: "row", testid: "row", role: "group", "aria-label": T.row(n + 1) }, one.node,
      button("×", () => { fill(read().filter((_, other) => other !== n)); state.onchange(); add.focus(); }, { class: "small round", "aria-label": T.removeRow(n + 1) }))));
  }
  fill(value ?? []);
  const isAbsent = value === undefined || value === null;
  return labeled(state, schema, path, name, add, { group: true, control: h("div", null, rows, add), read: () => (isAbsent && !inner.length ? value ?? null : read()), initial: value ?? null });
}

// Return why a value breaks its schema, in the words of the field.
function violation(schema, value) {
  if (value === null || value === undefined || value === "") return T.invalidValue.missing;
  const { maximum, minimum, exclusiveMaximum, exclusiveMinimum, maxLength, minLength, maxItems, minItems } = schema;
  const size = typeof value === "string" || Array.isArray(value) ? value.length : null;
  if (["number", "integer"].includes(schema.type) && typeof value !== "number") return T.invalidValue.number;
  if (schema.type === "integer" && !Number.isInteger(value)) return T.invalidValue.integer;
  if (value > maximum) return T.invalidValue.atMost(maximum);
  if (value < minimum) return T.invalidValue.atLeast(minimum);
  if (value >= exclusiveMaximum) return T.invalidValue.lessThan(exclusiveMaximum);
  if (value <= exclusiveMinimum) return T.invalidValue.moreThan(exclusiveMinimum);
  if (typeof value === "string" && size > maxLength) return T.invalidValue.longest(maxLength);
  if (typeof value === "string" && size < minLength) return T.invalidValue.shortest(minLength);
  if (Array.isArray(value) && size > maxItems) return T.invalidValue.mostItems(maxItems);
  if (Array.isArray(value) && size < minItems) return T.invalidValue.leastItems(minItems);
  return null;
}

function showProblems(state, list) {
  for (const { input, error, hint } of state.fields.values()) {
    error.hidden = true;
    error.removeAttribute("data-testid");
    attr(input, "aria-invalid", null);
    attr(input, "aria-describedby", hint?.id);
  }
  const unplaced = [];
  let first = null;
  for (const one of list) {
    let path = one.path;
    // Use the nearest enclosing field if the path has no field of its own.
    while (path && !state.fields.has(path)) path = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
    const place = state.fields.get(path);
    if (!place) { unplaced.push(one); continue; }
    const text = (path === one.path ? violation(place.schema, place.read()) : null) ?? T.fieldProblem(visible(one.message));
    put(place.error, place.error.hidden ? text : `${place.error.textContent} ${text}`);
    place.error.hidden = false;
    attr(place.error, "data-testid", "problem");
    attr(place.input, "aria-invalid", "true");
    attr(place.input, "aria-describedby", [place.error.id, place.hint?.id].filter(Boolean).join(" "));
    first ??= place.input;
  }
  first?.focus();
  return unplaced;
}
