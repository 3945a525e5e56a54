"""Templates: what a row's values look like in them, and that neither rows nor templates can do more than make a text."""

from __future__ import annotations

import datetime
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from nightshift.tasks import Rendering, _templates
from nightshift.tasks._values import Large
from nightshift.tasks.base import BadInput, load_kind
from tests.builders import a_spec

pytestmark = pytest.mark.unit


def rendered(template: str, **row: Any) -> str:
    text: str = load_kind(a_spec(request__input=template)).render(row, 0)
    return text


def bounded(template: str, **row: Any) -> str:
    """As a process of its own renders it, which takes large values too."""
    compiled, _ = _templates.compile_template(template)
    return _templates.render(compiled, _templates.taken(row, Rendering.SQL), Rendering.SQL)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        ("{{ 7 * 7 }}{% raw %}", "{{ 7 * 7 }}{% raw %}"),
        ("a\x00b<c>&😀", "a\x00b<c>&😀"),
        (b"caf\xc3\xa9", "café"),
        (datetime.date(2026, 11, 1), "2026-11-01"),
        (datetime.datetime(2026, 11, 1, 2, 3, tzinfo=datetime.UTC), "2026-11-01 02:03:00+00:00"),
        (Decimal("1.50"), "1.5"),
        (["a", b"b", None], '["a", "b", null]'),
        ({"a": b"b"}, '{"a": "b"}'),
        (2**70, str(2**70)),
    ],
)
def test_values_as_templates_show_them(value: Any, shown: str) -> None:
    assert rendered("[{{ x }}]", x=value) == f"[{shown}]"


def test_null_within_a_struct_reads_as_empty_text_too() -> None:
    assert rendered("[{{ x.a }}{{ x.b[0] }}]{{ x.a ~ 1 }}", x={"a": None, "b": [None]}) == "[]1"


def test_arrays_and_structs_can_be_walked_and_written_as_json() -> None:
    row = {"x": [{"name": b"a", "day": datetime.date(2026, 1, 2)}, {"name": "é<&>", "day": None}]}

    assert rendered("{% for item in x %}{{ loop.index }}={{ item.name | upper }};{% endfor %}", **row) == "1=A;2=É<&>;"
    assert rendered("{{ x | tojson }}", **row) == '[{"name": "a", "day": "2026-01-02"}, {"name": "é<&>", "day": null}]'


def test_what_a_template_calls_is_no_column() -> None:
    kind = load_kind(a_spec(request__input="{% for n in range(2) %}{{ text }}{% endfor %}"))

    assert kind.columns == ("text",)
    assert kind.render({"text": "ab"}, 0) == "abab"


def test_a_long_text_passes_whole() -> None:
    assert bounded("{{ x }}", x="é" * 1_000_000) == "é" * 1_000_000


@pytest.mark.parametrize("text", ["", "  \n", None, b""])
def test_nothing_to_say_is_bad_input(text: Any) -> None:
    with pytest.raises(BadInput, match="nothing"):
        rendered("{{ x }} ", x=text)


@pytest.mark.parametrize("value", [b"\xff\xfe", [b"a", b"\xff"], {"a": {"b": b"\xff"}}])
def test_bytes_that_are_not_utf8_are_bad_input(value: Any) -> None:
    with pytest.raises(BadInput, match="not UTF-8"):
        rendered("{{ x }}", x=value)


@pytest.mark.parametrize("template", ["{{ x }}", "{{ x[0] }}", "a{{ x ~ 1 }}"])
def test_half_a_surrogate_pair_is_bad_input(template: str) -> None:
    with pytest.raises(BadInput, match="cannot be encoded"):
        rendered(template, x="\ud83d")


@pytest.mark.parametrize(
    ("template", "value", "message"),
    [
        ("{{ 1 / n }}", 0, "division by zero"),
        ("{{ n | dictsort }}", 7, "no attribute 'items'"),
        ("{{ n.missing.deeper }}", {}, "no attribute 'missing'"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(n) }}", 1, "recursion"),
        ("{% for i in range(n) %}{% endfor %}", 10**9, "Range too big"),
    ],
)
def test_a_template_that_fails_on_a_row_is_bad_input(template: str, value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        rendered(template, n=value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ x.__class__.__mro__ }}",
        "{{ x.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}{{ x }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}{{ x }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ x | attr('__class__') }}{{ x.__class__.name }}",
    ],
)
def test_templates_cannot_leave_their_sandbox(template: str) -> None:
    with pytest.raises(BadInput, match=r"unsafe|undefined|no attribute"):
        rendered(template, x="x")


