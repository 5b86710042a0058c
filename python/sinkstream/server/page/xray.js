// The X-ray: how probable each word was, what it nearly was, and what the model saw then.
// A word is a token.

import { $, action, make } from "./elements.js";
import { count, unmark } from "./transcript.js";

export const isXrayOn = () => $("xray").checked;

// ---- what is known of words ----

// Adds the words of a delta to a reply, before its text; returns the characters where they begin.
export function collect(reply, delta, logprobs) {
  reply.decoder ??= new TextDecoder();
  const added = logprobs.map(({ bytes }) =>
    reply.decoder.decode(new Uint8Array(bytes), { stream: true }).length);
  // Counted from the end: white space that begins a text may be left out.
  let at = reply.content.length + delta.length - added.reduce((sum, length) => sum + length, 0);
  return logprobs.map((one, index) => {
    const begin = Math.max(0, at);
    at += added[index];
    reply.odds.push({ at: begin, ...oddsOf(one), others: one.top_logprobs.map(oddsOf) });
    return begin;
  });
}

const oddsOf = ({ token, bytes, logprob }) => ({
  text: token, p: Math.exp(logprob), isText: bytes.length > 0 && !token.includes("\uFFFD"),
});

// The word at a character of a message; null if there is none.
function wordAt({ content, begin, offsets, odds = [] }, character) {
  const index = offsets?.findLastIndex((at) => at <= character) ?? -1;
  if (index < 0 || character >= content.length) return null;
  const from = offsets[index];
  const to = offsets.find((at) => at > from) ?? content.length;
  return { index, from, to, token: begin + index, odds: odds.findLast(({ at }) => at === from) };
}

// The text up to a word and another word, for a reply to go on from.
const withOther = (message, { index, from, odds }, other) => ({
  ...message,
  content: message.content.slice(0, from) + other.text,
  offsets: message.offsets.slice(0, index + 1),
  odds: [...message.odds.filter(({ at }) => at < from), { ...odds, ...other }],
});

// ---- the panel ----

let page;  // what it needs of the chat: {viewAt, capacity, look, branch, redraw}
let shown = null;  // {turn, view, word, isPinned}

export function startXray(given) {
  page = given;
  $("turns").addEventListener("pointermove", (event) => {
    if (isXrayOn() && event.pointerType === "mouse" && !shown?.isPinned) point(event);
  });
  $("turns").addEventListener("pointerleave", () => shown?.isPinned || closeXray());
  $("transcript").addEventListener("scroll", () => shown && markWord());
  $("turns").addEventListener("click", (event) => {
    if (!isXrayOn() || event.target.closest("button, summary") || !getSelection().isCollapsed) return;
    closeXray();
    point(event);
    pin();
  });
  $("turns").addEventListener("keydown", walk);
  $("word").addEventListener("keydown", (event) => event.key === "Escape" && leave(event));
  $("close-word").addEventListener("click", leave);
  $("xray").addEventListener("change", () => page.redraw());
}

export function closeXray() {
  const isPinned = shown?.isPinned;
  shown = null;
  $("word").hidden = true;
  unmark();
  if (isPinned) page.look(null);
}

function leave(event) {
  event.stopPropagation();  // Escape stops no reply then
  const { body } = shown.view;
  closeXray();
  body.focus();
}

function point({ target, clientX, clientY }) {
  const found = target.closest(".words") && page.viewAt(target);
  const word = found && wordAt(found.view.message, found.view.characterAt(clientX, clientY) ?? Infinity);
  if (word) show({ ...found, word });
  else closeXray();
}

// Arrow keys go from word to word; Enter stays at one.
function walk(event) {
  if (!event.target.matches(".words")) return;
  const step = { ArrowLeft: -1, ArrowRight: 1, Enter: 0 }[event.key];
  if (event.key === "Escape" && shown) leave(event);
  if (step === undefined) return;
  event.preventDefault();
  if (!step) return pin();
  const found = page.viewAt(event.target);
  const { from, to } = shown?.view === found.view ? shown.word : { from: 1, to: 0 };
  const word = wordAt(found.view.message, step > 0 ? to : from - 1);
  if (!word) return;
  closeXray();
  show({ ...found, word });
  const { top, bottom } = $("transcript").getBoundingClientRect();
  const box = markWord();
  if (box?.top < top || box?.bottom > bottom) $("transcript").scrollBy(0, box.top - (top + bottom) / 2);
  $("spoken").textContent = $("word-said").textContent;
}

const withOdds = ({ text, p }) =>
  `“${text.replaceAll("\n", "⏎")}” ${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`;

function show(next) {
  shown = next;
  const { turn, view: { message }, word: { from, to, token, odds } } = next;
  $("word-said").textContent = odds ? withOdds(odds) : `“${message.content.slice(from, to)}”`;
  const others = odds?.others.filter(({ text }) => text !== odds.text) ?? [];
  $("word-others").replaceChildren(...others.map((other) => {
    const item = make("li");
    const button = action(withOdds(other), () => {
      closeXray();
      page.branch(turn, withOther(message, next.word, other));
    });
    // An end has none.
    button.disabled = !other.isText || document.body.matches(".busy");
    item.append(button);
    return item;
  }));
  $("word-unknown").hidden = Boolean(odds);
  const seen = count(Math.min(token, page.capacity()));
  $("word-seen").textContent = `When it was written, the model saw ${seen} of ${count(token)} tokens.`;
  $("word").className = "";
  $("word").hidden = false;
  markWord();
}

// Marks the word, and puts the panel below or above it; returns its box.
function markWord() {
  const box = shown.view.mark(shown.word.from, shown.word.to);
  if (!box) return null;
  const { width, height } = $("word").getBoundingClientRect();
  const top = box.bottom + height + 12 < innerHeight ? box.bottom + 6 : box.top - height - 6;
  $("word").style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`;
  $("word").style.top = `${Math.max(8, top)}px`;
  return box;
}

// Stays at the word, and shows what the model saw when it was written.
function pin() {
  if (!shown) return;
  shown.isPinned = true;
  $("word").className = "pinned";
  page.look(shown.word.token);
  markWord();
  ($("word-others").querySelector(":enabled") ?? $("close-word")).focus();
}
