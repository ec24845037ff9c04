"""The compiler half: refuses to compile, since the interpreter runs the kernels."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend


class InterpreterBackend(BaseBackend):
    """A back end for the target `cpu` that must never be asked to compile."""

    binary_ext = "none"

    @staticmethod
    def supports_target(target: Any) -> bool:
        """Only its own."""
        return getattr(target, "backend", None) == "cpu"

    def hash(self) -> str:
        """Key of its kernels; there are none."""
        return "cpu-interpreter"

    def parse_options(self, options: Any) -> Any:
        """Take any."""
        return options

    def add_stages(self, stages: Any, options: Any, language: Any = None) -> None:
        """Refuse: a kernel got here that should have been interpreted."""
        del stages, options, language
        raise RuntimeError("the cpu back end compiles nothing: set TRITON_INTERPRET=1")

    def load_dialects(self, context: Any) -> None:
        """There are none."""

    def get_module_map(self) -> dict[str, Any]:
        """There is nothing to map."""
        return {}

    def get_codegen_implementation(self, options: Any) -> dict[str, Any]:
        """There is none."""
        del options
        return {}

    def pack_metadata(self, metadata: Any) -> Any:
        """As it is."""
        return metadata
