"""The model's reasoning, kept beside the prediction: through replies, chunks, partials, the seal, tables and files."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.cli import validate
from nightshift.driver.codec import ParquetCodec
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.scheduler import Scheduler
from nightshift.operators.lineage import facets
from nightshift.run import chunks
from nightshift.run.chunks import NotAChunk, Result
from nightshift.run.names import RunRef
from nightshift.settings import Settings
from nightshift.spec import JobSpec, columns, load_stream
from nightshift.spec.loading import load
from nightshift.stream.bigquery.tables import StreamTables
from nightshift.stream.messages import Answered, Message
from nightshift.stream.parquet import Format
from nightshift.stream.postgres import PostgresSink
from nightshift.stream.schema import Table
from nightshift.tasks.base import Answer, Answers, TaskKind, load_kind
from nightshift.warehouse import publish, query, schema
from nightshift.warehouse.errors import WarehouseError
from tests.builders import PLAN_UID, RUN, a_spec
from tests.unit.spec.test_stream import stream
from tests.unit.spec_file import job, mistakes, write
from tests.unit.tasks.test_text import SCHEMA, chat_reply, thought

pytestmark = pytest.mark.unit

PARSED = {"engine__args": {"reasoning-parser": "qwen3"}}
SETTINGS = Settings(project="p", bucket="b")


def a_job(**request: Any) -> JobSpec:
    return a_spec(task="chat", request={"user": "{{ text }}", "reasoning": "keep", **request}, **PARSED)


def kept(kind: TaskKind, reply: Any) -> Any:
    [answer] = kind.answers(reply, [kind.render({"text": "x"}, 0)]).rows
    return answer


def reply(content: str | None, reasoning: Any, name: str = "reasoning", reason: str = "stop") -> dict[str, Any]:
    body = chat_reply(content, reason)
    body["choices"][0]["message"] = {"content": content, name: reasoning}
    return body


class TestReplies:
    @pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
    def test_it_is_kept_if_the_job_says_so(self, name: str) -> None:
        assert kept(load_kind(a_job()), reply("4", "2 and 2", name)) == Answer("4", reasoning="2 and 2")
        assert kept(load_kind(a_job(reasoning="drop")), reply("4", "2 and 2", name)) == Answer("4")
        assert kept(load_kind(a_spec(task="chat", request={"user": "{{ text }}"})), reply("4", "2", name)) == Answer("4")

    @pytest.mark.parametrize("none", [None, "", 7, ["2"], {}])
    def test_without_any_there_is_none(self, none: Any) -> None:
        assert kept(load_kind(a_job()), reply("4", none)) == Answer("4")

    def test_of_a_cut_answer_it_is_all_there_is(self) -> None:
        assert kept(load_kind(a_job()), thought("so ...")) == Answer("", truncated=True, reasoning="so ...")

    def test_half_a_surrogate_pair_is_replaced(self) -> None:
        assert kept(load_kind(a_job()), reply("4", "a\ud83d")).reasoning == "a�"

    def test_beside_a_typed_answer(self) -> None:
        assert kept(load_kind(a_job(json_schema=SCHEMA)), reply('{"topic": "a"}', "hm")) == Answer(
            {"topic": "a", "count": None}, reasoning="hm"
        )

    def test_of_an_image(self) -> None:
        spec = a_spec(task="image", request={"image": "photo", "user": "{{ text }}", "reasoning": "keep"}, **PARSED)
        assert load_kind(spec).answers(reply("4", "hm"), [None]).rows == [Answer("4", reasoning="hm")]

    def test_it_decides_the_run(self) -> None:
        """What is kept is part of a run's result; a run that 0.2.0 opened is that of a job which drops it."""
        plain = a_spec(task="chat", request={"user": "{{ text }}"}, **PARSED)

        assert a_job().semantic() != plain.semantic() == a_job(reasoning="drop").semantic()


