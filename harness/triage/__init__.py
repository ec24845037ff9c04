"""Loops over the pipeline: which axis a difference comes with, which faults are caught."""
