"""Schemas that a column can hold, and that vLLM's engines for structured output cannot serve: they refuse each request, fail,
or write what the schema refuses. Known of vLLM 0.32.0 (xgrammar 0.2.8, llguidance 1.7.6); a test asks them.

vLLM asks xgrammar. Only where that refuses a schema at once, and the job does not name it, llguidance takes its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nightshift.fields.mistakes import choice
from nightshift.tasks._typed import COMPARISONS, Path, Problem, matcher, some_decimal

AUTO: Final = "auto"
_XGRAMMAR, _GUIDANCE = "xgrammar", "guidance"
_FORMATS: Final = {
    _GUIDANCE: ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"),
    _XGRAMMAR: ("json-pointer", "relative-json-pointer", "uri-reference", "uri-template"),
}
"""Those of xgrammar are further ones."""
REPEATS_MOST: Final = 128
DECIMALS: Final = 6
"""Places behind the point of a number that xgrammar writes within limits."""
_LITERALS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_ESCAPE: Final = r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|u\{[0-9A-Fa-f]{1,6}\}|[pP]\{[^}]*\}|.)"
_ESCAPES: Final = re.compile(_ESCAPE, re.DOTALL)
_TOKEN: Final = re.compile(
    rf"(?P<escape>{_ESCAPE})"
    r"|(?P<set>\[\^?(?:\\.|[^\]\\])*\])"
    r"|(?P<group>\((?:\?(?:<[=!]|P?<|P=|[a-zA-Z-]+[:)]|.))?)"
    r"|\{(?P<repeat>\d+(?:,\d*)?)\}"
    r"|.",
    re.DOTALL,
)


def unserved(schema: Mapping[str, Any], backend: str) -> Iterator[Problem]:
    """Every place of a compiled schema that cannot be served. backend: of ``--structured-outputs-config``."""
    places = list(_places(schema, (), schema))
    beyond = [(path, *each) for path, node in places for each in _beyond_xgrammar(node)]
    engine = (_GUIDANCE if beyond else _XGRAMMAR) if backend == AUTO else backend
    if backend == _XGRAMMAR:
        for path, keyword, problem in beyond:
            remedy = "Leave it out, or have vLLM choose: leave backend out of structured-outputs-config"
            yield (*path, keyword), f"The backend xgrammar has no {problem}", remedy
    for path, node in places:
        for keyword, problem, remedy in _of_node(node, engine):
            yield (*path, keyword), problem, remedy


def _places(node: Any, path: Path, root: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """What the compiler has read, also through references, of which none contains itself."""
    while "$ref" in node:
        _, defs, name = node["$ref"].split("/")
        node = root[defs][name]
    yield path, node
    for name, each in node.get("properties", {}).items():
        yield from _places(each, (*path, "properties", name), root)
    for keyword in ("anyOf", "oneOf"):
        for index, each in enumerate(node.get(keyword, ())):
            yield from _places(each, (*path, keyword, index), root)
    if "items" in node:
        yield from _places(node["items"], (*path, "items"), root)


def _of_node(node: Mapping[str, Any], engine: str) -> Iterator[tuple[str, str, str]]:
    """Keyword, problem and remedy."""
    kind = node.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "integer" in kinds:
        for keyword in COMPARISONS:
            value = node.get(keyword, 0)
            if value != math.floor(value):
                yield keyword, f"The limit of an integer is not whole: {value}", "Write a whole number"
            elif not -(2**63) <= value < 2**63:
                yield keyword, "The limit of an integer has more than 64 bits", "Leave it out: the column has 64 bits"
    if "number" in kinds and engine == _XGRAMMAR and not some_decimal(node, DECIMALS):
        keyword = next(each for each in COMPARISONS if each in node)
        yield keyword, f"No number of {DECIMALS} decimal places is within the limits", "Widen them, or ask for another unit"
    known = _FORMATS[_GUIDANCE] if engine == _GUIDANCE else (*_FORMATS[_GUIDANCE], *_FORMATS[_XGRAMMAR])
    if "format" in node and node["format"] not in known:
        yield "format", f"vLLM refuses the format {node['format']!r}", choice(str(node["format"]), known)
    if "pattern" not in node:
        return
    if "format" in node:
        yield "pattern", "vLLM follows the format alone, not a pattern beside it", "Leave one of the two out"
    wrong = next(((problem, remedy) for by, problem, remedy in _wrong(node["pattern"]) if by in ("", engine)), None)
    if wrong is not None:
        yield "pattern", *wrong


def _beyond_xgrammar(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keyword and words for what only llguidance serves."""
    length = next((each for each in ("minLength", "maxLength") if each in node), None)
    beside = next((each for each in ("pattern", "format") if each in node), None)
    if length and beside:
        yield length, f"{length} beside a {beside}"
    for token in _TOKEN.finditer(node.get("pattern", "")):
        flags = token["group"] and re.match(r"\(\?(?!P)[a-zA-Z-]", token[0]) and (token[0] != "(?i)" or token.start())
        if flags or token[0][:2] in ("\\p", "\\P"):
            yield "pattern", f"{token[0]} in a pattern"


