// A chat over this server's own API: turns, replies, and what is shown of them.

import { Refused, get, isPassing, turnsOf } from "./api.js";
import { chatOf, chatOfSession, listChats, markChats, sessionsOf } from "./chats.js";
import { edit, fit, keepDraft, restoreDraft } from "./composer.js";
import { action, copy, make, showError } from "./elements.js";
import { exportChat, importChat } from "./files.js";
import { cancel, receive } from "./replies.js";
import { options, showModel } from "./settings.js";
import { MessageView, clearPaint, isAtEnd, scrollToEnd, withOffsets } from "./transcript.js";
import { count, showWindow } from "./window_bar.js";

const TURNS = 40;  // in the document at a time
const NAMES = { user: "You", assistant: "Model", system: "System" };
const $ = (id) => document.getElementById(id);

let model = null;  // {id, sinks, capacity}
let chat = null;  // what `chatOf` says; null before the first reply
let session = null;  // id of the conversation that is shown, one of the chat's
let turns = new Map();  // by id, in order of creation
let path = [];  // ids of turns, up to the last that is shown
let views = new Map();  // turn id → {element, messages}
let first = 0;  // turn of the path
let running = null;  // of `runs`: {turn, reply, id, ...} of the chat that is open
const runs = new Set();  // replies that are being generated
let lastRun = null;
let opening = 0;  // earlier answers are stale
let isQueued = false;  // the message is sent when the reply has ended

// ---- conversations ----

export async function start() {
  try {
    const { data } = await get("v1/models");
    model = { id: data[0].id, ...data[0].sinkstream };
    $("unlock").hidden = true;
    showError("");
    showModel(model);
    showStatus();
    await list();
    await openFromAddress();
  } catch (error) {
    if (error.status === 401) return;
    if (error.code === "loading") showStatus("The model is loading…");
    else showError(error.message);
    if (isPassing(error)) setTimeout(start, 1000);
  }
}

async function list() {
  await listChats(showError, (gone) => { if (gone === chat) newChat(); });
  markChats(chat, runs);
}

// The address names the conversation and the running response.
export function openFromAddress() {
  const [, id, node] = /^#(sess_[0-9a-f]{32})?(resp_[0-9a-f]{32})?$/.exec(location.hash) ?? [];
  if (!id && !node) return newChat();
  const own = [...runs].find((run) => (node ? run.id === node : run.chat === chatOfSession(id)));
  if (own) return own === running ? undefined : show(own);
  return id === session && !node ? undefined : open(id, node);
}

async function open(id, node) {
  const number = ++opening;
  leave();
  try {
    const data = id ? await turnsOfChat(id) : [];
    if (number !== opening) return;
    if (id !== session) lastRun = null;
    session = id ?? null;
    setTurns(data, node ?? data.findLast((turn) => turn.session === id)?.id);
    showError("");
    restoreDraft(chat);
    if (node && !turns.has(node)) resume(node);
  } catch (error) {
    if (number !== opening) return;
    newChat();
    showError(error.message);
  }
  markChats(chat);
}

// Shows a chat whose reply has gone on meanwhile.
function show(own) {
  opening += 1;
  leave();
  ({ turns, session, chat } = own);
  views = new Map();
  showError("");
  if (own.hasEnded) {
    replaceOwn(own);
  } else {
    running = own;
    showAddress();
    choose("running");
  }
  restoreDraft(chat);
  showBusy();
  markChats(chat);
}

export function newChat() {
  opening += 1;
  leave();
  session = chat = lastRun = null;
  if (location.hash) history.replaceState(null, "", location.pathname);
  setTurns([]);
  markChats(chat);
  restoreDraft(chat);
  $("message").focus();
}

// The turns of all versions of a chat; `id` is one of its conversations.
async function turnsOfChat(id) {
  const found = await Promise.all(
    [...new Set([...sessionsOf(chatOfSession(id)), id])].map((one) => turnsOf(one)),
  );
  return found.flat().sort((one, other) => one.created_at - other.created_at);
}

