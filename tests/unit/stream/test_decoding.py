"""A message's data as a row: what a subscriber can read, and what it says of what it cannot."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.spec import StreamSpec, load_stream
from nightshift.stream.decoding import ENCODING, REVISION, Decoder, UnknownRevision, fits, memory_of
from nightshift.stream.messages import Message
from nightshift.tasks.base import BadInput
from tests.unit.spec.test_stream import stream
from tests.unit.spec_file import write

pytestmark = pytest.mark.unit

PUBLISHED = datetime(2026, 11, 20, 12, 30, 0, 123456, tzinfo=UTC)
SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "Package",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "weight", "type": "double", "default": 0.0},
    ],
}
READS: Mapping[str, tuple[str, ...]] = {"json": ("name", "text"), "avro": ("name", "text"), "text": ("text",)}
TEMPLATES = {"json": "{{ name }} {{ text }}", "avro": "{{ name }} {{ text }}", "text": "{{ text }}"}


class Reading:
    """Decoders of a stream whose section source is given, over messages that are given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def spec(self, **source: Any) -> StreamSpec:
        template = TEMPLATES[source.get("format", "json")]
        written = stream(source={"subscription": "texts", **source}, request={"input": template})
        return load_stream(write(self._folder, written))

    def decoder(self, *columns: str, **source: Any) -> Decoder:
        return Decoder(self.spec(**source), columns or READS[source.get("format", "json")])

    def row(self, message: Message, *more: str, **source: Any) -> Mapping[str, Any]:
        """more: columns besides those of READS."""
        return self.decoder(*READS[source.get("format", "json")], *more, **source).row(message)

    def key(self, message: Message, **source: Any) -> tuple[str, ...]:
        decoder = self.decoder(**source)
        return decoder.key(message, decoder.row(message))

    def problem(self, message: Message, **source: Any) -> str:
        """Why there is no row of it."""
        with pytest.raises(BadInput) as caught:
            self.row(message, **source)
        return str(caught.value)

    def key_problem(self, message: Message, **source: Any) -> str:
        """Why its row has no key, though it is a row."""
        decoder = self.decoder(**source)
        row = decoder.row(message)
        with pytest.raises(BadInput) as caught:
            decoder.key(message, row)
        return str(caught.value)


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path)


def a_message(data: bytes | Mapping[str, Any], *, key: str = "", **attributes: str) -> Message:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return Message("17", body, attributes, key, PUBLISHED)


def binary(**values: Any) -> bytes:
    record = io.BytesIO()
    fastavro.schemaless_writer(record, dict(SCHEMA), values)
    return record.getvalue()


def in_json(text: str) -> Message:
    """A message of a topic with a schema, in JSON's encoding."""
    return a_message(text.encode(), **{ENCODING: "JSON"})


class TestJson:
    def test_an_object_is_a_row_with_the_fields_and_the_messages_own_columns_that_are_used(self, reading: Reading) -> None:
        """And no others: ten megabytes of [[],[],...] are a hundred times as many in memory."""
        message = a_message({"name": "a", "text": "b", "more": [1, {"x": None}], "others": [[]] * 1000}, key="k")

        assert reading.row(message) == {"name": "a", "text": "b"}
        assert reading.row(message, "more", "message_id", "publish_time", "ordering_key") == {
            "name": "a",
            "text": "b",
            "more": [1, {"x": None}],
            "message_id": "17",
            "publish_time": PUBLISHED,
            "ordering_key": "k",
        }

    @pytest.mark.parametrize("data", [b"{", b"{'name': 1}", b'{"name": "a"} x', b"\xff", b'\xef\xbb\xbf{"name": "a"}'])
    def test_what_is_not_json_is_said_with_the_place(self, reading: Reading, data: bytes) -> None:
        said = reading.problem(a_message(data))

        assert re.fullmatch(r"the message is not JSON: .+ line 1 column \d+ \(char \d+\)", said)

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_a_number_that_is_not_finite_is_not_json(self, reading: Reading, number: str) -> None:
        assert reading.problem(a_message(f'{{"name": {number}, "text": ""}}'.encode())).startswith("the message is not JSON:")

    @pytest.mark.parametrize("data", [b"[]", b'"name"', b"1", b"null", b'[{"name": "a"}]'])
    def test_json_that_is_not_an_object_is_not_a_row(self, reading: Reading, data: bytes) -> None:
        assert reading.problem(a_message(data)) == "the message is JSON, but not an object"

    def test_of_a_field_that_is_there_twice_the_last_one_counts(self, reading: Reading) -> None:
        assert reading.row(a_message(b'{"name": "a", "text": "", "name": "b"}'))["name"] == "b"

    def test_nesting_without_end_is_not_json_and_no_crash(self, reading: Reading) -> None:
        assert reading.problem(a_message(b'{"name":' + b"[" * 100_000)).startswith("the message is not JSON:")

    def test_an_empty_message_is_not_a_row(self, reading: Reading) -> None:
        for form in ({}, {"format": "text"}, {"format": "avro", "avro_schema": SCHEMA}):
            assert reading.problem(a_message(b""), **form) == "the message is empty"

    def test_a_field_with_the_name_of_the_messages_own_column_does_not_replace_it(self, reading: Reading) -> None:
        message = a_message({"name": "a", "text": "b", "message_id": "forged", "publish_time": "never"})
        row = reading.row(message, "message_id", "publish_time")

        assert (row["message_id"], row["publish_time"]) == ("17", PUBLISHED)


