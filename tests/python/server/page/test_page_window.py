"""The picture of the window: grey is what, by the server's numbers, the model no longer sees."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("selenium", reason="needs selenium")

from tests.python.server.http.running_server import CHAT, Running
from tests.python.server.page.tab import Tab

SINKS, WINDOW = 4, 60

# Returns the grey text of each message: whole blocks, and the ranges that are painted.
GREY = """
const painted = [...CSS.highlights.get("evicted")].map((one) => {
  const range = document.createRange();
  range.setStart(one.startContainer, one.startOffset);
  range.setEnd(one.endContainer, one.endOffset);
  return range;
});
return [...document.querySelectorAll("article")].map((article) => ({
  label: article.querySelector(".mark").textContent,
  grey: [...article.querySelectorAll(".block")].map((block) => {
    if (block.classList.contains("evicted")) return block.textContent;
    return painted.filter((range) => block.contains(range.startContainer)).join("");
  }).join(""),
}));
"""


def expected(turns: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return what is to be grey, from the tokens of each message."""
    evicted = turns[-1]["total_evicted_tokens"]
    shown = []
    for message in (message for turn in turns for message in turn["messages"]):
        begin, end, text = message["begin"], message["end"], message["content"]
        gone = [token for token in range(begin, end) if SINKS <= token < SINKS + evicted]
        offsets = [*message["offsets"], len(text)]
        grey = text[offsets[gone[0] - begin] : offsets[gone[-1] + 1 - begin]] if gone else ""
        label = "no longer seen" if len(gone) == end - begin else "partly seen"
        shown.append({"label": label if gone else "", "grey": grey})
    return shown


def turns_of(server: Running, name: str) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    after = ""
    while True:
        page = server.ask("GET", f"/v1/sessions/{name}/turns{after}").json
        turns += page["data"]
        if not page["has_more"]:
            return turns
        after = f"?after={page['last_id']}"


def bar(tab: Tab) -> dict[str, float]:
    script = """return Object.fromEntries([...document.querySelectorAll("#bar i")].map(
      (one) => [one.className, Number(getComputedStyle(one).flexGrow)]))"""
    found: dict[str, float] = tab.run(script)
    return found


def test_what_is_evicted_is_grey_far_past_the_window(server: Running, tab: Tab) -> None:
    tab.open(server)
    for number in range(12):
        tab.set(seed=number)
        tab.say(f"say {number} of the sea and the house")
        turns = turns_of(server, tab.session)
        assert len(turns) == number + 1
        found = [{**one, "grey": one["grey"].rstrip("\n")} for one in tab.run(GREY)]
        assert found == expected(turns), number
        last = turns[-1]
        live, evicted = last["live_tokens"], last["total_evicted_tokens"]
        assert live + evicted == last["tokens"] - 1
        assert bar(tab) == {
            "sinks": SINKS, "evicted": evicted, "live": live - SINKS, "free": 64 - live
        }  # fmt: skip
        assert f"{evicted:,} no longer seen" in tab.text("#legend")
        assert f"{live - SINKS} in the window of {WINDOW}" in tab.text("#legend")
    assert evicted > 8 * WINDOW
    assert "partly seen" in {one["label"] for one in found}
    assert tab.is_shown("#grey")
    tab.reload()
    tab.until(lambda: len(tab.messages("user")) == 12, "the turns are back")
    assert [{**one, "grey": one["grey"].rstrip("\n")} for one in tab.run(GREY)] == found
    tab.check_clean()


def test_the_window_moves_while_a_reply_is_streamed(server: Running, tab: Tab) -> None:
    tab.open(server)
    tab.set(max_output_tokens=65536)
    tab.begin("the sea and the house")
    tab.until(lambda: tab.run(GREY)[-1]["label"] == "partly seen", "its beginning is evicted")
    first = tab.run(GREY)
    tab.until(lambda: len(tab.run(GREY)[-1]["grey"]) > len(first[-1]["grey"]), "more of it is")
    assert first[0]["label"] == "no longer seen"
    script = """const article = [...document.querySelectorAll("article")].at(-1);
      return article.querySelector(".block:last-child").classList.contains("evicted")"""
    assert tab.run(script) is False
    tab.one("#stop").click()
    tab.until_idle()
    turns = turns_of(server, tab.session)
    assert len(turns) == 1
    last = turns[-1]
    assert f"{last['total_evicted_tokens']:,} no longer seen" in tab.text("#legend")
    tab.check_clean()


