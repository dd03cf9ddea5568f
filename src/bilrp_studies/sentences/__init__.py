"""Sentences study: composites for transformers compared with baselines, on STS-B and planted words."""
