"""Which failures are for good, and where a task's link leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.definitions.asset import AssetUniqueKey
from airflow.sdk.exceptions import AirflowFailException, AirflowInactiveAssetInInletOrOutletException

from nightshift.doctor import bucket
from nightshift.doctor.findings import Failed
from nightshift.formats import XCOM
from nightshift.operators.audit import AuditFailureOperator
from nightshift.operators.bigquery_jobs import BigQueryJobFailed, finished_jobs
from nightshift.operators.failures import Entry, NightFailed, told
from nightshift.operators.links import RunFolderLink
from nightshift.operators.run import permanent_failures
from nightshift.operators.seal import SealOperator
from nightshift.run.opening import NoSuchRun
from nightshift.run.seal import ConservationError
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.settings import SettingsError
from nightshift.store import StoreUnavailable
from nightshift.triggers.bigquery import jobs_event
from nightshift.warehouse import JobState, WarehouseError, WarehouseUnavailable
from tests.unit.doctor.fakes import FakeConnections, google, here

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("error", [ConservationError, NoSuchRun, SettingsError, ToleranceExceeded, WarehouseError])
def test_what_a_repeat_cannot_mend_fails_for_good_in_its_own_words(error: type[Exception]) -> None:
    with pytest.raises(AirflowFailException, match="what is wrong"), permanent_failures():
        raise error("what is wrong")


@pytest.mark.parametrize("error", [WarehouseUnavailable, StoreUnavailable, ConnectionError])
def test_what_may_pass_is_left_to_the_retries(error: type[Exception]) -> None:
    with pytest.raises(error), permanent_failures():
        raise error("out of reach")


def test_the_queries_of_a_night_that_failed_before_it_had_a_run_are_labelled_too() -> None:
    task = AuditFailureOperator(task_id="audit_failure", spec={"job": "tickets"}, tasks=["plan"])

    assert task.labels == {"job": "tickets", "step": "audit_failure"}
    task.run_prefix = "tickets/2026-11-20/0123456789abcdef"
    assert task.labels == {"job": "tickets", "run": "0123456789abcdef", "step": "audit_failure"}


class TestWhatTheAuditRowSays:
    """The error of a task that has failed for good, whoever raised it."""

    @staticmethod
    def kept(error: BaseException | None, **options: Any) -> dict[str, Any]:
        with DAG("job", schedule=None):
            seal = SealOperator(task_id="seal", **options)
        pushed: dict[str, Any] = {}
        context: Any = {"exception": error, "ti": SimpleNamespace(xcom_push=pushed.__setitem__)}
        for callback in seal.on_failure_callback:
            callback(context)
        return pushed

    def test_our_own_words(self) -> None:
        assert self.kept(AirflowFailException("7 rows are missing")) == {"error": "7 rows are missing"}

    def test_what_all_retries_have_met(self) -> None:
        assert self.kept(StoreUnavailable("read x: 503")) == {"error": "StoreUnavailable: read x: 503"}

    def test_airflows_own_with_what_to_do(self) -> None:
        table = AssetUniqueKey("ticket vectors", "local.t.vectors")
        (said,) = self.kept(AirflowInactiveAssetInInletOrOutletException([table])).values()

        assert "local.t.vectors" in said
        assert "Another DAG gives one of these assets another name or URI" in said

    def test_a_librarys_words_stay_in_the_log_where_secrets_are_masked(self) -> None:
        said = self.kept(ConnectionError("postgresql://night:hunter2@db/x refused"))

        assert said == {"error": "ConnectionError. The task's log has its words."}

    def test_a_page_of_text_is_cut(self) -> None:
        assert len(self.kept(AirflowFailException("x" * 1_000_000))["error"]) == 10_000

    def test_a_person_who_marked_it_has_raised_nothing(self) -> None:
        assert self.kept(None) == {}

    def test_other_callbacks_stay(self) -> None:
        seen: list[Any] = []
        for others in (seen.append, [seen.append]):
            assert self.kept(AirflowFailException("no"), on_failure_callback=others) == {"error": "no"}
        assert len(seen) == 2


class TestARefusalOfTheStore:
    """It is no outage: no task repeats it, and each says it as the doctor does."""

    DENIED = obstore.exceptions.PermissionDeniedError(
        "The operation lacked the necessary privileges to complete for path x: Error performing PUT "
        "https://storage.googleapis.com/runs/job%2Fx in 2ms - Server returned non-2xx status code: 403 Forbidden: <Details>"
        "airflow@acme.iam.gserviceaccount.com does not have storage.objects.create access to the Google Cloud Storage object."
        "</Details>\n\nDebug source:\nPermissionDenied {\n    path: x,\n}"
    )
    SAID = (
        "airflow@acme.iam.gserviceaccount.com does not have storage.objects.create on gs://runs/job/x (403). Fix: gcloud "
        "storage buckets add-iam-policy-binding gs://runs --member=serviceAccount:airflow@acme.iam.gserviceaccount.com "
        "--role=roles/storage.objectUser --condition=None"
    )

    @pytest.mark.parametrize("mapped", [False, True])
    def test_fails_a_task_for_good_with_right_and_command(self, mapped: bool) -> None:
        error: Exception = self.DENIED
        if mapped:
            error = StoreUnavailable(f"write x: {self.DENIED}")
            error.__cause__ = self.DENIED
        with pytest.raises(NightFailed) as failed, permanent_failures():
            raise error

        assert (str(failed.value), failed.value.entry) == (self.SAID, Entry.STORE)
        assert TestWhatTheAuditRowSays.kept(failed.value) == {"error": self.SAID}

    def test_the_doctor_says_the_same(self) -> None:
        held = {"permissions": sorted(set(bucket.NEEDED) - {"storage.objects.create"})}
        account = google(permissions=(200, held))
        (found,) = [each for each in bucket.permissions(here(FakeConnections(account=account))) if isinstance(each, Failed)]

        assert f"{found.problem}. Fix: {found.fix}" == self.SAID.replace("/job/x", "")

    def test_an_outage_is_left_to_the_retries_and_said_without_a_dump(self) -> None:
        away = obstore.exceptions.GenericError("Generic GCS error: 503\n\nDebug source:\nlots\nof\nlines")
        with pytest.raises(obstore.exceptions.GenericError), permanent_failures():
            raise away

        assert list(told(away, Entry.STORE)) == ["Generic GCS error: 503", "More: docs/operate/runbook.md#store"]


class TestWhatPlanHandsOn:
    """Each later task of the DAG looks at its version before it begins."""

    @staticmethod
    def begin(handed: Any, tasks: tuple[str, ...] = ("plan",)) -> None:
        with DAG("job", schedule=None):
            for name in tasks:
                EmptyOperator(task_id=name)
            seal = SealOperator(task_id="seal")
        pulled = {"plan": handed}
        seal.pre_execute({"ti": SimpleNamespace(xcom_pull=lambda task_ids: pulled[task_ids])})  # type: ignore[typeddict-item]

    @pytest.mark.parametrize("handed", [{"run_prefix": "x"}, {**XCOM.stamp(), "run_prefix": "x"}, None])
    def test_what_this_release_and_the_one_before_wrote_is_read(self, handed: Any) -> None:
        self.begin(handed)

    def test_a_later_one_is_refused_with_the_release_to_use(self) -> None:
        with pytest.raises(
            AirflowFailException, match=r"Use nightshift 9\.0\.0 or later\. Or repeat the task 'plan' with this one"
        ):
            self.begin({"version": XCOM.version + 1, "written_by": "9.0.0"})

    def test_a_dag_without_that_task_names_its_run_itself(self) -> None:
        self.begin({"version": XCOM.version + 1}, tasks=())


class TestBigQueryJobs:
    def test_all_went_well(self) -> None:
        assert finished_jobs(jobs_event([JobState("a", True, statistics={"output_rows": 3})])) == [{"output_rows": 3}]

    def test_a_failure_that_a_successor_may_escape_is_retried(self) -> None:
        with pytest.raises(BigQueryJobFailed, match="it was lost"):
            finished_jobs(jobs_event([JobState("a", True), JobState("b", True, "it was lost", retryable=True)]))

    def test_one_hopeless_failure_fails_for_good(self) -> None:
        jobs = [JobState("a", True, "it was lost", retryable=True), JobState("b", True, "Syntax error")]

        with pytest.raises(AirflowFailException, match="it was lost; Syntax error"):
            finished_jobs(jobs_event(jobs))

    def test_an_unknown_end_is_retried(self) -> None:
        with pytest.raises(BigQueryJobFailed, match="were not seen to end"):
            finished_jobs(jobs_event([], "BigQuery jobs a were not seen to end before the deadline"))


class TestLink:
    @pytest.fixture(autouse=True)
    def deployment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NIGHTSHIFT_PROJECT", "acme")
        monkeypatch.setenv("NIGHTSHIFT_BUCKET", "runs")
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)

    def link(self, run_prefix: str) -> str:
        with DAG("job", schedule=None):
            task = SealOperator(task_id="seal", run_prefix=run_prefix, terms="")
        return RunFolderLink().get_link(task, ti_key=None)  # type: ignore[arg-type]

    def test_the_cloud_console(self) -> None:
        assert self.link("job/2026-11-20/0123") == "https://console.cloud.google.com/storage/browser/runs/job/2026-11-20/0123"

    def test_the_stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:4443/")

        assert self.link("job/2026-11-20/0123") == ("http://127.0.0.1:4443/storage/v1/b/runs/o?prefix=job%2F2026-11-20%2F0123/")

    def test_a_task_that_has_no_run_yet(self) -> None:
        assert self.link("") == ""
