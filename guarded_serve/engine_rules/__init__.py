"""What a given SGLang does with a checkpoint and flags, told by its version alone: SGLang is never imported.

Every rule names the SGLang file that it was read from, and `tests/engine_rules` holds the rules against the SGLang that
is installed.
"""
