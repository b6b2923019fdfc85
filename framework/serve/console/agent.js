// The agent view: capabilities, graph, findings, and evaluations.

import { get } from "./api.js";
import { h, pre, s, table, visible, when } from "./dom.js";
import { SIZE, arrange } from "./layout.js";
import { T } from "./text.js";

const DOWN = 419; // a width in pixels below which layers are stacked vertically

export function agentView(app) {
  const list = h("div", { class: "capabilities" });
  const graph = h("div", { class: "board", tabindex: 0, role: "group", "aria-label": T.graph, testid: "graph" });
  const findings = h("div", { testid: "findings" });
  const runs = h("div", { testid: "evaluations" });
  const node = h("section", { class: "part side", testid: "agent", "aria-label": T.parts.agent }, h("h2", null, T.parts.agent), list,
    h("h3", null, T.graph), graph, h("h3", null, T.findings), findings, h("h3", null, T.evaluations), runs);
  let loaded = false;
  async function load() {
    const [can, drawn, found, ran] = await Promise.all(["capabilities", "graph", "findings", "evaluations"].map((name) => get(`/api/${name}`)));
    list.replaceChildren(...(can.items.length ? can.items.map(card) : [h("p", { class: "quiet" }, T.noCapabilities)]));
    graph.replaceChildren(picture(drawn));
    const order = ["error", "warning", "ok"];
    const sorted = [...found.items].sort((a, b) => order.indexOf(a.level) - order.indexOf(b.level));
    findings.replaceChildren(sorted.length ? table(sorted, ["level", "area", "text", "fix"], T.findings) : h("p", { class: "quiet" }, T.noFindings));
    runs.replaceChildren(...(ran.items.length ? compared(ran.items) : [h("p", { class: "quiet" }, T.noEvaluations)]));
  }
  return { node, update: () => { if (!loaded) { loaded = true; load().catch(app.fail); } } };
}

// Draw the graph in layers. Back edges are drawn but do not affect the layout.
function picture({ nodes, edges }) {
  const known = new Set(["__start__"]);
  const before = new Map(nodes.map((name) => [name, []]));
  for (const name of known) {
    for (const edge of edges.filter((one) => one.from === name)) {
      if (!known.has(edge.to)) { before.get(edge.to).push(name); known.add(edge.to); }
    }
  }
  const { spots, width, height } = arrange(nodes.map((name) => ({ context_key: name, inputs: [before.get(name)] })), DOWN);
  const place = new Map(nodes.map((name, n) => [name, spots[n]]));
  const lines = edges.filter((edge) => edge.from !== edge.to).map(({ from, to, conditional }) => {
    const [a, b] = [place.get(from), place.get(to)];
    const on = b.y > a.y;
    const [x, y, u, v] = [a.x + SIZE.width / 2, a.y + (on ? SIZE.height - 12 : 12), b.x + SIZE.width / 2, b.y + (on ? 12 : SIZE.height - 12)];
    const bend = (on ? 1 : -1) * Math.max(20, Math.abs(v - y) / 2);
    return s("path", { d: `M${x} ${y}C${x} ${y + bend} ${u} ${v - bend} ${u} ${v}`, class: "line", "stroke-dasharray": conditional ? "4 4" : null });
  });
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": T.graph }, lines,
    nodes.map((name) => [
      s("rect", { x: place.get(name).x, y: place.get(name).y + 12, width: SIZE.width, height: SIZE.height - 24, rx: 8, class: "node" }),
      s("text", { x: place.get(name).x + SIZE.width / 2, y: place.get(name).y + SIZE.height / 2 + 4, "text-anchor": "middle" }, visible(name))]));
}

// List evaluation runs and compare two selected ones.
function compared(items) {
  const marked = [];
  const shown = h("div", { testid: "evaluation-difference" });
  const named = (one) => `${one.name} · ${one.label}`;
  const rows = items.map((one) => {
    const mark = h("input", { type: "checkbox", disabled: Boolean(one.problem), "aria-label": T.markRun(visible(one.name)) });
    mark.addEventListener("change", () => {
      if (mark.checked) marked.push({ one, mark }); else marked.splice(marked.findIndex((two) => two.mark === mark), 1);
      if (marked.length > 2) marked.shift().mark.checked = false;
      if (marked.length === 2) difference(marked[0].one, marked[1].one); else shown.replaceChildren();
    });
    const failed = one.cases?.filter((two) => !two.passed).length;
    return h("li", null, mark, h("span", null, visible(one.problem ? one.name : named(one))),
      h("span", { class: one.ok ? "good" : "problem" }, visible(one.problem ?? T.passed(one.cases.length - failed, one.cases.length))),
      h("span", { class: "quiet" }, when(one.at)));
  });
  function difference(a, b) {
    const figures = [...new Set([...Object.keys(a.figures), ...Object.keys(b.figures)])].map((name) => ({
      [T.figure]: name, [T.first]: a.figures[name], [T.second]: b.figures[name],
      [T.change]: typeof a.figures[name] === "number" && typeof b.figures[name] === "number" ? b.figures[name] - a.figures[name] : null }));
    const old = new Map(a.cases.map((one) => [one.name, one]));
    const cases = b.cases.filter((one) => old.has(one.name) && (old.get(one.name).passed !== one.passed || String(old.get(one.name).problems) !== String(one.problems)))
      .map((one) => ({ [T.case]: one.name, [T.first]: old.get(one.name).problems.join("\n") || T.passes, [T.second]: one.problems.join("\n") || T.passes }));
    shown.replaceChildren(h("p", null, visible(`${named(a)} → ${named(b)}`)),
      table(figures, [T.figure, T.first, T.second, T.change], T.evaluations),
      cases.length ? table(cases, [T.case, T.first, T.second], T.case) : h("p", { class: "quiet" }, T.same));
  }
  return [h("ul", { class: "history" }, rows), h("p", { class: "quiet" }, T.selectTwo), shown];
}

function card(one) {
  const names = (list) => [].concat(list ?? []).map((item) => visible(typeof item === "string" ? item : item.type ?? item.name ?? JSON.stringify(item))).join(", ");
  const schema = one.parameters_schema ?? one.parameters;
  const facts = [[T.needs, names(one.requires)], [T.gives, names(one.provides)], [T.permission, one.permission]];
  return h("article", { class: "card" },
    h("h3", null, visible(one.name), " ", one.effect ? h("span", { class: "badge", "data-effect": one.effect }, T.effect[one.effect] ?? one.effect) : null, " ",
      one.requires_approval ? h("span", { class: "badge" }, T.approval) : null),
    h("p", null, visible(one.description ?? "")),
    h("dl", null, facts.filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, visible(String(value)))])),
    schema && Object.keys(schema.properties ?? schema).length ? h("details", null, h("summary", null, T.parameters), pre(schema)) : null);
}
