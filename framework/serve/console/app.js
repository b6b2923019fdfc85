// Entry point of the console: URL, views, the open thread, its runs, and the API for the views.

import { Problem, call, get, post, query, threadPath, urlOf } from "./api.js";
import { attr, button, closesOutside, h, lazy, put, s, visible } from "./dom.js";
import { RUNS, askedParameters, empty, fromThread, openRun, runsOfTurn } from "./state.js";
import { conversationView } from "./conversation.js";
import { T } from "./text.js";
import { threadBar, threadsView } from "./threads.js";

const POLL = 5000;
const POLL_HIDDEN = 30000;
const PAGE = 15;
// Icons of the tabs that a narrow window shows.
const ICONS = {
  conversation: "M4 5h16v11H9l-5 4z", threads: "M4 6h16M4 12h16M4 18h10", plan: "M3 5h7v5H3zM14 14h7v5h-7zM10 7.500h4.500v6.500",
  inbox: "M4 5h16v14H4zM4 13h5l1.500 2.500h3L15 13h5", more: "M5 12h.01M12 12h.01M19 12h.01",
};
const UPLOAD = /^[0-9a-f]{32}$/;
// Uploads are in the context data under the key "data", as "id/name".
const uploadedFiles = (state) => Object.values(state.capability_context_data ?? {}).flatMap((kind) => kind.data?.files ?? []).map((file) => ({ id: String(file).split("/")[0], name: String(file).split("/").at(-1) }));

const views = {};
const later = {
  timeline: async () => (await lazy(() => import("./timeline.js"))).timelineView(app),
  activity: async () => (await lazy(() => import("./activity.js"))).activityView(app),
  usage: async () => (await lazy(() => import("./activity.js"))).usageView(app),
  inbox: async () => { await loadCards(); return inbox.inboxView(app); },
  history: async () => (await lazy(() => import("./history.js"))).historyView(app),
  agent: async () => (await lazy(() => import("./agent.js"))).agentView(app),
};
const wide = matchMedia("(min-width: 1180px)");
const middle = matchMedia("(min-width: 760px)");
const others = new BroadcastChannel("capgraph");

