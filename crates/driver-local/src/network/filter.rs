//! The rules of `internet`, for nft(8).
//!
//! They hold for every packet that leaves by another device than loopback. Routes would not do: a
//! socket that any user binds to a device (SO_BINDTODEVICE) leaves by it whatever the routes say.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::pasta::{DNS4, DNS6};

/// Open to nobody: this host would take it for itself, or for nothing that it can reach.
const NEVER: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    // Our own side of the tap.
    "192.0.0.0/24",
    "224.0.0.0/3",
    "::/96",
    // Dialled by this host as IPv4.
    "::ffff:0:0/96",
    "fd6f:7665:7277::/64",
    "ff00::/8",
];

/// Closed unless the configuration opens it.
const CLOSED: [&str; 13] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    // Link-local, and what clouds serve credentials from.
    "169.254.0.0/16",
    // Azure's, which serves a machine's own certificates from a public address
    // (learn.microsoft.com, "What is IP address 168.63.129.16?").
    "168.63.129.16/32",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "64:ff9b:1::/48",
    // Both reach IPv4 through IPv6, also private addresses.
    "2001::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
];

/// Where a network translates IPv6 to IPv4 (RFC 6052), an IPv4 address is reached as these.
const TRANSLATED: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

fn nets(texts: &[&str]) -> Vec<IpNet> {
    // A test sees that every one of the constants is one.
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// The first of `allowed` that lies in what is open to nobody.
pub(super) fn never_in(allowed: &[IpNet]) -> Option<IpNet> {
    let never = nets(&NEVER);
    let closed = |net: &&IpNet| never.iter().any(|never| never.contains(*net));
    allowed.iter().find(closed).copied()
}

/// What is let through and what is not.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    never: Vec<IpNet>,
    allowed: Vec<IpNet>,
    closed: Vec<IpNet>,
}

impl Default for Filter {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl Filter {
    pub(super) fn new(allowed: &[IpNet]) -> Self {
        Self {
            never: nets(&NEVER),
            allowed: allowed.to_vec(),
            closed: nets(&CLOSED),
        }
    }

    /// The same with this host's own addresses closed.
    pub(super) fn with_host(&self, own: &BTreeSet<IpNet>) -> Self {
        let mut filter = self.clone();
        filter.closed.extend(own);
        filter
    }

    /// Everything, as one transaction of nft(8).
    pub(super) fn rules(&self) -> String {
        let mut never = self.never.clone();
        never.extend(translated(&self.never));
        let mut closed = self.closed.clone();
        closed.extend(translated(&self.closed));
        let sets: String = [
            ("never", never),
            ("allowed", self.allowed.clone()),
            ("closed", closed),
        ]
        .iter()
        .map(|(name, nets)| set(name, "4", nets) + &set(name, "6", nets))
        .collect();
        format!(
            "table inet overwinter {{
{sets}
    # Only UDP is followed: a namespace's table of connections is bounded by the host's memory alone.
    chain follow_out {{
        type filter hook output priority raw;
        meta l4proto != udp notrack
    }}
    chain follow_in {{
        type filter hook prerouting priority raw;
        meta l4proto != udp notrack
    }}
    # A socket that is being connected hears of nothing but a reset.
    chain refuse {{
        meta l4proto tcp reject with tcp reset
        reject with icmpx admin-prohibited
    }}
    chain out {{
        type filter hook output priority filter; policy drop;
        oifname \"lo\" accept
        icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
        meta l4proto {{ icmp, icmpv6 }} goto refuse
        meta l4proto udp ct state new ct count over {UDP_FLOWS} goto refuse
        udp dport 53 ip daddr {DNS4} accept
        udp dport 53 ip6 daddr {DNS6} accept
        ip daddr @never4 goto refuse
        ip6 daddr @never6 goto refuse
        ip daddr @allowed4 accept
        ip6 daddr @allowed6 accept
        ip daddr @closed4 goto refuse
        ip6 daddr @closed6 goto refuse
        meta nfproto {{ ipv4, ipv6 }} accept
    }}
    chain in {{
        type filter hook input priority filter; policy drop;
        iifname \"lo\" accept
        icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
        meta l4proto {{ icmp, icmpv6 }} accept
        tcp flags & (fin | syn | rst | ack) == syn drop
        meta l4proto tcp accept
        meta l4proto udp ct state established accept
    }}
    # pasta binds the port that a datagram came from on this host: nobody inside is to choose it.
    chain ports {{
        type nat hook postrouting priority srcnat;
        oifname != \"lo\" meta l4proto udp masquerade to :32768-60999 random
    }}
}}
"
        )
    }
}

