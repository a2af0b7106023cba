"""Every way in which a server's keys can be wrong: message, line, column, nearest key."""

import pytest
from tests.control_plane.config.parsing import PATH, entry, parse

from leaseway.control_plane.config.schema.issues import ConfigIssue

STDIO_HEAD = "transport: stdio, command: x, "
HTTP_HEAD = "transport: streamable_http, "


def marked(text: str) -> tuple[str, int]:
    """Return a file without the mark in its third line, and the column that is marked."""
    column = text.splitlines()[2].index("▸") + 1
    return text.replace("▸", ""), column


_NO_PART = (
    "can't be part of a tool name: names consist of a-z, A-Z, 0-9, '_' and '-', and only {server}"
    " is replaced."
)
_STEP = (
    "must be one of {prefix: TEXT}, {prefix: {remove: TEXT, add: TEXT}}, {replace: {remove: TEXT,"
    " add: TEXT}} and {suffix: TEXT}, but"
)
_NO_REFERENCE = (
    "can't contain ${NAME}: references are resolved on workers, and the control plane reads this"
    " key itself. Write the value instead."
)
_WOULD_SHOW = "would show the value in process lists and logs. Pass it under 'env' or 'headers'."
_SPAN = "must be a duration from 0.001s to 1d, such as 30s, 15m or 1.5, but it is"

