// The history view: the checkpoints of a thread.

import { get, latest, query, threadPath } from "./api.js";
import { button, h, json, lazy, pre, visible, when } from "./dom.js";
import { T } from "./text.js";

export function historyView(app) {
  const list = h("ul", { class: "history" });
  const shown = h("div");
  const compare = button(T.compare, () => difference());
  const more = button(T.more, () => load(false));
  const node = h("section", { class: "part side", testid: "history", "aria-label": T.parts.history },
    h("h2", null, T.parts.history), h("h3", null, T.checkpointsTitle), h("p", { class: "quiet" }, T.checkpoints), compare, list, more, shown);
  let runs = null;
  lazy(() => import("./runs.js")).then(({ runsView }) => {
    runs = runsView(app);
    node.firstChild.after(runs.node);
    runs.load().catch(app.fail);
  });
  let of = null;
  let next = null;
  let stamp = null;
  const marked = new Set();
  const stateOf = (id) => get(query(`${threadPath(app.threadId)}/state`, { checkpoint_id: id }));

  const load = latest(async (stale, anew) => {
    if (anew) { list.replaceChildren(); shown.replaceChildren(); marked.clear(); next = null; }
    if (!app.threadId) return;
    const page = await get(query(`${threadPath(app.threadId)}/history`, { limit: 30, after: next }));
    if (stale()) return;
    next = page.next;
    more.hidden = !next;
    for (const one of page.items) {
      const mark = h("input", { type: "checkbox", "aria-label": T.mark(one.step ?? "") });
      mark.addEventListener("change", () => { if (mark.checked) marked.add(one.checkpoint_id); else marked.delete(one.checkpoint_id); compare.disabled = marked.size !== 2; });
      list.append(h("li", null, mark,
        button(when(one.created_at), async () => shown.replaceChildren(pre(await stateOf(one.checkpoint_id))), { class: "link" }),
        h("span", { class: "quiet" }, [T.messages(one.messages), one.next?.length ? `${T.next}: ${one.next.join(", ")}` : null].filter(Boolean).join(" · ")),
        button(T.fork, () => app.fork(one.checkpoint_id), { class: "small" })));
    }
    compare.disabled = marked.size !== 2;
    if (!list.childElementCount) list.append(h("li", { class: "quiet" }, T.noHistory));
  });

  async function difference() {
    const [a, b] = await Promise.all([...marked].map(stateOf));
    const found = differences(a, b);
    shown.replaceChildren(found.length ? h("dl", { class: "diff" }, found.map(([path, old, now]) => [
      h("dt", null, visible(path)), h("dd", { class: "old" }, json(old ?? "—", 600)), h("dd", { class: "new" }, json(now ?? "—", 600))])) : h("p", null, T.same));
  }

  return { node, update: () => {
    if (of === app.threadId && stamp === app.turn.ended) return;
    of = app.threadId;
    stamp = app.turn.ended;
    load(true).catch(app.fail);
    runs?.load().catch(app.fail);
  } };
}

export function differences(a, b, path = "", found = []) {
  if (JSON.stringify(a) === JSON.stringify(b) || found.length > 200) return found;
  if (a && b && typeof a === "object" && typeof b === "object" && Array.isArray(a) === Array.isArray(b)) {
    for (const key of new Set([...Object.keys(a), ...Object.keys(b)])) differences(a[key], b[key], path ? `${path}.${key}` : key, found);
  } else found.push([path, a, b]);
  return found;
}
