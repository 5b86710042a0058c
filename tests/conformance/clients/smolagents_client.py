"""smolagents: agents that write code, and agents that call tools, whole and streamed."""

from __future__ import annotations

import sys
from typing import Any

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from smolagents.memory import ActionStep
from smolagents.utils import AgentGenerationError


@tool
def depth(point: str) -> int:
    """Measure the depth of the sea.

    Args:
        point: Where.
    """
    return 12


def main(base_url: str) -> None:
    model = OpenAIModel("any", base_url, "none", temperature=0, max_tokens=96)
    for stream in (False, True):
        for agent in (
            CodeAgent([depth], model, max_steps=2, stream_outputs=stream),
            CodeAgent([], model, max_steps=1, use_structured_outputs_internally=True),
            ToolCallingAgent([depth], model, max_steps=2, stream_outputs=stream),
        ):
            check(agent)


def check(agent: Any) -> None:
    """The model is small: its steps may be wrong, but the server answers each."""
    for again in (False, True):
        answer = agent.run("How deep is the sea at Dover?", reset=not again)
        assert answer is not None
    steps = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
    assert steps
    for step in steps:
        assert not isinstance(step.error, AgentGenerationError), step.error
        assert step.token_usage is not None
    if isinstance(agent, ToolCallingAgent):
        assert any(step.tool_calls for step in steps)


if __name__ == "__main__":
    main(sys.argv[1])