const app = {
  turn: empty(), threadId: null, thread: null, threads: [], threadsNext: null, filter: {},
  questions: [], cards: null, figures: null, contexts: null, connection: "idle", stopping: false, problem: "",
  tab: "conversation", side: "plan", leave: null, earlier: null, draft: 0, received: null, uploads: undefined, agent: null, files: [], brought: [],

  address: (id) => urlOf(id === null ? "/" : `/?thread=${encodeURIComponent(id)}`),
  always: () => (wide.matches ? ["conversation", "threads"] : middle.matches ? ["conversation"] : []),
  current() { return this.always().includes(this.tab) ? this.side : this.tab; },
  shows(part) { return this.always().includes(part) || this.current() === part; },

  show(part) {
    this.tab = part;
    if (part !== "conversation" && part !== "threads") this.side = part;
    else if (part === "threads" && middle.matches && !wide.matches) this.side = part;
    history.replaceState(null, "", `${location.pathname}${location.search}#${part}`);
    const hadFocus = moreTabs.contains(document.activeElement);
    more.open = false;
    arrangeParts();
    if (hadFocus) more.firstChild.focus();
  },

  // --- threads ---
  async open(id, { push = true } = {}) {
    this.disconnect();
    this.received = null;
    const mine = this.draft += 1;
    Object.assign(this, { threadId: id, thread: null, turn: empty(), figures: null, contexts: null, files: [], brought: [], earlier: null, stopping: false, problem: "", connection: "idle", retries: 5 });
    if (push) history.pushState(null, "", this.address(id) + location.hash);
    views.conversation.toEnd();
    changed();
    if (id === null) return;
    try {
      const thread = await get(threadPath(id));
      if (mine === this.draft) this.take(thread);
    } catch (error) { if (mine === this.draft) { this.problem = error.status === 404 ? T.threadNotFound : ""; this.fail(error); } }
    this.refreshQuestions();
  },
  take(thread) {
    this.thread = thread;
    this.turn = fromThread(thread);
    this.loadFigures(thread);
    const open = openRun(thread);
    if (open) this.listen(open);
    this.restore(open || thread.plan ? runsOfTurn(thread).filter((run) => run !== open) : []).catch(this.fail);
    // The run was ending while the thread was read; its outcome is available shortly.
    if (!open && ["running", "unfinished"].includes(thread.outcome) && (this.retries -= 1) > 0) setTimeout(() => this.threadId === thread.thread_id && this.reload().catch(this.fail), 1000);
    else if (!thread.questions) this.questions = this.questions.filter((one) => one.thread_id !== thread.thread_id);
    changed();
  },
  async newThread() {
    await this.open(null);
    this.show("conversation");
    document.getElementById("message").focus();
  },
  async make() {
    const { thread_id: id } = await post("/api/threads");
    this.draft += 1;
    this.threadId = id;
    history.pushState(null, "", this.address(id) + location.hash);
    return id;
  },
  async refreshThreads(filter = this.filter) {
    const same = filter === this.filter;
    this.filter = filter;
    const page = await get(query("/api/threads", { ...filter, limit: PAGE }));
    if (filter !== this.filter) return;
    // Keep pages that have already been loaded.
    const first = new Set(page.items.map((one) => one.thread_id));
    const others = same && page.next ? this.threads.filter((one) => !first.has(one.thread_id)) : [];
    if (!others.length) this.threadsNext = page.next;
    this.threads = [...page.items, ...others];
    const mine = page.items.find((one) => one.thread_id === this.threadId);
    if (mine) {
      const moved = this.thread && mine.updated_at !== this.thread.updated_at;
      this.thread = { ...this.thread, title: mine.title, updated_at: mine.updated_at };
      // The thread changed elsewhere: in another tab, on the command line, or over another protocol.
      if (moved && !this.following) this.reload().catch(this.fail);
    }
    changed();
  },
  async moreThreads() {
    const page = await get(query("/api/threads", { ...this.filter, limit: PAGE, after: this.threadsNext }));
    const known = new Set(this.threads.map((one) => one.thread_id));
    this.threads = [...this.threads, ...page.items.filter((one) => !known.has(one.thread_id))];
    this.threadsNext = page.next;
    changed();
  },
  async rename(title) {
    try {
      await call("PATCH", threadPath(this.threadId), { title });
      this.thread = { ...this.thread, title };
      await this.refreshThreads();
    } catch (error) { this.fail(error); }
  },
  async remove() {
    try {
      await call("DELETE", threadPath(this.threadId));
      this.threads = this.threads.filter((one) => one.thread_id !== this.threadId);
      await this.newThread();
      await this.refreshThreads();
    } catch (error) { this.fail(error); }
  },
  async fork(checkpoint = null) {
    try {
      const { thread_id: id } = await post(`${threadPath(this.threadId)}/fork`, checkpoint ? { checkpoint_id: checkpoint } : {});
      await this.open(id);
      await this.refreshThreads();
      return id;
    } catch (error) { this.fail(error); return null; }
  },
  // Return the checkpoint at which a turn ended with at most `count` messages.
  async checkpointAfter(count) {
    let after = null;
    let found = null;
    do {
      const page = await get(query(`${threadPath(this.threadId)}/history`, { limit: 100, after }));
      found = page.items.find((one) => one.messages <= count && !one.next?.length);
      after = page.next;
    } while (!found && after);
    if (!found) this.tell(T.checkpointDeleted);
    return found;
  },
  async forkAfter(count) {
    const found = await this.checkpointAfter(count);
    return found && this.fork(found.checkpoint_id);
  },
  // Show the sources of an earlier answer: the plan of its turn and the numbers of its steps.
  async showSources(index) {
    const id = this.threadId;
    const moment = await this.checkpointAfter(index + 1);
    if (!moment) return;
    const state = await get(query(`${threadPath(id)}/state`, { checkpoint_id: moment.checkpoint_id }));
    if (id !== this.threadId) return;
    const [plan] = fromThread({ plan: state.planning_execution_plan, results: state.execution_step_results, outcome: "completed" }).plans;
    this.earlier = { index, state, plan: plan && { ...plan, id: moment.checkpoint_id }, shown: true, figures: await loadFigures(state) };
    this.show("plan");
  },
  // Send a message again: the last one in this thread, an earlier one in a fork that ends before it.
  async askAgain(index) {
    const { messages } = this.turn;
    const earlier = messages.slice(index + 1).some((one) => one.role === "user");
    const files = messages[index].files ?? await this.filesWith(index, earlier);
    if (earlier && index === 0) await this.newThread();
    else if (earlier && !await this.forkAfter(index)) return;
    await this.send(messages[index].content, files.filter((one) => UPLOAD.test(one.id)));
  },
  // Return the files of a message that was sent before this page was loaded.
  async filesWith(index, earlier) {
    if (!this.uploads) return [];
    if (!earlier) return this.brought;
    const moment = await this.checkpointAfter(index + 2);
    return moment ? uploadedFiles(await get(query(`${threadPath(this.threadId)}/state`, { checkpoint_id: moment.checkpoint_id }))) : [];
  },
  // Fork before a message and put its text into the input for editing.
  async editFrom(index, text) {
    if (index === 0) await this.newThread();
    else if (!await this.forkAfter(index)) return;
    this.show("conversation");
    views.conversation.write(text);
  },

  // --- runs ---
  async send(text, files = [], plan = undefined) {
    const own = { id: `mine-${Date.now()}`, role: "user", content: text, files };
    const before = this.turn;
    this.problem = "";
    this.turn = { ...before, messages: [...before.messages, own], status: "queued" };
    this.figures = null;
    this.files = this.files.map((one) => ({ ...one, step: null }));
    this.received = null;
    views.conversation.toEnd();
    changed();
    try {
      const id = this.threadId ?? await this.make();
      const run = await post(`${threadPath(id)}/runs`, { message: text, files: files.map((file) => file.id), plan });
      this.listen(run.run_id, { keep: true });
      others.postMessage({ thread: id });
      this.refreshThreads().catch(() => {});
      return true;
    } catch (error) {
      this.turn = before;
      this.fail(error);
      return false;
    }
  },
  async stop() {
    const run = this.following ?? this.turn.run ?? this.thread?.runs?.[0]?.run_id;
    if (!run) return;
    this.stopping = Boolean(this.following);
    changed();
    try {
      await post(`/api/runs/${encodeURIComponent(run)}/stop`);
      if (!this.following) await this.reload(); // the run was waiting
    } catch (error) { this.stopping = false; this.fail(error); }
  },
  async answer(question, answer) {
    const run = await post(`/api/questions/${encodeURIComponent(question.question_id)}`, { answer });
    this.questions = this.questions.filter((one) => one.question_id !== question.question_id);
    if (question.thread_id !== this.threadId) this.refreshQuestions();
    else if (this.following) {
      // The run asked the question, but its last events have not been received.
      this.disconnect();
      await this.reload().catch(this.fail);
    } else {
      // The events of a thread that was opened just now may not have been received yet.
      this.turn = { ...this.turn, asked: { ...this.turn.asked, ...askedParameters([question]) } };
      this.listen(run.run_id, { keep: true });
    }
    others.postMessage({ thread: question.thread_id });
    changed();
  },

  // Follow a run. Without `keep`, rebuild the turn from its first event.
  listen(runId, { keep = false } = {}) {
    this.disconnect();
    this.earlier = null;
    this.questions = this.questions.filter((one) => one.thread_id !== this.threadId);
    if (!keep) this.turn = { ...this.turn, status: "running" };
    this.turn = { ...this.turn, run: this.turn.run ?? runId };
    this.following = runId;
    if (document.hidden) return changed();
    const left = new AbortController();
    this.leave = () => left.abort();
    Promise.all([import("./follow.js"), import("./reduce.js")]).then(([{ follow }, { reduce }]) => {
      if (left.signal.aborted) return;
      this.leave = follow(runId, {
        events: (list) => {
          this.received?.push(...list);
          this.turn = list.reduce(reduce, this.turn);
          changed();
        },
        state: (word) => { this.connection = word; changed(); },
        gone: () => { this.ended(); },
        end: () => { this.ended(); },
      });
    }).catch(this.fail);
    return changed();
  },
  // Restore the details of a turn from the events of its earlier runs: plan versions, attempts, waits,
  // model calls, decisions. Events of a followed run that arrive meanwhile are applied again.
  async restore(runs) {
    const received = this.received = runs.length ? [] : null;
    if (!received) return;
    const [{ follow }, { reduce }] = await Promise.all([import("./follow.js"), import("./reduce.js")]);
    let turn = empty();
    for (const run of runs) {
      await new Promise((done) => {
        follow(run, { events: (list) => { turn = list.reduce(reduce, turn); }, state() {}, gone: done, end: done });
      });
    }
    if (this.received !== received) return;
    this.received = null;
    turn = received.reduce(reduce, turn);
    if (!turn.plans.length) return;
    this.turn = { ...turn, messages: this.turn.messages, status: this.turn.status, run: this.turn.run ?? runs.at(-1) };
    changed();
  },
  disconnect() {
    this.leave?.();
    this.leave = null;
    this.following = null;
  },
  async ended() {
    const id = this.threadId;
    const run = this.following;
    this.connection = "idle";
    this.stopping = false;
    changed();
    this.refreshQuestions();
    try {
      const thread = await get(threadPath(id));
      if (id !== this.threadId || this.following !== run) return;
      this.disconnect();
      this.thread = thread;
      if (thread.messages?.length) this.turn = { ...this.turn, messages: thread.messages };
      this.loadFigures(thread);
      if (openRun(thread)) this.listen(openRun(thread), { keep: true });
      // The events of the run may have been deleted before its end was received.
      else if (RUNS.has(this.turn.status)) this.take(thread);
    } catch (error) { this.disconnect(); this.fail(error); }
    this.refreshThreads().catch(() => {});
  },
  async reload() {
    const id = this.threadId;
    const thread = await get(threadPath(id));
    if (id === this.threadId && !this.leave) this.take(thread);
  },
  async loadFigures(thread) {
    const id = this.threadId;
    if (!Object.keys(thread.results ?? {}).length || openRun(thread)) return;
    try {
      const [state, made] = await Promise.all([get(`${threadPath(id)}/state`), get(`${threadPath(id)}/files`)]);
      if (id !== this.threadId) return;
      this.contexts = state.capability_context_data;
      this.figures = await loadFigures(state);
      this.files = made.items;
      this.brought = uploadedFiles(state);
      changed();
    } catch { this.figures = null; }
  },

  // Load whether uploads are enabled.
  async loadUploads() {
    try { this.uploads = (await get("/api/files")).uploads; changed(); } catch (error) { this.fail(error); }
  },

  async loadAgent() {
    try { this.agent = await get("/api/agent"); changed(); } catch (error) { this.fail(error); }
  },

  // --- questions ---
  async refreshQuestions() {
    try {
      const page = await get("/api/questions");
      this.questions = page.items;
      if (page.items.length && !this.cards) loadCards();
      announce.tell(page.items, page.items.every((one) => one.thread_id === this.threadId) && !document.hidden);
      if (this.connection === "login" || (this.connection === "lost" && !this.leave)) this.connection = "idle";
      changed();
    } catch (error) { this.fail(error); }
  },
  showStep(key, earlier = false) {
    if (this.earlier) this.earlier.shown = earlier;
    this.show("plan");
    views.plan.select(key);
  },
  tell(problem) { this.problem = problem; changed(); },
  fail(error) {
    if (error instanceof Problem && error.status === 401) app.connection = "login";
    else if (error instanceof Problem) app.problem = error.message;
    else if (error instanceof TypeError) app.connection = "lost";
    else throw error;
    changed();
  },
};

