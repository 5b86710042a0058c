// A chat over this server's own API. Conversations live on the server; the page keeps only what it
// shows, and the key that was typed.

import { MessageView, action, clearPaint, make, withPlaces } from "./transcript.js";

const TURNS = 40;  // in the document at a time
const LISTED = 200;  // conversations
const NAMES = { user: "You", assistant: "Model", system: "System" };
const $ = (id) => document.getElementById(id);

let key = "";
let model = null;  // {id, sinks, window}
let session = null;  // the conversation's id; null before the first reply
let sessionKey = newKey();  // its name for the server, should two be equal
let turns = new Map();  // by id, in the order of their creation
let path = [];  // ids from the first turn to the last one that is shown
let views = new Map();  // by turn id: {element, messages}
let first = 0;  // turn of the path that is shown
let running = null;  // {controller, turn, ...} while a reply is generated
let lastRun = null;
let opening = 0;  // number of the last one; the answers of earlier ones are stale

// ---- the API ----

class Refused extends Error {
  constructor(status, error) {
    super(error.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = error.code;
  }
}

async function request(place, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  if (options.body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(place, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached.");
  }
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  if (response.status === 401) askForKey();
  throw new Refused(response.status, error);
}

function newKey() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (one) => one.toString(16)).join("");
}

const get = async (place) => (await request(place)).json();

// Yields the events of a stream: {data} or {comment}.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ")) yield { data: part.slice(6) };
      else if (part.startsWith(": ")) yield { comment: part.slice(2) };
    }
  }
}

// ---- conversations ----

async function start() {
  try {
    const { data } = await get("v1/models");
    model = { id: data[0].id, ...data[0].sinkstream };
    $("unlock").hidden = true;
    showError("");
    showStatus();
    await Promise.all([listConversations(), openFromAddress()]);
  } catch (error) {
    if (error.code === "loading") {
      showStatus("The model is loading…");
      setTimeout(start, 1000);
    } else if (error.status !== 401) {
      showError(error.message);
    }
  }
}

async function listConversations() {
  const { data } = await get("v1/sessions");
  const list = data.slice(0, LISTED).map((one) => {
    const item = make("li");
    const link = make("a", one.title?.trim() || "Untitled");
    link.href = `#${one.id}`;
    item.append(link, deletion(one.id, link.textContent));
    return item;
  });
  $("conversations").replaceChildren(...list);
  const more = data.length - list.length;
  $("unlisted").textContent = more ? `and ${count(more)} older ones` : "No kept conversations.";
  $("unlisted").hidden = list.length > 0 && !more;
  markCurrent();
}

// Returns a button that asks a second time.
function deletion(id, title) {
  const button = action("Delete", () => {
    if (button.textContent === "Sure?") deleteConversation(id);
    else button.textContent = "Sure?";
  });
  button.title = `Delete ${title}`;
  button.addEventListener("blur", () => { button.textContent = "Delete"; });
  return button;
}

async function deleteConversation(id) {
  try {
    await request(`v1/sessions/${id}`, { method: "DELETE" });
    if (id === session) newChat();
    await listConversations();
  } catch (error) {
    showError(error.message);
  }
}

function openFromAddress() {
  const id = /^#(sess_[0-9a-f]{32})$/.exec(location.hash)?.[1];
  if (!id) return newChat();
  return id === session ? undefined : open(id);
}

async function open(id) {
  const number = ++opening;
  stop();
  try {
    const found = await get(`v1/sessions/${id}/turns`);
    if (number !== opening) return;
    if (id !== session) lastRun = null;
    session = id;
    sessionKey = found.session_key ?? sessionKey;
    setTurns(found.data);
    showError("");
  } catch (error) {
    if (number !== opening) return;
    newChat();
    showError(error.message);
  }
  markCurrent();
}

function newChat() {
  opening += 1;
  stop();
  session = lastRun = null;
  sessionKey = newKey();
  if (location.hash) history.replaceState(null, "", location.pathname);
  setTurns([]);
  markCurrent();
  $("message").focus();
}

// Looks for what another tab has added.
async function refresh() {
  if (!model || running || document.hidden) return;
  try {
    await listConversations();
    if (session === null) return;
    const number = opening;
    const { data } = await get(`v1/sessions/${session}/turns`);
    if (number === opening && !running && data.length !== turns.size) setTurns(data, path.at(-1));
  } catch (error) {
    if (error.status === 404) newChat();
    else showError(error.message);
  }
}

