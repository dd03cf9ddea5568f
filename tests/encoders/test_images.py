"""Image files of every kind become the right tensor, or one clear line."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from bilrp.encoders import images
from bilrp.errors import InputError
from type_asserts import assert_not_none

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


@pytest.fixture
def quarters() -> Image.Image:
    """Four colours, so that every flip, turn and crop shows: red green / blue white."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:20, :30], pixels[:20, 30:], pixels[20:, :30], pixels[20:, 30:] = RED, GREEN, BLUE, WHITE
    return Image.fromarray(pixels)


def corners(image) -> list[tuple[int, ...]]:
    array = np.asarray(image)
    return [tuple(int(v) for v in array[y, x]) for y, x in ((2, 2), (2, -3), (-3, 2), (-3, -3))]


def close(result, expected, tolerance=3) -> bool:
    return np.abs(np.array(result, int) - np.array(expected, int)).max() <= tolerance


def test_tensor_is_normalised_and_comes_back(quarters):
    x = images.read(quarters, size=(40, 60))
    assert x.shape == (1, 3, 40, 60) and x.dtype == torch.float32 and x.is_contiguous()
    torch.testing.assert_close(
        x[0, :, 0, 0], torch.tensor([(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225])
    )
    assert np.array_equal(images.to_image(x), np.asarray(quarters))


def test_pixel_bounds_hold_every_pixel(quarters):
    low, high = (torch.tensor(bound).view(1, 3, 1, 1) for bound in images.pixel_bounds())
    x = images.read(quarters, size=None)
    assert (x >= low - 1e-6).all() and (x <= high + 1e-6).all()
    assert (
        torch.isclose(x.amin((2, 3)), low.flatten()).all()
        and torch.isclose(x.amax((2, 3)), high.flatten()).all()
    )


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK", "YCbCr", "P", "HSV", "LAB"])
def test_colour_modes_keep_their_colours(tmp_path, quarters, mode):
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        converted = assert_not_none(ImageCms.profileToProfile(quarters, *profiles, outputMode="LAB"))
    else:
        converted = quarters.convert(mode)
    path = tmp_path / "a.tiff"
    if mode != "HSV":
        converted.save(path)
    reopened = images.open_image(converted if mode == "HSV" else path)
    assert reopened.mode == "RGB"
    assert close(corners(reopened), [RED, GREEN, BLUE, WHITE], 30 if mode == "LAB" else 3)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "ppm", "tiff", "tga"])
def test_formats(tmp_path, quarters, suffix):
    path = tmp_path / f"a.{suffix}"
    quarters.save(path, **({"quality": 95} if suffix in ("jpg", "webp") else {}))
    assert close(corners(images.open_image(path)), [RED, GREEN, BLUE, WHITE], 30)


def test_cmyk_jpeg(tmp_path, quarters):
    quarters.convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    assert close(corners(images.open_image(tmp_path / "a.jpg")), [RED, GREEN, BLUE, WHITE], 30)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(tmp_path, quarters, orientation):
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = quarters.transpose(undo[orientation]) if orientation in undo else quarters
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.png", exif=exif)
    reopened = images.open_image(tmp_path / "a.png")
    assert reopened.size == quarters.size
    assert corners(reopened) == [RED, GREEN, BLUE, WHITE]


