"""What bounds a template. Rows may come from anyone, so whatever an expression makes is measured.

`kept` sees the result of every call, filter, operator and literal, and of every step of a generator. A value counts as large
as it is when written out, however often its parts are shared, so what takes time and memory in proportion to a value is bounded
too. Only what makes much out of little must be foreseen: `Foresight` has a rule for each.

Time cannot be foreseen, and C code that takes long (two large texts compared at every place) can be broken off by nothing in
its own process. So this process computes only with what has at most `HERE_MAX` characters: nothing that C code does with it
takes longer than a second or two. A rendering that meets a larger value is begun again elsewhere
(`nightshift.tasks._subprocess`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedFormatter

from nightshift.tasks._values import STYLES, VIEWS, Large, Rendering, Style

SIZE_MAX: Final = 8 * 1024 * 1024
"""Size of what an expression may produce (`_size`), and characters of output."""
LARGE: Final = 1024 * 1024
LARGE_MAX: Final = 8 * SIZE_MAX
"""Sizes of all values of at least `LARGE` that one rendering may produce: a template can hold many of them at once."""
COPIED_MAX: Final = 2**33
HERE_MAX: Final = 32 * 1024
"""Size of what is computed with in the process that asks for the text: the square of it is a second or two of C code."""
HERE_ALL: Final = 16 * 1024 * 1024
"""Sizes of all values that one rendering may make here, and `VALUE` for each: a namespace can hold them all at once."""
VALUE: Final = 256
ITEM: Final = 8
"""What an item of a list counts besides its content: a list of nothing takes memory too."""


class Now:
    """The rendering in progress. large: the sizes of the large values that it has produced. here: it is to meet no more than
    `HERE_MAX`. made: about what all its values take here, if none is let go of."""

    large = 0
    made = 0
    here = False
    style: Style = STYLES[Rendering.SQL]


def within(size: int) -> None:
    """Raises SecurityError, or Large."""
    if size > HERE_MAX and Now.here:
        raise Large
    if size > SIZE_MAX:
        raise SecurityError(f"an expression makes more than {SIZE_MAX:,} characters, or items of {ITEM} characters each")


def size_of(value: Any, known: dict[int, int] | None = None) -> int:
    """Characters, `ITEM` for each item, bytes of a whole number, places of a decimal; parts that are shared count each time.

    Stops beyond `SIZE_MAX`. known: sizes of the lists and mappings that this measuring has already met, by id.
    """
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 8
    if isinstance(value, range):
        return len(value) * ITEM
    if isinstance(value, Decimal):
        return abs(value.adjusted())
    if not isinstance(value, (list, tuple, set, frozenset, dict, *VIEWS)):
        return 0
    known = {} if known is None else known
    if id(value) not in known:
        size = 0
        for item in _parts(value):
            size += ITEM + size_of(item, known)
            if size > SIZE_MAX:
                break
        known[id(value)] = size
    return known[id(value)]


def _parts(value: Any) -> Iterable[Any]:
    mapping = value.mapping if isinstance(value, VIEWS) else value
    return itertools.chain(mapping, mapping.values()) if isinstance(mapping, Mapping) else mapping


def _charge(size: int) -> None:
    if Now.here:
        Now.made += VALUE + size
        if Now.made > HERE_ALL:
            raise Large


def kept(value: Any) -> Any:
    """The value itself, measured, and as the run writes it. An iterator is measured as it goes."""
    if isinstance(value, Iterator):
        _charge(0)
        return counted(value)
    if isinstance(value, range):
        return value  # The sandbox bounds it, and what is made of it is measured.
    if isinstance(value, set | frozenset):
        # The order of a set of texts is another one in every process.
        value = tuple(sorted(value, key=repr))
    value = Now.style.made(value)
    size = size_of(value)
    within(size)
    _charge(size)
    if size >= LARGE:
        Now.large += size
        if Now.large > LARGE_MAX:
            raise SecurityError(f"the template makes more than {LARGE_MAX:,} characters in large values")
    return value


def counted(values: Iterator[Any]) -> Iterator[Any]:
    size = 0
    for value in values:
        size += ITEM + size_of(value)
        within(size)
        yield value


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        within((left.bit_length() + right.bit_length()) // 8)
    elif isinstance(right, int):
        within(size_of(left) * right)
    elif isinstance(left, int):
        within(left * size_of(right))
    return kept(left * right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        # In bits: a power takes more time than its size.
        within(left.bit_length() * max(right, 0))
    return kept(left**right)


def _add(left: Any, right: Any) -> Any:
    within(size_of(left) + size_of(right))
    return kept(left + right)


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        written = Now.style.written
        if isinstance(right, dict):
            right = {key: written(value) for key, value in right.items()}
        else:
            right = tuple(map(written, right)) if isinstance(right, tuple) else (written(right),)
        Foresight.percent(left, tuple(right.values()) if isinstance(right, dict) else right)
    return kept(left % right)


BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "*": _multiply,
    "**": _power,
    "+": _add,
    "%": _modulo,
    "-": lambda left, right: kept(left - right),
    "/": lambda left, right: kept(left / right),
    "//": lambda left, right: kept(left // right),
}
UNARY: Final[Mapping[str, Callable[[Any], Any]]] = {"-": lambda value: kept(-value), "+": lambda value: kept(+value)}


def widest(values: Iterable[Any]) -> int:
    return max((abs(value) for value in values if isinstance(value, int)), default=0)


def _longest(values: Iterable[Any]) -> int:
    return max(map(size_of, values), default=0)


class Foresight:
    """Refuses a text's method, or a filter, that would make much out of little. Each rule gets the text and the arguments."""

    @staticmethod
    def percent(text: str | bytes, arguments: tuple[Any, ...]) -> None:
        shown = text if isinstance(text, str) else text.decode("latin-1")
        width = max((int(digits) for digits in _NUMBER.findall(shown)), default=0)
        if "*" in shown:
            width = max(width, widest(arguments))
        _too_wide(width)
        within(len(shown) + shown.count("%") * (width + _longest(arguments)))

    @staticmethod
    def padded(text: Any, arguments: tuple[Any, ...]) -> None:
        within(widest(arguments))

    @staticmethod
    def expanded(text: Any, arguments: tuple[Any, ...]) -> None:
        within(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * (widest(arguments) or 8))

    @staticmethod
    def joined(text: Any, arguments: tuple[Any, ...]) -> None:
        (items, *_) = arguments or ((),)
        within(size_of(items) + len(text) * len(items))

    @staticmethod
    def replaced(text: Any, arguments: tuple[Any, ...]) -> None:
        old, new, *_ = (*arguments, "", "")
        if type(old) is type(new) is type(text):
            within(len(text) + text.count(old) * len(new))

    @staticmethod
    def translated(text: Any, arguments: tuple[Any, ...]) -> None:
        (table, *_) = arguments or ((),)
        within(len(text) * _longest(table.values() if isinstance(table, dict) else table if isinstance(table, list) else ()))

    @staticmethod
    def indented(text: Any, arguments: tuple[Any, ...]) -> None:
        within(len(text) + (text.count("\n") + 1) * max(widest(arguments), _longest(arguments)))

    @staticmethod
    def wrapped(text: Any, arguments: tuple[Any, ...]) -> None:
        """At worst, each character stands in a line of its own."""
        within(len(text) * max(_longest(arguments), 1))

    @staticmethod
    def linked(text: Any, arguments: tuple[Any, ...]) -> None:
        within(len(text) + sum(map(text.count, ".:@")) * _longest(arguments))

    @staticmethod
    def nested(value: Any, arguments: tuple[Any, ...]) -> None:
        """JSON of a value: each item stands in a line of its own."""
        if width := widest(arguments):
            within(size_of(value) + _indents(value, 1) * width)

    @staticmethod
    def summed(value: Any, arguments: tuple[Any, ...]) -> None:
        """Lists are copied again with each one that is added; this takes time, and no bytecode in which to break it off."""
        if any(isinstance(item, list | tuple | dict) for item in value) and len(value) * size_of(value) > COPIED_MAX:
            raise SecurityError(f"sum of {len(value):,} lists copies more than {COPIED_MAX:,} bytes")


