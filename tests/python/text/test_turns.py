"""The parts that a session feeds, concatenated, equal the template's rendering of the whole."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.plain_text import PlainEncoder
from sinkstream.text.tokenizers.control_tokens import control_tokens
from sinkstream.text.turn_format import TurnFormat
from tests.python.lanes import examples, products
from tests.python.text import templates, vocabularies
from tests.python.text.encoding import detect_turn_format, encode_chat
from tests.python.text.templates import TEMPLATES
from tests.python.text.vocabularies import FAMILIES, special

INEXACT = {"mistral_last", "qwen3"}
# The text before a reply in its piece, and the space that the template itself puts there.
BEFORE = {"llama2": ("[/INST]", " "), "mistral": ("[/INST]", " "), "vicuna": ("ASSISTANT:", " ")}
WITHOUT_SYSTEM = {"gemma", "mistral_last"}


def chat(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """Return a conversation in which user and assistant alternate."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return first + [
        {"role": roles[i % 2], "content": content} for i, content in enumerate(contents)
    ]


@cache
def ends_with_a_line(template: str) -> bool:
    """Return whether replies end with a line break, not with a control token.

    Then the whole has one token for ".\\n", where the parts have two. The text is the same.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    (rendered,), _ = render_jinja_template(
        [chat("Hi", "Hello")], chat_template=TEMPLATES[template], bos_token="<s>", eos_token="</s>"
    )
    return rendered.endswith("Hello\n")


def test_templates_end_replies_in_both_ways() -> None:
    assert ends_with_a_line("nemotron")
    assert not ends_with_a_line("zephyr")


def with_template(text: TextFormat, template: str | None) -> TextFormat:
    return dataclasses.replace(text, chat_template=template)


def tokenizer_of(text: TextFormat) -> Tokenizer:
    assert text.tokenizer is not None
    return text.tokenizer


@pytest.fixture(scope="module")
def smollm2_turns(smollm2_text: TextFormat) -> TurnFormat:
    return detect_turn_format(smollm2_text)


@cache
def probed(family: str, template: str) -> tuple[TextFormat, TurnFormat]:
    text = with_template(FAMILIES[family](), TEMPLATES[template])
    return text, detect_turn_format(text)


def fed(
    text: TextFormat,
    turns: TurnFormat,
    messages: list[dict[str, str]],
    before_reply: tuple[str, str] = ("\n", ""),
) -> list[int]:
    """Return the ids of a conversation, fed one turn after the other."""
    encoder = PlainEncoder(tokenizer_of(text))
    before, space = before_reply
    ids: list[int] = []
    after = None
    if messages[0]["role"] == "system":
        ids += turns.opening(messages[0]["content"])
        messages, after = messages[1:], "system"
    else:
        ids += turns.opening(None)
    for message in messages:
        if message["role"] == "user":
            ids += turns.user(message["content"], after=after)
        else:
            reply = encoder.encode_after(before, space + message["content"], at_start=False)
            assert turns.reply(message["content"]) == reply
            ids += reply + turns.closing(None)
        after = message["role"]
    return ids


CONTENTS = (
    "Hello", " Hello  ", "\n\nHello\n", "", "  \n ", "<|im_end|>", "a</s><|eot_id|>[INST]b", "🎉 é",
    "12 + 3", ">", "<think>x</think>", "x\u0301 日本語", "Placeholder0a Placeholder1", "\ue000",
)  # fmt: skip
REPLIES = st.from_regex(r"[A-Z][a-z]{0,6}( [a-z]{1,6}){0,3}[.?]?", fullmatch=True)


@pytest.mark.parametrize(("family", "template"), products(FAMILIES, TEMPLATES, together=1))
def test_every_template_says_whether_its_parts_are_exact(family: str, template: str) -> None:
    _, turns = probed(family, template)
    assert turns.is_exact == (template not in INEXACT)
    assert turns.is_exact == (turns.difference == "")


@pytest.mark.parametrize(
    ("family", "template"), products(FAMILIES, sorted(TEMPLATES.keys() - INEXACT), together=1)
)
@examples(8)
@given(st.data())
def test_the_parts_of_a_conversation_are_the_whole(
    family: str, template: str, data: st.DataObject
) -> None:
    text, turns = probed(family, template)
    contents: list[str] = []
    for _ in range(data.draw(st.integers(1, 6))):
        contents.append(data.draw(st.sampled_from(CONTENTS) | st.text(max_size=12)))
        reply = data.draw(REPLIES)
        contents.append(reply.rstrip(".?") if ends_with_a_line(template) else reply)
    system = None
    if template not in WITHOUT_SYSTEM:
        system = data.draw(st.none() | st.sampled_from(CONTENTS) | st.text(max_size=12))
        assume(system is None or system.strip())
    before = BEFORE.get(template, ("\n", ""))
    asked = chat(*contents[:-1], system=system)
    assert fed(text, turns, asked, before) == encode_chat(text, asked)
    if template != "phi3":  # it appends another end to finished conversations
        over = chat(*contents, system=system)
        whole = encode_chat(text, over, add_generation_prompt=False)
        assert fed(text, turns, over, before) == whole


@examples(40)
@given(
    st.lists(st.tuples(st.sampled_from(CONTENTS) | st.text(), REPLIES), min_size=1, max_size=6),
    st.none() | st.text(),
)
def test_smollm2s_parts_are_the_whole(
    smollm2_text: TextFormat,
    smollm2_turns: TurnFormat,
    said: list[tuple[str, str]],
    system: str | None,
) -> None:
    messages = chat(*(content for pair in said for content in pair), system=system)
    whole = encode_chat(smollm2_text, messages, add_generation_prompt=False)
    assert fed(smollm2_text, smollm2_turns, messages) == whole
    assert fed(smollm2_text, smollm2_turns, messages[:-1]) == encode_chat(
        smollm2_text, messages[:-1]
    )


def test_smollm2s_parts_are_what_they_look_like(smollm2_text: TextFormat) -> None:
    turns = detect_turn_format(smollm2_text)
    assert turns.is_exact

    def shown(ids: list[int]) -> str:
        decoded: str = tokenizer_of(smollm2_text).decode(ids, skip_special_tokens=False)
        return decoded

    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert shown(turns.opening(None)) == f"<|im_start|>system\n{default}<|im_end|>\n"
    assert shown(turns.opening("Be brief.")) == "<|im_start|>system\nBe brief.<|im_end|>\n"
    asked = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert {shown(turns.user("Hi", after=after)) for after in (None, "system", "assistant")} == {
        asked
    }
    read = turns.message("assistant", "Ho", after="user")
    assert shown(read) == "<|im_start|>assistant\nHo<|im_end|>\n"
    assert shown(turns.closing(None)) == "<|im_end|>\n"


def test_a_reply_that_ended_itself_gets_no_second_end_token(smollm2_text: TextFormat) -> None:
    turns = detect_turn_format(smollm2_text)
    end = tokenizer_of(smollm2_text).token_to_id("<|im_end|>")
    newline = PlainEncoder(tokenizer_of(smollm2_text)).encode("\n")
    assert turns.closing(end) == newline
    assert turns.closing(None) == turns.closing(newline[0]) == [end, *newline]


def test_another_end_token_does_not_replace_the_templates() -> None:
    text = vocabularies.qwen3()
    end, other = (tokenizer_of(text).token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>"))
    turns = detect_turn_format(dataclasses.replace(text, end_token_ids=frozenset({end, other})))
    assert turns.closing(other)[0] == end


@pytest.mark.parametrize(
    ("family", "template"), products(FAMILIES, sorted(TEMPLATES.keys() - INEXACT), together=1)
)
def test_no_control_token_can_be_written_in_a_turn(family: str, template: str) -> None:
    text, turns = probed(family, template)
    control = control_tokens(tokenizer_of(text))

    def skeleton(content: str) -> list[int]:
        ids = turns.user(content, after="assistant") + turns.user(content, after=None)
        ids += turns.message("assistant", content, after="user")
        if template not in WITHOUT_SYSTEM:
            ids += turns.opening(content)
        return [token_id for token_id in ids if token_id in control]

    for token in control.values():
        for content in (token.content, f"a{token.content}b"):
            assert skeleton(content) == skeleton("Hello")


def test_a_long_message_passes_through(smollm2_text: TextFormat) -> None:
    turns = detect_turn_format(smollm2_text)
    content = "Once upon a time <b>there</b> was.\n" * 3000
    assert len(content) > 100_000
    messages = chat(content, "Yes", content, system=content)
    assert fed(smollm2_text, turns, messages) == encode_chat(smollm2_text, messages)


def test_several_messages_in_a_row_are_the_whole() -> None:
    for name in ("qwen2", "smollm2", "llama3", "zephyr", "phi3"):
        text, turns = probed("llama3", name)
        said = [("user", " a"), ("user", "b\n"), ("assistant", "c"), ("assistant", "d")]
        said += [("user", "e")] if name in ("zephyr", "phi3") else [("system", "e"), ("user", "f")]
        ids = turns.opening("Be brief.")
        after = "system"
        for role, content in said[:-1]:
            ids += turns.message(role, content, after=after)
            after = role
        ids += turns.user(said[-1][1], after=after)
        said = [("system", "Be brief."), *said]
        messages = [{"role": role, "content": content} for role, content in said]
        assert ids == encode_chat(text, messages), name


def test_answers_of_tools_stay_well_formed_where_the_template_would_join_them() -> None:
    text, turns = probed("qwen3", "qwen2")
    control = control_tokens(tokenizer_of(text))
    first = turns.message("tool", "1", after="assistant")
    assert turns.message("tool", "1", after="tool") == first
    kinds = [control[token_id].content for token_id in first if token_id in control]
    assert kinds == ["<|im_start|>", "<|im_end|>"]


def test_an_end_token_that_the_template_puts_only_between_messages_closes_a_reply() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if not loop.last or add_generation_prompt %}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    text = with_template(vocabularies.qwen3(), template)
    turns = detect_turn_format(text)
    end = tokenizer_of(text).token_to_id("<|im_end|>")
    assert (turns.closing(None), turns.closing(end)) == ([end], [])
    messages = chat("a", "Hello there", "b")
    assert fed(text, turns, messages) == encode_chat(text, messages)
    assert turns.message("assistant", "x", after="user")[-1] == end


def test_an_end_of_the_whole_conversation_is_not_fed() -> None:
    text, turns = probed("llama3", "phi3")
    eot = tokenizer_of(text).token_to_id("<|eot_id|>")
    for role in ("assistant", "user"):
        assert eot not in turns.message(role, "x", after="assistant" if role == "user" else "user")
    assert eot not in turns.opening("x") + turns.closing(None)


def test_a_template_without_end_token_is_closed_with_its_text_alone() -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    text = with_template(vocabularies.llama3(), template)
    turns = detect_turn_format(text)
    newline = PlainEncoder(tokenizer_of(text)).encode("\n")
    (end,) = text.end_token_ids
    assert turns.closing(None) == turns.closing(end) == newline
    messages = chat("a", "Hello", "b")
    assert fed(text, turns, messages, (":", " ")) == encode_chat(text, messages)


DIFFERENCES = {
    "qwen3": (templates.QWEN3, "changes replies that contain '</think>'"),
    "thinking that stays for the last": (templates.QWEN3, "writes '<think>"),
    "system text in the last turn": (templates.MISTRAL_LAST, "system texts into later turns"),
    "numbers": (
        "{% for m in messages %}<|im_start|>{{ loop.index }} {{ m.role }}\n{{ m.content }}"
        "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>"
        "{{ messages | length + 1 }} assistant\n{% endif %}",
        "writes later turns differently from the second",
    ),
    "date": ("{{ strftime_now('%Y') }}" + templates.SMOLLM2, "may write the date"),
    "count of messages": (
        "{{ messages | length }}" + templates.SMOLLM2, "rewrites earlier messages when more follow"
    ),
    "another header": (
        templates.SMOLLM2.replace("'<|im_start|>assistant\n'", "'<|im_start|>bot\n'"),
        "begins replies differently from its generation prompt",
    ),
    "control tokens before replies": (
        "{% for m in messages %}{{ m.role }}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}",
        "writes control tokens before replies",
    ),
    "a switch in the system text": (
        templates.SMOLLM2.replace(
            "{{ '<|im_start|>assistant\n' }}",
            "{{ '<|im_start|>assistant\n' }}"
            "{% if '/brief' in messages[0].content %}Well,{% endif %}",
        ),
        "cannot be split between messages, for example around '/briefword/brief'",
    ),
    "escaped contents": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | e }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "changes replies that contain '\"' or '&' or '<'",
    ),
    "contents as JSON": (
        templates.SMOLLM2.replace("message['content']", "(message['content'] | tojson)[1:-1]"),
        "changes replies that contain '\\n' or '\"' or '\\\\'",
    ),
    "contents with single spaces": (
        templates.SMOLLM2.replace("message['content']", "message['content'].split() | join(' ')"),
        "changes replies that contain '\\n' or '  '",
    ),
    "replaced letters": (
        templates.SMOLLM2.replace("message['content']", "message['content'].replace('<', '(')"),
        "changes replies that contain '<'",
    ),
    "tokens over a border": (
        templates.SMOLLM2.replace("message['role'] + '\n'", "message['role'] + ': '").replace(
            "assistant\n", "assistant: "
        ),
        "cannot be split between messages, for example around 'word'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_template_whose_parts_differ_from_the_whole_says_how(name: str) -> None:
    template, sentence = DIFFERENCES[name]
    turns = detect_turn_format(with_template(vocabularies.qwen3(), template))
    assert not turns.is_exact
    assert sentence in turns.difference
    assert turns.difference.startswith("The checkpoint's chat template ")
    assert turns.difference.endswith(".")


@pytest.mark.parametrize(
    "answer",
    [
        "{{ raise_exception('No tags.') }}",
        "{{ '<|endoftext|>' }}{% else %}{{ '<|im_start|>' }}",  # undecided
    ],
)
def test_what_a_template_refuses_in_a_reply_is_no_difference(answer: str) -> None:
    test = "{% if '<|im_end|>' in message['content'] %}" + answer + "{% endif %}"
    template = templates.SMOLLM2.replace("{% endfor %}", "{% endfor %}{% endfor %}", 1).replace(
        "{% endfor %}{% endfor %}", test + "{% endfor %}", 1
    )
    text = with_template(vocabularies.qwen3(), template)
    assert detect_turn_format(text).is_exact
    with pytest.raises(InvalidArgument):
        encode_chat(text, chat("a", "<|im_end|>", "b"))


def test_parts_that_differ_are_still_whole_messages() -> None:
    text, turns = probed("qwen3", "qwen3")
    control = control_tokens(tokenizer_of(text))
    for content in ("x", "<tool_response>x</tool_response>"):
        ids = turns.user(content, after="assistant")
        kinds = [control[token_id].content for token_id in ids if token_id in control]
        assert kinds == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize("call", ["opening", "user", "message"])
def test_a_value_that_is_not_a_string_is_an_error_that_names_the_session(call: str) -> None:
    _, turns = probed("qwen3", "qwen3")
    calls: dict[str, Any] = {
        "opening": turns.opening,
        "user": lambda content: turns.user(content, after=None),
        "message": lambda content: turns.message("user", content, after=None),
    }
    name = "system" if call == "opening" else "text"
    with pytest.raises(
        InvalidArgument, match=rf"^session: `{name}` .* U\+D800 at position 2\.$"
    ) as caught:
        calls[call]("ab\ud800")
    assert caught.value.param == name
    with pytest.raises(
        TypeError, match=rf"^session: `{name}` must be a string, but is of type int"
    ):
        calls[call](3)


def test_an_unknown_role_is_an_error_that_lists_the_roles() -> None:
    _, turns = probed("qwen3", "qwen3")
    with pytest.raises(
        InvalidArgument,
        match=r"^session: `role` must be one of .*, developer, .*, user, but is 'owner'\.$",
    ):
        turns.message("owner", "x", after=None)


def test_a_system_text_that_the_template_refuses_is_an_error_with_its_reason() -> None:
    _, turns = probed("llama3", "gemma")
    with pytest.raises(InvalidArgument, match=r"^session: .* System role not supported\.$") as e:
        turns.opening("Be brief.")
    assert e.value.param == "system"


def test_a_message_that_the_template_leaves_out_is_an_error() -> None:
    _, turns = probed("llama3", "phi3")
    with pytest.raises(
        InvalidArgument,
        match=r'^session: .* does not accept a message with the role "tool" here\.$',
    ):
        turns.message("tool", "x", after="assistant")
    silent = (
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}.{% endif %}{% endfor %}"
    )
    turns = detect_turn_format(with_template(vocabularies.llama3(), silent))
    with pytest.raises(
        InvalidArgument, match=r"^session: .* does not accept a system prompt here\.$"
    ):
        turns.opening("x")


def test_a_message_that_the_template_refuses_there_is_an_error_with_its_reason() -> None:
    _, turns = probed("llama3", "mistral")
    assert turns.message("user", "x", after="assistant")
    with pytest.raises(InvalidArgument, match=r"^session: .* and a user begins\.$"):
        turns.user("x", after="user")


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{% if %}", "Expected an expression"),
        ("{% if messages | length > 1 %}{{ raise_exception('One.') }}{% endif %}", r"them: One\.$"),
        ("{{ messages[-1].content }}", "does not accept a second turn here"),
        ("Hello", "does not accept a second turn here"),
        ("x" * 100_000, "at most 65536 characters"),
    ],
)
def test_a_template_that_holds_no_conversation_is_refused(template: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^session: .*{sentence}"):
        detect_turn_format(with_template(vocabularies.qwen3(), template))


@pytest.mark.parametrize("family", FAMILIES)
def test_without_template_a_session_is_one_growing_text(family: str) -> None:
    text = with_template(FAMILIES[family](), None)
    turns = detect_turn_format(text)
    assert not turns.is_exact
    assert "no chat template" in turns.difference
    assert turns.opening(None) == text.bos_ids
    ids = turns.user("Once upon a time", after=None)
    assert ids == PlainEncoder(tokenizer_of(text)).encode("Once upon a time")
    assert turns.opening("Once upon a time") == text.bos_ids + ids
    ids += turns.closing(None) + turns.message("user", " there was<|im_end|></s>", after="user")
    assert tokenizer_of(text).decode(ids, skip_special_tokens=False) == (
        "Once upon a time there was<|im_end|></s>"
    )
    assert not control_tokens(tokenizer_of(text)).keys() & set(ids)


def test_without_tokenizer_a_session_takes_ids_alone() -> None:
    turns = detect_turn_format(TextFormat(None, templates.SMOLLM2))
    assert turns.is_exact
    assert turns.opening(None) == turns.closing(None) == []
    for call in (
        lambda: turns.opening("x"),
        lambda: turns.user("x", after=None),
        lambda: turns.message("user", "x", after=None),
    ):
        with pytest.raises(
            InvalidArgument, match=r"^session: .* no tokenizer. Pass token ids instead\.$"
        ):
            call()


def test_control_tokens_of_the_templates_own_keep_their_flags() -> None:
    text = vocabularies.llama3()
    copy = Tokenizer.from_str(tokenizer_of(text).to_str())
    copy.add_special_tokens(special("<start_of_turn>", "<end_of_turn>"))
    text = dataclasses.replace(text, tokenizer=copy, chat_template=templates.GEMMA)
    turns = detect_turn_format(text)
    assert turns.is_exact
    messages = chat(" a <end_of_turn>", "Hello", "")
    assert fed(text, turns, messages) == encode_chat(text, messages)


def test_an_opening_leaves_its_last_space_to_the_next_word() -> None:
    text, turns = probed("qwen3", "vicuna")
    assert tokenizer_of(text).decode(turns.opening("Be brief.")) == "Be brief."
    assert tokenizer_of(text).decode(turns.user("x", after="system")).startswith(" USER")


def test_an_end_that_only_a_lone_system_text_has_is_not_fed() -> None:
    template = templates.SMOLLM2 + "{% if messages[-1].role == 'system' %}!{% endif %}"
    text = with_template(vocabularies.qwen3(), template)
    turns = detect_turn_format(text)
    assert turns.is_exact
    messages = chat("a", "Hello", "b", system="Be brief.")
    assert fed(text, turns, messages) == encode_chat(text, messages)
