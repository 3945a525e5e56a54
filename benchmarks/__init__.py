"""Measures of the ledger and the driver, each a ratio within one run (docs/benchmarks.md). Nothing here is a test."""
