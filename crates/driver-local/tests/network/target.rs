//! A machine beyond this one: a network namespace at the end of a cable, with addresses that this host
//! has a route to. Gone with its value.

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sha2::{Digest, Sha256};

type Error = Box<dyn std::error::Error>;

pub(crate) const PORT: u16 = 7000;
/// Where much is sent.
pub(crate) const MUCH: u16 = 7001;

pub(crate) struct Target {
    name: String,
    /// Of TEST-NET-3, so neither private nor this host's.
    pub(crate) public: IpAddr,
    /// Of the prefix for documentation.
    pub(crate) public6: String,
    /// SHA-256 of what is sent where much is.
    pub(crate) much: String,
    /// How many connections came, and from where the last.
    pub(crate) came: Arc<AtomicUsize>,
    pub(crate) seen: Arc<Mutex<Vec<SocketAddr>>>,
}

pub(crate) fn ip(arguments: &str) -> Result<String, Error> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("ip {arguments}: {text}").into())
    }
}

/// In the network namespace of `file`: what is opened there stays there.
pub(crate) fn within<T: Send>(file: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // This thread alone.
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        });
        thread.join().unwrap()
    })
}

impl Target {
    /// `others` are further addresses of it.
    pub(crate) fn new(others: &[&str]) -> Result<Self, Error> {
        let pid = std::process::id();
        let name = format!("owt{}", pid % 1_000_000);
        ip(&format!("netns add {name}"))?;
        let mut target = Self {
            public: IpAddr::from([203, 0, 113, 1]),
            public6: String::new(),
            much: String::new(),
            name: name.clone(),
            came: Arc::default(),
            seen: Arc::default(),
        };
        ip(&format!(
            "link add {name}a type veth peer name {name}b netns {name}"
        ))?;
        ip(&format!("link set {name}a up"))?;
        // Tests run beside one another: the first address that nobody has.
        let taken = (0..250).find_map(|n| {
            let n = (pid + n) % 250 + 1;
            let near = format!("198.51.100.{n}");
            let far = format!("203.0.113.{n}");
            ip(&format!("route add {far}/32 dev {name}a")).ok()?;
            Some((near, far, format!("2001:db8:203:113::{n}")))
        });
        let (near, far, far6) = taken.ok_or("no address is free")?;
        ip(&format!("addr add {near}/32 dev {name}a"))?;
        for link in ["lo".to_owned(), format!("{name}b")] {
            ip(&format!("-n {name} link set {link} up"))?;
        }
        ip(&format!("-n {name} route add default dev {name}b"))?;
        target.public = far.parse()?;
        let near6 = far6.replace(":113:", ":114:");
        // A host without IPv6 has no use for any of it.
        if ip(&format!("addr add {near6}/128 dev {name}a nodad")).is_ok() {
            ip(&format!("route add {far6}/128 dev {name}a src {near6}"))?;
            ip(&format!("-n {name} addr add {far6}/128 dev {name}b nodad"))?;
            ip(&format!("-n {name} -6 route add default dev {name}b"))?;
        }
        target.public6 = far6;
        let mut addresses = vec![target.public];
        for other in others {
            ip(&format!("route add {other}/32 dev {name}a"))?;
            addresses.push(other.parse()?);
        }
        for address in &addresses {
            ip(&format!("-n {name} addr add {address}/32 dev {name}b"))?;
        }
        target.serve()?;
        Ok(target)
    }

    /// This host's end.
    pub(crate) fn cable(&self) -> String {
        format!("{}a", self.name)
    }

    /// Gives this host another address.
    pub(crate) fn near(&self, address: &str) -> Result<IpAddr, Error> {
        ip(&format!("addr add {address}/32 dev {}", self.cable()))?;
        Ok(address.parse()?)
    }

    pub(crate) fn namespace(&self) -> io::Result<File> {
        File::open(format!("/run/netns/{}", self.name))
    }

    /// Greets over TCP, and echoes datagrams on the same port and on that of name servers.
    fn serve(&mut self) -> Result<(), Error> {
        let any = "0.0.0.0";
        let (tcp, much, udp, dns) = within(&self.namespace()?, || {
            let tcp = TcpListener::bind(("::", PORT));
            (
                tcp,
                TcpListener::bind((any, MUCH)),
                UdpSocket::bind((any, PORT)),
                UdpSocket::bind((any, 53)),
            )
        })?;
        listen(tcp?, Arc::clone(&self.came), Arc::clone(&self.seen));
        let numbers: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let digest = Sha256::digest(&numbers);
        self.much = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let much = much?;
        std::thread::spawn(move || {
            for mut stream in much.incoming().flatten() {
                let _ = stream.write_all(&numbers);
            }
        });
        for socket in [udp?, dns?] {
            let seen = Arc::clone(&self.seen);
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                    seen.lock().unwrap().push(from);
                    let _ = socket.send_to(&bytes[..length], from);
                }
            });
        }
        Ok(())
    }

    pub(crate) fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }
}

/// Counts connections, and greets each.
pub(crate) fn listen(
    listener: TcpListener,
    came: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<SocketAddr>>>,
) {
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            came.fetch_add(1, Ordering::Relaxed);
            if let Ok(from) = stream.peer_addr() {
                seen.lock().unwrap().push(from);
            }
            // Closed after the other side has: of two that close at once Debian 12's pasta forgets one.
            std::thread::spawn(move || {
                let mut stream = stream;
                let _ = stream.write_all(b"hello\n");
                let _ = io::copy(&mut stream, &mut io::sink());
            });
        }
    });
}

impl Drop for Target {
    fn drop(&mut self) {
        // The cable and its routes go with it.
        let _ = ip(&format!("link del {}a", self.name));
        let _ = ip(&format!("netns del {}", self.name));
    }
}
