"""``python3 -m local.terraform.mutants``: breaks `infra/` in every place, one at a time, and counts who notices.

Each argument and nested block is renamed and dropped, each argument given a value of another type, each reference sent to a
name that does not exist, each resource and module removed, each role replaced. A mutant is caught by `tofu validate`, or by the
assertions of `tofu test`, or survives; `survivors.yaml` has the reason for each one that may. Texts for people (descriptions,
messages) are left alone, and so are what modules say of their variables, and the outputs `made`, which only tests read.

Results are kept in a file, one line a mutant, so that a run can be continued: a whole one takes half an hour on two cores.
Exit codes: 0; 1 if a mutant survives that the list does not name, or the list names one that does not; 3 if time was up first.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Final, TypeVar

import yaml

from local.terraform import build, check
from local.terraform.tofu import Workspace

T = TypeVar("T")
R = TypeVar("R")

PART: Final = 300

SURVIVORS: Final = Path(__file__).with_name("survivors.yaml")
_BLOCK: Final = re.compile(r'^( *)(\w+)((?: "[^"]*")*) \{$')
_ARGUMENT: Final = re.compile(r"^( *)([\w-]+) += (.*)$")
_REFERENCE: Final = re.compile(
    r"\bmodule\.\w+(?:\[\w+\])?\.(\w+)|\b(?:var|local)\.(\w+)|\b(?:data\.)?google_\w+\.\w+(?:\[[^\]]*\])?\.(\w+)"
)
_ROLE: Final = re.compile(r'"roles/[\w.]+"')
_SEEN_ELSEWHERE: Final = frozenset({"count", "for_each", "source"})
"""What decides how others refer to a resource or module."""
_FOR_PEOPLE: Final = frozenset({"description", "error_message"})
_AREAS: Final = {
    "role bindings": r"_iam_member",
    "private nodes": r"private_cluster_config|control_plane_endpoints_config|private_ip_google_access|router_nat",
    "own keys": r"kms|encryption|google_kms_",
    "dead letters": r"dead_letter",
}
"""What a company asks about first, by what a mutant's name then holds."""


@dataclass(frozen=True)
class Statement:
    """An argument or a block, with the blocks around it. first, last: its lines, from 0. value: of an argument."""

    first: int
    last: int
    around: tuple[str, ...]
    name: str
    value: str | None


@dataclass(frozen=True)
class Mutant:
    """name: what was done where, the same as long as the place is there. file: below `infra/`.

    first, last: the lines, from 0, that `text` replaces. block: the lines of the resource, variable and so on around them.
    local: what `validate` says against it is about that block, since nothing else refers to what was changed.
    """

    name: str
    kind: str
    file: str
    first: int
    last: int
    text: str
    block: tuple[int, int]
    local: bool


def statements(text: str) -> Iterator[Statement]:
    """Every argument and block of a file as `tofu fmt` writes it; of a value that is an object, only the whole."""
    lines = text.splitlines()
    open_: list[tuple[str, int]] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        around = tuple(name for name, _ in open_)
        if found := _BLOCK.match(line):
            open_.append((found[2] + found[3].replace('"', ""), at))
        elif line.strip() == "}":
            name, first = open_.pop()
            yield Statement(first, at, tuple(each for each, _ in open_), name, None)
        elif (found := _ARGUMENT.match(line)) and open_:
            last = _end(lines, at, found[3])
            value = "\n".join([found[3], *lines[at + 1 : last + 1]])
            yield Statement(at, last, around, found[2], value)
            at = last
        at += 1
    assert not open_, f"{open_} is not closed"


def _end(lines: Sequence[str], at: int, value: str) -> int:
    if value.startswith("<<-"):
        return next(number for number in range(at, len(lines)) if lines[number].strip() == value.removeprefix("<<-"))
    depth = _depth(value)
    while depth > 0:
        at += 1
        depth += _depth(lines[at])
    return at


def _depth(line: str) -> int:
    line = re.sub(r"^\s*#.*", "", line)
    return sum(line.count(each) for each in "([{") - sum(line.count(each) for each in ")]}")


def mutants(file: str, text: str) -> Iterator[Mutant]:
    seen: Counter[str] = Counter()
    lines = text.splitlines(keepends=True)
    found = list(statements(text))
    blocks = [(each.first, each.last) for each in found if not each.around]
    for statement in found:
        if _left_alone(file, statement):
            continue
        block = next((first, last) for first, last in blocks if first <= statement.first <= last)
        where = f"{file}: {' / '.join((*statement.around, statement.name))}"
        for kind, what, changed in _changes(statement, lines):
            name = f"{where}: {kind}{f' {what}' if what else ''}"
            seen[name] += 1
            full = name if seen[name] == 1 else f"{name} ({seen[name]})"
            local = _is_local(statement, kind)
            yield Mutant(full, kind, file, statement.first, statement.last, changed, block, local)


