"""The one table of studies. A study of your own needs no row: name it as `package.module:STUDY`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bilrp.errors import InputError
from bilrp.studies.captions.settings import CaptionsSettings
from bilrp.studies.common.study import Study
from bilrp.studies.faithfulness.settings import FaithfulnessSettings
from bilrp.studies.invariance.settings import InvarianceSettings
from bilrp.studies.photos.settings import PhotosSettings
from bilrp.studies.sentences.settings import SentencesSettings
from bilrp.studies.tables.settings import TablesSettings
from bilrp.studies.toy.settings import ToySettings
from bilrp.studies.transfer.settings import TransferSettings
from bilrp.studies.vision.settings import VisionSettings

STUDIES = (
    Study(
        "toy",
        "Does the explanation find the truth where it is known? Digits that match (section 4 of the paper).",
        ToySettings,
        "bilrp.studies.toy.study:run",
    ),
    Study(
        "photos",
        "What do neighbouring photographs have in common, and does it correspond on a stereo pair? (Section 5.)",
        PhotosSettings,
        "bilrp.studies.photos.study:run",
    ),
    Study(
        "faithfulness",
        "Are explanations of photographs true to VGG-16? Five methods under the whole evaluation suite.",
        FaithfulnessSettings,
        "bilrp.studies.faithfulness.study:run",
    ),
    Study(
        "transfer",
        "How transferable is the similarity model, layer by layer? (Table 1 of the paper.)",
        TransferSettings,
        "bilrp.studies.transfer.study:run",
    ),
    Study(
        "invariance",
        "How invariant is the similarity model, and does the background do it? (Table 2 of the paper.)",
        InvarianceSettings,
        "bilrp.studies.invariance.study:run",
    ),
    Study(
        "tables",
        "Can a model of scanned tables be engineered from a few hundred labels, and be trusted? (Section 6.)",
        TablesSettings,
        "bilrp.studies.tables.study:run",
    ),
    Study(
        "sentences",
        "Which rules tell the truth about a sentence encoder? Eight methods, judged by what the model does.",
        SentencesSettings,
        "bilrp.studies.sentences.study:run",
    ),
    Study(
        "captions",
        "Which words go with which region? The pointing game on drawn scenes and their captions.",
        CaptionsSettings,
        "bilrp.studies.captions.study:run",
    ),
    Study(
        "vision",
        "Which rules say something about networks with batch norm, and does MobileNetV2 agree with VGG-16?",
        VisionSettings,
        "bilrp.studies.vision.study:run",
    ),
)


def named(name: str) -> Study:
    """The study of that name: from the table, or your own, `package.module:STUDY`.

    >>> named("toy").question
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
    found = getattr(_imported(module, name), attribute, None)
    if not isinstance(found, Study):
        raise InputError(
            f"{module!r} has no study {attribute!r}: give package.module:STUDY, made by bilrp.studies.Study"
        )
    return found


def _imported(module: str, name: str) -> object:
    here = str(Path.cwd())
    sys.path.insert(
        0, here
    )  # a script's neighbour can be imported, as `python -m` does; the path is put back
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"cannot import {module!r} for the study {name}: {error}") from error
    finally:
        sys.path.remove(here)
