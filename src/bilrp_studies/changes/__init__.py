"""Planted changes: is the first difference of two inputs the one that was made?"""
