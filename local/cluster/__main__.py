"""``python -m local.cluster up|run|down|status|build|preempt|restore``.

Exit codes: 0; 1 if it failed; 2 for a wrong command line; ``run`` exits with the command's code.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from local.cluster import build, packages
from local.cluster.cluster import STATE_VARIABLE, Cluster, ClusterError
from local.cluster.faults import Faults
from local.cluster.layout import DEFAULT_STATE
from local.cluster.processes import StartError
from local.cluster.teardown import NotGone


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m local.cluster", description="A real Kubernetes on this machine.")
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, metavar="DIR", help="default: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "build what is missing, start the cluster and leave it up"),
        ("run", f"the same while one command runs, which finds the cluster through {STATE_VARIABLE} and KUBECONFIG"),
    ):
        starting = commands.add_parser(name, help=text)
        starting.add_argument("--nodes", type=int, default=2, help="real nodes (default: %(default)s)")
        starting.add_argument("--kwok", type=int, default=4, help="simulated nodes (default: %(default)s)")
        starting.add_argument("--no-kueue", action="store_true", help="leave Kueue out")
        starting.add_argument(
            "--image", type=Path, action="append", default=[], metavar="TAR", help="for all real nodes; repeatable"
        )
        if name == "run":
            # A list argument would swallow the options before it.
            starting.add_argument("program", help="after --: the command")
            starting.add_argument("words", nargs=argparse.REMAINDER, help="and its arguments")
    commands.add_parser("down", help="stop the cluster and remove every trace of it")
    commands.add_parser("status", help="show which parts of the cluster run")
    building = commands.add_parser("build", help="only build the programs")
    building.add_argument("--all", action="store_true", help="also what a cluster starts without")
    for name, text in (("preempt", "end a node as Spot does"), ("restore", "undo preempt")):
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
        build.ensure(_say, build.EVERYTHING if arguments.all else build.MODULES)
        return 0
    if arguments.command in ("up", "run"):
        options = {"nodes": arguments.nodes, "kwok": arguments.kwok, "kueue": not arguments.no_kueue}
        starting = Cluster(arguments.state, **options, images=arguments.image, say=_say)
        if arguments.command == "run":
            return _during(starting, [arguments.program, *arguments.words])
        starting.up()
        return 0
    cluster = Cluster(arguments.state, say=_say)
    if arguments.command == "down":
        cluster.down()
    elif arguments.command == "status":
        return _status(cluster)
    elif arguments.command == "preempt":
        Faults(cluster).preempt(arguments.node)
    else:
        Faults(cluster).restore(arguments.node)
    return 0


def _during(cluster: Cluster, command: list[str]) -> int:
    with cluster:
        environment = {**os.environ, STATE_VARIABLE: str(cluster.state), "KUBECONFIG": str(cluster.kubeconfig)}
        process = subprocess.Popen(command, env=environment)
        # The cluster ends with the command. A terminal's Ctrl-C reaches the command too; a SIGTERM is passed on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()


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
