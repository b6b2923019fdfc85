// Files: what goes along with a message, and what steps made.

import { Problem, get, query, threadPath } from "./api.js";
import { button, columnsOf, h, put, table, visible } from "./dom.js";
import { T } from "./text.js";

const ROWS = 10;

// The files that go along with the next message, each sent as soon as it is chosen.
export function tray(app, place) {
  let held = [];
  function drop(one) {
    held = held.filter((other) => other !== one);
    one.node.remove();
  }
  function hold(one) {
    held.push(one);
    place.append(one.node);
  }
  async function add(file) {
    const told = h("span", { role: "status" }, T.sending);
    const one = { name: file.name, id: null };
    one.node = h("span", { class: "upload", testid: "upload", "data-status": "sending" }, visible(file.name), " ", told,
      button("×", () => drop(one), { class: "small round", "aria-label": T.leaveOut(visible(file.name)) }));
    hold(one);
    try {
      const answer = await fetch(query("/api/files", { name: file.name }), { method: "POST", body: file });
      const found = await answer.json();
      if (!answer.ok) throw new Problem(answer.status, found);
      one.id = found.file_id;
      put(told, T.size(found.bytes));
      one.node.dataset.status = "done";
    } catch (error) {
      if (!(error instanceof Problem || error instanceof TypeError)) throw error;
      one.node.dataset.status = "failed";
      told.setAttribute("role", "alert");
      put(told, visible(error instanceof Problem ? error.message : T.connection.lost));
    }
  }
  return {
    add: (files) => Promise.all([...files].map(add)),
    busy: () => held.some((one) => one.node.dataset.status === "sending"),
    take: () => { const whole = held.filter((one) => one.id); held.forEach(drop); return whole; },
    back: (files) => files.forEach(hold),
  };
}

// What steps made, as people look at it: pictures, tables page by page, the rest as links.
export function shownFiles(app, items) {
  return items.map((one) => {
    const path = `${threadPath(app.threadId)}/files/${encodeURIComponent(one.file_id)}`;
    const told = h("figcaption", null,
      h("a", { href: path, download: one.name, testid: "download" }, T.download(visible(one.name))), " ",
      one.bytes === undefined ? null : h("span", { class: "quiet" }, T.size(one.bytes)), " ",
      one.step ? button(`${T.from} ${visible(one.step)}`, () => app.showStep(one.step), { class: "chip", testid: "came-from" }) : null);
    if (one.kind === "image") return h("figure", { testid: "plot" }, h("img", { src: path, alt: visible(one.name), loading: "lazy" }), told);
    if (one.kind === "table") return h("figure", { testid: "table" }, pagedTable(app, path, one), told);
    return h("figure", { testid: "file" }, told);
  });
}

function pagedTable(app, path, one) {
  const place = h("div");
  const where = h("span", { class: "quiet", role: "status" });
  const back = button("‹", () => show(first - ROWS), { class: "small", "aria-label": T.before });
  const on = button("›", () => show(first + ROWS), { class: "small", "aria-label": T.after });
  let first = 0;
  async function show(from) {
    try {
      const page = await get(query(`${path}/rows`, { limit: ROWS, after: from }));
      first = from;
      place.replaceChildren(table(page.items, columnsOf(page.items), visible(one.name)));
      put(where, T.rows(first + 1, first + page.items.length, one.rows));
      back.disabled = first === 0;
      on.disabled = page.next === null;
    } catch (error) { app.fail(error); }
  }
  show(0);
  return h("div", null, place, one.rows > ROWS ? h("div", { class: "bar" }, back, on, where) : null);
}
