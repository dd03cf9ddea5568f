"""Group an explanation into findings and describe it in words: grouping, summary, score breakdown, random baseline.

Works on regions, views and plain tensors. May import errors, inputs and regions; explanation and render import it.
"""