def _wrong(pattern: str) -> Iterator[tuple[str, str, str]]:
    """Engine ("" for each), problem and remedy of what a pattern has, and no engine matches as a reader means it."""
    tokens = list(_TOKEN.finditer(pattern))
    for number, token in enumerate(tokens):
        text, before = token[0], tokens[number - 1] if number else None
        after = tokens[number + 1][0] if number + 1 < len(tokens) else None
        escapes = [text] if token["escape"] else _ESCAPES.findall(text) if token["set"] else []
        for escape in escapes:
            if escape[1].isalnum() and (escape[1] not in "dDwWsStnrfvxupP" or (len(escape) == 2 and escape[1] in "xu")):
                remedy = "Write ^ and $" if escape[1] in "AZzG" else "Leave it out, or write what it stands for"
                yield "", f"vLLM cannot match {escape} in a pattern", remedy
        if token["group"] and text[1:] in ("?=", "?!", "?<=", "?<!", "?P=", "?>", "?#", "?("):
            yield "", f"vLLM cannot match {text} in a pattern", "Write it without look-around, references and comments"
        begins = before is None or before["group"] or before[0] == "|"
        if (text == "^" and not begins) or (text == "$" and after not in (None, "|", ")")):
            yield "", f"A {text} inside a pattern matches nothing", "Write ^ only where the text begins, and $ where it ends"
        if token["repeat"] and max(int(each) for each in token["repeat"].split(",") if each) > REPEATS_MOST:
            remedy = f"Repeat at most {REPEATS_MOST} times, or write * and maxLength: then vLLM asks another engine"
            yield _XGRAMMAR, f"xgrammar fails on a pattern with {text}", remedy
        if (literal := _literal(token)) is not None and (literal in '"\\' or literal < " "):
            remedy = "Leave it out: without a pattern a text may hold it"
            yield _XGRAMMAR, f"xgrammar writes {text!r} of a pattern as it is, which is no JSON", remedy
    try:
        matcher(pattern)
    except ValueError as error:
        remedy = "Write a regular expression of ECMA, as JSON schema has it"
        yield "", f"The pattern does not compile: {_why(pattern, error)}", remedy


def _literal(token: re.Match[str]) -> str | None:
    """The one character that a token of a pattern stands for; None if it stands for several, or none."""
    text = token[0]
    if not token["escape"]:
        return text if len(text) == 1 and not token["set"] else None
    if text[1] in "xu" and len(text) > 2:
        return chr(min(int(text[2:].strip("{}"), 16), 0x10FFFF))
    return None if text[1] in "dDwWsSpP" else _LITERALS.get(text[1], text[1])


def _why(pattern: str, error: ValueError) -> str:
    try:
        re.compile(pattern)
    except re.error as python:
        return str(python)
    return str(error).splitlines()[0]
