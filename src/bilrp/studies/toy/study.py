"""Section 4 of the paper: explanations of similarity against a known truth, on sequences of digits.

A network is trained to count the matches between two sequences of six digits. It does so almost without error, so
its explanations should be the 6×6 pattern of matches. Thousands of small inputs are explained at once by the plain
batched twin below, which is tested to equal `bilrp.decompose` and the baselines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilrp.engine.progress import Progress, tracking
from bilrp.errors import InputError
from bilrp.judge import evaluate
from bilrp.judge.tune import search
from bilrp.studies.common.report import Picture, Report, Section, Table, Text

LENGTH, DIGITS, WIDTH = 6, 10, 10  # digits in a sequence, kinds of digits, size of a digit's vector
SIZES = (LENGTH * WIDTH, 100, 100, 50)
GAMMA = 0.09  # the paper's choice
COMMON = 0.5  # what the vectors of two digits have in common; the paper says "correlated", not how much
OTHERS = (0.1, 0.25, 1.0)  # how much the findings owe to that choice
GAMMAS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.09, 0.12, 0.18, 0.25, 0.4, 0.6, 1.0, 2.0)
METHODS = ("saliency", "curvature", "hessian_product", "integrated_hessians", "bilrp")
TITLES = {
    "saliency": "Saliency",
    "curvature": "Curvature",
    "hessian_product": "Hessian×Product",
    "integrated_hessians": "Integrated Hessians",
    "bilrp": f"BiLRP (γ = {GAMMA})",
}


# ---------------------------------------------------------------- task and network


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of digit sequences: digits [n, 6] and inputs [n, 60] of both sides, and the true matches [n, 6, 6]."""

    digits_a: Tensor
    digits_b: Tensor
    a: Tensor
    b: Tensor

    @property
    def truth(self) -> Tensor:
        """T[i, j] = 1 where digit i of the first sequence is digit j of the second."""
        return (self.digits_a[:, :, None] == self.digits_b[:, None, :]).float()


def digit_vectors(seed: int, common: float = COMMON) -> Tensor:
    """Ten correlated unit vectors in R₊¹⁰: v_k ∝ e_k + c·u_k with u_k uniform in [0.6, 1.4]¹⁰ and c = `common`.

    What they share makes the task hard (cosines around 0.75 for c = 0.5); what sets them apart is of the same size for
    every digit and seed, so that every network learns it.

    >>> digit_vectors(0).shape
    torch.Size([10, 10])
    """
    generator = torch.Generator().manual_seed(seed)
    raw = (
        torch.eye(DIGITS, WIDTH)
        + 0.6 * common
        + 0.8 * common * torch.rand(DIGITS, WIDTH, generator=generator)
    )
    return raw / raw.norm(dim=1, keepdim=True)


def likeness(vectors: Tensor) -> float:
    """The mean cosine of two different digits.

    >>> likeness(torch.eye(10))
    0.0
    """
    return float(((vectors @ vectors.T).sum() - DIGITS) / (DIGITS * (DIGITS - 1)))


def draw(vectors: Tensor, count: int, generator: torch.Generator, *, matching: bool = False) -> Pairs:
    """Random pairs of sequences; with `matching`, only pairs with at least one match, which alone have a truth."""
    drawn = torch.randint(DIGITS, (2, 2 * count if matching else count, LENGTH), generator=generator)
    if matching:
        some = (drawn[0, :, :, None] == drawn[1, :, None, :]).any(-1).any(-1)
        drawn = drawn[:, some][:, :count]  # about 4 % have none, so twice as many are enough
    a, b = (vectors[side].flatten(1) for side in drawn)
    return Pairs(drawn[0], drawn[1], a, b)


def network(seed: int) -> nn.Sequential:
    """60-100-100-50 with ReLUs and no biases, so that relevance conserves the similarity (Prop. 1)."""
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(SIZES):
        layer = nn.Linear(inputs, outputs, bias=False)
        layer.weight.data = torch.randn(outputs, inputs, generator=generator) * math.sqrt(2 / inputs)
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules)