@pytest.mark.parametrize(
    "template",
    [
        '{{ "a" * 10**9 }}{{ x }}',
        "{{ x * n }}",
        "{{ n * x }}",
        "{{ [x] * n }}",
        "{{ 9 ** n }}",
        '{{ "%1000000000d" % 1 }}{{ x }}',
        '{{ "%*d" % (n, 1) }}',
        '{{ "%*d" | format(n, 1) }}',
        '{{ "{:>1000000000}".format(x) }}',
        "{{ x.ljust(n) }}",
        "{{ x.zfill(n) }}",
        "{{ (x ~ '\\t').expandtabs(n) }}",
        "{{ x | center(n) }}",
        "{{ x | indent(n, true) }}",
        "{{ [x] | batch(n, 'a') | list }}",
        "{{ [x] | slice(n) | list }}",
        "{{ [x] | tojson(indent=n) }}",
        "{{ ([x * 1000000] * 100) | join }}",
        "{{ [x, x] | join('y' * 8000000) }}",
        "{{ ''.join([x * 1000000] * 100) }}",
        "{{ (x * 8000000).replace('h', 'yyyyyy') }}",
        "{{ (x * 8000000) | replace('h', 'yyyyyy') }}",
        "{% set s = namespace(v=x) %}{% for i in range(60) %}{% set s.v = s.v ~ s.v %}{% endfor %}{{ s.v }}",
        "{% set s = namespace(v=x) %}{% for i in range(60) %}{% set s.v = s.v + s.v %}{% endfor %}{{ s.v }}",
        "{% for i in range(90000) %}{{ x * 1000 }}{% endfor %}",
    ],
)
def test_a_small_template_makes_no_huge_value(template: str) -> None:
    """Each of these would take gigabytes."""
    with pytest.raises(SecurityError, match=r"more than|longer than|too wide"):
        bounded(template, x="h", n=10**9)


MUCH_OUT_OF_LITTLE = [
    # A width from a value, nested as deep as it goes, and as text.
    "{{ '{:{w}}'.format(x, w=n) }}",
    "{{ '{:{}}'.format(x, n) }}",
    "{{ '{:{w[0]}}'.format(x, w=[n]) }}",
    "{{ '{:{w}}'.format(x, w='1000000000') }}",
    "{{ '{:>9.{p}f}'.format(1.5, p=n) }}",
    "{{ '{a:{w}}'.format_map({'w': n, 'a': x}) }}",
    "{{ ('{:9000000}' * 99).format(*([x] * 99)) }}",
    "{{ ('{:900000}' * 99).format(*([x] * 99)) }}",
    "{{ ('%900000d' * 99) % ((1,) * 99) }}",
    "{{ '{0}{0}{0}'.format({'a': x * 8000000}) }}",
    # One text for each character.
    "{{ (x * 8000).translate({104: x * 80000}) }}",
    "{{ (x * 8000).encode().replace(x.encode(), (x * 80000).encode()) }}",
    "{{ x.encode().join([x.encode() * 8000000] * 100) }}",
    "{{ (x * 8000) | wordwrap(1, wrapstring='y' * 80000) }}",
    "{{ ('http://a.b ' * 70000) | urlize(target='y' * 10000) }}",
    "{{ ('\n' * 8000) | indent('y' * 80000) }}",
    # A width, of other texts than str.
    "{{ x.encode().ljust(n) }}",
    "{{ x.encode().center(n) }}",
    "{{ x.encode().zfill(n) }}",
    "{{ ('\t' * 9).encode().expandtabs(n) }}",
    "{{ (1).to_bytes(n, 'big') }}",
    # A list of one large text, many times.
    "{{ [x * 8000000] * 1000 }}",
    "{{ [x * 8000000, x * 8000000] }}",
    "{{ ([x * 80000] * 1000) | map('upper') | list }}",
    "{{ ([[x * 80000]] * 1000) | sort }}",
    "{{ ([{'a': x * 80000}] * 1000) | groupby('a') }}",
    "{{ dict(a=x * 8000000, b=x * 8000000) }}",
    "{{ {'a': x * 8000000, 'b': x * 8000000} | xmlattr }}",
    # Generators.
    "{{ (x * 1000) | map('center', 80000) | list }}",
    "{{ 'y'.join((x * 1000) | map('center', 80000)) }}",
    "{{ (x * 1000) | map('center', 80000) | join }}",
    "{{ [(x * 1000) | map('center', 80000)] | map('join') | list }}",
    "{{ (x * 1000000) | list }}",
    "{{ ('a\n' * 1000000).splitlines() }}",
    "{{ cycler(*([x] * 8000000)).next() }}",
    # Twice as much at each step.
    "{% set s = namespace(v=[x]) %}{% for i in range(60) %}{% set s.v = [s.v, s.v] %}{% endfor %}{{ s.v | string }}",
    "{% set s = namespace(v=[x]) %}{% for i in range(60) %}{% set s.v = (s.v, s.v) %}{% endfor %}{{ s.v | tojson }}",
    "{% set s = namespace(v=x) %}{% for i in range(60) %}{% set s.v = dict(a=s.v, b=s.v) %}{% endfor %}{{ s.v }}",
    "{% set s = namespace(v=x) %}{% for i in range(60) %}{% set s.v = {'a': s.v, 'b': s.v} %}{% endfor %}{{ s.v }}",
    "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{{ m(m(m(m(x * 3000000)))) }}",
    # Blocks that become a value.
    "{% set v %}{% for i in range(99999) %}{{ x * 900000 }}{% endfor %}{% endset %}{{ v | length }}",
    "{% macro m() %}{% for i in range(99999) %}{{ x * 900000 }}{% endfor %}{% endmacro %}{{ m() | length }}",
    "{% filter length %}{% for i in range(99999) %}{{ x * 900000 }}{% endfor %}{% endfilter %}",
    "{% for i in range(99) %}{{ loop.cycle('y' * 900000) }}{% endfor %}",
    # Many large values, held at once.
    "{% macro m(n, v) %}{{ m(n - 1, x * 8000000) if n else '' }}{% endmacro %}{{ m(200, x) }}",
    "{% set s = namespace(v=[]) %}{% for i in range(99999) %}{% set s.v = [s.v, x * 8000] %}{% endfor %}{{ s.v | length }}",
    # Time, in one step that nothing can break off.
    "{{ ([[x]] * 30000) | sum(start=[]) | length }}",
    "{{ [{'a': [{'a': x}] * 9000}] | tojson(indent=8000000) }}",
]


