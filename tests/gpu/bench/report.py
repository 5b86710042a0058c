"""Tables of the measured figures and the goals. Needs neither torch nor the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.gpu.bench.goals import GOALS, Goal

Report = dict[str, Any]

# Dense bfloat16 operations per second from data sheets; the first matching name counts.
_NOMINAL = (("H100 PCIe", 756e12), ("H100", 989e12), ("H200", 989e12))
_KERNELS = 14  # listed per trace


def numbers(bench: Report) -> dict[str, float]:
    """Return every number by name, "subject: figure: value", including derived ones.

    - share: for a rate, the bytes that steps must read over what a torch copy or sum moves in the
      same time, whichever is more; for a prompt, its operations over those of a product.
    - growth: tokens/s of n streams over n times those of one; "over 16": over those of 16.
    - of the usual: tokens/s of a variant of a model over those of the model itself.
    - of one alone: a prompt's tokens/s next to streams over those without any.
    - gap of replay, sampling of argmax: times over those of torch's graphs.
    - ratio: our tokens/s in bfloat16 over transformers', with the same number of live tokens.
    """
    found: dict[str, float] = {}
    for subject, figures in bench["figures"].items():
        for figure, values in figures.items():
            for name, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    found[f"{subject}: {figure}: {name}"] = value
    for subject, figures in bench["figures"].items():
        for figure, values in figures.items():
            if "error" not in values:
                for name, value in _derived(found, gpu_of(bench), subject, figure, values):
                    found[f"{subject}: {figure}: {name}"] = value
    return found


def _derived(
    found: dict[str, float], gpu: str, subject: str, figure: str, values: Report
) -> Iterator[tuple[str, float]]:
    words = figure.split()
    if figure == "product":
        nominal = next((rate for name, rate in _NOMINAL if name in gpu), 0.0)
        if nominal:
            yield "share of nominal", values["flops_per_s"] / nominal
    elif words[0] == "rate":
        moved = [found.get(f"gpu: {way}: bytes_per_s", 0.0) for way in ("copy", "read")]
        if max(moved) > 0:
            yield "share", values["bytes_per_step"] * values["steps_per_s"] / max(moved)
        rate, lengths = values["tokens_per_s"], figure.partition(" at ")[2]
        if words[1] != "1" and (one := found.get(f"{subject}: rate 1 at {lengths}: tokens_per_s")):
            yield "growth", rate / (int(words[1]) * one)
        if words[1] != "16" and (
            some := found.get(f"{subject}: rate 16 at {lengths}: tokens_per_s")
        ):
            yield "over 16", rate / some
        usual = " ".join(subject.split()[:2])
        if usual != subject and (known := found.get(f"{usual}: {figure}: tokens_per_s")):
            yield "of the usual", rate / known
    elif words[0] == "prefill":
        if product := found.get("gpu: product: flops_per_s"):
            yield "share", values["flops_per_s"] / product
        alone = found.get(f"{subject}: {' '.join(words[:2])}: tokens_per_s")
        if alone and "next" in words:
            yield "of one alone", values["tokens_per_s"] / alone
    elif words[0] == "trace":
        if replay := found.get("gpu: replay: us"):
            yield "gap of replay", values["gap_p50_us"] / replay
        if argmax := found.get("gpu: argmax: us"):
            yield "sampling of argmax", values["sampling_p50_us"] / argmax
    elif subject.startswith("transformers") and words[-2:-1] == ["at"]:
        shape = subject.split()[1]
        ours = found.get(f"{shape} BF16: rate 1 at {words[-1]}: tokens_per_s")
        if ours:
            yield "ratio", ours / values["tokens_per_s"]


def gpu_of(bench: Report) -> str:
    """Return the GPU's name."""
    name: str = bench["figures"].get("gpu", {}).get("gpu", {}).get("name", "no GPU")
    return name


def lines(bench: Report) -> list[str]:
    """Return all tables."""
    found = numbers(bench)
    machine = "a rehearsal: no figures of a GPU" if bench["is_rehearsal"] else gpu_of(bench)
    written = ["", f"bench: {machine}, commit {bench['commit']}"]
    for subject, figures in bench["figures"].items():
        written += ["", subject]
        for figure, values in figures.items():
            written += _figure_lines(found, subject, figure, values)
    written += ["", f"{'goal':48} {'wanted':>12} {'found':>16}"]
    written += [
        f"{verdict['goal']:48} {verdict['wanted']:>12} {verdict['found']:>16}  {verdict['verdict']}"
        for verdict in verdicts(bench)
    ]
    written += [f"left out: {name}: {reason}" for name, reason in bench["left_out"].items()]
    return written


