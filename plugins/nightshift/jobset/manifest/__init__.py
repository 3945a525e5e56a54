"""Renders a run's JobSet, the same for every runtime.

docs/compute.md says what is in it and why, docs/adr/0011-manifests.md why it is built like this.

Pure, but for the deployment's override file, which is read where the settings name one. `render` is where to begin.
"""
