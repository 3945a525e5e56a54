"""Jinja2 for job files: sandboxed, deterministic and bounded (`nightshift.tasks._bounds`).

A template is its author's program, but its rows may come from anyone. It holds values only (`nightshift.tasks._values`):
functions, methods and the like are there to be called, and never written.
"""

from __future__ import annotations

import datetime
import functools
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from jinja2 import filters, meta, nodes
from jinja2.compiler import Frame
from jinja2.exceptions import SecurityError
from jinja2.lexer import TOKEN_FLOAT
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nightshift.tasks import _names
from nightshift.tasks._bounds import (
    BINARY,
    FILTERS,
    METHODS,
    SIZE_MAX,
    UNARY,
    Buffer,
    Foresight,
    Formatter,
    Now,
    kept,
    size_of,
    widest,
    within,
)
from nightshift.tasks._null import Null, Searched, made_of, needed, part_of
from nightshift.tasks._numbers import Literal
from nightshift.tasks._values import STYLES, VIEWS, Rendering, checked, is_null, written

_TEXTUAL: Final = {
    *("capitalize", "center", "e", "escape", "forceescape", "format", "indent", "lower", "replace", "safe", "string"),
    *("striptags", "title", "trim", "truncate", "upper", "urlize", "wordcount", "wordwrap"),
}
"""The filters that make a text of any value."""
_WRITTEN_LATER: Final = frozenset({"urlencode", "xmlattr"})
_OF_MAPPINGS: Final = frozenset({"dictsort", "items", "xmlattr"})
_METHODS_OF: Final = (str, bytes, int, float, datetime.date, datetime.time)
"""What has methods that make a text or a number. Those of a mapping return what is in it."""
_CLOCKS: Final = frozenset({"now", "today", "utcnow"})
"""Methods of dates that ask what time it is: a row must give the same text whenever it is rendered."""


_OF_ITEMS: Final = frozenset({"sum", "urlencode", "xmlattr"})
_MADE: Final = _TEXTUAL | _OF_ITEMS | {"abs", "count", "filesizeformat", "float", "int", "length", "round"}
"""The filters whose result is made of their value and arguments, and neither one of these nor JSON, which says null.
Of `_OF_ITEMS`, also of the items of these."""


def _shown(value: Any) -> Any:
    return value if type(value) is str else Now.style.shown(written(value))


class _Exact(jinja2.lexer.Lexer):
    """Keeps the text of a number with a point: of 0.1 the float says less."""

    def wrap(
        self, stream: Iterable[tuple[int, str, str]], name: str | None = None, filename: str | None = None
    ) -> Iterator[jinja2.lexer.Token]:
        texts: deque[str] = deque()

        def noted() -> Iterator[tuple[int, str, str]]:
            for line, kind, text in stream:
                if kind == TOKEN_FLOAT:
                    texts.append(text.replace("_", ""))
                yield line, kind, text

        for token in super().wrap(noted(), name, filename):
            exact: Any = Literal.of(texts.popleft()) if token.type == TOKEN_FLOAT else token.value
            yield token._replace(value=exact)


