"""``pipeline bench`` on a tiny random model: what may be compared gets a ratio, what may not is refused, all is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import Settings
from pipeline.errors import ExitCode, InputInvalid, UsageError
from pipeline.jobs.benchmark import bench_request, read_items
from pipeline.specs import GenerateSpec
from pipeline.specs.bench import BenchItem
from tests.fixtures.house import PATIENCE_S

PROMPTS = ["the quick brown fox", "hello world", "what is your name", "the lazy dog", "over the dog", "system <b>"]


def spec_of(path: Path, **fields: object) -> GenerateSpec:
    return GenerateSpec.model_validate({"model": {"name": str(path)}, "width": 3, **fields})


def pipeline(folder: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.cli", "--config", str(home / "pipeline.yaml"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.slow
def test_bench_measures_arms_and_refuses_what_never_ran(tiny_llama_path: Path, tmp_path: Path) -> None:
    requests = [{"custom_id": f"q{n}", "prompt": text, "max_tokens": 4 + n} for n, text in enumerate(PROMPTS)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    (tmp_path / "pipeline.yaml").write_text(f"home: {tmp_path / 'home'}\nmodels:\n  tiny: {tiny_llama_path}\n")
    (tmp_path / "job.yaml").write_text(
        "model: tiny\ninput: in.jsonl\nwidth: 3\nbench: {arms: [mlx_lm, plain, prefix_cache], repeat: 2}\n"
    )
    done = pipeline(tmp_path, tmp_path, "bench", "job.yaml", "--json", "out.json", "--html", "out.html")
    assert done.returncode in (ExitCode.OK, ExitCode.CONFLICT), done.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    arms = {arm["name"]: arm for arm in document["arms"]}
    assert list(arms) == ["mlx_lm", "plain", "prefix_cache"]
    assert document["method"]["order"] == [["mlx_lm", "plain", "prefix_cache"], ["plain", "prefix_cache", "mlx_lm"]]

    # The library's tokens are ours, and it is the baseline of a ratio.
    assert arms["mlx_lm"]["correspondence"]["status"] in ("equal", "ties")
    assert len(arms["plain"]["ratio"]["per_run"]) == 2
    for arm in arms.values():
        assert arm["summary"]["output_tokens"]["median"] == document["workload"]["output_tokens"]["total"] > 0
        assert arm["summary"]["resident_peak_bytes"]["max"] >= arm["summary"]["resident_start_bytes"]["min"] > 0
        assert all(len(run["itl_mean_s"]) == len(PROMPTS) for run in arm["runs"])

    # An arm gets a ratio exactly if its mechanism was seen, and the exit code says whether all did.
    cached = arms["prefix_cache"]
    assert (cached["ratio"] is not None) == (cached["refused"] is None) == ("prefix_cache" in cached["path"]["seen"])
    assert (done.returncode == ExitCode.OK) == (cached["refused"] is None)
    assert "plain:" in done.stdout and "OUTPUT TOKENS/S" in done.stdout
    page = (tmp_path / "out.html").read_text()
    assert page.count("<svg") == 4 and "Benchmark of job.yaml" in page


def test_arm_that_nothing_is_called_is_refused(tiny_llama_path: Path, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    spec, items = spec_of(tiny_llama_path), [BenchItem(custom_id="a", body={})]
    with pytest.raises(UsageError, match="no arm 'turbo'") as refused:
        bench_request(spec, ["turbo"], items, settings, title="x")
    assert refused.value.hint is not None and "mlx_lm" in refused.value.hint
    with pytest.raises(UsageError, match="draft"):
        bench_request(spec, ["draft"], items, settings, title="x")
    with pytest.raises(UsageError, match="two arms have one name"):
        bench_request(spec, ["plain", "plain"], items, settings, title="x")
    with pytest.raises(UsageError, match="none of the arms plain"):
        bench_request(spec, ["plain"], items, settings, title="x", baseline="auto")


def test_arms_differ_in_how_they_decode_and_in_nothing_else(tiny_llama_path: Path, tmp_path: Path) -> None:
    request = bench_request(
        spec_of(tiny_llama_path),
        ["plain", "prefix_cache", "lookup", "auto", "mlx_lm"],
        [BenchItem(custom_id="a", body={})],
        Settings(home=tmp_path),
        title="x",
    )
    common = [
        {name: value for name, value in arm.options.items() if name not in ("accelerate", "prefix_cache")}
        for arm in request.arms
    ]
    own = [options for options, arm in zip(common, request.arms, strict=True) if arm.runner == "engine"]
    assert all(options == own[0] for options in own)
    assert own[0]["contract"]["shadow"] == 0
    assert request.baseline == "plain"
    assert request.model_digest is not None


def test_only_the_first_items_are_read_and_checked(tiny_llama_path: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "one"}\n\n{"custom_id": "b", "prompt": "two"}\n{"promt": "three"}\n')
    spec, settings = spec_of(tiny_llama_path, seed=3), Settings(home=tmp_path)
    items = read_items(source, spec, settings, first=2)
    assert [item.body["messages"][0]["content"] for item in items] == ["one", "two"]
    assert items[1].custom_id == "b" and items[0].seed != items[1].seed
    with pytest.raises(InputInvalid):
        read_items(source, spec, settings, first=None)


@pytest.mark.parametrize(
    ("section", "said"),
    [("{reps: 2}", "bench.reps"), ("{repeat: 0}", "bench.repeat"), ("fast", "bench")],
)
def test_section_of_the_spec_that_makes_no_sense_is_refused(tmp_path: Path, section: str, said: str) -> None:
    (tmp_path / "pipeline.yaml").write_text(f"home: {tmp_path / 'home'}\n")
    (tmp_path / "job.yaml").write_text(f"model: tiny\ninput: in.jsonl\nbench: {section}\n")
    done = pipeline(tmp_path, tmp_path, "bench", "job.yaml")
    assert done.returncode == ExitCode.USAGE
    assert said in done.stderr and "job.yaml" in done.stderr
