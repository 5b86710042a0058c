"""Which of a folder's chat templates is used: the one that transformers' tokenizer uses."""

from __future__ import annotations

import json
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.from_folder import choose_template
from tests.python.text import vocabularies

JINJA, PROCESSOR, SETTINGS = "chat_template.jinja", "chat_template.json", "tokenizer_config.json"
NAMED = "additional_chat_templates"


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Write files: JSON values, or strings as they are."""
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((value if isinstance(value, str) else json.dumps(value)).encode())
    return folder


def chosen(folder: Path) -> str | None:
    settings = folder / SETTINGS
    return choose_template(folder, json.loads(settings.read_text()) if settings.exists() else {})


def named(**templates: str) -> list[dict[str, str]]:
    return [{"name": name, "template": template} for name, template in templates.items()]


CHOICES: dict[str, list[Any]] = {
    JINJA: [None, "jinja", ""],
    SETTINGS: [
        None, {}, {"chat_template": "settings"}, {"chat_template": ""},
        {"chat_template": named(tool_use="tools", default="list")},
        {"chat_template": named(default="first", rag="rag") + named(default="second")},
        {"chat_template": named(tool_use="tools")}, {"chat_template": []},
        {"chat_template": {"default": "object", "tool_use": "tools"}},
        {"chat_template": {"tool_use": "tools"}}, {"chat_template": {}},
    ],
    f"{NAMED}/default.jinja": [None, "named default"],
    f"{NAMED}/tool_use.jinja": [None, "named tools"],
    PROCESSOR: [None, {"chat_template": "processor"}],
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    saved = vocabularies.qwen3().tokenizer
    assert saved is not None
    saved.save(str(path))
    return path.read_text()


def theirs(folder: Path) -> str | None:
    """Return the template of transformers' tokenizer; None if it has none for a chat."""
    from transformers import PreTrainedTokenizerFast

    try:
        template: str = PreTrainedTokenizerFast.from_pretrained(folder).get_chat_template()
    except ValueError as error:
        if "chat template" not in str(error):
            raise
        return None
    return template


def test_every_combination_of_files_gives_the_template_of_transformers(
    tmp_path: Path, tokenizer: str
) -> None:
    pytest.importorskip("transformers")
    for number, contents in enumerate(product(*CHOICES.values())):
        files = dict(zip(CHOICES, contents, strict=True))
        folder = write(
            tmp_path / str(number),
            {"tokenizer.json": tokenizer, **{k: v for k, v in files.items() if v is not None}},
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = chosen(folder)
        expected = theirs(folder)
        if found == "processor":  # what only processors read is still better than nothing
            has_any = [name for name, value in files.items() if value not in (None, {})]
            assert (expected, has_any) == (None, [PROCESSOR])
        else:
            assert found == expected, files
        # A folder with templates, none of which is used, is never silent.
        has_template = any(value not in (None, {}) for value in files.values())
        assert bool(caught) == (found is None and has_template), files


def test_a_template_for_tools_alone_is_not_used_for_a_chat(tmp_path: Path) -> None:
    folder = write(tmp_path, {SETTINGS: {"chat_template": named(tool_use="T", rag="R")}})
    with pytest.warns(UserWarning, match="default") as caught:
        assert chosen(folder) is None
    assert str(caught[0].message) == (
        'load: tokenizer_config.json should name a chat template "default", but names "rag", '
        '"tool_use". The model is loaded without a chat template.'
    )


def test_line_ends_are_those_of_a_text_file(tmp_path: Path, tokenizer: str) -> None:
    folder = write(tmp_path, {JINJA: "a\r\nb\rc\n", "tokenizer.json": tokenizer})
    assert chosen(folder) == theirs(folder) == "a\nb\nc\n"


@pytest.mark.parametrize(
    "value", [3, True, ["a"], [{"name": "default"}], {"default": None}, [*named(default="a"), 3]]
)
@pytest.mark.parametrize("name", [SETTINGS, PROCESSOR])
def test_a_template_that_is_not_a_string_is_an_error(tmp_path: Path, name: str, value: Any) -> None:
    folder = write(tmp_path, {name: {"chat_template": value}})
    with pytest.raises(CheckpointError, match=f"load: {name}: `chat_template` must be a string, "):
        chosen(folder)


@pytest.mark.parametrize("name", [JINJA, PROCESSOR, NAMED, f"{NAMED}/default.jinja"])
def test_a_link_whose_target_is_gone_is_an_error_and_not_absent(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, {SETTINGS: {}})
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to("../../blobs/0a1b")
    with pytest.raises(CheckpointError, match=f'load: .*"{Path(name).name}" .*(0a1b|No such file)'):
        chosen(folder)
