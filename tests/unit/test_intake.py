"""Intake: from the bytes of a user's file to the item file, or to a code and a line number for each fault."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import ExitCode, InputInvalid, UsageError
from pipeline.formats.items import Item, parse_items
from pipeline.formats.problems import InvalidLines
from pipeline.jobs.intake import IntakeOptions, IntakeReport, intake
from pipeline.specs.base import Endpoint, JobKind
from pipeline.store.artifacts import ArtifactStore

CHAT = "/v1/chat/completions"

CONTENT: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/v1/rerank": {"query": "q", "documents": ["d"]},
}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore((tmp_path / "store").as_uri())


def batch_line(custom_id: Any, *, url: str = CHAT, model: str | None = "m", **parameters: Any) -> bytes:
    body = CONTENT[url] | parameters | ({"model": model} if model is not None else {})
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def take(
    data: bytes, store: ArtifactStore, *, errors_path: Path | None = None, **options: Any
) -> tuple[IntakeReport, list[Item]]:
    chosen = IntakeOptions(**{"kind": JobKind.GENERATE, **options})
    report = intake(io.BytesIO(data), chosen, store, errors_path=errors_path)
    return report, parse_items(store.read_bytes(report.artifact.uri, sha256=report.artifact.sha256))


def refuse(data: bytes, store: ArtifactStore, **options: Any) -> InvalidLines:
    with pytest.raises(InputInvalid) as caught:
        take(data, store, **options)
    assert isinstance(caught.value, InvalidLines)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


GOOD = batch_line("good")

#: What one bad line between two good ones is called.
BAD_LINES: dict[str, tuple[bytes, str, str | None]] = {
    "no json": (b"hello", "invalid_json", None),
    "nan": (GOOD.replace(b'"m"', b'"m","temperature":NaN'), "invalid_json", None),
    "not utf-8": (GOOD.replace(b"hello", b"h\xe9llo"), "invalid_utf8", None),
    "lone surrogate": (GOOD.replace(b"hello", b"\\ud800"), "lone_surrogate", None),
    "array": (b"[1]", "not_an_object", None),
    "10 MB": (batch_line("big", user="x" * 10_000_000), "line_too_long", None),
    "number as id": (batch_line(17), "invalid_type", "custom_id"),
    "id of 1,000 characters": (batch_line("x" * 1000), "invalid_value", "custom_id"),
    "no id": (GOOD.replace(b'"custom_id":"good",', b""), "missing_field", "custom_id"),
    "max_tokens 0": (batch_line("b", max_tokens=0), "invalid_value", "max_tokens"),
    "typing error": (batch_line("b", max_token=5), "unknown_parameter", "max_token"),
    "no model": (batch_line("b", model=None), "missing_field", "model"),
    "other model": (batch_line("b", model="n"), "mixed_models", "model"),
    "other endpoint": (batch_line("b", url="/v1/completions"), "mixed_endpoints", "url"),
    "endpoint of another kind": (batch_line("b", url="/v1/embeddings"), "unsupported_endpoint", "url"),
    "repeated id": (batch_line("first"), "duplicate_custom_id", "custom_id"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line_is_refused_with_code_and_line(name: str, store: ArtifactStore, tmp_path: Path) -> None:
    line, code, param = BAD_LINES[name]
    error = refuse(b"\n".join([batch_line("first"), line, batch_line("last")]) + b"\n", store)
    assert [(p.code, p.line, p.param) for p in error.problems] == [(code, 2, param)]
    assert "1 of 3 lines" in error.message
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line_becomes_an_item_that_errs(name: str, store: ArtifactStore) -> None:
    line, code, param = BAD_LINES[name]
    data = b"\n".join([batch_line("first"), line, batch_line("last")]) + b"\n"
    report, items = take(data, store, skip_invalid=True)
    assert (report.items, report.invalid, report.code_counts) == (3, 1, {code: 1})
    assert [item.line for item in items] == [1, 2, 3]
    assert len({item.custom_id for item in items}) == 3
    assert items[1].body is None
    assert items[1].error is not None
    assert (items[1].error["code"], items[1].error["line"], items[1].error["param"]) == (code, 2, param)
    assert items[0].error is None
    assert items[2].error is None


def test_invalid_item_keeps_its_own_id_where_it_can(store: ArtifactStore) -> None:
    lines = [batch_line("a", max_tokens=0), batch_line("a"), batch_line("b"), batch_line("b", n=0), b"{", batch_line(7)]
    _, items = take(b"\n".join(lines), store, skip_invalid=True)
    ids = [item.custom_id for item in items]
    assert ids == ["a", "invalid-line-2", "b", "invalid-line-4", "invalid-line-5", "invalid-line-6"]


def test_repeated_id_names_both_lines(store: ArtifactStore) -> None:
    error = refuse(b"\n".join([batch_line("a"), b"", batch_line("b"), batch_line("a")]), store)
    assert [p.line for p in error.problems] == [4]
    assert '"a" is on lines 1 and 4' in error.problems[0].message


def test_mixed_models_and_endpoints_name_both_lines(store: ArtifactStore) -> None:
    lines = [batch_line("a"), batch_line("b", model="n"), batch_line("c", url="/v1/completions")]
    error = refuse(b"\n".join(lines), store)
    assert [p.code for p in error.problems] == ["mixed_models", "mixed_endpoints"]
    assert all("line 1" in p.message for p in error.problems)


@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
@pytest.mark.parametrize("skip_invalid", [False, True])
def test_file_without_requests_is_refused(data: bytes, skip_invalid: bool, store: ArtifactStore) -> None:
    error = refuse(data, store, skip_invalid=skip_invalid)
    assert [(p.code, p.line) for p in error.problems] == [("empty_file", None)]


def test_last_line_may_lack_its_newline(store: ArtifactStore) -> None:
    assert take(batch_line("a") + b"\n" + batch_line("b"), store)[0].items == 2


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_cut_last_line_is_refused_with_its_line(cut: int, store: ArtifactStore) -> None:
    error = refuse(batch_line("a") + b"\n" + batch_line("b")[:-cut], store)
    assert [(p.code, p.line) for p in error.problems] == [("invalid_json", 2)]
    assert "cut short" in error.problems[0].message


def test_endings_marks_and_blank_lines_change_nothing_and_are_counted(store: ArtifactStore) -> None:
    plain, _ = take(b"\n\n".join([batch_line("a"), batch_line("b")]) + b"\n", store)
    other, _ = take(b"\xef\xbb\xbf" + b"\r\n\r\n".join([batch_line("a"), batch_line("b")]) + b"\r\n", store)
    assert other.artifact == plain.artifact
    assert (plain.blank_lines, plain.crlf_lines, plain.has_bom) == (1, 0, False)
    assert (other.blank_lines, other.crlf_lines, other.has_bom) == (1, 3, True)


def test_item_holds_line_and_body_without_model(store: ArtifactStore) -> None:
    _, items = take(b"\n" + batch_line("../../a", temperature=0, seed=None), store)
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
    assert items == [Item("../../a", 2, body)]


def test_ids_never_become_paths(store: ArtifactStore, tmp_path: Path) -> None:
    take(batch_line("../../../escaped"), store)
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1
    assert files[0].parts[:2] == ("store", "inputs")


@pytest.mark.parametrize(
    ("kind", "url", "endpoint"),
    [
        (JobKind.GENERATE, CHAT, Endpoint.CHAT),
        (JobKind.GENERATE, "/v1/completions", Endpoint.COMPLETIONS),
        (JobKind.EMBED, "/v1/embeddings", Endpoint.EMBEDDINGS),
        (JobKind.RERANK, "/v1/rerank", Endpoint.RERANK),
    ],
)
def test_endpoint_and_model_are_reported(kind: JobKind, url: str, endpoint: Endpoint, store: ArtifactStore) -> None:
    report, _ = take(batch_line("a", url=url), store, kind=kind)
    assert (report.endpoint, report.model) == (endpoint, "m")


def test_model_option_stands_in_for_lines_that_name_none(store: ArtifactStore) -> None:
    report, _ = take(batch_line("a", model=None) + b"\n" + batch_line("b"), store, model="option")
    assert report.model == "m"
    assert take(batch_line("a", model=None), store, model="option")[0].model is None


@pytest.mark.parametrize(
    ("line", "is_batch"),
    [
        (batch_line("a"), True),
        (b'{"prompt": "p"}', False),
        (b'{"messages": [{"role": "user", "content": "x"}]}', False),
    ],
)
def test_format_is_seen_from_the_first_object(line: bytes, is_batch: bool, store: ArtifactStore) -> None:
    _, items = take(b"broken\n" + line, store, model="m", skip_invalid=True)
    assert items[1].body is not None
    wrong = "simple" if is_batch else "openai"
    assert refuse(line, store, model="m", format=wrong).problems[0].code in {"unknown_parameter", "missing_field"}


def test_simple_lines_with_the_users_own_names(store: ArtifactStore) -> None:
    data = b'{"_id": "1", "title": "a", "text": "b", "author": "c"}\n{"_id": "2", "title": "", "text": ""}\n'
    options: dict[str, Any] = {"kind": JobKind.EMBED, "model": "m", "id_field": "_id", "title_field": "title"}
    _, items = take(data, store, ignore_fields=("author",), **options)
    assert items == [Item("1", 1, {"input": "a b"}), Item("2", 2, {"input": ""})]
    error = refuse(data, store, **options)
    assert [(p.code, p.line, p.param) for p in error.problems] == [("unknown_parameter", 1, "author")]


def test_options_that_contradict_each_other_are_refused(store: ArtifactStore) -> None:
    with pytest.raises(UsageError, match="two meanings"):
        take(b'{"text": "a"}', store, kind=JobKind.EMBED, id_field="text")


def test_made_ids_do_not_collide_silently_with_the_users(store: ArtifactStore) -> None:
    _, items = take(b'{"prompt": "p"}', store, model="m")
    own = orjson.dumps({"prompt": "q", "custom_id": items[0].custom_id})
    for lines in ([b'{"prompt": "p"}', own], [own, b'{"prompt": "p"}']):
        assert [p.code for p in refuse(b"\n".join(lines), store, model="m").problems] == ["duplicate_custom_id"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "x", "y", "z"])), min_size=1, max_size=8),
    seed=st.integers(),
)
def test_made_ids_survive_any_order_of_lines(
    rows: list[tuple[str, str | None]], seed: int, store: ArtifactStore
) -> None:
    named = {custom_id: text for text, custom_id in rows if custom_id is not None}
    lines = [orjson.dumps({"prompt": text}) for text, custom_id in rows if custom_id is None]
    lines += [orjson.dumps({"prompt": text, "custom_id": custom_id}) for custom_id, text in named.items()]
    shuffled = list(lines)
    random.Random(seed).shuffle(shuffled)
    answers = [
        sorted((item.custom_id, orjson.dumps(item.body)) for item in take(b"\n".join(order), store, model="m")[1])
        for order in (lines, shuffled)
    ]
    assert answers[0] == answers[1]
    assert len({custom_id for custom_id, _ in answers[0]}) == len(lines)


def test_first_hundred_problems_are_shown_and_all_are_written(store: ArtifactStore, tmp_path: Path) -> None:
    errors = tmp_path / "folder" / "errors.jsonl"
    data = b"".join(b"{\n" if n % 2 else batch_line(n) + b"\n" for n in range(1, 251))
    error = refuse(data, store, errors_path=errors)
    assert [p.line for p in error.problems] == list(range(1, 101))
    assert error.summary.total == 250
    assert error.summary.code_counts == {"invalid_json": 125, "invalid_type": 125}
    assert str(errors) in str(error.hint)
    written = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [row["line"] for row in written] == list(range(1, 251))
    assert all(row.keys() == {"code", "line", "message", "param"} for row in written)
    assert written[:100] == [p.as_json() for p in error.problems]


def test_sound_file_leaves_no_errors_file(store: ArtifactStore, tmp_path: Path) -> None:
    report, _ = take(batch_line("a"), store, errors_path=tmp_path / "errors.jsonl")
    assert report.errors_path is None
    assert not (tmp_path / "errors.jsonl").exists()


def test_errors_file_that_cannot_be_written_is_a_usage_error(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        take(b"{", store, errors_path=tmp_path)


def test_same_file_and_options_give_the_same_artifact(store: ArtifactStore) -> None:
    data = b"\n".join([batch_line("a"), b"{", batch_line(5), b"[]"])
    assert take(data, store, skip_invalid=True)[0].artifact == take(data, store, skip_invalid=True)[0].artifact


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_end_in_items_or_in_coded_problems(data: bytes, store: ArtifactStore) -> None:
    lines = sum(bool(line.strip()) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))
    if not lines:
        assert [p.code for p in refuse(data, store, skip_invalid=True).problems] == ["empty_file"]
        return
    report, items = take(data, store, model="m", skip_invalid=True)
    assert len(items) == report.items == lines
    assert len({item.custom_id for item in items}) == lines


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_json_in_any_place_is_taken_or_refused_with_a_code(store: ArtifactStore, data: st.DataObject) -> None:
    anything = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
    line = orjson.loads(batch_line("a", temperature=0, stop=["x"]))
    name = data.draw(st.sampled_from(["custom_id", "method", "url", "body", "messages", "temperature", "stop", "role"]))
    place = line if name in line else line["body"] if name in line["body"] else line["body"]["messages"][0]
    place[name] = data.draw(anything)
    try:
        encoded = orjson.dumps(line)
    except orjson.JSONEncodeError:
        return  # a text that UTF-8 cannot hold; test_bad_line_is_refused_with_code_and_line has it
    report, items = take(encoded, store, model="m", skip_invalid=True)
    assert report.items == 1
    assert (items[0].error is None) == (report.invalid == 0)