class TestJobs:
    def test_a_valid_job(self, tmp_path: Path) -> None:
        value = job(
            task="chat",
            request={"user": "{{ summary }}", "reasoning": "keep", "max_tokens": 9},
            engine__args={"reasoning_parser": "qwen3"},
        )

        assert load(write(tmp_path, value)).request.keeps_reasoning

    @pytest.mark.parametrize("args", [None, {}, {"enforce-eager": True}])
    def test_without_a_parser_there_would_be_nothing_to_keep(self, tmp_path: Path, args: Any) -> None:
        value = job(task="chat", request={"user": "{{ summary }}", "reasoning": "keep", "max_tokens": 9})
        value["engine"].pop("args", None)
        value["engine"] |= {} if args is None else {"args": args}

        [mistake] = mistakes(tmp_path, value)
        assert mistake.startswith("request.reasoning: The engine has no reasoning parser, so it would leave the reasoning in")
        assert "engine.args: {reasoning-parser: qwen3}" in mistake

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            ("source.key.1", {"source__key": ["name", "reasoning"]}),
            ("source.pass_through.0", {"source__pass_through": ["reasoning"]}),
            ("destination.column", {"destination__column": "Reasoning"}),
            ("destination.partition_column", {"destination__partition_column": "reasoning"}),
        ],
    )
    def test_its_column_is_taken(self, tmp_path: Path, place: str, value: dict[str, Any]) -> None:
        query = "SELECT name, reasoning, summary FROM `a.b` WHERE d = @partition"
        value = {"source__key": ["name"], "source__query": query, **value}
        request = {"user": "{{ summary }}{{ reasoning }}", "max_tokens": 9}

        keeps = job(**value, task="chat", request={**request, "reasoning": "keep"}, engine__args={"reasoning-parser": "x"})
        [mistake] = mistakes(tmp_path, keeps)
        assert mistake.startswith(f"{place}: '{'Reasoning' if 'column' in place and '_' not in place else 'reasoning'}' is the")
        assert mistakes(tmp_path, job(**value, task="chat", request=request)) == []

    def test_a_completion_has_none(self, tmp_path: Path) -> None:
        [mistake] = mistakes(
            tmp_path, job(task="completion", request={"prompt": "{{ summary }}", "reasoning": "keep", "max_tokens": 9})
        )

        assert "request.reasoning" in mistake

    @pytest.mark.parametrize(
        ("stop", "args", "warned"),
        [
            (["\n"], {"reasoning-parser": "qwen3"}, True),
            (["\n"], {"reasoning_parser": "x"}, True),
            ([], {"reasoning-parser": "x"}, False),
            (["\n"], {"enforce-eager": True}, False),
        ],
    )
    def test_stop_strings_beside_a_parser_are_warned_of(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], stop: list[str], args: dict[str, Any], warned: bool
    ) -> None:
        """The job is valid: its strings may be none that a reasoning holds."""
        request = {"user": "{{ summary }}", "max_tokens": 9, "stop": stop}
        nightly, streamed = job(task="chat", request=request, engine__args=args), stream(task="chat", request=request)
        streamed["engine"]["args"] = args
        files = [write(tmp_path, nightly, "job.yaml"), write(tmp_path, streamed, "stream.yaml")]

        assert validate.run(validate.Options(files)) == 0
        said = capsys.readouterr()
        assert said.out.count("valid:") == 2
        for file in files:
            assert (f"{file}: request.stop: Leave it out, or name strings that the reasoning cannot hold" in said.err) == warned

    def test_a_stream(self, tmp_path: Path) -> None:
        value = stream(
            task="chat", request={"user": "{{ summary }}", "reasoning": "keep", "max_tokens": 9}, sink__column="reasoning"
        )
        value["engine"].pop("args", None)

        with pytest.raises(Exception, match="reasoning parser") as caught:
            load_stream(write(tmp_path, value))
        assert "'reasoning' is the column of the reasoning" in str(caught.value)


def codec(spec: JobSpec) -> ParquetCodec:
    return ParquetCodec(
        run_id=RUN.run_id,
        plan_uid=PLAN_UID,
        attempt="a",
        node="n",
        model={},
        engine_version="1",
        prediction_type=load_kind(spec).prediction_type,
        optional=(columns.REASONING,) if spec.request.keeps_reasoning else (),
    )


