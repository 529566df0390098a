"""Renderer of variables as in Ansible, if plain Jinja2 is enough; the only module that imports jinja2.

Native types (`"{{ 8 }}"` is a number, two joined parts are text), strict about undefined names, sandboxed,
lazy: a variable is rendered when something mentions it. Whatever needs Ansible itself (a lookup, an unknown
filter, a vaulted value) raises NotPlainError, and Ansible renders it. A test compares both.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nativetypes, sandbox
from jinja2.runtime import Context
from jinja2.utils import missing as MISSING  # noqa: N812 - a constant

from provision.desired.templating.template_filters import FILTERS, TESTS, LeftToAnsibleError

_OURS = "__gpuprov_renderer"
# Names that only Ansible knows; any other undefined name is an error.
_ANSIBLES_OWN = frozenset(
    {"hostvars", "vars", "omit", "environment", "playbook_dir", "play_hosts", "role_path"}
)
# It holds only names of nodes, all of them on each node, and is never searched for templates.
_NAMES_ALONE = "groups"
# As in Ansible these return lists, so that `(names | map('upper'))[0]` works.
_GENERATING = (
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "unique",
    "batch",
    "slice",
    "items",
    "reverse",
)


class NotPlainError(Exception):
    """A template that only Ansible can render; the message is the reason."""


class BadTemplateError(Exception):
    """A wrong template: bad syntax, an undefined variable or a failed filter."""


class _Undefined(jinja2.ChainableUndefined, jinja2.StrictUndefined):
    """An undefined value in `a.b.c | default(1)`, which works as in Ansible; any other use is an error."""


class _Context(Context):
    def resolve_or_missing(self, key: str) -> Any:
        # `vars`: set by the template itself. `local` is in `parent`, so the renderer's variables override it.
        if key in self.vars:
            return self.vars[key]
        renderer = self.parent.get(_OURS)
        if renderer is not None:
            value = renderer.variable(key)
            if value is not MISSING:
                return value
        return super().resolve_or_missing(key)


class _Environment(sandbox.SandboxedEnvironment, nativetypes.NativeEnvironment):
    context_class = _Context

    @staticmethod
    def concat(values: Iterable[Any]) -> Any:
        """Return one part with its type, several as text, none as null; jinja2's evaluates text as Python."""
        parts = [part for part in values if part is not None]  # `a{{ nothing }}b` is `ab`
        for part in parts:
            if isinstance(part, jinja2.Undefined):
                return part
        if len(parts) == 1:
            return parts[0]
        return "".join(str(part) for part in parts) if parts else None


@jinja2.pass_context
def _finalize(_context: Context, value: Any) -> Any:
    """Turn generators into lists; taking the context keeps jinja2 from folding `{{ 1 }}` into text."""
    return list(value) if isinstance(value, Iterator) else value


def _not_plain(name: str) -> Any:
    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise NotPlainError(f"{name}() is Ansible's")

    return refuse


def _as_list(function: Any) -> Any:
    @functools.wraps(function)
    def whole(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        return list(result) if isinstance(result, Iterator) else result

    return whole


def _environment() -> _Environment:
    # The template module, too, trims blocks; jinja2's own default keeps the newline after `{% if … %}`.
    environment = _Environment(undefined=_Undefined, trim_blocks=True, finalize=_finalize, cache_size=0)
    for name in _GENERATING:
        environment.filters[name] = _as_list(environment.filters[name])
    environment.filters.update(FILTERS)
    environment.tests.update(TESTS)
    environment.globals.update({name: _not_plain(name) for name in ("lookup", "query", "q", "now", "undef")})
    return environment


_ENVIRONMENT = _environment()


def _doubled(source: str) -> str:
    """Double backslashes in quotes, which are literal in Ansible variables (`regex_replace('\\d', '')`)."""
    if "\\" not in source:
        return source
    parts, inside = [], False
    for _line, kind, value in _ENVIRONMENT.lexer.tokeniter(source, None):
        # Only between `{{` and `}}`: Ansible leaves strings in `{% if … %}` as they are.
        inside = (inside or kind == "variable_begin") and kind != "variable_end"
        parts.append(value.replace("\\", "\\\\") if inside and kind == "string" else value)
    return "".join(parts)


@functools.lru_cache(maxsize=4096)
def _compiled(source: str, double_backslashes: bool) -> jinja2.Template:
    try:
        with warnings.catch_warnings():
            # `'580\\.'` in a condition: Python deprecates the unknown escape, but Ansible's users write it.
            warnings.simplefilter("ignore", DeprecationWarning)
            return _ENVIRONMENT.from_string(_doubled(source) if double_backslashes else source)
    except jinja2.TemplateError as trouble:
        raise _fault(trouble, source) from None


def _fault(trouble: Exception, source: str) -> Exception:
    message = str(trouble) or type(trouble).__name__
    # jinja2 reports a filter of Ansible's as it reports bad syntax: `No filter named 'to_nice_yaml'.`
    if isinstance(trouble, jinja2.TemplateError) and re.search(r"No (filter|test) named", message):
        return NotPlainError(message)
    shown = source if len(source) <= 100 else source[:99] + "…"
    return BadTemplateError(f"{message} in: {shown.strip()}")


def references(value: Any) -> frozenset[str]:
    """Return the variables that templates in `value` may read in any branch; none for a wrong template."""
    if isinstance(value, Mapping):
        return frozenset().union(*(references(each) for each in value.values()))
    if isinstance(value, list | tuple):
        return frozenset().union(*(references(each) for each in value))
    if not isinstance(value, str) or not _is_template(value):
        return frozenset()
    try:
        return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(_doubled(value))))
    except jinja2.TemplateError:
        return frozenset()


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text or "{#" in text


