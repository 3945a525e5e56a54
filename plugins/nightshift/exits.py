"""Exit codes of the driver: a contract between the driver and the manifests that run it.

Kubernetes reads them in the Job's podFailurePolicy (`nightshift.jobset.manifest`). The driver returns no other code on purpose.
"""

from typing import Final

DONE: Final = 0
"""Every chunk of the worker's home range is committed. Never returned after a SIGTERM that left work open."""

RESUME: Final = 75
"""Work is left that another attempt can do (sysexits' EX_TEMPFAIL): after a drain, with an engine or store that cannot be
reached, or with an engine that answers nobody."""

CONFIG: Final = 78
"""Trying again cannot help (sysexits' EX_CONFIG): a spec, plan or model that does not fit. The index fails immediately."""
