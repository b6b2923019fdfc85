// Layout of a plan. Pure functions.

import { CLOSING } from "./state.js";

const WIDTH = 156, HEIGHT = 58, GAP_X = 46, GAP_Y = 14;
export const SIZE = { width: WIDTH, height: HEIGHT };

// Return the indexes of the steps that each step depends on: inputs, conditions, and references.
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

// Arrange steps in layers by dependency depth: columns, or rows if `room` (in pixels) is narrow.
// Long layers are wrapped.
export function arrange(steps, room = Infinity) {
  const before = needs(steps);
  const layer = [];
  const order = topological(before);
  for (const index of order) layer[index] = Math.max(-1, ...before[index].map((one) => layer[one] ?? -1)) + 1;
  const layers = [];
  for (const index of order) (layers[layer[index]] ??= []).push(index);
  const rank = [];
  const tall = Math.max(10, Math.ceil(Math.sqrt(steps.length * 1.3)));
  const spots = [];
  const down = room < 420;
  if (down) return { ...rows(layers, Math.max(1, Math.floor((room + GAP_Y) / (WIDTH + GAP_Y)))), before, down };
  let x = 0;
  for (const members of layers) {
    const wish = (index) => (before[index].length
      ? before[index].reduce((sum, one) => sum + (rank[one] ?? 0), 0) / before[index].length : index / steps.length);
    members.sort((a, b) => wish(a) - wish(b) || a - b);
    const high = Math.min(tall, members.length);
    members.forEach((index, n) => {
      rank[index] = n / members.length;
      spots[index] = { x: x + Math.floor(n / high) * (WIDTH + GAP_Y), y: (n % high) * (HEIGHT + GAP_Y), high };
    });
    x += Math.ceil(members.length / high) * (WIDTH + GAP_Y) - GAP_Y + GAP_X;
  }
  const tallest = Math.max(1, ...spots.map((spot) => spot.high));
  for (const spot of spots) spot.y += ((tallest - spot.high) * (HEIGHT + GAP_Y)) / 2;
  return {
    before, spots, width: Math.max(WIDTH, x - GAP_X), height: tallest * (HEIGHT + GAP_Y) - GAP_Y,
  };
}

function rows(layers, across) {
  const spots = [];
  let y = 0;
  for (const members of layers) {
    members.forEach((index, n) => {
      const inRow = Math.min(across, members.length - Math.floor(n / across) * across);
      const left = ((across - inRow) * (WIDTH + GAP_Y)) / 2;
      spots[index] = { x: left + (n % across) * (WIDTH + GAP_Y), y: y + Math.floor(n / across) * (HEIGHT + GAP_Y) };
    });
    y += Math.ceil(members.length / across) * (HEIGHT + GAP_Y) - GAP_Y + 30;
  }
  return { spots, width: across * (WIDTH + GAP_Y) - GAP_Y, height: y - 30 };
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
