"""The pure decision core: values in, values out; no clock, no I/O, no logger."""
