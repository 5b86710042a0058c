"""Which policy of drafts makes replies fastest: recorded ids, replayed without a model.

    python benchmarks/draft_policies.py record ids.json [--model smollm2] [--threads 2]
    python benchmarks/draft_policies.py replay ids.json

A reply does not depend on what is guessed, so one recording serves for every policy. The replay
does for one stream what csrc/engine/drafts.cc and engine_drafts.cc do, but knows from the first
step what steps take: `PRICES`. The speed of a reply is its tokens over the sum of these prices.
`record` loads the model with a fixed number of drafts, and keeps what it drafted and accepted;
`replay` stops if it does not find the same. A table for each list of prices has the speed over
that without drafts, by policy and kind of text, and the geometric mean over the kinds.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit, processor
from speculation_bench import PROSE, TASKS

import sinkstream

# What a step takes by its rows, in steps of one row: SmolLM2 Q4_1, one thread, by kernel table of a
# Xeon, family 6 model 207.
ROWS = (1, 2, 4, 8, 16, 32)
PRICES = {
    "AMX": (1, 1.11, 1.33, 1.64, 2.26, 4.6),
    "AVX-512": (1, 1.23, 2.06, 3.6, 7.2, 14),
    "AVX2": (1, 1.21, 1.92, 3.4, 6.7, 13),
}
RECORDED_DRAFTS = 15
MOST_DRAFTS = 31  # most_scored_rows of csrc/model/step_runner.h, less the row of the last token


@dataclass(frozen=True)
class Kind:
    """Conversations, each a list of what the user says."""

    conversations: list[list[str]]
    options: dict[str, Any]

    @property
    def has_grammar(self) -> bool:
        """Whether the engine may stop to verify drafts because masks take too long."""
        return bool({"schema", "tools"} & set(self.options))


_CODE = (
    "def area(width, height):\n    if width < 0 or height < 0:\n        raise ValueError('size')\n"
    "    return width * height\n\n\ndef perimeter(width, height):\n"
    "    if width < 0 or height < 0:\n        raise ValueError('size')\n"
    "    return 2 * (width + height)\n"
)
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "maxLength": 20} for key in keys},
                "required": keys,
                "additionalProperties": False,
            },
        },
    }
    for name, description, keys in (
        ("get_weather", "Tell the weather of a day in a city.", ["city", "day"]),
        ("find_train", "Find trains between two cities.", ["origin", "destination", "day"]),
    )
]


def kinds(text: str) -> dict[str, Kind]:
    """Return what is recorded; edits and questions are about parts of `text`."""
    parts = [text[begin : begin + 1200] for begin in (0, 1200, 2400)]
    story, edit = TASKS["prose, temperature 0.8"], TASKS["an edit"]
    array = TASKS["JSON under a schema"]
    return {
        "story": Kind([[story.ask(text)]] * 3, story.options),
        "chat": Kind(
            [
                ["What is a lighthouse?", "Who works in one?", "Write a letter from one of them."],
                ["Name five dishes with rice.", "How is the first one made?", "And the second?"],
            ],
            {"temperature": 0.7, "max_tokens": 250},
        ),
        "edits": Kind(
            [[edit.ask(part)] for part in parts]
            + [
                [f"Write width as w and height as h in this code:\n\n{_CODE}"],
                [f"Add a docstring to each function of this code:\n\n{_CODE}", "Now in capitals."],
            ],
            edit.options,
        ),
        "retrieval": Kind(
            [
                [f"{part}\n\nAnswer from this text, and quote it: {question}"]
                for part in parts
                for question in ("who is in it?", "what happens?")
            ],
            {"temperature": 0.3, "max_tokens": 200},
        ),
        "JSON": Kind(
            [
                [f"List twelve {what} as JSON."]
                for what in ("rivers", "long rivers", "rivers again")
            ],
            array.options,
        ),
        "tool calls": Kind(
            [
                [f"What is the weather in {city} on {day}, and is there a train from Rome?"]
                for city in ("Oslo", "Paris", "Vienna")
                for day in ("Monday", "Friday")
            ],
            {"temperature": 0.3, "max_tokens": 200, "tools": _TOOLS, "tool_choice": "required"},
        ),
        "step by step": Kind(
            [
                [f"A train goes {speed} km/h for {hours} hours. How far? Think step by step."]
                for speed, hours in ((80, 3), (120, 2), (95, 4), (60, 7))
            ],
            {"temperature": 0.3, "max_tokens": 300},
        ),
    }


# ---- recording -------------------------------------------------------------------------------


def record_reply(model: Any, prompt: Any, **options: Any) -> tuple[dict[str, Any], str]:
    """Return the ids of a prompt and its reply, and what was drafted; and the reply's text."""
    result = model.stream(prompt, prompt_logprobs=0, **options).result()
    kept = {
        "prompt": [token.id for token in result.prompt_logprobs],
        "reply": list(result.token_ids),
        "max_tokens": options["max_tokens"],
        "drafted": result.stats.draft_tokens,
        "accepted": result.stats.accepted_tokens,
    }
    return kept, result.text


