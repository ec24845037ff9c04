"""vLLM, any release: in process, with an engine core of its own, or behind its OpenAI server.

Entered through supported doors only: a general plugin, `collective_rpc`, the server's endpoints.
"""

import os

from .args import ENV_DEFAULTS

os.environ.update(ENV_DEFAULTS)  # read while libraries load
