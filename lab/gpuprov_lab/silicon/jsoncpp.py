"""JSON in the layout of the jsoncpp library: sorted keys, tabs, `" : "`, short lists on one line."""

import json

RIGHT_MARGIN = 74


def styled(value) -> str:
    """Render a whole document with its final newline."""
    return _write(value, 0).lstrip("\n") + "\n"


def _write(value, depth: int) -> str:
    tab = "\n" + "\t" * depth
    if isinstance(value, dict):
        if not value:
            return "{}"
        members = [f"{tab}\t{json.dumps(key)} : {_write(value[key], depth + 1)}" for key in sorted(value)]
        return f"{tab}{{{','.join(members)}{tab}}}"
    if isinstance(value, list):
        return _list(value, depth)
    if isinstance(value, float):
        text = f"{value:.17g}"
        return text if any(sign in text for sign in ".en") else text + ".0"
    return json.dumps(value)


def _list(value: list, depth: int) -> str:
    if not value:
        return "[]"
    tab = "\n" + "\t" * depth
    flat = not any(isinstance(one, (dict, list)) and one for one in value)
    texts = [_write(one, depth + 1) for one in value]
    if (
        flat
        and len(value) * 3 < RIGHT_MARGIN
        and 4 + 2 * (len(value) - 1) + sum(map(len, texts)) < RIGHT_MARGIN
    ):
        return f"[ {', '.join(texts)} ]"
    lines = [text if text.startswith("\n") else f"{tab}\t{text}" for text in texts]
    return f"{tab}[{','.join(lines)}{tab}]"
