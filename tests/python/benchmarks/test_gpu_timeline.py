"""`tests/gpu/bench/timeline.py`: statistics of a GPU's timeline, on simulated records."""

from __future__ import annotations

import pytest

from tests.gpu.bench.timeline import (
    LAST,
    LOGITS,
    Record,
    as_trace,
    busy_us,
    divide,
    read_trace,
    short_name,
    summarize,
)

pytestmark = pytest.mark.full


def step(begin: float, *, stream: int = 7) -> list[Record]:
    """A copy, two kernels that overlap by 2 µs, 3 µs idle, and the two sampling kernels: 40 µs."""
    return [
        Record("Memcpy HtoD", begin, begin + 2, stream, "copy"),
        Record("embedding_kernel", begin + 2, begin + 7, stream),
        Record("linear_kernel<2>", begin + 5, begin + 20, stream),
        Record(LOGITS, begin + 23, begin + 30, stream),
        Record(LAST, begin + 31, begin + 40, stream),
    ]


def steady(steps: int, period: float = 44) -> list[Record]:
    return [record for number in range(steps) for record in step(period * number)]


def test_steps_end_with_the_sampled_token_and_partial_steps_are_left_out() -> None:
    records = steady(4)[2:-1]  # the first begins late, the last does not end
    assert [len(each) for each in divide(records)] == [5, 5]
    assert divide(records)[0][0].begin_us == 44
    assert divide(list(reversed(records))) == divide(records)


def test_a_steady_decode_is_described() -> None:
    found = summarize(steady(12))
    assert found["steps"] == 11  # the first may be partial
    assert found["records_per_step"] == 5
    assert found["step_p50_us"] == found["step_p99_us"] == 44
    assert found["gap_p50_us"] == found["gap_p99_us"] == 4
    assert found["idle_inside_p50_us"] == 4  # 20 to 23, 30 to 31
    assert found["busy_us"] == pytest.approx(36)
    assert found["busy_share"] == pytest.approx(36 / 44)
    assert found["sampling_p50_us"] == 17
    assert found["streams"] == 1
    assert list(found["kernels_us"].items()) == [
        ("linear_kernel<2>", 15),
        (LAST, 9),
        (LOGITS, 7),
        ("embedding_kernel", 5),
        ("Memcpy HtoD", 2),
    ]


def test_one_late_step_is_seen_in_p99_and_not_in_the_median() -> None:
    late = [
        Record(r.name, r.begin_us + 100 * (r.begin_us >= 44 * 6), r.end_us + 100 * (r.end_us > 265))
        for r in steady(12)
    ]
    found = summarize(late)
    assert found["gap_p50_us"] == 4
    assert found["gap_p99_us"] == 104
    assert found["step_p99_us"] == 144


def test_a_step_that_begins_before_the_one_before_has_ended_leaves_no_gap() -> None:
    found = summarize(steady(5, period=38))
    assert found["gap_p50_us"] == 0
    assert found["step_p50_us"] == 38
    # Of 38 µs, two steps share 2: 36 of one step alone, minus its 4 idle, plus the shared 2.
    assert found["busy_us"] == pytest.approx(34)


def test_work_of_another_stream_fills_what_was_idle() -> None:
    copies = [Record("copy", 44 * number + 20, 44 * number + 44, 9, "copy") for number in range(6)]
    found = summarize(steady(6) + copies)
    assert found["streams"] == 2
    assert found["idle_inside_p50_us"] == 0
    assert found["busy_share"] == pytest.approx(1)


def test_busy_counts_a_moment_once_and_only_within_the_span() -> None:
    records = [Record("a", 0, 10), Record("b", 2, 4), Record("c", 8, 12), Record("d", 20, 30)]
    assert busy_us(records, 0, 100) == 22
    assert busy_us(records, 3, 25) == 9 + 5
    assert busy_us([], 0, 100) == 0


def test_too_few_steps_are_an_error_and_not_a_figure() -> None:
    with pytest.raises(ValueError, match="must contain 2 complete steps, but contain 1"):
        summarize(steady(2))
    with pytest.raises(ValueError, match="0 records"):
        summarize([])


def test_a_trace_is_read_without_the_hosts_part() -> None:
    records = steady(2)
    trace = as_trace(records)
    trace["traceEvents"] += [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "dur": 5},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]
    assert read_trace(trace) == records


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void sinkstream::cuda::(anonymous namespace)::linear_kernel<"
            "(sinkstream::cuda::Storage)3, 2>(sinkstream::cuda::LinearArgs)",
            "linear_kernel<(Storage)3, 2>",
        ),
        ("sinkstream::cuda::(anonymous namespace)::sample_kernel(SampleArgs)", "sample_kernel"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD "),
        ("sm90_xmma_gemm_bf16", "sm90_xmma_gemm_bf16"),
    ],
)
def test_names_are_shortened(name: str, short: str) -> None:
    assert short_name(name) == short.strip()
