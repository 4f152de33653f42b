"""Which hosts, ports and addresses a delivery may reach."""

from ipaddress import ip_address, ip_network

import pytest
from beanstalk_client.deliver.addresses import METADATA, Guard, NotAllowedError
from hypothesis import given
from hypothesis import strategies as some


def networks(*texts):
    return [ip_network(each) for each in texts]


def allows(guard, address):
    try:
        guard.check_address(address)
    except NotAllowedError:
        return False
    return True


PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "11.0.0.1", "2606:4700::1111", "2a00:1450:4001::200e"]
PUBLIC += ["::ffff:8.8.8.8", "223.255.255.255", "192.169.0.1"]

FORBIDDEN = """
0.0.0.0 0.1.2.3 127.0.0.1 127.255.255.255 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 169.254.1.1
169.254.169.254 192.0.0.8 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1
239.255.255.255 240.0.0.1 255.255.255.255 100.100.100.200 168.63.129.16
:: ::1 ::7f00:1
::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 fe80::1 fe80::1%eth0
fec0::1 fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254
fd00:a9fe:a9fe::1 fd00:c1::a9fe:a9fe fd00:42::42 fe80::a9fe:a9fe%eth0 ff02::1 ff0e::1 2001:db8::1 2001::1
2001:0:7f00:1:: 2001:20::1 3fff::1
2002:7f00:1:: 2002:808:808:: 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::7f00:1 100::1 5f00::1 4000::1
""".split()


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address):
    assert allows(Guard(), address)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_all_others_are_forbidden(address):
    assert not allows(Guard(), address)


@given(some.ip_addresses())
def test_what_is_allowed_is_public_for_the_standard_library_too(address):
    if allows(Guard(), str(address)):
        assert (getattr(address, "ipv4_mapped", None) or address).is_global


def test_private_networks_are_opened_together_and_nothing_else_is():
    guard = Guard(allow_private=True)
    opened = [each for each in FORBIDDEN if allows(guard, each)]
    expected = "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 ::ffff:10.0.0.1 fc00::1 fd00::1".split()
    assert sorted(opened) == sorted(expected)


def test_a_network_is_opened_by_name():
    guard = Guard(allowed_networks=networks("127.0.0.0/8", "::1/128"))
    assert [each for each in FORBIDDEN if allows(guard, each)] == [
        "127.0.0.1",
        "127.255.255.255",
        "::1",
        "::ffff:127.0.0.1",
    ]


@pytest.mark.parametrize("address", sorted(map(str, METADATA)))
def test_where_a_cloud_hands_out_credentials_is_opened_only_by_that_very_address(address):
    around = "0.0.0.0/0" if "." in address else "::/0"
    assert not allows(Guard(allow_private=True, allowed_networks=networks(around)), address)
    assert allows(Guard(allowed_networks=networks(address)), address)


def test_what_a_translator_leads_to_must_be_allowed_as_well():
    guard = Guard(allowed_networks=networks("64:ff9b::/96", "2002::/16"))
    assert allows(guard, "64:ff9b::808:808") and allows(guard, "2002:808:808::")
    assert not allows(guard, "64:ff9b::7f00:1") and not allows(guard, "2002:a00:1::")
    with pytest.raises(NotAllowedError, match=r"64:ff9b::a9fe:a9fe \(which contains 169\.254\.169\.254\) is forbidden"):
        guard.check_address("64:ff9b::a9fe:a9fe")


def test_what_would_open_an_address_is_said():
    with pytest.raises(NotAllowedError, match=r"127\.0\.0\.1 is forbidden; --allow-net 127\.0\.0\.1 allows it"):
        Guard().check_address("127.0.0.1")
    with pytest.raises(NotAllowedError, match=r"8\.8\.8\.8 is forbidden$"):
        Guard(forbidden_networks=networks("8.8.8.8")).check_address("8.8.8.8")
    assert "--allow-net" in Guard().reach
    assert Guard(allowed_networks=networks("127.0.0.0/8")).reach == "public addresses and to 127.0.0.0/8"


def test_what_is_forbidden_by_name_stays_so():
    guard = Guard(allowed_networks=networks("10.0.0.0/8"), forbidden_networks=networks("10.1.0.0/16", "8.8.8.0/24"))
    assert allows(guard, "10.2.0.1")
    assert not allows(guard, "10.1.0.1") and not allows(guard, "8.8.8.8") and not allows(guard, "::ffff:8.8.8.8")


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("example.com", 443, ""),
        ("a.example.com", 443, ""),
        ("a.b.example.com", 8443, ""),
        ("evil.example", 443, "host evil.example is not allowed"),
        ("badexample.com", 443, "host badexample.com is not allowed"),
        ("internal.example.com", 443, "host internal.example.com is forbidden"),
        ("example.com", 22, "port 22 is not allowed"),
    ],
)
def test_hosts_and_ports_are_judged_by_patterns(host, port, said):
    guard = Guard(
        allowed_hosts=["example.com", "*.EXAMPLE.com"], forbidden_hosts=["internal.*"], allowed_ports=[443, 8443]
    )
    if said:
        with pytest.raises(NotAllowedError, match=said):
            guard.check_host(host, port)
    else:
        guard.check_host(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:10.0.0.1", "169.254.169.254"])
def test_a_host_that_is_an_address_is_judged_at_once(host):
    with pytest.raises(NotAllowedError, match="is forbidden"):
        Guard().check_host(host, 80)
    Guard().check_host("localhost", 80)  # names are judged when it is known where they lead
    Guard(allowed_networks=networks(str(getattr(ip_address(host), "ipv4_mapped", None) or host))).check_host(host, 80)
