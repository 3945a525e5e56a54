"""Reads the Google provider's schema out of its npm package, which CDKTF generated from the provider itself.

The provider's own binary is not needed for that. Each class of the package names its attributes, and a comment above each of
them has what the provider says of it: ``// NAME - computed: false, optional: true, required: false``. The TypeScript with these
comments is in the source maps of the package's files.

The schema is a JSON document: ``{"provider": BLOCK, "resources": {TYPE: BLOCK}, "data": {TYPE: BLOCK}}``, where a BLOCK is
``{"attributes": {NAME: {"type": TYPE, "required": BOOL, "optional": BOOL, "computed": BOOL}},
"blocks": {NAME: {"nesting": "list"|"set"|"single", "min": INT, "max": INT, "block": BLOCK}}}``. A TYPE is in the JSON spelling
of Terraform's type system (`cty`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "@cdktf/provider-google"
PACKAGE_VERSION: Final = "16.12.1"
PROVIDER_VERSION: Final = "6.50.0"
"""Of the provider from which that version of the package was generated (its classes name it)."""

Block = dict[str, Any]
Schema = dict[str, Any]

_MAP: Final = re.compile(r"sourceMappingURL=data:application/json;base64,(\S+)")
_CLASS: Final = re.compile(r"^export class (\w+) extends cdktf\.(\w+) \{\n(.*?)^\}", re.M | re.S)
_KIND: Final = re.compile(r'tfResourceType = "(\w+)"')
_ATTRIBUTE: Final = re.compile(
    r"^ {2}// (\w+) - computed: (true|false), optional: (true|false), required: (true|false)\n"
    r"(?: {2}private _\w+(?:\?: (?P<type>[^\n]*?)| = new (?P<maker>[\w.]+)\(this, \"\w+\"(?:, (?P<set>true|false))?\)); *\n)?"
    r"(?: {2}public get \w+\(\) \{\n(?P<getter>.*?)\n {2}\})?",
    re.M | re.S,
)
_TYPES: Final = {
    "string": "string",
    "number": "number",
    "boolean | cdktf.IResolvable": "bool",
    "string[]": ["list", "string"],
    "number[]": ["list", "number"],
    "Array<boolean | cdktf.IResolvable> | cdktf.IResolvable": ["list", "bool"],
    "{ [key: string]: string }": ["map", "string"],
    "{ [key: string]: number }": ["map", "number"],
    "{ [key: string]: (boolean | cdktf.IResolvable) }": ["map", "bool"],
    # Deep structures that the generator gave up on, as (`any`).
    "any": "dynamic",
    "{ [key: string]: any }": ["map", "dynamic"],
}
_GETTERS: Final = {
    "getStringAttribute": "string",
    "getNumberAttribute": "number",
    "getBooleanAttribute": "bool",
    "getListAttribute": ["list", "string"],
    "getNumberListAttribute": ["list", "number"],
    "interpolationForAttribute": "dynamic",
}
_MAKERS: Final = {
    "cdktf.StringMap": ["map", "string"],
    "cdktf.NumberMap": ["map", "number"],
    "cdktf.BooleanMap": ["map", "bool"],
    "cdktf.StringMapList": ["list", ["map", "string"]],
    "cdktf.AnyMap": ["map", "dynamic"],
}

# The package has no such comments on the provider's own arguments; these are the ones that `infra/` may set.
_PROVIDER: Final[Block] = {
    "attributes": {
        name: {"type": kind, "required": False, "optional": True, "computed": False}
        for name, kind in {
            "project": "string",
            "region": "string",
            "zone": "string",
            "user_project_override": "bool",
            "billing_project": "string",
            "default_labels": ["map", "string"],
        }.items()
    },
    "blocks": {},
}


class Unreadable(Exception):
    """The package is not as this module expects it; the message names the file and the attribute."""


def read(library: Path) -> Schema:
    """library: the package's folder ``lib``. Raises Unreadable."""
    schema: Schema = {"provider": _PROVIDER, "resources": {}, "data": {}}
    for folder in sorted(library.iterdir()):
        if folder.is_dir() and folder.name not in ("provider", "provider-functions"):
            kind, block = _folder(folder)
            schema["data" if folder.name.startswith("data-") else "resources"][kind] = block
    return schema


def _folder(folder: Path) -> tuple[str, Block]:
    sources = "\n".join(text for file in sorted(folder.rglob("*.js")) for text in _sources(file))
    classes = {name: body for name, _, body in _CLASS.findall(sources)}
    tops = [name for name, base, _ in _CLASS.findall(sources) if base in ("TerraformResource", "TerraformDataSource")]
    kind = _KIND.search(sources)
    if len(tops) != 1 or not kind:
        raise Unreadable(f"{folder}: expected one class of a resource, found {tops}")
    try:
        return kind[1], _block(classes[tops[0]], classes)
    except Unreadable as error:
        raise Unreadable(f"{folder}: {error}") from error


def _sources(file: Path) -> Iterator[str]:
    found = _MAP.search(file.read_text())
    if found:
        yield from json.loads(base64.b64decode(found[1]))["sourcesContent"]


def _block(body: str, classes: dict[str, str]) -> Block:
    attributes: dict[str, Any] = {}
    blocks: dict[str, Any] = {}
    for found in _ATTRIBUTE.finditer(body):
        name = found[1]
        computed, optional, required = (found[at] == "true" for at in (2, 3, 4))
        maker = found["maker"]
        if maker and maker not in _MAKERS:
            nested = _nested(maker, classes, wraps_set=found["set"] == "true")
            if not computed:
                blocks[name] = {**nested, "min": int(required and nested["nesting"] != "single")}
                continue
            kind: Any = [nested["nesting"], _object(nested["block"])]
        else:
            kind = _MAKERS[maker] if maker else _simple(name, found["type"], found["getter"] or "")
        attributes[name] = {"type": kind, "required": required, "optional": optional, "computed": computed}
    return {"attributes": attributes, "blocks": blocks}


def _simple(name: str, declared: str | None, getter: str) -> Any:
    if declared is not None:
        kind = _TYPES.get(declared.strip())
    else:
        kind = next((kind for call, kind in _GETTERS.items() if f"this.{call}(" in getter), None)
    if kind is None:
        raise Unreadable(f"the type of '{name}' is unknown: {declared or getter!r}")
    return ["set", kind[1]] if "cdktf.Fn.tolist(" in getter and isinstance(kind, list) else kind


def _nested(maker: str, classes: dict[str, str], *, wraps_set: bool) -> dict[str, Any]:
    """What `maker`, the class of a nested block, describes. Of one that is there at most once there is no list."""
    element = classes[maker if maker.endswith("OutputReference") else f"{maker.removesuffix('List')}OutputReference"]
    many = maker.endswith("List")
    single = not many and "super(terraformResource, terraformAttribute, false);" in element
    nesting = "single" if single else "set" if wraps_set else "list"
    return {"nesting": nesting, "max": 0 if many or single else 1, "block": _block(element, classes)}


def _object(block: Block) -> list[Any]:
    """A block as the type of an attribute: what the provider computes whole."""
    fields = {name: attribute["type"] for name, attribute in block["attributes"].items()}
    for name, nested in block["blocks"].items():
        fields[name] = [nested["nesting"], _object(nested["block"])]
    return ["object", fields]