def test_a_row_takes_the_memory_of_all_that_is_in_it() -> None:
    """Empty lists and objects are what makes a message of a few megabytes large."""
    assert memory_of({"a": [[] for _ in range(1000)]}) > 1000 * sys.getsizeof([])
    assert memory_of({"a": {"b": {"c": "x" * 5000}}}) > 5000
    assert memory_of({"a": "short", "b": None}) < 200


class TestText:
    def test_the_data_is_the_column_text(self, reading: Reading) -> None:
        assert reading.row(a_message("héllo\n".encode()), format="text")["text"] == "héllo\n"

    @pytest.mark.parametrize("data", [b"\xff", b"abc\xe2\x82", b"\xed\xa0\x80"])
    def test_what_is_not_utf8_is_said(self, reading: Reading, data: bytes) -> None:
        said = reading.problem(a_message(data), format="text")

        assert said.startswith("the message is not UTF-8 text: 'utf-8' codec can't decode")


class TestAvro:
    FORM: Mapping[str, Any] = {"format": "avro", "avro_schema": SCHEMA}

    def row(self, reading: Reading, message: Message) -> Mapping[str, Any]:
        return reading.row(message, "weight", **self.FORM)

    @pytest.mark.parametrize("attributes", [{}, {ENCODING: "BINARY"}])
    def test_a_record_in_binary(self, reading: Reading, attributes: dict[str, str]) -> None:
        message = a_message(binary(name="a", text="b", weight=1.5), **attributes)

        assert self.row(reading, message) == {"name": "a", "text": "b", "weight": 1.5}

    @pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
    def test_a_record_of_a_revision_that_is_not_named_is_not_read(self, reading: Reading, encoding: str) -> None:
        """Two text fields that a compatible revision exchanges would be read one for the other, without a word."""
        data = {
            "BINARY": binary(name="a", text="b", weight=1.5),
            "JSON": b'{"name": "a", "text": {"string": "b"}, "weight": 1.5}',
        }
        message = a_message(data[encoding], **{ENCODING: encoding, REVISION: "8d1f2a3b"})
        for named in ([], ["00000000"]):
            with pytest.raises(UnknownRevision) as caught:
                reading.row(message, **self.FORM, avro_revisions=named)
            assert caught.value.revision == "8d1f2a3b"

        assert reading.row(message, **self.FORM, avro_revisions=["00000000", "8d1f2a3b"]) == {"name": "a", "text": "b"}

    def test_of_other_formats_any_revision_can_be_read(self, reading: Reading) -> None:
        assert reading.row(a_message({"name": "a", "text": "b"}, **{REVISION: "8d1f2a3b"})) == {"name": "a", "text": "b"}

    def test_bytes_behind_the_record_are_not_of_the_schema(self, reading: Reading) -> None:
        message = a_message(binary(name="a", text=None, weight=0.0) + b"abc")

        assert reading.problem(message, **self.FORM) == "the message has 3 bytes more than a record of the stream's Avro schema"

    @pytest.mark.parametrize(
        "data",
        [
            b"\x02",
            b"\x01",
            b"\x02\xff\x00" + bytes(8),
            b"\x02a\x08" + bytes(8),
            b"\xfe" + b"\xff" * 8 + b"\x01",
            b'{"name":"a"}',
        ],
        ids=["cut", "negative length", "not UTF-8", "no such branch", "a length of 2**63", "JSON without its attribute"],
    )
    def test_bytes_that_are_not_a_record_are_said(self, reading: Reading, data: bytes) -> None:
        said = reading.problem(a_message(data), **self.FORM)

        assert said.startswith("the message is not a record of the stream's Avro schema: ")

    def test_a_record_in_json(self, reading: Reading) -> None:
        message = in_json('{"name": "a", "text": {"string": "b"}, "weight": 1.5}')

        assert self.row(reading, message) == {"name": "a", "text": "b", "weight": 1.5}

    @pytest.mark.parametrize(
        "text", ['{\n  "name": "a",\n  "text": null\n}\n', '{"name": "a", "text": null}\n\n', ' {"name": "a"}']
    )
    def test_a_record_in_json_may_be_spread_over_lines(self, reading: Reading, text: str) -> None:
        assert self.row(reading, in_json(text)) == {"name": "a", "text": None, "weight": 0.0}

    @pytest.mark.parametrize(
        "text",
        [
            "{",
            "[]",
            "5",
            "null",
            '"name"',
            "{}",
            '{"name": "a", "text": "not in a union"}',
            '{"name": "a"}{"name": "b"}',
            '{"name": "a"}\n{"name": "b"}',
            '{"name": "a", "weight": NaN}',
            '{"name": "half of a pair: \\ud800"}',
        ],
    )
    def test_json_that_is_not_a_record_is_said(self, reading: Reading, text: str) -> None:
        said = reading.problem(in_json(text), **self.FORM)

        assert said.startswith("the message is not a record of the stream's Avro schema: ")

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ('{"name": 5}', "name is <5> of type <class 'int'> expected string"),
            ('{"name": null}', "name) is None expected string"),
            ('{"name": "a", "weight": "1.5"}', "weight is <1.5> of type <class 'str'> expected double"),
            ('{"name": "a", "weight": true}', "weight is <True> of type <class 'bool'> expected double"),
            ('{"name": "a", "text": {"string": 5}}', "text is <5> of type <class 'int'> expected null; "),
        ],
    )
    def test_json_of_other_types_than_the_schemas_is_said(self, reading: Reading, text: str, why: str) -> None:
        said = reading.problem(in_json(text), **self.FORM)

        assert said.startswith("the message is not a record of the stream's Avro schema: ")
        assert why in said

    def test_json_that_is_not_utf8_is_said(self, reading: Reading) -> None:
        message = a_message(b'{"name": "\xff"}', **{ENCODING: "JSON"})

        assert reading.problem(message, **self.FORM).startswith("the message is not UTF-8 text: ")

    @pytest.mark.parametrize(
        ("kind", "why"),
        [
            ("letters", "letters"),
            ({"type": "array"}, "items"),
            ({"type": "enum", "name": "E", "symbols": ["a", "a"]}, "symbol"),
        ],
        ids=["unknown type", "array of nothing", "a symbol twice"],
    )
    def test_a_schema_that_is_not_avro_is_said_before_any_message(self, reading: Reading, kind: Any, why: str) -> None:
        fields = [*SCHEMA["fields"], {"name": "more", "type": kind}]
        spec = reading.spec(format="avro", avro_schema={**SCHEMA, "fields": fields})

        with pytest.raises(ValueError, match=r"^source\.avro_schema is not an Avro schema: .*" + why):
            Decoder(spec, ("name",))


