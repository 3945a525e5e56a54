"""Single rows of a run, as `nightshift status` shows them: dead letters, samples, and one by its key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from nightshift import exits
from nightshift.cli.terminal import paint
from nightshift.fields.text import n
from nightshift.run.tolerance import not_tried

if TYPE_CHECKING:
    from nightshift.cli.target import Target
    from nightshift.status.explanation import Explanation
    from nightshift.status.prompts import PromptText

SHOWN: Final = 20
"""Dead letters that a person gets at once."""
PAGE: Final = 500
"""Dead letters of one JSON object."""
WIDE: Final = 2_000
"""Characters of a prompt or an answer on a terminal."""
SHORT: Final = 160
"""Of the prompt of a dead letter in a list: two lines of a screen. ``--row`` shows more, ``--json`` all."""


def dead_letters(found: Target, reason: str | None, *, as_json: bool) -> int:
    """All as JSON, a page on each line; else the first `SHOWN`. Raises what `DeadLetters.page` raises."""
    from nightshift.status.dead_letters import DeadLetters

    source = DeadLetters(found.store, found.run)
    page = source.page(reason=reason, count=PAGE if as_json else SHOWN)
    if as_json:
        print(json.dumps(page.to_json()), flush=True)
        while page.after is not None:
            page = source.page(reason=reason, after=page.after, count=PAGE)
            print(json.dumps(page.to_json()), flush=True)
        return exits.DONE
    while reason is not None and reason not in page.reasons and page.reasons_of < page.total:
        page = source.page(reason=reason, count=SHOWN)  # Each reads more reasons: none is denied before all are read.
    if reason is not None and reason not in page.reasons:
        there = ", ".join(page.reasons) or "none"
        raise ValueError(f"{found.run.prefix} has no dead letters of the reason {reason!r}. Its reasons: {there}.")
    said = ", ".join(f"{count:,} {name}" for name, count in page.reasons.items())
    so_far = "" if page.proven else ", as far as its workers have said"
    if page.reasons_of < page.total:
        so_far += f"; the reasons of {page.total - page.reasons_of:,} are not read yet"
    print(f"{found.run.prefix}: {n(page.total, 'dead letter')}{f' ({said})' if said else ''}{so_far}")
    if page.not_tried:
        print(f"When the night stopped, {not_tried(page.not_tried)}.")
    # A page of a run with few dead letters in many chunks may be short.
    rows = list(page.rows)
    while len(rows) < SHOWN and page.after is not None:
        page = source.page(reason=reason, after=page.after, count=SHOWN - len(rows))
        rows += page.rows
    for each in rows:
        print()
        print(paint(f"{_pairs(each.key)}  {each.reason}", "red") + f"  row {each.ordinal}, {n(each.attempts, 'attempt')}")
        print(*_field("message", each.message), *_prompt(each.prompt, each.row_problem, SHORT), sep="\n")
    if page.after is not None:
        print(f"\nThese are the first {len(rows):,}; --json prints all.")
    _problems(page.problems)
    return exits.DONE


def samples(found: Target, count: int, *, as_json: bool) -> int:
    """Raises what `nightshift.status.samples.samples` raises."""
    from nightshift.status.samples import samples as drawn

    made = drawn(found.store, found.run, rows=count)
    if as_json:
        print(json.dumps(made.to_json()))
        return exits.DONE
    print(f"{found.run.prefix}: {made.basis}")
    for each in made.rows:
        cut = "  cut at max_tokens" if each.finish_reason == "length" else ""
        print(f"\n{paint(_pairs(each.key), 'green')}  row {each.ordinal}{cut}")
        print(*_prompt(each.prompt, each.row_problem), *_field("answer", each.answer), sep="\n")
    _problems(made.problems)
    return exits.DONE


def row(found: Target, key: str, *, as_json: bool) -> int:
    """Raises NoSuchRow, ValueError for what is no key, and what `nightshift.status.explanation.explain` raises."""
    from nightshift.status.explanation import explain, key_of
    from nightshift.status.folder import RunFolder

    columns = RunFolder(found.store, found.run).spec.source.key
    explained = explain(found.store, found.run, key=key_of(key, tuple(columns)))
    if as_json:
        print(json.dumps(explained.to_json()))
    else:
        print(*_explained(explained), sep="\n")
    return exits.DONE


def _explained(found: Explanation) -> Iterator[str]:
    sample = found.sample
    yield f"{found.run}: {_pairs(sample.key)}, row {sample.ordinal}"
    yield from _prompt(sample.prompt, sample.row_problem)
    if found.dead_reason:
        yield from _field("dead", f"{found.dead_reason}: {found.dead_message or ''}")
    else:
        yield from _field("answer", sample.answer)
    yield from _field("model", _pairs(found.model))
    yield from _field("request", json.dumps({"task": found.task, **found.request}, ensure_ascii=False))
    yield from _field("seed", found.seed)
    yield from _field("engine", found.engine_version)
    others = ", which took over rows of others" if found.several else ""
    yield from _field("attempt", f"{found.attempt}{others}")
    yield from _field("chunk", f"{found.chunk_path}, sha256 {found.chunk_sha256}")
    if found.sealed_sha256 is None:
        yield from _field("proof", "the run is not sealed yet")
    else:
        same = "as sealed" if found.proven else f"NOT as sealed: the run manifest has {found.sealed_sha256}"
        yield from _field("proof", f"{same}; {found.manifest_path}, Merkle root {found.merkle_root}")
    yield from _field("input", found.input)
    yield from _field("spec", found.spec_path)


def _prompt(prompt: PromptText, problem: str | None, most: int = WIDE) -> Iterator[str]:
    yield from _field("prompt", prompt.text or None, most)
    if why := prompt.problem or problem:
        yield from _field("no prompt", why)


def _field(name: str, value: Any, most: int = WIDE) -> Iterator[str]:
    """The name in a column of its own, before each line's text; nothing for None. most: characters of it."""
    if value is None:
        return
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > most:
        begin = text[:most] if most == WIDE else " ".join(text[:most].split())
        text = f"{begin} ... ({n(len(text), 'character')} in all)"
    for number, line in enumerate(text.splitlines() or [""]):
        yield f"  {paint(f'{name:<9}', 'dim') if number == 0 else ' ' * 9} {line}".rstrip()


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _problems(found: Mapping[str, str]) -> None:
    for path, problem in sorted(found.items()):
        print(f"\n{paint('problem', 'red')}   {path}: {problem}")
