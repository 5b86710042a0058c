// Shows turns and the model's window over them, also as a bar. Model text becomes text nodes only.

import { edit } from "./composer.js";
import { $, action, copy, make } from "./elements.js";
import { build, linesOf, split } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", system: "System" };
const CUT = ["cancelled", "length", "timeout", "interrupted", "error"];  // before its end

const SHOWN = 100;  // blocks of a message in the document at a time

// ---- the window over the text ----

export const count = (number) => number.toLocaleString("en");

const UNSURE = 0.5;  // a word with a lower probability is underlined
const painted = { evicted: null, sinks: null, unsure: null, word: null };
if (globalThis.CSS?.highlights) {
  for (const name of Object.keys(painted)) {
    painted[name] = new Highlight();
    CSS.highlights.set(name, painted[name]);
  }
}

export function clearPaint() {
  for (const name of ["evicted", "sinks", "unsure"]) painted[name]?.clear();
}

export const unmark = () => painted.word?.clear();

// Paints characters [from, to) of a block.
function paint(name, block, from, to) {
  for (const part of block.nodes) {
    const begin = Math.max(from, part.start);
    const end = Math.min(to, part.end);
    if (begin >= end || !painted[name]) continue;
    const range = new StaticRange({
      startContainer: part.node, startOffset: begin - part.start,
      endContainer: part.node, endOffset: end - part.start,
    });
    painted[name].add(range);
  }
}

function boxesOf(node, from, to) {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  return [...range.getClientRects()];
}

// Numbers of tokens; `capacity` is what the model sees at most. `isGrey`: some text is grey;
// `isTemplate`: no message is pinned, but how the template begins.
export function showWindow({ pinned, live, evicted, capacity, isGrey, isTemplate }) {
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
  $("grey").hidden = evicted === 0 || !isGrey;
  const origin = isTemplate ? ": how the model's chat template begins" : "";
  $("sinks").textContent = `${count(sinks)} tokens pinned, always seen${origin}`;
}

// A message: {role, content, begin, end, offsets, odds}: its tokens, the character where each
// begins, and what the X-ray knows of them.
export class MessageView {
  constructor(message) {
    this.message = message;
    this.isPlain = message.role !== "assistant";
    this.blocks = [];
    this.first = 0;  // block that is shown
    this.follows = true;
    this.body = make("div");
    this.earlier = action("Show earlier part", () => this.turnTo(this.first - SHOWN / 2), "more");
    this.later = action("Show later part", () => this.turnTo(this.first + SHOWN / 2), "more");
    this.element = make("div");
    this.body.addEventListener("click", ({ target }) => {
      if (target.matches(".copy")) copy(this.codeOf(target), target);
    });
    this.element.append(this.earlier, this.body, this.later);
    this.update();
  }

  // Reads what has been appended.
  update() {
    const { content: text, thought } = this.message;
    if (thought && !this.thought) {
      this.thought = document.createTextNode("");
      const folded = make("details");
      folded.append(make("summary", "Thought"), this.thought);
      this.element.prepend(folded);
    }
    this.thought?.appendData(thought.slice(this.thought.length));
    // The last line's kind may change, and so the end of the block before it.
    const [old, last] = this.blocks.length > 1 ? this.blocks.splice(-2) : [this.blocks.pop()];
    const inside = old?.from === undefined ? old?.inside : null;
    const lines = linesOf(text, old ? old.from ?? old.start : 0);
    const fresh = split(text, lines, { isPlain: this.isPlain, inside });
    for (const block of fresh) block.lines = undefined;  // `build` finds them again
    if (old?.joins) fresh[0].joins = true;
    if (last && fresh[0].end === old.end && fresh[0].kind === old.kind) fresh[0] = old;
    this.blocks.push(...fresh);
    const surplus = this.blocks.length - SHOWN;
    this.turnTo(this.follows ? Math.max(0, surplus) : this.first);
  }

  get shown() {
    return this.blocks.slice(this.first, this.first + SHOWN);
  }

