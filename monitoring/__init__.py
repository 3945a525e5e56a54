"""Dashboards and alerts: two tables that people edit (dashboards.yaml, prometheus/rules.yaml), and everything made from them.

`python -m monitoring` writes what is made; docs/operate/alerts.md says how to install it.
"""
