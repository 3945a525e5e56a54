"""Which names of a template are columns, and what is not a value although it looks like a column.

A name that is called (`range(3)`, `part.items()`) is a function or a method, because no value can be called; anywhere else it
is a column or a field, whatever Jinja2 or Python has under that name.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame

FUNCTIONS: Final = ("cycler", "dict", "joiner", "namespace", "range")
"""What templates may call; `Environment` has them as attributes."""
_CONSTANTS: Final = {True: "true", False: "false", None: "none"}
_RENAME: Final = "If the query has a column of that name, rename it with AS"


CALLED: Final = "call"
"""The context of `value.name` in a tree, where it is called."""


class Unfolded(CodeGenerator):
    """Leaves what needs no row to the rendering, which has a clock: Jinja2 would compute it whenever a job is parsed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.optimizer = None

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible


class _Reading(Unfolded, meta.TrackingCodeGenerator):
    """`meta.find_undeclared_variables` without Jinja2's folding."""


def _read_by(tree: nodes.Template) -> set[str]:
    """The names that it reads, and may not have given a value before. Jinja2 also finds what an `if` alone gives one."""
    reading = _Reading(tree.environment)
    reading.visit(tree)
    return reading.undeclared_identifiers.intersection(_unset(tree, set()))


def _unset(node: nodes.Node, given: set[str]) -> Iterator[str]:
    """The names that a part reads where they may lack a value. given: those that have one; adds what have one after it.

    An `if` gives what all of its branches give. Whatever else has a body keeps what that gives, and a block knows nothing of
    what is around it.
    """
    if isinstance(node, nodes.Name | nodes.NSRef) and getattr(node, "ctx", "load") == "load" and node.name not in given:
        yield node.name
    if isinstance(node, nodes.If):
        branches = [node, *node.elif_]
        for each in branches:
            yield from _unset(each.test, given)
        ends = [set(given) for _ in (*branches, node)]
        for body, end in zip((*(each.body for each in branches), node.else_), ends, strict=True):
            for part in body:
                yield from _unset(part, end)
        given |= set.intersection(*ends)
        return
    for child in node.iter_child_nodes(only=_BEFORE):
        yield from _unset(child, given)
    own = _stored(node.iter_child_nodes(only=("target", "targets", "args")))
    for field in (name for name in node.fields if name not in _BEFORE):
        if isinstance(node, nodes.Expr | nodes.Output | nodes.Assign):
            inside = given  # Nothing here has a body.
        else:
            inside = set() if isinstance(node, nodes.Block) else given | (set() if field == "else_" else own)
        for child in node.iter_child_nodes(only=(field,)):
            yield from _unset(child, inside)
    given |= (
        own if isinstance(node, nodes.Assign | nodes.AssignBlock) else {node.name} if isinstance(node, nodes.Macro) else set()
    )


_BEFORE: Final = ("iter", "values", "node", "call")
"""The parts of a node that are computed before its own names have a value."""


def _stored(parts: Iterable[nodes.Node]) -> set[str]:
    names = (name for part in parts for name in (part, *part.find_all(nodes.Name)) if isinstance(name, nodes.Name))
    return {name.name for name in names if name.ctx in ("store", "param")}


class Refused(jinja2.TemplateSyntaxError):
    """What Jinja2 would compile. remedy: a sentence without a full stop."""

    def __init__(self, message: str, remedy: str, line: int) -> None:
        super().__init__(message, line)
        self.remedy = remedy


@dataclass(frozen=True)
class Problem:
    """problem, remedy: sentences without a full stop. line: of the template."""

    problem: str
    remedy: str
    line: int


def prepare(tree: nodes.Template) -> tuple[str, ...]:
    """Tells what is called from what is read, in the tree; returns the columns that it reads, sorted.

    Raises Refused.
    """
    _refuse_the_like(tree)
    own = _bound(tree)
    for call in tree.find_all(nodes.Call):
        called = call.node
        if isinstance(called, nodes.Name) and called.name in FUNCTIONS and called.name not in own:
            call.node = nodes.EnvironmentAttribute(called.name, lineno=called.lineno, environment=tree.environment)
        elif isinstance(called, nodes.Getattr):
            called.ctx = CALLED
    return tuple(sorted(_read_by(tree)))