// ---- turns ----

function keep(turn) {
  for (const { id } of childrenOf(turn.parent)) views.delete(id);  // they count their versions
  turns.set(turn.id, { ...turn, messages: turn.messages.map(withPlaces) });
}

function setTurns(found, leaf) {
  turns = new Map();
  views = new Map();
  found.forEach(keep);
  const last = turns.has(leaf) ? leaf : [...turns.keys()].at(-1);
  choose(last);
}

const childrenOf = (id) => [...turns.values()].filter((turn) => turn.parent === id);

// Shows the branch through a turn, to its latest end.
function choose(id) {
  for (let next = id; next; next = childrenOf(id).at(-1)?.id) id = next;
  path = [];
  for (let turn = turns.get(id); turn; turn = turns.get(turn.parent)) path.unshift(turn.id);
  showFrom(path.length - TURNS);
  scrollToEnd();
}

const said = (messages) => messages.map(({ role, content }) => ({ role, content }));
const historyOf = (parent) =>
  path.slice(0, parent === null ? 0 : path.indexOf(parent) + 1)
    .flatMap((id) => said(turns.get(id).messages));

async function send(asked, parent) {
  if (running) return;
  const controller = new AbortController();
  const before = parent === null ? 0 : turns.get(parent).tokens;
  const reply = { role: "assistant", content: "", offsets: [] };
  const turn = { id: "running", parent, tokens: before, messages: [...asked, reply] };
  const history = [...historyOf(parent), ...asked];
  running = { controller, turn, reply, before };
  turns.set(turn.id, turn);
  views.delete(turn.id);
  choose(turn.id);
  showError("");
  showBusy();
  $("spoken").textContent = "The model is replying.";
  const number = opening;
  let failure = "";
  try {
    await receive(history);
  } catch (error) {
    failure = error.name === "AbortError" ? "" : error.message;
  }
  const ended = running;
  running = null;
  if (number === opening) await settle(ended, failure);
  showBusy();
}

async function receive(history) {
  const own = running;
  const response = await request("v1/chat/completions", {
    method: "POST",
    signal: own.controller.signal,
    headers: { "x-session-id": sessionKey },
    body: JSON.stringify({
      messages: history,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...sampling(),
    }),
  });
  own.node = response.headers.get("x-sinkstream-node");
  own.session = response.headers.get("x-sinkstream-session");
  own.state = response.headers.get("x-sinkstream-state");
  let isDone = false;
  for await (const { data, comment } of eventsOf(response)) {
    if (comment) showStatus(comment.startsWith("prefill") ? `Reading, ${comment}` : comment);
    else if (data === "[DONE]") isDone = true;
    else take(own, JSON.parse(data));
  }
  if (!isDone) throw new Error("The connection was lost before the reply's end.");
}

function sampling() {
  const chosen = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    if ($(name).value !== "") chosen[name] = Number($(name).value);
  }
  return chosen;
}

function take(own, { error, choices, usage, sinkstream }) {
  if (error) throw new Refused(500, error);
  const { reply, turn } = own;
  const text = choices[0]?.delta?.content ?? "";
  if (sinkstream) own.node = sinkstream.node ?? "";
  if (usage) {
    const { prompt_tokens: read, completion_tokens: generated } = usage;
    reply.begin ??= read;
    reply.end = read + generated;
    for (const one of turn.messages.slice(0, -1)) {
      one.begin ??= own.before;
      one.end ??= read;
    }
    while (reply.offsets.length < generated) reply.offsets.push(reply.content.length);
    Object.assign(turn, usage.sinkstream, { tokens: reply.end });
    const now = performance.now();
    own.from ??= { now, generated };
    const seconds = (now - own.from.now) / 1000;
    if (generated > own.from.generated) own.rate = (generated - own.from.generated) / seconds;
    own.generated = generated;
  }
  reply.content += text;
  if (text && !own.frame) own.frame = requestAnimationFrame(() => draw(own));
}

function draw(own) {
  own.frame = 0;
  if (running !== own) return;
  const follows = isAtEnd();
  views.get("running")?.messages.at(-1)?.update();
  paintAll();
  showStatus();
  if (follows) scrollToEnd();
}