def test_transparency_is_drawn_on_white(tmp_path):
    Image.new("RGBA", (9, 9), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert corners(images.open_image(tmp_path / "clear.png"))[0] == WHITE
    Image.new("RGBA", (9, 9), (255, 0, 0, 128)).save(tmp_path / "half.png")
    assert close(corners(images.open_image(tmp_path / "half.png"))[0], (255, 127, 127), 1)
    palette = Image.new("P", (9, 9), 1)
    palette.putpalette([0, 0, 0, 0, 255, 0])
    palette.save(tmp_path / "palette.png", transparency=1)
    assert corners(images.open_image(tmp_path / "palette.png"))[0] == WHITE
    Image.new("LA", (9, 9), (10, 255)).save(tmp_path / "la.png")
    assert corners(images.open_image(tmp_path / "la.png"))[0] == (10, 10, 10)
    Image.new("RGB", (9, 9), RED).save(tmp_path / "key.png", transparency=RED)
    assert corners(images.open_image(tmp_path / "key.png"))[0] == WHITE


def test_greys_one_bit_and_sixteen_bit(tmp_path):
    Image.new("L", (9, 9), 77).save(tmp_path / "l.png")
    assert corners(images.open_image(tmp_path / "l.png"))[0] == (77, 77, 77)
    Image.new("1", (9, 9), 1).save(tmp_path / "one.png")
    assert corners(images.open_image(tmp_path / "one.png"))[0] == WHITE
    for suffix in ("png", "tiff"):
        ramp = np.linspace(0, 65535, 81).reshape(9, 9).astype(np.uint16)
        Image.fromarray(ramp).save(tmp_path / f"deep.{suffix}")
        result = np.asarray(images.open_image(tmp_path / f"deep.{suffix}"))[..., 0]
        assert np.abs(result - ramp / 257).max() <= 0.5, "the whole range, not the low byte and not clipped"


def test_float_pictures_by_their_range(tmp_path):
    Image.fromarray(np.full((9, 9), 0.5, np.float32)).save(tmp_path / "unit.tiff")
    assert corners(images.open_image(tmp_path / "unit.tiff"))[0] == (128, 128, 128)
    Image.fromarray(np.full((9, 9), 200.0, np.float32)).save(tmp_path / "byte.tiff")
    assert corners(images.open_image(tmp_path / "byte.tiff"))[0] == (200, 200, 200)
    for value in (-1.0, 1000.0, float("nan")):
        Image.fromarray(np.full((9, 9), value, np.float32)).save(tmp_path / "odd.tiff")
        with pytest.raises(InputError, match="floating-point pixels"):
            images.open_image(tmp_path / "odd.tiff")


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tiff"])
def test_animation_gives_its_first_frame(tmp_path, suffix):
    frames = [Image.new("RGB", (20, 20), colour) for colour in (RED, GREEN, BLUE)]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:], duration=50)
    assert close(corners(images.open_image(tmp_path / f"a.{suffix}"))[0], RED, 10)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 2)])
@pytest.mark.parametrize("resize", images.RESIZE_MODES)
def test_tiny_and_thin_pictures(size, resize):
    x = images.read(Image.new("RGB", size, RED), size=32, resize=resize)
    assert x.shape == (1, 3, 32, 32)
    assert close(images.to_image(x)[15, 15], RED)


def test_crop_keeps_the_middle_pad_keeps_all_stretch_keeps_edges():
    pixels = np.zeros((50, 150, 3), np.uint8)
    pixels[:, :50], pixels[:, 50:100], pixels[:, 100:] = RED, GREEN, BLUE
    image = Image.fromarray(pixels)
    crop = np.asarray(images.resize_image(image, size=30, resize="crop"))
    assert close(crop.reshape(-1, 3), [GREEN] * 900, 60)
    pad = np.asarray(images.resize_image(image, size=30, resize="pad"))
    assert close(pad[0, 0], [round(255 * m) for m in images.MEAN], 1)
    assert close([pad[15, 2], pad[15, 15], pad[15, 27]], [RED, GREEN, BLUE], 40)
    stretch = np.asarray(images.resize_image(image, size=30, resize="stretch"))
    assert close([stretch[0, 0], stretch[29, 29]], [RED, BLUE])
    assert images.resize_image(image, size=(20, 40)).size == (40, 20), "height first, as in tensors"


def test_frames_beyond_the_first_are_never_counted(tmp_path, quarters, monkeypatch):
    """A small TIFF can hold fifty thousand directories, and counting frames walks them all."""
    from PIL import GifImagePlugin, TiffImagePlugin

    for kind in (TiffImagePlugin.TiffImageFile, GifImagePlugin.GifImageFile):
        monkeypatch.setattr(kind, "n_frames", property(lambda self: pytest.fail("counts frames")))
    for suffix in ("tiff", "gif"):
        path = tmp_path / f"many.{suffix}"
        quarters.save(path, save_all=True, append_images=[Image.new("RGB", quarters.size)] * 3)
        assert close(corners(images.open_image(path)), corners(quarters), 60)
    with Image.open(tmp_path / "many.tiff") as image:
        image.seek(2)
        assert close(corners(images.open_image(image)), corners(quarters))


