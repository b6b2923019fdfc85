// The history view: the checkpoints of a thread.

import { get, latest, query, threadPath } from "./api.js";
import { button, h, json, keyed, lazy, pre, visible, when } from "./dom.js";
import { T } from "./text.js";

export function historyView(app) {
  const list = h("ul", { class: "history" });
  const shown = h("div");
  const compare = button(T.compare, () => difference());
  const more = button(T.more, () => load(next).catch(app.fail));
  const none = h("p", { class: "quiet", hidden: true }, T.noHistory);
  const node = h("section", { class: "part side", testid: "history", "aria-label": T.parts.history },
    h("h2", null, T.parts.history), h("h3", null, T.checkpointsTitle), h("p", { class: "quiet" }, T.checkpoints), compare, list, none, more, shown);
  let runs = null;
  lazy(() => import("./runs.js")).then(({ runsView }) => {
    runs = runsView(app);
    node.firstChild.after(runs.node);
    runs.load().catch(app.fail);
  });
  let shownOf = [];
  let items = [];
  let next = null;
  const marked = new Set();
  const stateOf = (id) => get(query(`${threadPath(app.threadId)}/state`, { checkpoint_id: id }));

  const load = latest(async (stale, after) => {
    const page = app.threadId ? await get(query(`${threadPath(app.threadId)}/history`, { limit: 30, after })) : { items: [], next: null };
    if (stale()) return;
    items = after ? [...items, ...page.items] : page.items;
    next = page.next;
    for (const id of marked) if (!items.some((one) => one.checkpoint_id === id)) marked.delete(id);
    draw();
  });

  function draw() {
    more.hidden = !next;
    none.hidden = items.length > 0;
    keyed(list, items, (one) => one.checkpoint_id, checkpointNode);
    compare.disabled = marked.size !== 2;
  }

  function checkpointNode(one) {
    const mark = h("input", { type: "checkbox", "aria-label": T.mark(one.step ?? "") });
    mark.addEventListener("change", () => { if (mark.checked) marked.add(one.checkpoint_id); else marked.delete(one.checkpoint_id); draw(); });
    return h("li", null, mark,
      button(when(one.created_at), async () => shown.replaceChildren(pre(await stateOf(one.checkpoint_id))), { class: "link" }),
      h("span", { class: "quiet" }, [T.messages(one.messages), one.next?.length ? `${T.next}: ${one.next.join(", ")}` : null].filter(Boolean).join(" · ")),
      button(T.fork, () => app.fork(one.checkpoint_id), { class: "small" }));
  }

  async function difference() {
    const [a, b] = await Promise.all([...marked].map(stateOf));
    const found = differences(a, b);
    shown.replaceChildren(found.length ? h("dl", { class: "diff" }, found.map(([path, old, now]) => [
      h("dt", null, visible(path)), h("dd", { class: "old" }, json(old ?? "—", 600)), h("dd", { class: "new" }, json(now ?? "—", 600))])) : h("p", null, T.same));
  }

  return { node, update: () => {
    // A run that has ended replaces the list of the thread's runs.
    const now = [app.threadId, app.thread?.runs];
    if (now.every((one, n) => one === shownOf[n])) return;
    if (now[0] !== shownOf[0]) { items = []; next = null; marked.clear(); shown.replaceChildren(); draw(); none.hidden = true; }
    shownOf = now;
    load().catch(app.fail);
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
