"""Simulated clients: each has one conversation at a time, thinks, and asks again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True, slots=True)
class Habits:
    """How clients behave. Lengths and times are drawn from exponential distributions."""

    prompt_tokens: float = 60.0
    tokens_per_word: float = 1.0
    """If prompts are drawn in words."""
    reply_tokens: float = 150.0
    template_tokens: float = 0.0
    """Of each turn, in addition to its prompt and its reply."""
    turns: float = 20.0
    """Of a conversation; then its client begins another one."""
    tenants: int = 1000
    hot: float = 0.0
    """The exponent of Zipf's law: the tenant of rank r asks with a rate in proportion to
    r ** -hot. 0: all ask equally often."""


@dataclass(eq=False, slots=True)
class Session:
    """A conversation."""

    name: str
    turns_left: int
    heat: float
    """How often its client asks, relative to the mean."""
    tokens: float = 0.0
    saved_tokens: float = 0.0
    """Up to the last snapshot."""
    host: str = ""
    """The replica of its last turn."""
    in_memory_of: str = ""
    """The replica that has its state in a seat."""
    random: random.Random = field(default_factory=random.Random)


class Clients:
    """Begins conversations. The same seed gives the same conversations in the same order."""

    def __init__(self, habits: Habits, seed: int) -> None:
        self.habits = habits
        self._seed = seed
        self._numbers = count()
        weights = [rank**-habits.hot for rank in range(1, habits.tenants + 1)]
        mean = sum(weights) / habits.tenants
        self._heat = [weight / mean for weight in weights]

    def begin(self) -> Session:
        """Return a new conversation."""
        number = next(self._numbers)
        own = random.Random(f"{self._seed} {number}")
        turns = 1 + int(own.expovariate(1 / self.habits.turns))
        heat = self._heat[own.randrange(self.habits.tenants)]
        return Session(f"session {number}", turns, heat, random=own)

    def begin_earlier(self) -> Session:
        """Return a conversation that has had some turns, and lies in the store."""
        session = self.begin()
        turns = session.random.expovariate(1 / self.habits.turns)
        session.tokens = turns * (self.habits.prompt_tokens + self.habits.reply_tokens)
        session.saved_tokens = session.tokens
        return session