// Replaces the turn that was shown while it was running by the one that the server keeps.
async function settle(own, failure) {
  const kept = own.node ? await keptTurn(own.node) : null;
  const { turn, reply } = own;
  turns.delete("running");
  views.delete("running");
  if (kept && kept.session !== session && session !== null) {
    history.pushState(null, "", `#${kept.session}`);
    await open(kept.session);
  } else if (kept) {
    if (session === null) history.replaceState(null, "", `#${kept.session}`);
    session = kept.session;
    keep(kept.data[0]);
    choose(own.node);
  } else if (reply.content) {
    turn.id = own.node || `local ${turns.size}`;
    turns.set(turn.id, turn);
    choose(turn.id);
  } else {
    choose(turn.parent);
    $("message").value ||= turn.messages.at(-2).content;
    fit();
  }
  lastRun = own;
  $("spoken").textContent = failure || `The reply has ended: ${reply.content.slice(0, 500)}`;
  if (failure) showError(failure);
  showStatus();
  if (model) await listConversations().catch(() => {});
}

async function keptTurn(node) {
  for (let wait = 50; wait < 1000; wait *= 2) {
    try {
      return await get(`v1/sessions/${node}/turns`);
    } catch (error) {
      if (error.status !== 404) return null;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
  return null;
}

function stop() {
  running?.controller.abort();
}

// ---- the document ----

function showFrom(from) {
  first = Math.min(Math.max(0, from), Math.max(0, path.length - TURNS));
  const shown = path.slice(first, first + TURNS);
  for (const id of views.keys()) if (!shown.includes(id)) views.delete(id);
  const elements = shown.map((id) => {
    if (!views.has(id)) views.set(id, viewOf(turns.get(id)));
    return views.get(id).element;
  });
  $("turns").replaceChildren(...elements);
  $("earlier").hidden = first === 0;
  $("later").hidden = first + TURNS >= path.length;
  $("empty").hidden = path.length > 0;
  const head = path.length ? turns.get(path[0]).messages : [];
  const system = head[0]?.role === "system" ? head[0].content : "";
  if (path.length) $("system").value = system;
  $("system").readOnly = path.length > 0;
  const title = head.find(({ role }) => role === "user")?.content.trim().slice(0, 80);
  $("title").textContent = title || "New chat";
  document.title = title ? `${title} · sinkstream` : "sinkstream";
  paintAll();
  showStatus();
}

function viewOf(turn) {
  const element = make("li");
  const messages = turn.messages.map((message) => new MessageView(message));
  messages.forEach((view, index) => {
    const { role } = view.message;
    const article = make("article", "", role);
    const head = make("header");
    view.label = make("span", "", "mark");
    head.append(make("b", NAMES[role] ?? role), view.label);
    if (turn.id !== "running") head.append(...actionsOf(turn, index));
    article.append(head, view.element);
    element.append(article);
  });
  return { element, messages };
}


function actionsOf(turn, index) {
  const isReply = index === turn.messages.length - 1;
  const asked = turn.messages.slice(0, -1);
  if (!isReply) {
    if (index < asked.length - 1 || asked[index].role !== "user") return [];
    return [action("Edit", (event) => edit(turn, event.target.closest("article")))];
  }
  const buttons = [action("Regenerate", () => send(said(asked), turn.parent))];
  const versions = childrenOf(turn.parent).map(({ id }) => id).filter((id) => id !== "running");
  const place = versions.indexOf(turn.id);
  if (versions.length > 1) {
    const step = (label, name, by) => {
      const button = action(label, () => choose(versions[place + by]));
      button.setAttribute("aria-label", name);
      button.disabled = versions[place + by] === undefined;
      return button;
    };
    buttons.push(
      step("‹", "Previous version", -1),
      make("span", `${place + 1} of ${versions.length}`),
      step("›", "Next version", 1),
    );
  }
  return buttons;
}

function edit(turn, article) {
  const asked = said(turn.messages.slice(0, -1));
  const form = make("form", "", "edit");
  const field = make("textarea");
  field.value = asked.at(-1).content;
  field.setAttribute("aria-label", "Edited message");
  const replaced = [...article.children];
  const close = () => form.replaceWith(...replaced);
  form.append(field, make("button", "Send"), action("Cancel", close));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    close();
    asked.at(-1).content = field.value;
    send(asked, turn.parent);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    else sendOnEnter(event, form);
  });
  article.replaceChildren(form);
  field.focus();
}

