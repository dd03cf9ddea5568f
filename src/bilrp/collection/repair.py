"""`Repair`: a similarity without a part that should not count, as one small matrix or as corrected embeddings.

A *projection* φ ← φ − U Bᵀφ applies to any vector. A *correction* replaces the embeddings of the items that have the part
(the carriers), which are recognized by their embeddings, so that it can be applied in any vector database too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bilrp.attribution import embed_item
from bilrp.collection.repair_report import RepairReport
from bilrp.collection.shortcut_part import ShortcutPart, deserialize_part
from bilrp.collection.subquery import restrict_query
from bilrp.decomposition import Decomposition
from bilrp.encoder import Encoder, InputLike, choose_regions, diff_origins, read_item
from bilrp.errors import InputError, MismatchError
from bilrp.inputs import Item
from bilrp.io import store
from bilrp.pipeline import decompose_item, prepare
from bilrp.regions import labels
from bilrp.similarity import Similarity, resolve_similarity

if TYPE_CHECKING:
    from bilrp.collection.core import Collection, Query

Rows = TypeVar("Rows", Tensor, np.ndarray)
KIND = "repair"  # of the stored file
MAX_SAME_DISTANCE = 2e-3  # of two unit embeddings of one item: more than rounding to float16
ROWS_PER_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Correction:
    """Embeddings of carriers without a part, and how to embed new items without it.

    Args:
        method: "filling" encodes an input with the part filled in, "removal" subtracts the part Σ_{I∈S} P_I.
        part: the part.
        ids: of the carriers.
        originals: embeddings of the carriers.
        removed: what is subtracted from each.
        regions: (carrier, region) of each of the encoder's regions S in the part.
        region_counts: number of regions of each carrier.
    """

    method: Literal["filling", "removal"]
    part: ShortcutPart
    ids: tuple[str, ...]
    originals: Float[Tensor, "carriers h"]
    removed: Float[Tensor, "carriers h"]
    regions: Int[Tensor, "entries 2"]
    region_counts: Int[Tensor, " carriers"]

    def match(self, embeddings: Float[Tensor, "n h"]) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the carrier that each embedding belongs to (−1: none) and the ratio of their norms."""
        keys, rows = self.originals.double(), embeddings.double()
        lengths = [torch.linalg.vector_norm(t, dim=1).clamp(min=1e-300) for t in (rows, keys)]
        cosines = (rows / lengths[0][:, None]) @ (keys / lengths[1][:, None]).T
        best, carrier = cosines.max(1)
        # ‖a/‖a‖ − b/‖b‖‖² = 2 − 2 cos
        same = (2 - 2 * best).clamp(min=0) <= MAX_SAME_DISTANCE**2
        return torch.where(same, carrier, -1), lengths[0] / lengths[1][carrier]

    def subtract(self, embeddings: Float[Tensor, "n h"]) -> Float[Tensor, "n h"]:
        """Return what to subtract from each embedding; zero for items that do not carry the part."""
        carrier, ratio = self.match(embeddings)
        known = carrier >= 0
        change = torch.zeros_like(embeddings)
        change[known] = (self.removed[carrier[known]].double() * ratio[known, None]).to(embeddings)
        return change

    def list_regions(self, embedding: Float[Tensor, " h"], count: int) -> list[int]:
        """Return the regions in the part of a carrier with this embedding and this number of regions, else none."""
        carrier = int(self.match(embedding[None])[0])
        if carrier < 0 or int(self.region_counts[carrier]) != count:
            return []
        return self.regions[self.regions[:, 0] == carrier, 1].tolist()


