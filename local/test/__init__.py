"""Runs the project's tests: `make test` (the gate) and `make test-all` (everything).

A *tier* is one pytest run with a marker of its own; a *group* is the part of a tier under one folder. `groups.py` is the one
list of groups: what each of them tests, what it needs, and how long it may take.

    python3 -m local.test [--all] [--tier unit] [--require all] [-- PYTEST ARGUMENTS]
"""
