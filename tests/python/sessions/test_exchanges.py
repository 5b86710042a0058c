"""The turns that a session still sees are found by what its chat template writes around them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream
from sinkstream.sessions.exchanges import exchanges_of

TEMPLATES = {
    "own": None,
    "instructions": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} "
        "[/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "headings": (
        "{% for m in messages %}### {{ m.role }}:\n{{ m.content }}{{ eos_token }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}### assistant:\n{% endif %}"
    ),
}
QUESTIONS = ("hello there", "grüße\nand more", "so")


@pytest.fixture(scope="module", params=TEMPLATES)
def checkpoint(
    request: pytest.FixtureRequest,
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    template = TEMPLATES[request.param]
    folder = tiny_folder("llama")
    if template is None:
        return str(folder)
    copy = tmp_path_factory.mktemp("model") / request.param
    shutil.copytree(folder, copy)
    file = copy / "tokenizer_config.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**fields, "chat_template": template}), encoding="utf-8")
    return str(copy)


def test_every_turn_is_found(checkpoint: str) -> None:
    with sinkstream.load(checkpoint) as model, model.session() as session:
        assert exchanges_of(session) == []
        said = []
        for seed, question in enumerate(QUESTIONS):
            reply = session.stream(question, max_tokens=9, seed=seed, top_k=40).result()
            text = model.tokenizer.decode(reply.token_ids)  # type: ignore[union-attr]
            said.append((question, text.strip()))
            found = exchanges_of(session)
            assert [(one.question, one.reply) for one in found] == said


def test_what_has_been_evicted_is_not(checkpoint: str) -> None:
    with sinkstream.load(checkpoint, window=60) as model, model.session() as session:
        for seed in range(9):
            reply = session.stream("hello there", max_tokens=9, seed=seed, top_k=40).result()
        found = exchanges_of(session)
        assert session.stats.evicted_tokens > 0
        assert 0 < len(found) < 9
        text = model.tokenizer.decode(reply.token_ids)  # type: ignore[union-attr]
        assert (found[-1].question, found[-1].reply) == ("hello there", text.strip())
        assert all(one.question in ("hello there", None) or one is found[0] for one in found)


def test_a_saved_conversation_has_its_turns(checkpoint: str, tmp_path: Path) -> None:
    with sinkstream.load(checkpoint) as model:
        with model.session() as session:
            session.stream("hello there", max_tokens=9, seed=1).result()
            session.save(tmp_path / "talk")
            expected = exchanges_of(session)
        with model.load_session(tmp_path / "talk") as again:
            assert exchanges_of(again) == expected
