// State of a turn, built from a thread. `reduce.js` builds it from events.

export const CLOSING = new Set(["respond", "clarify", "error"]);

// Attempts with these statuses are waits.
export const WAITS = new Set(["asks", "waits"]);

// Outcomes after which a turn has no open waits.
const OVER = new Set(["completed", "partial", "failed", "stopped"]);

export function empty() {
  return {
    run: null, status: "idle", messages: [], plans: [], fresh: true, models: [], notes: [],
    questions: [], usage: {}, goesOn: false, error: null, began: null, ended: null, result: null,
  };
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

// Build the state from a thread that has no active run.
export function fromThread(thread) {
  const status = thread.questions ? "asks" : thread.outcome ?? "idle";
  const found = { ...empty(), messages: thread.messages ?? [], status, ended: thread.updated_at ?? null };
  if (thread.plan?.steps?.length) {
    const steps = thread.plan.steps.map((step) => {
      const record = thread.results?.[step.context_key] ?? {};
      const told = thread.steps?.[step.context_key] ?? (record.skipped ? "skipped" : record.success ? "done" : "timestamp" in record ? "failed" : "pending");
      const stands = { waiting: "asks", "not needed": "skipped" }[told] ?? told;
      const to = Date.parse(record.timestamp);
      const ran = Number.isFinite(to) && stands !== "skipped";
      const from = to - 1000 * (record.execution_time ?? 0);
      return made({
        ...step, status: stands, outputs: record.outputs, attempt: record.attempts, message: record.error?.message,
        ...(ran ? { duration: record.execution_time, started: from, ended: to, tries: [{ from, to, status: stands, stored: true }] } : {}),
      });
    });
    found.plans = [{ id: "state", version: 1, steps: closed(steps, status) }];
  }
  return found;
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
  return steps.map((step) => {
    if (whole && CLOSING.has(step.capability) && step.status !== "failed") return { ...step, status: "done", tries: ending(step.tries, at, "done") };
    if (OVER.has(status) && WAITS.has(step.status)) return { ...step, status: "pending", tries: resumed(step.tries, at) };
    if (step.status === "running") return { ...step, status: whole ? "done" : "pending", tries: ending(step.tries, at, whole ? "done" : "failed") };
    return step;
  });
}
