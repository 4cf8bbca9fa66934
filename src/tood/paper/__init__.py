"""Reproduction of the TOOD paper: toy experiment, ablations, runs and reported values. Only commands import it."""
