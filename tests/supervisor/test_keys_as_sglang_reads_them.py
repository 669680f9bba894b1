"""API keys as the launcher hands them over, read by the installed SGLang's own parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from guarded_serve.profile.deployment import Deployment
from guarded_serve.profile.model import Profile
from guarded_serve.profile.resolve import resolve
from guarded_serve.profile.sglang_parser import installed_version
from guarded_serve.supervisor.secrets import KEY_FILE_VARIABLE, out_of_sight, with_api_key
from tests.support.real_parser import real_answers

pytestmark = pytest.mark.skipif(installed_version() is None, reason="SGLang is not installed")

KEYS = ("plain", "with space", 'a"b:c', "123", "1e3", "true", "null", "-x", "--port", "-5", "=", "ü", "a: b", "{}", "#")


def test_every_key_arrives_as_it_is(tmp_path: Path) -> None:
    deployments: list[tuple[str, Deployment]] = []
    empty = Deployment(profile=Profile(), profile_path=None, server={}, defaults={}, arguments=("--model-path", "m"))
    for number, key in enumerate(KEYS):
        file = tmp_path / f"key{number}"
        file.write_text(key)
        deployments.append((key, with_api_key(empty, {KEY_FILE_VARIABLE: str(file)})))
        typed = resolve(None, ["--model-path", "m", f"--api-k={key}"]).deployment  # abbreviated
        deployments.append((key, typed))
    command_lines = []
    for number, (_, deployment) in enumerate(deployments):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        command_lines.append(out_of_sight(deployment, folder))
    answers = real_answers(command_lines, tmp_path)
    read = [answer.get("values", {}).get("api_key", answer.get("error")) for answer in answers]
    assert read == [key for key, _ in deployments]
    shown = [key for (key, _), words in zip(deployments, command_lines, strict=True) if key in " ".join(words[-1:])]
    assert {key for key in shown if len(key) > 1} == {"-x", "--port", "-5"}
