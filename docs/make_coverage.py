"""Writes docs/coverage.md: which models of transformers run untouched. python docs/make_coverage.py [--again] [MODEL_TYPE …]

Every model type of transformers' AutoModel is built small, with random weights, and explained. Results are kept in
out/coverage.json as they come, so a second call goes on where the first was stopped; --again forgets them first. A
group of types runs in a process of its own: one that crashes or hangs costs its own row only.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from coverage_models import Alone, Case, Embedding, cases_of, line_of, model_types
from torch import Tensor, nn

import bilrp
from bilrp import composites, rules
from bilrp.encoder import Encoder
from bilrp.errors import BilrpError

PAGE = Path(__file__).with_name("coverage.md")
KEPT = Path(__file__).parents[1] / "out" / "coverage.json"
GROUP = 24  # model types a process
SECONDS = 600  # until a type counts as hanging
REGIONS = 6
TOLERANCE = 1e-5  # of parts against autograd, relative to the largest: many models round to float32 inside
STEPS, TOLERANCE_OF_DIFFERENCES = (1e-2, 1e-3, 1e-5), 1e-4

Row = dict[str, Any]


def check(case: Case) -> Row:
    """One encoder explained: how far its parts are from the oracle's, or why it is refused and the way out that worked."""
    row: Row = {"name": case.name, "input": "×".join(map(str, case.given.shape))}
    encoder = Encoder(case.module, input_layer=case.start, name=case.name)
    began = time.perf_counter()
    try:
        row |= explain(encoder, case)
    except BilrpError as error:
        row |= {"refused": str(error), "way": way_out(encoder, case, error)}
    except Exception as error:
        row |= {"failed": line_of(error)}
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def explain(
    encoder: Encoder,
    case: Case,
    book: Callable[..., Any] | None = None,
    modes: tuple[Literal["push", "pull"], ...] = ("push", "pull"),
) -> Row:
    """Parts under the default rules, pushed and pulled; parts under true gradients against the oracle."""
    x = input_of(case)
    regions = labels_of(x)
    pushed, pulled = (
        bilrp.decompose(encoder, case.given, regions=regions, composite=book, mode=mode)
        for mode in (modes[0], modes[-1])
    )
    mode = "auto" if len(modes) > 1 else modes[0]
    true = bilrp.decompose(
        encoder, case.given, regions=regions, composite=composites.hessian_product(), mode=mode
    )
    expected = gradient_times_input(case, x)
    error, by = math.inf if expected is None else far(true.parts, expected), "autograd"
    if not error < TOLERANCE:  # some of torch's own derivatives are wrong or no numbers: differences decide
        # a step that is small beside kinks is small beside the rounding of models that compute in float32, too
        by, tried = "differences", [differences(case, x, step) for step in STEPS]
        expected = min(tried, key=lambda found: far(true.parts, found))
        error = far(true.parts, expected)
    with torch.no_grad():
        embedding = case.module(case.given)[0]
    closed = pushed.parts.sum(0) + pushed.unattributed - embedding
    return {
        "composite": pushed.origin["composite"],
        "error": error,
        "oracle": by,
        "directions": far(pushed.parts, pulled.parts),
        "conservation": float(closed.abs().max() / embedding.abs().max()),
        "empty": not bool(expected.any()),
    }


def works(row: Row) -> bool:
    """Parts are the oracle's, from both directions, and add up to the model's own embedding; the oracle's are not zero."""
    if "error" not in row or row["empty"]:
        return False
    slack = TOLERANCE if row["oracle"] == "autograd" else TOLERANCE_OF_DIFFERENCES
    return row["error"] < slack and max(row["directions"], row["conservation"]) < TOLERANCE


def run_from(case: Case, make: Callable[[Tensor], Tensor]) -> Tensor:
    """The embedding where the input that is explained is what `make` gives for it, by a hook of torch."""
    if case.start is None:
        return case.module(make(case.given))
    met: list[Any] = []

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        met.append(output)
        if len(met) > 1:
            return None
        return (make(output[0]), *output[1:]) if isinstance(output, tuple) else make(output)

    handle = case.module.get_submodule(case.start).register_forward_hook(replace)
    try:
        return case.module(case.given)
    finally:
        handle.remove()


def input_of(case: Case) -> Tensor:
    """The input that is explained."""
    kept: list[Tensor] = []

    def make(x: Tensor) -> Tensor:
        kept.append(x.detach().clone())
        return x

    with torch.no_grad():
        run_from(case, make)
    return kept[0]


def gradient_times_input(case: Case, x: Tensor) -> Tensor | None:
    """In regions [regions, coordinates], by torch's autograd alone; None where the model allows no gradients."""
    x = x.clone().requires_grad_()
    try:
        out = run_from(case, lambda _: x.clone())
        rows = [
            torch.autograd.grad(out[0, m], x, retain_graph=True, allow_unused=True)[0]
            for m in range(out.shape[1])
        ]
    except (RuntimeError, AssertionError):
        return None
    gradient = torch.cat([torch.zeros_like(x) if row is None else row for row in rows])
    owned = (gradient * x).detach()
    return torch.stack([(owned * (labels_of(x) == n)).flatten(1).sum(1) for n in range(REGIONS)])