def _amount(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g} %"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def verdicts(bench: Report) -> list[dict[str, str]]:
    """Return each goal's verdict: "reached", "missed", or why it is unknown."""
    found = {} if bench["is_rehearsal"] else numbers(bench)
    return [
        {
            "goal": goal.what,
            "wanted": f"{'≥' if goal.is_least else '≤'} {_amount(goal.wanted, goal.unit)}",
            "found": _amount(found[goal.number], goal.unit) if goal.number in found else "–",
            "verdict": _verdict(bench, goal, found.get(goal.number)),
        }
        for goal in GOALS
    ]


def _verdict(bench: Report, goal: Goal, found: float | None) -> str:
    if found is None:
        subject, figure, _ = goal.number.split(": ")
        error = bench["figures"].get(subject, {}).get(figure, {}).get("error")
        reason = error or bench["left_out"].get(f"{subject}: {figure}")
        return f"not measured: {reason}" if reason else "not measured"
    return "reached" if goal.is_reached(found) else "missed"


def _figure_lines(
    found: dict[str, float], subject: str, figure: str, values: Report
) -> Iterator[str]:
    def number(name: str, unit: str) -> str:
        key = f"{subject}: {figure}: {name}"
        return _amount(found[key], unit) if key in found else "–"

    def line(*parts: str) -> str:
        return f"  {figure:26} {', '.join(parts)}"

    kind = figure.split()[0]
    if "error" in values:
        yield line(values["error"])
    elif figure in ("copy", "read"):
        yield line(f"{values['bytes_per_s'] / 1e9:,.0f} GB/s")
    elif figure == "product":
        rate = f"{values['flops_per_s'] / 1e12:,.3g} TFLOP/s"
        yield line(rate, f"{number('share of nominal', '%')} of the data sheet's")
    elif figure in ("replay", "argmax"):
        yield line(f"{values['us']:,.2f} µs")
    elif figure == "memory":
        plan, driver = (
            f"{values[name] / 1e9:,.2f} GB" for name in ("planned_bytes", "driver_bytes")
        )
        yield line(f"{driver} by the driver", f"{plan} by the plan")
    elif kind == "rate":
        names = {
            "growth": ("%", "of linear growth"),
            "over 16": ("×", "of 16 streams"),
            "of the usual": ("%", "of the usual window and loading"),
        }
        parts = [
            f"{number(name, unit)} {words}"
            for name, (unit, words) in names.items()
            if f"{subject}: {figure}: {name}" in found
        ]
        yield line(
            f"{values['tokens_per_s']:,.1f} tokens/s",
            f"{number('share', '%')} of bandwidth",
            *parts,
            f"{values['live_tokens']:,.0f} live each",
            f"prompts {values['prompts_tokens_per_s']:,.0f} tokens/s",
        )
    elif kind == "prefill":
        yield line(
            f"{values['tokens_per_s']:,.0f} tokens/s",
            f"{values['flops_per_s'] / 1e12:,.3g} TFLOP/s",
            f"{number('share', '%')} of a product",
            *([f"{values['decoded']} tokens decoded meanwhile"] if "next to" in figure else []),
        )
    elif kind == "trace":
        yield line(*_trace_parts(values))
        for name, microseconds in list(values["kernels_us"].items())[:_KERNELS]:
            yield f"    {microseconds:10.2f} µs a step  {name[:80]}"
    elif figure == "between tokens":
        loop = values["empty loop"]
        yield line(
            f"{values['count']:,} of {values['asked_for']:,}",
            f"p50 {values['p50_ms']:.3f} ms",
            f"p99/p50 {values['p99_over_p50']:.3f}",
            f"longest {values['longest_ms']:.2f} ms",
            f"{values['evicted_tokens']:,} evicted",
            f"an empty loop's p99/p50 {loop['p99_over_p50']:.3f}",
        )
    elif "tokens_per_s" in values:
        yield line(f"{values['tokens_per_s']:,.1f} tokens/s", f"we: {number('ratio', '×')}")
    elif "seconds" in values:
        yield line(f"{values['seconds']:.1f} s")


def _trace_parts(values: Report) -> Iterator[str]:
    if values["is_simulated"]:
        yield "simulated"
    yield f"{values['steps']} steps of {values['step_p50_us']:,.1f} µs"
    yield f"{values['untraced_step_us']:,.1f} µs untraced"
    yield f"busy {100 * values['busy_share']:.2f} %"
    yield f"gap {values['gap_p50_us']:.2f} µs (p99 {values['gap_p99_us']:.2f})"
    yield f"idle inside {values['idle_inside_p50_us']:.1f} µs"
    yield f"sampling {values['sampling_p50_us']:.2f} µs (p99 {values['sampling_p99_us']:.2f})"
