"""A stream's Pub/Sub: its subscription and that one's topic, the dead letters, and who may do what with them.

Two kinds of dead letters: those that nightshift publishes to ``dead_letters.topic``, and those that Pub/Sub itself forwards to
the topic of the subscription's dead-letter policy, as its own service agent ("Handle message failures": the agent needs to
publish there and to acknowledge on the subscription). Fields: Pub/Sub API v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nightshift.doctor import google_api, subscriber
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Ok, Skipped
from nightshift.fields.text import n
from nightshift.hooks.services import Wrong
from nightshift.spec.stream import Messages
from nightshift.stream.names import full_name

SUBSCRIPTION: Final = "subscription"
RETENTION: Final = "retention"
POLICY: Final = "dead-letter policy"
TOPIC: Final = "dead-letter topic"
AGENT: Final = "Pub/Sub's service agent"
RIGHTS: Final = "subscriber's rights"
RETENTION_LEAST_S: Final = 86_400
"""A day: an outage that begins in the evening is repaired on the next one."""
DELETED: Final = "_deleted-topic_"
MAY_PUBLISH: Final = frozenset(
    f"roles/{name}" for name in ("pubsub.publisher", "pubsub.editor", "pubsub.admin", "editor", "owner")
)
MAY_SUBSCRIBE: Final = frozenset(
    f"roles/{name}" for name in ("pubsub.subscriber", "pubsub.editor", "pubsub.admin", "editor", "owner")
)
Document = Mapping[str, Any]


def subscription(here: Surroundings) -> Iterator[Finding]:
    name, found = _name(here), _subscription(here)
    breaks = f"the stream {here.named_stream.job}: its subscribers end with exit code 78, or get nothing"
    if found.get("topic") == DELETED or found.get("detached"):
        again = f"gcloud pubsub subscriptions delete {name} && gcloud pubsub subscriptions create {name} --topic=TOPIC"
        yield Failed(SUBSCRIPTION, "its topic is deleted, or it is detached from it", breaks, again)
    elif found.get("pushConfig", {}).get("pushEndpoint"):
        pull = f"gcloud pubsub subscriptions modify-push-config {name} --push-endpoint=''"
        yield Failed(SUBSCRIPTION, f"{name} pushes to {found['pushConfig']['pushEndpoint']}", breaks, pull)
    elif sink := next((key for key in ("bigqueryConfig", "cloudStorageConfig") if found.get(key)), None):
        again = f"gcloud pubsub subscriptions create ANOTHER --topic={found['topic']}, then source.subscription: ANOTHER"
        yield Failed(SUBSCRIPTION, f"{name} writes elsewhere by itself ({sink}), so nobody can pull from it", breaks, again)
    elif _source(here).ordering and not found.get("enableMessageOrdering"):
        again = f"gcloud pubsub subscriptions create ANOTHER --topic={found['topic']} --enable-message-ordering"
        wrong = f"source.ordering is true, and {name} has no message ordering, which cannot be switched on later"
        yield Failed(SUBSCRIPTION, wrong, "order: messages of one key are answered in any", again)
    else:
        once = ", exactly-once delivery" if found.get("enableExactlyOnceDelivery") else ""
        yield Ok(SUBSCRIPTION, f"{name} of {found['topic']}{once}")


def retention(here: Surroundings) -> Iterator[Finding]:
    found = _subscription(here)
    seconds = int(float(str(found.get("messageRetentionDuration", "604800s")).rstrip("s")))
    if seconds < RETENTION_LEAST_S:
        wrong = f"messages that nobody took are dropped after {seconds / 3600:g} h"
        update = f"gcloud pubsub subscriptions update {_name(here)} --message-retention-duration=7d"
        yield Failed(RETENTION, wrong, "messages: an outage of the stream that lasts longer loses them", update)
    else:
        again = ", acknowledged ones too" if found.get("retainAckedMessages") else ""
        yield Ok(RETENTION, f"{seconds / 86_400:g} days{again}")


def policy(here: Surroundings) -> Iterator[Finding]:
    """The subscription's own dead-letter policy."""
    name, found = _name(here), _subscription(here)
    set_it = f"gcloud pubsub subscriptions update {name} --dead-letter-topic=TOPIC --max-delivery-attempts=50"
    breaks = "messages that fail while no other one was ever answered: they come again for ever"
    own = found.get("deadLetterPolicy", {}).get("deadLetterTopic", "")
    if not own:
        yield Failed(POLICY, f"{name} has none", breaks, set_it)
    elif own == DELETED:
        yield Failed(POLICY, f"the topic of the policy of {name} is deleted", breaks, set_it)
    elif own == found["topic"]:
        yield Failed(POLICY, f"the policy of {name} sends dead letters back to {own}", breaks, set_it)
    else:
        yield _taken(here, POLICY, own, f"{own}, after {n(found['deadLetterPolicy'].get('maxDeliveryAttempts', 5), 'attempt')}")


def topic(here: Surroundings) -> Iterator[Finding]:
    """The topic of the dead letters that nightshift publishes."""
    name = _dead_letters(here)
    if isinstance(here.named_stream.source, Messages) and name == _subscription(here)["topic"]:
        wrong = f"{name} is the topic that the stream reads: its dead letters would come back"
        fix = "gcloud pubsub topics create ANOTHER, then dead_letters.topic: ANOTHER"
        yield Failed(TOPIC, wrong, "the stream: its subscribers end with exit code 78", fix)
        return
    yield _taken(here, TOPIC, name, name)


