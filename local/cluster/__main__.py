"""``python -m local.cluster up|down|status|build|preempt|restore``. Exit codes: 0, 1: not as asked, 2: a wrong command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from local.cluster import build, packages
from local.cluster.cluster import Cluster, ClusterError
from local.cluster.layout import DEFAULT_STATE
from local.cluster.processes import StartError
from local.cluster.teardown import NotGone


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.cluster", description="A real Kubernetes on this machine.")
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, metavar="DIR", help="default: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="build what is missing, start the cluster and leave it up")
    up.add_argument("--nodes", type=int, default=2, help="real nodes (default: %(default)s)")
    up.add_argument("--kwok", type=int, default=4, help="nodes whose pods are only status (default: %(default)s)")
    up.add_argument("--no-kueue", action="store_true", help="leave Kueue out")
    up.add_argument("--image", type=Path, action="append", default=[], metavar="TAR", help="an image for every real node")
    commands.add_parser("down", help="stop the cluster and remove every trace of it")
    commands.add_parser("status", help="say what of the cluster runs")
    commands.add_parser("build", help="build the programs alone")
    for name, text in (("preempt", "end a node as Spot does"), ("restore", "take that back")):
        commands.add_parser(name, help=text).add_argument("node")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except (ClusterError, StartError, NotGone, packages.Unsupported, build.BuildError, ValueError) as error:
        print(f"[cluster] {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "build":
        packages.ensure(_say)
        build.ensure(_say)
        return 0
    if arguments.command == "up":
        options = {"nodes": arguments.nodes, "kwok": arguments.kwok, "kueue": not arguments.no_kueue}
        Cluster(arguments.state, **options, images=arguments.image, say=_say).up()
        return 0
    cluster = Cluster(arguments.state, say=_say)
    if arguments.command == "down":
        cluster.down()
    elif arguments.command == "status":
        return _status(cluster)
    elif arguments.command == "preempt":
        cluster.preempt(arguments.node)
    else:
        cluster.restore(arguments.node)
    return 0


def _status(cluster: Cluster) -> int:
    document = cluster.document()
    for name, pid in document["pids"].items():
        alive = Path(f"/proc/{pid}").exists()
        print(f"{name:26} {'runs' if alive else 'STOPPED'}  pid {pid}, started {document['starts'][name]} times")
    print(f"supervisor {document['state']}, pid {document['supervisor']}; export KUBECONFIG={document['kubeconfig']}")
    return 0 if document["state"] == "up" else 1


def _say(text: str) -> None:
    print(f"[cluster] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