def _is_local(statement: Statement, kind: str) -> bool:
    if not statement.around or statement.name in _SEEN_ELSEWHERE:
        return False
    block = statement.around[0].partition(" ")[0]
    return block in ("resource", "data", "module") or (block == "output" and kind != "retyped")


def _left_alone(file: str, statement: Statement) -> bool:
    parts = (*statement.around, statement.name)
    of_a_module = file.startswith("modules/") and parts[0].startswith("variable ") and "validation" not in parts
    return of_a_module or statement.name in _FOR_PEOPLE or "output made" in parts


def _changes(statement: Statement, lines: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """What is done to one statement: kind, detail, its text then."""
    yield "dropped", "", ""
    body = "".join(lines[statement.first : statement.last + 1])
    if statement.value is None:
        if statement.around:
            keyword, _, label = statement.name.partition(" ")
            before, after = (f'"{label}"', f'"{label}_x"') if keyword == "dynamic" else (keyword, f"{keyword}_x")
            yield "renamed", "", body.replace(before, after, 1)
        return
    yield "renamed", "", body.replace(statement.name, f"{statement.name}_x", 1)
    start = body.index("= ") + 2
    wrong = (
        '"wrong"' if statement.value.lstrip("(")[:1] in "[{" or statement.value.startswith(("concat", "merge")) else '["wrong"]'
    )
    yield "retyped", "", f"{body[:start]}{wrong}\n"
    for found in _REFERENCE.finditer(body, start):
        yield "broken", found[0], f"{body[: found.end()]}_x{body[found.end() :]}"
    for found in _ROLE.finditer(body, start):
        yield "other role", found[0].strip('"'), f'{body[: found.start()]}"roles/viewer"{body[found.end() :]}'


def every() -> list[Mutant]:
    infra = check.INFRA
    return [each for file in check.files() for each in mutants(str(file.relative_to(infra)), file.read_text())]


@contextmanager
def changed(workspace: Workspace, those: Sequence[Mutant]) -> Iterator[dict[Mutant, range]]:
    """The workspace with these mutants, each in a block of its own. Gives the lines that each one's block then has, from 1."""
    originals = {name: (workspace.folder / name).read_text() for name in {each.file for each in those}}
    places: dict[Mutant, range] = {}
    for name, original in originals.items():
        lines, shift = original.splitlines(keepends=True), 0
        for each in sorted((each for each in those if each.file == name), key=lambda each: each.first):
            new = each.text.splitlines(keepends=True)
            lines[each.first + shift : each.last + 1 + shift] = new
            grown = len(new) - (each.last + 1 - each.first)
            places[each] = range(each.block[0] + shift + 1, each.block[1] + shift + grown + 2)
            shift += grown
        (workspace.folder / name).write_text("".join(lines))
    try:
        yield places
    finally:
        for name, original in originals.items():
            (workspace.folder / name).write_text(original)


def refused(workspace: Workspace, those: Sequence[Mutant], schema: Path) -> list[Mutant]:
    """Which of several local mutants `validate` names when it sees them together: perhaps fewer than it would one by one."""
    with changed(workspace, those) as places:
        named = set(workspace.places_of_problems(schema=schema))
    return [each for each in those if any((each.file, line) in named for line in places[each])]


def judge(workspace: Workspace, mutant: Mutant, schema: Path) -> str:
    """ "validate", "test" or "survives"."""
    with changed(workspace, [mutant]):
        if workspace.problems(schema=schema):
            return "validate"
        for name in ["production", "defaults", *(["refused"] if "validation" in mutant.name else [])]:
            if workspace.attempt("test", f"-filter=tests/{name}.tftest.hcl", schema=schema).returncode:
                return "test"
    return "survives"


def batches(those: Iterable[Mutant], size: int) -> list[list[Mutant]]:
    """In each at most one mutant of a block."""
    found: list[list[Mutant]] = []
    for mutant in those:
        for batch in found:
            if len(batch) < size and all((each.file, each.block) != (mutant.file, mutant.block) for each in batch):
                batch.append(mutant)
                break
        else:
            found.append([mutant])
    return found


class Run:
    """One run over mutants, whose verdicts go to a file as they come. until: in time.monotonic's seconds."""

    def __init__(self, results: Path, place: Path, *, workers: int, until: float) -> None:
        self._results, self._until, self._workers = results, until, workers
        self._writing = Lock()
        tools = build.ensure(print)
        self._schema = check.reduced(tools.schema, place / "schema.json")
        self._idle: SimpleQueue[Workspace] = SimpleQueue()
        for number in range(workers):
            (place / str(number)).mkdir()
            workspace = Workspace.make(tools, place / str(number))
            if not number:
                # Else everything that is judged would count as caught.
                workspace.run("validate", schema=self._schema)
                workspace.run("test", schema=self._schema)
            self._idle.put(workspace)

    def judge(self, todo: Sequence[Mutant]) -> None:
        """In parts, so that what is done when time is up is a fair sample, if `todo` is shuffled."""
        for at in range(0, len(todo), PART):
            self._judge(todo[at : at + PART])

    def _judge(self, todo: Sequence[Mutant]) -> None:
        """Local ones together first, twice, since what fails hides what depends on it; then the rest one by one."""
        left = list(todo)
        for size in (10, 5):
            together = batches([each for each in left if each.local], size)
            caught = {each for batch in self._each(self._refused, together) for each in batch or ()}
            left = [each for each in left if each not in caught]
        self._each(self._alone, left)

    def _refused(self, workspace: Workspace, batch: list[Mutant]) -> list[Mutant]:
        found = refused(workspace, batch, self._schema)
        for each in found:
            self._note(each, "validate")
        return found

    def _alone(self, workspace: Workspace, mutant: Mutant) -> None:
        self._note(mutant, judge(workspace, mutant, self._schema))

    def _note(self, mutant: Mutant, verdict: str) -> None:
        with self._writing, self._results.open("a") as out:
            out.write(json.dumps({"name": mutant.name, "kind": mutant.kind, "verdict": verdict}) + "\n")

    def _each(self, what: Callable[[Workspace, T], R], items: Sequence[T]) -> list[R | None]:
        def one(item: T) -> R | None:
            if time.monotonic() > self._until:
                return None
            workspace = self._idle.get()
            try:
                return what(workspace, item)
            finally:
                self._idle.put(workspace)

        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(one, items))


