"""The indexing engine behind the port, in a real child: builds, searches, and what goes wrong with either.

It differs in kind from the engines of the common suite (one item is one build), so it has a suite of its own.
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import Settings
from pipeline.errors import JobError, TransientError
from pipeline.index.manifest import BuildRequest, BuildResult
from pipeline.ports import Answer, Boundary, EngineEvent, EngineRequest, Progress, RunStats, WorkItem
from tests.fixtures.vector_files import make_clusters, make_request, shuffled_ids
from workers.supervisor import Supervisor

ROOT = Path(__file__).parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
BUILDER = EngineRequest("index", None)


@pytest.fixture(scope="module")
def host() -> Iterator[Supervisor]:
    supervisor = Supervisor(Settings(stall_timeout_s=120, load_timeout_s=120), environ=ENVIRON)
    yield supervisor
    supervisor.close()


def run(
    host: Supervisor,
    request: EngineRequest,
    bodies: list[dict[str, Any]],
    done: frozenset[int] = frozenset(),
    **options: Any,
) -> tuple[list[EngineEvent], RunStats]:
    host.prepare(request)
    items = [WorkItem(index, f"item-{index}", body) for index, body in enumerate(bodies)]
    shard = host.run(items, options, done=done)
    events = list(shard.events())
    return events, shard.stats


def build(host: Supervisor, request: BuildRequest) -> BuildResult:
    events, _ = run(host, BUILDER, [request.model_dump(mode="json")])
    (answer,) = [event for event in events if isinstance(event, Answer)]
    assert answer.body is not None
    return BuildResult.model_validate(answer.body)


def searcher(result: BuildResult) -> EngineRequest:
    options = {"index_path": str(result.output), "manifest": result.manifest.model_dump(mode="json")}
    return EngineRequest("search", None, options=options)


def encode(vectors: np.ndarray) -> str:
    return base64.b64encode(vectors.astype("<f4").tobytes()).decode()


def answers(events: list[EngineEvent]) -> dict[int, Answer]:
    found = [event for event in events if isinstance(event, Answer)]
    assert len(found) == len({answer.index for answer in found}), "an item was answered twice"
    return {answer.index: answer for answer in found}


def test_build_answers_its_item_once_with_progress_on_the_way(host: Supervisor, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(500), shuffled_ids(500))
    info = host.prepare(BUILDER)
    assert info.kind == "index"
    assert set(info.numeric_platform) == {"faiss", "faiss_compiled_for", "numpy"}
    events, stats = run(host, BUILDER, [request.model_dump(mode="json")])
    (answer,) = answers(events).values()
    assert answer.succeeded
    assert answer.measures["recall"] == 1.0
    assert answer.measures["vectors"] == 500
    moved = [event.tokens for event in events if isinstance(event, Progress) and event.phase == "build"]
    assert moved == sorted(moved)
    assert moved[-1] == stats.counters["vectors_handled"] == 1000
    assert events[-1] == Boundary()
    assert stats.busy
    assert all(start <= end for start, end in stats.busy)
    assert stats.peak_rss_bytes > 0
    assert request.output.stat().st_size == BuildResult.model_validate(answer.body).manifest.size


def test_build_that_is_done_is_not_done_again(host: Supervisor, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(20), list(range(20)))
    events, _ = run(host, BUILDER, [request.model_dump(mode="json")], done=frozenset({0}))
    assert answers(events) == {}
    assert not request.output.exists()


def corrupt(request: dict[str, Any]) -> None:
    path = Path(request["sources"][1]["path"])
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")


def remove(request: dict[str, Any]) -> None:
    Path(request["sources"][0]["path"]).unlink()


def change_space(request: dict[str, Any]) -> None:
    request["space_digest"] = "another"


def change_factory(request: dict[str, Any]) -> None:
    request["factory"] = "IVF4096,Flat"


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (corrupt, "artifact_corrupt"),
        (remove, "artifact_missing"),
        (change_space, "vectors_invalid"),
        (change_factory, "spec_invalid"),
    ],
)
def test_build_that_no_retry_can_mend_is_a_job_error(
    host: Supervisor, tmp_path: Path, spoil: Callable[[dict[str, Any]], None], code: str
) -> None:
    body = make_request(tmp_path, make_clusters(60), list(range(60))).model_dump(mode="json")
    spoil(body)
    with pytest.raises(JobError) as caught:
        run(host, BUILDER, [body])
    assert caught.value.code == code
    assert not Path(body["output"]).exists()


def test_build_that_cannot_write_may_be_tried_again(host: Supervisor, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(20), list(range(20)))
    lost = request.model_copy(update={"output": tmp_path / "absent" / "index.faiss"})
    with pytest.raises(TransientError) as caught:
        run(host, BUILDER, [lost.model_dump(mode="json")])
    assert caught.value.code == "store_unavailable"
    assert build(host, request).manifest.count == 20


def test_build_refuses_options_it_would_ignore(host: Supervisor, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(20), list(range(20)))
    with pytest.raises(JobError, match="unknown option 'k'"):
        run(host, BUILDER, [request.model_dump(mode="json")], k=3)
    with pytest.raises(JobError, match="no load options"):
        host.prepare(EngineRequest("index", None, options={"threads": 3}))


def test_search_answers_each_item_whatever_its_neighbours(host: Supervisor, tmp_path: Path) -> None:
    vectors, ids = make_clusters(200), shuffled_ids(200)
    result = build(host, make_request(tmp_path, vectors, ids))
    nan = vectors[:1].copy()
    nan[0, 3] = np.nan
    bodies: list[dict[str, Any]] = [
        {"vectors": encode(vectors[:3]), "k": 1},
        {"vectors": encode(nan)},
        {"vectors": encode(vectors[5:6])},
        {"vectors": encode(vectors[:1] * 2)},
        {"vectors": "not base64!"},
        {"vectors": encode(vectors[:1])[:-8]},
        {"k": 3},
        {"vectors": encode(vectors[:1]), "k": 0},
        {"vectors": encode(vectors[:1]), "nprobe": 8},
        {"vectors": ""},
        {"vectors": encode(vectors[:1]), "k": 1000},
    ]
    events, _ = run(host, searcher(result), bodies, done=frozenset({2}), k=4)
    found = answers(events)
    assert sorted(found) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]
    hits = found[0].body["hits"]  # type: ignore[index]
    assert [[hit["id"] for hit in row] for row in hits] == [[ids[0]], [ids[1]], [ids[2]]]
    assert all(row[0]["score"] == pytest.approx(1, abs=1e-6) for row in hits)
    codes = {index: answer.error["code"] for index, answer in found.items() if answer.error}
    assert codes == {
        1: "non_finite_vector",
        3: "vector_not_normalized",
        **dict.fromkeys((4, 5, 6, 7, 8), "invalid_value"),
    }
    assert found[9].body == {"hits": []}
    (everything,) = found[10].body["hits"]  # type: ignore[index]
    assert sorted(hit["id"] for hit in everything) == sorted(ids)
    scores = [hit["score"] for hit in everything]
    assert scores == sorted(scores, reverse=True)


def test_search_without_k_anywhere_errs_its_item(host: Supervisor, tmp_path: Path) -> None:
    vectors = make_clusters(20)
    result = build(host, make_request(tmp_path, vectors, list(range(20))))
    events, _ = run(host, searcher(result), [{"vectors": encode(vectors[:1])}])
    error = answers(events)[0].error
    assert error is not None
    assert (error["code"], error["param"]) == ("invalid_value", "k")


def test_search_of_a_corrupt_or_missing_index_is_a_job_error(host: Supervisor, tmp_path: Path) -> None:
    result = build(host, make_request(tmp_path, make_clusters(20), list(range(20))))
    result.output.write_bytes(result.output.read_bytes()[:-1])
    with pytest.raises(JobError) as caught:
        host.prepare(searcher(result))
    assert caught.value.code == "artifact_corrupt"
    result.output.unlink()
    with pytest.raises(JobError) as caught:
        host.prepare(searcher(result))
    assert caught.value.code == "artifact_missing"


def test_cancelled_build_ends_soon_and_leaves_nothing(tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(500), list(range(500)))
    script = f"""
