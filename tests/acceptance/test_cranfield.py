"""A real collection through the real pipeline: the ranking is as good as the same model's under PyTorch and numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.db.states import JobStatus
from pipeline.evaluate.ranking import evaluate_ranking
from pipeline.formats.trec import Hit, parse_qrels
from tests.fixtures.house import MakeHouse

#: An ordinary run takes the collection's first documents only, and what the reference printed for them:
#: ``python tests/benchmarks/cranfield_reference.py --documents 120`` (PyTorch transformers, numpy, the same texts).
SAMPLE_DOCUMENTS, SAMPLE_NDCG_10 = 120, 0.58880

#: Documents in all.
ALL_DOCUMENTS = 1400

REFERENCE = Path(__file__).parents[1] / "benchmarks" / "cranfield_reference.py"


@pytest.fixture
def cranfield() -> Path:
    """The collection's folder; skipped with a reason where CRANFIELD_DIR is not set."""
    folder = os.environ.get("CRANFIELD_DIR")
    if not folder:
        pytest.skip("CRANFIELD_DIR is not set: the Cranfield collection is not part of this repository")
    return Path(folder)


@pytest.mark.timeout(900)
def test_cranfield_ndcg_equals_the_references_to_three_decimals(
    make_house: MakeHouse, minilm_path: Path, cranfield: Path, full_counts: bool, tmp_path: Path
) -> None:
    """``make verify`` takes all documents, and runs the reference beside."""
    count = ALL_DOCUMENTS if full_counts else SAMPLE_DOCUMENTS
    expected = _reference(minilm_path) if full_counts else SAMPLE_NDCG_10
    corpus = tmp_path / "corpus.jsonl"
    lines = (cranfield / "corpus.jsonl").read_text().splitlines(keepends=True)[:count]
    corpus.write_text("".join(lines))
    present = {json.loads(line)["_id"] for line in lines}
    qrels = [one for one in parse_qrels((cranfield / "qrels.tsv").read_text().splitlines()) if one.document in present]
    judged = {one.query for one in qrels}
    house = make_house()
    house.add_model("minilm", minilm_path)
    beir = ["--id-field", "_id", "--title-field", "title", "--ignore-field", "author", "--ignore-field", "source"]
    submitted = house.pipeline("submit", "embed", str(corpus), "--model", "minilm", "--overflow", "truncate", *beir)
    embed = submitted.stdout.decode().strip()
    job = house.work_off(embed)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, count), house.logs()
    index = house.pipeline("submit", "index", "cranfield", "--from", embed).stdout.decode().strip()
    assert house.work_off(index).status is JobStatus.COMPLETED, house.logs()
    queries = [json.loads(line) for line in (cranfield / "queries.jsonl").read_text().splitlines()]
    queries = [query for query in queries if query["_id"] in judged]
    asked = b"".join(json.dumps({"query": query["text"]}).encode() + b"\n" for query in queries)
    command = [sys.executable, "-m", "workers", "search", "--name", "cranfield", "-k", "100"]
    found = subprocess.run(command, env=house.environ, input=asked, capture_output=True, check=True).stdout
    run = [
        Hit(query["_id"], hit["custom_id"], hit["rank"], hit["score"])
        for query, line in zip(queries, found.splitlines(), strict=True)
        for hit in json.loads(line)["hits"]
    ]
    report = evaluate_ranking(qrels, run, ["nDCG@10", "R@100"])
    print(json.dumps(report.values))
    assert round(report.values["nDCG@10"], 3) == round(expected, 3)


def _reference(model: Path) -> float:
    """The reference run itself, in a process of its own: torch never shares one with faiss."""
    done = subprocess.run([sys.executable, str(REFERENCE), str(model)], capture_output=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["ndcg@10"])
