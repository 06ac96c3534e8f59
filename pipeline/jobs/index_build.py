"""The one item of an index job: vector files in, a proven index version out, registered with its part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.db.repository.base import utc_now
from pipeline.db.session import UnitOfWork
from pipeline.db.values import IndexView, ShardLease
from pipeline.errors import JobError
from pipeline.failpoints import fail_point
from pipeline.index.manifest import BuildRequest, BuildResult, VectorSource, make_id_runs
from pipeline.jobs.deployment import Deployment
from pipeline.ports import Answer, WorkItem
from pipeline.private import make_private_folder
from pipeline.specs import IndexSpec
from pipeline.store import layout
from pipeline.store.faults import mapped


class NoVectors(JobError):
    """The jobs named have no vectors to index."""

    code = "no_vectors"


class IndexBuild:
    """An index build under one lease: its request, and what becomes of its answer."""

    def __init__(self, deployment: Deployment, lease: ShardLease, spec: IndexSpec, request: BuildRequest) -> None:
        self._deployment = deployment
        self._lease = lease
        self._spec = spec
        self._view: IndexView | None = None
        self.item = WorkItem(0, spec.name, request.model_dump(mode="json"))

    @classmethod
    @contextmanager
    def prepare(cls, deployment: Deployment, lease: ShardLease, spec: IndexSpec) -> Iterator[IndexBuild]:
        """Make the vector files reachable for the child while the block lasts; raises NoVectors."""
        with deployment.database.read() as uow:
            files = list(uow.vectors.files_of(spec.sources))
            spaces = uow.vectors.spaces_of(spec.sources)
        if not files or len(spaces) != 1:
            raise NoVectors(f"{', '.join(spec.sources)} have vectors in {len(spaces)} spaces; an index needs one")
        space = spaces[0]
        scratch = deployment.settings.home_path / "scratch"
        with ExitStack() as stack:
            with mapped(str(scratch)):
                make_private_folder(scratch)
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
            sources = tuple(
                VectorSource(
                    path=stack.enter_context(deployment.store.local_path(file.uri)),
                    sha256=file.sha256,
                    count=file.count,
                    id_runs=make_id_runs(file.ids),
                )
                for file in files
            )
            request = BuildRequest(
                sources=sources,
                dimension=space.dimension,
                metric=spec.metric,
                normalized=space.normalized,
                space_digest=space.digest,
                factory=spec.factory,
                output=folder / "index.faiss",
                recall_queries=spec.recall_queries,
                recall_k=spec.recall_k,
            )
            yield cls(deployment, lease, spec, request)

    def publish(self, answer: Answer) -> Answer:
        """Bring the built file into the store; the answer that is recorded says where it is and how good."""
        if answer.body is None:
            return answer
        result = BuildResult.model_validate(answer.body)
        manifest, token = result.manifest, self._lease.token
        index_id = self._lease.shard.job_id.replace("job_", "idx_")
        store = self._deployment.store
        artifact = store.put_file(layout.index_file(index_id, token), result.output)
        text = manifest.model_dump_json(indent=2).encode() + b"\n"
        manifest_uri = store.put_bytes(layout.index_manifest(index_id, token), text).uri
        fail_point("publish.after_files")
        self._view = IndexView(
            id=index_id,
            job_id=self._lease.shard.job_id,
            name=self._spec.name,
            space_digest=manifest.space_digest,
            factory=manifest.factory,
            metric=manifest.metric,
            parameters=dict(manifest.parameters),
            dimension=manifest.dimension,
            count=manifest.count,
            uri=artifact.uri,
            sha256=artifact.sha256,
            manifest_uri=manifest_uri,
            recall=manifest.recall,
            recall_k=manifest.recall_k,
            created_at=utc_now(),
        )
        body = {
            "object": "index",
            "id": index_id,
            "name": self._spec.name,
            "count": manifest.count,
            "dimension": manifest.dimension,
            "metric": manifest.metric,
            "factory": manifest.factory,
            "recall": manifest.recall,
            "recall_k": manifest.recall_k,
        }
        return Answer(answer.index, body=body, usage=answer.usage, measures=answer.measures)

    def register(self, uow: UnitOfWork) -> None:
        """Insert the version in the transaction of its part; the alias moves when the job ends."""
        if self._view is not None:
            uow.indexes.add(self._view)
            fail_point("publish.in_row")
