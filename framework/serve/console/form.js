// Forms generated from a JSON schema. The server validates the values.

import { attr, h, json, visible } from "./dom.js";
import { T } from "./text.js";

let forms = 0;

// Return { node, read() -> value, changed() -> bool, problems(list of {path, message}) -> unplaced ones }
export function form(schema, value, onchange) {
  forms += 1;
  const made = { id: `form-${forms}`, root: schema ?? {}, fields: new Map(), onchange, count: 0 };
  const top = objectField(made, resolved(made.root, made.root), value ?? {}, []);
  const before = JSON.stringify(top.read());
  return {
    node: top.node,
    read: top.read,
    changed: () => JSON.stringify(top.read()) !== before,
    problems: (found) => show(made, found),
  };
}

function resolved(schema, root) {
  let found = schema ?? {};
  for (let depth = 0; depth < 8 && typeof found.$ref === "string"; depth += 1) {
    const inner = found.$ref.replace(/^#\//, "").split("/").reduce((at, part) => at?.[part], root) ?? {};
    found = { ...inner, ...found, $ref: inner.$ref };
  }
  const choices = (found.anyOf ?? found.oneOf ?? []).map((one) => resolved(one, root));
  const real = choices.filter((one) => one.type !== "null");
  if (real.length === 1) found = { ...real[0], ...found, type: found.type ?? real[0].type, optional: real.length < choices.length };
  return found;
}

function field(made, schema, value, path, name, required) {
  const known = resolved(schema, made.root);
  const type = Array.isArray(known.type) ? known.type.find((one) => one !== "null") : known.type ?? typeOf(value);
  if (known.enum || known.const !== undefined) return choiceField(made, known, value, path, name);
  if (type === "boolean") return boolField(made, known, value, path, name);
  if (type === "object" && known.properties) {
    const inner = objectField(made, known, value ?? {}, path);
    return { node: h("fieldset", null, h("legend", null, title(known, name)), inner.node), read: inner.read };
  }
  if (type === "integer" || type === "number") {
    return textField(made, known, value, path, name, { inputmode: "decimal", required, read: (text) => {
      if (text.trim() === "") return null;
      const number = Number(text.replace(",", "."));
      return Number.isNaN(number) ? text : number;
    } });
  }
  if (type === "array" || type === "object" || (value !== null && typeof value === "object")) {
    // Arrays and objects without properties are edited as JSON.
    return textField(made, known, value === undefined ? "" : json(value, Infinity), path, name, { lines: true, code: true, read: (text) => {
      if (text.trim() === "") return null;
      try { return JSON.parse(text); } catch { return text; }
    } });
  }
  const nothing = value === null || value === undefined;
  return textField(made, known, value, path, name, {
    lines: String(value ?? "").length > 60, read: (text) => (text === "" && nothing ? null : text),
  });
}

function typeOf(value) {
  if (typeof value === "number") return "number";
  if (typeof value === "boolean") return "boolean";
  return Array.isArray(value) ? "array" : value && typeof value === "object" ? "object" : "string";
}

function objectField(made, schema, value, path) {
  const names = [...new Set([...Object.keys(schema.properties ?? {}), ...Object.keys(value ?? {})])];
  const parts = names.map((name) => {
    const had = Object.hasOwn(value, name);
    const inner = field(made, schema.properties?.[name] ?? {}, had ? value[name] : schema.properties?.[name]?.default,
      [...path, name], name, schema.required?.includes(name));
    return { name, had, inner };
  });
  return {
    node: h("div", { class: "fields" }, parts.map((part) => part.inner.node)),
    read: () => Object.fromEntries(parts
      .map(({ name, had, inner }) => [name, inner.read(), had])
      .filter(([, found, had]) => had || (found !== null && found !== undefined))
      .map(([name, found]) => [name, found])),
  };
}

function title(schema, name) {
  const words = schema.title && schema.title.toLowerCase().replaceAll(" ", "_") !== name.toLowerCase()
    ? `${schema.title} (${name})` : schema.title ?? name;
  return visible(words);
}

function wrap(made, schema, path, name, input, { after = false } = {}) {
  made.count += 1;
  const id = `${made.id}-${made.count}`;
  attr(input, "id", id);
  attr(input, "name", name);
  input.addEventListener("input", () => made.onchange?.());
  const label = h("label", { for: id }, title(schema, name));
  const hint = schema.description ? h("small", { id: `${id}-hint`, class: "quiet" }, visible(schema.description)) : null;
  const error = h("p", { class: "problem", id: `${id}-error`, hidden: true });
  if (hint) attr(input, "aria-describedby", hint.id);
  made.fields.set(path.join("."), { input, error, hint });
  return h("div", { class: after ? "field check" : "field" }, after ? [input, label] : [label, input], hint, error);
}

function textField(made, schema, value, path, name, { inputmode, lines, code, read, required }) {
  const input = h(lines ? "textarea" : "input", {
    type: lines ? undefined : "text", inputmode, rows: lines ? 3 : undefined, autocomplete: "off",
    "aria-required": required ? "true" : undefined, spellcheck: code ? "false" : undefined, class: code ? "code" : undefined,
    value: value === null || value === undefined ? "" : String(value),
  });
  const given = input.value;
  return { node: wrap(made, schema, path, name, input), read: () => (input.value === given && !code ? value ?? read(given) : read(input.value)) };
}

function boolField(made, schema, value, path, name) {
  const input = h("input", { type: "checkbox" });
  input.checked = value === true;
  return { node: wrap(made, schema, path, name, input, { after: true }), read: () => input.checked };
}

function choiceField(made, schema, value, path, name) {
  const choices = schema.enum ?? [schema.const];
  const all = choices.includes(value) || value === undefined || value === null ? choices : [value, ...choices];
  const empty = value === undefined || value === null;
  const input = h("select", null,
    empty ? h("option", { value: "" }, T.unset) : null,
    all.map((one, n) => h("option", { value: String(n) }, visible(String(one)))));
  input.value = empty ? "" : String(all.indexOf(value));
  return { node: wrap(made, schema, path, name, input), read: () => (input.value === "" ? null : all[Number(input.value)]) };
}

function show(made, found) {
  for (const { input, error, hint } of made.fields.values()) {
    error.hidden = true;
    error.removeAttribute("data-testid");
    attr(input, "aria-invalid", null);
    attr(input, "aria-describedby", hint?.id);
  }
  const left = [];
  let first = null;
  for (const one of found) {
    let path = one.path;
    // Use the nearest enclosing field if the path has no field of its own.
    while (path && !made.fields.has(path)) path = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
    const place = made.fields.get(path);
    if (!place) { left.push(one); continue; }
    place.error.textContent = place.error.hidden ? visible(one.message) : `${place.error.textContent} ${visible(one.message)}`;
    place.error.hidden = false;
    attr(place.error, "data-testid", "problem");
    attr(place.input, "aria-invalid", "true");
    attr(place.input, "aria-describedby", [place.error.id, place.hint?.id].filter(Boolean).join(" "));
    first ??= place.input;
  }
  first?.focus();
  return left;
}
