"""Whether a schedule is cron: five fields, each within its range, on a day that exists."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from nightshift.fields.mistakes import mistake
from nightshift.fields.text import n

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES: Final = {
    "month": {name: number for number, name in enumerate(_MONTHS, start=1)},
    "weekday": {name: number for number, name in enumerate(_DAYS)},
}
_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_MONTH_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAILY: Final = dict.fromkeys(("@daily", "@midnight"), "0 0 * * *")
_SELDOM: Final = {
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_PRESETS: Final = {
    "@hourly": "Write every: 1h in place of schedule: a run for each hour",
    "@once": "Leave schedule out, and trigger the DAG by hand",
    "@continuous": "Write every: 10m in place of schedule, or a stream",
    **{name: f'Write "{cron}"' for name, cron in _DAILY.items()},
    **{
        name: f'Write "{cron}", if only the day before each of these times is to be computed; "0 0 * * *" computes every day'
        for name, cron in _SELDOM.items()
    },
}
"""What to write in place of a shorthand."""
_FORM: Final = 'Write minute, hour, day, month and weekday, for example "0 2 * * *" for 02:00 every day'


class _NoSense(ValueError):
    """Why a field of a cron expression is not valid."""


def schedule(value: str) -> str:
    """Accepts what cron does: ``*``, numbers, names, lists, ranges and steps, and also ``L`` for a month's last day and
    ``5#2`` for its second Friday. Raises `mistake`."""
    if value.lower() in _PRESETS:
        raise mistake(f"Shorthands such as {value!r} are not supported", _PRESETS[value.lower()])
    parts = value.split()
    if len(parts) != len(_FIELDS):
        raise mistake(f"{value!r} is not a cron schedule, which has 5 fields", _FORM)
    try:
        fields = {field[0]: _field(part.lower(), *field) for part, field in zip(parts, _FIELDS, strict=True)}
    except _NoSense as reason:
        raise mistake(f"{value!r} is not a cron schedule: {reason}", _FORM) from None
    if len({"#" in item for item in parts[4].split(",")}) > 1:
        raise mistake(
            f"{value!r} mixes plain weekdays with one such as 5#2, which Airflow's cron reader refuses",
            "Give each its week (1#2,5#2), or write plain weekdays alone",
        )
    longest = max(_MONTH_LENGTHS[month - 1] for month in fields["month"])
    # With some weekdays as well, cron takes days that match either, and every weekday exists. All seven count as *.
    if len({day % 7 for day in fields["weekday"]}) == len(_DAYS) and min(fields["day"]) > longest:
        raise mistake(f"{value!r} never matches a date: those months have at most {n(longest, 'day')}", _FORM)
    return value


def first_of_day(value: str) -> timedelta:
    """The first moment of each day that a schedule names, after midnight. A cron's first moment is the same on all its days."""
    minutes, hours = map(min, _times(value))
    return timedelta(hours=hours, minutes=minutes)


def often(value: str) -> tuple[str, str] | None:
    """Problem and remedy of a schedule that names several times of a day: a day has one run."""
    times = _times(value)
    if max(map(len, times)) == 1:
        return None
    once = " ".join([*(str(min(each)) for each in times), *value.split()[2:]])
    return (
        f"{value!r} names several times of a day, and a nightly job has one run for each day",
        f'For runs during the day write every: 10m (or 1h, ...) in place of schedule; for one run, one time: "{once}"',
    )


def seldom(value: str) -> tuple[str, str] | None:
    """Problem and remedy of a schedule that names no day within years, or whose days programs disagree about."""
    _, _, day, month, weekday = value.lower().split()
    fifth = [re.fullmatch(r"\w+#5", item) is not None for item in weekday.split(",")]
    if "#" in weekday and day != "*":
        problem = f"{value!r} names a day of the month and a weekday such as 1#5, which few days are both"
        return problem, "Write * as the day, or * as the weekday"
    if all(fifth) and _field(month, *_FIELDS[3]) == {2}:
        return f"{value!r} names a day once in 28 years", "Write another month, or another week of it"
    return None


def _times(value: str) -> list[set[int]]:
    """The minutes and the hours that a schedule names."""
    return [_field(part, *field) for part, field in zip(value.split()[:2], _FIELDS, strict=False)]


def _field(text: str, name: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for item in text.split(","):
        if name == "day" and item == "l":
            values.add(28)
        elif name == "weekday" and (nth := re.fullmatch(r"(\w+)#[1-5]", item)):
            values.add(_number(nth[1], name, low, high))
        else:
            values.update(_range(item, name, low, high))
    return values


def _range(item: str, name: str, low: int, high: int) -> range:
    match = re.fullmatch(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/([0-9]{1,3}))?", item)
    if match is None:
        raise _NoSense(f"{item!r} is not a valid {name}")
    star, first, last, step = match.groups()
    start = low if star else _number(first, name, low, high)
    stop = high if star or (step and not last) else _number(last or first, name, low, high)
    if name == "weekday" and last and stop == 0:
        stop = 7
    if start > stop:
        raise _NoSense(f"the {name} range {item!r} runs backwards")
    if step and not 1 <= int(step) <= high:
        raise _NoSense(f"a step of {step} is not in 1-{high}, the {name}s")
    return range(start, stop + 1, int(step or 1))


def _number(text: str, name: str, low: int, high: int) -> int:
    number = _NAMES.get(name, {}).get(text, int(text) if re.fullmatch(r"[0-9]{1,2}", text) else None)
    if number is None or not low <= number <= high:
        raise _NoSense(f"the {name} {text!r} is not in {low}-{high}")
    return number