KEYS = pa.table({"id": [0, 1, 2]})
RESULTS = [
    Result(0, "4", None, None, 1, reasoning="2 and 2"),
    Result(1, None, "rejected", "no", 1),
    Result(2, "5", None, None, 1),
]


def a_chunk(spec: JobSpec, results: list[Result]) -> bytes:
    chunk = OpenChunk(0, 0, 3, {result.ordinal: result for result in results})
    return codec(spec).encode(chunk, KEYS)


class TestChunks:
    def test_a_chunk_has_it_in_a_column_of_its_own(self) -> None:
        table, _ = chunks.decode(a_chunk(a_job(), RESULTS))

        assert tuple(table.column_names) == columns.with_carried(["id"], reasoning=True)
        assert table.column("reasoning").to_pylist() == ["2 and 2", None, None]
        assert [field.name for field in schema.staging_fields(a_job(), {"id": "INT64"})] == table.column_names

    def test_the_chunk_of_another_job_has_none(self) -> None:
        table, _ = chunks.decode(a_chunk(a_job(reasoning="drop"), RESULTS))

        assert tuple(table.column_names) == columns.with_carried(["id"])

    def test_a_partial_gives_it_back(self) -> None:
        body = a_chunk(a_job(), RESULTS[:1])

        assert codec(a_job()).decode(body, 0, 0, KEYS).results == RESULTS[:1]

    def test_a_partial_without_it_is_not_one_of_the_run(self) -> None:
        body = a_chunk(a_job(reasoning="drop"), RESULTS[:1])

        with pytest.raises(NotAChunk, match="reasoning"):
            codec(a_job()).decode(body, 0, 0, KEYS)

    def test_the_seal_asks_for_it(self) -> None:
        with pytest.raises(NotAChunk, match=r"lacks the columns \['reasoning'\]"):
            chunks.decode_outcomes(a_chunk(a_job(reasoning="drop"), RESULTS), ["id"], optional=(columns.REASONING,))
        table, _ = chunks.decode_outcomes(a_chunk(a_job(), RESULTS), ["id"], optional=(columns.REASONING,))
        assert table.column_names == ["ordinal", "id", "dead_reason", "prediction", "width"]
        assert table.column("prediction").to_pylist() == [True, False, True]

    def test_it_counts_as_memory(self) -> None:
        """An answer of one letter may have thought for pages, and a worker's memory is bounded."""
        scheduler = Scheduler(load_kind(a_job()))
        scheduler.open_chunk(0, range(1), iter([{"text": "x"}]), {}, ["0"])
        group = scheduler.next_group()
        assert group is not None
        scheduler.answered(group, Answers([Answer("4", reasoning="x" * 5_000)]))

        done = scheduler.pop_finished()
        assert done is not None
        assert done.answer_bytes >= 5_000
        saved = codec(a_job()).decode(a_chunk(a_job(), [Result(0, "4", None, None, 1, reasoning="x" * 5_000)]), 0, 0, KEYS)
        other = OpenChunk(0, 0, 3)
        other.take_over(saved)
        assert other.answer_bytes >= 5_000


