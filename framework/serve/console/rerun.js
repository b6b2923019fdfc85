// Plans that run steps of the last turn again. Results of other steps are still in the thread, and
// the server adds the step that answers. Pure functions.

import { needs } from "./layout.js";
import { CLOSING } from "./state.js";

const PLAN_FIELDS = ["context_key", "capability", "task_objective", "success_criteria", "expected_output",
  "parameters", "inputs", "when", "for_each", "look_again", "wait_until", "wait_for"];

// Return the plan of a step and of the steps before and after it that are to run as well.
export function rerunPlan(steps, key, { before: includesBefore, after: includesAfter }) {
  const index = steps.findIndex((step) => step.context_key === key);
  if (index < 0) return null;
  const before = needs(steps);
  const [earlier, later] = [new Set([index]), new Set([index])];
  const isWork = (n) => !CLOSING.has(steps[n].capability);
  for (const n of earlier) for (const one of before[n]) if (isWork(one) && includesBefore(steps[one].context_key)) earlier.add(one);
  for (let size = 0; size !== later.size;) {
    size = later.size;
    steps.forEach((step, n) => { if (isWork(n) && before[n].some((one) => later.has(one)) && includesAfter(step.context_key)) later.add(n); });
  }
  return { steps: steps.filter((_, n) => earlier.has(n) || later.has(n)).map(planFields) };
}

// Return the plan that runs one element of a for_each step; null if the step has it as an input.
export function elementPlan(steps, key, number) {
  const step = steps.find((one) => one.context_key === key);
  const { of, as: name = "item" } = step?.for_each ?? {};
  if (typeof of !== "string" || JSON.stringify(step.inputs ?? []).includes(`"${name}"`)) return null;
  const refer = (value) => {
    if (Array.isArray(value)) return value.map(refer);
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([field, inner]) => [field,
      field === "$from" && (inner === name || inner.startsWith?.(`${name}.`)) ? `${of}.${number}${inner.slice(name.length)}` : refer(inner)]));
  };
  const { for_each: _, ...rest } = planFields(step);
  return { steps: [{ ...rest, context_key: `${key}_${number + 1}`, parameters: refer(step.parameters ?? {}) }] };
}

// Return the value of an element of a for_each step in the state of the thread, as text.
export function elementName(contexts, step, number) {
  const [key, ...path] = String(step.for_each?.of ?? "").split(".");
  for (const entries of Object.values(contexts ?? {})) {
    const list = path.reduce((at, name) => at?.[name], entries?.[key]);
    const value = Array.isArray(list) ? list[number] : undefined;
    const word = value && typeof value === "object" ? value.name ?? value.id ?? value.key : value;
    if (word !== undefined && typeof word !== "object") return String(word);
  }
  return null;
}

function planFields(step) {
  return Object.fromEntries(PLAN_FIELDS.filter((name) => step[name] !== undefined && step[name] !== null).map((name) => [name, step[name]]));
}
