"""Is it true? Baselines, metrics, warps, randomised weights, tuning, the slow reference and the benchmark.

May import everything a user holds and the rooms below it; not render, studies or cli.
"""
