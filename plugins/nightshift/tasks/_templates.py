"""Jinja2 for job files: sandboxed, deterministic and bounded.

A template is its author's program, but its rows may come from anybody. So whatever an expression makes is measured: `_kept`
sees the result of every call, filter, operator and literal, and of every step of a generator. A value counts as large as it is
when written out, however often its parts are shared, so what takes time and memory in proportion to a value is bounded too.
Only what makes much out of little must be foreseen: `_Foresight` has a rule for each.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

SIZE_MAX: Final = 8 * 1024 * 1024
"""Size of what an expression may produce (`_size`), and characters of output."""
LARGE: Final = 1024 * 1024
LARGE_MAX: Final = 8 * SIZE_MAX
"""Sizes of all values of at least `LARGE` that one rendering may produce: a template can hold many of them at once."""
COPIED_MAX: Final = 2**33
ITEM: Final = 8
"""What an item of a list counts besides its content: a list of nothing takes memory too."""


def _within(size: int) -> None:
    if size > SIZE_MAX:
        raise SecurityError(f"an expression makes more than {SIZE_MAX:,} characters, or items of {ITEM} characters each")


def _size(value: Any, known: dict[int, int] | None = None) -> int:
    """Characters, `ITEM` for each item, bytes of a number; parts that are shared count each time. Stops beyond `SIZE_MAX`.

    known: sizes of the lists and mappings that this measuring has already met, by id.
    """
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 8
    if isinstance(value, range):
        return len(value) * ITEM
    if not isinstance(value, list | tuple | set | frozenset | dict):
        return 0
    known = {} if known is None else known
    if id(value) not in known:
        size = 0
        for item in itertools.chain(value, value.values()) if isinstance(value, dict) else value:
            size += ITEM + _size(item, known)
            if size > SIZE_MAX:
                break
        known[id(value)] = size
    return known[id(value)]


class _Spent:
    """large: the sizes of the large values that the rendering in progress has produced."""

    large = 0


def _kept(value: Any) -> Any:
    """The value itself, measured. An iterator is measured as it goes."""
    if isinstance(value, Iterator):
        return _counted(value)
    size = _size(value)
    _within(size)
    if size >= LARGE:
        _Spent.large += size
        if _Spent.large > LARGE_MAX:
            raise SecurityError(f"the template makes more than {LARGE_MAX:,} characters in large values")
    return value


def _counted(values: Iterator[Any]) -> Iterator[Any]:
    size = 0
    for value in values:
        size += ITEM + _size(value)
        _within(size)
        yield value


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _within((left.bit_length() + right.bit_length()) // 8)
    elif isinstance(right, int):
        _within(_size(left) * right)
    elif isinstance(left, int):
        _within(left * _size(right))
    return _kept(left * right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        # In bits: a power takes more time than its size.
        _within(left.bit_length() * max(right, 0))
    return _kept(left**right)


def _add(left: Any, right: Any) -> Any:
    _within(_size(left) + _size(right))
    return _kept(left + right)


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        _Foresight.percent(left, right if isinstance(right, tuple) else (right,))
    return _kept(left % right)


def _widest(values: Iterable[Any]) -> int:
    return max((abs(value) for value in values if isinstance(value, int)), default=0)


def _longest(values: Iterable[Any]) -> int:
    return max(map(_size, values), default=0)


class _Foresight:
    """Refuses a text's method, or a filter, that would make much out of little. Each rule gets the text and the arguments."""

    @staticmethod
    def percent(text: str | bytes, arguments: tuple[Any, ...]) -> None:
        shown = text if isinstance(text, str) else text.decode("latin-1")
        widest = max((int(digits) for digits in _NUMBER.findall(shown)), default=0)
        if "*" in shown:
            widest = max(widest, _widest(arguments))
        _too_wide(widest)
        _within(len(shown) + shown.count("%") * (widest + _longest(arguments)))

    @staticmethod
    def padded(text: Any, arguments: tuple[Any, ...]) -> None:
        _within(_widest(arguments))

    @staticmethod
    def expanded(text: Any, arguments: tuple[Any, ...]) -> None:
        _within(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * (_widest(arguments) or 8))

    @staticmethod
    def joined(text: Any, arguments: tuple[Any, ...]) -> None:
        (items, *_) = arguments or ((),)
        _within(_size(items) + len(text) * len(items))

    @staticmethod
    def replaced(text: Any, arguments: tuple[Any, ...]) -> None:
        old, new, *_ = (*arguments, "", "")
        if type(old) is type(new) is type(text):
            _within(len(text) + text.count(old) * len(new))

    @staticmethod
    def translated(text: Any, arguments: tuple[Any, ...]) -> None:
        (table, *_) = arguments or ((),)
        _within(len(text) * _longest(table.values() if isinstance(table, dict) else table if isinstance(table, list) else ()))

    @staticmethod
    def indented(text: Any, arguments: tuple[Any, ...]) -> None:
        _within(len(text) + (text.count("\n") + 1) * max(_widest(arguments), _longest(arguments)))

    @staticmethod
    def wrapped(text: Any, arguments: tuple[Any, ...]) -> None:
        """At worst, each character stands in a line of its own."""
        _within(len(text) * max(_longest(arguments), 1))

    @staticmethod
    def linked(text: Any, arguments: tuple[Any, ...]) -> None:
        _within(len(text) + sum(map(text.count, ".:@")) * _longest(arguments))

    @staticmethod
    def nested(value: Any, arguments: tuple[Any, ...]) -> None:
        """JSON of a value: each item stands in a line of its own."""
        if widest := _widest(arguments):
            _within(_size(value) + _indents(value, 1) * widest)

    @staticmethod
    def summed(value: Any, arguments: tuple[Any, ...]) -> None:
        """Lists are copied again with each one that is added; this takes time, and no bytecode in which to break it off."""
        if any(isinstance(item, list | tuple | dict) for item in value) and len(value) * _size(value) > COPIED_MAX:
            raise SecurityError(f"sum of {len(value):,} lists copies more than {COPIED_MAX:,} bytes")


