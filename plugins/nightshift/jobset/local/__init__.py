"""The local runtime: runs the JobSet manifest that would go to GKE as processes of this machine. Linux only.

The two sides share only a state folder: `LocalRuntime` (the client, safe to import anywhere, standard library only)
writes requests into it, and one agent (``python -m local.runtime``) carries them out and writes back what it
sees.

    STATE/agent.lock                        held by the agent; a second one refuses to start
    STATE/agent.json                        exists while an agent is ready: {"pid", "started"}; touched every second
    STATE/jobsets/NAME/manifest.json        what was submitted; created once, never changed
    STATE/kubeconfig                        leads to the agent's API (`local.runtime.api`)
    STATE/jobsets/NAME/object.json          the JobSet as the API has it, once it was changed there; without its status
    STATE/jobsets/NAME/status.json          {"version", "jobset", "jobs", "pods", "events", "state"}; replaced atomically. The
                                            objects are what a cluster's API serves; "state": the agent's own records
    STATE/jobsets/NAME/pods.json            live pods: {POD: {"ports": containerPort's name -> port, "pids": container ->
                                            process id of its main process}}, for tests that kill
    STATE/jobsets/NAME/stop                 the client's request; an empty file, like the next two
    STATE/jobsets/NAME/resume               request to start a JobSet that was submitted with suspend: true
    STATE/jobsets/NAME/paused               request to suspend the JobSet while the file exists: who paused it and when
    STATE/jobsets/NAME/evict/POD            request to evict the pod: SIGTERM, its grace period, SIGKILL
    STATE/jobsets/NAME/judged               who judged its end; written and read by the client
    STATE/jobsets/NAME/logs/POD/CONTAINER.log   output of a container; of its later lives: CONTAINER.1.log, ...
    STATE/jobsets/NAME/pods/POD             working folder of the pod's processes, removed when the pod ends
    STATE/ended/TIME-NAME/                  status.json, manifest.json and logs/ of a JobSet that is gone; the last 20 are kept,
                                            and of each log its end

What differs from Kubernetes, on purpose, is in `local.runtime.agent`.
"""
