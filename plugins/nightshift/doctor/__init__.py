"""`nightshift doctor`: asks, before a night does, everything that a night needs of its surroundings (docs/operate/doctor.md).

`examine` runs the checks of `everything.CHECKS`; each asks one thing and says what it found as a value (`findings`). No Airflow
here: the caller brings the connections (`surroundings.Connections`).
"""
