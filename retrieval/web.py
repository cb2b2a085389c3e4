"""Pages and files fetched over HTTP, one address at a time: no crawling, no other protocol, nothing run.

Addresses in private networks (10.x, 192.168.x, localhost, cloud metadata) are refused unless they are asked for: a list
of addresses that somebody else wrote must not read what only this machine can reach. Each redirect is checked like the
address itself, and so is the machine that a connection really went to.
"""

import ipaddress
import socket
import time
import urllib.request
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx

from retrieval.errors import DocumentTooLargeError, FetchError
from retrieval.loaders import MAX_FILE_BYTES, SUPPORTED_EXTENSIONS

TIMEOUT = httpx.Timeout(30.0, connect=10.0)
# However slowly the bytes come, a file is given up after this.
MAX_SECONDS = 300.0
MAX_REDIRECTS = 5
_EXTENSIONS = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/markdown": ".md",
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "text/xml": ".xml",
    "application/xml": ".xml",
    "application/json": ".json",
    "application/x-ndjson": ".jsonl",
    "application/pdf": ".pdf",
    "application/rtf": ".rtf",
    "application/epub+zip": ".epub",
    "message/rfc822": ".eml",
    "application/vnd.oasis.opendocument.text": ".odt",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
}
_GONE = (404, 410)


@dataclass(frozen=True)
class Fetched:
    """A file as a server gave it. `name` ends in the extension of what the server says it is."""

    name: str
    data: bytes


def is_url(target: str) -> bool:
    """Whether `target` is an address rather than a path: "scheme://...", whatever the scheme."""
    scheme, separator, _ = target.partition("://")
    return bool(separator) and scheme.isalnum()


def normal_url(url: str) -> str:
    """The address under which a page is known: without its fragment. Raises FetchError where it must not be fetched."""
    plain = urldefrag(url.strip()).url
    try:
        parts = urlsplit(plain)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise FetchError(f"{url!r} is not an address ({error}): give one such as https://example.org/page") from error
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise FetchError(f"{url!r} is not fetched: only http:// and https:// addresses are")
    if parts.username is not None:
        raise FetchError("an address with a user name or password in it is not fetched: it would be stored and shown")
    return plain


def fetch(url: str, *, allow_private: bool = False) -> Fetched | None:
    """Fetches one address; None where the server says that there is nothing (any more).

    Raises FetchError (not reachable, refused, too slow) and DocumentTooLargeError.
    """
    given = url
    deadline = time.monotonic() + MAX_SECONDS
    with httpx.Client(timeout=TIMEOUT, follow_redirects=False, headers={"User-Agent": "Ragstone"}) as client:
        for _ in range(MAX_REDIRECTS + 1):
            url = normal_url(url)
            if not allow_private:
                _refuse_private(url)
            try:
                with client.stream("GET", url) as response:
                    if not allow_private:
                        _refuse_private_peer(response, url)
                    if response.is_redirect:
                        url = urljoin(url, response.headers["location"])
                        continue
                    if response.status_code in _GONE:
                        return None
                    if response.status_code != 200:
                        raise FetchError(f"the server answered {response.status_code} {response.reason_phrase}".strip())
                    return Fetched(_name(url, response), _as_utf8(_body(response, deadline), response))
            except httpx.TimeoutException as error:
                raise FetchError(f"the server did not answer within {TIMEOUT.read:.0f} s: try again later") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise FetchError(f"{url} cannot be fetched: {error or type(error).__name__}") from error
    raise FetchError(f"{given} leads from one address to another more than {MAX_REDIRECTS} times")


def _body(response: httpx.Response, deadline: float) -> bytes:
    data = bytearray()
    for block in response.iter_bytes():
        data += block
        if len(data) > MAX_FILE_BYTES:
            raise DocumentTooLargeError(
                f"the file is larger than {MAX_FILE_BYTES // 2**20} MB, up to which files are read"
            )
        if time.monotonic() > deadline:
            raise FetchError(f"the file did not come within {MAX_SECONDS:.0f} s: try again later")
    return bytes(data)


def _refuse_private(url: str) -> None:
    host = urlsplit(url).hostname or ""
    if _proxied(url):
        return  # the proxy looks names up, and decides what it reaches
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FetchError(f"there is no machine named {host!r}, or names cannot be looked up here") from error
    for *_, address in found:
        _refuse_address(str(address[0]), host)


def _refuse_private_peer(response: httpx.Response, url: str) -> None:
    """The name may mean another machine by the time of the connection."""
    stream = response.extensions.get("network_stream")
    peer = stream.get_extra_info("server_addr") if stream is not None else None
    if peer and not _proxied(url):
        _refuse_address(str(peer[0]), urlsplit(url).hostname or "")


def _refuse_address(text: str, host: str) -> None:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    if not address.is_global or address.is_multicast:
        raise FetchError(f"{host} is in a private network ({address}): add --private if you mean it")


def _proxied(url: str) -> bool:
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    return bool(proxies.get(parts.scheme) or proxies.get("all")) and not urllib.request.proxy_bypass(
        parts.hostname or ""
    )


def _content_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _name(url: str, response: httpx.Response) -> str:
    """A file name for what came: the address's last part, with the extension that the server's type stands for."""
    parts = urlsplit(url)
    last = PurePosixPath(unquote(parts.path)).name or parts.hostname or "page"
    extension = _EXTENSIONS.get(_content_type(response))
    suffix = PurePosixPath(last).suffix.lower()
    if extension is None:
        return last if suffix in SUPPORTED_EXTENSIONS else f"{last}.txt" if _is_text(response) else last
    return last if suffix == extension else f"{last}{extension}"


def _is_text(response: httpx.Response) -> bool:
    return _content_type(response).startswith("text/")


def _as_utf8(data: bytes, response: httpx.Response) -> bytes:
    """Text in the encoding that the server names; without one, or where it does not fit, the bytes as they came."""
    charset = response.charset_encoding
    if not _is_text(response) or charset is None:
        return data
    try:
        return b"\xef\xbb\xbf" + data.decode(charset).removeprefix("\ufeff").encode()
    except (LookupError, UnicodeError):
        return data