def agent(here: Surroundings) -> Iterator[Finding]:
    """Whether Pub/Sub itself may forward the dead letters of the policy. A finding for each of the two rights."""
    found, name = _subscription(here), _name(here)
    own = found.get("deadLetterPolicy", {}).get("deadLetterTopic", "")
    number = _number(here, _project(name))
    who = f"service-{number or '$NUMBER'}@gcp-sa-pubsub.iam.gserviceaccount.com"
    member = re.compile(rf"serviceAccount:service-{number or '[0-9]+'}@gcp-sa-pubsub\.iam\.gserviceaccount\.com")
    ask = "" if number else f"NUMBER=$(gcloud projects describe {_project(name)} --format='value(projectNumber)'); "
    for resource, kind, roles, role in (
        (own, "topics", MAY_PUBLISH, "pubsub.publisher"),
        (name, "subscriptions", MAY_SUBSCRIBE, "pubsub.subscriber"),
    ):
        grant = f"{ask}gcloud pubsub {kind} add-iam-policy-binding {resource} --member=serviceAccount:{who} --role=roles/{role}"
        breaks = "the dead-letter policy: Pub/Sub forwards nothing, and delivers the message again"
        yield _held(here, f"{AGENT}, {role.partition('.')[2]}", resource, member, roles, Failed("", who, breaks, grant))


def rights(here: Surroundings) -> Iterator[Finding]:
    """Whether the subscribers' account may pull, and publish dead letters. A finding for each.

    Who watches a folder pulls nothing.
    """
    who, member = subscriber.members(here), subscriber.member(here)
    wanted = [(_dead_letters(here), "topics", MAY_PUBLISH, "pubsub.publisher")]
    if isinstance(here.named_stream.source, Messages):
        wanted.insert(0, (_name(here), "subscriptions", MAY_SUBSCRIBE, "pubsub.subscriber"))
    for resource, kind, roles, role in wanted:
        grant = f"gcloud pubsub {kind} add-iam-policy-binding {resource} --member={member} --role=roles/{role}"
        breaks = "the stream: its subscribers end with exit code 78"
        found = _held(here, f"{RIGHTS}, {role.partition('.')[2]}", resource, who, roles, Failed("", member, breaks, grant))
        if isinstance(found, Failed) and not subscriber.is_deployed(here):
            because = f"it is not deployed, so as whom it will act is not known, and {found.problem}; to grant it: {grant}"
            yield Skipped(found.check, because)
        else:
            yield found


def _held(
    here: Surroundings, name: str, resource: str, member: re.Pattern[str], roles: frozenset[str], lack: Failed
) -> Finding:
    """Whether the member has one of the roles on the resource, or on its project. lack: who, what it affects and the fix."""
    google, project = here.connections.google(), _project(resource)
    own = google_api.read(google, google_api.PUBSUB_POLICIES, f"v1/{resource}:getIamPolicy", project=project)
    if google_api.grants(own, member, roles):
        return Ok(name, f"on {resource}")
    try:
        whole = google_api.project_policy(google, project)
    except NotKnown as error:
        return Skipped(name, f"{resource} does not grant it to {lack.problem}, and whether {project} does: {error}")
    if google_api.grants(whole, member, roles):
        return Ok(name, f"on {project}")
    return Failed(name, f"neither {resource} nor {project} grants it to {lack.problem}", lack.affects, lack.fix)


def _taken(here: Surroundings, check: str, name: str, shown: str) -> Finding:
    """Whether a topic of dead letters takes any message, and keeps what it gets."""
    google, project = here.connections.google(), _project(name)
    create = f"gcloud pubsub topics create {name}"
    breaks = "dead letters: nobody is told of them"
    try:
        found = google_api.read(google, google_api.PUBSUB, f"v1/{name}", project=project)
    except google_api.NotThere:
        return Failed(check, f"there is no topic {name}", breaks, create)
    if found.get("schemaSettings"):
        wrong = f"{name} has the schema {found['schemaSettings'].get('schema')}, which dead letters do not follow"
        return Failed(check, wrong, breaks, f"gcloud pubsub topics update {name} --clear-schema-settings")
    readers = google_api.read(google, google_api.PUBSUB, f"v1/{name}/subscriptions", project=project)
    if not readers.get("subscriptions"):
        short = name.rpartition("/")[2]
        keep = f"gcloud pubsub subscriptions create {short} --project={project} --topic={name} --expiration-period=never"
        return Failed(check, f"{name} has no subscription, so what is published there is gone", breaks, keep)
    return Ok(check, f"{shown}, read by {len(readers['subscriptions'])}")


def _source(here: Surroundings) -> Messages:
    """Raises NotKnown for a stream that watches a folder."""
    source = here.named_stream.source
    if not isinstance(source, Messages):
        raise NotKnown(f"the stream {here.named_stream.job} watches a folder, and has no subscription")
    return source


def _name(here: Surroundings) -> str:
    return full_name(_source(here).subscription, "subscriptions", here.settings.project)


def _dead_letters(here: Surroundings) -> str:
    return full_name(here.named_stream.dead_letters.topic, "topics", here.settings.project)


def _subscription(here: Surroundings) -> Document:
    """Raises Wrong if there is none."""
    name = _name(here)
    try:
        return google_api.read(here.connections.google(), google_api.PUBSUB, f"v1/{name}", project=_project(name))
    except google_api.NotThere:
        create = f"gcloud pubsub subscriptions create {name} --topic=TOPIC --dead-letter-topic=TOPIC --max-delivery-attempts=50"
        raise Wrong(f"there is no subscription {name}", create) from None


def _project(name: str) -> str:
    return name.split("/")[1]


def _number(here: Surroundings, project: str) -> str:
    """'' if the account may not ask."""
    try:
        found = google_api.read(here.connections.google(), google_api.PROJECTS, f"v1/projects/{project}", project=project)
    except NotKnown:
        return ""
    return str(found.get("projectNumber", ""))
