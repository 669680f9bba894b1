"""The folder that goes on PYTHONPATH for the CPU engine; see its README. Nothing here is imported as guarded_serve."""
