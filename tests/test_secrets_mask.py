"""Detection of secret texts, over few nodes and many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.drift import drift_text
from provision.secrets_mask import HIDDEN, masked, occurring, secrets_of


def test_what_is_named_like_a_secret_is_one() -> None:
    source = {
        "ansible_become_password": "sesame",
        "bmc": {"user": "admin", "token": 'quo"te'},
        "api_secrets": ["first-one", 4711, True, "no"],
        "ansible_ssh_private_key": "-----BEGIN",
        "ansible_ssh_private_key_file": "~/.ssh/fleet",
        "driver_version": "580.1",
    }
    assert set(secrets_of(source)) == {"-----BEGIN", "sesame", 'quo"te', 'quo\\"te', "first-one", "4711"}


def test_references_are_followed_to_the_value_at_any_distance() -> None:
    group = {"bmc_password": "{{ bmc_word }}", "bmc_word": "{{ site_words }}"}
    assert set(secrets_of(group, {"site_words": {"bmc": "sesame"}})) == {"sesame"}
    circle = {"a_password": "{{ b }}", "b": "{{ a_password }}"}
    assert secrets_of(circle) == ()


def test_a_reference_of_all_nodes_is_followed_once() -> None:
    class Counted(dict[str, Any]):
        read = 0

        def __getitem__(self, name: str) -> Any:
            Counted.read += 1
            return super().__getitem__(name)

    nodes = [Counted(bmc_password="{{ word }}", word=f"sesame-{number}") for number in range(200)]
    assert len(secrets_of(*nodes)) == 200
    assert Counted.read == 200


class Text(str):
    """A string that counts the searches in it."""

    searched = 0

    def replace(self, *arguments: Any) -> str:
        Text.searched += 1
        return super().replace(*arguments)


def test_a_password_for_each_node_is_looked_for_once_in_all_of_a_report() -> None:
    secrets = [f"sesame-{number:04}" for number in range(1000)] + ["grüße", 'quo"te\\', "quo"]
    document = {"nodes": ["it was sesame-0007", {"sesame-0008": 'grüße und quo"te\\'}], "count": 2}
    assert set(occurring(document, secrets)) == {"sesame-0007", "sesame-0008", "grüße", 'quo"te\\', "quo"}
    clean = {"nodes": [f"it was {HIDDEN}", {HIDDEN: f"{HIDDEN} und {HIDDEN}"}], "count": 2}
    ordered = sorted(secrets, key=len, reverse=True)
    assert drift_text.without(document, ordered) == masked(document, ordered) == clean
    drift_text.without({"nodes": [Text(f"node {number}") for number in range(2000)]}, ordered)
    assert Text.searched <= 2000 * drift_text.FEW


def test_nothing_is_masked_without_secrets() -> None:
    document: Mapping[str, Any] = {"a": ["b"]}
    assert drift_text.without(document, ()) is document


def test_the_beginning_of_a_secret_is_masked_where_a_text_was_cut() -> None:
    secret = "correct-horse-battery-staple"
    cut = [f"password is {secret[:length]}…" for length in range(3, len(secret))]
    assert masked(cut, (secret,)) == [f"password is {HIDDEN}…"] * len(cut)
    assert occurring(cut[0], (secret, "other-secret")) == (secret,)
    assert masked("co… and a corner", (secret,)) == "co… and a corner"
