"""A preview on a terminal: each row's prompt and answer; of two jobs side by side, with the words that differ marked."""

from __future__ import annotations

import itertools
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from nightshift.fields.terminal import MARKS, plain
from nightshift.fields.text import minutes, n
from nightshift.planner.costs.prices import no_price
from nightshift.run.answers.compare import Diff, Pair, answer_text
from nightshift.trial.preview.results import NightEstimate, Preview, PreviewRow, Variant

LINES_MOST: Final = 12
"""Of one prompt or answer; --json has all of it."""
LEAST: Final = 40
NEAR: Final = 60
"""Characters beside a change of the template."""
_MARKS: Final = {"-": ("[-", "-]"), "+": ("{+", "+}")}
_COLOURS: Final = {"-": (MARKS["red"], MARKS[None]), "+": (MARKS["green"], MARKS[None])}


def lines(preview: Preview, *, colour: bool = False, width: int | None = None) -> Iterator[str]:
    """width: columns of the terminal, by default of this one."""
    width = max(LEAST, width or shutil.get_terminal_size((100, 24)).columns)
    first = preview.variants[0]
    rows = f"{n(len(first.rows), 'row')} of {first.night.rows:,}"
    yield f"{preview.job} {preview.partition}: {rows}, {first.model}, vLLM {first.engine}"
    if len(preview.variants) == 1:
        for row in first.rows:
            yield ""
            yield from _one(row, width)
    else:
        yield from _side_by_side(preview, width, _COLOURS if colour else _MARKS)
    yield ""
    for variant in preview.variants:
        yield from _sum(variant, named=len(preview.variants) > 1)
    if preview.pairs:
        yield (
            f"{preview.changed_answers} of {n(len(preview.pairs), 'answer')} changed, and "
            f"{n(preview.changed_prompts, 'prompt')} ({first.file} -> {preview.variants[1].file})"
        )
    took = sum(value for name, value in preview.seconds.items() if name in ("rows", "answers", "estimate"))
    yield f"the engine took {preview.seconds.get('engine', 0):.1f} s of {took:.1f} s; kept as {preview.id}"


def _one(row: PreviewRow, width: int) -> Iterator[str]:
    yield f"{_key(row.key)}  {_facts(row)}".rstrip()
    if row.prompt is not None:
        yield from _block("prompt", row.prompt, width)
    if row.reasoning:
        yield from _block("reasoning", row.reasoning, width)
    if row.reason is not None:
        yield from _block("dead", f"{row.reason}: {row.message}", width)
    else:
        yield from _block("answer", answer_text(row), width)


_ENDS: Final = {"length": "cut at max_tokens", "cut": "cut before its text began"}


def _facts(row: PreviewRow) -> str:
    found = [] if row.finish_reason is None else [_ENDS.get(row.finish_reason, row.finish_reason)]
    if row.prompt_tokens is not None:
        found.append(f"{row.prompt_tokens:,} + {n(row.output_tokens or 0, 'token')}")
    if row.tries > 1:
        found.append(f"{row.tries} tries")
    return f"({', '.join(found)})" if found else ""


def _block(name: str, text: str, width: int) -> Iterator[str]:
    for number, line in enumerate(_wrapped(text, width - 12)):
        yield f"  {name if number == 0 else '':9} {line}"


def _side_by_side(preview: Preview, width: int, marks: dict[str, tuple[str, str]]) -> Iterator[str]:
    first, second = preview.variants
    column = (width - 3) // 2
    others = {str(row.key): row for row in second.rows}
    changes = {str(pair.key): pair for pair in preview.pairs}
    alike = _changed_alike(preview.pairs)
    if alike is not None:
        yield f"every prompt differs in the same words, here of {_key(preview.pairs[0].key)}:"
        yield from _block("prompt", _inline(alike, marks), width)
        yield ""
    yield from _columns(first.file, second.file, column)
    for row in first.rows:
        other, pair = others.get(str(row.key)), changes.get(str(row.key))
        yield ""
        yield _key(row.key)
        if other is None or pair is None:
            yield "  (the other job's sample does not have this row)"
            yield from _one(row, width)
            continue
        yield from _pair(pair, row, other, column, width, marks, prompts=alike is None)
    missing = len(second.rows) - len(preview.pairs)
    if missing:
        yield f"({n(missing, 'row')} of {second.file} are not among those of {first.file})"


