"""The command line of `nightshift stream redrive`: what it refuses before it talks to anybody."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightshift import cli
from nightshift.cli import stream_redrive
from nightshift.cli.stream_redrive import Options
from tests.unit.spec.test_stream import EXAMPLE, FILES, stream
from tests.unit.spec_file import DEMO, write

pytestmark = pytest.mark.unit

SINK = "postgresql://nobody@127.0.0.1:1/none"


@pytest.fixture(autouse=True)
def _deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_SINK_URL", SINK)
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "p")


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What is said on stderr by a command that ends with code 2."""
    assert cli.main(["stream", "redrive", *map(str, words)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_what_the_words_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Options] = []

    def run(options: Options) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr(stream_redrive, "run", run)
    selection = ["--reason", "too_long", "--reason", "rejected", "--since", "2026-11-20T08:00Z", "--most", "5"]

    assert cli.main(["stream", "redrive", "a.yaml"]) == 0
    assert cli.main(["stream", "redrive", "a.yaml", *selection, "--topic", "t", "--dry-run", "--json"]) == 0

    since = datetime(2026, 11, 20, 8, tzinfo=UTC)
    assert asked == [
        Options(Path("a.yaml"), SINK, "p", [], None, None, 1000, None, False, False),
        Options(Path("a.yaml"), SINK, "p", ["too_long", "rejected"], since, None, 5, "t", True, True),
    ]


@pytest.mark.parametrize("words", [["--since", "2026-11-20"], ["--until", "soon"], ["--most", "0"]])
def test_options_that_cannot_be_read(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["stream", "redrive", "a.yaml", *words])

    assert ended.value.code == 2
    assert "write" in capsys.readouterr().err or words[0] == "--most"


def test_the_database_must_be_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIGHTSHIFT_SINK_URL")

    said = refusal(capsys, EXAMPLE)
    assert said.startswith("Set NIGHTSHIFT_SINK_URL to the address of the stream's database, for example postgresql://")
    assert "docs/use/streams.md" in said


def test_a_nightly_job_is_not_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert "The file describes a nightly job" in refusal(capsys, DEMO)


def test_an_unknown_reason_is_said_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, EXAMPLE, "--reason", "to_long")

    assert said.startswith("There is no reason to_long. Reasons are bad_input, too_long, ")
    assert said.endswith("unwritable.\n")


def test_a_short_name_needs_a_project(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NIGHTSHIFT_PROJECT")

    assert "package-texts has no project" in refusal(capsys, EXAMPLE)


def test_a_stream_that_writes_files_has_no_dead_letters_that_can_be_marked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = refusal(capsys, write(tmp_path, stream(sink=FILES)))

    assert said.startswith(
        "The dead letters of package-texts cannot be redriven: only a stream from a subscription into a table"
    )


def test_a_wrong_address_is_said_without_its_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_SINK_URL", "nonsense=1 password=hush")

    said = refusal(capsys, EXAMPLE)
    assert said.startswith("NIGHTSHIFT_SINK_URL is not an address of PostgreSQL")
    assert "hush" not in said


def test_a_database_that_is_away_is_worth_a_repeat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")

    assert cli.main(["stream", "redrive", str(EXAMPLE)]) == 75
    assert "Run the same command again" in capsys.readouterr().err


def test_the_name_that_it_had_in_0_2_0_still_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["redrive", str(EXAMPLE), "--reason", "to_long"]) == 2

    new_name, refusal = capsys.readouterr().err.splitlines()
    assert new_name == "nightshift redrive is now `nightshift stream redrive`."
    assert refusal.startswith("There is no reason to_long.")
