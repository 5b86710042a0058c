// The settings: options of replies, the theme, facts about the model. The browser keeps them.

import { $, make } from "./elements.js";
import { keep, kept } from "./kept.js";
import { count } from "./transcript.js";

const STEPS = {  // of numbers; the server knows their limits
  temperature: 0.1, top_p: 0.05, top_k: 1, min_p: 0.01, repetition_penalty: 0.05,
  frequency_penalty: 0.1, presence_penalty: 0.1, max_output_tokens: 1, seed: 1,
};
const KEPT = [...Object.keys(STEPS), "theme", "xray", "system"];
const LIKELY = 5;  // words that the X-ray asks for each time
let shownRoot = null;  // the first turn of the chat whose system prompt is shown

export function options() {
  const given = Object.keys(STEPS).filter((name) => $(name).value !== "");
  const found = Object.fromEntries(given.map((name) => [name, Number($(name).value)]));
  return $("xray").checked ? { ...found, top_logprobs: LIKELY } : found;
}

// Shows the system prompt of a chat, by its first turn; or what a new chat begins with.
export function showSystem(root, text) {
  if (root === shownRoot) return;
  shownRoot = root;
  $("system").value = root ? text : kept("settings").system ?? "";
  $("system-scope").textContent = root
    ? "of this chat. If you change it, the model reads the chat again with your next message."
    : "of a new chat";
}

export function startSettings() {
  for (const [name, step] of Object.entries(STEPS)) {
    const label = make("label", `${name[0].toUpperCase()}${name.slice(1).replaceAll("_", " ")} `);
    const field = { id: name, type: "number", step, placeholder: "default" };
    label.append(Object.assign(make("input"), field));
    $("theme").parentElement.before(label);
  }
  const found = kept("settings");
  for (const name of KEPT) {
    if ($(name).type === "checkbox") $(name).checked = Boolean(found[name]);
    else if (found[name] !== undefined) $(name).value = found[name];
  }
  showTheme();
  $("settings").addEventListener("submit", (event) => event.preventDefault());
  $("settings").addEventListener("change", () => {
    const values = KEPT.filter((name) => name !== "system" || !shownRoot).map((name) =>
      [name, $(name).type === "checkbox" ? $(name).checked || "" : $(name).value]);
    keep("settings", { ...kept("settings"), ...Object.fromEntries(values) });
    showTheme();
  });
}

function showTheme() {
  document.documentElement.style.colorScheme = $("theme").value;
}

export function showModel({ id, window, sinks, trained_length: trained, sampling }) {
  for (const [name, value] of Object.entries(sampling ?? {})) {
    if ($(name)) $(name).placeholder = value;
  }
  const sees = `sees ${count(sinks + window)} tokens at a time`;
  const origin = trained ? `, and was trained for ${count(trained)}` : "";
  $("facts").textContent = `${id} ${sees}${origin}.`;
  $("greeting").textContent = id;
  $("promise").textContent = `This model ${sees}, and a chat never ends: the oldest text leaves it `
    + "first, and turns grey.";
}