def _area(name: str) -> str | None:
    return next((area for area, pattern in _AREAS.items() if re.search(pattern, name)), None)


def report(found: dict[str, tuple[str, str]]) -> str:
    """found: name -> kind, verdict. A table of shares, by kind of mutant and by area."""
    rows = ["| Mutants | how many | by `validate` | by `test` | survive |", "|---|---|---|---|---|"]
    kinds = sorted({kind for kind, _ in found.values()})
    groups = {kind: [verdict for each, verdict in found.values() if each == kind] for kind in kinds}
    for area, pattern in _AREAS.items():
        groups[area] = [verdict for name, (_, verdict) in found.items() if re.search(pattern, name)]
    groups["all"] = [verdict for _, verdict in found.values()]
    for name, verdicts in groups.items():
        counts = [verdicts.count(verdict) for verdict in ("validate", "test", "survives")]
        rows.append(f"| {name} | {len(verdicts)} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m local.terraform.mutants", description="Breaks infra/ and counts who notices."
    )
    parser.add_argument("--results", type=Path, required=True, help="file with a line for each mutant; a run continues it")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    until = time.monotonic() + 60 * options.minutes
    wanted = every()
    todo = [each for each in wanted if each.name not in _read(options.results)]
    # What a company asks about first, whole; then the rest, of which a part is a fair sample.
    random.Random(1).shuffle(todo)
    todo.sort(key=lambda each: not _area(each.name))
    with tempfile.TemporaryDirectory() as place:
        Run(options.results, Path(place), workers=options.workers, until=until).judge(todo)
    found = {name: each for name, each in _read(options.results).items() if name in {mutant.name for mutant in wanted}}
    print(report(found))
    if missing := len(wanted) - len(found):
        print(f"{missing} mutants are left")
        return 3
    surviving = {name for name, (_, verdict) in found.items() if verdict == "survives"}
    excused = reasons()
    wrong = [f"survives without a reason: {name}" for name in sorted(surviving - set(excused))]
    wrong += [f"has a reason to survive, and does not: {name}" for name in sorted(set(excused) - surviving)]
    print("\n".join(wrong))
    return 1 if wrong else 0


def reasons() -> dict[str, str]:
    """Name of a mutant that may survive -> why, from `survivors.yaml`: {REASON: [NAME, ...]}."""
    return {name: reason for reason, names in yaml.safe_load(SURVIVORS.read_text()).items() for name in names}


def _read(results: Path) -> dict[str, tuple[str, str]]:
    if not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return {each["name"]: (each["kind"], each["verdict"]) for each in lines}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
