"""What a job's values may be: the query and its columns, templates, names, numbers, profiles."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from croniter import croniter  # type: ignore[import-untyped]

from nightshift.profiles import PROFILES
from nightshift.run import chunks
from nightshift.spec import JobSpec, SpecErrors, cron, load_stream, sql, tables
from nightshift.spec.columns import CHUNK_COLUMNS, with_carried
from nightshift.spec.vllm_flags import PERFORMANCE, takes
from nightshift.warehouse import schema as warehouse_schema
from tests.builders import RUN, a_chunk, a_plan, a_spec
from tests.stream_manifests import EXAMPLE
from tests.unit.spec_file import changed, job, mistakes, write

pytestmark = pytest.mark.unit


class TestQuery:
    @pytest.mark.parametrize(
        ("query", "columns"),
        [
            ("SELECT a, t.b, c AS d, e.f.g, COUNT(*) AS n FROM t", ("a", "b", "d", "g", "n")),
            ("SELECT COUNT(*), CAST(a AS STRING), b FROM t", ("b",)),
            ("SELECT `a b` FROM t", ("a b",)),
            ("SELECT a FROM t UNION ALL SELECT b FROM u", ("a",)),
            ("(SELECT a FROM t) UNION DISTINCT (SELECT b FROM u)", ("a",)),
            ("WITH x AS (SELECT a, b FROM t) SELECT * FROM x", ("a", "b")),
            ("WITH x AS (SELECT a, b FROM t), y AS (SELECT *, 1 AS c FROM x) SELECT y.* EXCEPT (A) FROM y", ("b", "c")),
            ("SELECT * REPLACE (UPPER(a) AS a) FROM (SELECT a, b FROM t)", ("a", "b")),
            ("SELECT * FROM (SELECT 1 AS a), (SELECT 2 AS b)", ("a", "b")),
            ("SELECT x.*, y.b FROM (SELECT 1 AS a) AS x JOIN t AS y ON TRUE", ("a", "b")),
            ("FROM t |> WHERE a > 1 |> SELECT a, b AS c", ("a", "c")),
            ("SELECT * FROM t", None),
            ("SELECT t.* FROM t", None),
            ("SELECT a, t.* FROM t", None),
            ("SELECT s.* FROM (SELECT STRUCT(1 AS a) AS s)", None),
            ("WITH x AS (SELECT 1 AS a) SELECT * FROM other.x", None),
            ("WITH x AS (SELECT 1 AS a) SELECT * FROM x JOIN x AS y USING (a)", None),
            ("SELECT * FROM (SELECT a, b FROM t) PIVOT (SUM(a) FOR b IN (1, 2))", None),
            ("SELECT * FROM UNNEST([1, 2]) AS a", None),
            ("SELECT AS VALUE s FROM t", None),
        ],
    )
    def test_columns(self, query: str, columns: tuple[str, ...] | None) -> None:
        assert sql.columns(sql.parse(query)) == columns

    def test_template_is_not_judged_where_columns_cannot_be_known(self, tmp_path: Path) -> None:
        value = job(source__query="SELECT * FROM t WHERE d = @partition", request__input="{{ whatever }}")

        assert mistakes(tmp_path, value) == []

    def test_parameter_in_a_comment_or_text_is_none(self, tmp_path: Path) -> None:
        query = "SELECT name, version, summary, description FROM t -- @partition\nWHERE d = '@partition'"

        (message,) = mistakes(tmp_path, job(source__query=query))
        assert message.startswith("source.query: The query does not use @partition")

    def test_system_variable_is_no_parameter(self, tmp_path: Path) -> None:
        query = "SELECT name, version, summary, description, @@time_zone AS zone FROM t WHERE d = @partition"

        assert mistakes(tmp_path, job(source__query=query)) == []

    def test_parameter_in_other_case_is_one_mistake(self, tmp_path: Path) -> None:
        query = "SELECT name, version, summary, description FROM t WHERE d = @Partition"

        (message,) = mistakes(tmp_path, job(source__query=query))
        assert message.startswith("source.query: The query uses @Partition. Write @partition")

    @pytest.mark.parametrize(
        "statement", ["INSERT INTO t VALUES (1)", "CREATE TABLE t (a INT64)", "CALL p()", "BEGIN SELECT 1; END", "-- nothing"]
    )
    def test_other_statements_are_refused(self, tmp_path: Path, statement: str) -> None:
        (message,) = mistakes(tmp_path, job(source__query=statement))
        assert message.startswith("source.query: The query ")


class TestTables:
    """A job must not replace what it reads."""

    @pytest.mark.parametrize(
        ("query", "names"),
        [
            ("SELECT a FROM `p.d.t`", ("p.d.t",)),
            ("SELECT a FROM `p`.d.`t` JOIN p-q.d.u ON TRUE", ("p-q.d.u", "p.d.t")),
            ("SELECT a FROM `example.com:p.d.t`", ("example.com:p.d.t",)),
            ("SELECT a FROM `d.t_*`, d.`t$20261120`, d.`a b-c`", ("d.a b-c", "d.t$20261120", "d.t_*")),
            ("WITH t AS (SELECT a FROM d.t) SELECT a FROM t", ("d.t",)),
            (
                "SELECT a FROM (SELECT a FROM d.t) UNION ALL SELECT a FROM d.u WHERE a IN (SELECT a FROM d.v)",
                ("d.t", "d.u", "d.v"),
            ),
            ("FROM d.t |> WHERE a > 1 |> JOIN e.u ON TRUE", ("d.t", "e.u")),
            ("SELECT a FROM d.t AS x, x.items, UNNEST(x.more) JOIN x.others", ("d.t",)),
            ("SELECT a FROM d.t FOR SYSTEM_TIME AS OF y", ("d.t",)),
            ("SELECT a FROM ML.PREDICT(MODEL d.m, TABLE d.t)", ("d.m", "d.t")),
            ("SELECT table_name FROM d.INFORMATION_SCHEMA.TABLES", ()),
            ("SELECT table_name FROM `p.d.information_schema.TABLES`, `region-eu`.INFORMATION_SCHEMA.TABLES", ()),
            ("SELECT a FROM d.f(1), EXTERNAL_QUERY('c', 'SELECT a FROM d.t')", ()),
            ("SELECT 1 AS a", ()),
        ],
    )
    def test_tables_of_a_query(self, query: str, names: tuple[str, ...]) -> None:
        assert sql.tables(sql.parse(query)) == names

    @pytest.mark.parametrize(
        ("name", "table"),
        [
            ("d.t", "d.t"),
            ("p.d.t", "p.d.t"),
            ("d.t", "p.d.t"),
            ("p.d.t", "d.t"),
            ("D.T", "d.t"),
            ("d.t$20261120", "d.t"),
            ("d.t_*", "d.t_2026"),
            ("p.d.*", "d.t"),
            ("d.T_*", "d.t_"),
            ("example.com:p.d.t", "example.com:p.d.t"),
        ],
    )
    def test_may_be_one_table(self, name: str, table: str) -> None:
        assert tables.may_be(name, table)

    @pytest.mark.parametrize(
        ("name", "table"),
        [
            ("d.t", "d.u"),
            ("d.t", "e.t"),
            ("p.d.t", "q.d.t"),
            ("d.t_*", "d.t"),
            ("d.t", "d.t_2026"),
            ("e.t_*", "d.t_1"),
            ("p.d.*", "q.d.t"),
            ("example.com:p.d.t", "p.d.t"),
        ],
    )
    def test_cannot_be_one_table(self, name: str, table: str) -> None:
        assert not tables.may_be(name, table)

    @pytest.mark.parametrize(
        ("source", "table"),
        [
            ("`d.t`", "d.t"),
            ("`acme.d.t`", "acme.d.t"),
            ("acme.d.t", "acme.D.T"),
            ("`d.t_*`", "d.t_x"),
            ("e.u JOIN (SELECT 1 FROM d.t) ON TRUE", "d.t"),
        ],
    )
    def test_a_query_that_reads_the_destination(self, tmp_path: Path, source: str, table: str) -> None:
        query = f"SELECT name, version, summary, description FROM {source} WHERE d = @partition"

        (message,) = mistakes(tmp_path, job(source__query=query, destination__table=table))
        assert message.startswith("destination.table: The query reads ")
        assert message.endswith("Write another table; it is created if it does not exist.")

    @pytest.mark.parametrize(("source", "table"), [("d.t", "acme.d.t"), ("acme.d.t", "d.t")])
    def test_a_name_without_a_project_may_be_the_destination(self, tmp_path: Path, source: str, table: str) -> None:
        query = f"SELECT name, version, summary, description FROM {source} WHERE d = @partition"

        (message,) = mistakes(tmp_path, job(source__query=query, destination__table=table))
        assert message == (
            f"destination.table: The query reads {source}, and publishing replaces a partition of {table}, which may be the "
            "same table. Write another table, or if they are in different projects, write the project in both names."
        )

    @pytest.mark.parametrize(
        ("source", "table"), [("lake.d.t", "acme.d.t"), ("d.INFORMATION_SCHEMA.TABLES", "d.tables"), ("d.out", "d.out_2")]
    )
    def test_a_query_that_reads_other_tables(self, tmp_path: Path, source: str, table: str) -> None:
        query = (
            f"WITH out_2 AS (SELECT * FROM {source}) SELECT name, version, summary, description FROM out_2 WHERE d = @partition"
        )

        assert mistakes(tmp_path, job(source__query=query, destination__table=table)) == []


class TestTemplate:
    def test_names_set_inside_the_template_are_no_columns(self, tmp_path: Path) -> None:
        template = "{% set x = summary[:80] %}{% for w in description.split() %}{{ loop.index }} {{ w }}{% endfor %}{{ x }}"

        assert mistakes(tmp_path, job(request__input=template)) == []


class TestNames:
    @pytest.mark.parametrize("name", ["a", "a-b2", "x" * 40])
    def test_job_names(self, tmp_path: Path, name: str) -> None:
        assert mistakes(tmp_path, job(job=name)) == []

    @pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "2a", "x" * 41, "a\n", "é"])
    def test_no_job_names(self, tmp_path: Path, name: str) -> None:
        (message,) = mistakes(tmp_path, job(job=name))
        assert message.startswith("job: ")

    @pytest.mark.parametrize("table", ["a.b", "my-project.a_1.b-c", "local.a.b", "example.com:my-project.a.b", "a.préfixe"])
    def test_tables(self, tmp_path: Path, table: str) -> None:
        assert mistakes(tmp_path, job(destination__table=table)) == []

    @pytest.mark.parametrize(
        "table", ["", ".", "a", "a.", ".b", "a..b", "`a.b`", "p:a.b", "P.a.b", "a-b.c", "a.b$20261120", "a.b.c.d", "a.*"]
    )
    def test_no_tables(self, tmp_path: Path, table: str) -> None:
        (message,) = mistakes(tmp_path, job(destination__table=table))
        assert message.startswith("destination.table: ")

    @pytest.mark.parametrize("column", [*CHUNK_COLUMNS, warehouse_schema.RUN_ID_COLUMN, warehouse_schema.ORDINAL_COLUMN])
    def test_key_cannot_take_a_column_of_nightshift(self, tmp_path: Path, column: str) -> None:
        query = f"SELECT {column}, summary, description FROM t WHERE d = @partition"

        (message,) = mistakes(tmp_path, job(source__query=query, source__key=[column]))
        assert message.startswith("source.key.0: ")

    @pytest.mark.parametrize("column", ["nightshift_x", "NightShift_x", "_TABLE_x", "_table_x", "_Partition", "2a"])
    def test_no_columns_to_write(self, tmp_path: Path, column: str) -> None:
        """BigQuery does not tell upper from lower case in the names of columns."""
        (message,) = mistakes(tmp_path, job(destination__column=column))
        assert message.startswith("destination.column: ")

    def test_a_word_in_other_case_is_recognised(self, tmp_path: Path) -> None:
        (message,) = mistakes(tmp_path, job(compute__profile="GPU-L4"))
        assert "Did you mean 'gpu-l4'?" in message

    def test_a_chunk_and_its_staging_table_have_the_columns_of_the_ledger(self) -> None:
        spec = a_spec()
        table, _ = chunks.decode(a_chunk(RUN, a_plan(4), 0))

        assert tuple(table.column_names) == with_carried(spec.source.key)
        assert [field.name for field in warehouse_schema.staging_fields(spec, {"id": "INT64"})] == table.column_names

    @pytest.mark.parametrize(
        "flag", ["port", "host", "model", "served-model-name", "max-num-seqs", "max-model-len", "dtype", "revision"]
    )
    @pytest.mark.parametrize("spelling", ["{}", "--{}", "no_{}"])
    def test_flags_of_nightshift(self, tmp_path: Path, flag: str, spelling: str) -> None:
        spelt = spelling.format(flag) if not spelling.startswith("no") else flag.replace("-", "_")

        (message,) = mistakes(tmp_path, job(engine__args={spelt: "x"}))
        assert message.startswith(f"engine.args.{spelt}: ")

    def test_abbreviated_flag_of_nightshift(self, tmp_path: Path) -> None:
        """argparse takes --served-model for --served-model-name."""
        (message,) = mistakes(tmp_path, job(engine__args={"served-model": "x"}))

        assert "--served-model-name cannot be set here" in message

    @pytest.mark.parametrize("spelt", ["mod", "served_model_n", "no-grpc", "data-parallel-rank", "help", "hf-token"])
    def test_no_spelling_gets_past_them(self, tmp_path: Path, spelt: str) -> None:
        (message,) = mistakes(tmp_path, job(engine__args={spelt: "x"}))

        assert "cannot be set here" in message

    @pytest.mark.parametrize("spelt", ["model.x", "hf-overrides.a", "trust-remote-code.a.b", "no-x.y"])
    def test_no_keys_of_json(self, tmp_path: Path, spelt: str) -> None:
        """vLLM reads --model.x=y as --model '{"x": "y"}', and --enforce-eager.x=y as a model named '{"x": "y"}'."""
        (message,) = mistakes(tmp_path, job(engine__args={spelt: "x"}))

        assert message.startswith(f"engine.args.{spelt}: {spelt!r} is a key of a flag's JSON. Write the whole JSON in quotes")

    def test_one_flag_twice(self, tmp_path: Path) -> None:
        (message,) = mistakes(tmp_path, job(engine__args={"kv-cache-dtype": "fp8", "kv_cache_dtype": "auto"}))

        assert message == "engine.args: 'kv-cache-dtype' and 'kv_cache_dtype' are one flag. Keep one of the two."


class TestFlagValues:
    @pytest.mark.parametrize("flag", [flag for family in PERFORMANCE for flag in family.flags])
    def test_no_text_where_a_flag_does_not_affect_answers(self, flag: str) -> None:
        """The run stays open whatever its value: such a text would reach the engines of a run that is half done."""
        kind = takes(flag.replace("-", "_"))
        assert kind is not None
        for text in ("--host=0.0.0.0", "--revision=other-branch", "$(HF_TOKEN)", "a b", "https://evil.example", "../x", ""):
            values: tuple[Any, ...] = (text, [text], [1, text], [], {}, None)
            for value in values:
                assert not kind.fits(value), value

    @pytest.mark.parametrize(
        ("flag", "value", "says"),
        [
            (
                "max-num-batched-tokens",
                "many",
                "--max-num-batched-tokens cannot be 'many'. Write a whole number, or one with a unit",
            ),
            ("max_log_len", 1.5, "--max-log-len cannot be 1.5. Write a whole number, 0 or more"),
            ("max-log-len", -1, "--max-log-len cannot be -1. Write a whole number, 0 or more"),
            ("enable-log-requests", 1, "--enable-log-requests cannot be 1. Write true or false"),
            ("disable-log-stats", False, "--disable-log-stats cannot be False. Write true, or leave it out"),
            ("uvicorn-log-level", "INFO", "--uvicorn-log-level cannot be 'INFO'. Write one of critical, debug"),
            ("gpu-memory-utilization", True, "--gpu-memory-utilization cannot be True. Write a number, 0 or more"),
            (
                "cudagraph-capture-sizes",
                [8, "x"],
                "--cudagraph-capture-sizes cannot be a list. Write a whole number, or a list",
            ),
            ("download-dir", "/tmp", "--download-dir cannot be set in a job. Leave it out: nightshift chooses the volume"),
            ("log_config_file", "/etc/x.json", "--log-config-file cannot be set in a job. Leave it out"),
        ],
    )
    def test_says_what_to_write(self, tmp_path: Path, flag: str, value: Any, says: str) -> None:
        (message,) = mistakes(tmp_path, job(engine__args={flag: value}))

        assert message.startswith(f"engine.args.{flag}: {says}")

    def test_a_stream_too(self, tmp_path: Path) -> None:
        with pytest.raises(SpecErrors, match="--max-log-len cannot be '--host"):
            load_stream(write(tmp_path, changed(EXAMPLE, engine__args={"max-log-len": "--host=0.0.0.0"})))

    @pytest.mark.parametrize(
        "args",
        [
            {"max-num-batched-tokens": 8192},
            {"max-num-batched-tokens": "8k"},
            {"kv-cache-memory-bytes": "4G"},
            {"cudagraph-capture-sizes": [1, 2, 4]},
            {"numa-bind-cpus": ["0-3", "4-7"]},
            {"gpu-memory-utilization": 0.9},
            {"collect-detailed-traces": "all"},
            {"chat-template": "--{{ messages }}"},
            {"hf-overrides": '{"a": 1}'},
            {"seed": -1},
            {"offload-params": ["w1", "w2"]},
        ],
    )
    def test_what_is_taken(self, tmp_path: Path, args: dict[str, Any]) -> None:
        assert mistakes(tmp_path, job(engine__args=args)) == []

    @pytest.mark.parametrize("flag", ["seed", "max-log-len", "gpu-memory-utilization"])
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("1" + "0" * 99, "A flag cannot take so large a number. Write 9223372036854775807 or less"),
            ("-" + "9" * 99, "A flag cannot take so large a number"),
            ("-0.0", "A flag cannot take -0. Write 0"),
            (".nan", "A flag cannot take nan"),
            (".inf", "A flag cannot take inf"),
            ("-.inf", "A flag cannot take -inf"),
            ("[1, .inf]", "A flag cannot take inf"),
            ("1e999", "A flag cannot take so large a number"),
            ("1" + "0" * 5000, "A flag cannot take so large a number"),
        ],
    )
    def test_numbers_that_are_none(self, tmp_path: Path, flag: str, text: str, says: str) -> None:
        written = yaml.safe_dump(job(engine__args={flag: "@V@"})).replace("'@V@'", text)
        found = mistakes(tmp_path, written)

        assert len(found) == 1
        assert found[0].startswith(f"engine.args.{flag}: {says}")

    @pytest.mark.parametrize("digits", [101, 400, 5000])
    @pytest.mark.parametrize("path", ["engine__max_num_seqs", "engine__max_model_len", "chunk_rows", "compute__workers"])
    def test_numbers_without_end(self, tmp_path: Path, digits: int, path: str) -> None:
        """Python refuses to print a number of more than 4,300 digits."""
        written = yaml.safe_dump(job(**{path: "@V@"})).replace("'@V@'", "1" + "0" * digits)

        assert mistakes(tmp_path, written)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("a\\0b", "A text holds '\\x00', which no database stores"),
            ("\\ud800", "A text holds '\\ud800', which no database stores"),
        ],
    )
    def test_what_no_command_line_can_hold(self, tmp_path: Path, text: str, says: str) -> None:
        written = yaml.safe_dump(job(engine__args={"chat-template": "@V@"})).replace("'@V@'", f'"{text}"')
        (message,) = mistakes(tmp_path, written)

        assert message.startswith(says)

    def test_a_list_only_where_vllm_takes_several(self, tmp_path: Path) -> None:
        """Of --seed 1 evil/model, vLLM reads the second as its model."""
        (message,) = mistakes(tmp_path, job(engine__args={"seed": [1, "evil/model"]}))

        assert message.startswith("engine.args: --seed takes no list. Write one value. These take several: ")

    def test_an_item_of_a_list_is_no_flag(self, tmp_path: Path) -> None:
        (message,) = mistakes(tmp_path, job(engine__args={"allowed-media-domains": ["a.b", "--host=0.0.0.0"]}))

        assert message.startswith("engine.args.allowed-media-domains: '--host=0.0.0.0' in a list would be a flag of its own.")


class TestLines:
    @pytest.mark.parametrize("owner", ["a\x1b[2J", "a\nb", "a\x85b", "a\u2028b", "\x07", "a\u202eb"])
    def test_an_owner_does_nothing_to_a_terminal(self, tmp_path: Path, owner: str) -> None:
        (message,) = mistakes(tmp_path, job(owner=owner))

        assert message.startswith("owner: ")
        assert message.isprintable()

    @pytest.mark.parametrize("owner", ["search-team", "Equipe Ärger (東京)", "a@b.example"])
    def test_owners(self, tmp_path: Path, owner: str) -> None:
        assert mistakes(tmp_path, job(owner=owner)) == []


class TestModelUri:
    @pytest.mark.parametrize(
        "uri",
        ["hf://org/m", "hf://Qwen/Qwen2.5-0.5B_Instruct", "gs://models/m", "gs://my.models/a/b-c_d/v=1/~x+y@z.1"],
    )
    def test_good(self, tmp_path: Path, uri: str) -> None:
        assert mistakes(tmp_path, job(model__uri=uri)) == []

    @pytest.mark.parametrize("odd", [",", ":", "$", "(", '"', "\\", "é", "#", "?", "%"])
    def test_a_folder_adds_no_options_to_a_mount(self, tmp_path: Path, odd: str) -> None:
        (message,) = mistakes(tmp_path, job(model__uri=f"gs://models/f{odd}allow_other"))

        assert message.startswith("model.uri: ")
        assert "where a bucket is mounted, that would be read as another option" in message

    @pytest.mark.parametrize(
        "uri",
        [
            "gs://_/m",
            "gs://models/../m",
            "gs://models/a//b",
            "gs://models/./m",
            "gs://MODELS/m",
            "hf://--uds=a/sock",
            "hf://-x/y",
            "hf://../m",
            "hf://org/..",
            "hf://org/a--b",
            "hf://org/a?x",
            "hf://org/a#x",
            f"hf://org/{'m' * 97}",
        ],
    )
    def test_bad(self, tmp_path: Path, uri: str) -> None:
        (message,) = mistakes(tmp_path, job(model__uri=uri))

        assert message.startswith(f"model.uri: {uri!r} is not a model address.")


class TestValues:
    @pytest.mark.parametrize(
        ("deadline", "seconds"),
        [("1s", 1), ("90s", 90), ("45m", 2700), ("3h", 10800), ("1d", 86400), ("1h30m", 5400), ("7d", 604800)],
    )
    def test_durations(self, deadline: str, seconds: int) -> None:
        assert JobSpec.model_validate(job(deadline=deadline)).deadline_seconds == seconds

    @pytest.mark.parametrize(
        "deadline", ["", "h", "3", "3 h", "1.5h", "-1h", "0s", "0h0m", "30m1h", "8d", "3H", "٣h", 5, 2.5, True, None, ["3h"]]
    )
    def test_no_durations(self, tmp_path: Path, deadline: Any) -> None:
        (message,) = mistakes(tmp_path, job(deadline=deadline))
        assert message.startswith("deadline: ")

    @pytest.mark.parametrize("profile", ["cpu", "gpu-l4-spot"])
    def test_a_deadline_leaves_time_for_rows(self, tmp_path: Path, profile: str) -> None:
        for deadline in ("1s", "10m", "11m59s"):
            (message,) = mistakes(tmp_path, job(deadline=deadline, compute={"profile": profile}))
            assert message.startswith(f"deadline: Within {deadline} no rows are answered")
        assert mistakes(tmp_path, job(deadline="12m", compute={"profile": profile})) == []

    def test_a_run_with_a_shorter_deadline_is_still_read(self) -> None:
        """It was opened before such a deadline was refused. (The planner refuses it too, with what would fit.)"""
        assert JobSpec.model_validate(job(deadline="90s")).deadline_seconds == 90

    @pytest.mark.parametrize(
        ("tolerate", "rows", "allowed"),
        [
            (0, 100, 0),
            (5, 3, 5),
            ("1%", 99, 0),
            ("1%", 100, 1),
            ("0.1%", 1000, 1),
            ("0.1%", 999, 0),
            ("100%", 7, 7),
            ("29%", 100, 29),
        ],
    )
    def test_tolerance(self, tolerate: int | str, rows: int, allowed: int) -> None:
        """A share is exact and rounded down: 29% of 100 is 29, though 0.29 * 100 is less in binary."""
        assert JobSpec.model_validate(job(dead_letters={"tolerate": tolerate})).dead_letters.allowed(rows) == allowed

    @pytest.mark.parametrize("tolerate", ["150%", "100.1%", "-1%", "5 %", "%", "5", "five", -1, 0.5, True, None, [1]])
    def test_no_tolerance(self, tmp_path: Path, tolerate: Any) -> None:
        (message,) = mistakes(tmp_path, job(dead_letters__tolerate=tolerate))
        assert message.startswith("dead_letters.tolerate: ")

    @pytest.mark.parametrize(
        "schedule",
        [
            "0 2 * * *",
            "0-0 2/22 * * *",
            "5 4 1,15 jan-mar MON-FRI",
            "0 0 29 2 *",
            "0 0 L * *",
            "0 0 * * fri-sun",
            "0 0 * * 5#2",
            "7-9/5 22 * * *",
            "0 0 31 2 mon",
            "00 02 * * 7",
            "0 0 31 1,2 *",
        ],
    )
    def test_schedules(self, tmp_path: Path, schedule: str) -> None:
        """What is accepted comes at some time, as Airflow's own cron reader finds."""
        assert mistakes(tmp_path, job(schedule=schedule)) == []
        assert croniter(schedule).get_next() > 0

    def test_what_is_accepted_airflows_cron_reader_takes(self) -> None:
        """5,000 expressions by cron's grammar, with lists, steps, names, L and #."""
        draw = random.Random(11)
        accepted = [text for text in (_cron(draw) for _ in range(5_000)) if _accepts(text)]

        assert len(accepted) > 500
        for text in accepted:
            assert croniter(text, datetime(2026, 11, 29)).get_next(datetime), text

    @pytest.mark.parametrize(
        "schedule",
        [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "0 24 * * *",
            "0 0 0 * *",
            "0 0 32 * *",
            "0 0 * 13 *",
            "0 0 * * 8",
            "0 0 31 4,6 *",
            "*/0 * * * *",
            "*/90 * * * *",
            "5-1 * * * *",
            "0 0 ,1 * *",
            "0 0 * * mo",
            "H 0 * * *",
            "@daily",
            "@never",
            "0 0 30 2 *",
            "a b c d e",
            "0 2 * * 6,5#2",
            "0 2 * * sat#5,*",
            "0 2 31 feb *,3",
            "0 2 30 2 0-6",
        ],
    )
    def test_no_schedules(self, tmp_path: Path, schedule: str) -> None:
        (message,) = mistakes(tmp_path, job(schedule=schedule))
        assert message.startswith("schedule: ")

    @pytest.mark.parametrize(
        ("schedule", "once"),
        [
            ("*/10 * * * *", "0 0 * * *"),
            ("* * * * *", "0 0 * * *"),
            ("0 */6 * * *", "0 0 * * *"),
            ("0 2,14 * * mon", "0 2 * * mon"),
            ("15,45 2 1 * *", "15 2 1 * *"),
            ("0 22-23,3 * * *", "0 3 * * *"),
            ("5/10 4 * * *", "5 4 * * *"),
        ],
    )
    def test_several_times_of_a_day_are_refused_with_what_to_write(self, tmp_path: Path, schedule: str, once: str) -> None:
        """They were taken, and ran once a day."""
        (message,) = mistakes(tmp_path, job(schedule=schedule))

        assert message.startswith(
            f"schedule: {schedule!r} names several times of a day, and a nightly job has one run for each"
        )
        assert f'write every: 10m (or 1h, ...) in place of schedule; for one run, one time: "{once}"' in message
        assert mistakes(tmp_path, job(schedule=once)) == []

    def test_a_run_that_an_earlier_release_opened_with_one_is_read(self) -> None:
        assert JobSpec.model_validate(job(schedule="*/10 * * * *")).schedule == "*/10 * * * *"

    @pytest.mark.parametrize(
        ("schedule", "said"),
        [
            ("@hourly", "Write every: 1h in place of schedule"),
            ("@Daily", 'Write "0 0 * * *".'),
            ("@weekly", 'Write "0 0 * * 0", if only the day before each of these times is to be computed'),
            ("@once", "Leave schedule out, and trigger the DAG by hand"),
        ],
    )
    def test_a_shorthand_is_refused_with_what_means_the_same_here(self, tmp_path: Path, schedule: str, said: str) -> None:
        (message,) = mistakes(tmp_path, job(schedule=schedule))

        assert said in message

    @pytest.mark.parametrize("profile", PROFILES)
    def test_every_profile(self, tmp_path: Path, profile: str) -> None:
        assert mistakes(tmp_path, job(compute__profile=profile)) == []


def _accepts(text: str) -> bool:
    try:
        return cron.seldom(cron.schedule(text)) is None
    except ValueError:
        return False


def _cron(draw: random.Random) -> str:
    fields = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
    names = {"month": ("jan", "feb", "jun", "nov", "dec"), "weekday": ("sun", "mon", "fri", "sat")}

    def number(name: str, low: int, high: int) -> str:
        value = draw.randint(low, high)
        return draw.choice([f"{value}", f"{value}", f"{value:02d}", *names.get(name, ())])

    def item(name: str, low: int, high: int) -> str:
        last = {"day": "L", "weekday": f"{number(name, low, high)}#{draw.randint(1, 5)}"}.get(name, "*")
        step = draw.choice(["", "", f"/{draw.randint(1, high)}"])
        one = number(name, low, high)
        return draw.choice(["*" + step, one, one, last, f"{one}-{number(name, low, high)}{step}"])

    return " ".join(",".join(item(*field) for _ in range(draw.choice([1, 1, 1, 2]))) for field in fields)