def record_kind(model: Any, kind: Kind) -> list[dict[str, Any]]:
    """Record the replies of all conversations, in order."""
    replies = []
    for seed, conversation in enumerate(kind.conversations):
        messages: list[dict[str, str]] = []
        for said in conversation:
            messages.append({"role": "user", "content": said})
            kept, text = record_reply(model, messages, seed=seed, **kind.options)
            replies.append(kept)
            messages.append({"role": "assistant", "content": text})
    return replies


def record(given: argparse.Namespace) -> None:
    """Record every kind, each with a model that has seen nothing."""
    recorded = {}
    for name, kind in kinds(PROSE.read_text()).items():
        with sinkstream.load(
            given.model, window=2044, threads=given.threads, speculation=RECORDED_DRAFTS
        ) as model:
            replies = record_kind(model, kind)
        recorded[name] = {"is_exact": not kind.has_grammar, "replies": replies}
        print(name, sum(len(reply["reply"]) for reply in replies), "tokens", flush=True)
    facts = {"model": given.model, "processor": processor(), "commit": commit()}
    given.ids.write_text(json.dumps({**facts, "kinds": recorded}))


# ---- the policy: csrc/engine/drafts.cc -------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """The constants of csrc/engine/drafts.h and drafts.cc."""

    ngrams: tuple[int, ...] = (12, 6, 3, 2)
    entries: int = 1 << 19
    remembered: float = 64
    prior_guesses: float = 2
    prior_shares: tuple[float, ...] = (0.9, 0.75, 0.5, 0.4)
    least_gain: float = 1.05
    most: int = MOST_DRAFTS
    takes_all: bool = False
    """Whether all guesses are drafted, up to `most`."""


_SALT = 6142509188972423790  # of a request without `cache_salt`: std::hash of an empty string
_MASK = (1 << 64) - 1


