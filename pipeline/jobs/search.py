"""Asking an index: queries become vectors in one child, vectors become ids in another, ids become texts here."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from pipeline.db.values import IndexView, VectorView
from pipeline.errors import ArtifactCorrupt, Conflict, InputInvalid, NotFound
from pipeline.formats.items import parse_items
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.kinds import engine_work
from pipeline.ports import Answer, EngineHost, EngineRequest, JsonObject, WorkItem
from pipeline.specs import EmbedSpec, IndexSpec, Overflow, parse_spec

#: Parts of a recipe that queries must share with the vectors they are compared to. Prompt and overflow may differ.
_SHARED = ("weights", "encoder", "tokenizer", "pooling", "dtype", "dimension", "normalize")


def search(
    deployment: Deployment,
    embedder: EngineHost,
    searcher: EngineHost,
    name: str,
    queries: Sequence[str],
    *,
    k: int,
    prompt_name: str | None = None,
) -> Iterator[JsonObject]:
    """Yield ``{"query", "hits": [{"rank", "score", "custom_id", "ordinal", "vector_id", "job_id", "text"}]}``.

    Raises:
        NotFound: no index of that name.
        Conflict: the model here does not make vectors of the index's space.
        ArtifactCorrupt: the index, or its manifest, is not what its row says; nothing of it was opened.
    """
    with deployment.database.read() as uow:
        index = uow.indexes.live(name)
        if index is None:
            known = ", ".join(uow.indexes.names()) or "there are none"
            raise NotFound(f"no index {name}", hint=f"known: {known}")
    if not queries:
        return
    vectors = _embed(deployment, embedder, index, queries, prompt_name)
    embedder.close()
    with deployment.store.local_path(index.uri) as path:
        manifest = _manifest(deployment, index)
        options = {"index_path": str(path), "manifest": manifest}
        searcher.prepare(EngineRequest(kind="search", model_path=None, options=options))
        body = {"vectors": base64.b64encode(b"".join(vectors)).decode(), "k": k}
        answer = _answers(searcher, [WorkItem(0, name, body)], {})[0]
    found: list[list[dict[str, Any]]] = (answer.body or {})["hits"]
    with deployment.database.read() as uow:
        places = uow.vectors.locate([hit["id"] for hits in found for hit in hits])
    texts = _Texts(deployment)
    for query, hits in zip(queries, found, strict=True):
        yield {
            "query": query,
            "hits": [
                {
                    "rank": rank,
                    "score": hit["score"],
                    "custom_id": places[hit["id"]].custom_id,
                    "ordinal": places[hit["id"]].ordinal,
                    "vector_id": hit["id"],
                    "job_id": places[hit["id"]].job_id,
                    "text": texts.of(places[hit["id"]]),
                }
                for rank, hit in enumerate(hits, start=1)
            ],
        }


def _manifest(deployment: Deployment, index: IndexView) -> JsonObject:
    """What stands beside the index file, if it is about the file that the row names: faiss opens no other."""
    data = deployment.store.read_bytes(index.manifest_uri)
    try:
        manifest = orjson.loads(data)
        named = manifest["sha256"], manifest["dimension"], manifest["count"], manifest["space_digest"]
    except (ValueError, KeyError, TypeError):
        raise ArtifactCorrupt(f"{index.manifest_uri} is no manifest") from None
    if named != (index.sha256, index.dimension, index.count, index.space_digest):
        raise ArtifactCorrupt(f"{index.manifest_uri} describes another index than its row")
    return dict(manifest)


def _embed(
    deployment: Deployment, embedder: EngineHost, index: IndexView, queries: Sequence[str], prompt_name: str | None
) -> list[bytes]:
    """One float32 vector per query, made by the model that made the index's vectors."""
    with deployment.database.read() as uow:
        build = uow.jobs.get(index.job_id)
        assert build is not None
        index_spec = parse_spec(build.spec)
        assert isinstance(index_spec, IndexSpec)
        source = uow.jobs.get(index_spec.sources[0])
        space = uow.vectors.space(index.space_digest)
    assert source is not None and space is not None
    spec = parse_spec(source.spec)
    assert isinstance(spec, EmbedSpec)
    changes = {"overflow": Overflow.TRUNCATE, "prompt_name": prompt_name or spec.prompt_name, "vectors": "files"}
    work = engine_work(spec.model_copy(update=changes), source, deployment.settings)
    info = embedder.prepare(work.request)
    recipe = info.recipe or {}
    differing = [part for part in _SHARED if recipe.get(part) != space.recipe.get(part)]
    if differing:
        raise Conflict(f"the model here differs from the index's in {', '.join(differing)}")
    items = [WorkItem(number, str(number), {"input": query}) for number, query in enumerate(queries)]
    answers = _answers(embedder, items, work.options)
    for query, answer in zip(queries, answers, strict=True):
        if not answer.succeeded:
            raise InputInvalid(f"query {query[:60]!r}: {(answer.error or {}).get('message')}")
    return [answer.vectors for answer in answers]


def _answers(host: EngineHost, items: Sequence[WorkItem], options: JsonObject) -> list[Answer]:
    run = host.run(items, options, done=frozenset())
    answers = {event.index: event for event in run.events() if isinstance(event, Answer)}
    return [answers[item.index] for item in items]


class _Texts:
    """The texts of hits; a shard's items are read once."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._shards: dict[int, list[JsonObject | None]] = {}

    def of(self, place: VectorView) -> str | None:
        """The passage a vector was made from; None where an item's several texts cannot be told apart."""
        if place.shard_id not in self._shards:
            self._shards[place.shard_id] = self._read(place)
        body = self._shards[place.shard_id][place.item] or {}
        text = body.get("input")
        if isinstance(text, list):
            return text[place.ordinal] if place.ordinal < len(text) else None
        return None if text is None else str(text)[place.start_char : place.end_char]

    def _read(self, place: VectorView) -> list[JsonObject | None]:
        with self._deployment.database.read() as uow:
            shard = uow.shards.get(place.shard_id)
            job = uow.jobs.get(place.job_id)
        assert shard is not None and job is not None and job.input_uri is not None
        data = self._deployment.store.read_bytes(job.input_uri, start=shard.start_byte, end=shard.end_byte)
        return [item.body for item in parse_items(data)]
