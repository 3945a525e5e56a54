"""A count is printed with the form of its noun: 1 row, 2 rows (`nightshift.fields.text.n`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nightshift
from nightshift.fields.text import n

pytestmark = pytest.mark.unit

PRODUCT = Path(nightshift.__file__).parent
NOUNS = (
    "rows|pods|chunks|files|days|workers|attempts|messages|letters|predictions|lines|objects|columns|mistakes|nodes|GPUs|"
    "replicas|prompts|samples|documents|JobSets|jobs|partitions|dead letters|input files|DAG runs|more lines|more mistakes|"
    "new files|more characters|committed chunks"
)
AFTER = re.compile(rf" ({NOUNS})\b(?!/)")
LOGGED = re.compile(rf"%[ds] ({NOUNS})\b")


def plural(source: str) -> Iterator[str]:
    """Places of a module where a value that may be 1 stands before a noun in the plural."""
    tree = ast.parse(source)
    apart = {
        id(branch)
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp) and "1" in ast.unparse(node.test)
        for branch in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (found := LOGGED.search(node.value)):
            yield f"{node.lineno}: {found[0]}"
        if not isinstance(node, ast.JoinedStr) or id(node) in apart:
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            limit = ast.unparse(value.value).rpartition(".")[2].isupper()
            measure = value.format_spec is not None and ast.unparse(value.format_spec)[-2:-1] in ("f", "g")
            if not limit and not measure and (found := AFTER.match(str(text.value))):
                yield f"{node.lineno}: {{{ast.unparse(value.value)}}}{found[0]}"


def test_every_count_agrees_with_its_noun() -> None:
    modules = sorted(PRODUCT.rglob("*.py"))
    assert [f"{path.relative_to(PRODUCT)}:{place}" for path in modules for place in plural(path.read_text())] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("f'{count} rows'", True),
        ("f'{count:,} dead letters'", True),
        ("log.info('%d chunks', 1)", True),
        ("f'{MOST} rows'", False),
        ("f'{speed:.1f} rows'", False),
        ("'one row' if count == 1 else f'{count} rows'", False),
        ("f'{n(count, \"row\")} of it'", False),
    ],
)
def test_what_is_found(line: str, wrong: bool) -> None:
    assert bool(list(plural(line))) == wrong


@pytest.mark.parametrize(("count", "words"), [(0, "0 rows"), (1, "1 row"), (2_000, "2,000 rows")])
def test_a_count_in_words(count: int, words: str) -> None:
    assert n(count, "row") == words
