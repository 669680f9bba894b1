"""Cycle records and what is made of them: schema, totals, reader, break-even, alarm, report.

Standard library only, but for pictures (matplotlib) in `timing.html`. `timing.record` and `timing.totals` are imported
by SGLang's processes too.
"""
