// Layout of a plan. Pure functions.

import { CLOSING } from "./state.js";

const WIDTH = 156, HEIGHT = 58;
export const SIZE = { width: WIDTH, height: HEIGHT };
// The gaps between layers and between the steps of a layer contain the edges.
const LAYER_GAP = 48, GAP = 20, CORNER = 6;
const LANES = 4, LANE = 4;
// Width in pixels below which layers are rows.
export const NARROW = 420;
const MAX_TURNED = 200;

// Return the indexes of the steps that each step depends on: inputs, conditions, references, and recorded order.
export function needs(steps) {
  const place = new Map(steps.map((step, index) => [step.context_key, index]));
  const found = steps.map((step, index) => {
    const keys = new Set();
    const add = (text) => {
      if (typeof text !== "string") return;
      for (const key of [text, text.split(".")[0].split("[")[0]]) {
        if (place.has(key) && place.get(key) !== index) keys.add(place.get(key));
      }
    };
    (step.after ?? []).forEach(add);
    for (const entry of step.inputs ?? []) Object.values(entry).flat().forEach(add);
    references(step.when, "of", add);
    references(step.for_each, "of", add);
    references(step.parameters, "$from", add);
    return keys;
  });
  const used = new Set(found.flatMap((keys) => [...keys]));
  steps.forEach((step, index) => {
    if (!CLOSING.has(step.capability) || found[index].size) return;
    steps.forEach((_, other) => { if (other < index && !used.has(other)) found[index].add(other); });
  });
  return found.map((keys) => [...keys].filter((key) => key >= 0));
}

function references(value, name, add) {
  if (Array.isArray(value)) value.forEach((one) => references(one, name, add));
  else if (value && typeof value === "object") {
    for (const [key, inner] of Object.entries(value)) {
      if (key === name) add(inner);
      references(inner, name, add);
    }
  }
}

// Arrange steps in the direction that fits a board (in pixels) best; downwards if it is narrow.
export function arrangeFor(steps, width, height) {
  if (width < NARROW || steps.length > MAX_TURNED) return arrange(steps, width);
  const scale = (one) => Math.min(1, width / one.width, height / one.height);
  const [across, down] = [arrange(steps), arrange(steps, Infinity, true)];
  return scale(down) > 1.2 * scale(across) ? down : across;
}

// Arrange steps in layers by dependency depth: columns, or rows if `room` (in pixels) is narrow.
// Long layers are wrapped. All layers share one grid, so edges run between the steps.
export function arrange(steps, room = Infinity, isTurned = false) {
  const before = needs(steps);
  const layer = [];
  const order = topological(before);
  for (const index of order) layer[index] = Math.max(-1, ...before[index].map((one) => layer[one] ?? -1)) + 1;
  const layers = [];
  for (const index of order) (layers[layer[index]] ??= []).push(index);
  const isNarrow = room < NARROW;
  const down = isNarrow || isTurned;
  const longest = isNarrow ? Math.max(1, Math.floor(room / (WIDTH + GAP))) : Math.max(10, Math.ceil(Math.sqrt(steps.length * 1.3)));
  const lines = Math.min(longest, Math.max(1, ...layers.map((members) => members.length)));
  const cells = [];
  let column = 0;
  for (const members of layers) {
    const wish = (index) => (before[index].length
      ? before[index].reduce((sum, one) => sum + (cells[one]?.line ?? 0), 0) / before[index].length : index / steps.length);
    members.sort((a, b) => wish(a) - wish(b) || a - b);
    for (let start = 0; start < members.length; start += lines, column += 1) {
      const part = members.slice(start, start + lines);
      place(part.map(wish), lines).forEach((line, n) => { cells[part[n]] = { column, line }; });
    }
  }
  const [along, across] = down ? [HEIGHT, WIDTH] : [WIDTH, HEIGHT];
  const at = ({ column: n, line }) => ({ along: n * (along + LAYER_GAP), across: GAP + line * (across + GAP) });
  const spots = cells.map((cell) => { const spot = at(cell); return down ? { x: spot.across, y: spot.along } : { x: spot.along, y: spot.across }; });
  const [length, breadth] = [Math.max(along, column * (along + LAYER_GAP) - LAYER_GAP), GAP + lines * (across + GAP)];
  const turned = (points) => (down ? points.map(([x, y]) => [y, x]) : points);
  return {
    before, spots, isNarrow, width: down ? breadth : length, height: down ? length : breadth,
    route: (from, to) => turned(route(cells[from], cells[to], at, along, across)),
  };
}

