"""Text of rows, answers, engines and workers on a terminal: no command writes a control character that is not our own."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from nightshift.cli import main, target, terminal, trouble
from nightshift.cli import preview as preview_command
from nightshift.fields.terminal import MARKS, Written, harmless, plain
from nightshift.jobset.fleet.shown import save_now
from nightshift.operators import failures
from nightshift.operators.run import RunOperator
from nightshift.run import chunks, pauses
from nightshift.run.answers import compare
from nightshift.run.chunks import Result
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from nightshift.run.observed.pods_now import Acts, JobSetNow, LastWords, PodNow, Stage
from nightshift.trial.preview.results import NightEstimate, Preview, PreviewRow, Variant
from nightshift.triggers.jobset import KubernetesJobSetTrigger
from tests.builders import write_input
from tests.chat_run import ChatRun, a_chat_run

pytestmark = pytest.mark.unit

PLUGINS = Path(__file__).parents[2] / "plugins" / "nightshift"
HOSTILE = "a\x1b[2J\x1b]0;title\x07\x1b[8mhidden\x9b31m\x00\x08\r\x7f\u202etxet\u2066x\u2069 b"
OWN = re.compile(r"\x1b\[(31|32|33|2|0)m")
ARGUMENT = HOSTILE.replace("\x00", "")
"""As a command line can have it."""
AT = "2200-01-01T03:00:00+00:00"


def is_harmless(text: str) -> bool:
    bidi = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return not any(
        (unicodedata.category(each) in ("Cc", "Cs") and each not in "\n\t") or unicodedata.bidirectional(each) in bidi
        for each in text
    )


def test_generated_texts_lose_what_moves_and_nothing_else() -> None:
    draw = random.Random(56)
    for _ in range(300):
        text = "".join(
            chr(draw.choice((draw.randrange(0xA0), draw.randrange(0x2020, 0x2070), draw.randrange(0x30000)))) for _ in range(40)
        )
        found = harmless(text)
        assert is_harmless(found)
        # Nothing else goes: what was harmless is as it was, in its place.
        assert [a for a, b in zip(text.replace("\r\n", "\n"), found, strict=True) if a != b and is_harmless(a)] == []


def test_colours_are_set_afterwards_and_hold_only_what_was_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "coloured", lambda: True)
    shown = io.StringIO()
    print(terminal.paint("failed", "red"), "\x1b[32mno\x1b[0m", file=Written(shown))

    assert shown.getvalue() == "\x1b[31mfailed\x1b[0m \N{REPLACEMENT CHARACTER}[32mno\N{REPLACEMENT CHARACTER}[0m\n"
    assert plain(terminal.paint("failed", "red")) == "failed"
    assert terminal.cut(terminal.paint("failed", "red"), 4) == "fai"


# ---------------------------------------------------------------- every command, and every field of a run


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "b")
    for name in ("NIGHTSHIFT_AIRFLOW_URL", "AIRFLOW__API__BASE_URL", "NIGHTSHIFT_PRICES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for module in (trouble, target):
        monkeypatch.setattr(module, "open_bucket", lambda url: made)
    return made


def a_night(store: MemoryStore, state: str) -> ChatRun:
    """Every text that others write is hostile: rows, answers, messages, workers, engines, errors, who paused."""
    run = a_chat_run(store, rows=20, opened_by=HOSTILE)
    write_input(store, run.run, [f"{HOSTILE} {row}" for row in range(20)], per_file=20, per_group=10)
    for number in range(2):
        ordinals = run.plan.chunk_range(number)
        results = [
            Result(row, None, HOSTILE, HOSTILE, 1) if row % 5 == 0 else Result(row, f"{HOSTILE} {row}", None, None, 1)
            for row in ordinals
        ]
        claims = run.provenance(number, 8, 2)
        claims = replace(claims, attempt=HOSTILE, node=HOSTILE, engine_version=HOSTILE)
        keys = pa.table({"id": pa.array([f"{ARGUMENT}{row}" for row in ordinals])})
        run.put(run.work.chunk_path(number), chunks.encode(keys, results, pa.string(), claims))
    run.beat("tickets-0-1", rows_answered=10, node=HOSTILE)
    words = LastWords(HOSTILE, 1, HOSTILE, 3, HOSTILE, HOSTILE, (HOSTILE, HOSTILE))
    pod = PodNow(HOSTILE, 0, Stage.WEIGHTS, HOSTILE, Acts.AUTHOR, restarts=3, words=words)
    save_now(store, run.run, JobSetNow("jobset", HOSTILE, 2, pods=(pod,), profile=HOSTILE))
    if state == "published":
        run.seal(engine_versions={HOSTILE: 20}, dead_reasons={HOSTILE: 4})
        endings.record(store, run.run, Ending("published", AT, HOSTILE, dead_letters=4, dead_reasons={HOSTILE: 4}))
    elif state == "failed":
        endings.record(store, run.run, Ending("failed", AT, HOSTILE, HOSTILE, HOSTILE, 4, {HOSTILE: 4}))
    else:
        pauses.request_pause(store, run.run, paused=True, by=HOSTILE)
        run.put(f"{run.work.prefix}/ledger/\u202ex", b"x")
    return run


OF_RUNS = [
    ["runs"],
    ["status", "tickets"],
    ["status", "tickets", "--engines"],
    ["status", "tickets", "--dead-letters"],
    ["status", "tickets", "--dead-letters", ARGUMENT],
    ["status", "tickets", "--samples", "5"],
    ["status", "tickets", "--row", f"{ARGUMENT}3"],
    ["status", "tickets", "--row", ARGUMENT],
]
OF_NAMES = [
    ["status", ARGUMENT],
    ["runs", "--job", ARGUMENT],
    ["pause", ARGUMENT],
    ["run", ARGUMENT],
    ["validate", ARGUMENT],
    ["plan", ARGUMENT],
    ["preview", ARGUMENT],
    ["tune", ARGUMENT],
    ["costs", "--since", ARGUMENT],
    ["batch", "-i", ARGUMENT, "-o", ARGUMENT],
    [ARGUMENT],
]


@pytest.mark.parametrize("state", ["published", "failed", "open"])
@pytest.mark.parametrize("look", ["plain", "colours", "json"])
def test_no_command_writes_what_a_row_an_engine_or_a_worker_says_as_it_is(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, look: str
) -> None:
    a_night(store, state)
    monkeypatch.setattr(terminal, "coloured", lambda: look == "colours")
    said = ""
    for words in OF_RUNS if (state, look) != ("failed", "plain") else OF_RUNS + OF_NAMES:
        with contextlib.suppress(SystemExit):
            main([*words, *(["--json"] if look == "json" else [])])
        out, err = capsys.readouterr()
        text = OWN.sub("", out + err) if look == "colours" else out + err
        assert is_harmless(text), words
        if look == "json" and out:
            json.loads(out.splitlines()[0])
        said += text
    assert look == "json" or said.count("\N{REPLACEMENT CHARACTER}") > 50
    assert ("hidden" in said, "title" in said) == (True, True)


def test_json_loses_nothing(store: MemoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    a_night(store, "failed")

    main(["runs", "--json"])

    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert (run["error"], run["failed_task"]) == (HOSTILE, HOSTILE)


def test_a_preview_is_harmless_and_its_marks_are_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        PreviewRow(f"{HOSTILE} prompt {side}", f"{HOSTILE} {side}", key={HOSTILE: HOSTILE}, reasoning=HOSTILE) for side in "ab"
    ]
    night = NightEstimate(100, 1000, 500, HOSTILE, problem=HOSTILE)
    first, second = (
        Variant(
            HOSTILE,
            HOSTILE,
            HOSTILE,
            "d",
            (row, PreviewRow(HOSTILE, None, key={"id": 2}, reason=HOSTILE)),
            10,
            5,
            HOSTILE,
            0.5,
            night,
        )
        for row in rows
    )
    for variants in ((first,), (first, second)):
        made = Preview(
            "1",
            HOSTILE,
            HOSTILE,
            AT,
            HOSTILE,
            variants,
            compare.pairs(*(each.rows for each in variants)) if len(variants) > 1 else (),
        )
        monkeypatch.setattr("nightshift.trial.preview.previews.preview", lambda *_, made=made: made)
        monkeypatch.setattr(preview_command, "_question", lambda options: None)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        with_colours = Written(io.StringIO())
        monkeypatch.setattr("sys.stdout", with_colours)
        with_colours.own.isatty = lambda: True  # type: ignore[method-assign]
        preview_command._run(preview_command.Options(Path("x")), {}, lambda environment: None)  # type: ignore[arg-type, return-value]
        text = with_colours.own.getvalue()  # type: ignore[attr-defined]
        assert is_harmless(OWN.sub("", text))
        assert "prompt" in text
    assert "\x1b[31m" in text


# ---------------------------------------------------------------- no way around


def test_nothing_writes_to_a_terminal_by_another_way() -> None:
    """What commands print passes the streams of `main`; escape sequences are written in two places."""
    around = re.compile(r"__std(out|err)__|std(out|err)\.own|\\x1b|\\033|\\u001b|os\.write\([12],")
    found = {file.relative_to(PLUGINS).as_posix() for file in PLUGINS.rglob("*.py") if around.search(file.read_text())}

    assert found == {"cli/terminal.py", "fields/terminal.py"}


def test_a_process_has_colours_of_its_own() -> None:
    assert len(set(MARKS.values())) == len(MARKS)
    assert all(unicodedata.category(mark) == "Co" for mark in MARKS.values())


def test_what_tasks_log_of_rows_errors_and_pods_is_harmless() -> None:
    """The same function: an error's last lines, what a task tells, and a container's line."""
    logged: list[str] = []
    task = SimpleNamespace(
        log=SimpleNamespace(info=lambda _, line: logged.append(line), warning=lambda _, line: logged.append(line))
    )
    RunOperator.tell(task, f"{HOSTILE}\n{HOSTILE}", warns=True)  # type: ignore[arg-type]
    logged += failures.told(HOSTILE, failures.Entry.UNEXPECTED)

    sink = KubernetesJobSetTrigger._sink(task, "job-1")  # type: ignore[arg-type]
    task.log.info = lambda _, pod, container, line: logged.append(line)
    sink("job-1-0", "server", HOSTILE)

    assert len(logged) >= 4
    assert all(is_harmless(line) for line in logged)
    assert "hidden" in logged[-1]
