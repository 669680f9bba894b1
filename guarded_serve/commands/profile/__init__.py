"""``guarded-serve profile``: its actions are the modules beside this one."""

from __future__ import annotations

SUMMARY = "write a profile from flags (new), show what is in effect and why (show), print a JSON Schema (schema)"
ACTIONS = ("new", "show", "schema")
