// Files: attachments of the next message, and artifacts of steps.

import { Problem, get, query, threadPath, urlOf } from "./api.js";
import { button, columnsOf, h, put, table, visible } from "./dom.js";
import { T } from "./text.js";

const ROWS = 10;

// Attachments of the next message, uploaded as soon as they are selected.
export function tray(app, place) {
  let attached = [];
  function detach(one) {
    attached = attached.filter((other) => other !== one);
    one.node.remove();
  }
  function attach(one) {
    attached.push(one);
    place.append(one.node);
  }
  async function add(file) {
    const note = h("span", { role: "status" }, T.sending);
    const one = { name: file.name, id: null };
    one.node = h("span", { class: "upload", testid: "upload", "data-status": "sending" }, visible(file.name), " ", note,
      button("×", () => detach(one), { class: "small round", "aria-label": T.leaveOut(visible(file.name)) }));
    attach(one);
    try {
      const answer = await fetch(urlOf(query("/api/files", { name: file.name })), { method: "POST", body: file });
      const found = await answer.json();
      if (!answer.ok) throw new Problem(answer.status, found);
      one.id = found.file_id;
      put(note, T.size(found.bytes));
      one.node.dataset.status = "done";
    } catch (error) {
      if (!(error instanceof Problem || error instanceof TypeError)) throw error;
      one.node.dataset.status = "failed";
      note.setAttribute("role", "alert");
      put(note, visible(error instanceof Problem ? error.message : T.connection.lost));
    }
  }
  return {
    add: (files) => Promise.all([...files].map(add)),
    busy: () => attached.some((one) => one.node.dataset.status === "sending"),
    take: () => { const whole = attached.filter((one) => one.id); attached.forEach(detach); return whole; },
    back: (files) => files.forEach(attach),
  };
}

// Show artifacts: images, paged tables, and links to other files.
export function shownFiles(app, items) {
  return items.map((one) => {
    const path = `${threadPath(app.threadId)}/files/${encodeURIComponent(one.file_id)}`;
    const note = h("figcaption", null,
      h("a", { href: urlOf(path), download: one.name, testid: "download" }, T.download(visible(one.name))), " ",
      one.bytes === undefined ? null : h("span", { class: "quiet" }, T.size(one.bytes)), " ",
      one.step ? button(`${T.from} ${visible(one.step)}`, () => app.showStep(one.step), { class: "chip", testid: "came-from" }) : null);
    if (one.kind === "image") return h("figure", { testid: "plot" }, h("img", { src: urlOf(path), alt: visible(one.name), loading: "lazy" }), note);
    if (one.kind === "table") return h("figure", { testid: "table" }, pagedTable(app, path, one), note);
    return h("figure", { testid: "file" }, note);
  });
}

function pagedTable(app, path, one) {
  const place = h("div");
  const where = h("span", { class: "quiet", role: "status" });
  const back = button("‹", () => show(first - ROWS), { class: "small", "aria-label": T.before });
  const forward = button("›", () => show(first + ROWS), { class: "small", "aria-label": T.after });
  let first = 0;
  async function show(from) {
    try {
      const page = await get(query(`${path}/rows`, { limit: ROWS, after: from }));
      first = from;
      place.replaceChildren(table(page.items, columnsOf(page.items), visible(one.name)));
      put(where, T.rows(first + 1, first + page.items.length, one.rows));
      back.disabled = first === 0;
      forward.disabled = page.next === null;
    } catch (error) { app.fail(error); }
  }
  show(0);
  return h("div", null, place, one.rows > ROWS ? h("div", { class: "bar" }, back, forward, where) : null);
}