def _indents(value: Any, depth: int) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(depth + _indents(item, depth + 1) for item in items)


_NUMBER: Final = re.compile(r"\d+")
_METHODS: Final[Mapping[str, Callable[[Any, tuple[Any, ...]], None]]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _Foresight.padded),
    "expandtabs": _Foresight.expanded,
    "join": _Foresight.joined,
    "replace": _Foresight.replaced,
    "translate": _Foresight.translated,
}
_FILTERS: Final[Mapping[str, Callable[[Any, tuple[Any, ...]], None]]] = {
    **dict.fromkeys(("batch", "center", "slice"), _Foresight.padded),
    "format": _Foresight.percent,
    "indent": _Foresight.indented,
    "replace": _Foresight.replaced,
    "sum": _Foresight.summed,
    "tojson": _Foresight.nested,
    "urlize": _Foresight.linked,
    "wordwrap": _Foresight.wrapped,
}
_TEXTS: Final = frozenset({"center", "format", "indent", "replace", "urlize", "wordwrap"})
"""The filters that take any value as its text."""


def _too_wide(width: int) -> None:
    if width > SIZE_MAX:
        raise SecurityError("a format has a field that is too wide")


class _Formatter(SandboxedFormatter):
    """`str.format`, bounded field by field: a width may come from a value."""

    _length = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        widths = sum(int(digits) for digits in _NUMBER.findall(format_spec))
        _too_wide(widths)
        self._length += widths + _size(value) + len(format_spec)
        _within(self._length)
        return super().format_field(value, format_spec)


class _Buffer(list[str]):
    """What a block writes before it becomes a value."""

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def append(self, part: str) -> None:
        self.extend((part,))

    def extend(self, parts: Iterable[str]) -> None:
        parts = tuple(parts)
        self._length += sum(map(len, parts))
        _within(self._length)
        super().extend(parts)


