// The settings: options of replies, the theme, facts about the model. The browser keeps them.

import { make } from "./elements.js";
import { keep, kept } from "./kept.js";
import { count } from "./window_bar.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty",
  "presence_penalty", "max_output_tokens", "seed",
];
const KEPT = [...NUMBERS, "theme", "system"];

export function options() {
  const given = NUMBERS.filter((name) => $(name).value !== "");
  return Object.fromEntries(given.map((name) => [name, Number($(name).value)]));
}

export function startSettings() {
  const found = kept("settings");
  for (const name of KEPT) {
    if ($(name).type === "checkbox") $(name).checked = Boolean(found[name]);
    else if (found[name] !== undefined) $(name).value = found[name];
  }
  showTheme();
  $("settings").addEventListener("submit", (event) => event.preventDefault());
  $("settings").addEventListener("change", () => {
    const values = KEPT.filter((name) => !$(name).readOnly).map((name) =>
      [name, $(name).type === "checkbox" ? $(name).checked || "" : $(name).value]);
    keep("settings", { ...kept("settings"), ...Object.fromEntries(values) });
    showTheme();
  });
}

function showTheme() {
  document.documentElement.dataset.theme = $("theme").value;
}

export function showModel({ id, window, sinks, trained_length: trained, sampling }) {
  for (const [name, value] of Object.entries(sampling ?? {})) {
    if ($(name)) $(name).placeholder = value;
  }
  const facts = [["Model", id], ["It sees", `${count(sinks + window)} tokens at a time`]];
  if (trained) facts.push(["Trained for", `${count(trained)} tokens`]);
  $("facts").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", name), make("dd", value)]));
  $("greeting").textContent = id;
  $("promise").textContent = `This model sees ${count(sinks + window)} tokens at a time, and a chat `
    + "never ends: the oldest text leaves its sight first, and turns grey.";
}
