"""LlamaIndex's OpenAILike: chat and completion, whole and streamed."""

from __future__ import annotations

import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def main(base_url: str) -> None:
    model = OpenAILike(
        model="any",
        api_base=base_url,
        api_key="none",
        is_chat_model=True,
        temperature=0,
        max_tokens=16,
        max_retries=0,
    )
    messages = [ChatMessage(role="user", content="Name a colour.")]
    said = model.chat(messages).message.content
    assert said
    assert list(model.stream_chat(messages))[-1].message.content == said
    plain = OpenAILike(
        model="any", api_base=base_url, api_key="none", temperature=0, max_tokens=8, max_retries=0
    )
    text = plain.complete("The sky is").text
    assert text
    assert list(plain.stream_complete("The sky is"))[-1].text == text


if __name__ == "__main__":
    main(sys.argv[1])
