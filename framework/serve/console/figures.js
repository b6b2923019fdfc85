// Figures of an answer: the numbers that a step produced. Pure functions.

const MAX_VALUES = 5000;
const MAX_DEPTH = 8;
// A whole number: not a part of a word, an identifier, a date, a version, or a longer number.
const NUMBER = /(?<![\p{L}\p{N}_]|[\p{L}\p{N}_][-.,:/])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\p{L}\p{N}_]|[-.,:/][\p{L}\p{N}])/gu;
const UNIT = /^[\s\u00a0\u202f]?(°[CFK]|[%$€£‰]|\p{L}+)/u;
// Names of fields and their units in texts; the first one stands for all.
const UNITS = [
  ["%", "percent", "pct", "share", "ratio", "fraction"], ["°c", "celsius"], ["°f", "fahrenheit"],
  ["usd", "$", "dollars"], ["eur", "€", "euros"], ["gbp", "£", "pounds"],
  ["mm", "millimetres", "millimeters"], ["cm", "centimetres", "centimeters"], ["m", "metres", "meters"], ["km", "kilometres", "kilometers"],
  ["l", "litres", "liters"], ["kg", "kilograms"], ["g", "grams"], ["ms", "milliseconds"], ["s", "seconds", "sec"], ["min", "minutes"],
  ["h", "hours"], ["days", "day"], ["kb", "kilobytes"], ["mb", "megabytes"], ["gb", "gigabytes"], ["bytes", "byte"],
];
const UNIT_OF = new Map(UNITS.flatMap((names) => names.map((name) => [name, names[0]])));

// Split a text into pieces of text and numbers: { text, after } for a number, else a string.
export function* numbersIn(text) {
  let at = 0;
  for (const match of text.matchAll(NUMBER)) {
    yield text.slice(at, match.index);
    at = match.index + match[0].length;
    yield { text: match[0], after: text.slice(at, at + 24) };
  }
  yield text.slice(at);
}

// Return { find(number) -> context key of the step that produced it, or undefined }.
export function figuresOf(contexts, results) {
  const values = [];
  const walk = (value, key, field, depth) => {
    if (values.length > MAX_VALUES || depth > MAX_DEPTH) return;
    if (typeof value === "number" && Number.isFinite(value)) values.push({ value, key, field: field.toLowerCase() });
    else if (value && typeof value === "object") {
      for (const [name, inner] of Object.entries(value)) walk(inner, key, Array.isArray(value) ? field : name, depth + 1);
    }
  };
  for (const [key, record] of Object.entries(results ?? {})) {
    for (const [kind, name] of Object.entries(record?.outputs ?? {})) walk(contexts?.[kind]?.[name], key, kind, 0);
  }
  return { find: ({ text, after }) => values.find((one) => matches(one, text, after))?.key };
}

function matches({ value, field }, text, after) {
  const number = Number(text.replaceAll(",", ""));
  const decimals = text.split(".")[1]?.length ?? 0;
  const word = UNIT.exec(after)?.[1].toLowerCase() ?? "";
  const unit = UNIT_OF.get(word);
  const fieldUnit = UNIT_OF.get(field.split("_").at(-1));
  const isNamed = Boolean(unit && unit === fieldUnit) || (word.length > 2 && field.split("_").includes(word));
  const isRounded = Number(value.toFixed(decimals)) === number;
  if (unit === "%") {
    const isShare = Math.abs(value) <= 1 && Number((100 * value).toFixed(decimals)) === number;
    return (isShare && (!fieldUnit || fieldUnit === "%")) || (isRounded && fieldUnit === "%");
  }
  if (!isRounded || (unit && fieldUnit && unit !== fieldUnit)) return false;
  // A short whole number matches too many values by chance, so its unit must match as well.
  return decimals > 0 || isNamed || (Number.isInteger(value) && Math.abs(value) >= 100);
}
