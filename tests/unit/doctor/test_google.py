"""Identity, bucket and warehouse, each with good and bad replies."""

from __future__ import annotations

import json
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift import store
from nightshift.doctor import bucket, identity, warehouse
from nightshift.doctor.findings import Failed, Ok, Skipped
from tests.builders import a_spec
from tests.unit.doctor.fakes import (
    ACCOUNT,
    BUCKET,
    EMULATORS,
    FakeConnections,
    FakeTrial,
    FakeWarehouse,
    google,
    here,
    only,
    problem,
)

pytestmark = pytest.mark.unit


class TestIdentity:
    def test_it_has_an_address_and_a_number_and_what_a_cluster_sees(self) -> None:
        found = only(identity.ask, here())

        assert found == Ok("identity", f"{ACCOUNT}, unique id 110000000000000000001; a GKE cluster sees the unique id")

    def test_with_the_scope_for_addresses_a_cluster_sees_the_address(self) -> None:
        info = {"azp": "1", "email": "a@b", "scope": f"x {identity.EMAIL_SCOPE}"}
        account = google(identity=(200, info))
        account.email = None

        assert only(identity.ask, here(FakeConnections(account=account))) == Ok(
            "identity", "a@b, unique id 1; a GKE cluster sees the address"
        )

    def test_a_token_that_google_refuses_is_wrong_and_is_not_repeated(self) -> None:
        account = google(identity=(400, {"error": "token is bad"}))
        account.token = "a-secret-token"

        found = problem(identity.ask, here(FakeConnections(account=account)))

        assert "google_cloud_default (HTTP 400)" in found.problem
        assert "a-secret-token" not in str(found) + str(account.asked)
        assert found.fix == "airflow connections get google_cloud_default"

    def test_anonymous_is_what_the_emulators_need(self) -> None:
        account = google()
        account.token = None

        assert only(identity.ask, here(FakeConnections(account=account), environment=EMULATORS)) == Ok(
            "identity", "anonymous, as the emulators need"
        )
        assert account.asked == []

    @pytest.mark.parametrize("name", EMULATORS)
    def test_anonymous_is_wrong_where_one_service_is_real(self, name: str) -> None:
        account = google()
        account.token = None
        environment = {key: value for key, value in EMULATORS.items() if key != name}

        found = problem(identity.ask, here(FakeConnections(account=account), environment=environment))

        assert f"{name} is not set" in found.problem
        assert "airflow connections add google_cloud_default" in found.fix


class TestBucket:
    def test_it_is_there(self) -> None:
        assert only(bucket.there, here()) == Ok("bucket", "gs://runs in EU")

    @pytest.mark.parametrize(
        ("status", "wrong", "fix"),
        [
            (404, "does not exist", "gcloud storage buckets create gs://runs --location=EU"),
            (
                403,
                "may not read gs://runs itself",
                f"--member=serviceAccount:{ACCOUNT} --role=roles/storage.legacyBucketReader",
            ),
            (503, "HTTP 503", "nightshift doctor"),
        ],
    )
    def test_it_is_not(self, status: int, wrong: str, fix: str) -> None:
        found = problem(bucket.there, here(FakeConnections(account=google(bucket=status))))

        assert wrong in found.problem
        assert fix in found.fix

    def test_each_permission_is_asked(self) -> None:
        account = google()

        assert list(bucket.permissions(here(FakeConnections(account=account)))) == [
            Ok(permission, "on gs://runs") for permission in bucket.NEEDED
        ]
        assert [f"permissions={each}" in account.asked[0] for each in bucket.NEEDED] == [True] * 5

    @pytest.mark.parametrize("missing", bucket.NEEDED)
    def test_one_that_is_missing_is_named_with_its_role(self, missing: str) -> None:
        held = [each for each in bucket.NEEDED if each != missing]
        account = google(permissions=(200, {"permissions": held}))

        found = list(bucket.permissions(here(FakeConnections(account=account))))

        [wrong] = [each for each in found if not isinstance(each, Ok)]
        assert isinstance(wrong, Failed)
        assert wrong.check == missing
        assert wrong.fix.endswith(f"--role=roles/{bucket.NEEDED[missing][0]} --condition=None")

    def test_permissions_that_were_not_answered_are_not_well(self) -> None:
        found = list(bucket.permissions(here(FakeConnections(account=google(permissions=404)))))

        assert {type(each) for each in found} == {Skipped}
        assert len(found) == 5

    def test_an_account_without_any_permission(self) -> None:
        """Cloud Storage leaves the key out then."""
        found = list(bucket.permissions(here(FakeConnections(account=google(permissions=(200, {}))))))

        assert {type(each) for each in found} == {Failed}


