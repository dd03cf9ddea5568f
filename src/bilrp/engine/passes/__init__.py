"""Rewrites of a program: each pass is a function program -> program. Imports maps and programs of the engine only."""
