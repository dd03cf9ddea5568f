"""Faithfulness study: five explanation methods on photograph pairs under the whole evaluation suite."""