@pytest.mark.parametrize("template", MUCH_OUT_OF_LITTLE)
def test_much_out_of_little_is_refused_before_it_is_made(template: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SecurityError, match=r"more than|longer than|too wide"):
            bounded(template, x="h", n=10**9)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 160 << 20


def test_a_rendering_does_not_count_against_the_next_one() -> None:
    template = "{% for i in range(7) %}{% set v = x * 8000000 %}{% endfor %}{{ x }}"

    assert [bounded(template, x="h") for _ in range(3)] == ["h"] * 3


def test_idioms_of_templates_still_compute() -> None:
    shown = {
        "{{ '{:>{w}}|{:05.1f}|{a!r:>6}'.format(x, 2.5, w=4, a=x) }}": "  ab|002.5|  'ab'",
        "{{ '{a}-{b[0]}'.format_map({'a': x, 'b': [1]}) }} {{ '%5s|%-3d|%.1f' % (x, 7, 1.25) }}": "ab-1    ab|7  |1.2",
        "{{ '%(a)s' % {'a': x} }} {{ '{:,}'.format(10**12) }} {{ '%d' % 10**12 }}": "ab 1,000,000,000,000 1000000000000",
        "{{ x.translate({97: 'xyz', 98: none}) }} {{ (x ~ '\t').expandtabs(4) }}|": "xyz ab  |",
        "{{ [{'t': [1]}, {'t': [2, 3]}] | sum(attribute='t', start=[]) }} {{ [1, 2.5] | sum }}": "[1, 2, 3] 3.5",
        "{{ ['b', 'a', 'b'] | unique | sort | map('upper') | join(', ') }}": "A, B",
        "{{ ([{'k': 1, 'v': 2}, {'k': 1, 'v': 3}] | groupby('k') | first)[1] | map(attribute='v') | list }}": "[2, 3]",
        "{{ 'a b c' | wordwrap(3) }} {{ 'http://a.com' | urlize(rel='x') }}": (
            'a b\nc <a href="http://a.com" rel="noopener x">http://a.com</a>'
        ),
        "{{ [1, {'a': 2}] | tojson(indent=1) }} {{ ('a\nb') | indent('> ') }}": '[\n 1,\n {\n  "a": 2\n }\n] a\n> b',
        "{% set v %}{{ x }}-{{ x }}{% endset %}{{ v }} {% macro m(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ m(x) }}": "ab-ab ab1",
        "{% set s = namespace(n=0) %}{% for i in [1, 2] %}{% set s.n = s.n + i %}{% endfor %}{{ s.n }}": "3",
        "{% for a, (b, c) in [(1, (2, 3))] %}{{ a ~ b ~ c }}{% endfor %}{% set d, e = 4, 5 %}{{ d ~ e }}": "12345",
        "{% for row in [1, 2, 3] | batch(2, 0) %}{{ row }}{% endfor %}": "[1, 2][3, 0]",
        "{% filter upper %}{{ x }}{% endfilter %}": "AB",
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.cycle('x', 'y') }}{% endfor %}": "a1x",
        "{{ x.split('a') }} {{ x[::-1] }} {{ x | truncate(1, true, '', 0) }} {{ 'a' in x }}": '["", "b"] ba a True',
    }

    assert {template: rendered(template, x="ab") for template in shown} == shown


