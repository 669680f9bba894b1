"""Which settings and environment variables hold secrets, by name: their values are shown nowhere."""

from __future__ import annotations

import re

MASK = "***"
SECRET_SETTINGS = ("api_key", "admin_api_key", "ssl_keyfile_password")
_SECRET_NAME = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None
