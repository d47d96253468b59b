//! This host's own addresses and name servers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::{IpNet, Ipv6Net};

use super::own;
use crate::error::{At, LocalError};

/// What is to be closed because it is this host's own.
pub(super) fn own() -> Result<BTreeSet<IpNet>, LocalError> {
    let mut own = own::routes()?;
    let table = Path::new("/proc/net/if_inet6");
    match fs::read_to_string(table) {
        Ok(text) => own.extend(ipv6(&text)),
        // A host without IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).at("reading", table),
    }
    Ok(own)
}

/// The whole network of each address: a host takes new ones in it every day (RFC 8981). A line is the
/// address in 32 digits, then in hexadecimal too: device, prefix, scope, flags; and a name.
fn ipv6(table: &str) -> impl Iterator<Item = IpNet> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        let prefix = u8::from_str_radix(words.nth(1)?, 16).ok()?;
        let net = Ipv6Net::new(address.into(), prefix.clamp(64, 128)).ok()?;
        Some(IpNet::V6(net.trunc()))
    };
    table.lines().filter_map(line)
}

/// Empty where there is none.
pub(super) fn resolv_conf() -> String {
    fs::read_to_string("/etc/resolv.conf").unwrap_or_default()
}

pub(super) fn name_servers(resolv_conf: &str) -> Vec<IpAddr> {
    let servers = resolv_conf.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next())?
    });
    // A link-local one has its device after a `%`.
    servers
        .filter_map(|text| text.split('%').next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_of_an_ipv6_address_is_this_hosts() {
        let table = "20010db8000000000000000000000002 02 40 00 80     eth0\n\
                     20010db8000100000000000000000007 02 80 00 80     eth0\n\
                     20010db8000200000000000000000007 02 30 00 80     eth0\n";
        let found: Vec<_> = ipv6(table).map(|net| net.to_string()).collect();
        assert_eq!(
            found,
            ["2001:db8::/64", "2001:db8:1::7/128", "2001:db8:2::/64"]
        );
    }

    #[test]
    fn name_servers_are_read_as_the_resolver_does() {
        let text = "# nameserver 1.1.1.1\nsearch a.example\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n";
        let found: Vec<_> = name_servers(text).iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["127.0.0.53", "fe80::1"]);
    }
}
