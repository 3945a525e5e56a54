"""A stream in every variant that `nightshift render` knows, for tests that read the manifests and for those that apply them."""

from __future__ import annotations

from typing import Any, Final

from nightshift.settings import Settings
from nightshift.spec import StreamSpec
from nightshift.stream.manifests.render_request import StreamRequest, Variant
from tests.unit.spec_file import ROOT, changed

EXAMPLE: Final = ROOT / "streams/package-texts.yaml"
CLUSTER: Final = "gke:projects/acme-cluster/locations/europe-west4/clusters/nightshift"
"""A runtime: the cluster is not in the project of the subscription."""
SCALING: Final[dict[str, Any]] = {"messages_per_second": 12.5, "servers": {"max": 4}}
PLAIN: Final = Variant()
GATEWAY: Final = Variant(engine_url="http://models.internal/texts", gateway="gateways/inference")
CANARY: Final = {"name": "all-minilm-l6-v2", "uri": "gs://models/minilm/2", "revision": "2"}


def a_stream(**changes: Any) -> StreamSpec:
    """The example with some values changed; ``engine__dtype`` is a key below another."""
    return StreamSpec.model_validate(changed(EXAMPLE, **{"scaling": SCALING, **changes}))


def an_order(variant: Variant, settings: Settings, **changes: Any) -> StreamRequest:
    return StreamRequest(a_stream(**changes), "job: package-texts\n", settings, variant)


def a_canary() -> StreamSpec:
    return a_stream(model=CANARY, scaling={"messages_per_second": 1, "servers": {"max": 2}})


VARIANTS: Final[dict[str, tuple[Variant, dict[str, Any]]]] = {
    "plain": (PLAIN, {}),
    "gpu": (PLAIN, {"compute": {"profile": "gpu-l4-spot"}, "source__subscription": "projects/other/subscriptions/texts"}),
    "keda": (Variant(keda=True), {"scaling": {**SCALING, "subscribers": {"min": 0}, "servers": {"min": 0, "max": 4}}}),
    "servers-of-others": (Variant(engine_url="https://vllm.example/v2"), {}),
    "gateway": (GATEWAY, {}),
    "canary": (Variant(engine_url="http://10.0.0.9", gateway="inference", canary=a_canary(), canary_percent=25), {}),
}
"""By name: the variant, and what is changed in the stream."""
