// The chat view: messages, streamed answers, questions, and the message input.

import { attr, button, h, keyed, lazy, put, visible } from "./dom.js";
import { render } from "./markdown.js";
import { OVER, RUNS, turnOutcomes } from "./state.js";
import { T } from "./text.js";

const NEAR = 80;
const AT_ONCE = 60;

export function conversationView(app) {
  const log = h("div", { class: "log", role: "log", "aria-label": T.conversation, tabindex: 0 });
  const heading = h("h2", null, T.greeting);
  const purpose = h("p", null);
  const examples = h("div", { class: "examples", testid: "examples", role: "group", "aria-label": T.examples });
  const greeting = h("div", { class: "greeting" }, heading, purpose, examples, h("p", { class: "quiet" }, T.greetingMore));
  const messages = h("div", { class: "messages" });
  const earlier = button(T.earlier, () => {
    const height = log.scrollHeight;
    from = Math.max(0, from - AT_ONCE);
    update();
    log.scrollTop += log.scrollHeight - height;
    if (earlier.hidden) log.focus();
  }, { class: "small", hidden: true });
  const working = h("p", { class: "working", role: "status" });
  const error = h("p", { class: "problem", role: "alert", hidden: true });
  const asked = h("div", { class: "asked" });
  const elsewhere = h("p", { class: "quiet", hidden: true }, T.questionInInbox);
  const turnPlace = h("div", { class: "turn-place" });
  let card = null;
  log.append(greeting, earlier, messages, turnPlace, error, elsewhere, asked, working);

  const input = h("textarea", { id: "message", testid: "message-input", rows: 2, placeholder: T.placeholder, "aria-label": T.input });
  const send = h("button", { type: "submit", testid: "send", class: "main" }, T.send);
  const pick = h("input", { type: "file", multiple: true, testid: "file-input", "aria-label": T.attach, hidden: true });
  const clip = button("+", () => pick.click(), { testid: "attach", "aria-label": T.attach, title: T.attach, hidden: true });
  const attachments = h("div", { class: "held" });
  const stop = button(T.stop, () => app.stop(), { testid: "stop", hidden: true });
  // A message cancels the open approval requests of the thread, so it has to be confirmed.
  const dropped = h("p", null);
  const confirm = h("div", { class: "confirm", role: "alertdialog", "aria-label": T.confirmSend, testid: "confirm-send", hidden: true }, dropped,
    h("div", { class: "buttons" }, button(T.sendAnyway, () => submit(true), { class: "danger small" }), button(T.keepQuestion, () => { confirm.hidden = true; input.focus(); }, { class: "small" })));
  const form = h("form", { class: "write" }, confirm, attachments, input, h("div", { class: "buttons" }, pick, clip, stop, send));
  let tray = null;
  async function attach(files) {
    if (!files.length) return;
    if (app.uploads === undefined) await app.loadUploads();
    if (app.uploads) {
      tray ??= (await lazy(() => import("./files.js"))).tray(app, attachments);
      await tray.add(files);
    // Without uploads, short text files are inserted into the message.
    } else for (const file of files) if (file.size > 200000) app.tell(T.tooLong(visible(file.name))); else input.value += `\n\n${file.name}:\n\`\`\`\n${await file.text()}\n\`\`\``;
  }
  pick.addEventListener("change", () => { attach([...pick.files]); pick.value = ""; input.focus(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); submit(false); });
  async function submit(isConfirmed) {
    const text = input.value;
    if (!text.trim() || send.disabled || tray?.busy()) return;
    const open = app.questions.filter((one) => one.thread_id === app.threadId);
    confirm.hidden = isConfirmed || !open.length;
    if (!confirm.hidden) {
      put(dropped, T.dropsQuestion(visible(open.flatMap((one) => one.steps ?? []).map((step) => step.description || step.context_key).join(", ") || T.question)));
      confirm.querySelector("button").focus();
      return;
    }
    input.value = "";
    const files = tray?.take() ?? [];
    if (!await app.send(text, files)) { input.value ||= text; tray?.back(files); }
    input.focus();
  }
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  form.addEventListener("dragover", (event) => event.preventDefault());
  form.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attach([...event.dataTransfer.files]);
  });

  let follows = true;
  let seen = [];
  // Only the end of a long conversation is rendered, because every update visits each message.
  let from = 0;
  let opened = null;
  let total = 0;
  log.addEventListener("scroll", () => { follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR; });

  function update() {
    const { turn } = app;
    const runs = RUNS.has(turn.status);
    const lastAnswer = turn.messages.findLast((one) => one.role === "assistant");
    const lastAsked = turn.messages.findLast((one) => one.role === "user");
    if (opened !== app.threadId || !total || turn.messages.length <= from) from = Math.max(0, turn.messages.length - AT_ONCE);
    [opened, total] = [app.threadId, turn.messages.length];
    earlier.hidden = !from;
    const outcomes = turnOutcomes(runs ? null : app.thread);
    keyed(messages, turn.messages.slice(from), (one) => one.id ?? turn.messages.indexOf(one, from), (one) => messageNode(one), (node, one) => {
      const index = turn.messages.indexOf(one, from);
      fill(app, node, one, { index, isLast: one === lastAnswer, isAsked: one === lastAsked, runs, outcome: outcomeOf(turn, index, outcomes) });
    });
    if (app.agent && !heading.dataset.agent) {
      heading.dataset.agent = app.agent.name;
      put(heading, visible(app.agent.name));
      put(purpose, visible(app.agent.description || T.greeting));
      examples.append(...app.agent.examples.map((text) => button(visible(text), () => app.send(text), { class: "chip" })));
    }
    greeting.hidden = turn.messages.length > 0 || runs || turn.questions.length > 0;
    attr(log, "aria-busy", runs ? "true" : "false");
    error.hidden = !turn.error && !app.problem;
    put(error, visible(app.problem || turn.error || ""));
    const note = turn.notes.at(-1)?.text;
    put(working, runs && (app.stopping || !turn.plans.length) ? (app.stopping ? T.stopping : `${T.working}${note ? ` · ${visible(note)}` : "…"}`) : "");
    attr(working, "data-on", working.textContent !== "");
    stop.hidden = !runs && turn.status !== "waiting";
    clip.hidden = !app.uploads;
    attr(pick, "accept", app.uploads?.kinds.join(","));
    stop.disabled = app.stopping;
    send.disabled = runs;
    if (!card && (turn.plans.length || OVER.has(turn.status))) {
      card = lazy(() => import("./turn_card.js")).then(({ turnCard }) => { card = turnCard(app); turnPlace.append(card.node); update(); });
    }
    card?.update?.();
    const mine = app.questions.filter((one) => one.thread_id === app.threadId);
    const inInbox = app.shows("inbox");
    elsewhere.hidden = !inInbox || !mine.length;
    if (!mine.length) confirm.hidden = true;
    const asks = asked.childElementCount;
    if (!inInbox) app.cards?.place(asked, mine);
    // Scrolling forces a layout, so it only happens when content has changed. An open question stays where it is.
    const watched = [turn.messages, app.figures, app.files, app.questions, runs, app.cards, card, app.thread];
    if (follows && !asked.childElementCount && watched.some((one, n) => one !== seen[n])) log.scrollTop = log.scrollHeight;
    seen = watched;
    // Scroll to the beginning of a new question.
    if (follows && asked.childElementCount > asks) {
      follows = false;
      asked.lastChild.scrollIntoView({ block: "start" });
    }
  }
  return { node: h("section", { class: "part conversation", "aria-label": T.parts.conversation }, log, form), update,
    write: (text) => { input.value = text; input.focus(); }, toEnd: () => { follows = true; } };
}

