"""The rules for values that a job and its task kind share. Each function returns its value, or raises `mistake`."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from nightshift.fields.mistakes import mistake

COLUMN_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,299}$"
BUCKET_PATTERN: Final = r"^[a-z0-9][-a-z0-9_.]{1,220}[a-z0-9]$"
"""Cloud Storage's rule for bucket names (its documentation, "Bucket names"), but for the length of parts between dots."""
DURATION_PATTERN: Final = r"^(?=[0-9])([0-9]{1,9}d)?([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?$"

MOMENT_PATTERN: Final = r"^[0-9]{1,6}(ms|s|m)$"

_MOMENT_SECONDS_MAX: Final = 600
DURATION_SECONDS_MAX: Final = 7 * 86_400
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_OWN_PREFIX: Final = "nightshift_"
# BigQuery reserves these (its documentation, "Column names").
_BIGQUERY_PREFIXES: Final = ("_TABLE_", "_FILE_", "_PARTITION", "_ROW_TIMESTAMP", "__ROOT__", "_COLIDENTIFIER")


def text(value: str) -> str:
    if not value.strip():
        raise mistake("The text is empty", "Write some, or leave the key out if it is optional")
    return value


def input_column(value: str) -> str:
    """A column name, with only characters that need no quotes in SQL and templates."""
    if not re.fullmatch(COLUMN_PATTERN, value):
        raise mistake(
            f"{value!r} is no column name that nightshift takes",
            "Use at most 300 letters (A to Z), digits and underscores, no digit first; rename a column of the query with AS",
        )
    return value


def column_name(value: str) -> str:
    """An `input_column` that neither BigQuery nor nightshift reserves."""
    input_column(value)
    if value.casefold().startswith(_OWN_PREFIX):
        raise mistake(f"{value!r} begins with {_OWN_PREFIX}, like the columns that publishing adds", "Choose another name")
    reserved = next((prefix for prefix in _BIGQUERY_PREFIXES if value.upper().startswith(prefix)), None)
    if reserved is not None:
        raise mistake(f"{value!r} begins with {reserved}, which BigQuery reserves", "Choose another name")
    return value


def bucket_name(value: str) -> str:
    if not re.fullmatch(BUCKET_PATTERN, value):
        raise mistake(
            f"{value!r} is not a valid bucket name",
            "Write the name of a Cloud Storage bucket, without gs:// and without a folder, for example shop-photos",
        )
    return value


def duration(value: object) -> str:
    """``90s``, ``45m``, ``3h``, ``1d`` or these from large to small (``1h30m``); more than 0, at most 7 days."""
    form = "Write a whole number and its unit, s, m, h or d, for example 90s, 45m, 3h or 1h30m"
    text = _with_unit(value, DURATION_PATTERN, "a duration", form)
    if not 0 < duration_seconds(text) <= DURATION_SECONDS_MAX:
        raise mistake(f"{text!r} is not a valid duration", "Write more than 0 and at most 7d, for example 3h")
    return text


def duration_seconds(value: str) -> int:
    """Seconds of a text that `duration` accepts."""
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"([0-9]+)([dhms])", value))


def moment(value: object) -> str:
    """``500ms``, ``2s``, ``1m``: more than 0, at most 10 minutes."""
    form = "Write a whole number and its unit, ms, s or m, for example 500ms or 2s"
    text = _with_unit(value, MOMENT_PATTERN, "a short time", form)
    if not 0 < moment_seconds(text) <= _MOMENT_SECONDS_MAX:
        raise mistake(f"{text!r} is not valid here", "Write more than 0 and at most 10m, for example 2s")
    return text


def _with_unit(value: object, pattern: str, what: str, form: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise mistake(f"{value!r} has no unit", form)
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise mistake(f"{shown(value)} is not {what}", form)
    return value


def moment_seconds(value: str) -> float:
    """Seconds of a text that `moment` accepts."""
    number = int(value.rstrip("ms"))
    return number / 1000 if value.endswith("ms") else float(number * (60 if value.endswith("m") else 1))


def shown(value: object) -> str:
    return {"dict": "a mapping", "list": "a list", "NoneType": "nothing"}.get(type(value).__name__, repr(value))


def is_this_machine(address: str) -> bool:
    """Whether a URL, or a host with its port, names the machine itself: nothing that is sent there passes a network."""
    return urlsplit(address if "://" in address else f"//{address}").hostname in ("localhost", "127.0.0.1", "::1")
