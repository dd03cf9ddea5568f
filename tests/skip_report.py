"""Prints every skip with its reason, and fails a run in which a parametrised test skipped all of its cases."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

# How the reasons begin that name something this machine lacks: the data folder, a browser, a package, a compiler.
MISSING_RESOURCE_PREFIXES = ("needs ", "could not import ")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist sees some of the cases only
        config.pluginmanager.register(SkipReport(), "skip-report")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Why the test or the module was skipped; None where it was not."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else report.longrepr
    return str(text).removeprefix("Skipped: ")


class SkipReport:
    """What was skipped and why, by test function; a case that ran has no reason."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[str, str | None]] = defaultdict(dict)
        self.modules: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if reason := skip_reason(report):
            self.modules[report.nodeid] = reason

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cases = self.cases[report.nodeid.partition("[")[0]]
        cases[report.nodeid] = skip_reason(report) or cases.get(report.nodeid)

    def fully_skipped_tests(self) -> dict[str, str]:
        """Tests with several cases, all skipped, and a reason that is not an absent resource."""
        failures = {}
        for test, cases in self.cases.items():
            reasons = [reason for reason in cases.values() if reason]
            wrong = [reason for reason in reasons if not reason.startswith(MISSING_RESOURCE_PREFIXES)]
            if len(cases) > 1 and len(reasons) == len(cases) and wrong:
                failures[test] = wrong[0]
        return failures

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self.fully_skipped_tests():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skips = [*self.modules.items()]
        skips += [(test, why) for test, cases in self.cases.items() for why in cases.values() if why]
        if skips:
            terminalreporter.section("skipped")
        for (test, reason), count in sorted(Counter(skips).items()):
            terminalreporter.write_line(f"{count:4} {test}: {reason}")
        for test, reason in self.fully_skipped_tests().items():
            terminalreporter.write_line(f"FAILED {test}: every case was skipped: {reason}", red=True)
