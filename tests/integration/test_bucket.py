"""A store in a bucket of a real S3 server: what a folder cannot show. What both share is in ``test_artifacts``."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.errors import ArtifactCorrupt, ArtifactMissing, ConfigError, PipelineError, StoreUnavailable
from pipeline.store import bucket
from pipeline.store.artifacts import ArtifactStore
from tests.fixtures.object_store import KEYS, ObjectStore, start_object_store

#: Silence that these tests wait out, in seconds.
SILENCE_S = 0.3

MIB = 1 << 20


@pytest.fixture
def name(object_store: ObjectStore) -> str:
    return object_store.make_bucket()


@pytest.fixture
def store(name: str) -> ArtifactStore:
    return ArtifactStore(f"s3://{name}", timeout_s=SILENCE_S)


def test_reading_a_range_moves_no_more_than_the_range(object_store: ObjectStore, store: ArtifactStore) -> None:
    store.put_bytes("input", os.urandom(4 * MIB))
    before = object_store.gate.answered_bytes
    assert len(store.read_bytes("input", start=3 * MIB, end=3 * MIB + 100)) == 100
    assert object_store.gate.answered_bytes - before < 64 << 10


def test_what_another_host_puts_and_deletes_is_seen_at_once(
    object_store: ObjectStore, store: ArtifactStore, name: str
) -> None:
    assert not store.exists("jobs/a/part")
    assert list(store.files("jobs/")) == []
    object_store.client().put_object(Bucket=name, Key="jobs/a/part", Body=b"theirs")
    assert store.exists("jobs/a/part")
    assert store.read_bytes("jobs/a/part") == b"theirs"
    assert [file.uri for file in store.files("jobs/")] == ["jobs/a/part"]
    object_store.client().delete_object(Bucket=name, Key="jobs/a/part")
    assert not store.exists("jobs/a/part")


def test_a_prefix_keeps_two_stores_in_one_bucket_apart(name: str) -> None:
    one, other = ArtifactStore(f"s3://{name}/one/"), ArtifactStore(f"s3://{name}/o")
    one.put_bytes("store.json", b"1")
    assert not other.exists("store.json")
    assert one.locate("store.json") == f"s3://{name}/one/store.json"
    assert [file.uri for file in one.files()] == ["store.json"]
    assert list(other.files()) == []


# --- large files ---


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "WHOLE_BYTES", 6 * MIB)
    monkeypatch.setattr(bucket, "PIECE_BYTES", 5 * MIB)  # the least that S3 takes


def uploads_left(object_store: ObjectStore, name: str) -> list[object]:
    return list(object_store.client().list_multipart_uploads(Bucket=name).get("Uploads", []))


@pytest.mark.usefixtures("small_pieces")
def test_a_large_file_goes_up_in_pieces_and_is_one_file(
    object_store: ObjectStore, store: ArtifactStore, name: str
) -> None:
    data = os.urandom(11 * MIB)
    artifact = store.put_bytes("output", data)
    assert store.read_bytes("output", sha256=artifact.sha256) == data
    etag = object_store.client().head_object(Bucket=name, Key="output")["ETag"]
    assert etag.strip('"').endswith("-3")  # S3's own word for three pieces
    assert uploads_left(object_store, name) == []


def test_an_upload_that_fails_leaves_neither_a_file_nor_pieces(
    object_store: ObjectStore, store: ArtifactStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "WHOLE_BYTES", 6 * MIB)
    monkeypatch.setattr(bucket, "PIECE_BYTES", 4 * MIB)  # the server refuses to join pieces so small
    with pytest.raises(StoreUnavailable, match="EntityTooSmall"):
        store.put_bytes("output", os.urandom(9 * MIB))
    assert not store.exists("output")
    assert uploads_left(object_store, name) == []


def test_a_block_that_fails_sends_nothing(object_store: ObjectStore, store: ArtifactStore) -> None:
    store.put_bytes("warm", b"up")
    before = object_store.gate.answered_bytes

    def write_half() -> None:
        with store.create("output") as pending:
            pending.stream.write(os.urandom(10 * MIB))  # beyond what waits in memory
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert object_store.gate.answered_bytes == before


# --- trouble ---


def test_a_stream_goes_on_where_its_connection_broke(object_store: ObjectStore, store: ArtifactStore) -> None:
    data = os.urandom(12 * MIB)
    store.put_bytes("input", data)
    with store.open("input") as stream:
        head = stream.read(3 * MIB)
        object_store.gate.shut()
        object_store.gate.open()
        assert head + stream.read() == data


def test_a_file_that_is_replaced_while_it_is_read_is_corrupt(object_store: ObjectStore, store: ArtifactStore) -> None:
    store.put_bytes("input", b"a" * 12 * MIB)
    with store.open("input") as stream:
        stream.read(3 * MIB)
        store.put_bytes("input", b"b" * 12 * MIB)
        object_store.gate.shut()
        object_store.gate.open()
        with pytest.raises(ArtifactCorrupt, match="replaced"):
            stream.read()


def use(store: ArtifactStore, tmp_path: Path) -> list[PipelineError]:
    """Use a store in every way; what each of them raised."""
    (tmp_path / "file").write_bytes(b"x")
    ways: list[Callable[[], object]] = [
        lambda: store.put_bytes("part", b"x"),
        lambda: store.put_file("part", tmp_path / "file"),
        lambda: store.read_bytes("kept"),
        lambda: store.read_bytes("kept", start=1, end=2),
        lambda: store.verify("kept", "0" * 64),
        lambda: store.exists("kept"),
        lambda: store.delete("part"),
        lambda: store.local_path("kept").__enter__(),
        lambda: list(store.files()),
    ]

    def fails(way: Callable[[], object]) -> PipelineError:
        with pytest.raises(PipelineError) as caught:
            way()
        return caught.value

    with ThreadPoolExecutor(len(ways)) as pool:
        return list(pool.map(fails, ways))


def test_a_server_that_is_gone_is_unavailable_and_then_there_again(
    object_store: ObjectStore, store: ArtifactStore, tmp_path: Path
) -> None:
    store.put_bytes("kept", b"kept")
    object_store.gate.shut()
    errors = use(store, tmp_path)
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert all("cannot be reached" in str(error) for error in errors)
    object_store.gate.open()
    assert store.read_bytes("kept") == b"kept"


def test_a_server_that_is_gone_at_the_first_use_is_unavailable_too(object_store: ObjectStore, name: str) -> None:
    object_store.gate.shut()
    with pytest.raises(StoreUnavailable):
        ArtifactStore(f"s3://{name}").read_bytes("store.json")


def test_a_server_that_stands_still_is_unavailable_in_bounded_time(
    own_object_store: ObjectStore, tmp_path: Path
) -> None:
    store = ArtifactStore(f"s3://{own_object_store.make_bucket()}", timeout_s=SILENCE_S)
    store.put_bytes("kept", b"kept")
    os.kill(own_object_store.pid, signal.SIGSTOP)
    errors = use(store, tmp_path)
    os.kill(own_object_store.pid, signal.SIGCONT)
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert all("silent" in str(error) for error in errors)
    assert store.read_bytes("kept") == b"kept"


def test_a_server_that_is_slow_is_waited_for(object_store: ObjectStore, name: str) -> None:
    store = ArtifactStore(f"s3://{name}", timeout_s=10)
    object_store.gate.delay_s = 0.5
    store.put_bytes("part", b"slowly")
    assert store.read_bytes("part") == b"slowly"


def test_threads_share_a_store(store: ArtifactStore) -> None:
    """Slots, keepers and control threads all use the worker's one client."""
    store = ArtifactStore(store.url, timeout_s=60)

    def work(number: int) -> None:
        for turn in range(5):
            data = f"{number} {turn}".encode() * 1000
            artifact = store.put_bytes(f"parts/{number}-{turn}", data)
            assert store.read_bytes(artifact.uri, sha256=artifact.sha256) == data

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(list(store.files("parts/"))) == 80


