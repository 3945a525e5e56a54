"""What replies of Google's APIs mean to a check, and what a check's end means to the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nightshift.doctor import google_api
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Ok, Skipped
from nightshift.doctor.google_api import ALLOYDB, CLOUD_QUOTAS, COMPUTE, PUBSUB, NotThere, read, read_all
from nightshift.doctor.runner import Check, examine
from nightshift.hooks.services import Reply, Wrong
from tests.unit.doctor.fakes import ACCOUNT, FakeGoogle, here

pytestmark = pytest.mark.unit

TOPIC = "v1/projects/acme/topics/t"
INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def google(status: int, document: Any) -> FakeGoogle:
    return FakeGoogle({f"GET https://{api.service}/{TOPIC}": (status, document) for api in (PUBSUB, CLOUD_QUOTAS, COMPUTE)})


def error(status: str, reason: str, **metadata: str) -> dict[str, Any]:
    details = [{"@type": INFO, "reason": reason, "domain": "googleapis.com", "metadata": metadata}]
    return {"error": {"code": 403, "message": "No.", "status": status, "details": details}}


class TestReplies:
    def test_a_document(self) -> None:
        assert read(google(200, {"name": "t"}), PUBSUB, TOPIC, project="acme") == {"name": "t"}

    def test_a_permission_that_is_missing_is_named_with_the_role_to_grant(self) -> None:
        refused = google(403, error("PERMISSION_DENIED", "IAM_PERMISSION_DENIED", permission="pubsub.topics.get"))

        with pytest.raises(NotKnown) as caught:
            read(refused, PUBSUB, TOPIC, project="acme")

        assert str(caught.value) == (
            "this account may not read projects/acme/topics/t (pubsub.topics.get); to allow it: gcloud projects "
            f"add-iam-policy-binding acme --member=serviceAccount:{ACCOUNT} --role=roles/pubsub.viewer --condition=None"
        )

    def test_compute_engine_says_it_in_its_own_form(self) -> None:
        words = {"message": "Required 'compute.regions.get' permission", "domain": "global", "reason": "forbidden"}
        refused = google(403, {"error": {"code": 403, "message": words["message"], "errors": [words]}})

        with pytest.raises(NotKnown, match=r"Required 'compute.regions.get' permission.*--role=roles/compute.viewer"):
            read(refused, COMPUTE, TOPIC, project="acme")

    @pytest.mark.parametrize(("api", "raised"), [(PUBSUB, Wrong), (CLOUD_QUOTAS, NotKnown)])
    def test_an_api_that_is_off_is_a_fault_if_the_deployment_needs_it(
        self, api: google_api.Api, raised: type[Exception]
    ) -> None:
        off = google(403, error("PERMISSION_DENIED", "SERVICE_DISABLED", service=api.service))

        with pytest.raises(raised, match=f"{api.service} is not enabled in acme"):
            read(off, api, TOPIC, project="acme")

    def test_the_older_form_of_an_api_that_is_off(self) -> None:
        reasons = [{"message": "Access Not Configured", "domain": "usageLimits", "reason": "accessNotConfigured"}]
        off = google(403, {"error": {"code": 403, "message": "Access Not Configured", "errors": reasons}})

        with pytest.raises(Wrong) as caught:
            read(off, COMPUTE, TOPIC, project="acme")

        assert caught.value.fix == "gcloud services enable compute.googleapis.com --project=acme"

    def test_what_is_not_there(self) -> None:
        with pytest.raises(NotThere):
            read(
                google(404, {"error": {"code": 404, "message": "not found", "status": "NOT_FOUND"}}), PUBSUB, TOPIC, project="p"
            )

    @pytest.mark.parametrize("document", [[], "busy", {"error": "busy"}, {"error": {"code": 503}}, None])
    def test_a_reply_in_no_form_that_is_known_is_an_outage(self, document: Any) -> None:
        with pytest.raises(OSError, match=r"pubsub\.googleapis\.com answers HTTP 503"):
            read(google(503, document), PUBSUB, TOPIC, project="acme")

    def test_a_refusal_without_a_form_is_still_none_that_is_well(self) -> None:
        with pytest.raises(NotKnown, match="HTTP 401"):
            read(google(401, "<html>"), PUBSUB, TOPIC, project="acme")

    def test_an_anonymous_connection_asks_nothing(self) -> None:
        nobody = google(200, {})
        nobody.token = None

        with pytest.raises(NotKnown, match="anonymous"):
            read(nobody, PUBSUB, TOPIC, project="acme")

        assert nobody.asked == []


def test_a_list_is_read_page_by_page() -> None:
    pages: dict[str, Any] = {"": {"users": [{"name": "a"}], "nextPageToken": "b"}, "b": {"users": [{"name": "b"}]}}

    class Paged(FakeGoogle):
        def ask(self, method: str, url: str, **_: Any) -> Reply:
            return Reply(200, json.dumps(pages[url.partition("pageToken=")[2]]).encode())

    assert list(read_all(Paged(), ALLOYDB, "v1/users", "users", project="acme")) == [{"name": "a"}, {"name": "b"}]


class TestEnds:
    def ask(self, error: Exception) -> Check:
        def check(_: Surroundings) -> Iterator[Finding]:
            yield Ok("first", "seen")
            raise error

        return Check("check", check, "nights")

    def test_what_is_not_known_is_skipped_and_no_fault(self) -> None:
        report = examine([self.ask(NotKnown("it may not"))], here())

        assert report.findings == (Ok("first", "seen"), Skipped("check", "it may not"))
        assert report.exit_code == 0

    def test_what_is_wrong_has_failed_with_what_the_check_breaks(self) -> None:
        report = examine([self.ask(Wrong("it is gone", "make it"))], here())

        assert report.findings[1] == Failed("check", "it is gone", "nights", "make it")
        assert report.exit_code == 1

    def test_a_check_is_explained_by_one_that_has_failed_and_not_by_one_that_was_skipped(self) -> None:
        later = Check("later", lambda _: iter((Ok("later", "asked"),)), "nights", explained_by=("check",))

        failed = examine([self.ask(Wrong("gone", "make it")), later], here())
        silent = examine([self.ask(NotKnown("it may not")), later], here())

        assert failed.findings[-1] == Skipped("later", "check is not ok", needs="check")
        assert silent.findings[-1] == Ok("later", "asked")
