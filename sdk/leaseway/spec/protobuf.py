"""Conversion of specs and policies to and from protobuf."""

from __future__ import annotations

from typing import TypeVar

from leaseway.spec.http_tools import BODIES, POSITIONS, STYLES, HttpParameter, HttpTool
from leaseway.spec.model import (
    AUTH_GRANTS,
    CREDENTIAL_KINDS,
    INHERIT_ENV,
    NO_AUTH,
    NOTHING_BUILTIN,
    SUBJECTS,
    Auth,
    Builtin,
    Credential,
    InstancePolicy,
    Limits,
    Sandbox,
    ServerSpec,
    Value,
    VariantKey,
)
from leaseway.spec.name_filters import NameFilter
from leaseway.spec.permissions import EVERYTHING, Permissions
from leaseway.spec.policy import (
    NO_POLICY,
    RISKS,
    ArgumentRule,
    Grant,
    Rate,
    ServerPolicy,
    TenantLimits,
)
from leaseway.v1 import spec_pb2, sync_pb2
from leaseway.wire import bounds
from leaseway.wire.timing.backoff import Backoff
from leaseway.wire.timing.durations import duration, seconds


def key_to_proto(key: VariantKey) -> spec_pb2.VariantKey:
    return spec_pb2.VariantKey(server_id=key.server_id, tenant=key.tenant)


def key_from_proto(key: spec_pb2.VariantKey) -> VariantKey:
    return VariantKey(key.server_id, key.tenant)


def spec_to_proto(spec: ServerSpec) -> spec_pb2.ServerSpec:
    """Return the message of a spec, without filters and transforms, which workers do not need."""
    policy = spec.instances
    message = spec_pb2.ServerSpec(
        key=key_to_proto(spec.key),
        transport=spec.transport,
        truely_stateless=spec.truely_stateless,
        command=spec.command,
        args=spec.args,
        url=spec.url,
        session_id=spec.session_id,
        protocol=spec.protocol,
        inherit_env=spec.inherit_env,
        limits=spec_pb2.ResourceLimits(
            memory_bytes=spec.limits.memory_bytes or 0,
            cpu_cores=spec.limits.cpu_cores or 0.0,
            open_files=spec.limits.open_files or 0,
            processes=spec.limits.processes or 0,
        ),
        sandbox=spec_pb2.Sandbox(
            enabled=spec.sandbox.enabled,
            network=spec.sandbox.network,
            writable_paths=spec.sandbox.writable_paths,
            strict=spec.sandbox.strict,
        ),
        instances=spec_pb2.InstancePolicy(
            start=policy.start or "",
            warm=policy.warm,
            max_instances=policy.max_instances,
            idle_timeout=None if policy.idle_timeout is None else duration(policy.idle_timeout),
            max_age=None if policy.max_age is None else duration(policy.max_age),
            restart=spec_pb2.RestartPolicy(
                initial=duration(policy.restart.initial),
                max=duration(policy.restart.maximum),
                multiplier=policy.restart.multiplier,
            ),
        ),
        startup_timeout=duration(spec.startup_timeout),
        call_timeout=duration(spec.call_timeout),
        lease_drain_timeout=duration(spec.lease_drain_timeout),
        description=spec.description,
        http_tools=map(_tool_to_proto, spec.http_tools),
        follow_redirects=spec.follow_redirects,
        retries=spec.retries,
        policy=policy_to_proto(spec.policy) if spec.policy else None,
        module=spec.module,
        class_name=spec.class_name,
        config=spec.config,
        builtin=None
        if spec.builtin == NOTHING_BUILTIN
        else spec_pb2.Builtin(
            tools=spec.builtin.tools,
            roots=spec.builtin.roots,
            commands=spec.builtin.commands,
            hosts=spec.builtin.hosts,
        ),
        image=spec.image,
        pod_template=spec.pod_template,
        cwd=spec.cwd,
        env_file=spec.env_file,
        worker_labels=spec.worker_labels,
        max_calls=spec.max_calls or 0,
        confined_files={
            path: spec_pb2.Patterns(patterns=patterns)
            for path, patterns in spec.confined_files.items()
        },
    )
    for name, value in spec.env.items():
        message.env[name].CopyFrom(_value_to_proto(value))
    for name, value in spec.headers.items():
        message.headers[name].CopyFrom(_value_to_proto(value))
    for name, value in spec.proxy.items():
        message.proxy[name].CopyFrom(_value_to_proto(value))
    if spec.auth:
        message.auth.CopyFrom(_auth_to_proto(spec.auth))
    for name, one in spec.security.items():
        credential = spec_pb2.Credential(
            kind=one.kind, name=one.name, value=_value_to_proto(one.value)
        )
        message.security[name].CopyFrom(credential)
    return message