# --- settings ---


def test_a_region_is_needed_only_where_the_server_wants_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    store = ArtifactStore(f"s3://{name}")
    store.put_bytes("part", b"x")
    assert store.read_bytes("part") == b"x"


def test_a_bucket_that_is_not_there_is_a_fault_of_the_settings(object_store: ObjectStore, tmp_path: Path) -> None:
    errors = use(ArtifactStore("s3://no-such-bucket"), tmp_path)
    assert {type(error) for error in errors} == {ConfigError}
    assert all("s3://no-such-bucket" in str(error) and object_store.endpoint in str(error) for error in errors)
    assert all(error.hint and "store_url" in error.hint for error in errors)


def test_a_bucket_that_goes_away_under_a_worker_is_waited_for(
    object_store: ObjectStore, store: ArtifactStore, name: str
) -> None:
    with pytest.raises(ArtifactMissing):
        store.read_bytes("store.json")
    object_store.client().delete_bucket(Bucket=name)
    with pytest.raises(StoreUnavailable, match="no bucket"):
        store.put_bytes("part", b"x")
    object_store.client().create_bucket(Bucket=name)
    store.put_bytes("part", b"x")


def test_without_credentials_the_way_out_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="no complete credentials") as caught:
        ArtifactStore(f"s3://{name}").read_bytes("store.json")
    assert caught.value.hint is not None
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize("url", ["s3://AKID:hunter2hunter2@bucket/x", "s3://hunter2hunter2@bucket"])
def test_keys_in_the_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="no keys") as caught:
        ArtifactStore(url)
    assert "hunter2" not in str(caught.value)


