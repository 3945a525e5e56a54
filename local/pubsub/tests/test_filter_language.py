"""The filter language of Pub/Sub's subscriptions, as its page describes it."""

from __future__ import annotations

import pytest

from local.pubsub.errors import Refusal
from local.pubsub.filters import parse

pytestmark = pytest.mark.unit

ATTRIBUTES = {"name": "com", "lang": "en", "iana.org/language_tag": "en-US", "empty": "", "a-b": "x"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("attributes:name", True),
        ("attributes:empty", True),
        ("attributes:missing", False),
        ('attributes.name = "com"', True),
        ('attributes.name="org"', False),
        ('attributes.missing = ""', False),
        ('attributes.name != "org"', True),
        ('attributes.name != "com"', False),
        ('attributes.missing != "com"', True),
        ('attributes."iana.org/language_tag" = "en-US"', True),
        ('attributes:"iana.org/language_tag"', True),
        ('attributes.a-b = "x"', True),
        ('hasPrefix(attributes.name, "co")', True),
        ('hasPrefix(attributes.name, "om")', False),
        ('hasPrefix(attributes.missing, "")', False),
        ("NOT attributes:missing", True),
        ("-attributes:name", False),
        ('attributes:name AND attributes.lang = "en"', True),
        ('attributes:name AND attributes.lang = "de"', False),
        ('attributes:missing OR attributes.lang = "en"', True),
        ("attributes:missing OR attributes:lang OR attributes:name", True),
        ("attributes:missing AND (attributes:lang OR attributes:name)", False),
        ("attributes:name AND (attributes:missing OR attributes:lang)", True),
        ("NOT (attributes:name AND attributes:missing)", True),
        ('attributes.name = "c\\u006fm"', True),
        ('attributes.name = "\\143om"', True),
        ('attributes.name = "co\\"m"', False),
    ],
)
def test_a_filter_matches_as_documented(text: str, matches: bool) -> None:
    assert parse(text)(ATTRIBUTES) is matches


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "attributes",
        "attributes.name",
        "attributes.name = com",
        'attributes.name > "com"',
        'attributes.name == "com"',
        'attributes.name = "com',
        'attributes.a/b = "x"',
        "attributes:",
        "attributes:a AND",
        "attributes:a attributes:b",
        "attributes:a AND attributes:b OR attributes:c",
        "(attributes:a",
        "attributes:a)",
        'hasPrefix(attributes.name "co")',
        'hasSuffix(attributes.name, "co")',
        'data = "x"',
    ],
)
def test_what_is_not_a_filter_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="Invalid filter"):
        parse(text)
