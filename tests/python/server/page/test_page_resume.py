"""Replies that outlive the page, and a reasoning model's thoughts; in a real browser."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium", reason="needs selenium")

from tests.python.server.http.running_server import Running
from tests.python.server.page.tab import Tab

LONG = 65536  # tokens: the longest reply; here it ends when it is stopped


def grown(tab: Tab, least: int) -> str:
    """Wait until the last reply has some characters; return what there is."""
    tab.until(lambda: len("".join(tab.messages("assistant")[-1:])) > least, "it grows")
    return tab.messages("assistant")[-1]


@pytest.mark.parametrize("before", [0, 1])
def test_a_reply_goes_on_after_a_reload(server: Running, tab: Tab, before: int) -> None:
    tab.open(server)
    for number in range(before):
        tab.say(f"{number}")
    tab.set(max_output_tokens=LONG)
    tab.begin("the sea")
    tab.until(lambda: len(tab.messages("assistant")) == before + 1, "it is shown")
    first = grown(tab, 50)
    tab.reload()
    tab.until(lambda: len(tab.messages("assistant")) == before + 1, "it is shown again")
    assert grown(tab, len(first) + 50).startswith(first.rstrip())
    assert tab.messages("user") == [*map(str, range(before)), "the sea"]
    assert tab.is_shown("#stop")
    tab.one("#stop").click()
    tab.until_idle()
    turns = server.ask("GET", f"/v1/sessions/{tab.session}/turns").json["data"]
    assert [turn["finish_reason"] for turn in turns] == ["length"] * before + ["cancelled"]
    assert tab.messages("assistant")[-1].rstrip() == turns[-1]["messages"][-1]["content"].rstrip()
    tab.set(max_output_tokens=4)
    tab.say("on")
    assert len(server.ask("GET", f"/v1/sessions/{tab.session}/turns").json["data"]) == before + 2
    tab.check_clean()


def test_a_reply_goes_on_after_each_of_several_outages(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=LONG)
    tab.begin("the sea")
    for _ in range(2):
        grown(tab, 50)
        tab.run("window.isOffline = true; window.cuts.forEach((cut) => cut())")
        tab.until(lambda: "Trying again in 2 s" in tab.text("#status"), "it has tried once")
        assert "resp_" in tab.session
        length = len(tab.messages("assistant")[0])
        tab.run("window.isOffline = false")
        grown(tab, length + 50)
    assert not tab.is_shown("#error")
    tab.one("#stop").click()
    tab.until_idle()
    (turn,) = server.ask("GET", f"/v1/sessions/{tab.session}/turns").json["data"]
    assert tab.messages("assistant")[0].rstrip() == turn["messages"][-1]["content"].rstrip()
    tab.check_clean()


def test_a_reply_that_is_given_up_is_found_after_a_reload(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=LONG)
    tab.begin("the sea")
    first = grown(tab, 50)
    tab.run("window.isOffline = true; window.cuts.forEach((cut) => cut())")
    tab.until(lambda: "Trying again" in tab.text("#status"), "it tries")
    tab.one("#stop").click()
    tab.until(lambda: "Reload the page" in tab.text("#error"), "it says what to do")
    assert "resp_" in tab.session
    tab.reload()
    tab.until(lambda: len(tab.messages("assistant")) == 1, "it is shown again")
    assert grown(tab, len(first) + 50).startswith(first.rstrip())
    tab.one("#stop").click()
    tab.until_idle()
    tab.check_clean()


def test_a_reply_that_ended_meanwhile_is_there_after_a_reload(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=400)
    tab.begin("the sea")
    grown(tab, 10)
    address = tab.browser.current_url
    tab.browser.get("about:blank")
    server.wait_until(lambda: server.metric("sinkstream_open_replies") == 0, "it has ended")
    tab.browser.get(address)
    tab.until(lambda: tab.session.startswith("sess_"), "the conversation is open")
    (turn,) = server.ask("GET", f"/v1/sessions/{tab.session}/turns").json["data"]
    assert turn["finish_reason"] == "length"
    assert tab.messages("assistant") == [turn["messages"][-1]["content"]]
    tab.check_clean()


def test_without_a_store_a_reply_goes_on_with_the_messages_before_it(
    keepless: Running, tab: Tab
) -> None:
    tab.open(keepless)
    tab.say("one")
    shown = tab.messages("assistant")
    tab.set(max_output_tokens=LONG)
    tab.begin("two")
    tab.until(lambda: len(tab.messages("assistant")) == 2, "it is shown")
    grown(tab, 50)
    tab.reload()
    tab.until(lambda: tab.messages("user") == ["one", "two"], "the messages are back")
    assert tab.messages("assistant")[0].rstrip() == shown[0].rstrip()
    tab.press("\ue00c")  # Escape
    tab.until_idle()
    assert tab.session == ""
    tab.check_clean()


@pytest.mark.parametrize("width", [1200, 360])
def test_thoughts_are_folded_apart_from_the_text(thinking: Running, tab: Tab, width: int) -> None:
    tab.open(thinking, width=width)
    tokenizer = thinking.model.tokenizer
    assert tokenizer is not None
    bias = dict.fromkeys(map(str, range(259, 286)), 100.0)
    bias[str(tokenizer.token_to_id("</think>"))] = 101.0
    tab.run("window.bias = arguments[0]", bias)
    tab.set(max_output_tokens=300)
    tab.say("the sea")
    (turn,) = thinking.ask("GET", f"/v1/sessions/{tab.session}/turns").json["data"]
    thought, message = thinking.ask("GET", f"/v1/responses/{turn['id']}").json["output"]
    assert tab.messages("assistant") == [message["content"][0]["text"]]
    assert turn["messages"][-1]["offsets"], "what of the text is evicted is known"
    folded = tab.one("article.assistant details")
    assert tab.run("return arguments[0].open", folded) is False
    assert tab.run("return arguments[0].lastChild.data", folded) == thought["content"][0]["text"]
    tab.one("article.assistant summary").click()
    assert tab.run("return arguments[0].open", folded) is True
    assert folded.text.startswith("Thought")
    assert len(tab.browser.find_elements("css selector", "article.user details")) == 0
    tab.check_clean()
