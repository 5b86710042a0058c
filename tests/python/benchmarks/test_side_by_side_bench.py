"""`benchmarks/side_by_side_bench.py`: the operations of a prompt, and the comparisons."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytestmark = pytest.mark.full

BENCH = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(scope="module")
def modules() -> dict[str, ModuleType]:
    """Return modules of benchmarks, which import each other as top-level modules."""
    sys.path.insert(0, BENCH)
    try:
        names = ("side_by_side_bench", "package_duel", "goals", "peers.ours")
        return {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(BENCH)


def counted_operations(spec: SimpleNamespace, tokens: int) -> int:
    """Count by loops over layers and tokens."""
    query, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    products = 0
    for layer in range(spec.layers):
        for token in range(tokens):
            products += 2 * spec.hidden_size * kv  # k and v
            if layer + 1 == spec.layers and token + 1 < tokens:
                continue  # only the last token's rest is needed
            products += 2 * spec.hidden_size * query  # q and o
            experts = spec.blocks[0].experts
            products += (
                3 * spec.hidden_size * spec.intermediate_size * (experts.chosen if experts else 1)
            )
            products += 2 * query * (token + 1)  # scores, and sums of values
    products += spec.hidden_size * spec.vocab_size
    return 2 * products


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("experts", [None, SimpleNamespace(chosen=3, experts=9)])
def test_operations_are_those_of_a_count_by_loops(
    modules: dict[str, ModuleType], tokens: int, experts: SimpleNamespace | None
) -> None:
    sizes = {"layers": 3, "hidden_size": 5, "intermediate_size": 11, "vocab_size": 13}
    blocks = (SimpleNamespace(experts=experts),)
    spec = SimpleNamespace(**sizes, heads=4, kv_heads=2, head_dim=3, blocks=blocks)
    engine = object.__new__(modules["peers.ours"].Sinkstream)
    engine._model = SimpleNamespace(spec=spec)
    assert engine.operations(tokens) == counted_operations(spec, tokens)


def test_comparisons_are_of_what_was_measured(modules: dict[str, ModuleType]) -> None:
    bench, goals = modules["side_by_side_bench"], modules["goals"]
    found = {
        goals.PREFILL: bench.Found(
            {goals.OURS: [10.0, 30.0], "llama.cpp": [5.0, 6.0]}, [0.5, 0.75], {}
        )
    }
    rows = bench.compare(found, goals.goals_of("smollm2", "avx512"))
    assert [(row["measure"], row["against"], row["ratio"], row["goal"]) for row in rows] == [
        (goals.PREFILL, goals.LLAMA_CPP, 3.5, 4.0),
        (goals.PREFILL, goals.PEAK, 0.625, 0.7),
    ]


def test_a_measure_without_a_goal_is_compared_with_the_best_engine(
    modules: dict[str, ModuleType],
) -> None:
    bench, goals = modules["side_by_side_bench"], modules["goals"]
    found = {
        goals.BATCH_8: bench.Found(
            {goals.OURS: [10.0], "sinkstream, int16 inputs": [99.0], "llama.cpp": [4.0]}, [], {}
        )
    }
    rows = bench.compare(found, goals.goals_of("smollm2", "avx512"))
    assert [(row["against"], row["ratio"]) for row in rows] == [("llama.cpp", 2.5)]


def test_everything_with_a_goal_is_measured(modules: dict[str, ModuleType]) -> None:
    bench, goals = modules["side_by_side_bench"], modules["goals"]
    for model in goals.MODELS:
        asked = {one.name for one in bench.measures_of(model)}
        engines = bench.engines_of(model)
        assert len(engines) == len(set(engines)), engines
        for goal in goals.goals_of(model, "avx512"):
            assert goal.measure in asked, (model, goal)
            is_probe = goal.rival in (goals.BEST, goals.READ, goals.PEAK)
            assert is_probe or any(name.startswith(goal.rival) for name in engines), (model, goal)
        assert engines[0] == goals.OURS
        # Recomputing the window takes minutes, so it runs only where a goal needs it.
        assert (goals.RECOMPUTED in engines) == (model == "smollm2")


def test_a_share_uses_the_probes_around_our_figure(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, goals = modules["side_by_side_bench"], modules["goals"]
    log: list[str] = []
    probes = iter([bench.Bounds(100.0, None), bench.Bounds(300.0, None)])

    def probe(one: object, threads: int, kernels: str) -> object:
        log.append(f"probe for {kernels}")
        return next(probes)

    class Engine:
        def __init__(self, name: str) -> None:
            self.name = name
            self.description = "kernels avx512, and the rest"

        def ask(self, what: str, *arguments: int) -> float:
            if what == "bytes_read":
                return 50.0
            log.append(self.name)
            return 0.5

    monkeypatch.setattr(bench, "probe", probe)
    decode = next(one for one in bench.MEASURES if one.method == "decode")
    engines = [Engine("llama.cpp"), Engine(goals.OURS), Engine("OpenVINO GenAI")]
    found = bench.Found({}, [], {})
    bounds = bench.measure_once(decode, engines, found, 1)
    aside = "probe for avx512"
    assert log == ["llama.cpp", aside, goals.OURS, aside, "OpenVINO GenAI"]
    assert bounds == bench.Bounds(200.0, None)
    assert found.shares == [50.0 / 0.5 / 200.0]
    assert found.rates["llama.cpp"] == [2.0]


def test_a_first_prompt_does_not_count(modules: dict[str, ModuleType]) -> None:
    bench = modules["side_by_side_bench"]
    prefill = next(one for one in bench.MEASURES if one.method == "prefill")
    seconds = iter([8.0, 2.0, 4.0])
    engine = SimpleNamespace(name="llama.cpp", description="", ask=lambda *_: next(seconds))
    found = bench.Found({}, [], {})
    for _ in range(2):
        bench.measure_once(prefill, [engine], found, 1)
    assert found.rates == {"llama.cpp": [256.0, 128.0]}


@pytest.mark.parametrize(
    ("kernels", "model", "share"),
    [
        ("avx512", "qwen3-0.6b-Q8_0", 0.7),
        ("amx", "qwen3-0.6b-BF16", 0.5),
        ("amx", "smollm2", 0.2),
        ("amx", "llama-3.2-1b-Q8_0", None),
        ("avx2", "smollm2", None),
    ],
)
def test_a_prompt_is_compared_with_the_loop_of_its_kernels(
    modules: dict[str, ModuleType], kernels: str, model: str, share: float | None
) -> None:
    goals = modules["goals"]
    of_the_peak = [
        goal.ratio for goal in goals.goals_of(model, kernels) if goal.rival == goals.PEAK
    ]
    assert of_the_peak == ([] if share is None else [share])
    assert goals.kernels_of(f"sinkstream 0.1.0, kernels {kernels}, inputs bfloat16") == kernels
    assert goals.kernels_of("llama-cpp-python 0.3.36, flash attention off") == ""


@pytest.mark.parametrize(("kernels", "tiles"), [("amx", True), ("avx512", False), ("avx2", False)])
def test_the_loop_around_a_prompt_is_of_its_kernels(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, kernels: str, tiles: bool
) -> None:
    bench = modules["side_by_side_bench"]
    asked: list[bool] = []

    def peak_rate(threads: int, *, tiles: bool) -> tuple[str, float]:
        asked.append(tiles)
        return "an instruction", 7.0

    probes = SimpleNamespace(sustained_read_rate=lambda *_: 5.0, peak_rate=peak_rate)
    core = SimpleNamespace(probes=probes)
    monkeypatch.setattr("sinkstream._core", core)
    prefill = next(one for one in bench.MEASURES if one.method == "prefill")
    assert bench.probe(prefill, 2, kernels) == bench.Bounds(5.0, ("an instruction", 7.0))
    assert set(asked) == {tiles}


def test_missing_engines_and_measures_are_listed(
    modules: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    bench, goals = modules["side_by_side_bench"], modules["goals"]
    found = {goals.BATCH_8: bench.Found({}, [], {"OpenVINO GenAI": "it has no batches"})}
    bench.print_tables(found, [], {"llama.cpp": "it is not installed"})
    said = capsys.readouterr().err
    assert "not started | llama.cpp | it is not installed" in said
    assert f"not possible | {goals.BATCH_8} | OpenVINO GenAI | it has no batches" in said


def test_two_probes_of_a_prompt_count_equally(modules: dict[str, ModuleType]) -> None:
    bench = modules["side_by_side_bench"]
    one, two = bench.Bounds(10.0, ("dots", 4.0)), bench.Bounds(30.0, ("dots", 2.0))
    assert bench.mean(one, two) == bench.Bounds(20.0, ("dots", 3.0))
    assert bench.spread([]) == []


def test_two_builds_are_compared_over_all_starts(modules: dict[str, ModuleType]) -> None:
    times = modules["package_duel"].Times()
    times.add([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    times.add([4.0, 4.0, 4.0], [8.0, 8.0, 8.0])
    assert times.figures(tokens=12) == {
        "base": 12 / 3.5,
        "new": 12 / 4.5,
        "ratio": 0.75,
        "middle half": [0.5, 1.75],
        "starts": [2.0, 0.5],
    }
