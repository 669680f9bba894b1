"""What is on disk: config.json, safetensors headers, tokenizers. Standard library only: no torch, no numpy.

Nothing in here raises for what a file holds: what is wrong with a file is a `Problem` beside whatever could be read.
"""