// Return increasing lines near the wished ones.
function place(wishes, lines) {
  const found = [];
  wishes.forEach((wish, n) => found.push(Math.max(n ? found[n - 1] + 1 : 0, Math.round(wish))));
  return found.map((line, n) => Math.min(line, lines - wishes.length + n));
}

// Return the corners of an edge: from gap to gap between layers, and past other layers in a lane
// between their steps.
function route(from, to, at, along, across) {
  const [a, b] = [at(from), at(to)];
  const start = [a.along + along, a.across + across / 2];
  const end = [b.along, b.across + across / 2];
  const shift = (((from.line + from.column) % LANES) - (LANES - 1) / 2) * LANE;
  const turn = start[0] + LAYER_GAP / 2 + shift;
  if (to.column === from.column + 1) return start[1] === end[1] ? [start, end] : [start, [turn, start[1]], [turn, end[1]], end];
  const lane = a.across + (to.line < from.line ? -GAP / 2 : across + GAP / 2) + shift;
  const last = end[0] - LAYER_GAP / 2 + shift;
  return [start, [turn, start[1]], [turn, lane], [last, lane], [last, end[1]], end];
}

// Return SVG path data of an edge with rounded corners, and of its arrowhead.
export function edgePath(points) {
  let line = `M${points[0]}`;
  for (let n = 1; n < points.length - 1; n += 1) {
    const [before, corner, after] = [points[n - 1], points[n], points[n + 1]];
    line += `L${near(corner, before)}Q${corner} ${near(corner, after)}`;
  }
  const [x, y] = points.at(-1);
  const isDown = points.at(-2)[0] === x && points.length > 1;
  return { line: `${line}L${x} ${y}`, head: isDown ? `M${x} ${y}l-4 -8h8z` : `M${x} ${y}l-8 -4v8z` };
}

function near([x, y], [u, v]) {
  const length = Math.hypot(u - x, v - y);
  const part = length ? Math.min(CORNER, length / 2) / length : 0;
  return [x + (u - x) * part, y + (v - y) * part];
}

function topological(before) {
  const seen = new Set();
  const found = [];
  // Plans reference only earlier steps, but invalid plans must be drawable, too.
  const visit = (start) => {
    const stack = [[start, 0]];
    seen.add(start);
    while (stack.length) {
      const top = stack.at(-1);
      if (top[1] < before[top[0]].length) {
        const next = before[top[0]][top[1]];
        top[1] += 1;
        if (!seen.has(next)) { seen.add(next); stack.push([next, 0]); }
      } else { found.push(top[0]); stack.pop(); }
    }
  };
  before.forEach((_, index) => { if (!seen.has(index)) visit(index); });
  return found;
}

// Return the longest chain of steps by duration. A step that has not run counts as one second.
export function criticalPath(steps, before) {
  const cost = (step) => (step.status === "skipped" ? 0
    : step.duration ?? (step.started && step.ended ? (step.ended - step.started) / 1000 : 1));
  const total = [];
  const from = [];
  for (const index of topological(before)) {
    let most = 0;
    for (const one of before[index]) if ((total[one] ?? 0) > most) { most = total[one]; from[index] = one; }
    total[index] = most + Math.max(cost(steps[index]), 1e-6);
  }
  let at = total.reduce((best, value, index) => (value > (total[best] ?? -1) ? index : best), 0);
  const path = new Set();
  while (at !== undefined && steps[at]) { path.add(at); at = from[at]; }
  return path;
}
