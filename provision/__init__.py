"""gpuprov: GPU machines from bare Linux to proven ready for production."""

__version__ = "0.1.0"
TYPE_CHECKING = False  # importing typing would take a sixth of the time of `gpuprov --help`
