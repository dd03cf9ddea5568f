"""Table of the built-in studies. Your own study needs no entry: name it as `package.module:STUDY`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bilrp.errors import InputError
from bilrp_studies.arena.settings import ArenaSettings
from bilrp_studies.captions.settings import CaptionsSettings
from bilrp_studies.changes.settings import ChangesSettings
from bilrp_studies.common.study import Study
from bilrp_studies.corpus.settings import CorpusSettings
from bilrp_studies.faithfulness.settings import FaithfulnessSettings
from bilrp_studies.illustrations.settings import IllustrationsSettings
from bilrp_studies.invariance.settings import InvarianceSettings
from bilrp_studies.photos.settings import PhotosSettings
from bilrp_studies.repair.settings import RepairSettings
from bilrp_studies.sentences.settings import SentencesSettings
from bilrp_studies.tables.settings import TablesSettings
from bilrp_studies.toy.settings import ToySettings
from bilrp_studies.transfer.settings import TransferSettings
from bilrp_studies.vision.settings import VisionSettings

STUDIES = (
    Study(
        "toy",
        "Does the explanation find the truth where it is known? Digits that match (section 4 of the paper).",
        ToySettings,
        "bilrp_studies.toy.study:run",
    ),
    Study(
        "photos",
        "What do neighbouring photographs have in common, and does it correspond on a stereo pair? (Section 5.)",
        PhotosSettings,
        "bilrp_studies.photos.study:run",
    ),
    Study(
        "faithfulness",
        "Are explanations of photographs true to VGG-16? Five methods under the whole evaluation suite.",
        FaithfulnessSettings,
        "bilrp_studies.faithfulness.study:run",
    ),
    Study(
        "transfer",
        "How transferable is the similarity model, layer by layer? (Table 1 of the paper.)",
        TransferSettings,
        "bilrp_studies.transfer.study:run",
    ),
    Study(
        "invariance",
        "How invariant is the similarity model, and does the background do it? (Table 2 of the paper.)",
        InvarianceSettings,
        "bilrp_studies.invariance.study:run",
    ),
    Study(
        "illustrations",
        "What carries the similarity of rotated drawings: what rotates, or the frame? (Section 5, second Clever Hans.)",
        IllustrationsSettings,
        "bilrp_studies.illustrations.study:run",
    ),
    Study(
        "tables",
        "Can a model of scanned tables be engineered from a few hundred labels, and be trusted? (Section 6.)",
        TablesSettings,
        "bilrp_studies.tables.study:run",
    ),
    Study(
        "corpus",
        "Who copied from whom, and who had it first? A made corpus of table pages in five editions.",
        CorpusSettings,
        "bilrp_studies.corpus.study:run",
    ),
    Study(
        "sentences",
        "Which rules tell the truth about a sentence encoder? Eight methods, judged by what the model does.",
        SentencesSettings,
        "bilrp_studies.sentences.study:run",
    ),
    Study(
        "captions",
        "Which words go with which region? The pointing game on drawn scenes and their captions.",
        CaptionsSettings,
        "bilrp_studies.captions.study:run",
    ),
    Study(
        "vision",
        "Which rules say something about networks with batch norm, and does MobileNetV2 agree with VGG-16?",
        VisionSettings,
        "bilrp_studies.vision.study:run",
    ),
    Study(
        "arena",
        "Which method finds what is known to match? Up to eleven methods, photographs and texts, six encoders.",
        ArenaSettings,
        "bilrp_studies.arena.study:run",
    ),
    Study(
        "repair",
        "Is a planted shortcut removed from a similarity without labels, and at what cost?",
        RepairSettings,
        "bilrp_studies.repair.study:run",
    ),
    Study(
        "changes",
        "Is the first difference the change that was made? Objects pasted, removed, recoloured; words negated, replaced.",
        ChangesSettings,
        "bilrp_studies.changes.study:run",
    ),
)


def find_study(name: str) -> Study:
    """Return the study of that name: a built-in one, or your own, `package.module:STUDY`.

    >>> find_study("toy").question
    'Does the explanation find the truth where it is known? Digits that match (section 4 of the paper).'
    """
    known = {study.name: study for study in STUDIES}
    if name in known:
        return known[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InputError(
            f"no study {name!r}; there are {', '.join(known)}, or your own as package.module:STUDY"
        )
    result = getattr(_import_module(module, name), attribute, None)
    if not isinstance(result, Study):
        raise InputError(
            f"{module!r} has no study {attribute!r}: give package.module:STUDY, made by bilrp_studies.Study"
        )
    return result


def _import_module(module: str, name: str) -> object:
    here = str(Path.cwd())
    sys.path.insert(0, here)  # allow modules of the working directory, as `python -m` does
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"cannot import {module!r} for the study {name}: {error}") from error
    finally:
        sys.path.remove(here)
