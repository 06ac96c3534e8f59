"""What users reported of other systems' input handling, and what happens here: the command line, real small models.

Each test is named in docs/scenarios.md with the report it answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse

pytestmark = pytest.mark.timeout(300)

EDGE_TEXTS = {
    "empty": "",
    "blank": " ",
    "newline": "\n",
    "emoji": "\N{ROCKET}",
    "token": "the",
    "long": "word " * 4_000,
}


@pytest.fixture
def home(make_house: MakeHouse) -> House:
    return make_house()


def write(folder: Path, rows: list[dict[str, Any]]) -> str:
    file = folder / "input.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def submit(house: House, kind: str, file: str, model: str, *options: str) -> str:
    return house.pipeline("submit", kind, file, "--model", model, *options).stdout.decode().strip()


def metric(house: House, job_id: str, name: str) -> float:
    with house.deployment.database.read() as uow:
        return sum(row.value for row in uow.metrics.of_job(job_id) if row.name == name)


def test_repeated_custom_id_is_refused_with_both_lines(home: House, tmp_path: Path) -> None:
    """sgl-project/sglang#1415"""
    file = write(
        tmp_path,
        [{"custom_id": "a", "prompt": "x"}, {"custom_id": "b", "prompt": "x"}, {"custom_id": "a", "prompt": "y"}],
    )
    done = home.pipeline("submit", "generate", file, "--model", "fake", check=False)
    assert done.returncode == 2
    said = done.stderr.decode()
    assert "duplicate_custom_id" in said
    assert "lines 1 and 3" in said
    assert not home.pipeline("list", "--json").stdout.strip().strip(b"[]\n ")


def test_one_prompt_over_the_context_errs_alone(home: House, tiny_llama_path: Path, tmp_path: Path) -> None:
    """ray-project/ray#59194"""
    home.add_model("tiny", tiny_llama_path)
    rows = [{"custom_id": f"r{n}", "prompt": "hello world"} for n in range(5)]
    rows[2]["prompt"] = "hello world " * 400
    job_id = submit(home, "generate", write(tmp_path, rows), "tiny", "--max-tokens", "4")
    job = home.work_off(job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 4, 1), home.logs()
    assert job.engine is not None
    assert {"device", "dtype", "blas", "mlx"} <= set(job.engine["numeric_platform"])
    assert "engine" in home.pipeline("status", job_id).stdout.decode()
    (line,) = home.results(job_id, "errors")
    assert line["custom_id"] == "r2"
    assert line["error"]["code"] == "context_length_exceeded"
    assert len([word for word in line["error"]["message"].replace(",", "").split() if word.isdigit()]) >= 2


def test_base_model_without_template_is_one_error_before_any_work(
    home: House, tiny_base_path: Path, tmp_path: Path
) -> None:
    """jundot/omlx#1343"""
    home.add_model("base", tiny_base_path)
    file = write(tmp_path, [{"custom_id": f"r{n}", "prompt": "hello"} for n in range(3)])
    done = home.pipeline("submit", "generate", file, "--model", "base", check=False)
    assert done.returncode != 0
    said = done.stderr.decode()
    assert "chat template" in said
    assert "--raw" in said
    assert "Traceback" not in said
    job_id = submit(home, "generate", file, "base", "--raw", "--max-tokens", "4")
    assert home.work_off(job_id).succeeded == 3, home.logs()
    assert home.results(job_id)[0]["response"]["body"]["object"] == "text_completion"