async function loadFigures(state) {
  const { figuresOf, numbersIn } = await import("./figures.js");
  return { ...figuresOf(state.capability_context_data, state.execution_step_results), numbersIn };
}

// Question cards and forms are loaded with the first question.
let inbox = null;
async function loadCards() {
  inbox ??= await lazy(() => import("./inbox.js"));
  app.cards ??= inbox.cards(app);
  changed();
}

// --- the page ---
const announce = announcer();
const main = h("main");
const tabs = h("div", { class: "tabs", role: "tablist", "aria-label": T.partsLabel });
// Tabs that do not fit are in a menu.
const moreLabel = h("span", { class: "label" }, T.moreViews);
const moreTabs = h("div", { class: "items", role: "tablist", "aria-label": T.moreViews });
const more = h("details", { class: "menu more", hidden: true }, h("summary", null, icon("more"), moreLabel), moreTabs);
const tabbar = h("div", { class: "tabbar" }, tabs, more);
const allTabs = () => [...tabs.children, ...moreTabs.children];

function icon(name) {
  return ICONS[name] ? s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: ICONS[name] })) : null;
}

// The width of the side part, which a separator changes by pointer or by keyboard.
function splitter() {
  const key = "side";
  const set = (share) => {
    const kept = Math.max(0.25, Math.min(0.75, share));
    main.style.setProperty("--side", `${(100 * kept).toFixed(1)}%`);
    attr(node, "aria-valuenow", Math.round(100 * kept));
    try { localStorage.setItem(key, kept); } catch { /* storage may be disabled */ }
    fitTabs();
    changed();
  };
  const node = h("div", { class: "splitter", role: "separator", "aria-orientation": "vertical", "aria-label": T.resize, tabindex: 0, "aria-valuemin": 25, "aria-valuemax": 75, "aria-valuenow": 42 });
  node.addEventListener("pointerdown", (event) => { node.setPointerCapture(event.pointerId); event.preventDefault(); });
  node.addEventListener("pointermove", (event) => {
    if (!node.hasPointerCapture(event.pointerId)) return;
    const around = main.getBoundingClientRect();
    set((around.right - event.clientX) / around.width);
  });
  node.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: 0.03, ArrowRight: -0.03 }[event.key];
    if (!way) return;
    event.preventDefault();
    set(Number(node.getAttribute("aria-valuenow")) / 100 + way);
  });
  let stored = null;
  try { stored = Number(localStorage.getItem(key)); } catch { /* as above */ }
  if (stored) set(stored);
  return node;
}

