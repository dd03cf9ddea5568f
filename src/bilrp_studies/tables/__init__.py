"""Section 6: a similarity of scanned tables, engineered from few labels and checked through explanations."""