def _pair(
    pair: Pair,
    row: PreviewRow,
    other: PreviewRow,
    column: int,
    width: int,
    marks: dict[str, tuple[str, str]],
    *,
    prompts: bool,
) -> Iterator[str]:
    """prompts: False if their difference has been shown for all."""
    if not prompts:
        pass
    elif pair.prompt is None:
        yield from _block("prompt", row.prompt or "", width)
    else:
        yield from _columns(_marked(pair.prompt, "-", marks), _marked(pair.prompt, "+", marks), column)
    yield from _columns(_facts(row), _facts(other), column)
    if pair.answer is None:
        yield from _block("same", answer_text(row), width)
    else:
        yield from _columns(_marked(pair.answer, "-", marks), _marked(pair.answer, "+", marks), column)


def _changed_alike(pairs: Sequence[Pair]) -> Diff | None:
    """The first difference of prompts, if all rows have it in the same words: then the template has changed alone."""
    changed = [tuple((kind, text.strip()) for kind, text in pair.prompt if kind != "=") for pair in pairs if pair.prompt]
    if len(pairs) < 2 or len(changed) < len(pairs) or len(set(changed)) > 1:
        return None
    return pairs[0].prompt


def _inline(diff: Diff, marks: dict[str, tuple[str, str]]) -> str:
    """Both sides in one text; of what they have in common only what is near a change."""
    found = []
    for kind, text in diff:
        if kind != "=":
            begin, end = marks[kind]
            found.append(f"{text[: len(text) - len(text.lstrip())]}{begin}{text.strip()}{end}")
        elif len(text) > 2 * NEAR:
            found.append(f"{text[:NEAR]} ... {text[-NEAR:]}")
        else:
            found.append(text)
    return "".join(found)


def _marked(diff: Diff, kind: str, marks: dict[str, tuple[str, str]]) -> str:
    """One side: what both have, and what only it has between marks. Nothing is marked if they have no word in common.

    A colour is set for each word, because a line that ends in the middle of a piece would colour the other side, too.
    """
    pieces = [(each, text) for each, text in diff if each in ("=", kind)]
    if not any(each == "=" and text.strip() for each, text in diff):
        return "".join(text for _, text in pieces)
    begin, end = marks[kind]
    pattern = r"\S+" if marks is _COLOURS else r"\S(.*\S)?"
    return "".join(
        text if each == "=" else re.sub(pattern, lambda found: f"{begin}{found[0]}{end}", text) for each, text in pieces
    )


def _columns(left: str, right: str, column: int) -> Iterator[str]:
    for one, other in itertools.zip_longest(_wrapped(left, column), _wrapped(right, column), fillvalue=""):
        padding = " " * (column - len(plain(one)))
        yield f"{one}{padding} | {other}".rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    """At most `LINES_MOST`."""
    found: list[str] = []
    for line in text.rstrip().split("\n"):
        found += textwrap.wrap(line, width, replace_whitespace=False, drop_whitespace=True) or [""]
    if len(found) > LINES_MOST:
        found = [*found[: LINES_MOST - 1], f"... {n(len(found) - LINES_MOST + 1, 'more line')}"]
    return found


def _key(key: object) -> str:
    values = key.items() if isinstance(key, dict) else ()
    return ", ".join(f"{name} {value}" for name, value in values)


def _sum(variant: Variant, *, named: bool) -> Iterator[str]:
    head = f"{variant.file}: " if named else ""
    reasons = Counter(row.reason for row in variant.rows if row.reason is not None)
    dead = f"{n(variant.dead, 'dead letter')} ({', '.join(f'{count} {name}' for name, count in reasons.items())})"
    cut = f", {variant.truncated} cut" if variant.truncated else ""
    yield (
        f"{head}{len(variant.rows) - variant.dead} answered{cut}, {dead if reasons else 'no dead letter'}; "
        f"{n(variant.prompt_tokens, 'prompt token')} and {variant.output_tokens:,} of answers"
    )
    for warning in variant.warnings:
        yield f"{head}{warning}"
    yield f"{head}{_night(variant.night)}"
    if variant.night.problem:
        yield f"{head}the night does not fit: {variant.night.problem}"


def _night(night: NightEstimate) -> str:
    if night.seconds is None:
        how = "how long it takes is not known: the job states no speed, and no run has measured one"
    else:
        price = no_price() if night.cost is None else f"about {night.cost:,.2f} {night.currency}"
        share = (night.start_up_s or 0.0) / night.seconds if night.seconds else 0.0
        start = f", {'nearly all' if share > 0.9 else 'most'} of it start-up," if share > 0.5 else ""
        about = "at most" if night.start_up_at_most and share > 0.5 else "about"
        how = f"{about} {minutes(night.seconds)}{start} with {n(night.workers or 0, 'worker')} ({night.profile}), {price}"
    tokens = f"{night.input_tokens:,} + {night.output_tokens:,} tokens"
    return f"the whole night: {n(night.rows, 'row')}, {tokens}, {how}"