def _indents(value: Any, depth: int) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(depth + _indents(item, depth + 1) for item in items)


_NUMBER: Final = re.compile(r"\d+")
METHODS: Final[Mapping[str, Callable[[Any, tuple[Any, ...]], None]]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), Foresight.padded),
    "expandtabs": Foresight.expanded,
    "join": Foresight.joined,
    "replace": Foresight.replaced,
    "translate": Foresight.translated,
}
FILTERS: Final[Mapping[str, Callable[[Any, tuple[Any, ...]], None]]] = {
    **dict.fromkeys(("batch", "center", "slice"), Foresight.padded),
    "format": Foresight.percent,
    "indent": Foresight.indented,
    "replace": Foresight.replaced,
    "sum": Foresight.summed,
    "tojson": Foresight.nested,
    "urlize": Foresight.linked,
    "wordwrap": Foresight.wrapped,
}


def _too_wide(width: int) -> None:
    if width > SIZE_MAX:
        raise SecurityError("a format has a field that is too wide")


class Formatter(SandboxedFormatter):
    """`str.format`, bounded field by field: a width may come from a value."""

    _length = 0

    def __init__(self, env: Any, **kwargs: Any) -> None:
        super().__init__(env, **kwargs)
        self.fields: list[Any] = []

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        found = super().get_field(field_name, args, kwargs)
        self.fields.append(found[0])
        return found

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(Now.style.written(value) if conversion else value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        if not format_spec:
            value = Now.style.written(value)
        widths = sum(int(digits) for digits in _NUMBER.findall(format_spec))
        _too_wide(widths)
        self._length += widths + size_of(value) + len(format_spec)
        within(self._length)
        return super().format_field(value, format_spec)


class Buffer(list[str]):
    """What a block writes before it becomes a value."""

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def append(self, part: str) -> None:
        self.extend((part,))

    def extend(self, parts: Iterable[str]) -> None:
        parts = tuple(parts)
        self._length += sum(map(len, parts))
        within(self._length)
        super().extend(parts)
