"""Triton's back end "cpu": there to be found; it compiles nothing."""
