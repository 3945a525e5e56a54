"""A YAML file with the places of its parts: values for the model, lines and source text for messages.

A job, or a file of prices, is plain YAML of a bounded size: no anchors, aliases, merge keys or tags. A few hundred bytes of
aliases can stand for gigabytes, and Airflow's DAG processor reads all job files in one process. So each of these is refused
while nodes are composed, before any value is made.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from nightshift.fields.mistakes import FieldPath, Finding

_STRING_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

BYTES_MAX: Final = 128 << 10
"""Of a job file. The longest part is SQL, whose parser takes about a second for so much."""
NODES_MAX: Final = 10_000
"""Keys, values, list items: a JSON schema may list thousands of words."""
DEPTH_MAX: Final = 64
"""A job needs three levels; the rest is for a JSON schema."""

_NO_TEXT: Final = re.compile("[\x00\ud800-\udfff]")
"""What escapes (``"\\0"``) bring into a text, and UTF-8 or PostgreSQL cannot hold: Airflow loses all DAGs of its file."""

_REMEDIES = (
    (r"'\t' that cannot", "Indent with spaces; YAML does not allow tabs"),
    ("that cannot start any token", "Put the value in quotes"),
    ("unhashable key", 'Put a value that starts with {{ in quotes, as in "{{ summary }}"'),
    ("mapping values are not allowed", 'Check the indentation, and put text that contains ": " in quotes'),
    ("but found another document", "Keep one job per file; remove the second '---'"),
    ("could not determine a constructor", "Put the value in quotes"),
    ("expected <block end>", "Check the indentation, and put the whole value in quotes"),
    ("found unexpected end of stream", "Close the quotes"),
    ("special characters are not allowed", "Remove the character"),
)


class Unreadable(ValueError):
    """Text that is not one YAML document. line counts from 1; problem and remedy as in `SpecError`."""

    def __init__(self, line: int, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.line, self.problem, self.remedy = line, problem, remedy


class _Loader(yaml.SafeLoader):
    """Reads a scalar that is not a valid date or number as text, so that the model can say what is wrong with it.

    1:30, which YAML 1.1 reads as the number 90, is text too, and so is a number of more than 100 characters: Python reads
    hexadecimal ones of any length, but refuses to print them. Raises Unreadable for what no job needs.
    """

    def __init__(self, text: str, what: str) -> None:
        super().__init__(text)
        self._what = what
        self._nodes = self._depth = 0

    def fetch_flow_collection_start(self, token: Any) -> None:
        # Before compose_node sees them: the scanner's time grows with the square of the brackets that it looks ahead.
        _not_too_deep(self.flow_level + 1, self.line, self._what)
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        _refuse_shorthand(event, self._what)
        line = event.start_mark.line
        self._nodes += 1
        if self._nodes > NODES_MAX:
            problem = f"The file has more than {NODES_MAX:,} keys and values"
            raise Unreadable(line + 1, problem, "Keep long lists in a table, and join it in the query")
        self._depth += 1
        _not_too_deep(self._depth, line, self._what)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _MERGE_TAG:
                raise Unreadable(line + 1, f"{self._what} cannot merge mappings with <<", "Write the keys here")
            if bad := _NO_TEXT.search(node.value):
                raise Unreadable(line + 1, f"A text holds {bad[0]!a}, which no database stores", "Remove the character")
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBER_TAGS and (":" in node.value or len(node.value) > 100):
            return node.value
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError):
            if isinstance(node, yaml.ScalarNode):
                return node.value
            raise


def contents(path: Path) -> bytes:
    """A file's first bytes, one more than it may have. Raises OSError, also for a pipe or a device: it may never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is a pipe or a device, not a regular file")
        return file.read(BYTES_MAX + 1)


def _refuse_shorthand(event: Any, what: str) -> None:
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):
        remedy = "Write the value itself again, or put text that starts with * in quotes"
        raise Unreadable(line, f"{what} cannot use the YAML alias *{event.anchor}", remedy)
    if event.anchor is not None:
        raise Unreadable(
            line, f"{what} cannot use the YAML anchor &{event.anchor}", "Remove it, or put text that starts with & in quotes"
        )
    if event.tag is not None:
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise Unreadable(line, f"{what} cannot use the YAML tag {tag}", "Remove it, or put text that starts with ! in quotes")


