"""bilrp explain: what it prints and writes, and one line instead of a traceback for everything that goes wrong."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import bilrp
from bilrp.cli import options, terminal
from bilrp.errors import InputError
from bilrp.explanation import FORMATS
from table_pages import draw_page


def tiny(*more: str) -> tuple[str, ...]:
    start = ("explain", "a.png", "b.png", "--encoder", "tinymodel:tiny", "--size", "32")
    return (*start, *(() if "--similarity" in more else ("--similarity", "dot")), *more)


def test_summary_adds_up(workdir, bilrp_command):
    code, out, err = bilrp_command(*tiny("--top", "3"))
    assert code == 0 and err == ""
    assert "a.png  and  b.png" in out and "tinymodel:tiny, dot, 16 × 16 regions" in out
    result = bilrp_command(*tiny("--json"))
    about = json.loads(result[1])
    assert about["score"] == pytest.approx(about["explained"] + about["unattributed"])
    assert about["explained"] == pytest.approx(about["positive"] + about["negative"], rel=1e-4)
    assert about["explained_share"] + about["unattributed_share"] == pytest.approx(1)
    assert len(about["top"]) == 5 and about["outputs"] == [] and about["seconds"] > 0
    shares = dict(re.findall(r"^  (\S[^0-9−]*?) +[0-9−].* (\S+) %$", out.replace("−", "-"), re.M))
    added = [float(shares[name]) for name in ("pairs that raise it", "pairs that lower it", "unattributed")]
    assert sum(added) == pytest.approx(100, abs=1.5) and shares["score"] == "100", (
        "what the terminal shows adds up"
    )
    best = about["top"][0]
    assert best["a"]["box"].keys() == {"top", "left", "bottom", "right"}
    assert [m["relevance"] for m in about["top"]] == sorted(
        (m["relevance"] for m in about["top"]), reverse=True
    )
    assert sorted(p.name for p in workdir.iterdir() if p.suffix != "") == ["a.png", "b.png", "tinymodel.py"]


def test_the_sentence_and_the_findings_come_first_and_single_pairs_on_demand(workdir, bilrp_command):
    plain, with_pairs = bilrp_command(*tiny())[1], bilrp_command(*tiny("--top", "3"))[1]
    about = json.loads(bilrp_command(*tiny("--json"))[1])
    explanation = bilrp.explain(
        terminal.load_encoder("tinymodel:tiny", size="32"), "a.png", "b.png", similarity="dot"
    )
    assert about["summary"] == explanation.summary() and " ".join(about["summary"].split()[:9]) in " ".join(
        plain.split()
    )
    assert [f["relevance"] for f in about["findings"]] == [f.relevance for f in explanation.findings()]
    for finding in about["findings"][:6]:
        assert finding["label"] in plain and "px" not in finding["label"]
    assert plain.index("Cosine") < plain.index("matches, by") < plain.index("unattributed  ")
    assert "pairs of regions" not in plain and "strongest pairs of regions" in with_pairs
    assert about["top"][0]["a"]["place"] in with_pairs, "in the photograph, not in rows of the input"
    (warning,) = about["warnings"]
    assert about["estimate"] is False and "never measured for images under the rules uniform(0.25)" in warning


def test_an_estimate_is_called_one(workdir, bilrp_command):
    _, out, _ = bilrp_command(*tiny("--project", "4"))
    about = json.loads(bilrp_command(*tiny("--project", "4", "--json"))[1])
    assert (
        about["estimate"] is True and "  estimate  " in out and "Estimated dot" in out and "not exact" in out
    )


def test_every_output(workdir, bilrp_command):
    names = [f"why two{suffix}" if suffix == ".safetensors" else f"why{suffix}" for suffix in FORMATS]
    code, out, _ = bilrp_command(*tiny(*(part for name in names for part in ("-o", name))))
    assert code == 0
    for name in names:
        assert (workdir / name).stat().st_size > 0 and f"wrote {name}" in out
    with Image.open(workdir / "why.png") as picture:
        assert picture.size[0] >= 1600
    stored = bilrp.Explanation.load(workdir / "why.npz")
    assert stored.relevance.shape == (16, 16)
    assert not [p for p in workdir.iterdir() if p.name.startswith(".")]


def test_a_mask_image_weighs_the_regions(workdir, bilrp_command):
    mask = np.full((120, 80), 255, np.uint8)
    mask[:60, :40] = 0  # the upper left quarter is damaged; a mask may have another size
    Image.fromarray(mask).save(workdir / "mask.png")
    plain = json.loads(bilrp_command(*tiny("--regions", "16", "--json"))[1])
    code, out, _ = bilrp_command(*tiny("--regions", "16", "--json", "--reliability", "mask.png"))
    about = json.loads(out)
    assert code == 0 and about["unweighted_score"] == pytest.approx(plain["score"])
    assert about["score"] == pytest.approx(about["explained"] + about["unattributed"])
    assert all(0 not in f["a"] and 0 not in f["b"] for f in about["findings"])  # its parts are zero
    for bad, message in (
        (("--reliability", "own"), "no confidence of its own"),
        (("--reliability", "missing.png"), "missing.png"),
        (("--reliability", "own") * 3, "once for each"),
    ):
        code, _, err = bilrp_command(*tiny(*bad))
        assert code == 2 and message in err and err.count("\n") == 1


def test_options_reach_the_engine(workdir, bilrp_command):
    exact = json.loads(bilrp_command(*tiny("--json"))[1])
    cosine = json.loads(bilrp_command(*tiny("--json", "--similarity", "cosine"))[1])
    assert -1 <= cosine["score"] <= 1 < abs(exact["score"])
    coarse = json.loads(bilrp_command(*tiny("--json", "--regions", "16"))[1])
    assert coarse["regions"] == [4, 4] and coarse["score"] == pytest.approx(exact["score"])
    refined = json.loads(
        bilrp_command(*tiny("--json", "--regions", "2", "--max-regions", "30", "-o", "why.png"))[1]
    )
    assert refined["score"] == pytest.approx(exact["score"])
    assert all(16 < count <= 30 for count in refined["regions"])
    wide = json.loads(bilrp_command(*tiny("--json", "--size", "48x32"))[1])
    assert wide["regions"] == [24, 24]
    estimate = json.loads(bilrp_command(*tiny("--json", "--project", "4"))[1])
    assert estimate["score"] != pytest.approx(exact["score"])
    padded = json.loads(bilrp_command(*tiny("--json", "--resize", "pad"))[1])
    assert padded["score"] != pytest.approx(exact["score"])


BAD_OPTIONS = {
    "no such output suffix": (tiny("-o", "why.gif"), "the suffix must be one of"),
    "output folder missing": (tiny("-o", "absent/why.png"), "no folder absent"),
    "output is a folder": (tiny("-o", "folder.png"), "a folder has this name"),
    "output is an input": (tiny("-o", "a.png"), "would be overwritten"),
    "output name too long": (tiny("-o", "x" * 300 + ".png"), "too long"),
    "link preset": (tiny("--link-preset", "nope"), "no style 'nope'"),
    "palette": (tiny("--palette", "nope"), "no palette 'nope'"),
    "similarity": (tiny("--similarity", "nope"), "nope"),
    "resize": (tiny("--resize", "nope"), "resize must be one of"),
    "resize for scans": (
        ("explain", "a.png", "b.png", "-e", "bigram", "--resize", "nonsense"),
        "resize must be one of",
    ),
    "resize unheard": (
        ("explain", "a.png", "b.png", "-e", "bigram", "--resize", "pad"),
        "--resize is for vgg16",
    ),
    "size": (("explain", "a.png", "b.png", "-e", "tinymodel:tiny", "--size", "12cm"), "--size 12cm"),
    "size zero": (("explain", "a.png", "b.png", "-e", "tinymodel:tiny", "--size", "0"), "--size 0"),
    "weights for another encoder": (tiny("--weights", "w.pth"), "--weights is for vgg16"),
    "vgg layer": (("explain", "a.png", "b.png", "-e", "vgg16:x"), "a number from 1 to 31"),
    "vgg weights": (("explain", "a.png", "b.png", "--weights", "absent.pth"), "no such weights file"),
    "module": (("explain", "a.png", "b.png", "-e", "absent.module:f"), "absent"),
    "function": (("explain", "a.png", "b.png", "-e", "tinymodel:absent"), "absent"),
    "no colon": (("explain", "a.png", "b.png", "-e", "resnet50"), "resnet50"),
    "returns a number": (("explain", "a.png", "b.png", "-e", "tinymodel:number"), "int"),
    "wants an argument": (("explain", "a.png", "b.png", "-e", "tinymodel:argument"), "without arguments"),
    "unequal sizes": (
        ("explain", "a.png", "b.png", "-e", "torch.nn:Flatten", "--size", "original"),
        "coordinates",
    ),
}


@pytest.mark.parametrize("what", BAD_OPTIONS)
def test_bad_options_are_one_line(workdir, bilrp_command, what):
    (workdir / "folder.png").mkdir()
    arguments, expected = BAD_OPTIONS[what]
    before = sorted(workdir.iterdir())
    code, out, err = bilrp_command(*arguments)
    assert code == 2 and out == ""
    assert err.startswith("bilrp: ") and err.count("\n") == 1 and expected in err, err
    assert [p for p in sorted(workdir.iterdir()) if p.name != "__pycache__"] == before


@pytest.mark.parametrize("option", [("--regions", "0"), ("--top", "-1"), ("--nope",), ("--regions", "x")])
def test_bad_usage_exits_with_2(workdir, bilrp_command, option):
    code, out, err = bilrp_command(*tiny(*option))
    assert code == 2 and out == "" and "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "broken",
            "the encoder tinymodel:broken raised RuntimeError on an input of shape (1, 3, 128, 128): the model",
        ),
        ("unmade", "tinymodel:unmade() raised ValueError: no such network"),
    ],
)
def test_an_encoder_that_raises_is_named_in_one_line(workdir, bilrp_command, monkeypatch, name, expected):
    monkeypatch.delenv("BILRP_DEBUG", raising=False)
    code, out, err = bilrp_command("explain", "a.png", "b.png", "-e", f"tinymodel:{name}", "-o", "why.png")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert expected in err and not (workdir / "why.png").exists()


def bad_files(path: Path) -> dict[str, str]:
    """Files that cannot be explained, and a word of what is said about each."""
    (path / "text.png").write_text("not an image")
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (99, 99, 3), np.uint8)).save(buffer, "png")
    (path / "cut.png").write_bytes(buffer.getvalue()[:5000])
    (path / "folder").mkdir()
    (path / "empty.jpg").touch()
    return {
        "text.png": "not a supported image file",
        "cut.png": "damaged",
        "folder": "a folder",
        "empty.jpg": "empty",
        "absent.png": "no such file",
    }


def test_bad_files_are_one_line_on_either_side(workdir, bilrp_command):
    for name, expected in bad_files(workdir).items():
        for pair in ((name, "b.png"), ("a.png", name)):
            code, out, err = bilrp_command(
                "explain", *pair, "-e", "tinymodel:tiny", "--size", "32", "-o", "why.png"
            )
            assert code == 2 and out == "" and err.count("\n") == 1, (pair, err)
            assert expected in err and name in err, err
    assert not (workdir / "why.png").exists()


def test_good_files_of_every_kind(workdir, bilrp_command):
    image = Image.open(workdir / "a.png")
    image.convert("CMYK").save(workdir / "cmyk.jpg")
    Image.fromarray(np.linspace(0, 65535, 1600).reshape(40, 40).astype(np.uint16)).save(workdir / "deep.png")
    image.save(workdir / "moving.gif", save_all=True, append_images=[image.rotate(90)] * 3)
    Image.new("RGB", (1, 1), "red").save(workdir / "one.png")
    image.save(workdir / "Grüße 山 🐈.png")
    image.convert("RGBA").save(workdir / "alpha.webp")
    names = ["cmyk.jpg", "deep.png", "moving.gif", "one.png", "Grüße 山 🐈.png", "alpha.webp"]
    for name in names:
        target = f"why {Path(name).stem}.png"
        arguments = ("explain", name, "b.png", "-e", "tinymodel:tiny", "--size", "16", "-o", target)
        code, _, err = bilrp_command(*arguments)
        warning = (
            "bilrp: moving.gif is animated: its first frame is explained\n" if name == "moving.gif" else ""
        )
        assert code == 0 and err == warning and (workdir / target).stat().st_size > 1000, (name, err)


def test_failed_writing_leaves_the_old_file(workdir, bilrp_command, monkeypatch):
    (workdir / "why.png").write_text("old")

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    from bilrp.render import figure

    monkeypatch.setattr(figure, "save_figure", fails)
    code, out, err = bilrp_command(*tiny("-o", "why.png", "-o", "why.npz"))
    assert code == 2 and "No space left" in err and "why.png" in err and err.count("\n") == 1
    assert "matches, by their share" in out and "wrote why.npz" in out and "wrote why.png" not in out
    assert (workdir / "why.png").read_text() == "old"
    assert not [p for p in workdir.iterdir() if p.name.startswith(".")]


def command(path: Path, *arguments: str, limits=lambda: None, **environment: str) -> subprocess.Popen:
    source = str(Path(bilrp.__file__).parents[1])

    def prepare() -> None:
        # a test run in the background may ignore interrupts, and its children would too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        limits()

    return subprocess.Popen(
        [sys.executable, "-m", "bilrp", *arguments],
        cwd=path,
        env={**os.environ, "PYTHONPATH": source, "PYTHONIOENCODING": "ascii", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=prepare,
    )


def test_a_full_disk_costs_one_output_and_neither_the_summary_nor_the_others(workdir):
    import resource

    process = command(
        workdir, *tiny("-o", "why.html", "-o", "why.npz"),
        limits=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000)),
    )  # fmt: skip
    out, err = (message.decode() for message in process.communicate(timeout=120))
    assert (
        process.returncode == 2 and err.startswith("bilrp: ") and err.count("\n") == 1 and "why.html" in err
    )
    assert "matches, by their share" in out and "wrote why.npz" in out and "wrote why.html" not in out
    assert out.index("matches, by their share") < out.index("wrote why.npz")
    assert bilrp.Explanation.load(workdir / "why.npz").relevance.shape == (16, 16)
    assert not (workdir / "why.html").exists() and not [
        p for p in workdir.iterdir() if p.name.startswith(".")
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"no weights at all", "w.pth: not a torch file of plain tensors"),
        (b"", "not a torch file of plain tensors"),
    ],
)
def test_weights_that_are_not_a_checkpoint(workdir, bilrp_command, content, expected):
    (workdir / "w.pth").write_bytes(content)
    code, out, err = bilrp_command("explain", "a.png", "b.png", "--weights", "w.pth")
    assert code == 2 and out == "" and expected in err and err.count("\n") == 1


def test_an_unreadable_cache_is_reported(workdir, bilrp_command, monkeypatch):
    monkeypatch.setenv("BILRP_CACHE", str(workdir / ("x" * 300)))  # a name that no file system looks up
    code, out, err = bilrp_command("explain", "a.png", "b.png")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "cannot be read" in err and "set BILRP_CACHE to a folder of your own" in err


def test_without_a_network_it_says_so(workdir, bilrp_command, monkeypatch):
    monkeypatch.setenv("BILRP_CACHE", str(workdir / "cache"))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # no server is there
    monkeypatch.setenv("PIP_RETRIES", "0")
    code, out, err = bilrp_command("explain", "a.png", "b.png")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "check the network connection" in err and "--weights" in err


def test_a_photograph_for_the_bigram_network_gets_a_warning(workdir, bilrp_command):
    pytest.importorskip("scipy")
    skimage = pytest.importorskip("skimage.data")
    Image.fromarray(skimage.coffee()[:200, :200]).save(workdir / "face.png")
    draw_page(rows=6, columns=4).image.save(workdir / "table.png")
    code, _, err = bilrp_command("explain", "face.png", "table.png", "-e", "bigram", "--similarity", "dot")
    assert code == 0 and err.count("\n") == 1
    assert "almost no digits found in face.png" in err and "table.png" not in err


def test_an_empty_picture_for_the_bigram_network_is_refused_for_its_digits(workdir, bilrp_command):
    pytest.importorskip("scipy")
    for name in ("white.png", "blank.png"):
        Image.new("RGB", (120, 120), "white").save(workdir / name)
    code, out, err = bilrp_command("explain", "white.png", "blank.png", "-e", "bigram")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "almost no digits found" in err and "zero in every coordinate" in err


def test_a_title_reaches_picture_and_page(workdir, bilrp_command):
    code, _, _ = bilrp_command(*tiny("--title", "Two <noises>", "-o", "why.svg", "-o", "why.html"))
    assert code == 0
    assert "Two &lt;noises&gt;" in (workdir / "why.svg").read_text()
    assert "<title>Two &lt;noises&gt;" in (workdir / "why.html").read_text()


def test_open_shows_the_first_page_or_picture(workdir, bilrp_command):
    code, out, err = bilrp_command(*tiny("--open", "-o", "why.npz"))
    assert code == 2 and out == "" and "add -o why.html" in err
    browser = workdir / "browser.sh"
    browser.write_text(f'#!/bin/sh\necho "$1" > {workdir}/opened\n')
    browser.chmod(0o755)
    process = command(workdir, *tiny("--open", "-o", "why.npz", "-o", "why.html"), BROWSER=f"{browser} %s")
    _, message = process.communicate(timeout=120)
    assert process.returncode == 0, message
    assert (workdir / "opened").read_text().strip() == (workdir / "why.html").as_uri()


@pytest.mark.slow
def test_interrupt_leaves_nothing(workdir):
    process = command(
        workdir, "explain", "a.png", "b.png", "-e", "tinymodel:slow", "--size", "32", "-o", "why.png"
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"started"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.decode().strip() == "bilrp: interrupted"
    assert not (workdir / "why.png").exists()


@pytest.mark.slow
def test_names_no_terminal_can_show(workdir):
    odd = os.fsdecode(b"bad\xff\xe5.png")
    try:
        (workdir / "a.png").rename(workdir / odd)
    except OSError:
        pytest.skip("needs a file system with such names")
    process = command(
        workdir, "explain", odd, "b.png", "-e", "tinymodel:tiny", "--size", "16", "-o", "why.png"
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert b"Traceback" not in err and b"bad" in out and (workdir / "why.png").exists()


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), ("64", 64), ("192x128", (128, 192)), ("original", "original")]
)
def test_sizes(text, expected):
    assert terminal.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "0x5", "1e3", "128 px", "999999", "٣"])
def test_bad_sizes_are_refused(text):
    with pytest.raises(InputError, match="give pixels"):
        terminal.parse_size(text)


def test_completion_offers_names():
    assert "vgg16:31" in options.complete_encoders("vgg")
    assert options.complete_link_presets("pas") == ["pascal_voc"]


@pytest.mark.data
@pytest.mark.slow
def test_vgg_by_name(data, workdir, bilrp_command):
    weights = str(data / "vgg16" / "vgg16_features.safetensors")
    arguments = ("explain", "a.png", "a.png", "-e", "vgg16:10", "--size", "32", "--weights", weights)
    code, out, err = bilrp_command(*arguments, "--similarity", "cosine", "-o", "why.html")
    assert code == 0 and err == "" and "vgg16:10, cosine, 16 × 16 regions" in out
    assert (workdir / "why.html").stat().st_size < 1_500_000
