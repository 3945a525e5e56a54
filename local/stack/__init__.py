"""The local stack: everything nightshift needs on one machine, as processes under one supervisor and one state folder.

``python3 -m local.stack up|down|status|run`` for people, `Stack` for the demo and the tests. Standard library only.

    STATE/stack.json      valid while a supervisor runs: addresses, pids, Airflow's password, the environment for clients
    STATE/stack.lock      held by the supervisor; holds its pid
    STATE/ports.json      ports, chosen once and kept, so that addresses frozen in running work stay valid
    STATE/secrets.json    Airflow's password and keys, made once
    STATE/logs/NAME.log   output of each part; supervisor.log says what was started, died and was restarted
    STATE/{storage,bigquery,pubsub,postgres,runtime,airflow,lineage}/   the parts' data

What dies with what: a part that dies is restarted on its port. The supervisor's death ends everything: the kernel sends its
children SIGKILL, and a reaper process kills whatever they had started. A tied stack ends with the process that
started it. Every process carries ``NIGHTSHIFT_STACK=STATE`` in its environment, by which strays are found.
"""

from local.stack.stack import Stack, StackBusy, StackDown, StackError

__all__ = ["Stack", "StackBusy", "StackDown", "StackError"]
