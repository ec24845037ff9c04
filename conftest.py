"""Turns the plugin on where the package is not installed."""

from importlib.metadata import entry_points

if not any(e.value == "harness.plugin" for e in entry_points(group="pytest11")):
    pytest_plugins = ["harness.plugin"]
