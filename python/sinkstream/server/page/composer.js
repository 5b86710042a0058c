// Fields for messages: their height, what Enter does, drafts, and edited messages.

import { action, make } from "./elements.js";
import { keep, kept } from "./kept.js";

const $ = (id) => document.getElementById(id);

export function fit() {
  const field = $("message");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 200)}px`;
}

const isTouch = () => matchMedia("(hover: none) and (pointer: coarse)").matches;

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
  fit();
}

// Lets a message be edited in its article; calls `send` with the new text.
export function edit(text, article, send) {
  const form = make("form", "", "edit");
  const field = make("textarea");
  field.value = text;
  field.ariaLabel = "Edited message";
  const replaced = [...article.children];
  const close = () => form.replaceWith(...replaced);
  form.append(field, make("button", "Send"), action("Cancel", close));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    close();
    send(field.value);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    else sendOnEnter(event, form);
  });
  article.replaceChildren(form);
  field.focus();
}
