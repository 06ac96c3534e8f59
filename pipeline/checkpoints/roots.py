"""Which folders a job may name as a model on this host.

Whoever can write a job's row names the model that workers read. A name under ``models`` in the settings, or a link or
folder in ``<home>/models``, was put there by whoever runs this host and is always allowed. Any other folder has to lie
in one of the roots, with its links followed. Knows nothing of what a model is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import Settings
from pipeline.errors import ModelNotAllowed


def model_roots(settings: Settings) -> tuple[Path, ...] | None:
    """The roots, links followed; None where any folder will do.

    Without the setting: any folder with SQLite, which only this user (or whoever it was shared with on purpose) can
    write to; ``<home>/models`` and the local hub cache with a database that others reach.
    """
    if settings.model_roots is not None:
        given = tuple(Path(root).expanduser().absolute() for root in settings.model_roots)
    elif settings.resolved_database_url.startswith("sqlite"):
        return None
    else:
        given = (settings.models_path, hub_cache())
    return tuple(root.resolve() for root in given)


def hub_cache() -> Path:
    """Where huggingface_hub keeps what it downloaded; by its own rules, without its slow import."""
    environ = os.environ
    if found := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(found).expanduser().absolute()
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environ.get("HF_HOME") or f"{caches}/huggingface").expanduser().absolute() / "hub"


def is_allowed(folder: Path, settings: Settings) -> bool:
    """Whether ``folder``, there or not, lies in a root, and all that its links point to does."""
    roots = model_roots(settings)
    if roots is None:
        return True
    real = folder.resolve()
    return _is_inside(real, roots) and all(_is_inside(link.resolve(), roots) for link in _links(real))


def refuse(name: str) -> ModelNotAllowed:
    """The error for a name that is a folder outside the roots; the same whether anything is there or not."""
    return ModelNotAllowed(
        f"the model {name!r} is a folder that jobs may not name on this host; see `model_roots`",
        hint="give it a name under `models` in the settings, link it into <home>/models, or add its folder to "
        "`model_roots`; on each worker",
    )


def _is_inside(path: Path, roots: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _links(folder: Path) -> Iterator[Path]:
    """Links among a model's files: at its top, and one folder below."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_symlink():
            yield entry
        elif entry.is_dir():
            yield from (inner for inner in entry.iterdir() if inner.is_symlink())
