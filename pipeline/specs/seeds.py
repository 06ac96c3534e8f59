"""An item's own seed, from the job's seed and its custom_id alone, so that any host and any order gives the same."""

from __future__ import annotations

from hashlib import blake2b


def item_seed(job_seed: int, custom_id: str) -> int:
    """A 63-bit seed; the item's own ``seed`` parameter, where given, takes its place."""
    digest = blake2b(f"{job_seed}:{custom_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
