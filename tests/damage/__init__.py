"""Damage to stored journals, judged from outside: a reader gets what was acknowledged, or is told what is missing.

A case is one seeded damage to a copy of a journal whose entries are known. `python -m tests.damage STORE SEED` repeats
one, `python -m tests.damage STORE --cases 1000` prints a table of many.
"""
