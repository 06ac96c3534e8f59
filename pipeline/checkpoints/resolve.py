"""From the name a user wrote to a folder on this host. Knows nothing of what is in the folder."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from pipeline.checkpoints.roots import hub_cache, is_allowed, refuse
from pipeline.config import Settings
from pipeline.errors import ModelNotFound

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")

#: What a hub download takes: weights as safetensors, and the small files that say what they are.
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]


def resolve(name: str, settings: Settings, *, download: bool = True, confined: bool = True) -> Path:
    """The folder of a model, absolute.

    Tried in this order: a name under ``models`` in the settings, a folder, a subfolder of ``<home>/models``, the
    local hub cache, and (with ``download``) the hub itself. ``confined`` keeps to the folders that a job may name;
    only a command that works for the user at this terminal goes without.

    Raises:
        ModelNotFound: nothing answers to the name; the hint says what was tried.
        ModelNotAllowed: the name is a folder outside the roots.
    """
    if name in settings.models:
        folder = Path(settings.models[name]).expanduser().absolute()
        if folder.is_dir():
            return folder
        raise ModelNotFound(
            f"the model {name!r} should be in {folder}, which is no folder", hint="see `models` in the settings"
        )
    tried = ["`models` in the settings"]

    if "\0" in name:
        raise ModelNotFound(f"no model {name!r} on this host")
    folder = Path(name).expanduser().absolute()
    allowed = not confined or is_allowed(folder, settings)
    if not allowed and _is_path(name):
        raise refuse(name)
    if allowed and folder.is_dir():
        return folder
    tried.append(f"the folder {folder}")

    folder = settings.models_path / name
    if not Path(name).is_absolute() and ".." not in Path(name).parts:
        if folder.is_dir():
            return folder
        tried.append(f"the folder {folder}")

    if _HUB_NAME.match(name):
        may_download = download and (not confined or is_allowed(hub_cache(), settings))
        for local_only in (True, False) if may_download else (True,):
            found, reason = _from_hub(name, local_only=local_only, with_code=name in settings.trusted_models)
            if found is not None:
                if confined and not is_allowed(found, settings):
                    raise refuse(name)
                return found
            tried.append(f"the {'local hub cache' if local_only else 'hub'} ({reason})")
    near = difflib.get_close_matches(name, _known_names(settings), n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ModelNotFound(f"no model {name!r} on this host", hint=f"{hint}tried {'; '.join(tried)}")


def _known_names(settings: Settings) -> list[str]:
    folders = settings.models_path.iterdir() if settings.models_path.is_dir() else ()
    return sorted({*settings.models, *(folder.name for folder in folders if folder.is_dir())})


def _is_path(name: str) -> bool:
    """Whether it can only mean a folder. ``a/b`` may be one of the hub's names, and a plain word one of ours."""
    return name.startswith(("/", ".", "~")) or ".." in Path(name).parts


def _from_hub(name: str, *, local_only: bool, with_code: bool) -> tuple[Path | None, str]:
    """(folder, "") or (None, reason). The import is slow, so it waits until a hub name is asked for."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None, "huggingface_hub is not installed"
    patterns = [*_HUB_PATTERNS, "*.py"] if with_code else _HUB_PATTERNS
    try:
        folder = snapshot_download(name, local_files_only=local_only, allow_patterns=patterns)
    except Exception as error:  # noqa: BLE001 - the library raises its own, httpx's and OSError
        return None, "not there" if local_only else f"{type(error).__name__}: {_first_line(error)}"
    return Path(folder), ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
