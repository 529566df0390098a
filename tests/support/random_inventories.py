"""Random inventories for property tests, and Ansible's own command to compare with."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from provision.desired.inventory.ansible import ansible_settings
from provision.errors import InventoryError

# Imports Ansible once; a fresh fork that runs the whole of `ansible-inventory` answers each request.
_SERVER = """
import json, os, sys
import ansible.cli.inventory as command
for line in sys.stdin:
    question = json.loads(line)
    child = os.fork()
    if not child:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(question[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        try:
            command.main(["ansible-inventory", *question["arguments"]])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class AnsibleInventory:
    """`ansible-inventory` without its startup time of one second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            env=ansible_settings.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def listed(self, source: Path, *options: str) -> dict[str, Any]:
        """Return the document of `--list`; raises AssertionError if any part of the inventory is refused."""
        out, err = self._folder / "out", self._folder / "err"
        arguments = ["-i", str(source), "--list", *options]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"out": str(out), "err": str(err), "arguments": arguments}),
            file=self._process.stdin,
            flush=True,
        )
        code = self._process.stdout.readline()
        complaints = err.read_text()
        assert code == "0\n", complaints
        assert "Unable to parse" not in complaints, complaints
        answer = json.loads(out.read_text())
        del answer["_meta"]["profile"]  # its encoding
        assert isinstance(answer, dict)
        return answer

    def read(self, source: Path, vault_password_files: Sequence[Path] = ()) -> dict[str, Any]:
        """Replace `ansible_inventory.read`."""
        options = [word for file in vault_password_files for word in ("--vault-password-file", str(file))]
        try:
            return self.listed(source, *options)
        except AssertionError as refused:
            raise InventoryError(str(refused), "") from None

    def close(self) -> None:
        self._process.communicate(timeout=60)


HOSTS = st.sampled_from(
    [
        "gpu-1",
        "gpu-01",
        "gpu-2",
        "n2.cluster",
        "10.0.0.7",
        "localhost",
        "127.0.0.1",
        "h_3",
        "gpu-[1:3]",
        "gpu-[01:03]",
        "r[a:c]-[1:2]",
        "gpu-[0:6:2]",
        "n[08:11].c",
        "web:2222",
        "gpu-[1:2]:2200",
        "zürich",
        "x[A:C]",
        "gpu-[3:1]",
        "-x-",
        "a@b",
        "r[1:2]x[1:2]:0",
        "~tilde",
    ]
)
_GROUPS = ["g1", "g2", "g3", "racks", "a-b", "all", "ungrouped", "x.y", "ü", "yes"]
GROUPS = st.sampled_from(_GROUPS[:4] + _GROUPS)
NAMES = st.sampled_from(
    [
        "a",
        "b",
        "c",
        "rack",
        "ansible_host",
        "ansible_port",
        "groups",
        "role_name",
        "inventory_hostname",
        "ansible_facts",
        "ansible_local",
        "ansible_group_priority",
        "port",
        "not_a_word",
    ]
)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))
    | st.sampled_from("\t\n'\"\\{}[]#:,=|>!&*%@ "),
    max_size=12,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.sampled_from(["{{ a }}", "yes", "010", "1.0", "null", "2024-01-01", "$ANSIBLE_VAULT", "=", "<<"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
VAULTED = "!vault |\n{indent}$ANSIBLE_VAULT;1.1;AES256\n{indent}6162\n{indent}63\n"
# Scalars with surprising meanings in YAML.
SPELLINGS = st.sampled_from(
    [
        "010",
        "0o10",
        "0x1F",
        "0b101",
        "1:30",
        "1_000",
        "1e3",
        "1.5e+3",
        "1.",
        ".5",
        ".inf",
        "-.INF",
        "~",
        "null",
        "Null",
        "yes",
        "No",
        "ON",
        "off",
        "y",
        "n",
        "true",
        "TRUE",
        "2024-01-01",
        "2024-1-1",
        "2001-12-14t21:59:43.10-05:00",
        "2001-12-14T21:59:43Z",
        "2024-13-45",
        "08",
        "-0",
        "+12",
        "1.2.3",
        "10.0.0.1",
        "0.1.2",
        "!!str|5",
        "!!int|'7'",
        "!!float|1",
        "!unsafe|x",
        "!!binary|eA==",
        "!!set|{a}",
        "!!omap|[a:|1]",
        "<<",
        "=",
        ".",
        "-",
        "[1,|yes,|no]",
        "{a:|010,|b:|{c:|~}}",
        "{1:|2}",
        "{a:|1,|a:|2}",
        "''",
        '"\\u00e9"',
        "'it''s'",
        "a#b",
        "a|#c",
        "*",
        "&x|1",
        "%",
    ]
).map(lambda text: text.replace("|", " "))


@st.composite
def yaml_values(draw: st.DrawFn, indent: str) -> str:
    kind = draw(st.sampled_from(["json", "json", "json", "spelled", "spelled", "text", "vault", "block"]))
    if kind == "json":
        return json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans()))
    if kind == "vault":
        return VAULTED.format(indent=indent)
    if kind == "block":
        style = draw(st.sampled_from(["|", ">", "|-", ">+"]))
        return f"{style}\n{indent}one\n{indent} two\n\n{indent}three\n"
    return draw(SPELLINGS if kind == "spelled" else TEXTS)


@st.composite
def yaml_variables(draw: st.DrawFn, indent: str) -> str:
    names = draw(st.lists(NAMES, max_size=4, unique=draw(st.sampled_from([True, True, True, False]))))
    lines = []
    for number, name in enumerate(names):
        anchor = f"&{name}{indent.count(' ')}_{number} " if draw(st.integers(0, 20)) == 0 else ""
        value = draw(yaml_values(indent + "  "))
        lines.append(f"{indent}{name}: {anchor}{value}\n")
    return "".join(lines)


@st.composite
def yaml_group(draw: st.DrawFn, name: str, indent: str, depth: int) -> str:
    text = f"{indent}{json.dumps(name)}:\n"
    for section in draw(st.permutations(["vars", "hosts", "children"])):
        if not draw(st.booleans()):
            continue
        text += f"{indent}  {section}:\n"
        if section == "vars":
            text += draw(yaml_variables(indent + "    "))
        elif section == "hosts":
            for host in draw(st.lists(HOSTS, max_size=4, unique=True)):
                text += f"{indent}    {json.dumps(host)}:\n"
                if draw(st.booleans()):
                    text += draw(yaml_variables(indent + "      "))
        elif depth:
            for child in draw(st.lists(GROUPS.filter(lambda each: each != name), max_size=3, unique=True)):
                text += draw(yaml_group(child, indent + "    ", depth - 1))
    return text


@st.composite
def yaml_inventory(draw: st.DrawFn) -> str:
    names = draw(st.lists(GROUPS, min_size=1, max_size=4, unique=True))
    return "".join(draw(yaml_group(name, "", 2)) for name in names)


INI_VALUES = st.one_of(
    VALUES.map(repr).map(shlex.quote),
    TEXTS.map(shlex.quote),
    VALUES.map(json.dumps),
    st.sampled_from(
        [
            "1",
            "01",
            "1.5",
            "1e400",
            "True",
            "true",
            "None",
            "yes",
            "[1,2]",
            "(1,)",
            "{'a':1}",
            "{1:2}",
            "{1}",
            "'q'",
            '"q"',
            "0x1f",
            "1_0",
            "1+2j",
            "...",
            "b'x'",
            "10.0.0.1",
            "a.b/c:d-e@f",
            "set()",
            "-1",
            "-",
            "1#",
            "x#y",
            "''",
            '"a',
            'b"',
            "'a'",
            "'b'",
            "f'x'",
            "u'x'",
            "a=b=c",
            "\\",
            "#",
            ";",
            "{{x}}",
        ]
    ),
    st.from_regex(r"[A-Za-z0-9_.:/@+-]{1,9}", fullmatch=True),
)


@st.composite
def ini_inventory(draw: st.DrawFn) -> str:
    lines = [draw(HOSTS) for _ in range(draw(st.integers(0, 2)))]
    for _ in range(draw(st.integers(0, 5))):
        group, kind = draw(GROUPS), draw(st.sampled_from(["", "", ":vars", ":children", ":hosts"]))
        lines.append(f"[{group}{kind}]" + draw(st.sampled_from(["", "  ", " # why"])))
        for _ in range(draw(st.integers(0, 4))):
            if kind == ":vars":
                equals = draw(st.sampled_from(["=", " = "]))
                lines.append(draw(NAMES) + equals + draw(INI_VALUES))
            elif kind == ":children":
                lines.append(draw(GROUPS))
            else:
                words = [f"{draw(NAMES)}={draw(INI_VALUES)}" for _ in range(draw(st.integers(0, 2)))]
                lines.append(" ".join([draw(HOSTS), *words]) + draw(st.sampled_from(["", " # c", "\t"])))
    # Most groups are declared somewhere; an undeclared one is an error.
    lines += [f"[{each}]" for each in draw(st.permutations(_GROUPS)) if draw(st.integers(0, 99))]
    lines += draw(st.lists(st.sampled_from(["", "; note", "# note", "   "]), max_size=2))
    return "\n".join(lines) + "\n"


@st.composite
def json_inventory(draw: st.DrawFn) -> str:
    entries = st.dictionaries(HOSTS, st.none() | st.dictionaries(NAMES, VALUES, max_size=3), max_size=4)
    group = st.fixed_dictionaries(
        {}, optional={"hosts": entries, "vars": st.dictionaries(NAMES, VALUES, max_size=3)}
    )
    document = draw(st.dictionaries(GROUPS, group, min_size=1, max_size=3))
    return json.dumps(document, indent=draw(st.sampled_from([None, 2])))


@st.composite
def inventories(draw: st.DrawFn) -> dict[str, str]:
    """Draw the files of an inventory, by name. `source` is a file or the folder itself."""
    writers = {"yml": yaml_inventory, "yaml": yaml_inventory, "json": json_inventory, "ini": ini_inventory}
    files: dict[str, str] = {}
    folder = draw(st.booleans())
    for stem in (
        draw(
            st.lists(
                st.sampled_from(["10-a", "b", "sub/c", "Z", ".hidden"]), min_size=1, max_size=3, unique=True
            )
        )
        if folder
        else ["i"]
    ):
        ending = draw(st.sampled_from(["yml", "yaml", "json", "ini", "none", "none", "cfg"]))
        kind = draw(st.sampled_from(["yml", "ini"])) if ending in ("none", "cfg") else ending
        text = draw(writers[kind]())
        if draw(st.integers(0, 14)) == 0:
            text = draw(
                st.sampled_from(
                    ["", "# nothing\n", "\ufeff" + text, text.replace("\n", "\r\n"), "---\n" + text]
                )
            )
        files[stem + ("" if ending == "none" else f".{ending}")] = text
    for subject, names in (("group_vars", GROUPS), ("host_vars", HOSTS)):
        for name in draw(st.lists(names, max_size=3, unique=True)):
            for layout in draw(
                st.sampled_from(
                    [
                        [".yml"],
                        ["", ".yml"],
                        [".json", ".yaml"],
                        ["/a.yml", "/b", "/.no", "/c.ini"],
                        ["/s/d.json", "/e~"],
                    ]
                )
            ):
                files[f"{subject}/{name}{layout}"] = draw(
                    st.just("")
                    | yaml_variables("")
                    | st.dictionaries(NAMES, VALUES, max_size=2).map(json.dumps)
                )
    return files


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write the files and return the inventory's source."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(text))
    single = [name for name in files if name == "i" or name.startswith("i.")]
    return folder / single[0] if single else folder
