// Markdown -> elements of a few kinds. Every text node knows its place in the source, so that the
// window can be painted over it, token by token. Text never becomes HTML.

import { action, make } from "./elements.js";
import { Flow, inlineIn } from "./inline.js";

const BLOCK = 4000;  // characters of a block, after which it ends with its line
const LINE = 65536;  // characters of a line, after which it is cut
const DEEP = 12;  // lists and quotes around a text

// ---- text -> blocks ----

// A marker or a line of dashes counts once more than itself has arrived: until then it may become
// something else, and a reply must not flicker while it is written.
const BLANK = /^\s*$/;
const FENCE = /^( {0,3})(?:(`{3,})([^`\n]*)|(~{3,})(.*))$/m;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t\n])/;
const UNDERLINE = /^ {0,3}(?:(={2,}|=(?=\s*\n))|-{3,}|-+(?=\s*\n))\s*$/;
const RULE = /^ {0,3}(?:-(?:[ \t]*-){2,}[ \t]*$|([*_])(?:[ \t]*\1){2,}[ \t]*\n)/m;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^([ \t]*)([-*+]|(\d{1,9})([.)]))(?=[ \t\n])/;
const MARKS = /^(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])(?=[ \t\n])))+[ \t]*/;
const COLUMNS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?\s*$/;
const MATHS = /^ {0,3}(\$\$|\\\[)\s*$/;
const CLOSED = { "$$": "$$", "\\[": "\\]" };

export function linesOf(text, start, end = text.length) {
  const lines = [];
  for (let at = start; at < end;) {
    const newline = text.indexOf("\n", at);
    let next = newline < 0 || newline >= end ? end : newline + 1;
    if (next - at > LINE) next = cut(text, at);
    lines.push({ start: at, end: next });
    at = next;
  }
  return lines;
}

function cut(text, at) {
  const space = text.lastIndexOf(" ", at + LINE);
  const end = space > at ? space + 1 : at + LINE;
  return /[\uDC00-\uDFFF]/.test(text[end] ?? "") ? end - 1 : end;
}

// A block is {kind, start, end, lines}. One that is long is divided into several: the later ones
// `join` the one before, and `inside` is the code or the table that they continue. Text is only
// appended to, so all blocks but the last two stay. `from` is where a block's first mark is.
export function split(text, lines, { isPlain = false, limit = BLOCK, inside = null } = {}) {
  const blocks = [];
  let open = null;
  let blanks = [];  // of a list, if it goes on
  const begin = (kind, line, more = {}) => {
    open = { kind, start: line.start, end: line.end, lines: [line], inside: null, ...more };
    blocks.push(open);
  };
  const extend = (line) => {
    const size = line.end - open.start;
    const isWhole = open.kind === "list" && size <= 4 * limit && indentOf(text, line) > open.indent;
    if (size > limit && !isWhole) return false;
    open.end = line.end;
    open.lines.push(...blanks, line);
    blanks = [];
    return true;
  };
  const goOn = (kind, line) => {
    if (!open || !extend(line)) begin(kind, line, { inside, joins: open !== null || inside !== null });
  };
  lines.forEach((line, index) => {
    const source = text.slice(line.start, line.end);
    const isBlank = BLANK.test(source);
    if (inside?.kind === "code") {
      if (inside.closes(source)) inside = open = null;
      else goOn("code", line);
      return;
    }
    if (inside?.kind === "math" && !isBlank) {
      goOn("math", line);
      if (source.trim() === inside.end) inside = open = null;
      return;
    }
    if (isPlain) {
      goOn("text", line);
      return;
    }
    if (isBlank) {
      if (open?.kind === "list") blanks.push(line);
      else open = inside = null;
      return;
    }
    let kind = kindOf(source, open, text, inside ? undefined : lines[index + 1]);
    if (kind === "text" && inside?.kind === "table") {
      goOn("table", line);
      return;
    }
    inside = null;
    const goesOn = open && continues(open, kind, source, text, blanks.length > 0);
    if (goesOn && extend(line)) return;
    if (goesOn) kind = kindOf(source, null, text, lines[index + 1]);
    blanks = [];
    if (kind === "underline") {
      Object.assign(open, { kind: "heading", level: source.includes("=") ? 1 : 2, end: line.end });
      open.lines.push(line);
      open = null;
      return;
    }
    const more = { joins: Boolean(goesOn) };
    if (kind === "code") {
      inside = fenceOf(source);
      begin(kind, { start: line.end, end: line.end }, { ...more, opened: inside, from: line.start });
      open.lines = [];
      return;
    }
    if (kind === "math") inside = { kind, end: CLOSED[MATHS.exec(source)[1]] };
    if (kind === "list") Object.assign(more, listOf(source));
    if (kind === "heading") more.level = HEADING.exec(source)[1].length;
    if (kind === "table") {
      more.columns = alignments(text, lines[index + 1]);
      inside = { kind, columns: more.columns };
    }
    begin(kind, line, more);
    if (kind === "heading" || kind === "rule") open = null;
  });
  return blocks;
}

function kindOf(source, open, text = "", next = undefined) {
  const isText = open?.kind === "text";
  if (FENCE.test(source)) return "code";
  if (HEADING.test(source)) return "heading";
  if (isText && UNDERLINE.test(source)) return "underline";
  if (RULE.test(source)) return "rule";
  if (QUOTE.test(source)) return "quote";
  if (MATHS.test(source)) return "math";
  const item = ITEM.exec(source);
  // In a paragraph, only the number 1 begins a list: others are often just numbers.
  const isEmpty = item && BLANK.test(source.slice(item[0].length));
  if (item && !(isText && (isEmpty || (item[3] && item[3] !== "1")))) return "list";
  if (next && source.includes("|")) {
    const below = text.slice(next.start, next.end);
    if (COLUMNS.test(below) && below.includes("|")) {
      const line = { start: 0, end: source.length };
      if (cellsOf(source, line).length === cellsOf(text, next).length) return "table";
    }
  }
  return "text";
}

const columnsOf = (space) => [...space].reduce((at, one) => at + (one === "\t" ? 4 - at % 4 : 1), 0);
const indentOf = (text, { start, end }) => columnsOf(/^[ \t]*/.exec(text.slice(start, end))[0]);

function listOf(source) {
  const [, space, mark, number] = ITEM.exec(source) ?? [null, "", "-"];
  const indent = columnsOf(space);
  return { indent, inner: indent + 2, mark: number ? mark.at(-1) : mark };
}

function continues(open, kind, source, text, isAfterBlank) {
  if (open.kind === "list") {
    if (columnsOf(/^[ \t]*/.exec(source)[0]) >= open.inner) return true;
    if (kind === "list") return listOf(source).mark === open.mark;
    if (isAfterBlank) return false;
  } else if (open.kind === kind && (kind === "text" || kind === "quote")) {
    return true;
  }
  if (kind !== "text" || (open.kind !== "list" && open.kind !== "quote")) return false;
  const { start, end } = open.lines.at(-1);  // a paragraph may go on without its mark
  const above = text.slice(start, end).replace(MARKS, "");
  return !BLANK.test(above) && kindOf(above, null) === "text";
}

function fenceOf(source) {
  const [, space, ticks, info, tildes, other] = FENCE.exec(source);
  const mark = ticks ?? tildes;
  const end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  const language = (info ?? other).trim().split(/[\s{]/)[0].toLowerCase();
  return { kind: "code", indent: space.length, language, closes: (line) => end.test(line) };
}

// ---- blocks -> elements ----

// `block.nodes` gets the characters of each text node.
export function build(text, block, isPlain) {
  block.nodes = [];
  const element = isPlain
    ? make("p", "", "text") : elementOf({ text, nodes: block.nodes, depth: 0 }, block);
  if (isPlain) new Flow(text, [block]).put(element, 0, Infinity, block.nodes);
  element.classList.add("block");
  if (block.joins) element.classList.add("joins");
  return element;
}

// `page`: {text, nodes, depth}; text nodes are added to `nodes`.
function elementOf(page, block) {
  const kind = page.depth > DEEP ? "text" : block.kind;
  const lines = block.lines ?? linesOf(page.text, block.start, block.end);
  const element = BUILDERS[kind]({ ...page, depth: page.depth + 1 }, block, lines);
  element.classList.add(kind);
  element.dir = kind === "code" || kind === "math" ? "ltr" : "auto";
  return element;
}

const BUILDERS = {
  text: (page, block, lines) => inlineIn(make("p"), page, lines),
  heading(page, { level }, lines) {
    const { text } = page;
    const last = lines.at(-1);
    let [{ start }, { end }] = [lines[0], last];
    const mark = HEADING.exec(text.slice(start, end));
    if (mark) {
      start += mark[0].length;
      end = start + text.slice(start, end).replace(/(?:^|[ \t])#+\s*$|\s+$/, "").length;
      start += /^[ \t]*/.exec(text.slice(start, end))[0].length;
    }
    const shown = mark ? [{ start, end }] : lines.slice(0, -1);
    return inlineIn(make(`h${Math.min(6, level + 1)}`, "", `level${level}`), page, shown);
  },
  rule() {
    const element = make("div");
    element.append(make("hr"));
    return element;
  },
  quote(page, block, lines) {
    const inner = lines.map(({ start, end }) => {
      const mark = QUOTE.exec(page.text.slice(start, end))?.[0] ?? "";
      return { start: start + mark.length, end };
    });
    return fill(make("blockquote"), page, inner);
  },
  list(page, block, lines) {
    const [, , , number] = ITEM.exec(page.text.slice(lines[0].start, lines[0].end)) ?? [];
    const list = make(number ? "ol" : "ul");
    if (number) list.start = Number(number);
    for (const inner of itemsOf(page.text, lines)) list.append(itemOf(page, inner));
    return list;
  },
  code(page, block, lines) {
    const element = make("div");
    const { indent, language } = block.opened ?? block.inside;
    if (block.opened) {
      const button = action("", () => {}, "copy");
      button.ariaLabel = "Copy code";
      if (language) element.dataset.language = language;
      element.append(button);
    }
    const code = make("code");
    const shown = indent ? lines.map((line) => dedented(page.text, line, indent)) : lines;
    const flow = new Flow(page.text, shown);
    colour(flow.text, language, (from, to, name) => {
      const parent = name ? code.appendChild(make("span", "", name)) : code;
      flow.put(parent, from, to, page.nodes);
    });
    element.append(make("pre"));
    element.lastChild.append(code);
    return element;
  },
  math(page, block, lines) {
    const element = make("p");
    new Flow(page.text, lines).put(element, 0, Infinity, page.nodes);
    return element;
  },
  table(page, block, lines) {
    const columns = block.columns ?? block.inside.columns;
    const table = make("table");
    lines.forEach((line, index) => {
      if (block.columns && index === 1) return;
      const isHead = block.columns && index === 0;
      const section = isHead ? table.createTHead() : table.tBodies[0] ?? table.createTBody();
      const row = section.insertRow();
      const cells = cellsOf(page.text, line);
      columns.forEach((side, at) => {
        const cell = row.appendChild(make(isHead ? "th" : "td"));
        cell.style.textAlign = side;
        cell.dir = "auto";
        if (cells[at]) inlineIn(cell, page, [cells[at]]);
      });
    });
    const element = make("div");
    element.append(table);
    return element;
  },
};

function fill(parent, page, lines) {
  for (const block of split(page.text, lines, { limit: Infinity })) {
    parent.append(elementOf(page, block));
  }
  return parent;
}

// Yields the lines of each item, without its marker and indent.
function* itemsOf(text, lines) {
  let item = null;
  let inner = 0;
  for (const line of lines) {
    const source = text.slice(line.start, line.end);
    const mark = ITEM.exec(source);
    const indent = indentOf(text, line);
    if (mark && (item === null || indent < inner)) {
      if (item) yield item;
      const width = /^[ \t]{1,4}(?=\S)/.exec(source.slice(mark[0].length))?.[0].length ?? 1;
      inner = indent + 2;
      item = [{ start: Math.min(line.end, line.start + mark[0].length + width), end: line.end }];
      item.width = indent + mark[2].length + width;
    } else {
      item ??= Object.assign([], { width: 0 });
      item.push(dedented(text, line, item.width));
    }
  }
  if (item) yield item;
}

function itemOf(page, lines) {
  const item = make("li");
  item.dir = "auto";
  const task = /^\[([ xX])\](?=\s)/.exec(page.text.slice(lines[0].start, lines[0].end));
  if (task) {
    item.className = task[1] === " " ? "task" : "task done";
    lines[0] = { start: lines[0].start + 4, end: lines[0].end };
  }
  const blocks = split(page.text, lines, { limit: Infinity });
  blocks.forEach((block, index) => {
    if (index === 0 && block.kind === "text") inlineIn(item, page, block.lines);
    else item.append(elementOf(page, block));
  });
  return item;
}

function dedented(text, { start, end }, columns) {
  for (let at = 0; at < columns && start < end && /[ \t]/.test(text[start]);) {
    at += text[start] === "\t" ? 4 - at % 4 : 1;
    start += 1;
  }
  return { start, end };
}

// Returns the characters of each cell of a row.
function cellsOf(text, { start, end }) {
  const cells = [];
  const row = text.slice(start, end);
  let from = /^\s*\|?/.exec(row)[0].length;
  const add = (to) => {
    const cell = row.slice(from, to);
    const lead = cell.length - cell.trimStart().length;
    const begin = start + from + Math.min(lead, cell.length);
    cells.push({ start: begin, end: Math.max(begin, begin + cell.trim().length) });
    from = to + 1;
  };
  for (let at = from; at < row.length; at += 1) {
    if (row[at] === "\\") at += 1;
    else if (row[at] === "|") add(at);
  }
  if (row.slice(from).trim()) add(row.length);
  return cells;
}

function alignments(text, line) {
  return cellsOf(text, line).map(({ start, end }) => {
    const [left, right] = [text[start] === ":", text[end - 1] === ":"];
    return left && right ? "center" : right ? "right" : left ? "left" : "";
  });
}

// ---- colours of code, for any language of a common form ----

const WORDS = new Set(("and as async await break case catch class const continue def default elif else enum except "
  + "export extends false False finally fn for from func function if import in int interface let match new None not "
  + "null or pass private public return self static string struct switch this throw true True try type using var void "
  + "where while with yield select insert update").split(" "));
const HASH = "bash sh shell zsh console python py ruby rb perl yaml yml toml r";
const DASH = "sql lua haskell";
const PLAIN = "text txt plain plaintext markdown md output log";
const STRINGS = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'`;
const listed = (list, name) => list.split(" ").includes(name);

function lexerOf(language) {
  const comment = listed(HASH, language) ? "#[^\n]*" : listed(DASH, language) ? "--[^\n]*"
    : listed("csv json", language) ? "(?!)" : String.raw`//[^\n]*|/\*[^]*?(?:\*/|$)|<!--[^]*?(?:-->|$)`;
  return new RegExp(`(?<comment>${comment})|(?<string>${STRINGS})|`
    + String.raw`(?<number>\b\d[\w.]*)|(?<word>[\p{L}_][\p{L}\p{N}_]*)`, "gu");
}

// Calls `put(from, to, name)` for all parts of a code, in order; a plain part has no name.
function colour(code, language, put) {
  let at = 0;
  if (language && !listed(PLAIN, language)) {
    for (const found of code.matchAll(lexerOf(language))) {
      const [name] = Object.entries(found.groups).find(([, value]) => value !== undefined);
      const isWord = name === "word";
      const word = language === "sql" ? found[0].toLowerCase() : found[0];
      if (!found[0] || (isWord && !WORDS.has(word))) continue;
      if (found.index > at) put(at, found.index, "");
      at = found.index + found[0].length;
      put(found.index, at, name);
    }
  }
  if (at < code.length) put(at, code.length, "");
}
