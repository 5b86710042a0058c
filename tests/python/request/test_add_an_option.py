"""The example of docs/contributing/add_a_request_option.md: it applies to today's files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest

from sinkstream.request import options
from sinkstream.request.value_kinds import Integer, Number
from tests.python.request.ranges import ranges_of

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "contributing" / "add_a_request_option.md"
DIFFS = {
    "python/sinkstream/request/options.py",
    "csrc/sampling/params.h",
    "csrc/engine/stop_conditions.cc",
}
_END = "_HINTS = get_type_hints(StreamOptions, include_extras=True)"  # follows its options


def diffs() -> dict[str, str]:
    """Return the blocks of the page by the last file that is named before each."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.finditer(r"```diff\n(.*?)```", text, re.DOTALL)
    named = {
        re.findall(r"`((?:python|csrc)/[\w/.]+)`", text[: block.start()])[-1]: block[1]
        for block in blocks
    }
    return {path: re.sub("^  ", "", block, flags=re.MULTILINE) for path, block in named.items()}


def lines(block: str, sign: str) -> str:
    return "".join(line[1:] + "\n" for line in block.splitlines() if line.startswith(sign))


def insert(text: str, added: str, after: str, before: str) -> str:
    """Insert lines before the line `before` that is next after `after`."""
    at = text.index(f"\n{before}\n", text.index(after)) + 1
    return text[:at] + added + text[at:]


def declared(added: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a copy of the module of options that also has the lines."""
    source = Path(options.__file__).read_text(encoding="utf-8")
    source = insert(source, added, "class StreamOptions", _END)
    module = ModuleType("options_with_one_more")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # for its type hints
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    return module


def test_the_page_shows_what_to_add_to_each_file() -> None:
    assert diffs().keys() == DIFFS


def test_the_pages_python_lines_declare_one_more_integer(monkeypatch: pytest.MonkeyPatch) -> None:
    added = lines(diffs()["python/sinkstream/request/options.py"], "+")
    module = declared(added, monkeypatch)
    assert module.OPTIONS.keys() - options.OPTIONS.keys() == {"min_tokens"}
    integers = ranges_of(Integer, int, module.OPTIONS, get_type_hints(module.StreamOptions))
    assert integers["min_tokens"] == Integer(0, 1 << 53)
    assert "min_tokens" not in ranges_of(
        Number, float, module.OPTIONS, get_type_hints(module.StreamOptions)
    )


@pytest.mark.parametrize("kind", ["Flag()", "Number(0, 1)"])
def test_an_option_whose_kind_is_not_that_of_its_type_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = declared(f'    wrong: Annotated[int, Option(0, {kind}, "It.")]\n', monkeypatch)
    with pytest.raises(AssertionError, match="declared as <class 'int'> or as"):
        ranges_of(Integer, int, module.OPTIONS, get_type_hints(module.StreamOptions))


def test_the_pages_cpp_lines_compile(tmp_path: Path) -> None:
    """The lines to remove are there; with those to add, the compiler knows every name."""
    shown = diffs()
    params = (ROOT / "csrc/sampling/params.h").read_text(encoding="utf-8")
    member, visit = re.split("^…\n", shown["csrc/sampling/params.h"], flags=re.MULTILINE)
    params = insert(params, lines(member, "+"), "struct SamplingParams", "};")
    params = insert(params, lines(visit, "+"), "for_each_option(Params", "}")
    where = shown["csrc/engine/stop_conditions.cc"]
    conditions = (ROOT / "csrc/engine/stop_conditions.cc").read_text(encoding="utf-8")
    assert conditions.count(lines(where, "-")) == 1
    conditions = conditions.replace(lines(where, "-"), lines(where, "+"))

    (tmp_path / "sampling").mkdir()
    (tmp_path / "sampling" / "params.h").write_text(params, encoding="utf-8")
    (tmp_path / "stop_conditions.cc").write_text(conditions, encoding="utf-8")
    if (compiler := shutil.which("c++")) is None:
        pytest.skip("there is no C++ compiler")
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", f"-I{tmp_path}", f"-I{ROOT / 'csrc'}",
         "stop_conditions.cc"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
