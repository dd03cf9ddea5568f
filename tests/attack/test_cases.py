"""Every case that an attack ever found is right or refused now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attack import attention, cases, images, nets, stores
from attack.table import Failure

FOUND = [
    (kind, path) for kind in ("images", "results", "nets", "attention") for path in cases.stored_cases(kind)
]


@pytest.mark.parametrize(("kind", "path"), FOUND, ids=[f"{kind}-{path.name}" for kind, path in FOUND])
def test_what_an_attack_found_stays_fixed(kind: str, path: Path) -> None:
    if kind == "images":
        outcome = images.check(path)
    elif kind == "results":
        outcome = stores.check(path, None)
    elif kind == "attention":
        outcome = attention.check(json.loads(path.read_text()))[0]
    else:
        outcome = nets.check(json.loads(path.read_text()))[0]
    assert not isinstance(outcome, Failure), outcome
