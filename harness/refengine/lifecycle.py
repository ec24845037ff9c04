"""What happens to a loaded worker: other weights, sleep, a forward that breaks off.

Asleep, `weights` (slots of a pool among them) and `kv_cache` give their memory back. Level 1 keeps
the weights in host memory; level 2 keeps nothing, also not of offloaded weights, so that they must
be loaded again after they woke.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from .config import EngineConfig, check
from .device import Device, PutAway, Space, bring_back, put_away

if TYPE_CHECKING:
    from .runner import v1, v2

TAGS = {"weights": ("weights", "buffer_pool", "graph_weights"), "kv_cache": ("kv_cache",)}
"""What wakes up by itself -> kinds of memory it is made of."""


class ForwardError(RuntimeError):
    """A forward pass was told to fail, and did."""


def tags_to_wake(asleep: Collection[str], tags: Sequence[str] | None) -> list[str]:
    """The tags that a `wake_up` is about, weights first.

    Args:
        asleep: what is.
        tags: what was asked for; None for all that is asleep.

    Raises:
        ConfigError: a tag is unknown or awake, or nothing is asleep.
    """
    check(bool(asleep), "wake_up(): the engine is awake")
    wanted = set(asleep if tags is None else tags)
    check(bool(wanted), "wake_up(tags=[]): name at least one tag, or None for all")
    for tag in sorted(wanted):
        check(tag in TAGS, f"wake_up tag {tag!r} must be one of {', '.join(TAGS)}")
        check(tag in asleep, f"wake_up tag {tag!r}: it is awake")
    return [tag for tag in TAGS if tag in wanted]


class Sleep:
    """What of an engine's memory is put away, and whether its weights hold anything.

    Args:
        device: whose memory.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.level = 0
        """0 while everything is awake."""
        self.has_weights = True
        """The bytes of record are a checkpoint's."""
        self._away: dict[str, list[PutAway]] = {}

    @property
    def asleep(self) -> list[str]:
        """Tags that are put away."""
        return sorted(self._away)

    def check_ready(self) -> None:
        """Refuse to compute.

        Raises:
            ConfigError: something is asleep, or the weights hold nothing.
        """
        check(not self._away, f"the engine is asleep ({', '.join(self.asleep)}): wake_up() first")
        check(
            self.has_weights,
            "the weights hold nothing since sleep(level=2) or a reload that failed: "
            "reload_weights() first",
        )

    def check_loadable(self) -> None:
        """Refuse to write weights.

        Raises:
            ConfigError: they are asleep.
        """
        check("weights" not in self._away, "the weights are asleep: wake_up(['weights']) first")

    def sleep(self, level: int) -> None:
        """Give memory back: 1 keeps the weights in host memory, 2 keeps nothing.

        Raises:
            ConfigError: the level is neither, or something is asleep already.
        """
        check(level in (1, 2), f"sleep level={level!r} must be 1 or 2")
        check(
            not self._away,
            f"sleep(level={level}): {', '.join(self.asleep)} already asleep, wake_up()",
        )
        self.device.synchronize()
        keep: tuple[str, ...] = ("weights",) if level == 1 else ()
        spaces: tuple[Space, ...] = ("device",) if level == 1 else ("device", "host", "pinned")
        for tag, kinds in TAGS.items():
            self._away[tag] = put_away(self.device, kinds, keep=keep, spaces=spaces)
        self.level = level
        self.has_weights = self.has_weights and level == 1

    def wake_up(self, tags: Sequence[str] | None) -> list[str]:
        """Take memory again, and the weights that level 1 kept; return what woke.

        Raises:
            ConfigError: a tag is unknown or awake.
            OutOfDeviceMemoryError: others took the room; what did not fit stays asleep.
        """
        wanted = tags_to_wake(self.asleep, tags)
        for tag in wanted:
            bring_back(self.device, self._away[tag])
            del self._away[tag]
        self.level = self.level if self._away else 0
        return wanted

    def forget(self) -> None:
        """Drop what is kept of memory that is asleep; it cannot wake any more."""
        self._away.clear()


class WorkerLifecycle:
    """The lifecycle's part of a worker; `start_lifecycle` comes once it has its device."""

    device: Device
    config: EngineConfig
    model_runner: v1.GPUModelRunner | v2.GPUModelRunner
    sleeper: Sleep

    @property
    def is_sleeping(self) -> bool:
        """Whether anything is asleep."""
        return bool(self.sleeper.asleep)

    @property
    def has_weights(self) -> bool:
        """Whether weights are awake, and hold a checkpoint's bytes."""
        return self.sleeper.has_weights and "weights" not in self.sleeper.asleep

    def check_ready(self) -> None:
        """Refuse to compute while asleep; see `Sleep.check_ready`."""
        self.sleeper.check_ready()

    def reload_weights(self, weights_path: str) -> None:
        """Load every weight anew from the folder `weights_path`.

        Raises:
            ConfigError: weights are asleep, or the checkpoint does not fit; when it was found out
                half-way, the engine does not compute until a reload succeeds.
        """
        self.sleeper.check_loadable()
        check(
            any(Path(weights_path).glob("*.safetensors")),
            f"weights_path={str(weights_path)!r} has no *.safetensors",
        )
        self.sleeper.has_weights = False
        self.model_runner.reload_weights(weights_path)
        self.sleeper.has_weights = True

    def apply_sparse_weight_patches(
        self, patches: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        """Overwrite values of weights: name -> (flat indices, values).

        Raises:
            ConfigError: weights are asleep or hold nothing, or a patch does not fit.
        """
        self.sleeper.check_loadable()
        check(self.sleeper.has_weights, "the weights hold nothing: reload_weights() first")
        self.model_runner.apply_sparse_weight_patches(patches)

    def sleep(self, level: int = 1) -> None:
        """Give memory back; see `Sleep.sleep`."""
        self.sleeper.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again; see `Sleep.wake_up`. The KV cache comes back empty.

        What woke before something else did not fit is as good as if all had woken.
        """
        for tag in tags_to_wake(self.sleeper.asleep, tags):
            self.sleeper.wake_up([tag])
            if tag == "kv_cache":
                self.model_runner.clear_kv_cache()
            elif self.sleeper.has_weights:
                self.model_runner.offloader.refresh()

    def fail_next_forward(self, layer: int) -> None:
        """Let the next forward that is run by the host raise in decoder layer `layer`, once.

        Raises:
            ConfigError: there is no such layer.
        """
        layers = self.model_runner.model.model.layers
        check(0 <= layer < len(layers), f"layer={layer!r} must be within 0..{len(layers) - 1}")
        if layer in self.model_runner.model.model.held:
            layers[layer].device = cast(Any, FailsOnce(layers[layer]))

    def recover(self) -> None:
        """Forget all requests after a step broke off, and what it left half-done."""
        self.device.synchronize()
        self.model_runner.reset()
        self.model_runner.offloader.refresh()


class FailsOnce:
    """Stands for a layer's device until the layer launches its MLP, which fails, once."""

    def __init__(self, layer: Any) -> None:
        self._layer, self._device = layer, layer.device

    def launch(self, *args: Any, site: str = "", **declared: Any) -> Any:
        """Launch all but the layer's MLP.

        Raises:
            ForwardError: this is the MLP.
        """
        if site != self._layer.mlp_site:
            return self._device.launch(*args, site=site, **declared)
        self._layer.device = self._device
        raise ForwardError(f"told to fail at {site}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)
