"""A job's spec as a file: YAML or JSON with the fields of a generate job, and ``input``. Knows nothing about what is in
the input.

``model`` may be a plain name in place of ``{name: ...}``, here and under ``draft``. Words such as ``off`` and ``no`` are
words: only ``true`` and ``false`` are flags.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.errors import SpecError
from pipeline.specs.base import refusal
from pipeline.specs.contract import Contract
from pipeline.specs.generate import GenerateSpec

M = TypeVar("M", bound=BaseModel)

#: Top-level keys that belong to one command each and not to the job; given on as they are.
SECTIONS = ("bench",)


@dataclass(frozen=True, slots=True)
class SpecFile:
    """What a file says. ``input`` is absolute; ``sections`` holds those of ``SECTIONS`` that are there, unchecked."""

    path: Path
    spec: GenerateSpec
    input: Path | None
    sections: Mapping[str, Any]


def load_spec_file(path: Path) -> SpecFile:
    """Read and check; a relative ``input`` starts at the file's folder. Raises SpecError with file, line and key."""
    data, lines = _read(path)
    given = data.pop("input", None)
    if given is not None and (not isinstance(given, str) or not given):
        raise SpecError("input must be the path of a file", place=_place(path, lines, ("input",)))
    sections = {name: data.pop(name) for name in SECTIONS if name in data}
    kind = data.setdefault("kind", "generate")
    if kind != "generate":
        raise SpecError(
            f"kind must be generate, not {kind!r}: other jobs have no spec file", place=_place(path, lines, ("kind",))
        )
    spec = _check(GenerateSpec, _with_model_names(data), path, lines, extra=("input", *SECTIONS))
    source = None if given is None else (path.absolute().parent / Path(given).expanduser())
    return SpecFile(path, spec, source, sections)


def load_contract_file(path: Path) -> Contract:
    """Read and check a contract that is a file of its own. Raises SpecError with file, line and key."""
    data, lines = _read(path)
    return _check(Contract, data, path, lines)


def _with_model_names(data: dict[str, Any]) -> dict[str, Any]:
    """``model: name`` spelled out."""
    result = dict(data)
    if isinstance(data.get("model"), str):
        result["model"] = {"name": data["model"]}
    draft = data.get("draft")
    if isinstance(draft, str):
        result["draft"] = {"model": {"name": draft}}
    elif isinstance(draft, dict) and isinstance(draft.get("model"), str):
        result["draft"] = {**draft, "model": {"name": draft["model"]}}
    return result


def _check(model: type[M], data: dict[str, Any], path: Path, lines: _Lines, *, extra: Sequence[str] = ()) -> M:
    """``data`` as ``model``; ``extra`` are keys that were there beside its own."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    keys = tuple(str(part) for part in first["loc"])
    name = ".".join(keys)
    if first["type"] == "extra_forbidden":
        known = [*_fields_at(model, keys[:-1]), *(extra if len(keys) == 1 else ())]
        near = difflib.get_close_matches(keys[-1], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        raise SpecError(f"unknown key {name}", place=_place(path, lines, keys), hint=hint)
    if first["type"] == "missing":
        raise SpecError(f"{name} is missing", place=_place(path, lines, keys[:-1]))
    text = first["msg"].removeprefix("Value error, ")
    raise refusal(first["type"])(f"{name}: {text}" if name else text, place=_place(path, lines, keys))


def _fields_at(model: type[BaseModel], keys: Sequence[str]) -> list[str]:
    """Names of the fields of the model that stands at ``keys`` in another."""
    for key in keys:
        annotation = model.model_fields[key].annotation
        choices = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        model = next(one for one in choices if issubclass(one, BaseModel))
    return list(model.model_fields)


# --- the text ----------------------------------------------------------------------------------------------------------

#: Line, from 1, of each key by its path.
_Lines = Mapping[tuple[str, ...], int]


class _Loader(yaml.SafeLoader):
    """Safe, and with the flags of YAML 1.2: ``accelerate: off`` is the word off."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _read(path: Path) -> tuple[dict[str, Any], _Lines]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError("no such file", place=str(path), hint="it is YAML or JSON") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", place=str(path)) from None
    lines: dict[tuple[str, ...], int] = {}
    data = _parse_json(text, path) if path.suffix == ".json" else _parse_yaml(text, path, lines)
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise SpecError("must be a mapping of names to values", place=str(path), hint="for example model: NAME")
    return data, lines


def _parse_json(text: str, path: Path) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path))
    except ValueError as error:
        raise SpecError(f"is not JSON: {error}", place=str(path)) from None


def _parse_yaml(text: str, path: Path, lines: dict[tuple[str, ...], int]) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}
        _note_lines(node, (), lines, path)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(f"is not YAML: {error.problem or 'unreadable'}", place=f"{path}{line}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"is not YAML: {error}", place=str(path)) from None
    finally:
        loader.dispose()


def _note_lines(node: yaml.Node, keys: tuple[str, ...], lines: dict[tuple[str, ...], int], path: Path) -> None:
    """Notes where each key stands, and refuses one that stands twice: YAML itself would take the last."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        place, line = (*keys, str(key.value)), key.start_mark.line + 1
        if place in lines:
            raise SpecError(f"{'.'.join(place)} is on lines {lines[place]} and {line}", place=str(path))
        lines[place] = line
        _note_lines(value, place, lines, path)


def _unique(pairs: Sequence[tuple[str, Any]], path: Path) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError(f"{twice} is there twice", place=str(path))
    return result


def _place(path: Path, lines: _Lines, keys: tuple[str, ...]) -> str:
    """File, and the line of the key or of the nearest one above it that the file spells out."""
    while keys and keys not in lines:
        keys = keys[:-1]
    return f"{path}, line {lines[keys]}" if keys else str(path)
