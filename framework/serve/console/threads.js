// The list of the user's threads.

import { get, threadPath } from "./api.js";
import { attr, button, closesOutside, h, keyed, put, save, visible } from "./dom.js";
import { T } from "./text.js";

const OUTCOMES = ["completed", "partial", "failed", "stopped", "waiting", "cancelled", "new"];

export function threadsView(app) {
  const search = h("input", { type: "search", placeholder: T.search, "aria-label": T.search });
  const outcome = h("select", { "aria-label": T.outcomeLabel }, h("option", { value: "" }, T.anyOutcome),
    OUTCOMES.map((word) => h("option", { value: word }, T.outcome[word])));
  const list = h("ul", { class: "threads" });
  const none = h("p", { class: "quiet" }, T.noThreads);
  const more = button(T.more, () => app.moreThreads());
  let timer = null;
  const seek = () => { clearTimeout(timer); timer = setTimeout(() => app.refreshThreads({ query: search.value, outcome: outcome.value }), 200); };
  search.addEventListener("input", seek);
  outcome.addEventListener("change", seek);
  const node = h("nav", { class: "part threads-part", testid: "threads", "aria-label": T.parts.threads },
    h("div", { class: "bar" }, h("h2", null, T.parts.threads)),
    button(T.newThread, () => app.newThread(), { testid: "new-thread", class: "main" }),
    h("div", { class: "seek" }, search, outcome), none, list, more);
  function update() {
    none.hidden = app.threads.length > 0;
    more.hidden = !app.threadsNext;
    const days = app.threads.flatMap((one, n) => (n && dayOf(one) === dayOf(app.threads[n - 1]) ? [one] : [{ day: dayOf(one) }, one]));
    keyed(list, days, (one) => one.thread_id ?? `day ${one.day}`, (one) => (one.thread_id ? threadNode(app, one) : h("li", { class: "day quiet" }, one.day)), (item, one) => {
      if (!one.thread_id) return;
      const link = item.firstChild;
      attr(link, "aria-current", one.thread_id === app.threadId ? "page" : null);
      put(link.children[0], visible(one.title || T.untitled));
      const word = one.thread_id === app.threadId && app.turn.status !== "idle" ? app.turn.status : one.questions ? "asks" : one.outcome;
      attr(link.children[1], "data-outcome", word);
      put(link.children[1], [`${T.marks[word] ?? ""} ${T.outcome[word] ?? word ?? ""}`.trim(), one.updated_at ? clock(one.updated_at) : "", one.cost_usd ? T.money(one.cost_usd) : ""].filter(Boolean).join(" · "));
    });
  }
  return { node, update };
}

function dayOf({ updated_at: time }) {
  if (!time) return T.noDate;
  const ago = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86400000);
  return T.days[ago] ?? new Date(time).toLocaleDateString("en", { weekday: "short", month: "short", day: "numeric", year: ago > 300 ? "numeric" : undefined });
}

const clock = (time) => new Date(time).toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });

function threadNode(app, one) {
  const link = h("a", { href: app.address(one.thread_id), testid: "thread", "data-thread": one.thread_id },
    h("span", { class: "title" }), h("span", { class: "quiet" }));
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    app.open(one.thread_id);
    app.show("conversation");
  });
  return h("li", null, link);
}

// The title of the open thread and its actions.
export function threadBar(app) {
  const title = h("h2", { class: "title" });
  const input = h("input", { "aria-label": T.renameTo, maxlength: 200 });
  const editing = h("form", { hidden: true, class: "rename" }, input, h("button", { type: "submit" }, T.save), button(T.cancel, () => edit(false)));
  const sure = button(T.confirmDelete, () => app.remove(), { class: "danger", hidden: true });
  const menu = h("details", { class: "menu" }, h("summary", null, T.menu), h("div", { class: "items" },
    button(T.rename, () => { menu.open = false; edit(true); }),
    button(T.fork, () => { menu.open = false; app.fork(); }),
    button(T.exportThread, async () => { menu.open = false; save(`${app.threadId}.json`, new Blob([JSON.stringify(await get(threadPath(app.threadId)), null, 2)], { type: "application/json" })); }),
    button(T.remove, () => { sure.hidden = false; sure.focus(); }), sure));
  closesOutside(menu);
  menu.addEventListener("toggle", () => { if (!menu.open) sure.hidden = true; });
  function edit(on) {
    editing.hidden = !on;
    title.hidden = on;
    if (on) { input.value = app.thread?.title ?? ""; input.focus(); }
  }
  editing.addEventListener("submit", async (event) => { event.preventDefault(); await app.rename(input.value); edit(false); });
  const node = h("div", { class: "threadbar" }, title, editing, menu);
  return { node, update: () => { menu.hidden = !app.threadId; title.hidden = !app.threadId || !editing.hidden; put(title, visible(app.thread?.title || (app.threadId ? T.untitled : ""))); } };
}
