"""The page in a real browser: chats, branches, reloads, keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium")

from selenium.webdriver.common.keys import Keys

from tests.python.server.http.running_server import Running
from tests.python.server.page.tab import Tab

CHOOSE = """
const [id, name, text] = arguments;
const files = new DataTransfer();
files.items.add(new File([text], name));
document.getElementById(id).files = files.files;
document.getElementById(id).dispatchEvent(new Event("change"));
"""
LONG = 65536  # tokens: the longest reply; here it ends when it is stopped


def turns_of(server: Running, name: str, **headers: str) -> list[dict[str, Any]]:
    answer = server.ask("GET", f"/v1/sessions/{name}/turns", None, headers)
    assert answer.status == 200, answer.body
    turns: list[dict[str, Any]] = answer.json["data"]
    return turns


def versions(tab: Tab) -> dict[str, str]:
    """Return which version is shown, by the name of each message that has some."""
    script = """return Object.fromEntries([...document.querySelectorAll("article > header")]
      .filter((one) => one.querySelector("[aria-label$=version]"))
      .map(({ firstChild, lastChild }) =>
        [firstChild.textContent, lastChild.previousSibling.textContent]))"""
    found: dict[str, str] = tab.run(script)
    return found


def rename(tab: Tab, title: str) -> None:
    question = tab.browser.switch_to.alert
    question.send_keys(title)
    question.accept()


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
    assert tab.one("#status").get_attribute("title") == "state new"
    tab.say("and the boat")
    assert tab.one("#status").get_attribute("title") == "state resident"
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
    tab.say("go on")
    assert len(turns_of(server, tab.session)) == 2
    tab.check_clean()


def test_a_running_chat_gets_another_system_prompt(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.one("#toggle-settings").click()
    tab.set(system="be brief")
    tab.say("the house")
    first, (reply,) = tab.session, tab.messages("assistant")
    assert "of this chat" in tab.text("#system-scope")
    chats = len(tab.titles())
    tab.set(system="be long")
    tab.say("go on")
    assert tab.session != first
    assert tab.messages("system") == ["be long"]
    assert tab.messages("user") == ["the house", "go on"]
    assert tab.messages("assistant")[0] == reply
    assert len(tab.titles()) == chats
    (turn,) = turns_of(server, tab.session)
    assert [one["role"] for one in turn["messages"]] == [
        "system", "user", "assistant", "user", "assistant"
    ]  # fmt: skip
    tab.click("Previous version", "system")
    assert (tab.session, tab.messages("system")) == (first, ["be brief"])
    assert tab.one("#system").get_property("value") == "be brief"
    tab.set(system="")
    tab.say("and on")
    assert tab.messages("system") == []
    assert tab.messages("user") == ["the house", "and on"]
    tab.one("#new-chat").click()
    assert tab.one("#system").get_property("value") == ""  # nothing of it is kept for new chats
    assert tab.text("#system-scope") == "of a new chat"
    tab.check_clean()


def test_a_stopped_reply_is_continued_as_another_version(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.say("hello")
    tab.say("the sea")
    (_, before), session = tab.messages("assistant"), tab.session
    tab.click("Continue", "assistant")
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two versions")
    tab.until_idle()
    after = tab.messages("assistant")[1]
    assert after.startswith(before)
    assert len(after) > len(before)
    turns = turns_of(server, session)
    assert turns[2]["parent"] == turns[1]["parent"] == turns[0]["id"]
    assert turns[2]["messages"][-1]["content"] == after
    assert turns[2]["messages"][-1]["offsets"] is not None
    tab.say("and then")  # it is what the chat goes on from
    assert turns_of(server, session)[3]["parent"] == turns[2]["id"]
    tab.set(max_output_tokens=LONG)
    tab.click("Continue", "assistant")
    tab.until(lambda: len(tab.messages("assistant")[2]) > len(after) + 200, "it grows")
    tab.reload()
    tab.until(lambda: tab.is_shown("#stop"), "it is followed again")
    tab.until(lambda: len(tab.messages("assistant")) == 3, "its beginning is there")
    tab.one("#stop").click()
    tab.until_idle()
    last = turns_of(server, session)[-1]["messages"][-1]["content"]
    assert tab.messages("assistant")[2] == last
    tab.check_clean()


def test_without_a_store_a_reply_is_continued_too(keepless: Running, tab: Tab) -> None:
    tab.open(keepless)
    tab.say("the sea")
    (before,) = tab.messages("assistant")
    tab.click("Continue", "assistant")
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two versions")
    tab.until_idle()
    (after,) = tab.messages("assistant")
    assert after.startswith(before)
    assert len(after) > len(before)
    tab.click("Previous version", "assistant")
    assert tab.messages("assistant") == [before]
    tab.check_clean()


def test_a_chat_is_renamed(server: Running, tab: Tab) -> None:
    tab.open(server)
    assert not tab.one("#title").is_enabled()  # there is none yet
    tab.say("some words")
    session = tab.session
    tab.one("#title").click()
    tab.browser.switch_to.alert.dismiss()
    assert tab.text("#title") == "some words"
    tab.press(Keys.ENTER)  # the title has the focus again
    rename(tab, "Waves")
    tab.until(lambda: tab.titles()[0] == "Waves", "it is renamed")
    assert tab.text("h1") == "Waves"
    tab.set(seed=2)
    tab.click("Regenerate", "assistant")
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two versions")
    tab.until_idle()
    assert tab.session != session
    assert (tab.titles()[0], tab.text("h1")) == ("Waves", "Waves")  # also with another version
    tab.reload()
    tab.until(lambda: tab.text("h1") == "Waves", "the server knows it")
    tab.one("#title").click()
    rename(tab, "x" * 201)
    tab.until(lambda: "1 to 200 characters" in tab.text("#error"), "it is refused")
    assert tab.text("h1") == "Waves"
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
    assert tab.one("#status").get_attribute("title") == "state resident"
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
    tab.click("Previous version", "user")
    assert tab.messages("user") == ["one", "two", "three"]
    assert tab.messages("assistant") == before
    turns = turns_of(server, session)
    assert turns[3]["parent"] == turns[0]["id"]
    tab.click("Edit", "user", 1)
    tab.press(Keys.ESCAPE)
    assert tab.messages("user") == ["one", "two", "three"]
    tab.check_clean()


def test_the_first_message_has_versions_in_one_chat(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.say("first of all")
    session, (before,) = tab.session, tab.messages("assistant")
    chats = len(tab.titles())
    tab.set(seed=2)
    tab.click("Regenerate", "assistant")
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two versions")
    tab.until_idle()
    assert tab.messages("assistant") != [before]
    tab.click("Edit", "user", 0)
    tab.press("!" + Keys.ENTER)
    tab.until(lambda: "3 of 3" in tab.text("#turns"), "an edited message is a version, too")
    tab.until_idle()
    assert tab.messages("user") == ["first of all!"]
    assert versions(tab) == {"You": "3 of 3", "Model": "3 of 3"}  # where they differ, and below
    third = tab.session
    assert third != session
    tab.say("on")
    for number, role in ((2, "user"), (1, "assistant")):
        tab.click("Previous version", role, 0)
        tab.until(lambda number=number: f"{number} of 3" in tab.text("#turns"), "it is shown")
        assert tab.messages("user") == ["first of all"]
    assert (tab.session, tab.messages("assistant")) == (session, [before])
    assert len(tab.titles()) == chats
    tab.reload()
    tab.until(lambda: "1 of 3" in tab.text("#turns"), "all versions are back")
    assert (tab.session, tab.messages("assistant")) == (session, [before])
    tab.click("Next version", "user", 0)
    tab.click("Next version", "assistant", 0)
    assert tab.messages("user") == ["first of all!", "on"]
    assert tab.session == third
    tab.one(f"#conversations a[href='#{third}'] + button").click()
    tab.browser.switch_to.alert.accept()
    tab.until(lambda: len(tab.titles()) == chats - 1, "the chat is gone")
    for name in (session, third):
        assert server.ask("GET", f"/v1/sessions/{name}/turns").status == 404
    tab.check_clean()


def test_a_reply_goes_on_while_another_chat_is_open(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.say("a short one")
    short = tab.session
    tab.one("#new-chat").click()
    tab.set(max_output_tokens=LONG)
    tab.begin("a long one")
    tab.until(lambda: len("".join(tab.messages("assistant"))) > 50, "it grows")
    tab.one(f"#conversations a[href='#{short}']").click()
    tab.until(lambda: tab.messages("user") == ["a short one"], "the other chat is open")
    assert not tab.is_shown("#stop")
    assert tab.text("#unfinished li.running") == "a long one"
    tab.set(max_output_tokens=8)
    tab.say("and another")  # two replies at a time
    tab.one("#unfinished a").click()
    tab.until(lambda: tab.messages("user") == ["a long one"], "the first chat is open")
    length = len(tab.messages("assistant")[0])
    tab.until(lambda: len(tab.messages("assistant")[0]) > length, "it still grows")
    tab.one("#new-chat").click()
    tab.one("#unfinished a").click()
    tab.one("#stop").click()
    tab.until_idle()
    turns = turns_of(server, tab.session)
    assert [turn["finish_reason"] for turn in turns] == ["cancelled"]
    assert tab.text("#unfinished") == ""
    tab.set(max_output_tokens=LONG)
    tab.begin("in a chat of the list")
    tab.until(lambda: len(tab.messages("assistant")) == 2, "it runs")
    tab.one(f"#conversations a[href='#{short}']").click()
    tab.until(lambda: tab.messages("user")[0] == "a short one", "the other chat is open")
    (busy,) = tab.browser.find_elements("css selector", "#conversations li.running a")
    assert "a long one" in busy.text
    busy.click()
    tab.one("#stop").click()
    tab.until_idle()
    tab.check_clean()


def test_a_message_that_is_sent_during_a_reply_waits(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=LONG)
    tab.begin("the sea")
    tab.until(lambda: len("".join(tab.messages("assistant"))) > 50, "it grows")
    tab.set(max_output_tokens=4)
    tab.begin("next")
    assert "sent after this reply" in tab.text("#status")
    assert tab.one("#message").get_property("value") == "next"
    server.post(f"/v1/responses/{tab.session.removeprefix('#')}/cancel", {})
    tab.until(lambda: tab.messages("user") == ["the sea", "next"], "it is sent")
    tab.until_idle()
    assert tab.one("#message").get_property("value") == ""
    tab.check_clean()


def test_an_empty_page_says_what_it_is_and_how_to_begin(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.until(lambda: tab.is_shown("#empty"), "there is no message yet")
    assert tab.text("#greeting") == "tiny"
    assert "sees 64 tokens at a time" in tab.text("#promise")
    starters = tab.browser.find_elements("css selector", "#starters button")
    assert len(starters) == 3
    text = starters[1].text
    starters[1].click()
    tab.until(lambda: tab.messages("user") == [text], "it is sent")
    tab.until_idle()
    assert not tab.is_shown("#empty")
    tab.check_clean()


def test_settings_and_drafts_survive_a_reload(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.one("#toggle-settings").click()
    assert tab.one("#top_k").get_attribute("placeholder") == "0"
    tab.one("#top_k").send_keys("7")
    tab.run("const t = document.querySelector('#theme'); t.value = 'dark';"
            "t.dispatchEvent(new Event('change', { bubbles: true }))")  # fmt: skip
    tab.one("#message").send_keys("half a thou")
    tab.reload()
    assert tab.one("#top_k").get_property("value") == "7"
    assert tab.one("#message").get_property("value") == "half a thou"
    color = str(tab.run("return getComputedStyle(document.body).backgroundColor"))
    assert sum(map(int, color.strip("rgb()").split(","))) < 150
    assert "sees 64 tokens at a time" in tab.text("#facts")
    tab.run("localStorage.clear()")
    tab.open(server)


def test_a_chat_is_exported_and_imported_and_goes_on(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.run("URL.createObjectURL = (blob) => { window.blob = blob; return '#'; }")
    for text in ("one", "two"):
        tab.say(text)
    shown = tab.messages("user"), tab.messages("assistant")
    tab.one("#toggle-settings").click()
    tab.one("#export").click()
    script = "const done = arguments[0]; window.blob.text().then(done)"
    text = tab.browser.execute_async_script(script)
    choose = CHOOSE
    session = tab.session
    tab.run(choose, "import-file", "chat.json", "{}")
    tab.until(lambda: "must be a chat" in tab.text("#error"), "it is refused")
    assert tab.session == session
    tab.run(choose, "import-file", "chat.json", text)
    tab.until(lambda: tab.session == "" and len(tab.messages("user")) == 2, "it is shown")
    assert (tab.messages("user"), tab.messages("assistant")) == shown
    assert not tab.is_shown("#settings")
    assert "not saved before your next message" in tab.text("#status")
    assert "not saved" in tab.text("#spoken")
    tab.run(choose, "attach-file", "notes.txt", "a note")
    tab.until(lambda: "a note" in tab.one("#message").get_property("value"), "it is attached")
    tab.say("three")
    tab.until(lambda: len(tab.messages("user")) == 3, "all turns are there")
    assert "notes.txt:" in tab.messages("user")[2]
    assert [one["messages"][-2]["content"] for one in turns_of(server, tab.session)[:2]] == [
        "one", "two"
    ]  # fmt: skip
    assert "not saved" not in tab.text("#status")
    tab.run(choose, "attach-file", "x.bin", "a\0b")
    tab.until(lambda: "is not a text file" in tab.text("#error"), "it is refused")
    tab.check_clean()


@pytest.mark.parametrize("form", ["list", "object"])
def test_a_list_of_messages_is_imported_and_its_last_one_answered(
    server: Running, tab: Tab, form: str
) -> None:
    tab.open(server)
    pairs = [("system", "Be brief."), ("user", "one"), ("assistant", "two"), ("user", "three")]
    given: Any = [{"role": role, "content": text} for role, text in pairs]
    for wrong in ("[]", "[3]", "{}", '[{"role": "user", "content": null}]', "no JSON"):
        tab.run("document.getElementById('error').textContent = ''")
        tab.run(CHOOSE, "import-file", "chat.json", wrong)
        tab.until(lambda: "must be a chat" in tab.text("#error"), "it is refused")
    text = json.dumps(given if form == "list" else {"messages": given})
    tab.run(CHOOSE, "import-file", "chat.json", text)
    tab.until(lambda: tab.session.startswith("sess_"), "it is answered")
    tab.until_idle()
    assert tab.messages("system") == ["Be brief."]
    assert tab.messages("user") == ["one", "three"]
    assert tab.messages("assistant")[0] == "two"
    (turn,) = turns_of(server, tab.session)
    assert [(one["role"], one["content"]) for one in turn["messages"][:-1]] == pairs
    assert not tab.is_shown("#error")
    tab.check_clean()


def test_a_reply_that_ends_leaves_the_reader_where_he_is(server: Running, tab: Tab) -> None:
    tab.open(server, height=600)
    tab.say("the sea")
    tab.set(max_output_tokens=LONG)
    tab.begin("at length")
    scroll = """const one = document.getElementById("transcript");
      if (arguments[0]) one.scrollTo(0, arguments[0]);
      return one.scrollTop"""
    tab.until(lambda: tab.run(scroll) > 400, "there is something above")
    tab.run(scroll, 40)
    tab.press(Keys.ESCAPE)
    tab.until_idle()
    assert tab.run(scroll) == 40
    tab.check_clean()


def test_chats_are_searched(server: Running, tab: Tab) -> None:
    tab.open(server)
    for text in ("about herons", "about otters"):
        tab.one("#new-chat").click()
        tab.say(text)
    tab.press(Keys.CONTROL + "k")
    tab.press("HERON")
    rows = tab.browser.find_elements("css selector", "#conversations a")
    shown = [one.text for one in rows if one.is_displayed()]
    assert len(shown) == 1
    title, when = shown[0].split("\n")
    assert title == "about herons"
    assert ":" in when  # of two chats with one title, each has its time
    assert tab.text("#unlisted") == ""
    tab.press(" and gulls")
    assert not any(one.is_displayed() for one in rows)
    assert tab.text("#unlisted") == "No chat found in the latest 200 titles."
    tab.press(Keys.CONTROL + Keys.SHIFT + "o")
    assert tab.messages("user") == []
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
    question = tab.browser.switch_to.alert
    assert question.text == "Delete “delete me”?"
    question.dismiss()  # as Escape does
    assert tab.focused == "Delete delete me"
    assert server.ask("GET", f"/v1/sessions/{gone}/turns").status == 200
    button.click()
    tab.browser.switch_to.alert.accept()
    tab.until(lambda: "delete me" not in tab.titles(), "it is gone")
    assert server.ask("GET", f"/v1/sessions/{gone}/turns").status == 404
    assert tab.messages("user") == []
    assert tab.text("h1") == "New chat"
    tab.one(f"#conversations a[href='#{kept}']").click()
    tab.until(lambda: tab.messages("user") == ["keep me"], "the other one is open")
    current = "return document.querySelector('[aria-current]').firstChild.textContent"
    assert tab.run(current) == "keep me"
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
    _, session, cookie, address = tab.run(kept)
    assert (session, cookie) == (0, "")
    assert "right" not in str(tab.run("return JSON.stringify(localStorage)"))
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


def test_a_message_and_its_versions_stay_where_they_are_and_keep_the_focus(
    server: Running, tab: Tab
) -> None:
    tab.open(server, height=600)
    for text in ("one", "two", "three"):
        tab.say(text)
    tab.set(max_output_tokens=400)
    tab.click("Edit", "user", 1)
    tab.press("!" + Keys.ENTER)
    tab.until(lambda: tab.messages("user") == ["one", "two!"], "it is shown")
    assert tab.focused == "Message"  # at once: Enter stops nothing
    tab.until_idle()
    assert tab.focused == "Message"
    tab.press("typed next")
    assert tab.one("#message").get_property("value") == "typed next"
    top = """const one = document.querySelectorAll("article.user")[1];
      if (arguments[0]) one.scrollIntoView();
      return Math.round(one.getBoundingClientRect().top)"""
    tab.run(
        "document.querySelectorAll('article.user')[1].querySelector('[aria-label^=Prev]').focus()"
    )
    at = tab.run(top, True)
    for texts, next_one in (
        (["one", "two", "three"], "Next version"),
        (["one", "two!"], "Previous version"),
        (["one", "two", "three"], "Next version"),
    ):
        tab.press(Keys.ENTER)
        assert tab.messages("user") == texts
        assert tab.run(top) == at
        assert tab.focused == next_one
    tab.click("Copy message", "user", 1)
    tab.check_clean()


def test_the_focus_goes_on_when_its_control_vanishes(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=LONG)
    tab.run("document.getElementById('send').focus()")
    tab.run("document.getElementById('message').value = 'the sea'")
    tab.press(Keys.ENTER)
    tab.until(lambda: tab.is_shown("#stop"), "it runs")
    assert tab.focused == "Message"
    tab.run("document.getElementById('stop').focus()")
    tab.press(Keys.ENTER)
    tab.until_idle()
    assert tab.focused == "Message"
    tab.set(max_output_tokens=8)
    for label in ("Continue", "Regenerate"):
        tab.run("document.querySelectorAll('article.assistant button').forEach((one) => {"
                "if (one.textContent === arguments[0]) one.focus(); })", label)  # fmt: skip
        tab.press(Keys.ENTER)
        assert tab.focused == "Message"
        tab.until_idle()
    row = tab.one("#conversations li button")
    tab.run("arguments[0].focus()", row)
    tab.press(Keys.ENTER)
    tab.browser.switch_to.alert.accept()
    tab.until(lambda: tab.messages("user") == [], "it is deleted")
    assert tab.focused == "Message"
    tab.check_clean()


def test_escape_closes_what_is_open_before_it_stops_a_reply(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=LONG)
    tab.begin("the sea")
    tab.until(lambda: len("".join(tab.messages("assistant"))) > 50, "it grows")
    tab.one("#toggle-settings").click()
    assert tab.focused == "Settings"
    tab.press(Keys.ESCAPE)
    assert (tab.is_shown("#settings"), tab.focused) == (False, "toggle-settings")
    assert tab.is_shown("#stop")
    tab.one("#toggle-settings").click()
    tab.one("#close-settings").click()
    assert (tab.is_shown("#settings"), tab.focused) == (False, "toggle-settings")
    tab.press(Keys.ESCAPE)
    tab.until_idle()
    tab.open(server, width=390)
    tab.one("#toggle-settings").click()
    box = tab.one("#settings").rect
    assert (box["width"], round(box["y"] + box["height"])) == (390, 800)  # all of the screen
    fits = "const one = arguments[0].getBoundingClientRect(); return one.bottom <= innerHeight"
    for name in ("export", "import", "close-settings"):
        assert tab.run(fits, tab.one(f"#{name}"))
    tab.check_clean()


def test_a_key_leads_past_the_chats_to_the_messages(server: Running, tab: Tab) -> None:
    tab.open(server, height=400)
    tab.set(max_output_tokens=300)
    tab.say("the sea")
    tab.run("document.getElementById('new-chat').focus()")  # the first one of the list
    tab.press(Keys.SHIFT + Keys.TAB)
    assert tab.focused == "skip"
    assert tab.one("#skip").rect["width"] > 100  # it is shown
    tab.press(Keys.ENTER)
    assert tab.focused == "Messages"
    scrolled = "return document.getElementById('transcript').scrollTop"
    tab.press(Keys.HOME)
    tab.until(lambda: tab.run(scrolled) == 0, "it scrolls up")
    tab.press(Keys.END)
    tab.until(lambda: tab.run(scrolled) > 0, "it scrolls down")
    tab.check_clean()


@pytest.mark.parametrize("width", [1200, 360])
def test_the_keyboard_is_enough(server: Running, tab: Tab, width: int) -> None:
    tab.open(server, width=width)
    tab.press("the sea", Keys.SHIFT + Keys.ENTER)
    tab.press("the boat" + (Keys.ENTER if width > 600 else Keys.CONTROL + Keys.ENTER))
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
    tab.until(lambda: tab.session != session, "another first reply is a version")
    tab.until(lambda: "2 of 2" in tab.text("#turns"), "there are two")
    tab.until_idle()
    for _ in range(40):
        tab.press(Keys.SHIFT + Keys.TAB)
        if focused() in ("Chats", "New chat"):
            break
    tab.press(Keys.ENTER)
    assert focused() in ("Chats", "")
    tab.check_clean()
