"""`benchmarks/profile_bench.py`: the kind of work of a symbol, and sums of samples."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.python.scripts import module_of

pytestmark = pytest.mark.full

BENCH = Path(__file__).parents[3] / "benchmarks"
LAMBDA = "::{lambda(long, int)#1}>(long, sinkstream::"
CORE = "[.] sinkstream::(anonymous namespace)::"
OF = "[.] sinkstream::ThreadPool::Loop::of"
LOOP = "_ZZN10sinkstream10ThreadPool4Loop2ofIZNS_12_GLOBAL__N_1"  # perf leaves long ones mangled


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH))  # it imports its neighbour `machine`
    try:
        return module_of(BENCH / "profile_bench.py")
    finally:
        sys.path.remove(str(BENCH))


@pytest.mark.parametrize(
    ("symbol", "kind"),
    [
        (f"{CORE}multiply_few<{CORE[4:]}Way)1, sinkstream::PanelFormat", "products of weights"),
        (f"{CORE}decode_units<{CORE[4:]}Way)1, sinkstream::PanelFormat", "products of weights"),
        (f"{CORE}add_units<({CORE[4:]}Way)1, 32, false, 8>", "products of weights"),
        (
            f"[.] sinkstream::ThreadPool::run<{CORE[4:]}share_panels<{CORE[4:]}run_linear<",
            "products of weights",
        ),
        (f"{CORE}prepare_token<(sinkstream::(anonymous namespace)::Way)1>", "inputs of products"),
        (
            f"[.] sinkstream::ThreadPool::run<{CORE[4:]}lay_out_inputs<{CORE[4:]}run_linear<",
            "inputs of products",
        ),
        (
            f"{OF}<{CORE[4:]}lay_out_inputs<{CORE[4:]}run_linear<",
            "inputs of products",
        ),
        (
            f"{OF}<{CORE[4:]}share_panels<{CORE[4:]}lay_out_inputs<{CORE[4:]}run_linear<",
            "products of weights",
        ),
        (
            f"{CORE}run_linear<({CORE[4:]}Way)1>(const&)::{{lambda(long, long)#1}}::operator()",
            "inputs of products",
        ),
        (f"[.] {LOOP}14lay_out_inputsIZNS3_10run_linearILNS3_3WayE0", "inputs of products"),
        (f"[.] {LOOP}12share_panelsIZNS3_14lay_out_inputsIZNS3_10run", "products of weights"),
        (f"{CORE}multiply_bf16<16, 2, 2>(sinkstream::", "products of weights"),
        (f"{CORE}multiply_share(sinkstream::LinearArgs const&", "products of weights"),
        (f"{CORE}prepare_band_token(sinkstream::LinearArgs const&", "inputs of products"),
        (f"{CORE}multiply_rows<3, sinkstream::f16>", "attention"),
        (f"{CORE}attend_by_page(sinkstream::AttentionArgs const&", "attention"),
        (
            f"[.] sinkstream::ThreadPool::run<{CORE[4:]}activate_rows<(sinkstream::Activation)0, "
            f"true>(const&){LAMBDA}",
            "activation",
        ),
        (
            f"[.] sinkstream::ThreadPool::run<{CORE[4:]}for_each_vector<{CORE[4:]}replace_each<",
            "sums, caps and limits of elements",
        ),
        (f"[.] sinkstream::ThreadPool::run<{CORE[4:]}rope(const&){LAMBDA}", "rotation"),
        (
            f"[.] sinkstream::ThreadPool::run<{CORE[4:]}normalize<(sinkstream::NormKind)0, "
            f"false>(const&){LAMBDA}",
            "norms",
        ),
        (f"{CORE}append(sinkstream::AppendArgs const&", "appending to the cache"),
        (f"{CORE}log_sum_exp", "logits and sampling"),
        ("[.] sinkstream::ThreadPool::work", "handing out work and waiting"),
        ("[k] do_sched_yield", "the system"),
        ("[.] __memmove_avx512_unaligned_erms", "all else"),
    ],
)
def test_a_symbol_stands_for_its_kind_of_work(bench: ModuleType, symbol: str, kind: str) -> None:
    assert bench.kind_of(symbol) == kind


def test_samples_add_up_to_shares(bench: ModuleType) -> None:
    listing = (
        " 3000 \t[.] sinkstream::(anonymous namespace)::multiply_rows<3, sinkstream::f16>\n"
        " 1000 \t[.] sinkstream::(anonymous namespace)::attend_page<sinkstream::f16>\n"
        " 4000 \t[k] __schedule\n"
        "\n"
        "no samples of this kind\n"
    )
    assert bench.read_samples(listing) == {"attention": 0.5, "the system": 0.5}


def test_no_samples_are_no_shares(bench: ModuleType) -> None:
    assert bench.read_samples("") == {}
