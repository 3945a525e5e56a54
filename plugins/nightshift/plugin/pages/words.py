"""Numbers, times and names as people read them: the filters of the templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from nightshift.fields.text import n
from nightshift.run.observed.pods_now import Acts
from nightshift.status.text import duration as lasted

NOT_KNOWN: Final = "not known yet"
NUMBERS_SHOWN: Final = 4
"""Of a vector."""
_LEFT_OUT: Final = re.compile(r"\.\.\. ([0-9,]+) more")


def count(value: float | None) -> str:
    """12345 -> 12,345; None -> a dash."""
    return "–" if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """With at most three digits after the point, fewer the larger it is."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if size >= 100 or value == round(value) else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def who(acts: str) -> str:
    """Who has to act, a value of `nightshift.run.observed.pods_now.Acts`."""
    return Acts(acts).words


def percent(share: float | None) -> str:
    """0.999999 -> 99.9%: rounded towards 0, so that 100% means that nothing is left."""
    return "–" if share is None else f"{int(1000 * share) / 10:.1f}%"


def duration(seconds: float | None) -> str:
    """The two largest units, never negative."""
    return NOT_KNOWN if seconds is None else lasted(seconds)


def when(value: str | float | datetime | None) -> str:
    """ISO 8601, seconds since 1970 or a datetime, as UTC to the minute."""
    if not value:
        return "–"
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
    else:
        moment = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def title(name: str) -> str:
    """A name of ours as words: bad_input -> bad input."""
    return name.replace("_", " ").replace("-", " ")


def text(value: Any) -> str:
    """A value of a row, or an answer: texts as they are, vectors in a line, the rest as JSON."""
    if value is None:
        return ""
    value = _vectors_in_a_line(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)


def _vectors_in_a_line(value: Any) -> Any:
    """With the first few numbers of each list of numbers, and how many it has, in place of the list."""
    if isinstance(value, Mapping):
        return {name: _vectors_in_a_line(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    # What reads rows keeps the beginning of a long list, and counts the rest in its last item.
    left_out = _LEFT_OUT.fullmatch(value[-1]) if value and isinstance(value[-1], str) else None
    numbers = value[:-1] if left_out else value
    if not numbers or not all(type(each) in (int, float) for each in numbers):
        return [_vectors_in_a_line(each) for each in value]
    many = len(numbers) + (int(left_out[1].replace(",", "")) if left_out else 0)
    first = ", ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in numbers[:NUMBERS_SHOWN])
    return f"{first}, … ({n(many, 'number')})" if many > NUMBERS_SHOWN else f"[{first}]"


def one_line(value: Mapping[str, Any]) -> str:
    """The columns of a key."""
    return (
        ", ".join(text(each) for each in value.values())
        if len(value) == 1
        else ", ".join(f"{name} {text(each)}" for name, each in value.items())
    )


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "count": count,
    "number": number,
    "noun": n,
    "who": who,
    "percent": percent,
    "duration": duration,
    "when": when,
    "words": title,
    "text_of": text,
    "one_line": one_line,
}
