"""How Markdown is shown: as markdown-it reads it, and with a place for each character."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="needs selenium")
from markdown_it import MarkdownIt

from tests.python.server.http.running_server import Running
from tests.python.server.page.tab import Tab

# Returns what a text is shown as, in the words of HTML: elements of the page's own are left out.
SHOWN = r"""
const [texts, done] = arguments;
import("/page/markdown.js").then(({ build, linesOf, split }) => {
  const own = { label: "a", link: "a", address: null };
  const words = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/[&<>]/g,
      (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" }[one]));
    let name = node.tagName.toLowerCase();
    const inside = [...node.childNodes].map(words).join("");
    if (/^h[2-6]$/.test(name)) name = `h${node.className.match(/level(\d)/)[1]}`;
    if (name === "span") name = own[node.className] === undefined ? "" : own[node.className];
    if (name === null || name === "button") return "";
    if (name === "hr" || name === "br") return `<${name}>`;
    const isHidden = ["", "div", "tbody", "thead"].includes(name)
      || (name === "p" && node.parentElement?.tagName === "LI");
    return isHidden ? inside : `<${name}>${inside}</${name}>`;
  };
  done(texts.map((text) => split(text, linesOf(text, 0))
    .map((block) => words(build(text, block, false))).join("")));
}).catch((error) => done(String(error)));
"""


class Words(HTMLParser):
    """Writes HTML as `SHOWN` does."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if not self._is_hidden(tag):
            self.written.append(f"<{tag}>")

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.written.append(f"<{tag}>")

    def _is_hidden(self, tag: str) -> bool:
        return tag in ("tbody", "thead") or (tag == "p" and self.open[-2:-1] == ["li"])

    def handle_endtag(self, tag: str) -> None:
        if not self._is_hidden(tag):
            self.written.append(f"</{tag}>")
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for one, other in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
            data = data.replace(one, other)
        self.written.append(data)


def expected(text: str) -> str:
    parser = MarkdownIt("commonmark", {"html": False})
    parser.enable(["table", "strikethrough"])
    # The page shows these as they are written: indented text is seldom code in a reply.
    parser.disable(["code", "entity", "reference", "image"])
    words = Words()
    words.feed(parser.render(text))
    return "".join(words.written).replace("<br>", "")  # the page keeps every newline


def bare(words: str) -> str:
    """Leave white space out, of which the page keeps more."""
    return "".join(words.split())


SAMPLES = (Path(__file__).parent / "samples.md").read_text(encoding="utf-8").split("\n---\n")
PARTS = [
    *("*", "**", "_", "`", "a", "b c", " ", ".", "(", "é", "\\", "[t](u)", "\n", "\n\n"),
    *("\n- ", "\n1. ", "\n> ", "\n\n# ", "\n```\ncode *x*\n```\n"),
    "\n\nx | y\n--|--\n1 | 2\n\n",
]
MARKS = ["*", "**", "***", "_", "__", "~~", "`", "a", "b c", " ", ".", "(", "é", "x_y"]


def mixtures(parts: list[str], seed: int, count: int) -> list[str]:
    """Return random texts, without what the page shows in its own way.

    These are a newline after a backslash, four tildes, and an empty item before a blank line.
    """
    chance = random.Random(seed)
    texts = ["a" + "".join(chance.choices(parts, k=chance.randint(3, 14))) for _ in range(count)]
    return [f"{text}\n" for text in texts if not re.search(r"~~~~|\\\n|(?:-|1\.) +\n\n", text)]


def different(tab: Tab, texts: Sequence[str]) -> list[tuple[str, str, str]]:
    found = tab.browser.execute_async_script(SHOWN, list(texts))
    assert isinstance(found, list), found
    pairs = zip(texts, found, map(expected, texts), strict=True)
    return [(text, one, other) for text, one, other in pairs if bare(one) != bare(other)]


