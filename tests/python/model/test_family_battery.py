"""What holds for every family: one text has the same bits however it is computed and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkstream
from tests.data.family_configs import FAMILY_CONFIGS
from tests.data.family_models import save_family
from tests.data.slot_weights import decoder_of
from tests.python.family_variants import CONFIGS, covering_variants
from tests.python.lanes import cases
from tests.reference.decoder import Decoder
from tests.reference.window import LiveTokens

pytestmark = pytest.mark.filterwarnings("ignore:load. .*for images or sound")

SINKS, WINDOW = 3, 44  # longer than the windows that layers have of their own
NARROW = 11  # shorter
TOLERANCE = 1e-4  # relative to a text's largest logit


@dataclass(frozen=True)
class Variant:
    """A tiny model, loaded with an exact cache, and twice with a rounded one."""

    folder: Path
    exact: sinkstream.Model
    rounded: sinkstream.Model
    two_threads: sinkstream.Model

    @property
    def vocab(self) -> int:
        """Return the number of its tokens."""
        return self.exact.spec.vocab_size

    @cached_property
    def definition(self) -> Decoder:
        """Return the literal decoder with the same weights."""
        return decoder_of(self.folder)

    def ids(self, count: int, seed: int = 1) -> list[int]:
        """Draw a text; the same arguments always give the same one."""
        drawn = np.random.default_rng(seed).integers(3, self.vocab, count)
        return drawn.tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=cases(CONFIGS, always=covering_variants().__contains__))
def variant(
    request: pytest.FixtureRequest,
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Variant]:
    name = str(request.param)
    if name in FAMILY_CONFIGS:
        folder = tmp_path_factory.mktemp(name)
        save_family(name, folder)
    else:
        folder = tiny_folder(name)
    with ExitStack() as models:

        def load(**options: object) -> sinkstream.Model:
            return models.enter_context(
                sinkstream.load(
                    folder, dtype="float32", sinks=SINKS, window=WINDOW, max_sequences=3, **options
                )  # type: ignore[arg-type]
            )

        yield Variant(
            folder,
            load(kv_dtype="float32", threads=1),
            load(kv_dtype="float16", threads=1),
            load(kv_dtype="float16", threads=2, prefill_chunk=33),
        )


def feed(
    model: sinkstream.Model, ids: list[int], cache: sinkstream.Cache, chunk: int = 500
) -> torch.Tensor:
    """Return the logits [tokens, vocab] of a text, given in pieces."""
    parts = torch.tensor([ids]).split(chunk, dim=1)
    return torch.cat([model.forward(part, cache)[0] for part in parts])


Bits = tuple[list[int], list[float], list[tuple[tuple[int, float], ...]]]


def bits(result: sinkstream.Result) -> Bits:
    """Return the tokens and their logprobs: a peaked model repeats itself, whatever it has read."""
    return result.token_ids, result.logprobs, result.alternatives


def assert_close(found: torch.Tensor, expected: np.ndarray) -> None:
    assert np.abs(found.numpy() - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_ten_windows_past_capacity_the_logits_are_the_definitions(variant: Variant) -> None:
    """With windows that are longer and shorter than those of layers, if there are any."""
    for sinks, window in ((SINKS, WINDOW if variant.exact.spec.own_windows else 20), (0, NARROW)):
        ids = variant.ids(11 * window)
        cache = variant.exact.new_cache(sinks=sinks, window=window)
        found = feed(variant.exact, ids, cache, 29)
        assert_close(found, variant.definition.forward(ids, sinks, window))


def test_a_cut_leaves_what_the_definition_leaves(variant: Variant) -> None:
    """Also in layers that have lost some of these tokens, and those that never had them."""
    model, ids = variant.exact, variant.ids(3 * WINDOW)
    begin = 2 * WINDOW
    cache = model.new_cache()
    feed(model, ids[:begin], cache)
    spec = variant.definition.spec
    kept = [variant.definition.kept(layer, SINKS, WINDOW) for layer in range(spec.layers)]
    widest = max(kept, key=sum)
    live = {sizes: LiveTokens(*sizes) for sizes in kept}
    seen: dict[tuple[int, int], list[list[int]]] = {sizes: [] for sizes in live}
    for t in range(len(ids)):
        if t == begin:
            start, end = widest[0] + 5, widest[0] + 19
            cache.evict_range(start, end)
            live[widest].evict_range(start, end)
            for tokens in live.values():
                tokens.keep_only(live[widest])
        for sizes, tokens in live.items():
            seen[sizes].append(tokens.add(t))
    copy = cache.copy()
    found = feed(model, ids[begin:], cache, 7)
    assert torch.equal(feed(model, ids[begin:], copy), found)
    expected = variant.definition.forward_seen(ids, [seen[sizes] for sizes in kept])
    assert_close(found, expected[begin:])


def test_pieces_and_threads_change_no_bit(variant: Variant) -> None:
    ids = variant.ids(200)
    expected = feed(variant.rounded, ids, variant.rounded.new_cache())
    for model, chunk in ((variant.rounded, 1), (variant.rounded, 29), (variant.two_threads, 64)):
        assert torch.equal(feed(model, ids, model.new_cache(), chunk), expected)


def test_company_changes_no_bit(variant: Variant) -> None:
    model, texts = variant.rounded, [variant.ids(150, seed) for seed in (1, 2, 3)]
    together = variant.two_threads.forward(torch.tensor(texts), variant.two_threads.new_cache(3))
    for row, text in zip(together, texts, strict=True):
        assert torch.equal(feed(model, text, model.new_cache()), row)
    prompts = [texts[0][:50], texts[1][:9], texts[2][:120]]
    options = {"max_tokens": 60, "seed": 3, "temperature": 1.0, "ignore_eos": True, "logprobs": 3}
    alone = [bits(model.generate(prompt, **options)) for prompt in prompts]
    assert [bits(result) for result in variant.two_threads.generate(prompts, **options)] == alone


def reply(session: sinkstream.Session, ids: list[int], seed: int) -> Bits:
    options = {"max_tokens": 8, "temperature": 1.0, "ignore_eos": True, "logprobs": 3}
    return bits(session.stream(ids, seed=seed, **options).result())


@pytest.mark.parametrize("tokens", [9, 90])
def test_a_fork_and_a_saved_session_continue_with_the_same_bits(
    variant: Variant, tokens: int, tmp_path: Path
) -> None:
    """Before anything is evicted, and afterwards."""

    def go_on(session: sinkstream.Session) -> list[Bits]:
        return [reply(session, variant.ids(9, seed), seed) for seed in range(4, 9)]

    with variant.rounded.session() as session:
        reply(session, variant.ids(tokens), 1)
        session.save(tmp_path / "talk")
        fork = session.fork()
        expected = go_on(session)
    with fork:
        assert go_on(fork) == expected
    with variant.two_threads.load_session(tmp_path / "talk") as loaded:
        assert go_on(loaded) == expected


def test_a_reply_that_was_taken_back_leaves_no_trace(variant: Variant) -> None:
    with variant.rounded.session() as session, variant.rounded.session() as other:
        assert reply(session, variant.ids(5), 1) == reply(other, variant.ids(5), 1)
        reply(session, variant.ids(7, seed=2), 2)
        session.cancel(keep="drop")
        for seed in range(3, 9):
            ids = variant.ids(9, seed)
            assert reply(session, ids, seed) == reply(other, ids, seed)