def spec_from_proto(message: spec_pb2.ServerSpec) -> ServerSpec:
    """Return the spec of a message, with the defaults of DESIGN §10 for unset fields."""
    return ServerSpec(
        key=key_from_proto(message.key),
        transport=message.transport,
        truely_stateless=message.truely_stateless,
        command=message.command,
        args=tuple(message.args),
        url=message.url,
        env={name: _value_from_proto(value) for name, value in message.env.items()},
        headers={name: _value_from_proto(value) for name, value in message.headers.items()},
        proxy={name: _value_from_proto(value) for name, value in message.proxy.items()},
        auth=_auth_from_proto(message.auth) if message.HasField("auth") else NO_AUTH,
        session_id=message.session_id,
        protocol=message.protocol or "auto",
        inherit_env=_known(message.inherit_env, INHERIT_ENV, "safe"),
        limits=Limits(
            memory_bytes=message.limits.memory_bytes or None,
            cpu_cores=message.limits.cpu_cores or None,
            open_files=message.limits.open_files or None,
            processes=message.limits.processes or None,
        ),
        sandbox=Sandbox(
            enabled=message.sandbox.enabled,
            network=message.sandbox.network,
            writable_paths=tuple(message.sandbox.writable_paths),
            strict=message.sandbox.strict,
        ),
        instances=_policy_from_proto(message.instances),
        startup_timeout=_seconds_or(message, "startup_timeout", bounds.STARTUP_TIMEOUT),
        call_timeout=_seconds_or(message, "call_timeout", bounds.CALL_TIMEOUT),
        lease_drain_timeout=_seconds_or(message, "lease_drain_timeout", bounds.LEASE_DRAIN_TIMEOUT),
        description=message.description,
        http_tools=tuple(map(_tool_from_proto, message.http_tools)),
        security={name: _credential_from_proto(one) for name, one in message.security.items()},
        follow_redirects=message.follow_redirects,
        retries=message.retries,
        policy=policy_from_proto(message.policy) if message.HasField("policy") else NO_POLICY,
        module=message.module,
        class_name=message.class_name,
        config=message.config,
        builtin=Builtin(
            tuple(message.builtin.tools),
            tuple(message.builtin.roots),
            tuple(message.builtin.commands),
            tuple(message.builtin.hosts),
        ),
        image=message.image,
        pod_template=message.pod_template,
        cwd=message.cwd,
        env_file=message.env_file,
        worker_labels=dict(message.worker_labels),
        max_calls=message.max_calls or None,
        confined_files={
            path: tuple(granted.patterns) for path, granted in message.confined_files.items()
        },
    )


def _auth_to_proto(auth: Auth) -> spec_pb2.Auth:
    message = spec_pb2.Auth(
        grant=auth.grant,
        subject=auth.subject,
        scopes=auth.scopes,
        issuer=auth.issuer,
        resource=auth.resource,
        algorithm=auth.algorithm,
        key_id=auth.key_id,
        client_metadata_url=auth.client_metadata_url,
        redirect_port=auth.redirect_port,
    )
    for name, value in auth.values.items():
        message.values[name].CopyFrom(_value_to_proto(value))
    return message


def _auth_from_proto(message: spec_pb2.Auth) -> Auth:
    return Auth(
        grant=_known(message.grant, AUTH_GRANTS, "client_credentials"),
        subject=_known(message.subject, SUBJECTS, "service"),
        values={name: _value_from_proto(value) for name, value in message.values.items()},
        scopes=tuple(message.scopes),
        issuer=message.issuer,
        resource=message.resource,
        algorithm=message.algorithm,
        key_id=message.key_id,
        client_metadata_url=message.client_metadata_url,
        redirect_port=message.redirect_port,
    )


