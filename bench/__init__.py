"""Benchmarks: ours against the libraries a user would otherwise call. The scripts run as typed."""
