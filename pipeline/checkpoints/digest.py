"""One checksum for a checkpoint: what a job pins, so that every worker runs the same weights and words."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from pathlib import Path

from pipeline.checkpoints.files import model_files
from pipeline.config import Settings
from pipeline.private import make_private_folder, private_opener

_CHUNK_BYTES = 1 << 22


def digest(path: Path, settings: Settings | None = None) -> str:
    """sha256 (hex) over the sorted list of ``(name, sha256)`` of the files that make the model.

    The same files give the same digest in any folder. With ``settings`` the files' checksums are remembered under
    ``home``, keyed by (path, size, mtime), so that gigabytes are read once per host.

    Raises:
        ModelNotFound, ModelUnsupported: the folder is no checkpoint we can read.
    """
    files = model_files(path)
    cache_file = settings.home_path / "file-digests.json" if settings is not None else None
    cache = _read_cache(cache_file)
    known = len(cache)
    total = hashlib.sha256()
    for file in files:
        real = file.resolve()
        stat = real.stat()
        key = f"{real}|{stat.st_size}|{stat.st_mtime_ns}"
        if key not in cache:
            cache[key] = _hash_file(real)
        total.update(f"{file.relative_to(path).as_posix()}\0{cache[key]}\n".encode())
    if cache_file is not None and len(cache) != known:
        _write_cache(cache_file, cache)
    return total.hexdigest()


def _hash_file(file: Path) -> str:
    result = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            result.update(chunk)
    return result.hexdigest()


def _read_cache(file: Path | None) -> dict[str, str]:
    """An absent or torn cache is an empty one: it can always be made again."""
    if file is not None:
        with contextlib.suppress(OSError, ValueError):
            data = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(data, dict):
                return {key: value for key, value in data.items() if isinstance(value, str)}
    return {}


def _write_cache(file: Path, cache: dict[str, str]) -> None:
    """Two writers at once: the last wins, and the other's files are hashed again some day."""
    make_private_folder(file.parent)
    beside = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    with open(beside, "w", encoding="utf-8", opener=private_opener) as stream:
        json.dump(cache, stream, indent=0, sort_keys=True)
    os.replace(beside, file)
