"""Pages and docstrings cite only what exists; what the pages show of the code is what the code says."""

import argparse
import re
from pathlib import Path

import pytest

from local.test import table
from nightshift import cli
from nightshift.run import tolerance
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.spec import load
from tests.citations import Repository
from tests.unit.test_architecture import ALLOWED

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


def options() -> dict[str, frozenset[str]]:
    """The options of each command of ``nightshift``."""
    found: dict[str, frozenset[str]] = {}
    for action in cli.command_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, parser in action.choices.items():
                found[name] = frozenset(option for each in parser._actions for option in each.option_strings)
    return found


def test_everything_that_is_cited_exists() -> None:
    assert Repository(ROOT, options()).problems() == []


def test_the_tables_in_contributing_are_todays() -> None:
    page = table.PAGE.read_text()

    assert page == table.with_tables(page), "run: python3 -m local.test.table"


PAGE = """# A page

[there](page.md#a-page) [nowhere](gone.md) [no heading](page.md#b) [outside](https://example.com/gone.md)

`plugins/nightshift/there.py` `plugins/nightshift/gone.py` `there.py` `gone.py` `tests/{unit,gone}/` `tasks/KIND.py`

`make up` `make nothing` `NIGHTSHIFT_BUCKET` `NIGHTSHIFT_GONE` `nightshift.there.Thing.method` `nightshift.there.Thing.gone`

`there.py::Thing` `there.py::gone`

`python -m nightshift.there` `python3 -m local.gone` `nightshift.dead_letters`

```
nightshift status RUN_URL --watch
.venv/bin/nightshift status RUN_URL --gone
nightshift forget FILE
make up STATE=x && make vanish
```

```yaml
source:
  watch: gs://bucket/folder
    settle: 3m
```
"""
MODULE = '''"""Cites docs/gone.md and `nightshift.there.Gone`, and nothing else that is not there: docs/page.md."""
import os
class Thing:
    def method(self) -> str:
        """See there.py and `nightshift.elsewhere`."""
        return os.environ["NIGHTSHIFT_BUCKET"]
'''


def test_the_check_bites(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text(PAGE)
    (tmp_path / "plugins/nightshift").mkdir(parents=True)
    (tmp_path / "plugins/nightshift/__init__.py").touch()
    (tmp_path / "plugins/nightshift/there.py").write_text(MODULE)
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "Makefile").write_text("up:\n\ttrue\n")

    assert Repository(tmp_path, {"status": frozenset({"--watch"})}).problems() == [
        "docs/page.md: nightshift status has no option --gone",
        "docs/page.md: nothing reads the variable NIGHTSHIFT_GONE",
        "docs/page.md: python -m local.gone: there is no such module",
        "docs/page.md: the Makefile has no target nothing",
        "docs/page.md: the Makefile has no target vanish",
        "docs/page.md: the block that begins with 'source:' is not YAML: mapping values are not allowed here",
        "docs/page.md: the link gone.md leads nowhere",
        "docs/page.md: the link page.md#b names a heading that page.md does not have",
        "docs/page.md: there is no command nightshift forget",
        "docs/page.md: there is no file gone.py",
        "docs/page.md: there is no file plugins/nightshift/gone.py",
        "docs/page.md: there is no nightshift.there.Thing.gone",
        "docs/page.md: there is no tests/gone/",
        "docs/page.md: there.py has no gone",
        "plugins/nightshift/there.py:1: there is no file docs/gone.md",
        "plugins/nightshift/there.py:1: there is no nightshift.there.Gone",
        "plugins/nightshift/there.py:4: there is no nightshift.elsewhere",
    ]


def test_the_index_names_every_page() -> None:
    for folder, pattern in ((ROOT / "docs", "**/*.md"), (ROOT / "docs/adr", "*.md")):
        index = (folder / "README.md").read_text()
        pages = {str(page.relative_to(folder)) for page in folder.glob(pattern)}
        own = {page for page in pages if folder.name == "adr" or not page.startswith("adr/")} | {"README.md"}
        assert sorted(page for page in own if f"]({page})" not in index) == ["README.md"]


def test_the_architecture_page_has_the_arrows_of_the_architecture_test() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)

    allowed = {room: ", ".join(sorted(may - {""})) or "nothing" for room, may in ALLOWED.items() if room}
    assert {room: may for room, may in rows if room in allowed} == allowed


def test_the_tutorials_job_has_the_one_mistake_that_it_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs/use/tutorial.md").read_text()
    job = re.search(r"^cat > dags/jobs/ticket-vectors.yaml <<'END'\n(.*?)^END$", page, re.MULTILINE | re.DOTALL)
    shown = re.search(r"^dags/jobs/ticket-vectors.yaml(:13: .*)$", page, re.MULTILINE)
    assert job is not None
    assert shown is not None
    file = tmp_path / "ticket-vectors.yaml"
    file.write_text(job[1])

    with pytest.raises(ValueError, match="boddy") as caught:
        load(file)
    assert str(caught.value).splitlines() == [f"{file}{shown[1]}"]
    file.write_text(job[1].replace("boddy", "body") + 'dead_letters: {tolerate: "10%"}\n')
    assert load(file).job == "ticket-vectors"


def test_the_tutorial_shows_what_a_night_with_too_many_dead_letters_says() -> None:
    reasons = {"bad_input": 1}
    with pytest.raises(ToleranceExceeded) as caught:
        tolerance.judge(1, 0, tolerance.found(1, 12, reasons), tolerance.what_to_do("0", reasons))

    assert f"failed: infer: {caught.value} (JobSet" in (ROOT / "docs/use/tutorial.md").read_text()
