from tests.live import live_engine

__all__ = ["live_engine"]
