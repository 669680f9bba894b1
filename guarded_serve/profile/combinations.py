"""Settings that are right each by itself and cannot stand together: what the profile alone can know.

What SGLang makes of its own flags, the checks of the drafter, target and GPU families judge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from guarded_serve.engine_link import ENVIRONMENT_KEY
from guarded_serve.findings import Finding
from guarded_serve.profile.load import LoadedProfile
from guarded_serve.profile.wording import literal, nearest

Get = Callable[[str], Any]
"""The effective value of an SGLang setting, None where SGLang decides."""

_CHAINED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_OFF = ("0", "false", "no", "off")


def impossible_combinations(loaded: LoadedProfile, get: Get, is_set: Callable[[str], bool]) -> Iterator[Finding]:
    """Errors of the check `profile.combination`, each at the key that has to change."""
    yield from _cpu_engine(loaded, get)
    yield from _gpus(loaded, get, is_set)
    yield from _drafter(loaded, get, is_set)
    yield from _ports_and_sizes(loaded, get)
    if ENVIRONMENT_KEY in loaded.profile.env:
        yield loaded.error(
            "profile.combination",
            ("env", ENVIRONMENT_KEY),
            f"{ENVIRONMENT_KEY} is what the launcher tells its plugin by; a profile cannot set it",
            expected=f"no {ENVIRONMENT_KEY} in [env]",
            found=f"{ENVIRONMENT_KEY} in [env]",
            remedy="leave the key out",
        )


@dataclass(frozen=True)
class WrongIgnore:
    """Why a check's name cannot stand among those whose errors are let pass."""

    reason: str
    expected: str
    remedy: str


def wrong_ignore(name: str, known: Collection[str]) -> WrongIgnore | None:
    """A name that no check has, or one whose errors always count: from a broken profile no server is made."""
    if name not in known:
        near = nearest(name, known)
        remedy = f"did you mean {near}?" if near else "`guarded-serve check --list` names them all"
        return WrongIgnore("there is no such check", "the name of a check", remedy)
    if name.startswith("profile."):
        return WrongIgnore(
            "what that check finds cannot be ignored",
            "the name of a check of another family than profile",
            "leave it out, and mend what the check finds",
        )
    return None


def wrong_ignores(loaded: LoadedProfile, known: Collection[str]) -> Iterator[Finding]:
    """Errors for names in `[preflight] ignore`."""
    for index, name in enumerate(loaded.profile.preflight.ignore):
        if wrong := wrong_ignore(name, known):
            yield loaded.error(
                "profile.value",
                ("preflight", "ignore", index),
                f"preflight.ignore names {literal(name)}, and {wrong.reason}",
                expected=wrong.expected,
                found=literal(name),
                remedy=wrong.remedy,
            )


def _cpu_engine(loaded: LoadedProfile, get: Get) -> Iterator[Finding]:
    if not loaded.profile.engine.cpu_kernels:
        return
    device = get("device")
    if device not in (None, "cpu"):
        yield loaded.error(
            "profile.combination",
            ("engine", "cpu_kernels"),
            f"engine.cpu_kernels runs SGLang's CPU engine, but server.device is {literal(device)}",
            expected='device = "cpu"',
            found=f"device = {literal(device)}",
            remedy='set device = "cpu" in [server], or leave cpu_kernels out',
        )
    switch = loaded.profile.env.get("SGLANG_USE_CPU_ENGINE")
    if switch is not None and switch.lower() in _OFF:
        yield loaded.error(
            "profile.combination",
            ("env", "SGLANG_USE_CPU_ENGINE"),
            "engine.cpu_kernels needs SGLANG_USE_CPU_ENGINE=1, but [env] turns it off",
            expected="1",
            found=literal(switch),
            remedy="leave the key out: cpu_kernels sets it",
        )
    if isinstance(loaded.profile.gpus.devices, tuple):
        yield loaded.error(
            "profile.combination",
            ("gpus", "devices"),
            "gpus.devices names GPUs, but engine.cpu_kernels runs the server on the CPU",
            expected='devices = "visible", or no engine.cpu_kernels',
            found=literal(list(loaded.profile.gpus.devices)),
            remedy="leave one of the two out",
        )


