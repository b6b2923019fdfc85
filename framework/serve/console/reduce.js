// Reducer from AG-UI events to the state of a turn.

import { askedParameters, closed, counted, ending, made, received, resumed } from "./state.js";

const FIELDS = new Set([
  "status", "started", "ended", "attempt", "duration", "message", "severity", "reason", "outputs", "progress",
  "trace_id",
]);
const PATH = /^\/steps\/(\d+)\/([a-z_]+)$/;
const GOES_ON = new Set(["asks", "waiting"]);
const NOTES = 60;

export function reduce(state, event) {
  switch (event.type) {
    case "RUN_STARTED": {
      // A repeated run replaces its earlier events.
      const before = state.before?.next === event.runId ? state.before.state : state;
      const goesOn = GOES_ON.has(before.status) || (before.run === event.runId && before.run !== null);
      const kept = goesOn ? {} : { models: [], usage: {}, began: event.timestamp, notes: [], decisions: [], asked: {} };
      return {
        ...before, ...kept, goesOn, before: { next: event.runId, state: { ...before, before: null } }, run: event.runId, status: "running", questions: [], error: null,
        result: null, ended: null, fresh: true, began: kept.began ?? before.began ?? event.timestamp,
      };
    }
    case "RUN_FINISHED": return finished(state, event);
    case "RUN_ERROR":
      if (event.result && !event.result.error) return finished(state, event);
      return {
        ...state, status: "failed", error: event.message ?? "", ended: event.timestamp,
        plans: last(state, (plan) => ({ ...plan, steps: closed(plan.steps, "error", event.timestamp) })),
      };
    case "TEXT_MESSAGE_START":
      return { ...state, messages: [...state.messages, { id: event.messageId, role: event.role ?? "assistant", content: "", open: true }] };
    case "TEXT_MESSAGE_CONTENT":
      return message(state, event.messageId, (one) => ({ ...one, content: one.content + event.delta }));
    case "TEXT_MESSAGE_END":
      return message(state, event.messageId, (one) => ({ ...one, open: false }));
    case "ACTIVITY_SNAPSHOT":
      return event.activityType === "capgraph.plan" ? planned(state, event) : state;
    case "ACTIVITY_DELTA":
      return event.activityType === "capgraph.plan" ? patched(state, event) : state;
    case "CUSTOM":
      return custom(state, event.name.replace(/^capgraph\./, ""), event.value, event.timestamp);
    default: return state;
  }
}

function message(state, id, change) {
  return { ...state, messages: state.messages.map((one) => (one.id === id ? change(one) : one)) };
}

function last(state, change) {
  return state.plans.map((plan, place) => (place === state.plans.length - 1 ? change(plan) : plan));
}

function planned(state, event) {
  const before = state.plans.at(-1);
  const known = new Map((before?.steps ?? []).map((step) => [step.context_key, step]));
  const { version, repairs } = event.content;
  const again = state.fresh && state.goesOn;
  // A new plan of the same turn keeps the completed steps of the previous one.
  const replanned = !again && !state.fresh;
  const steps = event.content.steps.map((step) => {
    const had = known.get(step.context_key);
    const same = had && had.capability === step.capability && (again || replanned);
    if (!same) return made(step);
    const kept = { tries: had.tries, started: had.started, ended: had.ended, duration: had.duration,
      outputs: had.outputs, attempt: had.attempt, elements: had.elements, trace_id: had.trace_id, tokens: had.tokens };
    // The first plan of a resumed run does not include its answer yet.
    if (again && step.status === "asks") return made({ ...kept, ...step, status: "pending", tries: resumed(had.tries, event.timestamp) });
    if (again) return made({ ...kept, ...step });
    return made({ ...step, ...(had.status === "done" ? { ...kept, status: "done", kept: true } : {}) });
  });
  const plan = { id: event.messageId, version: version || before?.version || 1, steps, repairs: repairs ?? [] };
  const others = again ? state.plans.slice(0, -1) : replanned ? state.plans : [];
  return { ...state, plans: [...others, plan], fresh: false };
}

function patched(state, event) {
  const plan = state.plans.at(-1);
  if (!plan || plan.id !== event.messageId) return state;
  const steps = [...plan.steps];
  const touched = new Map();
  for (const { op, path, value } of event.patch ?? []) {
    const found = PATH.exec(path ?? "");
    const place = Number(found?.[1]);
    if (!found || op === "remove" || !FIELDS.has(found[2]) || !(place < steps.length)) continue;
    const change = touched.get(place) ?? {};
    change[found[2]] = value;
    touched.set(place, change);
  }
  for (const [place, change] of touched) steps[place] = stepped(steps[place], change, event.timestamp);
  return { ...state, plans: last(state, () => ({ ...plan, steps })) };
}

