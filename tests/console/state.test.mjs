// The reducer and what is drawn from it, without a browser: `node --test`.

import assert from "node:assert/strict";
import { test } from "node:test";

const at = new URL("../../framework/serve/console/", import.meta.url);
const { empty, fromThread, runsOfTurn, statusOf, turnOutcomes } = await import(new URL("state.js", at));
const { reduce } = await import(new URL("reduce.js", at));
const { timeScale } = await import(new URL("timeline.js", at));
const { figuresOf, numbersIn } = await import(new URL("figures.js", at));
const { SIZE, arrange, criticalPath, needs } = await import(new URL("layout.js", at));
const { frames } = await import(new URL("follow.js", at));
const { differences } = await import(new URL("history.js", at));

const play = (events, from = empty()) => events.reduce(reduce, from);
const begun = { type: "RUN_STARTED", runId: "r", threadId: "t", timestamp: 1000 };
const plan = (version, steps) => ({
  type: "ACTIVITY_SNAPSHOT", activityType: "capgraph.plan", messageId: `p${version}`, timestamp: 1001, content: { version, steps },
});
const told = (version, place, change, timestamp = 1100) => ({
  type: "ACTIVITY_DELTA", activityType: "capgraph.plan", messageId: `p${version}`, timestamp,
  patch: Object.entries(change).map(([name, value]) => ({ op: "add", path: `/steps/${place}/${name}`, value })),
});
const step = (key, capability = "look", more = {}) => ({ context_key: key, capability, ...more });
const statuses = (state) => state.plans.at(-1).steps.map((one) => one.status);

test("an answer grows piece by piece", () => {
  const state = play([
    begun, { type: "TEXT_MESSAGE_START", messageId: "r-answer-1" },
    { type: "TEXT_MESSAGE_CONTENT", messageId: "r-answer-1", delta: "Hel" },
    { type: "TEXT_MESSAGE_CONTENT", messageId: "r-answer-1", delta: "lo" },
    { type: "RUN_FINISHED", result: { status: "completed", answer: "Hello" }, outcome: { type: "success" }, timestamp: 2000 },
  ]);
  assert.deepEqual(state.messages.map((one) => one.content), ["Hello"]);
  assert.equal(state.status, "completed");
});

test("steps go through their states, with every try", () => {
  const state = play([
    begun, plan(1, [step("a"), step("say", "respond")]), told(1, 0, { status: "running" }),
    told(1, 0, { status: "failed", message: "cold", severity: "retriable" }, 1200), told(1, 0, { status: "running" }, 1300), told(1, 0, { status: "done", duration: 0.1 }, 1400),
    { type: "RUN_FINISHED", result: { status: "completed" }, outcome: { type: "success" }, timestamp: 1500 },
  ]);
  assert.deepEqual(statuses(state), ["done", "done"]);
  const [first] = state.plans[0].steps;
  assert.deepEqual(first.tries.map((one) => [one.status, one.message]), [["failed", "cold"], ["done", undefined]]);
  assert.deepEqual([first.message, first.severity], [null, null]);
});

test("a question makes its step ask, and the next run keeps what was done", () => {
  const asks = play([
    begun, plan(1, [step("a"), step("b")]), told(1, 0, { status: "running" }), told(1, 0, { status: "done" }, 1200),
    { type: "RUN_FINISHED", timestamp: 1300, result: { status: "waiting" },
      outcome: { type: "interrupt", interrupts: [{ metadata: { capgraph: { question_id: "q", steps: [step("b")] } } }] } },
  ]);
  assert.deepEqual(statuses(asks), ["done", "asks"]);
  assert.equal(asks.questions[0].question_id, "q");
  const on = play([{ ...begun, runId: "s" }, plan(2, [step("a", "look", { status: "done" }), step("b", "look", { status: "asks" })])], asks);
  assert.equal(on.plans.length, 1);
  assert.equal(on.plans[0].steps[0].tries.length, 1);
  assert.deepEqual(on.questions, []);
});

test("another plan of the turn stands beside the first and says what was kept", () => {
  const state = play([
    begun, plan(1, [step("a"), step("b")]), told(1, 0, { status: "running" }), told(1, 0, { status: "done" }),
    plan(2, [step("a"), step("c")]),
  ]);
  assert.deepEqual(state.plans.map((one) => one.version), [1, 2]);
  assert.deepEqual(state.plans[1].steps.map((one) => [one.status, Boolean(one.kept)]), [["done", true], ["pending", false]]);
});

