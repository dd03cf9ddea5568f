"""Write docs/coverage.md: which models of transformers run untouched. python docs/make_coverage.py [--again] [MODEL_TYPE …]

Every model type of transformers' AutoModel is built small, with random weights, and explained. Results are stored in
out/coverage.json as they come, so that an interrupted run continues; --again deletes them first. Groups of types run in
separate processes, so that a crash or timeout affects one row only.
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
from coverage_models import Case, Embedding, Submodule, build_cases, format_error, list_model_types
from torch import Tensor, nn

import bilrp
from bilrp import composites, rules
from bilrp.encoder import Encoder
from bilrp.errors import BilrpError

PAGE = Path(__file__).with_name("coverage.md")
RESULTS = Path(__file__).parents[1] / "out" / "coverage.json"
TYPES_PER_PROCESS = 24
TIMEOUT_SECONDS = 600  # per model type
REGIONS = 6
TOLERANCE = 1e-5  # parts against autograd, relative to the largest: many models round to float32 internally
STEPS, TOLERANCE_OF_DIFFERENCES = (1e-2, 1e-3, 1e-5), 1e-4

Row = dict[str, Any]


def check(case: Case) -> Row:
    """Explain one encoder: return the errors of its parts, or why it is refused and the fix that works."""
    row: Row = {"name": case.name, "input": "×".join(map(str, case.model_input.shape))}
    encoder = Encoder(case.module, input_layer=case.start, name=case.name)
    began = time.perf_counter()
    try:
        row |= measure(encoder, case)
    except BilrpError as error:
        row |= {"refused": str(error), "fix": find_fix(encoder, case, error)}
    except Exception as error:
        row |= {"failed": format_error(error)}
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def measure(
    encoder: Encoder,
    case: Case,
    composite: Callable[..., Any] | None = None,
    modes: tuple[Literal["push", "pull"], ...] = ("push", "pull"),
) -> Row:
    """Compare the parts of push and pull, and the parts under true gradients with the oracle."""
    x = read_input(case)
    regions = make_labels(x)
    pushed, pulled = (
        bilrp.decompose(encoder, case.model_input, regions=regions, composite=composite, mode=mode)
        for mode in (modes[0], modes[-1])
    )
    mode = "auto" if len(modes) > 1 else modes[0]
    true = bilrp.decompose(
        encoder, case.model_input, regions=regions, composite=composites.hessian_product(), mode=mode
    )
    expected = gradient_times_input(case, x)
    error, by = math.inf if expected is None else relative_error(true.parts, expected), "autograd"
    if not error < TOLERANCE:  # some derivatives of torch are wrong or NaN: use finite differences
        # several step sizes: small ones suffer from rounding to float32, large ones from kinks
        by, candidates = "differences", [finite_differences(case, x, step) for step in STEPS]
        expected = min(candidates, key=lambda parts: relative_error(true.parts, parts))
        error = relative_error(true.parts, expected)
    with torch.no_grad():
        embedding = case.module(case.model_input)[0]
    closed = pushed.parts.sum(0) + pushed.unattributed - embedding
    return {
        "composite": pushed.origin["composite"],
        "error": error,
        "oracle": by,
        "directions": relative_error(pushed.parts, pulled.parts),
        "conservation": float(closed.abs().max() / embedding.abs().max()),
        "empty": not bool(expected.any()),
    }


def works(row: Row) -> bool:
    """Return whether the parts equal the oracle's, in both directions, add up to the embedding and are not all zero."""
    if "error" not in row or row["empty"]:
        return False
    slack = TOLERANCE if row["oracle"] == "autograd" else TOLERANCE_OF_DIFFERENCES
    return row["error"] < slack and max(row["directions"], row["conservation"]) < TOLERANCE


