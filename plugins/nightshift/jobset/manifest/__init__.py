"""Renders a run's JobSet, the same for every runtime.

docs/operate/compute.md says what it contains and why, docs/adr/0011-manifests.md why it is built like this.

Pure, except that the deployment's override file is read if the settings name one. Start reading at `render`.
"""
