"""Repairs: the repaired similarity adds up, restores neighbours, says its cost, and is refused where it does harm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from collection_helpers import tiny_encoder, write_scenes
from PIL import Image
from torch import Tensor, nn

import bilrp
from bilrp import collection
from bilrp.collection import repair_selection
from bilrp.collection.audit import Suspect
from bilrp.collection.repair import Correction, Repair, embed_part, make_projection
from bilrp.collection.repair_report import Measurement, RepairReport
from bilrp.collection.repair_selection import RefusedRepairError, Trial, find_neighbours
from bilrp.collection.shortcut_part import (
    ImagePart,
    TextPart,
    deserialize_part,
    locate_image_part,
    locate_moving_part,
    locate_text_part,
    mirror_sources,
)
from bilrp.encoder import read_item
from bilrp.encoders import images
from bilrp.errors import InputError, MismatchError
from bilrp.inputs import Item
from models import randomize_norms, vgg_like
from text_folders import ARCHITECTURES

pytest.importorskip("lance", reason="collections need bilrp[collection]")
COUNT = 40  # scenes, each seen twice


def report(method: str = "projection") -> RepairReport:
    before, after = Measurement("none", 0.8, 0.4, 0.9), Measurement(method, 0.3, 0.8, 0.9, 1)
    return RepairReport("a bar", 9, 3, 0, 4, 0.1, 0.3, before, after, (after,))


def network() -> nn.Module:
    torch.manual_seed(0)
    return randomize_norms(nn.Sequential(vgg_like(), nn.AdaptiveAvgPool2d(2), nn.Flatten()))


def bar_part() -> ImagePart:
    mask = torch.zeros(24, 24, dtype=torch.bool)
    mask[16:] = True
    return ImagePart(mask, torch.zeros(3, 24, 24, dtype=torch.float64), 0.1)


def make_repairs(net: nn.Module, x: Tensor, base: str) -> dict[str, Repair]:
    """A projection, a correction of x by its own part, and both, in float64."""
    encoder, part, item = bilrp.Encoder(net, regions=bilrp.regions.grid(8)), bar_part(), Item(x)
    own, embedding = embed_part(encoder, item, part)
    regions = part.regions(item, encoder)
    correction = Correction(
        "removal", part, ("x",), embedding[None], own[None],
        torch.tensor([(0, region) for region in regions]), torch.tensor([9]),
    )  # fmt: skip
    h = len(embedding)
    none, origin = torch.zeros(0, h, dtype=torch.float64), {"encoder": "net"}
    projection = Repair(
        *make_projection(torch.rand(5, h, dtype=torch.float64), 3, 0.5), (), base, origin, (report(),)
    )
    removal = Repair(none, none, (correction,), base, origin, (report("removal"),))
    return {"projection": projection, "removal": removal, "both": removal.then(projection)}


@pytest.mark.parametrize("base", ["dot", "cosine"])
@pytest.mark.parametrize("name", ["projection", "removal", "both"])
def test_the_explanation_of_a_repaired_similarity_adds_up_to_its_score(name: str, base: str) -> None:
    """Against a loop over all pairs of regions, and what no region contributes, in float64."""
    net, (x, y) = network(), torch.rand(2, 1, 3, 24, 24, dtype=torch.float64)
    repair = make_repairs(net, x, base)[name]
    a, b = (bilrp.decompose(net, each, regions=8) for each in (x, y))
    explanation = bilrp.pair(a, b, similarity=repair.similarity)
    h = len(a.embedding)
    matrix = torch.eye(h, dtype=torch.float64) - repair.directions.T @ repair.readouts
    dropped = {6, 7, 8} if name != "projection" else set()
    part = sum((a.parts[i] for i in dropped), torch.zeros(h, dtype=torch.float64))
    left, right = matrix @ (a.embedding - part), matrix @ b.embedding
    scale = float(left.norm() * right.norm()) if base == "cosine" else 1.0
    assert explanation.score == pytest.approx(float(left @ right) / scale, rel=1e-10)
    for i in range(9):
        for j in range(9):
            product = 0.0 if i in dropped else float((matrix @ a.parts[i]) @ (matrix @ b.parts[j]))
            assert float(explanation.relevance[i, j]) == pytest.approx(product / scale, abs=1e-10)
    stored = sum((a.parts[i] for i in range(9) if i not in dropped), torch.zeros(h, dtype=torch.float64))
    rest = float(left @ right) - float((matrix @ stored) @ (matrix @ b.parts.sum(0)))
    assert explanation.unattributed == pytest.approx(rest / scale, abs=1e-10)
    assert explanation.similarity == f"{base}, repaired"


@pytest.mark.parametrize("name", ["projection", "removal", "both"])
def test_one_pull_of_a_repaired_similarity_adds_up_too(name: str) -> None:
    net, (x, y) = network(), torch.rand(2, 1, 3, 24, 24, dtype=torch.float64)
    repair = make_repairs(net, x, "cosine")[name]
    one = bilrp.attribute(net, x, y, similarity=repair.similarity, regions=8)
    score = bilrp.explain(net, x, y, similarity=repair.similarity, regions=8).score
    assert float(one.values.sum()) + one.unattributed == pytest.approx(score, abs=1e-10)


def test_the_part_of_one_push_is_the_sum_of_its_regions() -> None:
    net, x = network(), torch.rand(1, 3, 24, 24, dtype=torch.float64)
    encoder = bilrp.Encoder(net, regions=bilrp.regions.grid(8))
    own, embedding = embed_part(encoder, Item(x), bar_part())
    d = bilrp.decompose(encoder, x)
    assert torch.allclose(own, d.parts[[6, 7, 8]].sum(0), rtol=0, atol=1e-10)
    assert torch.allclose(embedding, d.embedding, rtol=0, atol=1e-12)


def test_applied_embeddings_have_the_repaired_similarity() -> None:
    net, (x, y) = network(), torch.rand(2, 1, 3, 24, 24, dtype=torch.float64)
    with torch.no_grad():
        rows = torch.cat([net(x), net(y)])
    for repair in make_repairs(net, x, "dot").values():
        corrected = repair.apply(rows)
        score = repair.similarity.score(rows[0], rows[1])
        assert float(corrected[0] @ corrected[1]) == pytest.approx(score, rel=1e-12)
        assert np.allclose(repair.apply(rows.numpy()), corrected.numpy(), rtol=0, atol=1e-12)
        # the rows of a vector database: other order, length one, half precision
        unit = (rows / rows.norm(dim=1, keepdim=True)).flip(0)
        expected = (corrected / rows.norm(dim=1, keepdim=True)).flip(0)
        assert torch.allclose(repair.apply(unit), expected, rtol=0, atol=1e-12)
        assert torch.allclose(repair.apply(unit.half().float()), expected.float(), rtol=0, atol=2e-2)


def test_two_projections_compose_to_the_product_of_their_matrices() -> None:
    vectors = torch.randn(2, 4, 7, dtype=torch.float64)
    first, second = (
        Repair(*make_projection(v, rank, strength), (), "dot", {}, (report(),))
        for v, rank, strength in zip(vectors, (2, 3), (1.0, 0.5), strict=True)
    )
    both, rows = first.then(second), torch.randn(5, 7, dtype=torch.float64)
    assert torch.allclose(both.matrix, second.matrix @ first.matrix, rtol=0, atol=1e-12)
    assert torch.allclose(both.apply(rows), second.apply(first.apply(rows)), rtol=0, atol=1e-12)
    assert torch.allclose(both.apply(rows), rows @ both.matrix.T, rtol=0, atol=1e-12)
    assert len(both.reports) == 2


def test_a_projection_removes_its_directions() -> None:
    directions, readouts = make_projection(torch.randn(9, 12, dtype=torch.float64), 4, 1.0)
    assert torch.allclose(directions @ directions.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-12)
    repair = Repair(directions, readouts, (), "dot", {}, (report(),))
    left = repair.apply(torch.randn(6, 12, dtype=torch.float64)) @ directions.T
    assert float(left.abs().max()) < 1e-12


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_saved_repair_is_the_same(tmp_path: Path, suffix: str) -> None:
    net, x = network(), torch.rand(1, 3, 24, 24, dtype=torch.float64)
    repair = make_repairs(net, x, "cosine")["both"]
    loaded = Repair.load(repair.save(tmp_path / f"bar{suffix}"))
    rows = torch.cat([repair.corrections[0].originals, torch.rand(3, repair.directions.shape[1]).double()])
    assert torch.equal(loaded.apply(rows), repair.apply(rows))
    assert loaded.reports == repair.reports and loaded.base == "cosine" and loaded.origin == repair.origin
    assert loaded.corrections[0].part.is_in(Item(torch.zeros(1, 3, 24, 24).double()))


def test_files_that_are_not_repairs_are_refused(tmp_path: Path) -> None:
    from bilrp.io import store

    path = store.write(tmp_path / "x.safetensors", {"a": torch.ones(2)}, {"kind": "decomposition"})
    with pytest.raises(InputError, match="not a stored repair"):
        Repair.load(path)
    path = store.write(
        tmp_path / "y.safetensors", {"directions": torch.ones(2)}, {"kind": "repair", "about": "{}"}
    )
    with pytest.raises(InputError, match="damaged"):
        Repair.load(path)
    report = Measurement("projection", 0.5, 0.5, 0.5, relevance=0.5)
    reports = (RepairReport("a bar", 4, 3, 0, 1, 0.1, 0.1, report, report),)
    good = Repair(torch.eye(4)[:1], torch.eye(4)[:1], (), "dot", {"encoder": "x"}, reports)
    assert Repair.load(good.save(tmp_path / "good.npz")).base == "dot"
    with pytest.raises(InputError, match="NaN"):
        Repair.load(replace(good, directions=good.directions * float("nan")).save(tmp_path / "nan.npz"))
    with pytest.raises(InputError, match="encoder"):
        tensors, metadata = store.read(tmp_path / "good.npz", kind="repair")
        Repair.load(store.write(tmp_path / "list.npz", tensors, metadata | {"origin": "[]"}))


def test_embeddings_of_another_size_are_refused() -> None:
    repair = Repair(*make_projection(torch.rand(2, 7), 1, 1.0), (), "dot", {}, (report(),))
    with pytest.raises(MismatchError, match=r"\[n, 7\]"):
        repair.apply(torch.rand(2, 6))


def test_mirrored_pixels_come_from_outside_the_part() -> None:
    mask = torch.zeros(12, 16, dtype=torch.bool)
    mask[4:9, 5:12] = True
    sources = mirror_sources(mask)
    assert len(sources) == int(mask.sum()) and not bool(mask.flatten()[sources].any())
    bottom = torch.zeros(10, 4, dtype=torch.bool)
    bottom[7:] = True
    assert mirror_sources(bottom).reshape(3, 4).tolist() == [
        [20, 21, 22, 23],
        [16, 17, 18, 19],
        [12, 13, 14, 15],
    ]


def test_a_part_is_filled_in_by_zeros() -> None:
    """Where that restores more neighbours than the mirrored surroundings; a saved part keeps it."""
    part, item = bar_part(), Item(torch.rand(1, 3, 24, 24).double())
    encoder = bilrp.Encoder(network(), regions=bilrp.regions.grid(8))
    mirrored, blank = part.list_fillings()
    assert mirrored is part and mirrored.filling == "mirrored surroundings" and "zero" in blank.filling
    filled = deserialize_part("image", *blank.serialize()).remove(item, encoder).x[0]
    assert not bool(filled[:, part.mask].any())
    assert torch.equal(filled[:, ~part.mask], item.x[0][:, ~part.mask])


def test_a_border_is_located_from_one_side_of_it() -> None:
    items = noisy_items(12)
    border = torch.ones(48, 48, dtype=torch.bool)
    border[6:-6, 6:-6] = False
    for item in items[:10]:
        item.x[0, :, border] = 0.9
    area = np.zeros((48, 48), dtype=bool)
    area[:6] = True
    mask = locate_image_part(items[:10], area, extend=True).mask
    assert bool(mask[border].all()) and not bool(mask[10:-10, 10:-10].any())


def noisy_items(count: int) -> list[Item]:
    """Smooth noise, channels in [0, 1]."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    return [Item(x[None]) for x in torch.nn.functional.interpolate(coarse, size=(48, 48), mode="bicubic")]


