"""Tables study (section 6): a similarity model of scanned tables, trained on few labels and validated by explanations."""