  // Puts blocks [first, first + SHOWN) into the document.
  turnTo(first) {
    const most = Math.max(0, this.blocks.length - SHOWN);
    this.first = Math.min(Math.max(0, Math.round(first)), most);
    this.follows = this.first === most;
    const { shown } = this;
    const wanted = new Set();
    for (const block of shown) {
      block.element ??= build(this.message.content, block, this.isPlain);
      wanted.add(block.element);
    }
    for (const child of [...this.body.children]) if (!wanted.has(child)) child.remove();
    let next = this.body.firstChild;
    for (const { element } of shown) {
      if (next === element) next = next.nextSibling;
      else this.body.insertBefore(element, next);
    }
    for (const block of this.blocks) if (!wanted.has(block.element)) block.element = undefined;
    this.earlier.hidden = this.first === 0;
    this.later.hidden = this.first === most;
    this.painted = "";
  }

  // A long code is divided into several blocks.
  codeOf(button) {
    const at = this.blocks.findIndex(({ element }) => element?.contains(button));
    if (this.blocks[at].kind !== "code") return button.parentElement.textContent;
    let last = at;
    while (this.blocks[last + 1]?.inside === this.blocks[at].opened) last += 1;
    const lines = linesOf(this.message.content, this.blocks[at].start, this.blocks[last].end);
    const { indent } = this.blocks[at].opened;
    const space = new RegExp(`^[ \t]{0,${indent}}`);
    return lines.map(({ start, end }) => this.message.content.slice(start, end).replace(space, ""))
      .join("");
  }

  // The first character that is not wholly before `token`.
  character(token) {
    const { begin, end, offsets, content } = this.message;
    if (begin === undefined || token <= begin) return 0;
    if (token >= end) return content.length;
    if (!offsets) return 0;
    const at = offsets[token - begin];
    return at === undefined ? content.length : Math.min(Math.max(0, at), content.length);
  }

  get nodes() {
    return this.shown.flatMap(({ nodes }) => nodes);
  }

  // The character at a point of the window; null if there is none.
  characterAt(x, y) {
    const { offsetNode, offset } = document.caretPositionFromPoint(x, y) ?? {};
    const part = this.nodes.find(({ node }) => node === offsetNode);
    const isThere = (at) => at >= 0 && at < offsetNode.length && boxesOf(offsetNode, at, at + 1)
      .some((box) => box.left <= x && x <= box.right && box.top - 6 <= y && y <= box.bottom + 6);
    const at = part && [offset, offset - 1].find(isThere);
    return at === undefined ? null : part.start + at;
  }

  // Marks characters for the X-ray; returns where the first of them are in the window.
  mark(from, to) {
    unmark();
    for (const block of this.shown) paint("word", block, from, to);
    const part = this.nodes.find(({ start, end }) => start < to && end > from);
    if (!part) return null;
    const { node, start, end } = part;
    return boxesOf(node, Math.max(from, start) - start, Math.min(to, end) - start)[0];
  }

  // Underlines words that were not probable.
  paintOdds() {
    const { odds = [] } = this.message;
    let next = 0;
    for (const block of odds.length ? this.shown : []) {
      while (next < odds.length && odds[next].at < block.start) next += 1;
      let from = null;  // few ranges: many are slow
      for (; next < odds.length && odds[next].at < block.end; next += 1) {
        const { at, p } = odds[next];
        if (p >= UNSURE && from !== null) paint("unsure", block, from, at);
        from = p >= UNSURE ? null : from ?? at;
      }
      if (from !== null) paint("unsure", block, from, block.end);
    }
  }

  // Greys tokens [sinks, sinks + evicted), and those from `later` on, which are not written yet;
  // returns how the message is seen, if not whole.
  paint(sinks, evicted, later = Infinity) {
    const from = this.character(sinks);
    const to = evicted > 0 ? Math.max(from, this.character(sinks + evicted)) : from;
    const rest = later === Infinity ? later : this.message.begin >= later ? 0 : this.character(later);
    this.isGrey = rest < Infinity || this.message.content.slice(from, to).trim() !== "";
    const key = `${from} ${to} ${rest} ${this.blocks.length}`;
    for (const block of this.shown) {
      const isGone = (from < to && block.start >= from && block.end <= to) || block.start >= rest;
      if (this.painted !== key) {
        block.element.classList.toggle("evicted", isGone);
        block.element.classList.toggle("sink", block.start < from);
        block.element.classList.toggle("edge", !isGone && block.start < to && block.end > to);
      }
      if (!isGone) {
        paint("sinks", block, block.start, Math.min(block.end, from));
        paint("evicted", block, Math.max(block.start, from), Math.min(block.end, to));
        paint("evicted", block, Math.max(block.start, rest), block.end);
      }
    }
    this.painted = key;
    const { begin = 0, end = 0, offsets, content } = this.message;
    const gone = Math.min(end, sinks + evicted) - Math.max(begin, sinks);
    if (gone <= 0) return "";
    const isWhole = offsets ? gone === end - begin : to - from === content.length;
    return isWhole ? "no longer seen" : "partly seen";
  }
}

