"""TinyChat's chat loop, over a session that never fills up.

    python examples/tinychat.py --model_path MODEL.gguf

reads a message per line from the keyboard; an empty line ends the chat. After each answer comes its
speed, as TinyChat prints it. The conversation has no maximum length: its oldest tokens leave.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import sinkstream
from sinkstream.tinychat import GenParams, Output, StreamGenerator


def stream_output(outputs: Iterator[Output]) -> int:
    """Print an answer while it grows, then its speed; return what to add to `start_pos`."""
    print("ASSISTANT: ", end="", flush=True)
    shown, output = 0, None
    for output in outputs:
        print(output["text"][shown:], end="", flush=True)
        shown = len(output["text"])
    assert output is not None
    timing = output["timing"]
    assert timing is not None  # the last output has it
    print(f"\nTTFT: {timing['context_time']:.3f} s for {timing['context_tokens']} tokens", end="")
    if times := timing["generation_time_list"]:
        print(f"; generation: {1e3 * sum(times) / len(times):.2f} ms/token", end="")
    print(f"; {output['finish_reason']}")
    return timing["total_tokens"]


def main(arguments: list[str] | None = None) -> None:
    """Load the model and chat."""
    parser = argparse.ArgumentParser(description="Chat with a model.")
    parser.add_argument("--model_path", help="a .gguf file, a folder or a name [smollm2]")
    parser.add_argument("--max_seq_len", type=int, default=2048, help="S + W, in tokens [2048]")
    parser.add_argument("--n_predict", type=int, default=512, help="tokens per answer [512]")
    parser.add_argument("--temp", type=float, default=0.7, help="0: the most probable token [0.7]")
    parser.add_argument("--seed", type=int, default=-1, help="makes draws repeatable [-1: random]")
    options = parser.parse_args(arguments)
    params = GenParams(n_predict=options.n_predict, temp=options.temp, seed=options.seed)
    window = options.max_seq_len - 4
    with (
        sinkstream.load(options.model_path, sinks=4, window=window, max_sequences=1) as model,
        model.session() as session,
    ):
        start_pos = 0
        while True:
            try:
                message = input("USER: ")
            except EOFError:
                message = ""
            if not message:
                print("EXIT...")
                return
            start_pos += stream_output(StreamGenerator(session, message, start_pos, params))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("Stopped.") from None
    except sinkstream.SinkstreamError as error:
        raise SystemExit(str(error)) from None
