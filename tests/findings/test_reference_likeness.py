"""Inputs unlike the photographs of a random baseline: faces, drawings and pages, but not other photographs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import bilrp
from bilrp.encoder import read_item
from bilrp.findings.pooled_photograph_means import POOLED_PHOTOGRAPH_MEANS
from bilrp.findings.reference_likeness import (
    POOLED_COORDINATES,
    is_like_photographs,
    measure_mean,
    pool_embedding,
)

VGG16_WEIGHTS = "c938bfd98fc4df15"


def test_a_set_is_like_itself_but_for_a_twentieth_and_unlike_its_opposite() -> None:
    rng = np.random.default_rng(0)
    ground = rng.uniform(0.5, 1.0, POOLED_COORDINATES)
    rows = [ground + 0.3 * rng.uniform(size=POOLED_COORDINATES) for _ in range(40)]
    mean = measure_mean(rows)
    pairs = list(itertools.combinations(rows, 2))
    alike = sum(is_like_photographs(pair, mean) for pair in pairs) / len(pairs)
    assert 0.93 <= alike <= 1.0
    other = [np.eye(POOLED_COORDINATES)[n] for n in (0, 5)]
    assert not is_like_photographs(other, mean)
    assert is_like_photographs([np.ones(POOLED_COORDINATES + 1)] * 2, mean), (
        "too few coordinates to be judged"
    )
    assert pool_embedding(np.zeros(POOLED_COORDINATES)) is None


@pytest.mark.parametrize("known", POOLED_PHOTOGRAPH_MEANS.values())
def test_stored_means_are_whole(known) -> None:
    assert known.decode().shape == (POOLED_COORDINATES,) and np.linalg.norm(known.decode()) == pytest.approx(
        1
    )
    assert 0 < known.threshold < 1


@pytest.mark.data
def test_faces_are_unlike_photographs_and_other_photographs_are_not(data: Path) -> None:
    """VGG-16: groups and quantile were chosen with faces of 20 people; of the pairs of these others 68 % are noticed."""
    encoder = bilrp.encoders.load("vgg16:31", weights=str(data / "vgg16" / "vgg16_features.safetensors"))
    faces = [sorted(person.glob("*.jpg"))[0] for person in sorted((data / "lfw").iterdir())[20:32]]
    frames = [sorted(clip.glob("*.jpg"))[0] for clip in sorted((data / "ucf_sports").glob("*/*"))[:12]]

    def fraction_unlike(files: list[Path]) -> float:
        rows = []
        for file in files:
            with torch.no_grad():
                rows.append(encoder.module(read_item(encoder, file).x).flatten().numpy())
        pairs = list(itertools.combinations(rows, 2))
        mean = POOLED_PHOTOGRAPH_MEANS[VGG16_WEIGHTS]
        return sum(not is_like_photographs(pair, mean) for pair in pairs) / len(pairs)

    assert fraction_unlike(faces) >= 0.6
    assert fraction_unlike(frames) <= 0.1
