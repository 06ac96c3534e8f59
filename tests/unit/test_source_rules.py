"""What the source must not hold: nothing that runs what it reads. Looked for in the syntax tree, not in the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Modules whose reading can run code.
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "torch",
    "code",
}

#: Calls by their last two names.
FORBIDDEN_CALLS = {
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "torch.load",
    "np.load",
    "numpy.load",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "pd.read_pickle",
}

FORBIDDEN_BUILTINS = {"eval", "exec", "compile", "__import__"}


def sources() -> list[Path]:
    return sorted(
        file for room in ("pipeline", "workers", "tasks", "migrations", "bin") for file in (ROOT / room).rglob("*.py")
    )


def faults(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
                yield str(node.module)
            yield from (one.name for one in node.names if f"{node.module}.{one.name}" in FORBIDDEN_CALLS)
        elif isinstance(node, ast.Call):
            name = ".".join(ast.unparse(node.func).split(".")[-2:])
            if name in FORBIDDEN_CALLS or (isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_BUILTINS):
                yield name
            for keyword in node.keywords:
                is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                if is_true and keyword.arg in ("shell", "allow_pickle", "trust_remote_code", "trust_code"):
                    yield f"{keyword.arg}=True"


@pytest.mark.parametrize("file", sources(), ids=lambda file: str(file.relative_to(ROOT)))
def test_no_source_runs_what_it_reads(file: Path) -> None:
    assert list(faults(ast.parse(file.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml\nyaml.load(x)",
        "from yaml import unsafe_load",
        "eval('1')",
        "subprocess.run('ls', shell=True)",
        "load_model(path, trust_remote_code=True)",
        "np.load(f, allow_pickle=True)",
        "torch.load(f)",
        "os.system('x')",
    ],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert list(faults(ast.parse(text)))


def test_ordinary_calls_are_not_found() -> None:
    assert not list(
        faults(ast.parse("mx.eval(x)\nmodel.eval()\nyaml.safe_load(x)\nre.compile('x')\nrun(x, shell=False)"))
    )
