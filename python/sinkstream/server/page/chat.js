// A chat over this server's own API: turns, replies, and what is shown of them.

import {
  Refused, cancel, countTokens, get, isPassing, receive, replyAfter, turnsOf,
} from "./api.js";
import {
  chatOf, chatOfSession, exportChat, importChat, listChats, markChats, renameChat, said, sessionsOf,
  titleOf,
} from "./chats.js";
import { keepDraft, restoreDraft } from "./composer.js";
import { $, attempt, showError } from "./elements.js";
import { options, showModel, showSystem } from "./settings.js";
import {
  bringTo, clearPaint, count, isAtEnd, scrollToEnd, showWindow, viewOf, withOffsets,
} from "./transcript.js";
import { closeXray, collect, isXrayOn, startXray } from "./xray.js";

const TURNS = 40;  // in the document at a time

let model = null;  // {id, sinks, capacity}
let chat = null;  // what `chatOf` says; null before the first reply
let session = null;  // id of the conversation that is shown, one of the chat's
let turns = new Map();  // by id, in order of creation
const extras = new Map();  // turn id → what only this page knows of a reply: its thought and odds
let path = [];  // ids of turns, up to the last that is shown
const chosen = new Map();  // turn id → the one after it that was shown last
let views = new Map();  // turn id → {element, messages}
let first = 0;  // turn of the path
let running = null;  // of `runs`: {turn, reply, id, ...} of the chat that is open
const runs = new Set();  // replies that are being generated
let lastRun = null;
let opening = 0;  // earlier answers are stale
let moment = null;  // a token: what the model saw before it is shown, not what it sees now
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
  await listChats((gone) => { if (gone === chat) newChat(); });
  markChats(chat, runs);
  showHead();
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
  const messages = turn.messages.map(withOffsets);
  messages.push({ ...messages.pop(), ...extras.get(turn.id) });
  turns.set(turn.id, { ...turn, messages });
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

function choose(id, follows = true) {
  const after = (one) =>
    childrenOf(one).find((turn) => turn.id === chosen.get(one)) ?? childrenOf(one).at(-1);
  for (let next = id; next; next = after(next)?.id) id = next;
  path = [];
  for (let turn = turns.get(id); turn; turn = turns.get(turn.parent)) {
    path.unshift(turn.id);
    chosen.set(turn.parent, turn.id);
  }
  const shown = turns.get(path[0])?.session;
  if (shown && shown !== session) {  // another version of the first message
    session = shown;
    showAddress();
  }
  showFrom(path.length - TURNS);
  if (follows) scrollToEnd();
}

// Shows another version of a turn; the arrow that was used stays where it is.
function turnTo(id, arrow, isReply) {
  const { top } = arrow.getBoundingClientRect();
  choose(id);
  if (!views.has(id)) showFrom(path.indexOf(id));
  const find = (label) => [...views.get(id).element.querySelectorAll(`[aria-label${label}]:enabled`)]
    .at(isReply ? -1 : 0);
  const next = find(`="${arrow.ariaLabel}"`) ?? find("$=version");
  bringTo(next, top);
  next.focus({ preventScroll: true });
}

const historyOf = (parent) =>
  path.slice(0, parent === null ? 0 : path.indexOf(parent) + 1)
    .flatMap((id) => said(turns.get(id).messages));

function showAddress() {
  const address = `${session ?? ""}${running?.id ?? ""}`;
  history.replaceState(null, "", address ? `#${address}` : location.pathname);
}

// `given`: a message whose text the reply goes on from.
async function send(asked, parent, given) {
  const isKept = turns.get(parent)?.id.startsWith("resp_");
  const input = said(given ? [...asked, given] : asked);
  const body = {
    input: isKept ? input : [...historyOf(parent), ...input],
    continue_final_message: Boolean(given),
    previous_response_id: isKept ? parent : null,
    background: true,  // it survives reloads
    stream: true,
    stream_options: { continuous_usage_stats: true },
    ...options(),
  };
  if (parent === null && chat !== null) body.prompt_cache_key = chat;  // another version
  await run(asked, parent, "v1/responses", { method: "POST", body: JSON.stringify(body) }, given);
}

async function resume(node) {
  const number = opening;
  try {
    const { previous_response_id: parent } = await get(`v1/responses/${node}`);
    const { data } = await get(`v1/responses/${node}/input_items?limit=100`);
    const asked = data.reverse().map(({ role, content }) => ({ role, content: content[0].text }));
    const given = asked.at(-1)?.role === "assistant" ? asked.pop() : undefined;
    if (number === opening) await run(asked, parent, `v1/responses/${node}?stream=true`, {}, given);
  } catch (error) {
    if (error.status !== 404) showError(error.message);
  }
}

async function run(asked, parent, url, how, given) {
  if (running) return;
  const before = turns.get(parent)?.tokens ?? 0;
  const reply = replyAfter(given);
  const turn = { id: "running", parent, tokens: before, messages: [...asked, reply] };
  const title = (turns.get(path[0])?.messages ?? asked).find(({ role }) => role === "user");
  const own = running = {
    turn, reply, before, given, turns, session, chat, title: title?.content, shown: path.at(-1),
  };
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
  if (own.node) extras.set(own.node, { thought: reply.thought, odds: reply.odds });
  if (running === own) return replaceOwn(own);
  if (own.node) runs.delete(own);  // else only this page has it
  $("spoken").textContent = `The reply in ${own.title} has ended.`;
  await list().catch(() => {});
}

const say = (own, note) => running === own && showStatus(note);
const warn = (own, text) => running === own && showError(text);

