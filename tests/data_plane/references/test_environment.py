"""Which environment a server's process gets."""

from __future__ import annotations

import pytest

from leaseway.data_plane.references.environment import child_environment
from leaseway.spec.model import InheritEnv
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


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN",
        "TOKEN",
        "HF_TOKENS",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "OPENAI_API_KEY",
        "APIKEY",
        "openai_apikey",
        "PGPASSWORD",
        "MYSQL_PWD",
        "DB_PASSWD",
        "DB_PASS",
        "SMTP_PASS_FILE",
        "SSH_PRIVATE_KEY_FILE",
        "ENCRYPTION_KEY",
        "KEY",
        "CREDENTIALS",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "SSH_AUTH_SOCK",
        "NPM_CONFIG__AUTH",
        "Authorization",
        "X-Api-Key",
        "GH_PAT",
        "SESSION_COOKIE",
    ],
)
def test_a_name_like_this_is_a_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PWD",
        "OLDPWD",
        "HOME",
        "KEYBOARD",
        "MONKEY",
        "TOKENIZERS_PARALLELISM",
        "AUTHOR",
        "BYPASS",
        "COMPASS_URL",
    ],
)
def test_a_name_like_this_is_not(name: str) -> None:
    assert not looks_secret(name)


def test_safe_leaves_out_secrets_and_our_own() -> None:
    assert child_environment(PARENT, "safe", {}) == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LANG": "C.UTF-8",
        "EDITOR": "vi",
    }


def test_what_the_command_set_for_its_own_grpc_stays_with_it() -> None:
    ours = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
    assert child_environment({**PARENT, **ours}, "all", {}) == child_environment(PARENT, "all", {})
    chosen = {"GRPC_ENABLE_FORK_SUPPORT": "1", "GRPC_VERBOSITY": "DEBUG"}
    assert chosen.items() <= child_environment({**PARENT, **chosen}, "safe", {}).items()


def test_all_keeps_secrets_but_never_our_own() -> None:
    child = child_environment(PARENT, "all", {})
    assert child["GITHUB_TOKEN"] == "t"
    assert not [name for name in child if name.startswith("LEASEWAY_")]


def test_none_keeps_what_programs_need_to_find_themselves() -> None:
    assert child_environment(PARENT, "none", {}) == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LANG": "C.UTF-8",
    }


@pytest.mark.parametrize("inherit", ["safe", "all", "none"])
def test_what_is_wired_wins_whatever_its_name(inherit: str) -> None:
    wired = {"PATH": "/opt", "GITHUB_TOKEN": "wired", "LEASEWAY_KEY": "meant"}
    child = child_environment(PARENT, inherit, wired)  # type: ignore[arg-type]
    assert {name: child[name] for name in wired} == wired


@pytest.mark.parametrize("inherit", ["safe", "all", "none"])
def test_no_child_inherits_what_opens_the_vault(inherit: InheritEnv) -> None:
    ours = dict.fromkeys(("LEASEWAY_VAULT", "LEASEWAY_VAULT_KEY", "LEASEWAY_VAULT_NEW_KEY"), "x")
    assert not ours.keys() & child_environment({**PARENT, **ours}, inherit, {}).keys()
