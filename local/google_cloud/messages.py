"""Pub/Sub and AlloyDB: what a stream reads from and writes to."""

from __future__ import annotations

import re

from local.google_cloud import access
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.projects import find_network
from local.google_cloud.state import Fields, full_name


def topic_name(project: str, topic: str) -> str:
    return full_name("pubsub", *(topic if "/" in topic else f"projects/{project}/topics/{topic}").split("/"))


def subscription_name(project: str, name: str) -> str:
    return full_name("pubsub", *(name if "/" in name else f"projects/{project}/subscriptions/{name}").split("/"))


def _duration(text: str) -> str:
    """As the API writes it: ``7d`` is ``604800s``. Raises Refused."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise Refused(f"ERROR: (gcloud.pubsub) Duration unit must be preceded by a number; received: {text}", 2)
    return f"{int(match[1]) * {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}[match[2]]}s"


def _missing(what: str) -> Refused:
    return Refused(f"NOT_FOUND: Resource not found (resource={what}).")


def make_topic(cloud: Cloud, given: Given, project: str) -> str:
    for topic in given.arguments:
        exists = f"Failed to create topic [projects/{project}/topics/{topic}]: Resource already exists in the project."
        cloud.make(types.TOPIC, topic_name(project, topic), {}, exists)
    return "\n".join(f"Created topic [projects/{project}/topics/{topic}]." for topic in given.arguments)


def make_subscription(cloud: Cloud, given: Given, project: str) -> str:
    topics = {"topic": given.value("topic")}
    if dead := given.value("dead-letter-topic"):
        topics["dead"] = dead
    for topic in topics.values():
        if cloud.state.get(types.TOPIC, topic_name(project, topic)) is None:
            raise _missing(topic)
    fields: Fields = {
        "topic": topic_name(project, topics["topic"]),
        "messageRetentionDuration": _duration(given.value("message-retention-duration", "7d")),
        "expirationPolicy": {} if given.value("expiration-period") == "never" else {"ttl": _duration("31d")},
        "enableMessageOrdering": given.has("enable-message-ordering"),
    }
    if dead:
        attempts = int(given.value("max-delivery-attempts", "5"))
        if not 5 <= attempts <= 100:
            raise Refused(f"INVALID_ARGUMENT: max_delivery_attempts must be from 5 to 100, and is {attempts}.")
        fields["deadLetterPolicy"] = {"deadLetterTopic": topic_name(project, dead), "maxDeliveryAttempts": attempts}
    for name in given.arguments:
        exists = f"Failed to create subscription [{name}]: Resource already exists in the project."
        cloud.make(types.SUBSCRIPTION, subscription_name(project, name), fields, exists)
    return f"Created subscription [projects/{project}/subscriptions/{given.arguments[0]}]."


def bind_topic(cloud: Cloud, given: Given, project: str) -> str:
    found = cloud.state.get(types.TOPIC, topic_name(project, given.arguments[0]))
    if found is None:
        raise _missing(given.arguments[0])
    return access.bind(cloud, found, given)


def bind_subscription(cloud: Cloud, given: Given, project: str) -> str:
    found = cloud.state.get(types.SUBSCRIPTION, subscription_name(project, given.arguments[0]))
    if found is None:
        raise _missing(given.arguments[0])
    return access.bind(cloud, found, given)


def publish(cloud: Cloud, given: Given, project: str) -> str:
    found = cloud.state.get(types.TOPIC, topic_name(project, given.arguments[0]))
    if found is None:
        raise _missing(given.arguments[0])
    found.setdefault("published", []).append(given.value("message"))
    return f"messageIds:\n- '{len(found['published'])}'"


def dead_letters_work(cloud: Cloud, project: str, name: str) -> str:
    """Why Pub/Sub would not forward dead letters of a subscription, or ''."""
    found = cloud.find(types.SUBSCRIPTION, subscription_name(project, name))
    policy = found.get("deadLetterPolicy")
    if policy is None:
        return f"{name} has no dead-letter policy: a message that nobody can judge comes again for ever"
    agent = f"serviceAccount:service-{cloud.number(project)}@gcp-sa-pubsub.iam.gserviceaccount.com"
    if "pubsub.publisher" not in access.roles(cloud.state.get(types.TOPIC, policy["deadLetterTopic"]), agent):
        return f"{agent} may not publish to {policy['deadLetterTopic']}: roles/pubsub.publisher"
    if "pubsub.subscriber" not in access.roles(found, agent):
        return f"{agent} may not acknowledge what it forwards: roles/pubsub.subscriber on {name}"
    return ""


def alloydb_name(project: str, region: str, cluster: str) -> str:
    return full_name("alloydb", "projects", project, "locations", region, "clusters", cluster)


def make_database(cloud: Cloud, given: Given, project: str) -> str:
    """AlloyDB needs a network that was peered with Google's (private service access) before."""
    network = find_network(cloud, project, given.value("network", "default"))
    peering = f"{full_name('servicenetworking', *network.partition('.com/')[2].split('/'))}/connections/servicenetworking"
    if cloud.state.get(types.PEERING, peering) is None:
        raise Refused(
            f"INVALID_ARGUMENT: Failed to create AlloyDB cluster: network {network.partition('.com/')[2]} has no connection "
            "for private services access. Set up private services access in this network."
        )
    name = alloydb_name(project, given.value("region"), given.arguments[0])
    cloud.make(types.ALLOYDB, name, {"networkConfig": {"network": network}})
    cloud.state.seconds += 300
    return f"Creating cluster...done. [{name}]"


def make_instance(cloud: Cloud, given: Given, project: str) -> str:
    cluster = alloydb_name(project, given.value("region"), given.value("cluster"))
    cloud.find(types.ALLOYDB, cluster)
    if not (given.has("cpu-count") or given.has("machine-type")):
        raise Refused("INVALID_ARGUMENT: one of --cpu-count and --machine-type must be set.")
    fields = {
        "instanceType": given.value("instance-type"),
        "databaseFlags": given.pairs("database-flags"),
        "ipAddress": "10.9.0.2",
    }
    cloud.make(types.ALLOYDB_INSTANCE, f"{cluster}/instances/{given.arguments[0]}", fields)
    cloud.state.seconds += 600
    return "Creating instance...done."


def describe_instance(cloud: Cloud, given: Given, project: str) -> str:
    cluster = alloydb_name(project, given.value("region"), given.value("cluster"))
    return str(cloud.find(types.ALLOYDB_INSTANCE, f"{cluster}/instances/{given.arguments[0]}")["ipAddress"])


def make_user(cloud: Cloud, given: Given, project: str) -> str:
    """An IAM user is an account's address without ``.gserviceaccount.com``, and needs the instance's flag for IAM login."""
    cluster = alloydb_name(project, given.value("region"), given.value("cluster"))
    cloud.find(types.ALLOYDB, cluster)
    user, kind = given.arguments[0], given.value("type", "BUILT_IN")
    if kind == "IAM_BASED" and cloud.account(f"{user}.gserviceaccount.com") is None and "@" not in user:
        raise Refused(f"INVALID_ARGUMENT: {user} is not an IAM principal.")
    fields = {
        "userType": {"IAM_BASED": "ALLOYDB_IAM_USER"}.get(kind, f"ALLOYDB_{kind}"),
        "databaseRoles": given.list("db-roles"),
    }
    cloud.make(types.ALLOYDB_USER, f"{cluster}/users/{user}", fields)
    return f"Created user [{user}]."