def _gpus(loaded: LoadedProfile, get: Get, is_set: Callable[[str], bool]) -> Iterator[Finding]:
    devices = loaded.profile.gpus.devices
    if not isinstance(devices, tuple):
        return
    if "CUDA_VISIBLE_DEVICES" in loaded.profile.env:
        yield loaded.error(
            "profile.combination",
            ("env", "CUDA_VISIBLE_DEVICES"),
            "[env] CUDA_VISIBLE_DEVICES and gpus.devices both choose the GPUs",
            expected="one of the two",
            found="both",
            remedy="leave CUDA_VISIBLE_DEVICES out: the launcher sets it from gpus.devices",
        )
    twice = sorted({str(device) for device in devices if devices.count(device) > 1})
    if twice:
        yield loaded.error(
            "profile.combination",
            ("gpus", "devices"),
            f"gpus.devices names {', '.join(twice)} more than once",
            expected="each GPU once",
            found=literal(list(devices)),
            remedy="name each GPU once",
        )
    sizes = {name: get(name) or 1 for name in ("tp_size", "pp_size", "nnodes")}
    needed = sizes["tp_size"] * sizes["pp_size"] // sizes["nnodes"]
    if len(devices) < needed and is_set("tp_size"):
        yield loaded.error(
            "profile.combination",
            ("gpus", "devices"),
            f"gpus.devices names {len(devices)} GPUs, but the server needs {needed} "
            f"(tp_size {sizes['tp_size']} * pp_size {sizes['pp_size']} / nnodes {sizes['nnodes']})",
            expected=f"at least {needed} GPUs",
            found=literal(list(devices)),
            remedy='name enough GPUs, or devices = "visible"',
        )


def _drafter(loaded: LoadedProfile, get: Get, is_set: Callable[[str], bool]) -> Iterator[Finding]:
    if not get("speculative_draft_model_path"):
        for key in ("sha256", "trained_for", "reference"):
            if getattr(loaded.profile.drafter, key) is not None:
                yield loaded.error(
                    "profile.combination",
                    ("drafter", key),
                    f"drafter.{key} is set, but this deployment has no drafter of its own",
                    expected="speculative_draft_model_path in [server]",
                    found="no speculative_draft_model_path",
                    remedy=f"set speculative_draft_model_path in [server], or leave {key} out",
                )
    steps, least = get("speculative_num_steps"), loaded.profile.probe.min_accept_length
    if get("speculative_algorithm") in _CHAINED and isinstance(steps, int) and least > steps + 1:
        yield loaded.error(
            "profile.combination",
            ("probe", "min_accept_length"),
            f"probe.min_accept_length is {least}, but with speculative_num_steps {steps} no accept length exceeds "
            f"{steps + 1} (steps and the bonus token)",
            expected=f"at most {steps + 1}",
            found=literal(least),
            remedy="lower it, or raise speculative_num_steps",
        )


def _ports_and_sizes(loaded: LoadedProfile, get: Get) -> Iterator[Finding]:
    port = loaded.profile.metrics.port
    if port and port == get("port"):
        yield loaded.error(
            "profile.combination",
            ("metrics", "port"),
            f"metrics.port and the server's port are both {port}",
            expected="two ports",
            found=f"{port} twice",
            remedy="choose another metrics.port, or 0 for SGLang's own /metrics alone",
        )
    most = get("max_running_requests")
    if not isinstance(most, int) or "batch_sizes" not in _given(loaded, "smoke"):
        return
    too_many = [size for size in loaded.profile.smoke.batch_sizes if size > most]
    if too_many:
        yield loaded.error(
            "profile.combination",
            ("smoke", "batch_sizes"),
            f"smoke.batch_sizes has {', '.join(map(str, too_many))}, "
            f"but the server runs at most {most} requests at once",
            expected=f"at most {most} (server.max_running_requests)",
            found=literal(list(loaded.profile.smoke.batch_sizes)),
            remedy="leave those out, or raise max_running_requests",
        )


def _given(loaded: LoadedProfile, section: str) -> Mapping[str, Any]:
    table = loaded.document.get(section)
    return table if isinstance(table, dict) else {}
