"""What a file system's errors are called in this project; the one seam where they come in."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import ArtifactMissing, StoreFull, StoreUnavailable


@contextmanager
def mapped(place: str, uri: str = "") -> Iterator[None]:
    """Raises ArtifactMissing, StoreFull or StoreUnavailable for what the block meets; ``place`` is named in them."""
    try:
        yield
    except FileNotFoundError as error:
        raise ArtifactMissing(f"{uri or error.filename} is not in {place}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"{place} has no space left", hint="free some space; the work goes on by itself") from error
        raise StoreUnavailable(f"{place}: {error.strerror or error}") from error
