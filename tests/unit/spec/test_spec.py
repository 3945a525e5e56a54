"""The job file: good ones load, bad ones say everything that is wrong, each mistake with its line and its remedy."""

from __future__ import annotations

import datetime
import random
from pathlib import Path

import pytest

from nightshift.fields.mistakes import Finding
from nightshift.spec import SpecErrors, job_checks, load, load_all, load_files, load_stream
from nightshift.spec.document import Document
from tests.unit.spec_file import DEMO, job, mistakes, write

pytestmark = pytest.mark.unit

BAD_JOBS = sorted((Path(__file__).parents[1] / "bad_jobs").glob("*.yaml"))
BAD_STREAMS = sorted((Path(__file__).parents[1] / "bad_streams").glob("*.yaml"))
EXPECTED = "#! "
"""Begins a line at the end of a bad job: LINE: FIELD: what is wrong. What to write instead."""


def test_demo_job_loads() -> None:
    spec = load(DEMO)

    assert spec.job == "package-embeddings"
    assert spec.start_date == datetime.date(2026, 11, 1)
    assert spec.source.key == ("name", "version")
    assert spec.request.model_dump() == {
        "input": "{{ summary }} {{ description }}",
        "overlong": "truncate",
        "dimensions": None,
        "rows_per_request": None,
        "nulls": None,
        "timeout": "10m",
    }
    assert spec.engine.args == {"enforce-eager": True}
    assert (spec.compute.profile, spec.compute.workers, spec.chunk_rows) == ("cpu", 2, 32)
    assert spec.deadline_seconds == 3600


def test_optional_keys_have_their_defaults(tmp_path: Path) -> None:
    value = job(engine={"max_num_seqs": 8}, compute={"profile": "cpu"}, destination={"table": "a.b", "column": "c"})
    for key in ("description", "tags", "schedule", "dead_letters", "chunk_rows"):
        del value[key]
    del value["request"]["overlong"]
    spec = load(write(tmp_path, value))

    assert (spec.description, spec.tags, spec.schedule, spec.chunk_rows, spec.queue, spec.priority) == (
        None,
        (),
        None,
        None,
        None,
        None,
    )
    assert (spec.engine.max_model_len, spec.engine.dtype, spec.engine.args) == (None, "auto", {})
    assert (spec.compute.workers, spec.compute.rows_per_worker_per_second) == (None, None)
    assert spec.destination.partition_column == "partition_date"
    assert spec.request.model_dump()["overlong"] == "dead_letter"
    assert spec.dead_letters.tolerate == 0


@pytest.mark.parametrize("path", [*BAD_JOBS, *BAD_STREAMS], ids=lambda path: path.stem)
def test_bad_file_says_all_that_is_wrong(path: Path) -> None:
    """The comments at the end of each file are the messages, whole, all of them, in the order of the lines."""
    lines = path.read_bytes().decode("latin-1").splitlines()
    expected = [f"{path}:{line.removeprefix(EXPECTED)}" for line in lines if line.startswith(EXPECTED)]
    with pytest.raises(SpecErrors) as caught:
        load(path) if path in BAD_JOBS else load_stream(path)

    assert expected
    assert str(caught.value).splitlines() == expected


def test_enough_bad_files() -> None:
    assert min(len(BAD_JOBS), len(BAD_STREAMS)) >= 12


@pytest.mark.parametrize("name", ["absent.yaml", "folder.yaml"])
def test_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(SpecErrors) as caught:
        load(tmp_path / name)

    (error,) = caught.value.errors
    assert (error.line, error.field) == (None, "")
    assert str(error).startswith(f"{tmp_path / name}: The file cannot be read: ")


@pytest.mark.parametrize(("asked", "there"), [("tickets", "dags/jobs/tickets.yaml"), ("letters.yaml", "streams/letters.yaml")])
def test_the_name_of_a_job_instead_of_its_file_says_which_file_was_meant(tmp_path: Path, asked: str, there: str) -> None:
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).write_text("job: tickets\n")

    with pytest.raises(SpecErrors, match=f"No such file or directory. Did you mean {tmp_path / there}\\?$"):
        load(tmp_path / asked)


def test_line_of_a_mistake_in_a_list(tmp_path: Path) -> None:
    text = DEMO.read_text(encoding="utf-8").replace("key: [name, version]", "key:\n    - name\n    - 7 up")
    with pytest.raises(SpecErrors) as caught:
        load(write(tmp_path, text))

    (error,) = caught.value.errors
    assert text.splitlines()[error.line - 1 if error.line else 0] == "    - 7 up"


def test_message_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    (message,) = mistakes(tmp_path, DEMO.read_text(encoding="utf-8") + '"\\e[31mred": 1\n')

    assert message.isprintable()


