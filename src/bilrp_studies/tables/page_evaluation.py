"""All evaluations of the tables study, on test pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from PIL import Image

from bilrp.encoder import Encoder, read_tensor
from bilrp.encoders.bigram import BigramNet, DigitNet, build_encoder
from bilrp.encoders.binarization import resize_array
from bilrp.errors import InputError
from bilrp.explanation import Explanation, pair
from bilrp.pipeline import decompose
from bilrp.progress import Progress
from bilrp.regions import labels as by_labels
from bilrp_studies.tables import bigram_agreement, digit_metrics
from bilrp_studies.tables.alignment import count_bigrams
from bilrp_studies.tables.page_layout import LAYOUT_SCALE, find_layout
from bilrp_studies.tables.pages import Page
from bilrp_studies.tables.table_blocks import DISTORTIONS, TableBlock, cut_blocks, distort

T = TypeVar("T")
BLOCK_CELLS = (8, 6)
"""Rows and columns of the blocks that are compared and searched for."""
SMALL_BLOCK_CELLS = (5, 3)
"""Rows and columns of the blocks that are explained digit by digit."""
SMALL_WINDOW_PIXELS = (96, 136)
"""Height and width in network pixels of a small block with its borders."""


def track_progress(items: Sequence[T], label: str, bar: Progress | None) -> Iterator[T]:
    """Yield the items and advance a progress bar after each.

    Args:
        items: The items.
        label: Label of the bar.
        bar: The bar; None shows nothing.
    """
    bar = bar or Progress()
    bar.start(label, len(items))
    for item in items:
        yield item
        bar.advance()


@dataclass(frozen=True)
class PageScore:
    """One page: detection score, the 100 bigram sums, and the transcribed bigram counts."""

    name: str
    digits: digit_metrics.DetectionScore
    bigram_sums: np.ndarray
    bigram_counts: np.ndarray


@torch.no_grad()
def score_pages(
    net: DigitNet,
    pages: Sequence[Page],
    *,
    threshold: float = digit_metrics.DETECTION_THRESHOLD,
    bar: Progress | None = None,
) -> list[PageScore]:
    """Compare digit detections and bigram sums of whole pages with their transcription.

    Args:
        net: The digit network.
        pages: Pages to score.
        threshold: Minimum blob height of a detection.
        bar: Progress bar.
    """
    part_two = BigramNet(torch.nn.Identity())
    items = []
    for page in track_progress(pages, "reading digits", bar):
        maps = net(torch.from_numpy(page.network_ink())[None, None])
        score = digit_metrics.match_digits(digit_metrics.detect(maps, threshold=threshold), page.digits)
        cells = [text for row in page.transcription.values for text in row]
        items.append(PageScore(page.name, score, part_two(maps)[0].numpy(), count_bigrams(cells)))
    return items


def digit_f1(scores: Sequence[PageScore]) -> float:
    """Return F1 over all digits of all pages."""
    return sum((s.digits for s in scores), digit_metrics.DetectionScore(0, 0, 0)).f1


def bigram_correlation(scores: Sequence[PageScore]) -> float:
    """Return the Pearson correlation of sums and counts over all pages and bigrams."""
    return digit_metrics.pearson(
        np.array([s.bigram_sums for s in scores]), np.array([s.bigram_counts for s in scores])
    )


def choose_threshold(net: DigitNet, pages: Sequence[Page]) -> float:
    """Return the blob height with the best F1 on the validation pages."""
    if not pages:
        return digit_metrics.DETECTION_THRESHOLD
    options = (0.4, 0.3, 0.5, 0.2, 0.6, 0.1)  # ties are resolved in this order
    return max(options, key=lambda t: round(digit_f1(score_pages(net, pages, threshold=t)), 3))


@torch.no_grad()
def embed(encoder: Encoder, image: Image.Image) -> np.ndarray:
    """Return the embedding of an image."""
    return encoder.module(read_tensor(encoder, image)).flatten().numpy()


def cosine_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosine similarity of all rows of a with all rows of b; 0 for zero rows."""
    norm = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)[None]
    return np.divide(a @ b.T, norm, out=np.zeros_like(norm), where=norm > 0)


@dataclass(frozen=True)
class Similarities:
    """Predicted and true similarity of all pairs of blocks, and the rank correlation of each model."""

    true: np.ndarray
    predicted: dict[str, np.ndarray]
    spearman: dict[str, float]
    spearman_dot: dict[str, float]


