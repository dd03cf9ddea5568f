"""The report of the vision study: the candidate composites under every measure, and MobileNetV2 against VGG-16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bilrp.render.report import Picture, Report, Table
from bilrp_studies.common.bootstrap import block_bootstrap_mean as interval
from bilrp_studies.common.image_folders import FolderContents
from bilrp_studies.common.study_report import (
    Block,
    build_study_report,
    format_interval,
    pluralize,
    tabulate_intervals,
)
from bilrp_studies.common.warps import WARPS
from bilrp_studies.vision.model_agreement import PairAgreement
from bilrp_studies.vision.settings import VisionSettings

Rows = Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]
MEASURES = {
    "unattributed": "unattributed",
    "planted": "planted, × chance",
    "planted among detail": "planted among detail, × chance",
    "warp": "known warp, × chance",
    "occlusion of pairs": "occlusion of pairs",
    "occlusion": "occlusion",
}
MAX_PAIRS_SHOWN = 5  # of the pairs with most agreement, and of those with least


def build_report(
    rows: Rows, agreements: Sequence[PairAgreement], settings: VisionSettings, photographs: FolderContents
) -> Report:
    """Build the report from the measures of every pair.

    Args:
        rows: Measures of each pair, by network.
        agreements: Agreement of MobileNetV2 with VGG-16 on each pair.
        settings: The settings of the study.
        photographs: The photographs read, with skipped files and notes.
    """
    results = collect_results(rows, agreements, settings)
    header = ["rules", *MEASURES.values()]
    tables = {
        name: [tabulate_intervals(header, results["table"][name], list(MEASURES), _caption(len(each)))]
        for name, each in rows.items()
    }
    return build_study_report(
        "Which rules say something about networks with batch norm?",
        describe_results(results),
        {**tables, "MobileNetV2 and VGG-16": _agreement_blocks(agreements, results)},
        settings=settings,
        results=results,
        protocol=[_protocol(settings)],
        skipped=photographs.skipped,
    )


def collect_results(
    rows: Rows, agreements: Sequence[PairAgreement], settings: VisionSettings
) -> dict[str, Any]:
    """Return the content of results.json: every measure of every candidate with its interval, and every pair's agreement.

    Args:
        rows: Measures of each pair, by network.
        agreements: Agreement of MobileNetV2 with VGG-16 on each pair.
        settings: The settings of the study.
    """
    options = {"block": len(WARPS), "resamples": settings.resamples, "seed": settings.seed}
    table = {
        net: {
            name: {key: interval([row[name][key] for row in result], **options) for key in MEASURES}
            for name in result[0]
        }
        for net, result in rows.items()
    }
    agreement = {
        key: interval([getattr(each, key) for each in agreements], **options) for key in ("pairs", "regions")
    }
    each = [
        {"a": c.a, "b": c.b, "pairs": c.pairs, "regions": c.regions, "cosines": c.cosines} for c in agreements
    ]
    return {
        "pairs": settings.pairs,
        "table": table,
        "agreement": {**agreement, "each": each},
        "per_pair": rows,
    }


def describe_results(results: Mapping[str, Any]) -> str:
    """Return a paragraph: how much each candidate leaves unattributed, and how well it finds a planted patch."""
    text = []
    for net, table in results["table"].items():
        least = min(table, key=lambda name: table[name]["unattributed"]["mean"])
        attributed = {n: row for n, row in table.items() if row["unattributed"]["mean"] < 0.5}
        best = max(attributed or table, key=lambda name: table[name]["planted"]["mean"])
        text.append(
            f"{net}: {least} leaves least unattributed ({_format_unattributed(table[least])}); of those "
            f"that leave less than half, "
            f"{best} finds a planted patch best ({format_interval(table[best]['planted'])} × chance, "
            f"{_format_unattributed(table[best])} "
            "unattributed)"
        )
    together = results["agreement"]["regions"]
    return (
        f"{'. '.join(text)}. With VGG-16, MobileNetV2 agrees on regions at a rank correlation of "
        f"{format_interval(together)}."
    )


def _format_unattributed(row: Mapping[str, Any]) -> str:
    return f"{100 * row['unattributed']['mean']:.0f} %"


def _caption(pairs: int) -> str:
    return f"Means over {pluralize(pairs, 'pair')} with 95 % intervals."


def _protocol(settings: VisionSettings) -> str:
    return (
        f"Photographs of {settings.size} × {settings.size} pixels, regions of {settings.regions}. Unattributed: the share "
        "|score − ΣR| / score. Planted: a small copy of a third photograph on two blurred ones; the signed share of the "
        "relevance between the two copies, as a multiple of their share of the area. Planted among detail: a piece of the "
        "first photograph, pasted elsewhere into the second as it is. Known warp: a photograph with itself shifted, "
        "mirrored, turned or enlarged, within one region of the true place. Occlusion: rank correlation with what covering "
        "regions does to the score, by mean colour and by blur, for pairs of regions and for the first picture's regions."
    )


def _agreement_blocks(agreements: Sequence[PairAgreement], results: Mapping[str, Any]) -> list[Block]:
    """Tabulate the pairs with most and least agreement, and plot the first and the last."""
    order = sorted(agreements, key=lambda each: each.regions, reverse=True)
    shown = (
        order if len(order) <= 2 * MAX_PAIRS_SHOWN else [*order[:MAX_PAIRS_SHOWN], *order[-MAX_PAIRS_SHOWN:]]
    )
    rows = [(f"{c.a} and {c.b}", c.regions, c.pairs, *c.cosines) for c in shown]
    header = ["photographs", "regions", "pairs of regions", "cosine, MobileNetV2", "cosine, VGG-16"]
    agreement = results["agreement"]
    words = (
        f"Rank correlation of what both say: of regions {format_interval(agreement['regions'])}, of pairs of regions "
        f"{format_interval(agreement['pairs'])}. VGG-16's last map is averaged, as MobileNet's is."
    )
    pictures = [
        Picture(
            f"{end}-{number}.png",
            result.plot(title=f"{name}: {title}"),
            f"{c.a} and {c.b} by {name}: rank correlation of regions {c.regions:.2f}.",
        )
        for end, title, c in (("most", "most agreement", order[0]), ("least", "least agreement", order[-1]))
        for number, (name, result) in enumerate(zip(("MobileNetV2", "VGG-16"), c.explanations, strict=True))
    ]
    return [words, Table(header, rows, "Where they agree most and least."), *pictures]
