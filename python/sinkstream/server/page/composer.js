// Fields for messages: what Enter does, drafts, edited texts, attached files.

import { $, action, make } from "./elements.js";
import { keep, kept } from "./kept.js";

const MOST_BYTES = 1 << 20;  // of an attached file

export const isTouch = () => matchMedia("(hover: none) and (pointer: coarse)").matches;

export function sendOnEnter(event, form) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  if (isTouch() && !event.ctrlKey) return;  // there, a button sends, and Enter is a new line
  event.preventDefault();
  form.requestSubmit();
}

export function keepDraft(chat, text = $("message").value) {
  keep("drafts", { ...kept("drafts"), [chat ?? "new"]: text });
}

export function restoreDraft(chat) {
  $("message").value = kept("drafts")[chat ?? "new"] ?? "";
}

// Lets a text be edited in its element; calls `send` with the new one.
export function edit(text, element, send) {
  const form = make("form", "", "edit");
  const field = make("textarea");
  field.value = text;
  field.ariaLabel = "Edited message";
  const close = () => {
    form.remove();
    element.querySelector("button").focus();
  };
  form.append(field, make("button", "Send"), action("Cancel", close));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    close();
    send(field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return sendOnEnter(event, form);
    event.stopPropagation();  // it stops no reply
    close();
  });
  element.append(form);
  field.focus();
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
