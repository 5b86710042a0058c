"""`benchmarks/goal_table.py`: each goal is a row, reached, missed or not measured."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
BENCH = str(ROOT / "benchmarks")


def table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return all rows."""
    monkeypatch.syspath_prepend(BENCH)
    from goal_table import rows

    return list(rows(folder))


def test_what_has_not_run_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = table(tmp_path, monkeypatch)
    assert ("protocol", "ratio", "-", ">= 80", "not measured") in found
    assert {row[-1] for row in found} == {"not measured"}


def test_goals_are_reached_or_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = {"measure": "decode at 16", "against": "llama.cpp", "smallest": 1, "largest": 3}
    figures = {
        "model": "smollm2",
        "threads": 2,
        "engines": {"sinkstream": "sinkstream 0.1.0, kernels avx512, inputs bfloat16"},
        "comparisons": [
            {**comparison, "ratio": 1.8, "goal": 1.8},
            {**comparison, "against": "a plain read of memory", "ratio": 0.74, "goal": 0.75},
            {**comparison, "measure": "prefill of 512", "ratio": 9, "goal": None},
        ],
    }
    (tmp_path / "side_by_side-smollm2-2.json").write_text(json.dumps(figures))
    (tmp_path / "latency.json").write_text(json.dumps({"p99_over_p50": 1.2}))
    (tmp_path / "protocol.json").write_text(json.dumps({"ratio": 80}))
    found = table(tmp_path, monkeypatch)
    measured = [row[-1] for row in found if row[-1] != "not measured"]
    assert measured == ["reached", "missed", "missed", "reached"]
    assert found[0][:4] == (
        "smollm2, threads: 2",
        "decode at 16, against llama.cpp",
        "1.80 (1.00 - 3.00)",
        ">= 1.8",
    )


def test_a_processor_without_dots_has_no_goal_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kernels, least in (("avx2", None), ("amx", ">= 0.2"), ("avx512", ">= 0.7")):
        others = {"engines": {"llama.cpp": "flash attention off"}, "comparisons": []}
        (tmp_path / "side_by_side-llama-3.2-1b-Q4_0-2.json").write_text(json.dumps(others))
        figures = {"engines": {"sinkstream": f"kernels {kernels}"}, "comparisons": []}
        (tmp_path / "side_by_side-smollm2-2.json").write_text(json.dumps(figures))
        found = [
            row[3]
            for row in table(tmp_path, monkeypatch)
            if row[0] == "smollm2, threads: 1" and row[1].endswith("a loop of dots in registers")
        ]
        assert found == ([] if least is None else [least])


def test_the_table_says_whose_figures_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, commit in (("latency", "0123abc"), ("protocol", "4567def"), ("session", "89abcde")):
        processor = f"a processor, {len(name)} cores"
        figures = {"bench": name, "processor": processor, "commit": commit, "ratio": 81}
        (tmp_path / f"{name}.json").write_text(json.dumps(figures))
    (tmp_path / "picture.json").write_text("[1, 2]")  # like session.json, not part of this table
    monkeypatch.setenv("BENCH_OUT", str(tmp_path))
    monkeypatch.syspath_prepend(BENCH)
    from goal_table import main

    main()
    count, source = capsys.readouterr().out.splitlines()[-2:]
    assert re.fullmatch(r"\d+ goals: 1 reached, 0 missed, \d+ not measured", count)
    assert source == "a processor; commits: 0123abc, 4567def"


def test_the_engine_has_goals_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"figure": "inside over outside", "value": 0.93, "unit": ""}
    goal = {"goal": "≥ 0.95", "verdict": "missed"}
    old, new = tmp_path / "engine-gil.json", tmp_path / "engine-gil-stop.json"
    old.write_text(json.dumps({"gil": {"rows": [row | {"goal": "≥ 0.95", "verdict": "reached"}]}}))
    new.write_text(json.dumps({"gil": {"rows": [row | goal, row]}, "stop": {"rows": []}}))
    os.utime(old, (1, 1))
    found = [row for row in table(tmp_path, monkeypatch) if row[0].startswith("engine")]
    assert found == [
        ("engine, throughput", "all of it", "-", "its own", "not measured"),
        ("engine, idle_consumers", "all of it", "-", "its own", "not measured"),
        ("engine, gil", "inside over outside", "0.93", "≥ 0.95", "missed"),
    ]


def test_make_bench_measures_each_part_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from goals import ENGINE_PARTS

    asked = re.search(r"^ENGINE_PARTS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert asked is not None
    assert asked[1].replace("--only ", "").split() == list(ENGINE_PARTS)


def test_benches_report_what_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from goals import LIMITS

    for limit in LIMITS:
        source = (Path(BENCH) / f"{limit.bench}_bench.py").read_text()
        if re.search(r"^from figures import .*\bspread\b", source, re.MULTILINE):
            source += (
                Path(BENCH) / "figures.py"
            ).read_text()  # which names the values that it returns
        assert f'"{limit.figure}"' in source