# What an entry also holds, the column marked; the key below `servers.s`; reason; message.
ENTRY_ERRORS: list[tuple[str, str, str, str]] = [
    # Unknown keys and their nearest.
    ("▸comand: x", "comand", "UNKNOWN_KEY",
     "'comand' is not a key of a server: did you mean 'command'?"),
    ("▸truly-stateless: true", "truly-stateless", "UNKNOWN_KEY",
     "'truly-stateless' is not a key of a server: did you mean 'truely-stateless'?"),
    ("▸session_id: ''", "session_id", "UNKNOWN_KEY",
     "'session_id' is not a key of a server: did you mean 'sessionId'?"),
    ("▸type: stdio", "type", "UNKNOWN_KEY",
     "'type' is not a key of a server: did you mean 'transport'?"),
    ("▸cmd: npx", "cmd", "UNKNOWN_KEY",
     "'cmd' is not a key of a server: did you mean 'command'?"),
    ("▸timeout: 3", "timeout", "UNKNOWN_KEY",
     "'timeout' is not a key of a server: did you mean 'call_timeout'?"),
    ("▸whitelist: []", "whitelist", "UNKNOWN_KEY",
     "'whitelist' is not a key of a server: did you mean 'tools'?"),
    ("tools: {▸whitlist: []}", "tools.whitlist", "UNKNOWN_KEY",
     "'whitlist' is not a key of 'tools': did you mean 'whitelist'?"),
    ("prompts: {▸allow: []}", "prompts.allow", "UNKNOWN_KEY",
     "'allow' is not a key of 'prompts': did you mean 'whitelist'?"),
    ("limits: {▸mem: 1}", "limits.mem", "UNKNOWN_KEY",
     "'mem' is not a key of 'limits': did you mean 'memory'?"),
    ("restart: {▸maximum: 1}", "restart.maximum", "UNKNOWN_KEY",
     "'maximum' is not a key of 'restart': did you mean 'max'?"),
    ("sandbox: {▸zzz: 1}", "sandbox.zzz", "UNKNOWN_KEY",
     "'zzz' is not a key of 'sandbox': use one of level, network, writable."),
    ("env: {A: {▸envv: B}}", "env.A.envv", "UNKNOWN_KEY",
     "'envv' under 'servers.s.env.A' is not a reference: did you mean 'env'?"),
    ("transform: [{▸prefx: a}]", "transform[0].prefx", "UNKNOWN_KEY",
     "'prefx' is not a transform: did you mean 'prefix'?"),
    ("transform: [{prefix: {▸remov: a, remove: b}}]", "transform[0].prefix.remov",
     "UNKNOWN_KEY", "'remov' is not a key of a prefix: did you mean 'remove'?"),
    # Keys twice, keys of another transport.
    ("args: [], ▸args: []", "args", "DUPLICATE_KEY",
     "'args' is set twice, first on line 3; remove one."),
    ("env: {A: '', ▸A: ''}", "env.A", "DUPLICATE_KEY",
     "'A' is set twice, first on line 3; remove one."),
    ("▸url: http://a/", "url", "KEY_NOT_FOR_TRANSPORT",
     ("'url' is not for the transport 'stdio', only for 'sse' or 'streamable_http' or 'websocket';"
     " remove it.")),
    ("▸headers: {}", "headers", "KEY_NOT_FOR_TRANSPORT",
     ("'headers' is not for the transport 'stdio', only for 'http_api' or 'sse' or"
     " 'streamable_http' or 'websocket'; remove it.")),
    ("▸sessionId: ''", "sessionId", "KEY_NOT_FOR_TRANSPORT",
     "'sessionId' is not for the transport 'stdio', only for 'streamable_http'; remove it."),
    # Wrong types.
    ("enabled: ▸yes", "enabled", "WRONG_TYPE",
     "'servers.s.enabled' must be true or false, but it is text."),
    ("truely-stateless: ▸1", "truely-stateless", "WRONG_TYPE",
     "'servers.s.truely-stateless' must be true or false, but it is '1'."),
    ("description: ▸5", "description", "WRONG_TYPE",
     "'servers.s.description' must be text, but it is a number; put it in quotes."),
    ("args: ▸-y", "args", "WRONG_TYPE",
     "'servers.s.args' must be a list, but it is text."),
    ("args: [a, ▸8080]", "args[1]", "WRONG_TYPE",
     "'servers.s.args[1]' must be text, but it is a number; put it in quotes."),
    ("args: [▸[a]]", "args[0]", "WRONG_TYPE",
     "'servers.s.args[0]' must be text, but it is a list."),
    ("env: ▸[A]", "env", "WRONG_TYPE", "'servers.s.env' must be a mapping, but it is a list."),
    ("env: {A: ▸true}", "env.A", "WRONG_TYPE",
     "'servers.s.env.A' must be text, but it is true or false; put it in quotes."),
    ("env: {A: ▸}", "env.A", "WRONG_TYPE",
     "'servers.s.env.A' must be text, but it is empty."),
    ("env: {A: ▸{env: B, secret: C}}", "env.A", "WRONG_TYPE",
     ("'servers.s.env.A' must be text or exactly one of {env: NAME}, {secret: NAME} and {file:"
     " PATH}; it has 2 keys.")),
    ("tools: ▸[]", "tools", "WRONG_TYPE",
     "'servers.s.tools' must be a mapping, but it is a list."),
    ("tools: {blacklist: ▸a}", "tools.blacklist", "WRONG_TYPE",
     "'servers.s.tools.blacklist' must be a list, but it is text."),
    ("warm: ▸1.5", "warm", "WRONG_TYPE",
     "'servers.s.warm' must be a whole number from 0 to 4096, but it is '1.5'."),
    ("warm: ▸-1", "warm", "WRONG_TYPE",
     "'servers.s.warm' must be a whole number from 0 to 4096, but it is '-1'."),
    ("max_instances: ▸0", "max_instances", "WRONG_TYPE",
     "'servers.s.max_instances' must be a whole number from 1 to 4096, but it is '0'."),
    ("call_timeout: ▸soon", "call_timeout", "WRONG_TYPE",
     f"'servers.s.call_timeout' {_SPAN} text."),
    ("call_timeout: ▸0", "call_timeout", "WRONG_TYPE",
     f"'servers.s.call_timeout' {_SPAN} '0'."),
    ("startup_timeout: ▸.inf", "startup_timeout", "WRONG_TYPE",
     f"'servers.s.startup_timeout' {_SPAN} '.inf'."),
    ("startup_timeout: ▸25h", "startup_timeout", "WRONG_TYPE",
     f"'servers.s.startup_timeout' {_SPAN} '25h'."),
    ("limits: {memory: ▸12parsec}", "limits.memory", "WRONG_TYPE",
     ("'servers.s.limits.memory' must be a size such as 512MiB or 2GB, or a number of bytes, but it"
     " is text.")),
    ("limits: {memory: ▸10KiB}", "limits.memory", "BAD_VALUE",
     "'servers.s.limits.memory' must be from 1 MiB to 1024 TiB, but is 10240 bytes."),
    ("limits: {cpu: ▸none}", "limits.cpu", "WRONG_TYPE",
     "'servers.s.limits.cpu' must be a number from 0.01 to 1024, but it is text."),
    ("sandbox: ▸'on'", "sandbox", "WRONG_TYPE",
     "'servers.s.sandbox' must be true, false, strict or {level: …, network: …, writable: […]}."),
    # Values outside of what a key allows.
    ("start: ▸eagr", "start", "BAD_VALUE",
     "'servers.s.start' can't be 'eagr': did you mean 'eager'?"),
    ("inherit_env: ▸nome", "inherit_env", "BAD_VALUE",
     "'servers.s.inherit_env' can't be 'nome': did you mean 'none'?"),
    ("protocol: ▸2025-06-19", "protocol", "BAD_VALUE",
     "'servers.s.protocol' can't be '2025-06-19': did you mean '2025-06-18'?"),
    ("sandbox: {writable: [▸tmp]}", "sandbox.writable[0]", "BAD_VALUE",
     "'servers.s.sandbox.writable[0]' must be an absolute path without '..', but is 'tmp'."),
    ("sandbox: {writable: [▸/]}", "sandbox.writable[0]", "BAD_VALUE",
     ("'servers.s.sandbox.writable[0]' is the root folder: a sandbox with write access everywhere"
      " protects nothing.")),
    ("sandbox: {writable: [▸/a/../b]}", "sandbox.writable[0]", "BAD_VALUE",
     "'servers.s.sandbox.writable[0]' must be an absolute path without '..', but is '/a/../b'."),
    ("restart: ▸{initial: 5, max: 1}", "restart", "BAD_VALUE",
     ("'servers.s.restart' starts at 5 s, above its maximum of 1 s; raise 'max' or lower"
     " 'initial'.")),
    ("warm: ▸3, max_instances: 2", "warm", "BAD_VALUE",
     "'warm' is 3, above 'max_instances', which is 2."),
    ("env: {▸1A: x}", "env.1A", "BAD_VALUE",
     ("'1A' under 'servers.s.env' is not the name of a variable: write letters, digits and '_',"
     " no digit first.")),
    ("env: {A: {env: ▸$B}}", "env.A.env", "BAD_VALUE",
     ("'servers.s.env.A.env' must be a name of letters, digits and '_', no digit first,"
     " not a value.")),
    ("env: {A: {secret: ▸db/password}}", "env.A.secret", "BAD_VALUE",
     ("'servers.s.env.A.secret' must be a name of 1 to 128 letters, digits, '_', '.' or '-',"
     " not a value.")),
    ("env: {A: {secret: ▸''}}", "env.A.secret", "BAD_VALUE",
     "'servers.s.env.A.secret' is empty."),
    ('env: {A: ▸"a\\0"}', "env.A", "BAD_VALUE",
     "'servers.s.env.A' contains a NUL character, which no program can be given."),
    # Filters and transforms.
    # Where a process starts, and with what.
    ("cwd: ▸work", "cwd", "BAD_VALUE",
     "'servers.s.cwd' must be an absolute path, but is 'work'."),
    ("cwd: ▸{file: x}", "cwd", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.cwd' can't be a reference: a folder {_WOULD_SHOW}"),
    ("worker_labels: ▸gpu", "worker_labels", "WRONG_TYPE",
     "'servers.s.worker_labels' must be a mapping, but it is text."),
    ("worker_labels: {gpu: ▸true}", "worker_labels.gpu", "WRONG_TYPE",
     ("'servers.s.worker_labels.gpu' must be text, but it is true or false; put it in quotes.")),
    ("worker_labels: {▸a b: x}", "worker_labels.a b", "BAD_VALUE",
     ("'a b' under 'servers.s.worker_labels' is not a label: write 1 to 128 letters, digits, '.',"
      " '_', '-' and '/'.")),
    ("domain_may: [▸worker_labels]", "domain_may[0]", "BAD_VALUE",
     ("'servers.s.domain_may[0]' opens keys of this server, such as 'args', or names, such as"
      " 'env.NAME'; 'worker_labels' is neither: did you mean 'worker_labels'?")),
    ("env_file: ▸''", "env_file", "BAD_VALUE", "'servers.s.env_file' is empty."),
    ("tools: {whitelist: [▸7]}", "tools.whitelist[0]", "WRONG_TYPE",
     "'servers.s.tools.whitelist[0]' must be text, but it is a number; put it in quotes."),
    ("transform: ▸{prefix: a}", "transform", "WRONG_TYPE",
     "'servers.s.transform' must be a list, but it is a mapping."),
    ("transform: [▸a]", "transform[0]", "BAD_TRANSFORM",
     f"'servers.s.transform[0]' {_STEP} it is text. Write steps as items of the list."),
    ("transform: [▸{prefix: a, suffix: b}]", "transform[0]", "BAD_TRANSFORM",
     f"'servers.s.transform[0]' {_STEP} it has 2 keys. Write steps as items of the list."),
    ("transform: [{prefix: ▸a.b}]", "transform[0].prefix", "BAD_TRANSFORM",
     f"'a.b' {_NO_PART}"),
    ("transform: [{suffix: ▸'{tenant}'}]", "transform[0].suffix", "BAD_TRANSFORM",
     f"'{{tenant}}' {_NO_PART}"),
    ("transform: [{prefix: ▸{add: a}}]", "transform[0].prefix.remove", "MISSING_KEY",
     "'servers.s.transform[0].prefix' needs 'remove'."),
    ("transform: [{suffix: ▸{remove: a}}]", "transform[0].suffix", "WRONG_TYPE",
     "'servers.s.transform[0].suffix' must be text, but it is a mapping."),
    # References where there may be none.
    ("args: [▸{secret: x}]", "args[0]", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.args[0]' can't be a reference: arguments {_WOULD_SHOW}"),
    ("args: [▸{env: x}]", "args[0]", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.args[0]' can't be a reference: arguments {_WOULD_SHOW}"),
    *(
        (f"{key}: ▸'${{X}}'", key, "REFERENCE_NOT_ALLOWED",
         f"'servers.s.{key}' {_NO_REFERENCE}")
        for key in ("description", "start", "protocol", "inherit_env", "call_timeout", "max_age",
                    "idle_timeout", "startup_timeout", "lease_drain_timeout")
    ),
    ("tools: {whitelist: [▸'${X}']}", "tools.whitelist[0]", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.tools.whitelist[0]' {_NO_REFERENCE}"),
    ("transform: [{prefix: ▸'${X}'}]", "transform[0].prefix", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.transform[0].prefix' {_NO_REFERENCE}"),
    ("limits: {memory: ▸'${X}'}", "limits.memory", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.limits.memory' {_NO_REFERENCE}"),
]  # fmt: skip


HTTP_ERRORS: list[tuple[str, str, str, str]] = [
    ("url: ▸'ftp://a/x'", "url", "BAD_VALUE",
     "'servers.s.url' must begin with http:// or https://, not with 'ftp'."),
    ("url: ▸localhost/mcp", "url", "BAD_VALUE",
     "'servers.s.url' must begin with http:// or https://, but has no scheme."),
    ("url: ▸'http:///mcp'", "url", "BAD_VALUE",
     "'servers.s.url' names no host; write, for example, http://127.0.0.1:3000/mcp."),
    ("url: ▸'http://a:99999/'", "url", "BAD_VALUE",
     "'servers.s.url' is not a valid URL; write, for example, http://127.0.0.1:3000/mcp."),
    ("url: ▸'http://a/ b'", "url", "BAD_VALUE",
     "'servers.s.url' contains a space or a control character."),
    ("url: ▸'http://me:pw@a/'", "url", "BAD_VALUE",
     "'servers.s.url' contains credentials, which logs would show; pass them under 'headers'."),
    ("url: ▸'http://${U}:${P}@a/'", "url", "BAD_VALUE",
     "'servers.s.url' contains credentials, which logs would show; pass them under 'headers'."),
    ("url: ▸{secret: x}", "url", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.url' can't be a reference: a url {_WOULD_SHOW}"),
    ("url: ▸{env: x}", "url", "REFERENCE_NOT_ALLOWED",
     f"'servers.s.url' can't be a reference: a url {_WOULD_SHOW}"),
    ("url: ▸''", "url", "BAD_VALUE", "'servers.s.url' is empty."),
    ("url: http://a, ▸command: x", "command", "KEY_NOT_FOR_TRANSPORT",
     "'command' is not for the transport 'streamable_http', only for 'stdio'; remove it."),
    ("url: http://a, ▸args: []", "args", "KEY_NOT_FOR_TRANSPORT",
     "'args' is not for the transport 'streamable_http', only for 'stdio'; remove it."),
    ("url: http://a, headers: {▸'a b': x}", "headers.a b", "BAD_VALUE",
     "'a b' under 'servers.s.headers' is not the name of a header: write letters, digits and '-'."),
    ("url: http://a, headers: {A: x, a: ▸y}", "headers.a", "BAD_VALUE",
     "'a' under 'servers.s.headers' is set twice; headers differ by more than case."),
    ("url: http://a, headers: {▸Mcp-Session-Id: x}", "headers.Mcp-Session-Id", "BAD_VALUE",
     ("'Mcp-Session-Id' under 'servers.s.headers' is set by Leaseway itself; use the key"
     " 'sessionId'.")),
    ("url: http://a, headers: {▸mcp-name: x}", "headers.mcp-name", "BAD_VALUE",
     "'mcp-name' under 'servers.s.headers' is set by Leaseway itself."),
    ("url: http://a, headers: {▸Mcp-Param-Region: x}", "headers.Mcp-Param-Region", "BAD_VALUE",
     "'Mcp-Param-Region' under 'servers.s.headers' is set by Leaseway itself."),
    ('url: http://a, headers: {A: ▸"x\\r\\nB: y"}', "headers.A", "BAD_VALUE",
     "'servers.s.headers.A' contains a line break, which no header may."),
    ("url: http://a, sessionId: ▸'a b'", "sessionId", "BAD_VALUE",
     "'servers.s.sessionId' may contain only visible ASCII characters, and no spaces."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("head", "body", "key", "reason", "message"),
    [
        *(pytest.param(STDIO_HEAD, *row, id=row[0][:40]) for row in ENTRY_ERRORS),
        *(pytest.param(HTTP_HEAD, *row, id=row[0][:40]) for row in HTTP_ERRORS),
    ],
)
def test_a_bad_key_of_a_server_is_an_error_at_its_place(
    head: str, body: str, key: str, reason: str, message: str
) -> None:
    text, column = marked(entry(body, head))
    parsed = parse(text)
    assert parsed.rejected == {"s"}
    assert not parsed.servers
    assert not parsed.broken
    assert parsed.issues == (
        ConfigIssue(
            file=PATH,
            line=3,
            column=column,
            key=f"servers.s.{key}",
            severity="error",
            reason=reason,
            message=message,
            server_id="s",
        ),
    )
