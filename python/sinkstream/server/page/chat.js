// A chat over this server's own API. The page keeps what it shows, and the key.

import { action, copy, make } from "./elements.js";
import { MessageView, clearPaint, withOffsets } from "./transcript.js";

const TURNS = 40;  // in the document at a time
const LISTED = 200;  // conversations
const NAMES = { user: "You", assistant: "Model", system: "System" };
const $ = (id) => document.getElementById(id);
const on = (id, event, act) => $(id).addEventListener(event, act);

let key = "";
let model = null;  // {id, sinks, capacity}
let session = null;  // its id; null before the first reply
let turns = new Map();  // by id, in order of creation
let path = [];  // ids of turns, up to the last that is shown
let views = new Map();  // turn id → {element, messages}
let first = 0;  // turn of the path
let running = null;  // {turn, reply, id, ...} while a reply is generated
let lastRun = null;
let opening = 0;  // earlier answers are stale

// ---- the API ----

class Refused extends Error {
  constructor(status, error) {
    super(error.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = error.code;
  }
}

async function request(url, options = {}) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (options.body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(url, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch {
    throw new Error("The server cannot be reached.");
  }
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  if (response.status === 401) askForKey();
  throw new Refused(response.status, error);
}

const get = async (url) => (await request(url)).json();

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith(": ")) yield { comment: part.slice(2) };
      else yield { data: part.slice(part.indexOf("data: ") + 6) };
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
  const { data, has_more: more } = await get(`v1/sessions?limit=${LISTED}`);
  const list = data.map((one) => {
    const item = make("li");
    const link = make("a", one.title?.trim() || "Untitled");
    link.href = `#${one.id}`;
    item.append(link, deletion(one.id, link.textContent));
    return item;
  });
  $("conversations").replaceChildren(...list);
  $("unlisted").textContent = more ? "and older ones" : "No kept conversations.";
  $("unlisted").hidden = list.length > 0 && !more;
  markCurrent();
}

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

// The address names the conversation and the running response.
function openFromAddress() {
  const [, id, node] = /^#(sess_[0-9a-f]{32})?(resp_[0-9a-f]{32})?$/.exec(location.hash) ?? [];
  if (!id && !node) return newChat();
  return id === session && !node ? undefined : open(id, node);
}

async function open(id, node) {
  const number = ++opening;
  leave();
  try {
    const data = id ? await turnsOf(id) : [];
    if (number !== opening) return;
    if (id !== session) lastRun = null;
    session = id ?? null;
    setTurns(data, node);
    showError("");
    if (node && !turns.has(node)) resume(node);
  } catch (error) {
    if (number !== opening) return;
    newChat();
    showError(error.message);
  }
  markCurrent();
}

function newChat() {
  opening += 1;
  leave();
  session = lastRun = null;
  if (location.hash) history.replaceState(null, "", location.pathname);
  setTurns([]);
  markCurrent();
  $("message").focus();
}

async function turnsOf(id, after = "") {
  const { data, has_more: more, last_id: last } = await get(`v1/sessions/${id}/turns${after}`);
  return more ? [...data, ...await turnsOf(id, `?after=${last}`)] : data;
}

async function refresh() {
  if (!model || running || document.hidden) return;
  try {
    await listConversations();
    if (session === null) return;
    const number = opening;
    const data = await turnsOf(session);
    if (number === opening && !running && data.length !== turns.size) setTurns(data, path.at(-1));
  } catch (error) {
    if (error.status === 404) newChat();
    else showError(error.message);
  }
}

// ---- turns ----

function keep(turn) {
  for (const { id } of childrenOf(turn.parent)) views.delete(id);  // they count their versions
  turns.set(turn.id, { ...turn, messages: turn.messages.map(withOffsets) });
}

function setTurns(found, leaf) {
  turns = new Map();
  views = new Map();
  found.forEach(keep);
  const last = turns.has(leaf) ? leaf : [...turns.keys()].at(-1);
  choose(last);
}