def test_edge_texts_have_a_defined_outcome(home: House, minilm_path: Path, tmp_path: Path, full_counts: bool) -> None:
    """text-embeddings-inference#138, #413, #727; ollama#14186: every overflow policy is honoured and counted.

    The long text is 16 times what the model takes; with the full counts 80 times.
    """
    home.add_model("minilm", minilm_path)
    texts = EDGE_TEXTS | {"long": EDGE_TEXTS["long"] * (5 if full_counts else 1)}
    file = write(tmp_path, [{"custom_id": name, "text": text} for name, text in texts.items()])

    truncated = submit(home, "embed", file, "minilm", "--overflow", "truncate", "--vectors", "inline")
    job = home.work_off(truncated)
    assert (job.succeeded, job.errored) == (6, 0), home.logs()
    assert metric(home, truncated, "truncated") == 1
    for line in home.results(truncated):
        (row,) = line["response"]["body"]["data"]
        assert abs(sum(value * value for value in row["embedding"]) - 1) < 1e-3

    refused = submit(home, "embed", file, "minilm")
    job = home.work_off(refused)
    assert (job.succeeded, job.errored) == (5, 1)
    (line,) = home.results(refused, "errors")
    assert (line["custom_id"], line["error"]["code"]) == ("long", "context_length_exceeded")

    chunked = submit(home, "embed", file, "minilm", "--overflow", "chunk")
    job = home.work_off(chunked)
    assert (job.succeeded, job.errored) == (6, 0)
    by_id = {line["custom_id"]: line["response"]["body"]["data"] for line in home.results(chunked)}
    assert len(by_id["long"]) > (50 if full_counts else 10)
    assert len(by_id["token"]) == 1
    ends = [row["end"] for row in by_id["long"]]
    assert ends == sorted(ends)
    assert ends[-1] >= len(texts["long"].rstrip())


def test_hostile_ids_become_no_paths(home: House, tmp_path: Path) -> None:
    ids = ["../../../etc/passwd", "/etc/passwd", "a\\b", "..", "x" * 512, "\N{ROCKET}"]
    job_id = submit(home, "generate", write(tmp_path, [{"custom_id": one, "prompt": "x"} for one in ids]), "fake")
    assert home.work_off(job_id).succeeded == len(ids), home.logs()
    assert [line["custom_id"] for line in home.results(job_id)] == ids
    store = home.settings.home_path / "store"
    names = [str(path.relative_to(store)) for path in store.rglob("*")]
    assert not [name for name in names if "passwd" in name or "xxx" in name]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"prompt": "a"}\r\n{"prompt": NaN}\r\n', "invalid_json"),
        (b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "b"', "invalid_json"),
        (b'{"custom_id": 7, "prompt": "a"}\n', "invalid_type"),
        (b'{"custom_id": "%s", "prompt": "a"}\n' % (b"x" * 1000), "invalid_value"),
        (b'{"prompt": "a", "max_tokens": 0}\n', "invalid_value"),
        (b'{"prompt": "%s"}\n' % (b"x" * (10 << 20)), "line_too_long"),
        (b"", "empty_file"),
    ],
    ids=["nan", "cut", "number-id", "long-id", "no-tokens", "10-mb-line", "empty"],
)
def test_bad_file_is_a_code_and_a_line_never_a_traceback(home: House, tmp_path: Path, data: bytes, code: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(data)
    done = home.pipeline("submit", "generate", str(file), "--model", "fake", check=False)
    said = done.stderr.decode()
    assert done.returncode == 2, said
    assert code in said
    assert "Traceback" not in said


def test_unknown_model_is_one_clear_error(home: House, tmp_path: Path) -> None:
    file = write(tmp_path, [{"prompt": "x"}])
    done = home.pipeline("submit", "generate", file, "--model", "nobody-has-this", check=False)
    assert done.returncode == 3
    assert "nobody-has-this" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()


def test_job_whose_items_all_erred_says_so(home: House, tmp_path: Path) -> None:
    """kaapi-backend#723: "completed", but every row failed."""
    home.add_fake_model("wrong", errors={"a": "bad_luck", "b": "bad_luck"})
    file = write(tmp_path, [{"custom_id": one, "prompt": "x"} for one in ("a", "b")])
    done = home.pipeline("run", "generate", file, "--model", "wrong", check=False)
    assert done.returncode == 10
    assert "bad_luck" in done.stderr.decode()
    status = json.loads(home.pipeline("list", "--json").stdout)[0]
    report = json.loads(home.pipeline("status", status["id"], "--json").stdout)
    assert "all_errored" in json.dumps(report)
