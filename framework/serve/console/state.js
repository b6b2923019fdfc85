// What a turn looks like; `reduce.js` makes it of the events that told of it, and here of a thread.

export const CLOSING = new Set(["respond", "clarify", "error"]);

// A try with one of these is a wait and no work.
export const WAITS = new Set(["asks", "waits"]);

// A turn with one of these outcomes waits for nobody any more.
const OVER = new Set(["completed", "partial", "failed", "stopped"]);

export function empty() {
  return {
    run: null, status: "idle", messages: [], plans: [], fresh: true, models: [], notes: [],
    questions: [], usage: {}, goesOn: false, error: null, began: null, ended: null, result: null,
  };
}

export const RUNS = new Set(["running", "queued"]);

// The runs of the last turn that ended, in their order: a turn goes on after a run that waited.
export function runsOfTurn(thread) {
  const runs = thread.runs ?? [];
  const first = runs.findIndex((run, n) => n > 0 && run.status !== "waiting");
  return runs.slice(0, first === -1 ? runs.length : first).map((run) => run.run_id).reverse();
}

export function openRun(thread) {
  return thread.runs?.find((run) => RUNS.has(run.status))?.run_id;
}

// A thread as the server describes it when nothing of it is running.
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

// A thread stores no attempt of its own, so one is made up; the events of a run replace it.
export function received(tries) {
  return tries.filter((one) => !one.stored);
}

// Ends the open waits, for a step that runs or asks no longer.
export function resumed(tries, at) {
  return tries.map((one) => (one.to === null && WAITS.has(one.status) ? { ...one, to: at } : one));
}

export function ending(tries, at, status, message) {
  return tries.map((one) => (one.to === null ? { ...one, to: at, status: WAITS.has(one.status) ? one.status : status, message } : one));
}

// How the steps stand when nothing runs any more. What closes a turn tells of no step itself.
export function closed(steps, status, at = null) {
  const whole = status === "completed" || status === "partial";
  return steps.map((step) => {
    if (whole && CLOSING.has(step.capability) && step.status !== "failed") return { ...step, status: "done", tries: ending(step.tries, at, "done") };
    if (OVER.has(status) && WAITS.has(step.status)) return { ...step, status: "pending", tries: resumed(step.tries, at) };
    if (step.status === "running") return { ...step, status: whole ? "done" : "pending", tries: ending(step.tries, at, whole ? "done" : "failed") };
    return step;
  });
}
