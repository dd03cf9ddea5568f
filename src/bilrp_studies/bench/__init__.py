"""Benchmarks of decompositions, sentences and collections. Imports bilrp and bilrp_studies."""
