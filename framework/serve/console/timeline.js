// The timeline view: attempts, waits, and model calls.

import { button, h, put, s, save, visible } from "./dom.js";
import { arrange, criticalPath } from "./layout.js";
import { WAITS } from "./state.js";
import { T } from "./text.js";

const ROW = 24, LABEL = 130, AXIS = 22, MANY = 120;
// A wait of at least this share of the working time is shown compressed.
const LONG_WAIT = 0.25, COMPRESSED = 44;

export function timelineView(app) {
  const none = h("p", { class: "quiet" }, T.noTime);
  const axis = h("div", { class: "axis" });
  const rows = h("div", null);
  const chart = h("div", { class: "chart", tabindex: 0, role: "group", "aria-label": T.parts.timeline }, axis, rows);
  const tip = h("div", { class: "tip", role: "tooltip", hidden: true });
  const legend = h("p", { class: "legend quiet" }, Object.entries(T.legend).map(([name, text]) => h("span", { "data-bar": name }, text)));
  const buttons = h("span", { class: "buttons" },
    button(T.saveSvg, () => saveSvg(), { class: "small" }), button(T.savePng, () => savePng(), { class: "small" }));
  const node = h("section", { class: "part side", testid: "timeline", "aria-label": T.parts.timeline },
    h("div", { class: "bar" }, h("h2", null, T.parts.timeline), buttons), none, chart, legend, tip);
  showTips(chart, tip);
  let drawnAt = 0;
  let drawnOf = null;
  let drawnWidth = 0;
  let timer = null;

  function update() {
    clearTimeout(timer);
    const { turn } = app;
    const running = turn.status === "running" || turn.status === "asks";
    const steps = turn.plans.at(-1)?.steps ?? [];
    const pause = steps.length > MANY ? 1500 : 250;
    const width = Math.max(320, chart.clientWidth);
    if (drawnOf === turn && drawnWidth === width && !running) return;
    const wait = drawnAt + pause - performance.now();
    if (wait > 0) { timer = setTimeout(() => app.shows("timeline") && update(), wait); return; }
    drawnAt = performance.now();
    drawnOf = turn;
    drawnWidth = width;
    const picture = draw(turn, width, running ? Date.now() : turn.ended);
    none.hidden = Boolean(picture);
    legend.hidden = buttons.hidden = !picture;
    tip.hidden = true;
    axis.replaceChildren(...(picture ? [picture.axis] : []));
    rows.replaceChildren(...(picture ? [picture.rows] : []));
    if (running) timer = setTimeout(() => app.shows("timeline") && update(), pause * 2);
  }

  // Copy computed colors into an exported image.
  function alone() {
    const parts = [...chart.querySelectorAll("svg")];
    const [width, height] = [Number(parts[0].getAttribute("width")), AXIS + Number(parts[1].getAttribute("height"))];
    const picture = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, xmlns: "http://www.w3.org/2000/svg" },
      s("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
    parts.forEach((part, n) => {
      const copy = part.cloneNode(true);
      const originals = part.querySelectorAll("rect, text, line, path");
      copy.querySelectorAll("rect, text, line, path").forEach((one, place) => {
        const style = getComputedStyle(originals[place]);
        one.setAttribute("fill", style.fill);
        one.setAttribute("stroke", style.stroke);
        if (one.tagName === "text") { one.setAttribute("font-family", "sans-serif"); one.setAttribute("font-size", "12"); }
      });
      picture.append(s("g", { transform: `translate(0 ${n * AXIS})` }, [...copy.childNodes]));
    });
    return new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" });
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
  const endOf = (bar) => bar.to ?? now ?? bar.from;
  const all = [...steps.flatMap((step) => step.tries), ...turn.models];
  if (!all.length) return null;
  const scale = timeScale(all.map((one) => ({ from: one.from, to: endOf(one), isWait: WAITS.has(one.status) })), LABEL, width - 12);
  const every = turn.plans.at(-1)?.steps ?? [];
  const path = every.length <= 500 ? criticalPath(every, arrange(every).before) : new Set();
  const critical = new Set([...path].map((index) => every[index].context_key));
  const rows = [
    ...steps.map((step) => ({ name: step.context_key, bars: step.tries, critical: critical.has(step.context_key) })),
    ...(turn.models.length ? [{ name: T.models, bars: turn.models.map((one) => ({ ...one, status: "model" })) }] : []),
  ];
  const height = rows.length * ROW + 8;
  const bar = (row, one, n) => {
    const [from, to] = [scale.x(one.from), scale.x(endOf(one))];
    const text = [visible(one.model ?? row.name), T.legend[one.status] ?? T.status[one.status] ?? one.status,
      T.seconds((endOf(one) - one.from) / 1000), T.startsAt(T.seconds((one.from - scale.start) / 1000)), row.critical ? T.legend.critical : "", visible(one.message ?? "")].filter(Boolean).join(" · ");
    return s("rect", { x: from, y: n * ROW + 4, width: Math.max(3, to - from), height: ROW - 8, rx: 4, tabindex: 0, role: "img", "aria-label": text, class: "span", "data-bar": one.status });
  };
  return {
    axis: s("svg", { width, height: AXIS, viewBox: `0 0 ${width} ${AXIS}`, "aria-hidden": "true" },
      scale.ticks.map((at, n) => s("text", { x: scale.x(at), y: 15, "text-anchor": n ? "middle" : "start", class: "tick" }, T.tick((at - scale.start) / 1000)))),
    rows: s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": T.parts.timeline },
      scale.ticks.map((at) => s("line", { x1: scale.x(at), x2: scale.x(at), y1: 0, y2: height, class: "mark" })),
      scale.breaks.map(({ x, seconds }) => s("rect", { x, y: 0, width: COMPRESSED, height, class: "break" }, s("title", null, T.compressed(T.seconds(seconds))))),
      rows.map((row, n) => [
        row.critical ? s("rect", { x: 0, y: n * ROW + 4, width: 3, height: ROW - 8, class: "criticalmark" }) : null,
        s("text", { x: 8, y: n * ROW + 16, class: "name" }, cut(visible(row.name))),
        row.bars.map((one) => bar(row, one, n)),
        row.critical ? row.bars.filter((one) => !WAITS.has(one.status)).map((one) => s("rect", { x: scale.x(one.from), y: n * ROW + ROW - 5, width: Math.max(3, scale.x(endOf(one)) - scale.x(one.from)), height: 3, class: "criticalmark" })) : null])),
  };
}

