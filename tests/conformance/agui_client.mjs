// Drives a served agent with AG-UI's JavaScript client, and prints one JSON line for each check.
// Arguments: the URL of a server, and that of a server that stops runs whose client disconnects.
import assert from "node:assert/strict";
import { HttpAgent } from "@ag-ui/client";

const [url, stoppingUrl] = process.argv.slice(2);
const plan = (...steps) => ({
  capgraph: { plan: { steps: steps.map(([capability, parameters]) => ({ context_key: capability, capability, ...(parameters && { parameters }) })) } },
});
const open = (fields = {}, base = url) => new HttpAgent({ url: `${base}/agui`, threadId: crypto.randomUUID(), ...fields });
const ask = (agent, content) => agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

async function run(agent, parameters = {}) {
  const seen = { events: [], error: null };
  const { result } = await agent.runAgent(parameters, {
    onEvent: ({ event }) => { seen.events.push(event); },
    onRunErrorEvent: ({ event }) => { seen.error = event; },
    onRunFailed: ({ error }) => { seen.failure = String(error); },
  }).catch((error) => { seen.failure = String(error); return {}; });
  return { ...seen, result, end: seen.events.at(-1), kinds: seen.events.map((event) => event.type) };
}

async function abortSlowRun(agent) {
  ask(agent, "Fill the tank");
  const started = new Promise((resolve) => { agent.subscribe({ onStepStartedEvent: resolve }); });
  const running = agent.runAgent({}).catch(() => {});
  await started;
  agent.abortRun();
  await running;
}

const checks = {
  async answer() {
    const agent = open();
    ask(agent, "Read the level");
    const { end } = await run(agent);
    assert.equal(end.outcome.type, "success");
    assert.match(agent.messages.at(-1).content, /7/);
    assert.ok(agent.messages.some((message) => message.role === "activity"));
  },
  async failed_turn_is_an_error() {
    const { error, kinds } = await run(open(), { forwardedProps: plan(["find_leak"]) });
    assert.equal(error.type, "RUN_ERROR");
    assert.ok(!kinds.includes("RUN_FINISHED"));
  },
  async approval() {
    const agent = open();
    const first = await run(agent, { forwardedProps: plan(["open_valve", { litres: 3 }]) });
    const [interrupt] = first.end.outcome.interrupts;
    assert.equal(agent.pendingInterrupts.length, 1);
    const answer = { open_valve: { decision: "edit", parameters: { litres: 4 } } };
    const second = await run(agent, { resume: [{ interruptId: interrupt.id, status: "resolved", payload: answer }] });
    assert.equal(second.result.status, "completed");
    assert.equal(agent.pendingInterrupts.length, 0);
  },
  async client_tool() {
    const agent = open();
    const tools = [{ name: "paintPage", description: "Paint the page.", parameters: { type: "object", properties: { color: { type: "string" } } } }];
    await run(agent, { tools, forwardedProps: plan(["paintPage", { color: "red" }], ["read_level"]) });
    const [call] = agent.messages.at(-1).toolCalls;
    assert.deepEqual(JSON.parse(call.function.arguments), { color: "red" });
    agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId: call.id, content: "painted" });
    const { result } = await run(agent, { tools });
    assert.equal(result.status, "completed");
    assert.match(agent.messages.at(-1).content, /painted/);
  },
  async client_tool_with_the_name_of_a_capability_is_refused() {
    const agent = open();
    ask(agent, "Read the level");
    assert.match((await run(agent, { tools: [{ name: "read_level", description: "Read." }] })).failure, /422/);
  },
  async shared_state() {
    const agent = open({ initialState: { color: "red" } });
    await run(agent, { forwardedProps: plan(["choose_color"]) });
    assert.deepEqual(agent.state, { color: "blue" });
    const refused = open({ initialState: { secret: 1 } });
    ask(refused, "Read the level");
    assert.match((await run(refused)).failure, /422/);
  },
  async context_without_a_model_is_refused() {
    const agent = open();
    ask(agent, "Read the level");
    assert.match((await run(agent, { context: [{ description: "page", value: "tank 7" }] })).failure, /422/);
  },
  async history_of_a_new_thread() {
    const agent = open({ initialMessages: [{ id: "1", role: "user", content: "Hello" }, { id: "2", role: "assistant", content: "Hello." }] });
    ask(agent, "Read the level");
    await run(agent);
    const reader = open({ threadId: agent.threadId });
    await run(reader);
    assert.deepEqual(reader.messages.filter((one) => one.role !== "activity").map((one) => one.role), ["user", "assistant", "user", "assistant"]);
  },
  async aborted_run_continues_and_the_next_request_attaches() {
    const agent = open();
    await abortSlowRun(agent);
    const { kinds, result } = await run(agent);
    assert.equal(kinds[1], "MESSAGES_SNAPSHOT");
    assert.equal(result.status, "completed");
    assert.deepEqual(agent.messages.filter((one) => one.role !== "activity").map((one) => one.role), ["user", "assistant"]);
  },
  async message_during_a_run_is_answered_after_it() {
    const agent = open();
    await abortSlowRun(agent);
    ask(agent, "Read the level");
    const { result } = await run(agent);
    assert.equal(result.status, "completed");
    const reader = open({ threadId: agent.threadId });
    await run(reader);
    assert.equal(reader.messages.filter((one) => one.role === "user").length, 2);
  },
  async aborted_run_stops_if_configured() {
    const agent = open({}, stoppingUrl);
    await abortSlowRun(agent);
    const path = `${stoppingUrl}/api/threads/${agent.threadId}`;
    for (let attempt = 0; attempt < 100; attempt += 1) {
      const [last] = (await (await fetch(path)).json()).runs;
      if (last.status !== "running") {
        assert.equal(last.status, "stopped");
        return;
      }
      await pause(50);
    }
    assert.fail("The run did not stop.");
  },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(JSON.stringify({ name, passed: true }));
  } catch (error) {
    console.log(JSON.stringify({ name, passed: false, error: String(error.stack ?? error).slice(0, 1500) }));
  }
}
process.exit(0);