class TestStore:
    @pytest.fixture
    def memory(self, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
        memory = MemoryStore()
        monkeypatch.setattr(store, "open_store", lambda _, credentials: memory)
        return memory

    def test_what_was_written_is_gone_afterwards(self, memory: MemoryStore) -> None:
        assert isinstance(only(bucket.first_writer_wins, here()), Ok)
        assert obstore.list(memory).collect() == []

    def test_a_store_that_overwrites_is_wrong(self, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        put = obstore.put
        monkeypatch.setattr(obstore, "put", lambda where, path, body, **_: put(where, path, body))

        found = problem(bucket.first_writer_wins, here())

        assert found.affects.startswith("the ledger")
        assert obstore.list(memory).collect() == []

    def test_what_cannot_be_deleted_is_named(self, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise obstore.exceptions.PermissionDeniedError("403: storage.objects.delete")

        monkeypatch.setattr(obstore, "delete", refuse)

        found = problem(bucket.first_writer_wins, here())

        [left] = obstore.list(memory).collect()
        assert f"gs://runs/{left['path']} may be left behind" in found.problem
        assert found.fix.endswith(f"gcloud storage rm gs://runs/{left['path']}")


class TestWarehouse:
    def test_the_dataset_is_there(self) -> None:
        assert only(warehouse.dataset, here()) == Ok("dataset", "acme.nightshift in EU")

    def test_it_is_missing(self) -> None:
        found = problem(warehouse.dataset, here(FakeConnections(bigquery=FakeTrial(where=None))))

        assert "acme.nightshift (NIGHTSHIFT_DATASET) does not exist" in found.problem
        assert found.fix == "bq --location=EU mk --dataset acme:nightshift"

    def test_it_must_not_be_looked_at(self) -> None:
        found = problem(warehouse.dataset, here(FakeConnections(bigquery=FakeTrial(refused=("bigquery.datasets.get",)))))

        assert "GRANT `roles/bigquery.dataEditor` ON SCHEMA `acme.nightshift`" in found.fix

    @pytest.mark.parametrize(
        ("bucket_in", "dataset_in", "setting", "fix"),
        [
            ("US", "US", "EU", "NIGHTSHIFT_LOCATION=US"),
            ("US", "EU", "EU", "gcloud storage buckets create gs://ANOTHER --location=EU"),
            ("EU", "US", "EU", "bq --location=EU mk --dataset acme:ANOTHER"),
        ],
    )
    def test_one_location_for_all(self, bucket_in: str, dataset_in: str, setting: str, fix: str) -> None:
        connections = FakeConnections(
            account=google(bucket=(200, {"location": bucket_in})), bigquery=FakeTrial(where=dataset_in)
        )

        found = problem(warehouse.location, here(connections, location=setting))

        assert f"gs://runs is in {bucket_in}, acme.nightshift is in {dataset_in}" in found.problem
        assert fix in found.fix

    def test_capitals_do_not_matter(self) -> None:
        assert only(warehouse.location, here(location="eu")) == Ok("location", "bucket EU, dataset and NIGHTSHIFT_LOCATION EU")

    def test_jobs_may_run(self) -> None:
        assert isinstance(only(warehouse.jobs, here()), Ok)

    def test_jobs_may_not_run(self) -> None:
        found = problem(warehouse.jobs, here(FakeConnections(bigquery=FakeTrial(refused=("bigquery.jobs.create",)))))

        assert found.fix == (
            f"gcloud projects add-iam-policy-binding acme --member=serviceAccount:{ACCOUNT} --role=roles/bigquery.jobUser "
            "--condition=None"
        )

    def test_every_step_with_a_table_is_a_permission(self) -> None:
        assert [type(each) for each in warehouse.tables(here())] == [Ok] * 4

    def test_without_the_right_to_create_nothing_else_is_tried(self) -> None:
        trial = FakeTrial(refused=("bigquery.tables.create",))

        found = list(warehouse.tables(here(FakeConnections(bigquery=trial))))

        assert [type(each) for each in found] == [Failed, Skipped, Skipped, Skipped]
        assert trial.made == ["bigquery.tables.create"]

    @pytest.mark.parametrize("refused", ["updateData", "getData", "delete"])
    def test_the_table_is_dropped_whatever_is_refused(self, refused: str) -> None:
        trial = FakeTrial(refused=(f"bigquery.tables.{refused}",))

        found = list(warehouse.tables(here(FakeConnections(bigquery=trial))))

        assert [each.check for each in found if isinstance(each, Failed)] == [f"bigquery.tables.{refused}"]
        assert trial.made[-1] == "bigquery.tables.delete"

    def test_the_jobs_query(self) -> None:
        well, refused = here(job=a_spec()), FakeConnections(queries=FakeWarehouse("no column 'text'"))

        assert isinstance(only(warehouse.query, well), Ok)
        assert problem(warehouse.query, here(refused, a_spec())).problem == "no column 'text'"


def test_an_emulators_address_takes_the_place_of_googles() -> None:
    account = google()
    account.replies = {"GET http://127.0.0.1:1/storage/v1/b/runs": (200, {"location": "US"})}

    surroundings = here(FakeConnections(account=account), environment={"STORAGE_EMULATOR_HOST": "127.0.0.1:1/"})

    assert json.loads(bucket.metadata(surroundings).body) == {"location": "US"}
    assert BUCKET not in account.asked[0]