class Renderer:
    """Renderer over layers of variables, strongest first, below `given` values without templates.
    `mentioned` collects each name that it looks up.

    >>> Renderer([{"a": "{{ b + 1 }}", "b": 7}]).value("{{ a }}")
    8
    """

    def __init__(
        self,
        layers: Sequence[Mapping[str, Any]],
        mentioned: set[str] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._layers = layers
        self._rendered: dict[str, Any] = dict(given or {})
        self._rendering: list[str] = []
        self.mentioned: set[str] = set() if mentioned is None else mentioned

    def value(self, template: Any, local: Mapping[str, Any] | None = None) -> Any:
        """Return `template` (text, or any nesting of lists and mappings) with everything rendered.

        Raises NotPlainError or BadTemplateError."""
        return _defined(self._render(template, local))

    def condition(self, expression: Any, local: Mapping[str, Any] | None = None) -> bool:
        """Evaluate a bare expression, or a list that must all hold, as in `when:`; it must be a boolean."""
        if isinstance(expression, list):
            return all(self.condition(each, local) for each in expression)
        if expression is None or expression == "" or isinstance(expression, bool):
            return expression is not False
        if not isinstance(expression, str):
            raise BadTemplateError(f"a condition must be text, not {type(expression).__name__}: {expression}")
        # Ansible doubles backslashes only in variables; in conditions and template files they escape.
        result = _defined(self._text("{{ " + expression + " }}", local, double_backslashes=False))
        if not isinstance(result, bool):
            raise BadTemplateError(
                f"a condition must be true or false, not {type(result).__name__}: {expression}"
            )
        return result

    def file(self, source: str, local: Mapping[str, Any] | None = None) -> str:
        """Return the text that the template module would write for a file with this `source`."""
        if source.startswith("#jinja2:"):
            raise BadTemplateError(
                "a #jinja2: header is not supported: write the template for trim_blocks=True"
            )
        result = _defined(self._text(source, local, double_backslashes=False))
        return "" if result is None else str(result)

    def variable(self, name: str) -> Any:
        """Return the rendered value of a variable, or jinja2's `missing`."""
        # Undefined names count, too: a rendering without the variable must not be reused with it.
        self.mentioned.add(name)
        if name in self._rendered:
            return self._rendered[name]
        for layer in self._layers:
            if name in layer:
                break
        else:
            if name.startswith("ansible_") or name in _ANSIBLES_OWN:
                raise NotPlainError(f"only Ansible knows {name}")
            return MISSING
        if name == _NAMES_ALONE:
            return layer[name]
        if name in self._rendering:
            circle = " → ".join([*self._rendering[self._rendering.index(name) :], name])
            raise BadTemplateError(f"variables refer to each other in a circle: {circle}")
        self._rendering.append(name)
        try:
            self._rendered[name] = self._render(layer[name], None)
        finally:
            self._rendering.pop()
        return self._rendered[name]

    def _render(self, template: Any, local: Mapping[str, Any] | None) -> Any:
        if isinstance(template, str):
            return (
                self._text(template, local, double_backslashes=True) if _is_template(template) else template
            )
        if isinstance(template, Mapping):
            # `!unsafe` as ansible-inventory prints it: text that looks like a template, but is not rendered.
            if template.keys() == {"__ansible_unsafe"}:
                return template["__ansible_unsafe"]
            if template.keys() == {"__ansible_vault"}:
                raise NotPlainError("the value is vaulted")
            return {key: self._render(each, local) for key, each in template.items()}
        if isinstance(template, list | tuple):
            return [self._render(each, local) for each in template]
        return template

    def _text(self, source: str, local: Mapping[str, Any] | None, *, double_backslashes: bool) -> Any:
        template = _compiled(source, double_backslashes)
        context = template.new_context({**(local or {}), _OURS: self})
        try:
            result = _ENVIRONMENT.concat(template.root_render_func(context))
        except jinja2.UndefinedError as trouble:
            # Not an error yet: a `default` around this variable may replace it. `_defined` decides.
            return _Undefined(hint=f"{trouble.message} in: {source.strip()[:100]}")
        except LeftToAnsibleError as trouble:
            raise NotPlainError(str(trouble)) from None
        except (NotPlainError, BadTemplateError):
            raise
        except Exception as trouble:  # a filter may raise anything; the user gets the template and the reason
            raise _fault(trouble, source) from None
        if isinstance(result, str):  # jinja2 drops one newline at the end, Ansible restores it
            lost = _newlines(source) - _newlines(result)
            return result + "\n" * lost
        return result


def _newlines(text: str) -> int:
    return len(text) - len(text.rstrip("\n"))


def _defined(value: Any) -> Any:
    """Return `value`; raise BadTemplateError if anything in it is undefined."""
    if isinstance(value, jinja2.Undefined):
        try:
            str(value)
        except jinja2.TemplateRuntimeError as trouble:  # undefined, or blocked by the sandbox
            raise BadTemplateError(str(trouble.message)) from None
    if isinstance(value, dict):
        for each in value.values():
            _defined(each)
    elif isinstance(value, list):
        for each in value:
            _defined(each)
    return value
