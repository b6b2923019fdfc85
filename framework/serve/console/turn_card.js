// The turn card: the steps of the last turn while they run, and then how the turn ended.

import { attr, button, h, keyed, put, visible, when } from "./dom.js";
import { differences } from "./history.js";
import { elementName, elementPlan, rerunPlan } from "./rerun.js";
import { CLOSING, OVER, RUNS, statusOf } from "./state.js";
import { T } from "./text.js";

const MAX_LINES = 12;
const MAX_REASON = 400;
const TICK = 500;
const ENDED = new Set([...OVER, "cancelled"]);
const ORDER = ["asks", "retrying", "running", "failed", "waits", "pending", "skipped", "done"];

export function turnCard(app) {
  const mark = h("span", { class: "mark", "aria-hidden": "true" });
  const title = h("h3", { class: "title" });
  const facts = h("span", { class: "quiet" });
  const reason = h("p", { class: "problem" });
  const failures = h("ul", { class: "lines", testid: "not-done" });
  const rest = h("p", { class: "quiet" });
  const decisions = h("ul", { class: "lines", testid: "decisions" });
  const steps = h("ul", { class: "lines" });
  const more = button("", () => app.show("plan"), { class: "link" });
  const details = h("details", { class: "steps" }, h("summary", null, T.turn.steps), steps, more);
  const trace = button(T.turn.showTrace, () => app.show("timeline"), { class: "small" });
  const node = h("section", { class: "turn", testid: "turn", "aria-label": T.turn.label },
    h("div", { class: "bar" }, mark, title, facts, h("span", { class: "buttons" }, trace)),
    reason, failures, rest, decisions, details);
  let timer = null;
  let shown = [];
  let wasRunning = null;

  function update() {
    const { turn } = app;
    const work = (turn.plans.at(-1)?.steps ?? []).filter((step) => !CLOSING.has(step.capability));
    const isRunning = RUNS.has(turn.status) || turn.status === "asks" || turn.status === "waiting";
    node.hidden = !(isRunning ? work.length : ENDED.has(turn.status));
    clearTimeout(timer);
    if (node.hidden) return;
    if (isRunning) timer = setTimeout(update, TICK);
    const now = [turn, app.thread, app.contexts, isRunning && Math.floor(Date.now() / TICK)];
    if (now.every((one, n) => one === shown[n])) return;
    shown = now;
    const done = work.filter((step) => statusOf(step) === "done").length;
    attr(node, "data-status", turn.status);
    put(mark, T.marks[turn.status] ?? T.marks.running);
    const isRejected = turn.status === "failed" && turn.decisions.some((one) => one.decision === "reject") && !work.some((step) => step.status === "failed");
    put(title, T.turn.title[isRejected ? "rejected" : turn.status] ?? T.turn.title.running);
    const spent = turn.began ? ((isRunning ? Date.now() : turn.ended) - turn.began) / 1000 : null;
    put(facts, [work.length ? T.counts(done, work.length) : "", spent > 0 ? (isRunning ? T.clock(spent) : T.seconds(spent)) : ""].filter(Boolean).join(" · "));
    trace.hidden = !work.some((step) => step.tries.length);
    fillFailures(isRunning ? [] : notDone(app, work));
    reason.hidden = isRunning || turn.status === "completed" || failures.childElementCount > 0 || isAnswered(turn);
    put(reason, visible((turn.outcome?.reason ?? turn.error ?? "").slice(0, MAX_REASON)));
    keyed(decisions, turn.decisions, (one) => `${one.key} ${one.at} ${one.by} ${one.decision}`, () => h("li"), (item, one) => put(item, decisionText(app, one)));
    fillSteps(work);
    if (wasRunning !== isRunning) { wasRunning = isRunning; details.open = isRunning; }
  }

  function fillFailures(list) {
    failures.hidden = !list.some((one) => one.text);
    keyed(failures, list.filter((one) => one.text), (one) => `${one.name} ${Boolean(one.plan)}`, (one) => h("li", { "data-status": one.status },
      h("span", { class: "mark", "aria-hidden": "true" }, T.marks[one.status]),
      button(visible(one.name), () => app.showStep(one.key), { class: "link" }), h("span", { class: "words" }),
      one.plan ? button(T.turn.retry, () => app.send(T.turn.retryMessage(visible(one.name)), [], one.plan), { class: "small", testid: "retry-step" }) : null),
    (item, one) => put(item.querySelector(".words"), visible(one.text)));
    const waiting = list.filter((one) => !one.text).map((one) => visible(one.name));
    rest.hidden = !waiting.length;
    put(rest, waiting.length ? T.turn.notStarted(waiting.slice(0, MAX_LINES).join(", "), Math.max(0, waiting.length - MAX_LINES)) : "");
  }

  function fillSteps(work) {
    const byUrgency = work.length > MAX_LINES ? [...work].sort((a, b) => ORDER.indexOf(a.status) - ORDER.indexOf(b.status)) : work;
    keyed(steps, byUrgency.slice(0, MAX_LINES), (one) => one.context_key, (one) => stepLine(app, one), fillLine);
    more.hidden = work.length <= MAX_LINES;
    put(more, T.turn.more(work.length - MAX_LINES));
    details.hidden = !work.length;
  }
  return { node, update };
}

