// The page's buttons, fields, keys and addresses: what each does. The first script.

import { hasKey, useKey } from "./api.js";
import {
  draft, exportShown, newChat, openFromAddress, pageBy, refresh, showImported, start, stop, submit,
} from "./chat.js";
import { find } from "./chats.js";
import { fit, restoreDraft, sendOnEnter } from "./composer.js";
import { showError } from "./elements.js";
import { attach } from "./files.js";
import { startSettings } from "./settings.js";

const $ = (id) => document.getElementById(id);
const on = (id, event, act) => $(id).addEventListener(event, act);

function toggle(button, element, isShown = element.hidden) {
  element.hidden = !isShown;
  button.ariaExpanded = String(isShown);
}

function askForKey() {
  $("unlock").hidden = false;
  showError(hasKey() ? "The server does not accept this key." : "");
  $("key").focus();
}

on("composer", "submit", (event) => {
  event.preventDefault();
  submit();
});
on("message", "input", () => {
  fit();
  draft();
});
on("message", "keydown", (event) => sendOnEnter(event, $("composer")));
on("unlock", "submit", (event) => {
  event.preventDefault();
  useKey($("key").value.trim());
  $("key").value = "";
  start();
});
on("stop", "click", stop);
on("export", "click", exportShown);
const readFiles = (id, act) => on(id, "change", async ({ target }) => {
  try {
    await act(target.files);
    showError("");
  } catch (error) {
    showError(error.message);
  }
  target.value = "";
});
on("import", "click", () => $("import-file").click());
readFiles("import-file", async ([file]) => showImported(await file.text()));
on("attach", "click", () => $("attach-file").click());
readFiles("attach-file", attach);
on("new-chat", "click", newChat);
on("search", "input", find);
on("starters", "click", ({ target }) => {
  if (target.tagName !== "BUTTON") return;
  $("message").value = target.textContent;
  $("composer").requestSubmit();
});
const isNarrow = () => innerWidth < 800;
on("sidebar", "click", (event) => {
  if (event.target.closest("a, #new-chat") && isNarrow()) toggle($("toggle-list"), $("sidebar"), false);
});
document.querySelector("main").addEventListener("click", () => {
  if (isNarrow()) toggle($("toggle-list"), $("sidebar"), false);
});
on("toggle-list", "click", () => toggle($("toggle-list"), $("sidebar")));
on("toggle-settings", "click", () => toggle($("toggle-settings"), $("settings")));
on("earlier", "click", () => pageBy(-1));
on("later", "click", () => pageBy(1));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  const isCommand = event.ctrlKey || event.metaKey;
  if (isCommand && event.key === "k") {
    event.preventDefault();
    toggle($("toggle-list"), $("sidebar"), true);
    $("search").focus();
  } else if (isCommand && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    newChat();
  }
});
document.addEventListener("visibilitychange", refresh);
addEventListener("hashchange", openFromAddress);
addEventListener("locked", askForKey);

startSettings();
toggle($("toggle-list"), $("sidebar"), innerWidth >= 1000);
restoreDraft(null);
$("message").focus();
start();