class TestAttributes:
    def test_a_named_attribute_is_a_column_and_others_are_not(self, reading: Reading) -> None:
        message = a_message({"name": "a", "text": "b"}, tenant="t", other="o")

        assert reading.row(message, "tenant", attributes=["tenant"])["tenant"] == "t"
        assert reading.row(message, "other", attributes=["tenant"], optional=["other"])["other"] is None

    def test_a_missing_attribute_is_said_even_if_nothing_reads_it(self, reading: Reading) -> None:
        message = a_message({"name": "a", "text": "b"}, two="2")

        said = reading.problem(message, attributes=["one", "two", "three"])
        assert said == "the message lacks the attribute 'one' and 'three'"

    def test_an_optional_attribute_that_is_missing_reads_as_null(self, reading: Reading) -> None:
        decoder = reading.decoder("name", "tenant", attributes=["tenant"], optional=["tenant"])

        assert decoder.row(a_message({"name": "a"}))["tenant"] is None

    def test_an_attribute_goes_before_a_field_of_the_same_name(self, reading: Reading) -> None:
        source: dict[str, Any] = {"attributes": ["tenant"], "optional": ["tenant"]}
        data = {"name": "a", "text": "b", "tenant": "of the data"}

        assert reading.row(a_message(data, tenant="of the attribute"), "tenant", **source)["tenant"] == "of the attribute"
        assert reading.row(a_message(data), "tenant", **source)["tenant"] is None, "a column has one meaning in all messages"

    def test_an_empty_attribute_is_not_a_missing_one(self, reading: Reading) -> None:
        message = a_message({"name": "a", "text": "b"}, tenant="")

        assert reading.row(message, "tenant", attributes=["tenant"])["tenant"] == ""


