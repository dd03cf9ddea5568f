"""Damaged and forged results and cache entries: what was saved, or refused; never other numbers."""

from __future__ import annotations

import random
import warnings
from functools import cache
from pathlib import Path

import torch

import bilrp
from attack import cases
from attack.budget import measure_cost
from attack.mutate import mutate_bytes, smallest
from attack.table import Failure, Row
from bilrp import Decomposition, Explanation
from bilrp.errors import BilrpError
from bilrp.explanation_files import serialize_explanation
from bilrp.inputs import Image, Item
from bilrp.io import files, store

TRIALS, FORGERIES = 240, 60  # a round


@cache
def explanation(similarity: str) -> Explanation:
    """A small pair with pictures, names and boxes."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(4))

    def read(number: int) -> Item:
        generator = torch.Generator().manual_seed(number)
        pixels = torch.randint(0, 256, (8, 8, 3), generator=generator, dtype=torch.uint8).numpy()
        x = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
        return Item(x, view=Image.from_image(pixels, (0.0, 0.0, 8.0, 8.0)), name=f"picture {number}")

    encoder = bilrp.Encoder(net, read=read, name="toy")  # type: ignore[arg-type]
    return bilrp.explain(encoder, 1, 2, similarity=similarity, regions=bilrp.regions.grid(4))  # type: ignore[arg-type]


def same(actual: object, truth: object) -> bool:
    """Every number and word that was saved."""
    if isinstance(actual, Explanation) and isinstance(truth, Explanation):
        numbers = actual.score == truth.score and torch.equal(actual.relevance, truth.relevance)
        within = all(
            torch.equal(a, b) for a, b in zip(actual.self_terms or (), truth.self_terms or (), strict=True)
        )
        return numbers and within and same(actual.a, truth.a) and same(actual.b, truth.b)
    assert isinstance(actual, Decomposition) and isinstance(truth, Decomposition)
    tensors = torch.equal(actual.parts, truth.parts) and torch.equal(actual.embedding, truth.embedding)
    regions = (
        torch.equal(actual.regions.labels, truth.regions.labels)
        and actual.regions.names == truth.regions.names
    )
    picture = (actual.input_image is None) == (truth.input_image is None)
    if actual.input_image is not None and truth.input_image is not None:
        picture = bool((actual.input_image == truth.input_image).all())
    return (
        tensors
        and regions
        and picture
        and dict(actual.origin) == dict(truth.origin)
        and actual.name == truth.name
    )


def check(path: Path, truth: Explanation | Decomposition | None) -> Failure | bool:
    """True: as it was saved; False: one line."""
    load = Decomposition.load if isinstance(truth, Decomposition) else Explanation.load
    with measure_cost() as cost:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of earlier versions' files without a checksum
                loaded = load(path)
        except BilrpError as error:
            loaded = None
            if "\n" in str(error):
                return Failure("unexpected error", f"more than one line: {error}")
        except Exception as error:
            return Failure("unexpected error", f"{type(error).__name__}: {error}"[:300])
    if cost.over:
        return Failure("over budget", str(cost))
    if loaded is None or truth is None:
        return loaded is not None
    return True if same(loaded, truth) else Failure("wrong", "loaded with other numbers")


def attack(seed: int, folder: Path) -> Row:
    draw, row = random.Random(seed), Row("results")
    full: list[tuple[Explanation | Decomposition, str, bytes]] = []
    for similarity in ("dot", "cosine", "squared_distance"):
        for suffix in files.NUMBER_SUFFIXES:
            original = explanation(similarity)
            for truth in (original, original.a):
                full.append((truth, suffix, truth.save(folder / f"whole{suffix}").read_bytes()))
    for trial in range(TRIALS):
        truth, suffix, data = draw.choice(full)
        path, broken = folder / f"trial{suffix}", mutate_bytes(data, draw, [other for _, _, other in full])
        path.write_bytes(broken)
        outcome = check(path, truth)
        saved_case = _shrunk(path, broken, truth, outcome) if isinstance(outcome, Failure) else ""
        _count(row, outcome, f"seed {seed} trial {trial}", saved_case)
    for trial in range(FORGERIES):
        what, path = _forge(draw, explanation(draw.choice(("dot", "squared_distance"))), folder)
        outcome = check(path, None)
        if outcome is True:
            outcome = Failure("wrong", f"a forged {what} was believed")
        _count(row, outcome, f"seed {seed} forgery {trial} ({what})")
    return row


def _count(row: Row, outcome: Failure | bool, description: str, saved_case: str = "") -> None:
    if isinstance(outcome, Failure):
        row.failed(outcome.what, f"{description}: {outcome.description}; {saved_case}")
    elif outcome:
        row.right += 1
    else:
        row.refused += 1


def _shrunk(path: Path, data: bytes, truth: Explanation | Decomposition, outcome: Failure) -> str:
    def fails(tried: bytes) -> bool:
        path.write_bytes(tried)
        second = check(path, truth)
        return isinstance(second, Failure) and second.what == outcome.what

    # A case is tried again without what it was made from, so of "wrong" only the description is kept.
    if outcome.what == "wrong":
        return ""
    return cases.keep("results", smallest(data, fails, tries=200), path.suffix)


def _forge(draw: random.Random, original: Explanation, path: Path) -> tuple[str, Path]:
    """A file with a right checksum over something that cannot be."""
    tensors, metadata = serialize_explanation(original)
    name = draw.choice(
        ["a.parts", "b.parts", "a.embedding", "b.embedding", "relevance", "a.labels", "b.labels", "score"]
    )
    if name == "score":
        metadata["score"] = draw.choice(
            [(original.score + 1).hex(), "nan", "inf", "", "0x", "1e400", "score", "\ud800"]
        )
        return name, store.write(path / "forged.npz", tensors, metadata)
    tensor = tensors[name]
    ways = ["shape", "empty", "flat", "dropped"]
    ways += ["nan", "inf", "integers"] if tensor.is_floating_point() else ["beyond", "below", "floats"]
    way = draw.choice(ways)
    changed = tensor.clone().flatten()
    spot = draw.randrange(len(changed))
    if way in ("nan", "inf", "beyond", "below"):
        changed[spot] = {"nan": float("nan"), "inf": float("inf"), "beyond": 2**30, "below": -2}[way]
    changed = changed.reshape(tensor.shape)
    tensors[name] = {
        "shape": lambda: torch.cat([changed, changed], -1), "empty": lambda: changed[:0],
        "flat": lambda: changed.flatten()[:-1], "integers": lambda: changed.long(), "floats": lambda: changed.double(),
    }.get(way, lambda: changed)()  # fmt: skip
    if way == "dropped":
        del tensors[name]
    return f"{name} {way}", store.write(
        path / f"forged{draw.choice(files.NUMBER_SUFFIXES)}", tensors, metadata
    )