def compare_blocks(
    encoders: dict[str, Encoder], blocks: Sequence[TableBlock], *, bar: Progress | None = None
) -> Similarities:
    """Rank correlation of predicted and true (transcribed) similarity over all pairs of blocks.

    Args:
        encoders: Encoders by name.
        blocks: Blocks to compare.
        bar: Progress bar.
    """
    upper = np.triu_indices(len(blocks), 1)
    counts = np.array([b.bigram_counts() for b in blocks])
    true, true_dot = cosine_matrix(counts, counts)[upper], (counts @ counts.T)[upper]
    predicted, by_cosine, by_dot = {}, {}, {}
    for name, encoder in encoders.items():
        vectors = np.array(
            [embed(encoder, b.crop_scan()) for b in track_progress(blocks, f"comparing with {name}", bar)]
        )
        predicted[name] = cosine_matrix(vectors, vectors)[upper]
        by_cosine[name] = digit_metrics.spearman(predicted[name], true)
        by_dot[name] = digit_metrics.spearman((vectors @ vectors.T)[upper], true_dot)
    return Similarities(true, predicted, by_cosine, by_dot)


def choose_similar_pairs(pages: Sequence[Page], count: int) -> list[tuple[TableBlock, TableBlock]]:
    """Return the small blocks of different pages that are most similar by their transcription, each used once."""
    blocks = [
        b for page in pages for b in cut_blocks(page, rows=SMALL_BLOCK_CELLS[0], columns=SMALL_BLOCK_CELLS[1])
    ]
    counts = np.array([b.bigram_counts() for b in blocks])
    likeness = cosine_matrix(counts, counts)
    owner = np.array([id(b.page) for b in blocks])
    likeness[owner[:, None] == owner[None]] = -1
    result: list[tuple[TableBlock, TableBlock]] = []
    while len(result) < count and likeness.max() > 0:
        i, j = np.unravel_index(int(np.argmax(likeness)), likeness.shape)
        result.append((blocks[int(i)], blocks[int(j)]))
        for k in (i, j):
            likeness[k], likeness[:, k] = -1, -1
    return result


def draw_random_pairs(
    pages: Sequence[Page], count: int, *, seed: int = 0
) -> list[tuple[TableBlock, TableBlock]]:
    """Draw random small blocks of different pages, to test explanations of dissimilar inputs.

    Args:
        pages: Pages to draw from.
        count: Number of pairs.
        seed: Seed of the draw.
    """
    rng = np.random.default_rng(seed)
    blocks = [cut_blocks(page, rows=SMALL_BLOCK_CELLS[0], columns=SMALL_BLOCK_CELLS[1]) for page in pages]
    items = []
    for _ in range(count):
        first, second = rng.choice(len(blocks), size=2, replace=False)
        items.append(tuple(blocks[i][rng.integers(len(blocks[i]))] for i in (first, second)))
    return items


@dataclass(frozen=True)
class ExplainedBlockPair:
    """One pair of small blocks explained by one model, and the agreement of the explanation with the transcription."""

    name: str
    blocks: tuple[TableBlock, TableBlock]
    explanation: Explanation
    agreement: bigram_agreement.BigramAgreement


def explain_pair(name: str, encoder: Encoder, blocks: tuple[TableBlock, TableBlock]) -> ExplainedBlockPair:
    """Explain the similarity of two small blocks with digits, ruled lines and the rest as regions.

    Args:
        name: Name of the model; "bigram" selects its input format.
        encoder: The model.
        blocks: The two blocks.
    """
    sides, spots = [], []
    for block in blocks:
        spot = bigram_agreement.segment_block(block, size=SMALL_WINDOW_PIXELS)
        x = read_window(name, encoder, block, spot.window)
        sides.append(decompose(encoder, x, regions=by_labels(torch.from_numpy(spot.labels))))
        spots.append(spot)
    explanation = pair(sides[0], sides[1], similarity="dot")
    return ExplainedBlockPair(
        name,
        blocks,
        explanation,
        bigram_agreement.measure_agreement(explanation.relevance.numpy(), spots[0], spots[1]),
    )