def train(
    vectors: Sequence[Tensor],
    seeds: Sequence[int],
    *,
    iterations: int = 10_000,
    batch: int = 64,
    rate: float = 1e-3,
    bar: Progress | None = None,
) -> list[nn.Sequential]:
    """Fit ⟨φ(x), φ(x')⟩ to the number of matches, one network for each seed, side by side.

    Each iteration draws `batch` fresh sequences for either side and compares all batch² pairs of them, which costs
    hardly more than comparing them one to one and makes training much steadier. Adam, a rate that rises and falls.
    """
    nets = [network(seed) for seed in seeds]
    stacked = [
        torch.stack([w.T for w in each]).requires_grad_() for each in zip(*map(weights, nets), strict=True)
    ]
    codes, which = torch.stack(list(vectors)), torch.arange(len(nets))[:, None, None]
    generators = [torch.Generator().manual_seed(seed + 1) for seed in seeds]
    optimiser = torch.optim.Adam(stacked, lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=iterations, pct_start=0.05)
    for iteration in range(iterations):
        digits = torch.stack([torch.randint(DIGITS, (2 * batch, LENGTH), generator=g) for g in generators])
        counts = nn.functional.one_hot(digits, DIGITS).sum(2).float()
        a = codes[which, digits].flatten(2)
        for weight in stacked:
            a = torch.relu(a @ weight)
        wanted = counts[:, :batch] @ counts[:, batch:].mT
        loss = (a[:, :batch] @ a[:, batch:].mT - wanted).square().mean((1, 2)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if bar and iteration % 100 == 99:
            bar.advance(100)
    for k, net in enumerate(nets):
        layers = (layer for layer in net if isinstance(layer, nn.Linear))
        for layer, weight in zip(layers, stacked, strict=True):
            layer.weight.data = weight.detach()[k].T.contiguous()
        net.requires_grad_(False)
    return nets


@contextmanager
def one_thread() -> Iterator[None]:
    """So many small steps that a second thread would spend its time waiting, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def predicted(net: nn.Module, pairs: Pairs) -> Tensor:
    """y = ⟨φ(x), φ(x')⟩ for each pair."""
    both = net(torch.cat([pairs.a, pairs.b]))
    return (both[: len(pairs.a)] * both[len(pairs.a) :]).sum(1)


# ---------------------------------------------------------------- the batched twin


def parts(net: nn.Sequential, x: Tensor, gammas: Sequence[float], *, sent: Tensor | None = None) -> Tensor:
    """Parts [n, 6, 50] of many inputs [n, 60]: the digits pushed through LRP-γ, one γ for each weighted layer.

    J = diag(a'/z) ρ(W) with ρ(W) = W + γ W⁺ and z = ρ(W)a, frozen at x. `sent` is what is pushed, x by default.
    """
    member = torch.eye(LENGTH).repeat_interleave(WIDTH, dim=1)
    pushed = (x if sent is None else sent)[:, None] * member
    a = x
    for weight, gamma in zip(weights(net), gammas, strict=True):
        raised = weight + gamma * weight.clamp(min=0)
        out, z = torch.relu(a @ weight.T), a @ raised.T
        scale = torch.where(out > 0, out / torch.where(out > 0, z, 1.0), 0.0)
        pushed, a = (pushed @ raised.T) * scale[:, None], out
    return pushed


def weights(net: nn.Sequential) -> list[Tensor]:
    """The three weight matrices."""
    return [layer.weight.detach() for layer in net if isinstance(layer, nn.Linear)]


def bilrp(net: nn.Sequential, pairs: Pairs, gammas: Sequence[float] | float = GAMMA) -> Tensor:
    """BiLRP, [n, 6, 6]: R = P P'ᵀ. γ = 0 is Hessian×Product (Prop. 2)."""
    given = [gammas] * 3 if isinstance(gammas, (int, float)) else gammas
    return parts(net, pairs.a, given) @ parts(net, pairs.b, given).mT


def saliency(pairs: Pairs) -> Tensor:
    """Saliency, [n, 6, 6]: (x_i x'_i')² summed over the features of two digits."""
    left, right = (x.square().unflatten(1, (LENGTH, WIDTH)).sum(2) for x in (pairs.a, pairs.b))
    return left[:, :, None] * right[:, None, :]


def curvature(net: nn.Sequential, pairs: Pairs, chunk: int = 250) -> Tensor:
    """Curvature, [n, 6, 6]: the squared Hessian, H = Jᵀ J', summed over the features of two digits."""
    found = []
    for a, b in zip(pairs.a.split(chunk), pairs.b.split(chunk), strict=True):
        hessian = jacobian(net, a).mT @ jacobian(net, b)
        found.append(hessian.square().reshape(-1, LENGTH, WIDTH, LENGTH, WIDTH).sum((2, 4)))
    return torch.cat(found)


def jacobian(net: nn.Sequential, x: Tensor) -> Tensor:
    """J [n, 50, 60]: the product of gated weights."""
    found, a = torch.eye(x.shape[1]), x
    for weight in weights(net):
        a = torch.relu(a @ weight.T)
        found = (a > 0).float()[:, :, None] * (weight @ found)
    return found


def integrated_hessians(net: nn.Sequential, pairs: Pairs, *, baseline: Tensor, steps: int = 16) -> Tensor:
    """Integrated Hessians along the product path from `baseline` [60], [n, 6, 6], by Gauss-Legendre quadrature."""
    nodes, shares = np.polynomial.legendre.leggauss(steps)
    sides = []
    for x in (pairs.a, pairs.b):
        way = x - baseline
        along = [
            share / 2 * parts(net, baseline + (node + 1) / 2 * way, [0.0] * 3, sent=way)
            for node, share in zip(nodes.tolist(), shares.tolist(), strict=True)
        ]
        sides.append(torch.stack(along).sum(0))
    return sides[0] @ sides[1].mT


# ---------------------------------------------------------------- one seed, and the study


@dataclass(frozen=True, eq=False)
class Run:
    """What one seed gave."""

    seed: int
    likeness: float
    mse: float
    acs: dict[str, float]
    curve: list[float]
    mean_baseline: float
    conserved: float
    tuned: dict[str, Any]
    example: Pairs
    patterns: dict[str, Tensor]


def measured(net: nn.Sequential, vectors: Tensor, seed: int, *, pairs: int = 1000) -> Run:
    """Explain `pairs` test pairs with every method, by a network that is trained already."""
    test, tuning = (
        draw(vectors, pairs, torch.Generator().manual_seed(seed + k), matching=True) for k in (3, 4)
    )
    whole = draw(vectors, 5000, torch.Generator().manual_seed(seed + 5))
    relevance = explained(net, test)
    middle = vectors.mean(0).repeat(LENGTH)
    shown = typical(relevance, test.truth)
    return Run(
        seed=seed,
        likeness=likeness(vectors),
        mse=float((predicted(net, whole) - whole.truth.sum((1, 2))).square().mean()),
        acs={name: evaluate.acs(found, test.truth) for name, found in relevance.items()},
        curve=[evaluate.acs(bilrp(net, test, gamma), test.truth) for gamma in GAMMAS],
        mean_baseline=evaluate.acs(integrated_hessians(net, test, baseline=middle), test.truth),
        conserved=float((relevance["bilrp"].sum((1, 2)) - predicted(net, test)).abs().max()),
        tuned=tuned(net, tuning, test),
        example=Pairs(*(t[shown] for t in (test.digits_a, test.digits_b, test.a, test.b))),
        patterns={name: found[shown] for name, found in relevance.items()},
    )


def typical(relevance: dict[str, Tensor], truth: Tensor, count: int = 2) -> Tensor:
    """The pairs to show: those where the cosines of all methods lie nearest to their averages, neither best nor worst."""
    cosines = torch.stack([evaluate.cosine(found, truth) for found in relevance.values()])
    return (cosines - cosines.mean(1, keepdim=True)).square().sum(0).argsort()[:count]


def explained(net: nn.Sequential, pairs: Pairs) -> dict[str, Tensor]:
    """The relevance of every method, [n, 6, 6] each."""
    return {
        "saliency": saliency(pairs),
        "curvature": curvature(net, pairs),
        "hessian_product": bilrp(net, pairs, 0.0),
        "integrated_hessians": integrated_hessians(net, pairs, baseline=torch.zeros(SIZES[0])),
        "bilrp": bilrp(net, pairs, GAMMA),
    }


def tuned(net: nn.Sequential, tuning: Pairs, fresh: Pairs) -> dict[str, Any]:
    """γ by layer and the best uniform γ, both found on `tuning`, both judged on `fresh`."""
    best, reached, tried = search(
        lambda gammas: evaluate.acs(bilrp(net, tuning, gammas), tuning.truth), 3, grid=GAMMAS
    )
    uniform = max((gammas for gammas, _ in tried if len(set(gammas)) == 1), key=dict(tried).__getitem__)
    by_layer, by_one = (evaluate.cosine(bilrp(net, fresh, g), fresh.truth).double() for g in (best, uniform))
    gain = by_layer - by_one
    return {
        "gammas": list(best),
        "acs_tuning": reached,
        "acs": float(by_layer.mean()),
        "uniform_gamma": uniform[0],
        "uniform_acs": float(by_one.mean()),
        "gain": float(gain.mean()),
        "gain_error": float(gain.std() / math.sqrt(len(gain))),
    }


def toy(
    *, seeds: int = 5, seed: int = 0, pairs: int = 1000, iterations: int = 10_000, progress: bool = False
) -> Report:
    """The whole study: `seeds` networks from `seed` on, and what their explanations have to do with the truth.

    >>> toy(seeds=5).write("out/toy")  # doctest: +SKIP
    """
    if seeds < 1 or pairs < 2 or iterations < 100:
        raise InputError("the toy study needs at least one seed, two pairs and 100 iterations")
    # Far apart, so that no two runs share a generator: a run uses its seed and the five after it. The networks on other
    # digits repeat the first run in everything else.
    numbers = [10 * k for k in range(seed, seed + seeds)] + [10 * seed] * len(OTHERS)
    codes = [digit_vectors(*each) for each in zip(numbers, (COMMON,) * seeds + OTHERS, strict=True)]
    with tracking(progress) as bar, one_thread():
        bar.start("training networks", iterations)
        nets = train(codes, [number + 1 for number in numbers], iterations=iterations, bar=bar)
        bar.start("explaining", len(nets))
        runs = []
        for net, vectors, number in zip(nets, codes, numbers, strict=True):
            runs.append(measured(net, vectors, number, pairs=pairs))
            bar.advance()
    runs, others = runs[:seeds], sorted([runs[0], *runs[seeds:]], key=lambda run: run.likeness)
    results = {**summary(runs), "by_likeness": [by_likeness(run) for run in others]}
    return Report(
        "Is the explanation true? Digits with a known answer",
        verdict(results),
        _sections(runs, results, pairs=pairs, iterations=iterations),
        results=results,
    )


def by_likeness(run: Run) -> dict[str, Any]:
    """One row of the table over digits more or less alike."""
    best = int(np.argmax(run.curve))
    return {
        "cosine": run.likeness,
        "mse": run.mse,
        "acs": run.acs,
        "best_gamma": GAMMAS[best],
        "best_acs": run.curve[best],
    }


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """results.json: mean and spread over seeds, the γ curve, tuning, and every seed by itself."""
    curve = np.array([r.curve for r in runs]).mean(0)
    tuned_acs, uniform_acs = ([r.tuned[key] for r in runs] for key in ("acs", "uniform_acs"))
    return {
        "acs": {name: _mean([r.acs[name] for r in runs]) for name in METHODS},
        "acs_std": {name: _spread([r.acs[name] for r in runs]) for name in METHODS},
        "gamma_curve": [[gamma, float(value)] for gamma, value in zip(GAMMAS, curve, strict=True)],
        "mse": _mean([r.mse for r in runs]),
        "seeds": len(runs),
        "mse_worst": max(r.mse for r in runs),
        "best_gamma": GAMMAS[int(curve.argmax())],
        "ordered_in_every_seed": all(ordered(r.acs) for r in runs),
        "tuned": {
            "acs": _mean(tuned_acs),
            "acs_std": _spread(tuned_acs),
            "uniform_acs": _mean(uniform_acs),
            "uniform_acs_std": _spread(uniform_acs),
            "gain": _mean([r.tuned["gain"] for r in runs]),
            # Seeds are independent: the error of their mean is that of a sum of independent parts.
            "gain_error": math.sqrt(sum(r.tuned["gain_error"] ** 2 for r in runs)) / len(runs),
            "better_in": sum(r.tuned["gain"] > 0 for r in runs),
        },
        "integrated_hessians_from_mean": _mean([r.mean_baseline for r in runs]),
        "conservation_error": max(r.conserved for r in runs),
        "per_seed": [
            {"seed": r.seed // 10, "mse": r.mse, "acs": r.acs, "gamma_curve": r.curve, "tuned": r.tuned}
            for r in runs
        ],
    }


def ordered(acs: dict[str, float], near: float = 0.05) -> bool:
    """The paper's order: saliency ≈ curvature < Hessian×Product < BiLRP."""
    low = max(acs["saliency"], acs["curvature"])
    close = abs(acs["saliency"] - acs["curvature"]) < near
    return close and low + near < acs["hessian_product"] < acs["bilrp"]


def verdict(results: dict[str, Any]) -> str:
    """What the numbers say, whichever way they fall."""
    acs = results["acs"]
    gain = acs["bilrp"] - acs["hessian_product"]
    holds = "holds in every seed" if results["ordered_in_every_seed"] else "does NOT hold in every seed"
    best = results["best_gamma"]
    size = "small but not zero" if 0 < best < 0.5 else "zero" if best == 0 else "not small"
    return (
        f"BiLRP (γ = {GAMMA}) reaches an average cosine similarity of {acs['bilrp']:.3f} to the ground truth, "
        f"Hessian×Product {acs['hessian_product']:.3f} ({gain:+.3f}), curvature {acs['curvature']:.3f}, saliency "
        f"{acs['saliency']:.3f}. The paper's order (saliency ≈ curvature < Hessian×Product < BiLRP) {holds} "
        f"({results['seeds']}). The best uniform γ is {best:g}: {size}. {_tuning_verdict(results)} Mean squared error of "
        f"the networks: {results['mse']:.1e} on average, {results['mse_worst']:.1e} at worst. {_likeness_verdict(results)}"
    )


def _tuning_verdict(results: dict[str, Any]) -> str:
    tuning = results["tuned"]
    gain, error = tuning["gain"], tuning["gain_error"]
    outcome = "beats" if gain > 2 * error else "does NOT beat" if gain <= 0 else "does NOT clearly beat"
    return (
        f"γ tuned by layer {outcome} the best uniform γ on fresh pairs ({tuning['acs']:.4f} against "
        f"{tuning['uniform_acs']:.4f}, {gain:+.4f} with a standard error of {error:.4f} over pairs; better in "
        f"{tuning['better_in']} of {results['seeds']} seeds)."
    )


def _likeness_verdict(results: dict[str, Any]) -> str:
    """Whether BiLRP is ahead of Hessian×Product on other digits too."""
    rows = results["by_likeness"]
    lost = " and ".join(
        f"{r['cosine']:.2f}" for r in rows if r["acs"]["bilrp"] <= r["acs"]["hessian_product"]
    )
    fixed = f"does NOT beat Hessian×Product at {lost}" if lost else "beats Hessian×Product at all of them"
    always = all(r["best_acs"] > r["acs"]["hessian_product"] for r in rows)
    return (
        f"How alike the digits are matters (mean cosines from {rows[0]['cosine']:.2f} to {rows[-1]['cosine']:.2f} were "
        f"tried): γ = {GAMMA} {fixed}, the best γ {'does at all of them' if always else 'does NOT do so everywhere'}."
    )


def _sections(runs: Sequence[Run], results: dict[str, Any], *, pairs: int, iterations: int) -> list[Section]:
    from bilrp.studies.toy import figures as toy_figures

    curve = Picture(
        "gamma.png",
        toy_figures.gamma_curve(GAMMAS, [r.curve for r in runs], GAMMA),
        "ACS over one γ for all layers; thin lines are seeds. γ = 0 is Hessian×Product.",
    )
    patterns = Picture(
        "patterns.png",
        toy_figures.patterns(runs[0]),
        "Two typical test pairs of the first network: those whose cosines lie nearest to the averages in the table. "
        "Lines join the digits of the two sequences: red for positive, blue for negative relevance, each panel scaled "
        "to its strongest line.",
    )
    baseline = Text(
        "These networks have no biases, so they are positively homogeneous: gradients are constant on the way from zero "
        "to the input, and integrated Hessians from zero are Hessian×Product, exactly. The last row integrates from the "
        "mean digit instead, which leaves out what all digits have in common: it is told what a neutral input is, and no "
        "other method here is."
    )
    return [
        Section("Against the ground truth", [patterns, _acs_table(runs, results, pairs), baseline]),
        Section("The effect of γ", [curve]),
        Section("γ by layer", [_tuning_table(runs)]),
        Section("Digits more or less alike", [_likeness_table(results)]),
        Section("How it was made", [Text(_protocol(results, pairs=pairs, iterations=iterations))]),
    ]


def _acs_table(runs: Sequence[Run], results: dict[str, Any], pairs: int) -> Table:
    by_seed = {TITLES[name]: [r.acs[name] for r in runs] for name in METHODS}
    by_seed["Integrated Hessians from the mean digit"] = [r.mean_baseline for r in runs]
    return Table(
        ["method", "ACS", "spread", *(f"seed {r.seed // 10}" for r in runs)],
        [(title, *(f"{v:.3f}" for v in (_mean(v), _spread(v), *v))) for title, v in by_seed.items()],
        f"Average cosine similarity to the ground truth over {pairs} test pairs for each seed; the spread is the "
        "standard deviation over seeds.",
    )


def _tuning_table(runs: Sequence[Run]) -> Table:
    keys = ("acs", "uniform_gamma", "uniform_acs", "gain")
    return Table(
        [
            "seed",
            *(f"γ {i}–{o}" for i, o in pairwise(SIZES)),
            "tuned ACS",
            "best uniform γ",
            "its ACS",
            "gain",
        ],
        [(r.seed // 10, *r.tuned["gammas"], *(r.tuned[key] for key in keys)) for r in runs],
        "Coordinate descent on other pairs than these; both numbers are of fresh test pairs.",
    )


def _likeness_table(results: dict[str, Any]) -> Table:
    shown = ("saliency", "hessian_product", "bilrp")
    return Table(
        ["mean cosine of digits", "error", *(TITLES[name] for name in shown), "best γ", "its ACS"],
        [
            (
                f"{r['cosine']:.2f}",
                f"{r['mse']:.1e}",
                *(f"{r['acs'][name]:.3f}" for name in shown),
                r["best_gamma"],
                f"{r['best_acs']:.3f}",
            )
            for r in results["by_likeness"]
        ],
        "ACS of one network each, trained on digits that have less or more in common. The paper does not say how "
        "correlated its digits are.",
    )


def _protocol(results: dict[str, Any], *, pairs: int, iterations: int) -> str:
    return (
        f"Two sequences of six digits, each digit a unit vector along e_k + {COMMON} u_k in R¹⁰ with u_k uniform in "
        "[0.6, 1.4]¹⁰ (cosines around 0.75). Network 60-100-100-50, ReLU after each layer, no biases; "
        f"{iterations} iterations of Adam on all pairs of 64 and 64 fresh sequences, to the number of matching digits "
        "(all 36 combinations of places count). Relevance is pooled over the ten dimensions of each digit. "
        f"{pairs} test pairs with at least one match for each network (about 4 % have none, and no cosine). Thousands "
        "of small inputs are explained at once by a plain batched twin of the engine, tested to equal it. The largest "
        f"error of conservation, |Σ R − y| over all test pairs, is {results['conservation_error']:.1e}."
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds; 0 for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
