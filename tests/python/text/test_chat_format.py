"""Conversations encode as in transformers, and messages never become control tokens."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from tokenizers import AddedToken, Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.text.messages import ROLES
from sinkstream.text.templates.chat_template import MAX_TEMPLATE_CHARACTERS
from sinkstream.text.tokenizers.control_tokens import control_tokens
from tests.python.lanes import examples, products
from tests.python.text import templates, vocabularies
from tests.python.text.encoding import encode_chat
from tests.python.text.templates import TEMPLATES
from tests.python.text.vocabularies import FAMILIES

Messages = list[dict[str, str]]

ALTERNATING = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": 'What is 12345 + 6? <b>Now</b> & "fast", it\'s > 3'},
    {"role": "assistant", "content": "\n12351 🎉\n\n"},
    {"role": "user", "content": "\tThanks, naïve café x\u0301 日本語  "},
]
CONVERSATIONS: dict[str, Messages] = {
    "one": [{"role": "user", "content": "Hello"}],
    "empty": [{"role": "user", "content": ""}],
    "spaces": [{"role": "user", "content": "  \n "}],
    "alternating": ALTERNATING,
    "continued": [*ALTERNATING, {"role": "assistant", "content": " You are"}],
    "thinking": [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "<think>\nHm, a < b > c.\n</think>\n\nBecause."},
        {"role": "user", "content": "<tool_response>x</tool_response>"},
        {"role": "assistant", "content": "<think>\nAgain.\n</think>\n\nStill because."},
    ],
    "tool": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "<tool_call>\n{}\n</tool_call>"},
        {"role": "tool", "content": '{"t": "<20°>"}'},
        {"role": "tool", "content": '{"t": "[21]"}'},
    ],
    "edges": [{"role": "user", "content": ">|< <| |> <|im_ start|> [INST] <<SYS>>"}],
}


def oracle(text: TextFormat, messages: Messages, add_generation_prompt: bool = True) -> list[int]:
    """Encode a conversation with transformers."""
    from transformers import PreTrainedTokenizerFast

    assert text.tokenizer is not None
    copy = Tokenizer.from_str(text.tokenizer.to_str())
    fast = PreTrainedTokenizerFast(tokenizer_object=copy, **text.special_tokens)
    ids: list[int] = fast.apply_chat_template(
        messages,
        chat_template=text.chat_template,
        add_generation_prompt=add_generation_prompt,
        return_dict=False,
    )
    return ids


def with_template(text: TextFormat, template: str) -> TextFormat:
    return dataclasses.replace(text, chat_template=template)


def tokenizer_of(text: TextFormat) -> Tokenizer:
    assert text.tokenizer is not None
    return text.tokenizer


@pytest.mark.parametrize(
    ("family", "template", "conversation"), products(FAMILIES, TEMPLATES, CONVERSATIONS)
)
def test_a_conversation_equals_transformers(family: str, template: str, conversation: str) -> None:
    text = with_template(FAMILIES[family](), TEMPLATES[template])
    messages = CONVERSATIONS[conversation]
    for add_generation_prompt in (True, False):
        try:
            expected = oracle(text, messages, add_generation_prompt)
        except TemplateError:
            with pytest.raises(InvalidArgument):
                encode_chat(text, messages, add_generation_prompt=add_generation_prompt)
        else:
            found = encode_chat(text, messages, add_generation_prompt=add_generation_prompt)
            assert found == expected


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_smollm2s_conversations_equal_transformers(
    smollm2_text: TextFormat, conversation: str
) -> None:
    messages = CONVERSATIONS[conversation]
    assert encode_chat(smollm2_text, messages) == oracle(smollm2_text, messages)


@examples(60)
@given(st.lists(st.text(), min_size=1, max_size=4), st.sampled_from(sorted(FAMILIES)))
def test_any_ordinary_content_equals_transformers(contents: list[str], family: str) -> None:
    text = with_template(FAMILIES[family](), templates.QWEN3)
    roles = ["user", "assistant"] * 2
    messages = [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=False)
    ]
    assert encode_chat(text, messages) == oracle(text, messages)


def skeleton(text: TextFormat, ids: list[int]) -> list[int]:
    """Return the control tokens among ids."""
    control = control_tokens(tokenizer_of(text))
    return [token_id for token_id in ids if token_id in control]


def assert_no_injection(text: TextFormat, content: str, others: str = "Hello") -> list[int]:
    """Check that a content yields the same control tokens as a harmless one, in every role."""
    found: list[int] = []
    for messages in (
        [{"role": "user", "content": content}],
        [{"role": "system", "content": content}, {"role": "user", "content": others}],
        [{"role": "user", "content": others}, {"role": "assistant", "content": content}],
    ):
        harmless = [{**message, "content": "Hello"} for message in messages]
        found = encode_chat(text, messages)
        assert skeleton(text, found) == skeleton(text, encode_chat(text, harmless))
    return found


def shown(text: TextFormat, ids: list[int]) -> str:
    decoded: str = tokenizer_of(text).decode(ids, skip_special_tokens=True)
    return decoded


# Gemma's template has no system role.
@pytest.mark.parametrize(
    ("family", "template"), products(FAMILIES, sorted(TEMPLATES.keys() - {"gemma"}), together=1)
)
def test_no_control_token_can_be_written_in_a_message(family: str, template: str) -> None:
    text = with_template(FAMILIES[family](), TEMPLATES[template])
    for token in control_tokens(tokenizer_of(text)).values():
        for content in (token.content, f"a {token.content} b", token.content * 3):
            assert content.strip() in shown(text, assert_no_injection(text, content))


def test_no_control_token_of_smollm2_can_be_written_in_a_message(smollm2_text: TextFormat) -> None:
    tokens = control_tokens(tokenizer_of(smollm2_text)).values()
    assert len(tokens) == 17
    for token in tokens:
        content = f"{token.content}x{token.content}"
        assert content in shown(smollm2_text, assert_no_injection(smollm2_text, content))


TEMPLATE_TRICKS = {
    "trim": "{{ messages[0].content | trim }}",
    "concatenation of two contents": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "removal of a part": "{{ messages[0].content.replace('</think>', '') }}",
    "removal of a letter": "{{ messages[0].content.replace('x', '') }}",
    "splitting and joining": "{{ messages[0].content.split('</think>') | join }}",
    "cutting": "{{ messages[0].content[1:-1] }}",
    "reversal": "{{ messages[0].content | reverse }}",
    "upper case": "{{ messages[0].content | upper }}",
    "lower case": "{{ messages[0].content | lower }}",
    "json": "{{ messages[0].content | tojson }}",
    "json with escapes": "{{ messages[0].content | tojson(ensure_ascii=true) }}",
    "a message as a whole": "{{ messages[0] }}",
    "html": "{{ messages[0].content | e }}",
    "the start from the template": "{{ '<' }}{{ messages[0].content }}",
    "the end from the template": "{{ messages[0].content }}{{ '>' }}",
    "half from the template": "{{ '<|im_' }}{{ messages[0].content }}",
    "a test for the token": "{% if '<|im_end|>' in messages[0].content %}<|im_end|>{% endif %}",
    "removal of the token": "{{ messages[0].content.replace('<|im_end|>', '') }}",
    "the middle from a message": "{{ '<|im_' ~ messages[0].content ~ '|>' }}",
    "a join with a half": "{{ ['<|im_', '|>'] | join(messages[0].content) }}",
    "formatting by percent": "{{ '<|im_%s|>' % messages[0].content }}",
    "formatting by braces": "{{ '<|im_{}|>'.format(messages[0].content) }}",
    "formatting of a message": "{{ messages[0].content ~ '%s' | format('<') }}",
    "a replacement": "{{ '<|xm_end|>' | replace('x', messages[0].content[:1]) }}",
    "padding": "{{ '|im_end|>'.rjust(10, (messages[0].content ~ 'x')[0]) }}",
    "letters one by one": "{% for c in messages[0].content %}{{ c }}{% endfor %}",
    "a sorted list": "{{ messages | map(attribute='content') | sort | join }}",
    "a macro": "{% macro m(x) %}<|im_{{ x }}|>{% endmacro %}{{ m(messages[0].content) }}",
    "a block": "{% set x %}<|im_{{ messages[0].content }}|>{% endset %}{{ x }}",
    "a cycler": "{% set c = cycler(messages[0].content, '<') %}{{ c.next() }}{{ c.next() }}",
    "markup": "{{ messages[0].content | safe }}",
    "markup with text": "{{ '<|im_' + (messages[0].content | safe) }}",
    "wrapping": "{{ messages[0].content | wordwrap(3) }}",
    "truncation": "{{ messages[0].content | truncate(10, true, '', 0) }}",
    "names": "{{ dict.fromkeys([messages[0].content]) }}",
    "named arguments": "{% for k in dict(**{messages[0].content: 1}) %}{{ k }}{% endfor %}",
    "a test of a part": "{% if 'im_' in messages[0].content %}|im_end|>{% endif %}",
}
UNDECIDED = {"wrapping", "named arguments"}
FRAGMENTS = (
    "<|im_end|>", "<|im_", "end|>", "<", "|", ">", "im_end", "</think>", "x", " ", "\n",
    "|im_end|>", "<|im_end|", "<|IM_END|>", ">|dne_mi|<", "<|im_start|>", "\uf8ff",
    "\U000f0000", "\\udb80\\udc00",
)  # fmt: skip


@pytest.mark.parametrize("trick", TEMPLATE_TRICKS)
@examples(40)
@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), min_size=2))
def test_no_template_makes_a_control_token_out_of_pieces(trick: str, contents: list[str]) -> None:
    text = with_template(vocabularies.qwen3(), TEMPLATE_TRICKS[trick])
    messages = [{"role": "user", "content": content} for content in contents]
    try:
        found = encode_chat(text, messages)
    except InvalidArgument as error:
        assert trick in UNDECIDED
        assert "it is unclear whether" in str(error)  # noqa: PT017
    else:
        assert skeleton(text, found) == []


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ ['<|im_end|>', messages[0].content] | pprint }}", "x" * 99),
        ("{{ ('<|im_end|> ' ~ messages[0].content) | wordwrap(40) }}", "x"),
    ],
)
def test_a_template_that_hides_what_comes_from_a_message_is_refused(
    source: str, content: str
) -> None:
    text = with_template(vocabularies.qwen3(), source)
    with pytest.raises(InvalidArgument, match=r"unclear whether '<.im_end.>' comes") as caught:
        encode_chat(text, [{"role": "user", "content": content}])
    assert caught.value.param == "prompt"


ANSWER = "{% if '<|im_end|>' in messages[0].content %}<|im_end|>{% endif %}"
END = "{% macro end() %}<|im_end|>{% endmacro %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a" + ANSWER + "b<|im_start|>", "a<|im_end|>b[S]"),
        (ANSWER + "{{ messages[0].content }}<|im_end|>", "<|im_end|>x<|im_end|>[E]"),
        ("{{ messages[0].content.replace('<|im_end|>', '<|im_end|>') }}<|im_end|>",
         "x<|im_end|>[E]"),
        (ANSWER.replace("{% endif %}", "{% else %}<|im_start|>{% endif %}"), None),
        ("{% if '<|im_end|>' not in messages[0].content %}<|im_start|>{% endif %}a<|im_end|>",
         "a[E]"),
        (END + ANSWER.replace("%}<|im_end|>", "%}{{ end() }}") + "x{{ end() }}", None),
    ],
)  # fmt: skip
def test_a_message_that_spells_a_control_token_gets_none_in_answer(
    source: str, expected: str | None
) -> None:
    text = with_template(vocabularies.qwen3(), source)
    messages = [{"role": "user", "content": "x<|im_end|>"}]
    if expected is None:
        sentence = r"must not contain '<.im_end.>', because .* writes different control tokens"
        with pytest.raises(InvalidArgument, match=sentence):
            encode_chat(text, messages)
        return
    marks = {"<|im_start|>": "[S]", "<|im_end|>": "[E]"}
    ids = encode_chat(text, messages)
    control = {token_id: marks[token.content] for token_id, token in
               control_tokens(tokenizer_of(text)).items() if token.content in marks}  # fmt: skip
    plain = [token_id for token_id in ids if token_id not in control]
    assert shown(text, plain) == expected.replace("[S]", "").replace("[E]", "")
    assert [control[i] for i in ids if i in control] == [expected[-3:]]
    assert ids[-1] in control


def test_text_comes_back_as_it_was_written() -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    text = with_template(vocabularies.qwen3(), template)
    content = "<|im_end|>\U000f0000<<\U000f0001>>\\udb80\\udc00</think>\ue000"
    assert shown(text, encode_chat(text, [{"role": "user", "content": content}])) == content


def test_text_written_as_json_with_escapes_comes_back() -> None:
    template = "{{ messages[0].content | tojson(ensure_ascii=true) }}"
    text = with_template(vocabularies.qwen3(), template)
    ids = encode_chat(text, [{"role": "user", "content": "<|im_end|> é"}])
    assert shown(text, ids) == '"<|im_end|> \\u00e9"'


def test_a_merge_that_leads_to_a_control_token_is_cut() -> None:
    from tokenizers import models

    vocabulary = {"<": 0, "/": 1, "s": 2, ">": 3, "</": 4, "s>": 5, "</s>": 6, "a": 7}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    text = TextFormat(tokenizer, "{{ messages[0].content }}</s>")
    ids = encode_chat(text, [{"role": "user", "content": "a</s></s>a"}])
    assert ids == [7, 4, 5, 4, 5, 7, 6]


def test_a_control_token_that_is_a_single_character_is_refused() -> None:
    from tokenizers import models

    tokenizer = Tokenizer(models.BPE({"a": 0, "§": 1}, []))
    tokenizer.add_special_tokens([AddedToken("§", special=True, normalized=False)])
    text = TextFormat(tokenizer, "{{ messages[0].content }}§")
    assert encode_chat(text, [{"role": "user", "content": "a"}]) == [0, 1]
    with pytest.raises(InvalidArgument, match=r"U\+00A7 is only a control token"):
        encode_chat(text, [{"role": "user", "content": "a§a"}])


def test_flags_of_control_tokens_are_followed() -> None:
    text = vocabularies.qwen3()
    copy = Tokenizer.from_str(tokenizer_of(text).to_str())
    copy.add_special_tokens(
        [
            AddedToken("<left>", special=True, normalized=False, lstrip=True),
            AddedToken("<right>", special=True, normalized=False, rstrip=True),
            AddedToken("word", special=True, normalized=False, single_word=True),
        ]
    )
    template = "a  <left> b<right>  \n {{ messages[0].content }}  <left><right>  word swords word"
    text = dataclasses.replace(text, tokenizer=copy, chat_template=template)
    messages = [{"role": "user", "content": " x "}]
    assert encode_chat(text, messages) == oracle(text, messages)


def test_every_role_is_taken() -> None:
    text = with_template(vocabularies.qwen3(), "{{ messages[0].role }}")
    assert [
        shown(text, encode_chat(text, [{"role": role, "content": ""}])) for role in ROLES
    ] == list(ROLES)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "must have at least one message"),
        ([{"role": "owner", "content": "x"}], "one of assistant, developer, system, tool, user"),
        ([{"role": 3, "content": "x"}], "`role` must be one of"),
        ([{"role": "user"}], "must have `content` and `role`, but has `role`"),
        ([{"role": "user", "content": "x", "label": "y"}], "annotations, .*, but has 'label'"),
        ([{}], "but has nothing"),
        (
            [{"role": "user", "content": "x"}, {"role": "user", "content": "ab\ud800"}],
            r"message 1 .* lone surrogate U\+D800 at position 2",
        ),
    ],
)
def test_a_malformed_message_is_an_error_that_says_which(messages: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence) as caught:
        encode_chat(vocabularies.qwen3(), messages)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "messages",
    ["text", b"bytes", 3, None, {"role": "user", "content": "x"}, ["x"], [None],
     [{"role": "user", "content": None}], [{"role": "user", "content": ["x"]}]],
)  # fmt: skip
def test_messages_of_another_type_are_a_type_error(messages: Any) -> None:
    with pytest.raises(TypeError, match="stream: "):
        encode_chat(vocabularies.qwen3(), messages)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ messages[5].content.x }}", "has no element 5"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('Only one turn.') }}", "or refuses them: Only one turn.$"),
        ("{{ messages | nosuchfilter }}", "No filter named 'nosuchfilter'"),
        ("{{ messages.__class__.mro() }}", "unsafe"),
        ("x" * (MAX_TEMPLATE_CHARACTERS + 1), "at most 65536 characters, but has 65537"),
        ("{{ 'x' * 10000000 }}", "it creates a value that is too large"),
    ],
)
def test_a_template_that_fails_is_an_error_with_a_reason(template: str, sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence) as caught:
        encode_chat(
            with_template(vocabularies.qwen3(), template), [{"role": "user", "content": "x"}]
        )
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_template_that_takes_too_long_is_stopped() -> None:
    loop = "{% for a in range(99999) %}"
    text = with_template(vocabularies.qwen3(), loop * 3 + "{% endfor %}" * 3)
    began = time.monotonic()
    with pytest.raises(InvalidArgument, match="it takes too long"):
        encode_chat(text, [{"role": "user", "content": "x"}], timeout_s=0.2)
    assert time.monotonic() - began < 30  # unstopped, it would run for days


def test_an_error_of_a_template_does_not_quote_a_message() -> None:
    for template in ("{{ {}[messages[0].content] + 1 }}", "{{ messages[0].content + 1 }}"):
        text = with_template(vocabularies.qwen3(), template)
        with pytest.raises(InvalidArgument, match=r"(Undefined|Type)Error\.$") as caught:
            encode_chat(text, [{"role": "user", "content": "secret"}])
        assert "secret" not in str(caught.value)


def test_a_checkpoint_without_template_or_tokenizer_says_what_to_give() -> None:
    text = vocabularies.qwen3()
    message = [{"role": "user", "content": "x"}]
    with pytest.raises(
        InvalidArgument, match=r"no chat template. Pass a string or token ids instead"
    ):
        encode_chat(dataclasses.replace(text, chat_template=None), message)
    with pytest.raises(InvalidArgument, match=r"no tokenizer. Pass token ids instead"):
        encode_chat(dataclasses.replace(text, tokenizer=None), message)


def test_a_long_message_passes_through() -> None:
    content = "Once upon a time <b>there</b> was. " * 10_000
    text = vocabularies.qwen3()
    assert len(encode_chat(text, [{"role": "user", "content": content}])) > 50_000
