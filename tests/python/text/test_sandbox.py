"""Templates may be hostile: they must not escape the sandbox, and must not cost much."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from sinkstream.errors import InvalidArgument
from sinkstream.text.templates.chat_template import compile_template
from sinkstream.text.templates.limits import MAX_VALUES, Limits
from sinkstream.text.templates.sandbox import TemplateSandbox

MESSAGES = [{"role": "user", "content": "Hello"}]

ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ [].__class__.__base__.__subclasses__() }}",
    "{{ {}.__class__.__bases__ }}",
    "{{ ().__class__.__bases__[0].__subclasses__()[100] }}",
    "{{ (1).__class__.__init__.__globals__ }}",
    "{{ true.__class__.mro() }}",
    "{{ messages.__class__ }}",
    "{{ messages[0].__init__ }}",
    "{{ messages.__getattribute__('append') }}",
    "{{ messages.append({}) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].setdefault('x', 1) }}",
    "{{ messages[0].__setitem__('role', 'x') }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace.mro() }}",
    "{{ namespace(a=1).__class__ }}",
    "{{ namespace(a=1)._Namespace__attrs }}",
    "{{ namespace(**{'__class__': 1}).__class__ }}",
    "{{ dict.__globals__ }}",
    "{{ dict.fromkeys.__self__.__mro__ }}",
    "{{ range.__class__.__mro__ }}",
    "{{ range.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__code__ }}",
    "{{ raise_exception.__closure__ }}",
    "{{ strftime_now.__globals__.datetime }}",
    "{{ lipsum.__globals__.os.system('id') }}",
    "{{ lipsum(10000) }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ config.items() }}",
    "{{ request.application.__globals__ }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0[__class__]}'.format(namespace(a=1)) }}",
    "{{ '{x.__init__.__globals__}'.format_map({'x': raise_exception}) }}",
    "{{ ('{0.__class__}'|attr('format'))('') }}",
    "{{ ['{0.__class__}'.format]|map('string')|first.__self__ }}",
    "{{ ['{0.__class__.__name__}'.format][0]('') }}",
    "{{ '%(a)s'.__mod__ }}",
    "{{ ''.encode().decode }}",
    "{{ ''.translate({}) }}",
    "{{ ''.join.__self__.__class__ }}",
    "{{ [1]|map(attribute='__class__')|list|first.mro }}",
    "{{ ['']|map('attr', '__class__')|list }}",
    "{{ messages|map(attribute='__class__.__mro__')|list|string|first.x.y }}",
    "{{ [''|safe]|first.__html__.__globals__ }}",
    "{{ (''|e).__html_format__ }}",
    "{{ (''|safe).unescape.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% macro m() %}{{ caller.__init__ }}{% endmacro %}{{ m() }}",
    "{% for x in [1] %}{{ loop.__class__.__init__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterator.gi_frame }}{% endfor %}",
    "{% set g = messages|map('string') %}{{ g.gi_frame.f_globals }}",
    "{% set g = messages|map('string') %}{{ g.gi_code }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% from 'os' import system %}",
    "{% extends 'base' %}",
    "{{ __import__('os').system('id') }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ eval('1') }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "{% do messages.append(1) %}",
    "{% debug %}",
    "{{ (messages|attr('__class__')).__mro__ }}",
    "{{ (messages[0].content|attr('origins')) ~ messages[0].content.origins }}",
    "{{ ('{0.__class__.__mro__}'|safe).format('') }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
    "{{ ('{a.__class__.__mro__}'|e).format_map({'a': ''}) }}",
    "{{ dict.__class__ }}{{ dict.fromkeys.__func__.__globals__ }}",
    "{{ namespace(_x=1) }}",
    "{% generation %}{{ caller.__globals__ }}{% endgeneration %}",
    "{{ messages|pprint|attr('format')|attr('__self__') }}",
]

WATCHED = ("open", "os.", "subprocess.", "import", "socket.", "ctypes.", "code.", "pty.", "exec")


def loops(*bodies: str) -> str:
    """Nest the longest loops that a template can write, with a body in the innermost one."""
    depth = len(bodies) - 1
    return "{% for a in range(99999) %}" * depth + "".join(bodies) + "{% endfor %}" * depth


def grow(start: str, step: str, end: str = "{{ n.x }}") -> str:
    """Build a value out of itself, 99 times."""
    return (
        f"{{% set n = namespace(x={start}) %}}{{% for i in range(99) %}}"
        f"{{% set n.x = {step} %}}{{% endfor %}}{end}"
    )


BOMBS = [
    loops("", "", ""),
    loops("", "", "x"),
    loops("", "{% set x %}" + loops("", "") + "{% endset %}"),
    "{% macro m(n) %}{% for i in range(9999) %}{{ m(n + 1) }}{% endfor %}{% endmacro %}{{ m(0) }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    loops("", "{% for b in range(9999)|map('string')|list %}{% endfor %}"),
    grow("'a'", "n.x ~ n.x", ""),
    grow("'a'", "n.x + n.x", ""),
    grow("[1]", "n.x + n.x", ""),
    grow("[1]", "[n.x, n.x]"),
    grow("(1,)", "(n.x, n.x)"),
    grow("1", "{1: n.x, 2: n.x}", "{{ n.x|tojson }}"),
    grow("1", "dict(a=n.x, b=n.x)"),
    grow("9", "n.x * n.x"),
    "{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n, n] %}{{ n.l|tojson }}",
    "{{ 'a' * 1000000000 }}",
    "{{ 1000000000 * 'a' }}",
    "{{ [1] * 1000000000 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 9 ** 99999 }}",
    "{{ range(1000000000)|list }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:>{}}'.format(1, 1000000000) }}",
    "{{ '%(x)1000000000s'|format(x=1) }}",
    "{{ '%((x)y)1000000000s' % {'(x)y': 1} }}",
    "{{ '%%(%1000000000d)' % 1 }}",
    "{{ '%5%(%1000000000d)' % 1 }}",
    "{{ '%1000000000d%(' % {} }}",
    "{{ '{{{:1000000000}'.format(1) }}",
    "{{ '{0[}{]:1000000000}'.format({'}{': 1}) }}",
    "{{ '{:1000000000}{'.format(1) }}",
    "{{ ('%' * 100000) % 1 }}",
    "{{ ('%(' * 100000) % 1 }}",
    "{{ ('%(' * 400 + '(' * 900000) % {} }}",
    "{{ ('%' + '0' * 900000) % 1 }}",
    "{{ ('%#' * 400 + '#' * 900000) % 1 }}",
    "{{ ('{' * 100000).format(1) }}",
    "{{ ('{0' * 400 + '!' * 900000).format(1) }}",
    "{{ ''.ljust(1000000000) }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ 'a'|center(1000000000) }}",
    "{{ 'a'|indent(1000000000, true) }}",
    "{{ ('a\n' * 100000)|indent(99999) }}",
    "{{ ('a\n' * 100000)|indent(first=true, width=99999) }}",
    "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000)|replace(new='b' * 100000, old='a') }}",
    "{{ ('a' * 100000).join('b' * 100000) }}",
    "{{ range(99999)|join('a' * 100000) }}",
    "{{ range(99999)|map('replace', '', 'b' * 10000)|list }}",
    "{{ [[1]] * 1000|sum(start=[]) }}",
    "{{ ([range(999)|list] * 9999)|sum(start=[]) }}",
    "{{ ('\t' * 100000).expandtabs(99999) }}",
    "{{ ('a' * 100000)|wordwrap(1, wrapstring='b' * 1000) }}",
    "{{ ('a.b ' * 100000)|urlize(rel='b' * 100000) }}",
    "{{ range(99999)|list|tojson(separators=('b' * 1000, '')) }}",
    "{{ range(99999)|list|tojson(indent='b' * 1000) }}",
    "{{ [range(99999)|list]|pprint }}",
    "{{ 'a'.zfill(1000000000) }}",
    "{{ [1]|batch(1000000000, 1)|list }}",
    "{{ 5|round(-1000000000) }}",
    "{{ {'a': 1}|tojson(indent=1000000000) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ cycler(*range(99999)) }}" * 500,
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{{ x" + "|upper" * 10000 + " }}",
    "{{ ('a' * 1000000)" + " ~ ('a' * 1000000)" * 300 + " }}",
    "{{ [" + "'a' * 1000000, " * 300 + "] }}",
    "{{ [" + "[1] * 500000, " * 300 + "] }}",
    "{{ [" + "'\U0001f389' * 1000000, " * 300 + "] }}",
    grow("[]", "n.x + ['a' * 100000]"),
    "{% macro m(x) %}" + "{{ x }}" * 1000 + "{% endmacro %}{{ m('a' * 1000000) }}",
]


def render(source: str, *, seconds: float = 0.2, size: int = 1 << 20, **variables: Any) -> str:
    """Render a template as a conversation would."""
    template = compile_template(source).template
    return TemplateSandbox().run(
        template, {"messages": MESSAGES, **variables}, Limits(seconds, size)
    )


@contextmanager
def audited() -> Iterator[list[str]]:
    """Collect the audit events of access to the outside while the block runs."""
    seen: list[str] = []
    AUDIT.append(seen)
    try:
        yield seen
    finally:
        AUDIT.remove(seen)


AUDIT: list[list[str]] = []


def _hook(event: str, _: Any) -> None:
    for seen in AUDIT:
        if event.startswith(WATCHED):
            seen.append(event)


sys.addaudithook(_hook)


def test_there_are_at_least_fifty_escape_payloads() -> None:
    assert len(set(ESCAPES)) >= 50


def test_the_audit_sees_what_it_should_see() -> None:
    with audited() as seen, open("/dev/null"):  # noqa: PTH123
        pass
    assert seen == ["open"]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_escape(source: str) -> None:
    try:
        template = compile_template(source).template
    except InvalidArgument:
        return  # refused before it ran
    limits = Limits(1.0, 1 << 20)
    before = [dict(message) for message in MESSAGES]
    output = ""
    with audited() as seen:
        try:
            output = TemplateSandbox().run(template, {"messages": MESSAGES}, limits)
        except Exception as error:
            output = f"{type(error).__name__}"
    assert seen == []
    assert before == MESSAGES
    for trace in ("<class", "<function", "<bound", "object at 0x", "root:", "uid="):
        assert trace not in output


SECONDS, SIZE = 0.2, 1 << 20


def burst(source: str) -> None:
    """Render a bomb until it is refused."""
    try:
        output = render(source, seconds=SECONDS, size=SIZE)
    except Exception as error:
        assert not isinstance(error, MemoryError)  # noqa: PT017 (anything else may come)
    else:
        pytest.fail(f"it ended with {len(output)} characters")


@pytest.mark.parametrize("source", BOMBS, ids=lambda source: source[:60])
def test_a_bomb_ends_soon(source: str) -> None:
    began = time.thread_time()  # not wall-clock time, which other processes consume as well
    burst(source)
    assert time.thread_time() - began < 10 * SECONDS  # unstopped, it would run for hours


@pytest.mark.parametrize("source", BOMBS, ids=lambda source: source[:60])
def test_a_bomb_stays_small(source: str) -> None:
    tracemalloc.start()
    try:
        burst(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # All values that it makes, and one more of the largest: of the widest characters, or a list.
    assert peak < (MAX_VALUES + 8) * SIZE + (16 << 20)


def test_nested_loops_end_at_the_deadline() -> None:
    source = loops("", "", "")
    compile_template(source)
    began = time.monotonic()
    with pytest.raises(Exception, match="it takes too long"):
        render(source, seconds=0.3)
    assert 0.3 <= time.monotonic() - began < 30  # unstopped, it would run for minutes


def test_waiting_for_a_processor_is_not_a_template_s_time() -> None:
    waited = iter(range(0, 10**6, 100))
    with patch("sinkstream.text.templates.limits.time.monotonic", lambda: next(waited)):
        assert render("{% for i in range(5) %}{{ i | string | upper }}{% endfor %}") == "01234"