export async function refresh() {
  if (!model || running || document.hidden) return;
  try {
    await list();
    if (session === null) return;
    const number = opening;
    const data = await turnsOfChat(session);
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
  if (session !== null) chat = chatOfSession(session);
  const last = turns.has(leaf) ? leaf : [...turns.keys()].at(-1);
  choose(last);
}

const childrenOf = (id) => [...turns.values()].filter((turn) => turn.parent === id);

function choose(id) {
  for (let next = id; next; next = childrenOf(id).at(-1)?.id) id = next;
  path = [];
  for (let turn = turns.get(id); turn; turn = turns.get(turn.parent)) path.unshift(turn.id);
  const shown = turns.get(path[0])?.session;
  if (shown && shown !== session) {  // another version of the first message
    session = shown;
    showAddress();
  }
  showFrom(path.length - TURNS);
  scrollToEnd();
}

const said = (messages) => messages.map(({ role, content }) => ({ role, content }));
const historyOf = (parent) =>
  path.slice(0, parent === null ? 0 : path.indexOf(parent) + 1)
    .flatMap((id) => said(turns.get(id).messages));

function showAddress() {
  const address = `${session ?? ""}${running?.id ?? ""}`;
  history.replaceState(null, "", address ? `#${address}` : location.pathname);
}

async function send(asked, parent) {
  const isKept = turns.get(parent)?.id.startsWith("resp_");
  const body = {
    input: isKept ? asked : [...historyOf(parent), ...asked],
    previous_response_id: isKept ? parent : null,
    background: true,  // it survives reloads
    stream: true,
    stream_options: { continuous_usage_stats: true },
    ...options(),
  };
  if (parent === null && chat !== null) body.prompt_cache_key = chat;  // another version
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

async function run(asked, parent, url, how) {
  if (running) return;
  const before = turns.get(parent)?.tokens ?? 0;
  const reply = { role: "assistant", content: "", thought: "", offsets: [] };
  const turn = { id: "running", parent, tokens: before, messages: [...asked, reply] };
  const title = (turns.get(path[0])?.messages ?? asked).find(({ role }) => role === "user");
  const own = running = { turn, reply, before, turns, session, chat, title: title?.content };
  runs.add(own);
  turns.set(turn.id, turn);
  views.delete(turn.id);
  choose(turn.id);
  showError("");
  showBusy();
  $("spoken").textContent = "The model is replying.";
  try {
    await receive(own, url, how, { take, say, warn });
  } catch (error) {
    own.failure = error.message;
  }
  own.hasEnded = true;
  if (running === own) await replaceOwn(own);
  else await finishElsewhere(own);
}

// Without a store, only this page has the reply: it is kept until its chat is opened.
async function finishElsewhere(own) {
  if (own.node) runs.delete(own);
  $("spoken").textContent = `The reply in ${own.title} has ended.`;
  await list().catch(() => {});
}

const say = (own, note) => running === own && showStatus(note);
const warn = (own, text) => running === own && showError(text);

function take(own, { type, sequence_number, response, delta, sinkstream }) {
  const { reply, turn } = own;
  own.number = sequence_number;
  if (type === "response.created") {
    own.id = response.id;
    if (running === own) showAddress();
    if (own.isStopped) cancel(own);
    markChats(chat);
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
    const { session: _, ...facts } = response.sinkstream;
    for (const one of [turn, own]) Object.assign(one, facts);
  }
  if (!delta) return;
  reply[type.includes("reasoning") ? "thought" : "content"] += delta;
  own.frame ||= requestAnimationFrame(() => draw(own));
}

function draw(own) {
  own.frame = 0;
  if (running !== own) return;
  const follows = isAtEnd();
  if (own.isFresh) {
    own.isFresh = false;
    views.delete("running");
    choose("running");
  }
  views.get("running")?.messages.at(-1)?.update();
  paintAll();
  showStatus();
  if (follows) scrollToEnd();
}

// Tokens move when thoughts are left out.
async function setOffsets(id) {
  const found = id?.startsWith("resp_") && await get(`v1/sessions/${id}/turns`).catch(() => null);
  const messages = turns.get(id)?.messages;
  const given = found ? found.data[0].messages : [];
  messages?.forEach((one, at) => Object.assign(one, withOffsets(given[at] ?? {})));
}

// Replaces the running turn by the one that is kept.
async function replaceOwn(own) {
  const number = opening;
  const found = own.node && await get(`v1/sessions/${own.node}/turns`).catch(() => null);
  if (number !== opening) return;
  if (running === own) running = null;
  runs.delete(own);
  const { turn, reply, failure = "" } = own;
  turns.delete("running");
  views.delete("running");
  const at = found ? chatOf(found.session, found.session_key) : chat;
  const above = found && found.data[0].parent;
  if (found && ((chat !== null && at !== chat) || (above && !turns.has(above)))) {
    history.pushState(null, "", `#${found.session}`);
    await list();
    await open(found.session);
  } else if (found) {
    ({ session } = found);
    if (chat === null) keepDraft(null, "");
    chat = at;
    await setOffsets(turn.parent);
    keep({ ...found.data[0], session });
    Object.assign(turns.get(own.node).messages.at(-1), { thought: reply.thought });
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
  if (!own.isLost) showAddress();
  $("spoken").textContent = failure || `The reply has ended: ${reply.content.slice(0, 500)}`;
  if (failure) showError(failure);
  showStatus();
  showBusy();
  if (model) await list().catch(() => {});
  if (isQueued && !failure) $("composer").requestSubmit();
  else isQueued = false;
}

export function stop() {
  if (!running) return;
  isQueued = false;
  running.isStopped = true;
  if (running.id) cancel(running);
}

// The reply of a chat that is left goes on.
function leave() {
  keepDraft(chat);
  isQueued = false;
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
  $("export").disabled = path.length === 0;
  $("earlier").hidden = first === 0;
  $("later").hidden = first + TURNS >= path.length;
  $("empty").hidden = path.length > 0 || model === null;
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
    article.ariaLabel = `${NAMES[role] ?? role}: ${view.message.content.slice(0, 60)}`;
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
    const sendEdited = (content) =>
      send([...said(asked.slice(0, -1)), { role: "user", content }], turn.parent);
    return [action("Edit", ({ target }) =>
      edit(asked[index].content, target.closest("article"), sendEdited))];
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

function paintAll() {
  clearPaint();
  const last = turns.get(path.at(-1));
  const live = last?.live_tokens;
  const isKnown = model !== null && live !== undefined;
  $("window").hidden = !isKnown;
  $("sinks").hidden = $("grey").hidden = true;
  if (!isKnown) return;
  const evicted = last.total_evicted_tokens;
  const pinned = path.map((id) => turns.get(id).pinned_tokens).findLast(Boolean) ?? model.sinks;
  for (const { messages } of views.values()) {
    for (const view of messages) view.label.textContent = view.paint(pinned, evicted);
  }
  showWindow({ pinned, live, evicted, capacity: model.capacity });
  const isHidden = (turns.get(path[0]).messages[0].begin ?? 0) >= Math.min(pinned, live);
  $("sinks").hidden = isHidden || first > 0;
}

function showStatus(note = "") {
  const facts = [model?.id ?? ""];
  const run = running ?? lastRun;
  if (run?.rate) facts.push(`${run.rate.toFixed(run.rate < 10 ? 1 : 0)} tokens/s`);
  const last = turns.get(path.at(-1));
  if (last?.tokens) facts.push(`${count(last.tokens)} tokens`);
  $("status").title = run?.node ? `state ${run.state}` : "";
  if (isQueued) facts.push("your message is sent after this reply");
  if (note || (running && !running.from)) facts.push(note || "waiting for the model");
  $("status").textContent = facts.filter(Boolean).join(" · ");
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

// Sends the message, or lets it wait for the end of the running reply.
export function submit() {
  const text = $("message").value;
  if (!text.trim() || !model) return;
  isQueued = running !== null;
  if (isQueued) return showStatus();
  $("message").value = "";
  keepDraft(chat);
  fit();
  const system = $("system").value.trim();
  const before = path.length === 0 && system ? [{ role: "system", content: system }] : [];
  send([...before, { role: "user", content: text }], path.at(-1) ?? null);
}

export const exportShown = () => exportChat($("title").textContent, [...turns.values()]);

export function showImported(text) {
  const found = importChat(text);
  newChat();
  setTurns(found);
}

export const draft = () => keepDraft(chat);
export const pageBy = (parts) => showFrom(first + parts * TURNS / 2);
