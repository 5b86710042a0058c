// Shows messages and the model's window over them. Model text becomes text nodes only.

const BLOCK = 4000;  // characters of a block; longer ones are split
const SHOWN = 100;  // blocks of a message in the document at a time

export function make(name, text = "", className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

export function action(label, act, className) {
  const button = make("button", label, className);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

// ---- text -> blocks ----

// A block is {kind, start, end}; it may continue the one before (`joins`). Text is only appended to,
// so all blocks but the last two stay; `fence` marks code around the last one, or is null.
export function split(text, start, isPlain, fence = null) {
  const blocks = [];
  let open = null;
  let at = start;
  while (at < text.length) {
    const newline = text.indexOf("\n", at);
    let end = newline < 0 ? text.length : newline + 1;
    if (end - at > BLOCK) end = cut(text, at);
    const line = text.slice(at, end);
    const kind = isPlain ? "text" : kindOf(line, fence);
    const goesOn = open !== null && kind !== "heading"
      && (open.kind === kind || (open.kind === "list" && kind === "text" && /^\s/.test(line)));
    if (kind === "blank") {
      open = null;
    } else if (kind === "fence" && fence !== null) {
      fence = open = null;
    } else if (kind === "fence") {
      fence = line.trim().slice(0, 3);
      open = { kind: "code", start: end, end, fence, from: at };
      blocks.push(open);
    } else if (goesOn && end - open.start <= BLOCK) {
      open.end = end;
    } else {
      open = { kind: goesOn ? open.kind : kind, start: at, end, fence, joins: goesOn };
      blocks.push(open);
    }
    at = end;
  }
  return blocks;
}

function cut(text, at) {
  const space = text.lastIndexOf(" ", at + BLOCK);
  const end = space > at ? space + 1 : at + BLOCK;
  return /[\uDC00-\uDFFF]/.test(text[end] ?? "") ? end - 1 : end;
}

function kindOf(line, fence) {
  if (fence !== null) return line.trim() === fence ? "fence" : "code";
  if (/^ {0,3}(```|~~~)[^`]*$/.test(line)) return "fence";
  if (!line.trim()) return "blank";
  if (/^#{1,6} /.test(line)) return "heading";
  return /^\s*([-*+]|\d{1,9}[.)]) /.test(line) ? "list" : "text";
}

// ---- blocks -> elements ----

// `block.nodes` gets the character at which each text node begins.
export function build(text, block, isPlain) {
  block.nodes = [];
  const element = make({ code: "pre", list: "ul" }[block.kind] ?? "p");
  if (block.kind === "code") {
    const code = make("code");
    put(code, text, block.start, block.end, block);
    element.append(code);
  } else if (block.kind === "list") {
    for (let at = block.start; at < block.end;) {
      const newline = text.indexOf("\n", at);
      const end = newline < 0 || newline >= block.end ? block.end : newline + 1;
      const mark = /^(\s*)(?:[-*+]|(\d{1,9})[.)]) /.exec(text.slice(at, end));
      const item = make("li");
      if (mark?.[2]) {
        item.value = Number(mark[2]);
        item.className = "number";
      }
      if (mark?.[1].length > 1) item.classList.add("inner");
      if (!mark) item.classList.add("bare");
      inline(item, text, at + (mark?.[0].length ?? 0), end, block);
      element.append(item);
      at = end;
    }
  } else if (isPlain) {
    put(element, text, block.start, block.end, block);
  } else {
    const skipped = block.kind === "heading" ? text.indexOf(" ", block.start) + 1 : block.start;
    inline(element, text, skipped, block.end, block);
  }
  element.classList.add("block", block.kind);
  if (block.joins) element.classList.add("joins");
  return element;
}

function put(parent, text, start, end, block) {
  if (end <= start) return;
  const node = document.createTextNode(text.slice(start, end));
  block.nodes.push({ start, end, node });
  parent.append(node);
}

function inline(parent, text, start, end, block) {
  if (text[end - 1] === "\n") end -= 1;
  const marks = /`([^`\n]{1,400})`|\*\*([^*\n]{1,400})\*\*/g;
  const source = text.slice(start, end);
  let at = start;
  for (let found; (found = marks.exec(source)) !== null;) {
    const from = start + found.index;
    put(parent, text, at, from, block);
    const isCode = found[1] !== undefined;
    const part = make(isCode ? "code" : "strong");
    const width = isCode ? 1 : 2;
    at = from + found[0].length;
    put(part, text, from + width, at - width, block);
    parent.append(part);
  }
  put(parent, text, at, end, block);
}

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
    const fence = old?.from === undefined ? old?.fence : null;
    const fresh = split(text, old ? old.from ?? old.start : 0, this.isPlain, fence);
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

  // The first character that is not wholly before `token`.
  character(token) {
    const { begin, end, offsets, content } = this.message;
    if (begin === undefined || token <= begin) return 0;
    if (token >= end) return content.length;
    if (!offsets) return 0;
    const at = offsets[token - begin];
    return at === undefined ? content.length : Math.min(Math.max(0, at), content.length);
  }

  // Greys tokens [sinks, sinks + evicted); returns how much of the message that is: "", "partly
  // evicted" or "evicted".
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
    return isWhole ? "evicted" : "partly evicted";
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