class _Code(_names.Unfolded):
    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.value, Literal):
            self.write(f"environment.literal({str(node.value.exact)!r})")
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802
        if node.op not in ("in", "notin"):
            super().visit_Operand(node, frame)
            return
        self.write(" in " if node.op == "in" else " not in ")
        self.write("environment.searched(")
        self.visit(node.expr, frame)
        self.write(")")

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802
        self.write("environment.method(" if node.ctx == _names.CALLED else "environment.getattr(")
        self.visit(node.node, frame)
        self.write(f", {node.attr!r})")

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
    """`compile_template` makes templates with it; it has no loader, no randomness, no clock, and no way out."""

    code_generator_class = _Code
    intercepted_binops = frozenset(BINARY)
    intercepted_unops = frozenset(UNARY)
    # Compiled templates call these.
    kept = staticmethod(kept)
    buffer = Buffer
    literal = staticmethod(functools.lru_cache(1024)(Literal.of))

    def __init__(self) -> None:
        super().__init__(
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            keep_trailing_newline=True,
            finalize=_shown,
        )
        self.binop_table = {**self.binop_table, **{sign: _operator(compute) for sign, compute in BINARY.items()}}
        self.unop_table = {**self.unop_table, **{sign: _operator(compute) for sign, compute in UNARY.items()}}
        # Not as globals: there, they would hide columns of these names.
        for name in _names.FUNCTIONS:
            setattr(self, name, self.globals[name])
        self.globals.clear()
        # A row must give the same text every time it is rendered.
        del self.filters["random"]
        self.tests["none"] = is_null
        self.tests["in"] = lambda value, seq: value in self.searched(seq)
        for name, filter_ in self.filters.items():
            self.filters[name] = _guarded(name, filter_)
        self.filters |= {"attr": self.getattr, "join": jinja2.pass_environment(_joined_list)}
        self.filters["tojson"] = _guarded("tojson", lambda value, indent=None: Now.style.json(value, indent))
        self.filters["pprint"] = _guarded("pprint", lambda value: Now.style.pretty(value))

    @functools.cached_property
    def lexer(self) -> _Exact:
        return _Exact(self)

    def searched(self, value: Any) -> Any:
        """What is on the right of `in`."""
        return Searched(value) if isinstance(value, str) and not isinstance(value, Null) else value

    def joined(self, parts: tuple[Any, ...]) -> str:
        texts = [str(Now.style.shown(part)) for part in parts]
        within(sum(map(len, texts)))
        text: str = made_of(kept("".join(texts)), *parts)
        return text

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A field or an attribute that is a value. Those of NULL are NULL."""
        if isinstance(obj, Null):
            return part_of(obj, attribute)
        if isinstance(obj, str) and not hasattr(obj, attribute):
            # A JSON column is exported as text.
            way = f"take it in the query, JSON_VALUE(column, '$.{attribute}') AS {attribute}"
            return self.undefined(f"'str object' has no attribute {attribute!r}. If it is JSON, {way}", obj=obj, name=attribute)
        return self._value(
            obj, attribute, self.method(obj, attribute) if not isinstance(obj, dict) else obj.get(attribute, self)
        )

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Null):
            return part_of(obj, argument)
        return made_of(self._value(obj, argument, super().getitem(obj, argument)), obj)

    def method(self, obj: Any, attribute: str) -> Any:
        """What is called as `obj.attribute`. NULL has the methods of a text and of a struct; of another type it has none."""
        if isinstance(obj, Null) and not hasattr(Null, attribute):
            return needed(obj)
        return super().getattr(obj, attribute)

    def _value(self, obj: Any, name: Any, found: Any) -> Any:
        """found, if it is one; the environment itself stands for nothing."""
        if found is self:
            return self.undefined(obj=obj, name=name)
        if callable(found) and not isinstance(found, jinja2.Undefined):
            return self.undefined(
                f"{name!r} is a method of {type(obj).__name__} and no field: it has no value", obj=obj, name=name
            )
        return found

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if (attr in _CLOCKS and isinstance(obj, datetime.date)) or (attr == "mapping" and isinstance(obj, VIEWS)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja2 wraps str.format.
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and name in ("format", "format_map"):
            formatter = Formatter(__self)
            text = kept(formatter.vformat(owner, args, kwargs if name == "format" else dict(*args)))
            return made_of(text, owner, *formatter.fields)
        if isinstance(owner, str | bytes):
            if name == "join" and args:
                args = (list(args[0]), *args[1:])
            if name in METHODS:
                METHODS[name](owner, args + tuple(kwargs.values()))
        if isinstance(owner, str | bytes | int | float):
            within(widest((*args, *kwargs.values())))
        result = kept(super().call(__context, __obj, *args, **kwargs))
        return made_of(result, owner, *_items(args), *kwargs.values()) if isinstance(owner, _METHODS_OF) else result


def _guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose work is foreseen and whose result is measured. Jinja2 passes some the context or the like first."""
    skip = 1 if hasattr(filter_, "jinja_pass_arg") else 0
    foresee = FILTERS.get(name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        sources = (*args[skip:], *kwargs.values()) if name in _MADE else ()
        if name in _OF_ITEMS:
            sources = tuple(_items(sources))
        if len(args) > skip:
            value, *rest = args[skip:]
            if name in _TEXTUAL:
                written = Now.style.written
                value = str(written(value))
                rest = [each if each is None else written(each) for each in rest]
                kwargs = {key: each if each is None else written(each) for key, each in kwargs.items()}
            elif name == "sum":
                value = list(value)
            elif name in _WRITTEN_LATER:
                checked(value)
            if name in _OF_MAPPINGS and isinstance(value, Null):
                value = {}
            if foresee:
                foresee(value, (*rest, *kwargs.values()))
            args = (*args[:skip], value, *rest)
        result = kept(filter_(*args, **kwargs))
        return made_of(result, *sources) if sources else result

    if skip:
        guarded.jinja_pass_arg = filter_.jinja_pass_arg  # type: ignore[attr-defined]
    return guarded


def _operator(compute: Callable[..., Any]) -> Callable[..., Any]:
    """An operator whose result may not be written if one of its values may not, or a part of one that it formats."""

    def operator(*values: Any) -> Any:
        return made_of(compute(*values), *_items(values))

    return operator


def _items(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and the items of those that are lists or mappings."""
    for value in values:
        yield value
        if isinstance(value, list | tuple | dict):
            yield from value.values() if isinstance(value, dict) else value


def _joined_list(environment: Environment, value: Iterable[Any], d: Any = "", attribute: Any = None) -> Any:
    """Jinja2's `join`, which writes each item as the run writes values."""
    if attribute is not None:
        value = map(filters.make_attrgetter(environment, attribute), value)
    items = kept(list(value))
    texts = [str(Now.style.written(each)) for each in items]
    between = str(Now.style.written(d))
    Foresight.joined(between, (texts,))
    return made_of(kept(between.join(texts)), value, d, *items)


_BY_NAME: Final = {
    "map": ("filter", 0),
    **dict.fromkeys(("select", "reject"), ("test", 0)),
    **dict.fromkeys(("selectattr", "rejectattr"), ("test", 1)),
}
"""Filters that take another, or a test, by its name: which, and the place among their arguments."""


@dataclass(frozen=True)
class Examined:
    """columns: what the template reads, sorted. reads_files: it includes or imports some.

    problems: what it would write although it is not a value.
    """

    columns: tuple[str, ...]
    reads_files: bool
    problems: tuple[_names.Problem, ...]


def compile_template(source: str) -> tuple[jinja2.Template, tuple[str, ...]]:
    """A template and the columns it reads, sorted. Raises jinja2.TemplateSyntaxError."""
    tree, columns = _parsed(source)
    return _the_environment().from_string(tree), columns


def examine_template(source: str, known: Container[str]) -> Examined:
    """known: the columns that rows have, as far as they are known. Raises as `nightshift.tasks.base.examine_template`."""
    tree, columns = _parsed(source)
    environment = _the_environment()
    environment.from_string(tree)
    known_names = {"filter": environment.filters, "test": environment.tests}
    for kind, name, line in _filters_and_tests(tree):
        if name not in known_names[kind]:  # Jinja2 looks at those of a branch, and at an argument, when it meets a row.
            raise jinja2.TemplateAssertionError(f"No {kind} named {name!r}.", line)
    reads_files = any(True for _ in meta.find_referenced_templates(tree))
    return Examined(columns, reads_files, tuple(_names.problems(tree, known)))


def _filters_and_tests(tree: nodes.Template) -> Iterator[tuple[str, str, int]]:
    """Kind, name and line of all, those among them that are arguments of others: ``map('upper')``."""
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        yield type(node).__name__.lower(), node.name, node.lineno
        kind, at = _BY_NAME.get(node.name, ("", 0)) if isinstance(node, nodes.Filter) else ("", 0)
        if kind and len(node.args) > at and isinstance(name := getattr(node.args[at], "value", None), str):
            yield kind, name, node.lineno


def mentioned(source: str) -> tuple[str, ...]:
    """The columns that a template reads, in the order in which it first names them. Raises as `compile_template`."""
    columns = _parsed(source)[1]
    named = (value for _, kind, value in _the_environment().lex(source) if kind == "name" and value in columns)
    return tuple(dict.fromkeys(named))


def _parsed(source: str) -> tuple[nodes.Template, tuple[str, ...]]:
    tree = _the_environment().parse(source)
    return tree, _names.prepare(tree)


@functools.cache
def _the_environment() -> Environment:
    return Environment()


def taken(values: Mapping[str, Any], rendering: Rendering) -> dict[str, Any]:
    """A row's values as templates see them. Raises UnicodeDecodeError for BYTES that are not UTF-8."""
    take = STYLES[rendering].taken
    return {name: value if type(value) is str else take(value, name) for name, value in values.items()}


def render(template: jinja2.Template, values: dict[str, Any], rendering: Rendering, *, here: bool = False) -> str:
    """The text for one row; one at a time. values: `taken`.

    Raises SecurityError if it grows too long, and whatever the template raises; Large, if it is to compute `here`.
    """
    parts: list[str] = []
    size = Now.large = Now.made = 0
    Now.style, Now.here = STYLES[rendering], here
    if here:
        for value in values.values():
            within(len(value) if type(value) is str else size_of(value))
    # Like Template.generate, but without its context, whose chained dictionaries take most of a short template's time.
    context = template.new_context(values, shared=True)
    for part in template.root_render_func(context):
        size += len(part)
        if size > SIZE_MAX:
            raise SecurityError(f"the text is longer than {SIZE_MAX:,} characters")
        parts.append(part)
    return "".join(parts)