// The server counts characters; JavaScript counts some twice.
export function withOffsets(message) {
  const { content, offsets } = message;
  if (!offsets || !/[\uD800-\uDBFF]/.test(content)) return message;
  const starts = [];
  let length = 0;
  for (const character of content) {
    starts.push(length);
    length += character.length;
  }
  return { ...message, offsets: offsets.map((one) => starts[one] ?? (one < 0 ? 0 : length)) };
}

// ---- turns ----

// `versions`: turns with the same parent, in order. `chat`: {send, turnTo, isXrayed}.
export function viewOf(turn, versions, chat) {
  const element = make("li");
  const messages = turn.messages.map((message) => new MessageView(message));
  messages.forEach((view, index) => {
    const { role } = view.message;
    const article = make("article", "", role);
    const head = make("header");
    view.label = make("span", "", "mark");
    const name = NAMES[role] ?? role;
    head.append(make("b", name), view.label);
    if (turn.id !== "running") head.append(...actionsOf(turn, index, versions, chat));
    article.ariaLabel = `${name}: ${view.message.content.slice(0, 60)}`;
    if (chat.isXrayed && role === "assistant") {
      view.body.tabIndex = 0;
      view.body.className = "words";
    }
    article.append(head, view.element);
    element.append(article);
  });
  return { element, messages };
}

function actionsOf(turn, index, versions, { send, turnTo }) {
  const { role, content } = turn.messages[index];
  const asked = turn.messages.slice(0, -1);
  const isReply = index === asked.length;
  const copied = action("Copy", () => copy(content, copied), "says");
  copied.ariaLabel = isReply ? "Copy reply" : "Copy message";
  const buttons = [copied];
  if (isReply) {
    const again = (label, given) => action(label, () => send(asked, turn.parent, given));
    buttons.push(again("Regenerate"));
    if (CUT.includes(turn.finish_reason) && content) buttons.push(again("Continue", turn.messages[index]));
  } else if (index === asked.length - 1 && role === "user") {
    const sendEdited = (text) => send([...asked.slice(0, -1), { role, content: text }], turn.parent);
    buttons.push(action("Edit", ({ target }) =>
      edit(content, target.closest("article"), sendEdited)));
  }
  const differs = turn.messages.findIndex((one, at) =>
    versions.some(({ messages }) => messages[at]?.content !== one.content));
  if (versions.length > 1 && (isReply || index === differs)) {
    const shown = versions.indexOf(turn);
    const step = (label, name, by) => {
      const button = action(label, () => turnTo(versions[shown + by].id, button, isReply));
      button.ariaLabel = name;
      button.disabled = versions[shown + by] === undefined;
      return button;
    };
    buttons.push(
      step("‹", "Previous version", -1),
      make("span", `${shown + 1} of ${versions.length}`),
      step("›", "Next version", 1),
    );
  }
  return buttons;
}

// ---- scrolling ----

export function isAtEnd() {
  const { scrollHeight, scrollTop, clientHeight } = $("transcript");
  return scrollHeight - scrollTop - clientHeight < 80;
}

export function scrollToEnd() {
  $("turns").style.paddingBottom = "";
  $("transcript").scrollTo(0, 1e9);
}

// Scrolls an element to a height, with space below if the text is short.
export function bringTo(element, top) {
  const scroll = () => {
    const distance = element.getBoundingClientRect().top - top;
    $("transcript").scrollBy(0, distance);
    return distance;
  };
  scroll();
  $("turns").style.paddingBottom = `${Math.max(0, scroll())}px`;
  scroll();
}