def read_window(
    name: str, encoder: Encoder, block: TableBlock, window: tuple[int, int, int, int]
) -> torch.Tensor:
    """Return a window of a page as model input: ink for the bigram network, else the grey scan as an RGB image.

    Args:
        name: Name of the model; "bigram" selects its input format.
        encoder: The model.
        block: A block of the page.
        window: (x0, y0, x1, y1) in network pixels.
    """
    if name == "bigram":
        return torch.from_numpy(bigram_agreement.crop_window(block.page.network_ink(), window).copy())[
            None, None
        ]
    height, width = block.page.gray.shape
    gray = resize_array(block.page.gray, (height // LAYOUT_SCALE, width // LAYOUT_SCALE)).clip(0, 1)
    part = (255 * bigram_agreement.crop_window(gray, window, pad_mode="edge")).round().astype(np.uint8)
    return read_tensor(encoder, Image.fromarray(part).convert("RGB"))


@dataclass(frozen=True)
class CopySearch:
    """Share of queries whose true copy was retrieved first, by distortion; `hits` are the results for "all"."""

    top1_rate: dict[str, float]
    queries: int
    blocks: int
    hits: list[tuple[TableBlock, TableBlock, Image.Image, str]]

    @property
    def overall(self) -> float:
        return float(np.mean(list(self.top1_rate.values())))


def search_copies(
    encoder: Encoder,
    database: Sequence[TableBlock],
    queries: Sequence[TableBlock],
    *,
    seed: int = 0,
    bar: Progress | None = None,
) -> CopySearch:
    """Retrieve each distorted query among all blocks by cosine; the true copy should be first.

    Args:
        encoder: The model.
        database: Blocks to search.
        queries: Blocks of the database to distort and search for.
        seed: Seed of the distortions.
        bar: Progress bar.
    """
    rng = np.random.default_rng(seed)
    table = np.array(
        [embed(encoder, b.crop_scan()) for b in track_progress(database, "indexing blocks", bar)]
    )
    position = {id(b): i for i, b in enumerate(database)}
    right: dict[str, list[bool]] = {kind: [] for kind in DISTORTIONS}
    hits = []
    for block in track_progress(queries, "finding copies", bar):
        for kind in DISTORTIONS:
            picture = distort(block, kind, rng)
            best = int(np.argmax(cosine_matrix(embed(encoder, picture)[None], table)[0]))
            right[kind].append(best == position[id(block)])
            if kind == "all":
                hits.append((block, database[best], picture, kind))
    first = {kind: float(np.mean(answers)) for kind, answers in right.items()}
    return CopySearch(first, len(queries) * len(DISTORTIONS), len(database), hits)


@dataclass(frozen=True)
class EncoderChecks:
    """Unattributed share, largest difference between push and pull in float64, and the time for a page of 1359×855 px."""

    unattributed: float
    push_pull_gap: float
    page_seconds: float
    page_size: tuple[int, int]


def check_encoder(net: DigitNet, page: Page, block: TableBlock) -> EncoderChecks:
    """Measure conservation, the difference between push and pull, and the time for a whole page.

    Args:
        net: The digit network.
        page: A test page.
        block: A small block of that page.
    """
    window = bigram_agreement.segment_block(block, size=SMALL_WINDOW_PIXELS).window
    ink = torch.from_numpy(bigram_agreement.crop_window(page.network_ink(), window).copy())[
        None, None
    ].double()
    exact = build_encoder(_to_float64(net))
    pushed, pulled = decompose(exact, ink, mode="push"), decompose(exact, ink, mode="pull")
    scale = float(pulled.embedding.abs().max()) or 1.0
    encoder = build_encoder(net)
    small = Image.fromarray((255 * page.gray).astype(np.uint8)).resize((1359, 855), Image.Resampling.LANCZOS)
    start = time.perf_counter()
    full = decompose(encoder, small)
    seconds = time.perf_counter() - start
    rest = float(full.unattributed.abs().max() / full.embedding.abs().max().clamp(min=1e-12))
    gap = float((pushed.parts - pulled.parts).abs().max()) / scale
    return EncoderChecks(rest, gap, seconds, (1359, 855))


def _to_float64(net: DigitNet) -> DigitNet:
    kernels = [m.weight for m in net.stack if isinstance(m, torch.nn.Conv2d)]
    twin = DigitNet(width=kernels[0].shape[0], depth=len(kernels) - 2)
    twin.load_state_dict(net.state_dict())
    return twin.double()


@dataclass(frozen=True)
class OutOfDomainResult:
    """An image that is not an upright table: the outcome of layout detection, and the number of detected bigrams."""

    kind: str
    message: str
    bigrams: float
    cosine: float


def evaluate_out_of_domain(encoder: Encoder, page: Page) -> list[OutOfDomainResult]:
    """Run the encoder on images that are not tables; bigrams are counted per million network pixels."""
    gray = Image.fromarray((255 * page.gray).round().astype(np.uint8))
    like = embed(encoder, gray)
    items = []
    for kind, picture in (("the page itself", gray), *_out_of_domain_images(gray)):
        try:
            layout = find_layout(picture)
            message = f"table of {len(layout.rows)} rows and {len(layout.columns)} columns"
        except InputError as error:
            message = str(error)
        ink = read_tensor(encoder, picture)
        with torch.no_grad():
            sums = encoder.module(ink)[0].numpy()
        density = float(sums.sum()) / ink.numel() * 1e6
        items.append(
            OutOfDomainResult(kind, message, density, float(cosine_matrix(sums[None], like[None])[0, 0]))
        )
    return items


def _out_of_domain_images(gray: Image.Image) -> list[tuple[str, Image.Image]]:
    from skimage import data as samples

    rng = np.random.default_rng(0)
    noise = (255 * rng.uniform(0.3, 0.9, size=(600, 800))).astype(np.uint8)
    return [
        ("upside down", gray.transpose(Image.Transpose.ROTATE_180)),
        ("on its side", gray.transpose(Image.Transpose.ROTATE_90)),
        ("mirrored", gray.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
        ("handwriting", Image.fromarray(samples.text())),
        ("text page", Image.fromarray(samples.page())),
        ("photograph", Image.fromarray(samples.astronaut())),
        ("photograph of a cat", Image.fromarray(samples.cat())),
        ("blank paper", Image.new("L", (800, 600), 225)),
        ("noise", Image.fromarray(noise)),
    ]