class TestColumns:
    def test_all_missing_columns_are_said_at_once_with_what_is_there(self, reading: Reading) -> None:
        said = reading.problem(a_message({"title": "a"}))

        assert said == ("the message has no 'name' and no 'text'; it has title, message_id, publish_time, ordering_key")

    def test_of_many_fields_only_the_first_are_listed(self, reading: Reading) -> None:
        said = reading.problem(a_message({f"f{n}": n for n in range(50)}))

        assert said.endswith("f18, f19 and 33 more")
        assert "f20" not in said

    def test_a_long_field_name_does_not_make_a_long_sentence(self, reading: Reading) -> None:
        assert len(reading.problem(a_message({"x" * 1_000_000: 1}))) < 1000

    def test_an_optional_column_that_is_missing_reads_as_null(self, reading: Reading) -> None:
        row = reading.row(a_message({"name": "a"}), optional=["text"])

        assert row["text"] is None

    def test_a_column_that_is_null_is_there(self, reading: Reading) -> None:
        assert reading.row(a_message({"name": "a", "text": None}))["text"] is None

    def test_a_key_column_must_be_there_though_the_template_does_not_read_it(self, reading: Reading) -> None:
        said = reading.problem(a_message({"name": "a", "text": "b"}), key=["version"])

        assert said.startswith("the message has no 'version'; it has name, text, ")


class TestOrder:
    GOOD: Mapping[str, Any] = {"name": "a", "text": "b"}

    def test_without_order_the_ordering_key_does_not_matter(self, reading: Reading) -> None:
        assert reading.row(a_message(self.GOOD), "ordering_key")["ordering_key"] == ""
        assert reading.row(a_message(self.GOOD, key="k"), "ordering_key")["ordering_key"] == "k"

    def test_in_order_a_message_needs_an_ordering_key(self, reading: Reading) -> None:
        said = reading.problem(a_message(self.GOOD), ordering=True)

        assert said == "the message has no ordering key, but the stream answers in order"
        assert reading.row(a_message(self.GOOD, key="any"), "ordering_key", ordering=True)["ordering_key"] == "any"

    @pytest.mark.parametrize(
        ("allowed", "key"),
        [
            (["tenant-*"], "tenant-1"),
            (["tenant-*"], "tenant-"),
            (["tenant-*"], "tenant-a\nb"),
            (["*"], "x"),
            (["a*c*e"], "abcde"),
            (["a*c*e"], "ace"),
            (["**"], "x"),
            (["a*b*b"], "abb"),
            (["*a*a*"], "xaya"),
            (["no", "yes"], "yes"),
            (["a.b"], "a.b"),
            (["(["], "(["),
        ],
    )
    def test_an_ordering_key_of_the_list_is_allowed(self, reading: Reading, allowed: list[str], key: str) -> None:
        message = a_message(self.GOOD, key=key)

        assert reading.row(message, "ordering_key", ordering=True, ordering_keys=allowed)["ordering_key"] == key

    def test_an_ordering_key_of_somebody_elses_choice_takes_no_time(self, reading: Reading) -> None:
        """As a regular expression, a pattern of eight stars would take it years to say no."""
        pattern, key = "*".join(["a"] * 9), "a" * 1023 + "b"

        assert "is not among those" in reading.problem(a_message(self.GOOD, key=key), ordering=True, ordering_keys=[pattern])

    @given(st.text("ab\n", max_size=8), st.text("ab*\n", max_size=6))
    def test_a_star_stands_for_any_characters(self, key: str, pattern: str) -> None:
        as_expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)

        assert fits(key, pattern) == bool(as_expression.fullmatch(key))

    @pytest.mark.parametrize(
        ("allowed", "key"),
        [
            (["tenant-*"], "tenant"),
            (["tenant-*"], "a tenant-1"),
            (["tenant"], "tenant-1"),
            (["a*c*e"], "aec"),
            (["aa*a"], "aa"),
            (["a*b*b"], "ab"),
            (["*a*a*"], "xay"),
            (["a.b"], "axb"),
            (["a"], "A"),
            (["a"], "a\n"),
            ([], "a"),
        ],
    )
    def test_another_ordering_key_is_not(self, reading: Reading, allowed: list[str], key: str) -> None:
        said = reading.problem(a_message(self.GOOD, key=key), ordering=True, ordering_keys=allowed)

        assert said == f"the ordering key {key!r} is not among those that the stream allows"


