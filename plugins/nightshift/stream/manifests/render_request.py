"""What is to be rendered: a stream, this deployment's settings, and the variant that the command line asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from nightshift.jobset.labels import JOB_LABEL
from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.jobset.manifest.render_request import ServerRequest
from nightshift.run.pins import UNPINNED
from nightshift.settings import GKE_CLUSTER, GKE_FORM, Settings
from nightshift.spec import StreamSpec
from nightshift.spec.stream import Messages, Scaling
from nightshift.stream.manifests.database import Database

SUBSCRIBER: Final = "subscriber"
SERVER: Final = "server"
CANARY: Final = "canary"
NAME_LABEL: Final = "app.kubernetes.io/name"
NAME: Final = "nightshift-stream"
"""Not the name of a run's pods: k8s/components/monitoring would read the metrics of these a second time."""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
CANARY_PERCENT: Final = 10
PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Variant:
    """What the command line asks for.

    keda: KEDA's objects scale, not the cluster's own. engine_url: what subscribers call, instead of the stream's own Service.
    gateway: NAME or NAMESPACE/NAME of the Gateway behind that URL; without one, the servers there are not ours.
    canary: the same stream with another model version, which answers canary_percent of the requests.
    """

    keda: bool = False
    engine_url: str | None = None
    gateway: str | None = None
    canary: StreamSpec | None = None
    canary_percent: int = CANARY_PERCENT