def differences(case: Case, x: Tensor, step: float) -> Tensor:
    """The same by differences of fourth order: d/dt φ(x + t x_I) at t = 0."""
    regions = labels_of(x)
    found = []
    for n in range(REGIONS):
        with torch.no_grad():
            twice, up, down, back = (
                run_from(case, lambda _, t=t, n=n: x + t * step * x * (regions == n))[0]
                for t in (2, 1, -1, -2)
            )
        found.append((8 * (up - down) - (twice - back)) / (12 * step))
    return torch.stack(found)


def labels_of(x: Tensor) -> Tensor:
    """REGIONS groups of the input's numbers, in stripes along its longest axis."""
    axis = max(range(1, x.dim()), key=lambda a: x.shape[a])
    stripes = torch.arange(x.shape[axis]) % REGIONS
    return (
        stripes.reshape([-1 if a == axis else 1 for a in range(1, x.dim())]).expand(x.shape[1:]).contiguous()
    )


def far(a: Tensor, b: Tensor) -> float:
    largest = float(b.abs().max())
    return float((a - b).abs().max()) / largest if largest else float(a.abs().max())


def way_out(encoder: Encoder, case: Case, error: BilrpError) -> str | None:
    """What makes a refused model run, tried: in words for the page; None where nothing did."""
    ways: list[tuple[str, Callable[[], Row]]] = [
        ("`rules.jacobian()` for the steps without a rule", lambda: explain(encoder, case, with_jacobians())),
        ('`attn_implementation="eager"`', lambda: explain(encoder, eagerly(case))),
        (
            '`attn_implementation="eager"`, `rules.jacobian()` for the steps without a rule',
            lambda: explain(encoder, eagerly(case), with_jacobians()),
        ),
        (
            "`rules.jacobian()` for the steps without a rule, `mode='pull'`",
            lambda: explain(encoder, case, with_jacobians(), ("pull",)),
        ),
        ("`inputs_embeds`", lambda: explain(*from_embeddings(case))),
        (
            "its `encoder` alone, `rules.jacobian()` for the steps without a rule, `mode='pull'`",
            lambda: explain(*encoder_alone(case), with_jacobians(), ("pull",)),
        ),
        (
            "cos and sin matrices in the place of `torch.fft`",
            lambda: explain(encoder, with_real_transforms(case)),
        ),
        ("`composites.hessian_product()`", lambda: explain(encoder, case, composites.hessian_product())),
    ]
    for words, attempt in ways:
        try:
            row = attempt()
        except Exception:
            continue
        if works(row):
            return words
    return None


def with_jacobians() -> Callable[..., Any]:
    """The default rules at γ = 0, and the true derivative where there is none."""
    default = composites.uniform(0.0)
    return composites.Composite("uniform(0), else jacobian", lambda step: default(step) or rules.jacobian())


def eagerly(case: Case) -> Case:
    """The same model with its attention written out."""
    case.module.model.set_attn_implementation("eager")
    return case


def from_embeddings(case: Case) -> tuple[Encoder, Case]:
    """The model called with embeddings instead of token numbers."""
    whole = case.module
    assert isinstance(whole, Embedding)
    with torch.no_grad():
        x = whole.model.get_input_embeddings()(case.given)
    alone = Case(case.name, Embedding(whole.model, whole.call, "inputs_embeds", whole.more), x, None)
    return Encoder(alone.module, name=case.name), alone


def encoder_alone(case: Case) -> tuple[Encoder, Case]:
    """The part of the model called `encoder`: of a codec, what comes before codes are looked up."""
    alone = Case(case.name, Alone(case.module.get_submodule("model.encoder")), case.given, None)
    return Encoder(alone.module, name=case.name), alone


def with_real_transforms(case: Case) -> Case:
    """The same model with Re(F x F) as products of real matrices, C x C − S x S."""

    def transform(x: Tensor) -> Tensor:
        angles = [
            torch.outer(*[torch.arange(n, dtype=x.dtype)] * 2) * (2 * torch.pi / n) for n in x.shape[-2:]
        ]
        left, right = angles
        return left.cos() @ x @ right.cos() - left.sin() @ x @ right.sin()

    changed = [part for part in case.module.modules() if hasattr(part, "fourier_transform")]
    if not changed:
        raise ValueError("no transform")
    before = case.module(case.given)
    for part in changed:
        part.fourier_transform = transform
    torch.testing.assert_close(case.module(case.given), before)
    return case


