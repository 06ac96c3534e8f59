"""Simple lines: what each kind of job reads from them, under the user's own field names."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.formats.problems import LineRefused
from pipeline.formats.simple import FieldNames, SimpleFormat
from pipeline.specs.base import Endpoint, JobKind

BEIR = FieldNames(id_field="_id", title_field="title", ignore_fields=("metadata",))


@pytest.mark.parametrize(
    ("kind", "raw", "names", "line", "endpoint", "body"),
    [
        (
            JobKind.GENERATE,
            False,
            FieldNames(),
            {"prompt": "p", "max_tokens": 3, "temperature": 0.5},
            Endpoint.CHAT,
            {"messages": [{"role": "user", "content": "p"}], "max_tokens": 3, "temperature": 0.5},
        ),
        (
            JobKind.GENERATE,
            False,
            FieldNames(),
            {"messages": [{"role": "system", "content": "s"}], "prompt": None},
            Endpoint.CHAT,
            {"messages": [{"role": "system", "content": "s"}]},
        ),
        (JobKind.GENERATE, True, FieldNames(), {"prompt": "p"}, Endpoint.COMPLETIONS, {"prompt": "p"}),
        (
            JobKind.GENERATE,
            True,
            FieldNames(prompt_field="question"),
            {"question": "p", "top_k": 5},
            Endpoint.COMPLETIONS,
            {"prompt": "p", "top_k": 5},
        ),
        (JobKind.EMBED, False, FieldNames(), {"text": "t"}, Endpoint.EMBEDDINGS, {"input": "t"}),
        (JobKind.EMBED, False, FieldNames(), {"text": ["t", "u"]}, Endpoint.EMBEDDINGS, {"input": ["t", "u"]}),
        (JobKind.EMBED, False, FieldNames(text_field="input"), {"input": "t"}, Endpoint.EMBEDDINGS, {"input": "t"}),
        (JobKind.EMBED, False, FieldNames(text_field="body"), {"body": "t"}, Endpoint.EMBEDDINGS, {"input": "t"}),
        (
            JobKind.EMBED,
            False,
            BEIR,
            {"_id": "1", "title": "a", "text": "b", "metadata": {"x": 1}},
            Endpoint.EMBEDDINGS,
            {"input": "a b"},
        ),
        (JobKind.EMBED, False, BEIR, {"title": "", "text": "b"}, Endpoint.EMBEDDINGS, {"input": "b"}),
        (JobKind.EMBED, False, BEIR, {"title": "a", "text": ""}, Endpoint.EMBEDDINGS, {"input": "a"}),
        (JobKind.EMBED, False, BEIR, {"text": "b"}, Endpoint.EMBEDDINGS, {"input": "b"}),
        (
            JobKind.RERANK,
            False,
            FieldNames(query_field="q", documents_field="passages"),
            {"q": "x", "passages": ["a", {"text": "b"}], "top_n": 1},
            Endpoint.RERANK,
            {"query": "x", "documents": ["a", "b"], "top_n": 1},
        ),
    ],
)
def test_simple_line_is_read(
    kind: JobKind, raw: bool, names: FieldNames, line: dict[str, Any], endpoint: Endpoint, body: dict[str, Any]
) -> None:
    request = SimpleFormat(kind, names, raw=raw).read(line)
    assert (request.endpoint, request.body) == (endpoint, body)


def test_simple_line_gives_its_id_and_model() -> None:
    request = SimpleFormat(JobKind.EMBED, BEIR).read({"_id": "7", "text": "t", "model": "m"})
    assert (request.custom_id, request.model) == ("7", "m")
    assert SimpleFormat(JobKind.EMBED, BEIR).read({"text": "t"}).custom_id is None


@pytest.mark.parametrize(
    ("kind", "raw", "line", "code", "param"),
    [
        (JobKind.GENERATE, False, {"custom_id": "a"}, "missing_field", "prompt"),
        (JobKind.GENERATE, False, {"prompt": "p", "messages": []}, "conflicting_fields", "messages"),
        (JobKind.GENERATE, False, {"prompt": ["p"]}, "invalid_type", "prompt"),
        (JobKind.GENERATE, False, {"prompt": "p", "custom_id": 5}, "invalid_type", "custom_id"),
        (JobKind.GENERATE, False, {"prompt": "p", "max_token": 5}, "unknown_parameter", "max_token"),
        (JobKind.GENERATE, False, {"prompt": "p", "_id": "1"}, "unknown_parameter", "_id"),
        (JobKind.GENERATE, False, {"prompt": "p", "max_tokens": 0}, "invalid_value", "max_tokens"),
        (JobKind.GENERATE, False, {"text": "p"}, "unknown_parameter", "text"),
        (JobKind.GENERATE, True, {"messages": []}, "conflicting_fields", "messages"),
        (JobKind.GENERATE, True, {"prompt": ""}, "invalid_value", "prompt"),
        (JobKind.EMBED, False, {"text": None}, "missing_field", "text"),
        (JobKind.EMBED, False, {"text": "t", "input": "t"}, "unknown_parameter", "input"),
        (JobKind.EMBED, False, {"text": "t", "title": "x"}, "unknown_parameter", "title"),
        (JobKind.EMBED, False, {"text": []}, "invalid_value", "input"),
        (JobKind.RERANK, False, {"query": "q"}, "missing_field", "documents"),
        (JobKind.RERANK, False, {"documents": ["d"]}, "missing_field", "query"),
    ],
)
def test_simple_line_is_refused(kind: JobKind, raw: bool, line: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(LineRefused) as caught:
        SimpleFormat(kind, FieldNames(), raw=raw).read(line)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_title_that_is_no_string_is_refused() -> None:
    with pytest.raises(LineRefused, match="title must be a string"):
        SimpleFormat(JobKind.EMBED, BEIR).read({"title": 5, "text": "t"})


def test_unknown_field_names_the_nearest_one_and_the_way_out() -> None:
    with pytest.raises(LineRefused, match="did you mean prompt") as caught:
        SimpleFormat(JobKind.GENERATE, FieldNames()).read({"promt": "p"})
    assert "--prompt-field" in caught.value.message
    assert "--ignore-field" in caught.value.message


@pytest.mark.parametrize(
    "names",
    [
        FieldNames(id_field="text"),
        FieldNames(title_field="text"),
        FieldNames(ignore_fields=("text",)),
        FieldNames(text_field="model"),
    ],
)
def test_one_name_with_two_meanings_is_refused(names: FieldNames) -> None:
    with pytest.raises(UsageError, match="two meanings"):
        SimpleFormat(JobKind.EMBED, names)


def test_index_jobs_have_no_lines() -> None:
    with pytest.raises(UsageError, match="takes no file"):
        SimpleFormat(JobKind.INDEX, FieldNames())
