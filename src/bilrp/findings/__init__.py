"""What a person should see first: neighbouring regions that match as one, and a sentence that says so.

Knows regions, items and plain tensors. May import errors, item and regions; explanations ask it, pictures and pages show it.
"""
