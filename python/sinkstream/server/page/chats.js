// The list of chats. A chat is a conversation, or several that are versions of its first message.

import { get, request } from "./api.js";
import { action, make } from "./elements.js";

const LISTED = 200;  // conversations
const $ = (id) => document.getElementById(id);

let listed = [];  // {id, title, chat}, latest first
let replies = new Set();  // runs of replies, also of chats that are not open

// Further versions of a first message name the conversation of the first one.
export const chatOf = (id, name) => (name?.startsWith("page_") ? name : `page_${id}`);
export const sessionsOf = (chat) => listed.filter((one) => one.chat === chat).map(({ id }) => id);
export const chatOfSession = (id) => listed.find((one) => one.id === id)?.chat ?? `page_${id}`;

export async function listChats(showError, onDelete) {
  const { data, has_more: more } = await get(`v1/sessions?limit=${LISTED}`);
  listed = data.map(({ id, title, session_key: name }) =>
    ({ id, title: title?.trim() || "Untitled", chat: chatOf(id, name) }));
  const latest = listed.filter(({ chat }, at) => at === listed.findIndex((one) => one.chat === chat));
  const old = new Map([...$("conversations").children].map((item) => [item.dataset.chat, item]));
  const items = latest.map(({ id, title, chat }) => {
    const item = old.get(chat) ?? make("li");
    const link = item.querySelector("a") ?? make("a");
    if (link.textContent !== title) {
      link.textContent = title;
      const remove = action("Delete", () => {
        if (remove.textContent === "Sure?") deleteChat(chat, showError, onDelete);
        else remove.textContent = "Sure?";
      });
      remove.ariaLabel = remove.title = `Delete ${title}`;
      remove.addEventListener("blur", () => { remove.textContent = "Delete"; });
      item.dataset.chat = chat;
      item.replaceChildren(link, remove);
    }
    link.href = `#${id}`;
    return item;
  });
  $("conversations").replaceChildren(...items);
  $("unlisted").textContent = more ? "and older ones" : "No kept conversations.";
  $("unlisted").hidden = items.length > 0 && !more;
  find();
}

async function deleteChat(chat, showError, onDelete) {
  try {
    for (const id of sessionsOf(chat)) await request(`v1/sessions/${id}`, { method: "DELETE" });
    onDelete(chat);
    await listChats(showError, onDelete);
  } catch (error) {
    showError(error.message);
  }
}

// Shows the chats whose titles contain what is searched for.
export function find() {
  const wanted = $("search").value.trim().toLowerCase();
  for (const item of $("conversations").children) {
    item.hidden = !item.querySelector("a").textContent.toLowerCase().includes(wanted);
  }
}

// Marks the chat that is open, and those with a running reply; new ones are not in the list yet.
export function markChats(chat, runs = replies) {
  replies = runs;
  const busy = new Set([...runs].map((run) => run.chat));
  for (const item of $("conversations").children) {
    const link = item.querySelector("a");
    link.ariaCurrent = item.dataset.chat === chat ? "true" : null;
    item.classList.toggle("running", busy.has(item.dataset.chat));
    link.title = busy.has(item.dataset.chat) ? "A reply is being written" : "";
  }
  const unlisted = [...runs].filter(({ id, session }) => id && !session).map((run) => {
    const item = make("li", "", "running");
    const link = make("a", run.title);
    link.href = `#${run.id}`;
    link.title = "A reply is being written";
    link.ariaCurrent = chat !== null && run.chat === chat ? "true" : null;
    item.append(link);
    return item;
  });
  $("unfinished").replaceChildren(...unlisted);
}