class TestTables:
    def test_the_destination_has_it_beside_the_prediction(self) -> None:
        fields = [field.name for field in schema.destination_fields(a_job(), {"id": "INT64"})]
        plain = [field.name for field in schema.destination_fields(a_job(reasoning="drop"), {"id": "INT64"})]

        assert fields[:3] == ["id", "vector", "reasoning"]
        assert [name for name in fields if name != "reasoning"] == plain

    def test_publishing_inserts_it(self) -> None:
        script = publish.publish_script(a_job(), ["p.d.staged"], SETTINGS, dead=False, stale=False)

        assert "(`id`, `vector`, reasoning, " in script
        assert "SELECT `id`, prediction, reasoning, @partition" in script
        assert "reasoning" not in publish.publish_script(
            a_job(reasoning="drop"), ["p.d.staged"], SETTINGS, dead=False, stale=False
        )

    def test_two_columns_of_its_name_are_refused_before_the_night(self) -> None:
        spec = a_job().model_copy(update={"destination": a_spec(destination__column="reasoning").destination})

        with pytest.raises(WarehouseError, match="two columns called reasoning"):
            query._check_names(spec)

    def test_lineage_shows_where_it_is_from(self) -> None:
        run = RunRef("job", "2026-11-20", "0123456789abcdef")
        of_infer = facets.infer_lineage(a_job(), run, SETTINGS).outputs[0]
        of_publish = facets.publish_lineage(a_job(), run, SETTINGS).outputs[0]

        for output in (of_infer, of_publish):
            shown: Any = output.facets
            assert "reasoning" in shown["columnLineage"].fields
            assert "reasoning" in [field.name for field in shown["schema"].fields]


class TestStreams:
    @pytest.fixture
    def specs(self, tmp_path: Path) -> tuple[Any, Any]:
        sink = {"files": "gs://bucket/texts", "column": "label", "bigquery": "d.out"}
        made = []
        for request in ({"reasoning": "keep"}, {}):
            value = stream(
                task="chat", request={"user": "{{ summary }}", "max_tokens": 9, **request}, sink=sink, source__key=["name"]
            )
            value["engine"]["args"] = {"reasoning-parser": "qwen3"}
            made.append(load_stream(write(tmp_path, value)))
        return made[0], made[1]

    def test_files_have_it(self, specs: tuple[Any, Any]) -> None:
        at = datetime(2026, 11, 20, 13, tzinfo=UTC)
        answers = [
            Answered(Message(name, b"", {}, "", at), (name,), "4", 1, why) for name, why in (("1", "2 and 2"), ("2", None))
        ]
        keeps, drops = (Format(spec, pa.string(), "m") for spec in specs)
        rows, plain = (pq.read_table(io.BytesIO(each.answers(answers, at))).to_pylist() for each in (keeps, drops))

        assert [row["reasoning"] for row in rows] == ["2 and 2", None]
        assert [{name: value for name, value in row.items() if name != "reasoning"} for row in rows] == plain
        assert keeps.name("answers", answers) != drops.name("answers", answers)
        assert b"reasoning" in keeps.description
        assert b"reasoning" not in drops.description

    def test_a_row_of_postgresql_has_it_behind_the_prediction(self, tmp_path: Path) -> None:
        """Without a key column the message's id is the key, wherever it stands."""
        sink = {"table": "d.out", "column": "label"}
        request = {"user": "{{ summary }}", "max_tokens": 9, "reasoning": "keep"}
        value = stream(task="chat", request=request, sink=sink)
        value["source"].pop("key", None)
        value["engine"]["args"] = {"reasoning-parser": "qwen3"}
        table = Table(load_stream(write(tmp_path, value)), pa.string())
        answer = Answered(Message("17", b"", {}, "", datetime(2026, 11, 20, tzinfo=UTC)), ("17",), "4", 1, "2 \0 2")
        row = PostgresSink("postgresql://nowhere", table, "m")._row(answer)

        assert row[:3] == ["4", "2 \ufffd 2", "17"]
        assert table.key_of(row) == ("17",)
        assert '"label", "reasoning", "nightshift_message_id"' in table.upsert.decode()
        assert table.upsert.decode().count("%b") == len(row)

    def test_the_table_that_they_are_loaded_into_has_it(self, specs: tuple[Any, Any]) -> None:
        keeps, drops = ([field.name for field in StreamTables(spec, SETTINGS).answer_fields] for spec in specs)

        assert keeps == [*drops[:2], "reasoning", *drops[2:]]


def test_nothing_of_it_is_left_in_memory() -> None:
    """The chunk's answers go into its bytes, the reasoning with them."""
    chunk = OpenChunk(0, 0, 3, {result.ordinal: result for result in RESULTS})
    codec(a_job()).encode(chunk, KEYS)

    assert [chunk.results[0].reasoning, chunk.results[2].prediction] == [None, None]