def _not_too_deep(depth: int, line: int, what: str) -> None:
    if depth > DEPTH_MAX:
        remedy = f"Write {what[0].lower()}{what[1:]}; it needs only three levels"
        raise Unreadable(line + 1, f"The YAML is nested more than {DEPTH_MAX} levels deep", remedy)


def value_at_top(content: bytes, key: str) -> str | None:
    """The text at a key of a file's mapping, without reading what stands behind it; None if there is none up to a mistake."""
    try:
        loader = _Loader(content.decode(), "A job")
        depth, is_key, found = 0, True, False
        while loader.check_event():
            event = loader.get_event()  # type: ignore[no-untyped-call]
            if depth == 1 and found:
                return str(event.value) if isinstance(event, yaml.ScalarEvent) else None
            if depth == 1 and is_key:
                found = isinstance(event, yaml.ScalarEvent) and event.value == key
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                is_key = depth == 1 or is_key
                continue
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth == 1:
                is_key = not is_key
    except (yaml.YAMLError, Unreadable, UnicodeDecodeError):
        pass
    return None


class Document:
    """One parsed file. what: it is, for messages. value: as `yaml.safe_load` gives it; None for an empty file. Raises
    Unreadable."""

    def __init__(self, text: str, what: str = "A job") -> None:
        try:
            loader = _Loader(text, what)
            self._root = loader.get_single_node()
            self.findings = list(_key_findings(self._root)) if self._root else []
            self.value: Any = loader.construct_document(self._root) if self._root else None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise _unreadable(line, f"the character #x{error.character:04x}: {error.reason}") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise _unreadable(mark.line + 1 if mark else 1, _problem(error)) from None

    def line(self, path: FieldPath) -> int:
        """Line of the key or list item at `path`; if there is none, of the nearest parent."""
        return self._at(path)[0]

    def line_within(self, path: FieldPath, offset: int) -> int:
        """Line of the text's line `offset` (from 1), if the text is written as a block (``|``); else the key's line."""
        line, node = self._at(path)
        if isinstance(node, yaml.ScalarNode) and node.style == "|":
            return int(node.start_mark.line) + 1 + offset
        return line

    def source(self, path: FieldPath) -> str | None:
        """A scalar as it is written, without quotes; None for anything else."""
        _, node = self._at(path)
        return str(node.value) if isinstance(node, yaml.ScalarNode) else None

    def get(self, *path: str | int) -> Any:
        """The value at `path`; None if there is none."""
        value = self.value
        for part in path:
            if isinstance(value, dict):
                value = value.get(part)
            else:
                return None
        return value

    def _at(self, path: FieldPath) -> tuple[int, yaml.Node | None]:
        """The line, and the node; None if there is none, and then the line is that of the nearest parent."""
        node, line = self._root, 1
        for part in path:
            found = _child(node, part)
            if found is None:
                return line, None
            line, node = found
        return line, node


def _child(node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        # The last of duplicate keys: its value counts.
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def _key_findings(root: yaml.Node) -> Iterator[Finding]:
    """Duplicate keys, of which YAML would silently keep the last, and keys that are not text."""
    pending: list[tuple[FieldPath, yaml.Node]] = [((), root)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, yaml.SequenceNode):
            pending.extend(((*path, index), item) for index, item in enumerate(node.value))
        if not isinstance(node, yaml.MappingNode):
            continue
        first: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, here = key.start_mark.line + 1, (*path, key.value)
            if key.tag != _STRING_TAG:
                yield Finding(here, f"YAML does not read the key {key.value} as text", f'Put it in quotes: "{key.value}"', line)
            if key.value in first:
                remedy = f"Keep one of the two; the first is on line {first[key.value]}"
                yield Finding(here, f"The key {key.value!r} appears twice", remedy, line)
            first.setdefault(key.value, line)
            pending.append((here, value))


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or str(error)
    # Some of PyYAML's problems only continue their context.
    return f"{error.context}, {problem}" if error.context and problem.startswith("but ") else problem


def _unreadable(line: int, problem: str) -> Unreadable:
    remedy = next((remedy for sign, remedy in _REMEDIES if sign in problem), "Correct the YAML here")
    return Unreadable(line, f"This is not valid YAML: {problem}", remedy)
