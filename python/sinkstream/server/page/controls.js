// The page's buttons, fields, keys and addresses: what each does. The first script.

import { hasKey, useKey } from "./api.js";
import {
  draft, exportShown, newChat, openFromAddress, pageBy, refresh, rename, showImported, start, stop,
  submit,
} from "./chat.js";
import { find } from "./chats.js";
import { attach, isTouch, restoreDraft, sendOnEnter } from "./composer.js";
import { $, attempt, showError } from "./elements.js";
import { startSettings } from "./settings.js";

const on = (id, event, act) => $(id).addEventListener(event, act);

function showList(isShown = $("sidebar").hidden) {
  $("sidebar").hidden = !isShown;
  $("toggle-list").ariaExpanded = String(isShown);
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
on("message", "input", draft);
on("message", "keydown", (event) => sendOnEnter(event, $("composer")));
on("unlock", "submit", (event) => {
  event.preventDefault();
  useKey($("key").value.trim());
  $("key").value = "";
  start();
});
on("stop", "click", stop);
on("export", "click", exportShown);
on("title", "click", ({ target }) => {
  const title = prompt("Title of this chat", target.textContent);
  if (title) rename(title);
});
const readFiles = (id, act) => on(id, "change", async ({ target }) => {
  await attempt(() => act(target.files));
  target.value = "";
});
on("import", "click", () => $("import-file").click());
readFiles("import-file", async ([file]) => {
  $("settings").hidePopover();
  showImported(await file.text());
});
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
document.addEventListener("click", ({ target }) => {
  if (isNarrow() && target.closest("main, nav a, #new-chat")) showList(false);
});
on("toggle-list", "click", () => showList());
on("skip", "click", () => $("transcript").focus());
on("earlier", "click", () => pageBy(-1));
on("later", "click", () => pageBy(1));
document.addEventListener("keydown", (event) => {
  const isCommand = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !$("settings").matches(":popover-open")) stop();
  if (isCommand && event.key === "k") {
    event.preventDefault();
    showList(true);
    $("search").focus();
  } else if (isCommand && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    newChat();
  }
});
document.addEventListener("visibilitychange", refresh);
addEventListener("hashchange", openFromAddress);
addEventListener("locked", askForKey);

// When the control with the focus vanishes or is disabled, one goes on to write, or to read.
let focused = $("message");
document.addEventListener("focusin", ({ target }) => { focused = target; });
new MutationObserver(() => {
  if (!focused.disabled && focused.checkVisibility({ visibilityProperty: true })) return;
  focused = $(isTouch() ? "transcript" : "message");
  focused.focus({ preventScroll: true });
}).observe(document.body, { subtree: true, childList: true, attributes: true });

startSettings();
showList(innerWidth >= 1000);
restoreDraft(null);
$("message").focus();
start();
