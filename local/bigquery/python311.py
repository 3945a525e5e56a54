"""local-bigquery 0.3.2 is written for Python 3.13; two files use syntax that 3.11 lacks and are adapted on import.

An f-string may not hold its own quotes before 3.12 (PEP 701), nor a function declare type parameters (PEP 695). Nothing else of
the package needs a newer Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

REPLACEMENTS: dict[str, list[tuple[str, str]]] = {
    "local_bigquery.engine.results": [
        ("""{message.replace("'", "''")}""", """{message.replace(chr(39), chr(39) * 2)}"""),
    ],
    "local_bigquery.catalog.metadata": [
        ("def list_[R: Resource](model: type[R], *keys: str) -> list[R]:", "def list_(model, *keys):"),
        ("def load[R: Resource](model: type[R], *keys: str) -> R | None:", "def load(model, *keys):"),
        ("def save[R: Resource](resource: R, *keys: str) -> R:", "def save(resource, *keys):"),
    ],
}


class _AdaptingLoader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        for newer, older in REPLACEMENTS[self.name]:
            if newer.encode() not in data:
                raise ImportError(f"{self.name} is not the source that local/bigquery/python311.py knows: it lacks {newer!r}")
            data = data.replace(newer.encode(), older.encode())
        return super().source_to_code(data, path, **options)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in REPLACEMENTS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _AdaptingLoader(fullname, spec.loader.path)
        return spec


def install() -> None:
    """Call before anything of local_bigquery is imported. Does nothing on Python 3.12 and later."""
    if sys.version_info < (3, 12):
        sys.meta_path.insert(0, _Finder())
