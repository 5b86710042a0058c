"""The X-ray: each word's odds, what the model saw when it was written, and another word instead."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium")

from selenium.webdriver.common.keys import Keys

from tests.python.server.http.running_server import Running
from tests.python.server.page.tab import WORDS, Tab
from tests.python.server.page.test_page_window import GREY, SINKS, WINDOW, turns_of
from tests.python.server.responses.checking import RESPONSES

SEEN = "When it was written, the model saw {} of {} tokens."

KEEP_BODIES = """
const ask = window.fetch;
window.bodies = [];
window.fetch = (path, options) => {
  if (path === "v1/responses") window.bodies.push(JSON.parse(options.body));
  return ask(path, options);
};
"""


def turn_on(tab: Tab) -> None:
    tab.one("#toggle-settings").click()
    tab.one("#xray").click()
    tab.one("#toggle-settings").click()


def odds_of(server: Running, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the log-probabilities of the reply that the page gets to some messages."""
    body = {
        "input": messages, "seed": 1, "max_output_tokens": 24, "ignore_eos": True,
        "logit_bias": WORDS, "top_logprobs": 5, "store": False,
    }  # fmt: skip
    entries: list[dict[str, Any]] = server.post(RESPONSES, body).json["output"][0]["content"][0][
        "logprobs"
    ]
    return entries


def shown_as(entry: dict[str, Any]) -> str:
    p = math.exp(entry["logprob"])
    return f"“{entry['token']}” {100 * p:.{1 if p < 0.1 else 0}f} %"


def panel(tab: Tab) -> tuple[str, list[str]]:
    """Return what the X-ray says of a word, and of what it nearly was."""
    assert tab.is_shown("#word")
    script = "return [...document.querySelectorAll('#word-others button')].map(b => b.textContent)"
    return tab.text("#word-said"), tab.run(script)


def focus_reply(tab: Tab, index: int = -1) -> None:
    tab.run("[...document.querySelectorAll('.words')].at(arguments[0]).focus()", index)


