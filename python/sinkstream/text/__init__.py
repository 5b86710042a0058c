"""Text: tokenizers, chat templates, prompts, and the bytes of tokens."""
