"""The report of skips: a parametrised test that tests nothing fails the run, here and under pytest-xdist."""

from __future__ import annotations

import shutil

import pytest

import skip_report

pytest_plugins = ["pytester"]

FAMILY = """
    import pytest

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_family(number):
        {body}

    def test_single():
        pytest.skip("a single test")
"""
BOTH = pytest.mark.parametrize("workers", ["0", "2"])


@pytest.fixture(autouse=True)
def plugin(pytester: pytest.Pytester) -> None:
    """The plugin as this project's own tests load it; workers of pytest-xdist import it, too."""
    shutil.copy(skip_report.__file__, pytester.path)
    pytester.makeconftest('pytest_plugins = ["skip_report"]')


def run(pytester: pytest.Pytester, body: str, workers: str) -> pytest.RunResult:
    pytester.makepyfile(FAMILY.format(body=body))
    return pytester.runpytest_inprocess("-n", workers)


@BOTH
def test_a_family_that_only_skips_fails_the_run(pytester: pytest.Pytester, workers: str) -> None:
    result = run(pytester, 'pytest.skip("the input feeds more than one step")', workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*   3 *::test_family: the input feeds*",
            "*   1 *::test_single: a single test",
            "FAILED *::test_family*",
        ]
    )


@BOTH
def test_a_family_with_one_case_that_ran_passes(pytester: pytest.Pytester, workers: str) -> None:
    result = run(pytester, 'number < 3 and pytest.skip("too small")', workers)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*   2 *::test_family: too small"])
    result.stdout.no_fnmatch_line("FAILED*")


@pytest.mark.parametrize(
    "body", ['pytest.skip("needs BILRP_DATA")', 'pytest.importorskip("no_such_package")']
)
def test_an_absent_resource_is_printed_and_passes(pytester: pytest.Pytester, body: str) -> None:
    result = run(pytester, body, "0")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*   3 *::test_family: *"])


def test_one_wrong_reason_among_absent_resources_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, 'pytest.skip("needs BILRP_DATA" if number < 3 else "too large")', "0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED *::test_family: every case was skipped: too large"])


def test_a_family_skipped_by_a_mark_or_a_fixture_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def model():
            pytest.skip("no model")

        @pytest.mark.parametrize("number", [1, 2])
        def test_by_fixture(model, number): ...

        @pytest.mark.skipif(True, reason="switched off")
        @pytest.mark.parametrize("number", [1, 2])
        def test_by_mark(number): ...
    """)
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["FAILED *::test_by_fixture: *no model", "FAILED *::test_by_mark: *switched off"]
    )


@BOTH
def test_a_skipped_module_is_printed(pytester: pytest.Pytester, workers: str) -> None:
    pytester.makepyfile(test_module='import pytest; pytest.skip("not here", allow_module_level=True)')
    pytester.makepyfile(test_other="def test_one(): ...")
    result = pytester.runpytest_inprocess("-n", workers)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*   1 test_module.py: not here"])
