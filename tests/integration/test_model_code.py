"""Code and pickles in a model's folder: nothing of it runs unless the settings name the model."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from pipeline.checkpoints import describe
from pipeline.checkpoints.digest import digest
from pipeline.db.states import JobStatus
from pipeline.errors import ModelNotFound, ModelNotTrusted, ModelUnsupported
from pipeline.jobs.submit import SubmitOptions
from tests.fixtures.engine_child import ROOT
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.models import write_tiny_llama
from workers.engines.chat import Dialogue
from workers.engines.encoder import weight_files
from workers.engines.loading import load_language_model
from workers.engines.requests import GenerationRequest, Sampling

pytestmark = pytest.mark.timeout(180)


class Harm:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def change(folder: Path, file: str, **values: Any) -> None:
    path = folder / file
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **values}))


@pytest.fixture
def harm(tmp_path: Path) -> Path:
    return tmp_path / "harm"


@pytest.fixture
def with_model_file(tmp_path: Path, harm: Path) -> Path:
    """A checkpoint whose architecture is code of its own; the code is mlx-lm's and leaves a file."""
    folder = write_tiny_llama(tmp_path / "own-code")
    (folder / "mine.py").write_text(
        f"open({str(harm)!r}, 'w').close()\nfrom mlx_lm.models.llama import Model, ModelArgs\n"
    )
    change(folder, "config.json", model_file="mine.py")
    return folder


@pytest.fixture
def with_auto_map(tmp_path: Path, harm: Path) -> Path:
    """A checkpoint that offers code to transformers in both of its files, as many on the hub do."""
    folder = write_tiny_llama(tmp_path / "auto-map")
    (folder / "mine.py").write_text(f"open({str(harm)!r}, 'w').close()\n")
    offered = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model", "AutoTokenizer": ["mine.T", "mine.T"]}
    change(folder, "config.json", auto_map=offered)
    change(folder, "tokenizer_config.json", auto_map=offered)
    return folder


def test_weights_as_pickle_are_refused_everywhere_and_never_read(tmp_path: Path, harm: Path) -> None:
    folder = write_tiny_llama(tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(harm)))
    for look in (describe, digest):
        with pytest.raises(ModelUnsupported, match=r"pytorch_model\.bin, which can run code"):
            look(folder)
    with pytest.raises(ModelNotFound, match="no weights"):
        load_language_model(folder)
    with pytest.raises(ModelUnsupported, match="safetensors"):
        weight_files(folder)
    assert not harm.exists()


def test_code_that_a_checkpoint_merely_offers_does_not_run(with_auto_map: Path, harm: Path) -> None:
    assert load_language_model(with_auto_map).model is not None
    assert not harm.exists()


def test_a_tokenizer_that_is_code_alone_is_refused(tmp_path: Path, harm: Path) -> None:
    folder = write_tiny_llama(tmp_path / "own-tokenizer")
    (folder / "mine.py").write_text(f"open({str(harm)!r}, 'w').close()\n")
    change(folder, "config.json", model_type="llama")
    change(folder, "tokenizer_config.json", tokenizer_class="Mine", auto_map={"AutoTokenizer": ["mine.Mine", None]})
    with pytest.raises(ModelNotTrusted) as caught:
        load_language_model(folder)
    assert "trusted_models" in (caught.value.hint or "")
    assert not harm.exists()
    with pytest.raises(ModelUnsupported, match="Mine"):  # the file has no such class; with permission it was run
        load_language_model(folder, trust_code=True)
    assert harm.exists()


def test_own_architecture_runs_with_permission_only(with_model_file: Path, harm: Path) -> None:
    with pytest.raises(ModelNotTrusted, match="brings its own code"):
        load_language_model(with_model_file)
    assert not harm.exists()
    assert load_language_model(with_model_file, trust_code=True).model is not None
    assert harm.exists()