def test_grey_text_is_spoken_of_only_where_there_is_some(server: Running, tab: Tab) -> None:
    script = """
    const done = arguments[arguments.length - 1];
    import("/page/transcript.js").then(({ showWindow }) => {
      done([false, true].map((isGrey) => {
        showWindow({ pinned: 4, live: 64, evicted: 9, capacity: 64, isGrey });
        return document.getElementById("grey").hidden;
      }));
    }).catch((error) => done(String(error)));
    """
    tab.open(server)
    assert tab.browser.execute_async_script(script) == [True, False]


def test_sinks_stay_lit(server: Running, tab: Tab) -> None:
    """The sinks are token 0 to 3; here, of the text itself."""
    script = """
    const done = arguments[arguments.length - 1];
    import("/page/transcript.js").then(({ MessageView, clearPaint }) => {
      const content = "abcdefghij";
      const offsets = [...content].map((_, index) => index);
      const view = new MessageView({ role: "user", content, begin: 0, end: 10, offsets });
      document.querySelector("#transcript").append(view.element);
      clearPaint();
      const label = view.paint(4, 3);
      const text = (name) => [...CSS.highlights.get(name)]
        .map((one) => one.startContainer.data.slice(one.startOffset, one.endOffset)).join("");
      done([label, text("sinks"), text("evicted")]);
    }).catch((error) => done(String(error)));
    """
    tab.open(server)
    found = tab.browser.execute_async_script(script)
    assert found == ["partly seen", "abcd", "efg"]


def test_without_a_store_the_window_is_shown_from_the_replys_own_numbers(
    keepless: Running, tab: Tab
) -> None:
    tab.open(keepless)
    for text in ("the sea", "the house", "the boat"):
        tab.say(text)
    assert tab.session == ""
    assert len(tab.messages("assistant")) == 3
    labels = [one["label"] for one in tab.run(GREY)]
    assert labels[:2] == ["no longer seen", "no longer seen"]
    assert labels[-1] == ""
    assert tab.is_shown("#unlisted")
    tab.check_clean()


def test_a_long_conversation_stays_small_in_the_document(server: Running, tab: Tab) -> None:
    history: list[dict[str, str]] = []
    for number in range(100):
        history.append({"role": "user", "content": f"turn {number}"})
        body = {"messages": history, "max_tokens": 2, "seed": number, "ignore_eos": True}
        answer = server.post(CHAT, {**body, "logit_bias": {"262": 100}})
        reply = answer.json["choices"][0]["message"]["content"]
        history.append({"role": "assistant", "content": reply})
    name = answer.headers["x-sinkstream-session"]
    tab.open(server, fragment=f"#{name}")
    tab.until(lambda: tab.messages("user")[-1:] == ["turn 99"], "it is open")

    def shown() -> list[str]:
        assert tab.run("return document.querySelectorAll('*').length") < 1500
        return tab.messages("user")

    assert shown() == [f"turn {number}" for number in range(60, 100)]
    for begin in (40, 20, 0):
        tab.one("#earlier").click()
        assert shown() == [f"turn {number}" for number in range(begin, begin + 40)]
    assert not tab.is_shown("#earlier")
    tab.say("turn 100")
    assert shown() == [f"turn {number}" for number in range(61, 101)]
    assert len(turns_of(server, name)) == 101
    tab.check_clean()


def test_the_bar_shows_what_is_pinned_and_a_warning_what_does_not_fit(
    server: Running, tab: Tab
) -> None:
    tab.open(server)
    tab.say("the sea")
    template = f"{SINKS} tokens pinned, always seen: how the model's chat template begins"
    assert tab.text("#sinks") == template
    assert tab.is_shown("#sinks")
    assert not tab.is_shown("#grey")  # nothing is
    tab.one("#new-chat").click()
    tab.set(system="A pirate")
    tab.say("the sea")
    turn = turns_of(server, tab.session)[-1]
    pinned = turn["pinned_tokens"]
    assert SINKS < pinned <= (SINKS + WINDOW) // 2
    assert bar(tab)["sinks"] == pinned
    assert f"{pinned} pinned" in tab.text("#legend")
    assert f"in the window of {SINKS + WINDOW - pinned}" in tab.text("#legend")
    assert tab.text("#sinks") == f"{pinned} tokens pinned, always seen"
    assert not tab.is_shown("#error")
    tab.say("word " * 30)
    assert f"the model sees {SINKS + WINDOW} at a time: it does not see" in tab.text("#error")
    tab.say("the sea")
    assert not tab.is_shown("#error")
    tab.reload()
    tab.until(lambda: len(tab.messages("user")) == 3, "the turns are back")
    assert bar(tab)["sinks"] == pinned
    tab.check_clean()
