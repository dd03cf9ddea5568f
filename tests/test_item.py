"""Items: what people see stands where the model saw it, travels with the numbers, and is read once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch import nn

import bilrp
from bilrp import Decomposition, Encoder, Explanation, regions
from bilrp.encoder import choose_regions, read_item
from bilrp.encoders import images
from bilrp.errors import InputError
from bilrp.inputs import Image, Item, Text

NET = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())


def gradient(wide: int, high: int) -> Pillow.Image:
    """Red tells the column, green the row, so that any pixel says where it came from."""
    y, x = np.mgrid[:high, :wide]
    return Pillow.fromarray(
        np.stack([x * 255 // (wide - 1), y * 255 // (high - 1), 0 * x], axis=2).astype(np.uint8)
    )


def reader(size: int | tuple[int, int] | None, resize: str) -> Encoder:
    return Encoder(
        NET,
        read=lambda item: images.read_with_view(item, size=size, resize=resize),
        to_image=images.to_image,
    )


SIZES = [(90, 60), (60, 90), (64, 64), (200, 50)]


@pytest.mark.parametrize("resize", images.RESIZE_MODES)
@pytest.mark.parametrize("wide_high", SIZES)
@pytest.mark.parametrize("size", [32, (32, 48), None], ids=str)
def test_every_region_is_where_the_model_saw_it(wide_high, resize, size) -> None:
    """The colours under a region's place in the photograph are the colours of the input there."""
    item = images.read_with_view(gradient(*wide_high), size=size, resize=resize)
    assert isinstance(item.view, Image) and item.view.size == wide_high
    seen = images.to_image(item.x).astype(float)
    high, wide = seen.shape[:2]
    padding = [round(255 * m) for m in images.MEAN]
    for row in range(2, high - 2, 5):
        for column in range(2, wide - 2, 5):
            left, top, right, bottom = item.view.map_to_view((row, column, row + 1, column + 1), (high, wide))
            x, y = (left + right) / 2, (top + bottom) / 2
            if 2 < x < wide_high[0] - 2 and 2 < y < wide_high[1] - 2:
                expected = 255 * (x - 0.5) / (wide_high[0] - 1), 255 * (y - 0.5) / (wide_high[1] - 1)
                assert np.abs(seen[row, column, :2] - expected).max() < 8
            elif x < -2 or y < -2 or x > wide_high[0] + 2 or y > wide_high[1] + 2:
                assert np.abs(seen[row, column] - padding).max() <= 1, (
                    "beyond the photograph there is padding"
                )


def test_what_crop_pad_and_stretch_keep_of_an_image() -> None:
    boxes = {resize: images.input_box((200, 100), size=64, resize=resize) for resize in images.RESIZE_MODES}
    assert boxes == {"crop": (50, 0, 150, 100), "pad": (0, -50, 200, 150), "stretch": (0, 0, 200, 100)}
    frames = {
        resize: Image.from_image(np.asarray(gradient(200, 100)), box).frame for resize, box in boxes.items()
    }
    assert frames["crop"] == frames["stretch"] == (0, 0, 200, 100) and frames["pad"] == (0, -50, 200, 150)


@pytest.mark.parametrize("resize", images.RESIZE_MODES)
def test_what_the_model_saw_can_be_shown_from_the_view(resize) -> None:
    item = images.read_with_view(gradient(150, 90), size=64, resize=resize)
    assert isinstance(item.view, Image)
    shown, seen = item.view.crop_to_input((64, 64)).astype(float), images.to_image(item.x).astype(float)
    inside = (
        np.abs(seen - [round(255 * m) for m in images.MEAN]).max(2) > 2
    )  # padding is plain grey in a view
    assert np.abs(shown - seen)[inside].mean() < 3


def test_large_photographs_are_shown_bounded_and_still_in_place() -> None:
    item = images.read_with_view(gradient(4000, 1000), size=32, resize="crop")
    view = item.view
    assert isinstance(view, Image) and view.size == (1600, 400) and view.original_size == (4000, 1000)
    assert view.box == pytest.approx((600, 0, 1000, 400))
    assert view.map_to_original(view.box) == pytest.approx((1500, 0, 2500, 1000))


def test_decompositions_carry_view_and_name_through_files(tmp_path: Path) -> None:
    gradient(90, 60).save(tmp_path / "sky.png")
    gradient(60, 90).save(tmp_path / "sea.png")
    explanation = bilrp.explain(
        reader(32, "crop"), tmp_path / "sky.png", str(tmp_path / "sea.png"), similarity="dot"
    )
    assert (explanation.a.name, explanation.b.name) == ("sky.png", "sea.png")
    for suffix in (".npz", ".safetensors"):
        back = Explanation.load(explanation.save(tmp_path / f"why{suffix}"))
        for before, after in ((explanation.a, back.a), (explanation.b, back.b)):
            assert isinstance(before.view, Image) and isinstance(after.view, Image)
            assert np.array_equal(before.view.pixels, after.view.pixels)
            assert (before.view.box, before.view.original_size, before.name) == (
                after.view.box,
                after.view.original_size,
                after.name,
            )
            assert np.array_equal(before.region_boxes, after.region_boxes)  # type: ignore[arg-type]


