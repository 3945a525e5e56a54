"""The measures have two names each, and results.txt has one section of each: the latest."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import engine_defaults
from benchmarks.measures import MEASURES, number_of
from benchmarks.report import RESULTS, ROOT, replaced
from benchmarks.runs import prepare
from benchmarks.vllm_throughput import Case
from nightshift.jobset.manifest.server import server_args
from nightshift.run.opening import load_run, planned
from nightshift.store import open_store
from tests.builders import a_spec

pytestmark = pytest.mark.unit

PAGE = "# Benchmarks\n\n## Results\n\n### P1, monday\n\nold\n\n### P11, monday\n\nstays\n\n### P1, tuesday\n\nold too\n"


def test_a_new_section_takes_the_place_of_the_old_ones() -> None:
    """And only of its own measure's: P11 begins like P1."""
    page = replaced(PAGE, "P1", "### P1, today\n\nnew\n\n")

    assert page == "# Benchmarks\n\n## Results\n\n### P1, today\n\nnew\n\n### P11, monday\n\nstays\n"


def test_a_measure_without_a_section_goes_to_the_end() -> None:
    page = replaced("# Benchmarks\n\n### P2, monday\n\nstays\n", "P3", "### P3, today\n\nnew\n")

    assert page == "# Benchmarks\n\n### P2, monday\n\nstays\n\n### P3, today\n\nnew\n"


@pytest.mark.parametrize("word", ["p6b", "P6b", "P6B", "billion_rows"])
def test_a_measure_is_named_by_its_number_or_by_its_subject(word: str) -> None:
    assert number_of(word) == "P6b"


def test_a_word_that_names_no_measure() -> None:
    assert number_of("p99") is None


@pytest.mark.parametrize(("number", "subject"), MEASURES.items())
def test_module_page_and_results_give_a_subject_the_same_number(number: str, subject: str) -> None:
    module = ast.parse((ROOT / "benchmarks" / f"{subject}.py").read_text())
    page = (ROOT / "docs/develop/benchmarks.md").read_text()

    assert (ast.get_docstring(module) or "").startswith(f"{number}: ")
    assert f"\n| {number} | `{subject}` | " in page
    assert f"\n### {number}, " in RESULTS.read_text()


def test_the_sides_of_p21_differ_in_the_defaults_alone() -> None:
    after = Case("chat", "org/m", "r1", True, 1, None, chats=True, args=engine_defaults.NO_PREFIXES)

    ours, theirs = (set(server_args(a_spec(**case.settings))) for case in (after, engine_defaults.before(after)))

    assert ours - theirs == {"--max-num-seqs=256", "--max-num-batched-tokens=4096", "--disable-uvicorn-access-log"}
    assert theirs - ours == {"--max-num-seqs=128", "--max-num-batched-tokens=2048", "--no-disable-uvicorn-access-log"}


def test_a_driver_accepts_the_run_of_a_measure(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, 20, chunk_rows=10)
    store = open_store(f"file://{tmp_path}")

    _, record = load_run(store, prepared.run)

    assert planned(store, prepared.run, record) == prepared.plan
