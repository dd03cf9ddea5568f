"""Printed numeric tables: ink, layout, aligned digits, training of the digit network, scores."""
