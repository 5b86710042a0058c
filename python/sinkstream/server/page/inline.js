// Markdown inside a line: emphasis, code, links, maths -> elements. Links are text, with their address.

import { make } from "./elements.js";

// Some lines as one text, of which each character knows its place in the source.
export class Flow {
  constructor(source, lines) {
    this.source = source;
    this.parts = [];  // {from: a character of the flow, start: where it is in the source}
    this.length = 0;
    for (const { start, end } of lines) {
      const last = this.parts.at(-1);
      if (!last || last.start + this.length - last.from !== start) {
        this.parts.push({ from: this.length, start });
      }
      this.length += end - start;
    }
    const ends = (index) => (this.parts[index + 1]?.from ?? this.length) - this.parts[index].from;
    this.text = this.parts
      .map(({ start }, index) => source.slice(start, start + ends(index))).join("");
  }

  put(parent, from, to, nodes) {
    this.parts.forEach((part, index) => {
      const begin = Math.max(from, part.from);
      const end = Math.min(to, this.parts[index + 1]?.from ?? this.length);
      if (begin >= end) return;
      const start = part.start + begin - part.from;
      const node = document.createTextNode(this.text.slice(begin, end));
      nodes.push({ start, end: start + end - begin, node });
      parent.append(node);
    });
  }
}

const INLINE = new RegExp([
  String.raw`(?<math>\\\((?:(?!\\\))[^]){1,1000}\\\)|\\\[(?:(?!\\\])[^]){1,1000}\\\]`
    + String.raw`|\$\$[^$]{1,1000}\$\$|\$(?![\s\d$])(?:[^$\n\\]|\\.){0,400}(?<![\s\\])\$(?!\d)`
    + String.raw`|\$\d(?:[^$\n\\]|\\.){0,400}[\\^_=](?:[^$\n\\]|\\.){0,400}(?<![\s\\])\$(?!\d))`,
  String.raw`(?<escape>\\(?=[!-/:-@\[-\x60{-~]))`,
  "(?<ticks>`+)",
  String.raw`!?\[(?<label>(?:[^[\]\\]|\\.|\[[^[\]\n]{0,400}\]){0,1000})\]\(`
    + String.raw`(?<address><[^<>\n]{0,2000}>|[^\s()<]{0,2000}(?:\([^\s()]{0,400}\)[^\s()]{0,400}){0,9})`
    + String.raw`(?:\s{1,9}"[^"]{0,400}")?\)`,
  String.raw`<(?<link>https?:[^\s<>]{1,2000})>`,
  String.raw`(?<br><br ?/?>)`,
  String.raw`(?<run>\*+|_+|~+)`,
].join("|"), "g");
const SPACE = /^\s?$/u;
const SIGN = /^[\p{P}\p{S}]$/u;

export function inlineIn(parent, page, lines) {
  const flow = new Flow(page.text, lines);
  const end = flow.text.endsWith("\n") ? flow.length - 1 : flow.length;
  inline(parent, flow, 0, end, page.nodes);
  return parent;
}

function inline(parent, flow, start, end, nodes) {
  const parts = partsOf(flow.text, start, end);
  pair(parts.flatMap(({ run }) => run ?? []));
  const stack = [parent];
  const nest = (name) => stack.push(stack.at(-1).appendChild(make(name)));
  for (const { kind, from, to, run } of parts) {
    const here = stack.at(-1);
    if (run) {
      run.closes.forEach(() => stack.pop());
      flow.put(stack.at(-1), from + run.used, from + run.used + run.left, nodes);
      run.opens.reverse().forEach(nest);
    } else if (kind === "br") {
      here.append(make("br"));
    } else if (kind === "label") {
      inline(here.appendChild(make("span", "", kind)), flow, from, to, nodes);
    } else if (kind === "text") {
      flow.put(here, from, to, nodes);
    } else {
      const name = kind === "code" ? "code" : "span";
      flow.put(here.appendChild(make(name, "", name === "span" ? kind : "")), from, to, nodes);
    }
  }
}

// Returns {kind, from, to} and {run}, in order; marks are left out.
function partsOf(text, start, end) {
  const parts = [];
  let at = start;
  const source = text.slice(0, end);
  const add = (kind, from, to) => { if (to > from) parts.push({ kind, from, to }); };
  INLINE.lastIndex = start;
  for (let found; (found = INLINE.exec(source)) !== null;) {
    const { index: from, groups } = found;
    let to = from + found[0].length;
    add("text", at, from);
    if (groups.ticks) {
      const size = groups.ticks.length;
      const code = new RegExp(`(?<!\`)\`{${size}}(?!\`)`, "g");
      code.lastIndex = to;
      const close = code.exec(source)?.index ?? -1;
      if (close < 0) add("text", from, to);
      else {
        const padded = /^ (?=.*[^ ]).* $/s.test(source.slice(to, close)) ? 1 : 0;
        add("code", to + padded, close - padded);
        to = close + size;
      }
    } else if (groups.escape) {
      to += 1;
      add("text", to - 1, to);
    } else if (groups.label !== undefined) {
      const begin = source.indexOf("[", from) + 1;
      const label = begin + groups.label.length;
      const isBare = groups.address.startsWith("<") ? 1 : 0;
      add("label", begin, label);
      if (groups.address !== groups.label) {
        add("address", label + 2 + isBare, label + 2 + groups.address.length - isBare);
      }
    } else if (groups.link) {
      add("link", from + 1, to - 1);
    } else if (groups.run) {
      parts.push({ from, to, run: runOf(source, from, to) });
    } else {
      add(groups.br ? "br" : "math", from, to);
    }
    at = INLINE.lastIndex = to;
  }
  add("text", at, end);
  return parts;
}

// Emphasis, by the rules of CommonMark.
function runOf(text, from, to) {
  const mark = text[from];
  const before = [...text.slice(Math.max(0, from - 2), from)].at(-1) ?? "";
  const [after] = [...text.slice(to, to + 2), ""];
  const isLeft = !SPACE.test(after) && (!SIGN.test(after) || SPACE.test(before) || SIGN.test(before));
  const isRight = !SPACE.test(before)
    && (!SIGN.test(before) || SPACE.test(after) || SIGN.test(after));
  const isWord = mark === "_";
  const isUsed = mark !== "~" || to - from >= 2;
  return {
    mark, count: to - from, left: to - from, used: 0, opens: [], closes: [],
    canOpen: isUsed && isLeft && (!isWord || !isRight || SIGN.test(before)),
    canClose: isUsed && isRight && (!isWord || !isLeft || SIGN.test(after)),
  };
}

const FAR = 100;  // runs between the two ends of an emphasis

function pair(runs) {
  let open = [];
  for (const run of runs) {
    for (let at = open.length - 1; run.canClose && run.left && at >= 0; at -= 1) {
      const other = open[at];
      const isOdd = (other.canClose || run.canOpen) && (other.count + run.count) % 3 === 0
        && (other.count % 3 || run.count % 3);
      if (other.mark !== run.mark || isOdd) continue;
      open.length = at + 1;
      while (other.left && run.left) {
        const width = other.left >= 2 && run.left >= 2 ? 2 : 1;
        if (run.mark === "~" && width === 1) break;
        const name = run.mark === "~" ? "s" : width === 2 ? "strong" : "em";
        other.opens.push(name);
        run.closes.push(name);
        other.left -= width;
        run.left -= width;
        run.used += width;
      }
      if (!other.left) open.pop();
    }
    if (run.canOpen && run.left) open.push(run);
    open = open.slice(-FAR);
  }
}
