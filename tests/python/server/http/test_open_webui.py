"""The requests of Open WebUI 0.12.4 as it is installed, written small.

They are what it sends for a message, a call's result, its titles, tags and follow-ups, and
"Continue". docs/guides/open_webui.md says how it is set up; `make conformance` runs all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("llguidance", reason="needs the extra `structured`")

from tests.python.server.http.running_server import CHAT, Answered, Running, events_of, running
from tests.python.text.tool_templates import write_tool_folder

HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate, br", "Authorization": "Bearer none"}
WINDOW = 2044


def tool(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {"properties": properties, "type": "object", **more}
    function = {"name": name, "description": "…", "parameters": parameters}
    return {"type": "function", "function": function}


# Every keyword of its 36 tools, but "const".
TOOLS = [
    tool("get_current_timestamp", {}),
    tool("ask_user", {"questions": {
        "items": {"additionalProperties": True, "type": "object"}, "type": "array",
    }}, required=["questions"]),
    tool("create_tasks", {"tasks": {"items": {
        "properties": {
            "content": {"type": "string"},
            "status": {"default": "pending", "enum": ["pending", "completed"], "type": "string"},
        },
        "required": ["content"], "type": "object",
    }, "type": "array"}}, required=["tasks"]),
]  # fmt: skip
ASKED = {"role": "user", "content": "What time is it?"}
BEGUN = {"role": "assistant", "content": "It is"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_current_timestamp", "arguments": "{}"},
}
RESULT = '{"current_timestamp":1795949536,"user_timezone":"UTC"}'
CALLED = [
    ASKED,
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
]
TASK = "### Task:\nGenerate a title.\n<chat_history>\nUSER: What time is it?\n</chat_history>"
MESSAGES = {"a message": [ASKED], "a regenerated reply": [ASKED], "a result": CALLED}
TASKS: dict[str, Any] = {"a title": {"max_tokens": 1000}, "tags": {}, "follow-ups": {}}
FLAGS = {"continue_final_message": True, "add_generation_prompt": False}
"""With the provider "llama.cpp"."""
NEITHER = {"add_generation_prompt": True}


@pytest.fixture(scope="module")
def serve(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Running]]:
    """Give a server for each way of continuing; it keeps conversations, as by default."""
    found: dict[bool, Running] = {}
    root = tmp_path_factory.mktemp("open_webui")
    with ExitStack() as stack:

        def server(*, continues: bool = False) -> Running:
            if continues not in found:
                folder = root / str(continues)
                model = write_tool_folder(tiny_folder("llama"), folder / "model", "hermes")
                found[continues] = stack.enter_context(
                    running(
                        model,
                        window=WINDOW,
                        store=str(folder / "store"),
                        max_tokens=24,
                        continue_final_message=continues,
                    )
                )
            return found[continues]

        yield server


def ask(server: Running, **body: Any) -> Answered:
    answer = server.ask("POST", CHAT, {"model": "tiny", **body}, HEADERS)
    assert answer.status == 200, answer.body
    return answer


def reply_to(server: Running, messages: list[Any], **more: Any) -> str:
    """Return the text of a streamed reply; its calls, if it has any, are complete."""
    body = {"stream": True, "messages": messages, "tools": TOOLS, "temperature": 0, **more}
    events = events_of(ask(server, **body).body)
    choices = [event["choices"][0] for event in events]
    assert choices[-1]["finish_reason"] in ("stop", "length", "tool_calls")
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_with_its_tools_is_answered(serve: Callable[..., Running], kind: str) -> None:
    assert reply_to(serve(), MESSAGES[kind])


@pytest.mark.parametrize("kind", TASKS)
def test_a_task_is_answered(serve: Callable[..., Running], kind: str) -> None:
    messages = [{"role": "user", "content": TASK}]
    answer = ask(serve(), stream=False, messages=messages, seed=1, **TASKS[kind])
    (choice,) = answer.json["choices"]
    assert choice["message"]["content"]


@pytest.mark.parametrize("flags", [FLAGS, {}], ids=["flags", "setting"])
def test_continue_continues_the_last_reply(serve: Callable[..., Running], flags: Any) -> None:
    """Without flags, the server's setting says so; the model reads the same tokens."""
    said = reply_to(serve(continues=not flags), [ASKED, BEGUN], **flags)
    assert said == reply_to(serve(), [ASKED, BEGUN], **FLAGS)
    assert said != reply_to(serve(), [ASKED, BEGUN])


@pytest.mark.parametrize("messages", [[ASKED], CALLED], ids=["question", "result"])
def test_the_setting_concerns_replies_alone(
    serve: Callable[..., Running], messages: list[Any]
) -> None:
    assert reply_to(serve(continues=True), messages) == reply_to(serve(), messages)


@pytest.mark.parametrize(
    "own", [{"continue_final_message": False}, {"add_generation_prompt": True}]
)
def test_a_request_says_itself_how_it_ends(serve: Callable[..., Running], own: Any) -> None:
    messages = [ASKED, BEGUN]
    assert reply_to(serve(continues=True), messages, **own) == reply_to(serve(), messages)


@pytest.mark.parametrize(
    ("path", "field", "counted"),
    [("/tokenize", "messages", "count"), ("/responses/input_tokens", "input", "input_tokens")],
)
def test_tokens_are_counted_as_they_are_read(
    serve: Callable[..., Running], path: str, field: str, counted: str
) -> None:
    def count(server: Running, **more: Any) -> int:
        answer = server.post(path, {field: [ASKED, BEGUN], **more})
        assert answer.status == 200, answer.body
        found: int = answer.json[counted]
        return found

    assert count(serve(continues=True)) == count(serve(), continue_final_message=True)
    assert count(serve(continues=True)) < count(serve())
