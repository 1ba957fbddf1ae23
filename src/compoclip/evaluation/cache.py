"""Encoded features on disk, so that an interrupted or repeated evaluation encodes nothing twice."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from compoclip.benchmarks.case import ImageRef
from compoclip.data.members import Members
from compoclip.errors import CompoclipError
from compoclip.evaluation.encoder import Encoder
from compoclip.evaluation.outcomes import Scores
from compoclip.files import write_atomically
from compoclip.models.identity import ModelIdentity
from compoclip.models.parts import Tower

KEY_BYTES = 16
_ZEROS = 1 << 24
_LAYOUT = "2"  # raised when features of the same model and input would come out different

_PARTS: dict[str, Tower] = {"images": "image", "texts": "text"}


def content_key(*parts: bytes) -> bytes:
    """Hash of KEY_BYTES bytes over all parts."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def image_content_key(ref: ImageRef, members: Members) -> bytes:
    """Key of an image: its bytes, the box, and whether it is squashed."""
    try:
        data = members(ref.path, ref.member) if ref.member else ref.path.read_bytes()
    except OSError as error:
        raise CompoclipError(
            f"{ref.path}: cannot be read ({error.strerror}); check the images folder"
        ) from error
    return content_key(data, repr(ref.box).encode(), *([b"squash"] if ref.squash else []))


def _tower_name(identity: ModelIdentity, weights: str) -> str:
    """A name for all that a tower's features depend on; weights: its own."""
    known = identity.to_json() | {"weights": weights}
    described = {k: v for k, v in known.items() if k not in ("base", "adapter")}
    text = json.dumps([_LAYOUT, described], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class FeatureCache:
    """Float32 features of one model below `folder`, found by content key.

    `kind` is "images" or "texts". Models that share a tower, such as those of a training that left
    it alone, share its features. Each `put` adds one file that is complete or not there, so several
    runs may share a folder.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._folder = folder
        self._folders = {
            kind: folder / _tower_name(encoder.identity, encoder.tower_weights(part)) / kind
            for kind, part in _PARTS.items()
        }

    def find(self, kind: str, keys: Sequence[bytes]) -> Iterator[tuple[list[int], Scores]]:
        """(positions in `keys`, their features (n, D)), file by file, of those that are stored.

        A key that several files hold comes from each. Raises CompoclipError for a damaged file.
        """
        wanted: dict[bytes, list[int]] = {}
        for position, key in enumerate(keys):
            wanted.setdefault(key, []).append(position)
        for path in sorted(self._folders[kind].glob("*.safetensors")):
            try:
                with safe_open(path, framework="numpy") as stored:
                    names = [row.tobytes() for row in stored.get_tensor("keys")]
                    if wanted.keys().isdisjoint(names):
                        continue
                    features = stored.get_tensor("features")
            except (OSError, SafetensorError) as error:
                raise CompoclipError(
                    f"{path}: damaged feature file ({error}); delete it"
                ) from error
            pairs = [(p, row) for row, name in enumerate(names) for p in wanted.get(name, ())]
            yield [position for position, _ in pairs], features[[row for _, row in pairs]]

    def put(self, kind: str, keys: Sequence[bytes], features: Scores) -> None:
        """Store features (N, D) under their keys. Raises CompoclipError when the disk refuses."""
        packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)
        path = self._folders[kind] / f"{content_key(*keys).hex()}.safetensors"
        tensors: dict[str, np.ndarray] = {
            "keys": packed,
            "features": np.ascontiguousarray(features, dtype=np.float32),
        }
        write_atomically(path, lambda place: save_file(tensors, place))

    def scratch(self, shape: tuple[int, int]) -> Scores:
        """Zeros (float32) in a nameless file below `folder`, gone when nothing uses them any more,
        even after a kill. Raises CompoclipError when the disk refuses."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as file:
                left = 4 * shape[0] * shape[1]
                while left:  # a file with holes would end the process when the disk is full
                    left -= file.write(bytes(min(left, _ZEROS)))
                file.flush()
                return np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
        except OSError as error:
            raise CompoclipError(
                f"{self._folder}: no room for features ({error.strerror}); name another place with "
                "--cache"
            ) from error
