"""Jinja2 for job files: sandboxed, deterministic and bounded.

A template is its author's program, but its rows may come from anybody. So its work is bounded wherever a small
expression makes a large value: ``*``, ``**``, ``+``, ``~``, ``%``, padding, joining, replacing, and the output as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sized
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

SIZE_MAX: Final = 8 * 1024 * 1024
"""Characters (of a text), items (of a list) or bits (of a number) that an expression may produce, and characters of output."""

_WIDE_FIELD: Final = re.compile(r"\d{7,}")
_PADDING: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "batch", "slice", "tojson"})


def _within(size: int) -> None:
    if size > SIZE_MAX:
        raise SecurityError(f"an expression makes more than {SIZE_MAX:,} characters or items")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 0


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _within(left.bit_length() + right.bit_length())
    elif isinstance(right, int):
        _within(_size(left) * right)
    elif isinstance(left, int):
        _within(left * _size(right))
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _within(left.bit_length() * max(right, 0))
    return left**right


def _add(left: Any, right: Any) -> Any:
    _within(_size(left) + _size(right))
    return left + right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left, right if isinstance(right, tuple) else (right,))
    return left % right


def _check_format(text: str, values: tuple[Any, ...]) -> None:
    if _WIDE_FIELD.search(text) or any(isinstance(value, int) and abs(value) > SIZE_MAX for value in values if "*" in text):
        raise SecurityError("a format has a field that is too wide")
    _within(len(text) + text.count("%") * max((_size(value) for value in values), default=0))


def _check_method(name: str, owner: Any, arguments: tuple[Any, ...]) -> None:
    """Refuses a text's method whose result would be too large."""
    if name in _PADDING:
        widest = max((abs(value) for value in arguments if isinstance(value, int)), default=0)
        _within(widest * (owner.count("\t") if name == "expandtabs" else 1))
    elif name == "join" and arguments and isinstance(arguments[0], list | tuple):
        _within(sum(map(_size, arguments[0])) + len(owner) * len(arguments[0]))
    elif name == "replace" and len(arguments) >= 2 and all(isinstance(value, str) for value in arguments[:2]):
        _within(len(owner) + owner.count(arguments[0]) * len(arguments[1]))
    elif name in ("format", "format_map"):
        _check_format(owner, arguments)


class _Code(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Environment(ImmutableSandboxedEnvironment):
    """`compile_template` makes templates with it; it has no loader, no randomness, and no way out."""

    code_generator_class = _Code
    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True, finalize=_shown)
        self.binop_table = {**self.binop_table, "*": _multiply, "**": _power, "+": _add, "%": _modulo}
        # A row must give the same text every time it is rendered.
        del self.filters["random"], self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        for name in ("batch", "center", "format", "indent", "join", "replace", "slice", "tojson"):
            self.filters[name] = _guarded(name, self.filters[name])

    def joined(self, parts: tuple[Any, ...]) -> str:
        texts = [str(_shown(part)) for part in parts]
        _within(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja2 wraps str.format.
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_method(method.__name__, owner, args + tuple(kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)


def _guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that calls `_check_method` first. Jinja2 passes some of them the context, the environment or the like first."""
    skip = 1 if hasattr(filter_, "jinja_pass_arg") else 0

    def guarded(*args: Any, **kwargs: Any) -> Any:
        value, *rest = args[skip:]
        rest += kwargs.values()
        if name == "join":
            value = list(value)
            _check_method("join", str(rest[0] if rest else ""), (value,))
            args = (*args[:skip], value, *args[skip + 1 :])
        elif name == "indent":
            widest = max((_size(item) if isinstance(item, str) else int(item) for item in rest), default=4)
            _within(_size(value) + (str(value).count("\n") + 1) * widest)
        else:
            _check_method(name, str(value), tuple(rest))
        return filter_(*args, **kwargs)

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
    columns = tuple(sorted(meta.find_undeclared_variables(_environment.parse(source)) - _environment.globals.keys()))
    return _environment.from_string(source), columns


def render(template: jinja2.Template, values: Mapping[str, Any]) -> str:
    """The text for one row. Raises SecurityError if it grows too long, and whatever the template raises."""
    parts: list[str] = []
    size = 0
    # Like Template.generate, but without its context, whose chained dictionaries take most of a short template's time.
    context = template.new_context({**template.environment.globals, **values}, shared=True)
    for part in template.root_render_func(context):
        size += len(part)
        if size > SIZE_MAX:
            raise SecurityError(f"the text is longer than {SIZE_MAX:,} characters")
        parts.append(part)
    return "".join(parts)
