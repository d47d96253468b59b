//! pasta(1): packets of a network namespace carried by ordinary sockets of this host.
//!
//! It runs as a user that nobody else is, in a group beside the compute's, and before it carries
//! anything it gives up every right, the file system and all but a few system calls. It goes into the
//! background when it is ready, and its end is that of its group. Nothing of this host is forwarded
//! in: it binds no TCP port, and a UDP port for as long as a datagram's answer may come.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::command::{self, Started};
use crate::error::LocalError;
use crate::userns::Network as Namespaces;

/// Addresses of the tap's network, which is nobody else's: of the block for a host's own
/// translations (RFC 7335), and of a random unique local one.
const OWN4: &str = "192.0.0.2";
const GATEWAY4: &str = "192.0.0.1";
const OWN6: &str = "fd6f:7665:7277::2";
const GATEWAY6: &str = "fe80::1";
/// Where name servers are asked.
pub(super) const DNS4: &str = "192.0.0.3";
pub(super) const DNS6: &str = "fd6f:7665:7277::3";

/// Where it finds what it needs: in a mount namespace of its own.
const USER: &std::ffi::CStr = c"/dev/net/user";
const NET: &std::ffi::CStr = c"/dev/net/net";
const RESOLV: &std::ffi::CStr = c"/dev/net/resolv.conf";

/// A start of it.
pub(super) struct Pasta(Started);

impl Pasta {
    /// `joins` are files to write `0` to, before it is anything.
    pub(super) fn start(
        program: &Path,
        namespaces: &Namespaces,
        user: u32,
        joins: Vec<File>,
        dns: &[IpAddr],
    ) -> Result<Self, LocalError> {
        let mut command = Command::new(program);
        command
            .args(["--userns", &USER.to_string_lossy()])
            .args(["--netns", &NET.to_string_lossy()])
            .args(["--no-netns-quit", "--config-net", "--ns-ifname", "eth0"])
            .args(["--address", OWN4, "--netmask", "29", "--gateway", GATEWAY4])
            .args(["--address", OWN6, "--gateway", GATEWAY6])
            .args(["--dns-forward", DNS4, "--dns-forward", DNS6])
            // The gateway's address stands for nothing, this host's loopback least of all.
            .arg("--no-map-gw")
            .args(["--tcp-ports", "none", "--udp-ports", "none"])
            .args(["--tcp-ns", "none", "--udp-ns", "none"])
            // Without ICMP it would answer no neighbour solicitation either; the filter has the rest.
            .args(["--no-dhcp", "--no-dhcpv6", "--no-ra"])
            .env_clear()
            .current_dir("/");
        let stage = Stage {
            joins,
            parent: libc::pid_t::try_from(std::process::id()).unwrap_or(-1),
            user,
            userns: descriptor(namespaces.user.as_raw_fd()),
            netns: descriptor(namespaces.net.as_raw_fd()),
            name_servers: lines(dns),
        };
        // SAFETY: it makes raw system calls with what was prepared here, and allocates nothing.
        unsafe { command.pre_exec(move || stage.enter()) };
        command::start("pasta", command, None).map(Self)
    }

    /// Waits until it is in the background, and packets are carried.
    pub(super) fn ready(self, until: Instant) -> Result<(), LocalError> {
        self.0.ended(until)
    }
}

/// The name servers that stand for those of this host: of each version that it asks one by.
pub(super) fn resolv_conf(servers: &[IpAddr]) -> String {
    let versions = [
        (servers.iter().any(IpAddr::is_ipv4), DNS4),
        (servers.iter().any(IpAddr::is_ipv6), DNS6),
    ];
    let asked = versions.iter().filter(|(asked, _)| *asked);
    lines(asked.map(|(_, address)| address))
}

fn lines(servers: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let lines = servers
        .into_iter()
        .map(|server| format!("nameserver {server}\n"));
    lines.collect()
}

fn descriptor(fd: i32) -> CString {
    // Digits hold no NUL.
    CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

/// What the child does between fork and exec.
struct Stage {
    joins: Vec<File>,
    /// Who starts it.
    parent: libc::pid_t,
    user: u32,
    userns: CString,
    netns: CString,
    /// In place of `/etc/resolv.conf`, for itself: its option `--dns` does not say where to hand names
    /// on to. Empty: the host's is right.
    name_servers: String,
}

impl Stage {
    fn enter(&self) -> io::Result<()> {
        // SAFETY: every pointer is to a string that ends with NUL and lives through the call.
        unsafe {
            // Until it is in its group nobody could find it: the death of who starts it is its own.
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::getppid() != self.parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            for join in &self.joins {
                let written = libc::write(join.as_raw_fd(), c"0".as_ptr().cast(), 1);
                check(if written == 1 { 0 } else { -1 })?;
            }
            self.mounts()?;
            // glibc's own would look for the threads of the parent.
            let user = libc::c_long::from(self.user);
            let none = std::ptr::null::<libc::gid_t>();
            call(libc::syscall(libc::SYS_setgroups, 0_usize, none))?;
            call(libc::syscall(libc::SYS_setresgid, user, user, user))?;
            call(libc::syscall(libc::SYS_setresuid, user, user, user))
        }
    }

    /// A `/dev/net` with the tun device, which only root may open on some hosts, and with the
    /// namespaces, which only root could reach by another path. Seen by nobody else.
    unsafe fn mounts(&self) -> io::Result<()> {
        // SAFETY: as in `enter`.
        unsafe {
            check(libc::unshare(libc::CLONE_NEWNS))?;
            let private = libc::MS_REC | libc::MS_PRIVATE;
            mount(c"none", c"/", None, private)?;
            let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
            mount(c"none", c"/dev/net", Some(c"tmpfs"), flags)?;
            libc::umask(0);
            let device = libc::makedev(10, 200);
            check(libc::mknod(
                c"/dev/net/tun".as_ptr(),
                libc::S_IFCHR | 0o666,
                device,
            ))?;
            for (namespace, at) in [(&self.userns, USER), (&self.netns, NET)] {
                check(libc::mknod(at.as_ptr(), libc::S_IFREG | 0o444, 0))?;
                mount(namespace, at, None, libc::MS_BIND)?;
            }
            if self.name_servers.is_empty() {
                return Ok(());
            }
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
            let file = libc::open(RESOLV.as_ptr(), flags, 0o444);
            check(file)?;
            let text = self.name_servers.as_bytes();
            let written = libc::write(file, text.as_ptr().cast(), text.len());
            check(if written.cast_unsigned() == text.len() {
                0
            } else {
                -1
            })?;
            mount(RESOLV, c"/etc/resolv.conf", None, libc::MS_BIND)
        }
    }
}

/// # Safety
/// None beyond that of mount(2).
unsafe fn mount(
    source: &std::ffi::CStr,
    target: &std::ffi::CStr,
    kind: Option<&std::ffi::CStr>,
    flags: libc::c_ulong,
) -> io::Result<()> {
    let kind = kind.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    // SAFETY: strings that end with NUL, and no options.
    check(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind,
            flags,
            std::ptr::null(),
        )
    })
}

fn check(result: libc::c_int) -> io::Result<()> {
    call(libc::c_long::from(result))
}

fn call(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_asks_by_the_versions_that_the_host_asks_by() {
        let servers: Vec<IpAddr> = ["127.0.0.53", "10.0.0.1"]
            .iter()
            .filter_map(|text| text.parse().ok())
            .collect();
        assert_eq!(resolv_conf(&servers), "nameserver 192.0.0.3\n");
        assert_eq!(resolv_conf(&[]), "");
    }
}
