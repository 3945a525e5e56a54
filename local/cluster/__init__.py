"""A real Kubernetes on this machine, from programs built out of pinned Go modules: no container registry, no virtual machine.

etcd, kube-apiserver, controller-manager, scheduler, JobSet, Kueue and kwok run as processes on this machine. Each node is a
containerd and a kubelet with its own cgroup and its own address on one bridge, so pods are real containers. A node can be
preempted like a Spot machine: kubelet's own graceful shutdown runs; only the announcement is a stand-in (`programs/logind`).

    python -m local.cluster up      # or: make cluster-up
    export KUBECONFIG=.cluster/kubeconfig
    python -m local.cluster preempt node-1
    python -m local.cluster down

Where to find what: `build` (programs and their manifests, cached by version), `packages` (what comes from the distribution),
`pki`, `network`, `control_plane`, `controllers` (JobSet, Kueue), `nodes`, `images`; `supervisor` starts all of them and
restarts what dies, `teardown` removes every trace of a state folder, even after a failed start, and `cluster` is the
client's side.

Limits: NetworkPolicy is not enforced, no metrics-server, amd64 only, one cluster per machine (kube-proxy's chains are global).
"""
