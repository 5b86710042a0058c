"""No text of the repository has a retired phrase: plain English, one word per idea."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.python.packaging.words import Phrase, Phrases

ROOT = Path(__file__).parents[3]
RETIRED = "docs/contributing/retired_words.md"
EXEMPT = {
    "LICENSE",
    RETIRED,
    "docs/pictures/demo.svg",  # what a model wrote
    "tests/data/prose.txt",
    "tests/python/packaging/test_words.py",
}
RESULTS = "benchmarks/results/"  # its pages are read, its figures are not
GENERATED = {".venv", "build", "dist", "__pycache__"}

TYPES = "texts?|strings?|numbers?|integers?|floats?|lists?|bools?|int64|tensors?|UTF-8"
PERSONS = "nobody|somebody|anybody|everybody|whoever|whomever|whosoever"
RECALL = (  # its argument `place` is public
    "benchmarks/recall_bench.py",
    "python/sinkstream/cli/evaluate.py",
    "python/sinkstream/evaluate/",
    "tests/python/evaluate/",
)
PHRASES = Phrases(
    # A package index does not have it.
    Phrase(r"pip install ['\"]?sinkstream\b", "pip install '.[serve]', how_to_install"),
    Phrase(r"\bby turns?\b", "interleaved, alternating"),
    Phrase(
        r"\bin turns\b",
        "alternately, one by one",
        allowed=r"\bfor [\w,\s]+ in turns\b|\bin turns\.\w|\bheld in turns\b|\bin turns of a\b",
    ),
    Phrase(r"\bso many\b", "N, a given number of"),
    Phrase(r"\bso much\b", "N, that much", allowed=r"\bso much (?:that|as|so)\b"),
    Phrase(rf"\b(?:{PERSONS})\b", "no request, a client, the caller, any thread"),
    Phrase(r"\bunder way\b", "in flight, running, started"),
    Phrase(r"\bwhole numbers?\b", "an integer"),
    Phrase(r"\bmust be (?:a )?texts?\b|\btexts must be\b|\blists? of texts\b", "a string, strings"),
    Phrase(rf"\b(?:is|are|be) no (?:{TYPES})\b", "is not a ...", allowed=r"\bthere (?:is|are) no"),
    Phrase(r"\blikeliest\b", "most probable"),
    Phrase(r"\bbeside\b", "next to, compared with, in addition to, alongside"),
    Phrase(r"\bbesides\b", "apart from, in addition"),
    Phrase(r"\bin vain\b", "discarded"),
    Phrase(r"\bcards?\b", "a GPU", allowed=r"\bsinkstream\.cards\b"),  # its former name
    Phrase(r"\bdrawers?\b", "a device sampler, a sampler"),
    Phrase(r"\bowed\b", "pending"),
    Phrase(r"\bwhat \w+ makes? of\b", "with, from"),
    Phrase(r"\bwho asks? for\b", "requests with"),
    Phrase(r"\bfor ever\b", "indefinitely, forever"),
    Phrase(r"\bin company\b", "in a batch with others"),
    Phrase(r"\bnot to be told from\b", "indistinguishable from"),
    Phrase(
        r"\bplaces?\b",
        "an index, offset, address, extent, role, location",
        allowed=r"\bin place\b",
        allowed_in=RECALL,
        is_name=True,
    ),
    Phrase(r"\b(?-i:Beginning)\b", "what begins: SessionStart", is_name=True),
    Phrase(
        r"\bbehind\b",
        "after, with N cached tokens, following",
        allowed=r"\b(?:f[ae]ll(?:s|en|ing)?|lag(?:s|ged|ging)?|stay(?:s|ed|ing)?) behind\b"
        r"|\bbehind (?:an?|the) (?:\w+ )?proxy\b",
    ),
)


def tracked() -> list[str]:
    """Return the files of the repository; without git, those that are not generated."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False
    )
    if listed.returncode == 0 and listed.stdout:
        return listed.stdout.splitlines()
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return [str(file) for file in files if not GENERATED & set(file.parts)]


