"""Templates rendered here and by Ansible, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.desired import resolve
from provision.desired.templating import BadTemplateError, NotPlainError, Renderer

VARIABLES: dict[str, Any] = {
    "branch": 580,
    "version": "{{ branch }}.126.09",
    "text": "12.9",
    "flag": True,
    "nothing": None,
    "empty": "",
    "names": ["b", "a", "{{ text }}"],
    "nested": {"one": {"two": "{{ version }}", "n": 3}, "list": [1, 2, 3]},
    "raw": {"__ansible_unsafe": "{{ not.a.template }}"},
    "indirect": "{{ names }}",
    "hosts": [{"name": "x", "url": ""}, {"name": "y", "url": "https://y"}],
}

SAME_AS_ANSIBLE: list[Any] = [
    "plain",
    "{{ branch }}",
    "{{ version }}",
    "{{ text }}",
    "{{ '12.9' }}",
    "{{ 12.9 }}",
    "{{ flag }}",
    "{{ nothing }}",
    "a{{ nothing }}b",
    "{{ nothing }}{{ branch }}",
    "{{ branch }}{{ branch }}",
    "{{ branch }} ",
    "{{ branch }}\n",
    "{{ text }}\n\n",
    "{{ empty }}",
    "{{ branch + 1 }}",
    "{{ branch ~ '-open' }}",
    "{{ names }}",
    "{{ indirect }}",
    "{{ indirect[2] }}",
    "{{ nested.one.two }}",
    "{{ nested['one'] }}",
    "{{ nested.absent.deeper | default('no') }}",
    "{{ absent | default(nothing) }}",
    "{{ empty | default('filled', true) }}",
    "{{ raw }}",
    ["{{ branch }}", {"k": "{{ text }}"}],
    "{% if flag %}yes{% else %}no{% endif %}",
    "{% if not flag %}yes{% endif %}",
    "{% for n in names %}{{ n }},{% endfor %}",
    "{{ names | map('upper') }}",
    "{{ names | map('upper') | list }}",
    "{{ (names | map('upper'))[0] }}",
    "{{ hosts | selectattr('url') }}",
    "{{ hosts | selectattr('url') | map(attribute='name') | list }}",
    "{{ hosts | rejectattr('url') | length }}",
    "{{ names | sort | join('-') }}",
    "{{ names | select('match', '^[ab]$') | list }}",
    "{{ [1, 2] + nested.list }}",
    "{{ [3, 1, 3] | unique }}",
    "{{ [1, 2] | union([2, 3]) }}",
    "{{ [1, 2, 1] | difference([2, 3]) }}",
    "{{ [[1, [2]], [3]] | flatten }}",
    "{{ [[1, [2]], [3]] | flatten(levels=1) }}",
    "{{ nested | dict2items | map(attribute='key') | list }}",
    "{{ nested.one | combine({'n': 4}) }}",
    "{{ {'a': [1, true, none, 'é']} | to_json }}",
    "{{ '{\"a\": [1, true, null, {}]}' | from_json }}",
    "{{ 'yes' | bool }}",
    "{{ 'Off' | bool }}",
    "{{ 1 | bool }}",
    "{{ flag | ternary('open', 'proprietary') }}",
    "{{ nothing | ternary(1, 2, 3) }}",
    "{{ version is version('580.65', '>=') }}",
    "{{ '2.10' is version('2.9', '>') }}",
    "{{ '13.0' is version('13.0', '!=') }}",
    "{{ version | regex_replace('^(\\d+)\\..*$', '\\1') }}",
    "{{ version | regex_search('\\d+$') }}",
    "{{ version | regex_search('x') }}",
    "{{ version is match('580') }}",
    "{{ version is search('126') }}",
    "{{ 'a' in names }}",
    "{{ [flag, true] is all }}",
    "{{ absent is defined }}",
    "{{ absent is undefined }}",
    "{{ branch is number }}",
    "{{ '/etc/modprobe.d/x.conf' | basename }}",
    "{{ '/etc/modprobe.d/x.conf' | dirname }}",
    "{{ 'a,b' | split(',') }}",
    "{{ 'a.b' | regex_escape }}",
    "{{ 'ä\n' | hash('sha256') }}",
    "{{ text.split('.')[0] | int }}",
    "{{ text | replace('.', '-') }}",
    "{{ text | float }}",
    "{{ 'x' * 3 }}",
    "{{ '%s-%d' | format('a', 3) }}",
    "{{ range(3) | list }}",
    "{{ [1, 2, 3] | sum }}",
    "{{ nested.list | last }}",
    "{{ 'a' 'b' }}",
    "{{ 'back\\slash' }}",
    "{% set x = [1, 2] %}{{ x }}",
    "{# a comment #}{{ branch }}",
]


@pytest.fixture(scope="module")
def ansibles() -> dict[str, Any]:
    """Render all templates with Ansible, in one run."""
    cases = {f"case_{number}": template for number, template in enumerate(SAME_AS_ANSIBLE)}
    return resolve.ask_ansible({"localhost": {**VARIABLES, **cases}}, {"localhost": list(cases)}, ())[
        "localhost"
    ]


@pytest.mark.parametrize("number", range(len(SAME_AS_ANSIBLE)), ids=[str(case) for case in SAME_AS_ANSIBLE])
def test_rendered_as_ansible_renders_it(number: int, ansibles: dict[str, Any]) -> None:
    ours = Renderer([VARIABLES]).value(SAME_AS_ANSIBLE[number])
    theirs = ansibles[f"case_{number}"]
    assert (type(ours), ours) == (type(theirs), theirs)


@pytest.mark.parametrize(
    "template",
    [
        "{{ lookup('env', 'HOME') }}",
        "{{ query('file', '/etc/hostname') }}",
        "{{ 'x' | hash('sha1') }}",
        "{{ 'x' | to_nice_yaml }}",
        "{{ version is version('1', '>', strict=true) }}",
        "{{ version is version('1', 'about') }}",
        "{{ '1.a' is version('1.2', '>') }}",
        "{{ ansible_distribution }}",
        "{{ hostvars['gpu-01'].x }}",
        {"__ansible_vault": "$ANSIBLE_VAULT;1.1;AES256\n00"},
        "{{ 'x' is nosuchtest }}",
        "{{ {'a': 1} | combine({'a': 2}, list_merge='append') }}",
        "{{ nested | combine({'one': {'n': 4}}, recursive=true) }}",
        "{{ nested | dict2items('k') }}",
        "{{ text | regex_search('A', ignorecase=true) }}",
        "{{ text | regex_replace('A', 'B', true) }}",
        "{{ text is match('A', true) }}",
        "{{ nested | to_json(indent=2) }}",
        "{{ '[1]' | from_json(profile='legacy') }}",
        "{{ [1, 2] | intersect([2, 3]) }}",
        "{{ ['a'] is subset(names) }}",
        "{{ branch | regex_replace('5', '6') if false else 'maybe' | bool }}",
    ],
    ids=str,
)
def test_what_only_ansible_can_render_is_left_to_it(template: Any) -> None:
    with pytest.raises(NotPlainError):
        Renderer([VARIABLES]).value(template)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ absent }}", "'absent' is undefined"),
        ("x{{ absent }}y", "'absent' is undefined"),
        ("{{ nested.absent }}", "no attribute 'absent'"),
        (["{{ absent }}"], "'absent' is undefined"),
        ("{{ absent + 1 }}", "'absent' is undefined"),
        ("{{ [1] | map('upper', 3) }}", "upper"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ branch", "unexpected end"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
    ],
    ids=str,
)
def test_a_wrong_template_says_what_is_wrong(template: Any, message: str) -> None:
    with pytest.raises(BadTemplateError, match=message):
        Renderer([VARIABLES]).value(template)


def test_a_circle_is_named() -> None:
    with pytest.raises(BadTemplateError, match="a → b → a"):
        Renderer([{"a": "{{ b }}", "b": "{{ a }}"}]).value("{{ a }}")


def test_the_first_layer_wins_and_only_what_is_mentioned_is_looked_at() -> None:
    renderer = Renderer([{"a": "{{ b }}"}, {"a": 1, "b": 2, "bad": "{{ lookup('x') }}"}])
    assert renderer.value("{{ a }}") == 2
    assert renderer.mentioned == {"a", "b"}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (True, True),
        (None, True),
        ("", True),
        ("branch > 570", True),
        ("branch > 570 and not flag", False),
        (["flag", "branch == 1"], False),
        ("version is match('580\\.')", True),
        ("absent is defined", False),
    ],
    ids=str,
)
def test_conditions(expression: Any, expected: bool) -> None:
    assert Renderer([VARIABLES]).condition(expression) is expected


@pytest.mark.parametrize("expression", ["branch", "text", "names", 3])
def test_a_condition_must_be_true_or_false(expression: Any) -> None:
    with pytest.raises(BadTemplateError, match="condition must be"):
        Renderer([VARIABLES]).condition(expression)


def test_a_file_is_what_the_template_module_writes(tmp_path: Path) -> None:
    source = (
        "# {{ version }}\n{% if flag %}\n  on \\d {{ 'a\\\\b' }}\n{% endif %}\n"
        "{% for n in names %}\n{{ n }}\n{% endfor %}\n\n"
    )
    (tmp_path / "x.j2").write_text(source)
    lookup = "{{ lookup('ansible.builtin.template', '" + str(tmp_path / "x.j2") + "') }}"
    theirs = resolve.ask_ansible(
        {"localhost": {**VARIABLES, "answer": lookup}}, {"localhost": ["answer"]}, ()
    )
    assert Renderer([VARIABLES]).file(source) == theirs["localhost"]["answer"]
    assert Renderer([VARIABLES]).file("{% if not flag %}x{% endif %}") == ""


def test_groups_are_taken_as_they_are() -> None:
    """Every node has the names of all nodes in it, and scanning them for templates would be quadratic."""

    class Names(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError("looked through")

    renderer = Renderer([{"groups": Names(time=["clock-1", "clock-2"])}])
    assert renderer.value("{{ groups['time'] | last }} of {{ groups['time'] | length }}") == "clock-2 of 2"
    assert renderer.mentioned == {"groups"}
