"""What runs a stream in a cluster: Deployments of subscribers and servers, their autoscalers, the Inference Gateway's objects.

Everything here belongs to one stream; what a cluster has once is in k8s/. docs/adr/0016-stream-manifests.md says why. Pure:
start reading at `nightshift.stream.manifests.render.render`; `nightshift.cli.render_stream` is the command.
"""
