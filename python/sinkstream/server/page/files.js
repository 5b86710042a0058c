// Files: a chat that is exported or imported, and text that is attached to a message.

const MOST_BYTES = 1 << 20;  // of an attached file
const $ = (id) => document.getElementById(id);

// `turns`: all of a chat, with all versions.
export function exportChat(title, turns) {
  const kept = turns.map(({ id, parent, messages }) => ({
    id, parent, messages: messages.map(({ role, content }) => ({ role, content })),
  }));
  const text = JSON.stringify({ title, turns: kept }, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `${title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "chat"}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// Returns the turns of an exported chat; the server has them once the chat goes on.
export function importChat(text) {
  let given;
  try {
    given = JSON.parse(text).turns;
  } catch {
    given = null;
  }
  const isMessage = (one) => typeof one?.role === "string" && typeof one.content === "string";
  const isTurn = (one) => Array.isArray(one?.messages) && one.messages.length > 1
    && one.messages.every(isMessage);
  if (!Array.isArray(given) || !given.length || !given.every(isTurn)) {
    throw new Error("The file must be a chat that this page has exported.");
  }
  const named = (id) => (id === null || id === undefined ? null : `local ${id}`);
  return given.map(({ id, parent, messages }) => ({ id: named(id), parent: named(parent), messages }));
}

// Adds text files to the message.
export async function attach(files) {
  const parts = [];
  for (const file of files) {
    if (file.size > MOST_BYTES) throw new Error(`${file.name} is larger than 1 MB.`);
    const text = await file.text();
    if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
    parts.push(`${file.name}:\n\`\`\`\`\n${text.trimEnd()}\n\`\`\`\`\n`);
  }
  const field = $("message");
  field.value = [field.value, ...parts].filter(Boolean).join("\n");
  field.dispatchEvent(new Event("input"));
  field.focus();
}
