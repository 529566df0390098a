"""Builds a libnvidia-ml.so.1 that answers from a table of values.

nvml_library.c reads the table; this module generates a function for each one in NVIDIA's header nvml.h."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuprov_lab.command import call, waiting_lock

NAME = "libnvidia-ml.so.1"
RUNTIME = Path(__file__).with_name("nvml_library.c")
_OWN = {"nvmlErrorString", "nvmlDeviceGetFieldValues"}  # written by hand
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_FUNCTION = re.compile(r"nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(([^)]*)\)\s*;")
_STRUCT = re.compile(r"typedef\s+struct(?:\s+\w+)?\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*([\w\s,]+);")
_ALIAS = re.compile(r"typedef\s+(nvml\w+_t)\s+(nvml\w+_t)\s*;")
_FIELD = re.compile(r"^\s*((?:unsigned |signed |long |const )*\w+)\s+(\w+)((?:\[[^\]]*\])*)\s*$")
_PARAMETER = re.compile(r"^\s*(.*?)(\w+)\s*((?:\[[^\]]*\])?)\s*$", re.S)
_HANDLES = {"nvmlDevice_t"}


@dataclass(frozen=True)
class Function:
    """One function of the header: its name and parameters as (type, name)."""

    name: str
    parameters: tuple[tuple[str, str], ...]


def read_header(text: str) -> tuple[list[Function], dict[str, list[tuple[str, str, str]]]]:
    """Parse the functions of nvml.h, and its structs as their fields (type, name, dimensions).

    A struct with a nested definition gets no fields, since none of those is needed here."""
    text = _COMMENT.sub("", text)
    functions = []
    for name, parameters in _FUNCTION.findall(text):
        split = []
        for parameter in parameters.split(","):
            found = _PARAMETER.match(parameter)
            if found and found[2] != "void":
                split.append((" ".join(found[1].replace("*", " * ").split()), found[2]))
        functions.append(Function(name, tuple(split)))
    structs = {}
    for body, names in _STRUCT.findall(text):
        fields = [_FIELD.match(line) for line in body.split(";") if line.strip()] if "{" not in body else []
        for name in names.split(","):
            structs[name.strip()] = [(found[1].strip(), found[2], found[3]) for found in fields if found]
    for known, name in _ALIAS.findall(text):
        if known in structs:
            structs[name] = structs[known]
    return functions, structs


class _Source:
    """The C source: a description for each struct, and the functions."""

    def __init__(self, structs: dict[str, list[tuple[str, str, str]]]) -> None:
        self.structs = structs
        self.described: dict[str, str] = {}
        self.lines: list[str] = []

    def type_of(self, name: str, *, array: bool = False) -> str:
        """Return the address, in C, of the description of a type, which is emitted before its first use."""
        kind, key = "INTEGER", name
        if name == "char" and array:
            kind, key = "TEXT", "text"
        elif name in _HANDLES:
            kind = "HANDLE"
        elif name in ("double", "float"):
            kind = "REAL"
        elif name in self.structs:
            kind = "STRUCT"
        if key not in self.described:
            label = "type_" + re.sub(r"\W", "_", key)
            self.described[key] = label
            fields = "NULL"
            if kind == "STRUCT":
                fields = label + "_fields"
                rows = []
                for field_type, field, dimensions in self.structs[name]:
                    described = self.type_of(field_type, array=bool(dimensions))
                    place = f"offsetof({name}, {field}), sizeof((({name} *)0)->{field})"
                    rows.append(f'    {{"{field}", {place}, {described}}},')
                table = "\n".join(rows)
                self.lines.append(
                    f"static const struct field {fields}[] = {{\n{table}\n    {{NULL, 0, 0, NULL}}}};"
                )
            size = "1" if kind == "TEXT" else f"sizeof({name})"
            self.lines.append(f"static const struct type {label} = {{{kind}, {size}, {fields}}};")
        return "&" + self.described[key]

    def _of_no_key(self, kind: str) -> bool:
        """Whether a type cannot be in a key: a whole struct, or a handle that is never returned."""
        opaque = ("Instance_t", "Unit_t", "EventSet_t", "Sample_t")
        return kind in self.structs or (kind.startswith("nvml") and kind.endswith(opaque))

    def function(self, function: Function) -> None:
        """Emit one function: its arguments form the key, its pointers receive the outputs."""
        arguments, outputs = [], []
        names = [name for _, name in function.parameters]
        for index, (kind, name) in enumerate(function.parameters):
            bare = kind.replace("const ", "").replace("*", "").strip()
            if "*" not in kind:
                if kind in _HANDLES:
                    arguments.append(f"device_argument(&call, {name});")
                elif not self._of_no_key(kind) and not (
                    name in ("length", "size") and _is_text(function, index)
                ):
                    arguments.append(f"number(&call, (long long){name});")
            elif kind.startswith("const char"):
                arguments.append(f"argument(&call, {name});")
            elif kind.count("*") == 1 and not kind.startswith("const") and bare != "void":
                text = bare == "char"
                length = names[index + 1] if text and index + 1 < len(names) else "0"
                if text and index + 1 < len(names) and "*" in function.parameters[index + 1][0]:
                    length = f"*{length}"
                outputs.append(f'{{"{name}", {name}, {length}, {self.type_of(bare, array=text)}}}')
        head = ", ".join(f"{kind} {name}" for kind, name in function.parameters) or "void"
        table = ", ".join([*outputs, "{NULL, NULL, 0, NULL}"])
        self.lines.append(
            f"nvmlReturn_t {function.name}({head}) {{\n    struct call call;\n"
            f'    begin(&call, "{function.name}");\n    ' + "\n    ".join(arguments) + "\n"
            f"    return answer(&call, (struct output[]){{{table}}});\n}}"
        )


def _is_text(function: Function, index: int) -> bool:
    """Whether a parameter is the buffer size of the text before it."""
    return index > 0 and "*" in function.parameters[index - 1][0]


def source(header: str) -> str:
    """Generate the library's C source for a header."""
    functions, structs = read_header(header)
    made = _Source(structs)
    for function in functions:
        if function.name not in _OWN:
            made.function(function)
    process = made.type_of("nvmlProcessDetail_v1_t")  # before its use
    made.lines.append(_FIELD_VALUES + _PROCESSES % process)
    return RUNTIME.read_text() + "\n" + "\n".join(made.lines) + "\n"


