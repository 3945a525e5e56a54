"""`request.nulls`: templates that write a NULL, and such as only test it; also generated ones, with Jinja2 as the judge."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import jinja2
import pytest

from nightshift.run.names import run_digest
from nightshift.tasks import Rendering
from nightshift.tasks.base import BadInput, NullInput, Text, load_kind
from tests.builders import a_spec

pytestmark = pytest.mark.unit

SEED: Final = 56
TEMPLATES: Final = 400
ROW: Final[dict[str, Any]] = {
    "note": None,
    "price": None,
    "title": "Title",
    "gone": None,
    "address": {"city": None, "zip": "1"},
    "tags": ["a", None],
    "long": "x" * 40_000,
}

WRITTEN: Final = {
    "{{ note }}": "note",
    "{{ note | trim }}": "note",
    "{{ title ~ ': ' ~ note }}": "note",
    "{{ title + note }}": "note",
    "{{ (title ~ note)[:3] }}": "note",
    "{{ note[:3] }}": "note",
    "{{ (title ~ note).split() | join(' ') }}": "note",
    "{{ title.replace('T', note) }}": "note",
    "{{ 'a %s' % note }}": "note",
    "{{ 'a %(b)s' % {'b': note} }}": "note",
    "{{ 'a {}'.format(note) }}": "note",
    "{{ 'a {0[b]}'.format({'b': note}) }}": "note",
    "{{ 'a %s' | format(note) }}": "note",
    "{{ [title, note] | join }}": "note",
    "{{ ', '.join([title, note]) }}": "note",
    "{{ [title ~ note] }}": "note",
    "{{ note | length }}": "note",
    "{{ price | int }}": "price",
    "{{ price | int + 1 }}": "price",
    "{{ -(price | float) }}": "price",
    "{{ [price | int, 2] | sum }}": "price",
    "{{ address.city }}": "address.city",
    "{{ gone }}": "gone",
    "{{ gone.city }}": "gone.city",
    "{{ gone['city'] | upper }}": "gone.city",
    "{% for tag in tags %}{{ tag }}{% endfor %}": "tags[]",
    "{{ tags | join }}": "tags[]",
    "{{ tags | map('upper') | join }}": "tags[]",
    "{% set text %}{{ note }}{% endset %}{{ title }}": "note",
    "{% set text = note | trim %}{{ text }}": "note",
    "{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(note) }}": "note",
    "{{ note if title else 'none' }}": "note",
    "{{ long ~ note }}": "note",
}
NOT_WRITTEN: Final = (
    "{% if note | trim == '' %}none{% else %}{{ note }}{% endif %}",
    "{% if (title ~ note) | length > 3 %}long{% endif %}",
    "{% if price | int > 3 %}dear{% else %}cheap{% endif %}",
    "{% if note is none %}none{% endif %}",
    "{% if title %}{{ title }}{% else %}{{ note }}{% endif %}",
    "{{ note or 'none' }}",
    "{{ note | default('none', true) }}",
    "{{ note | upper | default('none', true) }}",
    "{{ note if note is not none else 'none' }}",
    "{% macro m(x) %}[{{ x or 'none' }}]{% endmacro %}{{ m(note) }}",
    "{% for tag in gone %}{{ tag }}{% endfor %}",
    "{{ note | tojson }}",
    "{{ [note] }}",
    "{{ address }}",
    "{{ title | default(note) }}",
    "{{ long | length }}{{ note or '' }}",
)


def texts(source: str, *rows: dict[str, Any], apart: bool = False) -> Iterator[tuple[str, str | NullInput]]:
    """Of each row the text with NULL as nothing; and with NULLs refused, or the refusal."""
    empty = Text(source, Rendering.SQL, blank=True, apart=apart)
    refusing = Text(source, Rendering.NO_NULL, blank=True, apart=apart)
    for row in rows:
        try:
            yield empty.of(row), refusing.of(row)
        except NullInput as error:
            yield empty.of(row), error


@pytest.mark.parametrize("apart", [False, True])
def test_a_null_that_is_written_is_refused_by_its_column(apart: bool) -> None:
    found = {source: next(texts(source, ROW, apart=apart))[1] for source in WRITTEN}

    assert {source: getattr(each, "column", each) for source, each in found.items()} == WRITTEN
    assert str(found["{{ gone.city }}"]).startswith("gone.city is NULL, and the template writes it")


@pytest.mark.parametrize("apart", [False, True])
def test_a_null_that_is_only_tested_or_replaced_is_not(apart: bool) -> None:
    for source in NOT_WRITTEN:
        ((empty, found),) = texts(source, ROW, apart=apart)
        assert found == empty, source


def test_the_job_decides_in_every_text_of_its_request() -> None:
    for nulls, refused in ((None, False), ("empty", False), ("dead_letter", True)):
        request = {"user": "{{ title }}", "system": "{{ note }}", "max_tokens": 4, "nulls": nulls}
        kind = load_kind(a_spec(task="chat", request=request))
        if refused:
            with pytest.raises(BadInput, match=r"^note is NULL"):
                kind.render(ROW, 1)
        else:
            assert kind.render(ROW, 1).content == [{"role": "user", "content": "Title"}]


@pytest.mark.parametrize(
    ("task", "request_", "row", "words"),
    [
        ("chat", {"messages_column": "turns", "max_tokens": 4}, {"turns": ["a", None, "b"]}, r"^turns\[1\] has a NULL"),
        ("rerank", {"query": "{{ title }}", "documents": "tags"}, ROW, "^tags has a NULL"),
    ],
)
def test_a_null_within_a_column_of_texts_is_one_too(task: str, request_: dict[str, Any], row: Any, words: str) -> None:
    load_kind(a_spec(task=task, request=request_)).render(row, 1)
    with pytest.raises(BadInput, match=words):
        load_kind(a_spec(task=task, request={**request_, "nulls": "dead_letter"})).render(row, 1)


def test_only_dead_letter_makes_another_run() -> None:
    def digest(**more: Any) -> str:
        return run_digest("job", "2026-11-20", a_spec(request={"input": "{{ text }}", **more}).semantic())

    assert digest() == digest(nulls=None) == digest(nulls="empty") != digest(nulls="dead_letter")


# Generated templates. The judge is Jinja2 itself, over values in which a NULL is an empty text: each expression is written
# thrice, as ours, as the judge's, and as what it would write of a NULL.


@dataclass(frozen=True)
class Expression:
    ours: str
    judge: str
    null: str


LITERALS: Final = ("'x'", "''", "'a b'")
FILTERS: Final = ("upper", "trim", "title", "replace('a', 'bb')", "length | string", "reverse", "indent(2)", "truncate(9)")


class Generator:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.names = [
            Expression("note", "note", "('note' if note_null else '')"),
            Expression("title", "title", "('title' if title_null else '')"),
            Expression("address.city", "city", "('address.city' if city_null else '')"),
        ]
        self.count = 0

    def expression(self, depth: int) -> Expression:
        kind = self.draw.randrange(9) if depth else 0
        one = self.draw.choice(self.names)
        if kind < 2:
            return one
        one = self.expression(depth - 1)
        if kind == 2:
            name = self.draw.choice(FILTERS)
            return Expression(f"({one.ours} | {name})", f"({one.judge} | {name})", one.null)
        if kind == 3:
            return Expression(f"({one.ours})[:2]", f"({one.judge})[:2]", one.null)
        if kind == 4:
            literal = self.draw.choice(LITERALS)
            replaced = f"| default({literal}, true))"
            return Expression(f"({one.ours} {replaced}", f"({one.judge} {replaced}", f"({one.null} if {one.judge} else '')")
        two = self.expression(depth - 1)
        if kind == 5:
            return Expression(
                f"({one.ours} or {two.ours})", f"({one.judge} or {two.judge})", f"({one.null} if {one.judge} else {two.null})"
            )
        if kind == 6:
            ours, judge = self.condition(depth - 1)
            return Expression(
                f"({one.ours} if {ours} else {two.ours})",
                f"({one.judge} if {judge} else {two.judge})",
                f"({one.null} if {judge} else {two.null})",
            )
        sign = self.draw.choice(("~", "+"))
        return Expression(f"({one.ours} {sign} {two.ours})", f"({one.judge} {sign} {two.judge})", f"({one.null} or {two.null})")

    def condition(self, depth: int) -> tuple[str, str]:
        if self.draw.random() < 0.3:
            name = self.draw.choice(("note", "title"))
            return f"{name} is none", f"{name}_null"
        one = self.expression(depth)
        tail = self.draw.choice(("", " == ''", " | length > 2", " in ['Title', '']"))
        return f"({one.ours}{tail})", f"({one.judge}{tail})"

    def block(self, depth: int) -> tuple[str, str]:
        kind = self.draw.randrange(6) if depth else 0
        if kind < 2:
            one = self.expression(2)
            return f"<{{{{ {one.ours} }}}}>", f"<{{{{ {one.judge} }}}}>{{{{ seen({one.null}) }}}}"
        if kind == 2:
            (ours, judge), yes, no = self.condition(2), self.block(depth - 1), self.block(depth - 1)
            shape = "{{% if {} %}}{}{{% else %}}{}{{% endif %}}"
            return shape.format(ours, yes[0], no[0]), shape.format(judge, yes[1], no[1])
        self.count += 1
        name = f"v{self.count}"
        before = list(self.names)
        if kind == 3:
            one = self.expression(2)
            self.names.append(Expression(name, name, f"{name}_null"))
            inner = self.block(depth - 1)
            self.names = before
            judge = f"{{% with {name} = {one.judge}, {name}_null = {one.null} %}}{inner[1]}{{% endwith %}}"
            return f"{{% with {name} = {one.ours} %}}{inner[0]}{{% endwith %}}", judge
        if kind == 4:
            self.names.append(Expression(name, name, f"('tags[]' if {name}_null else '')"))
            inner = self.block(depth - 1)
            self.names = before
            pairs = f"{{% for {name}, {name}_null in tag_pairs %}}{inner[1]}{{% endfor %}}"
            return f"{{% for {name} in tags %}}{inner[0]}{{% endfor %}}", pairs
        blocks = [self.block(depth - 1) for _ in range(2)]
        return "".join(each[0] for each in blocks), "".join(each[1] for each in blocks)

    def row(self) -> dict[str, Any]:
        def some() -> str | None:
            return self.draw.choice((None, None, "", "Title", "a b c"))

        tags = self.draw.choice((None, [], [some(), some()]))
        return {"note": some(), "title": some(), "address": self.draw.choice((None, {"city": some()})), "tags": tags}


def judged(template: jinja2.Template, row: dict[str, Any]) -> tuple[str, list[str]]:
    """Jinja2's text, and the columns of the NULLs that it wrote as nothing, in order."""
    city, seen = (row["address"] or {"city": None})["city"], list[str]()
    values = {"note": row["note"], "title": row["title"], "city": city}
    flags = {f"{name}_null": value is None for name, value in values.items()}
    pairs = [(tag or "", tag is None) for tag in row["tags"] or ()]

    def see(column: str) -> str:
        seen.extend(filter(None, [column]))
        return ""

    text = template.render({name: value or "" for name, value in values.items()}, **flags, tag_pairs=pairs, seen=see)
    return text, seen


def test_generated_templates_write_what_jinja_writes_or_name_the_column() -> None:
    draw = random.Random(SEED)
    environment = jinja2.Environment()
    refused = 0
    for _ in range(TEMPLATES):
        generator = Generator(draw)
        ours, judge = generator.block(3)
        template, rows = environment.from_string(judge), [generator.row() for _ in range(4)]
        for row, (empty, found) in zip(rows, texts(ours, *rows), strict=True):
            text, seen = judged(template, row)
            assert empty == text, (ours, row)
            assert (found.column if isinstance(found, NullInput) else found) == (seen[0] if seen else text), (ours, row)
            refused += isinstance(found, NullInput)
    assert TEMPLATES < refused < 3 * TEMPLATES, "both happen often"
