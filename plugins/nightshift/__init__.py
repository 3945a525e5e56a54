"""nightshift: a warehouse table turned into predictions every night.

What your own DAGs and scripts may import; its paths, parameters and serialized forms stay from one release to the next:

- ``nightshift.operators``: the tasks, `KubernetesJobSetOperator` and `GKEStartJobSetOperator` among them
- ``nightshift.hooks``: JobSets and the warehouse over Airflow's connections
- ``nightshift.triggers``: what waits in the triggerer
- ``nightshift.spec``: job files: load them, check them, and their JSON schema

Every other package is private and changes without notice, as do names that begin with an underscore.
"""

__version__ = "0.3.0"
DISTRIBUTION = "airflow-provider-nightshift"
"""The name of the package that pip installs. Import and command are called nightshift."""


def pip(extras: str) -> str:
    """The command that installs the package with these extras, which have commas between them."""
    return f"pip install '{DISTRIBUTION}[{extras}]'"