test("a patch reaches nothing but the fields of a step", () => {
  const before = play([begun, plan(1, [step("a")])]);
  for (const path of ["/steps/0/__proto__", "/steps/9/status", "/__proto__/x", "/steps/0/status/x", "/version"]) {
    const state = play([{ type: "ACTIVITY_DELTA", activityType: "capgraph.plan", messageId: "p1", patch: [{ op: "add", path, value: { x: 1 } }] }], before);
    assert.deepEqual(statuses(state), ["pending"]);
    assert.equal({}.x, undefined);
  }
});

test("copies of a step are counted in one", () => {
  const one = (element, status) => ({ type: "CUSTOM", name: "capgraph.element", value: { context_key: "a", element, of: 2, status } });
  const half = play([begun, plan(1, [step("a")]), one(0, "running"), one(1, "running"), one(0, "done")]);
  assert.deepEqual(statuses(half), ["running"]);
  assert.equal(half.plans[0].steps[0].elements.done, 1);
  assert.deepEqual(statuses(play([one(1, "done")], half)), ["done"]);
});

test("a thread from the server looks as its events did", () => {
  const state = fromThread({
    outcome: "completed", messages: [{ id: "1", role: "user", content: "Hi" }], plan: { steps: [step("a"), step("say", "respond")] },
    steps: { a: "done", say: "pending" }, results: { a: { execution_time: 2, timestamp: "2026-01-01T00:00:10Z", attempts: 1 } },
  });
  assert.deepEqual(statuses(state), ["done", "done"]);
  assert.equal(state.plans[0].steps[0].tries[0].to - state.plans[0].steps[0].tries[0].from, 2000);
});

test("steps stand behind what they need, in whatever way they say so", () => {
  const steps = [
    step("a"), step("b", "look", { inputs: [{ X: "a" }] }), step("c", "look", { when: { and: [{ of: "b.x", is: ">", than: 1 }] } }),
    step("d", "look", { for_each: { of: "c.rows", as: "item" }, parameters: { x: { $from: "a.y" } } }), step("e", "respond"),
  ];
  assert.deepEqual(needs(steps), [[], [0], [1], [2, 0], [3]]);
  const { spots } = arrange(steps);
  assert.ok(spots.every((spot, n) => n === 0 || spot.x > spots[n - 1].x));
});

test("a step stands behind the steps that the plan's stamp puts before it", () => {
  const steps = [step("a"), step("b"), step("c")];
  const live = play([begun, plan(1, [steps[0], step("b", "look", { after: ["a"] }), steps[2]])]);
  const stored = fromThread({ plan: { steps, stamp: { after: { b: ["a"] } } }, results: {} });
  for (const one of [live, stored]) assert.deepEqual(needs(one.plans.at(-1).steps), [[], [0], []]);
});

test("the critical path is the longest chain", () => {
  const steps = [step("a", "x", { duration: 1 }), step("b", "x", { duration: 5 }), step("c", "x", { duration: 1, inputs: [{ A: "a" }, { B: "b" }] })];
  assert.deepEqual([...criticalPath(steps, needs(steps))].sort(), [1, 2]);
});

test("events may be cut anywhere", () => {
  const parse = frames();
  const text = ": \n\nid: 1\ndata: {\"a\":1}\n\nid: 2\r\ndata: {}\r\n\r\n";
  const found = [...text].flatMap((one) => [...parse(one)]);
  assert.deepEqual(found, [{ id: 1, data: "{\"a\":1}" }, { id: 2, data: "{}" }]);
});

test("two states differ where they differ", () => {
  assert.deepEqual(differences({ a: [1, 2], b: 1 }, { a: [1, 3], b: 1 }), [["a.1", 2, 3]]);
});

