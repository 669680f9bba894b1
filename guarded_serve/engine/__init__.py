"""What runs inside SGLang's processes: the plugin's entry point, the load gate, the cycle clock and its writer.

Imported by SGLang alone. Small, with no dependency but SGLang, torch and this package's `engine_link` and `timing`
schema. Nothing here may raise into SGLang, block it, or synchronise a device.
"""