function stepLine(app, step) {
  return h("li", { testid: "turn-step", "data-key": step.context_key }, h("span", { class: "mark", "aria-hidden": "true" }),
    button(visible(step.context_key), () => app.showStep(step.context_key), { class: "link" }),
    h("span", { class: "words" }), h("progress", { max: 1, "aria-label": T.turn.progress(visible(step.context_key)) }), h("span", { class: "time quiet" }));
}

function fillLine(line, step) {
  const [mark, , words, bar, time] = line.children;
  attr(line, "data-status", statusOf(step));
  put(mark, T.marks[statusOf(step)]);
  const isRunning = step.status === "running";
  const attempt = isRunning && step.attempt > 1 ? step.attempt : step.status === "retrying" ? step.retry.attempt + 1 : 0;
  const retries = attempt > 1 ? T.turn.retrying(attempt, step.retry?.of ?? attempt) : null;
  attr(line, "data-retries", Boolean(retries));
  put(words, visible([retries ?? (step.elements ? null : T.status[statusOf(step)]), step.elements && T.elements(step.elements), (isRunning || retries) && (step.message ?? step.retry?.message)].filter(Boolean).join(" · ")));
  const part = step.elements ? (step.elements.done + step.elements.failed) / step.elements.of : step.progress;
  bar.hidden = !isRunning || typeof part !== "number";
  if (!bar.hidden) bar.value = part;
  const seconds = isRunning ? (Date.now() - step.tries.at(-1).from) / 1000 : step.duration;
  put(time, typeof seconds === "number" && seconds >= 0 ? (isRunning ? T.clock(seconds) : T.seconds(seconds)) : "");
}

// Return whether the last message gives the reason for which the turn ended.
function isAnswered({ messages, outcome, error }) {
  const reason = outcome?.reason ?? error ?? "";
  return !reason || messages.at(-1)?.content.includes(reason.slice(0, 80));
}

// Return what a turn did not do: steps and elements with a cause and the plan that retries them.
function notDone(app, work) {
  const planned = app.thread?.plan?.steps ?? [];
  const isUnfinished = (key) => work.some((step) => step.context_key === key && step.status !== "done");
  const isRejected = (key) => app.turn.decisions.some((one) => one.key === key && one.decision === "reject");
  return work.flatMap((step) => {
    if (step.elements?.failed) {
      return Object.keys(step.elements.states).filter((n) => step.elements.states[n] === "failed").map((n) => ({
        key: step.context_key, status: "failed", name: `${step.context_key}: ${elementName(app.contexts, step, Number(n)) ?? T.turn.element(Number(n) + 1)}`,
        text: step.elements.messages?.[n] ?? T.status.failed, plan: elementPlan(planned, step.context_key, Number(n)),
      }));
    }
    if (step.status === "done" || step.status === "skipped") return [];
    const wasStopped = step.status === "pending" && step.tries.length > 0;
    const text = step.status === "failed" ? step.message ?? T.status.failed : wasStopped ? (isRejected(step.context_key) ? T.turn.rejected : T.turn.interrupted) : "";
    return [{ key: step.context_key, status: statusOf(step), name: step.context_key, text, plan: text ? rerunPlan(planned, step.context_key, { before: isUnfinished, after: isUnfinished }) : null }];
  });
}

function decisionText(app, one) {
  const now = app.thread?.plan?.steps?.find((step) => step.context_key === one.key)?.parameters;
  const asked = app.turn.asked[one.key];
  const changes = one.decision === "edit" && asked && now
    ? differences(asked, now).map(([path, from, to]) => `${path} ${JSON.stringify(from) ?? "–"} → ${JSON.stringify(to) ?? "–"}`) : [];
  return visible([`${one.key}: ${T.turn.decided(one.by ?? T.turn.somebody, one.decision)}`, ...changes, one.refused, when(one.at, true)].filter(Boolean).join(", "));
}
