"""What `KubernetesRuntime` says by itself of containers' logs, without a follower."""

from __future__ import annotations

import pytest

from nightshift.jobset.runtime import JobSetNotFound, RequestRefused
from tests.cluster.kube import IMAGE, Namespace
from tests.cluster.runtime import FollowedRuntime, Followers
from tests.integration.runtime.manifests import finished, jobset, pod_where, sh

pytestmark = pytest.mark.cluster


def test_logs(namespace: Namespace) -> None:
    """None before the container starts, all afterwards; a wrong name is refused, and a pod that is gone is not found."""
    with Followers(namespace.cluster.kubeconfig, namespace.name) as followers:
        runtime = FollowedRuntime(namespace.cluster.kubeconfig, namespace.name, followers)
        driver = sh("printf 'one\\n\\n10%%\\r20%%\\nthree'", image=IMAGE)
        runtime.submit(
            jobset("logs", driver, init=[sh("until [ -e /tmp/go ]; do sleep 0.1; done", name="before", image=IMAGE)])
        )
        pod = pod_where(runtime, "logs", lambda pod: pod.container("before").started, "an init container that runs").name

        assert runtime.own_logs(pod, "driver") == []
        with pytest.raises(RequestRefused, match="nobody"):
            runtime.own_logs(pod, "nobody")

        namespace.kubectl("exec", pod, "-c", "before", "--", "touch", "/tmp/go")
        finished(runtime, "logs")
        assert runtime.own_logs(pod, "driver") == ["one", "", "10%\r20%", "three"]
        assert runtime.own_logs(pod, "driver", last=2) == ["10%\r20%", "three"]
        assert runtime.own_logs(pod, "before") == []

        namespace.kubectl("delete", "pod", pod)
        with pytest.raises(JobSetNotFound):
            runtime.own_logs(pod, "driver")
