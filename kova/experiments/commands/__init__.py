"""The commands of ``kova``, one module each."""
