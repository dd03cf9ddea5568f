"""The bigram network: its formula, its exactness, its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bilrp
from bilrp import inputs as views
from bilrp.encoders import bigram as net
from bilrp.errors import InputError
from table_pages import draw_page

pytest.importorskip("scipy")
pytest.importorskip("skimage")


def literal(maps: torch.Tensor, cells: tuple[int, ...]) -> torch.Tensor:
    """The paper's formula word for word: φ_jk = ‖max_τ min{a_j, τ(a_k)}‖₁."""
    height, width = maps.shape[2:]
    out = torch.zeros(100, dtype=maps.dtype)
    for j in range(10):
        for k in range(10):
            total = 0.0
            for y in range(height):
                for x in range(width):
                    options = [min(maps[0, j, y, x], maps[0, k, y, x + c]) for c in cells if x + c < width]
                    total += float(max(options, default=0.0))
            out[10 * j + k] = total
    return out


def test_part_two_is_the_papers_formula():
    maps = torch.rand(1, 10, 3, 12, dtype=torch.float64)
    module = net.BigramNet(torch.nn.Identity(), shifts=(8, 10, 12))
    assert module.shift_cells == (4, 5, 6)
    torch.testing.assert_close(module(maps)[0], literal(maps, (4, 5, 6)))


def test_a_bigram_is_counted_where_it_is_and_only_in_reading_order():
    maps = torch.zeros(1, 10, 5, 20)
    maps[0, 3, 2, 4] = maps[0, 7, 2, 8] = 1.0
    result = net.BigramNet(torch.nn.Identity())(maps)[0]
    assert result.nonzero().flatten().tolist() == [37]


def test_no_ink_no_bigrams_and_moving_the_page_changes_nothing():
    module = net.BigramNet(net.DigitNet())
    assert module(torch.zeros(1, 1, 64, 64)).abs().max() == 0
    x = torch.zeros(1, 1, 96, 128)
    x[..., 30:50, 40:80] = torch.rand(20, 40)
    torch.testing.assert_close(module(x), module(x.roll((8, 16), dims=(2, 3))), rtol=1e-4, atol=1e-5)


def test_images_smaller_than_a_shift_do_not_fail():
    assert net.BigramNet(net.DigitNet())(torch.rand(1, 1, 6, 6)).shape == (1, 100)


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_push_is_pull_and_everything_is_attributed(gamma):
    encoder = bilrp.Encoder(
        module=net.BigramNet(net.DigitNet(width=6)).double(),
        composite=bilrp.composites.uniform(gamma),
        name="b",
    )
    x = torch.rand(1, 1, 48, 56, dtype=torch.float64)
    pushed, pulled = (
        bilrp.decompose(encoder, x, regions=bilrp.regions.grid(8), mode=m) for m in ("push", "pull")
    )
    torch.testing.assert_close(pushed.parts, pulled.parts, rtol=1e-9, atol=1e-10)
    assert pulled.embedding.abs().max() > 0.1
    assert pulled.unattributed.abs().max() < 1e-10 * pulled.embedding.abs().max()


def test_with_gamma_zero_parts_are_gradient_times_input():
    module = net.BigramNet(net.DigitNet(width=6)).double()
    x = torch.rand(1, 1, 24, 32, dtype=torch.float64)
    parts = bilrp.decompose(
        module, x, composite=bilrp.composites.uniform(0.0), regions=bilrp.regions.features()
    ).parts
    truth = torch.autograd.functional.jacobian(lambda v: module(v)[0], x).reshape(100, -1) * x.flatten()
    torch.testing.assert_close(parts.T, truth, rtol=1e-8, atol=1e-10)


def test_weights_survive_writing_and_say_what_they_are(tmp_path):
    part_one = net.DigitNet(width=8, depth=3)
    path = net.save_weights(part_one, tmp_path / "w.safetensors", {"labels": 7})
    second, about = net.load_weights(path)
    x = torch.rand(1, 1, 30, 30)
    torch.testing.assert_close(second(x), part_one(x))
    assert about == {"labels": 7}


def test_missing_or_wrong_weights_raise_one_line_errors(tmp_path):
    with pytest.raises(InputError, match="no bigram weights"):
        net.bigram(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="does not contain bigram weights") as error:
        net.bigram(tmp_path / "bad.safetensors")
    assert "\n" not in str(error.value)


def test_the_shipped_encoder_reads_pages_and_refuses_what_is_not_an_image(tmp_path):
    encoder = net.bigram()
    assert encoder.read is not None
    page = draw_page(rows=6, columns=4).image
    item = encoder.read(page)
    assert isinstance(item, views.Item) and isinstance(item.view, views.Image)
    assert item.view.size == page.size and np.array_equal(item.view.pixels[..., 0], np.asarray(page))
    x = item.x
    assert x.shape[:2] == (1, 1) and float(x.min()) >= 0 and float(x.max()) <= 1
    explanation = bilrp.explain(encoder, page, page, similarity="cosine")
    assert explanation.score == pytest.approx(1.0, abs=1e-4)
    assert abs(explanation.unattributed) < 1e-4
    with pytest.raises(InputError, match="no such file"):
        encoder.read(tmp_path / "none.jpg")


def test_crops_have_small_patches_and_whole_pages_not_too_many():
    assert net.patch_regions(torch.zeros(1, 1, 96, 136)).count == 12 * 17
    assert net.patch_regions(torch.zeros(1, 1, 790, 1256)).count <= net.MAX_REGIONS
    assert net.patch_regions(torch.zeros(1, 1, 6, 4000)).count == 500


def test_shipped_weights_used_few_labels():
    _, about = net.load_weights(net.WEIGHTS_PATH)
    assert 0 < about["labels"] <= 1000
    assert net.WEIGHTS_PATH.stat().st_size < 1_000_000
