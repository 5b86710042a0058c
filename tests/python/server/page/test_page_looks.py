"""The page in each of its states: names, contrast, size and reach of all controls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium")

from selenium.webdriver.common.keys import Keys

from tests.python.lanes import products
from tests.python.server.http.running_server import Running
from tests.python.server.page.tab import Tab

MARKDOWN = """# One
## Two
##### Five

Words with **bold**, *slanted* and `code`, a [link](https://example.org/x), $x^2$.

> quoted

1. first
   - [ ] to do
   - [x] done

| left | right |
|---|---:|
| a | 1 |

```python
def f(x):
    return "text"  # a comment, 12
```
"""
CHAT = {
    "title": "t",
    "turns": [
        {"id": "a", "parent": None, "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is *this*?"},
            {"role": "assistant", "content": MARKDOWN}]},
        {"id": "b", "parent": "a", "messages": [
            {"role": "user", "content": "And?"}, {"role": "assistant", "content": "That."}]},
        {"id": "c", "parent": "a", "messages": [
            {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Another."}]},
    ],
}  # fmt: skip
IMPORT = """
const files = new DataTransfer();
files.items.add(new File([arguments[0]], "chat.json"));
const field = document.getElementById("import-file");
field.files = files.files;
field.dispatchEvent(new Event("change"));
"""


def start(tab: Tab) -> None:
    tab.until(lambda: tab.is_shown("#empty"), "it is empty")


def imported(tab: Tab) -> None:
    tab.run(IMPORT, json.dumps(CHAT))
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "it is shown")


def settings(tab: Tab) -> None:
    tab.one("#toggle-settings").click()


def chats(tab: Tab) -> None:
    tab.one("#toggle-settings").click()
    if not tab.is_shown("#sidebar"):
        tab.one("#toggle-list").click()


def talk(tab: Tab) -> None:
    """Far past the window, with a reply that can be continued."""
    if tab.one("#toggle-list").get_attribute("aria-expanded") == "true" and tab.width < 800:
        tab.one("#toggle-list").click()
    tab.run("document.getElementById('xray').click()")
    tab.one("#new-chat").click() if tab.is_shown("#new-chat") else tab.reload()
    for text in ("the sea", "the boat", "the house"):
        tab.say(text)
    tab.one("#grey summary").click()


def edited(tab: Tab) -> None:
    tab.click("Edit", "user")


def word(tab: Tab) -> None:
    tab.press(Keys.ESCAPE)
    tab.run("[...document.querySelectorAll('.words')].at(-1).focus()")
    tab.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER)
    assert tab.is_shown("#close-word")


def refused(tab: Tab) -> None:
    tab.press(Keys.ESCAPE)
    tab.set(temperature=-1)
    tab.begin("too cold")
    tab.until(lambda: tab.is_shown("#error"), "it is refused")
    tab.set(temperature="")


def busy(tab: Tab) -> None:
    tab.set(max_output_tokens=20000)  # with the X-ray on, about the most
    tab.press(Keys.CONTROL + "a")
    tab.begin("at length")
    tab.until(lambda: tab.is_shown("#stop") and "tokens/s" in tab.text("#status"), "it runs")


STATES: list[Callable[[Tab], None]] = [
    start, imported, settings, chats, talk, edited, word, refused, busy
]  # fmt: skip
"""In this order, each follows the one before."""

# Texts with less than 4.5 : 1 to their background; what is disabled is exempt.
FAINT = """
const channels = (text) => {
  const found = text.match(/[\\d.]+/g).map(Number);
  return found.length === 3 ? [...found, 1] : found;
};
const over = ([r, g, b, a], [x, y, z]) =>
  [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
const backdrop = (element) => {
  const layers = [];
  for (let one = element; one; one = one.parentElement) {
    layers.unshift(channels(getComputedStyle(one).backgroundColor));
  }
  return layers.reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
};
const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
  .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
  .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
const ratio = (color, back) => {
  const [most, least] = [light(over(channels(color), back)), light(back)].sort((a, b) => b - a);
  return (most + 0.05) / (least + 0.05);
};
const isShown = (element) => !element.closest(":disabled, .hidden")
  && element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const faint = [];
const check = (text, style, element) => {
  const back = over(channels(style.backgroundColor), backdrop(element));
  const found = ratio(style.color, back);
  if (!(found >= 4.5)) faint.push(`${text.trim().slice(0, 40)} ${found.toFixed(2)} ${style.color}`);
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (node.data.trim() && isShown(element)) check(node.data, getComputedStyle(element), element);
}
for (const field of document.querySelectorAll("input, textarea")) {
  if (isShown(field)) check(`${field.id} holds`, getComputedStyle(field, "::placeholder"), field);
}
for (const block of document.querySelectorAll(".block")) {
  for (const name of ["evicted", "sinks", "unsure", "word"]) {
    if (isShown(block)) check(name, getComputedStyle(block, `::highlight(${name})`), block);
  }
}
return faint;
"""
CONTROLS = """
return [...document.querySelectorAll("button, input, select, textarea, summary, a, .words")]
  .filter((one) => one.checkVisibility() && !one.disabled && !one.closest(".hidden"));
"""
SMALL = """
return arguments[0].filter((one) => !one.matches(".words"))
  .map((one) => (one.type === "checkbox" ? one.labels[0] : one))
  .map((one) => [one.getBoundingClientRect(), one.outerHTML.slice(0, 100)])
  .filter(([box]) => box.height < 44 || box.width < 44).map(([, text]) => text);
"""
FOCUSED = """
const one = document.activeElement;
const { outlineStyle, outlineWidth } = getComputedStyle(one);
return [one, outlineStyle !== "none" && parseFloat(outlineWidth) >= 2, one.outerHTML.slice(0, 100)];
"""
ROLES = ("button", "checkbox", "combobox", "link", "searchbox", "spinbutton", "textbox")


def names(tab: Tab) -> list[str]:
    """Return the roles and names of controls, as a screen reader has them."""
    tree = tab.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return [
        f"{node['role']['value']} {node.get('name', {}).get('value', '')}".strip()
        for node in tree
        if not node["ignored"] and node["role"]["value"] in ROLES
    ]


def check_looks(tab: Tab, state: str) -> None:
    assert tab.run(FAINT) == [], state
    controls = tab.run(CONTROLS)
    found = names(tab)
    assert len(found) >= 5, state
    assert [name for name in found if name in ROLES] == [], state
    assert tab.run("return document.documentElement.scrollWidth - innerWidth") <= 0, state
    if tab.width < 800:
        assert tab.run(SMALL, controls) == [], state


def check_reach(tab: Tab, state: str) -> None:
    """Check that Tab reaches all controls, and that each shows that it has the focus."""
    controls = {one.id for one in tab.run(CONTROLS)}
    reached: set[str] = set()
    for _ in range(2 * len(controls) + 5):
        tab.press(Keys.TAB)
        one, has_ring, text = tab.run(FOCUSED)
        if one.id in reached and controls <= reached:
            break
        assert has_ring or one.id not in controls, (state, text)
        reached.add(one.id)
    lost = [one.get_attribute("outerHTML") for one in tab.run(CONTROLS) if one.id not in reached]
    assert lost == [], state


REACHED = {"start", "imported", "chats", "talk", "word"}


@pytest.mark.parametrize(("width", "theme"), products([1280, 390], ["light", "dark"], together=1))
def test_each_state_of_the_page_can_be_read_named_touched_and_reached(
    server: Running, tab: Tab, width: int, theme: str
) -> None:
    def emulate(*features: dict[str, Any]) -> None:
        tab.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [*features]})

    emulate({"name": "prefers-color-scheme", "value": theme})
    try:
        tab.open(server, width=width, height=800)
        for state in STATES:
            state(tab)
            check_looks(tab, state.__name__)
            if state.__name__ in REACHED and theme == "light":
                check_reach(tab, state.__name__)
        tab.one("#stop").click()
        tab.until_idle()
        tab.check_clean()
    finally:
        emulate()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_locked_page_can_be_read_named_touched_and_reached(
    locked: Running, tab: Tab, width: int
) -> None:
    tab.open(locked, width=width)
    assert tab.is_shown("#unlock")
    check_looks(tab, "locked")
    check_reach(tab, "locked")


def test_the_checks_see_what_they_look_for(server: Running, tab: Tab) -> None:
    tab.open(server, width=390)
    for style, script in (
        ("#promise { color: #8888 !important }", FAINT),
        ("#message::placeholder { color: #aaa }", FAINT),
        ("#send { min-height: 0 !important; height: 43px }", SMALL),
    ):
        tab.run("window.sheet = new CSSStyleSheet(); sheet.replaceSync(arguments[0]);"
                "document.adoptedStyleSheets = [sheet]", style)  # fmt: skip
        found = tab.run(script, tab.run(CONTROLS))
        assert len(found) == 1, (style, found)
        tab.run("document.adoptedStyleSheets = []")
    assert tab.run(FAINT) == []
    tab.run("const one = document.getElementById('attach');"
            "one.ariaLabel = one.title = one.textContent = ''")  # fmt: skip
    assert "button" in names(tab)
    tab.run("document.getElementById('send').tabIndex = -1")
    with pytest.raises(AssertionError, match='id="send"'):
        check_reach(tab, "broken")