function messageNode(one) {
  const person = one.role === "user";
  const body = h("div", { class: "body", testid: one.role === "assistant" ? "answer" : null });
  return h("article", { class: "message", testid: "message", "data-role": one.role },
    h("h3", { class: "unseen" }, person ? T.you : one.role === "assistant" ? T.assistant : T.other), body,
    h("p", { class: "along quiet" }), h("div", { class: "made" }), h("div", { class: "sources" }), h("div", { class: "tools" }));
}

// Return the outcome of the turn that an answer ends; undefined for other messages.
function outcomeOf({ messages }, index, outcomes) {
  if (!outcomes.length || messages[index].role !== "assistant" || messages[index + 1]?.role === "assistant") return undefined;
  return outcomes[messages.slice(0, index).filter((one) => one.role === "user").length - 1];
}

function fill(app, node, one, { index, isLast, isAsked, runs, outcome }) {
  attr(node, "data-outcome", ["failed", "stopped", "partial"].includes(outcome) ? outcome : null);
  const [, body, attachedFiles, made, sources, tools] = node.children;
  const earlier = !isLast && app.earlier?.index === index ? app.earlier : null;
  const figures = isLast && !runs ? app.figures : earlier?.figures ?? null;
  if (node.capgraphText !== one.content || node.capgraphFigures !== figures) {
    node.capgraphText = one.content;
    node.capgraphFigures = figures;
    if (one.role === "user") body.replaceChildren(...render(one.content));
    else body.replaceChildren(...render(one.content, figures && { numbersIn: figures.numbersIn, node: (number) => figureNode(app, figures, number, Boolean(earlier)) }));
  }
  const before = one.role === "assistant" && !isLast;
  const of = earlier ? earlier.plan : isLast && !runs ? app.turn.plans.at(-1) : null;
  const steps = (of?.steps ?? []).filter((step) => step.status === "done" && step.outputs && Object.keys(step.outputs).length);
  const signature = JSON.stringify([before, ...steps.map((step) => step.context_key)]);
  if (node.capgraphSources !== signature) {
    node.capgraphSources = signature;
    sources.replaceChildren(...(steps.length ? [h("span", { class: "quiet" }, T.from),
      ...steps.slice(0, 12).map((step) => button(visible(step.context_key), () => app.showStep(step.context_key, before), { class: "chip" }))]
      : before ? [button(T.sources, () => app.showSources(index).catch(app.fail), { class: "small" })] : []));
  }
  const files = one.role === "user" ? [] : app.files.filter((file) => (isLast && file.step) || one.content.includes(file.name));
  const had = files.map((file) => file.file_id).join();
  if (!runs && (node.capgraphFiles ?? "") !== had) {
    node.capgraphFiles = had;
    lazy(() => import("./files.js")).then(({ shownFiles }) => made.replaceChildren(...shownFiles(app, files)));
  }
  const attached = one.files ?? (isAsked ? app.brought : []);
  put(attachedFiles, attached.length ? T.withFiles(attached.map((file) => visible(file.name)).join(", ")) : "");
  if (!tools.childElementCount) {
    const at = app.turn.messages.findLastIndex((other, n) => n <= index && other.role === "user");
    if (one.role === "user") tools.append(button(T.edit, () => app.editFrom(index, one.content), { class: "small" }));
    const copy = button(T.copy, async () => { await navigator.clipboard?.writeText(one.content); put(copy, T.copied); }, { class: "small" });
    tools.append(copy);
    if (one.role === "assistant") tools.append(button(T.fork, () => app.forkAfter(index + 1).catch(app.fail), { class: "small" }));
    if (at >= 0) tools.append(button(T.retry, () => app.askAgain(at), { class: "small" }));
  }
  tools.hidden = runs;
}

function figureNode(app, figures, number, earlier) {
  const key = figures.find(number);
  return key === undefined ? null : button(number.text, () => app.showStep(key, earlier), { class: "figure", title: T.fromStep(visible(key)) });
}
