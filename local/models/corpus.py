"""Real labelled text that every machine with the server environment has: the docstrings of the packages it pins.

A docstring's label is the subject of its package. Files, not docstrings, are held out: neighbours in a file are too alike.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUBJECTS: Final[dict[str, tuple[str, ...]]] = {
    "compilers": ("numba/core", "llvmlite"),
    "cryptography": ("cryptography", "jwt"),
    "graphs": ("networkx",),
    "images": ("PIL",),
    "learning": ("torch/nn", "torch/optim"),
    "mathematics": ("sympy", "mpmath"),
    "terminal": ("rich", "click", "typer"),
    "web": ("aiohttp", "starlette", "fastapi", "requests", "httpx"),
}
PER_SUBJECT_MAX: Final = 260
WORDS_MIN: Final = 5
CHARACTERS_MAX: Final = 300
HELD_OUT_SHARE: Final = 0.3


@dataclass(frozen=True)
class Entry:
    """The docstring of one function or class.

    name: its name in words ("shortest path length"). text: the docstring's first paragraph, on one line.
    """

    subject: str
    name: str
    text: str
    held_out: bool


def entries() -> list[Entry]:
    """At most `PER_SUBJECT_MAX` entries of each subject, always the same ones for the same pins."""
    packages = Path(sysconfig.get_paths()["purelib"])
    found: list[Entry] = []
    for subject, folders in SUBJECTS.items():
        files = [path for folder in folders for path in (packages / folder).rglob("*.py") if "tests" not in path.parts]
        texts: dict[str, Entry] = {}
        for path in sorted(files, key=lambda path: _share(str(path.relative_to(packages)))):
            held_out = _share(f"held out {path.relative_to(packages)}") < HELD_OUT_SHARE
            for entry in _documented(path, subject, held_out):
                texts.setdefault(entry.text, entry)
            if len(texts) >= PER_SUBJECT_MAX:
                break
        found += list(texts.values())[:PER_SUBJECT_MAX]
    return found


def prose() -> list[str]:
    """A megabyte or so of source code with its comments, for a tokenizer to learn its merges from."""
    packages = Path(sysconfig.get_paths()["purelib"])
    return [path.read_text("utf-8") for folder in ("networkx/algorithms", "starlette") for path in _sources(packages / folder)]


def _sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if "tests" not in path.parts]


def _documented(path: Path, subject: str, held_out: bool) -> Iterator[Entry]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            paragraph = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())[:CHARACTERS_MAX]
            if len(paragraph.split()) >= WORDS_MIN:
                yield Entry(subject, _words(node.name), paragraph, held_out)


def _words(name: str) -> str:
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name.replace("_", " "))
    return " ".join(spaced.split())


def _share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone: an order and a split without a random state."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
