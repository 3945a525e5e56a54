"""Lines of local-bigquery 0.3.2 that are replaced on import, because there is no function to replace instead.

- It is written for Python 3.13; two files use syntax that 3.11 lacks. Before 3.12 an f-string may not contain its own
  quotes (PEP 701), nor a function declare type parameters (PEP 695). Nothing else in the package needs a newer Python.
- An export is one file for them; `local.bigquery.exports` returns how many it wrote.
- Each query asks for the names of temporary tables, for which DuckDB looks at every table of every dataset. A query outside
  a session runs on its own connection, which has none yet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

TEMPORARY = '"SELECT table_name FROM duckdb_tables() WHERE temporary"'
REPLACEMENTS: dict[str, list[tuple[str, str]]] = {
    "local_bigquery.engine.results": [
        ("""{message.replace("'", "''")}""", """{message.replace(chr(39), chr(39) * 2)}"""),
    ],
    "local_bigquery.catalog.metadata": [
        ("def list_[R: Resource](model: type[R], *keys: str) -> list[R]:", "def list_(model, *keys):"),
        ("def load[R: Resource](model: type[R], *keys: str) -> R | None:", "def load(model, *keys):"),
        ("def save[R: Resource](resource: R, *keys: str) -> R:", "def save(resource, *keys):"),
    ],
    "local_bigquery.jobs.extract": [
        ("    write(cur, f", "    written_to = write(cur, f"),
        ("""["1" for _ in _uris(config)]""", "[str(files) for _, files in written_to]"),
    ],
    "local_bigquery.jobs.query": [
        ("rows = extract.write(", "((rows, files),) = extract.write("),
        (""""fileCount": "1",""", """"fileCount": str(files),"""),
        (f"cur.sql({TEMPORARY})", f"""cur.sql({TEMPORARY} if session else "SELECT '' WHERE false")"""),
    ],
}


class _AdaptingLoader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        for theirs, ours in REPLACEMENTS[self.name]:
            if theirs.encode() not in data:
                raise ImportError(f"{self.name} is not the source that local/bigquery/sources.py knows: it lacks {theirs!r}")
            data = data.replace(theirs.encode(), ours.encode())
        return super().source_to_code(data, path, **options)

    def get_code(self, fullname: str) -> CodeType:
        """Always from the source: a cached compilation may be that of the unchanged file."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in REPLACEMENTS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _AdaptingLoader(fullname, spec.loader.path)
        return spec


def install() -> None:
    """Call before importing anything from local_bigquery."""
    sys.meta_path.insert(0, _Finder())
