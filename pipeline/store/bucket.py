"""A bucket of an S3 server as a store's place: one PUT to a name that nobody else writes.

A large file goes up in pieces that become one object when the last has arrived, and are taken back when one fails.
Nothing is cached and nothing is listed to find out what is there: a file that another host has just put is seen. The
client is made once and is safe from any thread; it starts none itself.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config

from pipeline.errors import ConfigError, PipelineError
from pipeline.secrecy import mask_secrets
from pipeline.store.bucket_faults import ERRORS, code_of, translated
from pipeline.store.faults import mapped
from pipeline.store.object_reader import ObjectReader
from pipeline.store.pending import CHUNK_BYTES, Artifact, HashingWriter, Pending
from pipeline.store.place import Name, StoredFile

#: Seconds to wait for a connection; a server that takes longer is not there.
CONNECT_S = 5.0

#: Tries of one request, the first among them.
TRIES = 3

#: A file up to this many bytes waits for its upload in memory, a longer one in the folder for temporary files.
SPOOL_BYTES = 8 << 20

#: A file longer than this goes up in pieces.
WHOLE_BYTES = 64 << 20

#: Bytes of a piece, and how many pieces S3 takes; beyond 160 GiB the pieces grow.
PIECE_BYTES, PIECES = 16 << 20, 10_000

#: What has no space left when a file cannot be kept here on its way.
_WAITING = "the folder for temporary files (TMPDIR)"

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")


class Bucket:
    """Implements :class:`pipeline.store.place.Place` for ``s3://bucket/prefix``.

    The endpoint, the region and the keys come from where every S3 tool takes them: ``AWS_*`` variables, or the files
    in ``~/.aws``.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        """``timeout_s`` is how long the server may be silent within a request. Raises ConfigError."""
        self.url = url
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise ConfigError("store_url must hold no keys", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        if not _BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment:
            raise ConfigError(f"store_url must be s3://bucket or s3://bucket/prefix, not {mask_secrets(url)!r}")
        self._bucket = parts.netloc
        self._prefix = f"{prefix}/" if (prefix := parts.path.strip("/")) else ""
        self._is_known = False
        self._endpoint = "the server"
        self._client = self._connect(timeout_s)
        self._endpoint = mask_secrets(str(self._client.meta.endpoint_url))

    def _connect(self, timeout_s: float) -> Any:
        # At debug level botocore logs whole requests, session tokens among their headers.
        logging.getLogger("botocore").setLevel(logging.WARNING)
        config = Config(
            connect_timeout=min(CONNECT_S, timeout_s),
            read_timeout=timeout_s,
            retries={"mode": "standard", "total_max_attempts": TRIES},
            max_pool_connections=64,
            # The body's sha256 is part of the signature, so every server checks what arrives; checksums in trailers
            # are Amazon's alone.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": True},
        )
        try:
            session = botocore.session.Session()
            region = os.environ.get("AWS_REGION") or None  # every tool but botocore reads it
            return session.create_client("s3", region_name=region, config=config)
        except (*ERRORS, ValueError) as error:  # ValueError: an endpoint that is no URL
            self._fail(error)

    def _fail(self, error: BaseException, uri: str = "") -> NoReturn:
        ours = translated(error, url=self.url, uri=uri, endpoint=self._endpoint, is_known=self._is_known)
        self._is_known |= code_of(error) == "NoSuchKey"
        raise ours from error

    @contextmanager
    def _calls(self, uri: str = "") -> Iterator[Any]:
        """The client, for calls about one file; their errors come out as ours."""
        try:
            yield self._client
        except PipelineError:
            raise
        except ERRORS as error:
            self._fail(error, uri)
        self._is_known = True

    def _key(self, uri: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + uri}

    # --- writing ---

    def ensure(self) -> None:
        """A bucket is made by whoever pays for it; the first read says if there is none."""

    @contextmanager
    def create(self, name: Name) -> Iterator[Pending]:
        with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
            body = cast(BinaryIO, spool)
            pending = Pending(HashingWriter(body, _WAITING), Artifact("", "", 0))
            yield pending
            with mapped(_WAITING):
                body.flush()
            stream = pending.stream
            uri = name if isinstance(name, str) else name(stream.sha256)
            body.seek(0)
            if stream.size <= WHOLE_BYTES:
                with self._calls(uri) as client:
                    client.put_object(**self._key(uri), Body=body, ContentLength=stream.size)
            else:
                self._upload(uri, body, stream.size)
            pending.artifact = Artifact(uri, stream.sha256, stream.size)

    def _upload(self, uri: str, body: BinaryIO, size: int) -> None:
        """In pieces; the object is there, whole, with the last call, and nothing is left of it when one fails."""
        piece_bytes = max(PIECE_BYTES, -(-size // PIECES))
        with self._calls(uri) as client:
            upload = self._key(uri) | {"UploadId": client.create_multipart_upload(**self._key(uri))["UploadId"]}
            try:
                done: list[dict[str, Any]] = []
                while piece := body.read(piece_bytes):
                    number = len(done) + 1
                    answer = client.upload_part(**upload, PartNumber=number, Body=piece)
                    done.append({"PartNumber": number, "ETag": answer["ETag"]})
                client.complete_multipart_upload(**upload, MultipartUpload={"Parts": done})
            except BaseException:
                with suppress(*ERRORS):  # what went wrong before is what counts
                    client.abort_multipart_upload(**upload)
                raise

    def delete(self, uri: str) -> None:
        with self._calls(uri) as client:
            client.delete_object(**self._key(uri))

    # --- reading ---

    def open(self, uri: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self._reader(uri), CHUNK_BYTES))

    def read(self, uri: str, start: int, end: int | None) -> bytes:
        if end is not None and end <= start:
            self._reader(uri, end=1).close()  # nothing to read, of a file that must be there all the same
            return b""
        with self._reader(uri, start=start, end=end) as reader:
            return reader.readall() or b""

    def exists(self, uri: str) -> bool:
        # Not HEAD: its answer has no body, so a bucket that is not there would look like a file that is not.
        try:
            self._client.get_object(**self._key(uri), Range="bytes=0-0")["Body"].close()
        except ERRORS as error:
            if code_of(error) not in ("NoSuchKey", "InvalidRange", "416"):
                self._fail(error, uri)
            self._is_known = True
            return code_of(error) != "NoSuchKey"  # an empty file has no first byte
        self._is_known = True
        return True

    @contextmanager
    def local_path(self, uri: str) -> Iterator[Path]:
        """A copy in a private folder."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / uri.rpartition("/")[2]
            with self.open(uri) as source, mapped(_WAITING), path.open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK_BYTES)
            yield path

    def files(self, prefix: str) -> Iterator[StoredFile]:
        after: dict[str, str] = {}
        while True:
            with self._calls() as client:
                page = client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix, **after)
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            for found in page.get("Contents", ()):
                age_s = (now - found["LastModified"]).total_seconds()
                yield StoredFile(found["Key"].removeprefix(self._prefix), int(found["Size"]), max(0.0, age_s))
            if not page.get("IsTruncated"):
                return
            after = {"ContinuationToken": page["NextContinuationToken"]}

    def remove_empty_folders(self, prefix: str) -> None:
        """There are no folders, only names with strokes in them."""

    def locate(self, uri: str) -> str:
        return f"{self.url}/{uri}"

    def _reader(self, uri: str, *, start: int = 0, end: int | None = None) -> ObjectReader:
        def get(span: str | None, etag: str | None) -> dict[str, Any]:
            asked = {"Range": span, "IfMatch": etag}
            response: dict[str, Any] = self._client.get_object(
                **self._key(uri), **{name: value for name, value in asked.items() if value is not None}
            )
            self._is_known = True
            return response

        return ObjectReader(get, lambda error: self._fail(error, uri), start=start, end=end)
