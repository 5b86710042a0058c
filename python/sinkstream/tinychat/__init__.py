"""TinyChat's generator protocol, over a session.

    from sinkstream.tinychat import GenParams, StreamGenerator

    start_pos = 0
    for outputs in StreamGenerator(session, "Name a river.", start_pos, GenParams(n_predict=100)):
        print(outputs["text"])
    start_pos += outputs["timing"]["total_tokens"]

llm-awq's TinyChat yields the whole text so far in a dictionary, and a last dictionary with times. A
session takes the place of its model, tokenizer and prompter: it applies the chat template and keeps
the cache, so a turn reads only its new tokens.

What differs from the original, on purpose:

- The last token of a reply is in the cache of the next turn, even after "length".
- `completion_tokens` counts the generated tokens; except after a stop, the original's is 1 too low.
- A stop at the last allowed token is "stop", not "length".
- `stop_token_ids` is not changed; the original appends to it, and to its default, at every call.
- Text is assembled from pieces, not decoded again from the beginning for every token; it never ends
  inside a character, and a stop token has no text.
- Counts and times belong to a generator, not to its module.
- No token is dropped from the front of a later turn.
- `n_predict=0` ends with a dictionary. A wrong `start_pos` or parameter raises an error.
- Leaving a generator early ends its turn.
- Repetition is penalized before the temperature, and `top_k` comes before `top_p`, as in
  transformers and in the rest of the package.
"""

from __future__ import annotations

from sinkstream.tinychat.gen_params import GenParams
from sinkstream.tinychat.stream_generator import Output, StreamGenerator, Timing, Usage

__all__ = ["GenParams", "Output", "StreamGenerator", "Timing", "Usage"]