def test_a_large_jpeg_is_decoded_smaller(tmp_path):
    ramp = np.linspace(0, 255, 1600).astype(np.uint8)
    Image.fromarray(np.broadcast_to(ramp, (1200, 1600)).copy()).convert("RGB").save(
        tmp_path / "big.jpg", quality=95
    )
    for most, size in (
        (2_000_000, (1600, 1200)),
        (1_900_000, (800, 600)),
        (200_000, (400, 300)),
        (40_000, (200, 150)),
    ):
        assert images.open_image(tmp_path / "big.jpg", max_pixels=most).size == size
    full = images.read(tmp_path / "big.jpg", size=64)
    assert (images.read(tmp_path / "big.jpg", size=64, max_pixels=40_000) - full).abs().max() < 0.1
    with pytest.raises(InputError, match="megapixels"):
        images.open_image(tmp_path / "big.jpg", max_pixels=10_000)
    Image.new("RGB", (1600, 1200)).save(tmp_path / "progressive.jpg", progressive=True)
    with pytest.raises(InputError, match="megapixels"):  # its coefficients are held at full size
        images.open_image(tmp_path / "progressive.jpg", max_pixels=40_000)


def test_a_jpeg_that_passes_over_itself_too_often_is_refused(tmp_path):
    built = io.BytesIO()
    Image.new("RGB", (3000, 3000)).save(built, "jpeg", progressive=True)
    data = built.getvalue()
    scan = data.rindex(b"\xff\xda")
    (tmp_path / "scans.jpg").write_bytes(data[:-2] + data[scan:-2] * 1000 + data[-2:])
    with pytest.raises(InputError, match="too many scans"):
        images.open_image(tmp_path / "scans.jpg")
    (tmp_path / "usual.jpg").write_bytes(data)
    assert images.open_image(tmp_path / "usual.jpg").size == (3000, 3000)


@pytest.mark.parametrize(("suffix", "side"), [("qoi", 2100), ("webp", 7200), ("jp2", 4200), ("ppm", 0)])
def test_costly_decoders_are_asked_for_less(tmp_path, suffix, side):
    """Several copies at once, or written in Python: refused from the header."""
    path = tmp_path / f"large.{suffix}"
    if suffix == "ppm":
        path.write_bytes(b"P3 3000 3000 255\n" + b"0 " * 10)
    elif suffix == "qoi":
        path.write_bytes(b"qoif" + struct.pack(">II", side, side) + bytes([3, 0]) + b"\xfd" * 1000)
    elif suffix not in {ext.strip(".") for ext in Image.registered_extensions()}:
        pytest.skip(f"needs Pillow with {suffix}")
    else:
        Image.new("L", (side, side)).save(path)
    with pytest.raises(InputError, match="megapixels"):
        images.open_image(path)


def test_a_picture_that_is_not_scaled_has_a_limit_of_its_own(tmp_path):
    Image.new("1", (5000, 5000)).save(tmp_path / "page.png")
    with pytest.raises(InputError, match="more than 16 megapixels"):
        images.read(tmp_path / "page.png", size=None)


def test_huge_files_are_refused_unread(tmp_path):
    with (tmp_path / "huge.png").open("wb") as file:
        file.write(_header_only_png(8, 8))
        file.truncate(600_000_000)  # sparse
    with pytest.raises(InputError, match="more than 512 MB"):
        images.open_image(tmp_path / "huge.png")


def test_whatever_a_decoder_raises_is_one_line(tmp_path, quarters, monkeypatch):
    quarters.save(tmp_path / "a.png")
    for error in (
        TypeError("x"),
        KeyError("tile"),
        RuntimeError("a\nb"),
        MemoryError(),
        RecursionError(),
        ZeroDivisionError(),
    ):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", fail)
        with pytest.raises(InputError, match="damaged or unreadable") as raised:
            images.open_image(tmp_path / "a.png")
        assert "\n" not in str(raised.value)
        with Image.open(tmp_path / "a.png") as image, pytest.raises(InputError):
            images.open_image(image)