function fitTabs() {
  const focused = document.activeElement;
  const all = allTabs().sort((a, b) => a.dataset.place - b.dataset.place);
  tabs.append(...all);
  placeTabs(all);
  const inbox = all.find((tab) => tab.dataset.part === "inbox");
  (moreTabs.contains(inbox) ? more.firstChild : inbox).append(badge);
  // A moved element loses the focus.
  if (focused !== document.activeElement && all.includes(focused)) focused.focus();
}

function placeTabs(all) {
  more.hidden = true;
  const shown = all.filter((tab) => !tab.hidden);
  const isTooWide = () => tabs.scrollWidth > tabs.clientWidth;
  const inBar = middle.matches ? shown : shown.filter((tab) => ICONS[tab.dataset.part]);
  if (middle.matches && !isTooWide()) return;
  more.hidden = false;
  moreTabs.append(...shown.filter((tab) => !inBar.includes(tab)));
  while (isTooWide() && inBar.length > 1) moreTabs.prepend(inBar.pop());
  const active = moreTabs.querySelector("[aria-selected=true]");
  put(moreLabel, active ? T.parts[active.dataset.part] : T.moreViews);
  attr(more, "data-active", Boolean(active));
}
const state = h("span", { class: "connection", role: "status" });
const login = loginForm();
const bar = threadBar(app);
const header = h("header", null, h("h1", null, T.name), state, bar.node,
  h("span", { class: "buttons" },
    button("◐", () => theme(true), { "aria-label": T.theme, class: "small round" }),
    h("form", { method: "post", action: urlOf("/logout") }, h("button", { type: "submit", class: "small" }, T.logout))));
