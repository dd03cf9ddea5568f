"""Benchmarks: what a decomposition, a sentence and a collection cost. Imports bilrp and bilrp_studies."""