function take(own, { type, sequence_number, response, delta, logprobs, sinkstream }) {
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
    if (own.generated === undefined) setOffsets(turn.parent);
    const starts = delta && logprobs ? collect(reply, delta, logprobs) : [];
    countTokens(own, tokens, starts, model.capacity);
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
    choose(own.node, isAtEnd());
  } else if (reply.content.length > (own.given?.content.length ?? 0)) {
    turn.id = own.node || `local ${turns.size}`;
    turns.set(turn.id, turn);
    choose(turn.id, isAtEnd());
  } else {
    choose(own.shown);
    if (!own.given) $("message").value ||= turn.messages.at(-2).content;
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
  closeXray();
  first = Math.min(Math.max(0, from), Math.max(0, path.length - TURNS));
  const shown = path.slice(first, first + TURNS);
  for (const id of views.keys()) if (!shown.includes(id)) views.delete(id);
  const elements = shown.map((id) => {
    if (!views.has(id)) {
      const turn = turns.get(id);
      const versions = childrenOf(turn.parent).filter((one) => one.id !== "running");
      views.set(id, viewOf(turn, versions, { send, turnTo, isXrayed: isXrayOn() }));
    }
    return views.get(id).element;
  });
  $("turns").replaceChildren(...elements);
  $("export").disabled = path.length === 0;
  $("earlier").hidden = first === 0;
  $("later").hidden = first + TURNS >= path.length;
  $("empty").hidden = path.length > 0 || model === null;
  showHead();
  paintAll();
  showStatus();
}

function showHead() {
  const { messages = [] } = turns.get(path[0]) ?? {};
  showSystem(path[0], messages[0]?.role === "system" ? messages[0].content : "");
  const asked = messages.find(({ role }) => role === "user")?.content.trim().slice(0, 80);
  const title = path.length && (titleOf(chat) ?? asked);
  $("title").textContent = title || "New chat";
  $("title").disabled = session === null || !path.length;
  document.title = title ? `${title} · sinkstream` : "sinkstream";
}

export const rename = (title) => attempt(async () => {
  await renameChat(new Set([...sessionsOf(chat), session]), title);
  await list();
});

function paintAll() {
  clearPaint();
  const last = turns.get(path.at(-1));
  let { live_tokens: live, total_evicted_tokens: evicted } = last ?? {};
  const isKnown = model !== null && live !== undefined;
  $("window").hidden = !isKnown;
  $("sinks").hidden = $("grey").hidden = true;
  if (!isKnown) return;
  if (moment !== null) {
    live = Math.min(moment, model.capacity);
    evicted = moment - live;
  }
  const pinned = path.map((id) => turns.get(id).pinned_tokens).findLast(Boolean) ?? model.sinks;
  let isGrey = first > 0;
  for (const { messages } of views.values()) {
    for (const view of messages) {
      view.label.textContent = view.paint(pinned, evicted, moment ?? undefined);
      isGrey ||= view.isGrey;
      if (isXrayOn()) view.paintOdds();
    }
  }
  const isTemplate = turns.get(path[0]).messages[0].begin >= Math.min(pinned, live);
  showWindow({ pinned, live, evicted, isGrey, isTemplate, capacity: model.capacity });
  $("sinks").hidden = first > 0;
}

function showStatus(note = "") {
  const facts = [model?.id ?? ""];
  const run = running ?? lastRun;
  if (run?.rate) facts.push(`${run.rate.toFixed(run.rate < 10 ? 1 : 0)} tokens/s`);
  const last = turns.get(path.at(-1));
  if (last?.tokens) facts.push(`${count(last.tokens)} tokens`);
  $("status").title = run?.node ? `state ${run.state}` : "";
  if (path.at(-1)?.startsWith("local")) facts.push("not saved before your next message");
  if (isQueued) facts.push("your message is sent after this reply");
  if (note || (running && !running.from)) facts.push(note || "waiting for the model");
  $("status").textContent = facts.filter(Boolean).join(" · ");
}

function showBusy() {
  const isBusy = running !== null;
  document.body.classList.toggle("busy", isBusy);
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
}

// Sends the message, or lets it wait for the end of the running reply.
export function submit() {
  const text = $("message").value;
  if (!text.trim() || !model) return;
  isQueued = running !== null;
  if (isQueued) return showStatus();
  $("message").value = "";
  keepDraft(chat);
  const asked = { role: "user", content: text };
  const before = historyOf(path.at(-1) ?? null);
  const system = $("system").value.trim();
  const old = before[0]?.role === "system" ? before.shift().content.trim() : "";
  if (path.length && system === old) send([asked], path.at(-1));
  else send([...(system ? [{ role: "system", content: system }] : []), ...before, asked], null);
}

export const exportShown = () => exportChat($("title").textContent, [...turns.values()]);

export function showImported(text) {
  const found = importChat(text);
  newChat();
  const asked = found.at(-1)?.messages.at(-1).role === "assistant" ? null : found.pop();
  setTurns(found);
  if (asked) send(asked.messages, asked.parent);
  else $("spoken").textContent = $("status").textContent;
}

startXray({
  viewAt(node) {
    const [id, { messages }] = [...views].find(([, { element }]) => element.contains(node));
    return { turn: turns.get(id), view: messages.find(({ element }) => element.contains(node)) };
  },
  capacity: () => model.capacity,
  look(token) {
    moment = token;
    paintAll();
  },
  branch: (turn, given) => send(turn.messages.slice(0, -1), turn.parent, given),
  redraw() {
    views = new Map();
    showFrom(first);
  },
});

export const draft = () => keepDraft(chat);
export const pageBy = (parts) => showFrom(first + parts * TURNS / 2);