test("a call of a model counts for its step, and a wait is no work", () => {
  const used = (step_id) => ({ type: "CUSTOM", name: "capgraph.usage", timestamp: 1200, value: { model: "m", input_tokens: 5, output_tokens: 2, step_id } });
  const waits = { type: "CUSTOM", name: "capgraph.waiting", timestamp: 1300, value: { waits: [{ context_key: "b", for: "go" }] } };
  const state = play([begun, plan(1, [step("a"), step("b")]), used("a"), used("a"), used(undefined), waits]);
  const [a, b] = state.plans.at(-1).steps;
  assert.deepEqual(a.tokens, { input: 10, output: 4 });
  assert.equal(state.usage.m.calls, 3);
  assert.deepEqual([b.status, b.wait.for, b.tries.map((one) => one.status)], ["waits", "go", ["waits"]]);
});

test("the runs of the last turn are found, the first first", () => {
  const runs = (...words) => ({ runs: words.map((status, n) => ({ run_id: `r${n}`, status })) });
  assert.deepEqual(runsOfTurn(runs("completed", "waiting", "waiting", "failed", "waiting")), ["r2", "r1", "r0"]);
  assert.deepEqual(runsOfTurn(runs("waiting")), ["r0"]);
  assert.deepEqual(runsOfTurn({}), []);
});

const asks = (key) => ({
  type: "RUN_FINISHED", timestamp: 1300, result: { status: "waiting" },
  outcome: { type: "interrupt", interrupts: [{ metadata: { capgraph: { question_id: "q", steps: [step(key)] } } }] },
});
const over = (status) => ({ type: "RUN_FINISHED", timestamp: 1600, result: { status }, outcome: { type: "success" } });
const tries = (state, place = 0) => state.plans.at(-1).steps[place].tries.map((one) => [one.status, one.from, one.to]);

test("a page that is loaded in mid-run counts each attempt once", () => {
  const stored = { runs: [{ run_id: "r", status: "running" }], plan: { steps: [step("a"), step("b")] }, steps: { a: "done", b: "pending" },
    results: { a: { success: true, execution_time: 0.1, timestamp: "2026-01-01T00:00:10Z", attempts: 1 } } };
  const loaded = { ...fromThread(stored), status: "running", run: "r" };
  assert.equal(tries(loaded).length, 1);
  const state = play([
    begun, plan(1, [step("a"), step("b")]), told(1, 0, { status: "running" }), told(1, 0, { status: "done" }, 1200), told(1, 1, { status: "running" }, 1300),
  ], loaded);
  assert.deepEqual(tries(state), [["done", 1100, 1200]]);
  assert.deepEqual(tries(state, 1), [["running", 1300, null]]);
});

test("a page that is loaded after an answer keeps the attempts of the runs before", () => {
  const stored = { runs: [{ run_id: "s", status: "running" }], plan: { steps: [step("a"), step("b")] }, steps: { a: "done", b: "done" },
    results: Object.fromEntries(["a", "b"].map((key) => [key, { success: true, execution_time: 0.1, timestamp: "2026-01-01T00:00:10Z", attempts: 1 }])) };
  const loaded = { ...fromThread(stored), status: "running", run: "s" };
  const state = play([
    { ...begun, runId: "s" }, plan(1, [step("a", "look", { status: "done" }), step("b", "look", { status: "asks" })]),
    told(1, 1, { status: "running" }, 1400), told(1, 1, { status: "done" }, 1500),
  ], loaded);
  assert.deepEqual([tries(state, 0).length, tries(state, 1)], [1, [["done", 1400, 1500]]]);
});

test("a run that is received twice changes nothing", () => {
  const used = { type: "CUSTOM", name: "capgraph.usage", timestamp: 1200, value: { model: "m", input_tokens: 5, output_tokens: 2, step_id: "a" } };
  const events = [
    begun, plan(1, [step("a"), step("b")]), told(1, 0, { status: "running" }), used, told(1, 0, { status: "done" }, 1200),
    { type: "CUSTOM", name: "capgraph.status", timestamp: 1250, value: { message: "Reads." } },
    { type: "TEXT_MESSAGE_START", messageId: "r-answer-1" }, { type: "TEXT_MESSAGE_CONTENT", messageId: "r-answer-1", delta: "Hi" },
  ];
  for (const from of [empty(), play([begun, plan(1, [step("a"), step("b")]), asks("a")].map((one) => ({ ...one, runId: "q" })))]) {
    const once = play([...events, over("completed")], from);
    assert.deepEqual(play([...events, over("completed")], once), once);
    assert.deepEqual(play([...events, over("completed")], play(events, from)), once);
  }
});

