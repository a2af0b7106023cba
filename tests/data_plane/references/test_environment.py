"""The environment of a server's process."""

from __future__ import annotations

import pytest

from leaseway.data_plane.kinds.process.launch import child_environment
from leaseway.spec.model import InheritEnv
from leaseway.wire.grpc_environment import OF_COMMANDS, OF_EVERY_PROGRAM
from leaseway.wire.secrets.secret_names import looks_secret

PARENT = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LANG": "C.UTF-8",
    "EDITOR": "vi",
    "GITHUB_TOKEN": "t",
    "LEASEWAY_KEY": "k",
    "LEASEWAY_ADDRESS": "a",
}


SECRET_NAMES = (
    *("GITHUB_TOKEN", "TOKEN", "HF_TOKENS", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
    *("OPENAI_API_KEY", "APIKEY", "openai_apikey", "PGPASSWORD", "MYSQL_PWD", "DB_PASSWD"),
    *("DB_PASS", "SMTP_PASS_FILE", "SSH_PRIVATE_KEY_FILE", "ENCRYPTION_KEY", "KEY"),
    *("CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "NPM_CONFIG__AUTH"),
    *("Authorization", "X-Api-Key", "GH_PAT", "SESSION_COOKIE"),
)
PLAIN_NAMES = (
    *("PATH", "PWD", "OLDPWD", "HOME", "KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM"),
    *("AUTHOR", "BYPASS", "COMPASS_URL"),
)


@pytest.mark.parametrize("name", [*SECRET_NAMES, *PLAIN_NAMES])
def test_secrets_are_recognized_by_their_names(name: str) -> None:
    assert looks_secret(name) is (name in SECRET_NAMES)


def test_safe_omits_secrets_and_our_own_variables() -> None:
    assert child_environment(PARENT, "safe", {}) == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LANG": "C.UTF-8",
        "EDITOR": "vi",
    }


def test_variables_for_the_commands_own_grpc_are_not_inherited() -> None:
    ours = {**OF_EVERY_PROGRAM, **OF_COMMANDS}
    assert child_environment({**PARENT, **ours}, "all", {}) == child_environment(PARENT, "all", {})
    chosen = dict.fromkeys(ours, "chosen")
    assert chosen.items() <= child_environment({**PARENT, **chosen}, "safe", {}).items()


def test_all_keeps_secrets_but_not_our_own_variables() -> None:
    child = child_environment(PARENT, "all", {})
    assert child["GITHUB_TOKEN"] == "t"
    assert not [name for name in child if name.startswith("LEASEWAY_")]


def test_none_keeps_what_programs_need_to_run() -> None:
    assert child_environment(PARENT, "none", {}) == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LANG": "C.UTF-8",
    }


@pytest.mark.parametrize("inherit", ["safe", "all", "none"])
def test_configured_variables_win(inherit: str) -> None:
    configured = {"PATH": "/opt", "GITHUB_TOKEN": "configured", "LEASEWAY_KEY": "meant"}
    child = child_environment(PARENT, inherit, configured)  # type: ignore[arg-type]
    assert {name: child[name] for name in configured} == configured


@pytest.mark.parametrize("inherit", ["safe", "all", "none"])
def test_no_child_inherits_the_key_of_the_vault(inherit: InheritEnv) -> None:
    ours = dict.fromkeys(("LEASEWAY_VAULT", "LEASEWAY_VAULT_KEY", "LEASEWAY_VAULT_NEW_KEY"), "x")
    assert not ours.keys() & child_environment({**PARENT, **ours}, inherit, {}).keys()
