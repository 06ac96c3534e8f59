"""A contract as it is written: sizes, words, what is refused and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from pipeline.cli.contract import SOURCES
from pipeline.errors import CeilingUnmeasurable, ContractConflict, SpecError
from pipeline.jobs.submit import build_spec
from pipeline.specs import GenerateSpec
from pipeline.specs.contract import MEASURABLE, Ceilings, Contract, Measure
from pipeline.specs.sizes import parse_size
from pipeline.specs.spec_file import load_contract_file, load_spec_file


def spec(**fields: Any) -> GenerateSpec:
    built = build_spec({"kind": "generate", "model": {"name": "m"}, **fields})
    assert isinstance(built, GenerateSpec)
    return built


def drafted(acceptance: str) -> dict[str, Any]:
    return {"model": {"name": "d"}, "acceptance": acceptance}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("6GiB", 6 << 30),
        ("1.5 gib", 3 << 29),
        ("500MB", 500_000_000),
        ("2kB", 2000),
        ("7B", 7),
        ("6", 6),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert Ceilings(kv_bytes=text).kv_bytes == size


@pytest.mark.parametrize("text", ["", "GiB", "six GiB", "6 GiBs", "-1GiB", "0"])
def test_what_is_no_positive_size_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Ceilings(resident_bytes=text)


def test_a_file_becomes_the_contract_of_the_job(tmp_path: Path) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text("correctness: statistical\nmeasure: [ttft_p95]\nceilings: {resident_bytes: 6GiB}\nfallback: fail\n")
    contract = load_contract_file(file)
    assert contract == Contract(
        correctness="statistical", measure=("ttft_p95",), ceilings=Ceilings(resident_bytes=6 << 30), fallback="fail"
    )
    assert contract.ceilings.given == {"resident_bytes": 6 << 30}
    whole = tmp_path / "spec.yaml"
    inner = "".join(f"  {line}\n" for line in file.read_text().splitlines())
    whole.write_text(f"model: m\ncontract:\n{inner}")
    assert load_spec_file(whole).spec.terms == contract
    # What a job's row holds is read back as the same.
    assert GenerateSpec.model_validate(
        spec(contract=contract.model_dump(mode="json")).model_dump(mode="json")
    ).terms == (contract)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("fallback: fail\nceilings:\n  residnt_bytes: 1GiB\n", 3, "unknown key ceilings.residnt_bytes"),
        ("fallback: perhaps\n", 1, "fallback: "),
        ("measure:\n- ttft_p95\n- smiles\n", 1, "measure.1: "),
        ("ceilings:\n  kv_bytes: much\n", 2, "ceilings.kv_bytes: 'much' is no size"),
        ("shadow: 2\n", 1, "shadow: "),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_key(tmp_path: Path, text: str, line: int, says: str) -> None:
    file = tmp_path / "contract.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_contract_file(file)
    assert caught.value.place == f"{file}, line {line}"
    assert caught.value.message.startswith(says)


@pytest.mark.parametrize("name", ["bandwidth", "occupancy", "power_w"])
def test_a_ceiling_that_nobody_can_measure_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(CeilingUnmeasurable, match=f"ceilings.{name}"):
        spec(contract={"ceilings": {name: 1}})


def test_stochastic_acceptance_and_the_seeded_stream_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ContractConflict, match="distribution_preserving"):
        spec(draft=drafted("stochastic"), contract={"fallback": "fail"})
    file = tmp_path / "spec.yaml"
    file.write_text("model: m\ndraft: {model: d, acceptance: stochastic}\ncontract: {correctness: greedy_identical}\n")
    with pytest.raises(ContractConflict):
        load_spec_file(file)
    kept = spec(draft=drafted("stochastic"), contract={"correctness": "distribution_preserving"})
    assert not kept.is_seed_stable


def test_without_a_contract_the_strictest_holds_that_the_options_can_keep() -> None:
    assert spec().terms == Contract()
    assert spec(draft=drafted("sampler_match")).terms.correctness == "greedy_identical"
    assert spec(draft=drafted("stochastic")).terms.correctness == "distribution_preserving"
    idle = spec(draft=drafted("stochastic"), accelerate="lookup")
    assert (idle.drafter, idle.terms.correctness) == (None, "greedy_identical")


def test_every_name_has_a_place_that_its_value_comes_from() -> None:
    assert set(SOURCES) == {*get_args(Measure), *MEASURABLE}
    assert set(Ceilings.model_fields) > MEASURABLE
