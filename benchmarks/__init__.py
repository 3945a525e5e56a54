"""Measures the ledger and the driver, each as a ratio within one run (docs/develop/benchmarks.md). Nothing here is a test."""
