"""Real generations through the public port: the only proof that the server serves.

`/generate` gets a request id of ours, and the answer must carry it and at least one token: an answer from a stranger
on the port, or from a cache in between, is none. The standard library's HTTP client costs 8 MB where httpx costs 20.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import uuid
from dataclasses import dataclass
from typing import Any

from guarded_serve.profile.deployment import Deployment

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
_PROMPT_IDS = [10, 11, 12]  # what SGLang's own warm-up sends where there is no tokenizer
_LARGEST_ANSWER = 1 << 20
_STATUS_S = 5.0  # for an answer that takes no generation


@dataclass(frozen=True)
class Address:
    """Where the server listens, as a client on this machine reaches it."""

    host: str
    port: int
    tls: bool = False
    api_key: str | None = None
    embedding: bool = False  # the model answers /encode, not /generate
    token_ids: bool = False  # the server has no tokenizer
    answers: bool = True  # it takes generations over HTTP by itself

    @classmethod
    def of(cls, deployment: Deployment) -> Address:
        """From SGLang's host, port, api_key, ssl_certfile, is_embedding and skip_tokenizer_init."""
        host = str(deployment.get("host", "127.0.0.1"))
        return cls(
            host=_ANYWHERE.get(host, host),
            port=int(deployment.get("port", 30000)),
            tls=bool(deployment.get("ssl_certfile")),
            api_key=deployment.get("api_key") or None,
            embedding=bool(deployment.get("is_embedding")),
            token_ids=bool(deployment.get("skip_tokenizer_init")),
            answers=_answers(deployment),
        )

    @property
    def url(self) -> str:
        """Such as ``http://127.0.0.1:30000``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def _answers(deployment: Deployment) -> bool:
    """Not a gRPC server, an encoder, half of a disaggregated pair, or a node beside the first."""
    other = ("grpc_mode", "smg_grpc_mode", "encoder_only")
    return (
        not any(deployment.get(name) for name in other)
        and deployment.get("disaggregation_mode", "null") in (None, "null")
        and int(deployment.get("node_rank") or 0) == 0
    )


@dataclass(frozen=True)
class Answer:
    """What became of one probe."""

    ok: bool
    detail: str  # what came back, for a person
    refused: bool = False  # nobody listens


def generate(address: Address, timeout_s: float, tokens: int = 2) -> Answer:
    """One real generation; never raises for what a server can do. ``timeout_s`` counts each wait on the socket."""
    request_id = f"guard-{uuid.uuid4().hex}"
    link = connection(address, timeout_s)
    headers = {"Content-Type": "application/json"}
    if address.api_key:
        headers["Authorization"] = f"Bearer {address.api_key}"
    prompt: dict[str, Any] = (
        {"input_ids": _PROMPT_IDS} if address.token_ids else {"text": "The capital city of France is"}
    )
    body: dict[str, Any] = {**prompt, "rid": request_id}
    if not address.embedding:
        body["sampling_params"] = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    try:
        link.request("POST", "/encode" if address.embedding else "/generate", json.dumps(body), headers)
        response = link.getresponse()
        content = response.read(_LARGEST_ANSWER)
        return _judge(response.status, content, request_id, address.embedding)
    except ConnectionRefusedError:
        return Answer(False, "nobody listens on the port", refused=True)
    except (OSError, http.client.HTTPException) as error:
        return Answer(False, f"{type(error).__name__}: {error}".rstrip(": "))
    finally:
        link.close()


def paused(address: Address) -> bool:
    """Whether the server says that somebody paused it (``/pause_generation``): generations wait until it goes on.

    Then its ``/ready`` is 503 and its ``/ping`` 200. The schedulers do not know of a pause of mode ``abort``, the
    default. An SGLang without ``/ready`` (0.5.17) cannot say it.
    """
    return _status(address, "/ready") == 503 and _status(address, "/ping") == 200


def _status(address: Address, path: str) -> int | None:
    link = connection(address, _STATUS_S)
    headers = {"Authorization": f"Bearer {address.api_key}"} if address.api_key else {}
    try:
        link.request("GET", path, headers=headers)
        return link.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        link.close()


def listens(address: Address) -> bool:
    """Whether somebody accepts connections there. For a port on this machine: answers at once."""
    try:
        with socket.create_connection((address.host, address.port), timeout=0.5):
            return True
    except OSError:
        return False


def connection(address: Address, timeout_s: float) -> http.client.HTTPConnection:
    """A client's connection to the server, not yet opened. ``timeout_s`` counts each wait on the socket."""
    if not address.tls:
        return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    context = ssl.create_default_context()
    context.check_hostname = False  # our own server, on this machine, with a certificate for its public name
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=context)


def _judge(status: int, content: bytes, request_id: str, embedding: bool) -> Answer:
    if status != 200:
        return Answer(False, f"HTTP {status}: {content[:200].decode(errors='replace').strip()}")
    try:
        answer = json.loads(content)
        answer = answer[0] if isinstance(answer, list) else answer
        information = answer["meta_info"]
        tokens = int(information.get("completion_tokens") or 0)
        own = information["id"] == request_id
    except (ValueError, KeyError, TypeError, IndexError):
        return Answer(False, "HTTP 200, but not what SGLang's /generate answers")
    if not own:
        return Answer(False, "HTTP 200, but the answer to another request")
    if embedding:
        return Answer(bool(answer.get("embedding")), "an embedding")
    return Answer(tokens > 0, f"{tokens} tokens")