def _mixed(value: int, other: int) -> int:
    value = (value + other + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@functools.cache
def _hash(ngram: tuple[int, ...]) -> int:
    return functools.reduce(_mixed, ngram, _mixed(_SALT, len(ngram)))


@dataclass(frozen=True)
class Guess:
    """A token that may come next, and the index of the n-gram that was found."""

    token: int
    ngram: int


class Pool:
    """NgramPool."""

    def __init__(self, policy: Policy) -> None:
        self._ngrams = policy.ngrams
        self._mask = policy.entries - 1
        self._entries: dict[int, tuple[int, int]] = {}  # place: the hash's tag, and the token

    def learn(self, ids: Sequence[int], at: int) -> None:
        """Learn what follows the first `at` ids."""
        for length in self._ngrams:
            if length <= at:
                found = _hash(tuple(ids[at - length : at]))
                self._entries[found & self._mask] = (found >> 32 | 1, ids[at])

    def guess(self, ids: Sequence[int], most: int) -> list[Guess]:
        """Guess at most `most` tokens that follow, until none is known."""
        tail = list(ids[-max(self._ngrams) :])
        guesses: list[Guess] = []
        while len(guesses) < most and (found := self._find(tail)) is not None:
            guesses.append(found)
            tail.append(found.token)
        return guesses

    def _find(self, tail: list[int]) -> Guess | None:
        for index, length in enumerate(self._ngrams):
            if length <= len(tail):
                found = _hash(tuple(tail[-length:]))
                tag, token = self._entries.get(found & self._mask, (0, 0))
                if tag == found >> 32 | 1:
                    return Guess(token, index)
        return None


class Acceptance:
    """Acceptance."""

    def __init__(self, policy: Policy, overall: Acceptance | None = None) -> None:
        self._policy = policy
        self._overall = overall
        self._shares = [[0.0, 0.0] for _ in policy.ngrams]  # right, all

    def count(self, guesses: Sequence[Guess], right: int) -> None:
        """Count guesses of which the first `right` were right, and the next one was wrong."""
        for i, guess in enumerate(guesses[: right + 1]):
            share = self._shares[guess.ngram]
            share[0] += i < right
            share[1] += 1
            if share[1] > self._policy.remembered:
                share[0] /= 2
                share[1] /= 2

    def of(self, guess: Guess) -> float:
        """Return the probability that a guess is right, if those before it were."""
        right, known = self._shares[guess.ngram]
        prior = (
            self._policy.prior_shares[guess.ngram]
            if self._overall is None
            else self._overall.of(guess)
        )
        weight = self._policy.prior_guesses
        return (right + prior * weight) / (known + weight)


def drafts_worth(
    policy: Policy, guesses: Sequence[Guess], acceptance: Acceptance, price: Callable[[int], float]
) -> int:
    """Return how many guesses to draft in a step of one stream."""
    if policy.takes_all:
        return len(guesses)
    best, best_rate = 0, 1 / price(1)
    chance = tokens = 1.0
    for count, guess in enumerate(guesses, 1):
        chance *= acceptance.of(guess)
        tokens += chance
        if (rate := tokens / price(1 + count)) > best_rate:
            best, best_rate = count, rate
    return best if best_rate >= policy.least_gain / price(1) else 0


@dataclass
class Replayed:
    """What became of the replies of a kind."""

    tokens: int = 0  # after the first ones
    time: float = 0  # that they took
    drafted: list[int] = field(default_factory=list)  # by reply
    accepted: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """The speed over that without drafts, of steps that take 1."""
        return self.tokens / self.time


_DRAFTED_STEPS = 64  # kDraftedSteps


def replay(
    replies: Sequence[dict[str, Any]], policy: Policy, price: Callable[[int], float]
) -> Replayed:
    """Generate recorded replies again, one after the other."""
    pool, overall = Pool(policy), Acceptance(policy)
    found, drafted_steps = Replayed(), 0
    for recorded in replies:
        prompt, reply = recorded["prompt"], recorded["reply"]
        text = prompt + reply
        own = Acceptance(policy, overall)
        for at in range(len(prompt)):
            pool.learn(text, at)
        drafted = accepted = 0
        done = 1  # tokens of the reply; the last one is not learned yet
        while done < len(reply):
            length = len(prompt) + done
            most = min(policy.most, recorded["max_tokens"] - done - 1)
            guesses = pool.guess(text[:length], most)
            drafts = 0
            if guesses:
                drafted_steps = (drafted_steps + 1) % (_DRAFTED_STEPS + 1)
                if policy.takes_all or drafted_steps < _DRAFTED_STEPS:
                    drafts = drafts_worth(policy, guesses, own, price)
            known = guesses[: drafts + 1]
            right = 0
            while (
                right < min(len(known), len(reply) - done)
                and known[right].token == reply[done + right]
            ):
                right += 1
            taken = min(min(right, drafts) + 1, len(reply) - done)
            for at in range(length - 1, length - 1 + taken):
                pool.learn(text, at)
            found.time += price(1 + drafts)
            drafted += drafts
            accepted += taken - 1
            done += taken
            if done < len(reply):
                own.count(known, right)
                overall.count(known, right)
        found.tokens += len(reply) - 1
        found.drafted.append(drafted)
        found.accepted.append(accepted)
    return found


def check(name: str, replies: Sequence[dict[str, Any]]) -> None:
    """Stop if the replay does not draft and accept what the engine did."""
    policy = Policy(takes_all=True, most=RECORDED_DRAFTS)
    found = replay(replies, policy, lambda rows: 1)
    for which, here in (("drafted", found.drafted), ("accepted", found.accepted)):
        engine = [reply[which] for reply in replies]
        if here != engine:
            raise SystemExit(f"{name}: the engine has {which} {engine} tokens, the replay {here}")


# ---- tables ----------------------------------------------------------------------------------


def policies() -> Iterator[tuple[str, Policy]]:
    """Yield the policy of the engine, and others that differ from it in one thing."""
    own = Policy()
    yield "as it is", own
    for ngrams in (
        (3,),
        (5, 2),
        (8, 4, 2),
        (12, 6, 3),
        (16, 8, 4, 2),
        (24, 12, 6),
        (12, 6, 3, 2, 1),
    ):
        shares = tuple(np.interp(ngrams, (1, 2, 3, 6, 12), (0.3, 0.4, 0.5, 0.75, 0.9)))
        words = ", ".join(map(str, ngrams))
        yield f"the last {words} tokens", replace(own, ngrams=ngrams, prior_shares=shares)
    for bits in (10, 12, 14, 16):
        yield f"{8 << bits >> 10} KiB", replace(own, entries=1 << bits)
    for shares in ((0.5, 0.4, 0.3, 0.2), (0.95, 0.9, 0.8, 0.7)):
        yield f"{shares} are expected to be right", replace(own, prior_shares=shares)
    for weight in (1, 8):
        yield f"as if {weight} guesses were known", replace(own, prior_guesses=weight)
    for remembered in (16, 256):
        yield f"{remembered} guesses are remembered", replace(own, remembered=remembered)
    for gain in (1.0, 1.15):
        yield f"a gain of {gain} is enough", replace(own, least_gain=gain)
    for most in (3, 7, 15):
        yield f"at most {most} drafts", replace(own, most=most)
        yield f"always {most} drafts", replace(own, most=most, takes_all=True)


def main() -> None:
    """Record, or replay and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["record", "replay"])
    parser.add_argument("ids", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.command == "record":
        return record(given)
    recorded = json.loads(given.ids.read_text())
    names = list(recorded["kinds"])
    for name in names:
        if recorded["kinds"][name]["is_exact"]:
            check(name, recorded["kinds"][name]["replies"])
    print(f"{recorded['model']}, {recorded['processor']}, {recorded['commit']}")
    for table, prices in PRICES.items():
        price = functools.cache(lambda rows, prices=prices: float(np.interp(rows, ROWS, prices)))
        print(f"\n| {table} | {' | '.join(names)} | mean |")
        print("| --- |" + " --- |" * (len(names) + 1), flush=True)
        for what, policy in policies():
            speeds = [
                replay(recorded["kinds"][name]["replies"], policy, price).speed for name in names
            ]
            speeds.append(statistics.geometric_mean(speeds))
            print(f"| {what} | {' | '.join(f'{speed:.3f}' for speed in speeds)} |", flush=True)


if __name__ == "__main__":
    main()