@dataclass(frozen=True)
class StreamRequest:
    """text: of the stream's file. settings: of this deployment. sink_url: of the database, if it is known here; its password
    does not come into the manifests. Everything that cannot be rendered is in `problems`.
    """

    spec: StreamSpec
    text: str
    settings: Settings
    variant: Variant = Variant()
    sink_url: str = ""

    @property
    def scaling(self) -> Scaling:
        """Raises ValueError if the stream has none."""
        return scaling_of(self.spec)

    def name(self, component: str) -> str:
        return f"{self.spec.job}-{component}"

    def labels(self, component: str) -> dict[str, str]:
        """By which its pods are selected; they never change."""
        return {NAME_LABEL: NAME, JOB_LABEL: self.spec.job, COMPONENT_LABEL: component}

    @property
    def subscription(self) -> tuple[str, str]:
        """Its project and its name. Raises ValueError if the stream watches a folder."""
        source = self.spec.source
        if not isinstance(source, Messages):
            raise ValueError(f"the stream {self.spec.job} has no subscription")
        return source.project or self.settings.project, source.short_name

    @property
    def on_gke(self) -> bool:
        """Whether the deployment's cluster is one of GKE's, as far as NIGHTSHIFT_RUNTIME says."""
        return GKE_CLUSTER.fullmatch(self.settings.runtime) is not None

    @property
    def engine_url(self) -> str:
        """What subscribers call."""
        return self.variant.engine_url or f"http://{self.name(SERVER)}:{ENGINE_PORT}"

    @property
    def route(self) -> SplitResult:
        """The parts of `engine_url`."""
        return urlsplit(self.engine_url)

    @property
    def servers(self) -> dict[str, StreamSpec]:
        """The servers that are rendered: the component's name, and whose model they have."""
        if self.variant.engine_url and not self.variant.gateway:
            return {}
        return {SERVER: self.spec, **({CANARY: self.variant.canary} if self.variant.canary else {})}

    def server(self, component: str) -> ServerRequest:
        spec = self.servers[component]
        worker = spec.compute.worker()
        return ServerRequest(name=self.name(component), spec=spec, settings=self.settings, worker=worker, pins=UNPINNED)

    @property
    def replicas_of_subscribers(self) -> tuple[int, int]:
        return self.scaling.subscribers.min, self.scaling.subscribers_max

    @property
    def database(self) -> Database | None:
        """None for a sink without one. Raises ValueError if `sink_url` cannot be read."""
        return Database.of(self.sink_url, self.spec.sink.PORTS) if self.spec.sink.PORTS else None

    def problems(self) -> Iterator[str]:
        """A line for each thing that keeps this from being rendered: FIELD or OPTION: problem. remedy."""
        variant, stated = self.variant, self.spec.scaling is not None
        if not isinstance(self.spec.source, Messages):
            yield (
                "source.prefix: A watched folder has no backlog that an autoscaler can read, and several processes read the "
                "same objects. Run `nightshift stream` in a Deployment of your own, or have a subscription."
            )
        if not stated:
            yield (
                "scaling: The key is missing, and replicas are planned from it. Measure what one subscriber gets answered "
                "(docs/use/streams.md, How to size), and write scaling: with messages_per_second and servers: with max."
            )
        elif variant.engine_url is None or variant.gateway:
            yield from self._problems_of_servers()
        if stated and not variant.keda and not self.scaling.subscribers.min:
            yield "scaling.subscribers.min: Only KEDA scales to zero. Write 1, or pass --keda."
        if variant.engine_url is not None and not _is_url(variant.engine_url):
            yield f"--engine-url: {variant.engine_url!r} is not a URL. Write http://HOST[:PORT][/PATH]."
        if variant.gateway and not variant.engine_url:
            yield "--gateway: Subscribers have to know its address. Pass --engine-url http://ADDRESS[/PATH] too."
        try:
            if (database := self.database) and database.person:
                yield (
                    f"NIGHTSHIFT_SINK_URL: {database.person} is a person's account, and pods log in as a service account's. "
                    "Write NAME%40PROJECT.iam as its user."
                )
        except ValueError as error:
            yield str(error)
        if variant.canary:
            yield from self._problems_of_canary(variant.canary)

    def _problems_of_servers(self) -> Iterator[str]:
        if self.variant.keda and not self.on_gke:
            yield (
                "--keda: Cloud Monitoring has the requests that wait in servers in the cluster's project, and "
                f"NIGHTSHIFT_RUNTIME does not name the cluster. Set it to {GKE_FORM}."
            )
        for component, spec in self.servers.items():
            file = "--canary: " if component == CANARY else ""
            if spec.scaling is None:
                continue  # said once for the stream, and for the canary below
            if (hosts := spec.compute.worker().hosts) > 1:
                yield (
                    f"{file}compute: A Deployment's pod is one host, and this server needs {hosts}. Choose a smaller one, or "
                    "run the server yourself, for example with LeaderWorkerSet, and pass --engine-url."
                )
            if not self.variant.keda and not spec.scaling.servers.min:
                yield f"{file}scaling.servers.min: Only KEDA scales to zero. Write 1, or pass --keda."

    def _problems_of_canary(self, canary: StreamSpec) -> Iterator[str]:
        if not self.variant.gateway:
            yield "--canary: Only a gateway divides requests between two versions. Pass --gateway and --engine-url too."
        for field, own, other in (
            ("job", self.spec.job, canary.job),
            ("model.name", self.spec.model.name, canary.model.name),
            ("engine.max_model_len", self.spec.engine.max_model_len, canary.engine.max_model_len),
        ):
            if own != other:
                yield (
                    f"--canary: {field} is {other!r} there and {own!r} here, but subscribers cannot tell the two versions "
                    "apart. Write the same in both files."
                )
        if canary.scaling is None:
            yield "--canary: scaling: The key is missing there. Its servers are scaled by themselves: write servers: with max."
        if canary.model == self.spec.model and canary.engine == self.spec.engine:
            yield "--canary: Both files name the same model, revision and engine. Change one of these there."


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def scaling_of(spec: StreamSpec) -> Scaling:
    """Raises ValueError if the stream has none."""
    if spec.scaling is None:
        raise ValueError(f"the stream {spec.job} has no scaling")
    return spec.scaling


def quantity(value: float) -> str:
    """A number as Kubernetes' HPA compares it: whole, rounded down so that there is rather one replica more, and 1 at least."""
    return str(max(1, int(value)))
