"""A line of an OpenAI batch file: what it asks for, or why it cannot be sent. Pure.

The format is the one that ``vllm run-batch`` reads: ``{"custom_id": ..., "method": "POST", "url": ..., "body": {...}}``. vLLM
rejects the whole file for one line that it cannot read; here only that line becomes an error in the output.

A line is parsed to look at it. What is sent are the bytes that its body has in the file: no parser keeps every number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
    "/v1/score",
    "/v1/rerank",
    "/v2/rerank",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
)
"""The only paths that a line may name: a file must not reach the server's other paths, for instance its shutdown."""
_ANY_PREFIX: Final = ("/score", "/rerank")
"""vLLM accepts these two below any prefix; its server has them at the root."""
_BELOW_V1: Final = {path.removeprefix("/v1"): path for path in ENDPOINTS if path.removeprefix("/v1") not in ENDPOINTS}
"""Azure's files name paths without the version: ``/chat/completions``."""
STREAM: Final = "Request must not be sent in stream mode"
ID_MAX: Final = 4096
"""Characters of a custom_id; a longer one is cut."""
BOM: Final = b"\xef\xbb\xbf"
"""A file begins with it, or is one of several that were joined."""
# Finds where a value ends, and keeps nothing of it: Python would refuse to make a number of 5,000 digits.
_SCANNER: Final = json.JSONDecoder(parse_int=bool, parse_float=bool, parse_constant=bool)
_ENVELOPE: Final = frozenset({"method", "url"})
_REQUEST: Final = '{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}'
_FORMATS: Final = (
    (frozenset({"custom_id", "params"}), f"a file of Anthropic's message batches (params). Write OpenAI's form: {_REQUEST}"),
    (frozenset({"custom_id", "response"}), "the output of a batch. Name its input"),
    (frozenset({"custom_id", "body"}), f"a file of Mistral's batches, without method and url. Write OpenAI's form: {_REQUEST}"),
    (frozenset({"request"}), f"a file of Gemini's batches. Write OpenAI's form: {_REQUEST}"),
    (frozenset({"recordId", "modelInput"}), f"a file of Bedrock's batch inference. Write OpenAI's form: {_REQUEST}"),
    (frozenset({"messages"}), f"bodies alone, or a file for fine-tuning. Write OpenAI's form: {_REQUEST}"),
)
"""Files of other services and purposes: the fields that tell them, and what they are."""
_SPACE: Final = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Line:
    """custom_id: "" if the line has none. path and body: what is POSTed. error: why nothing can be sent, else None."""

    custom_id: str
    path: str = ""
    body: bytes = b""
    error: str | None = None


class _Unusable(ValueError):
    """The line cannot be sent; the message says why."""


def parse_line(raw: bytes, number: int, model: str | None = None) -> Line:
    """Reads one line. number: its place among the lines that are not blank, from 1; it names a line without custom_id.

    model: replaces the one in the body.
    """
    try:
        text, request = _decode(raw)
    except _Unusable as error:
        return Line("", error=f"line {number}: {error}")
    custom_id, wrong = _custom_id(request)
    if wrong is not None:
        return Line(custom_id, error=f"line {number}: {wrong}")
    try:
        return Line(custom_id, _path(request), _body(text, request, model))
    except _Unusable as error:
        return Line(custom_id, error=str(error))


def looks_like(raw: bytes) -> str | None:
    """Which known format a line that cannot be sent has instead, with what to do; None if it has none of them."""
    try:
        line = _decode(raw)[1]
    except _Unusable:
        return None
    has, url = line.keys(), line.get("url")
    if isinstance(url, str) and "/deployments/" in url:
        return "a file with the paths of Azure's deployments. Write /chat/completions or /embeddings as url"
    if isinstance(url, str) and "://" in url:
        return "a batch file with whole URLs. Write only the path as url, for example /v1/chat/completions"
    if isinstance(line.get("body"), str):
        return "a batch file whose body is JSON in a string, as warehouses export it: jq -c '.body |= fromjson' IN > OUT"
    return next((said for fields, said in _FORMATS if fields <= has and not (has & _ENVELOPE)), None)


def _decode(raw: bytes) -> tuple[str, dict[str, Any]]:
    """The line's text and the object in it."""
    raw = raw.removeprefix(BOM)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _Unusable(f"it is not UTF-8: {error}") from error
    try:
        value = orjson.loads(raw)
    except ValueError:
        # NaN and escaped halves of surrogate pairs: not strictly JSON, but vLLM reads them, and a line may contain them.
        try:
            value = json.loads(text, parse_int=float)
        except RecursionError as error:
            raise _Unusable("it is nested too deeply") from error
        except ValueError as error:
            raise _Unusable(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _Unusable(f"it must be a JSON object, not {_kind(value)}")
    return text, value


def _custom_id(request: dict[str, Any]) -> tuple[str, str | None]:
    """The id that the output names, and what is wrong with the line's own."""
    value = request.get("custom_id")
    if not isinstance(value, str):
        shown = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""
        return shown, "custom_id is missing" if value is None else f"custom_id must be a string, not {_kind(value)}"
    if len(value) > ID_MAX:
        return value[:ID_MAX].encode(errors="replace").decode(), f"custom_id has more than {ID_MAX} characters"
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="replace").decode(), "custom_id contains half a surrogate pair"
    return value, None


def _path(request: dict[str, Any]) -> str:
    method, url = request.get("method"), request.get("url")
    if not isinstance(method, str) or method.upper() != "POST":
        raise _Unusable("method is missing" if method is None else f"method must be POST, not {_shown(method)}")
    if not isinstance(url, str):
        raise _Unusable("url is missing" if url is None else f"url must be a string, not {_kind(url)}")
    path = f"/{url.strip('/')}"
    path = _BELOW_V1.get(path, path)
    if path in ENDPOINTS:
        return path
    for ending in _ANY_PREFIX:
        if path.endswith(ending):
            return ending
    raise _Unusable(f"URL {_shown(url)} was used. Supported endpoints: {', '.join(ENDPOINTS)}")


def _body(text: str, request: dict[str, Any], model: str | None) -> bytes:
    """The body's own bytes; with `model`, all but the name of the model."""
    body = request.get("body")
    if not isinstance(body, dict):
        raise _Unusable("body is missing" if body is None else f"body must be an object, not {_kind(body)}")
    if body.get("stream"):
        raise _Unusable(STREAM)
    try:
        # Of two fields of one name the last one counts, as for every parser.
        *_, (start, end) = (span for name, span in _members(text) if name == "body")
        text = text[start:end]
        return (text if model is None else _with_model(text, model)).encode()
    except RecursionError as error:
        raise _Unusable("it is nested too deeply") from error


def _with_model(body: str, model: str) -> str:
    name = json.dumps(model)
    spans = [span for field, span in _members(body) if field == "model"]
    if not spans:
        rest = body[1:].lstrip()
        return f'{{"model": {name}{"" if rest == "}" else ", "}{rest}'
    for start, end in reversed(spans):
        body = f"{body[:start]}{name}{body[end:]}"
    return body


def _members(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The fields of the object that valid JSON is: each name, and where its value stands in the text."""
    at = _after_space(text, 0)
    while text[at] != "}":
        at = _after_space(text, at + 1)
        if text[at] == "}":
            return
        name, at = _SCANNER.raw_decode(text, at)
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _SCANNER.raw_decode(text, start)
        yield name, (start, end)
        at = _after_space(text, end)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    return repr(value)[:200]
