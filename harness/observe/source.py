"""Where weights come from: a checkpoint, and the sparse patches laid over it since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Patches = dict[str, tuple["torch.Tensor", "torch.Tensor"]]
"""Parameter name -> (flat indices, int64; values, float32)."""
PATCH_SCALE = 4.0
"""Standard deviation of a patch: large against trained weights, so that it cannot hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPatch:
    """Seeded values for seeded places of some parameters."""

    seed: int
    num_values: int
    params: tuple[str, ...]

    def values(self, shapes: Mapping[str, tuple[int, ...]]) -> Patches:
        """The patch, the same in every process.

        Args:
            shapes: parameter name -> its whole shape; of others, which another worker holds, the
                patch has no value.
        """
        import torch

        found: Patches = {}
        for number, name in enumerate(self.params):
            generator = torch.Generator().manual_seed(self.seed * 1000 + number)
            num_elements = int(torch.Size(shapes[name]).numel()) if name in shapes else 0
            places = torch.randperm(num_elements, generator=generator)[: self.num_values]
            found[name] = (
                places.sort().values,
                torch.randn(len(places), generator=generator) * PATCH_SCALE,
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """A checkpoint folder and what was laid over it."""

    folder: str
    patches: tuple[WeightPatch, ...] = ()

    def patched(self, patch: WeightPatch) -> WeightSource:
        """The same with one patch more."""
        return replace(self, patches=(*self.patches, patch))

    def lay_over(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """The parameter `name` as the checkpoint has it, with every patch of it laid over."""
        mine = [patch for patch in self.patches if name in patch.params]
        if not mine:
            return whole
        result = whole.clone()
        for patch in mine:
            places, values = patch.values({n: tuple(whole.shape) for n in patch.params})[name]
            result.view(-1)[places] = values.to(result.dtype)
        return result
