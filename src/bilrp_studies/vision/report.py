"""The vision study as a page: the candidates under every measure, and MobileNetV2 beside VGG-16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bilrp_studies.common.image_folders import Found
from bilrp.render.report import Picture, Report, Section, Table, Text, counted, left_out
from bilrp_studies.common.bootstrap import over_blocks as interval
from bilrp_studies.common.warps import WARPS
from bilrp_studies.vision.model_agreement import Compared
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
SHOWN = 5  # pairs on which two networks agree most and least


def write(rows: Rows, compared: Sequence[Compared], settings: VisionSettings, found: Found) -> Report:
    """The report, from the numbers of every pair."""
    results = summary(rows, compared, settings)
    results["skipped"] = [{"file": s.file, "reason": s.reason} for s in found.skipped]
    return Report(
        "Which rules say something about networks with batch norm?",
        verdict(results),
        [
            *(Section(name, [_table(results["table"][name], len(rows[name]))]) for name in rows),
            Section("How it was measured", [Text(_protocol(settings))]),
            Section("MobileNetV2 beside VGG-16", _beside(compared, results)),
            *left_out(found.skipped),
        ],
        results,
    )


def summary(rows: Rows, compared: Sequence[Compared], settings: VisionSettings) -> dict[str, Any]:
    """results.json: every measure of every candidate with its interval, and every pair's agreement."""
    options = {"block": len(WARPS), "resamples": settings.resamples, "seed": settings.seed}
    table = {
        net: {
            name: {key: interval([row[name][key] for row in found], **options) for key in MEASURES}
            for name in found[0]
        }
        for net, found in rows.items()
    }
    agreement = {
        key: interval([getattr(each, key) for each in compared], **options) for key in ("pairs", "regions")
    }
    each = [
        {"a": c.a, "b": c.b, "pairs": c.pairs, "regions": c.regions, "cosines": c.cosines} for c in compared
    ]
    return {
        "pairs": settings.pairs,
        "settings": settings.decisive(),
        "table": table,
        "agreement": {**agreement, "each": each},
        "per_pair": rows,
    }


def verdict(results: Mapping[str, Any]) -> str:
    """One paragraph: what each candidate leaves, and how well it finds what was planted."""
    said = []
    for net, table in results["table"].items():
        least = min(table, key=lambda name: table[name]["unattributed"]["mean"])
        kept = {n: row for n, row in table.items() if row["unattributed"]["mean"] < 0.5}
        best = max(kept or table, key=lambda name: table[name]["planted"]["mean"])
        said.append(
            f"{net}: {least} leaves least unattributed ({_percent(table[least])}); of those that leave less than half, "
            f"{best} finds a planted patch best ({_cell(table[best]['planted'])} × chance, {_percent(table[best])} "
            "unattributed)"
        )
    together = results["agreement"]["regions"]
    return f"{'. '.join(said)}. With VGG-16, MobileNetV2 agrees on regions at a rank correlation of {_cell(together)}."


def _percent(row: Mapping[str, Any]) -> str:
    return f"{100 * row['unattributed']['mean']:.0f} %"


def _cell(value: Mapping[str, float]) -> str:
    return f"{value['mean']:z.2f} ({value['low']:z.2f} to {value['high']:z.2f})"


def _table(table: Mapping[str, Mapping[str, Mapping[str, float]]], pairs: int) -> Table:
    rows = [(name, *(_cell(found[key]) for key in MEASURES)) for name, found in table.items()]
    caption = f"Means over {counted(pairs, 'pair')} with 95 % intervals."
    return Table(["rules", *MEASURES.values()], rows, caption)


def _protocol(settings: VisionSettings) -> str:
    return (
        f"Photographs of {settings.size} × {settings.size} pixels, regions of {settings.regions}. Unattributed: the share "
        "|score − ΣR| / score. Planted: a small copy of a third photograph on two blurred ones; the signed share of the "
        "relevance between the two copies, as a multiple of their share of the area. Planted among detail: a piece of the "
        "first photograph, pasted elsewhere into the second as it is. Known warp: a photograph with itself shifted, "
        "mirrored, turned or enlarged, within one region of the true place. Occlusion: rank correlation with what covering "
        "regions does to the score, by mean colour and by blur, for pairs of regions and for the first picture's regions."
    )


def _beside(compared: Sequence[Compared], results: Mapping[str, Any]) -> list[Text | Table | Picture]:
    """The pairs on which both agree most and least, and pictures of the two ends."""
    order = sorted(compared, key=lambda each: each.regions, reverse=True)
    shown = order if len(order) <= 2 * SHOWN else [*order[:SHOWN], *order[-SHOWN:]]
    rows = [(f"{c.a} and {c.b}", c.regions, c.pairs, *c.cosines) for c in shown]
    header = ["photographs", "regions", "pairs of regions", "cosine, MobileNetV2", "cosine, VGG-16"]
    agreement = results["agreement"]
    words = (
        f"Rank correlation of what both say: of regions {_cell(agreement['regions'])}, of pairs of regions "
        f"{_cell(agreement['pairs'])}. VGG-16's last map is averaged, as MobileNet's is."
    )
    pictures = [
        Picture(
            f"{end}-{number}.png",
            found.plot(title=f"{name}: {title}"),
            f"{c.a} and {c.b} by {name}: rank correlation of regions {c.regions:.2f}.",
        )
        for end, title, c in (("most", "most agreement", order[0]), ("least", "least agreement", order[-1]))
        for number, (name, found) in enumerate(zip(("MobileNetV2", "VGG-16"), c.explained, strict=True))
    ]
    return [Text(words), Table(header, rows, "Where they agree most and least."), *pictures]
