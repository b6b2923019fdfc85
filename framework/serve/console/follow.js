// Client of a run's event stream.

import { urlOf } from "./api.js";

// Browsers allow six connections per host for all tabs together. At most SLOTS tabs keep a stream
// open; the others poll.
const SLOTS = 3;
const QUIET = 400;
const AGAIN = 1000;

async function withStreamSlot(work) {
  if (!navigator.locks) return work(true);
  for (let slot = 0; slot < SLOTS; slot += 1) {
    const had = await navigator.locks.request(`capgraph-stream-${slot}`, { ifAvailable: true },
      async (lock) => lock && { done: await work(true) });
    if (had) return had.done;
  }
  return work(false);
}

const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });

// Follow the events of a run until its last one, across restarts of the server.
// on.events(list of events), on.state("live" | "lost" | "login"), on.end(), on.gone()
export function follow(runId, on) {
  const stopped = new AbortController();
  let last = 0;
  let pause = 300;

  async function read(stays) {
    const request = new AbortController();
    const leave = () => request.abort();
    stopped.signal.addEventListener("abort", leave);
    let timer = null;
    let ended = false;
    const wait = () => { clearTimeout(timer); if (!stays) timer = setTimeout(leave, QUIET); };
    try {
      const answer = await fetch(urlOf(`/api/runs/${encodeURIComponent(runId)}/events`), {
        headers: { accept: "text/event-stream", "last-event-id": String(last) }, signal: request.signal,
      });
      if (answer.status === 401) { on.state("login"); return "again"; }
      if (answer.status === 404) { on.gone(); return "over"; }
      if (!answer.ok) { on.state("lost"); return "again"; }
      on.state("live");
      pause = 300;
      wait();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = frames();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        wait();
        const fresh = [];
        for (const { id, data } of parser(value)) {
          if (id <= last) continue;
          last = id;
          const event = JSON.parse(data);
          fresh.push(event);
          ended ||= event.type === "RUN_FINISHED" || event.type === "RUN_ERROR";
        }
        if (fresh.length) on.events(fresh);
        if (ended) { request.abort(); on.end(); return "over"; }
      }
      return "again";
    } catch (error) {
      if (stopped.signal.aborted) return "over";
      if (request.signal.aborted) return "poll";
      on.state("lost");
      return "again";
    } finally {
      clearTimeout(timer);
      stopped.signal.removeEventListener("abort", leave);
    }
  }

  (async () => {
    while (!stopped.signal.aborted) {
      const found = await withStreamSlot(read);
      if (found === "over") return;
      await sleep(found === "poll" ? AGAIN : pause);
      if (found === "again") pause = Math.min(pause * 2, 4000);
    }
  })();
  return () => stopped.abort();
}

// Parse server-sent events from chunks that may end anywhere.
export function frames() {
  let kept = "";
  return function* parse(piece) {
    const blocks = (kept + piece.replaceAll("\r", "")).split("\n\n");
    kept = blocks.pop();
    for (const block of blocks) {
      let id = 0;
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("id:")) id = Number(line.slice(3));
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      if (data.length) yield { id, data: data.join("\n") };
    }
  };
}