const childrenOf = (id) => [...turns.values()].filter((turn) => turn.parent === id);

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
  const isKept = turns.get(parent)?.id.startsWith("resp_");
  const body = {
    input: isKept ? asked : [...historyOf(parent), ...asked],
    previous_response_id: isKept ? parent : null,
    background: true,  // it survives reloads
    stream: true,
    stream_options: { continuous_usage_stats: true },
  };
  for (const name of ["temperature", "top_p", "max_output_tokens", "seed"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  await run(asked, parent, "v1/responses", { method: "POST", body: JSON.stringify(body) });
}

async function resume(node) {
  const number = opening;
  try {
    const { previous_response_id: parent } = await get(`v1/responses/${node}`);
    const { data } = await get(`v1/responses/${node}/input_items?limit=100`);
    const asked = data.reverse().map(({ role, content }) => ({ role, content: content[0].text }));
    if (number === opening) await run(asked, parent, `v1/responses/${node}?stream=true`);
  } catch (error) {
    if (error.status !== 404) showError(error.message);
  }
}

async function run(asked, parent, url, options) {
  if (running) return;
  const before = turns.get(parent)?.tokens ?? 0;
  const reply = { role: "assistant", content: "", thought: "", offsets: [] };
  const turn = { id: "running", parent, tokens: before, messages: [...asked, reply] };
  const own = running = { turn, reply, before };
  turns.set(turn.id, turn);
  views.delete(turn.id);
  choose(turn.id);
  showError("");
  showBusy();
  $("spoken").textContent = "The model is replying.";
  const number = opening;
  let failure = "";
  try {
    await receive(own, url, options);
  } catch (error) {
    failure = error.message;
  }
  if (running === own) running = null;
  if (number === opening) await replaceOwn(own, failure);
  showBusy();
}

async function receive(own, url, options) {
  for (let tries = 0; ; tries += 1) {
    try {
      const response = await request(url, options);
      own.turn.pinned_tokens ||= Number(response.headers.get("x-sinkstream-pinned"));
      showError(response.headers.get("x-sinkstream-warning") ?? "");
      for await (const { data, comment } of eventsOf(response)) {
        if (data === "[DONE]") return;
        if (data) take(own, JSON.parse(data));
        else showStatus(comment.startsWith("prefill") ? `Reading, ${comment}` : comment);
      }
    } catch (error) {
      if (error instanceof Refused) throw error;
    }
    if (!own.id || tries === 5) throw new Error("The connection was lost.");
    await new Promise((resolve) => setTimeout(resolve, 1000));
    url = `v1/responses/${own.id}?stream=true&starting_after=${own.number}`;
    options = {};
  }
}

function take(own, { type, sequence_number, response, delta, sinkstream }) {
  const { reply, turn } = own;
  own.number = sequence_number;
  if (type === "response.created") {
    own.id = response.id;
    if (running === own) history.replaceState(null, "", `#${session ?? ""}${own.id}`);
    if (own.isStopped) cancel(own);
  }
  if (response?.error) throw new Refused(500, response.error);
  const tokens = sinkstream ?? response?.usage;
  if (tokens) {
    const { input_tokens: read, output_tokens: generated } = tokens;
    if (!reply.begin) setOffsets(turn.parent);
    reply.begin ??= read;
    reply.end = turn.tokens = read + generated;
    for (const one of turn.messages.slice(0, -1)) {
      one.begin ??= Math.min(own.before, read);
      one.end ??= read;
    }
    while (reply.offsets.length < generated) reply.offsets.push(reply.content.length);
    turn.live_tokens = Math.min(reply.end - 1, model.capacity);
    turn.total_evicted_tokens = reply.end - 1 - turn.live_tokens;
    const now = performance.now();
    own.from ??= { now, generated };
    const seconds = (now - own.from.now) / 1000;
    if (generated > own.from.generated) own.rate = (generated - own.from.generated) / seconds;
    own.generated = generated;
  }
  if (response?.sinkstream) {  // it has ended
    for (const one of [turn, own]) Object.assign(one, response.sinkstream);
  }
  if (!delta) return;
  reply[type.includes("reasoning") ? "thought" : "content"] += delta;
  own.frame ||= requestAnimationFrame(() => draw(own));
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

// Tokens move when thoughts are left out.
async function setOffsets(id) {
  const found = id && await get(`v1/sessions/${id}/turns`).catch(() => null);
  const messages = turns.get(id)?.messages;
  messages?.forEach((one, at) => Object.assign(one, withOffsets(found?.data[0].messages[at] ?? {})));
}

// Replaces the running turn by the one that is kept.
async function replaceOwn(own, failure) {
  const kept = own.node && await get(`v1/sessions/${own.node}/turns`).catch(() => null);
  const { turn, reply } = own;
  turns.delete("running");
  views.delete("running");
  if (kept && kept.session !== session && session !== null) {
    history.pushState(null, "", `#${kept.session}`);
    await open(kept.session);
  } else if (kept) {
    session = kept.session;
    await setOffsets(turn.parent);
    keep(kept.data[0]);
    turns.get(own.node).messages.at(-1).thought = reply.thought;
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
  history.replaceState(null, "", session ? `#${session}` : location.pathname);
  $("spoken").textContent = failure || `The reply has ended: ${reply.content.slice(0, 500)}`;
  if (failure) showError(failure);
  showStatus();
  if (model) await listConversations().catch(() => {});
}

function stop() {
  if (!running) return;
  running.isStopped = true;
  if (running.id) cancel(running);
}

function cancel({ id }) {
  request(`v1/responses/${id}/cancel`, { method: "POST", body: "{}" }).catch(() => {});
}

function leave() {
  stop();
  running = null;
  showBusy();
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
  const reply = turn.messages[index].content;
  const copied = action("Copy", () => copy(reply, copied), "says");
  copied.ariaLabel = "Copy reply";
  const buttons = [copied, action("Regenerate", () => send(said(asked), turn.parent))];
  const versions = childrenOf(turn.parent).map(({ id }) => id).filter((id) => id !== "running");
  const shown = versions.indexOf(turn.id);
  if (versions.length > 1) {
    const step = (label, name, by) => {
      const button = action(label, () => choose(versions[shown + by]));
      button.ariaLabel = name;
      button.disabled = versions[shown + by] === undefined;
      return button;
    };
    buttons.push(
      step("‹", "Previous version", -1),
      make("span", `${shown + 1} of ${versions.length}`),
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
  field.ariaLabel = "Edited message";
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
  const pinned = path.map((id) => turns.get(id).pinned_tokens).findLast(Boolean) ?? model.sinks;
  for (const { messages } of views.values()) {
    for (const view of messages) view.label.textContent = view.paint(pinned, evicted);
  }
  const sinks = Math.min(pinned, live);
  const widths = { sinks, evicted, live: live - sinks, free: model.capacity - live };
  for (const [name, tokens] of Object.entries(widths)) {
    const part = $("bar").querySelector(`.${name}`);
    part.style.flexGrow = tokens;
    part.hidden = tokens === 0;
  }
  const words = [
    ["sinks", `${count(sinks)} pinned`],
    ["evicted", `${count(evicted)} evicted`],
    ["live", `${count(live - sinks)} in the window of ${count(model.capacity - pinned)}`],
  ];
  $("legend").replaceChildren(...words.map(([name, text]) => make("span", text, name)));
  const isHidden = (turns.get(path[0]).messages[0].begin ?? 0) >= sinks;
  $("sinks").textContent = `${count(sinks)} pinned, always seen`
    + (isHidden ? ": the beginning of the chat template" : "");
  $("bar").ariaLabel = words.map(([, text]) => text).join(", ");
}

const count = (number) => number.toLocaleString("en");

function showStatus(note = "") {
  const facts = [model?.id ?? ""];
  const run = running ?? lastRun;
  if (run?.rate) facts.push(`${run.rate.toFixed(run.rate < 10 ? 1 : 0)} tokens/s`);
  const last = turns.get(path.at(-1));
  if (last?.tokens) facts.push(`${count(last.tokens)} tokens`);
  if (run?.node) facts.push(`state ${run.state}`);
  if (note || (running && !running.from)) facts.push(note || "waiting for the model");
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
  button.ariaExpanded = String(isShown);
}

on("composer", "submit", (event) => {
  event.preventDefault();
  const text = $("message").value;
  if (!text.trim() || running) return;
  $("message").value = "";
  fit();
  const system = $("system").value.trim();
  const before = path.length === 0 && system ? [{ role: "system", content: system }] : [];
  send([...before, { role: "user", content: text }], path.at(-1) ?? null);
});
on("message", "input", fit);
on("message", "keydown", (event) => sendOnEnter(event, $("composer")));
on("settings", "submit", (event) => event.preventDefault());
on("unlock", "submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  $("key").value = "";
  start();
});
on("stop", "click", stop);
on("new-chat", "click", newChat);
on("sidebar", "click", (event) => {
  if (event.target.closest("a, #new-chat") && innerWidth < 800) {
    toggle($("toggle-list"), $("sidebar"), false);
  }
});
on("toggle-list", "click", () => toggle($("toggle-list"), $("sidebar")));
on("toggle-settings", "click", () => toggle($("toggle-settings"), $("settings")));
on("earlier", "click", () => showFrom(first - TURNS / 2));
on("later", "click", () => showFrom(first + TURNS / 2));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
document.addEventListener("visibilitychange", refresh);
addEventListener("hashchange", openFromAddress);

toggle($("toggle-list"), $("sidebar"), innerWidth >= 1000);
$("message").focus();
start();
