"""A name in the store tells what its file is, and a name that is none of ours tells nothing."""

from __future__ import annotations

import uuid

import pytest

from pipeline.store import layout
from pipeline.store.inventory import FOLDERS, FileKind, Name, read_name

SHA = "ab" * 32

NAMES = {
    layout.input_file(SHA): Name(FileKind.INPUT),
    layout.part_file("job_1", 2, 3, 4): Name(FileKind.PART, "job_1", 2, 3),
    layout.vector_file("job_1", 2, 3, 4): Name(FileKind.VECTORS, "job_1", 2, 3),
    layout.output_file("job_1", 5): Name(FileKind.OUTPUT, "job_1", None, 5),
    layout.errors_file("job_1", 5): Name(FileKind.OUTPUT, "job_1", None, 5),
    layout.index_file("idx_1", 6): Name(FileKind.INDEX, "job_1", 0, 6),
    layout.index_manifest("idx_1", 6): Name(FileKind.INDEX, "job_1", 0, 6),
    f"tmp/{uuid.UUID(int=7).hex}": Name(FileKind.TEMPORARY),
}


@pytest.mark.parametrize("uri", NAMES)
def test_names_of_the_layout_are_read_back(uri: str) -> None:
    assert read_name(uri) == NAMES[uri]
    assert uri.startswith(FOLDERS)


def test_every_kind_has_a_name_here() -> None:
    assert {name.kind for name in NAMES.values()} == set(FileKind)


@pytest.mark.parametrize(
    "uri",
    [
        layout.store_marker(),
        "jobs/job_1/.DS_Store",
        "jobs/job_1/output.5.jsonl.bak",
        "jobs/job_1/parts/0/mine.jsonl",
        "jobs/job_1/parts/0/1-0.jsonl\n",
        "jobs/../inputs/x",
        "inputs/ab/short.jsonl",
        "tmp/notes",
        "other/file",
    ],
)
def test_other_names_are_nobodys(uri: str) -> None:
    assert read_name(uri) is None
