"""The command line of nvidia-smi, and its errors for invalid ones."""

BAD_ARGUMENT = 2
INVALID = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"
NO_FORMAT = "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n\n"
# Actions of options without a value.
ACTIONS = {
    "-q": "full", "--query": "full", "-L": "list", "--list-gpus": "list", "-r": "reset",
    "--gpu-reset": "reset", "-h": "help", "--help": "help", "--version": "version",
    "-rgc": "-rgc", "--reset-gpu-clocks": "-rgc", "-rac": "-rac", "--reset-applications-clocks": "-rac",
}  # fmt: skip
# Options that set a value; nvidia_smi_settings implements them.
SETTERS = {
    "-pl": "-pl", "--power-limit": "-pl", "-lgc": "-lgc", "--lock-gpu-clocks": "-lgc", "-ac": "-ac",
    "--applications-clocks": "-ac", "-c": "-c", "--compute-mode": "-c", "-e": "-e", "--ecc-config": "-e",
    "-mig": "-mig", "--multi-instance-gpu": "-mig",
}  # fmt: skip
# Options with a value, and the key that receives it.
VALUES = {
    "-i": "gpus", "--id": "gpus", "-d": "sections", "--display": "sections", "-l": "loop", "--loop": "loop",
    "-lms": "loop", "-pm": "mode", "--persistence-mode": "mode", "--format": "format", "-f": "",
    "--filename": "",
}  # fmt: skip
IGNORED = ("-u", "--unit", "--dtd")
ON_OFF = {"0": "0", "1": "1", "DISABLED": "0", "ENABLED": "1"}


class SmiError(Exception):
    """Ends the program with this text on stdout and this exit status."""

    def __init__(self, text: str, status: int) -> None:
        Exception.__init__(self, text)
        self.text, self.status = text, status


def read(arguments: list, queries) -> dict:
    """Parse the command line. Raises SmiError for anything that the real program rejects."""
    options = {
        "action": "plain",
        "gpus": None,
        "format": "",
        "fields": "",
        "sections": "",
        "loop": 0,
        "mode": "",
    }
    words = list(arguments)
    if words[:1] in (["topo"], ["nvlink"], ["mig"], ["dmon"]):
        options.update(action=words[0], words=words[1:])
        return options
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in queries:
            options.update(action=name, fields=value if equals else _value(words))
        elif name in VALUES:
            _keep(options, name, value if equals else _value(words))
        elif name in SETTERS:
            options.update(action=SETTERS[name], mode=value if equals else _value(words))
        elif word in ACTIONS:
            options["action"] = ACTIONS[word]
        elif word in ("-x", "--xml-format"):
            options["mode"] = "xml"
        elif word not in IGNORED:
            raise SmiError(INVALID, BAD_ARGUMENT)
    if options["action"] in queries and "csv" not in options["format"].split(","):
        raise SmiError(NO_FORMAT, BAD_ARGUMENT)
    return options


def _value(words: list) -> str:
    if not words:
        raise SmiError(INVALID, BAD_ARGUMENT)
    return words.pop(0)


def _keep(options: dict, name: str, value: str) -> None:
    key = VALUES[name]
    if key == "loop":
        try:
            options["loop"] = float(value) / (1000 if name == "-lms" else 1)
        except ValueError:
            raise SmiError(INVALID, BAD_ARGUMENT) from None
    elif key == "mode":
        if value.upper() not in ON_OFF:
            raise SmiError(INVALID, BAD_ARGUMENT)
        options.update(action="persistence", mode=ON_OFF[value.upper()])
    elif key == "sections":
        options["sections"] = value.upper()
    elif key:
        options[key] = value
