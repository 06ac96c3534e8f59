"""Which folders a job may name as a model, on real folders and links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoints.resolve import resolve
from pipeline.checkpoints.roots import hub_cache, model_roots
from pipeline.config import Settings
from pipeline.errors import ModelNotAllowed, ModelNotFound

FLEET = "postgresql+psycopg://db.example/pipeline"


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def settings(tmp_path: Path, **values: Any) -> Settings:
    return Settings(home=tmp_path / "home", **values)


def find(name: object, of: Settings) -> Path:
    return resolve(str(name), of, download=False)


def test_alone_on_a_machine_any_folder_will_do(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "anywhere")
    assert find(folder, settings(tmp_path)) == folder
    assert find(folder, settings(tmp_path, database_url=f"sqlite:///{tmp_path / 'x.db'}")) == folder
    assert model_roots(settings(tmp_path)) is None


def test_in_a_fleet_only_names_and_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    fleet = settings(tmp_path, database_url=FLEET, models={"mine": str(make_model(tmp_path / "elsewhere"))})
    with pytest.raises(ModelNotAllowed) as caught:
        find(tmp_path / "elsewhere", fleet)
    assert "model_roots" in (caught.value.hint or "")
    assert find("mine", fleet) == tmp_path / "elsewhere"
    own = make_model(fleet.models_path / "own")
    assert find("own", fleet) == own
    cached = make_model(hub_cache() / "models--a--b" / "snapshots" / "1")
    assert find(cached, fleet) == cached


def test_the_answer_does_not_tell_whether_a_folder_is_there(tmp_path: Path) -> None:
    fleet = settings(tmp_path, database_url=FLEET)
    make_model(tmp_path / "there")
    said = []
    for name in ("there", "nowhere"):
        with pytest.raises(ModelNotAllowed) as caught:
            find(tmp_path / name, fleet)
        said.append(f"{caught.value} {caught.value.hint}".replace(name, "X"))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "name",
    [
        "/etc",
        "~/secret",
        "./secret",
        "../secret",
        ".",
        "..",
        "models/../../secret",
        "{root}/../secret",
        "/proc/self/cwd",
    ],
)
def test_no_path_leaves_the_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(make_model(tmp_path / "work"))
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    make_model(tmp_path / "secret")
    make_model(tmp_path / "work" / "secret")
    root = make_model(tmp_path / "root")
    confined = settings(tmp_path, model_roots=(str(root),))
    with pytest.raises(ModelNotAllowed):
        find(name.format(root=root), confined)


def test_a_plain_word_that_is_a_folder_here_by_chance_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "qwen")
    fleet = settings(tmp_path, database_url=FLEET)
    with pytest.raises(ModelNotFound) as caught:
        find("qwen", fleet)
    assert not isinstance(caught.value, ModelNotAllowed)
    ours = make_model(fleet.models_path / "qwen")
    assert find("qwen", fleet) == ours


def test_links_are_followed_before_they_are_judged(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", make_model(tmp_path / "outside")
    good = make_model(root / "good")
    confined = settings(tmp_path, model_roots=(str(root),))
    assert find(good, confined) == good
    (root / "link").symlink_to(outside)
    (root / "inner").symlink_to(good)
    assert find(root / "inner", confined) == root / "inner"
    with pytest.raises(ModelNotAllowed):
        find(root / "link", confined)
    (good / "tokenizer.json").symlink_to("/etc/passwd")
    with pytest.raises(ModelNotAllowed):
        find(good, confined)
    (good / "tokenizer.json").unlink()
    (good / "1_Pooling").mkdir()
    (good / "1_Pooling" / "config.json").symlink_to("/etc/passwd")
    with pytest.raises(ModelNotAllowed):
        find(good, confined)


def test_a_root_may_be_a_link_itself(tmp_path: Path) -> None:
    model = make_model(tmp_path / "disk" / "models" / "m")
    (tmp_path / "root").symlink_to(model.parent)
    confined = settings(tmp_path, model_roots=(str(tmp_path / "root"),))
    assert find(tmp_path / "root" / "m", confined) == tmp_path / "root" / "m"
    assert find(model, confined) == model


def test_a_link_in_home_is_a_name_that_was_given(tmp_path: Path) -> None:
    fleet = settings(tmp_path, database_url=FLEET)
    outside = make_model(tmp_path / "outside")
    fleet.models_path.mkdir(parents=True)
    (fleet.models_path / "linked").symlink_to(outside)
    assert find("linked", fleet) == fleet.models_path / "linked"


def test_a_name_with_nul_is_no_name(tmp_path: Path) -> None:
    for one in (settings(tmp_path), settings(tmp_path, database_url=FLEET)):
        with pytest.raises(ModelNotFound):
            find("a\0b", one)


def test_a_command_for_this_terminal_is_not_confined(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "anywhere")
    assert resolve(str(folder), settings(tmp_path, database_url=FLEET), confined=False) == folder
