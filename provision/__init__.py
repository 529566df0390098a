"""gpuprov: GPU machines from bare Linux to proven ready for production."""

__version__ = "0.1.0"
