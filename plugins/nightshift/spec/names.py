"""The rules for single values: names, durations, rates, schedules. Each function returns its value or raises `mistake`."""

from __future__ import annotations

import re
from typing import Final

from nightshift.spec.errors import mistake

JOB_PATTERN: Final = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
LABEL_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
OBJECT_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
COLUMN_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,299}$"
DURATION_PATTERN: Final = r"^(?=\d)(\d+d)?(\d+h)?(\d+m)?(\d+s)?$"
RATE_PATTERN: Final = r"^\d+(\.\d+)?%$"
URI_PATTERN: Final = r"^(hf://[^/\s]+/[^/\s]+|gs://[^/\s]+/\S*[^/\s])$"

DURATION_SECONDS_MAX: Final = 7 * 86_400
_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
# BigQuery keeps these for itself (its documentation, "Column names").
_RESERVED_COLUMN_PREFIXES: Final = ("_TABLE_", "_FILE_", "_PARTITION", "_ROW_TIMESTAMP", "__ROOT__", "_COLIDENTIFIER")


def job_name(value: str) -> str:
    """A DNS label that starts with a letter: the JobSet's, its Job's and its pods' names begin with it."""
    if re.fullmatch(JOB_PATTERN, value):
        return value
    if len(value) > 40:
        raise mistake(
            f"{value!r} has {len(value)} characters; Kubernetes names are made from it, which leaves it 40",
            f"Write a shorter name, for example {_as_label(value)[:40].strip('-')!r}",
        )
    raise mistake(
        f"{value!r} cannot be the name of a Kubernetes object",
        f"Write lower-case letters, digits and dashes, a letter first and no dash at the end, for example {_as_label(value)!r}",
    )


def _as_label(value: str) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-0123456789")
    return label or "package-embeddings"


def label(value: str) -> str:
    """A Kubernetes label value."""
    if not re.fullmatch(LABEL_PATTERN, value):
        raise mistake(
            f"{value!r} cannot be a Kubernetes label",
            "Write at most 63 letters, digits, dashes, underscores and dots, a letter or digit at both ends",
        )
    return value


def object_name(value: str) -> str:
    """The name of a Kueue object, which pods carry as a label too."""
    if not re.fullmatch(OBJECT_PATTERN, value):
        raise mistake(
            f"{value!r} cannot be the name of a Kueue object",
            "Write at most 63 lower-case letters, digits and dashes, a letter or digit at both ends",
        )
    return value


def one_line(value: str) -> str:
    if not value.strip() or len(value.splitlines()) != 1:
        raise mistake(f"{value!r} is not one line of text", "Write a few words on one line")
    return value


def text(value: str) -> str:
    if not value.strip():
        raise mistake("it is empty", "Write something, or leave the key out where it is optional")
    return value


def revision(value: str) -> str:
    if not re.fullmatch(r"\S+", value):
        raise mistake(f"{value!r} cannot be a revision", "Write a tag, a branch or a commit, without spaces")
    return value


def model_uri(value: str) -> str:
    if not re.fullmatch(URI_PATTERN, value):
        raise mistake(f"{value!r} is not the address of a model", "Write hf://ORGANISATION/NAME or gs://BUCKET/FOLDER")
    return value


def column_name(value: str) -> str:
    """A BigQuery column name, of the characters that Parquet and SQL take unquoted."""
    if not re.fullmatch(COLUMN_PATTERN, value):
        raise mistake(
            f"{value!r} cannot be the name of a BigQuery column",
            "Write letters, digits and underscores, no digit first, at most 300 characters",
        )
    reserved = next((prefix for prefix in _RESERVED_COLUMN_PREFIXES if value.upper().startswith(prefix)), None)
    if reserved is not None:
        raise mistake(f"{value!r} begins with {reserved}, which BigQuery keeps for itself", "Write another name")
    return value


def table_name(value: str) -> str:
    """``project.dataset.table`` or ``dataset.table``."""
    parts = value.replace(":", ".").rsplit(".", 2) if value.count(":") == 1 and value.count(".") == 1 else value.rsplit(".", 2)
    form = "Write dataset.table or project.dataset.table, for example catalog.package_embeddings"
    if len(parts) < 2:
        raise mistake(f"{value!r} is not a table name: it has no dataset", form)
    if "`" in value:
        raise mistake(f"{value!r} has backquotes", f"Write {value.replace('`', '')!r}")
    if ":" in value and "." not in parts[0]:
        raise mistake(f"{value!r} has a colon, as in legacy SQL", f"Write {'.'.join(parts)!r}")
    *project, dataset, table = parts
    if project and not re.fullmatch(r"(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]{0,28}[a-z0-9]", project[0]):
        raise mistake(f"{value!r} is not a table name: {project[0]!r} cannot be a Google Cloud project", form)
    if not re.fullmatch(r"\w{1,1024}", dataset, re.ASCII):
        raise mistake(f"{value!r} is not a table name: a dataset's name is letters, digits and underscores, not {dataset!r}", form)
    if not re.fullmatch(r"[\w -]+", table) or len(table.encode()) > 1024:
        raise mistake(f"{value!r} is not a table name: a table's name is letters, digits, underscores and dashes, not {table!r}", form)
    return value


def duration(value: str) -> str:
    """``90s``, ``45m``, ``3h``, ``1d`` or parts of these from large to small (``1h30m``); more than 0, at most 7 days."""
    if not re.fullmatch(DURATION_PATTERN, value):
        raise mistake(
            f"{value!r} is not a duration", "Write a whole number and its unit (s, m, h or d), for example 90s, 45m, 3h or 1h30m"
        )
    seconds = duration_seconds(value)
    if not 0 < seconds <= DURATION_SECONDS_MAX:
        raise mistake(f"{value!r} has no sense as a deadline: it is {seconds} seconds", "Write something from 1s to 7d, for example 3h")
    return value


def duration_seconds(value: str) -> int:
    """Seconds of a value that `duration` accepts."""
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall(r"(\d+)([dhms])", value))


def tolerance(value: object) -> int | str:
    """A number of rows, or a share of them (``1%``)."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(RATE_PATTERN, value):
        if float(value[:-1]) <= 100:
            return value
        raise mistake(f"{value!r} is more than all rows", 'Write a share from "0%" to "100%", for example "1%"')
    shown = value if not isinstance(value, dict | list) else "a collection"
    raise mistake(
        f"{shown!r} is neither a number of rows nor a share of them",
        'Write a whole number from 0 on, or a share such as "1%"',
    )