const badge = h("span", { class: "count", "aria-hidden": "true", hidden: true });

// Announces open questions in the page title and, if the user allowed it, as notifications.
function announcer() {
  const announced = new Set();
  const live = h("div", { class: "unseen", role: "status", "aria-live": "polite" });
  return {
    node: live,
    tell(questions, quiet) {
      const fresh = questions.filter((one) => !announced.has(one.question_id));
      for (const one of fresh) announced.add(one.question_id);
      document.title = questions.length ? T.titleAsks(questions.length) : T.name;
      put(live, questions.length ? T.asked(questions.length) : "");
      if (!fresh.length || quiet || typeof Notification === "undefined" || Notification.permission !== "granted" || !document.hidden) return;
      const step = fresh[0].steps?.[0];
      new Notification(T.titleAsk, { body: visible(step?.description ?? T.question), tag: fresh[0].question_id });
    },
  };
}

function loginForm() {
  const input = h("input", { type: "password", testid: "token-input", "aria-label": T.login.token, autocomplete: "current-password" });
  const alert = h("span", { class: "problem", role: "alert" });
  const node = h("form", { class: "login", hidden: true }, h("p", null, T.login.expired), input,
    h("button", { type: "submit", testid: "login", class: "main" }, T.login.send), h("a", { href: urlOf("/login") }, T.login.page), alert);
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    const answer = await fetch(urlOf("/login"), { method: "POST", body: new URLSearchParams({ token: input.value }) });
    input.value = "";
    put(alert, answer.ok ? "" : T.login.refused);
    if (answer.ok) { app.connection = "idle"; poll(); changed(); }
  });
  return node;
}

