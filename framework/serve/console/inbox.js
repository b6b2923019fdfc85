// Question cards. A card keeps its input when it moves between the chat and the inbox.

import { Problem } from "./api.js";
import { attr, button, h, json, keyed, pre, visible, when } from "./dom.js";
import { form } from "./form.js";
import { T } from "./text.js";

export function cards(app) {
  const known = new Map();
  function place(where, questions) {
    keyed(where, questions, (one) => one.question_id, (one) => {
      let card = known.get(one.question_id);
      if (!card) known.set(one.question_id, card = cardNode(app, one));
      return card;
    });
    for (const one of questions) {
      const card = known.get(one.question_id);
      if (card.parentNode !== where) where.append(card);
    }
    for (const [id, card] of known) if (!app.questions.some((one) => one.question_id === id)) { card.remove(); known.delete(id); }
  }
  return { place };
}

export function inboxView(app) {
  const list = h("div", { class: "asked" });
  const none = h("p", { class: "quiet" }, T.noQuestions);
  const notify = button(T.notify, async () => { await Notification.requestPermission(); update(); }, { class: "small" });
  const node = h("section", { class: "part side", testid: "inbox", "aria-label": T.parts.inbox },
    h("div", { class: "bar" }, h("h2", null, T.parts.inbox), notify), none, list);
  function update() {
    none.hidden = app.questions.length > 0;
    notify.hidden = typeof Notification === "undefined" || Notification.permission !== "default";
    app.cards.place(list, app.questions);
  }
  return { node, update };
}

function cardNode(app, question) {
  const alert = h("div", { class: "problems", role: "alert" });
  const reason = h("textarea", { testid: "reason", rows: 1, "aria-label": T.reason, placeholder: T.reason });
  const node = h("article", { class: "question", testid: "question", "data-question": question.question_id, "aria-label": T.question });
  const entries = (question.steps ?? []).map((step) => entryNode(question, step, question.steps.length > 1, () => refresh()));
  const buttons = h("div", { class: "buttons" });
  let busy = false;

  function showProblems(problems) {
    let left = problems;
    for (const entry of entries) left = entry.problems(left);
    alert.replaceChildren(...left.map((one) => h("p", { class: "problem", testid: "problem" }, visible(one.message))));
  }

  async function submit(word) {
    if (busy) return;
    busy = true;
    showProblems([]);
    attr(node, "aria-busy", "true");
    const answer = entries.length
      ? Object.fromEntries(entries.map((entry) => [entry.key, entry.answer(word, reason.value)]))
      : reason.value;
    try {
      await app.answer(question, answer);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 409 || error.status === 404) { showProblems([{ path: "", message: T.answeredElsewhere }]); app.refreshQuestions(); }
      else showProblems(error.problems.length ? error.problems : [{ path: "", message: error.message }]);
    } finally {
      busy = false;
      attr(node, "aria-busy", null);
    }
  }

  function refresh() {
    const changed = entries.some((entry) => entry.changed());
    for (const entry of entries) entry.refresh();
    attr(node, "data-changed", changed || null);
  }

  const decisions = entries.length ? [...new Set(entries.flatMap((entry) => entry.decisions))] : ["answer"];
  const canDecide = question.can_decide !== false;
  const order = !canDecide ? [] : ["approve", "rerun", "done", "skip", "reject", "respond"];
  for (const word of order.filter((one) => decisions.includes(one))) {
    const testid = word === "approve" || word === "reject" ? word : undefined;
    buttons.append(button(entries.length > 1 ? T.forAll(T.decisions[word]) : T.decisions[word], () => submit(word),
      { testid, class: word === "approve" ? "main" : word === "reject" ? "danger" : null }));
  }
  if (entries.length > 1 && canDecide) buttons.append(button(T.submitDecisions, () => submit(null)));
  if (!entries.length && canDecide) buttons.append(button(T.answer, () => submit("answer"), { testid: "approve", class: "main" }));

  const thread = app.threads.find((one) => one.thread_id === question.thread_id);
  node.append(
    question.requester ? h("p", { class: "quiet" }, T.requestedBy(visible(question.requester)))
      : h("div", { class: "whose" }, button(visible(thread?.title || T.untitled), () => app.open(question.thread_id), { class: "link", title: T.openThread })),
    ...(entries.length ? entries.map((entry) => entry.node) : [h("div", { class: "entry" }, pre(question.value ?? question))]),
    alert, ...(canDecide ? [h("div", { class: "decide" }, reason, buttons)]
      : [h("p", { class: "stated", testid: "cannot-decide" }, question.has_approved ? T.youApproved : T.youRequested)]));
  refresh();
  return node;
}

