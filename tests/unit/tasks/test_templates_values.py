"""Templates hold values only: columns and fields before functions and methods, decimals and NULL as BigQuery has them."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import jinja2
import pytest

from nightshift.spec import load
from nightshift.tasks import Rendering
from nightshift.tasks.base import BadInput, Text, load_kind
from tests.builders import a_spec
from tests.unit.spec_file import job, mistakes, write

pytestmark = pytest.mark.unit


def rendered(template: str, rendering: Rendering = Rendering.SQL, **row: Any) -> str:
    return Text(template, rendering, blank=True).of(row)


GLOBALS = ("range", "dict", "namespace", "cycler", "joiner", "lipsum")


class TestColumns:
    @pytest.mark.parametrize(
        "name", [*GLOBALS, "loop", "super", "caller", "varargs", "kwargs", "environment", "context", "if", "in"]
    )
    def test_a_column_wins_over_a_name_of_jinjas(self, name: str) -> None:
        text = Text(f"{{{{ {name} }}}} {{{{ {name} | upper }}}} {{{{ {name} ~ 1 }}}}")

        assert text.columns == (name,)
        assert text.of({name: "km"}) == "km KM km1"

    def test_a_job_with_such_a_column_is_valid(self, tmp_path: Path) -> None:
        query = "SELECT name, version, `range`, summary FROM `a.b` WHERE d = @partition"
        value = job(source__query=query, request__input="{{ range }} {% for n in range(2) %}{{ summary }}{% endfor %}")

        assert load_kind(load(write(tmp_path, value))).columns == ("range", "summary")

    @pytest.mark.parametrize("name", GLOBALS)
    def test_a_function_that_is_named_and_not_called_is_a_column_that_is_missing(self, tmp_path: Path, name: str) -> None:
        [mistake] = mistakes(tmp_path, job(request__input=f"{{{{ {name} }}}}"))

        assert mistake.startswith(f"request.input: The template names the column '{name}', which the query lacks.")

    def test_what_is_called_is_the_function_in_the_same_template(self) -> None:
        assert rendered("{{ range }}:{% for n in range(3) %}{{ n }}{% endfor %}", range=97) == "97:012"
        assert rendered("{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ namespace }}", namespace="x") == "2x"

    def test_a_template_may_give_such_a_name_a_meaning_of_its_own(self) -> None:
        assert rendered("{% macro range(a) %}<{{ a }}>{% endmacro %}{{ range(x) }}", x=1) == "<1>"
        assert rendered("{% set dict = x %}{{ dict }}", x=1) == "1"

    @pytest.mark.parametrize("name", ["items", "keys", "values", "get", "count", "update", "pop", "copy", "__class__"])
    def test_a_field_wins_over_a_method(self, name: str) -> None:
        for access in (f"x.{name}", f"x['{name}']", f"x | attr('{name}')", f"[x] | map(attribute='{name}') | join"):
            assert rendered(f"{{{{ {access} }}}}", x={name: "field"}) == "field", access

    def test_a_method_that_is_called_is_the_method(self) -> None:
        template = "{{ x.items }} {% for k, v in x.items() %}{{ k }}={{ v }} {% endfor %}{{ x.get('a') }} {{ x.items.upper() }}"

        assert rendered(template, x={"items": "i", "a": 2}) == "i items=i a=2 2 I"

    @pytest.mark.parametrize(
        "template",
        [
            "{{ x.count }}",
            "{{ x['count'] }}",
            "{{ x | attr('count') }}",
            "{{ x.count ~ '' }}",
            "{{ x.count | string }}",
            "{{ '%s' % x.count }}",
            "{{ '{}'.format(x.count) }}",
            "{{ '{0.count}'.format(x) }}",
            "{{ [x.count] }}",
            "{{ {'a': x.count} | tojson }}",
            "{{ [x] | map(attribute='count') | join }}",
            "{{ [x] | groupby('count') | list }}",
            "{{ [x] | selectattr('count') | list }}",
            "{{ xs | map('upper') }}",
            "{{ (xs | map('upper')) ~ '' }}",
            "{{ xs | map('upper') | string }}",
            "{{ xs | map('upper') | trim }}",
            "{{ xs | map('upper') | tojson }}",
            "{{ xs | map('upper') | pprint }}",
            "{{ xs | map('upper') | urlencode }}",
            "{{ {'a': xs | map('upper')} | xmlattr }}",
            "{{ '%s' % (xs | map('upper')) }}",
            "{{ '%(a)s' % {'a': xs | map('upper')} }}",
            "{{ '%s' | format(xs | map('upper')) }}",
            "{{ '{!r:>5}'.format(xs | map('upper')) }}",
            "{{ [[xs | map('upper')]] | join }}",
            "{{ xs | reverse }}",
            "{% macro m() %}{% endmacro %}{{ m }}",
            "{% macro m() %}{% endmacro %}{{ m | upper }}",
            "{% macro m() %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}",
            "{% for a in xs %}{{ loop }}{% endfor %}",
            "{{ self }}",
            "{{ namespace(a=1) }}",
            "{{ [cycler(1)] }}",
            "{{ joiner() | string }}",
            "{{ x.nothing }}",
            "{{ [x.nothing] }}",
            "{{ x.nothing | tojson }}",
            "{{ day.today }}",
        ],
    )
    @pytest.mark.parametrize("rendering", Rendering)
    def test_what_is_no_value_is_never_text(self, template: str, rendering: Rendering) -> None:
        with pytest.raises(BadInput, match=r"no value|no attribute|unsafe|missing"):
            rendered(template, rendering, x="text", xs=["a", "b"], day=datetime.date(2026, 1, 2))

    def test_what_is_no_value_may_be_asked_for(self) -> None:
        assert (
            rendered("{{ x.count | default('-') }} {{ x.count is defined }} {{ x.a | default('?') }}", x={"a": 1})
            == "- False 1"
        )

    def test_two_names_that_are_one_to_python_are_never_mixed_up(self) -> None:
        with pytest.raises(Exception, match="one name"):
            Text("{{ \uff41ge }}{{ age }}")
        assert Text("{{ \uff41ge }}").of({"\uff41ge": "7"}) == "7"

    @pytest.mark.parametrize(
        "valid",
        [
            "{{ summary if summary is not none else '' }}",
            "{{ summary | default(none) }} {{ summary | truncate(9, true) }}",
            "{% set seen = false %}{% if seen == false %}{{ summary }}{% endif %}",
            "{% for a in summary %}{{ loop.index }}{{ loop.cycle('a', 'b') }}{% endfor %}",
            "{% macro m() %}{{ caller() }}{{ varargs | length }}{% endmacro %}{% call m(1) %}{{ summary }}{% endcall %}",
            "{% block b %}{{ summary }}{% endblock %}{{ self.b() }}",
        ],
    )
    def test_jinjas_own_words_are_still_understood(self, tmp_path: Path, valid: str) -> None:
        assert mistakes(tmp_path, job(request__input=valid)) == []


SET = [
    # template, columns
    ("{% if a %}{% set s = 'x' %}{{ s }}{% endif %}", "a"),
    ("{% if a %}{% set s = 'x' %}{% endif %}{{ s }}", "a s"),
    ("{% if a %}{% set s = 'x' %}{% endif %}", "a"),
    ("{% if a %}{{ s }}{% set s = 'x' %}{% endif %}", "a s"),
    ("{% if a %}{% set s = s ~ 'x' %}{{ s }}{% endif %}", "a s"),
    ("{% if a %}1{% else %}{% set s = 'x' %}{{ s }}{% endif %}", "a"),
    ("{% if a %}{% set s = 1 %}{% else %}{% set s = 2 %}{% endif %}{{ s }}", "a"),
    ("{% if a %}{% set s = 1 %}{% elif b %}{% set s = 2 %}{% else %}{% set s = 3 %}{% endif %}{{ s }}", "a b"),
    ("{% if a %}{% set s = 1 %}{% elif b %}{% set s = 2 %}{% endif %}{{ s }}", "a b s"),
    ("{% if a %}{% set s = 1 %}{% elif b %}{{ s }}{% elif not s %}{% endif %}", "a b s"),
    ("{% if a %}{% if b %}{% set s = 1 %}{{ s }}{% endif %}{% endif %}", "a b"),
    ("{% if a %}{% set s = 1 %}{% if b %}{{ s }}{% endif %}{{ s }}{% endif %}", "a b"),
    ("{% if a %}{% set s, t = 1, 2 %}{{ s }}{{ t }}{% endif %}", "a"),
    ("{% if a %}{% set s %}<{{ b }}>{% endset %}{{ s }}{% endif %}", "a b"),
    ("{% if a %}{% set s = namespace(v=1) %}{% set s.v = 2 %}{{ s.v }}{% endif %}", "a"),
    ("{% for x in xs %}{% if x %}{% set s = x %}{{ s }}{% endif %}{% endfor %}", "xs"),
    ("{% for x in xs %}{% if x > 1 %}{% set s = x %}{% endif %}{{ s }}{% endfor %}", "s xs"),
    ("{% if a %}{% for x in xs %}{% set s = x %}{% endfor %}{{ s }}{% endif %}", "a s xs"),
    ("{% if a %}{% set s = 1 %}{% for x in xs %}{{ s }}{{ loop.index }}{% endfor %}{% endif %}", "a xs"),
    ("{% if a %}{% for s in s %}{{ s }}{% else %}{{ s }}{% endfor %}{% endif %}", "a s"),
    ("{% if a %}{% for s in xs %}{{ s }}{% else %}{{ s }}{% endfor %}{% endif %}", "a s xs"),
    ("{% if a %}{% with s = 1 %}{{ s }}{% endwith %}{{ s }}{% endif %}", "a s"),
    ("{% if a %}{% set s = 1 %}{% block q %}{{ s }}{% endblock %}{% endif %}", "a s"),
    ("{% if a %}{% set s = 1 %}{% filter upper %}{{ s }}{% endfilter %}{% endif %}", "a"),
    ("{% if a %}{% macro s(x) %}<{{ x }}>{% endmacro %}{{ s(b) }}{% endif %}", "a b"),
    ("{% macro m() %}{{ caller() }}{% endmacro %}{% if a %}{% set s = 1 %}{% call m() %}{{ s }}{% endcall %}{% endif %}", "a"),
]


class TestNamesSetInAnIf:
    @pytest.mark.parametrize("a", [0, 1])
    @pytest.mark.parametrize(("template", "columns"), SET)
    def test_it_is_a_column_only_where_it_may_not_be_set(self, template: str, columns: str, a: int) -> None:
        row: dict[str, Any] = {"a": a, "b": 2, "s": "col", "xs": [1, 2]}

        assert Text(template).columns == tuple(columns.split())
        assert rendered(template, **row) == jinja2.Environment().from_string(template).render(row)

    def test_a_job_with_such_a_template_is_valid(self, tmp_path: Path) -> None:
        valid = "{% if summary %}{% set s = 'about ' %}{% else %}{% set s = '' %}{% endif %}{{ s }}{{ name }}"
        assert mistakes(tmp_path, job(request__input=valid)) == []

        [mistake] = mistakes(tmp_path, job(request__input="{% if summary %}{% set s = 'x' %}{% endif %}{{ s }}"))
        assert mistake.startswith("request.input: The template names the column 's', which the query lacks.")


NUMBERS = [
    ("0E-9", "0"),
    ("12.500000000", "12.5"),
    ("40.000000000", "40"),
    ("-1E-9", "-0.000000001"),
    ("-0.500000000", "-0.5"),
    ("100", "100"),
    ("1E+3", "1000"),
    ("0.1" + "0" * 37, "0.1"),
    ("-57896044618658097711785492504343953926634.99282019728792003956564819968", None),
    ("1E-38", "0." + "0" * 37 + "1"),
]


class TestDecimals:
    @pytest.mark.parametrize(("number", "shown"), NUMBERS)
    @pytest.mark.parametrize(
        ("template", "form"),
        [
            ("{{ x }}", "{}"),
            ("{{ x ~ '' }}", "{}"),
            ("{{ x | string }}", "{}"),
            ("{{ x | trim }}", "{}"),
            ("{{ x | upper }}", "{}"),
            ("{{ x | tojson }}", '"{}"'),
            ("{{ x | pprint }}", '"{}"'),
            ("{{ x | urlencode }}", "{}"),
            ("{{ [x] }}", '["{}"]'),
            ("{{ {'a': x} }}", '{{"a": "{}"}}'),
            ("{{ [x, x] | join(' ') }}", "{0} {0}"),
            ("{{ [{'a': x}] | join(' ', attribute='a') }}", "{}"),
            ("{{ [x] | map('string') | join }}", "{}"),
            ("{{ '%s' % x }}", "{}"),
            ("{{ '%s' | format(x) }}", "{}"),
            ("{{ '%(a)s' % {'a': x} }}", "{}"),
            ("{{ '{} {a}'.format(x, a=x) }}", "{0} {0}"),
            ("{{ '{!s}'.format(x) }}", "{}"),
            ("{{ '{!r}'.format(x) }}", "{}"),
            ("{{ '{:>1}'.format(x) }}", "{}"),
            ("{% set y %}{{ x }}{% endset %}{{ y }}", "{}"),
            ("{% filter lower %}{{ x }}{% endfilter %}", "{}"),
            ("{{ [x] | first }}", "{}"),
            ("{{ [x, x] | min }}", "{}"),
        ],
    )
    def test_as_bigquery_casts_to_string(self, number: str, shown: str | None, template: str, form: str) -> None:
        assert rendered(template, x=Decimal(number)) == form.format(shown or number)

    @pytest.mark.parametrize(
        ("template", "shown"),
        [
            ("{{ x + 1 }} {{ 1 + x }} {{ x - 1 }} {{ 1 - x }}", "13.5 13.5 11.5 -11.5"),
            ("{{ x * 0 }} {{ -x }} {{ +x }} {{ x * -0 }}", "0 -12.5 12.5 0"),
            ("{{ x / 5 }} {{ x // 5 }} {{ x % 5 }} {{ x ** 2 }}", "2.5 2 2.5 156.25"),
            ("{{ x | round(1) }} {{ x | abs }} {{ [x, x] | sum }}", "12.5 12.5 25"),
            ("{{ x / 10 ** 12 }}", "0.0000000000125"),
            ("{{ x.scaleb(20) }}", "1250000000000000000000"),
            (
                "{{ '%.2f' % x }} {{ '{:.2f}'.format(x) }} {{ '{:8}|'.format(x) }} {{ '{:,}'.format(x * 1000) }}",
                "12.50 12.50     12.5| 12,500",
            ),
            ("{{ x | int }} {{ x | float }} {{ x > 12 }}", "12 12.5 True"),
        ],
    )
    def test_what_is_computed_with_them_reads_so_too(self, template: str, shown: str) -> None:
        assert rendered(template, x=Decimal("12.500000000")) == shown

    def test_in_documents_and_conversations(self) -> None:
        rerank = load_kind(a_spec(task="rerank", request={"query": "q", "documents": "ds"}))
        assert rerank.render({"ds": [Decimal("0E-9"), Decimal("2.000000000")]}, 0) == ("q", ["0", "2"])
        chat = load_kind(a_spec(task="chat", request={"messages_column": "ms"}))
        prompt = chat.render({"ms": [{"role": "user", "content": Decimal("40.000000000")}]}, 0)
        assert prompt.content == [{"role": "user", "content": "40"}]

    @pytest.mark.parametrize(
        "request_",
        [
            {"task": "chat", "request": {"system": "{{ range }}", "user": "{{ range }}"}},
            {"task": "completion", "request": {"prompt": "{{ range }}"}},
            {"task": "embedding", "request": {"input": "{{ range }}"}},
            {"task": "classify", "request": {"input": "{{ range }}"}},
            {"task": "score", "request": {"text_1": "{{ range }}", "text_2": "{{ range }}"}},
            {"task": "rerank", "request": {"query": "{{ range }}", "documents": "range"}},
            {"task": "image", "request": {"image": "image", "user": "{{ range }}"}},
        ],
        ids=lambda each: each["task"],
    )
    def test_each_kind_renders_as_the_run_was_opened(self, request_: dict[str, Any]) -> None:
        row = {"range": [Decimal("0E-9")] if request_["task"] == "rerank" else Decimal("0E-9"), "image": "gs://bucket/a.png"}
        spec = a_spec(**request_)

        new, old = (repr(load_kind(spec.rendered_as(each)).render(row, 0)) for each in (Rendering.SQL, Rendering.PYTHON))
        assert "E-9" not in new
        assert "0E-9" in old


class TestNull:
    @pytest.mark.parametrize(
        ("template", "shown"),
        [
            ("[{{ x }}{{ s.a }}]", "[]"),
            ("{{ x is none }} {{ s.a is none }} {{ x is not none }} {{ y is none }}", "True True False False"),
            ("{{ x == none }} {{ none == x }} {{ x == '' }} {{ x != none }}", "True True True False"),
            ("{{ 'unknown' if x is none else x }}", "unknown"),
            ("{{ x | default('-', true) }} {{ x or '-' }}", "- -"),
            ("{{ x | tojson }} {{ s | tojson }} {{ s }} {{ [x] }}", 'null {"a": null} {"a": null} [null]'),
            ("[{{ s.a | string }}{{ s.a | upper }}{{ s.a | trim }}{{ s.a | replace('a', 'b') }}]", "[]"),
            ("[{{ '%s' % s.a }}{{ '{}'.format(s.a) }}{{ s.a ~ '' }}{{ '%s' | format(s.a) }}{{ '{!s}'.format(s.a) }}]", "[]"),
            ("[{{ [s.a, 'b', x] | join('-') }}]", "[-b-]"),
            ("[{{ [s, s] | map(attribute='a') | join }}]", "[]"),
            ("{{ x | length }} {{ x[:9] }}{{ x.strip() }}{% for a in x %}{% endfor %}{{ x | truncate(9) }}|", "0 |"),
            ("[{{ none }}{{ [none] }}]", "[[null]]"),
        ],
    )
    def test_reads_as_nothing_and_is_none(self, template: str, shown: str) -> None:
        assert rendered(template, x=None, s={"a": None}, y="") == shown

    @pytest.mark.parametrize(
        "template",
        [
            "{{ x.city }}{{ x.geo.country }}{{ x['city'] }}{{ x[0] }}{{ s.a.b.c }}{{ s['a'].b }}",
            "{{ x | attr('city') }}{{ '{0.city}'.format(x) }}{{ x.get('city') }}{{ x.city.upper() }}",
            "{% for k, v in x.items() %}no{% endfor %}{% for k in x | items %}no{% endfor %}{{ x.keys() | join }}",
            "{{ [s, x] | map(attribute='a.b') | join }}{{ [s] | selectattr('a.b') | list | length or '' }}",
            "{{ x.city if x.city is none }}{{ x.city | default('no') }}{{ x * 2 }}{{ x.city * 1.5 }}",
        ],
    )
    def test_a_part_of_null_is_null(self, template: str) -> None:
        """In BigQuery, too: address.city of a NULL address is NULL."""
        assert rendered(template, x=None, s={"a": None}) == ""

    @pytest.mark.parametrize(
        "expression",
        [
            *("x > 3", "3 > x", "x <= 3", "x < day", "day - x", "x + 1", "1 + x", "x - 1", "x / 2", "7 // x", "x % 2", "7 % x"),
            *("x ** 2", "2 ** x", "-x", "x | abs", "x | round", "x | round(2)", "range(x)", "[1] + x", "xs[x]"),
            *("'%d' % x", "'%.2f' % x", "'%.1f' | format(x)", "'{:.2f}'.format(x)", "'{:,d}'.format(x)"),
            *("[1, x] | sum", "[1, x] | max", "[1, x] | sort", "x | filesizeformat", "x.strftime('%Y')", "x.isoformat()"),
            *("x < '2026-11-01'", "x <= 'a'", "'a' < x", "'a' >= x", "x > ''", "x < x", "['b', x] | sort", "['b', x] | min"),
            *("x in 'abc'", "x not in 'abc'", "x is in 'abc'", "[x] | select('in', 'abc') | list", "'a' < x < 'b'"),
        ],
    )
    @pytest.mark.parametrize(("place", "named"), [("n", "n"), ("s.a", "s.a"), ("ss[0].a", "ss[].a"), ("n.b.c", "n.b.c")])
    def test_where_a_value_is_needed_the_column_is_named(self, expression: str, place: str, named: str) -> None:
        row: dict[str, Any] = {"n": None, "s": {"a": None}, "ss": [{"a": None}], "xs": [1], "day": datetime.date(2026, 1, 2)}

        with pytest.raises(BadInput) as caught:
            rendered(f"{{% set x = {place} %}}{{{{ {expression} }}}}{{# n s ss #}}", **row)
        assert f"failed on this row: {named} is NULL, where the template needs a value" in str(caught.value)

    def test_it_equals_and_joins_texts_as_a_text(self) -> None:
        template = "{{ x == 'a' }} {{ x + 'a' }}{{ 'a' + x }} {{ 'a' in x }} {{ x in ['a', 'b'] }}"

        assert rendered(template, x=None) == "False aa False False"

    def test_beside_a_large_value_too(self) -> None:
        """Then it is rendered in a process of its own."""
        assert rendered("{{ long | length }}{{ x.city }}{{ x is none }}", long="a" * 40_000, x=None) == "40000True"
        with pytest.raises(BadInput, match=r"s\.price is NULL"):
            rendered("{{ long | length }}{{ s.price > 3 }}", long="a" * 40_000, s={"price": None})

    def test_fields_of_fields_without_end_make_no_name_without_end(self) -> None:
        template = "{% set n = namespace(x=x) %}{% for i in range(9999) %}{% set n.x = n.x.field %}{% endfor %}{{ n.x > 3 }}"

        with pytest.raises(BadInput, match="is NULL") as caught:
            rendered(template, x=None)
        assert len(str(caught.value)) < 700

    def test_a_run_of_0_2_0_finds_no_parts_in_it(self) -> None:
        for template in ("{{ x.city }}", "{{ s.a.b }}", "{{ x > 3 }}"):
            with pytest.raises(BadInput, match=r"has no attribute|not supported"):
                rendered(template, Rendering.PYTHON, x=None, s={"a": None})


class TestOthers:
    def test_bytes_that_a_template_makes_read_as_those_of_a_column(self) -> None:
        assert rendered("{{ x.encode() }} {{ [x.encode()] }} {{ x.encode() | upper }}", x="é") == 'é ["é"] É'
        with pytest.raises(BadInput, match="utf-8"):
            rendered("{{ x.encode('latin-1') }}", x="é")
        assert rendered("{{ x.encode() }}", Rendering.PYTHON, x="é") == r"b'\xc3\xa9'"

    def test_other_types_as_a_table_of_the_page_says(self) -> None:
        row: dict[str, Any] = {
            "flag": True,
            "day": datetime.date(2026, 1, 2),
            "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
            "clock": datetime.time(3, 4),
            "ratio": 4.0,
            "tags": ["a", 'é"'],
            "gone": float("nan"),
            "far": float("inf"),
        }
        template = "{{ flag }} {{ day }} {{ at }} {{ clock }} {{ ratio }} {{ tags }} {{ [flag, day, at, ratio, gone, far] }}"

        assert rendered(template, **row) == (
            'True 2026-01-02 2026-01-02 03:04:05+00:00 03:04:00 4.0 ["a", "é\\""] '
            '[true, "2026-01-02", "2026-01-02 03:04:05+00:00", 4.0, "NaN", "Infinity"]'
        )

    def test_a_run_of_0_2_0_reads_as_it_began(self) -> None:
        row = {"x": Decimal("0E-9"), "n": None, "s": {"a": None, "b": Decimal("1.500000000")}, "xs": ["a"]}
        template = "{{ x }} [{{ n }}] {{ n is none }} {{ n | tojson }} {{ s }} {{ xs }} {{ s.a | string }} {{ x | tojson }}"
        template += " {{ [s.a] | join }}"

        assert rendered(template, Rendering.PYTHON, **row) == (
            "0E-9 [] False \"\" {'a': None, 'b': Decimal('1.500000000')} ['a'] None \"0E-9\" None"
        )

    def test_no_template_asks_what_time_it_is(self) -> None:
        for asked in ("day.today()", "at.now()", "at.utcnow()"):
            with pytest.raises(BadInput, match="unsafe"):
                rendered(f"{{{{ {asked} }}}}", day=datetime.date(2026, 1, 2), at=datetime.datetime(2026, 1, 2))

    def test_a_set_has_one_order_in_every_process(self) -> None:
        """Python's own order of a set of texts is another one in each process."""
        template = "{{ (s.keys() - [1]) | join }}"
        program = f"from nightshift.tasks.base import Text; print(Text('{template}').of({{'s': dict.fromkeys('edcba')}}))"
        path, seen = str(Path(__file__).parents[3] / "plugins"), set()
        for seed in "123":
            environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
            seen.add(subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout)

        assert seen == {"abcde\n"}

    def test_nothing_is_computed_while_a_template_is_compiled(self) -> None:
        """Jinja2 folds constants; C code that never comes back would hold the DAG processor, which parses all jobs."""
        template = "{{ ('x' | center(8000000) | replace(' ', 'Ā')) | trim('x' | center(8000000) | replace(' ', 'ā') ~ 'Ā') }}"

        assert Text(template + "{{ x }}").columns == ("x",)
        with pytest.raises(Exception, match="autoescape"):
            Text("{% autoescape 'x' | center(8000000) | trim('x') %}{{ x }}{% endautoescape %}")