_FIELD_VALUES = """
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    for (int i = 0; i < count; i++) {
        struct call call;
        unsigned long long value = 0;
        unsigned kind = NVML_VALUE_TYPE_UNSIGNED_INT;
        static const struct type WIDE = {INTEGER, 8, NULL};
        begin(&call, "nvmlDeviceGetFieldValues");
        device_argument(&call, device);
        number(&call, values[i].fieldId);
        number(&call, values[i].scopeId);
        struct output outputs[] = {
            {"value", &value, 0, &WIDE}, {"valueType", &kind, 0, &WORD}, {NULL, NULL, 0, NULL}};
        values[i].nvmlReturn = answer(&call, outputs);
        values[i].valueType = kind;
        values[i].value.ullVal = value;
    }
    return NVML_SUCCESS;
}
"""


# Each process entry is followed by its name, in 4,096 bytes.
_PROCESSES = """
static nvmlReturn_t processes(void *device, unsigned *count, char *infos) {
    nvmlProcessDetail_v1_t found[DEVICES] = {0};
    unsigned room = *count < DEVICES ? *count : DEVICES;
    struct call call;
    begin(&call, "nvmlDeviceGetComputeRunningProcesses_v3");
    device_argument(&call, device);
    nvmlReturn_t code = answer(&call, (struct output[]){
        {"infoCount", count, 0, &WORD}, {"infos", found, sizeof found, %s}, {NULL, NULL, 0, NULL}});
    for (unsigned i = 0; infos && i < *count && i < room; i++, infos += sizeof *found + 4096) {
        memcpy(infos, &found[i], sizeof *found);
        nvmlSystemGetProcessName(found[i].pid, infos + sizeof *found, 4096);
    }
    return code;
}
"""


def built(header: Path, cache: Path) -> Path:
    """Return the cached folder with the library for a header, compiled if missing. Raises LabError."""
    text = source(header.read_text())
    folder = cache / f"nvml-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    with waiting_lock(cache / "nvml.lock"):
        if not (folder / NAME).exists():
            folder.mkdir(exist_ok=True)
            (folder / "library.c").write_text(text)
            # gnu17: a library of a newer C standard needs the newest glibc, which not all nodes have.
            options = ["-std=gnu17", "-O1", "-w", "-shared", "-fPIC", f"-I{header.parent}"]
            call("gcc", *options, "-o", folder / "new", folder / "library.c", timeout=120)
            (folder / "new").rename(folder / NAME)
    return folder


def write_table(path: Path, rows: Iterable[tuple[str, str, object]]) -> Path:
    """Write a table of values: (key, path, value) each."""
    path.write_text("".join(f"{key}\t{name}\t{value}\n" for key, name, value in rows))
    return path
