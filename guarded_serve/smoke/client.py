"""Timed generations from a running server, over HTTP, with the standard library alone.

Chat messages become token ids through the server's own chat template (`/v1/tokenize`, SGLang 0.5.16 and newer), and
all prompts go to `/generate`, whose answers carry SGLang's counts of verifications and right drafts.
"""

from __future__ import annotations

import http.client
import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from guarded_serve.smoke.facts import Sample
from guarded_serve.smoke.prompts import Prompt
from guarded_serve.supervisor import ready
from guarded_serve.supervisor.ready import Address

_LARGEST = 8 << 20  # bytes of an answer


class ServerError(Exception):
    """The server did not answer as a server that serves does."""


class PromptRefused(Exception):
    """The server does not take this prompt (too long for it, no chat template); another one it may take."""


@dataclass(frozen=True)
class Ready:
    """A prompt as it is sent: the field of `/generate` and its value."""

    prompt: Prompt
    field: str  # "text" or "input_ids"
    value: str | list[int]


def prepare(address: Address, prompt: Prompt, timeout_s: float) -> Ready:
    """Raises ServerError or PromptRefused."""
    if prompt.text is not None:
        return Ready(prompt, "text", prompt.text)
    body: dict[str, Any] = {"messages": list(prompt.messages)}
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    answer = _call(address, "/v1/tokenize", body, timeout_s)
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list) or not tokens:
        raise ServerError(f"/v1/tokenize answered {str(answer)[:200]}")
    return Ready(prompt, "input_ids", tokens)


def generate(address: Address, ready_prompt: Ready, new_tokens: int, timeout_s: float) -> Sample:
    """One greedy answer of at most ``new_tokens`` tokens, timed. Raises ServerError or PromptRefused.

    It ends where the target ends it: what a model says after its own end is not what it is used for.
    """
    sampling = {"temperature": 0, "max_new_tokens": new_tokens}
    request_id = f"guard-{uuid.uuid4().hex}"
    body = {ready_prompt.field: ready_prompt.value, "sampling_params": sampling, "stream": True, "rid": request_id}
    connection = ready.connection(address, timeout_s)
    first_s = last_s = 0.0
    first_tokens = 0
    final: dict[str, Any] = {}
    try:
        started = time.perf_counter()
        connection.request("POST", "/generate", json.dumps(body), _headers(address))
        response = connection.getresponse()
        if response.status != 200:
            _refuse("/generate", response.status, response.read(_LARGEST))
        for line in response:
            if not line.startswith(b"data:"):
                continue
            text = line[5:].strip()
            if text == b"[DONE]":
                break
            now = time.perf_counter() - started
            final = json.loads(text)
            if "error" in final:
                raise PromptRefused(str(final["error"])[:300])
            last_s = now
            if not first_tokens:
                first_s, first_tokens = now, int(final["meta_info"]["completion_tokens"])
        return _sample(ready_prompt.prompt, final, request_id, first_s, last_s, first_tokens)
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"/generate: {type(error).__name__}: {error}".rstrip(": ")) from None
    except (ValueError, KeyError, TypeError):
        raise ServerError("/generate answered something that SGLang's /generate does not") from None
    finally:
        connection.close()


def _sample(
    prompt: Prompt, final: dict[str, Any], request_id: str, first_s: float, last_s: float, first_tokens: int
) -> Sample:
    if not final:
        raise ServerError("/generate ended its stream without an answer")
    information = final["meta_info"]
    if information["id"] != request_id:
        raise ServerError("/generate answered another request than ours")
    tokens = int(information["completion_tokens"])
    return Sample(
        prompt=prompt.name,
        kind=prompt.kind,
        tokens=tokens,
        decode_tokens=tokens - first_tokens,
        decode_s=last_s - first_s,
        first_s=first_s,
        verifications=int(information.get("spec_verify_ct") or 0),
        correct_drafts=tuple(map(int, information.get("spec_correct_drafts_histogram") or ())),
        text=str(final.get("text") or ""),
    )


def _headers(address: Address) -> dict[str, str]:
    key = {"Authorization": f"Bearer {address.api_key}"} if address.api_key else {}
    return {"Content-Type": "application/json", **key}


def _call(address: Address, path: str, body: dict[str, Any], timeout_s: float) -> Any:
    connection = ready.connection(address, timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), _headers(address))
        response = connection.getresponse()
        content = response.read(_LARGEST)
        if response.status != 200:
            _refuse(path, response.status, content)
        return json.loads(content)
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"{path}: {type(error).__name__}: {error}".rstrip(": ")) from None
    except ValueError:
        raise ServerError(f"{path} answered no JSON") from None
    finally:
        connection.close()


def _refuse(path: str, status: int, content: bytes) -> None:
    said = content[:300].decode(errors="replace").strip()
    if 400 <= status < 500 and status not in (401, 403, 404, 408, 429):
        raise PromptRefused(f"{path}: HTTP {status}: {said}")
    raise ServerError(f"{path}: HTTP {status}: {said}")
