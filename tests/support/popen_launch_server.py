"""`popen_launch_server` of `sglang.test.test_utils`, over the guarded launcher: the same call, a guarded server."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import httpx

POLL_S = 1.0
ASK_S = 5.0


def popen_launch_server(
    model: str,
    base_url: str,
    timeout: float,
    api_key: str | None = None,
    other_args: list[str] | None = None,
    env: dict[str, str] | None = None,
    return_stdout_stderr: tuple | None = None,
    device: str = "auto",
    pd_separated: bool = False,
    num_replicas: int | None = None,
) -> subprocess.Popen:
    """Start the launcher and wait until `/health_generate` answers 200.

    ``device`` "auto" leaves the choice to SGLang. Raises TimeoutError, RuntimeError when the launcher ends before, and
    ValueError for ``pd_separated`` and ``num_replicas``, which are another launcher's.
    """
    if pd_separated or num_replicas is not None:
        raise ValueError("pd_separated and num_replicas start sglang.launch_pd_server, which is not guarded")
    _, host, port = base_url.split(":")
    command = [sys.executable, "-m", "guarded_serve.launch_server", "--model-path", model]
    command += [*map(str, other_args or []), *([] if device == "auto" else ["--device", device])]
    command += ["--host", host[2:], "--port", port, *(["--api-key", api_key] if api_key else [])]
    out, err = return_stdout_stderr or (None, None)
    process = subprocess.Popen(command, env={**os.environ, **(env or {})}, stdout=out, stderr=err)
    try:
        _wait(process, base_url, api_key, timeout)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return process


def _wait(process: subprocess.Popen, base_url: str, api_key: str | None, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the launcher ended with {process.returncode}")
        try:
            if httpx.get(f"{base_url}/health_generate", headers=headers, timeout=ASK_S).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(POLL_S)
    raise TimeoutError(f"no generation from {base_url} within {timeout:g} s")
