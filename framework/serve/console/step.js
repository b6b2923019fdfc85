// The detail of a step: facts, and tabs with its input, output, elements, attempts, and trace.

import { get, query, threadPath } from "./api.js";
import { attr, button, h, put, visible, when } from "./dom.js";
import { elementName, rerunPlan } from "./rerun.js";
import { statusOf } from "./state.js";
import { T } from "./text.js";

const MAX_CHILDREN = 100;
const MAX_TEXT = 2000;
const INPUTS = ["parameters", "inputs", "when", "for_each", "wait_until", "wait_for"];

// Fill a section with the detail of a step, and keep the open tab of the step before.
export function fillDetail(app, node, step, close) {
  const earlier = app.earlier?.shown ? app.earlier.state : null;
  const tabs = [
    ["input", inputTab(step)], ["output", h("div")], ["elements", step.elements ? elementsTab(app, step) : null],
    ["attempts", step.tries.length ? attemptsTab(step) : null], ["trace", step.started ? traceTab(app, step, earlier) : null],
  ].filter(([, content]) => content);
  const wanted = node.capgraphTab ?? (step.elements?.failed ? "elements" : ["done", "failed"].includes(step.status) ? "output" : "input");
  const rerun = earlier ? null : rerunButton(app, step);
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.tab : null;
  attr(node, "aria-label", T.step.title(visible(step.context_key)));
  node.replaceChildren(
    h("div", { class: "bar" }, h("h3", null, visible(step.context_key)), h("span", { class: "buttons" }, rerun, button("×", close, { "aria-label": T.close, class: "small" }))),
    facts(step), ...tabbed(node, tabs, tabs.some(([name]) => name === wanted) ? wanted : tabs[0][0]));
  // A replaced tab loses the focus.
  if (focused) node.querySelector(`[role=tab][data-tab=${focused}]`)?.focus();
  const [, output] = tabs.find(([name]) => name === "output");
  fillOutput(app, step, earlier, output, node.querySelector("[data-tab=trace] dl")).catch(app.fail);
}

function facts(step) {
  const rows = [["status", [T.status[statusOf(step)] ?? step.status, step.elements && T.elements(step.elements)].filter(Boolean).join(" · ")], ["capability", step.capability], ["task_objective", step.task_objective],
    ["message", step.message], ["reason", step.reason], ["severity", step.severity],
    ["duration", typeof step.duration === "number" ? T.seconds(step.duration) : null],
    ["for", step.wait?.for], ["until", step.wait?.until], ["look_again", step.look_again ? "✓" : null]];
  return definitions(rows);
}

function definitions(rows) {
  return h("dl", null, rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", null, T.step[name] ?? name), h("dd", null, visible(typeof value === "object" ? JSON.stringify(value) : String(value)))]));
}

function tabbed(node, tabs, current) {
  const panels = tabs.map(([name, content]) => h("div", { role: "tabpanel", "data-tab": name, "aria-label": T.step.tabs[name], tabindex: 0 }, content));
  const list = h("div", { class: "subtabs", role: "tablist", "aria-label": T.step.tabsLabel }, tabs.map(([name]) => button(T.step.tabs[name], () => show(name), { role: "tab", "data-tab": name })));
  function show(name) {
    for (const panel of panels) panel.hidden = panel.dataset.tab !== name;
    for (const tab of list.children) {
      attr(tab, "aria-selected", String(tab.dataset.tab === name));
      attr(tab, "tabindex", tab.dataset.tab === name ? "0" : "-1");
    }
  }
  list.addEventListener("click", (event) => { if (event.target.dataset.tab) node.capgraphTab = event.target.dataset.tab; });
  list.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way) return;
    const all = [...list.children];
    const next = all[(all.indexOf(document.activeElement) + way + all.length) % all.length];
    next.focus();
    next.click();
  });
  show(current);
  return [list, ...panels];
}

function inputTab(step) {
  const rows = INPUTS.filter((name) => step[name] !== null && step[name] !== undefined && Object.keys(Object(step[name])).length > 0);
  return h("div", null, rows.length ? rows.map((name) => [h("h4", null, T.step[name]), tree(step[name])]) : h("p", { class: "quiet" }, T.step.noInput));
}

