"""From options to a spec and to intake: what is not given keeps the spec's default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson
import pytest

from pipeline.cli.options import SPEC_FIELDS, request_options
from pipeline.cli.requests import intake_options, spec_fields
from pipeline.errors import SpecError, UsageError
from pipeline.jobs.kinds import run_options
from pipeline.jobs.submit import build_spec
from pipeline.specs import EmbedSpec, GenerateSpec, JobKind, ModelRef, RerankSpec
from pipeline.specs.contract import Ceilings, Contract
from pipeline.specs.generate import DraftOptions, SamplingDefaults


def parse(kind: JobKind, *arguments: str) -> dict[str, Any]:
    """The values that a command of this kind gets for its options."""
    given: dict[str, Any] = {}
    command = click.command()(request_options(kind)(lambda **values: given.update(values)))
    command.main([__file__, *arguments], standalone_mode=False)
    return given


def spec_of(kind: JobKind, endpoint: str, *arguments: str) -> Any:
    fields = spec_fields(kind, parse(kind, *arguments))
    return build_spec({**fields, "endpoint": endpoint, "model": {"name": "m", **fields["model"]}})


def test_nothing_given_is_the_specs_own_default() -> None:
    model = {"name": "m"}
    assert spec_of(JobKind.GENERATE, "/v1/chat/completions") == GenerateSpec(model=model)
    assert spec_of(JobKind.EMBED, "/v1/embeddings") == EmbedSpec(model=model)
    assert spec_of(JobKind.RERANK, "/v1/rerank") == RerankSpec(model=model)


def test_generate_options_reach_the_spec() -> None:
    words = "--max-tokens 7 --temperature 0.5 --top-p 0.9 --top-k 5 --min-p 0.1 --seed 3 --width 4 --shard-tokens 99"
    spec = spec_of(JobKind.GENERATE, "/v1/chat/completions", *words.split(), "--dtype", "float32")
    assert spec.sampling == SamplingDefaults(max_tokens=7, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1)
    assert (spec.seed, spec.width, spec.shard_tokens, spec.model.dtype) == (3, 4, 99, "float32")


def test_acceleration_options_reach_the_spec_and_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "contract.json"
    file.write_text(
        '{"correctness": "distribution_preserving", "ceilings": {"kv_bytes": "1GiB"}, "measure": ["ttft_p95"]}'
    )
    words = "--accelerate draft --draft small --draft-tokens 6 --draft-acceptance stochastic --overflow truncate_left"
    more = ["--no-prefix-cache", "--report-cache", "--contract", str(file), "--dtype", "float32"]
    spec = spec_of(JobKind.GENERATE, "/v1/chat/completions", *words.split(), *more)
    assert spec.draft == DraftOptions(model=ModelRef(name="small", dtype="float32"), tokens=6, acceptance="stochastic")
    assert (spec.accelerate, spec.overflow, spec.prefix_cache, spec.report_cache) == (
        "draft",
        "truncate_left",
        False,
        True,
    )
    assert spec.contract == Contract(
        correctness="distribution_preserving", measure=("ttft_p95",), ceilings=Ceilings(kv_bytes=1 << 30)
    )
    options = orjson.loads(orjson.dumps(run_options(spec)))
    assert Contract(**options["contract"]) == spec.contract
    assert options["draft"] == {"tokens": 6, "acceptance": "stochastic"}
    assert (options["accelerate"], options["overflow"], options["report_cache"]) == ("draft", "truncate_left", True)


def test_what_belongs_to_a_drafter_needs_one() -> None:
    with pytest.raises(UsageError, match="--draft-tokens"):
        spec_of(JobKind.GENERATE, "/v1/chat/completions", "--draft-tokens", "3")
    with pytest.raises(SpecError, match="needs draft"):
        spec_of(JobKind.GENERATE, "/v1/chat/completions", "--accelerate", "draft")


def test_one_sampling_value_leaves_the_others_alone() -> None:
    spec = spec_of(JobKind.GENERATE, "/v1/chat/completions", "--temperature", "0")
    assert spec.sampling == GenerateSpec(model={"name": "m"}).sampling


def test_embed_and_rerank_options_reach_the_spec() -> None:
    words = "--overflow chunk --chunk-overlap 5 --prompt-name query --dimensions 64 --vectors inline --batch-size 2"
    embed = spec_of(JobKind.EMBED, "/v1/embeddings", *words.split())
    assert (embed.overflow, embed.chunk_overlap, embed.prompt_name) == ("chunk", 5, "query")
    assert (embed.dimensions, embed.vectors, embed.batch_size) == (64, "inline", 2)
    rerank = spec_of(JobKind.RERANK, "/v1/rerank", "--instruction", "Judge.", "--overflow", "error")
    assert (rerank.instruction, rerank.overflow) == ("Judge.", "error")


@pytest.mark.parametrize("kind", SPEC_FIELDS)
def test_every_spec_option_is_a_field_of_its_spec(kind: JobKind) -> None:
    spec, names = SPEC_FIELDS[kind]
    assert set(names) <= set(spec.model_fields)


def test_rerank_refuses_to_chunk() -> None:
    with pytest.raises(click.BadParameter):
        parse(JobKind.RERANK, "--overflow", "chunk")


def test_field_options_reach_intake() -> None:
    given = parse(JobKind.EMBED, "--id-field", "_id", "--title-field", "title", "--ignore-field", "x", "--skip-invalid")
    options = intake_options(JobKind.EMBED, given, 1024)
    assert (options.id_field, options.title_field, options.text_field) == ("_id", "title", "text")
    assert (options.ignore_fields, options.skip_invalid, options.max_line_bytes) == (("x",), True, 1024)
    assert intake_options(JobKind.GENERATE, parse(JobKind.GENERATE, "--raw"), 1024).raw
