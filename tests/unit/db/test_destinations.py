"""Where a webhook may be sent: URLs and addresses that are refused, those that are not, and what opens a network."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from db.destinations import Destination, Refused, check_address, read_url, usable
from db.settings import Settings

SITE = (ip_network("10.20.0.0/16"), ip_network("fd00:1::/64"))


@pytest.mark.parametrize(
    ("url", "destination"),
    [
        ("https://example.com", Destination("https", "example.com", 443, "/")),
        ("https://Example.COM/a/b?c=d%20e", Destination("https", "example.com", 443, "/a/b?c=d%20e")),
        ("https://hooks.example.com:8443?x", Destination("https", "hooks.example.com", 8443, "/?x")),
        ("http://10.20.1.1:9000/hook", Destination("http", "10.20.1.1", 9000, "/hook")),
        ("https://[2606:4700::1111]/", Destination("https", "2606:4700::1111", 443, "/")),
        ("https://xn--bcher-kva.example/", Destination("https", "xn--bcher-kva.example", 443, "/")),
        ("https://my_host.internal:80/", Destination("https", "my_host.internal", 80, "/")),
    ],
)
def test_a_url_is_read(url: str, destination: Destination) -> None:
    assert read_url(url) == destination


def test_the_host_header_names_what_is_not_usual() -> None:
    assert read_url("https://example.com:443/").authority == "example.com"
    assert read_url("https://example.com:8443/").authority == "example.com:8443"
    assert read_url("http://[::1]:9000/").authority == "[::1]:9000"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "no URL"),
        ("ftp://example.com/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("gopher://example.com:70/_", "https://"),
        ("https://", "https://"),
        ("//example.com/", "https://"),
        ("https:example.com", "https://"),
        ("https://user@example.com/", "user or a password"),
        ("https://user:secret@example.com/", "user or a password"),
        ("https://@example.com/", "user or a password"),
        ("https://example.com/#part", "fragment"),
        ("https://example.com:22/", "port 22"),
        ("https://example.com:0/", "port 0"),
        ("https://example.com:1024/", "port 1024"),
        ("https://example.com:70000/", "no URL"),
        ("https://example.com:x/", "no URL"),
        ("https://exa mple.com/", "printable"),
        ("https://example.com/\r\nX-Evil: 1", "printable"),
        ("https://bücher.example/", "printable"),
        ("https://example.com/" + "a" * 2_000, "2000"),
        ("https://-example.com/", "names the host"),
        ("https://example..com/", "names the host"),
        ("https://example.com./", "names the host"),
        ("https://" + "a" * 64 + ".com/", "names the host"),
        ("https://example.com\\@10.0.0.1/", "user or a password"),
        ("https://[::1/", "no URL"),
        ("https://[v1.fe80]/", "no URL"),
        ("https://%31%32%37.0.0.1/", "names the host"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        read_url(url)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.8.9.10",
        "168.63.129.16",
        "169.254.169.254",
        "169.254.170.2",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::808:808",
        "64:ff9b:1::a00:1",
        "100::1",
        "2001::7f00:1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_an_address_that_is_not_on_the_internet_is_refused(address: str) -> None:
    with pytest.raises(Refused, match="KERNELWRIGHT_WEBHOOK_ALLOW"):
        check_address(address, "https", ())
    with pytest.raises(Refused):
        check_address(address, "https", SITE)


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.1.1", "198.20.0.1"]
    + ["11.0.0.1", "126.0.0.1", "128.0.0.1", "169.253.0.1", "223.255.255.255", "2606:4700::1111", "2a00:1450::1"],
)
def test_an_address_of_the_internet_is_for_https_alone(address: str) -> None:
    check_address(address, "https", ())
    with pytest.raises(Refused, match="https"):
        check_address(address, "http", SITE)


def test_a_setting_opens_a_network_by_name_and_http_in_it() -> None:
    allowed = Settings(webhook_allow=" 10.20.0.0/16, fd00:1::/64 ,").webhook_allow
    assert allowed == SITE
    for address in ("10.20.3.4", "fd00:1::9"):
        check_address(address, "http", allowed)
        check_address(address, "https", allowed)
    for address in ("10.21.0.1", "::ffff:10.20.3.4", "fd00:2::1"):
        with pytest.raises(Refused):
            check_address(address, "https", allowed)
    assert Settings(webhook_allow="").webhook_allow == ()
    with pytest.raises(ValueError, match="webhook_allow"):
        Settings(webhook_allow="10.20.0.1/16")


def test_of_a_host_only_the_good_addresses_are_used() -> None:
    assert usable(["10.0.0.1", "8.8.8.8", "8.8.8.8", "::1"], "https", ()) == ["8.8.8.8"]
    with pytest.raises(Refused, match="on a private network"):
        usable(["10.0.0.1"], "https", ())
    with pytest.raises(Refused, match="no address"):
        usable([], "https", ())
