"""Job files that would cost their reader time or memory: each is refused, with its reason, before it is expanded.

Airflow's DAG processor reads all job files in one process, so one such file would take every job with it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nightshift.spec import SpecErrors, load, sql
from nightshift.spec.document import BYTES_MAX, DEPTH_MAX, NODES_MAX, Document, Unreadable
from nightshift.spec.errors import TEXT_MAX
from nightshift.spec.loading import MISTAKES_MAX
from tests.unit.spec_file import DEMO, job, mistakes, write

pytestmark = pytest.mark.unit

BOMB = """\
job: bomb
a: &a [x, x, x, x, x, x, x, x, x, x]
b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
request: {json_schema: {enum: [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]}}
"""


def refusal(folder: Path, text: str) -> str:
    """The one message about a file: ``LINE: problem. remedy.``"""
    path = write(folder, text)
    with pytest.raises(SpecErrors) as caught:
        load(path)

    (error,) = caught.value.errors
    return str(error).removeprefix(f"{path}").removeprefix(":").strip()


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (BOMB, "2: A job cannot use the YAML anchor &a. Remove it, or put text that starts with & in quotes."),
            ("job: *a\n", "1: A job cannot use the YAML alias *a. Write the value itself again, or "),
            ("job: x\na: &a [*a]\n", "2: A job cannot use the YAML anchor &a. "),
            ("job: x\n? &a [*a]\n: 1\n", "2: A job cannot use the YAML anchor &a. "),
            ("job: x\nengine:\n  <<: {dtype: auto}\n", "3: A job cannot merge mappings with <<. Write the keys here."),
            ("job: !!python/object/apply:os.system [ls]\n", "1: A job cannot use the YAML tag !!python/object/apply"),
            ("job: !!binary aGFsbG8=\n", "1: A job cannot use the YAML tag !!binary. "),
            ("job: ! x\n", "1: A job cannot use the YAML tag ! Remove it, "),
            ("job: =\n", "1: This is not valid YAML: could not determine a constructor"),
        ],
        ids=["bomb", "alias", "recursion", "recursive key", "merge", "python", "binary", "bare tag", "value tag"],
    )  # fmt: skip
    def test_what_no_job_needs(self, tmp_path: Path, text: str, message: str) -> None:
        assert refusal(tmp_path, text).startswith(message)

    @pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "[{a: "])
    def test_depth(self, tmp_path: Path, opening: str) -> None:
        text = f"job: x\na:\n {opening * (DEPTH_MAX + 1)}"

        assert refusal(tmp_path, text).startswith(f"3: The YAML is nested more than {DEPTH_MAX} levels deep. Write a job; ")

    def test_depth_that_a_schema_may_have(self) -> None:
        Document("a: " + "[" * (DEPTH_MAX - 2) + "]" * (DEPTH_MAX - 2))

    def test_brackets_are_refused_before_the_scanner_looks_far_ahead(self) -> None:
        """The last line is not valid: a scanner that had come so far would say so."""
        with pytest.raises(Unreadable, match="nested more than"):
            Document("[" * 500 + "@")

    @pytest.mark.parametrize("item", ["1,", "a: 1,", '"a",', "[],"])
    def test_number_of_values(self, tmp_path: Path, item: str) -> None:
        opening, closing = ("{", "}") if ":" in item else ("[", "]")
        text = f"job: x\na: {opening}{item * (NODES_MAX + 1)}{closing}\n"

        assert refusal(tmp_path, text) == (
            f"2: The file has more than {NODES_MAX:,} keys and values. Keep long lists in a table, and join it in the query."
        )

    def test_size(self, tmp_path: Path) -> None:
        text = DEMO.read_text(encoding="utf-8")
        comment = "#" * (BYTES_MAX - len(text.encode()))

        assert load(write(tmp_path, text + comment)).job == "package-embeddings"
        assert refusal(tmp_path, text + comment + "#") == (
            "The file has more than 128 KiB, the most that a job may have. "
            "Keep long lists in a table, and join it in the query."
        )

    def test_a_device_or_a_pipe_is_not_read(self, tmp_path: Path) -> None:
        """/dev/zero never ends, and opening a pipe that nobody writes to waits for ever."""
        os.mkfifo(tmp_path / "pipe.yaml")
        for path in (Path("/dev/null"), tmp_path / "pipe.yaml"):
            with pytest.raises(SpecErrors) as caught:
                load(path)
            assert str(caught.value) == (
                f"{path}: The file cannot be read: It is a pipe or a device, not a regular file. Check its path."
            )

    @pytest.mark.parametrize("number", ["0x" + "f" * 9000, "0b" + "1" * 9000, "9" * 9000])
    def test_numbers_without_end(self, tmp_path: Path, number: str) -> None:
        """Python reads the first two, and then cannot print them: the DAG of such a job could not be made."""
        text = DEMO.read_text(encoding="utf-8")
        for field, old in (("dead_letters.tolerate", '"5%"'), ("deadline", "1h"), ("engine.max_num_seqs", "64")):
            assert f" {field}: '{number[:70]}" in refusal(tmp_path, text.replace(f": {old}", f": {number}"))

    @pytest.mark.parametrize("changes", [{"deadline": "9" * 5000 + "h"}, {"dead_letters__tolerate": "0." + "9" * 5000 + "%"}])
    def test_digits_without_end(self, tmp_path: Path, changes: dict[str, str]) -> None:
        """A share with 5,000 digits would load here and fail where the rows are known."""
        (message,) = mistakes(tmp_path, job(**changes))

        assert "is not a duration. Write a" in message or "is neither a number of rows nor a share. Write a" in message


class TestQuery:
    @pytest.mark.parametrize("opening", ["ARRAY[", "STRUCT("])
    def test_what_the_parser_tries_twice_at_each_level(self, opening: str) -> None:
        closing = "]" if opening.endswith("[") else ")"
        with pytest.raises(sql.BadQuery, match="it is nested too deeply"):
            sql.parse(f"SELECT {opening * 14}1{closing * 14} AS a FROM t WHERE d = @partition")

        sql.parse(f"SELECT {', '.join([f'{opening * 5}1{closing * 5}'] * 100)} FROM t WHERE d = @partition")

    @pytest.mark.parametrize("query", ["SELECT REGEXP_SUBSTR() FROM t", "SELECT DATE_ADD(a, INTERVAL b) FROM t"])
    def test_a_fault_of_the_parser_itself(self, query: str) -> None:
        with pytest.raises(sql.BadQuery, match="The query does not parse"):
            sql.parse(query)

    def test_columns_that_multiply(self) -> None:
        """They are unknown above what BigQuery allows; a few more levels would be more than memory holds."""
        stars = f"SELECT {', '.join('*' * 30)} FROM ("
        tables = ", ".join(f"c{n} AS (SELECT * FROM c{n - 1}, c{n - 1} AS x)" for n in range(1, 15))

        assert sql.columns(sql.parse(f"{stars * 3}SELECT 1 AS a{')' * 3}")) is None
        assert sql.columns(sql.parse(f"WITH c0 AS (SELECT 1 AS a), {tables} SELECT * FROM c14")) is None
        assert sql.columns(sql.parse(f"WITH c0 AS (SELECT 1 AS a), {tables} SELECT * FROM c13")) == ("a",) * 2**13

    def test_a_long_chain_of_unions(self, tmp_path: Path) -> None:
        query = "SELECT name, version, summary, description FROM t WHERE d = @partition" + " UNION ALL SELECT 1, 2, 3, 4" * 1500

        assert mistakes(tmp_path, job(source__query=query)) == []


class TestMessages:
    def test_no_more_mistakes_than_a_person_mends_at_once(self, tmp_path: Path) -> None:
        unknown = {f"key{number}": 1 for number in range(MISTAKES_MAX + 10)}

        assert len(mistakes(tmp_path, job(**unknown))) == MISTAKES_MAX

    def test_a_long_value_is_cut_and_its_remedy_is_not(self, tmp_path: Path) -> None:
        for changes in ({"job": "a-" * 9000}, {"k" * 9000: 1}):
            (message,) = mistakes(tmp_path, job(**changes))
            assert len(message) < 3 * TEXT_MAX
            assert " ... " in message
            assert message.endswith((".", "?"))

    def test_a_query_of_many_columns_is_not_listed_whole(self, tmp_path: Path) -> None:
        columns = ", ".join(f"c{number}" for number in range(40))
        query = f"SELECT name, version, summary, {columns} FROM t WHERE d = @partition"

        (message,) = mistakes(tmp_path, job(source__query=query))
        assert message.endswith("c25, c26 and 13 more.")
