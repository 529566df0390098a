"""Running playbooks with the local, real Ansible: outcomes come from events, no secret is left behind."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.desired.expectations import roles_in_order
from provision.errors import GpuprovError
from provision.remote.ansible import handover
from provision.remote.ansible.events import role_of
from provision.remote.ansible.messages import message_of
from provision.remote.ansible.runner import Event, Outcome, run_playbook
from tests.support.plays import ALONE, local, playbook, playing
from tests.support.processes import alive, line_of, until

SECRET = "corr3ct-h0rse-battery"


pytestmark = pytest.mark.usefixtures("memory")


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_task_of_the_playbook_has_no_role_whatever_others_do_meanwhile(tmp_path: Path) -> None:
    tasks = tmp_path / "roles" / "driver" / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text("- {name: Install, command: sleep 2, changed_when: false}\n")
    play = tmp_path / "play.yml"
    play.write_text(
        textwrap.dedent("""
        - hosts: all
          gather_facts: false
          strategy: ansible.builtin.free
          pre_tasks:
            - {name: Look, command: "sleep {{ pace }}", changed_when: false}
          roles: [driver]
        """)
    )
    events: list[Event] = []
    run_playbook(play, {"fast": local(pace=0), "slow": local(pace=1.5)}, on_event=events.append)
    ended = {(event.node, event.task, event.role) for event in events if event.kind == "ok"}
    assert ended == {
        *(("fast", "Look", ""), ("fast", "Install", "driver")),
        *(("slow", "Look", ""), ("slow", "Install", "driver")),
    }


@pytest.mark.parametrize(
    ("said", "path", "role"),
    [
        ("rdma", "/x/playbooks/up.yml:19", ""),
        ("rdma", "/x/roles/rdma/tasks/main.yml:3", "rdma"),
        ("", "/x/roles/nvidia_driver/tasks/repair.yml:3", "nvidia_driver"),
        ("rdma", "/roles/x/roles/nccl/handlers/main.yml:3", "nccl"),
        (
            "site.gpu.fabric",
            "/c/ansible_collections/site/gpu/roles/fabric/tasks/main.yml:1",
            "site.gpu.fabric",
        ),
        ("rdma", "/srv/roles/playbooks/up.yml:2", ""),
        ("rdma", "", "rdma"),
    ],
)
def test_the_role_of_a_task_is_the_one_whose_file_it_stands_in(said: str, path: str, role: str) -> None:
    assert role_of({"role": said, "task_path": path}) == role


def test_each_host_has_the_outcome_its_events_tell(tmp_path: Path) -> None:
    tasks = playbook(
        tmp_path,
        """
        - name: Change
          ansible.builtin.command: "true"
          changed_when: inventory_hostname == "changed"
        - name: Break
          ansible.builtin.command: "sh -c 'echo one >&2; echo E: no such package >&2; exit 100'"
          changed_when: false
          when: inventory_hostname == "broken"
        - name: Ignore
          ansible.builtin.command: "false"
          changed_when: false
          ignore_errors: true
          when: inventory_hostname == "ignoring"
        - name: Rescue
          when: inventory_hostname == "rescued"
          block:
            - ansible.builtin.fail: {msg: saved below}
          rescue:
            - ansible.builtin.debug: {msg: saved}
        - name: Loop
          ansible.builtin.command: "test {{ item }} = good"
          changed_when: false
          loop: [good, bad]
          when: inventory_hostname == "looping"
        - name: Last
          ansible.builtin.debug: {msg: the end}
        """,
    )
    names = ["fine", "changed", "broken", "ignoring", "rescued", "looping"]
    hosts = {name: local() for name in names}
    hosts["gone"] = {
        "ansible_host": "127.0.0.1",
        "ansible_port": closed_port(),
        "ansible_python_interpreter": "x",
    }
    events: list[Event] = []
    outcomes = run_playbook(tasks, hosts, on_event=events.append)

    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "fine": "ok",
        "changed": "ok",
        "broken": "failed",
        "ignoring": "ok",
        "rescued": "ok",
        "looping": "failed",
        "gone": "unreachable",
    }
    assert outcomes["changed"].changed == 1
    assert outcomes["fine"] == Outcome("fine", "ok", 0)
    assert outcomes["broken"].task == "Break"
    assert outcomes["broken"].message == "the command ended with status 100 · E: no such package"
    assert outcomes["looping"].message.startswith("bad: the command ended with status 1")
    # ssh may or may not have ended by the time Ansible writes to it.
    assert re.search("Connection refused|could not be sent", outcomes["gone"].message)

    seen = [(event.node, event.task, event.kind, event.ignored) for event in events]
    assert ("changed", "Change", "changed", False) in seen
    assert ("ignoring", "Ignore", "failed", True) in seen
    assert ("fine", "Break", "skipped", False) in seen
    assert ("fine", "Last", "started", False) in seen
    turns = [event for event in events if event.node == "looping" and "item" in event.result]
    assert [(event.kind, event.result["item"]) for event in turns] == [("ok", "good"), ("failed", "bad")]
    assert ("broken", "Last", "started", False) not in seen


def test_the_role_of_a_task_is_named(tmp_path: Path) -> None:
    role = tmp_path / "roles" / "some_role" / "tasks"
    role.mkdir(parents=True)
    (role / "main.yml").write_text("- name: Give up\n  ansible.builtin.fail: {msg: because}\n")
    play = tmp_path / "play.yml"
    play.write_text("- hosts: all\n  gather_facts: false\n  roles: [some_role]\n")
    outcome = run_playbook(play, {"n": local()})["n"]
    assert (outcome.role, outcome.task, outcome.message) == ("some_role", "Give up", "because")


def test_a_host_no_task_was_meant_for_is_not_ok(tmp_path: Path) -> None:
    play = tmp_path / "play.yml"
    play.write_text("- hosts: a\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: {msg: x}}]\n")
    outcomes = run_playbook(play, {"a": local(), "b": local()})
    assert outcomes["a"].status == "ok"
    assert outcomes["b"] == Outcome("b", "failed", message="nothing was run on it")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("- hosts: all\n  tasks: [\n", "YAML"),
        ("- hosts: all\n  tasks: [{no_such_module: {}}]\n", "no_such_module"),
        ("- hosts: all\n  roles: [no_such_role]\n", "no_such_role"),
    ],
)
def test_a_playbook_that_does_not_parse_is_an_error_in_ansibles_words(
    tmp_path: Path, text: str, word: str
) -> None:
    play = tmp_path / "play.yml"
    play.write_text(text)
    with pytest.raises(GpuprovError, match=word) as caught:
        run_playbook(play, {"a": local()})
    assert "play.yml" in caught.value.what
    assert "Traceback" not in caught.value.what


def test_our_own_modules_result_comes_whole_and_the_rest_is_named(tmp_path: Path) -> None:
    tasks = playbook(
        tmp_path,
        """
        - name: Big
          ansible.builtin.command:
            argv: ["{{ ansible_python_interpreter }}", -c, "print('x' * 400000, end='the end')"]
          changed_when: false
        """,
    )
    events: list[Event] = []
    run_playbook(tasks, {"a": local()}, on_event=events.append)
    result = events[-1].result
    assert set(result) == {"stdout", "rc", "truncated"}
    assert len(result["stdout"]) == 256 * 1024
    assert result["stdout"].endswith("the end")


def test_what_a_node_told_about_itself_is_never_a_template(tmp_path: Path) -> None:
    tasks = playbook(tmp_path, "- ansible.builtin.debug: {msg: '{{ gpuprov_node.os.id }} and {{ plain }}'}")
    hosts = {"a": local(gpuprov_node={"os": {"id": "{{ lookup('pipe', 'id') }}"}}, plain="{{ 1 + 1 }}")}
    events: list[Event] = []
    run_playbook(tasks, hosts, on_event=events.append)
    assert events[-1].result["msg"] == "{{ lookup('pipe', 'id') }} and 2"


def test_only_what_has_one_of_the_tags_is_run_with_all_that_a_role_includes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "ROLES", tmp_path / "roles")
    for name in ("one", "two"):
        tasks = tmp_path / "roles" / name / "tasks"
        tasks.mkdir(parents=True)
        (tasks / "main.yml").write_text(
            f"- ansible.builtin.debug: {{msg: {name}}}\n  changed_when: true\n  notify: told\n"
            "- ansible.builtin.include_tasks: more.yml\n"
        )
        (tasks / "more.yml").write_text(f"- ansible.builtin.debug: {{msg: more of {name}}}\n")
        (tmp_path / "roles" / name / "handlers").mkdir()
        (tmp_path / "roles" / name / "handlers/main.yml").write_text(
            f"- name: Tell\n  listen: told\n  ansible.builtin.debug: {{msg: told by {name}}}\n"
        )
    play = tmp_path / "play.yml"
    play.write_text(
        "- hosts: all\n  gather_facts: false\n"
        "  pre_tasks:\n"
        "    - {ansible.builtin.debug: {msg: before}, tags: always}\n"
        "    - {ansible.builtin.debug: {msg: the roles' own look}, tags: [always, node_facts]}\n"
        "  roles: [{role: one, tags: one}, {role: two, tags: two}]\n"
    )
    events: list[Event] = []
    outcome = run_playbook(
        play, {"a": local()}, on_event=events.append, tags=["two"], skip_tags=["node_facts"]
    )["a"]
    assert (outcome.status, outcome.changed) == ("ok", 1)
    said = [event.result["msg"] for event in events if "msg" in event.result]
    assert [text for text in said if not text.startswith("told")] == ["before", "two", "more of two"]
    assert "told by two" in said


def test_a_role_that_would_be_skipped_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "ROLES", tmp_path / "roles")
    for name, tasks in (("good", "[{command: 'true', changed_when: true}]"), ("bad", "{not: a list}")):
        (tmp_path / "roles" / name / "tasks").mkdir(parents=True)
        (tmp_path / "roles" / name / "tasks" / "main.yml").write_text(tasks)
    play = tmp_path / "play.yml"
    play.write_text(
        "- hosts: all\n  gather_facts: false\n"
        "  pre_tasks: [{import_role: {name: bad}, tags: 'bad, worse'}]\n"
        "  roles: [{role: good, tags: good}, {role: bad, tags: [worse]}]\n"
    )
    with pytest.raises(GpuprovError, match="Ansible could not run"):
        run_playbook(play, {"a": local()}, tags=["good"])
    outcome = run_playbook(play, {"a": local()}, tags=["good"], skip_tags=["worse"])["a"]
    assert (outcome.status, outcome.changed) == ("ok", 1)


def test_roles_run_in_order_without_the_comparison_of_their_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pre_tasks before and tasks after the roles; `when` and tags of each apply."""
    monkeypatch.setattr(paths, "ROLES", tmp_path / "roles")
    for name in ("one", "two", "three"):
        for folder in ("tasks", "meta", "defaults"):
            (tmp_path / "roles" / name / folder).mkdir(parents=True)
        (tmp_path / "roles" / name / "tasks/main.yml").write_text(
            f"- {{ansible.builtin.debug: {{msg: '{name} {{{{ {name}_how }}}}'}}, tags: {name}}}\n"
        )
        (tmp_path / "roles" / name / "defaults/main.yml").write_text(f"{name}_how: well\n")
        (tmp_path / "roles" / name / "meta/argument_specs.yml").write_text(
            f"argument_specs: {{main: {{options: {{{name}_how: {{type: str, choices: [well]}}}}}}}}\n"
        )
    play = tmp_path / "play.yml"
    play.write_text(
        "- hosts: all\n  gather_facts: false\n"
        "  pre_tasks: [{ansible.builtin.debug: {msg: before}, tags: always}]\n"
        "  roles:\n    - {role: one, tags: one}\n    - {role: two, tags: two, when: two_how == 'ill'}\n"
        "    - {role: three, tags: three}\n"
        "  tasks: [{ansible.builtin.debug: {msg: behind}, tags: always}]\n"
    )

    def said(**options: Any) -> list[str]:
        events: list[Event] = []
        run_playbook(play, {"a": local(one_how="ill")}, on_event=events.append, **options)
        return [str(event.result["msg"]) for event in events if event.result.get("msg")]

    assert said(skip_tags=[handover.ARGUMENT_SPECS]) == ["before", "one ill", "three well", "behind"]
    assert said(skip_tags=[handover.ARGUMENT_SPECS], tags=["three"]) == ["before", "three well", "behind"]
    assert "value of one_how must be one of: well" in " ".join(said())


