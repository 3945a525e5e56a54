"""What pages and docstrings cite, and whether it exists: paths, links, commands, variables, names; and whether YAML is YAML.

Reads text, imports nothing of the project.

The repository is passed in as a `Repository`, so that a test can show on a small false page that each check bites.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import yaml

CODE_ROOTS: Final = ("plugins", "local", "tests", "dags", "benchmarks", "monitoring")
_TOPS: Final = ("plugins", "local", "tests", "docs", "k8s", "images", "dags", "benchmarks", "monitoring", "requirements")
_ENDINGS: Final = "py|md|go|sh|toml|mod"
_FILE: Final = re.compile(rf"(?<![\w./$*-])((?:[\w.-]+/)*[\w-][\w.-]*\.(?:{_ENDINGS}))(?![\w/*-])")
_PLACE: Final = re.compile(rf"(?<![\w./:$-])((?:{'|'.join(_TOPS)})/[\w./{{}},*-]*)")
_URL: Final = re.compile(r"\b[a-z+]+://\S+|\bgithub\.com/\S+")
_PLACEHOLDER: Final = re.compile(r"\*|\.\.\.|(?<![\w])[A-Z]{2,}(?![\w])|<")
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
_MADE: Final = re.compile(r"^cat > (\S+) <<", re.MULTILINE)
"""Files that a tutorial lets its reader write."""
_FENCE: Final = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_YAML: Final = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN: Final = re.compile(r"``([^`\n]+)``|`([^`\n]+)`")
_MAKE: Final = re.compile(r"(?:^|[;&|(\"] *|\$ )make ((?:[A-Za-z]\S* ?)+)", re.MULTILINE)
_MODULE: Final = re.compile(r"\bpython[\d.]*(?: -\w+)* -m ([\w.]+)")
_COMMAND: Final = re.compile(r"(?:^|[\s/|;(])nightshift ((?:\\\n|[^\n|;)#&])+)")
_VARIABLE: Final = re.compile(r"\bNIGHTSHIFT_[A-Z0-9_]*[A-Z0-9]\b(?![<{*])")
_DOTTED: Final = re.compile(r"(?<![\w./@-])((?:nightshift|local|tests)(?:\.\w+)+)(?!\w*[/(@-]\w)")
_TABLES: Final = (
    *("audit", "dead_letters", "dev", "night", "checks"),
    *("request", "row", "rows", "chunk", "job", "try", "dead_letter"),
)
"""What follows ``nightshift.`` and is no Python: tables of the dataset, the domain of labels, metrics that Airflow sends, spans
and their attributes."""
_TEST: Final = re.compile(r"([\w./-]*\w\.py)::(\w+)")
_FOREIGN_MODULES: Final = ("mypy", "pip", "pytest", "ruff", "venv", "vllm")


@dataclass(frozen=True)
class Text:
    """One page, or one docstring. path: of its file. code: the parts that are commands or names. line: where it begins."""

    path: Path
    text: str
    code: tuple[str, ...]
    line: int = 1


@dataclass(frozen=True)
class Repository:
    """root: its folder. options: of each command of ``nightshift``, by its name."""

    root: Path
    options: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """One line for each citation of something that does not exist."""
        found: list[str] = []
        for text in [*self.pages(), *self.docstrings()]:
            where = text.path.relative_to(self.root)
            place = f"{where}:{text.line}" if text.path.suffix == ".py" else where
            found += [f"{place}: {problem}" for problem in self._problems_of(text)]
        return sorted(set(found))

    def pages(self) -> Iterator[Text]:
        paths = [*self.root.glob("*.md"), *self.root.glob("docs/**/*.md"), *self.root.glob("k8s/**/*.md")]
        for path in (*sorted(paths), *self.root.glob("local/rules.txt")):
            text = path.read_text()
            code = [*_FENCE.findall(text), *(a or b for a, b in _SPAN.findall(_FENCE.sub("", text)))]
            yield Text(path, text, tuple(code))
        for path in sorted(self.root.glob("dags/jobs/*.yaml")):
            text = "\n".join(line for line in path.read_text().splitlines() if line.lstrip().startswith("#"))
            yield Text(path, text, tuple(a or b for a, b in _SPAN.findall(text)))

    def docstrings(self) -> Iterator[Text]:
        for path in self._modules:
            for node in _documented(ast.parse(self._text_of(path))):
                text = ast.get_docstring(node)
                if text:
                    line = getattr(node, "lineno", 1)
                    yield Text(path, text, tuple(a or b for a, b in _SPAN.findall(text)), line)

    def _problems_of(self, text: Text) -> Iterator[str]:
        prose = _URL.sub(" ", _LINK.sub(r"[\1]", text.text))
        made = set(_MADE.findall(text.text))
        if text.path.suffix == ".md":
            yield from self._links(text)
            yield from _not_yaml(text.text)
        for name in _FILE.findall(prose):
            if name not in made and not _PLACEHOLDER.search(name) and not self._is_there(name, text.path):
                yield f"there is no file {name}"
        for name in _PLACE.findall(prose):
            for place in _braces(name.rstrip(".,")):
                known = (
                    place in made
                    or _FILE.fullmatch(place)
                    or _PLACEHOLDER.search(place)
                    or (self.root / place.rstrip("/")).exists()
                )
                if not known:
                    yield f"there is no {place}"
        for file, name in _TEST.findall(prose):
            if not any(self._has(path, [name]) for path in self._modules if path.as_posix().endswith(f"/{file}")):
                yield f"{file} has no {name}"
        for name in _VARIABLE.findall(text.text):
            if name not in self._variables:
                yield f"nothing reads the variable {name}"
        for code in text.code:
            yield from self._commands(_URL.sub(" ", code))

    def _commands(self, code: str) -> Iterator[str]:
        for words in _MAKE.findall(code):
            targets = [word for word in words.split() if re.fullmatch(r"[a-z][a-z-]*", word)][:1]
            for target in targets:
                if target not in self._targets:
                    yield f"the Makefile has no target {target}"
        for module in _MODULE.findall(code):
            if module.split(".")[0] not in _FOREIGN_MODULES and self._module_file(module) is None:
                yield f"python -m {module}: there is no such module"
        for words in _COMMAND.findall(code):
            yield from self._nightshift(words.replace("\\\n", " ").split())
        for name in _DOTTED.findall(code):
            if not self._resolves(name):
                yield f"there is no {name}"

    def _nightshift(self, words: list[str]) -> Iterator[str]:
        command = words[0].strip("`'\",")
        if not re.fullmatch(r"[a-z-]+", command) or command.startswith("-"):
            return
        two = " ".join(word.strip("`'\",") for word in words[:2])
        if two in self.options:
            command = two
        if command not in self.options:
            yield f"there is no command nightshift {command}"
            return
        for word in words[1:]:
            option = word.split("=")[0].strip("`'\",.:[]")
            if option.startswith("-") and option.strip("-") and option not in self.options[command]:
                yield f"nightshift {command} has no option {option}"

    def _links(self, text: Text) -> Iterator[str]:
        for _, target in _LINK.findall(_FENCE.sub("", text.text)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (text.path.parent / name).resolve() if name else text.path
            if not file.exists():
                yield f"the link {target} leads nowhere"
            elif anchor and anchor not in _anchors(file):
                yield f"the link {target} names a heading that {file.name} does not have"

    def _is_there(self, name: str, cited_in: Path) -> bool:
        """Whether a path leads to a file from root, product or a folder above the citing page; a bare name may be anywhere."""
        if "/" not in name:
            return name in self._names
        places = [
            self.root,
            self.root / "plugins" / "nightshift",
            *cited_in.parents[: len(cited_in.parts) - len(self.root.parts)],
        ]
        return any((place / name).exists() for place in places)

    @cached_property
    def _modules(self) -> list[Path]:
        return sorted(path for top in CODE_ROOTS for path in (self.root / top).rglob("*.py"))

    @cached_property
    def _texts(self) -> dict[Path, str]:
        return {path: path.read_text() for path in self._modules}

    def _text_of(self, path: Path) -> str:
        return self._texts[path]

    @cached_property
    def _names(self) -> set[str]:
        names = {path.name for path in self.root.iterdir() if path.is_file()}
        for top in _TOPS:
            names |= {path.name for path in (self.root / top).rglob("*") if "__pycache__" not in path.parts}
        return names

    @cached_property
    def _targets(self) -> set[str]:
        return set(re.findall(r"^([a-z][a-z-]*):", (self.root / "Makefile").read_text(), re.MULTILINE))

    @cached_property
    def _variables(self) -> set[str]:
        """Names that code reads or sets: quoted, or a field of the settings."""
        found: set[str] = set()
        for text in self._texts.values():
            if "NIGHTSHIFT_" in text:
                found |= set(re.findall(r"[\"']{1,2}?(?:export )?(NIGHTSHIFT_[A-Z0-9_]+)[\"'=]", text))
        settings = self.root / "plugins/nightshift/settings.py"
        if settings.exists():
            found |= {
                f"NIGHTSHIFT_{name.upper()}" for name in re.findall(r"^    (\w+): str", self._text_of(settings), re.MULTILINE)
            }
        return found

    @cached_property
    def _keys(self) -> set[str]:
        """Names that code uses as a text, such as the keys of a Parquet file's metadata."""
        pattern = re.compile(r"= b?\"(nightshift\.[\w.]+)\"")
        return {name for path, text in self._texts.items() if "plugins" in path.parts for name in pattern.findall(text)}

    def _module_file(self, dotted: str) -> Path | None:
        base = self.root.joinpath("plugins" if dotted.split(".")[0] == "nightshift" else ".", *dotted.split("."))
        for file in (base / "__main__.py", base / "__init__.py", base.with_suffix(".py")):
            if file.exists():
                return file
        return base if base.is_dir() else None

    def _resolves(self, dotted: str) -> bool:
        parts = dotted.rstrip(".").split(".")
        if (parts[0] == "nightshift" and parts[1] in _TABLES) or dotted in self._keys:
            return True
        # `local` is also the project of the emulators' tables.
        if parts[0] != "nightshift" and self._module_file(".".join(parts[:2])) is None:
            return True
        for count in range(len(parts), 0, -1):
            file = self._module_file(".".join(parts[:count]))
            if file is not None:
                return self._has(file, parts[count:])
        return False

    def _has(self, file: Path, names: list[str]) -> bool:
        if not names:
            return True
        source = file.with_name("__init__.py") if file.name == "__main__.py" else file
        if not source.is_file():
            return False
        body: list[ast.stmt] = ast.parse(source.read_text()).body
        for name in names:
            for node in body:
                if name in _defines(node):
                    body = node.body if isinstance(node, ast.ClassDef) else []
                    break
            else:
                return False
        return True


def _documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    yield tree
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield inner


def _defines(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name for alias in node.names}
    return set()


def _braces(path: str) -> list[str]:
    """``tests/{unit,chaos}/`` is two paths."""
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    return [whole for part in found[1].split(",") for whole in _braces(path[: found.start()] + part + path[found.end() :])]


def _anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    text = _FENCE.sub("", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def _not_yaml(page: str) -> Iterator[str]:
    for block in _YAML.findall(page):
        try:
            list(yaml.safe_load_all(block))
        except yaml.YAMLError as error:
            yield f"the block that begins with {block.splitlines()[0]!r} is not YAML: {getattr(error, 'problem', error)}"