function entryNode(question, step, several, onchange) {
  const isStep = step.kind === "step";
  const canDecide = question.can_decide !== false;
  const fields = canDecide && step.decisions.includes("edit") && step.kind !== "plan"
    ? form(step.parameters_schema, step.parameters, onchange) : null;
  const plan = canDecide && step.kind === "plan" && step.decisions.includes("edit") ? planField(step, onchange) : null;
  const personal = step.approvals && "needed" in step.approvals;
  // The approvals are shown as a line of their own.
  const reason = (step.reason ?? "").replace(step.approvals_summary ?? "", "").trim();
  const remember = canDecide && isStep && step.decisions.includes("approve") && !personal ? h("input", { type: "checkbox" }) : null;
  const rememberLabel = remember && h("label", { class: "check" }, remember, ` ${T.remember}`);
  const choice = several && canDecide ? h("select", { "aria-label": T.decision },
    step.decisions.filter((word) => word !== "edit").map((word) => h("option", { value: word }, T.decisions[word]))) : null;
  const errors = h("div");
  const facts = Object.entries({ ...step.input_summaries }).map(([name, text]) => [
    h("dt", null, visible(name)), h("dd", null, visible(text))]);
  const hasInputs = Object.keys(step.input_values ?? {}).length > 0;
  const name = step.kind === "plan" ? T.kind.plan : step.description || step.capability;
  const node = h("div", { class: "entry", "data-key": step.context_key },
    h("h3", null, visible(name), " ",
      step.effect ? h("span", { class: "badge", "data-effect": step.effect }, T.effect[step.effect] ?? step.effect) : null),
    h("p", { class: "quiet" }, step.kind === "plan" ? visible(step.description ?? "") : T.kind[step.kind] ?? "", " ",
      h("code", null, visible(step.context_key))),
    step.task_objective && !isSame(step.task_objective, name) ? h("p", null, visible(step.task_objective)) : null,
    reason ? h("p", { class: "why" }, visible(reason)) : null,
    step.approvals?.refused ? h("p", { class: "why" }, visible(step.approvals.refused)) : null,
    personal ? h("p", null, [T.agreed(visible((step.approvals.agreed ?? []).join(", ")), step.approvals.needed),
      T.approvers(question.approver_roles, step.approvals.not_requester), step.approvals.until ? T.expires(when(step.approvals.until, true)) : ""].filter(Boolean).join(" ")) : null,
    step.idempotency_key ? h("p", { class: "quiet" }, T.unknownKey(visible(step.idempotency_key))) : null,
    facts.length || hasInputs ? h("details", { open: facts.length < 4 }, h("summary", null, T.inputs), h("dl", null, facts),
      hasInputs ? pre(json(step.input_values, Infinity)) : null) : null,
    step.result !== undefined ? h("details", { open: true }, h("summary", null, T.result), pre(json(step.result, Infinity))) : null,
    step.element !== undefined ? pre(step.element) : null,
    plan ? plan.node : fields ? fields.node : Object.keys(step.parameters ?? {}).length
      ? h("details", { open: true }, h("summary", null, T.runParameters), parameterList(step)) : null,
    errors, choice ? h("div", { class: "field" }, h("span", { class: "name", "aria-hidden": "true" }, T.decision), choice) : null, rememberLabel);

  const changed = () => (fields?.changed() || plan?.changed()) ?? false;
  return {
    node, key: step.context_key, decisions: step.decisions.filter((word) => word !== "edit"), changed,
    refresh: () => { if (remember) { remember.disabled = changed(); if (changed()) remember.checked = false; } },
    answer: (given, reason) => {
      const word = given && step.decisions.includes(given) ? given : choice?.value ?? step.decisions[0];
      if (word === "approve" && changed()) return { decision: "edit", ...(plan ? plan.read() : { parameters: fields.read() }) };
      const found = { decision: word };
      if (word === "approve" && remember?.checked) found.remember = { scope: "thread" };
      if (word === "reject" && reason) found.reason = reason;
      if (word === "respond") found.message = reason;
      return found;
    },
    problems: (list) => {
      const start = `${step.context_key}.`;
      const mine = list.filter((one) => one.path === step.context_key || one.path.startsWith(start));
      const inside = mine.map((one) => ({ ...one, path: one.path.slice(start.length).replace(/^parameters\.?/, "") }));
      const left = fields ? fields.problems(inside) : inside;
      errors.replaceChildren(...left.map((one) => h("p", { class: "problem", testid: "problem", role: "alert" }, visible(one.message))));
      return list.filter((one) => !mine.includes(one));
    },
  };
}

const isSame = (one, other) => one.replace(/\.$/, "").toLowerCase() === other.replace(/\.$/, "").toLowerCase();

// The parameters of a step that cannot be edited. Plans and nested values are JSON.
function parameterList({ kind, parameters }) {
  if (kind === "plan") return pre(json(parameters, Infinity));
  return h("dl", null, Object.entries(parameters).map(([name, value]) => [h("dt", null, visible(name)),
    h("dd", null, value !== null && typeof value === "object" ? pre(json(value, Infinity)) : visible(value === "" ? '""' : String(value ?? T.unset)))]));
}

// A plan is edited as JSON.
function planField(step, onchange) {
  const text = json(step.parameters.steps, Infinity);
  const area = h("textarea", { class: "code", rows: Math.min(14, text.split("\n").length), "aria-label": T.runParameters, spellcheck: "false", oninput: onchange });
  area.value = text;
  const read = () => { try { return { steps: JSON.parse(area.value) }; } catch { return { parameters: { steps: area.value } }; } };
  return { node: h("details", { open: text.length < 3000 }, h("summary", null, T.runParameters), area), read, changed: () => area.value !== text };
}
