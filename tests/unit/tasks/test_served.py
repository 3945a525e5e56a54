"""Schemas that a column can hold, and that vLLM cannot serve, are refused when the file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from nightshift.tasks._served import unserved
from nightshift.tasks._typed import compile_schema
from tests.unit.spec_file import job, mistakes

pytestmark = pytest.mark.unit

KNOWN: Final[list[dict[str, Any]]] = json.loads((Path(__file__).parents[1] / "schemas" / "engines.json").read_text())
"""What the engines of vLLM 0.32.0 made of schemas (`tests.unit.schemas.ask`). stricter: why one is refused all the same."""


def refused(schema: dict[str, Any], backend: str = "auto") -> list[str]:
    """``PLACE: problem. remedy`` of each."""
    assert compile_schema(schema)[1] == []
    return [f"{'.'.join(map(str, path))}: {problem}. {remedy}" for path, problem, remedy in unserved(schema, backend)]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: json.dumps(known["schema"]["properties"])[:60])
def test_what_the_engines_say(known: dict[str, Any]) -> None:
    """vLLM asks xgrammar; where that refuses at once, and the job does not name it, llguidance."""
    asked = {"xgrammar": known["xgrammar"], "auto": known["xgrammar"]}
    if known["xgrammar"] == "refuses":
        asked["auto"] = known["llguidance"]

    for backend, said in asked.items():
        assert bool(refused(known["schema"], backend)) == (said != "serves" or "stricter" in known), backend


def test_the_list_has_each_answer_of_the_engines() -> None:
    assert {known["xgrammar"] for known in KNOWN} == {"serves", "refuses", "fails", "wrong"}
    assert {known["llguidance"] for known in KNOWN} == {"serves", "refuses", "fails"}
    assert len(KNOWN) > 130


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer", "minimum": 0.5}, "minimum: The limit of an integer is not whole: 0.5. Write a whole number"),
        (
            {"type": "integer", "maximum": 2**64},
            "maximum: The limit of an integer has more than 64 bits. Leave it out",
        ),
        (
            {"type": "number", "minimum": 1e-9, "maximum": 1e-8},
            "minimum: No number of 6 decimal places is within the limits. Wid",
        ),
        (
            {"type": "string", "format": "dat-time"},
            "format: vLLM refuses the format 'dat-time'. Did you mean 'date-time'? Choose",
        ),
        (
            {"type": "string", "format": "date", "pattern": "^2"},
            "pattern: vLLM follows the format alone, not a pattern beside it",
        ),
        ({"type": "string", "pattern": r"\Afoo\Z"}, r"pattern: vLLM cannot match \A in a pattern. Write ^ and $"),
        (
            {"type": "string", "pattern": r"\bfoo"},
            r"pattern: vLLM cannot match \b in a pattern. Leave it out, or write what it stands for",
        ),
        (
            {"type": "string", "pattern": "(?<!a)b"},
            "pattern: vLLM cannot match (?<! in a pattern. Write it without look-around",
        ),
        (
            {"type": "string", "pattern": "^[a-z]{0,129}$"},
            "pattern: xgrammar fails on a pattern with {0,129}. Repeat at most 128",
        ),
        ({"type": "string", "pattern": "^a\nb$"}, r"pattern: xgrammar writes '\n' of a pattern as it is, which is no JSON"),
        (
            {"type": "string", "pattern": "a$b"},
            "pattern: A $ inside a pattern matches nothing. Write ^ only where the text begi",
        ),
        (
            {"type": "string", "pattern": "(a"},
            "pattern: The pattern does not compile: missing ), unterminated subpattern at pos",
        ),
        ({"type": "string", "pattern": "^(a{0,1000}){0,1000}$", "maxLength": 9}, "pattern: The pattern does not compile: "),
    ],
)
def test_the_place_and_the_remedy(schema: dict[str, Any], said: str) -> None:
    nested = {"type": "object", "properties": {"a": {"anyOf": [schema, {"type": "null"}]}}}

    assert refused(schema)[0].startswith(said)
    assert refused(nested)[0].startswith(f"properties.a.anyOf.0.{said}")


def test_references_are_followed_and_what_nothing_refers_to_is_left_alone() -> None:
    odd = {"a": {"type": "integer", "minimum": 0.5}, "b": {"pattern": 7, "minimum": "x"}, "c": 7}
    schema = {"type": "object", "properties": {"x": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$defs": odd}

    assert [found.split(": ")[0] for found in refused(schema)] == ["properties.x.anyOf.0.minimum"]
    assert refused({"type": "string", "$defs": 7, "definitions": []}) == []
    assert refused({"type": "integer", "maximum": 10**400})[0].startswith("maximum: The limit of an integer has more than 64")


def test_what_only_one_backend_lacks() -> None:
    both = {"type": "string", "pattern": "^[a-z]{0,300}$", "maxLength": 300}

    assert refused(both) == refused(both, "guidance") == []
    assert refused(both, "xgrammar")[0].startswith(
        "maxLength: The backend xgrammar has no maxLength beside a pattern. Leave it"
    )
    assert refused({"type": "string", "pattern": "^[a-z]{0,300}$"}, "guidance") == []
    assert refused({"type": "string", "format": "uri-reference"}) == []
    assert refused({"type": "string", "format": "uri-reference"}, "guidance") != []
    assert refused({"type": "string", "pattern": r"^\p{L}$"}) == []
    assert refused({"type": "string", "pattern": r"^\p{L}$"}, "xgrammar") != []


def test_a_file_is_refused_with_its_place(tmp_path: Path) -> None:
    """By the backend that the job names, in either spelling of the flag."""

    def said(schema: dict[str, Any], **args: Any) -> list[str]:
        request = {"user": "{{ summary }}", "max_tokens": 9, "json_schema": schema}
        return mistakes(tmp_path, job(task="chat", request=request, engine__args=args))

    both = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a$", "maxLength": 3}}}
    iban = {"type": "object", "properties": {"a": {"type": "string", "format": "iban"}}}
    assert said(both) == said(both, **{"structured-outputs-config": "not JSON"}) == []
    assert said(both, **{"structured-outputs-config": '{"disable_any_whitespace": true}'}) == []
    for flag in ("structured-outputs-config", "structured_outputs_config"):
        [found] = said(both, **{flag: '{"backend": "xgrammar"}'})
        assert found.startswith("request.json_schema.properties.a.maxLength: The backend xgrammar has no maxLength beside a")
    [found] = said(iban)
    assert found.startswith("request.json_schema.properties.a.format: vLLM refuses the format 'iban'. Choose from date, ")