def test_code_counts_in_the_digest(with_model_file: Path) -> None:
    before = digest(with_model_file)
    with (with_model_file / "mine.py").open("a") as stream:
        stream.write("# changed\n")
    assert digest(with_model_file) != before


def test_a_chat_template_is_rendered_in_a_sandbox(tmp_path: Path, harm: Path) -> None:
    """The ways out of Jinja that are in every list: into a class, a module, a mutable argument."""
    for number, template in enumerate(
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            f"{{{{ cycler.__init__.__globals__.os.system('touch {harm}') }}}}",
            f"{{{{ self.__init__.__globals__.__builtins__.open('{harm}', 'w') }}}}",
            "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
            "{{ messages.clear() }}",
            f"{{% include '{tmp_path / 'secret'}' %}}",
        ]
    ):
        (tmp_path / "secret").write_text("the-secret")
        folder = write_tiny_llama(tmp_path / f"template-{number}")
        change(folder, "tokenizer_config.json", chat_template=template)
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        dialogue = Dialogue(load_language_model(folder).tokenizer, context_length=None)
        messages = [{"role": "user", "content": "hello"}]
        try:
            text = dialogue.decode(dialogue.encode(GenerationRequest(tuple(messages), None, 1, Sampling(), (), 0)))
        except Exception as error:  # noqa: BLE001 - refusing is one of the good answers
            text = str(error)
        assert messages == [{"role": "user", "content": "hello"}]
        assert "the-secret" not in text
        assert not harm.exists(), template


def end_of(house: House, model: Path, **options: Any) -> Any:
    """A job without a check at submit: whoever writes to the database can skip it."""
    job_id = house.submit(
        [{"custom_id": "a", "prompt": "x", "max_tokens": 1}], model=str(model), options=SubmitOptions(check_model=False)
    )
    return house.work_off(job_id)


def test_a_job_on_such_a_model_ends_with_the_way_out(make_house: MakeHouse, with_model_file: Path, harm: Path) -> None:
    house = make_house()
    with pytest.raises(ModelNotTrusted, match="trusted_models"):
        house.submit([{"prompt": "x"}], model=str(with_model_file))
    job = end_of(house, with_model_file)
    assert (job.status, job.error_code) == (JobStatus.FAILED, "model_not_trusted"), house.logs()
    assert "trusted_models" in (job.error_message or "")
    assert not harm.exists()


def test_a_job_on_a_model_that_the_settings_name_runs(make_house: MakeHouse, with_model_file: Path, harm: Path) -> None:
    house = make_house(trusted_models=(str(with_model_file),))
    assert house.environ["PIPELINE_TRUSTED_MODELS"] == str(with_model_file)
    job = end_of(house, with_model_file)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 1), house.logs()
    assert harm.exists()


@pytest.mark.parametrize("where", ["../mine.py", "/tmp/mine.py", "code/mine.py", 7])
def test_code_outside_the_folder_is_refused_even_with_permission(
    make_house: MakeHouse, with_model_file: Path, harm: Path, where: object
) -> None:
    house = make_house(trusted_models=(str(with_model_file),))
    change(with_model_file, "config.json", model_file=where)
    with pytest.raises(ModelUnsupported, match="model_file must be a file beside it"):
        house.submit([{"prompt": "x"}], model=str(with_model_file))
    assert not harm.exists()


def test_a_fleets_worker_reads_no_folder_that_a_job_names(
    make_house: MakeHouse, postgres_url: str, tmp_path: Path
) -> None:
    """The same job, from a client that skips the check: refused by the worker, before it has read a file of it."""
    house = make_house(database_url=postgres_url)
    folder = write_tiny_llama(tmp_path / "outside")
    job = end_of(house, folder)
    assert (job.status, job.error_code) == (JobStatus.FAILED, "model_not_allowed"), house.logs()
    assert str(ROOT) not in (job.error_message or "")
    allowed = make_house(database_url=postgres_url, model_roots=(str(tmp_path),), store_url=house.deployment.store.url)
    job = end_of(allowed, folder)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 1), allowed.logs()