// The plan view is loaded with the first thread.
function planPlaceholder() {
  const node = h("section", { class: "part side", testid: "plan", "aria-label": T.parts.plan }, h("h2", null, T.parts.plan), h("p", { class: "quiet" }, T.noPlan));
  let wanted = null;
  let isLoading = false;
  function update() {
    if (isLoading || app.threadId === null) return;
    isLoading = true;
    import("./plan.js").then(({ planView }) => {
      const view = planView(app);
      view.node.id = node.id;
      view.node.hidden = node.hidden;
      node.replaceWith(view.node);
      views.plan = view;
      if (wanted !== null) view.select(wanted);
      changed();
    });
  }
  return { node, update, select: (key) => { wanted = key; update(); } };
}

function theme(next) {
  const key = "theme";
  let word = null;
  try { word = localStorage.getItem(key); } catch { /* storage may be disabled */ }
  if (next) {
    const dark = word ? word === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    word = dark ? "light" : "dark";
    try { localStorage.setItem(key, word); } catch { /* as above */ }
  }
  if (word) document.documentElement.dataset.theme = word;
}

function arrangeParts() {
  const always = app.always();
  const current = app.current();
  if (!views[current] && later[current]) {
    const wanted = current;
    later[wanted]().then((view) => { if (!views[wanted]) { views[wanted] = view; main.append(view.node); view.node.id = `part-${wanted}`; } arrangeParts(); });
  }
  document.body.dataset.part = current;
  for (const [name, view] of Object.entries(views)) view.node.hidden = !app.shows(name);
  for (const tab of allTabs()) {
    tab.hidden = always.includes(tab.dataset.part);
    const isCurrent = tab.dataset.part === current;
    attr(tab, "aria-selected", String(isCurrent));
    attr(tab, "tabindex", isCurrent ? "0" : "-1");
  }
  fitTabs();
  changed();
}

