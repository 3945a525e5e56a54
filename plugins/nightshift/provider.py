"""What Airflow lists about nightshift as a provider, on the web server's page and by ``airflow providers``.

Every process of Airflow reads it at its start, so this module imports nothing.
"""

from __future__ import annotations

from typing import Any


def provider_info() -> dict[str, Any]:
    """The provider as ``airflow/provider_info.schema.json`` wants it. Airflow takes the version from the installed package.

    It names no connection type: nightshift uses those of the Google, Kubernetes and Postgres providers.
    """
    return {
        # Airflow refuses to start if this is not the name of the package.
        "package-name": "airflow-provider-nightshift",
        "name": "nightshift",
        "description": "A warehouse table turned into predictions every night, and operators for Kubernetes JobSets.",
        "integrations": [{"integration-name": "nightshift", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": "nightshift",
                "python-modules": [
                    f"nightshift.operators.{module}"
                    for module in (
                        "plan",
                        "extract",
                        "infer",
                        "seal",
                        "publish",
                        "audit",
                        "doctor",
                        "redrive",
                        "jobset",
                        "kubernetes_engine",
                    )
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": "nightshift",
                "python-modules": [
                    f"nightshift.hooks.{module}"
                    for module in ("google", "jobset", "kubernetes_engine", "postgres", "warehouse")
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "nightshift",
                "python-modules": [
                    f"nightshift.triggers.{module}" for module in ("bigquery", "doctor", "jobset", "kubernetes_engine", "local")
                ],
            }
        ],
        "extra-links": ["nightshift.operators.links.RunFolderLink", "nightshift.operators.kubernetes_engine.GKEJobSetLink"],
    }