async function fillOutput(app, step, earlier, place, trace) {
  const isOver = ["done", "failed"].includes(step.status) && app.threadId;
  if (!isOver) { place.replaceChildren(h("p", { class: "quiet" }, T.step.noOutput)); return; }
  const [state, used] = earlier ? [earlier, { items: [] }]
    : await Promise.all([get(`${threadPath(app.threadId)}/state`), get(query("/api/usage", { by: "step", thread_id: app.threadId }))]);
  const record = state.execution_step_results?.[step.context_key];
  const values = Object.entries(record?.outputs ?? {}).map(([kind, key]) => [kind, state.capability_context_data?.[kind]?.[key]]);
  place.replaceChildren(...values.filter(([, value]) => value !== undefined).flatMap(([kind, value]) => [h("h4", null, visible(kind)), tree(value)]),
    values.length ? "" : h("p", { class: "quiet" }, T.step.noOutput),
    record ? h("details", null, h("summary", null, T.step.record), tree(record)) : "");
  const calls = used.items.filter((one) => one.step === step.context_key || one.step.startsWith(`${step.context_key}[`));
  if (!calls.length || !trace) return;
  const money = calls.some((one) => one.cost_usd === null) ? null : calls.reduce((sum, one) => sum + one.cost_usd, 0);
  trace.append(h("dt", null, T.step.money), h("dd", null, T.money(money)));
}

// The elements of a for_each step as cells, the failed ones first.
function elementsTab(app, step) {
  const { states, messages, of } = step.elements;
  const order = ["failed", "asks", "running", "waits", "pending", "skipped", "done"];
  const all = Array.from({ length: Math.min(of, 2000) }, (_, n) => ({ n, status: states[n] ?? "pending", name: elementName(app.contexts, step, n) ?? T.turn.element(n + 1) }));
  all.sort((a, b) => order.indexOf(a.status) - order.indexOf(b.status) || a.n - b.n);
  const detail = h("p", { class: "words", role: "status" });
  const show = (one) => { put(detail, visible([one.name, T.status[one.status] ?? one.status, messages?.[one.n]].filter(Boolean).join(" · "))); };
  const cells = all.map((one) => button([h("span", { "aria-hidden": "true" }, T.marks[one.status]), ` ${visible(one.name)}`], () => show(one),
    { class: "cell", testid: "element", "data-status": one.status, "aria-label": `${visible(one.name)}, ${T.status[one.status] ?? one.status}` }));
  if (all[0]?.status === "failed") show(all[0]);
  return h("div", null, h("p", { class: "quiet" }, T.elements(step.elements)), h("div", { class: "cells" }, cells), detail);
}

function attemptsTab(step) {
  return h("ol", { class: "attempts" }, step.tries.map((one) => h("li", null,
    [T.status[one.status] ?? one.status, when(one.from), one.to ? T.seconds((one.to - one.from) / 1000) : "", visible(one.message ?? "")].filter(Boolean).join(" · "))));
}

function traceTab(app, step, earlier) {
  return h("div", null, definitions([["trace", step.trace_id], ["run", earlier ? null : app.turn.run], ["attempt", step.attempt],
    ["cost", step.tokens ? T.tokens(step.tokens.input, step.tokens.output) : null]]),
  button(T.step.inTimeline, () => app.show("timeline"), { class: "small" }));
}

// Run a step and the steps that depend on it again. The names of the steps have to be confirmed.
function rerunButton(app, step) {
  const steps = app.thread?.plan?.steps ?? [];
  const plan = rerunPlan(steps, step.context_key, { before: () => false, after: () => true });
  if (!plan || step.status === "pending" || app.turn.status === "running") return null;
  const names = plan.steps.map((one) => one.context_key).join(", ");
  const start = button(T.step.rerun, () => {
    if (start.dataset.confirms) { app.send(T.step.rerunMessage(step.context_key), [], plan); return; }
    start.dataset.confirms = "true";
    put(start, visible(T.step.confirmRerun(names)));
  }, { class: "small", testid: "rerun" });
  return start;
}

// JSON as a tree whose branches open and close.
export function tree(value, name = null, depth = 0) {
  const label = name === null ? null : h("span", { class: "name" }, visible(name), ": ");
  if (value === null || typeof value !== "object") return h("div", { class: "leaf" }, label, leaf(value));
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const branch = h("details", { open: depth < 2 && entries.length <= 20 }, h("summary", null, label, h("span", { class: "quiet" }, size)));
  const fill = (from) => {
    branch.append(...entries.slice(from, from + MAX_CHILDREN).map(([key, inner]) => tree(inner, key, depth + 1)));
    const left = entries.length - from - MAX_CHILDREN;
    if (left > 0) { const more = button(T.step.moreEntries(left), () => { more.remove(); fill(from + MAX_CHILDREN); }, { class: "small" }); branch.append(more); }
  };
  let isFilled = false;
  const open = () => { if (!isFilled && branch.open) { isFilled = true; fill(0); } };
  branch.addEventListener("toggle", open);
  open();
  return h("div", { class: name === null ? "tree" : null }, branch);
}

function leaf(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value) ?? "";
  const part = h("span", { class: `value ${value === null ? "null" : typeof value}` }, visible(text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text));
  if (text.length <= MAX_TEXT) return part;
  return [part, button(T.whole(text.length), (event) => { put(part, visible(text)); event.target.remove(); }, { class: "small" })];
}
