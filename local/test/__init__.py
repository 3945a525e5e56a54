"""Runs the project's tests: `make test` (the gate) and `make test-all` (everything).

A *tier* is one pytest run with its own marker; a *group* is the part of a tier under one folder. `groups.py` is the only
list of groups: what each one tests, what it needs, and how long it may take.

    python3 -m local.test [--all] [--tier unit] [--require all] [-- PYTEST ARGUMENTS]
"""
