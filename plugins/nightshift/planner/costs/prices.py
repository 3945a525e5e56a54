"""Prices from a file: ours, of a region (`list_prices/` beside this module), or the one that a deployment puts in its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Final

from nightshift.fields.mistakes import choice
from nightshift.profiles import Provisioning, Span, fit
from nightshift.profiles.hardware import GPUS, TPUS
from nightshift.spec.document import BYTES_MAX, Document, Unreadable
from nightshift.spec.profile_names import ProfilesError, own

OURS: Final = {file.stem: file for file in sorted(Path(__file__).with_name("list_prices").glob("*.yaml"))}
"""By region."""
DEFAULT: Final = "us-central1"
CPU: Final = "cpu"
PRICE_MOST: Final = 10**9
"""In any currency. What is larger would not survive the sums."""

_BOUGHT: Final = {
    "on-demand": Provisioning.ON_DEMAND,
    "reservation": Provisioning.RESERVATION,
    "spot": Provisioning.SPOT,
    "flex-start": Provisioning.FLEX_START,
}
_NOTES: Final = ("date", "source")
_OTHERS: Final = {"bigquery": ("per_tib",), "storage": ("class_a_per_1000", "class_b_per_1000")}
_MACHINES: Final = (
    CPU,
    *(machine.name for gpu in GPUS.values() for machine in gpu.machines),
    *dict.fromkeys(slice_.machine.name for tpu in TPUS.values() for slice_ in tpu.slices.values()),
)


class PricesError(ValueError):
    """A file of prices that cannot be used: every mistake with its place and what to write instead."""


@dataclass(frozen=True)
class Prices:
    """machines: of one for an hour, by `nightshift.profiles.worker.WorkerShape.price_name`. bigquery_per_tib: of bytes billed.
    class_a_per_1000, class_b_per_1000: operations of Cloud Storage. None: no price. name: of the file, as shown.
    """

    currency: str
    machines: Mapping[str, float] = field(default_factory=dict)
    bigquery_per_tib: float | None = None
    class_a_per_1000: float | None = None
    class_b_per_1000: float | None = None
    name: str = ""


def no_price(machines: Iterable[str] = (), file: str = "") -> str:
    """A clause for whatever has no cost, with what to do. machines: as `Prices.machines` names them; file: of prices."""
    where = f" in {file}" if file else ""
    return (
        f"there is no price for {', '.join(machines) or 'its machines'}{where}; NIGHTSHIFT_PRICES or --prices names a file "
        "that has one (docs/operate/capacity.md)"
    )


def load_prices(path: str | Path | None = None) -> Prices:
    """path: of a file, or the region of one of ours; "" or None for that of `DEFAULT`. Raises PricesError."""
    region = str(path or DEFAULT)
    file = OURS.get(region) or Path(region)
    try:
        with file.open("rb") as opened:
            body = opened.read(BYTES_MAX + 1)
        if len(body) > BYTES_MAX:
            raise PricesError(f"{file}: more than {BYTES_MAX:,} bytes are too many for a file of prices.")
        document = Document(body.decode("utf-8-sig"), "A file of prices")
    except (OSError, UnicodeDecodeError) as error:
        ours = f"This release has list prices of {' and '.join(OURS)}; for others write a file (docs/operate/capacity.md)"
        raise PricesError(f"{file}: it cannot be read as YAML: {error}. {ours}.") from error
    except Unreadable as error:
        raise PricesError(f"{file}:{error.line}: {error.problem}. {error.remedy}.") from error
    value = document.value
    if not isinstance(value, dict):
        raise PricesError(f"{file}: it is not a YAML mapping. It begins with 'currency: USD' (docs/operate/capacity.md).")
    try:
        mine = [fit(each, Span()) for each in own().values()]
    except ProfilesError as error:
        raise PricesError(str(error)) from error
    named = [shape.machine.name for shape in mine if shape.machine]
    if wrong := [*_twice(document), *_mistakes(value, named)]:
        raise PricesError("\n".join(f"{file}: {each}" for each in wrong))
    found = _prices(value, f"the list prices of {region} in this release" if region in OURS else str(file))
    profiles_say = {shape.price_name: shape.own_nodes.price for shape in mine if shape.own_nodes}
    known = {name: price for name, price in profiles_say.items() if price is not None}
    return replace(found, machines={**known, **found.machines})


def _prices(value: Mapping[str, Any], name: str) -> Prices:
    machines = {
        f"{machine}{_BOUGHT[how]}" if machine != CPU else CPU: float(price)
        for machine, entry in (value.get("machines") or {}).items()
        for how, price in entry.items()
        if how in _BOUGHT
    }
    others = {
        key: entry["price"] if isinstance(entry, dict) else entry
        for section, keys in _OTHERS.items()
        for key in keys
        if (entry := (value.get(section) or {}).get(key)) is not None
    }
    return Prices(
        currency=value["currency"],
        machines=machines,
        bigquery_per_tib=others.get("per_tib"),
        class_a_per_1000=others.get("class_a_per_1000"),
        class_b_per_1000=others.get("class_b_per_1000"),
        name=name,
    )


def _twice(document: Document) -> Iterator[str]:
    """Keys of which YAML would silently take the last. What is wrong with keys that are not text is reported at their place."""
    for each in document.findings:
        if isinstance(each.path[-1], str) and repr(each.path[-1]) in each.problem:
            yield f"{'.'.join(map(str, each.path))}: {each.problem}. {each.remedy}."


def _mistakes(value: Mapping[Any, Any], named: Sequence[str]) -> Iterator[str]:
    """named: machines of profiles that the deployment has defined."""
    known = ("currency", "sources", "machines", *_OTHERS)
    for key in value:
        if key not in known:
            yield f"{key}: There is no such key. {choice(str(key), known)}."
    currency = value.get("currency")
    if not (
        isinstance(currency, str) and len(currency) == 3 and currency.isascii() and currency.isalpha() and currency.isupper()
    ):
        yield f"currency: {currency!r} is not a currency. Write its three letters, for example USD."
    sources = value.get("sources")
    if sources is not None and not isinstance(sources, dict):
        yield "sources: It is not a mapping of a name to a sentence."
        sources = None
    machines = value.get("machines")
    if machines is not None and not isinstance(machines, dict):
        yield "machines: It is not a mapping. Write for example 'g2-standard-8: {spot: 0.3}' under it."
    elif machines:
        for name, entry in machines.items():
            yield from _wrong_machine(name, entry, sources or {}, named)
    for section, keys in _OTHERS.items():
        entries = value.get(section)
        if entries is not None and not isinstance(entries, dict):
            yield f"{section}: It is not a mapping of {' and '.join(keys)} to prices."
        for key, entry in entries.items() if isinstance(entries, dict) else ():
            yield from _wrong_other(section, key, entry, sources or {})


def _wrong_machine(name: Any, entry: Any, sources: Mapping[Any, Any], named: Sequence[str]) -> Iterator[str]:
    place = f"machines.{name}"
    if name not in (machines := (*_MACHINES, *named)):
        yield f"{place}: No profile uses a machine of this name. {choice(str(name), machines)}."
    if not isinstance(entry, dict):
        yield f"{place}: {entry!r} does not say how the machine is bought. Write {{on-demand: PRICE}}, or another way."
        return
    ways = ("on-demand",) if name == CPU else tuple(_BOUGHT)
    for key, each in entry.items():
        if key in ways:
            yield from _wrong_price(f"{place}.{key}", each)
        elif key not in _NOTES:
            yield f"{place}.{key}: There is no such key. {choice(str(key), (*ways, *_NOTES))}."
    yield from _wrong_notes(place, entry, sources)


def _wrong_other(section: str, key: Any, entry: Any, sources: Mapping[Any, Any]) -> Iterator[str]:
    place = f"{section}.{key}"
    if key not in _OTHERS[section]:
        yield f"{place}: There is no such key. {choice(str(key), _OTHERS[section])}."
    elif isinstance(entry, dict):
        for name in entry:
            if name not in ("price", *_NOTES):
                yield f"{place}.{name}: There is no such key. {choice(str(name), ('price', *_NOTES))}."
        yield from _wrong_price(f"{place}.price", entry.get("price"))
        yield from _wrong_notes(place, entry, sources)
    else:
        yield from _wrong_price(place, entry)


def _wrong_price(place: str, price: Any) -> Iterator[str]:
    if not isinstance(price, int | float) or isinstance(price, bool) or not 0 <= price <= PRICE_MOST:  # NaN compares as False.
        yield f"{place}: {price!r} is not a price. Write a number from 0 to {PRICE_MOST:,}, without a currency."


def _wrong_notes(place: str, entry: Mapping[Any, Any], sources: Mapping[Any, Any]) -> Iterator[str]:
    if "date" in entry and not isinstance(entry["date"], date):
        yield f"{place}.date: {entry['date']!r} is not a date. Write the day when the price was read, for example 2026-08-20."
    if "source" in entry and entry["source"] not in list(sources):
        yield f"{place}.source: {entry['source']!r} is not one of the sources that the file names. Add it under 'sources'."
