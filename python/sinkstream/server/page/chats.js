// The list of chats, and chats as files. A chat is a conversation, or several that are versions of its first message.

import { get, request } from "./api.js";
import { $, action, attempt, make, showError } from "./elements.js";
import { plain } from "./inline.js";

const LISTED = 200;
const WHEN = { dateStyle: "medium", timeStyle: "short" };

let chats = new Map();  // name of a chat -> its conversations {id, title, chat}; latest first
let hasMore = false;  // than are listed
let replies = new Set();  // runs of replies, also of chats that are not open
let found = {};  // {wanted, ids, searched}: conversations whose texts contain what was searched for last
let asking = 0;

// Further versions of a first message name the conversation of the first one.
export const chatOf = (id, name) => (name?.startsWith("page_") ? name : `page_${id}`);
const listed = (chat) => chats.get(chat) ?? [];
export const sessionsOf = (chat) => listed(chat).map(({ id }) => id);
export const chatOfSession = (id) =>
  [...chats.values()].flat().find((one) => one.id === id)?.chat ?? chatOf(id);
// The title of its first conversation: it stays when the first message gets another version.
export const titleOf = (chat) =>
  (listed(chat).find(({ id }) => chat === chatOf(id)) ?? listed(chat)[0])?.title;

export async function listChats(onDelete) {
  const { data, has_more: more } = await get(`v1/sessions?limit=${LISTED}`);
  const all = data.map(({ id, title, session_key: name, last_used_at: used }) =>
    ({ id, title: plain(title ?? "") || "Untitled", chat: chatOf(id, name), used }));
  chats = Map.groupBy(all, ({ chat }) => chat);
  hasMore = more;
  const list = $("conversations");
  const old = new Map([...list.children].map((item) => [item.dataset.chat, item]));
  const items = [...chats].map(([chat, [{ id, used }]]) => {
    const title = titleOf(chat);
    const item = old.get(chat) ?? make("li");
    if (item.firstChild?.firstChild.data !== title) {
      item.dataset.chat = chat;
      const link = make("a", title);
      link.append(make("time"));
      const remove = action("×", () => confirm(`Delete “${title}”?`) && attempt(async () => {
        for (const one of sessionsOf(chat)) await request(`v1/sessions/${one}`, { method: "DELETE" });
        onDelete(chat);
        await listChats(onDelete);
      }));
      remove.ariaLabel = remove.title = `Delete ${title}`;
      item.replaceChildren(link, remove);
    }
    item.firstChild.href = `#${id}`;
    item.querySelector("time").textContent = new Date(used * 1000).toLocaleString([], WHEN);
    return item;
  });
  const { activeElement } = document;
  list.replaceChildren(...items);
  if (list.contains(activeElement)) activeElement.focus();
  find(true);
}

export async function renameChat(ids, title) {
  const body = JSON.stringify({ title });
  for (const id of ids) await request(`v1/sessions/${id}`, { method: "POST", body });
}

// Shows the chats with what is searched for in their titles, or, when the server has looked, texts.
export function find(asks) {
  const wanted = $("search").value.trim();
  const isKnown = wanted === found.wanted;
  const items = [...document.querySelectorAll("nav li")];
  for (const item of items) {
    const isTitle = item.firstChild.firstChild.data.toLowerCase().includes(wanted.toLowerCase());
    const isText = isKnown && sessionsOf(item.dataset.chat).some((id) => found.ids.includes(id));
    item.hidden = !isTitle && !isText;
  }
  const isNone = items.every(({ hidden }) => hidden);
  const missing = isKnown ? `No chat found in the titles and texts of the latest ${found.searched}.`
    : "Searching…";
  $("unlisted").textContent = isNone && wanted && chats.size ? missing
    : isNone && !replies.size ? "No saved chats." : hasMore ? "and older ones" : "";
  if (!asks) return;
  clearTimeout(asking);
  if (wanted) asking = setTimeout(() => look(wanted).catch(({ message }) => showError(message)), 300);
}

async function look(wanted) {
  const query = `limit=${LISTED}&search=${encodeURIComponent(wanted)}`;
  const { data, searched } = await get(`v1/sessions?${query}`);
  found = { wanted, searched, ids: data.map(({ id }) => id) };
  find();
}

// Marks the chat that is open, and those with a running reply; new ones are not in the list yet.
export function markChats(chat, runs = replies) {
  replies = runs;
  const nameOf = (run) => run.chat ?? run.id;
  const unlisted = [...runs].filter(({ id, session }) => id && !session).map((run) => {
    const item = make("li");
    item.dataset.chat = nameOf(run);
    item.append(make("a", run.title));
    item.firstChild.href = `#${run.id}`;
    return item;
  });
  $("unfinished").replaceChildren(...unlisted);
  for (const item of document.querySelectorAll("nav li")) {
    const name = item.dataset.chat;
    item.classList.toggle("running", [...runs].some((run) => nameOf(run) === name));
    item.firstChild.ariaCurrent = name === chat ? "true" : null;
  }
  find();
}

export const said = (messages) => messages.map(({ role, content }) => ({ role, content }));

// `turns`: all of a chat, with all versions.
export function exportChat(title, turns) {
  const kept = turns.map(({ id, parent, messages }) => ({ id, parent, messages: said(messages) }));
  const text = JSON.stringify({ title, turns: kept }, null, 1);
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `${title.slice(0, 60)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// Returns the turns of an exported chat, or of messages as OpenAI lists them.
export function importChat(text) {
  const named = (id) => (id === null ? null : `local ${id}`);
  try {
    const given = JSON.parse(text);
    const turns = given.turns ?? turnsOf(given.messages ?? given);
    if (!turns.length) throw new TypeError();
    return turns.map(({ id, parent = null, messages: [first, ...rest] }) =>
      ({ id: named(id), parent: named(parent), messages: [first, ...rest].map(checked) }));
  } catch {
    throw new Error("The file must be a chat exported by this page, or a JSON list of messages, "
      + "each with a `role` and a `content`.");
  }
}

function checked({ role, content }) {
  if (typeof role !== "string" || typeof content !== "string") throw new TypeError();
  return { role, content };
}

// A turn ends with a reply.
function turnsOf(messages) {
  const turns = [];
  messages.forEach((message, index) => {
    const own = turns.at(-1);
    const isReplied = messages[index - 1]?.role === "assistant" && own.messages.length > 1;
    if (own && (!isReplied || message.role === "assistant")) own.messages.push(message);
    else turns.push({ id: index, parent: own?.id, messages: [message] });
  });
  return turns;
}