function paintAll() {
  clearPaint();
  const last = turns.get(path.at(-1));
  const live = last?.live_tokens;
  const isKnown = model !== null && live !== undefined;
  $("window").hidden = !isKnown;
  $("sinks").hidden = !isKnown || first > 0;
  if (!isKnown) return;
  const evicted = last.total_evicted_tokens;
  for (const { messages } of views.values()) {
    for (const view of messages) view.label.textContent = view.paint(model.sinks, evicted);
  }
  const sinks = Math.min(model.sinks, live);
  const free = model.sinks + model.window - live;
  const widths = { sinks, evicted, live: live - sinks, free };
  for (const [name, tokens] of Object.entries(widths)) {
    const part = $("bar").querySelector(`.${name}`);
    part.style.flexGrow = tokens;
    part.hidden = tokens === 0;
  }
  const words = [
    ["sinks", `${count(sinks)} sinks`],
    ["evicted", `${count(evicted)} evicted`],
    ["live", `${count(live - sinks)} in the window of ${count(model.window)}`],
  ];
  $("legend").replaceChildren(...words.map(([name, text]) => make("span", text, name)));
  const isHidden = (turns.get(path[0]).messages[0].begin ?? 0) >= model.sinks;
  $("sinks").textContent = `${count(sinks)} sinks, always seen`
    + (isHidden ? ": the beginning of the chat template" : "");
  $("bar").setAttribute("aria-label", words.map(([, text]) => text).join(", "));
}

const count = (number) => number.toLocaleString("en");

function showStatus(note = "") {
  const facts = [model?.id ?? ""];
  const run = running ?? lastRun;
  if (run?.rate) facts.push(`${run.rate.toFixed(run.rate < 10 ? 1 : 0)} tokens/s`);
  const last = turns.get(path.at(-1));
  if (last?.tokens) facts.push(`${count(last.tokens)} tokens`);
  if (run?.state && run.session) facts.push(`state ${run.state}`);
  if (note || (running && !running.reply.content)) facts.push(note || "waiting for the model");
  $("status").textContent = facts.filter(Boolean).join(" · ");
}

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

function showBusy() {
  const isBusy = running !== null;
  document.body.classList.toggle("busy", isBusy);
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  const { activeElement, body } = document;
  if (isBusy && activeElement !== $("message")) $("stop").focus();
  if (!isBusy && activeElement === body && matchMedia("(hover)").matches) $("message").focus();
}

function askForKey() {
  $("unlock").hidden = false;
  showError(key ? "The server does not accept this key." : "");
  $("key").focus();
}

function markCurrent() {
  for (const link of $("conversations").querySelectorAll("a")) {
    link.ariaCurrent = link.hash === `#${session}` ? "true" : null;
  }
}

function isAtEnd() {
  const { scrollHeight, scrollTop, clientHeight } = $("transcript");
  return scrollHeight - scrollTop - clientHeight < 80;
}
const scrollToEnd = () => $("transcript").scrollTo(0, 1e9);

function fit() {
  const field = $("message");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 200)}px`;
}

function sendOnEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
}

function toggle(button, element, isShown = element.hidden) {
  element.hidden = !isShown;
  button.setAttribute("aria-expanded", String(isShown));
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value;
  if (!text.trim() || running) return;
  $("message").value = "";
  fit();
  const system = $("system").value.trim();
  const before = path.length === 0 && system ? [{ role: "system", content: system }] : [];
  send([...before, { role: "user", content: text }], path.at(-1) ?? null);
});
$("message").addEventListener("input", fit);
$("message").addEventListener("keydown", (event) => sendOnEnter(event, $("composer")));
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  $("key").value = "";
  start();
});
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", newChat);
$("sidebar").addEventListener("click", (event) => {
  if (event.target.closest("a, #new-chat") && innerWidth < 800) {
    toggle($("toggle-list"), $("sidebar"), false);
  }
});
$("toggle-list").addEventListener("click", () => toggle($("toggle-list"), $("sidebar")));
$("toggle-settings").addEventListener("click", () => toggle($("toggle-settings"), $("settings")));
$("earlier").addEventListener("click", () => showFrom(first - TURNS / 2));
$("later").addEventListener("click", () => showFrom(first + TURNS / 2));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
document.addEventListener("visibilitychange", refresh);
addEventListener("hashchange", openFromAddress);

toggle($("toggle-list"), $("sidebar"), innerWidth >= 1000);
$("message").focus();
start();
