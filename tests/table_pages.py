"""Table pages drawn for tests: numbers such as 9·093 in ruled columns, and where each digit was put."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PITCH_PIXELS, ROW_PIXELS, COLUMN_PIXELS = 17, 34, 94
LEFT, TOP = 120, 150


@dataclass(frozen=True)
class DrawnPage:
    image: Image.Image
    values: list[list[str]]
    centres: np.ndarray


def load_font(size: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSerif.ttf", size)


def draw_page(
    *,
    rows: int = 14,
    columns: int = 8,
    seed: int = 0,
    angle: float = 0.0,
    values: list[list[str]] | None = None,
) -> DrawnPage:
    """Draw a page of random or given values; `centres` [rows, columns, 4, 2] are the digits' middles before turning."""
    rng = np.random.default_rng(seed)
    values = values or [
        [f"{rng.integers(0, 10)}.{rng.integers(0, 1000):03d}" for _ in range(columns)] for _ in range(rows)
    ]
    size = (LEFT + columns * COLUMN_PIXELS + 60, TOP + rows * ROW_PIXELS + 80)
    image = Image.new("L", size, 205)
    draw = ImageDraw.Draw(image)
    draw.text((60, 30), "METEOROLOGICAL OBSERVATORY", font=load_font(26), fill=50)
    draw.line((40, TOP - 40, size[0] - 40, TOP - 40), fill=60, width=2)
    draw.line((40, size[1] - 60, size[0] - 40, size[1] - 60), fill=60, width=2)
    for c in range(1, columns):
        x = LEFT + c * COLUMN_PIXELS - 12
        draw.line((x, TOP - 40, x, size[1] - 60), fill=70, width=2)
    digit = load_font(32)
    centres = np.zeros((rows, columns, 4, 2))
    for r in range(rows):
        for c, text in enumerate(values[r]):
            for i, char in enumerate(text.replace(".", "")):
                x = LEFT + c * COLUMN_PIXELS + (0, 26, 26 + PITCH_PIXELS, 26 + 2 * PITCH_PIXELS)[i] + 8
                y = TOP + r * ROW_PIXELS
                # Old print is narrower than this font, so each digit is squeezed to its pitch.
                centres[r, c, i] = _paste_digit(image, char, digit, x, y)
            draw.ellipse(
                (
                    LEFT + c * COLUMN_PIXELS + 20,
                    TOP + r * ROW_PIXELS - 2,
                    LEFT + c * COLUMN_PIXELS + 23,
                    TOP + r * ROW_PIXELS + 1,
                ),
                fill=60,
            )
    if angle:
        image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=205)
    return DrawnPage(image, values, centres)


def _paste_digit(
    image: Image.Image, char: str, face: ImageFont.FreeTypeFont, x: float, y: float
) -> tuple[float, float]:
    box = face.getbbox(char)
    glyph = Image.new("L", (int(box[2] - box[0]), int(box[3] - box[1])), 0)
    ImageDraw.Draw(glyph).text((-box[0], -box[1]), char, font=face, fill=255)
    glyph = glyph.resize((14, 24), Image.Resampling.BICUBIC)
    image.paste(55, (round(x - 7), round(y - 12)), glyph)
    return round(x - 7) + 7.0, round(y - 12) + 12.0


def write_page(folder: Path, name: str, page: DrawnPage) -> tuple[Path, Path]:
    """Write images/NAME.jpg and data/NAME.csv the way the source has them."""
    image, text = folder / "images" / f"{name}.jpg", folder / "data" / f"{name}.csv"
    for path in (image, text):
        path.parent.mkdir(parents=True, exist_ok=True)
    page.image.save(image, quality=95)
    columns = len(page.values[0])
    lines = [",".join(f"'{c:5d}'" if c else "'     '" for c in range(columns + 1))]
    lines += [",".join([f"'{r + 1:5d}'", *(f"'{v}'" for v in row)]) for r, row in enumerate(page.values)]
    text.write_text("\n".join(lines) + "\n")
    return image, text
