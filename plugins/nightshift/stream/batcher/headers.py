"""Which headers decide whether two requests may be merged, and which are passed on. Pure.

Names are in lower case, values as they were sent. All end-to-end headers count, for any of them may name a tenant, except a
short list of names, each in full, that say something of the caller's software, its route or its trace.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

Headers = Collection[tuple[bytes, bytes]]
"""As ASGI has them."""

HOP_BY_HOP: Final = frozenset(
    [
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]
)
"""RFC 9110, section 7.6.1: they concern one connection, so they are never passed on."""
IGNORED: Final = frozenset(
    [
        "accept-language",
        "b3",
        "cache-control",
        "date",
        "dnt",
        "forwarded",
        "pragma",
        "sec-ch-ua",
        "sec-ch-ua-arch",
        "sec-ch-ua-bitness",
        "sec-ch-ua-form-factors",
        "sec-ch-ua-full-version-list",
        "sec-ch-ua-mobile",
        "sec-ch-ua-model",
        "sec-ch-ua-platform",
        "sec-ch-ua-platform-version",
        "sec-ch-ua-wow64",
        "sec-fetch-dest",
        "sec-fetch-mode",
        "sec-fetch-site",
        "sec-fetch-storage-access",
        "sec-fetch-user",
        "sec-gpc",
        "traceparent",
        "tracestate",
        "user-agent",
        "via",
        "x-amzn-trace-id",
        "x-b3-flags",
        "x-b3-parentspanid",
        "x-b3-sampled",
        "x-b3-spanid",
        "x-b3-traceid",
        "x-cloud-trace-context",
        "x-correlation-id",
        "x-forwarded-for",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-real-ip",
        "x-request-id",
        "x-stainless-arch",
        "x-stainless-async",
        "x-stainless-custom-poll-interval",
        "x-stainless-helper-method",
        "x-stainless-lang",
        "x-stainless-os",
        "x-stainless-package-version",
        "x-stainless-poll-helper",
        "x-stainless-raw-response",
        "x-stainless-read-timeout",
        "x-stainless-retry-count",
        "x-stainless-runtime",
        "x-stainless-runtime-version",
        "x-stainless-streamed-raw-response",
        "x-stainless-timeout",
    ]
)
"""By their whole names: of a family such as X-Forwarded-*, some name the caller."""
ALWAYS_COUNT: Final = frozenset(
    [
        "api-key",
        "authorization",
        "cf-access-jwt-assertion",
        "cookie",
        "x-access-token",
        "x-amzn-oidc-accesstoken",
        "x-amzn-oidc-data",
        "x-amzn-oidc-identity",
        "x-api-key",
        "x-auth-request-access-token",
        "x-auth-request-email",
        "x-auth-request-groups",
        "x-auth-request-preferred-username",
        "x-auth-request-user",
        "x-auth-token",
        "x-forwarded-access-token",
        "x-forwarded-client-cert",
        "x-forwarded-email",
        "x-forwarded-groups",
        "x-forwarded-preferred-username",
        "x-forwarded-user",
        "x-goog-api-key",
        "x-goog-authenticated-user-email",
        "x-goog-authenticated-user-id",
        "x-goog-iap-jwt-assertion",
        "x-remote-group",
        "x-remote-user",
    ]
)
"""What callers, and the proxies that have checked them, say of who they are. These can never be ignored: an answer would be
computed with another caller's rights."""
_CLIENTS_OWN: Final = frozenset(("accept", "accept-encoding", "content-length", "content-type", "host"))
"""The client to the upstream writes these itself."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_SENDABLE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_JSON: Final = re.compile(r'application/json(?:\s*;\s*charset="?utf-?8"?)?', re.IGNORECASE)
_OF_A_CONNECTION: Final = re.compile(r"(?:ntlm|negotiate)(?![^\s,])", re.IGNORECASE)
"""Schemes whose credentials hold for all later requests of a connection: it must not be shared."""
_ACCEPTS_JSON: Final = ("*/*", "application/*", "application/json")


class HeaderRules:
    """key: names that count though they are on the list of those that do not. ignored: names that do not count besides those.

    Raises ValueError for a name that cannot be ignored or that is in both.
    """

    def __init__(self, key: Collection[str] = (), ignored: Collection[str] = ()) -> None:
        self._key = frozenset(name.lower() for name in key)
        self._ignored = frozenset(name.lower() for name in ignored)
        if wrong := sorted(name for name in self._key | self._ignored if not _NAME.fullmatch(name)):
            raise ValueError(f"{wrong[0]!r} is not a valid name of a header")
        if wrong := sorted(self._ignored & (ALWAYS_COUNT | self._key)):
            raise ValueError(f"the header {wrong[0]!r} has to count: its value decides what the caller may do")

    def counting(self, headers: Headers) -> tuple[tuple[str, str], ...] | None:
        """The headers that count, sorted; None if the request has to go alone: its body or its answer is not plain JSON."""
        found: dict[str, str] = {}
        accepts = []
        content_type = ""
        if _named(headers) - HOP_BY_HOP - {"close"}:
            # A proxy has to drop what is named so. What is left must not be taken for a request that never had it.
            return None
        for name, value in end_to_end(headers):
            match name:
                case "accept":
                    accepts.append(value)
                case "content-type":
                    content_type = value
                case "content-encoding" | "inference-header-content-length":
                    return None
                case "authorization" if _OF_A_CONNECTION.match(value.strip()):
                    return None
                case _ if name not in _CLIENTS_OWN and self._counts(name):
                    found[name] = _with(found.get(name), name, value)
        if not _JSON.fullmatch(content_type.strip()) or not _accepts_json(accepts):
            return None
        return tuple(sorted(found.items()))

    def dropped(self, headers: Headers) -> str | None:
        """A header that names the caller, and that ``Connection`` would have dropped: a request with it must be refused."""
        return min(_named(headers) & (ALWAYS_COUNT | self._key), default=None)

    def _counts(self, name: str) -> bool:
        return name in self._key or (name not in IGNORED and name not in self._ignored)


def sendable(headers: Headers) -> bool:
    """Whether no value has characters that headers may not have (RFC 9110, section 5.5)."""
    return all(_SENDABLE.fullmatch(value) for _, value in headers)


def end_to_end(headers: Headers) -> list[tuple[str, str]]:
    """All but those that concern the caller's connection, in their order."""
    decoded = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    unsent = HOP_BY_HOP | _named(headers)
    return [(name, value) for name, value in decoded if name not in unsent]


def _named(headers: Headers) -> set[str]:
    """What the header Connection names."""
    values = [value.decode("latin-1") for name, value in headers if name.lower() == b"connection"]
    return {each.strip().lower() for value in values for each in value.split(",")} - {""}


def of_one(headers: Headers) -> dict[str, str]:
    """The headers of a request that is sent alone: all that the client to the upstream does not write itself."""
    found: dict[str, str] = {}
    for name, value in end_to_end(headers):
        if name not in _CLIENTS_OWN:
            found[name] = _with(found.get(name), name, value)
    return found


def _with(earlier: str | None, name: str, value: str) -> str:
    """Repeated headers are one list."""
    return value if earlier is None else f"{earlier}{'; ' if name == 'cookie' else ', '}{value}"


def _accepts_json(accepts: list[str]) -> bool:
    if not accepts:
        return True
    ranges = [each.strip().lower().partition(";") for value in accepts for each in value.split(",")]
    return any(kind.strip() in _ACCEPTS_JSON and parameters.replace(" ", "") != "q=0" for kind, _, parameters in ranges)