def run_from(case: Case, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the embedding with the explained input x replaced by `make(x)`, through a forward hook."""
    if case.start is None:
        return case.module(make(case.model_input))
    outputs: list[Any] = []

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        outputs.append(output)
        if len(outputs) > 1:
            return None
        return (make(output[0]), *output[1:]) if isinstance(output, tuple) else make(output)

    handle = case.module.get_submodule(case.start).register_forward_hook(replace)
    try:
        return case.module(case.model_input)
    finally:
        handle.remove()


def read_input(case: Case) -> Tensor:
    """Return the input that is explained."""
    inputs: list[Tensor] = []

    def make(x: Tensor) -> Tensor:
        inputs.append(x.detach().clone())
        return x

    with torch.no_grad():
        run_from(case, make)
    return inputs[0]


def gradient_times_input(case: Case, x: Tensor) -> Tensor | None:
    """Return parts [regions, coordinates] by autograd alone, or None if the model has no gradients."""
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
    product = (gradient * x).detach()
    return torch.stack([(product * (make_labels(x) == n)).flatten(1).sum(1) for n in range(REGIONS)])


def finite_differences(case: Case, x: Tensor, step: float) -> Tensor:
    """Return the same by finite differences of fourth order: d/dt φ(x + t x_I) at t = 0."""
    regions = make_labels(x)
    rows = []
    for n in range(REGIONS):
        with torch.no_grad():
            twice, up, down, back = (
                run_from(case, lambda _, t=t, n=n: x + t * step * x * (regions == n))[0]
                for t in (2, 1, -1, -2)
            )
        rows.append((8 * (up - down) - (twice - back)) / (12 * step))
    return torch.stack(rows)


def make_labels(x: Tensor) -> Tensor:
    """Return labels of REGIONS stripes along the longest axis of the input."""
    axis = max(range(1, x.dim()), key=lambda a: x.shape[a])
    stripes = torch.arange(x.shape[axis]) % REGIONS
    return (
        stripes.reshape([-1 if a == axis else 1 for a in range(1, x.dim())]).expand(x.shape[1:]).contiguous()
    )


def relative_error(a: Tensor, b: Tensor) -> float:
    """Return the largest difference relative to the largest value of b."""
    largest = float(b.abs().max())
    return float((a - b).abs().max()) / largest if largest else float(a.abs().max())


def find_fix(encoder: Encoder, case: Case, error: BilrpError) -> str | None:
    """Try known fixes for a refused model; return the description of the first that works, or None."""
    fixes: list[tuple[str, Callable[[], Row]]] = [
        ("`rules.jacobian()` for the steps without a rule", lambda: measure(encoder, case, with_jacobians())),
        ('`attn_implementation="eager"`', lambda: measure(encoder, with_eager_attention(case))),
        (
            '`attn_implementation="eager"`, `rules.jacobian()` for the steps without a rule',
            lambda: measure(encoder, with_eager_attention(case), with_jacobians()),
        ),
        (
            "`rules.jacobian()` for the steps without a rule, `mode='pull'`",
            lambda: measure(encoder, case, with_jacobians(), ("pull",)),
        ),
        ("`inputs_embeds`", lambda: measure(*from_embeddings(case))),
        (
            "its `encoder` alone, `rules.jacobian()` for the steps without a rule, `mode='pull'`",
            lambda: measure(*from_submodule(case), with_jacobians(), ("pull",)),
        ),
        (
            "cos and sin matrices instead of `torch.fft`",
            lambda: measure(encoder, with_real_transforms(case)),
        ),
        ("`composites.hessian_product()`", lambda: measure(encoder, case, composites.hessian_product())),
    ]
    for description, attempt in fixes:
        try:
            row = attempt()
        except Exception:
            continue
        if works(row):
            return description
    return None


def with_jacobians() -> Callable[..., Any]:
    """Return the default rules at γ = 0, with the true derivative for steps without a rule."""
    default = composites.uniform(0.0)
    return composites.Composite("uniform(0), else jacobian", lambda step: default(step) or rules.jacobian())


def with_eager_attention(case: Case) -> Case:
    """Switch the model to eager attention."""
    case.module.model.set_attn_implementation("eager")
    return case


def from_embeddings(case: Case) -> tuple[Encoder, Case]:
    """Return the encoder that takes embeddings instead of token ids."""
    module = case.module
    assert isinstance(module, Embedding)
    with torch.no_grad():
        x = module.model.get_input_embeddings()(case.model_input)
    changed = Case(case.name, Embedding(module.model, module.call, "inputs_embeds", module.more), x, None)
    return Encoder(changed.module, name=case.name), changed


def from_submodule(case: Case) -> tuple[Encoder, Case]:
    """Return the submodule `encoder` as an encoder: the part of a codec before its codebook."""
    changed = Case(case.name, Submodule(case.module.get_submodule("model.encoder")), case.model_input, None)
    return Encoder(changed.module, name=case.name), changed


def with_real_transforms(case: Case) -> Case:
    """Replace Re(F x F) by products of real matrices, C x C − S x S."""

    def transform(x: Tensor) -> Tensor:
        angles = [
            torch.outer(*[torch.arange(n, dtype=x.dtype)] * 2) * (2 * torch.pi / n) for n in x.shape[-2:]
        ]
        left, right = angles
        return left.cos() @ x @ right.cos() - left.sin() @ x @ right.sin()

    layers = [layer for layer in case.module.modules() if hasattr(layer, "fourier_transform")]
    if not layers:
        raise ValueError("no transform")
    before = case.module(case.model_input)
    for layer in layers:
        layer.fourier_transform = transform
    torch.testing.assert_close(case.module(case.model_input), before)
    return case


def run_types(types: Iterable[str]) -> None:
    """Check these types in this process and print one line of JSON for each."""
    import transformers

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for model_type in types:
        print(json.dumps({"begin": model_type}), flush=True)
        signal.alarm(TIMEOUT_SECONDS)
        try:
            cases = list(build_cases(model_type))
        except Exception as error:  # from transformers
            cases = [f"not built: {format_error(error)}"]
        rows = [
            {"name": model_type, "absent": case} if isinstance(case, str) else check(case) for case in cases
        ]
        print(json.dumps({"type": model_type, "rows": rows}), flush=True)


def run_all(types: list[str]) -> dict[str, list[Row]]:
    """Check every type without a stored result, in groups of one process each; return all results."""
    results: dict[str, list[Row]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.parent.mkdir(exist_ok=True)
    while left := [t for t in types if t not in results]:
        current = None
        command = [sys.executable, __file__, "--in-process", *left[:TYPES_PER_PROCESS]]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    continue
                message = json.loads(line)
                current = message.get("begin")
                if "type" in message:
                    results[message["type"]] = message["rows"]
                    RESULTS.write_text(json.dumps(results, indent=1))
                    print(
                        message["type"], *(summary(row) for row in message["rows"]), sep="\n    ", flush=True
                    )
        if current is not None:
            results[current] = [{"name": current, "failed": f"the process ended with {process.returncode}"}]
            RESULTS.write_text(json.dumps(results, indent=1))
    return {t: results[t] for t in types}


def format_page(results: dict[str, list[Row]]) -> str:
    """Return docs/coverage.md; every number in it is counted from the rows."""
    import transformers

    rows = [row for rows in results.values() for row in rows]
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
        f"({sum(row['fix'] is not None for row in refused)} with a fix that was tested), {len(wrong)} are wrong or "
        f"fail. {version}; written by `python docs/make_coverage.py`.",
        "",
        INTRODUCTION.format(
            types=len(results), absent=len(absent), tolerance=TOLERANCE, differences=TOLERANCE_OF_DIFFERENCES
        ).strip(),
        "",
    ]
    if refused:
        lines += ["## Refused", "", "| encoder | input | error | fix that works |", "|---|---|---|---|"]
        lines += [
            f"| {r['name']} | {r['input']} | {code_cell(r['refused'])} | {r['fix'] or 'none'} |"
            for r in refused
        ]
        lines += [""]
    if wrong:
        lines += ["## Wrong, or failed", "", "| encoder | what happened |", "|---|---|"]
        lines += [f"| {r['name']} | {code_cell(r.get('failed') or summary(r))} |" for r in wrong]
        lines += [""]
    lines += ["## Run untouched", "", "| encoder | input | default rules | error | oracle | push − pull |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [
        f"| {r['name']} | {r['input']} | {r['composite']} | {r['error']:.0e} | {r['oracle']} | {r['directions']:.0e} |"
        for r in good
    ]
    lines += ["", "## Not built", "", "| model type | why |", "|---|---|"]
    lines += [f"| {row['name']} | {code_cell(row['absent'])} |" for row in absent]
    return "\n".join(lines) + "\n"


def code_cell(text: str) -> str:
    """Format a line as code in a cell of a table."""
    return "`" + text.replace("|", "/").replace("`", "'") + "`"


INTRODUCTION = """
All {types} model types of `AutoModel` are built small from their configuration classes (two layers, 32 features, lists
of widths divided by eight), with random weights, in float64 and in eval mode. A model is used as an encoder through its
encoder, its methods that return features, or its forward; the embedding is the pooled output, else the mean over
positions. Texts are explained from the output of the token embedding (`Encoder(input_layer=...)`). {absent} types could
not be built or run in this way by transformers itself, and are listed last. Mixtures of experts run with
`experts_implementation="eager"`, because torch's grouped product does not support float64.

An encoder runs untouched if `bilrp.decompose` accepts it with its default rules, push and pull give the same parts,
parts and remainder add up to the embedding of the model, and under `composites.hessian_product()` they equal gradient ×
input. The oracle is torch's autograd on the plain model, and finite differences where autograd is wrong or NaN; the
error is relative to the largest part, at most {tolerance:.0e} (many models round to float32 internally;
{differences:.0e} for finite differences). "`rules.jacobian()` for the steps without a rule" is `composite=lambda step:
bilrp.composites.uniform(0.0)(step) or bilrp.rules.jacobian()`.
"""


def summary(row: Row) -> str:
    for kind in ("absent", "refused", "failed"):
        if kind in row:
            return f"{row['name']}: {kind}: {row[kind]} | fix: {row.get('fix')}"
    figures = f"{row['error']:.0e} ({row['oracle']}), push − pull {row['directions']:.0e}, sum {row['conservation']:.0e}"
    return f"{row['name']}: {figures}, {row['composite']}, {row['seconds']} s{', all zero' if row['empty'] else ''}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-process"]:
        run_types(sys.argv[2:])
    else:
        os.nice(5)
        if "--again" in sys.argv:
            RESULTS.unlink(missing_ok=True)
        chosen = [name for name in sys.argv[1:] if not name.startswith("-")]
        results = run_all(chosen or list_model_types())
        if not chosen:
            PAGE.write_text(format_page(results))
