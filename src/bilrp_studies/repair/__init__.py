"""Repair study: planted shortcuts, repaired without labels, against repairs that have labels."""
