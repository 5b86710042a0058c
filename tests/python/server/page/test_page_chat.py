"""The page in a real browser: chats, branches, reloads, keys."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium")

from selenium.webdriver.common.keys import Keys

from tests.python.server.http.running_server import Running
from tests.python.server.page.tab import Tab

LONG = 65536  # tokens: the longest reply; here it ends when it is stopped


def turns_of(server: Running, name: str, **headers: str) -> list[dict[str, Any]]:
    answer = server.ask("GET", f"/v1/sessions/{name}/turns", None, headers)
    assert answer.status == 200, answer.body
    turns: list[dict[str, Any]] = answer.json["data"]
    return turns


def replies(turns: list[dict[str, Any]]) -> list[str]:
    return [turn["messages"][-1]["content"] for turn in turns]


def test_a_reply_is_streamed(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=LONG)
    tab.begin("the sea")
    lengths = {0}
    while len(lengths) < 5:
        tab.until(lambda: len("".join(tab.messages("assistant"))) > max(lengths), "it grows")
        lengths.add(len(tab.messages("assistant")[0]))
        assert tab.is_shown("#stop")
    tab.until(lambda: "tokens/s" in tab.text("#status"), "its speed is shown")
    tab.one("#stop").click()
    tab.until_idle()
    tab.check_clean()


def test_a_message_is_sent_and_answered(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.say("the sea")
    assert tab.messages("user") == ["the sea"]
    (turn,) = turns_of(server, tab.session)
    assert tab.messages("assistant") == [turn["messages"][-1]["content"]]
    assert turn["finish_reason"] == "length"
    status = tab.text("#status")
    assert status.startswith("tiny · ")
    assert f"{turn['tokens']:,} tokens" in status
    assert "state new" in status
    tab.say("and the boat")
    assert "state resident" in tab.text("#status")
    assert len(turns_of(server, tab.session)) == 2
    assert tab.titles()[0] == "the sea"
    assert tab.text("h1") == "the sea"
    assert tab.text("#spoken").startswith("The reply has ended: ")
    tab.check_clean()


def test_settings_and_a_system_prompt_are_used(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.one("#toggle-settings").click()
    tab.one("#system").send_keys("be brief")
    tab.set(max_output_tokens=3, temperature=0, top_p=0.5)
    tab.say("the house")
    (turn,) = turns_of(server, tab.session)
    assert [one["role"] for one in turn["messages"]] == ["system", "user", "assistant"]
    assert tab.messages("system") == ["be brief"]
    reply = turn["messages"][-1]
    assert reply["end"] - reply["begin"] == 3
    assert tab.one("#system").get_property("readOnly")
    tab.say("go on")
    assert len(turns_of(server, tab.session)) == 2
    tab.check_clean()


def test_a_reply_is_stopped(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=LONG)
    for stop in (lambda: tab.one("#stop").click(), lambda: tab.press(Keys.ESCAPE)):
        count = len(tab.messages("assistant"))
        tab.begin("the sea")
        tab.until(lambda count=count: len("".join(tab.messages("assistant")[count:])) > 50, "text")
        assert not tab.is_shown("#send")
        stop()
        tab.until_idle()
    turns = turns_of(server, tab.session)
    assert [turn["finish_reason"] for turn in turns] == ["cancelled", "cancelled"]
    assert [text.rstrip() for text in tab.messages("assistant")] == [
        text.rstrip() for text in replies(turns)
    ]
    server.wait_until(lambda: server.metric("sinkstream_open_replies") == 0, "the seat is free")
    tab.set(max_output_tokens=8)
    tab.say("go on")
    assert len(turns_of(server, tab.session)) == 3
    tab.check_clean()


def test_a_reload_keeps_the_conversation(server: Running, tab: Tab) -> None:
    tab.open(server)
    for text in ("one", "two", "three"):
        tab.say(text)
    shown = tab.messages("user"), tab.messages("assistant"), tab.session, tab.text("#legend")
    tab.reload()
    tab.until(lambda: len(tab.messages("assistant")) == 3, "the turns are back")
    assert (
        tab.messages("user"), tab.messages("assistant"), tab.session, tab.text("#legend")
    ) == shown  # fmt: skip
    tab.say("four")
    assert tab.session == shown[2]
    assert "state resident" in tab.text("#status")
    tab.check_clean()


def test_two_tabs_show_one_conversation_and_another(server: Running, tab: Tab) -> None:
    browser = tab.browser
    tab.open(server)
    tab.say("first")
    session, first = tab.session, browser.current_window_handle
    browser.switch_to.new_window("tab")
    try:
        tab.open(server, fragment=f"#{session}")
        tab.until(lambda: tab.messages("user") == ["first"], "the conversation is open")
        tab.say("second")
        assert tab.session == session
        tab.one("#new-chat").click()
        tab.say("elsewhere")
        assert tab.session != session
        tab.check_clean()
    finally:
        browser.close()
        browser.switch_to.window(first)
    tab.run("document.dispatchEvent(new Event('visibilitychange'))")
    tab.until(lambda: tab.messages("user") == ["first", "second"], "the other tab's turn is shown")
    assert tab.titles()[:2] == ["elsewhere", "first"]
    tab.check_clean()


def test_a_reply_is_regenerated(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.say("the sea")
    tab.say("more")
    before = tab.messages("assistant")
    tab.set(seed=2)
    tab.click("Regenerate", "assistant")
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two versions")
    after = tab.messages("assistant")
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert tab.messages("user") == ["the sea", "more"]
    tab.click("Previous version", "assistant")
    assert tab.messages("assistant") == before
    tab.say("on")  # from the first version
    turns = turns_of(server, tab.session)
    assert len(turns) == 4
    assert turns[3]["parent"] == turns[1]["id"]
    assert turns[2]["parent"] == turns[1]["parent"] == turns[0]["id"]
    tab.check_clean()


def test_an_earlier_message_is_edited(server: Running, tab: Tab) -> None:
    tab.open(server)
    for text in ("one", "two", "three"):
        tab.say(text)
    session, before = tab.session, tab.messages("assistant")
    tab.click("Edit", "user", 1)
    tab.press(Keys.CONTROL + "a")
    tab.press("another" + Keys.ENTER)
    tab.until(lambda: tab.messages("user") == ["one", "another"], "the branch is shown")
    tab.until_idle()
    assert tab.session == session
    assert tab.messages("assistant")[0] == before[0]
    tab.click("Previous version", "assistant")
    assert tab.messages("user") == ["one", "two", "three"]
    assert tab.messages("assistant") == before
    turns = turns_of(server, session)
    assert turns[3]["parent"] == turns[0]["id"]
    tab.click("Edit", "user", 1)
    tab.press(Keys.ESCAPE)
    assert tab.messages("user") == ["one", "two", "three"]
    # The first message has nothing before it: edited, it begins another conversation.
    tab.click("Edit", "user", 0)
    tab.press("!" + Keys.ENTER)
    tab.until(lambda: tab.session != session, "there is a new conversation")
    tab.until_idle()
    assert tab.messages("user") == ["one!"]
    tab.check_clean()


def test_a_conversation_is_deleted(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.say("keep me")
    kept = tab.session
    tab.one("#new-chat").click()
    tab.say("delete me")
    gone = tab.session
    button = tab.one(f"#conversations a[href='#{gone}'] + button")
    button.click()
    assert button.text == "Sure?"
    assert server.ask("GET", f"/v1/sessions/{gone}/turns").status == 200
    button.click()
    tab.until(lambda: "delete me" not in tab.titles(), "it is gone")
    assert server.ask("GET", f"/v1/sessions/{gone}/turns").status == 404
    assert tab.messages("user") == []
    assert tab.text("h1") == "New chat"
    tab.one(f"#conversations a[href='#{kept}']").click()
    tab.until(lambda: tab.messages("user") == ["keep me"], "the other one is open")
    assert tab.run("return document.querySelector('[aria-current]').textContent") == "keep me"
    tab.open(server, fragment=f"#{gone}")
    tab.until(lambda: tab.is_shown("#error"), "an error is shown")
    assert "no turn or conversation" in tab.text("#error")


def test_a_key_is_asked_for_and_kept_in_memory_only(locked: Running, tab: Tab) -> None:
    tab.open(locked)
    assert tab.is_shown("#unlock")
    tab.one("#key").send_keys("wrong" + Keys.ENTER)
    tab.until(lambda: "does not accept" in tab.text("#error"), "the wrong key is refused")
    tab.one("#key").send_keys("right" + Keys.ENTER)
    tab.until(lambda: not tab.is_shown("#unlock"), "the right key is taken")
    assert not tab.is_shown("#error")
    tab.say("the sea")
    assert len(turns_of(locked, tab.session, **{"X-Api-Key": "right"})) == 1
    kept = "return [localStorage.length, sessionStorage.length, document.cookie, location.href]"
    local, session, cookie, address = tab.run(kept)
    assert (local, session, cookie) == (0, 0, "")
    assert "right" not in address
    tab.reload()
    assert tab.is_shown("#unlock")
    assert tab.messages("user") == []
    assert tab.run("return window.violations") == []


def test_a_failure_is_shown_and_the_message_is_not_lost(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(temperature=-1)
    tab.begin("do not lose me")
    tab.until(lambda: tab.is_shown("#error"), "the refusal is shown")
    assert "`temperature`" in tab.text("#error")
    assert tab.one("#message").get_property("value") == "do not lose me"
    assert tab.messages("user") == []
    tab.set(temperature="")
    tab.press(Keys.ENTER)
    tab.until(lambda: len(tab.messages("assistant")) == 1, "it is sent")
    tab.until_idle()
    assert not tab.is_shown("#error")


@pytest.mark.parametrize("width", [1200, 360])
def test_the_keyboard_is_enough(server: Running, tab: Tab, width: int) -> None:
    tab.open(server, width=width)
    tab.press("the sea", Keys.SHIFT + Keys.ENTER)
    tab.press("the boat" + Keys.ENTER)
    tab.until(lambda: len(tab.messages("assistant")) == 1, "it is sent")
    tab.until_idle()
    assert tab.messages("user") == ["the sea\nthe boat"]
    session = tab.session
    tab.set(seed=2)

    def focused() -> str:
        script = "const e = document.activeElement; return e.ariaLabel ?? e.textContent"
        return str(tab.run(script))

    seen = []
    for _ in range(40):
        tab.press(Keys.SHIFT + Keys.TAB)
        seen.append(focused())
        if seen[-1] == "Regenerate":
            break
    assert seen[-1] == "Regenerate", seen
    tab.press(Keys.ENTER)
    tab.until(lambda: tab.session != session, "another first reply is another conversation")
    tab.until_idle()
    for _ in range(40):
        tab.press(Keys.SHIFT + Keys.TAB)
        if focused() in ("Chats", "New chat"):
            break
    tab.press(Keys.ENTER)
    assert focused() in ("Chats", "")
    tab.check_clean()
