"""Fail if anything this project needs is under the GPL or AGPL; the LGPL (psycopg) is fine.

Looks at what is installed and reachable from our own requirements, extras included, not at whatever else is there.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

PROJECT = "mac-batch-pipeline"
EXTRAS = frozenset({"postgres", "s3", "dev"})

#: GPL, AGPL and their long names, but neither LGPL nor "Lesser".
COPYLEFT = re.compile(r"(?<![A-Za-z])A?GPL|GNU (Affero )?General Public", re.IGNORECASE)


def main() -> int:
    licences = {name: licence_of(found) for name, found in sorted(reachable().items())}
    refused = {name: words for name, words in licences.items() if COPYLEFT.search(words)}
    unknown = sorted(name for name, words in licences.items() if not words)
    for name, words in refused.items():
        print(f"{name}: {words}")
    for name in unknown:
        print(f"{name}: says no licence")
    families = Counter(words.split("\n")[0][:40] for words in licences.values())
    print(f"{len(licences)} packages: " + ", ".join(f"{words} {n}" for words, n in families.most_common(6)) + ", ...")
    return 1 if refused or unknown else 0


def reachable() -> dict[str, Distribution]:
    """Every installed distribution that ours requires, directly or not."""
    found: dict[str, Distribution] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(PROJECT, EXTRAS)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # wanted on another platform only
        for line in found[name].requires or ():
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((needed.name, frozenset(needed.extras)))
    return found


def licence_of(found: Distribution) -> str:
    """What a distribution says of itself: the SPDX expression, else classifiers, else the old free text."""
    expression = found.metadata.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [
        c.split(" :: ")[-1] for c in found.metadata.get_all("Classifier") or () if c.startswith("License ::")
    ]
    named = [words for words in classifiers if words != "OSI Approved"]
    return "; ".join(named) or str(found.metadata.get("License") or "")


if __name__ == "__main__":
    sys.exit(main())
