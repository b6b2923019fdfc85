// The activity view (effects, audit log, budgets, limits, workers) and the usage view.

import { get, latest, query } from "./api.js";
import { button, columnsOf, h, table, visible, when } from "./dom.js";
import { T } from "./text.js";

const EFFECTS = ["capability", "step", "state", "approved_by"];
const EFFECT_DETAILS = ["thread_id", "turn", "key"];
const AUDIT = ["at", "kind", "by", "capability", "decision"];
const AUDIT_DETAILS = ["seq", "step", "state", "thread_id", "hash"];
const USAGE = ["model", "day", "user", "calls", "input_tokens", "output_tokens", "cost_usd"];

// A paged table of the server's data.
function pages(path, none, name, { columns, details, flat = (item) => item } = {}) {
  const asked = {};
  const place = h("div");
  const more = button(T.more, () => load(false), { hidden: true });
  let items = [];
  let next = null;
  const load = latest(async (stale, anew) => {
    try {
      const page = await get(query(path, { ...asked, limit: 50, after: anew ? null : next }));
      if (stale()) return;
      const found = page.items ?? (Array.isArray(page) ? page : Object.keys(page).length ? [page] : []);
      items = [...(anew ? [] : items), ...found.map(flat)];
      next = page.next ?? null;
      more.hidden = !next;
      place.replaceChildren(items.length ? table(items, columns ?? columnsOf(items, USAGE), name, details, T.columns) : h("p", { class: "quiet" }, none));
    } catch (error) {
      if (!stale()) place.replaceChildren(h("p", { class: "quiet" }, visible(error.message)));
    }
  });
  return { asked, node: h("div", null, place, more), load: () => load(true) };
}

export function activityView(app) {
  const effects = pages("/api/effects", T.noEffects, T.effects, { columns: EFFECTS, details: EFFECT_DETAILS });
  const audit = pages("/api/audit", T.noAudit, T.audit, { columns: AUDIT, details: AUDIT_DETAILS,
    flat: (one) => ({ ...one.data, ...one, kind: one.kind?.replaceAll("_", " "), at: when(one.at), by: one.data?.by?.user_id }) });
  const budgets = pages("/api/budgets", T.noBudgets, T.budgets, { columns: ["limit", "per", "window", "name", "allows", "left"] });
  const limits = pages("/api/limits", T.noLimits, T.limits, { columns: ["kind", "name", "used", "allows", "told"],
    flat: (one) => ({ ...one, kind: T.limitKinds[one.kind] ?? one.kind }) });
  const workers = pages("/api/workers", T.noWorkers, T.workers, { columns: ["id", "queues", "running"] });
  workers.node.dataset.testid = "workers";
  budgets.node.dataset.testid = "budgets";
  limits.node.dataset.testid = "limits";
  const verdict = h("span", { role: "status" });
  const verify = button(T.verify, async () => {
    try {
      const found = await get("/api/audit/verify");
      verdict.textContent = found.valid ? T.valid : `${T.invalid} ${visible(found.problem ?? "")}`;
      verdict.className = found.valid ? "good" : "problem";
    } catch (error) { verdict.textContent = visible(error.message); }
  }, { class: "small" });
  const node = h("section", { class: "part side", testid: "activity", "aria-label": T.parts.activity },
    h("h2", null, T.parts.activity), h("h3", null, T.effects), effects.node,
    h("div", { class: "bar" }, h("h3", null, T.audit), verify, verdict), audit.node,
    h("h3", null, T.budgets), budgets.node, h("h3", null, T.limits), limits.node, h("h3", null, T.workers), workers.node);
  return { node, update: oncePerRun(app, () => {
    budgets.asked.thread_id = app.threadId;
    for (const one of [effects, audit, budgets, limits, workers]) one.load();
  }) };
}

export function usageView(app) {
  const now = h("div");
  const all = pages("/api/usage", T.noUsage, T.all);
  const by = h("select", { "aria-label": T.by, class: "narrow" }, ["model", "day", "user"].map((word) => h("option", { value: word }, T.usageBy[word])));
  by.addEventListener("change", () => { all.asked.by = by.value; all.load(); });
  const node = h("section", { class: "part side", testid: "usage", "aria-label": T.parts.usage },
    h("h2", null, T.parts.usage), h("h3", null, T.thisRun), now, h("div", { class: "bar" }, h("h3", null, T.all), by), all.node);
  const load = oncePerRun(app, () => all.load());
  let of = null;
  return { node, update: () => {
    load();
    if (of === app.turn.usage) return;
    of = app.turn.usage;
    const items = Object.entries(of).map(([model, used]) => ({ model, [T.calls]: used.calls, [T.tokensIn]: used.input, [T.tokensOut]: used.output }));
    now.replaceChildren(items.length ? table(items, ["model", T.calls, T.tokensIn, T.tokensOut], T.thisRun) : h("p", { class: "quiet" }, T.noUsage));
  } };
}

// Load once per thread and run: when the view is opened, a run ends, or the thread changes.
function oncePerRun(app, load) {
  let at;
  return () => {
    const now = `${app.threadId} ${app.turn.ended}`;
    if (at !== now) { at = now; load(); }
  };
}