/// What is added to [`Filter::rules`] that hold already.
pub(super) fn close(own: &BTreeSet<IpNet>) -> String {
    let nets: Vec<_> = own.iter().copied().collect();
    let mut all = nets.clone();
    all.extend(translated(&nets));
    let mut text = String::new();
    for version in ["4", "6"] {
        let elements = elements(version, &all);
        if !elements.is_empty() {
            text += &format!("add element inet overwinter closed{version} {{ {elements} }}\n");
        }
    }
    text
}

/// Flows of UDP at a time, name servers' too. For each, pasta holds a port of this host for three minutes,
/// six times as long as a flow without an answer is counted: a sandbox holds some thousands at most.
const UDP_FLOWS: u32 = 512;

fn set(name: &str, version: &str, nets: &[IpNet]) -> String {
    let kind = if version == "4" {
        "ipv4_addr"
    } else {
        "ipv6_addr"
    };
    let elements = elements(version, nets);
    // The grammar has no empty list.
    let elements = if elements.is_empty() {
        elements
    } else {
        format!(" elements = {{ {elements} }};")
    };
    format!("    set {name}{version} {{ type {kind}; flags interval; auto-merge;{elements} }}\n")
}

fn elements(version: &str, nets: &[IpNet]) -> String {
    let of_version = |net: &&IpNet| matches!(net, IpNet::V4(_)) == (version == "4");
    let nets: Vec<_> = nets
        .iter()
        .filter(of_version)
        .map(IpNet::to_string)
        .collect();
    nets.join(", ")
}

fn translated(nets: &[IpNet]) -> Vec<IpNet> {
    let of = |net: &Ipv4Net| {
        let prefix = u128::from(TRANSLATED) | u128::from(u32::from(net.addr()));
        Ipv6Net::new(prefix.into(), 96 + net.prefix_len()).ok()
    };
    let v4 = nets.iter().filter_map(|net| match net {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    });
    v4.filter_map(of).map(IpNet::V6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a network")
    }

    #[test]
    fn the_constants_are_networks() {
        assert_eq!(nets(&NEVER).len(), NEVER.len());
        assert_eq!(nets(&CLOSED).len(), CLOSED.len());
        for net in nets(&NEVER).iter().chain(&nets(&CLOSED)) {
            assert_eq!(*net, net.trunc());
        }
    }

    #[test]
    fn what_is_closed_is_closed_by_its_translation_too() {
        let rules = Filter::default().rules();
        assert!(rules.contains("64:ff9b::a00:0/104"), "{rules}");
        assert!(rules.contains("64:ff9b::7f00:0/104"), "{rules}");
    }

    #[test]
    fn the_hosts_own_addresses_are_closed_and_what_is_translated_to_them() {
        let own = BTreeSet::from(["198.51.100.0/24", "2001:db8::/64"].map(net));
        let rules = Filter::default().with_host(&own).rules();
        let more = close(&own);
        for closed in ["198.51.100.0/24", "64:ff9b::c633:6400/120", "2001:db8::/64"] {
            assert!(rules.contains(closed), "{closed}: {rules}");
            assert!(more.contains(closed), "{closed}: {more}");
        }
    }

    #[test]
    fn nothing_opens_loopback() {
        assert_eq!(
            never_in(&[net("10.1.0.0/16"), net("169.254.169.254/32")]),
            None
        );
        assert_eq!(never_in(&[net("127.0.0.1/32")]), Some(net("127.0.0.1/32")));
    }
}