def test_up_takes_out_a_broken_module_package_whatever_steps_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next task, `dpkg --configure -a`, would compile the module again and fail again."""
    for name, said in (("dpkg", "nvidia-kernel-open-dkms"), ("dpkg-query", "installed x 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    node = {"gpuprov_run": "r1", "gpuprov_roles": ["nvidia_driver"], "nvidia_driver_enabled": False}
    others = set(roles_in_order()) - {"nvidia_driver"} | {"node_facts"}
    events: list[Event] = []
    run_playbook(
        *(paths.PLAYBOOKS / "up.yml", {"a": local(ansible_become=False, **node)}),
        on_event=events.append,
        tags=["nvidia_driver_persistence"],
        skip_tags=others,
        check_mode=True,
    )
    ended = [event.task for event in events if event.kind == "ok"]
    assert "Find a partly installed nvidia-dkms package" in ended


def test_check_mode_changes_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    tasks = playbook(tmp_path, f"- ansible.builtin.file: {{path: {made}, state: directory, mode: '0755'}}")
    outcome = run_playbook(tasks, {"a": local()}, check_mode=True)["a"]
    assert (outcome.status, outcome.changed) == ("ok", 1)
    assert not made.exists()


def written(folder: Path) -> tuple[Path, Path]:
    """Return a playbook that writes a file with a secret, and that file, which holds an older secret."""
    file = folder / "app.conf"
    file.write_text("password=0ld-w0rd\nport=1\n")
    tasks = playbook(
        folder,
        f"""
        - name: Write
          ansible.builtin.copy: {{dest: "{file}", content: "password={{{{ app_password }}}}\\nport=2\\n"}}
        - name: Say
          ansible.builtin.command: {{argv: [echo, "{{{{ app_password }}}}"]}}
          changed_when: false
        - name: Keep quiet
          ansible.builtin.command: {{argv: [echo, unheard]}}
          changed_when: false
          no_log: true
        """,
    )
    return tasks, file


@pytest.mark.parametrize("check_mode", [False, True])
def test_differences_are_in_the_events_without_secrets(tmp_path: Path, check_mode: bool) -> None:
    tasks, file = written(tmp_path)
    events: list[Event] = []
    run_playbook(
        tasks,
        {"a": local(app_password=SECRET)},
        on_event=events.append,
        diff=True,
        check_mode=check_mode,
    )
    (diff,) = [event.result["diff"] for event in events if "diff" in event.result]
    assert f"--- before: {file}\n" in diff
    assert "-port=1\n+port=2\n" in diff
    assert "********" in diff
    assert not [text for text in (SECRET, "0ld-w0rd") if text in str(events)]
    assert ("port=2" in file.read_text()) is not check_mode


def test_without_diff_there_are_none(tmp_path: Path) -> None:
    events: list[Event] = []
    run_playbook(written(tmp_path)[0], {"a": local(app_password=SECRET)}, on_event=events.append)
    assert [event.kind for event in events if event.task == "Write"] == ["started", "changed"]
    assert not [event for event in events if {"diff", "detail"} & event.result.keys()]


@pytest.mark.parametrize("verbosity", [1, 3])
def test_what_verbosity_adds_is_masked_and_has_arguments_from_the_third_on(
    tmp_path: Path, verbosity: int
) -> None:
    events: list[Event] = []
    run_playbook(
        written(tmp_path)[0],
        {"a": local(app_password=SECRET)},
        on_event=events.append,
        diff=True,
        verbosity=verbosity,
    )
    details = {event.task: event.result["detail"] for event in events if "detail" in event.result}
    said = json.loads(details["Say"])
    assert said["stdout"] == "********"
    assert said["rc"] == 0
    assert ("invocation" in said) is (verbosity == 3)
    said_of_none = [event.result["detail"] for event in events if event.kind == "said"]
    assert any("ESTABLISH LOCAL CONNECTION" in text for text in said_of_none) is (verbosity == 3)
    assert bool(said_of_none) is (verbosity == 3)
    assert not [text for text in (SECRET, "0ld-w0rd", "unheard") if text in str(events)]


def test_a_host_that_is_off_is_unreachable_however_often_ssh_is_to_try(tmp_path: Path) -> None:
    tasks = playbook(tmp_path, "- ansible.builtin.ping:\n")
    off = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_args": "-o ConnectionAttempts=100"}
    outcome = run_playbook(tasks, {"off": off}, timeout=60)["off"]
    assert outcome.status == "unreachable"
    assert "Connection refused" in outcome.message


def test_hosts_that_take_too_long_are_failed_and_their_processes_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    tasks = playbook(
        tmp_path,
        f"""
        - name: Hang
          ansible.builtin.shell: echo $$ > {pid_file}; exec sleep 300
          when: inventory_hostname == "slow"
        """,
    )
    outcome = run_playbook(tasks, {"slow": local()}, timeout=15)["slow"]
    assert (outcome.status, outcome.task, outcome.message) == ("failed", "Hang", "did not finish in 15 s")
    assert not alive(int(pid_file.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_ansible_and_removes_what_it_was_given(
    tmp_path: Path, memory: Path, number: signal.Signals
) -> None:
    pid_file = tmp_path / "pid"
    tasks = playbook(tmp_path, f"- ansible.builtin.shell: echo $$ > {pid_file}; exec sleep 300")
    with playing(ALONE, tasks, memory) as process:
        pid = int(line_of(pid_file, process))
        assert alive(pid)
        process.send_signal(number)
        assert process.wait(timeout=60) == 130
    assert not alive(pid)
    assert list(memory.iterdir()) == []


def test_a_killed_controller_takes_its_ansible_with_it(tmp_path: Path, memory: Path) -> None:
    began, went_on = tmp_path / "began", tmp_path / "went_on"
    nap = f"trap '' HUP; echo > {began}; sleep 2"
    tasks = playbook(tmp_path, f"- ansible.builtin.shell: {nap}\n- ansible.builtin.command: touch {went_on}")
    with playing(ALONE, tasks, memory) as process:
        line_of(began, process)
        process.kill()

    def left() -> list[str]:
        running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return [line for line in running.splitlines() if str(memory) in line]

    until(lambda: len([line for line in left() if "ansible-playbook" in line]) <= 1)  # the one doing the task
    handover.remove_orphans()
    until(lambda: not left())
    assert not went_on.exists(), "the task after the one that ran must not be begun"
    assert list(memory.iterdir()) == []


def test_a_mistake_in_the_event_handler_is_raised_after_ansible_ended(tmp_path: Path, memory: Path) -> None:
    nap = f"300.{os.getpid()}"  # unique among the sleep commands on this machine
    tasks = playbook(tmp_path, f"- ansible.builtin.command: sleep {nap}")

    def handler(_event: Event) -> None:
        raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError, match="ours"):
        run_playbook(tasks, {"a": local()}, on_event=handler)
    assert list(memory.iterdir()) == []
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert nap not in running


def leaky_tasks(folder: Path, memory: Path, copy: Path) -> Path:
    """Return tasks that print the secret and copy everything handed to Ansible while it exists."""
    return playbook(
        folder,
        f"""
        - name: Show everything handed over
          ansible.builtin.shell: cp -r {memory} {copy}; tr '\\0' '\\n' < /proc/self/environ; ps -ef
          changed_when: false
        - name: Say it
          ansible.builtin.debug:
            msg: "{{{{ ansible_become_password }}}} {{{{ nested.api_token }}}} {{{{ extra_secret }}}}"
        - name: Fail with it
          ansible.builtin.command: "sh -c 'echo {{{{ ansible_become_password }}}} >&2; exit 1'"
          changed_when: false
        """,
    )


def test_secrets_stay_in_the_private_folder(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLOUD_TOKEN", SECRET + "-env")
    monkeypatch.setenv("ANSIBLE_LOG_PATH", str(tmp_path / "ansible.log"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "copy"
    hosts = {
        "a": local(
            ansible_become_password="{{ sudo_word }}",
            sudo_word=SECRET,
            nested={"api_token": SECRET + "-nested"},
        )
    }
    events: list[Event] = []
    outcome = run_playbook(
        leaky_tasks(tmp_path, memory, copy),
        hosts,
        on_event=events.append,
        extra_vars={"extra_secret": SECRET + "-extra"},
    )["a"]

    assert outcome.status == "failed"
    assert outcome.message == "the command ended with status 1 · ********"
    said = [event for event in events if event.task == "Say it" and event.kind == "ok"]
    assert said[0].result["msg"] == "******** ******** ********"
    assert SECRET not in json.dumps([[event.__dict__ for event in events], outcome.__dict__])
    shown = next(
        e.result["stdout"] for e in events if e.task == "Show everything handed over" and "stdout" in e.result
    )
    assert "ANSIBLE_LIBRARY" in shown  # proves that the environment and the process list were printed
    assert "ansible-playbook" in shown
    assert SECRET not in shown

    holders = [
        path for path in copy.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")
    ]
    assert {"hosts.json", "extravars"} == {path.name for path in holders}
    assert all(path.stat().st_mode & 0o077 == 0 for path in holders)
    assert not any(
        SECRET + "-env" in path.read_text(errors="replace") for path in copy.rglob("*") if path.is_file()
    )
    assert list(memory.iterdir()) == []
    assert SECRET not in "".join(capfd.readouterr())
    elsewhere = [path for path in tmp_path.rglob("*") if path.is_file() and copy not in path.parents]
    assert not [path for path in elsewhere if SECRET in path.read_text(errors="replace")]


def test_the_private_folder_of_a_killed_controller_is_removed_and_a_living_ones_stays(
    tmp_path: Path, memory: Path
) -> None:
    (memory / "gpuprov-dead").mkdir()
    (memory / "gpuprov-dead" / "lock").touch()
    (memory / "gpuprov-new").mkdir()  # just made: its owner has not locked it yet
    holder = subprocess.Popen(["flock", str(memory / "gpuprov-alive.lock"), "true"])
    holder.wait()
    alive_folder = memory / "gpuprov-alive"
    alive_folder.mkdir()
    (memory / "gpuprov-alive.lock").rename(alive_folder / "lock")
    with (alive_folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run_playbook(playbook(tmp_path, "- ansible.builtin.debug: {msg: x}"), {"a": local()})
    assert sorted(path.name for path in memory.iterdir()) == ["gpuprov-alive", "gpuprov-new"]


def test_a_folder_that_is_being_made_is_nobody_elses_orphan(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locking = fcntl.flock

    def flock(file: Any, how: int) -> None:
        if not how & fcntl.LOCK_NB:
            handover.remove_orphans(memory)  # another run begins, just before this one has its lock
        locking(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with handover.private_folder() as folder:
        handover.remove_orphans(memory)
        assert folder.is_dir()
    assert list(memory.iterdir()) == []


def test_a_vaulted_variable_is_decrypted_by_ansible_alone(tmp_path: Path) -> None:
    key = tmp_path / "vault.key"
    key.write_text("open sesame\n")
    vault = Path(sys.executable).parent / "ansible-vault"
    encrypted = subprocess.run(
        [str(vault), "encrypt_string", "--vault-password-file", str(key), "treasure"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ciphertext = "\n".join(line.strip() for line in encrypted.splitlines()[1:]) + "\n"
    tasks = playbook(tmp_path, "- ansible.builtin.debug: {msg: '{{ word | length }}'}")
    events: list[Event] = []
    run_playbook(
        tasks,
        {"a": local(word={"__ansible_vault": ciphertext})},
        on_event=events.append,
        vault_password_files=[key],
    )
    assert events[-1].result["msg"] == "8"


def test_the_users_ansible_settings_count_only_when_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "ansible.cfg"
    settings.write_text("[defaults]\nremote_user = from_cfg\n")
    monkeypatch.chdir(tmp_path)
    asked = "DEFAULT_REMOTE_USER", "DEFAULT_INTERNAL_POLL_INTERVAL"
    words = " ".join(f"{{{{ lookup('config', '{name}') }}}}" for name in asked)
    tasks = playbook(tmp_path, f'- ansible.builtin.debug: {{msg: "{words}"}}')

    def remote_user_and_interval() -> list[str]:
        events: list[Event] = []
        run_playbook(tasks, {"a": local()}, on_event=events.append)
        return str(events[-1].result.get("msg")).split()

    *user, interval = remote_user_and_interval()
    assert user != ["from_cfg"]
    assert float(interval) >= 0.01, "Ansible's main process spins while nodes work"
    monkeypatch.setenv("ANSIBLE_CONFIG", str(settings))
    assert remote_user_and_interval() == ["from_cfg", "0.001"]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            {"msg": "Task failed: Missing sudo password"},
            "sudo refused: give its password with -K or ansible_become_password",
        ),
        (
            {"msg": "Timeout (32s) waiting for privilege escalation prompt: "},
            "sudo did not answer within 32 s",
        ),
        (
            {"msg": "non-zero return code", "rc": 7, "stderr": "one\ntwo\n\nthree\nfour\n"},
            "ended with status 7 · two · three · four",
        ),
        ({"msg": "non-zero return code", "rc": 7, "stdout": "only here\n"}, "status 7 · only here"),
        (
            {"msg": "'/usr/bin/apt-get -y install 'x=1'' failed: E: Version '1' for 'x' was not found\n"},
            "E: Version '1' for 'x' was not found",
        ),
        ({"msg": ["two", "lines"]}, "two · lines"),
        ({"censored": "the output has been hidden", "msg": "x"}, "no_log"),
        ({}, "it failed without a message"),
        ({"msg": "MODULE FAILURE", "module_stderr": "Traceback\nImportError: no apt_pkg\n"}, "no apt_pkg"),
        ({"msg": "x" * 5000}, "…"),
    ],
)
def test_a_failure_is_one_line_a_person_can_act_on(result: dict[str, Any], words: str) -> None:
    message = message_of(result)
    assert words in message
    assert "\n" not in message
    assert len(message) <= 600
    assert "/usr/bin/apt-get" not in message


def test_no_hosts_is_no_run() -> None:
    assert run_playbook(Path("/nonexistent.yml"), {}) == {}
