"""Output formats of a report: one file each, each with ``render(report, *, ...) -> str``."""

FORMATS = ("text", "json", "junit", "github")
