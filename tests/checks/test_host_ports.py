"""host.port and host.derived_ports: free, busy, not allowed, not ours, twice the same."""

from __future__ import annotations

from guarded_serve.checks.host import CHECKS
from guarded_serve.checks.runner import exit_code, run_checks
from guarded_serve.exit_codes import ExitCode
from guarded_serve.facts.bag import Facts
from guarded_serve.facts.host import HostFacts
from guarded_serve.facts.ports import Port, PortState, WantedPort
from guarded_serve.facts.processes import Process
from guarded_serve.findings import Report, Status
from tests.support.gpu_deployments import deployment

SERVING = WantedPort("the serving port", "--port", "127.0.0.1", 30000, serving=True)
RENDEZVOUS = WantedPort("the rendezvous of the ranks", "--nccl-port", "127.0.0.1", 30500)
ORPHAN = Process(41, "S", parent=1, title="sglang::scheduler_TP0", user="alice", age_s=4000.0, session=40)


def _run(*ports: Port) -> Report:
    wanted = [check for check in CHECKS if check.name in ("host.port", "host.derived_ports")]
    return run_checks(wanted, Facts(deployment(), host=HostFacts(ports=ports)))


def test_free_ports_pass() -> None:
    report = _run(Port(SERVING, PortState.FREE), Port(RENDEZVOUS, PortState.FREE))
    assert [outcome.status for outcome in report.outcomes] == [Status.PASS, Status.PASS]


def test_a_busy_serving_port_names_who_holds_it() -> None:
    report = _run(Port(SERVING, PortState.IN_USE, "Address already in use", (ORPHAN,)))
    (finding,) = report.findings
    assert exit_code(report) == ExitCode.BUSY
    assert finding.check == "host.port"
    for part in ("30000", "PID 41", "sglang::scheduler_TP0", "user alice", "67 min old", "orphaned"):
        assert part in finding.message


def test_an_unseen_holder_is_said_to_be_unseen() -> None:
    (finding,) = _run(Port(SERVING, PortState.IN_USE, "Address already in use", holder_unseen=True)).findings
    assert "may not see" in finding.message


def test_a_privileged_port_is_a_matter_of_permission() -> None:
    assert exit_code(_run(Port(SERVING, PortState.NOT_ALLOWED, "Permission denied"))) == ExitCode.PERMISSION


def test_an_address_of_another_machine_is_a_usage_error() -> None:
    assert exit_code(_run(Port(SERVING, PortState.BAD_ADDRESS, "Cannot assign"))) == ExitCode.USAGE


def test_a_busy_derived_port_is_found() -> None:
    report = _run(Port(SERVING, PortState.FREE), Port(RENDEZVOUS, PortState.IN_USE, "Address already in use"))
    assert [outcome.status for outcome in report.outcomes] == [Status.PASS, Status.FAIL]
    assert exit_code(report) == ExitCode.BUSY


def test_one_port_for_two_purposes_is_refused_before_anything_starts() -> None:
    same = WantedPort("the guard's metrics", "[metrics] port", "127.0.0.1", 30000)
    report = _run(Port(SERVING, PortState.FREE), Port(same, PortState.FREE))
    assert exit_code(report) == ExitCode.USAGE
    assert "both port 30000" in report.findings[0].message


def test_not_gathered_is_skipped_not_passed() -> None:
    report = run_checks(CHECKS, Facts(deployment()))
    assert {outcome.status for outcome in report.outcomes} == {Status.SKIPPED}