def test_what_is_bounded_still_computes() -> None:
    shown = {
        "{{ x * 2 }} {{ 2 ** 10 }} {{ 7 % 4 }} {{ '%s-%d' % (x, 1) }}": "abab 1024 3 ab-1",
        "{{ [1] + [2] }} {{ x + x }} {{ 1 + 2 }}": "[1, 2] abab 3",
        "{{ x | center(4) }} {{ [x, 1] | join('+') }}": " ab  ab+1",
        "{{ '%s/%s' | format(x, 2) }} {{ x | replace('a', 'c') }}": "ab/2 cb",
        "{{ x.join(['1', '2']) }} {{ '{:>4}'.format(x) }}": "1ab2   ab",
        "{{ [1, 2, 3] | map('string') | select('in', x ~ '12') | reject('==', '1') | join(',') }}": "2",
        "{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | map(attribute='a') | sum }}": "2",
        "{{ [1, 2, 3] | batch(2) | list }} {{ (x ~ '\n' ~ x) | indent(1) }}": "[[1, 2], [3]] ab\n ab",
    }

    assert {template: rendered(template, x="ab") for template in shown} == shown


@pytest.mark.parametrize("template", ["{{ x | random }}", "{{ lipsum() }}"])
def test_nothing_random_is_offered(template: str) -> None:
    """A row must give the same text however often it is rendered: `lipsum` is no function here, `random` no filter."""
    with pytest.raises(Exception, match=r"random|lipsum"):
        rendered(template, x="abc")


def test_a_template_cannot_change_what_later_rows_see() -> None:
    kind = load_kind(a_spec(request__input="{% set x = x ~ 1 %}{{ x }}{% set range = 7 %}"))

    assert [kind.render({"x": value}, 0) for value in "ab"] == ["a1", "b1"]
    assert load_kind(a_spec(request__input="{{ range(3) | length }}{{ x }}")).render({"x": ""}, 0) == "3"
    with pytest.raises(BadInput, match="unsafe"):
        rendered("{{ x.append(1) }}", x=[1])


def test_nothing_is_computed_when_a_template_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file has room for thousands of filters that each take milliseconds, and Airflow's DAG processor compiles it."""
    called: list[str] = []
    environment = _templates.Environment()

    def named(name: str) -> Callable[..., str]:
        def filter_(*_: object) -> str:
            called.append(name)
            return "x"

        return filter_

    environment.filters |= {name: named(name) for name in ("center", "upper", "length")}
    monkeypatch.setattr(_templates, "_the_environment", lambda: environment)
    template, columns = _templates.compile_template(
        '{{ a }}{{ "x"|center(9)|upper|length }}{% if "x"|upper %}b{% endif %}{{ 2|upper ~ 3 }}'
    )

    assert (columns, called) == (("a",), [])
    assert _templates.render(template, {"a": 1}, Rendering.SQL)
    assert set(called) == {"center", "upper", "length"}


DOUBLED = (
    "{% set s = namespace(v=x, w=x) %}"
    "{% for i in range(40) %}{% set s.v = DOUBLE(s.v) %}{% set s.w = DOUBLE(s.w) %}{% endfor %}"
)
HELD = (
    "{% set s = namespace(v=x) %}"
    "{% for i in range(999) %}{% for j in range(999) %}{% set s.v = HOLD %}{% endfor %}{% endfor %}{{ x }}"
)


@pytest.mark.parametrize("double", ["[dict(a=V, b=V).items()]", "[dict(a=V, b=V).values()]", "dict(a=V, b=V).items()"])
@pytest.mark.parametrize("use", ["{{ s.v == s.w }}", "{{ s.v }}", "{{ s.v | string | length }}", "{{ '%r' % [s.v] }}"])
def test_a_view_of_a_struct_counts_as_what_it_shows(double: str, use: str) -> None:
    """Twice as much at each step, and C code that compares or writes it all."""
    template = DOUBLED.replace("DOUBLE(s.v)", double.replace("V", "s.v")).replace("DOUBLE(s.w)", double.replace("V", "s.w"))

    with pytest.raises(SecurityError, match="more than"):
        bounded(template + use, x="h")


def test_no_view_gives_away_what_stands_behind_it() -> None:
    with pytest.raises(BadInput, match="unsafe"):
        rendered("{{ x.keys().mapping }}", x={"a": 1})


@pytest.mark.parametrize("hold", ["namespace(a=s.v)", "namespace(a=s.v, b='y' * 30000)", "cycler(s.v)", "s.v ~ '', s.v"])
def test_many_small_values_are_no_way_to_fill_the_drivers_memory(hold: str) -> None:
    """All of them live as long as the rendering; elsewhere, the process has a limit."""
    compiled, _ = _templates.compile_template(HELD.replace("HOLD", hold))

    with pytest.raises(Large):
        _templates.render(compiled, {"x": "h"}, Rendering.SQL, here=True)