def _tool_to_proto(tool: HttpTool) -> spec_pb2.HttpTool:
    return spec_pb2.HttpTool(
        name=tool.name,
        method=tool.method,
        endpoint=tool.endpoint,
        description=tool.description,
        title=tool.title,
        parameters=[
            spec_pb2.HttpParameter(
                name=each.name,
                position=each.position,
                schema=each.schema,
                required=each.required,
                wire_name=each.wire_name,
                style=each.style,
                is_body=each.is_body,
                explode=each.explode,
                allow_reserved=each.allow_reserved,
            )
            for each in tool.parameters
        ],
        body=tool.body,
        content_type=tool.content_type,
        response_template=tool.response_template,
        timeout=None if tool.timeout is None else duration(tool.timeout),
        retries=tool.retries,
        annotations=dict(tool.annotations),
        is_anonymous=tool.is_anonymous,
        base_url=tool.base_url,
        send_credentials=tool.send_credentials,
    )


def _tool_from_proto(message: spec_pb2.HttpTool) -> HttpTool:
    return HttpTool(
        name=message.name,
        method=message.method,
        endpoint=message.endpoint,
        description=message.description,
        title=message.title,
        parameters=tuple(map(_parameter_from_proto, message.parameters)),
        body=_known(message.body, BODIES, "json"),
        content_type=message.content_type,
        response_template=message.response_template,
        timeout=seconds(message.timeout) if message.HasField("timeout") else None,
        retries=message.retries,
        annotations=tuple(sorted(message.annotations.items())),
        is_anonymous=message.is_anonymous,
        base_url=message.base_url,
        send_credentials=message.send_credentials,
    )


def _parameter_from_proto(message: spec_pb2.HttpParameter) -> HttpParameter:
    return HttpParameter(
        name=message.name,
        position=_known(message.position, POSITIONS, "query"),
        schema=message.schema or "{}",
        required=message.required,
        wire_name=message.wire_name,
        style=_known(message.style, STYLES, "repeat"),
        is_body=message.is_body,
        explode=message.explode,
        allow_reserved=message.allow_reserved,
    )


def _credential_from_proto(message: spec_pb2.Credential) -> Credential:
    kind = _known(message.kind, CREDENTIAL_KINDS, "header")
    return Credential(kind, message.name, _value_from_proto(message.value))


_Text = TypeVar("_Text", bound=str)


def _known(text: str, values: tuple[_Text, ...], default: _Text) -> _Text:
    """Return a text if it is a known value, else the default."""
    return next((value for value in values if value == text), default)


def _policy_from_proto(message: spec_pb2.InstancePolicy) -> InstancePolicy:
    start = message.start
    restart = message.restart
    return InstancePolicy(
        start="eager" if start == "eager" else "lazy" if start == "lazy" else None,
        warm=message.warm,
        max_instances=message.max_instances or bounds.MAX_INSTANCES,
        idle_timeout=seconds(message.idle_timeout) if message.HasField("idle_timeout") else None,
        max_age=seconds(message.max_age) if message.HasField("max_age") else None,
        restart=Backoff(
            initial=seconds(restart.initial) if restart.HasField("initial") else Backoff.initial,
            maximum=seconds(restart.max) if restart.HasField("max") else Backoff.maximum,
            multiplier=restart.multiplier or Backoff.multiplier,
        ),
    )


def _seconds_or(message: spec_pb2.ServerSpec, field: str, default: float) -> float:
    return seconds(getattr(message, field)) if message.HasField(field) else default  # type: ignore[arg-type]


def _value_to_proto(value: Value) -> spec_pb2.Value:
    return spec_pb2.Value(**{value.kind: value.text})


def _value_from_proto(message: spec_pb2.Value) -> Value:
    kind = message.WhichOneof("kind") or "literal"
    return Value(kind, getattr(message, kind))


def filter_to_proto(rules: NameFilter) -> sync_pb2.NameFilter:
    also = None if rules.also is None else filter_to_proto(rules.also)
    return sync_pb2.NameFilter(whitelist=rules.whitelist, blacklist=rules.blacklist, also=also)


def filter_from_proto(message: sync_pb2.NameFilter, depth: int = 8) -> NameFilter:
    """Return the filter of a message; more nested filters than configuration layers are ignored."""
    also = (
        filter_from_proto(message.also, depth - 1) if depth and message.HasField("also") else None
    )
    return NameFilter(tuple(message.whitelist), tuple(message.blacklist), also)


