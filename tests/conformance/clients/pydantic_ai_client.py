"""pydantic-ai: complete structured replies in each of its forms, and tools, whole and streamed."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

LONG = "The sea was calm, and the boat lay still. " * 20
SETTINGS: Any = {"temperature": 0, "max_tokens": 1000}


class Boat(BaseModel):
    """A boat."""

    name: Annotated[str, Field(max_length=16)]
    masts: Annotated[int, Field(ge=1, le=5)]
    kind: Literal["sloop", "ketch", "cutter"]
    crew: Annotated[list[Annotated[str, Field(max_length=12)]], Field(max_length=3)]


def main(base_url: str) -> None:
    provider = OpenAIProvider(base_url=base_url, api_key="none")
    chats = OpenAIChatModel("any", provider=provider)
    check_structured(chats, (NativeOutput(Boat), ToolOutput(Boat)))
    check_structured(OpenAIResponsesModel("any", provider=provider), (NativeOutput(Boat),))
    check_prompted(chats)
    check_tools(chats)
    check_history(chats)


def check_structured(model: Any, forms: Any) -> None:
    for form in forms:
        agent = Agent(model, output_type=form, model_settings=SETTINGS, retries=0)
        boat = agent.run_sync("Describe a boat.").output
        assert isinstance(boat, Boat)
        stream = agent.run_stream_sync("Describe a boat.")
        partial = list(stream.stream_output(debounce_by=None))
        assert partial[-1] == boat


def check_prompted(model: Any) -> None:
    """The prompt has the schema, and the reply is any JSON object: its fields are by chance."""
    agent = Agent(model, output_type=PromptedOutput(dict[str, Any]), model_settings=SETTINGS)
    assert isinstance(agent.run_sync("Describe a boat as JSON.").output, dict)


def calls_first(context: Any) -> Any:
    return {**SETTINGS, "tool_choice": ["depth"] if context.run_step == 1 else "none"}


def check_tools(model: Any) -> None:
    called = []
    agent = Agent(model, model_settings=calls_first)

    @agent.tool_plain
    def depth(point: Annotated[str, Field(max_length=12)]) -> int:
        """Measure the depth of the sea at a point."""
        called.append(point)
        return 12

    for stream in (False, True):
        called.clear()
        if stream:
            result = agent.run_stream_sync("How deep is the sea at Dover?")
            text = "".join(result.stream_text(delta=True))
        else:
            text = agent.run_sync("How deep is the sea at Dover?").output
        assert called
        assert isinstance(text, str)


def check_history(model: Any) -> None:
    agent = Agent(model, system_prompt="You are a sailor.", model_settings={"max_tokens": 16})
    history = None
    for _ in range(10):
        result = agent.run_sync(f"{LONG} What then?", message_history=history)
        assert result.output
        history = result.all_messages()


if __name__ == "__main__":
    main(sys.argv[1])
