//! What this host takes for its own, as the kernel routes it (rtnetlink(7)), and that it has changed.
//!
//! A route of type local is an address whether an interface has it or not: a balancer's, or a whole
//! prefix. Routes of the table `local` that lead elsewhere are not this host's own.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use ipnet::IpNet;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

use crate::error::{At, LocalError};

/// Types of routes by which packets end at this host: `rtm_type` in rtnetlink(7).
const OWN: [u8; 3] = [libc::RTN_LOCAL, libc::RTN_BROADCAST, libc::RTN_ANYCAST];
const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];
/// A table that changes meanwhile is read again, so many times.
const TRIES: u32 = 8;

/// As they are now, of every table.
pub(super) fn routes() -> Result<BTreeSet<IpNet>, LocalError> {
    read().at("reading", Path::new("the routes of this host"))
}

fn read() -> io::Result<BTreeSet<IpNet>> {
    let socket = open(0, SocketFlags::empty())?;
    // The kernel looks for the types that are asked for, and sends no others.
    let strict: libc::c_int = 1;
    // SAFETY: a plain call with a descriptor and an integer that live through it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_GET_STRICT_CHK,
            (&raw const strict).cast(),
            size_of_val(&strict) as libc::socklen_t,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    for _ in 0..TRIES {
        let mut own = BTreeSet::new();
        let mut whole = true;
        for family in FAMILIES {
            for kind in OWN {
                send(&socket, &question(family, kind), SendFlags::empty())?;
                whole &= answer(&socket, &mut own)?;
            }
        }
        if whole {
            return Ok(own);
        }
    }
    Err(Errno::AGAIN.into())
}

/// A socket that can be read when something of this host's own has come or gone.
pub(super) fn changes() -> io::Result<OwnedFd> {
    let groups = libc::RTMGRP_IPV4_IFADDR
        | libc::RTMGRP_IPV6_IFADDR
        | libc::RTMGRP_IPV4_ROUTE
        | libc::RTMGRP_IPV6_ROUTE;
    open(groups.unsigned_abs(), SocketFlags::NONBLOCK)
}

/// Reads until there is no more. Whether something may have come that is to be closed: most of what a
/// router tells is of others.
pub(super) fn drain(socket: &OwnedFd) -> io::Result<bool> {
    let mut bytes = vec![0_u8; LONGEST];
    let mut came = false;
    loop {
        match recv(socket, bytes.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((length, _)) => came |= messages(&bytes[..length]).any(|it| it.brings_own()),
            // More than the socket holds: nobody knows what.
            Err(Errno::NOBUFS) => came = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(came),
            Err(error) => return Err(error.into()),
        }
    }
}

