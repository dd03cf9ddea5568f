"""Printed numeric tables: ink, page layout, aligned digits, the digit network's training, and how to score it."""
