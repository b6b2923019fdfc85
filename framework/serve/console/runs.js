// The recorded runs of a thread: comparison side by side, replay, and read-only links.

import { call, get, latest, post, query, threadPath } from "./api.js";
import { button, h, put, visible, when } from "./dom.js";
import { CLOSING } from "./state.js";
import { T } from "./text.js";

const MAX_FIGURES = 200;
const MAX_TEXT = 4000;
const DAYS = [1, 7, 30];
// Texts of this module are not part of the first page.
const W = {
  title: "Runs", none: "No recorded runs yet.", run: (turn) => `Run ${turn}`, select: (turn) => `Select run ${turn}`,
  help: "Select two runs to compare them. They may belong to different threads.", selected: "Selected",
  unselect: (name) => `Remove ${name} from the selection`, replay: "Replay", replayOf: (turn) => `Replay run ${turn} with the current code`,
  share: "Share", shareOf: (turn) => `Share run ${turn}`, recorded: "Recorded", replayed: "Replayed now",
  working: "Replaying…", same: "No differences.", changes: (n) => (n === 1 ? "1 difference." : `${n} differences.`),
  unrecorded: "Without a record", ran: "Ran again", outcome: "Outcome", reason: "Reason", steps: "Steps", calls: "Model calls",
  tokens: "Tokens", cost: "Cost", plan: "Plan", figures: "Figures", equal: (n) => `${n} equal values`, answer: "Answer", item: "Item",
  changed: "differs", notPlanned: "not planned", done: "done", failed: "failed", partly: (n) => `partly done, ${n} failed`, notRun: "not run", parameters: "parameters",
  warning: "Anyone with the link can read the request, plan, results, and answer of this run. Names of users and secrets are hidden.",
  lifetime: "Lifetime", days: (n) => (n === 1 ? "1 day" : `${n} days`), create: "Create link", link: "Link", once: "Copy the link now. It is not shown again.",
  links: "Active links", expires: (turn, at) => `Run ${turn}, expires ${at}`, revoke: "Revoke", revokeOf: (turn) => `Revoke the link to run ${turn}`,
};

// Runs stay selected when another thread is opened.
const selection = [];

export function runsView(app) {
  const list = h("ul", { class: "history", testid: "runs" });
  const selected = h("div", { class: "buttons" });
  const links = h("div", { testid: "links" });
  const shown = h("div", { testid: "comparison" });
  const node = h("div", { class: "runs" }, h("h3", null, W.title), h("p", { class: "quiet" }, W.help), list, selected, shown, links);

  let shownThread = null;
  const load = latest(async (stale) => {
    const id = app.threadId;
    if (id !== shownThread) { list.replaceChildren(); links.replaceChildren(); }
    shownThread = id;
    if (!id) return;
    const [runs, open] = await Promise.all([get(`${threadPath(id)}/recorded`), get(`${threadPath(id)}/links`)]);
    if (stale()) return;
    list.replaceChildren(...runs.items.map((one) => runNode(id, one)));
    if (!runs.items.length) list.append(h("li", { class: "quiet" }, W.none));
    showLinks(id, open.items);
    showSelection();
  });

  function runNode(id, one) {
    const mark = h("input", { type: "checkbox", "aria-label": W.select(one.turn), "data-run": `${id} ${one.turn}` });
    mark.addEventListener("change", () => select(id, one, mark.checked));
    return h("li", null, mark, h("strong", null, W.run(one.turn)), h("span", { class: "quiet" }, [when(one.at * 1000), T.outcome[one.status] ?? one.status].join(" · ")),
      h("span", { class: "request" }, visible(one.request)),
      h("span", { class: "buttons" },
        button(W.replay, () => replay(id, one.turn).catch(app.fail), { class: "small", "aria-label": W.replayOf(one.turn) }),
        button(W.share, () => share(id, one.turn), { class: "small", "aria-label": W.shareOf(one.turn) })));
  }

  function select(id, one, on) {
    const key = `${id} ${one.turn}`;
    const place = selection.findIndex((other) => other.key === key);
    if (on && place < 0) selection.push({ key, id, turn: one.turn, title: app.thread?.title || T.untitled });
    if (!on && place >= 0) selection.splice(place, 1);
    if (selection.length > 2) selection.shift();
    showSelection();
    if (selection.length === 2) compare().catch(app.fail); else shown.replaceChildren();
  }

  function showSelection() {
    const keys = selection.map((one) => one.key);
    for (const mark of list.querySelectorAll("[data-run]")) mark.checked = keys.includes(mark.dataset.run);
    selected.replaceChildren(...(selection.length ? [h("span", { class: "quiet" }, `${W.selected}:`)] : []),
      ...selection.map((one) => button(`${visible(nameOf(one))} ×`, () => select(one.id, one, false), { class: "chip", "aria-label": W.unselect(visible(nameOf(one))) })));
  }

  async function compare() {
    const [a, b] = selection;
    const found = await get(query(`${threadPath(a.id)}/compare`, { turn: a.turn, other: b.id, other_turn: b.turn }));
    if (selection[0] === a && selection[1] === b) showResult(found, nameOf(a), nameOf(b));
  }

  async function replay(id, turn) {
    shown.replaceChildren(h("p", { class: "quiet", role: "status" }, W.working));
    try {
      showResult(await post(`${threadPath(id)}/replay`, { turn }), W.recorded, W.replayed);
    } catch (error) { shown.replaceChildren(); throw error; }
  }

  function showResult(found, first, second) {
    shown.replaceChildren(...comparison(found, visible(first), visible(second)));
    shown.scrollIntoView({ block: "nearest" });
  }

  function share(id, turn) {
    const days = h("select", { class: "narrow", "aria-label": W.lifetime }, DAYS.map((n) => h("option", { value: n, selected: n === 7 }, W.days(n))));
    const place = h("div", { class: "buttons" }, h("label", null, `${W.lifetime} `, days), button(W.create, create, { class: "main small" }));
    async function create() {
      try {
        const made = await post(`${threadPath(id)}/links`, { turn, days: Number(days.value) });
        const field = h("input", { readonly: true, value: made.url, testid: "link", "aria-label": W.link, onfocus: () => field.select() });
        const copy = button(T.copy, async () => { await navigator.clipboard?.writeText(made.url); put(copy, T.copied); }, { class: "small" });
        place.replaceChildren(field, copy, h("span", { class: "quiet" }, W.once));
        showLinks(id, (await get(`${threadPath(id)}/links`)).items);
      } catch (error) { app.fail(error); }
    }
    shown.replaceChildren(h("section", { class: "confirm", "aria-label": W.shareOf(turn) }, h("p", null, W.warning), place));
    days.focus();
  }

  function showLinks(id, items) {
    links.replaceChildren(...(items.length ? [h("h4", null, W.links), h("ul", { class: "history" }, items.map((one) => h("li", null,
      h("span", null, W.expires(one.turn, when(one.expires_at * 1000, true))),
      button(W.revoke, async () => {
        try {
          await call("DELETE", `${threadPath(id)}/links/${one.link_id}`);
          showLinks(id, (await get(`${threadPath(id)}/links`)).items);
        } catch (error) { app.fail(error); }
      }, { class: "small danger", "aria-label": W.revokeOf(one.turn) }))))] : []));
  }

  return { node, load };
}

