"""Rewrite passes: functions Program -> Program that keep its result. May import maps and program of the engine only."""
