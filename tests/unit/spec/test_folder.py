"""A folder of jobs: who has a name that two files claim, the one job that a task needs, and what is remembered of files."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
import yaml

from nightshift.spec import SpecErrors, load_all, load_job, loading
from nightshift.spec.file_cache import Memory
from tests.unit.spec_file import job, write

pytestmark = pytest.mark.unit


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    home = tmp_path / "tmp"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    return home


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir()
    return folder


def counted(monkeypatch: pytest.MonkeyPatch, function: str) -> list[str]:
    """The files that a function of `loading` is called with, from now on."""
    real, names = getattr(loading, function), list[str]()

    def calls(what: object, file: Path) -> object:
        names.append(file.name)
        return real(what, file)

    monkeypatch.setattr(loading, function, calls)
    return names


class TestNames:
    def test_a_file_that_is_called_after_its_job_has_the_name(self, jobs: Path) -> None:
        own = write(jobs, job(), "package-embeddings.yaml")
        thief = write(jobs, job(destination__table="c.x"), "0.yaml")
        good, bad = load_all(jobs, relative_to=jobs)

        assert (list(good), list(bad)) == ([own], [thief])
        assert "The name 'package-embeddings' is already used by package-embeddings.yaml" in str(bad[thief])

    def test_it_has_its_table_too(self, jobs: Path) -> None:
        own = write(jobs, job(), "package-embeddings.yaml")
        thief = write(jobs, job(job="zero"), "0.yaml")

        assert list(load_all(jobs)[0]) == [own]
        assert list(load_all(jobs)[1]) == [thief]

    def test_one_that_loses_its_table_keeps_its_name(self, jobs: Path) -> None:
        """Else a task would run another file than the one whose DAG Airflow shows."""
        write(jobs, job(job="a", destination__table="c.t"), "a.yaml")
        write(jobs, job(job="b", destination__table="c.t"), "b.yaml")
        write(jobs, job(job="b", destination__table="c.other"), "c.yaml")

        assert [spec.job for spec in load_all(jobs)[0].values()] == ["a"]


def test_links_in_a_circle_hide_no_other_file(jobs: Path) -> None:
    good = write(jobs, job(), "b.yaml")
    (jobs / "a.yaml").symlink_to("a.yaml")
    found, bad = load_all(jobs)

    assert (list(found), list(bad)) == ([good], [jobs / "a.yaml"])


class TestTheJobOfATask:
    SPELLINGS = (
        "job: {}",
        'job: "{}"',
        "'job': '{}' # mine",
        "job:\n  {}",
        "job: >-\n  {}",
        "? job\n: {}",
        '"\\x6aob": {}',
        "tags: [job, package-embeddings]\njob: {}",
    )

    @pytest.mark.parametrize("spelling", SPELLINGS)
    def test_it_is_found_however_it_is_written(self, jobs: Path, spelling: str) -> None:
        body = {name: value for name, value in job().items() if name not in ("job", "tags")}
        text = spelling.format("package-embeddings") + "\n" + yaml.safe_dump(body, sort_keys=False)
        path = write(jobs, text, "z.yaml")
        write(jobs, job(job="other", description="package-embeddings", destination__table="c.o"), "a.yaml")

        assert list(load_job(jobs, "package-embeddings")) == list(load_all(jobs)[0])[-1:] == [path]

    def test_escapes_in_its_name(self, jobs: Path) -> None:
        text = yaml.safe_dump(job()).replace("job: package-embeddings", 'job: "package\\x2dembeddings"')
        path = write(jobs, text, "z.yaml")

        assert list(load_job(jobs, "package-embeddings")) == [path]

    def test_no_other_file_is_read_if_one_is_called_after_it(self, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(jobs, job(), "package-embeddings.yaml")
        for number in range(20):
            write(jobs, job(job=f"j{number}"), f"{number}.yaml")
        opened = counted(monkeypatch, "content_of")

        assert list(load_job(jobs, "package-embeddings")) == [path]
        assert opened == ["package-embeddings.yaml"]

    def test_other_files_are_not_parsed(self, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(jobs, job(), "z.yaml")
        for number in range(20):
            write(jobs, job(job=f"j{number}", description="for package-embeddings"), f"{number}.yaml")
        parsed = counted(monkeypatch, "parse")

        assert list(load_job(jobs, "package-embeddings")) == [path]
        assert parsed == ["z.yaml"]

    @pytest.mark.parametrize("seed", range(20))
    def test_it_is_the_file_whose_dag_airflow_shows(self, jobs: Path, seed: int) -> None:
        """Names that collide, files that are broken, tables that are shared: a DAG that is shown runs its own file."""
        chance = random.Random(seed)
        names = ["a", "b", "c"]
        for stem in chance.sample(["a", "b", "c", "0", "x", "y", "z"], 6):
            text = yaml.safe_dump(job(job=chance.choice(names), destination__table=f"c.t{chance.randrange(4)}"))
            write(jobs, chance.choice(["", "", "", "owner: [\n"]) + text, f"{stem}.{chance.choice(['yaml', 'yml'])}")
        shown = {spec.job: path for path, spec in load_all(jobs)[0].items()}

        assert {name: next(iter(load_job(jobs, name)), None) for name in shown} == shown

    def test_there_is_none(self, jobs: Path) -> None:
        write(jobs, "job: [", "absent.yaml")

        assert load_job(jobs, "absent") == {}


class TestMemory:
    def test_files_that_have_not_changed_are_not_parsed_again(
        self, home: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(jobs, job(), "a.yaml")
        write(jobs, job(job="b", owner=7), "b.yaml")
        write(jobs, job(job="other"), "c.yaml")  # the table of a.yaml
        first = load_all(jobs, relative_to=jobs, memory=Memory.of(jobs))

        def never(*_: object) -> None:
            raise AssertionError("it is parsed again")

        monkeypatch.setattr(loading, "parse", never)
        again = load_all(jobs, relative_to=jobs, memory=Memory.of(jobs))

        assert again[0] == first[0]
        assert {path: str(error) for path, error in again[1].items()} == {path: str(error) for path, error in first[1].items()}
        assert [path.name for path in first[1]] == ["b.yaml", "c.yaml"]

    def test_a_changed_file_is_read_even_if_its_time_and_size_are_the_same(self, home: Path, jobs: Path) -> None:
        path = write(jobs, job(owner="aaaa"), "a.yaml")
        load_all(jobs, memory=Memory.of(jobs))
        before = path.stat()
        path.write_text(path.read_text().replace("aaaa", "bbbb"))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

        assert load_all(jobs, memory=Memory.of(jobs))[0][path].owner == "bbbb"

    def test_a_parse_that_is_broken_off_leaves_what_it_has_read(
        self, home: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As Airflow does it after 30 s: with an exception that is no Exception. The next one goes on behind it."""
        for number in range(4):
            write(jobs, job(job=f"j{number}", destination__table=f"c.t{number}"), f"{number}.yaml")
        real, parsed = loading.parse, list[str]()

        def slow(content: bytes, file: Path) -> object:
            if len(parsed) == 2:
                raise KeyboardInterrupt
            parsed.append(file.name)
            return real(content, file)

        monkeypatch.setattr(loading, "parse", slow)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                load_all(jobs, memory=Memory.of(jobs))
            parsed[:] = parsed[:1]

        assert len(load_all(jobs, memory=Memory.of(jobs))[0]) == 4

    @pytest.mark.parametrize("damage", ["{", "[]", '{"x": 1}', "null", "[" * 100_000])
    def test_a_damaged_memory_is_none(self, home: Path, jobs: Path, damage: str) -> None:
        path = write(jobs, job(), "a.yaml")
        load_all(jobs, memory=Memory.of(jobs))
        (kept,) = home.glob("nightshift-*/*.json")
        kept.write_text(damage)

        assert list(load_all(jobs, memory=Memory.of(jobs))[0]) == [path]

    def test_an_entry_that_does_not_fit_is_read_again(self, home: Path, jobs: Path) -> None:
        path = write(jobs, job(), "a.yaml")
        load_all(jobs, memory=Memory.of(jobs))
        (kept,) = home.glob("nightshift-*/*.json")
        kept.write_text(kept.read_text().replace('"job":', '"jab":'))

        assert list(load_all(jobs, memory=Memory.of(jobs))[0]) == [path]

    def test_a_folder_that_others_can_write_is_not_used(self, home: Path, jobs: Path) -> None:
        place = home / f"nightshift-{os.getuid()}"
        place.mkdir()
        place.chmod(0o777)
        path = write(jobs, job(), "a.yaml")

        assert list(load_all(jobs, memory=Memory.of(jobs))[0]) == [path]
        assert list(place.iterdir()) == []

    def test_nor_is_one_behind_a_link(self, home: Path, jobs: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (home / f"nightshift-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
        write(jobs, job(), "a.yaml")
        load_all(jobs, memory=Memory.of(jobs))

        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_messages_name_the_file_that_is_read(self, home: Path, jobs: Path) -> None:
        path = write(jobs, "job: [", "a.yaml")
        load_all(jobs, memory=Memory.of(jobs))
        path.rename(jobs / "b.yaml")
        (error,) = load_all(jobs, memory=Memory.of(jobs))[1].values()

        assert isinstance(error, SpecErrors)
        assert str(error).startswith(f"{jobs / 'b.yaml'}:")