def test_places_are_in_pixels_of_the_photograph() -> None:
    decomposition = bilrp.decompose(reader(32, "crop"), gradient(90, 60), regions=8)
    assert decomposition.region_boxes is not None
    assert decomposition.region_boxes[0] == pytest.approx((15, 0, 30, 15)) and decomposition.region_boxes[
        -1
    ] == pytest.approx((60, 45, 75, 60))
    odd = torch.zeros(32, 32, dtype=torch.long)
    odd[:4, :4] = odd[4, 0] = 1
    cut = bilrp.decompose(reader(32, "stretch"), gradient(64, 64), regions=odd)
    assert cut.regions.boxes is None and cut.region_boxes is not None
    assert cut.region_boxes[1] == pytest.approx((0, 0, 8, 10))


def test_texts_keep_their_words_in_files_and_in_larger_regions(tmp_path: Path) -> None:
    view = Text("Two black goats", ((0, 3), (4, 9), (10, 15), None))
    read = Encoder(nn.Flatten(), read=lambda text: Item(torch.ones(1, 4, 3), view, name=text))
    decomposition = bilrp.decompose(read, "Two black goats")
    assert decomposition.regions.count == 4 and decomposition.name == "Two black goats"
    back = Decomposition.load(decomposition.save(tmp_path / "text.safetensors"))
    assert (isinstance(back.view, Text) and back.view == view) or back.view.region_texts == view.region_texts  # type: ignore[union-attr]
    joined = decomposition.coarsen(regions.labels(torch.tensor([0, 1, 1, 2]))).view
    assert isinstance(joined, Text) and joined.region_texts == ("Two", "black goats", "")
    for spec, texts in (("sentences", ("Two black goats", "")), ([(0, 9)], ("Two black", ""))):
        merged = back.coarsen(spec)
        assert isinstance(merged.view, Text) and merged.view.region_texts == texts
        torch.testing.assert_close(merged.parts[0], back.parts[: texts[0].count(" ") + 1].sum(0))


def test_a_bare_tensor_is_its_own_view() -> None:
    x = torch.rand(1, 3, 8, 8)
    decomposition = bilrp.decompose(NET, x)
    assert (
        isinstance(decomposition.view, Image)
        and decomposition.view.size == (8, 8)
        and decomposition.name == ""
    )
    assert bilrp.decompose(nn.Linear(4, 2), torch.rand(1, 4)).view is None
    plain = Encoder(NET, read=lambda path: x)
    assert read_item(plain, Path("photos/sky.png")).name == "sky.png"


def test_regions_of_an_item_go_before_the_encoders_and_after_those_asked_for() -> None:
    encoder = Encoder(nn.Flatten(), regions=regions.features())
    own = Item(torch.ones(1, 6), regions=regions.labels(torch.tensor([0, 0, 1, 1, 2, 2])))
    assert choose_regions(encoder, Item(own.x)).count == 6
    assert bilrp.decompose(encoder, own).regions.count == 3
    assert bilrp.decompose(encoder, own, regions=torch.tensor([0, 0, 0, 1, 1, 1])).regions.count == 2


def test_reading_and_checking_happen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from bilrp import encoder as module

    happened: list[str] = []
    check = module.check_input

    def counted(x, network=None):
        happened.append("check")
        return check(x, network)

    def read(item: str) -> Item:
        happened.append("read")
        return Item(torch.rand(1, 3, 8, 8), name=item)

    monkeypatch.setattr(module, "check_input", counted)
    bilrp.explain(Encoder(NET, read=read), "a", "b", similarity="dot")
    assert happened == ["read", "check", "read", "check"]


def test_items_are_checked_as_tensors_are() -> None:
    with pytest.raises(InputError, match="batch axis"):
        bilrp.decompose(NET, Item(torch.rand(2, 3, 8, 8)))
    with pytest.raises(InputError, match="NaN"):
        bilrp.decompose(Encoder(NET, read=lambda _: Item(torch.full((1, 3, 8, 8), torch.nan))), "x")
    with pytest.raises(InputError, match="uint8"):
        Image(np.zeros((4, 4, 3)), (0, 0, 4, 4))
    with pytest.raises(InputError, match="empty"):
        Image(np.zeros((4, 4, 3), np.uint8), (2, 0, 2, 4))


def test_sequences_are_tokens_by_default_and_may_be_labelled_by_token() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Flatten())
    x = torch.rand(1, 4, 5)
    assert bilrp.decompose(model, x).regions.count == 4
    pairs = bilrp.decompose(model, x, regions=regions.labels(torch.tensor([0, 0, 1, -1])))
    each = bilrp.decompose(model, x, regions=regions.tokens())
    assert torch.allclose(pairs.parts, torch.stack([each.parts[:2].sum(0), each.parts[2]]), atol=1e-6)
    with pytest.raises(InputError, match=r"\(4, 5\) or \(4,\)"):
        bilrp.decompose(model, x, regions=regions.labels(torch.tensor([0, 1])))


def test_an_embedding_of_nothing_or_of_zeros_is_an_error() -> None:
    with pytest.raises(InputError, match="no coordinates"):
        bilrp.decompose(lambda x: x[:, :0], torch.rand(1, 4))
    dead = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU())
    with pytest.raises(InputError, match="zero in every coordinate"):
        bilrp.explain(dead, torch.zeros(1, 4), torch.zeros(1, 4), similarity="dot")
    with pytest.raises(InputError, match="zero in every coordinate"):
        bilrp.baselines.saliency(dead, torch.zeros(1, 4), torch.zeros(1, 4))