def test_an_endpoint_that_is_no_url_is_a_fault_of_the_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "not a url")
    with pytest.raises(ConfigError, match="cannot be used"):
        ArtifactStore(f"s3://{name}")


@pytest.fixture
def guarded_store() -> Iterator[tuple[ObjectStore, str, dict[str, str]]]:
    """A server that checks keys; a bucket; keys that may do everything."""
    server = start_object_store(INITIAL_NO_AUTH_ACTION_COUNT="4")
    iam = server.client("iam")
    iam.create_user(UserName="worker")
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_user_policy(UserName="worker", PolicyName="all", PolicyDocument=json.dumps(everything))
    made = iam.create_access_key(UserName="worker")["AccessKey"]
    name = server.make_bucket()  # the fourth; from here on keys are checked
    keys = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
    yield server, name, server.environ | keys
    server.stop()


def test_wrong_keys_are_a_fault_of_the_settings_and_right_ones_work(
    guarded_store: tuple[ObjectStore, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, name, right = guarded_store
    for variable, text in right.items():
        monkeypatch.setenv(variable, text)
    store = ArtifactStore(f"s3://{name}")
    store.put_bytes("part", b"x")
    assert store.read_bytes("part") == b"x"

    for variable, code in (("AWS_ACCESS_KEY_ID", "InvalidAccessKeyId"), ("AWS_SECRET_ACCESS_KEY", "SignatureDoes")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "hunter2hunter2hunter2")
            with pytest.raises(ConfigError, match=f"refuses the credentials .*{code}") as caught:
                ArtifactStore(f"s3://{name}").read_bytes("store.json")
        assert caught.value.hint is not None
        assert "docs/operations.md" in caught.value.hint
        assert "hunter2" not in f"{caught.value} {caught.value.hint}"
    assert server.endpoint in str(caught.value)


def test_keys_that_are_taken_back_under_a_worker_are_waited_for(
    guarded_store: tuple[ObjectStore, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, name, right = guarded_store
    for variable, text in right.items():
        monkeypatch.setenv(variable, text)
    store = ArtifactStore(f"s3://{name}")
    store.put_bytes("part", b"x")
    import botocore.session

    iam = botocore.session.Session().create_client("iam", endpoint_url=server.endpoint, region_name="us-east-1")
    iam.delete_access_key(UserName="worker", AccessKeyId=right["AWS_ACCESS_KEY_ID"])
    with pytest.raises(StoreUnavailable, match="refuses the credentials"):
        store.put_bytes("other", b"x")


def test_no_log_holds_a_key_even_at_debug(
    store: ArtifactStore, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token-that-no-log-may-hold")
    logging.getLogger("botocore").setLevel(logging.NOTSET)
    with caplog.at_level(logging.DEBUG):
        store = ArtifactStore(f"s3://{name}")
        store.put_bytes("part", b"x")
        with pytest.raises(ArtifactMissing):
            store.read_bytes("none")
    assert "may-hold" not in caplog.text
    assert KEYS["AWS_ACCESS_KEY_ID"] not in caplog.text