fn open(groups: u32, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | flags,
        // NETLINK_ROUTE is 0.
        None,
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// As much as the kernel puts into one answer, and more.
const LONGEST: usize = 64 << 10;
/// struct nlmsghdr: length, type, flags, sequence, port.
const HEADER: usize = 16;
/// struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags.
const ROUTE: usize = 12;

/// All routes of one family and type.
fn question(family: u8, kind: u8) -> [u8; HEADER + ROUTE] {
    let mut bytes = [0; HEADER + ROUTE];
    let length = (HEADER + ROUTE) as u32;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[HEADER] = family;
    bytes[HEADER + 7] = kind;
    bytes
}

/// False: the table has changed meanwhile.
fn answer(socket: &OwnedFd, own: &mut BTreeSet<IpNet>) -> io::Result<bool> {
    let mut bytes = vec![0_u8; LONGEST];
    let mut whole = true;
    loop {
        let length = match recv(socket, bytes.as_mut_slice(), RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for message in messages(&bytes[..length]) {
            whole &= message.flags & (libc::NLM_F_DUMP_INTR as u16) == 0;
            match i32::from(message.kind) {
                // Both begin with an error's negative number, or 0.
                libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                    let code = message.payload.first_chunk().copied();
                    return match code.map_or(0, i32::from_ne_bytes) {
                        0 => Ok(whole),
                        code => Err(io::Error::from_raw_os_error(-code)),
                    };
                }
                _ => own.extend(message.own()),
            }
        }
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

impl Message<'_> {
    fn is_own_route(&self) -> bool {
        self.kind == libc::RTM_NEWROUTE && self.payload.get(7).is_some_and(|it| OWN.contains(it))
    }

    fn brings_own(&self) -> bool {
        self.kind == libc::RTM_NEWADDR || self.is_own_route()
    }

    /// None: not one of this host's own, or the whole of a version: by such a route packets that have
    /// a mark are handed to a proxy, and no address is meant.
    fn own(&self) -> Option<IpNet> {
        if !self.is_own_route() {
            return None;
        }
        let prefix = *self.payload.get(1)?;
        let mut rest = self.payload.get(ROUTE..)?;
        while let Some((value, kind, after)) = attribute(rest) {
            if kind == libc::RTA_DST {
                let address: IpAddr = match value.len() {
                    4 => Ipv4Addr::from(*value.first_chunk::<4>()?).into(),
                    16 => Ipv6Addr::from(*value.first_chunk::<16>()?).into(),
                    _ => return None,
                };
                let net = IpNet::new(address, prefix).ok()?;
                return (prefix > 0).then(|| net.trunc());
            }
            rest = after;
        }
        None
    }
}

/// Its value and type, and what comes after it. Length and type are two bytes each.
fn attribute(bytes: &[u8]) -> Option<(&[u8], u16, &[u8])> {
    let (length, kind) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?);
    let length = usize::from(length);
    let after = bytes.get(aligned(length)..).unwrap_or_default();
    Some((bytes.get(4..length)?, kind, after))
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            payload: bytes.get(HEADER..length)?,
        };
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some(message)
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|it| u16::from_ne_bytes(*it))
}

/// Messages and attributes begin at multiples of four.
const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel tells of a route: RTA_TABLE first, then where it leads to.
    fn told(kind: u16, family: u8, route: u8, prefix: u8, to: &[u8]) -> Vec<u8> {
        let mut payload = vec![0; ROUTE];
        (payload[0], payload[1], payload[7]) = (family, prefix, route);
        for (number, value) in [(15_u16, [255, 0, 0, 0].as_slice()), (libc::RTA_DST, to)] {
            let length = (4 + value.len()) as u16;
            payload.extend(length.to_ne_bytes());
            payload.extend(number.to_ne_bytes());
            payload.extend(value);
        }
        let length = (HEADER + payload.len()) as u32;
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; HEADER - 6]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn every_route_that_ends_here_counts_and_no_other() {
        let [four, six] = FAMILIES;
        let new = libc::RTM_NEWROUTE;
        let address6 = Ipv6Addr::from(0x2001_0db8 << 96).octets();
        let all = [
            told(new, four, libc::RTN_LOCAL, 32, &[198, 51, 100, 7]),
            told(new, four, libc::RTN_LOCAL, 24, &[203, 0, 113, 0]),
            told(new, four, libc::RTN_BROADCAST, 32, &[198, 51, 100, 255]),
            told(new, six, libc::RTN_ANYCAST, 128, &address6),
            told(new, four, libc::RTN_UNICAST, 16, &[10, 9, 0, 0]),
            told(new, four, libc::RTN_LOCAL, 0, &[0, 0, 0, 0]),
        ]
        .concat();
        let found: Vec<_> = messages(&all).filter_map(|it| it.own()).collect();
        let found: Vec<_> = found.iter().map(IpNet::to_string).collect();
        let own = [
            "198.51.100.7/32",
            "203.0.113.0/24",
            "198.51.100.255/32",
            "2001:db8::/128",
        ];
        assert_eq!(found, own);
        let gone = told(
            libc::RTM_DELROUTE,
            four,
            libc::RTN_LOCAL,
            32,
            &[198, 51, 100, 7],
        );
        assert!(!messages(&gone).any(|it| it.brings_own()));
        // Cut off anywhere, it is read as far as it goes.
        for length in 0..all.len() {
            assert!(messages(&all[..length]).filter_map(|it| it.own()).count() <= own.len());
        }
    }

    #[test]
    fn this_hosts_loopback_is_its_own() -> Result<(), LocalError> {
        let own = routes()?;
        assert!(own.contains(&"127.0.0.0/8".parse().expect("a network")));
        Ok(())
    }
}
