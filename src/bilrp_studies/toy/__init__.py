"""Section 4 of the paper: explanations against a known truth, on sequences of digits."""