def test_deep_greys_of_both_byte_orders(tmp_path):
    values = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    for order in "<>":
        Image.fromarray(values.astype(f"{order}u2")).save(tmp_path / "deep.tif")
        result = np.asarray(images.open_image(tmp_path / "deep.tif"))[..., 0]
        assert np.abs(result - values / 257).max() <= 0.5


def test_hundred_megapixels_are_read_and_bombs_are_not(tmp_path):
    Image.new("1", (10_000, 10_000), 1).save(tmp_path / "big.png")
    assert images.read(tmp_path / "big.png", size=16).shape == (1, 3, 16, 16)
    with pytest.raises(InputError, match="more than 50 megapixels"):
        images.open_image(tmp_path / "big.png", max_pixels=50_000_000)
    (tmp_path / "bomb.png").write_bytes(_header_only_png(60_000, 60_000))
    with pytest.raises(InputError, match="megapixels"):
        images.open_image(tmp_path / "bomb.png")


def _header_only_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "webp", "tiff", "bmp"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_truncated_files_are_one_line(tmp_path, suffix, keep):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, {"jpg": "jpeg"}.get(suffix, suffix))
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(buffer.getvalue()[: int(len(buffer.getvalue()) * keep)])
    with pytest.raises(InputError) as raised:
        images.open_image(path)
    assert "\n" not in str(raised.value) and "cut" in str(raised.value)


def test_what_is_not_an_image_says_so(tmp_path):
    with pytest.raises(InputError, match="a folder, not an image"):
        images.open_image(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        images.open_image(tmp_path / "absent.png")
    (tmp_path / "empty.png").touch()
    with pytest.raises(InputError, match="the file is empty"):
        images.open_image(tmp_path / "empty.png")
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(InputError, match="not a supported image file"):
        images.open_image(tmp_path / "text.png")
    (tmp_path / "a.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    with pytest.raises(InputError, match="not a supported image file"):
        images.open_image(tmp_path / "a.eps")
    with pytest.raises(InputError, match="expected a path"):
        images.open_image(42)


@pytest.mark.parametrize("name", ["a\0b.png", "x" * 5000 + ".png"])
def test_impossible_names_are_one_line(name):
    with pytest.raises(InputError):
        images.open_image(name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match="not a regular file"):
        images.open_image(tmp_path / "pipe.png")


@pytest.mark.parametrize("name", ["two words.png", "Grüße 山 🐈.png", "-o.png", "a'b\"c.png", "no suffix"])
def test_odd_names_are_only_names(tmp_path, quarters, name):
    quarters.save(tmp_path / name, "png")
    assert corners(images.open_image(tmp_path / name)) == [RED, GREEN, BLUE, WHITE]


def test_arrays(quarters):
    array = np.asarray(quarters)
    assert corners(images.open_image(array)) == [RED, GREEN, BLUE, WHITE]
    assert images.read(array[..., 0], size=8).shape == (1, 3, 8, 8)
    for bad in (array / 255, array[..., :2], np.zeros((0, 4), np.uint8)):
        with pytest.raises(InputError):
            images.open_image(bad)


def test_bad_sizes_and_fits(quarters):
    with pytest.raises(InputError, match="at least 1 pixel"):
        images.read(quarters, size=0)
    with pytest.raises(InputError, match="resize must be one of"):
        images.read(quarters, resize="squash")


def test_listed_is_sorted_and_only_images(tmp_path, quarters):
    (tmp_path / "b").mkdir()
    quarters.save(tmp_path / "b" / "2.PNG", "png")
    quarters.save(tmp_path / "1.jpg")
    (tmp_path / "notes.txt").write_text("x")
    assert [p.name for p in images.list_images(tmp_path)] == ["1.jpg", "2.PNG"]
    with pytest.raises(InputError, match="no such folder"):
        images.list_images(tmp_path / "absent")
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match="no images"):
        images.list_images(tmp_path / "c")
