// The plan view: a live graph of the steps with the critical path and earlier plan versions.

import { attr, button, h, keyed, lazy, put, s, visible } from "./dom.js";
import { NARROW, SIZE, arrangeFor, criticalPath, edgePath } from "./layout.js";
import { CLOSING, WAITS, statusOf } from "./state.js";
import { T } from "./text.js";

const AT_ONCE = 40;
const MIN_SCALE = 0.1, MAX_SCALE = 2, ZOOM = 1.25;
// Scales below which a step shows only its name, and then only the mark of its state. The text of
// both keeps a readable size.
const LEVELS = [[0.75, "full", 0], [0.4, "name", 10], [0, "mark", 9]];
// Pixels by which a board must exceed NARROW to leave the narrow layout, so that a scrollbar does not toggle it.
const HYSTERESIS = 24;
const MAP = { width: 150, height: 100, pause: 400 };

export function planView(app) {
  const none = h("p", { class: "quiet" }, T.noPlan);
  const versions = h("div", { class: "versions", role: "group", "aria-label": T.versions });
  const counts = h("span", { class: "quiet" });
  const key = h("span", { class: "criticalkey quiet" }, T.criticalPath);
  const repaired = h("details", { hidden: true });
  const boards = h("div", { class: "boards" });
  const detail = h("section", { class: "detail", hidden: true, "aria-label": T.step.title("") });
  const bar = h("div", { class: "bar" }, h("h2", null, T.parts.plan), counts, key,
    h("span", { class: "buttons" },
      button("−", () => zoom(1 / ZOOM), { "aria-label": T.zoomOut, class: "small" }),
      button("+", () => zoom(ZOOM), { "aria-label": T.zoomIn, class: "small" }),
      button(T.fit, () => fit(), { class: "small" })));
  const back = button(T.lastTurn, () => { app.earlier.shown = false; select(null); }, { class: "small", hidden: true });
  const node = h("section", { class: "part side", testid: "plan", "aria-label": T.parts.plan }, bar, back, versions, none, repaired, boards, detail);
  let scale = 1;
  let isFitted = true;
  let drawn = [];
  let selected = null;
  let ofDetail = [];
  const shownVersions = new Set();

  // Zoom around a point of the window, or around the middle of the board.
  function zoom(factor, at = null) {
    isFitted = false;
    const next = Math.max(MIN_SCALE, Math.min(MAX_SCALE, scale * factor));
    for (const board of drawn) board.scale(next, at);
    scale = next;
  }
  function fit() {
    isFitted = true;
    const board = drawn.at(-1);
    if (!board) return;
    scale = board.fitting();
    for (const one of drawn) one.scale(scale);
  }
  new ResizeObserver(() => {
    const isNarrow = drawn.at(-1)?.isNarrow;
    const room = boards.clientWidth - 12;
    if (drawn.length && room > 0 && (isNarrow ? room >= NARROW + HYSTERESIS : room < NARROW)) { drawn = []; update(); } else if (isFitted) fit();
  }).observe(boards);
  boards.addEventListener("wheel", (event) => {
    if (!event.target.closest(".board") || drawn.at(-1)?.isNarrow) return;
    event.preventDefault();
    zoom(ZOOM ** -Math.sign(event.deltaY), event);
  }, { passive: false });
  boards.addEventListener("keydown", (event) => {
    const action = { "+": () => zoom(ZOOM), "=": () => zoom(ZOOM), "-": () => zoom(1 / ZOOM), 0: fit }[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  });

  function select(key) {
    selected = key;
    ofDetail = [];
    update();
    detail.scrollIntoView({ block: "nearest" });
  }

  function update() {
    const earlier = app.earlier?.shown ? app.earlier : null;
    const plans = earlier ? [earlier.plan].filter(Boolean) : app.turn.plans;
    back.hidden = !earlier;
    const plan = plans.at(-1);
    none.hidden = Boolean(plan);
    bar.querySelector(".buttons").hidden = !plan;
    const wanted = plans.filter((one, n) => n === plans.length - 1 || shownVersions.has(one.id));
    const sameBoards = drawn.length === wanted.length && drawn.every((board, n) => board.fits(wanted[n]));
    if (!sameBoards) {
      drawn = wanted.map((one) => boardOf(one, one === plan, select, { width: boards.clientWidth - 12, height: Math.max(200, boards.clientHeight - 12) }));
      boards.replaceChildren(...drawn.map((board, n) => h("div", null,
        wanted.length > 1 ? h("h3", null, T.version(wanted[n].version)) : null, board.node)));
      attr(boards, "data-narrow", Boolean(drawn.at(-1)?.isNarrow));
      fit();
    }
    drawn.forEach((board, n) => board.update(wanted[n], selected));
    const work = plan?.steps.filter((step) => !CLOSING.has(step.capability)) ?? [];
    key.hidden = work.length < 2;
    put(counts, plan ? T.counts(work.filter((step) => ["done", "skipped"].includes(statusOf(step))).length, work.length) : "");
    versions.hidden = plans.length < 2;
    keyed(versions, plans, (one) => one.id, (one) => button("", () => {
      if (shownVersions.has(one.id)) shownVersions.delete(one.id); else shownVersions.add(one.id);
      update();
    }, { class: "chip" }), (item, one) => {
      const kept = one.steps.filter((step) => step.kept).length;
      put(item, T.version(one.version) + (kept ? ` · ${T.kept(kept)}` : ""));
      attr(item, "aria-pressed", String(one === plan || shownVersions.has(one.id)));
      item.disabled = one === plan;
    });
    repaired.hidden = !plan?.repairs?.length;
    if (plan?.repairs?.length && repaired.capgraphOf !== plan.id) {
      repaired.capgraphOf = plan.id;
      repaired.replaceChildren(h("summary", null, `${T.repaired} (${plan.repairs.length})`), h("ul", null, plan.repairs.map((one) => h("li", null, visible(one)))));
    }
    const step = plan?.steps.find((one) => one.context_key === selected);
    detail.hidden = !step;
    // The detail names elements by the inputs, and reruns steps by the stored plan. Both arrive after a run.
    const now = [step, app.contexts, app.thread?.plan, app.turn.status === "running"];
    if (!step || now.every((one, n) => one === ofDetail[n])) return;
    ofDetail = now;
    lazy(() => import("./step.js")).then(({ fillDetail }) => { if (ofDetail === now) fillDetail(app, detail, step, () => select(null)); });
  }
  return { node, update, select };
}

// The graph of one plan version. Nodes are created in batches and updated only if a step has changed.
function boardOf(plan, live, select, room) {
  const { before, spots, width, height, isNarrow, route } = arrangeFor(plan.steps, room.width, room.height);
  const ground = s("svg", { width, height, "aria-hidden": "true" });
  const lines = [s("path", { class: "line" }), s("path", { class: "head" })];
  const critical = [s("path", { class: "line critical" }), s("path", { class: "head critical" })];
  ground.append(...lines, ...critical);
  const sheet = h("div", { class: "sheet" }, ground);
  const frame = h("div", { class: "frame" }, sheet);
  const board = h("div", { class: "board", role: "group", "aria-label": T.version(plan.version) }, frame);
  const map = isNarrow ? null : minimap(board, spots, { width, height });
  const node = h("div", { class: "boardbox" }, board, map?.node);
  const nodes = [];
  let seen = [];
  let path = new Set();
  let looked = "";
  let factor = 1;

  if (!isNarrow) dragToScroll(board);
  sheet.addEventListener("click", (event) => { const key = event.target.closest("[data-key]")?.dataset.key; if (key !== undefined) select(key); });
  sheet.addEventListener("keydown", (event) => {
    const at = nodes.indexOf(document.activeElement);
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = event.key === "Home" ? nodes[0] : event.key === "End" ? nodes.at(-1) : way && nodes[at + way];
    if (!next) return;
    event.preventDefault();
    nodes[at]?.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  function edges(of) {
    const found = { line: "", head: "" };
    spots.forEach((_, index) => {
      for (const one of before[index]) {
        if ((path.has(index) && path.has(one)) !== of) continue;
        const { line, head } = edgePath(route(one, index));
        found.line += line;
        found.head += head;
      }
    });
    return found;
  }

  function made(step, index) {
    const one = h("button", {
      type: "button", class: "step", testid: live ? "step" : null, "data-key": step.context_key, tabindex: index ? -1 : 0,
    }, h("span", { class: "key" }, visible(step.context_key)), h("span", { class: "state" }), h("span", { class: "mark", "aria-hidden": "true" }));
    one.style.left = `${spots[index].x}px`;
    one.style.top = `${spots[index].y}px`;
    if (step.when) one.classList.add("if");
    if (step.for_each) one.classList.add("each");
    if (step.look_again) one.classList.add("look");
    return one;
  }

  function draw(steps, selected) {
    const end = Math.min(steps.length, nodes.length + AT_ONCE);
    const fresh = [];
    for (let index = nodes.length; index < end; index += 1) { const one = made(steps[index], index); nodes.push(one); fresh.push(one); }
    sheet.append(...fresh);
    for (let index = 0; index < nodes.length; index += 1) {
      const step = steps[index];
      const one = nodes[index];
      const isSelected = step.context_key === selected;
      if (seen[index] !== step) {
        attr(one, "data-status", step.status);
        attr(one, "data-partial", statusOf(step) === "partial");
        const words = stateOf(step);
        put(one.children[1], words);
        put(one.children[2], T.marks[statusOf(step)] ?? "");
        attr(one, "aria-label", visible(`${step.context_key}, ${step.capability}, ${words}`));
        attr(one, "title", visible([step.context_key, words, step.task_objective].filter(Boolean).join(" · ")));
        seen[index] = step;
      }
      if (one.capgraphSelected !== isSelected) { one.capgraphSelected = isSelected; attr(one, "aria-pressed", isSelected ? "true" : null); }
    }
  }

  return {
    node, isNarrow,
    fits: (other) => other.id === plan.id || (other.steps.length === plan.steps.length
      && other.version === plan.version && other.steps.every((step, n) => step.context_key === plan.steps[n].context_key)),
    // Return the scale at which the whole plan is visible.
    fitting: () => Math.max(MIN_SCALE, Math.min(1, (board.clientWidth - 12) / width, isNarrow ? 1 : Math.max(board.clientHeight, 120) / (height + 12))),
    scale(to, at = null) {
      const around = board.getBoundingClientRect();
      const [x, y] = at ? [at.clientX - around.left, at.clientY - around.top] : [around.width / 2, around.height / 2];
      const ratio = to / factor;
      const [left, top] = [(board.scrollLeft + x) * ratio - x, (board.scrollTop + y) * ratio - y];
      factor = to;
      sheet.style.width = `${width}px`;
      sheet.style.height = `${height}px`;
      sheet.style.transform = `scale(${factor})`;
      const [, level, size] = LEVELS.find(([least]) => factor >= least);
      attr(sheet, "data-level", level);
      sheet.style.setProperty("--text", `${size / factor}px`);
      frame.style.width = `${width * factor}px`;
      frame.style.height = `${height * factor}px`;
      board.scrollTo(left, top);
      map?.draw(factor);
    },
    update(other, selected) {
      draw(other.steps, selected);
      map?.update(other.steps);
      const waiting = nodes.length < other.steps.length;
      if (waiting) requestAnimationFrame(() => this.update(other, selected));
      // Recompute the critical path when a step has ended, not for each event.
      const now = `${other.steps.filter((step) => step.duration || step.ended || step.status === "skipped").length}/${waiting}`;
      if (now === looked || (other.steps.length > 100 && looked && !waiting && performance.now() - (this.at ?? 0) < 1000)) return;
      looked = now;
      this.at = performance.now();
      path = criticalPath(other.steps, before);
      for (const [paths, of] of [[lines, false], [critical, true]]) {
        const { line, head } = edges(of);
        paths[0].setAttribute("d", line);
        paths[1].setAttribute("d", head);
      }
      nodes.forEach((one, index) => one.classList.toggle("critical", path.has(index)));
    },
  };
}

function dragToScroll(board) {
  board.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch" || event.target.closest(".step")) return;
    const start = { x: event.clientX + board.scrollLeft, y: event.clientY + board.scrollTop };
    board.setPointerCapture(event.pointerId);
    const move = (now) => board.scrollTo(start.x - now.clientX, start.y - now.clientY);
    board.addEventListener("pointermove", move);
    board.addEventListener("lostpointercapture", () => board.removeEventListener("pointermove", move), { once: true });
  });
}

// An overview of a plan that is larger than its board, with the visible part.
function minimap(board, spots, { width, height }) {
  const ratio = Math.min(MAP.width / width, MAP.height / height);
  const canvas = h("canvas", { class: "minimap", hidden: true, "aria-hidden": "true", testid: "minimap" });
  canvas.width = Math.ceil(width * ratio);
  canvas.height = Math.ceil(height * ratio);
  let steps = [];
  let scale = 1;
  let timer = null;
  function paint() {
    timer = null;
    canvas.hidden = board.scrollWidth <= board.clientWidth + 1 && board.scrollHeight <= board.clientHeight + 1;
    if (canvas.hidden) return;
    const style = getComputedStyle(canvas);
    const colors = { done: "--good", failed: "--bad", running: "--accent", asks: "--ask", retrying: "--ask", waits: "--model" };
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    steps.forEach((step, n) => {
      pen.fillStyle = style.getPropertyValue(colors[step.status] ?? "--line");
      pen.fillRect(spots[n].x * ratio, spots[n].y * ratio, Math.max(2, SIZE.width * ratio - 1), Math.max(2, SIZE.height * ratio - 1));
    });
    pen.strokeStyle = style.getPropertyValue("--accent");
    pen.lineWidth = 2;
    pen.strokeRect(board.scrollLeft / scale * ratio, board.scrollTop / scale * ratio, board.clientWidth / scale * ratio, board.clientHeight / scale * ratio);
  }
  const soon = (pause) => { timer ??= setTimeout(paint, pause); };
  const go = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const place = canvas.getBoundingClientRect();
    board.scrollTo((event.clientX - place.left) / ratio * scale - board.clientWidth / 2, (event.clientY - place.top) / ratio * scale - board.clientHeight / 2);
  };
  canvas.addEventListener("pointerdown", go);
  canvas.addEventListener("pointermove", go);
  board.addEventListener("scroll", () => soon(16));
  return { node: canvas, draw(to) { scale = to; soon(0); }, update(list) { if (list !== steps) { steps = list; soon(MAP.pause); } } };
}

function stateOf(step) {
  const words = [T.status[statusOf(step)] ?? step.status];
  const isRetried = step.retry && (step.status === "retrying" || (step.status === "running" && step.attempt > 1));
  if (step.elements) words.splice(step.elements.failed ? 0 : 1, 1, T.elements(step.elements));
  else if (isRetried) words.splice(0, 1, T.turn.retrying(step.status === "running" ? step.attempt : step.retry.attempt + 1, step.retry.of));
  else if (step.status === "running" && typeof step.progress === "number") words.push(`${Math.round(step.progress * 100)} %`);
  if (step.kept) words.push(T.kept(1).replace(/^1 /, ""));
  else if (typeof step.duration === "number" && step.status !== "running" && !isRetried && !step.elements?.failed) words.push(T.seconds(step.duration));
  const tries = step.tries.filter((one) => !WAITS.has(one.status)).length;
  if (tries > 1) words.push(`×${tries}`);
  return words.join(" · ");
}