let waiting = false;
function changed() {
  if (waiting) return;
  waiting = true;
  const work = () => { waiting = false; render(); };
  if (document.hidden) setTimeout(work, 100);
  else requestAnimationFrame(work);
}

function render() {
  const word = app.connection === "idle" && RUNS.has(app.turn.status) && !app.leave ? "idle" : app.connection;
  put(state, T.connection[word]);
  attr(state, "data-state", word);
  login.hidden = word !== "login";
  const count = app.questions.length ? String(app.questions.length) : "";
  if (badge.textContent !== count) {
    put(badge, count);
    badge.hidden = !count;
    fitTabs();
  }
  bar.update();
  for (const [name, view] of Object.entries(views)) if (app.shows(name)) view.update();
}

async function poll() {
  if (app.uploads === undefined) app.loadUploads();
  if (!app.agent) app.loadAgent();
  if (document.hidden) { await app.refreshQuestions(); return; }
  await Promise.all([app.refreshThreads().catch(app.fail), app.refreshQuestions()]);
}

function start() {
  theme(false);
  views.threads = threadsView(app);
  views.conversation = conversationView(app);
  views.plan = planPlaceholder();
  for (const [place, name] of Object.keys(T.parts).entries()) {
    const tab = button([icon(name), h("span", { class: "label" }, T.parts[name])], () => app.show(name), { role: "tab", "data-part": name, "data-place": place, "aria-controls": `part-${name}` });
    tabs.append(tab);
  }
  closesOutside(more);
  addEventListener("resize", () => { fitTabs(); changed(); });
  tabbar.addEventListener("keydown", (event) => {
    const shown = allTabs().filter((tab) => !tab.hidden && (more.open || tab.parentNode === tabs));
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!way || event.target.role !== "tab") return;
    event.preventDefault();
    const next = shown[(shown.indexOf(document.activeElement) + way + shown.length) % shown.length];
    next.focus();
    if (next.parentNode === tabs) next.click();
  });
  for (const [name, view] of Object.entries(views)) { view.node.id = `part-${name}`; main.append(view.node); }
  main.prepend(tabbar);
  main.append(splitter());
  document.body.replaceChildren(h("a", { class: "skip", href: "#message", onclick: (event) => { event.preventDefault(); app.show("conversation"); document.getElementById("message").focus(); } }, T.skip),
    header, login, main, announce.node);
  const named = location.hash.slice(1);
  if (named in T.parts) { app.tab = named; if (named !== "conversation" && named !== "threads") app.side = named; }
  wide.addEventListener("change", arrangeParts);
  middle.addEventListener("change", arrangeParts);
  arrangeParts();
  const asked = () => new URLSearchParams(location.search).get("thread");
  addEventListener("popstate", () => { if (asked() !== app.threadId) app.open(asked(), { push: false }); });
  others.addEventListener("message", ({ data }) => {
    if (data.thread === app.threadId && !app.following) app.reload().catch(app.fail);
    app.refreshQuestions();
  });
  document.addEventListener("visibilitychange", () => {
    // A hidden page closes its stream; it catches up when shown again.
    if (document.hidden) { const run = app.following; app.disconnect(); app.following = run; return; }
    if (app.threadId && app.following) app.reload().catch(app.fail);
    poll();
  });
  let ticks = 0;
  setInterval(() => { ticks += 1; if (!document.hidden || ticks % (POLL_HIDDEN / POLL) === 0) poll(); }, POLL);
  app.loadUploads();
  app.loadAgent();
  app.refreshThreads().catch(app.fail);
  if (asked() === null) { app.refreshQuestions(); changed(); } else app.open(asked(), { push: false });
}

start();
