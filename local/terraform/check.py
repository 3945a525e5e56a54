"""Checks `infra/` against the part of the Google provider's schema that it uses, in seconds and without OpenTofu.

`used.json` holds that part: of each type the arguments that `infra/` sets or must set, and the attributes that it reads.
``python3 -m local.terraform schema`` writes it from the whole schema and refuses what the provider does not have. A value is
``TYPE`` for an optional argument, ``TYPE!`` for a required one, ``TYPE=`` for what only the provider sets; a nested block is an
object, whose key "" is "!" if the block is required.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import hcl2

from local.environments import ROOT

INFRA: Final = ROOT / "infra"
FILE: Final = Path(__file__).with_name("used.json")
_META: Final = frozenset({"count", "for_each", "depends_on", "lifecycle", "provider"})
"""What a resource itself may have, whatever its type."""
_REFERENCE: Final = re.compile(r"(?<![\w.\"])(data\.)?(google_\w+)\.(\w+)((?:\[[^\]]*\])?)\.(\w+)")

Used = dict[str, dict[str, Any]]
"""{"resources": {TYPE: SPEC}, "data": {TYPE: SPEC}}, as in `used.json`."""


@dataclass(frozen=True)
class Declared:
    """A resource or data source. place: its file, below `infra/`. kind: "resources" or "data"."""

    place: str
    kind: str
    type: str
    name: str
    body: dict[str, Any]


@cache
def parsed(file: Path) -> dict[str, Any]:
    with file.open() as text:
        tree: dict[str, Any] = hcl2.load(text)
    return tree


def files(infra: Path = INFRA) -> list[Path]:
    """Its configuration, module by module."""
    return sorted(file for file in infra.rglob("*.tf") if ".terraform" not in file.parts)


def declared(infra: Path = INFRA) -> Iterator[Declared]:
    for file in files(infra):
        for keyword, kind in (("resource", "resources"), ("data", "data")):
            for each in parsed(file).get(keyword, []):
                for kind_name, named in each.items():
                    for name, body in named.items():
                        yield Declared(str(file.relative_to(infra)), kind, _plain(kind_name), _plain(name), _own(body))


def _own(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _META}


def problems(used: Used, infra: Path = INFRA) -> list[str]:
    """What the schema refuses of it, each with its place; empty if it fits."""
    found = []
    for each in declared(infra):
        where = f"{each.place}: {each.type}.{each.name}"
        spec = used[each.kind].get(each.type)
        found += [f"{where}: no such type"] if spec is None else list(_wrong(where, each.body, spec))
    for file in files(infra):
        for data, kind, name, _, attribute in _REFERENCE.findall(_code(file)):
            spec = used["data" if data else "resources"].get(kind, {})
            if attribute not in spec:
                found.append(f"{file.relative_to(infra)}: {data}{kind}.{name}: no attribute '{attribute}'")
    return found


def _wrong(where: str, body: dict[str, Any], spec: dict[str, Any]) -> Iterator[str]:
    settings = dict(_settings(body))
    for name, values in settings.items():
        entry = spec.get(name)
        is_block = isinstance(values, list) and bool(values) and _is_block(values[0])
        if entry is None:
            yield f"{where}: no argument '{name}'"
        elif isinstance(entry, dict) != is_block:
            yield f"{where}: '{name}' is {'a block' if isinstance(entry, dict) else 'an argument'}"
        elif isinstance(entry, dict):
            for value in values:
                yield from _wrong(f"{where}.{name}", value, entry)
        elif entry.endswith("="):
            yield f"{where}: '{name}' is set by the provider alone"
        elif not _fits(values, entry.rstrip("!")):
            yield f"{where}: '{name}' is no {entry.rstrip('!')}: {values}"
    for name, entry in spec.items():
        required = entry.get("") == "!" if isinstance(entry, dict) else entry.endswith("!")
        if name and required and name not in settings:
            yield f"{where}: '{name}' is missing"


def _settings(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Arguments and nested blocks, dynamic ones among them."""
    blocks: dict[str, list[Any]] = {}
    for name, value in body.items():
        if name == "dynamic":
            for each in value:
                for label, dynamic in each.items():
                    if not label.startswith("__"):
                        blocks.setdefault(_plain(label), []).extend(dynamic["content"])
        elif isinstance(value, list) and value and _is_block(value[0]):
            blocks.setdefault(name, []).extend(value)
        elif not name.startswith("__"):
            yield name, value
    yield from blocks.items()


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and value.get("__is_block__") is True


