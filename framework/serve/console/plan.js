// The plan view: a live graph of the steps with the critical path and earlier plan versions.

import { attr, button, h, keyed, lazy, put, s, visible } from "./dom.js";
import { arrange, criticalPath, edgePath } from "./layout.js";
import { WAITS } from "./state.js";
import { T } from "./text.js";

const AT_ONCE = 40;
const STEPS = [0.25, 0.35, 0.5, 0.65, 0.8, 1, 1.25, 1.6];

export function planView(app) {
  const none = h("p", { class: "quiet" }, T.noPlan);
  const versions = h("div", { class: "versions", role: "group", "aria-label": T.versions });
  const counts = h("span", { class: "quiet" });
  const repaired = h("details", { hidden: true });
  const boards = h("div", { class: "boards" });
  const detail = h("section", { class: "detail", hidden: true, "aria-label": T.step.title("") });
  const bar = h("div", { class: "bar" }, h("h2", null, T.parts.plan), counts,
    h("span", { class: "buttons" },
      button("−", () => zoom(-1), { "aria-label": T.zoomOut, class: "small" }),
      button("+", () => zoom(1), { "aria-label": T.zoomIn, class: "small" }),
      button(T.fit, () => fit(), { class: "small" })));
  const back = button(T.lastTurn, () => { app.earlier.shown = false; select(null); }, { class: "small", hidden: true });
  const node = h("section", { class: "part side", testid: "plan", "aria-label": T.parts.plan }, bar, back, versions, none, repaired, boards, detail);
  let scale = 1;
  let drawn = [];
  let selected = null;
  let ofDetail = null;
  let showOld = new Set();

  function zoom(by) {
    const near = STEPS.reduce((best, one, n) => (Math.abs(one - scale) < Math.abs(STEPS[best] - scale) ? n : best), 0);
    scaled(STEPS[Math.max(0, Math.min(STEPS.length - 1, near + by))]);
  }
  function scaled(to) {
    scale = to;
    for (const board of drawn) board.scale(scale);
  }
  function fit() {
    const board = drawn.at(-1);
    if (board) scaled(Math.max(0.15, Math.min(1, (boards.clientWidth - 20) / board.width)));
  }
  boards.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1 : -1);
  }, { passive: false });

  function select(key) {
    selected = key;
    ofDetail = null;
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
    const wanted = plans.filter((one, n) => n === plans.length - 1 || showOld.has(one.id));
    const sameBoards = drawn.length === wanted.length && drawn.every((board, n) => board.fits(wanted[n]));
    if (!sameBoards) {
      drawn = wanted.map((one) => boardOf(one, one === plan, select, boards.clientWidth - 12));
      boards.replaceChildren(...drawn.map((board, n) => h("div", null,
        wanted.length > 1 ? h("h3", null, T.version(wanted[n].version)) : null, board.node)));
      // Scale a wide plan down, but keep it readable.
      const last = drawn.at(-1);
      if (last) scaled(Math.max(0.65, Math.min(1, (boards.clientWidth - 20) / last.width)));
    }
    drawn.forEach((board, n) => board.update(wanted[n], selected));
    const done = plan?.steps.filter((step) => step.status === "done" || step.status === "skipped").length;
    put(counts, plan ? T.counts(done, plan.steps.length) : "");
    versions.hidden = plans.length < 2;
    keyed(versions, plans, (one) => one.id, (one) => button("", () => {
      if (showOld.has(one.id)) showOld.delete(one.id); else showOld.add(one.id);
      update();
    }, { class: "chip" }), (item, one) => {
      const kept = one.steps.filter((step) => step.kept).length;
      put(item, T.version(one.version) + (kept ? ` · ${T.kept(kept)}` : ""));
      attr(item, "aria-pressed", String(one === plan || showOld.has(one.id)));
      item.disabled = one === plan;
    });
    repaired.hidden = !plan?.repairs?.length;
    if (plan?.repairs?.length && repaired.capgraphOf !== plan.id) {
      repaired.capgraphOf = plan.id;
      repaired.replaceChildren(h("summary", null, `${T.repaired} (${plan.repairs.length})`), h("ul", null, plan.repairs.map((one) => h("li", null, visible(one)))));
    }
    const step = plan?.steps.find((one) => one.context_key === selected);
    detail.hidden = !step;
    if (step && ofDetail !== step) {
      ofDetail = step;
      lazy(() => import("./step.js")).then(({ fillDetail }) => { if (ofDetail === step) fillDetail(app, detail, step, () => select(null)); });
    }
  }
  return { node, update, select };
}

// The graph of one plan version. Nodes are created in batches and updated only if a step has changed.
function boardOf(plan, live, select, room) {
  const { before, spots, width, height, route } = arrange(plan.steps, room);
  const ground = s("svg", { width, height, "aria-hidden": "true" });
  const lines = [s("path", { class: "line" }), s("path", { class: "head" })];
  const critical = [s("path", { class: "line critical" }), s("path", { class: "head critical" })];
  ground.append(...lines, ...critical);
  const sheet = h("div", { class: "sheet" }, ground);
  const node = h("div", { class: "board", role: "group", "aria-label": T.version(plan.version) }, h("div", { class: "frame" }, sheet));
  const nodes = [];
  let seen = [];
  let path = new Set();
  let looked = "";
  let factor = 1;

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
    }, h("span", { class: "key" }, visible(step.context_key)), h("span", { class: "state" }));
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
        attr(one, "data-partial", Boolean(step.status === "done" && step.elements?.failed));
        put(one.children[1], stateOf(step));
        attr(one, "title", step.task_objective ? visible(step.task_objective) : null);
        seen[index] = step;
      }
      if (one.capgraphSelected !== isSelected) { one.capgraphSelected = isSelected; attr(one, "aria-pressed", isSelected ? "true" : null); }
    }
  }

  return {
    node, width,
    fits: (other) => other.id === plan.id || (other.steps.length === plan.steps.length
      && other.version === plan.version && other.steps.every((step, n) => step.context_key === plan.steps[n].context_key)),
    scale(to) {
      factor = to;
      sheet.style.width = `${width}px`;
      sheet.style.height = `${height}px`;
      sheet.style.transform = `scale(${factor})`;
      node.firstChild.style.width = `${width * factor}px`;
      node.firstChild.style.height = `${height * factor}px`;
    },
    update(other, selected) {
      draw(other.steps, selected);
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

function stateOf(step) {
  const words = [T.status[step.status === "done" && step.elements?.failed ? "partial" : step.status] ?? step.status];
  if (step.elements) words.splice(step.elements.failed ? 0 : 1, 1, T.elements(step.elements));
  else if (step.retry && (step.status === "retrying" || (step.status === "running" && step.attempt > 1))) words.splice(0, 1, T.turn.retrying(step.status === "running" ? step.attempt : step.retry.attempt + 1, step.retry.of));
  else if (step.status === "running" && typeof step.progress === "number") words.push(`${Math.round(step.progress * 100)} %`);
  if (step.kept) words.push(T.kept(1).replace(/^1 /, ""));
  else if (typeof step.duration === "number" && step.status !== "running") words.push(T.seconds(step.duration));
  const tries = step.tries.filter((one) => !WAITS.has(one.status)).length;
  if (tries > 1) words.push(`×${tries}`);
  return words.join(" · ");
}