// Map times to pixels. Long times in which nothing worked are compressed, and ticks are round.
export function timeScale(bars, left, right) {
  const start = Math.min(...bars.map((one) => one.from));
  const end = Math.max(start + 50, ...bars.map((one) => one.to));
  const busy = [];
  for (const one of bars.filter((bar) => !bar.isWait).sort((a, b) => a.from - b.from)) {
    if (busy.length && one.from <= busy.at(-1)[1]) busy.at(-1)[1] = Math.max(busy.at(-1)[1], one.to);
    else busy.push([one.from, one.to]);
  }
  const working = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const edges = [start, ...busy.flat(), end];
  const idle = [];
  for (let n = 0; n < edges.length; n += 2) {
    const length = edges[n + 1] - edges[n];
    const isWaiting = bars.some((one) => one.isWait && one.from < edges[n + 1] && one.to > edges[n]);
    if (isWaiting && length > Math.max(2000, LONG_WAIT * working)) idle.push([edges[n], edges[n + 1]]);
  }
  const length = end - start - idle.reduce((sum, [from, to]) => sum + to - from, 0);
  const perPixel = Math.max(length, 50) / Math.max(50, right - left - idle.length * COMPRESSED);
  const x = (at) => {
    let place = left + (at - start) / perPixel;
    for (const [from, to] of idle) if (at > from) place += ((Math.min(at, to) - from) / (to - from)) * COMPRESSED - (Math.min(at, to) - from) / perPixel;
    return place;
  };
  const step = roundStep(perPixel * 90);
  const ticks = [];
  for (let at = start; at <= end && ticks.length < 200; at += step) {
    const isIdle = idle.some(([from, to]) => at > from && at < to);
    if (isIdle) at = start + Math.floor((idle.find(([from, to]) => at > from && at < to)[1] - start) / step) * step;
    else if (!ticks.length || x(at) - x(ticks.at(-1)) > 40) ticks.push(at);
  }
  return { start, x, ticks, breaks: idle.map(([from, to]) => ({ x: x(from), seconds: (to - from) / 1000 })) };
}

// Return the smallest round duration in milliseconds that is not below `least`.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  if (least <= 20000) return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least);
  return [30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].map((one) => 1000 * one).find((one) => one >= least) ?? Math.ceil(least / 86400000) * 86400000;
}

function showTips(chart, tip) {
  const show = (event) => {
    const bar = event.target.closest?.("rect.span");
    tip.hidden = !bar;
    if (!bar) return;
    put(tip, bar.getAttribute("aria-label"));
    const place = bar.getBoundingClientRect();
    const around = tip.offsetParent.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(place.left - around.left, around.width - tip.offsetWidth - 8))}px`;
    tip.style.top = `${place.bottom - around.top + tip.offsetParent.scrollTop + 6}px`;
  };
  chart.addEventListener("pointerover", show);
  chart.addEventListener("focusin", show);
  chart.addEventListener("pointerleave", () => { tip.hidden = true; });
  chart.addEventListener("focusout", () => { tip.hidden = true; });
}

function cut(text) {
  return text.length > 18 ? `${text.slice(0, 17)}…` : text;
}
