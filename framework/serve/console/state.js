// State of a turn, built from a thread. `reduce.js` builds it from events.

export const CLOSING = new Set(["respond", "clarify", "error"]);

// Attempts with these statuses are waits.
export const WAITS = new Set(["asks", "waits"]);

// Outcomes after which a turn has no open waits.
export const OVER = new Set(["completed", "partial", "failed", "stopped"]);

export function empty() {
  return {
    run: null, status: "idle", messages: [], plans: [], fresh: true, models: [], notes: [],
    questions: [], usage: {}, goesOn: false, error: null, began: null, ended: null, result: null, outcome: null, decisions: [], asked: {},
  };
}

// Return the parameters that approval requests show, by step.
export function askedParameters(questions) {
  return Object.fromEntries(questions.flatMap((one) => one.steps ?? []).map((step) => [step.context_key, step.parameters]));
}

export const RUNS = new Set(["running", "queued"]);

// Return the runs of the last turn in order. A run that ended as waiting is continued by the next one.
export function runsOfTurn(thread) {
  const runs = thread.runs ?? [];
  const first = runs.findIndex((run, n) => n > 0 && run.status !== "waiting");
  return runs.slice(0, first === -1 ? runs.length : first).map((run) => run.run_id).reverse();
}

export function openRun(thread) {
  return thread.runs?.find((run) => RUNS.has(run.status))?.run_id;
}

// A finished for_each step with failed elements is partly done. A turn that has ended leaves no pending steps.
export function statusOf(step) {
  if (step.status === "pending" && step.isOver) return step.tries.some((one) => !WAITS.has(one.status)) ? "interrupted" : "unstarted";
  return step.status === "done" && step.elements?.failed ? "partial" : step.status;
}

// Build the state from a thread that has no active run.
export function fromThread(thread) {
  const status = thread.questions ? "asks" : thread.outcome ?? "idle";
  const turn = {
    ...empty(), messages: thread.messages ?? [], status, ended: thread.updated_at ?? null,
    outcome: { missing: thread.missing ?? [], reason: thread.reason ?? null },
  };
  if (thread.plan?.steps?.length) {
    const after = thread.plan.stamp?.after ?? {};
    const steps = thread.plan.steps.map((step) => storedStep({ ...step, after: after[step.context_key] }, thread));
    turn.plans = [{ id: "state", version: 1, steps: closed(steps, status) }];
  }
  return turn;
}

const STORED_STATUS = { waiting: "asks", "not needed": "skipped" };

function storedStep(step, { results = {}, steps = {} }) {
  const record = results?.[step.context_key] ?? {};
  const word = steps?.[step.context_key] ?? (record.skipped ? "skipped" : record.success ? "done" : "timestamp" in record ? "failed" : "pending");
  const status = STORED_STATUS[word] ?? word;
  const to = Date.parse(record.timestamp);
  const from = to - 1000 * (record.execution_time ?? 0);
  const hasRun = Number.isFinite(to) && status !== "skipped";
  return made({
    ...step, status, outputs: record.outputs, attempt: record.attempts, message: record.error, reason: record.reason,
    elements: step.for_each ? storedElements(step.context_key, record, results ?? {}) : null,
    ...(hasRun ? { duration: record.execution_time, started: from, ended: to, tries: [{ from, to, status, stored: true }] } : {}),
  });
}

// Return the elements of a for_each step from the records of its copies.
function storedElements(key, record, results) {
  const [states, messages] = [{}, {}];
  for (const [name, one] of Object.entries(results)) {
    if (!name.startsWith(`${key}[`)) continue;
    const number = name.slice(key.length + 1, -1);
    states[number] = one.success ? "done" : one.error ? "failed" : "skipped";
    if (one.error) messages[number] = one.error;
  }
  return Object.keys(states).length ? counted({ states, messages, of: record.elements ?? Object.keys(states).length }) : null;
}

// Return the elements of a for_each step with the number in each state.
export function counted({ states, messages, of }) {
  const count = (word) => Object.values(states).filter((one) => one === word).length;
  return { states, messages, of, done: count("done"), failed: count("failed"), running: count("running") };
}

// Return the outcome of each turn in the order of the user's messages; empty if they do not match.
export function turnOutcomes(thread) {
  const outcomes = [];
  for (const { status } of thread?.runs ?? []) if (status !== "waiting" || !outcomes.length) outcomes.unshift(status);
  const asked = (thread?.messages ?? []).filter((one) => one.role === "user").length;
  return outcomes.length === asked ? outcomes : [];
}

export function made(step) {
  return { status: "pending", tries: [], elements: null, ...step };
}

// Threads store no attempts, so `fromThread` synthesizes them; events of a run replace those.
export function received(tries) {
  return tries.filter((one) => !one.stored);
}

// End the open waits of a step.
export function resumed(tries, at) {
  return tries.map((one) => (one.to === null && WAITS.has(one.status) ? { ...one, to: at } : one));
}

export function ending(tries, at, status, message) {
  return tries.map((one) => (one.to === null ? { ...one, to: at, status: WAITS.has(one.status) ? one.status : status, message } : one));
}

// Return the final state of the steps after a run. Terminal steps emit no events of their own.
export function closed(steps, status, at = null) {
  const whole = status === "completed" || status === "partial";
  const isOver = OVER.has(status) || status === "error";
  const ended = steps.map((step) => {
    if (whole && CLOSING.has(step.capability) && step.status !== "failed") return { ...step, status: "done", tries: ending(step.tries, at, "done") };
    if (OVER.has(status) && WAITS.has(step.status)) return { ...step, status: "pending", tries: resumed(step.tries, at) };
    if (step.status === "retrying") return { ...step, status: "failed" };
    if (step.status === "running") return { ...step, status: whole ? "done" : "pending", tries: ending(step.tries, at, whole ? "done" : "failed") };
    return step;
  });
  return isOver ? ended.map((step) => (step.status === "pending" ? { ...step, isOver } : step)) : ended;
}
