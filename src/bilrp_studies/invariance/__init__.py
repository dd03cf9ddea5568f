"""Invariance study (section 5.2): does the similarity of neighbouring frames come from the object or the background?"""
