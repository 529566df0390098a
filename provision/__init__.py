"""gpuprov: GPU machines from bare Linux to proven ready for production."""

__version__ = "0.1.0"
TYPE_CHECKING = False  # typing's own would cost `gpuprov --help` a sixth of its time