def test_ordinary_markdown_has_the_structure_that_markdown_it_finds(
    server: Running, tab: Tab
) -> None:
    tab.open(server)
    assert different(tab, SAMPLES) == []


@pytest.mark.parametrize("parts", [PARTS, MARKS], ids=["blocks", "emphasis"])
def test_mixtures_have_the_structure_that_markdown_it_finds(
    server: Running, tab: Tab, parts: list[str]
) -> None:
    tab.open(server)
    assert different(tab, mixtures(parts, 5, 1000)) == []


SPANS = """
const [texts, done] = arguments;
import("/page/markdown.js").then(({ build, linesOf, split }) => {
  done(texts.map((text) => split(text, linesOf(text, 0)).flatMap((block) => {
    const element = build(text, block, false);
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const shown = [];
    while (walker.nextNode()) shown.push(walker.currentNode);
    return block.nodes.map(({ start, end, node }, index) =>
      [start, end, node.data, node === shown[index] && shown.length === block.nodes.length]);
  })));
}).catch((error) => done(String(error)));
"""


def test_each_character_that_is_shown_knows_its_place_in_the_source(
    server: Running, tab: Tab
) -> None:
    tab.open(server)
    texts = [*SAMPLES, *mixtures(PARTS, 7, 300)]
    for text, nodes in zip(texts, tab.browser.execute_async_script(SPANS, texts), strict=True):
        at = 0
        for start, end, shown, is_in_order in nodes:
            assert (text[start:end], is_in_order) == (shown, True), text
            assert start >= at, text
            at = end


def test_markdown_that_is_deep_or_hostile_is_shown_soon(server: Running, tab: Tab) -> None:
    """No pattern looks far ahead from each of many places."""
    tab.open(server)
    parts = [
        "> ",
        "- ",
        "*a ",
        "[",
        "`a",
        "``a`",
        "$a",
        "\\(a",
        "**a*_b",
        "[a](",
        "|a",
        "~~a",
        "<br",
    ]
    texts = [part * (60_000 // len(part)) for part in parts]
    found = tab.browser.execute_async_script(SHOWN, texts)
    assert isinstance(found, list), found
    for text, shown in zip(texts, found, strict=True):
        assert shown.count("<li>") + shown.count("<blockquote>") <= 13, text[:6]


def test_blocks_and_cells_choose_their_own_direction(server: Running, tab: Tab) -> None:
    tab.open(server)
    script = """
    const done = arguments[arguments.length - 1];
    import("/page/transcript.js").then(({ MessageView }) => {
      const content = "שלום עולם.\\n\\nHello.\\n\\n- مرحبا\\n\\n```\\nשלום\\n```\\n";
      const view = new MessageView({ role: "assistant", content });
      document.querySelector("#transcript").append(view.element);
      const found = view.element.querySelectorAll("p, li, .code");
      done([...found].map((one) => getComputedStyle(one).direction));
    }).catch((error) => done(String(error)));
    """
    assert tab.browser.execute_async_script(script) == ["rtl", "ltr", "rtl", "ltr"]


def test_a_reply_and_a_code_of_any_length_are_copied(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.say("the sea")
    tab.click("Copy reply", "assistant")
    assert tab.run("return window.copied") == tab.messages("assistant")[0]
    code = "".join(f"line {number}\n" for number in range(2000))
    script = """
    const [code, done] = arguments;
    import("/page/transcript.js").then(({ MessageView }) => {
      const content = "x\\n\\n```py\\n" + code + "```\\n\\n- a\\n\\n  ```\\n  in a list\\n  ```\\n";
      const view = new MessageView({ role: "assistant", content });
      document.querySelector("#transcript").append(view.element);
      done([...view.element.querySelectorAll(".copy")].map((button) => {
        button.click();
        return window.copied;
      }));
    }).catch((error) => done(String(error)));
    """
    assert tab.browser.execute_async_script(script, code) == [code, "in a list\n"]
