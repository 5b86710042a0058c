"""LangChain's ChatOpenAI: whole, streamed with usage, in a batch, and asynchronous."""

from __future__ import annotations

import asyncio
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI


def main(base_url: str) -> None:
    model = ChatOpenAI(
        base_url=base_url,
        api_key="none",
        model="any",
        temperature=0,
        max_tokens=16,
        stream_usage=True,
        max_retries=0,
    )
    said = model.invoke([SystemMessage("Be brief."), HumanMessage("Name a colour.")])
    assert said.content
    assert said.usage_metadata is not None
    assert said.usage_metadata["output_tokens"] > 0
    chunks = list(model.stream([SystemMessage("Be brief."), HumanMessage("Name a colour.")]))
    assert "".join(str(chunk.content) for chunk in chunks) == said.content
    assert any(chunk.usage_metadata for chunk in chunks)
    history = [
        SystemMessage("Be brief."),
        HumanMessage("Name a colour."),
        AIMessage(said.content),
        HumanMessage("Another one."),
    ]
    assert model.invoke(history).content
    assert all(answer.content for answer in model.batch(["Say yes.", "Say no."]))
    assert asyncio.run(model.ainvoke("Say yes.")).content


if __name__ == "__main__":
    main(sys.argv[1])