@pytest.mark.parametrize("seed", range(8))
def test_no_other_error_whatever_the_file_holds(tmp_path: Path, seed: int) -> None:
    """Files with broken pieces: they load, or they raise SpecErrors with one line for each mistake."""
    pieces = [b"{", b"[", b"&a ", b"*a", b"<<: ", b"!!timestamp x", b"'", b'"', b"\n  ", b": ", b"null", b"0x_", b"2026-99-99"]
    pieces += [b'"\\ud800"', b"{{", b"{% for a in b %}" * 30, b"(" * 900, b"9" * 5000, b"\x00", b"\xff", b"\t", b"@x", b"? "]
    chance = random.Random(seed)
    refused = 0
    for _ in range(40):
        body = bytearray(DEMO.read_bytes())
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(body))
            body[place : place + chance.choice((0, 0, 12))] = chance.choice(pieces)
        path = tmp_path / "job.yaml"
        path.write_bytes(body)
        _, errors = load_files([path])
        for error in errors.values():
            refused += 1
            assert len(str(error).splitlines()) == len(error.errors) > 0
            assert "nightshift fails to read the file" not in str(error)
    assert refused


def test_a_job_that_states_its_vectors_may_have_as_many_of_them_in_a_chunk(tmp_path: Path) -> None:
    """Shorter than 128 numbers, they count as if they had these: the rest of a row takes memory, too."""
    for rows, dimensions, refused in ((98_304, 1, False), (98_305, 1, True), (98_304, 128, False), (98_304, 129, True)):
        value = job(chunk_rows=rows)
        value["request"]["dimensions"] = dimensions
        assert bool(load_files([write(tmp_path, value)])[1]) == refused


class TestFolder:
    def test_one_bad_file_hides_no_other(self, tmp_path: Path) -> None:
        good, bad = write(tmp_path, job(), "b.yaml"), write(tmp_path, "job: [", "a.yml")
        write(tmp_path, "not a job", "notes.txt")
        write(tmp_path, "job: [", ".hidden.yaml")
        (tmp_path / "folder.yaml").mkdir()
        specs, errors = load_all(tmp_path)

        assert list(specs) == [good]
        assert list(errors) == [bad]

    def test_a_file_that_breaks_the_reader_hides_no_other(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        good, bad = write(tmp_path, job(), "b.yaml"), write(tmp_path, job(job="other"), "a.yaml")

        def breaks(document: Document) -> list[Finding]:
            if document.value["job"] == "other":
                raise RecursionError("too deep")
            return []

        monkeypatch.setattr(job_checks, "check", breaks)
        specs, errors = load_all(tmp_path, relative_to=tmp_path)

        assert list(specs) == [good]
        assert str(errors[bad]).startswith("a.yaml: nightshift fails to read the file (RecursionError: too deep).")

    def test_second_file_with_a_name_is_the_bad_one(self, tmp_path: Path) -> None:
        first = write(tmp_path, job(), "a.yaml")
        other = write(tmp_path, job(job="other", destination__table="c.other"), "c.yaml")
        second = write(tmp_path, job(destination__table="c.second"), "b.yaml")
        specs, errors = load_all(tmp_path)

        assert list(specs) == [first, other]
        (error,) = errors[second].errors
        assert second.read_text(encoding="utf-8").splitlines()[(error.line or 0) - 1] == "job: package-embeddings"
        assert f"The name 'package-embeddings' is already used by {first}" in str(error)

    def test_second_file_with_a_destination_is_the_bad_one(self, tmp_path: Path) -> None:
        """Each night the one would delete the partition of the other."""
        write(tmp_path, job(job="broken", destination__table="c.t", owner=7), "0.yaml")
        first = write(tmp_path, job(destination__table="c.t"), "a.yaml")
        second = write(tmp_path, job(job="other", destination__table="C.t"), "b.yaml")
        third = write(tmp_path, job(job="third", destination__table="c.t_2"), "c.yaml")
        specs, errors = load_all(tmp_path, relative_to=tmp_path)

        assert list(specs) == [first, third]
        (error,) = errors[second].errors
        assert second.read_text(encoding="utf-8").splitlines()[(error.line or 0) - 1] == "  table: C.t"
        assert str(error).endswith(
            "destination.table: The table C.t is already the destination of a.yaml, and each job would replace the other's "
            "predictions. Give one of the two jobs another table."
        )

    def test_a_table_without_a_project_may_be_one_of_any_project(self, tmp_path: Path) -> None:
        first, second = (write(tmp_path, job(job=f"j{n}", destination__table=f"p{n}.c.t"), f"{n}.yaml") for n in (1, 2))
        third = write(tmp_path, job(job="third", destination__table="c.t"), "3.yaml")
        specs, errors = load_all(tmp_path)

        assert list(specs) == [first, second]
        assert [error.field for error in errors[third].errors] == ["destination.table", "destination.table"]
        assert "or if they are in different projects, write the project in both files." in str(errors[third])

    def test_a_copy_of_a_file_shares_both_name_and_destination(self, tmp_path: Path) -> None:
        write(tmp_path, job(), "a.yaml")
        copy = write(tmp_path, job(), "b.yaml")

        assert {error.field for error in load_all(tmp_path)[1][copy].errors} == {"job", "destination.table"}
