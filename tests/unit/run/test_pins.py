"""What a run pins, as far as no other machine is asked, and what the task plan says about the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from obstore.store import MemoryStore

from nightshift.operators.plan import loose_ends
from nightshift.run import opening
from nightshift.run.models import hub_revision
from nightshift.run.names import run_digest
from nightshift.run.pins import Pins, pin_model, why_unpinned
from nightshift.run.record import RunRecord
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from tests.builders import a_spec

pytestmark = pytest.mark.unit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = {"HF_ENDPOINT": "http://no.such.host.invalid"}
PINNED = Pins(commit=COMMIT, server_image="vllm@sha256:1", tpu_server_image="tpu@sha256:2")
SETTINGS = Settings(bucket="runs", project="acme", server_image="vllm@sha256:1", tpu_server_image="tpu@sha256:2")


class TestModel:
    def test_a_commit_needs_no_request(self) -> None:
        assert pin_model(a_spec(model__revision=COMMIT), NOWHERE) == Pins(commit=COMMIT)

    @pytest.mark.parametrize("value", ["1", "true", "YES"])
    def test_offline_nothing_is_asked(self, value: str) -> None:
        assert pin_model(a_spec(), {**NOWHERE, "HF_HUB_OFFLINE": value}) == Pins()
        assert why_unpinned(a_spec(), {"HF_HUB_OFFLINE": value}) == "HF_HUB_OFFLINE is set"

    @pytest.mark.parametrize("flag", ["hf-config-path", "hf_config_path"])
    def test_a_configuration_of_another_repository_does_not_have_the_commit(self, flag: str) -> None:
        assert pin_model(a_spec(model__revision=COMMIT, engine__args={flag: "org/c"}), NOWHERE) == Pins()


class TestRecord:
    def opened(self, store: MemoryStore, pins: Pins) -> RunRecord:
        run = opening.open_run(store, a_spec(), "d", opened_by="a", pin=lambda: pins)
        return opening.load_run(store, run)[1]

    def test_pins_come_back_and_are_no_part_of_the_digest(self) -> None:
        record = self.opened(MemoryStore(), PINNED)

        assert record.pins == PINNED
        assert record.stored["run_id"] == run_digest("job", "d", a_spec().semantic())

    def test_the_first_record_counts(self) -> None:
        store = MemoryStore()
        first = self.opened(store, PINNED)

        assert self.opened(store, replace(PINNED, commit="f" * 40)) == first

    def test_what_is_not_pinned_or_only_later_releases_pin_is_passed_over(self) -> None:
        assert Pins.of({"spec": {}}) == Pins.of({"pinned": {}}) == Pins()
        assert Pins.of({"pinned": {"commit": COMMIT, "weather": "fine"}}) == Pins(commit=COMMIT)


class TestLooseEnds:
    def said(self, pins: Pins, spec: JobSpec | None = None, settings: Settings = SETTINGS) -> list[str]:
        return list(loose_ends(spec or a_spec(compute__profile="gpu-l4"), pins, settings))

    def test_a_pinned_run_has_none(self) -> None:
        assert self.said(PINNED) == []
        assert self.said(Pins(weights="ab", server_image="vllm@sha256:1", tpu_server_image="tpu:1")) == []

    def test_a_run_that_was_opened_offline(self) -> None:
        [said] = self.said(replace(PINNED, commit=None))

        assert "is not pinned to a commit: HF_HUB_OFFLINE was set when the run was opened" in said

    def test_a_revision_that_is_not_pinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        [said] = self.said(replace(PINNED, commit=None))

        assert "The revision 'r1' is not pinned to a commit: HF_HUB_OFFLINE is set" in said

    @pytest.mark.parametrize(
        ("profile", "variable", "image"),
        [("gpu-l4", "NIGHTSHIFT_SERVER_IMAGE", "vllm:1"), ("tpu-v6e", "NIGHTSHIFT_TPU_SERVER_IMAGE", "tpu:1")],
    )
    def test_a_tag_of_an_image_that_the_job_uses(self, profile: str, variable: str, image: str) -> None:
        pins = replace(PINNED, server_image="vllm:1", tpu_server_image="tpu:1")
        settings = replace(SETTINGS, server_image="vllm:1", tpu_server_image="tpu:1")

        [said] = self.said(pins, a_spec(compute__profile=profile), settings)
        assert f"image {image} is named by a tag" in said
        assert variable in said
        assert self.said(pins, a_spec(), replace(settings, runtime="local:/state")) == []

    def test_a_setting_that_was_changed_since(self) -> None:
        [said] = self.said(PINNED, settings=replace(SETTINGS, server_image="vllm@sha256:3"))

        assert (
            said == "Trigger with fresh to use the engine's image vllm@sha256:3 (NIGHTSHIFT_SERVER_IMAGE). "
            "The run keeps the engine's image vllm@sha256:1, with which it was opened."
        )


class TestHub:
    """What a Hub, or a mirror or a proxy in its place, may answer."""

    @pytest.mark.parametrize(
        ("siblings", "size"),
        [
            ([{"rfilename": "a.safetensors", "size": 7}, {"rfilename": "b.bin", "size": 9}], 7),
            (None, None),
            ("files", None),
            ({"a": 1}, None),
            ([None, 7, "a", [], {}, {"rfilename": None, "size": 5}, {"size": 5}], None),
            ([{"rfilename": "a", "size": size} for size in (True, -5, None, "7", 1.5, 10**400, (1 << 50) + 1)], None),
            ([{"rfilename": str(each), "size": 1 << 50} for each in range(2)], None),
            ([{"rfilename": "a.safetensors", "size": -5}, {"rfilename": "b.safetensors", "size": 5}], 5),
        ],
    )
    def test_sizes_of_any_form(self, monkeypatch: pytest.MonkeyPatch, siblings: Any, size: int | None) -> None:
        monkeypatch.setattr(hub_revision, "_get", lambda *_: {"sha": COMMIT, "siblings": siblings})

        assert pin_model(a_spec(), NOWHERE) == Pins(commit=COMMIT, weights_bytes=size)

    @pytest.mark.parametrize(
        "text", ["[" * 100_000, "{", "", "<html>", "null", "[]", '{"sha": null}', f'{{"sha": "{"f" * 41}"}}'], ids=range(8)
    )
    def test_what_is_no_reply_of_the_hub_may_pass(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setattr(hub_revision, "_get", lambda *_: json.loads(text))

        with pytest.raises(hub_revision.HubUnavailable, match="The commit of hf://org/m at 'r1' is not known"):
            hub_revision.model_at("org/m", "r1", {}, pause=lambda _: None)
