"""The exit codes of the driver and of every command. No process of nightshift returns another one on purpose.

The driver's are a contract with the manifests that run it: Kubernetes reads them in the Job's podFailurePolicy
(`nightshift.jobset.manifest`). 75 and 78 are those of BSD's sysexits.h.
"""

from typing import Final

DONE: Final = 0
"""Everything that was asked for is done. A driver: every chunk of the worker's home range is committed. Never returned after a
SIGTERM that left work open."""

FAILED: Final = 1
"""A command has done its work, and the result is not good: a check failed, a plan does not fit, lines have no answer."""

BAD_INPUT: Final = 2
"""A command line or a file is wrong, and stderr says where. argparse returns it too."""

RESUME: Final = 75
"""Work is left that another attempt can do (EX_TEMPFAIL): after a drain, with an engine, a store or a service that cannot be
reached, or with an engine that answers nobody. Run the same command again."""

CONFIG: Final = 78
"""Trying again cannot help (EX_CONFIG): a spec, plan or model that does not fit. The index of a JobSet fails immediately."""

INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""
