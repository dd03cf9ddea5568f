"""Section 5.2: is the similarity of neighbouring frames earned, or does the background do it?"""
