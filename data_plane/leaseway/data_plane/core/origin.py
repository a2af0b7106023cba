"""Whether credentials for one URL may be sent to another. Pure.

Every redirect and every address that a server names is decided here.
"""

from __future__ import annotations

import ipaddress

from yarl import URL


def same_origin(source: URL, target: URL) -> bool:
    """Return whether credentials for `source` may be sent to `target`.

    That is so if scheme, host and port are the same; or if the same host is asked over https
    instead of http, both at their default ports. Hosts are compared without regard to case, a
    trailing dot and the spelling of an IPv6 address. A target with a user or password is never the
    same: those would be credentials of whoever wrote it.
    """
    if source.scheme not in ("http", "https") or target.scheme not in ("http", "https"):
        return False
    host = _host(source)
    if not host or host != _host(target):
        return False
    if target.raw_user is not None or target.raw_password is not None:
        return False
    if (source.scheme, target.scheme) == ("http", "https"):
        return source.port == 80 and target.port == 443
    return source.scheme == target.scheme and source.port == target.port


def meant(source: URL, target: URL) -> URL:
    """Return the address that a server at `source` means by one that it names.

    A server that knows nothing of the name by which it is reached (in a container, behind a proxy)
    names itself by an address of its own machine, which is another machine here: `localhost`,
    `0.0.0.0`. Between two names of this machine, the ports tell servers apart.
    """
    if _is_own_machine(target) and (not _is_own_machine(source) or source.port == target.port):
        target = URL(f"{source.origin()}{target.raw_path_qs}", encoded=True)
    return kept_encrypted(source, target)


def kept_encrypted(source: URL, target: URL) -> URL:
    """Return a target on the host of an https source with that source's scheme and port.

    A server behind a proxy that ends TLS does not know of it and names itself by http, such as in a
    redirect to the same path with a slash. Asked over http it would get the credentials in clear.
    """
    names_itself = target.scheme == "http" and target.port in (80, source.port)
    if source.scheme != "https" or not names_itself or _host(source) != _host(target):
        return target
    return target.with_scheme("https").with_port(source.explicit_port)


def _host(url: URL) -> str:
    host = (url.raw_host or "").lower().removesuffix(".")
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        return host


def _is_own_machine(url: URL) -> bool:
    """Return whether a URL's host is whoever opens it, or all addresses of a server."""
    host = _host(url)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
