"""Numbers and conditionals in templates: NUMERIC is exact beside what the template itself states, and nothing is written where
an `if` has no `else`. Generated templates are compared with Jinja2's own, in which literals are decimals."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import jinja2
import pytest

from nightshift.tasks.base import BadInput, Text

pytestmark = pytest.mark.unit

ROW = {
    "price": Decimal("19.99"),
    "rate": Decimal("0.1"),
    "zero": Decimal(0),
    "share": 0.1,
    "qty": Decimal("2.5"),
    "n": 3,
    "tags": ["a", "b"],
    "vip": False,
}


def said(source: str, **row: Any) -> str:
    text = Text(source, blank=True)
    return text.of({name: {**ROW, **row}[name] for name in text.columns})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ price <= 19.99 }} {{ price == 19.99 }} {{ price in [19.99] }} {{ 19.99 >= price }}", "True True True True"),
        ("{{ price < 19.99 }} {{ price != 19.99 }} {{ 19.99 < price }}", "False False False"),
        ("{{ price * 1.19 }}", "23.7881"),
        ("{{ 1.19 * price }} {{ price + 0.1 }} {{ 20.0 - price }} {{ price / 0.5 }}", "23.7881 20.09 0.01 39.98"),
        ("{{ rate * (1 + 0.2) == 0.12 }} {{ rate == 1.1 - 1 }} {{ rate - 0.1 * 1 }}", "True True 0"),
        ("{{ -0.1 + rate }} {{ rate == +0.1 }} {{ price // 0.5 }} {{ price % 0.5 }}", "0 True 39 0.49"),
        ("{{ [price, 19.98] | max }} {{ [19.99, 20] | select('le', price) | list | length }}", "19.99 1"),
        ("{{ [rate, 0.01, qty] | sum }} {{ 0 + price + 0.01 }} {{ (price + rate) * 0.1 }}", "2.61 20 2.009"),
        # FLOAT64 stays what it is, and a NUMERIC beside it becomes one.
        ("{{ 0.1 + 0.2 }} {{ share + 0.2 }} {{ share == 0.1 }} {{ 1.50 }}", "0.30000000000000004 0.30000000000000004 True 1.5"),
        ("{{ rate == share }} {{ share == rate }} {{ rate <= share }} {{ qty * share }}", "True True True 0.25"),
        ("{{ 1_000.5 + zero }} {{ 1e3 + zero }} {{ 12345678901234567890.5 + zero }}", "1000.5 1000 12345678901234567890.5"),
    ],
)
def test_a_number_of_the_template_is_exact_beside_numeric(source: str, expected: str) -> None:
    assert said(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for x in tags %}{{ x }}{{ ', ' if not loop.last }}{% endfor %}", "a, b"),
        ("{{ ' (vip)' if vip }}.", "."),
        ("{{ 'x' ~ (' (vip)' if vip) }}.", "x."),
        ("{% set s = 'x' if vip %}{{ s }}.", "."),
        ("{{ ['a', 'b' if vip, 'c'] | join('-') }}", "a--c"),
        ("{{ ('x' if vip) | upper }}{{ ('x' if vip) | default('no') }}", "no"),
        ("{{ ' (vip)' if not vip }}", " (vip)"),
    ],
)
def test_an_if_without_else_writes_nothing(source: str, expected: str) -> None:
    """As Jinja2, also in its strict environment."""
    assert said(source) == expected
    plain = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(source)
    assert plain.render(ROW) == expected


def test_json_has_no_word_for_what_an_if_left_out() -> None:
    with pytest.raises(BadInput, match="an if without else has left nothing here, and JSON needs a value: add else none"):
        said("{{ ['a' if vip] | tojson }}")


def test_a_field_of_a_text_says_where_json_is_taken_apart() -> None:
    with pytest.raises(
        BadInput, match=r"'str object' has no attribute 'name'. If it is JSON, take it in the query, JSON_VALUE\(column"
    ):
        said("{{ payload.name }}", payload='{"name": "x"}')


class Templates:
    """Draws a template twice: as an author writes it, and for Jinja2 with each literal as a decimal."""

    COLUMNS = ("price", "rate", "qty", "empty")

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def number(self, depth: int = 0) -> tuple[str, str]:
        """Always with a NUMERIC in it: a literal by itself is a float."""
        column = self.draw.choice(self.COLUMNS[:3])
        if depth > 1 or self.draw.random() < 0.3:
            return column, column
        left = self.number(depth + 1)
        right = self.literal() if self.draw.random() < 0.5 else self.number(depth + 1)
        if self.draw.random() < 0.5:
            left, right = right, left
        operator = self.draw.choice("+-*")
        return f"({left[0]} {operator} {right[0]})", f"({left[1]} {operator} {right[1]})"

    def literal(self) -> tuple[str, str]:
        text = self.draw.choice(["19.99", "0.1", "1.10", "-0.5", "2", "100.001", "0.3"])
        return text, f"D('{text}')"

    def condition(self) -> tuple[str, str]:
        (left, exact), (right, also) = self.number(), self.draw.choice([self.literal, self.number])()
        operator = self.draw.choice(["<", "<=", ">", ">=", "==", "!="])
        return f"{left} {operator} {right}", f"{exact} {operator} {also}"

    def piece(self, depth: int = 0) -> tuple[str, str]:
        kind = self.draw.randrange(7 if depth < 2 else 4)
        if kind == 0:
            return ("{{ note }};",) * 2
        if kind == 1:
            ours, exact = self.number()
            return f"{{{{ {ours} }}}};", f"{{{{ {exact} }}}};"
        if kind in (2, 3):
            ours, exact = self.condition()
            rest = self.draw.choice(["", " else 'no'"])
            return f"{{{{ 'yes' if {ours}{rest} }}}};", f"{{{{ 'yes' if {exact}{rest} }}}};"
        inner, also = self.piece(depth + 1)
        if kind == 4:
            ours, exact = self.condition()
            return f"{{% if {ours} %}}{inner}{{% endif %}}", f"{{% if {exact} %}}{also}{{% endif %}}"
        if kind == 5:
            between = "{{ ', ' if not loop.last }}"
            return tuple(f"{{% for x in items %}}{{{{ x }}}}{each}{between}{{% endfor %}}" for each in (inner, also))  # type: ignore[return-value]
        if depth:
            # In a branch or a loop, a name that is set counts as a column, too.
            return self.piece(2)
        name = f"s{self.draw.randrange(10**9)}"
        return tuple(f"{{% set {name} = note if items | length > 1 %}}{{{{ {name} }}}}{each}" for each in (inner, also))  # type: ignore[return-value]


def shown(value: Any) -> Any:
    """As BigQuery casts it to STRING; NULL as nothing."""
    if isinstance(value, Decimal):
        text = f"{value:f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text in ("-0", "") else text
    return "" if value is None else value


def test_generated_templates_say_what_jinja2_says() -> None:
    draw = random.Random(56)
    plain = jinja2.Environment(undefined=jinja2.StrictUndefined, finalize=shown, keep_trailing_newline=True)
    plain.globals["D"] = Decimal
    templates, yes = Templates(draw), 0
    for _ in range(600):
        ours, exact = ("".join(parts) for parts in zip(*(templates.piece() for _ in range(draw.randint(1, 4))), strict=True))
        row: dict[str, Any] = {
            name: Decimal(draw.choice(["19.99", "0.1", "-0.5", "3", "100.001"])) for name in Templates.COLUMNS
        }
        row |= {"note": draw.choice([None, "a note"]), "items": draw.choice([[], ["a"], ["a", "b"]])}
        text = Text(ours, blank=True)

        found = text.of({name: row[name] for name in text.columns})

        assert found == plain.from_string(exact).render(row), (ours, row)
        yes += "yes" in found
    assert yes > 100