test("an ended turn has no pending steps", () => {
  const running = play([begun, plan(1, [step("a"), step("b"), step("c")]), told(1, 0, { status: "done" }), told(1, 1, { status: "running" })]);
  const shown = (state) => state.plans.at(-1).steps.map(statusOf);
  assert.deepEqual(shown(running), ["done", "running", "pending"]);
  for (const status of ["failed", "stopped"]) assert.deepEqual(shown(play([over(status)], running)), ["done", "interrupted", "unstarted"]);
  assert.deepEqual(shown(fromThread({ plan: { steps: [step("a")] }, outcome: "stopped" })), ["unstarted"]);
  assert.deepEqual(shown(fromThread({ plan: { steps: [step("a")] }, outcome: "running" })), ["pending"]);
});

test("an answered step asks no longer", () => {
  const open = play([begun, plan(1, [step("a"), step("b")]), asks("b")]);
  const answered = play([{ ...begun, runId: "s", timestamp: 1400 }, plan(1, [step("a"), step("b", "look", { status: "asks" })])], open);
  assert.deepEqual(statuses(answered), ["pending", "pending"]);
  for (const status of ["failed", "completed", "partial", "stopped"]) assert.deepEqual(statuses(play([over(status)], answered)), ["pending", "pending"]);
  assert.deepEqual(statuses(play([{ ...asks("b"), timestamp: 1500 }], answered)), ["pending", "asks"], "the next person is asked");
  const ran = play([told(1, 1, { status: "running" }, 1450), told(1, 1, { status: "done" }, 1500)], answered);
  assert.deepEqual(tries(ran, 1).map(([status]) => status), ["asks", "done"]);
  assert.ok(tries(ran, 1)[0][2] <= 1450, "the wait ends where the attempt begins");
});

test("a step asks no longer when its turn is over", () => {
  for (const status of ["failed", "completed", "partial", "stopped"]) {
    assert.notEqual(statuses(play([begun, plan(1, [step("a"), step("b")]), told(1, 1, { status: "asks" }), over(status)]))[1], "asks");
    assert.notEqual(statuses(fromThread({ outcome: status, plan: { steps: [step("a"), step("b")] }, steps: { a: "done", b: "waiting" } }))[1], "asks");
  }
  assert.equal(statuses(fromThread({ outcome: "waiting", questions: 1, plan: { steps: [step("a"), step("b")] }, steps: { a: "done", b: "waiting" } }))[1], "asks");
});

test("a loaded for_each step counts its elements, and failed ones keep their message", () => {
  const results = { a: { success: true, elements: 3, timestamp: "2026-01-01T00:00:10Z" }, "a[0]": { success: true }, "a[1]": { success: false, skipped: true, error: "cold" }, "a[2]": { success: true } };
  const [a] = fromThread({ outcome: "partial", plan: { steps: [step("a", "look", { for_each: { of: "x.y" } })] }, steps: { a: "done" }, results }).plans[0].steps;
  assert.deepEqual([a.elements.done, a.elements.failed, a.elements.of, a.elements.messages], [2, 1, 3, { 1: "cold" }]);
});

test("a step that is retried says so until it runs again", () => {
  const retry = { type: "CUSTOM", name: "capgraph.retry", timestamp: 1250, value: { context_key: "a", attempt: 1, max_attempts: 4, message: "cold" } };
  const failed = [begun, plan(1, [step("a")]), told(1, 0, { status: "running", attempt: 1 }), told(1, 0, { status: "failed" }, 1200), retry];
  assert.deepEqual(statuses(play(failed)), ["retrying"]);
  assert.equal(play(failed).plans[0].steps[0].retry.of, 4);
  assert.deepEqual(statuses(play([...failed, told(1, 0, { status: "running", attempt: 2 }, 1300)])), ["running"]);
  assert.deepEqual(statuses(play([...failed, over("stopped")])), ["failed"]);
});

