"""A job's YAML with other settings, as a patch: only the lines that change, with its comments and its order."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def changed(text: str, changes: Mapping[str, Any]) -> str:
    """The text of a YAML mapping with other values. changes: as the mapping would have them; mappings inside are merged.

    Raises ValueError if it cannot be done line by line (an alias, a merge key, an empty value in place of a mapping).
    """
    wanted = merged(yaml.safe_load(text), changes)
    for path, value in _leaves(changes):
        text = _with(text, path, value)
    if yaml.safe_load(text) != wanted:
        raise ValueError("the file cannot be changed line by line")
    return text


def of_file(file: Path, changes: Mapping[str, Any]) -> str:
    """For a job's file, as `diff -u` shows it; the changes themselves if it cannot be changed line by line; "" for none."""
    if not changes:
        return ""
    text = file.read_text(encoding="utf-8-sig")
    try:
        other, name = changed(text, changes), file.name if file.is_absolute() else str(file)
        lines = difflib.unified_diff(text.splitlines(), other.splitlines(), f"a/{name}", f"b/{name}", lineterm="", n=2)
        return "\n".join(lines)
    except (ValueError, yaml.YAMLError):
        return f"Write into {file}:\n{yaml.safe_dump(dict(changes), sort_keys=False)}".rstrip()


def merged(value: Any, changes: Mapping[str, Any]) -> Any:
    """A mapping with other values; mappings inside are merged, whether keys have dashes or underscores."""
    found = dict(value or {})
    for name, each in changes.items():
        found[_name_in(found, name)] = merged(found.get(_name_in(found, name)), each) if isinstance(each, Mapping) else each
    return found


def _name_in(mapping: Mapping[str, Any], name: str) -> str:
    """The key as the file writes it: vLLM reads dashes and underscores."""
    return next((key for key in mapping if isinstance(key, str) and key.replace("_", "-") == name.replace("_", "-")), name)


def _leaves(changes: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, value in changes.items():
        found += _leaves(value, (*path, name)) if isinstance(value, Mapping) else [((*path, name), value)]
    return found


def _with(text: str, path: tuple[str, ...], value: Any) -> str:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    while True:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise ValueError(f"{'.'.join(path)} has no place in the file")
        keys = {key.value: (key, each) for key, each in node.value}
        name = _name_in(keys, path[0])
        if name not in keys:
            return _inserted(text, node, path, value)
        _, node, path = *keys[name], path[1:]
        if not path:
            return f"{text[: node.start_mark.index]}{value}{text[node.end_mark.index :]}"


def _inserted(text: str, node: yaml.MappingNode, path: tuple[str, ...], value: Any) -> str:
    """The mapping with another key after its last one."""
    _, last = node.value[-1]
    if node.flow_style:
        flow = ": {".join(path[:-1])
        added = f"{flow}: {{{path[-1]}: {value}}}" if len(path) > 1 else f"{path[0]}: {value}"
        return f"{text[: last.end_mark.index]}, {added}{text[last.end_mark.index :]}"
    column = node.value[0][0].start_mark.column
    lines = [f"{' ' * (column + 2 * depth)}{name}:" for depth, name in enumerate(path)]
    lines[-1] += f" {value}"
    # A block ends where the next key begins, and so after the comments and empty lines of that key.
    while not isinstance(last, yaml.ScalarNode) and not last.flow_style and last.value:
        last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
    before = text[: last.end_mark.index].rstrip()
    end = text.find("\n", len(before))
    end = len(text) if end < 0 else end
    return "\n".join([text[:end].rstrip("\n"), *lines]) + (text[end:] or "\n")
