"""The paper's experiments, one folder each, from data to table and figure; `common` is what they share.

A study may import every room but cli, and no other study.
"""
