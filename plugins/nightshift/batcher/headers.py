"""Which headers decide whether two requests may be merged, and which are passed on. Pure.

Names are in lower case, values as they were sent. All end-to-end headers count, for any of them may name a tenant, except a
short list of names, each in full, that say something of the caller's software, its route or its trace.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from typing import Final

from multidict import CIMultiDict

Headers = Collection[tuple[bytes, bytes]]
"""As they came."""
Counting = tuple[tuple[str, str], ...]
"""Those that have to agree, sorted."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HOP_BY_HOP: Final = _names(
    """
    connection expect http2-settings keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer
    transfer-encoding upgrade
    """
)
"""RFC 9110, section 7.6.1: they concern one connection, so they are never passed on. HTTP2-Settings is part of an offer to
upgrade, which Java's client makes with each first request: without it here, none of those would be merged."""
IGNORED: Final = _names(
    """
    accept-language b3 cache-control date dnt forwarded pragma sec-ch-ua sec-ch-ua-arch sec-ch-ua-bitness
    sec-ch-ua-form-factors sec-ch-ua-full-version-list sec-ch-ua-mobile sec-ch-ua-model sec-ch-ua-platform
    sec-ch-ua-platform-version sec-ch-ua-wow64 sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-storage-access
    sec-fetch-user sec-gpc traceparent tracestate user-agent via x-amzn-trace-id x-b3-flags x-b3-parentspanid x-b3-sampled
    x-b3-spanid x-b3-traceid x-cloud-trace-context x-correlation-id x-forwarded-for x-forwarded-port x-forwarded-proto
    x-real-ip x-request-id x-stainless-arch x-stainless-async x-stainless-custom-poll-interval x-stainless-helper-method
    x-stainless-lang x-stainless-os x-stainless-package-version x-stainless-poll-helper x-stainless-raw-response
    x-stainless-read-timeout x-stainless-retry-count x-stainless-runtime x-stainless-runtime-version
    x-stainless-streamed-raw-response x-stainless-timeout
    """
)
"""By their whole names: of a family such as X-Forwarded-*, some name the caller."""
ALWAYS_COUNT: Final = _names(
    """
    api-key authorization cf-access-jwt-assertion cookie x-access-token x-amzn-oidc-accesstoken x-amzn-oidc-data
    x-amzn-oidc-identity x-api-key x-auth-request-access-token x-auth-request-email x-auth-request-groups
    x-auth-request-preferred-username x-auth-request-user x-auth-token x-forwarded-access-token x-forwarded-client-cert
    x-forwarded-email x-forwarded-groups x-forwarded-preferred-username x-forwarded-user x-goog-api-key
    x-goog-authenticated-user-email x-goog-authenticated-user-id x-goog-iap-jwt-assertion x-remote-group x-remote-user
    """
)
"""What callers, and the proxies that have checked them, say of who they are. These can never be ignored: an answer would be
computed with another caller's rights."""
_CLIENTS_OWN: Final = frozenset(("accept", "accept-encoding", "content-length", "content-type", "host"))
"""The client to the upstream writes these itself."""
_NOT_PLAIN: Final = ("content-encoding", "inference-header-content-length")
"""Of a body that is not JSON alone."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_TEXT: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_JSON: Final = re.compile(r'application/json(?:\s*;\s*charset="?utf-?8"?)?', re.IGNORECASE)
_OF_A_CONNECTION: Final = re.compile(r"(?:^|,)\s*(?:ntlm|negotiate)(?![^\s,])", re.IGNORECASE)
"""Schemes whose credentials hold for all later requests of a connection: it must not be shared."""
_ACCEPTS_JSON: Final = ("*/*", "application/*", "application/json")


class HeaderRules:
    """key: names that count though they are on the list of those that do not. ignored: names that do not count besides those.

    Raises ValueError for a name that cannot be ignored or that is in both.
    """

    def __init__(self, key: Collection[str] = (), ignored: Collection[str] = ()) -> None:
        self._key = frozenset(name.lower() for name in key)
        ignored = frozenset(name.lower() for name in ignored)
        if wrong := sorted(name for name in self._key | ignored if not _NAME.fullmatch(name)):
            raise ValueError(f"{wrong[0]!r} is not a valid name of a header")
        if wrong := sorted(ignored & (ALWAYS_COUNT | self._key)):
            raise ValueError(f"the header {wrong[0]!r} has to count: its value decides what the caller may do")
        self._uncounted = _CLIENTS_OWN | ((IGNORED | ignored) - self._key)

    def counting(self, headers: Headers) -> Counting | None:
        """The headers that count, sorted; None if the request has to go alone: its body or its answer is not plain JSON."""
        found = _joined(headers)
        if (
            # A proxy has to drop what is named so. What is left must not be taken for a request that never had it.
            _named(headers) - HOP_BY_HOP - {"close"}
            or not found.keys().isdisjoint(_NOT_PLAIN)
            or _OF_A_CONNECTION.search(found.get("authorization", ""))
            or not _JSON.fullmatch(found.get("content-type", "").strip())
            or not _accepts_json(found.get("accept", "*/*"))
        ):
            return None
        return tuple(sorted((name, value) for name, value in found.items() if name not in self._uncounted))

    def dropped(self, headers: Headers) -> str | None:
        """A header that names the caller, and that ``Connection`` would have dropped: a request with it must be refused."""
        return min(_named(headers) & (ALWAYS_COUNT | self._key), default=None)


def sendable(headers: Headers) -> bool:
    """Whether each value is text (RFC 9110, section 5.5) in UTF-8: of other bytes, the server could get less."""
    try:
        return all(_TEXT.fullmatch(value.decode()) for _, value in headers)
    except UnicodeDecodeError:
        return False


def end_to_end(headers: Headers) -> list[tuple[str, str]]:
    """All but those that concern the caller's connection, in their order. Values are Latin-1, as `driver.http` wants them."""
    decoded = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    unsent = HOP_BY_HOP | _named(headers)
    return [(name, value) for name, value in decoded if name not in unsent]


def utf8(headers: Iterable[tuple[str, str]]) -> CIMultiDict[str]:
    """Such pairs as aiohttp wants them; one that is not UTF-8 is left out."""
    found = CIMultiDict[str]()
    for name, value in headers:
        with contextlib.suppress(UnicodeDecodeError):
            found.add(name, value.encode("latin-1").decode())
    return found


def of_one(headers: Headers) -> dict[str, str]:
    """The headers of a request that is sent alone: all that the client to the upstream does not write itself."""
    return {name: value for name, value in _joined(headers).items() if name not in _CLIENTS_OWN}


def _joined(headers: Headers) -> dict[str, str]:
    """Those that are end-to-end. Repeated ones are one list."""
    found: dict[str, str] = {}
    for name, value in end_to_end(headers):
        found[name] = f"{found[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in found else value
    return found


def _named(headers: Headers) -> set[str]:
    """What the header Connection names."""
    values = [value.decode("latin-1") for name, value in headers if name.lower() == b"connection"]
    return {each.strip().lower() for value in values for each in value.split(",")} - {""}


def _accepts_json(accept: str) -> bool:
    ranges = [each.strip().lower().partition(";") for each in accept.split(",")]
    return any(kind.strip() in _ACCEPTS_JSON and parameters.replace(" ", "") != "q=0" for kind, _, parameters in ranges)
