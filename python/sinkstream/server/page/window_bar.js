// The bar above the message field: how much of a conversation the model sees.

import { make } from "./elements.js";

const $ = (id) => document.getElementById(id);
export const count = (number) => number.toLocaleString("en");

// All are numbers of tokens; `capacity` is what the model sees at most.
export function showWindow({ pinned, live, evicted, capacity }) {
  const sinks = Math.min(pinned, live);
  const widths = { sinks, evicted, live: live - sinks, free: capacity - live };
  for (const [name, tokens] of Object.entries(widths)) {
    const part = $("bar").querySelector(`.${name}`);
    part.style.flexGrow = tokens;
    part.hidden = tokens === 0;
  }
  const words = [
    ["sinks", `${count(sinks)} pinned`],
    ["evicted", `${count(evicted)} no longer seen`],
    ["live", `${count(live - sinks)} in the window of ${count(capacity - pinned)}`],
  ];
  $("legend").replaceChildren(...words.map(([name, text]) => make("span", text, name)));
  $("bar").ariaLabel = words.map(([, text]) => text).join(", ");
  $("grey").hidden = evicted === 0;
  $("sinks").textContent = `${count(sinks)} tokens pinned, always seen`;
}
