"""Job files that would cost their reader time or memory: each is refused, with its reason, before it is expanded.

Airflow's DAG processor reads all job files in one process, so one such file would take every job with it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from nightshift.fields import mistakes as mistakes_of
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
            ('job: x\nowner: "a\\0"\n', "2: A text holds '\\x00', which no database stores. Remove the character."),
            ('job: x\n"\\ud800": 1\n', "2: A text holds '\\ud800', which no database stores. Remove the character."),
        ],
        ids=["bomb", "alias", "recursion", "recursive key", "merge", "python", "binary", "bare tag", "value tag", "NUL", "?"],
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
        """sqlglot's builders of these functions raise an IndexError. Whether the SQL is right, BigQuery says."""
        assert sql.parse(query).tree is None

    @pytest.mark.parametrize(
        "part",
        [
            "'",
            '"',
            "`",
            "'''",
            '"""',
            "/*",
            "/* ",
            "-- ",
            "#",
            "r'",
            "'\\",
            "{",
            "(",
            "|>",
            "@",
            "?",
            "a.",
            "= ",
            "\\",
            "\r",
            "'a' ",
        ],
    )
    def test_a_text_without_end(self, part: str) -> None:
        """Each is cut once, whatever does not close: otherwise these take hours."""
        endless = part * (100_000 // len(part))
        for query in (endless, f"SELECT a FROM t WHERE d = @partition {endless}"):
            with contextlib.suppress(sql.BadQuery):
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

    def test_words_and_signs_without_end(self, tmp_path: Path) -> None:
        """Sixty thousand commas take seconds to parse."""
        query = "SELECT * FROM t" + ", t" * sql.TOKENS_MAX + " WHERE d = @partition"
        (message,) = mistakes(tmp_path, job(source__query=query))
        assert "The query has more than 20,000 words and signs. Keep long lists in a table" in message

        values = ", ".join("1" * (sql.TOKENS_MAX // 2 - 50))
        query = f"SELECT name, version, summary, description FROM t WHERE d = @partition AND a IN ({values})"
        assert mistakes(tmp_path, job(source__query=query)) == []

    def test_a_long_chain_of_stars_shares_its_columns(self) -> None:
        names = ", ".join(f"a{number}" for number in range(4000))
        steps = ", ".join(f"c{number} AS (SELECT * FROM c{number - 1})" for number in range(1, 1000))
        found = sql.columns(sql.parse(f"WITH c0 AS (SELECT {names}), {steps} SELECT * FROM c999 WHERE d = @partition"))

        assert found is not None
        assert len(found) == 4000


class TestAirflow:
    """What loads here, and would take all DAGs of their file away there."""

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"schedule": "0 0 29 2 1#5"}, "names a day of the month and a weekday such as 1#5, which few days are both"),
            ({"schedule": "0 0 */31 * 1#5"}, "names a day of the month and a weekday such as 1#5"),
            ({"schedule": "0 0 * feb mon#5,2#5"}, "names a day once in 28 years"),
            ({"schedule": "0/" + "9" * 5000 + " * * * *"}, "is not a valid minute"),
            (
                {"start_date": "9999-12-31"},
                "BigQuery has no partition of 9999-12-31. Write a day from 1960-01-01 to 2159-12-31",
            ),
            ({"start_date": "0001-01-01"}, "BigQuery has no partition of 0001-01-01"),
            ({"owner": "x" * 251}, "It has 251 characters, and Airflow takes 250"),
            ({"description": "x" * 10_001}, "It has 10,001 characters, and Airflow takes 10,000"),
            ({"tags": [f"t{number}" for number in range(51)]}, "It has 51 items, and Airflow takes 50"),
            ({"destination__table": "d" * 700 + "." + "t" * 700}, "It has 1,401 characters, and Airflow takes 1,400"),
        ],
    )
    def test_what_it_cannot_store_or_compute(self, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
        (message,) = mistakes(tmp_path, job(**changes))

        assert says in message

    @pytest.mark.parametrize(
        "schedule", ["0 2 * * 1#5", "0 2 29 2 *", "0 2 * 2 1#4", "0 2 * 2,3 1#5", "0 2 l 2 *", "0 2 13 * 5"]
    )
    def test_schedules_with_days(self, tmp_path: Path, schedule: str) -> None:
        assert mistakes(tmp_path, job(schedule=schedule)) == []


class TestSlips:
    def test_a_slip_is_looked_for_among_a_few_hundred(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 7,000 columns that are all alike, for 50 mistakes, it took 30 s on a small machine."""
        asked: list[int] = []

        def near(_: str, of: dict[str, str], **__: object) -> list[str]:
            asked.append(len(of))
            return []

        monkeypatch.setattr("difflib.get_close_matches", near)

        assert mistakes_of.nearest("abcdefghi", [f"abcdef{number:04}" for number in range(7000)]) is None
        assert asked == [mistakes_of.CHOICES_MAX]


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
