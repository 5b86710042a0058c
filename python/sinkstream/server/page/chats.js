// The list of chats, and chats as files. A chat is a conversation, or several that are versions of its first message.

import { get, request } from "./api.js";
import { $, action, attempt, make } from "./elements.js";

const LISTED = 200;
const WHEN = { dateStyle: "medium", timeStyle: "short" };

let chats = new Map();  // name of a chat -> its conversations {id, title, chat}; latest first
let hasMore = false;  // than are listed
let replies = new Set();  // runs of replies, also of chats that are not open

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
  const found = data.map(({ id, title, session_key: name, last_used_at: used }) =>
    ({ id, title: title?.trim() || "Untitled", chat: chatOf(id, name), used }));
  chats = Map.groupBy(found, ({ chat }) => chat);
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
  find();
}

export async function renameChat(ids, title) {
  const body = JSON.stringify({ title });
  for (const id of ids) await request(`v1/sessions/${id}`, { method: "POST", body });
}

// Shows the chats whose titles contain what is searched for.
export function find() {
  const wanted = $("search").value.trim().toLowerCase();
  const items = [...$("conversations").children];
  for (const item of items) {
    item.hidden = !item.firstChild.firstChild.data.toLowerCase().includes(wanted);
  }
  const missing = wanted ? `No chat found in the latest ${LISTED} titles.` : "No saved chats.";
  const rest = hasMore ? "and older ones" : "";
  $("unlisted").textContent = items.every(({ hidden }) => hidden) ? missing : rest;
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