class _Unfolded(CodeGenerator):
    """Computes nothing when a template is compiled: a file of 100 KiB may hold minutes of filters on constants."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.optimizer = None

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible


class _Names(_Unfolded, meta.TrackingCodeGenerator):
    """Finds what a template reads, like `jinja2.meta.find_undeclared_variables`."""


class _Code(_Unfolded):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._measured(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._measured(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._measured(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _measured(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.kept(")
        visit(node, frame)
        self.write(")")

    def buffer(self, frame: Frame) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.buffer()")


class Environment(ImmutableSandboxedEnvironment):
    """`compile_template` makes templates with it; it has no loader, no randomness, and no way out."""

    code_generator_class = _Code
    intercepted_binops = frozenset({"*", "**", "+", "%"})
    # Compiled templates call these.
    kept = staticmethod(_kept)
    buffer = _Buffer

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=_shown)
        self.binop_table = {**self.binop_table, "*": _multiply, "**": _power, "+": _add, "%": _modulo}
        # A row must give the same text every time it is rendered.
        del self.filters["random"], self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        for name, filter_ in self.filters.items():
            self.filters[name] = _guarded(name, filter_)

    def joined(self, parts: tuple[Any, ...]) -> str:
        texts = [str(_shown(part)) for part in parts]
        _within(sum(map(len, texts)))
        text: str = _kept("".join(texts))
        return text

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja2 wraps str.format.
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and name in ("format", "format_map"):
            return _kept(_Formatter(__self).vformat(owner, args, kwargs if name == "format" else dict(*args)))
        if isinstance(owner, str | bytes):
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
            if name in _METHODS:
                _METHODS[name](owner, args + tuple(kwargs.values()))
        if isinstance(owner, str | bytes | int | float):
            _within(_widest((*args, *kwargs.values())))
        return _kept(super().call(__context, __obj, *args, **kwargs))


def _guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose work is foreseen and whose result is measured. Jinja2 passes some the context or the like first."""
    skip = 1 if hasattr(filter_, "jinja_pass_arg") else 0
    foresee = _FILTERS.get(name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if (foresee or name == "join") and len(args) > skip:
            value = str(args[skip]) if name in _TEXTS else args[skip]
            if name in ("join", "sum"):
                value = list(value)
                args = (*args[:skip], value, *args[skip + 1 :])
            rest = (*args[skip + 1 :], *kwargs.values())
            if foresee:
                foresee(value, rest)
            else:
                _Foresight.joined(str(rest[0] if rest else ""), (value,))
        return _kept(filter_(*args, **kwargs))

    if skip:
        guarded.jinja_pass_arg = filter_.jinja_pass_arg  # type: ignore[attr-defined]
    return guarded


def _to_json(value: Any, indent: int | None = None) -> str:
    """JSON for a prompt: unlike Jinja2's own, without HTML escapes, and with dates and decimals as text."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)


def _shown(value: Any) -> Any:
    """What an expression writes for a value: nothing for NULL, else its text."""
    if value is None:
        return ""
    return value


def plain(value: Any) -> Any:
    """A row's value as templates see it: BYTES become UTF-8 text, also inside arrays and structs.

    Raises UnicodeDecodeError for BYTES that are not UTF-8.
    """
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


_environment: Environment | None = None


def compile_template(source: str) -> tuple[jinja2.Template, tuple[str, ...]]:
    """A template and the columns it reads, sorted. Raises jinja2.TemplateSyntaxError."""
    global _environment
    _environment = _environment or Environment()
    # What a template may call without a row, for example `range`, is not a column.
    names = _Names(_environment)
    names.visit(_environment.parse(source))
    columns = tuple(sorted(names.undeclared_identifiers - _environment.globals.keys()))
    return _environment.from_string(source), columns


def render(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """The text for one row; one at a time. Raises SecurityError if it grows too long, and whatever the template raises."""
    parts: list[str] = []
    size = _Spent.large = 0
    # Like Template.generate, but without its context, whose chained dictionaries take most of a short template's time.
    context = template.new_context({**template.environment.globals, **values}, shared=True)
    for part in template.root_render_func(context):
        size += len(part)
        if size > SIZE_MAX:
            raise SecurityError(f"the text is longer than {SIZE_MAX:,} characters")
        parts.append(part)
    return "".join(parts)
