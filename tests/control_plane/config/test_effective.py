"""Each configured value with the layer, the file and the line that it came from."""

from pathlib import Path

from leaseway.control_plane.config.effective import MASK, EffectiveValue, effective_values
from leaseway.control_plane.config.layers.sources import parse_sources
from leaseway.control_plane.config.loading import load_sources


def values(folder: Path, **files: str) -> list[EffectiveValue]:
    words = []
    for layer, text in files.items():
        path = folder / f"{layer}.yaml"
        path.write_text(f"version: 1\n{text}")
        words.append(f"domain=acme:{path}" if layer == "domain" else f"{layer}={path}")
    sources = parse_sources(words)
    return effective_values(load_sources(sources), sources)


def test_every_value_names_its_layer_file_and_line(tmp_path: Path) -> None:
    found = values(
        tmp_path,
        system="defaults: {transform: [{prefix: p_}]}\nservers:\n  a:\n    transport: stdio\n"
        "    command: x\n    env: {A: '1', B: '2'}\ntenants: {acme: {secrets: [b]}}\n",
        domain="servers:\n  a:\n    env:\n      B: {secret: b}\n",
        session="servers:\n  a:\n    warm: 2\n",
    )
    of_tenant = {value.key: value for value in found if value.tenant == "acme"}
    assert {key: (value.layer, value.line) for key, value in of_tenant.items()} == {
        "transport": ("system", 5),
        "command": ("system", 6),
        "env.A": ("system", 7),
        "env.B": ("domain", 5),
        "transform": ("system", 2),
        "warm": ("session", 4),
    }
    assert of_tenant["env.B"].value == {"secret": "b"}
    assert of_tenant["env.B"].file == str(tmp_path / "domain.yaml")
    assert {value.key for value in found if not value.tenant} == of_tenant.keys()


def test_filters_of_all_layers_are_shown_each_with_its_place(tmp_path: Path) -> None:
    system = "servers:\n  a: {transport: stdio, command: x}\n"
    domain = "servers:\n  a:\n    tools: {whitelist: [env]}\n    prompts: {blacklist: [p]}\n"
    filters = [
        (value.key, value.value["whitelist"], value.value["blacklist"], value.layer, value.line)
        for value in values(tmp_path, system=system, domain=domain)
        if value.tenant and value.key in ("tools", "prompts")
    ]
    assert filters == [
        ("tools", ["env"], [], "domain", 4),
        ("prompts", [], ["p"], "domain", 5),
    ]
    own = system.replace("x}", "x,\n      tools: {blacklist: [read]}}")
    both = [
        (value.value, value.layer, value.line)
        for value in values(tmp_path, system=own, domain=domain)
        if value.tenant and value.key == "tools"
    ]
    assert both == [
        ({"whitelist": [], "blacklist": ["read"]}, "system", 4),
        ({"whitelist": ["env"], "blacklist": []}, "domain", 4),
    ]


def test_tools_that_a_clients_file_denies_are_shown_with_its_line(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    settings = tmp_path / ".claude" / "settings.local.json"
    settings.parent.mkdir()
    settings.write_text(
        '{"enabledMcpjsonServers": ["a"],\n"permissions": {"deny": [\n"mcp__a__t1"]}}'
    )
    sources = parse_sources([f"system={tmp_path / '.mcp.json'}", f"session={settings}"])
    (denied,) = [
        value for value in effective_values(load_sources(sources), sources) if value.key == "tools"
    ]
    assert (denied.value, denied.layer, denied.line) == (
        {"whitelist": [], "blacklist": ["t1"]},
        "session",
        3,
    )


def test_a_sandbox_is_shown_in_the_words_in_which_it_is_written(tmp_path: Path) -> None:
    entry = "servers:\n  {}: {{transport: stdio, command: x, sandbox: {}}}\n"
    for sandbox, level in (("strict", "strict"), ("true", "basic")):
        found = values(tmp_path, system=entry.format("a", sandbox))
        (shown,) = [value.value for value in found if value.key == "sandbox"]
        assert shown == {"enabled": True, "network": False, "writable": [], "level": level}


def test_a_hidden_server_shows_who_disabled_it(tmp_path: Path) -> None:
    found = values(
        tmp_path,
        system="servers:\n  a: {transport: stdio, command: x}\n",
        domain="servers:\n  a:\n    enabled: false\n",
    )
    (one,) = [value for value in found if value.tenant]
    assert (one.key, one.value, one.layer, one.line) == ("enabled", False, "domain", 4)


def test_what_looks_like_a_credential_is_not_shown(tmp_path: Path) -> None:
    secret = "sk-" + "a1b2c3d4" * 4
    found = values(
        tmp_path,
        session="servers:\n  a: {transport: stdio, command: x, args: [--key, "
        f"{secret}], env: {{A: {secret}}}}}\n",
        system="servers: {}\n",
    )
    shown = {value.key: value.value for value in found}
    assert shown["args"] == ["--key", MASK]
    assert shown["env.A"] == MASK
    assert secret not in repr(found)


def test_no_part_of_a_value_shows_a_literal_credential(tmp_path: Path) -> None:
    found = values(
        tmp_path,
        session="servers:\n"
        "  a:\n"
        "    transport: streamable_http\n"
        "    url: 'http://a.example/mcp'\n"
        "    proxy: {url: 'http://p:1', username: u, password: h1dden}\n"
        "    auth: {id_jag: {client_id: me, client_secret: h1dden,"
        " identity_provider: 'https://i.example', identity_provider_client_id: it,"
        " identity_provider_client_secret: h1dden, listing_token: h1dden}}\n"
        "  b:\n"
        "    transport: http_api\n"
        "    base_url: http://b.example\n"
        "    security: {k: {type: bearer, value: h1dden}}\n"
        "    http_tools: [{name: get, method: GET, endpoint: /a}]\n",
        system="servers: {}\n",
    )
    assert "h1dden" not in str(found)
    shown = {(value.server, value.key): value.value for value in found}
    assert shown["a", "auth"]["values"] == {
        "client_id": "me",
        "client_secret": MASK,
        "identity_provider_client_id": "it",
        "identity_provider_client_secret": MASK,
        "listing_token": MASK,
    }


def test_values_have_the_keys_of_the_file(tmp_path: Path) -> None:
    found = values(
        tmp_path,
        system="servers:\n"
        "  a:\n"
        "    transport: stdio\n"
        "    command: x\n"
        "    domain_may: [call_timeout]\n"
        "    limits: {memory: 1MiB}\n"
        "    rules: [{deny: 'false', tools: [b]}]\n",
    )
    shown = {value.key: value.value for value in found}
    assert shown["limits"] == {"memory": 1 << 20}
    assert shown["rules"] == [{"deny": "false", "tools": ["b"]}]
    assert "domain_may" not in shown, "only the layers know it"
