"""The embedding engine: texts in, one vector per passage out, over the encoder and the model's own pooling.

Micro-batches are frozen by the shard (`microbatches`), so what is computed does not depend on what an earlier attempt
left. Knows nothing about where vectors are kept.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from tokenizers import Tokenizer

from pipeline.errors import ItemError, JobError, ModelUnsupported, NonFiniteVector
from pipeline.ports import (
    Answer,
    Boundary,
    Emit,
    EngineInfo,
    EngineRequest,
    JsonObject,
    RunStats,
    ShouldStop,
    Started,
    WorkItem,
)
from pipeline.specs import Overflow
from workers.engines.answers import error_answer
from workers.engines.chunking import PassageCutter, load_tokenizer
from workers.engines.embed_items import EmbedOptions, EmbedRequest, Piece, embed_answer, parse_body
from workers.engines.encoder import Encoder, EncoderConfig, choose_dtype, load_encoder, weight_files
from workers.engines.microbatches import Group, freeze_groups, pad_right
from workers.engines.platform import numeric_platform
from workers.engines.pooling import SentenceConfig, pool, read_sentence_config
from workers.engines.tally import Tally

Vectors = npt.NDArray[np.float32]

#: Least cosine between a text's vector alone and in a batch; below it the engine runs one text at a time.
PROBE_COSINE = 0.9999

#: Their lengths differ, so that in one batch all but the longest are padded.
PROBE_TEXTS = (
    "a",
    "seven words are in this short line",
    "A batch is as long as its longest row, and what fills up the shorter ones must not change them at all.",
)


class EmbeddingEngine:
    """Holds one sentence encoder. Implements :class:`pipeline.ports.Embedder`."""

    def __init__(self) -> None:
        self._encoder: Encoder | None = None

    def load(self, request: EngineRequest) -> EngineInfo:
        """Load a sentence-transformers folder; raises ModelUnsupported, or JobError for options it cannot meet."""
        started = time.monotonic()
        if request.model_path is None:
            raise JobError("an embedding engine needs a model")
        folder = Path(request.model_path)
        options = self._options = _parse_options(request.options)
        config = _read_config(folder)
        sentence = self._sentence = read_sentence_config(folder, config.max_position_embeddings)
        tokenizer = load_tokenizer(folder)
        if sentence.lowercase and (tokenizer.normalizer is None or tokenizer.normalizer.normalize_str("A") != "a"):
            raise ModelUnsupported("the model wants lowercased text and its tokenizer does not lowercase")
        prompt = _choose_prompt(sentence, options.prompt_name)
        self._cutter = PassageCutter(
            tokenizer,
            max_length=sentence.max_length,
            overflow=options.overflow,
            overlap=options.chunk_overlap,
            prompt=prompt,
        )
        self._pad_id = tokenizer.token_to_id("[PAD]") or 0
        self._normalize = sentence.normalize if options.normalize is None else options.normalize
        self._dimension = options.dimensions or config.hidden_size
        if self._dimension > config.hidden_size:
            raise JobError(f"dimensions is {self._dimension}, the model's vectors have {config.hidden_size}")
        self._encoder = load_encoder(folder, config, choose_dtype(request.dtype))
        dtype = str(self._encoder.words.weight.dtype).rsplit(".", 1)[-1]
        probe = self._probe(tokenizer)
        self._widest = None if probe["passed"] else 1
        return EngineInfo(
            kind="embed",
            model_digest=request.model_digest,
            numeric_platform=numeric_platform(dtype),
            load_s=time.monotonic() - started,
            context_length=sentence.max_length,
            recipe={
                "weights": _digest(weight_files(folder)),
                "encoder": config.as_json(),
                "tokenizer": _digest([folder / "tokenizer.json"]),
                "pooling": sentence.pooling,
                "prompt": prompt,
                "dtype": dtype,
                "dimension": self._dimension,
                "normalize": self._normalize,
                "max_length": sentence.max_length,
                "overflow": options.overflow.value,
                "chunk_overlap": options.chunk_overlap if options.overflow is Overflow.CHUNK else None,
            },
            details={"probe": probe, "batch_size": self._widest or options.batch_size},
        )

    def run(
        self,
        items: Sequence[WorkItem],
        options: JsonObject,
        *,
        done: frozenset[int],
        emit: Emit,
        should_stop: ShouldStop,
    ) -> RunStats:
        """See :class:`pipeline.ports.Engine`. ``options`` must make the space that ``load`` announced."""
        chosen = _parse_options(options)
        if not chosen.makes_space_of(self._options):
            raise JobError("this run asks for another embedding space than the engine was loaded for")
        tally = Tally("embed")
        pieces, requests = self._prepare(items, done, emit, tally)
        rows_of = {index: [piece.passage.ids for piece in found] for index, found in pieces.items()}
        for group in freeze_groups(rows_of, self._widest or chosen.batch_size):
            if group.is_answered(done):
                continue
            emit(Started(group.items))
            encoded = self._encode_group(group, tally, emit, should_stop)
            if encoded is None:
                return tally.stats(cancelled=True)
            for index in group.items:
                if index not in done:
                    answer = self._answer(index, requests[index], pieces[index], encoded[index], chosen)
                    _count(tally, answer, pieces[index])
                    emit(answer)
            emit(tally.progress())
            emit(Boundary())
        return tally.stats()

    def close(self) -> None:
        self._encoder = None
        gc.collect()
        mx.clear_cache()

    # --- one shard ---

    def _prepare(
        self, items: Sequence[WorkItem], done: frozenset[int], emit: Emit, tally: Tally
    ) -> tuple[dict[int, list[Piece]], dict[int, EmbedRequest]]:
        """Read and cut every item of the shard; answers those that cannot be embedded."""
        requests: dict[int, EmbedRequest] = {}
        errors: dict[int, ItemError] = {}
        for item in items:
            try:
                requests[item.index] = parse_body(item.body, self._dimension)
            except ItemError as error:
                errors[item.index] = error
        cut = iter(self._cutter.cut([text for request in requests.values() for text in request.texts]))
        pieces: dict[int, list[Piece]] = {}
        for index, request in requests.items():
            found: list[Piece] = []
            for place, passages in enumerate(islice(cut, len(request.texts))):
                if isinstance(passages, ItemError):
                    errors.setdefault(index, passages)
                else:
                    found += [Piece(place, passage) for passage in passages]
            if index not in errors:
                pieces[index] = found
        told = [index for index in sorted(errors) if index not in done]
        for index in told:
            answer = error_answer(index, errors[index])
            tally.add_answer(answer)
            emit(answer)
        if told:
            emit(tally.progress())
            emit(Boundary())
        return pieces, requests

    def _encode_group(
        self, group: Group, tally: Tally, emit: Emit, should_stop: ShouldStop
    ) -> dict[int, list[Vectors | None]] | None:
        """The vectors of each item of a group, in order, None for one that is not usable; None when told to stop."""
        found: dict[tuple[int, int], Vectors | None] = {}
        for batch in group.batches:
            if should_stop():
                return None
            with tally.call():
                vectors = self._encode([row.ids for row in batch])
            for row, vector in zip(batch, vectors, strict=True):
                usable = _usable(vector)
                if usable is None:
                    # A fault of the batch must not cost the item its answer, nor the other way round.
                    tally.count("rerun_alone")
                    with tally.call():
                        usable = _usable(self._encode([row.ids])[0])
                found[row.item, row.ordinal] = usable
            tally.add_tokens(sum(len(row.ids) for row in batch))
            tally.count("padded_tokens", len(batch) * max(len(row.ids) for row in batch))
            emit(tally.progress())
        return {item: [found[key] for key in sorted(found) if key[0] == item] for item in group.items}

    def _encode(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """[len(rows), dimension] float32: the first ``dimension`` components, not normalised."""
        assert self._encoder is not None
        ids, lengths = pad_right(rows, self._pad_id)
        pooled = pool(self._encoder(ids, lengths), lengths, self._sentence.pooling)
        return np.array(pooled[:, : self._dimension])

    def _answer(
        self,
        index: int,
        request: EmbedRequest,
        pieces: Sequence[Piece],
        vectors: Sequence[Vectors | None],
        options: EmbedOptions,
    ) -> Answer:
        usable = [vector for vector in vectors if vector is not None]
        if len(usable) < len(vectors):
            return error_answer(index, NonFiniteVector("the model gave a vector that is zero or not finite"))
        raw = np.stack(usable)
        norms = np.linalg.norm(raw.astype(np.float64), axis=1)
        final = (raw / norms[:, None]).astype(np.float32) if self._normalize else raw
        return embed_answer(index, request, pieces, final, norms.tolist(), options)

    # --- at load ---

    def _probe(self, tokenizer: Tokenizer) -> JsonObject:
        """Compare texts of several lengths alone and in one batch (law 6)."""
        cutter = PassageCutter(tokenizer, max_length=self._sentence.max_length, overflow=Overflow.TRUNCATE)
        rows = [found[0].ids for found in cutter.cut(PROBE_TEXTS) if not isinstance(found, ItemError)]
        alone = np.concatenate([self._encode([row]) for row in rows]).astype(np.float64)
        batched = self._encode(rows).astype(np.float64)
        lengths = np.linalg.norm(alone, axis=1) * np.linalg.norm(batched, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            cosine = float(np.min((alone * batched).sum(axis=1) / lengths))
        # Written so that a NaN fails.
        return {"passed": cosine >= PROBE_COSINE, "cosine": cosine if np.isfinite(cosine) else None}


def _parse_options(options: JsonObject) -> EmbedOptions:
    try:
        return EmbedOptions.model_validate(options)
    except ValidationError as error:
        raise JobError(f"the options of this embedding job are not valid: {error}") from error


def _read_config(folder: Path) -> EncoderConfig:
    try:
        return EncoderConfig.from_json(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ModelUnsupported(f"{folder} has no config.json") from error


def _choose_prompt(sentence: SentenceConfig, name: str | None) -> str:
    """The text of the prompt a job names, else of the model's default; raises JobError for an unknown name."""
    name = sentence.default_prompt if name is None else name
    if name is None:
        return ""
    if name not in sentence.prompts:
        known = ", ".join(sorted(sentence.prompts)) or "none"
        raise JobError(f"the model has no prompt named {name!r}", hint=f"its prompts: {known}")
    return sentence.prompts[name]


def _count(tally: Tally, answer: Answer, pieces: Sequence[Piece]) -> None:
    tally.add_answer(answer)
    if not answer.succeeded:
        return
    texts = Counter(piece.text for piece in pieces)
    tally.count("truncated", sum(piece.passage.truncated for piece in pieces))
    tally.count("chunked_texts", sum(count > 1 for count in texts.values()))
    tally.count("vectors", len(pieces))


def _usable(vector: Vectors) -> Vectors | None:
    """The vector, unless it is zero or not finite."""
    return vector if np.isfinite(vector).all() and vector.any() else None


def _digest(files: Iterable[Path]) -> str:
    """sha256 (hex) of the files' bytes, one after the other."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