def policy_to_proto(policy: ServerPolicy) -> spec_pb2.ServerPolicy:
    message = spec_pb2.ServerPolicy(
        restricted=policy.grants is not None,
        risks=[spec_pb2.RiskPattern(pattern=name, risk=risk) for name, risk in policy.risks],
        rate=_rate_to_proto(policy.rate),
        rules=[
            spec_pb2.ArgumentRule(expression=rule.expression, tools=rule.tools)
            for rule in policy.rules
        ],
    )
    if policy.permissions != EVERYTHING:
        message.permissions.CopyFrom(_permissions_to_proto(policy.permissions))
    for tenant, grant in (policy.grants or {}).items():
        entry = message.grants[tenant]
        entry.tools.CopyFrom(_patterns_to_proto(grant.tools))
        if grant.permissions != EVERYTHING:
            entry.permissions.CopyFrom(_permissions_to_proto(grant.permissions))
        for agent, tools in grant.agents.items():
            if tools is None:
                entry.agents[agent].withheld = True
            else:
                entry.agents[agent].tools.CopyFrom(_patterns_to_proto(tools))
    for tenant, limits in policy.limits.items():
        message.limits[tenant].CopyFrom(
            spec_pb2.TenantLimits(
                calls=_rate_to_proto(limits.calls),
                concurrent=limits.concurrent or 0,
                leases=limits.leases or 0,
                artifact_bytes=limits.artifact_bytes or 0,
                weight=limits.weight if limits.weight != 1 else 0,
            )
        )
    return message


def policy_from_proto(message: spec_pb2.ServerPolicy) -> ServerPolicy:
    grants = None
    if message.restricted:
        grants = {tenant: _grant_from_proto(grant) for tenant, grant in message.grants.items()}
    return ServerPolicy(
        grants=grants,
        limits={
            tenant: TenantLimits(
                _rate_from_proto(limits.calls),
                limits.concurrent or None,
                limits.leases or None,
                limits.artifact_bytes or None,
                limits.weight or 1,
            )
            for tenant, limits in message.limits.items()
        },
        # The risk of a newer version is treated as the strictest known one.
        risks=tuple(
            (each.pattern, _known(each.risk, RISKS, "financial")) for each in message.risks
        ),
        rate=_rate_from_proto(message.rate),
        rules=tuple(ArgumentRule(rule.expression, tuple(rule.tools)) for rule in message.rules),
        permissions=_permissions_from_proto(message.permissions),
    )


def _permissions_to_proto(permissions: Permissions) -> spec_pb2.Permissions:
    return spec_pb2.Permissions(
        no_read=not permissions.read,
        no_write=not permissions.write,
        restricted=permissions.allowed_paths is not None,
        allowed_paths=permissions.allowed_paths or (),
        denied_paths=permissions.denied_paths,
    )


def _permissions_from_proto(message: spec_pb2.Permissions) -> Permissions:
    return Permissions(
        read=not message.no_read,
        write=not message.no_write,
        allowed_paths=tuple(message.allowed_paths) if message.restricted else None,
        denied_paths=tuple(message.denied_paths),
    )


def _grant_from_proto(message: spec_pb2.TenantGrant) -> Grant:
    agents = {
        agent: None if grant.withheld else _patterns_from_proto(grant.tools)
        for agent, grant in message.agents.items()
    }
    permissions = _permissions_from_proto(message.permissions)
    return Grant(_patterns_from_proto(message.tools), agents, permissions)


def _patterns_to_proto(names: NameFilter) -> spec_pb2.NamePatterns:
    return spec_pb2.NamePatterns(whitelist=names.whitelist, blacklist=names.blacklist)


def _patterns_from_proto(message: spec_pb2.NamePatterns) -> NameFilter:
    return NameFilter(tuple(message.whitelist), tuple(message.blacklist))


def _rate_to_proto(rate: Rate | None) -> spec_pb2.CallRate | None:
    return None if rate is None else spec_pb2.CallRate(calls=rate.calls, seconds=rate.seconds)


def _rate_from_proto(message: spec_pb2.CallRate) -> Rate | None:
    return Rate(message.calls, message.seconds) if message.calls and message.seconds > 0 else None
