"""Renders a run's JobSet, the same for every runtime.

docs/operate/compute.md explains its content, docs/adr/0011-manifests.md its construction.

Pure, except that the deployment's override file is read if the settings name one. Start reading at `render`.
"""
