"""What the conformance run makes of outcomes, of llama-server's options and of its own requests."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conformance import sources
from tests.conformance.llama_cpp import flags, native
from tests.conformance.suites import SUITES
from tests.conformance.verdict import Listed, judge, matches, read_list
from tests.conformance.vllm import plugin as vllm_plugin

pytestmark = pytest.mark.full

LISTED = [Listed("different", "on purpose", ("a.py::one", "a.py::many[*]"))]
ALL = {"a.py::one": "failed", "a.py::many[x]": "failed", "a.py::other": "passed"}


def test_a_run_that_ends_as_listed_has_no_faults() -> None:
    verdict = judge({**ALL, "a.py::not_here": "skipped"}, LISTED)  # type: ignore[dict-item]
    assert verdict.faults == []
    assert (verdict.run, verdict.passed, verdict.skipped) == (4, 1, 1)
    assert verdict.by_kind == {"different": 2, "waiting": 0, "not_ours": 0}
    assert verdict.by_reason == {"on purpose": 2}


@pytest.mark.parametrize(
    ("outcomes", "fault"),
    [
        ({**ALL, "a.py::other": "failed"}, "a.py::other fails and is not listed."),
        ({**ALL, "a.py::one": "passed"}, "a.py::one is listed as different, but passes."),
        (
            {**ALL, "a.py::many[y]": "passed"},
            "a.py::many[y] is listed as different, but passes.",
        ),
        (
            {"a.py::one": "failed", "a.py::other": "passed"},
            "a.py::many[*] is listed, but there is no such test.",
        ),
    ],
)
def test_any_other_end_is_a_fault(outcomes: Any, fault: str) -> None:
    assert judge(outcomes, LISTED).faults == [fault]


def test_a_test_that_two_lines_list_is_a_fault() -> None:
    twice = [*LISTED, Listed("waiting", "later", ("a.py::o*e",))]
    assert judge(ALL, twice).faults == [  # type: ignore[arg-type]
        "a.py::one is listed more than once: a.py::one, a.py::o*e."
    ]


def test_brackets_of_a_name_are_no_set_of_characters() -> None:
    assert matches("a.py::t[1-x]", "a.py::t[1-x]")
    assert not matches("a.py::t1", "a.py::t[1]")


@pytest.mark.parametrize("name", sorted(SUITES))
def test_lists_and_sources_are_complete(name: str) -> None:
    suite, source = SUITES[name], sources.pinned(name)
    assert set(suite.files) <= set(source.sha256)
    for entry in read_list(suite.listed):
        assert entry.tests
        assert entry.reason.endswith(".")
        assert {test.partition("::")[0] for test in entry.tests} <= set(suite.files)


def test_a_mirror_is_used_and_every_file_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mirror" / "suite" / "tests"
    folder.mkdir(parents=True)
    (folder / "a.py").write_bytes(b"")
    monkeypatch.setenv(sources.MIRROR, str(tmp_path / "mirror"))
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    source = sources.Source("suite", "https://example.com", "v1", "tests", {"a.py": digest})
    kept = sources.fetched(source, tmp_path / "cache")
    assert sources.fetched(source, tmp_path / "cache") == kept
    (kept / "a.py").write_bytes(b"changed")
    with pytest.raises(sources.SourceError, match=r"suite: a\.py must have the SHA-256 e3b0"):
        sources.fetched(source, tmp_path / "cache")


def test_a_file_that_is_used_from_now_on_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mirror" / "suite"
    folder.mkdir(parents=True)
    monkeypatch.setenv(sources.MIRROR, str(tmp_path / "mirror"))
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    used = {}
    for name in ("a.py", "b.py"):
        (folder / name).write_bytes(b"")
        used[name] = digest
        source = sources.Source("suite", "https://example.com", "v1", "", dict(used))
        kept = sources.fetched(source, tmp_path / "cache")
        assert {path.name for path in kept.iterdir()} == set(used)


def test_a_repository_is_cloned_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(sources.MIRROR, raising=False)
    tree = tmp_path / "tree"
    (tree / "tests").mkdir(parents=True)
    (tree / "tests" / "a.py").write_bytes(b"")
    (tree / "big").write_bytes(b"not needed")
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    (tree / "tests" / "a.py").write_bytes(b"later")
    subprocess.run([*git, "commit", "-qam", "two"], check=True)
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    source = sources.Source("suite", tree.as_uri(), "v1", "tests", {"a.py": digest})
    kept = sources.fetched(source, tmp_path / "cache")
    assert [path.name for path in kept.rglob("*")] == ["a.py"]
    missing = sources.Source("other", (tmp_path / "none").as_uri(), "v1", "tests", {})
    with pytest.raises(sources.SourceError, match=r"other: file:.* cannot be fetched"):
        sources.fetched(missing, tmp_path / "cache")


def test_options_of_llama_server_become_ours() -> None:
    given = "--port 9 --temp 0.5 --seed 7 --no-slots --alias tiny --ctx-size 512 --parallel 2"
    settings = flags.read(f"{given} --n-predict 64 --api-key k".split())
    assert (settings.port, settings.name, settings.api_key) == (9, "tiny", "k")
    assert settings.slots == 2
    assert settings.window == 252
    assert settings.defaults == {
        "ignore_eos": True, "temperature": 0.5, "seed": 7, "max_tokens": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    "options", ["--embedding", "--hf-repo other/model", "--alias a,b", "--host 0.0.0.0"]
)
def test_what_ours_does_not_have_is_named(options: str) -> None:
    with pytest.raises(flags.NotOurs, match=options):
        flags.read(options.split())


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


@pytest.mark.parametrize(
    ("prompt", "sent", "is_list"),
    [
        ("a", "a", False),
        ([1, 2], [1, 2], False),
        ([1, "a", 2], [1, 97, 2], False),
        (["a", "b"], ["a", "b"], True),
        ([[1], "a"], [[1], [97]], True),
        ({"prompt_string": "a"}, "a", False),
    ],
)
def test_prompts_of_llama_cpp_become_ours(prompt: Any, sent: Any, is_list: bool) -> None:
    asked = native.to_openai({"prompt": prompt}, {"seed": 1}, encode)
    assert (asked.body["prompt"], asked.is_list) == (sent, is_list)


def test_a_request_of_llama_cpp_becomes_ours() -> None:
    body = {"prompt": "a", "n_predict": 8, "n_probs": 2, "logit_bias": [["ab", -1], [5, 2]]}
    sent = native.to_openai(body, {"seed": 1, "max_tokens": 64}, encode).body
    assert (sent["max_tokens"], sent["logprobs"], sent["seed"]) == (8, 2, 1)
    assert sent["logit_bias"] == {"97": -1, "98": -1, "5": 2}
    with pytest.raises(native.Refused):
        native.to_openai({"prompt": "a", "post_sampling_probs": True}, {}, encode)


def test_chunks_become_one_event_for_each_token() -> None:
    asked = native.to_openai({"prompt": "a", "n_probs": 1, "stream": True}, {"seed": 1}, encode)
    chunks = native.Chunks(asked, lambda token: chr(token).encode())
    logprobs = {
        "tokens": ["token_id:97", "token_id:98"],
        "token_logprobs": [-1.0, -2.0],
        "top_logprobs": [{"token_id:97": -1.0}, {"token_id:98": -2.0}],
    }
    choice = {"text": "ab", "token_ids": [97, 98], "logprobs": logprobs}
    first, second = chunks.next({"choices": [choice]})
    assert (first["content"], first["tokens"], first["stop"]) == ("a", [97], False)
    assert second["completion_probabilities"][0]["id"] == 98
    own = {"evicted_tokens": 3, "finish_reason": "stop_string"}
    end = {"text": "", "token_ids": [], "logprobs": None}
    assert chunks.next({"choices": [end], "sinkstream": own}) == []
    (last,) = chunks.next({"choices": [], "usage": {}, "timings": {"predicted_n": 2}})
    assert (last["stop"], last["stop_type"], last["truncated"]) == (True, "word", True)


@pytest.mark.parametrize(
    ("given", "sent"),
    [({"input": "a"}, {"input": "a", "seed": 1}), ({"seed": 7}, {"seed": 7}), (None, None)],
)
def test_a_request_of_vllm_has_a_seed(given: Any, sent: Any) -> None:
    client = vllm_plugin.SeededClient(base_url="http://localhost", api_key="a")
    prepared = asyncio.run(client._prepare_options(SimpleNamespace(json_data=given)))
    assert prepared.json_data == sent


def test_a_longer_name_than_one_that_is_left_out_runs() -> None:
    left_out, longer = "openai/responses/test_basic.py::test_chat", "_with_input_type"
    items: Any = [SimpleNamespace(nodeid=left_out), SimpleNamespace(nodeid=left_out + longer)]
    told: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    config: Any = SimpleNamespace(hook=hook)
    vllm_plugin.pytest_collection_modifyitems(config, items)
    assert [item.nodeid for item in items] == [left_out + longer]
    assert [item.nodeid for item in told] == [left_out]
