"""The local runtime: runs the JobSet manifest that would go to GKE as processes of this machine. Linux only.

The two sides share only a state folder: `LocalRuntime` (the client, safe to import anywhere, standard library only)
writes requests into it, and one agent (``python -m local.runtime``) carries them out and writes back what it
sees.

    STATE/agent.lock                        held by the agent; a second one refuses to start
    STATE/agent.json                        exists while an agent is ready: {"pid", "started"}; touched every second
    STATE/jobsets/NAME/manifest.json        what was submitted; created once, never changed
    STATE/jobsets/NAME/status.json          {"version", "jobset", "jobs", "pods", "events", "state"}; replaced atomically. The
                                            objects are what a cluster's API serves; "state": the agent's own records
    STATE/jobsets/NAME/pods.json            live pods: {POD: {"ports": containerPort's name -> port, "pids": container ->
                                            process id of its main process}}, for tests that kill
    STATE/jobsets/NAME/stop                 the client's request; an empty file, like the next two
    STATE/jobsets/NAME/resume               request to start a JobSet that was submitted with suspend: true
    STATE/jobsets/NAME/paused               request to suspend the JobSet while the file exists: who paused it and when
    STATE/jobsets/NAME/evict/POD            request to evict the pod: SIGTERM, its grace period, SIGKILL
    STATE/jobsets/NAME/judged               who judged its end; written and read by the client
    STATE/jobsets/NAME/logs/POD/CONTAINER.log   output of a container, all its restarts
    STATE/jobsets/NAME/pods/POD             working folder of the pod's processes, removed when the pod ends

What differs from Kubernetes, on purpose (`local/runtime/tests/test_contract.py`, which also tests a real cluster, checks
the rest):

- Pods share this machine's network and files. The pod annotation ``nightshift.dev/port-env: "engine=ENGINE_PORT"`` makes
  the runtime choose a free port for the containerPort named ``engine``: it sets ENGINE_PORT in every container of the pod,
  whatever the manifest says, and probes of that port follow. Probes only ever connect to 127.0.0.1.
- **Mount paths are not real.** ``emptyDir`` volumes and their volumeMounts are accepted, and nothing is mounted: a
  container that writes to its mountPath writes to that path of this machine. Other volumes are refused, since their content
  would be missing.
- An image is a list of folders and an environment in the agent's configuration (`local.runtime.config`). If it is
  missing there, the container ends with exit code 128 (Kubernetes would wait for it forever).
- A process is not PID 1 here, so a program without a SIGTERM handler dies of the signal (143); in a container it would
  ignore it and delay the end of its pod by the whole grace period. Also, its children can kill it, which they cannot there.
- Both output streams of a container are one file, in the order of writing; a cluster reads them side by side.
- A replacement pod always waits for the end of the pod that it replaces (podReplacementPolicy: Failed).
- The agent checks a manifest only when it looks at it: if it does not support it, the JobSet fails with the reason
  ManifestRefused, and so does the task that waits for it. A cluster would refuse it at submit.
- JobSets have no uids: a request to stop one by name stops the one that has the name at that time.
- Queues and placement (Kueue labels, nodeSelector, tolerations, resources) have no effect: there is one node, which holds
  as many pods as its configuration says.
- The CPU request that a container reads (a variable with ``resourceFieldRef: requests.cpu``) is its pod's share of
  the node, not what the manifest asks for: the node's cores, divided by the pods of the JobSet that run at once.
"""
