"""Are explanations of sentence similarity true? Rules for transformers against baselines, on STS-B and planted words."""
