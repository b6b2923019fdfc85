// The timeline view: attempts, waits, and model calls.

import { button, h, s, save, visible } from "./dom.js";
import { arrange, criticalPath } from "./layout.js";
import { T } from "./text.js";

const ROW = 24, LABEL = 130, MANY = 120;

export function timelineView(app) {
  const none = h("p", { class: "quiet" }, T.noTime);
  const chart = h("div", { class: "chart", tabindex: 0, role: "group", "aria-label": T.parts.timeline });
  const legend = h("p", { class: "legend quiet" }, Object.entries(T.legend).map(([name, text]) => h("span", { "data-bar": name }, text)));
  const buttons = h("span", { class: "buttons" },
    button(T.saveSvg, () => saveSvg(), { class: "small" }), button(T.savePng, () => savePng(), { class: "small" }));
  const node = h("section", { class: "part side", testid: "timeline", "aria-label": T.parts.timeline },
    h("div", { class: "bar" }, h("h2", null, T.parts.timeline), buttons), none, chart, legend);
  let drawnAt = 0;
  let drawnOf = null;
  let timer = null;

  function update() {
    clearTimeout(timer);
    const { turn } = app;
    const running = turn.status === "running" || turn.status === "asks";
    const steps = turn.plans.at(-1)?.steps ?? [];
    const pause = steps.length > MANY ? 1500 : 250;
    if (drawnOf === turn && !running) return;
    const wait = drawnAt + pause - performance.now();
    if (wait > 0) { timer = setTimeout(() => app.shows("timeline") && update(), wait); return; }
    drawnAt = performance.now();
    drawnOf = turn;
    const picture = draw(turn, Math.max(320, chart.clientWidth), running ? Date.now() : turn.ended);
    none.hidden = Boolean(picture);
    legend.hidden = buttons.hidden = !picture;
    chart.replaceChildren(...(picture ? [picture] : []));
    if (running) timer = setTimeout(() => app.shows("timeline") && update(), pause * 2);
  }

  // Copy computed colors into an exported image.
  function alone() {
    const from = chart.querySelector("svg");
    const copy = from.cloneNode(true);
    const originals = from.querySelectorAll("rect, text, line");
    copy.querySelectorAll("rect, text, line").forEach((one, n) => {
      const style = getComputedStyle(originals[n]);
      one.setAttribute("fill", style.fill);
      one.setAttribute("stroke", style.stroke);
      if (one.tagName === "text") { one.setAttribute("font-family", "sans-serif"); one.setAttribute("font-size", "12"); }
    });
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.prepend(s("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
    return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
  }
  function saveSvg() { save("timeline.svg", alone()); }
  async function savePng() {
    const url = URL.createObjectURL(alone());
    const picture = new Image();
    picture.src = url;
    await picture.decode();
    const canvas = h("canvas");
    canvas.width = picture.width * 2;
    canvas.height = picture.height * 2;
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => save("timeline.png", blob), "image/png");
  }
  return { node, update };
}

function draw(turn, width, now) {
  const steps = (turn.plans.at(-1)?.steps ?? []).filter((step) => step.tries.length);
  const all = [...steps.flatMap((step) => step.tries), ...turn.models];
  if (!all.length) return null;
  const start = Math.min(...all.map((one) => one.from));
  const end = Math.max(start + 50, ...all.map((one) => one.to ?? now ?? one.from));
  const x = (at) => LABEL + ((at - start) / (end - start)) * (width - LABEL - 8);
  const every = turn.plans.at(-1)?.steps ?? [];
  const path = every.length <= 500 ? criticalPath(every, arrange(every).before) : new Set();
  const critical = new Set([...path].map((index) => every[index].context_key));
  const rows = [
    ...steps.map((step) => ({ name: step.context_key, bars: step.tries, critical: critical.has(step.context_key) })),
    ...(turn.models.length ? [{ name: T.models, bars: turn.models.map((one) => ({ ...one, status: "model" })) }] : []),
  ];
  const height = (rows.length + 1) * ROW + 8;
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => start + part * (end - start));
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": T.parts.timeline },
    marks.map((at, n) => [
      s("line", { x1: x(at), x2: x(at), y1: 0, y2: height - ROW, class: "mark" }),
      s("text", { x: x(at), y: height - 8, "text-anchor": n === 0 ? "start" : n === 4 ? "end" : "middle", class: "tick" }, T.seconds((at - start) / 1000))]),
    rows.map((row, n) => [
      s("text", { x: 4, y: n * ROW + 16, class: "name" }, cut(visible(row.name))),
      row.bars.map((bar) => s("rect", {
        x: x(bar.from), y: n * ROW + 4, width: Math.max(2, x(bar.to ?? now ?? bar.from) - x(bar.from)), height: ROW - 8, rx: 3,
        class: row.critical ? "span critical" : "span", "data-bar": bar.status,
      }, s("title", null, `${visible(bar.model ?? row.name)} · ${T.seconds(((bar.to ?? now ?? bar.from) - bar.from) / 1000)}`)))]));
}

function cut(text) {
  return text.length > 18 ? `${text.slice(0, 17)}…` : text;
}
