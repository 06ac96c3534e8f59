"""Spec files: what they may say, and how a wrong one is refused: with its file, its line and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import SpecError
from pipeline.specs.spec_file import load_spec_file

GOOD = """\
model: smollm2
input: data/requests.jsonl
accelerate: off
sampling:
  max_tokens: 64
  temperature: 1e-1
draft: small
bench: {repeats: 3}
"""


def write(folder: Path, text: str, name: str = "job.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_yaml_names_the_model_in_a_word_and_input_beside_the_file(tmp_path: Path) -> None:
    found = load_spec_file(write(tmp_path, GOOD))
    assert found.spec.model.name == "smollm2"
    assert found.spec.draft is not None and found.spec.draft.model.name == "small"
    assert found.spec.accelerate == "off"  # the word, not the flag
    assert (found.spec.sampling.max_tokens, found.spec.sampling.temperature) == (64, 0.1)
    assert found.input == tmp_path / "data" / "requests.jsonl"
    assert found.sections == {"bench": {"repeats": 3}}


def test_json_says_the_same(tmp_path: Path) -> None:
    text = '{\n\t"model": {"name": "m", "dtype": "float32"},\n\t"prefix_cache": false\n}'
    found = load_spec_file(write(tmp_path, text, "job.json"))
    assert (found.spec.model.dtype, found.spec.prefix_cache, found.input) == ("float32", False, None)


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        ("model: m\nwidht: 4\n", ", line 2", "unknown key widht", "did you mean width?"),
        ("model: m\nsampling:\n  top: 4\n", ", line 3", "unknown key sampling.top", "did you mean top_p?"),
        ("model: m\nimput: x\n", ", line 2", "unknown key imput", "did you mean input?"),
        ("model: m\nlookup: {zzz: 1}\n", ", line 2", "unknown key lookup.zzz", "known here: ngram_max"),
        ("width: 4\n", "", "model is missing", None),
        ("model: m\nwidth: 0\n", ", line 2", "width: Input should be greater than or equal to 1", None),
        ("model: m\naccelerate: draft\n", "", "accelerate: draft needs draft: with a model", None),
        ("model: m\nwidth: 4\nwidth: 5\n", "", "width is on lines 2 and 3", None),
        ("model: m\ninput: 3\n", ", line 2", "input must be the path of a file", None),
        ("kind: embed\nmodel: m\n", ", line 1", "kind must be generate, not 'embed'", None),
        ("model: [\n", ", line 2", "is not YAML", None),
        ("- model\n", "", "must be a mapping", None),
        ("", "", "model is missing", None),
        ("model: !!python/object/apply:os.getcwd []\n", ", line 1", "is not YAML", None),
    ],
)
def test_wrong_file_is_refused(tmp_path: Path, text: str, place: str, message: str, hint: str | None) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load_spec_file(file)
    assert caught.value.place == f"{file}{place}"
    assert caught.value.message.startswith(message)
    assert (caught.value.hint or "").startswith(hint or "")


def test_json_with_a_key_twice_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="width is there twice"):
        load_spec_file(write(tmp_path, '{"model": "m", "width": 1, "width": 2}', "job.json"))
    with pytest.raises(SpecError, match="no such file"):
        load_spec_file(tmp_path / "absent.yaml")
