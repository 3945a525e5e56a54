"""The job: its file, images and model; and everything together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nightshift.cli import doctor as command
from nightshift.cli.trouble import EMULATORS
from nightshift.doctor import images, job, model
from nightshift.doctor.checks import CHECKS, JOB_CHECKS, STREAM_CHECKS, diagnose
from nightshift.doctor.findings import Failed, Ok, Skipped
from nightshift.doctor.images import Image
from nightshift.run.models import hub_revision, weights
from nightshift.settings import Settings
from tests.builders import a_spec
from tests.unit.doctor.fakes import FakeConnections, google, here

pytestmark = pytest.mark.unit

STREAMS = Path(__file__).parents[3] / "streams"
JOB_FILE = Path(__file__).parents[3] / "dags/jobs/package-embeddings.yaml"
OURS = "europe-west4-docker.pkg.dev/acme/images/driver"
ENVIRONMENT = {"NIGHTSHIFT_BUCKET": "runs", "NIGHTSHIFT_PROJECT": "acme", "NIGHTSHIFT_LOCATION": "EU", "HF_HUB_OFFLINE": "1"}


class TestImages:
    @pytest.mark.parametrize(
        ("name", "image"),
        [
            ("vllm/vllm-openai:v0.33.0", Image("docker.io", "vllm/vllm-openai", "v0.33.0")),
            ("vllm", Image("docker.io", "vllm", "latest")),
            (f"{OURS}:1.2.3", Image("europe-west4-docker.pkg.dev", "acme/images/driver", "1.2.3")),
            (f"{OURS}:1.2.3@sha256:ab", Image("europe-west4-docker.pkg.dev", "acme/images/driver", "sha256:ab")),
            ("localhost:5000/driver", Image("localhost:5000", "driver", "latest")),
        ],
    )
    def test_a_name_is_read_as_docker_reads_it(self, name: str, image: Image) -> None:
        assert Image.parse(name) == image

    @pytest.mark.parametrize(
        ("status", "kind", "words"),
        [
            (200, Ok, "is there"),
            (404, Failed, "is not in europe-west4-docker.pkg.dev"),
            (403, Skipped, "roles/artifactregistry.reader"),
            (500, Failed, "HTTP 500"),
        ],
    )
    def test_artifact_registry_is_asked_for_the_manifest(self, status: int, kind: type, words: str) -> None:
        account = google()
        account.replies["HEAD https://europe-west4-docker.pkg.dev/v2/acme/images/driver/manifests/1.2.3"] = status

        found, _ = images.ask(here(FakeConnections(account=account), driver_image=f"{OURS}:1.2.3"))

        assert type(found) is kind
        assert words in str(found)

    def test_other_registries_are_not_asked(self) -> None:
        account = google()

        found = list(images.ask(here(FakeConnections(account=account), a_spec(), driver_image="ghcr.io/acme/driver:1")))

        assert [(type(each), each.check) for each in found] == [(Skipped, "driver image"), (Skipped, "cpu server image")]
        assert account.asked == []

    def test_an_anonymous_account_is_not_sent_to_a_registry(self) -> None:
        account = google()
        account.token = None

        found, _ = images.ask(here(FakeConnections(account=account), driver_image=OURS))

        assert isinstance(found, Skipped)

    def test_the_local_runtimes_names_are_in_no_registry_that_can_be_asked(self) -> None:
        assert {type(each) for each in images.ask(here(runtime="local:/state"))} == {Skipped}


class TestModel:
    def test_a_revision_of_the_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def model_at(place: str, revision: str, environment: Mapping[str, str]) -> hub_revision.HubModel:
            asked.append((place, revision))
            return hub_revision.HubModel("a" * 40, 2**30)

        monkeypatch.setattr(hub_revision, "model_at", model_at)

        [found] = model.ask(here(job=a_spec()))

        assert found == Ok("model", "hf://org/m at r1 is commit aaaaaaaaaaaa, 1.00 GiB")
        assert asked == [("org/m", "r1")]

    @pytest.mark.parametrize(("revision", "shown"), [("r1", "r1"), ("r;rm${IFS}-r${IFS}~", "'r;rm${IFS}-r${IFS}~'")])
    def test_a_revision_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch, revision: str, shown: str) -> None:
        """The command is for a person to paste into a shell."""

        def model_at(*_: Any) -> hub_revision.HubModel:
            raise hub_revision.NoSuchRevision("model.revision: no branch")

        monkeypatch.setattr(hub_revision, "model_at", model_at)

        [found] = model.ask(here(job=a_spec(model__revision=revision)))

        assert isinstance(found, Failed)
        assert found.fix == f"hf download org/m --revision={shown} --dry-run"

    def test_a_hub_that_does_not_answer_is_a_fault_only_if_plan_asks_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def model_at(*_: Any) -> hub_revision.HubModel:
            raise hub_revision.HubUnavailable("timed out")

        monkeypatch.setattr(hub_revision, "model_at", model_at)

        [found] = model.ask(here(job=a_spec(model__revision="a" * 40)))

        assert isinstance(found, Skipped)
        assert "the workers must reach it (timed out)" in found.because
        assert not found.needs
        with pytest.raises(hub_revision.HubUnavailable):
            list(model.ask(here(job=a_spec(model__revision="main"))))

    def test_offline_it_is_not_asked(self) -> None:
        [found] = model.ask(here(job=a_spec(), environment={"HF_HUB_OFFLINE": "1"}))

        assert found == Skipped("model", "HF_HUB_OFFLINE is set, so the Hub is not asked")

    def test_the_local_runtime_has_only_the_models_of_its_cache(self, tmp_path: Path) -> None:
        (tmp_path / "models--org--m/snapshots" / ("a" * 40)).mkdir(parents=True)
        environment = {
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_CACHE": str(tmp_path),
            "NIGHTSHIFT_RUNTIME": "local:/state",
        }

        [other] = model.ask(here(job=a_spec(model__uri="hf://nobody/no-such-model"), environment=environment))
        [unknown] = model.ask(here(job=a_spec(model__revision="b" * 40), environment=environment))
        [there] = model.ask(here(job=a_spec(model__revision="a" * 40), environment=environment))

        assert isinstance(other, Failed)
        assert other.problem.startswith("The engine will not find hf://nobody/no-such-model: ")
        assert other.fix.startswith("Name one of these in model.uri: org/m; `make chat-model` makes")
        assert isinstance(unknown, Failed)
        assert unknown.problem.endswith(f"has it only at {'a' * 40}")
        assert there == Ok("model", f"hf://org/m at {'a' * 40} is in {tmp_path}")

    def test_a_folder_in_a_bucket(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = a_spec(model__uri="gs://models/m")
        monkeypatch.setattr(weights, "look", lambda uri, credentials: weights.Weights("f", 2**29))

        assert list(model.ask(here(job=spec))) == [Ok("model", "gs://models/m: 0.50 GiB")]

    def test_a_folder_without_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def look(uri: str, credentials: Any) -> weights.Weights:
            raise weights.NoWeights(f"there are no files in {uri}")

        monkeypatch.setattr(weights, "look", look)

        [found] = model.ask(here(job=a_spec(model__uri="gs://models/m")))

        assert isinstance(found, Failed)
        assert found.fix == "gcloud storage ls gs://models"


class TestJob:
    def test_none_was_named(self) -> None:
        assert job.asked(None)[0] == Skipped("job", "no job was named")

    def test_a_good_one(self) -> None:
        assert job.asked(JOB_FILE)[0] == Ok("job", "package-embeddings: embedding on cpu")

    def test_one_with_mistakes(self, tmp_path: Path) -> None:
        file = tmp_path / "job.yaml"
        file.write_text("ownr: me\n")

        finding, spec = job.asked(file)

        assert spec is None
        assert isinstance(finding, Failed)
        assert finding.fix == f"nightshift validate {file}"

    def test_it_is_found_by_its_name_by_its_files_name_and_by_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "broken.yaml").write_text("ownr: me\n")
        file = tmp_path / "embeddings.yaml"
        file.write_text(JOB_FILE.read_text())

        assert job.file_of("package-embeddings", tmp_path) == file
        assert job.file_of("embeddings", tmp_path) == file
        assert job.file_of("broken", tmp_path) == tmp_path / "broken.yaml"
        assert job.file_of("package-texts", tmp_path, STREAMS) == STREAMS / "package-texts.yaml"
        assert job.file_of("elsewhere/job.yaml", tmp_path) == Path("elsewhere/job.yaml")


class TestEverything:
    def test_each_check_stands_after_what_it_needs(self) -> None:
        for read, checks in ((job.NAME, JOB_CHECKS), (job.STREAM, STREAM_CHECKS)):
            before = {read}
            for check in (*CHECKS, *checks):
                assert {*check.needs, *check.explained_by} <= before, check.name
                before.add(check.name)

    def test_without_settings_only_they_and_the_job_are_told(self) -> None:
        report = diagnose({}, lambda _: pytest.fail("nothing may be connected"))

        [problem] = report.problems
        assert problem.check == "settings"
        assert "NIGHTSHIFT_BUCKET is not set" in problem.problem
        assert report.findings[1] == Skipped("job", "no job was named")
        assert all(isinstance(each, Skipped) and each.needs == "settings" for each in report.findings[2:])
        assert report.exit_code == 1

    def test_without_airflow_everything_that_needs_it_is_not_asked(self) -> None:
        class Bare(FakeConnections):
            def components(self) -> Any:
                raise ImportError("No module named 'airflow'")

        report = diagnose(ENVIRONMENT, lambda _: Bare())

        assert [each.check for each in report.problems] == ["airflow"]
        assert "No module named 'airflow'" in report.problems[0].problem
        assert {type(each) for each in report.findings if each.check in ("plugin", "identity", "cluster", "rights")} == {
            Skipped
        }

    def test_one_service_that_is_down_hides_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Down(FakeConnections):
            def cluster(self) -> Any:
                raise OSError("no route to host")

        report = diagnose(ENVIRONMENT, lambda _: Down())

        assert "cluster" in [each.check for each in report.problems]
        assert Ok("dataset", "acme.nightshift in EU") in report.findings
        assert Skipped("rights", "cluster is not ok", needs="cluster") in report.findings


class TestCommand:
    @pytest.fixture(autouse=True)
    def _own_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from obstore.store import MemoryStore

        memory = MemoryStore()
        monkeypatch.setattr("nightshift.store.open_store", lambda _, credentials: memory)

    def connect(self, _: Settings) -> FakeConnections:
        return FakeConnections()

    def test_all_is_well(self, capsys: pytest.CaptureFixture[str]) -> None:
        code = command.run(command.Options(file=JOB_FILE), self.connect, ENVIRONMENT)

        lines = capsys.readouterr().out.splitlines()
        assert code == 0, lines
        assert "ok      query: package-embeddings for " in "\n".join(lines)
        assert lines[-1].endswith("0 failed, 13 skipped."), lines

    def test_something_is_wrong(self, capsys: pytest.CaptureFixture[str]) -> None:
        connections = FakeConnections(account=google(bucket=404))

        code = command.run(command.Options(as_json=True), lambda _: connections, ENVIRONMENT)

        told = json.loads(capsys.readouterr().out)
        assert (code, told["exit_code"]) == (1, 1)
        [wrong] = [each for each in told["checks"] if each["state"] == "failed"]
        assert wrong["check"] == "bucket"
        assert wrong["fix"].startswith("gcloud storage buckets create gs://runs")

    def test_a_file_that_is_not_there_is_a_wrong_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.run(command.Options(file=Path("gone.yaml")), self.connect, ENVIRONMENT) == 2
        assert "gone.yaml: there is no such file" in capsys.readouterr().err

    def test_a_shell_without_the_stacks_variables_is_told_of_them(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in EMULATORS:
            monkeypatch.delenv(name, raising=False)

        assert command.run(command.Options(), self.connect, {}) == 1
        assert capsys.readouterr().err == 'To use the local stack: make up, then eval "$(make env)".\n'
