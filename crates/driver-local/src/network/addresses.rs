//! This host's own addresses and name servers, from /proc and /etc.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::error::{At, LocalError};

/// One address of this host's, with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
}

pub(super) fn own() -> Result<Vec<Own>, LocalError> {
    let trie = Path::new("/proc/net/fib_trie");
    let mut own = ipv4(&fs::read_to_string(trie).at("reading", trie)?);
    // Not there on a host without IPv6.
    own.extend(ipv6(
        &fs::read_to_string("/proc/net/if_inet6").unwrap_or_default(),
    ));
    Ok(own)
}

/// Each address, and below it what it is: `/32 host LOCAL`.
fn ipv4(trie: &str) -> Vec<Own> {
    let mut own = Vec::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last
            && !own.iter().any(|it: &Own| it.address == address)
        {
            own.push(Own {
                address: address.into(),
                prefix: 32,
            });
        }
    }
    own
}

/// Address in 32 digits, then in hexadecimal too: device, prefix, scope, flags; and a name.
fn ipv6(table: &str) -> Vec<Own> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        let prefix = u8::from_str_radix(words.nth(1)?, 16).ok()?;
        Some(Own {
            address: Ipv6Addr::from(address).into(),
            prefix,
        })
    };
    table.lines().filter_map(line).collect()
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
    fn addresses_are_read_as_the_kernel_writes_them() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
                    |-- 198.51.100.0\n        /24 link UNICAST\n     |-- 198.51.100.2\n        \
                    /32 host LOCAL\n";
        let found: Vec<_> = ipv4(trie)
            .iter()
            .map(|own| own.address.to_string())
            .collect();
        assert_eq!(found, ["127.0.0.1", "198.51.100.2"]);
        let table = "20010db8000000000000000000000002 02 40 00 80     eth0\n";
        let [own] = ipv6(table)[..] else {
            panic!("one address");
        };
        assert_eq!(
            (own.address.to_string().as_str(), own.prefix),
            ("2001:db8::2", 64)
        );
    }

    #[test]
    fn name_servers_are_read_as_the_resolver_does() {
        let text = "# nameserver 1.1.1.1\nsearch a.example\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n";
        let found: Vec<_> = name_servers(text).iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["127.0.0.53", "fe80::1"]);
    }
}