def problems(tree: nodes.Template, columns: Container[str]) -> Iterator[Problem]:
    """What would be written although it is not a value. tree: prepared. columns: of the rows, as far as they are known."""
    read = _read_by(tree)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in read:
            yield Problem(
                f"The template calls {call.node.name!r}, which is no function",
                f"Write a column without parentheses, as {{{{ {call.node.name} }}}}. The functions are {', '.join(FUNCTIONS)}",
                call.lineno,
            )
    yield from _constants(tree, columns)
    yield from _jinjas(tree, frozenset(), columns)


def _bound(tree: nodes.Template) -> set[str]:
    """The names that the template itself gives a meaning."""
    return _stored([tree]) | {macro.name for macro in tree.find_all(nodes.Macro)}


def _refuse_the_like(tree: nodes.Template) -> None:
    """Jinja2 makes Python variables of names, and Python takes some that look alike for one."""
    seen: dict[str, str] = {}
    names = [(each.name, each.lineno) for each in tree.find_all(nodes.Name)]
    names += [(each.name, each.lineno) for each in tree.find_all(nodes.Macro)]
    for name, line in names:
        folded = unicodedata.normalize("NFKC", name)
        if seen.setdefault(folded, name) != name:
            raise Refused(f"Python takes {name!r} and {seen[folded]!r} for one name", "Rename one of them with AS", line)
    for each in tree.find_all(nodes.EvalContextModifier):
        if not all(isinstance(option.value, nodes.Const) for option in each.options):
            raise Refused("autoescape takes only true or false", "Leave it out: prompts are not HTML", each.lineno)


def _constants(tree: nodes.Template, columns: Container[str]) -> Iterator[Problem]:
    """Constants where a column was meant."""
    written = [part for output in tree.find_all(nodes.Output) for part in output.nodes]
    written += [part for concat in tree.find_all(nodes.Concat) for part in concat.nodes]
    written += [each.node for each in tree.find_all(nodes.Filter) if each.node is not None]
    meant = {id(each) for each in written}
    for const in tree.find_all(nodes.Const):
        if not (const.value is None or isinstance(const.value, bool)):
            continue
        name = _CONSTANTS[const.value]
        if id(const) in meant or name in columns or name.capitalize() in columns:
            yield Problem(f"{name!r} is a constant in templates, never a column", _RENAME, const.lineno)


def _jinjas(node: nodes.Node, bound: frozenset[str], columns: Container[str]) -> Iterator[Problem]:
    """Jinja2's own names where a value is read. bound: those that have a meaning here."""
    bound |= {"self"}
    for field, value in node.iter_fields():
        inner = bound
        if isinstance(node, nodes.For) and field == "body":
            inner |= {"loop"}
        elif isinstance(node, nodes.Macro) and field == "body":
            inner |= {"caller", "varargs", "kwargs"} - {each.name for each in node.args}
        elif isinstance(node, nodes.Block) and field == "body":
            inner |= {"super"}
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, nodes.Node):
                continue
            if isinstance(child, nodes.Name) and child.ctx == "load" and child.name in inner:
                yield from _read(node, child, columns)
            yield from _jinjas(child, inner, columns)


def _read(parent: nodes.Node, name: nodes.Name, columns: Container[str]) -> Iterator[Problem]:
    """Attributes of `loop` are values, as are the arguments of a macro; `self` has methods alone."""
    called = isinstance(parent, nodes.Call) and parent.node is name
    used = isinstance(parent, nodes.Getattr) and (name.name == "loop" or parent.ctx == CALLED)
    if called or used or (name.name in ("varargs", "kwargs") and name.name not in columns):
        return
    yield Problem(f"{name.name!r} is Jinja2's own name here, never a column", _RENAME, name.lineno)
