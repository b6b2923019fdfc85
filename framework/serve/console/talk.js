// The conversation: what was said, what is being said, what is asked, and the box to write in.

import { attr, button, h, keyed, put, visible } from "./dom.js";
import { render } from "./markdown.js";
import { RUNS } from "./state.js";
import { T } from "./text.js";

const NEAR = 80;

export function talkView(app) {
  const log = h("div", { class: "log", role: "log", "aria-label": T.conversation, tabindex: 0 });
  const greeting = h("div", { class: "greeting" }, h("h2", null, T.greeting), h("p", { class: "quiet" }, T.greetingMore));
  const messages = h("div", { class: "messages" });
  const working = h("p", { class: "working", role: "status" });
  const error = h("p", { class: "problem", role: "alert", hidden: true });
  const asked = h("div", { class: "asked" });
  const elsewhere = h("p", { class: "quiet", hidden: true }, T.inInbox);
  log.append(greeting, messages, error, elsewhere, asked, working);

  const input = h("textarea", { id: "message", testid: "message-input", rows: 2, placeholder: T.placeholder, "aria-label": T.input });
  const send = h("button", { type: "submit", testid: "send", class: "main" }, T.send);
  const stop = button(T.stop, () => app.stop(), { testid: "stop", hidden: true });
  const form = h("form", { class: "write" }, input, h("div", { class: "buttons" }, stop, send));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = input.value;
    if (!text.trim() || send.disabled) return;
    input.value = "";
    if (!await app.send(text)) input.value ||= text;
    input.focus();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  form.addEventListener("dragover", (event) => event.preventDefault());
  form.addEventListener("drop", async (event) => {
    const files = [...event.dataTransfer.files].filter((file) => file.size < 200000);
    if (!files.length) return;
    event.preventDefault();
    for (const file of files) input.value += `\n\n${file.name}:\n\`\`\`\n${await file.text()}\n\`\`\``;
  });

  let follows = true;
  let seen = [];
  log.addEventListener("scroll", () => { follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR; });

  function update() {
    const { turn } = app;
    const runs = RUNS.has(turn.status);
    const lastAnswer = turn.messages.findLast((one) => one.role === "assistant");
    keyed(messages, turn.messages, (one) => one.id ?? turn.messages.indexOf(one), (one) => messageNode(one), (node, one) => {
      const index = turn.messages.indexOf(one);
      fill(app, node, one, { index, isLast: one === lastAnswer, runs });
    });
    greeting.hidden = turn.messages.length > 0 || runs || turn.questions.length > 0;
    attr(log, "aria-busy", runs ? "true" : "false");
    error.hidden = !turn.error && !app.problem;
    put(error, visible(app.problem || turn.error || ""));
    const note = turn.notes.at(-1)?.text;
    put(working, runs ? (app.stopping ? T.stopping : `${T.working}${note ? ` · ${visible(note)}` : "…"}`) : "");
    attr(working, "data-on", runs);
    stop.hidden = !runs;
    stop.disabled = app.stopping;
    send.disabled = runs;
    const mine = app.questions.filter((one) => one.thread_id === app.threadId);
    const inInbox = app.shows("inbox");
    elsewhere.hidden = !inInbox || !mine.length;
    const asks = asked.childElementCount;
    if (!inInbox) app.cards?.place(asked, mine);
    // Where the end is has to be measured, so it is only looked for when something was said.
    const said = [turn.messages, app.figures, app.questions, runs, app.cards];
    if (follows && said.some((one, n) => one !== seen[n])) log.scrollTop = log.scrollHeight;
    seen = said;
    // A question is read from its beginning.
    if (follows && asked.childElementCount > asks) {
      follows = false;
      asked.lastChild.scrollIntoView({ block: "start" });
    }
  }
  return { node: h("section", { class: "part talk", "aria-label": T.parts.talk }, log, form), update,
    write: (text) => { input.value = text; input.focus(); }, toEnd: () => { follows = true; } };
}

function messageNode(one) {
  const person = one.role === "user";
  const body = h("div", { class: "body", testid: one.role === "assistant" ? "answer" : null });
  return h("article", { class: "message", testid: "message", "data-role": one.role },
    h("h3", { class: "unseen" }, person ? T.you : one.role === "assistant" ? T.assistant : T.other), body,
    h("div", { class: "sources" }), h("div", { class: "tools" }));
}

function fill(app, node, one, { index, isLast, runs }) {
  const [, body, sources, tools] = node.children;
  const figures = isLast && !runs ? app.figures : null;
  if (node.capgraphText !== one.content || node.capgraphFigures !== figures) {
    node.capgraphText = one.content;
    node.capgraphFigures = figures;
    if (one.role === "user") body.replaceChildren(...render(one.content));
    else body.replaceChildren(...render(one.content, figures && ((text) => figureNode(app, figures, text))));
  }
  const steps = isLast && !runs ? (app.turn.plans.at(-1)?.steps ?? []).filter((step) => step.status === "done" && step.outputs && Object.keys(step.outputs).length) : [];
  const files = isLast && !runs ? app.turn.result?.files ?? [] : [];
  const told = JSON.stringify([steps.map((step) => step.context_key), files]);
  if (node.capgraphSources !== told) {
    node.capgraphSources = told;
    sources.replaceChildren(
      ...(steps.length ? [h("span", { class: "quiet" }, T.from),
        ...steps.slice(0, 12).map((step) => button(visible(step.context_key), () => app.showStep(step.context_key), { class: "chip" }))] : []),
      ...(files.length ? [h("span", { class: "quiet" }, T.files), ...files.map((file) => h("code", null, visible(file)))] : []));
  }
  if (!tools.childElementCount) {
    if (one.role === "user") tools.append(button(T.edit, () => app.editFrom(index, one.content), { class: "small" }));
    const copy = button(T.copy, async () => { await navigator.clipboard?.writeText(one.content); put(copy, T.copied); }, { class: "small" });
    tools.append(copy);
    if (one.role === "user") tools.append(button(T.retry, () => app.send(one.content), { class: "small" }));
  }
  tools.hidden = runs;
}

function figureNode(app, figures, text) {
  const key = figures.get(Number(text.replaceAll(",", "")));
  if (key === undefined || text.replace(/\D/g, "").length < 2) return null;
  return button(text, () => app.showStep(key), { class: "figure", title: T.fromStep(visible(key)) });
}

// Numbers that the steps of a turn gave, and of which step each is.
export function figuresOf(contexts, results) {
  const found = new Map();
  const walk = (value, key, depth) => {
    if (found.size > 5000 || depth > 8) return;
    if (typeof value === "number" && Number.isFinite(value)) {
      for (const one of [value, ...[0, 1, 2, 3].map((n) => Number(value.toFixed(n)))]) if (!found.has(one)) found.set(one, key);
    } else if (value && typeof value === "object") for (const inner of Object.values(value)) walk(inner, key, depth + 1);
  };
  for (const [key, record] of Object.entries(results ?? {})) {
    for (const [kind, name] of Object.entries(record?.outputs ?? {})) walk(contexts?.[kind]?.[name], key, 0);
  }
  return found;
}