@dataclass(frozen=True, eq=False)
class Repair:
    """A similarity y(φ, φ') = s(c(φ), c(φ')) of corrected embeddings c(φ) = (1 − Uᵀ B)(φ − removed).

    Args:
        directions: U [r, h], the directions that are removed.
        readouts: B [r, h], what of φ is removed along each; B = U for a projection.
        corrections: corrected embeddings of carriers.
        base: name of the similarity of corrected embeddings, "dot" or "cosine".
        origin: encoder and rules of the embeddings.
        reports: what it was measured to cost, of each repair that it consists of.
    """

    directions: Float[Tensor, "r h"]
    readouts: Float[Tensor, "r h"]
    corrections: tuple[Correction, ...]
    base: str
    origin: Mapping[str, Any]
    reports: tuple[RepairReport, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the repaired similarity."""
        return f"{self.base}, repaired"

    @property
    def report(self) -> RepairReport:
        """What the repair was measured to cost; of several, the last one's."""
        return self.reports[-1]

    @property
    def matrix(self) -> Float[Tensor, "h h"]:
        """M = 1 − Uᵀ B: φ ← M φ. It does not contain corrections, which belong to single items."""
        return torch.eye(self.directions.shape[1]).to(self.directions) - self.directions.T @ self.readouts

    @property
    def similarity(self) -> Similarity:
        """The repaired similarity, to explain pairs with: `collection.explain(i, j, similarity=repair.similarity)`.

        Regions in the part of a carrier have no relevance; what a correction leaves of them is unattributed.
        """
        base = resolve_similarity(self.base)

        def correct(embedding: Tensor) -> Tensor:
            return self.apply(embedding[None])[0]

        def weigh(a: Tensor, b: Tensor):
            form = base.relevance_fn(correct(a), correct(b))
            return lambda p, q: form(self._correct_parts(p, a), self._correct_parts(q, b))

        return Similarity(self.name, lambda a, b: base.score_fn(correct(a), correct(b)), weigh)

    def apply(self, embeddings: Rows) -> Rows:
        """Return corrected embeddings, [n, h]; rows of carriers are recognized whatever their order and length.

        Args:
            embeddings: [n, h], of the encoder that the repair was made for.

        >>> repair.apply(collection.embeddings)  # doctest: +SKIP
        """
        rows = torch.as_tensor(embeddings)
        if rows.dim() != 2 or rows.shape[1] != self.directions.shape[1]:
            raise MismatchError(
                f"the repair is for embeddings [n, {self.directions.shape[1]}], got {list(rows.shape)}: "
                "give embeddings of its encoder"
            )
        blocks = [self._apply_block(block) for block in rows.split(ROWS_PER_BLOCK)]
        corrected = torch.cat(blocks) if blocks else rows.clone()
        return corrected if isinstance(embeddings, Tensor) else corrected.numpy()  # type: ignore[return-value]

    def _apply_block(self, rows: Tensor) -> Tensor:
        changed = rows - sum((each.subtract(rows) for each in self.corrections), torch.zeros_like(rows))
        return changed - (changed @ self.readouts.to(rows).T) @ self.directions.to(rows)

    def _correct_parts(self, parts: Float[Tensor, "k h"], embedding: Tensor) -> Float[Tensor, "k h"]:
        """Return the parts of the corrected embedding: none for regions in the part, M P_I for others."""
        removed = [r for each in self.corrections for r in each.list_regions(embedding, len(parts))]
        keep = torch.ones(len(parts), 1).to(parts)
        keep[removed] = 0
        kept = parts * keep
        return kept - (kept @ self.readouts.to(parts).T) @ self.directions.to(parts)

    def correct(self, decomposition: Decomposition) -> Decomposition:
        """Return the decomposition of the corrected embedding; what belongs to no region is unattributed."""
        parts = self._correct_parts(decomposition.parts, decomposition.embedding)
        return replace(decomposition, parts=parts, embedding=self.apply(decomposition.embedding[None])[0])

    def embed(self, encoder: Encoder, raw_input: InputLike) -> Float[Tensor, " h"]:
        """Return the corrected embedding of a new input: detect each part, and remove it.

        Args:
            encoder: the encoder that the repair was made for.
            raw_input: anything that the encoder reads.
        """
        item = self._fill_in(encoder, read_item(encoder, raw_input))
        removed = [embed_part(encoder, item, part)[0] for part in self._list_removed_parts(item)]
        embedding = embed_item(encoder, item).flatten() - sum(removed)
        return embedding - (embedding @ self.readouts.to(embedding).T) @ self.directions.to(embedding)

    def decompose(self, encoder: Encoder, raw_input: InputLike) -> Decomposition:
        """Return the decomposition of a new input without each part, to pair under the repaired similarity.

        Args:
            encoder, raw_input: as for `embed`.
        """
        item = self._fill_in(encoder, read_item(encoder, raw_input))
        whole = decompose_item(encoder, item)[None]
        removed = {r for part in self._list_removed_parts(item) for r in part.regions(item, encoder)}
        return restrict_query(whole, without=sorted(removed)) if removed else whole

    def _fill_in(self, encoder: Encoder, item: Item) -> Item:
        for each in self.corrections:
            if each.method == "filling" and each.part.is_in(item):
                item = each.part.remove(item, encoder)
        return item

    def _list_removed_parts(self, item: Item) -> list[ShortcutPart]:
        return [each.part for each in self.corrections if each.method == "removal" and each.part.is_in(item)]

    def rank(self, collection: Collection, query: Query, k: int = 10) -> list[tuple[int, float]]:
        """Return (position, score) of the k items of largest repaired similarity.

        A new input is corrected where it has the part.

        Args:
            collection: a collection of the encoder that the repair was made for.
            query: an item or any input.
            k: number of neighbours.
        """
        self.check_collection(collection)
        at = collection.position(query)
        if at is not None or isinstance(query, Decomposition):
            vector = self.apply(collection.embedding(query)[None])[0]
        else:
            assert not isinstance(query, int)
            vector = self.embed(collection.encoder, query).float()
        blocks = []
        for block in collection.items.iter_blocks():
            rows = torch.from_numpy(self.apply(np.ascontiguousarray(block)))
            if self.base == "cosine":
                rows = torch.nn.functional.normalize(rows, dim=1)
            blocks.append(rows @ vector)
        scores = torch.cat(blocks) / (max(float(vector.norm()), 1e-30) if self.base == "cosine" else 1.0)
        best = torch.topk(scores, min(k, len(scores)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def check_collection(self, collection: Collection) -> None:
        """Raise `MismatchError` unless a collection has embeddings of the repair's encoder."""
        difference = diff_origins(self.origin, collection.description["origin"])
        if difference:
            raise MismatchError(f"the repair was made for another encoder: they differ in {difference}")

    def then(self, other: Repair, collection: Collection | None = None) -> Repair:
        """Return both repairs as one: corrections are added, and the other's projection follows this one's.

        (1 − U₂ᵀB₂)(1 − U₁ᵀB₁) = 1 − [U₁; U₂]ᵀ [B₁; B₂ − B₂U₁ᵀB₁].

        Args:
            other: The repair that follows.
            collection: Encodes items that both correct again, without either part.
        """
        difference = diff_origins(self.origin, other.origin)
        if difference or self.base != other.base:
            raise MismatchError(
                f"these repairs do not belong together: they differ in {difference or 'similarity'}"
            )
        directions, readouts = other.directions.to(self.directions), other.readouts.to(self.readouts)
        both = replace(
            self,
            directions=torch.cat([self.directions, directions]),
            readouts=torch.cat([self.readouts, readouts - readouts @ self.directions.T @ self.readouts]),
            corrections=self.corrections + other.corrections,
            reports=(*self.reports, *other.reports),
        )
        ids = [{id for each in repair.corrections for id in each.ids} for repair in (self, other)]
        shared = ids[0] & ids[1]
        if not shared:
            return both
        if collection is None:
            raise InputError(
                f"{len(shared)} items have both parts, and the effects of two parts do not add up: give collection=, "
                "which encodes these items again"
            )
        return both._encode_again(collection, shared)

    def _encode_again(self, collection: Collection, ids: set[str]) -> Repair:
        """Return the repair whose corrections of these items add up to what they are without any part."""
        none = self.directions[:0]
        parts_only = replace(self, directions=none, readouts=none)
        corrections = [
            replace(each, removed=each.removed.clone(), originals=each.originals) for each in self.corrections
        ]
        for id in sorted(ids):
            position = collection.position(id)
            if position is None:
                raise MismatchError(
                    f"{id} is not an item of {collection.path}: give the collection of both repairs"
                )
            holders = [(each, each.ids.index(id)) for each in corrections if id in each.ids]
            last, row = holders[-1]
            wanted = parts_only.embed(collection.encoder, collection.original_input(position)).to(
                last.removed
            )
            others = sum((each.removed[n] for each, n in holders[:-1]), torch.zeros_like(wanted))
            last.removed[row] = last.originals[row] - wanted - others
        return replace(self, corrections=tuple(corrections))

    def save(self, path: str | Path) -> Path:
        """Write to .safetensors (or .npz) atomically."""
        tensors = {"directions": self.directions, "readouts": self.readouts}
        corrections = []
        for number, each in enumerate(self.corrections):
            part_tensors, values = each.part.serialize()
            own = {"originals": each.originals, "removed": each.removed} | part_tensors
            own |= {"regions": each.regions.int(), "region_counts": each.region_counts.int()}
            tensors |= {f"{number}.{name}": tensor for name, tensor in own.items()}
            corrections.append(
                {"method": each.method, "kind": each.part.kind, "values": values, "ids": each.ids}
            )
        reports = [each.to_dict() for each in self.reports]
        about = {"base": self.base, "corrections": corrections, "reports": reports}
        metadata = {"kind": KIND, "about": json.dumps(about), "origin": json.dumps(dict(self.origin))}
        return store.write(path, tensors, metadata)

    @staticmethod
    def load(path: str | Path) -> Repair:
        """Read a file written by `save`."""
        tensors, metadata = store.read(path, kind=KIND)
        with store.wrap_load_errors(path):
            about = json.loads(metadata["about"])
            corrections = tuple(
                _load_correction(tensors, number, values)
                for number, values in enumerate(about["corrections"])
            )
            reports = tuple(RepairReport.from_dict(each) for each in about["reports"])
            directions, readouts = tensors["directions"], tensors["readouts"]
            shapes = {directions.shape[1:], *(each.originals.shape[1:] for each in corrections)}
            if directions.dim() != 2 or directions.shape != readouts.shape or len(shapes) > 1:
                raise InputError("its tensors have different sizes")
            if about["base"] not in ("dot", "cosine") or not reports:
                raise InputError("it names no known similarity, or has no report")
            numbers = (
                directions,
                readouts,
                *(t for each in corrections for t in (each.originals, each.removed)),
            )
            if not all(bool(torch.isfinite(each).all()) for each in numbers):
                raise InputError("it has NaN or infinite values")
            origin = json.loads(metadata["origin"])
            if not isinstance(origin, dict):
                raise InputError("it does not name its encoder")
            return Repair(directions, readouts, corrections, about["base"], origin, reports)

    def __repr__(self) -> str:
        count = sum(len(each.ids) for each in self.corrections)
        return f"Repair({self.base}, {len(self.directions)} directions, {count} corrected embeddings)"


def _load_correction(tensors: Mapping[str, Tensor], number: int, about: Mapping[str, Any]) -> Correction:
    prefix = f"{number}."
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    if about["method"] not in ("filling", "removal"):
        raise InputError("it has an unknown method")
    ids, originals, removed = tuple(map(str, about["ids"])), own["originals"], own["removed"]
    regions, counts = own["regions"].long(), own["region_counts"].long()
    if (
        originals.dim() != 2
        or originals.shape != removed.shape
        or not len(ids) == len(originals) == len(counts)
    ):
        raise InputError("its corrected embeddings have different sizes")
    if regions.dim() != 2 or regions.shape[1] != 2 or (len(regions) and int(regions.min()) < 0):
        raise InputError("its regions are not pairs of numbers")
    if len(regions) and bool((regions[:, 1] >= counts[regions[:, 0]]).any()):
        raise InputError("it has regions that do not exist")
    part = deserialize_part(about["kind"], own, about["values"])
    return Correction(about["method"], part, ids, originals, removed, regions, counts)


def embed_part(
    encoder: Encoder, item: Item, part: ShortcutPart
) -> tuple[Float[Tensor, " h"], Float[Tensor, " h"]]:
    """Return Σ_{I∈S} P_I of the regions S in a part, by one push of their union, and the embedding.

    Args:
        encoder, item, part: The encoder, an input that has the part, and which of its regions are meant.
    """
    own = choose_regions(encoder, item)
    numbers = part.regions(item, encoder)
    if not numbers:
        raise InputError("no region of this input is inside the part")
    union = torch.where(torch.isin(own.labels, torch.tensor(numbers)), 0, -1)
    # one label for each token or pixel, which is what inputs with a view accept
    ready = prepare(encoder, replace(item, segment=None), regions=labels(union)(item.x))
    return ready.decompose().parts[0], ready.embeddings[None].flatten()


def make_projection(
    vectors: Float[Tensor, "n h"], rank: int, strength: float
) -> tuple[Float[Tensor, "r h"], Float[Tensor, "r h"]]:
    """Return directions U and readouts B = strength · U of the leading directions of some vectors.

    The first is that of their mean, what they have in common; the others are those of largest remaining energy.

    Args:
        vectors: effects of a part on several embeddings.
        rank, strength: number of directions, and the fraction that is removed.
    """
    mean = vectors.mean(0, keepdim=True)
    directions = mean / torch.linalg.vector_norm(mean)
    if rank > 1:
        rest = vectors - (vectors @ directions.T) @ directions
        more = torch.linalg.svd(rest, full_matrices=False).Vh[: rank - 1]
        directions = torch.linalg.qr(torch.cat([directions, more]).T).Q.T.contiguous()
    return directions, strength * directions
