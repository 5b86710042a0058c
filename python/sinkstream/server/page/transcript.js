// Shows messages and the model's window over them. Model text becomes text nodes only.

import { action, copy, make } from "./elements.js";
import { build, linesOf, split } from "./markdown.js";

const SHOWN = 100;  // blocks of a message in the document at a time

// ---- the window over the text ----

const painted = { evicted: null, sinks: null };
if (globalThis.CSS?.highlights) {
  for (const name of Object.keys(painted)) {
    painted[name] = new Highlight();
    CSS.highlights.set(name, painted[name]);
  }
}

export function clearPaint() {
  for (const highlight of Object.values(painted)) highlight?.clear();
}

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

// A message: {role, content, begin, end, offsets}: its tokens, and the character where each begins.
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

  // Puts blocks [first, first + SHOWN) into the document.
  turnTo(first) {
    const most = Math.max(0, this.blocks.length - SHOWN);
    this.first = Math.min(Math.max(0, Math.round(first)), most);
    this.follows = this.first === most;
    const shown = this.blocks.slice(this.first, this.first + SHOWN);
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

  // Greys tokens [sinks, sinks + evicted); returns how the message is seen, if not whole.
  paint(sinks, evicted) {
    const from = this.character(sinks);
    const to = evicted > 0 ? Math.max(from, this.character(sinks + evicted)) : from;
    const key = `${from} ${to} ${this.blocks.length}`;
    for (const block of this.blocks.slice(this.first, this.first + SHOWN)) {
      const isGone = from < to && block.start >= from && block.end <= to;
      if (this.painted !== key) {
        block.element.classList.toggle("evicted", isGone);
        block.element.classList.toggle("sink", block.start < from);
        block.element.classList.toggle("edge", !isGone && block.start < to && block.end > to);
      }
      if (!isGone) {
        paint("sinks", block, block.start, Math.min(block.end, from));
        paint("evicted", block, Math.max(block.start, from), Math.min(block.end, to));
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

// ---- scrolling ----

export function isAtEnd() {
  const { scrollHeight, scrollTop, clientHeight } = document.getElementById("transcript");
  return scrollHeight - scrollTop - clientHeight < 80;
}
export const scrollToEnd = () => document.getElementById("transcript").scrollTo(0, 1e9);
