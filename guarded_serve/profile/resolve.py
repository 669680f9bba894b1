"""Profile, flags, `--config` file and SGLang's defaults come to one `Deployment`: flags > profile > YAML > defaults.

Every fault of all of them is reported at once. The server gets the profile's settings as flags, less those that a flag
of the user's overrides, and then the user's flags untouched; so SGLang itself applies the same precedence.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guarded_serve
from guarded_serve.exit_codes import ExitCode, most_telling
from guarded_serve.findings import Finding, Severity
from guarded_serve.profile.combinations import impossible_combinations, wrong_ignore, wrong_ignores
from guarded_serve.profile.deployment import Deployment, Setting
from guarded_serve.profile.flags import FlagError, FlagParser, Given, Mismatch, expected_value, render
from guarded_serve.profile.guard_options import GUARD_OPTIONS, GuardOptions
from guarded_serve.profile.load import LoadedProfile, load_profile
from guarded_serve.profile.model import Profile, sections
from guarded_serve.profile.secret_names import MASK, SECRET_SETTINGS
from guarded_serve.profile.sglang_parser import Action, ParserDump, ParserUnavailable, sglang_parser, snapshot
from guarded_serve.profile.wording import found, kind, literal, meant, nearest

LIST_FLAGS = "`guarded-serve launch --help` lists the flags"
CPU_KERNELS = Path(guarded_serve.__file__).resolve().parent / "cpu_kernels"


@dataclass(frozen=True)
class Resolution:
    """A deployment and everything that is wrong with it.

    With errors the deployment holds what is valid, for commands that judge other parts; it must not be launched.
    """

    deployment: Deployment
    findings: tuple[Finding, ...]

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """OK when it may be launched; ``strict`` counts warnings as errors."""
        counted = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
        return most_telling(finding.exit_code for finding in self.findings if finding.severity in counted)


def resolve_options(
    options: argparse.Namespace, sglang_flags: Sequence[str], *, known_checks: Collection[str] | None = None
) -> Resolution:
    """`resolve` for a subcommand: ``options`` comes from a parser with `add_guard_options`."""
    guard = GuardOptions.from_namespace(options)
    own = getattr(options, "own_flags", ())
    return resolve(guard.profile, sglang_flags, guard, known_checks=known_checks, own_flags=own)


def resolve(
    profile_path: Path | None,
    sglang_flags: Sequence[str],
    guard: GuardOptions | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    known_checks: Collection[str] | None = None,
    own_flags: Collection[str] = (),
) -> Resolution:
    """The effective deployment. Reads the profile, a `--config` file and the cached parser; touches nothing else.

    ``environ`` is the launcher's own environment (by default `os.environ`); ``known_checks`` are the names that
    `ignore` may hold, not judged if None; ``own_flags`` may have been meant by a flag that SGLang does not know.
    """
    return _Resolver(
        profile_path,
        tuple(sglang_flags),
        guard or GuardOptions(),
        os.environ if environ is None else environ,
        tuple(own_flags),
    ).run(known_checks)


class _Resolver:
    def __init__(
        self,
        profile_path: Path | None,
        flags: tuple[str, ...],
        guard: GuardOptions,
        environ: Mapping[str, str],
        own_flags: tuple[str, ...],
    ) -> None:
        self.flags = flags
        self.own_flags = ("--profile", *own_flags)
        self.guard = guard
        self.environ = environ
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.dump = self._dump()
        self.parser = FlagParser(self.dump)
        self.loaded = load_profile(profile_path) if profile_path is not None else LoadedProfile()
        self.findings.extend(self.loaded.findings)

    def run(self, known_checks: Collection[str] | None) -> Resolution:
        given = self._given_flags()
        tokens, own = self._profile_settings(given)
        config = self._config_settings([*tokens, *self.flags], own)
        server = {**config, **own, **{name: _by_flag(entry) for name, entry in given.items() if name != "config"}}
        self._require_model(server)
        profile, origins = self._guard_settings()
        loaded = LoadedProfile(**{**vars(self.loaded), "profile": profile})
        deployment = Deployment(
            profile=profile,
            profile_path=self.loaded.path,
            server=server,
            defaults=self.dump.defaults,
            arguments=(*tokens, *self.flags),
            environment=self._environment(profile, origins),
            sglang_version=self.dump.version if self.dump.installed else None,
            notes=tuple(self.notes),
            origins=origins,
        )
        self.findings.extend(impossible_combinations(loaded, deployment.get, deployment.is_set))
        if known_checks is not None:
            self.findings.extend(wrong_ignores(self.loaded, known_checks))
            self.findings.extend(self._wrong_flag_ignores(known_checks))
        return Resolution(deployment, tuple(sorted(self.findings, key=self._place)))

    def _place(self, finding: Finding) -> int:
        """Order of findings: what concerns no line of the profile first, then line by line."""
        file, _, line = (finding.where or "").rpartition(":")
        return int(line) if file and file == self.loaded.shown and line.isdigit() else 0

    def _dump(self) -> ParserDump:
        try:
            return sglang_parser()
        except ParserUnavailable as error:
            self.findings.append(error.finding)
            return snapshot()

    def _usage(self, check: str, message: str, **evidence: Any) -> None:
        severity = evidence.pop("severity", Severity.ERROR)
        code = evidence.pop("exit_code", ExitCode.USAGE)
        self.findings.append(Finding(check, severity, message, exit_code=code, **evidence))

    # The command line

    def _given_flags(self) -> Mapping[str, Given]:
        try:
            parsed = self.parser.parse(self.flags)
        except FlagError as error:
            if self.flags[-1:] == ("--config",):
                return {}  # SGLang looks for the config file before it parses, and says so
            self._usage("profile.flags", str(error), where="command line", **self._evidence(error, self.own_flags))
            return {}
        # Words before the first flag that the snapshot does not know are no values of such a flag.
        stray = list(itertools.takewhile(lambda word: not word.startswith("-"), parsed.unknown))
        if stray:
            nobody_s = FlagError(f"unrecognized arguments: {' '.join(stray)}", unknown=stray)
            evidence = self._evidence(nobody_s, self.own_flags)
            self._usage("profile.flags", str(nobody_s), where="command line", **evidence)
        if newer := parsed.unknown[len(stray) :]:
            self._usage(
                "profile.flags",
                f"not known to SGLang {self.dump.version}, whose flags are judged by as none is installed here: "
                f"{' '.join(newer)}",
                severity=Severity.WARNING,
                where="command line",
                **self._evidence(FlagError("", unknown=newer), self.own_flags),
            )
        config = parsed.given.get("config")
        if config is not None and "--config" not in self.flags:
            self._usage(
                "profile.config",
                f"SGLang reads a config file only after `--config` in full and a space; {config.value} is ignored",
                severity=Severity.WARNING,
                where="command line",
                remedy=f"write --config {config.value}",
            )
        return parsed.given

    def _evidence(self, error: FlagError, own_flags: tuple[str, ...] = ()) -> dict[str, str | None]:
        """What a flag takes, what it got and the mend. ``own_flags`` are the guard's that may stand there too."""
        action = error.action
        if action is not None:
            wanted = expected_value(action)
            given = (error.found or "").strip("'\"")
            near = nearest(given, map(str, action.choices)) if action.choices else None
            remedy = f"did you mean {near}?" if near else f"give {action.flag} {wanted}, or leave it out"
            return {"expected": wanted, "found": error.found, "remedy": remedy}
        if not error.unknown:
            return {"remedy": LIST_FLAGS}
        flags = (*(option for action in self.dump.actions for option in action.options), *own_flags)
        whose = "SGLang or of guarded-serve" if own_flags else "SGLang"
        return {
            "expected": f"flags of {whose}, each followed by its values",
            "found": " ".join(error.unknown),
            "remedy": meant(error.unknown, flags) or LIST_FLAGS,
        }

    # The profile's [server]

    def _profile_settings(self, given: Mapping[str, Given]) -> tuple[list[str], dict[str, Setting]]:
        """The tokens for the server, and the settings by SGLang's name."""
        tokens: list[str] = []
        settings: dict[str, Setting] = {}
        first: dict[str, str] = {}
        for key, value in self.loaded.profile.server.items():
            origin = self.loaded.where("server", key)
            action = self.dump.by_key.get(key)
            if action is None:
                self._unknown_key(key)
                if not self.dump.installed:
                    tokens.extend(_unchecked(key, value))
                    settings[key] = Setting(value, origin)
                continue
            if action.name in first:
                self._twice(key, first[action.name])
                continue
            first[action.name] = key
            rendered = self._rendered(key, action, value)
            if rendered is not None and action.name not in given:
                tokens.extend(rendered[0])
                if action.name != "config":
                    settings[action.name] = Setting(rendered[1], origin)
        return tokens, settings

    def _rendered(self, key: str, action: Action, value: Any) -> tuple[list[str], Any] | None:
        """The tokens of a setting and the value that SGLang will read; None, with a finding, if it cannot."""
        try:
            tokens = render(action, value)
        except Mismatch as mismatch:
            self._server_error("profile.type", key, value, mismatch.expected, mismatch.remedy)
            return None
        if not tokens:  # a switch left off
            return tokens, value
        try:
            return tokens, self.parser.parse_setting(action, tokens)
        except FlagError as error:
            near = nearest(str(value), map(str, action.choices)) if action.choices else None
            remedy = f"did you mean {literal(near)}?" if near else None
            reason = None if action.choices else str(error)
            self._server_error("profile.value", key, value, expected_value(action), remedy, reason)
            return None

    def _server_error(
        self, check: str, key: str, value: Any, expected: str, remedy: str | None, reason: str | None = None
    ) -> None:
        secret = self._name_of(key) in SECRET_SETTINGS
        shown = MASK if secret else literal(value)
        self.findings.append(
            self.loaded.error(
                check,
                ("server", key),
                f"server.{key} is {shown}; it must be {expected}" + (f" ({reason})" if reason else ""),
                expected=expected,
                found=kind(value) if secret else found(value),
                remedy="write it in quotes"
                if secret and not isinstance(value, (str, list, dict))
                else remedy or self._mend(key),
            )
        )

    def _mend(self, key: str) -> str:
        """What to do about a value that only its owner can put right."""
        name = self._name_of(key)
        if name == "model_path":
            return "give the model's folder or hub id"
        default = self.dump.defaults.get(name or key)
        return f"correct it, or leave {key} out: " + (
            "SGLang then chooses" if default is None else f"SGLang's default is {literal(default)}"
        )

    def _unknown_key(self, key: str) -> None:
        near = nearest(key, self.dump.by_key)
        homes = [name for name, section in sections().items() if key in section.model_fields]
        if near:
            remedy = f"did you mean {near}?"
        else:
            remedy = f"it belongs in [{homes[0]}]" if homes else f"leave {key} out, or use an SGLang that has it"
        sglang = f"SGLang {self.dump.version}"
        self.findings.append(
            self.loaded.error(
                "profile.unknown_key",
                ("server", key),
                f"{sglang} has no flag --{key.replace('_', '-')}"
                + ("" if self.dump.installed else " (SGLang is not installed here: judged by a snapshot)"),
                expected=f"a flag of {sglang} in snake_case",
                found=key,
                remedy=remedy,
                severity=Severity.ERROR if self.dump.installed else Severity.WARNING,
            )
        )

    def _twice(self, key: str, first: str) -> None:
        self.findings.append(
            self.loaded.error(
                "profile.combination",
                ("server", key),
                f"server.{key} and server.{first} (line {self.loaded.lines.of('server', first)}) are the same setting",
                expected="one of the two",
                found="both",
                remedy=f"leave {key} out",
            )
        )

    # SGLang's --config file

    def _config_settings(self, argv: Sequence[str], own: Mapping[str, Setting]) -> dict[str, Setting]:
        if "--config" not in argv:
            return {}
        from guarded_serve.profile.yaml_config import (  # noqa: PLC0415 - YAML only where it is asked for
            ConfigError,
            config_path,
            read_config,
        )

        by_profile = "--config" not in self.flags
        code = ExitCode.PROFILE if by_profile else ExitCode.USAGE
        path: str | None = None
        settings: dict[str, Setting] = {}
        if self.flags.count("--config") and any(finding.check == "profile.flags" for finding in self.findings):
            return {}  # the command line as a whole is refused already
        try:
            path = config_path(argv)
            for entry in read_config(path, self.dump) if path else ():
                settings.update(self._config_entry(str(path), entry.key, entry.line, entry.tokens, code))
        except ConfigError as error:
            where = f"{path}:{error.line}" if error.line else path or "command line"
            self._usage(
                "profile.config",
                str(error),
                expected="one YAML file with SGLang's flags as keys",
                found=error.found,
                where=where,
                remedy="name one file with --config, or correct this one",
                exit_code=error.code or code,
            )
        for name, setting in settings.items():
            if setting.value is True and name in own and own[name].value is False:
                key = next(key for key in self.loaded.profile.server if self._name_of(key) == name)
                if not self.dump.by_name[name].has_opposite:
                    self.findings.append(
                        self.loaded.error(
                            "profile.combination",
                            ("server", key),
                            f"server.{key} is false, but {setting.origin} turns it on, "
                            "and SGLang has no flag to turn it off",
                            expected=f"no {name} in {path}",
                            found=f"true in {setting.origin}",
                            remedy=f"take the key out of {path}",
                        )
                    )
        return settings

    def _name_of(self, key: str) -> str | None:
        action = self.dump.by_key.get(key)
        return action.name if action else None

    def _config_entry(
        self, path: str, key: str, line: int, tokens: Sequence[str], code: ExitCode
    ) -> Iterator[tuple[str, Setting]]:
        try:
            parsed = self.parser.parse(tokens)
        except FlagError as error:
            self._usage("profile.config", str(error), where=f"{path}:{line}", exit_code=code, **self._evidence(error))
            return
        for name, entry in parsed.given.items():
            yield name, Setting(entry.value, f"{path}:{line} (--config)")

    def _require_model(self, server: Mapping[str, Setting]) -> None:
        broken = any(finding.check in ("profile.syntax", "profile.file") for finding in self.findings)
        flags_broken = any(finding.check == "profile.flags" for finding in self.findings)
        wrong = any(self._name_of(key) == "model_path" for key in self.loaded.profile.server) or not isinstance(
            self.loaded.document.get("server", {}), dict
        )
        if "model_path" in server or broken or flags_broken or wrong:
            return
        by_profile = self.loaded.path is not None
        self.findings.append(
            Finding(
                "target.model_path",
                Severity.ERROR,
                "no model is given",
                expected="model_path in [server] or --model-path",
                found="neither",
                where=self.loaded.where("server") if by_profile else "command line",
                remedy='write model_path = "..." in [server]' if by_profile else "add --model-path PATH_OR_HUB_ID",
                exit_code=ExitCode.PROFILE if by_profile else ExitCode.USAGE,
            )
        )

    # The guard's own

    def _guard_settings(self) -> tuple[Profile, dict[str, str]]:
        """The profile with the launcher's own flags applied, and where each set key comes from."""
        profile, guard = self.loaded.profile, self.guard
        origins = {
            f"{section}.{key}": self.loaded.where(section, key)
            for section in sections()
            for key in getattr(profile, section).model_fields_set
        }
        flags = {option.key: f"{option.flag} on the command line" for option in GUARD_OPTIONS if option.key}
        updates: dict[str, Any] = {}
        if guard.cycles is not None:
            updates["timing"] = profile.timing.model_copy(update={"directory": guard.cycles})
            origins["timing.directory"] = flags["timing.directory"]
        if guard.ignore:
            ignore = tuple(dict.fromkeys((*profile.preflight.ignore, *guard.ignore)))
            updates["preflight"] = profile.preflight.model_copy(update={"ignore": ignore})
            before = origins.get("preflight.ignore")
            origins["preflight.ignore"] = " and ".join(filter(None, (before, flags["preflight.ignore"])))
        if guard.cpu_kernels:
            updates["engine"] = profile.engine.model_copy(update={"cpu_kernels": True})
            origins["engine.cpu_kernels"] = flags["engine.cpu_kernels"]
        return profile.model_copy(update=updates), origins

    def _environment(self, profile: Profile, origins: Mapping[str, str]) -> dict[str, Setting]:
        settings = {name: Setting(value, self.loaded.where("env", name)) for name, value in profile.env.items()}
        if not profile.engine.cpu_kernels:
            return settings
        origin = f"the guard, for engine.cpu_kernels ({origins['engine.cpu_kernels']})"

        def unset(name: str) -> bool:
            return name not in settings and name not in self.environ

        before = settings["PYTHONPATH"].value if "PYTHONPATH" in settings else self.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(filter(None, (str(CPU_KERNELS), before)))
        settings["PYTHONPATH"] = Setting(path, origin)
        self.notes.append(f"PYTHONPATH begins with {CPU_KERNELS}: SGLang's CPU operators in plain PyTorch ({origin})")
        for name, why in (
            ("SGLANG_USE_CPU_ENGINE", "SGLang takes its CPU engine"),
            ("TORCH_COMPILE_DISABLE", "the first request would compile for a long time"),
        ):
            if unset(name):
                settings[name] = Setting("1", origin)
                self.notes.append(f"{name}=1: {why} ({origin})")
        return settings

    def _wrong_flag_ignores(self, known: Collection[str]) -> Iterator[Finding]:
        for name in self.guard.ignore:
            if wrong := wrong_ignore(name, known):
                yield Finding(
                    "profile.flags",
                    Severity.ERROR,
                    f"--guard-ignore {name}: {wrong.reason}",
                    expected=wrong.expected,
                    found=name,
                    where="command line",
                    remedy=wrong.remedy,
                    exit_code=ExitCode.USAGE,
                )


def _by_flag(entry: Given) -> Setting:
    return Setting(entry.value, f"{entry.option} on the command line")


def _unchecked(key: str, value: Any) -> list[str]:
    """A setting that the snapshot does not know, rendered by its TOML type alone."""
    flag = f"--{key.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, literal(value) if isinstance(value, dict) else str(value)]