def test_a_logo_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Named by an inexact area of one input; found in all others that show it, to the pixel, and filled in."""
    items, rng = noisy_items(30), np.random.default_rng(0)
    logo = torch.rand(3, 14, 12, generator=torch.Generator().manual_seed(1)).round()
    places = {n: tuple(rng.integers(0, 34, 2).tolist()) for n in range(0, 30, 3)}
    for n, (top, left) in places.items():
        items[n].x[0, :, top : top + 14, left : left + 12] = logo
    area = np.zeros((48, 48), dtype=bool)
    top, left = places[0]
    area[top + 2 : top + 12, left + 1 : left + 12] = True  # less than the logo
    located = locate_moving_part(items[0], area, items)
    assert located is not None
    part, numbers = located
    assert numbers == list(places)
    encoder = bilrp.Encoder(network(), regions=bilrp.regions.grid(8))
    for n, (top, left) in places.items():
        placed = part.place(items[n])
        assert placed is not None and bool(placed.mask[top : top + 14, left : left + 12].all())
        assert int(placed.mask.sum()) <= (14 + 4) * (12 + 4)  # the margin around it
        filled = part.remove(items[n], encoder)
        assert not part.is_in(filled) and torch.equal(
            filled.x[0, :, ~placed.mask], items[n].x[0, :, ~placed.mask]
        )
        region = 6 * ((top + 7) // 8) + (left + 6) // 8
        assert region in part.regions(items[n], encoder)
    assert part.is_in(part.add(items[1], items[0], encoder)) and not part.is_in(items[1])
    # against the sum over every offset
    x, cost = items[4].x[0], {}
    for y in range(48 - part.mask.shape[0] + 1):
        for z in range(48 - part.mask.shape[1] + 1):
            patch = x[:, y : y + part.mask.shape[0], z : z + part.mask.shape[1]]
            cost[y, z] = float(((patch - part.template) ** 2).sum(0)[part.mask].sum())
    loose = replace(part, tolerance=10.0)  # accepts the best place, whatever it is
    assert loose.locate(items[4]) == min(cost, key=lambda place: cost[place])
    tensors, values = part.serialize()
    again = deserialize_part("moving", tensors, values)
    assert again.is_in(items[3]) and again.describe() == part.describe()
    assert locate_moving_part(items[1], area, items) is None  # its own content


def test_a_text_part_is_left_out_and_added() -> None:
    part = TextPart("All rights reserved")
    assert part.pattern.sub("", "A cat. all  rights\nreserved.") == "A cat. ."
    assert not part.pattern.search("small rights reserved")


def test_words_are_found_left_out_and_removed_in_texts(tmp_path: Path) -> None:
    """The own part of words is the sum of their regions, and the repaired explanation adds up, in float64."""
    encoder = bilrp.encoders.sentence(ARCHITECTURES[0].save(tmp_path / "bert"), dtype=torch.float64)
    text, other = "The kittens rested on a rug. The rain falls.", "A cat sat on the mat."
    part = locate_text_part("the  rain", [text, "The rain. A cat.", "A cat. The rain."])
    item = read_item(encoder, text)
    assert part.is_in(item) and not part.is_in(read_item(encoder, other)) and not part.at_start
    assert part.remove(item, encoder).view.text == "The kittens rested on a rug. falls."  # type: ignore[union-attr]
    assert part.is_in(part.add(read_item(encoder, other), item, encoder))
    ended = part.remove(read_item(encoder, f"{other} The Rain."), encoder)
    assert ended.view.text == other  # type: ignore[union-attr]
    regions = part.regions(item, encoder)
    d, b = bilrp.decompose(encoder, text), bilrp.decompose(encoder, other)
    assert {d.view.region_texts[r].lower() for r in regions} == {"the", "rain"}  # type: ignore[union-attr]
    own, embedding = embed_part(encoder, item, part)
    assert torch.allclose(own, d.parts[regions].sum(0), rtol=0, atol=1e-10)
    entries = torch.tensor([(0, region) for region in regions])
    counts = torch.tensor([d.regions.count])
    correction = Correction("removal", part, ("x",), embedding[None], own[None], entries, counts)
    none = torch.zeros(0, len(own), dtype=torch.float64)
    repair = Repair(none, none, (correction,), "cosine", d.origin, (report("removal"),))
    explanation = bilrp.pair(d, b, similarity=repair.similarity)
    stored = d.embedding - d.parts[regions].sum(0)
    cosine = float(stored @ b.embedding / (stored.norm() * b.embedding.norm()))
    assert explanation.score == pytest.approx(cosine, abs=1e-10)
    rest = explanation.score - float(explanation.relevance.sum())
    assert explanation.unattributed == pytest.approx(rest, abs=1e-12)
    assert float(explanation.relevance[regions].abs().sum()) == 0
    loaded = Repair.load(repair.save(tmp_path / "rain.safetensors"))
    assert torch.allclose(loaded.embed(encoder, text), stored, rtol=0, atol=1e-10)
    assert torch.allclose(loaded.decompose(encoder, text).embedding, stored, rtol=0, atol=1e-10)


def test_neighbours_are_counted_as_in_a_loop() -> None:
    clean, planted = torch.randn(30, 5, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    rows = torch.arange(0, 30, 5)
    trial = Trial(clean, rows, planted, cosine=True)
    after = trial.before
    measured = trial.measure("none", after, rows[:3])

    def near(table: Tensor, i: int) -> list[int]:
        unit = table / table.norm(dim=1, keepdim=True)
        order = sorted((j for j in range(30) if j != i), key=lambda j: -float(unit[i] @ unit[j]))
        return order[:10]

    recall = [len({*near(clean, i)} & {*near(after, i)}) / 10 for i in range(30)]
    assert measured.restored == pytest.approx(np.mean([recall[i] for i in (0, 5, 10)]))
    assert measured.others == pytest.approx(np.mean([recall[i] for i in range(30) if i % 5]))
    attraction = [sum(j % 5 == 0 for j in near(after, i)) / 10 for i in (0, 5, 10)]
    assert measured.attraction == pytest.approx(np.mean(attraction))
    assert find_neighbours(clean, cosine=False).shape == (30, 10)


# ------------------------------------------------------------ a collection


@pytest.fixture(scope="module")
def pair_of_collections(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[collection.Collection, collection.Collection]:
    path = tmp_path_factory.mktemp("repair")
    encoder = replace(tiny_encoder(), similarity="cosine")
    clean, stamped = (
        collection.build(
            write_scenes(path / name, COUNT, stamped=name == "stamped"), encoder, path / f"{name}.lance"
        )
        for name in ("clean", "stamped")
    )
    return clean, stamped


def recall(clean: np.ndarray, embeddings: np.ndarray, rows: list[int]) -> float:
    truth, after = (
        find_neighbours(torch.from_numpy(np.array(each)), cosine=True) for each in (clean, embeddings)
    )
    return float(np.mean([len({*truth[i].tolist()} & {*after[i].tolist()}) / 10 for i in rows]))


@pytest.mark.parametrize("method", ["projection", "filling", "removal"])
def test_each_method_restores_neighbours_of_stamped_items(pair_of_collections, method) -> None:
    clean, stamped = pair_of_collections
    carriers = list(range(0, len(stamped), 3))
    repair = stamped.repair(part=[12, 13, 14, 15], of=0, method=method)
    result = repair.report
    assert result.carriers == len(carriers) and result.method == method
    before, after = (
        recall(clean.embeddings, rows, carriers)
        for rows in (stamped.embeddings, repair.apply(stamped.embeddings))
    )
    assert after > before + 0.1
    # the prediction, measured on other items without any label, and the truth
    assert result.after.restored - result.before.restored == pytest.approx(after - before, abs=0.25)
    explanation = stamped.explain(0, 3, similarity=repair.similarity)
    total = float(explanation.relevance.double().sum()) + explanation.unattributed
    corrected = repair.apply(stamped.embeddings[[0, 3]]).astype(float)
    cosine = corrected[0] @ corrected[1] / np.prod(np.linalg.norm(corrected, axis=1))
    assert total == pytest.approx(explanation.score, abs=1e-6) and explanation.score == pytest.approx(
        cosine, abs=1e-5
    )
    if method != "projection":
        assert float(explanation.relevance[12:].abs().sum()) == 0


def test_the_choice_reaches_the_goals_and_is_applied_by_search(pair_of_collections, tmp_path: Path) -> None:
    _, stamped = pair_of_collections
    suspect = next(s for s in stamped.audit(sample=48).suspects if s.kind == "alike")
    repair = stamped.repair(suspect=suspect)
    result = repair.report
    assert result.after.restored > result.before.restored and not result.missed, str(result)
    assert result.before.others - result.after.others <= 0.02
    loaded = Repair.load(repair.save(tmp_path / "bar.safetensors"))
    corrected = torch.from_numpy(loaded.apply(stamped.embeddings))
    expected = find_neighbours(corrected, cosine=True)
    for item in (0, 1, 3):
        neighbours = [position for position, _ in loaded.rank(stamped, item, 11) if position != item]
        assert neighbours == expected[item].tolist()
    # a new file: the part is detected and removed
    position, score = loaded.rank(stamped, stamped.original_input(0), 11)[0]
    assert position == 0 and score == pytest.approx(1, abs=1e-4)
    vector = loaded.embed(stamped.encoder, stamped.original_input(1))
    assert torch.allclose(vector, corrected[1], atol=1e-5)


def test_a_logo_in_different_places_is_repaired(tmp_path: Path) -> None:
    """It is found although no two items have it in one place, and new items with it are corrected too."""
    encoder, rng = replace(tiny_encoder(), similarity="cosine"), np.random.default_rng(5)
    logo = np.kron(rng.integers(0, 2, (5, 5, 1)), np.ones((4, 4, 3))).astype(np.uint8) * 255
    folders = {name: write_scenes(tmp_path / name, COUNT, stamped=False) for name in ("clean", "stamped")}
    for path in sorted(folders["stamped"].iterdir())[::3]:
        pixels = np.array(Image.open(path))
        top, left = 2 * rng.integers(0, 22, 2)
        pixels[top : top + 20, left : left + 20] = logo
        Image.fromarray(pixels).save(path)
    clean, stamped = (collection.build(f, encoder, tmp_path / f"{name}.lance") for name, f in folders.items())
    covered = []
    for position in range(0, len(stamped), 3):
        item, other = (read_item(encoder, each.original_input(position)) for each in (stamped, clean))
        changed = (item.x != other.x).any(1)[0].float()
        share = torch.nn.functional.avg_pool2d(changed[None, None], 8).flatten()
        covered.append((float(share.max()), position, int(share.argmax())))
    _, of, region = max(covered)
    repair = stamped.repair(part=[region], of=of, method="filling")
    carriers = list(range(0, len(stamped), 3))
    assert repair.report.carriers >= 0.9 * len(carriers) and "in different places" in repair.report.part
    before, after = (
        recall(clean.embeddings, rows, carriers)
        for rows in (stamped.embeddings, repair.apply(stamped.embeddings))
    )
    assert after > before + 0.05
    loaded = Repair.load(repair.save(tmp_path / "logo.safetensors"))
    vector = loaded.embed(encoder, stamped.original_input(3))
    assert torch.allclose(vector, torch.from_numpy(loaded.apply(stamped.embeddings[[3]]))[0], atol=1e-5)
    explanation = stamped.explain(0, 3, similarity=loaded.similarity)
    assert float(explanation.relevance.double().sum()) + explanation.unattributed == pytest.approx(
        explanation.score, abs=1e-6
    )


def test_two_repairs_of_one_item_are_what_it_is_without_both_parts(tmp_path: Path) -> None:
    """The effects of two parts do not add up: items that have both are encoded again, as new items are, in float64."""
    net, x = network(), torch.rand(1, 3, 24, 24, dtype=torch.float64)
    np.save(tmp_path / "x.npy", x.numpy())
    encoder = bilrp.Encoder(
        net, regions=bilrp.regions.grid(8), read=lambda path: Item(torch.from_numpy(np.load(path)))
    )
    built = collection.build([tmp_path / "x.npy"], encoder, tmp_path / "x.lance")
    template = torch.zeros(3, 24, 24, dtype=torch.float64)
    top = torch.zeros(24, 24, dtype=torch.bool)
    top[:8] = True
    parts = [ImagePart(mask, template, 9.0) for mask in (bar_part().mask, top)]  # every image has them
    item = read_item(encoder, tmp_path / "x.npy")
    with torch.no_grad():
        whole = net(x)
        repairs = []
        for part, regions in zip(parts, ((6, 7, 8), (0, 1, 2)), strict=True):
            entries = torch.tensor([(0, region) for region in regions])
            removed = whole - net(part.remove(item, encoder).x)
            correction = Correction(
                "filling", part, (built.ids[0],), whole, removed, entries, torch.tensor([9])
            )
            none = torch.zeros(0, whole.shape[1], dtype=torch.float64)
            repairs.append(Repair(none, none, (correction,), "cosine", {}, (report("filling"),)))
        expected = net(parts[1].remove(parts[0].remove(item, encoder), encoder).x)
    with pytest.raises(InputError, match="give collection="):
        repairs[0].then(repairs[1])
    both = repairs[0].then(repairs[1], built)
    assert torch.allclose(both.apply(whole), expected, rtol=0, atol=1e-12)
    assert torch.allclose(both.embed(encoder, tmp_path / "x.npy"), expected[0], rtol=0, atol=1e-12)
    added = whole - repairs[0].corrections[0].removed - repairs[1].corrections[0].removed
    assert not torch.allclose(added, expected, rtol=0, atol=1e-3)
    d = bilrp.decompose(encoder, x, regions=8)
    explanation = bilrp.pair(d, d, similarity=both.similarity)
    assert float(explanation.relevance[[0, 1, 2, 6, 7, 8]].abs().sum()) == 0
    total = float(explanation.relevance.sum()) + explanation.unattributed
    assert total == pytest.approx(explanation.score, abs=1e-12) and explanation.score == pytest.approx(1)


def test_the_part_is_located_to_the_pixel_and_detected(pair_of_collections) -> None:
    clean, stamped = pair_of_collections
    items = [read_item(stamped.encoder, stamped.original_input(p)) for p in range(0, 30, 3)]
    area = np.zeros((16, 16), dtype=bool)
    area[13:] = True
    part = locate_image_part(items, area)
    rows = part.mask.float().mean(1)
    assert (
        float(rows[26:].min()) == 1 and float(rows[:23].max()) == 0
    )  # the bar starts at 52 of 64, here 26 of 32
    assert all(map(part.is_in, items))
    others = [read_item(clean.encoder, clean.original_input(p)) for p in range(20)]
    assert not any(map(part.is_in, others))
    filled = part.remove(items[0], stamped.encoder)
    assert not part.is_in(filled) and torch.equal(filled.x[..., :23, :], items[0].x[..., :23, :])
    assert part.is_in(part.add(others[1], items[0], clean.encoder))


def test_a_repair_without_effect_is_refused(pair_of_collections) -> None:
    """A corner that carriers do not share: removing it restores nothing."""
    clean, _ = pair_of_collections
    with pytest.raises(RefusedRepairError, match="decides no neighbours") as raised:
        clean.repair(part=[0], of=0, carriers=list(range(30)))
    assert raised.value.report.candidates


def test_a_repair_that_brings_its_items_together_is_refused(pair_of_collections, monkeypatch) -> None:
    """What helps the items that the part was added to can leave one more thing in common to those that have it."""
    _, stamped = pair_of_collections
    make = repair_selection.Selection.make_repair

    def make_alike(selection, *args) -> Repair:
        repair = make(selection, *args)
        [correction] = repair.corrections
        alike = correction.originals - correction.originals[:1]
        return replace(repair, corrections=(replace(correction, removed=alike),))

    monkeypatch.setattr(repair_selection.Selection, "make_repair", make_alike)
    monkeypatch.setattr(
        repair_selection, "MIN_GAIN", 0.0
    )  # nearly all of their neighbours have the bar as it is
    with pytest.raises(RefusedRepairError, match="name all of it") as raised:
        stamped.repair(part=[12, 13, 14, 15], of=0, method="filling")
    result = raised.value.report
    assert result.carriers_after == 1 and result.carriers_before is not None and result.carriers_before < 1


def test_what_cannot_be_repaired_is_said(pair_of_collections) -> None:
    _, stamped = pair_of_collections
    border = Suspect("border", "the border", 0.5, 0.2, (), np.ones((16, 16), dtype=bool), (0, 1, 2))
    for options, message in (
        ({}, "say which part"),
        ({"part": [0]}, "say which part"),
        ({"part": [99], "of": 0}, "numbered 0 … 15"),
        ({"part": [12], "of": "nothing"}, "not an item"),
        ({"words": "a"}, "these items are images"),
        ({"suspect": 99}, "there is no suspect 99"),
        ({"suspect": border}, "every item has it"),
        ({"part": [12], "of": 0, "carriers": [0, 1]}, "needs 3"),
        ({"part": [12], "of": 0, "carriers": [0, 1, 900]}, "positions 0"),
        ({"part": [12], "of": 0, "carriers": list(range(75))}, "without the part"),
        ({"part": [12], "of": 0, "method": "magic"}, "unknown method"),
    ):
        with pytest.raises(InputError, match=message):
            stamped.repair(**options)
    repair = stamped.repair(part=[12, 13, 14, 15], of=0, method="filling")
    other = replace(repair, origin={**repair.origin, "weights": "others"})
    with pytest.raises(MismatchError, match=r"another encoder.*weights"):
        other.rank(stamped, 0)
    with pytest.raises(MismatchError, match="weights"):
        repair.then(other)


def test_inputs_of_several_sizes_are_refused() -> None:
    encoder = bilrp.Encoder(network(), read=partial(images.read_with_view, size=None))
    items = [read_item(encoder, torch.zeros(1, 3, n, 24).double()) for n in (24, 32, 24)]
    with pytest.raises(InputError, match="different sizes"):
        locate_image_part(items, np.ones((4, 4), dtype=bool))