def readable(file: str) -> str:
    """Return the text of a file as far as the rules are for it; binary files have none."""
    path = ROOT / file
    is_figures = file.startswith(RESULTS) and not file.endswith(".md")
    if file in EXEMPT or is_figures or not path.is_file():
        return ""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
    if file.startswith("docs/decisions/"):
        return "\n" + text.partition("\n")[2]  # titles stay: other pages and commits name them
    return text


def test_no_text_has_a_phrase_that_was_given_up() -> None:
    found = [line for file in tracked() for line in PHRASES.findings(file, readable(file))]
    assert found == [], "\n".join(["", *found, f"{len(found)} in all"])


def test_the_page_names_every_phrase_that_was_given_up() -> None:
    table = (ROOT / RETIRED).read_text(encoding="utf-8")
    missing = [phrase.pattern for phrase in PHRASES if not list(phrase.lines(table))]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nmeasured by turns\n", ["2: by turns"]),
        ("// measured by\n// turns\n", ["1: by turns"]),
        ('f"measured by "\n    f"turns"', ["1: by turns"]),
        ("| it turns | by Turns |", ["1: by Turns"]),
        ("the engine is no text", ["1: is no text"]),
        ("without a tokenizer there is no text", []),
        ("streams that fall behind wait", []),
        ("streams that lag\nbehind wait", []),
        ("run it behind a reverse proxy", []),
        ("the token behind it", ["1: behind"]),
        ("besides, beside", ["1: beside", "1: besides"]),
        ("a discard, a wildcard", []),
        ("kCards = by_turns", ["1: Cards", "1: by turns"]),
        ('// not `beside_s`, nor a "key_behind"', ["1: beside", "1: behind"]),
        ("def test_by_turns() -> None:", ["1: by turns"]),
        ("x\nTEST(Engine, RunsBesideOthers) {", ["2: Beside"]),
        ("TEST(Engine,\n     NeedsCardsToRun) {", ["2: Cards"]),
        ("EXPECT(beside_others)", ["1: beside"]),
        ("for (const auto& turn : in_turns)", ["1: in turns"]),
        ("for one in turns: in turns.all", []),
        ("struct Place;", ["1: Place"]),
        ("int first_places[2], placed;", ["1: places"]),
        ("is_in_place, kInPlace, replace, placeholder", []),
        ('f(x, "a place");  // the place\n/* a\n place */', []),
        ("TEST(Places, HasAPlace)", []),
        ("class Beginning:", ["1: Beginning"]),
        ("ids beginning; // Beginning", []),
    ],
)
def test_a_planted_phrase_is_found(text: str, expected: list[str]) -> None:
    found = [line.split(": say ")[0] for line in PHRASES.findings("a.cc", text)]
    assert [re.sub(r"^a\.cc:(\d+): '(.*)'$", r"\1: \2", line) for line in found] == expected


def test_comments_and_docstrings_of_python_are_not_code() -> None:
    text = 'def take(place):  # in its place\n    """Take a place."""\n    f("a place")\n'
    assert [line.split(": say ")[0] for line in PHRASES.findings("a.py", text)] == [
        "a.py:1: 'place'"
    ]


def test_pages_of_results_are_read_and_their_figures_are_not() -> None:
    folder = f"{RESULTS}amx-167"
    assert readable(f"{folder}/README.md")
    assert not readable(f"{folder}/cluster_calibration.json")


def test_names_are_read_in_code_only() -> None:
    assert PHRASES.findings("a.md", "`by_turns` and `place`") == []


def test_the_argument_of_recall_may_be_a_place() -> None:
    assert PHRASES.findings("python/sinkstream/evaluate/a.py", "place = Place()") == []


def test_outputs_of_notebooks_are_not_read() -> None:
    notebook = '{"cells": [\n{"outputs": [\n"in vain"\n],\n"source": [\n"for ever",\n"by"\n]}]}'
    assert PHRASES.findings("a.ipynb", notebook) == [
        "a.ipynb:6: 'for ever': say indefinitely, forever"
    ]