class TestKey:
    def test_without_key_columns_it_is_the_messages_id(self, reading: Reading) -> None:
        assert reading.key(a_message({"name": "a", "text": "b"})) == ("17",)

    def test_it_has_the_columns_in_the_order_of_the_job(self, reading: Reading) -> None:
        assert reading.key(a_message({"name": "a", "text": "b"}), key=["text", "name"]) == ("b", "a")

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("a", "a"),
            ("", ""),
            ("é\n", "é\n"),
            (True, "true"),
            (False, "false"),
            (0, "0"),
            (-(2**63), "-9223372036854775808"),
            (2**64 - 1, "18446744073709551615"),
            (1.5, "1.5"),
            (1e-7, "1e-7"),
        ],
    )
    def test_text_numbers_and_booleans_are_keys(self, reading: Reading, value: Any, text: str) -> None:
        assert reading.key(a_message({"name": value, "text": ""}), key=["name"]) == (text,)

    @pytest.mark.parametrize(("value", "kind"), [(None, "NULL"), ([1], "a list"), ({"a": 1}, "a dict")])
    def test_what_is_none_of_these_is_not(self, reading: Reading, value: Any, kind: str) -> None:
        said = reading.key_problem(a_message({"name": value, "text": ""}), key=["name"])

        assert said == f"the key column 'name' is {kind}; it must be text, a number or a boolean"

    def test_a_text_with_a_nul_character_is_not(self, reading: Reading) -> None:
        said = reading.key_problem(a_message({"name": "a\0b", "text": ""}), key=["name"])

        assert said == "the key column 'name' has a NUL character, which PostgreSQL cannot hold"

    @pytest.mark.parametrize("value", [2**64, 2**64 + 1, -(2**63) - 1, 10**30, 1e300])
    def test_a_whole_number_that_cannot_be_told_from_its_neighbours_is_not(self, reading: Reading, value: float) -> None:
        """JSON's reader makes them floats: 2**64 and 2**64 + 1 would be one row."""
        said = reading.key_problem(a_message({"name": value, "text": ""}), key=["name"])

        assert said.startswith("the key column 'name' is a number that is too large to be exact")

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_a_number_that_is_not_finite_is_not(self, reading: Reading, value: float) -> None:
        message = a_message(binary(name="a", text=None, weight=value))

        said = reading.key_problem(message, format="avro", avro_schema=SCHEMA, key=["weight"])
        assert said == "the key column 'weight' is not a finite number"

    def test_when_a_message_was_published_may_be_its_key(self, reading: Reading) -> None:
        key = reading.key(a_message({"name": "a", "text": ""}), key=["name", "publish_time"])

        assert key == ("a", "2026-11-20T12:30:00.123456+00:00")

    @pytest.mark.parametrize(
        ("kind", "value", "text"),
        [
            ({"type": "string", "logicalType": "uuid"}, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            ({"type": "int", "logicalType": "date"}, PUBLISHED.date(), "2026-11-20"),
            ({"type": "long", "logicalType": "timestamp-micros"}, PUBLISHED, "2026-11-20T12:30:00.123456+00:00"),
            ({"type": "long", "logicalType": "time-micros"}, PUBLISHED.time(), "12:30:00.123456"),
            ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.50"), "1.50"),
            ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b", "b"),
        ],
        ids=["uuid", "date", "timestamp", "time", "decimal", "enum"],
    )
    def test_what_avro_makes_of_numbers_and_texts_may_be_a_key(
        self, reading: Reading, kind: Mapping[str, Any], value: Any, text: str
    ) -> None:
        schema = {"type": "record", "name": "T", "fields": [{"name": "name", "type": kind}, {"name": "text", "type": "string"}]}
        record = io.BytesIO()
        fastavro.schemaless_writer(record, schema, {"name": value, "text": ""})

        assert reading.key(a_message(record.getvalue()), format="avro", avro_schema=schema, key=["name"]) == (text,)