from pipeline.ports import EngineRequest, WorkItem
from workers.engines.indexing import IndexingEngine
engine, events = IndexingEngine(), []
engine.load(EngineRequest("index", None))
item = WorkItem(0, "build", {request.model_dump(mode="json")!r})
stop = lambda: len(events) >= 2
stats = engine.run([item], {{}}, done=frozenset(), emit=events.append, should_stop=stop)
print(stats.cancelled, stats.counters, len(events))
"""
    assert python(script) == "True {'vectors_handled': 334} 2"
    assert not [path.name for path in tmp_path.iterdir() if "faiss" in path.name]


def test_process_of_an_index_holds_neither_models_nor_database() -> None:
    script = """
import sys
from pipeline.ports import EngineRequest
import workers.child
from workers.engines.indexing import IndexingEngine
IndexingEngine().load(EngineRequest("index", None))
import pipeline.index.build
print(sorted({name.split(".")[0] for name in sys.modules} & {"mlx", "torch", "sqlalchemy", "celery", "faiss"}))
"""
    assert python(script) == "['faiss']"


@pytest.mark.parametrize("library", ["torch", "mlx.core"])
def test_index_engine_refuses_to_load_beside(library: str) -> None:
    script = f"""
import sys, types
sys.modules[{library!r}] = types.ModuleType({library!r})
from pipeline.errors import JobError
from pipeline.ports import EngineRequest
from workers.engines.indexing import IndexingEngine
try:
    IndexingEngine().load(EngineRequest("index", None))
except JobError as error:
    print(error, "faiss" in sys.modules)
"""
    printed = python(script)
    assert printed.startswith(f"faiss must not be loaded beside {library}")
    assert printed.endswith("False")


def python(script: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=ENVIRON, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
