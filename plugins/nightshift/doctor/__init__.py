"""`nightshift doctor`: checks every dependency before a run starts (docs/operate/doctor.md).

`runner` runs the checks of `checks.CHECKS`; each checks one thing and gives a value (`findings`). No Airflow here: the caller
brings the connections (`nightshift.hooks.services.Connections`).
"""
