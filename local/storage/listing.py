"""Lists of objects: prefixes, delimiters, ranges of names, glob patterns, pages."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from local.storage.catalog import Catalog
from local.storage.errors import invalid
from local.storage.stored import StoredObject

PAGE_MAX = 1000
# Sorts after (nearly) every name with the same beginning: the last code point, which names hardly ever contain.
BEYOND = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class ListQuery:
    """``start`` is inclusive, ``end`` and ``after`` are exclusive; an empty string means no limit."""

    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    end: str = ""
    after: str = ""
    glob: str = ""
    trailing_delimiter: bool = False
    limit: int = PAGE_MAX


@dataclass(frozen=True, slots=True)
class Page:
    objects: list[StoredObject]
    prefixes: list[str]
    next_token: str | None


def list_page(catalog: Catalog, bucket: str, query: ListQuery) -> Page:
    """One page of a list, read at one moment. Raises ApiError 404."""
    catalog.bucket(bucket)
    limit = max(1, min(query.limit, PAGE_MAX))
    entries = list(islice(_entries(catalog, bucket, query), limit + 1))
    more, entries = len(entries) > limit, entries[:limit]
    objects = [entry for entry in entries if isinstance(entry, StoredObject)]
    prefixes = list(dict.fromkeys(entry for entry in entries if isinstance(entry, str)))
    return Page(objects, prefixes, _token(entries[-1]) if more else None)


def _entries(catalog: Catalog, bucket: str, query: ListQuery) -> Iterator[StoredObject | str]:
    """Objects, and strings for prefixes that stand for several, in order of names."""
    matches = glob_pattern(query.glob).fullmatch if query.glob else None
    first: str | None = max(query.prefix, query.start, query.after)
    last_group = ""
    while first is not None:
        scan, first = catalog.scan(bucket, first), None
        for found in scan:
            name = found.name
            if not name.startswith(query.prefix) or (query.end and name >= query.end):
                return
            if name == query.after:
                continue
            if group := _group(name, query):
                if group == last_group:
                    continue
                if query.trailing_delimiter and name == group:
                    yield found
                if matches is None or matches(group):
                    yield group
                first, last_group = group + BEYOND, group
                break
            if matches is None or matches(name):
                yield found


def _group(name: str, query: ListQuery) -> str:
    """The prefix under which ``name`` is listed, or an empty string."""
    if not query.delimiter:
        return ""
    head, delimiter, _ = name[len(query.prefix) :].partition(query.delimiter)
    return query.prefix + head + delimiter if delimiter else ""


def _token(last: StoredObject | str) -> str:
    after = last + BEYOND if isinstance(last, str) else last.name
    return base64.urlsafe_b64encode(after.encode()).decode()


def after_token(token: str) -> str:
    """The name after which a page begins. Raises ApiError 400."""
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise invalid(f"Not a page token of this server: {token!r}") from None


def glob_pattern(glob: str) -> re.Pattern[str]:
    """``*`` and ``?`` stop at a slash, ``**`` does not; ``[a-z]``, ``[!a]`` and ``{one,two}`` as in a shell."""
    out, depth = "", 0
    for token in re.findall(r"\*\*|\[[!^]?\]?[^\]]*\]|\\.|.", glob, re.DOTALL):
        if token in ("**", "*", "?"):
            out += {"**": ".*", "*": "[^/]*", "?": "[^/]"}[token]
        elif token[0] == "[" and len(token) > 1:
            out += "[" + re.sub(r"^[!^]", "^", token[1:-1]).replace("\\", "\\\\") + "]"
        elif token == "{":
            out, depth = out + "(?:", depth + 1
        elif depth and token in ("}", ","):
            out, depth = (out + ")", depth - 1) if token == "}" else (out + "|", depth)
        else:
            out += re.escape(token[-1])
    try:
        return re.compile(out, re.DOTALL)
    except re.error as error:
        raise invalid(f"matchGlob: {glob!r} is not a pattern: {error}") from None
