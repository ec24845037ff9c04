"""Makes a seeded checkpoint on disk: config.json, model.safetensors and a file of their hashes.

Weights are a pure function of config and seed: integer arithmetic over PCG64's raw stream, so the
same bytes come out on every platform and numpy version. No torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.core import Json, ModelNotFoundError, UsageError, canonical_json

from .packed import is_packed, pack
from .tensors import list_tensor_shapes, make_tensor

FORMAT_VERSION = 1
"""Raised when the same config and seed would give other bytes."""

WEIGHTS_FILE, CONFIG_FILE, HASH_FILE = "model.safetensors", "config.json", "sha256.json"

_SAFETENSORS_DTYPES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "int64": "I64",
}
Tensor = tuple[str, tuple[int, ...], bytes]
"""dtype, shape and little-endian bytes."""


def to_bytes(values: npt.NDArray[np.float32], dtype: str) -> bytes:
    """Little-endian bytes of `values` in float32, float16 or bfloat16 (nearest, ties to even)."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
        return rounded.astype("<u2").tobytes()
    return values.astype({"float32": "<f4", "float16": "<f2"}[dtype]).tobytes()


def compute_checkpoint_hash(config: Mapping[str, Json], seed: int) -> str:
    """12 hex digits over everything the bytes depend on."""
    facts = {"format": FORMAT_VERSION, "config": config, "seed": seed}
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:12]


def ensure_checkpoint(name: str, config: Mapping[str, Json], *, seed: int, cache_dir: Path) -> Path:
    """The checkpoint's folder in `cache_dir`, made now if absent or damaged.

    Safe for any number of processes at once: each makes its own copy beside the final place and
    renames it in; whoever comes second uses the first one's.

    Args:
        name: start of the folder's name.
        config: config.json content; `torch_dtype` is the dtype on disk.
        seed: seed of the weights.
        cache_dir: parent of all made checkpoints; created when absent.

    Raises:
        UsageError: `cache_dir` cannot be written.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]", "--", name)
    final = cache_dir / f"{stem}-{compute_checkpoint_hash(config, seed)}"
    if is_intact(final):
        return final
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=cache_dir) as scratch:
            made = Path(scratch) / "made"
            write_checkpoint(made, config, seed=seed)
            _move_into_place(made, final, Path(scratch))
    except OSError as error:
        raise UsageError(
            f"cache folder {str(cache_dir)!r} cannot hold the checkpoint of {name!r}: {error}; "
            "set HARNESS_CACHE to a folder that can be written"
        ) from error
    return final


def write_checkpoint(folder: Path, config: Mapping[str, Json], *, seed: int) -> None:
    """Write config.json, model.safetensors and their hashes into the new folder `folder`."""
    folder.mkdir()
    (folder / WEIGHTS_FILE).write_bytes(encode_safetensors(dict(_tensors(config, seed))))
    text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
    hashes = {f: _hash_file(folder / f) for f in (CONFIG_FILE, WEIGHTS_FILE)}
    (folder / HASH_FILE).write_text(json.dumps(hashes, indent=2) + "\n", encoding="utf-8")


def encode_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A whole safetensors file: its tensors by name, in the order given.

    Written here because the package's raw writer changed its arguments between versions; the
    format is an 8-byte length, a JSON header padded to 8 bytes, and the data.
    """
    header: dict[str, Json] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        begin, end = end, end + len(data)
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join(
        [struct.pack("<Q", len(text)), text, *(data for _, _, data in tensors.values())]
    )


def is_intact(folder: Path) -> bool:
    """True when the folder holds exactly what its hash file says."""
    try:
        hashes = json.loads((folder / HASH_FILE).read_text(encoding="utf-8"))
        return set(hashes) == {CONFIG_FILE, WEIGHTS_FILE} and all(
            _hash_file(folder / name) == digest for name, digest in hashes.items()
        )
    except (OSError, ValueError, TypeError):
        return False


def read_config(folder: Path) -> dict[str, Json]:
    """The content of `folder`/config.json.

    Raises:
        ModelNotFoundError: there is no such file, or it is no JSON object.
    """
    file = folder / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelNotFoundError(
            f"model path={str(folder)!r}: cannot read config.json ({error.strerror}); "
            "give a folder with config.json and *.safetensors"
        ) from None
    except ValueError as error:
        raise ModelNotFoundError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelNotFoundError(f"{file}: must hold a JSON object")
    return config


def _tensors(config: Mapping[str, Json], seed: int) -> Iterator[tuple[str, Tensor]]:
    dtype = str(config["torch_dtype"])
    for name, shape in list_tensor_shapes(config).items():
        values = make_tensor(name, shape, seed=seed)
        if not is_packed(config, name):
            yield name, (dtype, shape, to_bytes(values, dtype))
            continue
        for part, content in pack(name, values):
            if content.dtype == np.float32:
                data = to_bytes(content.astype(np.float32), dtype)
                yield part, (dtype, content.shape, data)
            else:
                yield part, (str(content.dtype), content.shape, content.tobytes())


def _move_into_place(made: Path, final: Path, scratch: Path) -> None:
    for attempt in range(3):
        try:
            os.rename(made, final)
            return
        except OSError:
            if is_intact(final):
                return
            if attempt == 2:
                raise
        with contextlib.suppress(FileNotFoundError):  # another process moved it away first
            os.rename(final, scratch / f"damaged-{attempt}")


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