function stepped(step, change, at) {
  const next = { ...step, ...change };
  if (change.status === "running") {
    const from = ms(change.started) ?? at;
    next.tries = [...resumed(received(step.tries), from), { from, to: null, status: "running" }];
    next.started = next.tries[0].from;
    next.ended = next.message = next.severity = next.progress = null;
    next.kept = false;
  } else if (change.status === "asks" || change.status === "waits") {
    next.tries = [...ending(received(step.tries), at, "done"), { from: at, to: null, status: change.status }];
  } else if (change.status) {
    next.ended = ms(change.ended) ?? at;
    next.tries = ending(step.tries, next.ended, change.status, change.message);
  }
  return next;
}

function ms(seconds) {
  return typeof seconds === "number" ? seconds * (seconds < 1e11 ? 1000 : 1) : null;
}

function finished(state, event) {
  const outcome = event.outcome?.type ?? "success";
  const result = event.result ?? {};
  const asks = outcome === "interrupt";
  const status = asks ? "asks" : result.status ?? "completed";
  let { messages } = state;
  const answered = messages.some((one) => one.id.startsWith?.(`${state.run}-answer`));
  if (!asks && result.answer && !answered) {
    messages = [...messages, { id: `${state.run}-answer-0`, role: "assistant", content: result.answer }];
  }
  const questions = asks ? (event.outcome.interrupts ?? []).map((one) => one.metadata?.capgraph).filter(Boolean) : [];
  const asked = askedParameters(questions);
  const at = event.timestamp;
  return {
    ...state, status, result, messages, questions, asked: { ...state.asked, ...asked }, ended: at, error: null, outcome: result.outcome ?? null,
    plans: last(state, (plan) => ({
      ...plan, steps: closed(plan.steps, status, at).map((step) => (
        Object.hasOwn(asked, step.context_key) && step.status !== "asks" ? stepped(step, { status: "asks" }, at) : step)),
    })),
  };
}

function custom(state, name, value, at) {
  const noted = (text) => [...state.notes.slice(1 - NOTES), { at, name, text }];
  switch (name) {
    case "element": return element(state, value);
    case "usage": case "model_called": {
      const model = value.model || value.role || "";
      const had = Object.hasOwn(state.usage, model) ? state.usage[model] : { calls: 0, input: 0, output: 0 };
      const used = { calls: had.calls + 1, input: had.input + (value.input_tokens ?? 0), output: had.output + (value.output_tokens ?? 0) };
      const call = { to: at, from: at - 1000 * (value.duration ?? 0), model, role: value.role, error: value.error };
      const plans = value.step_id ? last(state, (plan) => ({ ...plan, steps: plan.steps.map((step) => (step.context_key === value.step_id.split("[")[0]
        ? { ...step, tokens: { input: (step.tokens?.input ?? 0) + (value.input_tokens ?? 0), output: (step.tokens?.output ?? 0) + (value.output_tokens ?? 0) } } : step)) })) : state.plans;
      return { ...state, plans, usage: { ...state.usage, [model]: used }, models: [...state.models.slice(-499), call] };
    }
    case "answer_anew":
      return { ...state, messages: state.messages.filter((one) => one.id !== value) };
    case "waiting": return { ...state, plans: last(state, (plan) => ({ ...plan, steps: plan.steps.map((step) => {
      const wait = value.waits?.find((one) => one.context_key === step.context_key);
      return wait ? { ...stepped(step, { status: "waits" }, at), wait } : step;
    }) })) };
    case "approval_given":
      return { ...state, decisions: [...state.decisions, { key: value.context_key, decision: value.decision, by: value.by, refused: value.refused, at }] };
    case "status": return { ...state, notes: noted(value.message) };
    case "retry":
      return { ...state, notes: noted(value.message || name), plans: last(state, (plan) => ({ ...plan, steps: plan.steps.map((step) => (
        step.context_key === value.context_key ? { ...step, status: step.status === "failed" ? "retrying" : step.status, retry: { attempt: value.attempt, of: value.max_attempts, message: value.message } } : step)) })) };
    case "replan": case "reclassify":
      return { ...state, notes: noted(value.message || value.reason || name) };
    default: return state;
  }
}

// A for_each step is one node that counts its elements.
function element(state, value) {
  return {
    ...state,
    plans: last(state, (plan) => ({
      ...plan, steps: plan.steps.map((step) => {
        if (step.context_key !== value.context_key) return step;
        const states = { ...step.elements?.states, [value.element]: value.status };
        const messages = { ...step.elements?.messages, [value.element]: value.message };
        const elements = counted({ states, messages, of: value.of ?? step.elements?.of ?? Object.keys(states).length });
        const isOver = Object.keys(states).length >= elements.of && !elements.running;
        const status = isOver ? (elements.failed ? "failed" : "done") : "running";
        return { ...step, status, trace_id: value.trace_id ?? step.trace_id, elements };
      }),
    })),
  };
}