def test_it_costs_nothing_while_it_is_off(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.run(KEEP_BODIES)
    tab.say("the sea")
    turn_on(tab)
    tab.say("the boat")
    off, on = tab.run("return window.bodies")
    assert "top_logprobs" not in off
    assert on["top_logprobs"] == 5
    tab.reload()
    assert tab.one("#xray").is_selected()  # the browser keeps it
    tab.check_clean()


def test_arrow_keys_lead_through_the_words_of_a_reply(server: Running, tab: Tab) -> None:
    tab.open(server)
    turn_on(tab)
    tab.say("the sea")
    expected = odds_of(server, [{"role": "user", "content": "the sea"}])
    text = "".join(entry["token"] for entry in expected)
    assert tab.messages("assistant") == [text]
    focus_reply(tab)
    for entry in expected:
        tab.press(Keys.ARROW_RIGHT)
        said, others = panel(tab)
        assert said == shown_as(entry)
        assert said == tab.text("#spoken")
        assert others == [
            shown_as(other) for other in entry["top_logprobs"] if other["token"] != entry["token"]
        ]
    tab.press(Keys.ARROW_RIGHT)  # it is the last one
    assert panel(tab)[0] == shown_as(expected[-1])
    tab.press(Keys.ARROW_LEFT)
    assert panel(tab)[0] == shown_as(expected[-2])
    tab.press(Keys.ENTER)
    assert tab.run("return document.activeElement.closest('#word') !== null")
    tab.press(Keys.ESCAPE)
    assert not tab.is_shown("#word")
    assert tab.run("return document.activeElement.matches('.words')")
    tab.check_clean()


def test_the_mouse_finds_the_word_below_it(server: Running, tab: Tab) -> None:
    tab.open(server)
    turn_on(tab)
    tab.say("the sea")
    expected = odds_of(server, [{"role": "user", "content": "the sea"}])
    point = """
      const text = document.querySelector(".words .block").firstChild;
      const range = document.createRange();
      range.setStart(text, arguments[0]);
      range.setEnd(text, arguments[0] + 1);
      const box = range.getBoundingClientRect();
      return [box.left + box.width * arguments[1], box.top + box.height / 2];
    """
    at = 0
    for entry in expected[:6]:
        for character, share in ((at, 0.2), (at + len(entry["token"]) - 1, 0.8)):
            tab.point(*tab.run(point, character, share))
            tab.until(lambda entry=entry: tab.text("#word-said") == shown_as(entry), "it is found")
            assert tab.is_shown("#word")
        at += len(entry["token"])
    tab.point(2, 2)
    tab.until(lambda: not tab.is_shown("#word"), "it is left")
    tab.point(*tab.run(point, 0, 0.5), click=True)
    tab.point(2, 2)
    assert tab.is_shown("#word")  # it stays
    tab.one("#close-word").click()
    assert not tab.is_shown("#word")
    tab.check_clean()


def test_another_word_begins_another_version(server: Running, tab: Tab) -> None:
    tab.open(server)
    turn_on(tab)
    tab.say("hello")
    tab.say("the sea")
    session, (_, before) = tab.session, tab.messages("assistant")
    focus_reply(tab)
    for _ in range(4):
        tab.press(Keys.ARROW_RIGHT)
    words, (said, _) = [], panel(tab)
    tab.press(Keys.ENTER)
    other = str(tab.run("return document.activeElement.textContent"))
    assert other != said
    tab.press(Keys.ENTER)
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two versions")
    tab.until_idle()
    turns = turns_of(server, session)
    assert turns[2]["parent"] == turns[1]["parent"] == turns[0]["id"]
    (text,) = (turn["messages"][-1] for turn in turns[2:])
    assert tab.messages("assistant")[1] == text["content"]
    first = next(at for at in range(len(before)) if before[at] != text["content"][at])
    assert text["content"][:first] == before[:first]
    assert text["content"][first:].startswith(other[1:].partition("”")[0].replace("⏎", "\n"))
    assert text["offsets"] is not None
    focus_reply(tab)
    for _ in range(6):
        tab.press(Keys.ARROW_RIGHT)
        words.append(panel(tab)[0])
    assert words[3] == other  # its odds are those that it had
    assert all("%" in word for word in words)
    tab.check_clean()


def grey_before(turns: list[dict[str, Any]], token: int) -> list[str]:
    """Return what of each message the model did not see when it wrote a token."""
    evicted = max(0, token - SINKS - WINDOW)
    grey = []
    for message in (message for turn in turns for message in turn["messages"]):
        offsets = [*message["offsets"], len(message["content"])]
        hidden = [
            message["content"][offsets[at] : offsets[at + 1]]
            for at, one in enumerate(range(message["begin"], message["end"]))
            if SINKS <= one < SINKS + evicted or one >= token
        ]
        grey.append("".join(hidden))
    return grey


def test_what_the_model_saw_then_is_shown(server: Running, tab: Tab) -> None:
    tab.open(server)
    for number in range(5):
        tab.set(seed=number)
        tab.say(f"say {number} of the sea")
    now = [one["grey"] for one in tab.run(GREY)]
    turn_on(tab)  # also for replies that were written without it
    turns = turns_of(server, tab.session)
    for reply in (-1, 2):
        focus_reply(tab, reply)
        for _ in range(9):
            tab.press(Keys.ARROW_RIGHT)
        assert tab.is_shown("#word-unknown")
        assert [one["grey"] for one in tab.run(GREY)] == now
        tab.press(Keys.ENTER)
        token = turns[reply]["messages"][-1]["begin"] + 8
        found = [one["grey"].rstrip("\n") for one in tab.run(GREY)]
        assert found == grey_before(turns, token)
        assert tab.text("#word-seen") == SEEN.format(min(token, SINKS + WINDOW), token)
        assert f"{token - SINKS - WINDOW:,} no longer seen" in tab.text("#legend")
        tab.press(Keys.ESCAPE)
        assert [one["grey"] for one in tab.run(GREY)] == now
    tab.check_clean()


def test_a_finger_holds_a_word_inside_a_small_screen(server: Running, tab: Tab) -> None:
    tab.open(server, width=390)
    turn_on(tab)
    tab.say("the sea")
    tab.one(".words .block").click()
    tab.until(lambda: tab.is_shown("#close-word"), "it stays")
    box = tab.one("#word").rect
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    tab.one("#word-others button:enabled").click()
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two versions")
    tab.until_idle()
    tab.check_clean()