def _fits(value: Any, kind: str) -> bool:
    """Whether a literal can become a value of that type; an expression may."""
    if isinstance(value, str) and value.startswith("${"):
        return True
    if isinstance(value, list | dict):
        return kind.startswith(("list", "set", "map") if isinstance(value, list) else ("map",)) or kind == "dynamic"
    text = _plain(value) if isinstance(value, str) else json.dumps(value)
    plain = {"bool": text in ("true", "false"), "number": bool(re.fullmatch(r"-?[\d.]+", text)), "string": True}
    return "${" in text or plain.get(kind, False)


def _plain(text: str) -> str:
    return text.strip('"')


def _code(file: Path) -> str:
    return re.sub(r"(?m)^\s*#.*$", "", file.read_text())


def of_infra(schema: dict[str, Any], infra: Path = INFRA) -> Used:
    """The part of the whole schema that `infra/` uses. Raises ValueError for what the provider does not have."""
    used: Used = {"resources": {}, "data": {}}
    for each in declared(infra):
        if each.type not in schema[each.kind]:
            raise ValueError(f"{each.place}: the provider has no {each.type}")
        spec = used[each.kind].setdefault(each.type, {})
        _note(f"{each.place}: {each.type}.{each.name}", each.body, schema[each.kind][each.type], spec)
    for file in files(infra):
        for data, kind, _, _, attribute in _REFERENCE.findall(_code(file)):
            block = schema["data" if data else "resources"][kind]
            entry = block["attributes"].get(attribute)
            if entry is None and attribute not in block["blocks"]:
                raise ValueError(f"{file.relative_to(infra)}: {kind} has no attribute '{attribute}'")
            used["data" if data else "resources"][kind].setdefault(attribute, _entry(entry) if entry else {})
    return used


def _note(where: str, body: dict[str, Any], block: dict[str, Any], spec: dict[str, Any]) -> None:
    for name, attribute in block["attributes"].items():
        if attribute["required"]:
            spec[name] = _entry(attribute)
    for name, nested in block["blocks"].items():
        if nested["min"]:
            spec.setdefault(name, {"": "!"})
    for name, values in _settings(body):
        if name in block["blocks"]:
            inner = spec.setdefault(name, {})
            for value in values:
                _note(f"{where}.{name}", value, block["blocks"][name]["block"], inner)
        elif name in block["attributes"]:
            spec[name] = _entry(block["attributes"][name])
        else:
            raise ValueError(f"{where}: the provider has no '{name}' there")


def _entry(attribute: dict[str, Any]) -> str:
    kind = attribute["type"]
    text = kind if isinstance(kind, str) else f"{kind[0]}({kind[1] if isinstance(kind[1], str) else 'object'})"
    if attribute["required"]:
        return f"{text}!"
    return text if attribute["optional"] else f"{text}="


def load() -> Used:
    used: Used = json.loads(FILE.read_text())
    return used


def text(used: Used) -> str:
    return json.dumps(used, indent=1, sort_keys=True) + "\n"


def reduced(schema: Path, target: Path) -> Path:
    """Writes the whole schema without the types that `infra/` does not use, which OpenTofu reads in a third of the time."""
    whole = json.loads(schema.read_text())
    types = {(each.kind, each.type) for each in declared()}
    for kind in ("resources", "data"):
        whole[kind] = {name: block for name, block in whole[kind].items() if (kind, name) in types}
    target.write_text(json.dumps(whole))
    return target
