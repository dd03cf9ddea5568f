"""Toy study (section 4 of the paper): explanations compared with a known ground truth, on sequences of digits."""
