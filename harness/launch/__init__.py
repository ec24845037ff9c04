"""Plan -> Run: one child process per launch, forked from a warm parent or started cold."""

from .capabilities import engine_supports
from .environment import child_environment
from .launcher import Launcher

__all__ = ["Launcher", "child_environment", "engine_supports"]
