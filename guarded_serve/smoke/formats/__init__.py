"""What a smoke test's result is written as: one module a form, each with ``render(result) -> str``."""