const nameOf = (one) => `${W.run(one.turn)} · ${one.title}`;

// Return two outcomes side by side: summary, plan, figures, and answer.
function comparison({ same, differences, unrecorded, ran, recorded: a, replayed: b }, first, second) {
  const notes = [[W.unrecorded, unrecorded], [W.ran, ran]].filter(([, list]) => list.length);
  const summary = [[W.outcome, (one) => T.outcome[one.status] ?? one.status], [W.reason, (one) => one.reason], [W.steps, (one) => String(planned(one).length)],
    [W.calls, (one) => String(one.cost.model_calls)], [W.tokens, (one) => (one.cost.input_tokens + one.cost.output_tokens).toLocaleString("en")],
    [W.cost, (one) => T.money(one.cost.cost_usd)]].map(([name, read]) => [name, read(a), read(b)]);
  const sides = [a, b].map((one) => new Map(planned(one).map((step) => [step.context_key, step])));
  const plan = [...new Set([...sides[0].keys(), ...sides[1].keys()])].map((key) => [key, ...[a, b].map((one, n) => stepText(sides[n].get(key), one.results))]);
  const values = [a, b].map((one) => new Map(leaves(Object.fromEntries(Object.entries(one.results).map(([key, result]) => [key, result.gave])))));
  const figures = [...new Set([...values[0].keys(), ...values[1].keys()])].map((path) => [path, values[0].get(path) ?? "", values[1].get(path) ?? ""]);
  const differing = figures.filter(([, x, y]) => x !== y);
  const equal = figures.filter(([, x, y]) => x === y);
  return [h("p", { class: same ? "good" : "problem", role: "status" }, same ? W.same : W.changes(differences.length)),
    ...notes.map(([name, list]) => h("p", { class: "quiet" }, visible(`${name}: ${list.join(", ")}`))),
    pairs("", first, second, summary.filter(([, x, y]) => x || y)), pairs(W.plan, first, second, plan),
    pairs(W.figures, first, second, differing.slice(0, MAX_FIGURES)),
    equal.length ? h("details", null, h("summary", null, W.equal(equal.length)), pairs("", first, second, equal.slice(0, MAX_FIGURES))) : "", pairs(W.answer, first, second, [[W.answer, a.answer, b.answer]])];
}

const planned = (one) => one.plan.filter((step) => !CLOSING.has(step.capability));

// A row that differs has a mark, because color alone does not tell.
function pairs(title, first, second, rows) {
  if (!rows.length) return "";
  return h("div", null, title ? h("h4", null, title) : null, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title || W.outcome },
    h("table", { class: "pairs" }, h("thead", null, h("tr", null, [W.item, first, second].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map(([name, x, y]) => h("tr", { "data-changed": x !== y },
        h("th", { scope: "row" }, visible(name), x !== y ? h("span", { class: "differs", title: W.changed, "aria-label": W.changed, role: "img" }, " ≠") : null),
        h("td", null, visible(String(x).slice(0, MAX_TEXT))), h("td", null, visible(String(y).slice(0, MAX_TEXT)))))))));
}

function stepText(step, results) {
  if (!step) return W.notPlanned;
  const result = results[step.context_key];
  const broken = Object.entries(results).filter(([key, one]) => key.startsWith(`${step.context_key}[`) && one.success === false).length;
  const state = broken ? `! ${W.partly(broken)}` : result?.success === true ? `✓ ${W.done}` : result?.success === false ? `✗ ${W.failed}` : `– ${W.notRun}`;
  const parameters = Object.entries(step.parameters ?? {}).map(([name, value]) => `${name}: ${value?.$from ?? JSON.stringify(value)}`).join(", ");
  return [`${step.capability} ${state}`, parameters, result?.error].filter(Boolean).join("\n");
}

// Return the paths and the texts of all values in plain data.
function leaves(value, path = "") {
  if (value === null || value === undefined) return [];
  if (typeof value !== "object") return [[path, String(value)]];
  return Object.entries(value).flatMap(([name, one]) => leaves(one, path ? `${path}.${name}` : name));
}
