"""What nvbandwidth prints: text or JSON, each with the same methods."""

import platform
import sys

import cuda
import jsoncpp

NOTE = """\
NOTE: The reported results may not reflect the full capabilities of the platform.
Performance can vary with software drivers, hardware clocks, and system topology.

"""


class Text:
    """Plain text, printed as it comes."""

    def __init__(self, options, version: str, known: dict) -> None:
        self.known = known
        self.verbose, self.version, self.buffer = options.verbose, version, options.buffer
        print(f"nvbandwidth Version: {version}\nBuilt from Git version: {version}\n")

    def cases(self) -> None:
        """`-l`."""
        print("Index, Name:\n\tDescription\n=======================")
        for i, name in enumerate(self.known):
            print(f"{i}, {name}:\n\t{self.known[name][2] or 'copies between GPUs, both ways at once'}\n")

    def error(self, text: str) -> None:
        """What went wrong before any case."""
        sys.stdout.flush()
        print(text, file=sys.stderr)

    def devices(self, node, gpus: list) -> None:
        """The head: versions and GPUs."""
        if self.buffer < 512:
            print(
                "NOTE: You have chosen a buffer size that is smaller than the default buffer size. It is "
                "suggested to use "
                "the default buffer size (64MB) to achieve maximal peak bandwidth."
            )
        runtime = cuda.runtime_version(node)
        print(
            f"CUDA Runtime Version: {runtime}\nCUDA Driver Version: {runtime}\nDriver Version: "
            f"{node.driver()[0]}\n"
        )
        if self.version >= "v0.8":
            print(platform.node())
        for i, gpu in enumerate(gpus):
            print(f"Device {i}: {_device(node, gpu)}")
        print()

    def status(self, name: str, status: str, text: str) -> None:
        """A case that did not run."""
        del name
        print(f"{status}: {text}")

    def begin(self, name: str) -> None:
        """A case starts."""
        print(f"Running {name}.")

    def matrix(self, name: str, description: str, rows: list) -> None:
        """One matrix with its sum."""
        print(description)
        print("  " + "".join(f"{i:>10}" for i in range(len(rows[0]))))
        for i, row in enumerate(rows):
            print(
                f"{i:>2}"
                + "".join(f"{value:10.2f}" if value is not None else f"{'N/A':>10}" for value in row)
            )
        values = [value or 0.0 for row in rows for value in row]
        print(f"\nSUM {name} {sum(values):.2f}")
        if self.verbose:
            average = sum(values) / max(1, sum(1 for value in values if value > 0))
            print(f"MIN {name} {min(values):.2f}\nMAX {name} {max(values):.2f}\nAVG {name} {average:.2f}")
        print()

    def end(self) -> None:
        """The last words."""
        print(NOTE, end="")


class Json:
    """One JSON document, printed at the end."""

    def __init__(self, options, version: str, known: dict) -> None:
        self.known = known
        self.verbose, self.buffer = options.verbose, options.buffer
        self.root = {"version": version, "git_version": version}

    def cases(self) -> None:
        """`-l`: prints nothing in this form."""

    def error(self, text: str) -> None:
        """What went wrong before any case; printed at once."""
        self.root["error"] = text
        self.end()

    def devices(self, node, gpus: list) -> None:
        """The head: versions and GPUs."""
        self.root["CUDA Runtime Version"] = cuda.runtime_version(node)
        self.root["Driver Version"] = node.driver()[0]
        self.root["GPU Device list"] = [
            f"{i}: {_device(node, gpu)}: ({platform.node()})" for i, gpu in enumerate(gpus)
        ]

    def status(self, name: str, status: str, text: str) -> None:
        """A case that did not run."""
        del text
        self.root.setdefault("testcases", []).append({"name": name, "status": status})

    def begin(self, name: str) -> None:
        """A case starts."""
        self.status(name, "Running", "")

    def matrix(self, name: str, description: str, rows: list) -> None:
        """One matrix; a further one of the same case is appended to it, as the real program does."""
        del name
        case = self.root["testcases"][-1]
        values = [value or 0.0 for row in rows for value in row]
        texts = [["N/A" if value is None else f"{value:g}" for value in row] for row in rows]
        case.update(status="Passed", bandwidth_description=description, sum=float(sum(values)))
        case.setdefault("bandwidth_matrix", []).extend(texts)
        if self.verbose:
            average = sum(values) / max(1, sum(1 for value in values if value > 0))
            case.update(min=float(min(values)), max=float(max(values)), average=average)

    def end(self) -> None:
        """The whole document."""
        print(jsoncpp.styled({"nvbandwidth": self.root}))


def _device(node, gpu) -> str:
    return f"{node.sku['name']} (00000000:{gpu['bus'].lower()}:00)"