def run_types(types: Iterable[str]) -> None:
    """Check these types in this process: a line of JSON for each, as soon as it is known."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for model_type in types:
        print(json.dumps({"begin": model_type}), flush=True)
        signal.alarm(SECONDS)
        try:
            cases = list(cases_of(model_type))
        except Exception as error:  # of transformers
            cases = [f"not built: {line_of(error)}"]
        rows = [
            {"name": model_type, "absent": case} if isinstance(case, str) else check(case) for case in cases
        ]
        print(json.dumps({"type": model_type, "rows": rows}), flush=True)


def run_all(types: list[str]) -> dict[str, list[Row]]:
    """Check every type that is not kept yet, a group in each process; all that is known by then."""
    kept: dict[str, list[Row]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    KEPT.parent.mkdir(exist_ok=True)
    while left := [t for t in types if t not in kept]:
        current = None
        command = [sys.executable, __file__, "--in-process", *left[:GROUP]]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                said = json.loads(line)
                current = said.get("begin")
                if "type" in said:
                    kept[said["type"]] = said["rows"]
                    KEPT.write_text(json.dumps(kept, indent=1))
                    print(said["type"], *(summary(row) for row in said["rows"]), sep="\n    ", flush=True)
        if current is not None:
            kept[current] = [{"name": current, "failed": f"the process ended with {process.returncode}"}]
            KEPT.write_text(json.dumps(kept, indent=1))
    return {t: kept[t] for t in types}


def page(kept: dict[str, list[Row]]) -> str:
    """docs/coverage.md: every figure in it is counted from the rows."""
    import transformers

    rows = [row for rows in kept.values() for row in rows]
    explained = [row for row in rows if "absent" not in row]
    good = [row for row in explained if works(row)]
    refused = [row for row in explained if "refused" in row]
    wrong = [row for row in explained if row not in good and row not in refused]
    absent = [row for row in rows if "absent" in row]
    version = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
    lines = [
        "# Models of transformers",
        "",
        f"**{len(good)} of {len(explained)} encoders run untouched**, {len(refused)} are refused "
        f"({sum(row['way'] is not None for row in refused)} with a way out that was tried), {len(wrong)} are wrong or "
        f"fail. {version}; `python docs/make_coverage.py` made this page.",
        "",
        INTRODUCTION.format(
            types=len(kept), absent=len(absent), tolerance=TOLERANCE, differences=TOLERANCE_OF_DIFFERENCES
        ).strip(),
        "",
    ]
    if refused:
        lines += ["## Refused", "", "| encoder | input | refusal | way out that works |", "|---|---|---|---|"]
        lines += [
            f"| {r['name']} | {r['input']} | {shown(r['refused'])} | {r['way'] or 'none'} |" for r in refused
        ]
        lines += [""]
    if wrong:
        lines += ["## Wrong, or failed", "", "| encoder | what happened |", "|---|---|"]
        lines += [f"| {r['name']} | {shown(r.get('failed') or summary(r))} |" for r in wrong]
        lines += [""]
    lines += ["## Run untouched", "", "| encoder | input | default rules | error | oracle | push − pull |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {r['name']} | {r['input']} | {r['composite']} | {r['error']:.0e} | {r['oracle']} | {r['directions']:.0e} |"
        for r in good
    ]
    lines += ["", "## Not built", "", "| model type | why |", "|---|---|"]
    lines += [f"| {row['name']} | {shown(row['absent'])} |" for row in absent]
    return "\n".join(lines) + "\n"


def shown(text: str) -> str:
    """A line in a cell of a table."""
    return "`" + text.replace("|", "/").replace("`", "'") + "`"


INTRODUCTION = """
All {types} model types of `AutoModel` are built from their configuration classes, small (two layers, 32 features, lists of
widths divided by eight), with random weights, in float64 and in eval mode. A model is taken as it is an encoder: by its
encoder, by the features of its towers, or by itself; the embedding is the pooled output, else a mean over positions. Texts
are explained from the output of the module that looks tokens up (`Encoder(input_layer=...)`). {absent} types
could not be built or
run so, by transformers itself, and are listed last. Mixtures of experts run with `experts_implementation="eager"`, since
torch's grouped product takes no float64.

An encoder runs untouched if `bilrp.decompose` takes it with its default rules, the parts are the same pushed and pulled,
they and what is unattributed add up to the model's own embedding, and under `composites.hessian_product()` they are
gradient × input. The oracle for that is torch's autograd on the plain model, and differences where autograd gives no
numbers or others; the error is relative to the largest part, at most {tolerance:.0e} of it (many models round to
float32 inside; {differences:.0e} by differences). "`rules.jacobian()` for the steps without a rule" is
`composite=lambda step: bilrp.composites.uniform(0.0)(step) or bilrp.rules.jacobian()`.
"""


def summary(row: Row) -> str:
    for kind in ("absent", "refused", "failed"):
        if kind in row:
            return f"{row['name']}: {kind}: {row[kind]} | way out: {row.get('way')}"
    figures = f"{row['error']:.0e} ({row['oracle']}), push − pull {row['directions']:.0e}, sum {row['conservation']:.0e}"
    return f"{row['name']}: {figures}, {row['composite']}, {row['seconds']} s{', all zero' if row['empty'] else ''}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-process"]:
        run_types(sys.argv[2:])
    else:
        os.nice(5)
        if "--again" in sys.argv:
            KEPT.unlink(missing_ok=True)
        chosen = [name for name in sys.argv[1:] if not name.startswith("-")]
        kept = run_all(chosen or model_types())
        if not chosen:
            PAGE.write_text(page(kept))