test("decisions are recorded with the parameters that were shown", () => {
  const given = { type: "CUSTOM", name: "capgraph.approval_given", timestamp: 1450, value: { context_key: "b", decision: "edit", by: "ann" } };
  const question = structuredClone(asks("b"));
  question.outcome.interrupts[0].metadata.capgraph.steps[0].parameters = { litres: 3 };
  const state = play([begun, plan(1, [step("a"), step("b")]), question, { ...begun, runId: "s", timestamp: 1400 }, given, over("completed")]);
  assert.deepEqual(state.decisions, [{ key: "b", decision: "edit", by: "ann", refused: undefined, at: 1450 }]);
  assert.deepEqual(state.asked, { b: { litres: 3 } });
  assert.deepEqual(play([{ ...begun, runId: "t" }], state).decisions, []);
});

test("outcomes belong to turns, of which one may take several runs", () => {
  const thread = { messages: [{ role: "user" }, { role: "assistant" }, { role: "user" }], runs: ["completed", "waiting", "failed"].map((status) => ({ status })) };
  assert.deepEqual(turnOutcomes(thread), ["failed", "completed"]);
  assert.deepEqual(turnOutcomes({ ...thread, messages: [] }), []);
});

test("a figure is a whole number with the value and the unit of a result", () => {
  const contexts = { A: { a: { usd: 17.25, year: 2015, count: 3, share: 0.18, litres: 36.4, codes: ["S017"], value: 0.913, small: 17 } } };
  const figures = figuresOf(contexts, { a: { outputs: { A: "a" } } });
  const linked = (text) => [...numbersIn(text)].filter((one) => typeof one === "object" && figures.find(one)).map((one) => one.text);
  assert.deepEqual(linked("S017 costs 17.25 USD in 2015, at 0.913."), ["17.25", "2015", "0.913"]);
  assert.deepEqual(linked("S012, 2015-01-02, v0.913.1, 1,2015 and x0.913"), []);
  assert.deepEqual(linked("18 % or 18% of 18 stations"), ["18", "18"]);
  assert.deepEqual(linked("36.4 litres, 36 l, 36 stations, 36.4 km"), ["36.4", "36"]);
  assert.deepEqual(linked("3 remarks, count 3, 17 chairs"), []);
  assert.deepEqual([...numbersIn("1,234.5 and -2")].filter((one) => one.text).map((one) => one.text), ["1,234.5", "-2"]);
});

test("no edge passes under a step", () => {
  let seed = 7;
  const random = (n) => { seed = (seed * 1103515245 + 12345) % 2147483648; return seed % n; };
  for (let round = 0; round < 60; round += 1) {
    const steps = Array.from({ length: 3 + random(40) }, (_, n) => step(`s${n}`, "look", { inputs: n ? Array.from({ length: random(4) }, () => ({ X: `s${random(n)}` })) : [] }));
    for (const room of [Infinity, 380, 180]) {
      const { before, spots, width, height, route } = arrange(steps, room);
      const places = new Set(spots.map(({ x, y }) => `${x} ${y}`));
      assert.equal(places.size, steps.length);
      before.forEach((froms, to) => froms.forEach((from) => {
        const points = route(from, to);
        points.slice(1).forEach(([x, y], n) => {
          const [u, v] = points[n];
          assert.ok(x >= 0 && y >= 0 && x <= width && y <= height);
          for (const spot of spots) {
            const isUnder = Math.max(x, u) > spot.x && Math.min(x, u) < spot.x + SIZE.width && Math.max(y, v) > spot.y && Math.min(y, v) < spot.y + SIZE.height;
            assert.ok(!isUnder, `${from} to ${to} passes under a step`);
          }
        });
      }));
    }
  }
});

test("the axis of the timeline is round, and long waits are compressed", () => {
  const plain = timeScale([{ from: 1000, to: 3434, isWait: false }], 130, 700);
  assert.deepEqual(plain.ticks.map((at) => at - 1000), [0, 500, 1000, 1500, 2000]);
  assert.deepEqual([plain.x(1000), Math.round(plain.x(3434)), plain.breaks], [130, 700, []]);
  const waits = timeScale([{ from: 0, to: 1000 }, { from: 1000, to: 600000, isWait: true }, { from: 600000, to: 601000 }], 130, 700);
  assert.equal(waits.breaks.length, 1);
  assert.ok(waits.x(600000) - waits.x(1000) < 50);
  assert.equal(Math.round(waits.x(601000)), 700);
  assert.ok(waits.ticks.every((at) => at <= 1000 || at >= 600000));
});
