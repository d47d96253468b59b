//! What is reached and what is not.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use overwinter_driver::{Driver, DriverError};
use overwinter_lifecycle::ids::SandboxId;

use crate::common::{Bed, Outcome, credentials, runsc, sandbox, until};
use crate::inside::{TOLD, cannot_run, first, made, pids, reaches, spec, tell};
use crate::target::{MUCH, PORT, Target, ip, listen, within};

type Error = Box<dyn std::error::Error>;

const METADATA: &str = "169.254.169.254";
const PRIVATE: &str = "10.211.55.5";

/// A socket of the sandbox's network that is bound to its device, as any program may: then it leaves
/// by that whatever the routes say.
fn bound_to_device(bed: &Bed, id: SandboxId, to: SocketAddr) -> Result<bool, Error> {
    let net = File::open(format!("/proc/{}/ns/net", first(bed, id)?))?;
    let connected = within(&net, || {
        // SAFETY: plain calls; the descriptor is given to a value that closes it.
        unsafe {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            let socket = libc::socket(libc::AF_INET, kind, 0);
            assert!(socket >= 0);
            let stream = TcpStream::from_raw_fd(socket);
            let device = c"eth0".to_bytes_with_nul();
            let bound = libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_BINDTODEVICE,
                device.as_ptr().cast(),
                5,
            );
            assert_eq!(bound, 0);
            let patience = libc::timeval {
                tv_sec: 2,
                tv_usec: 0,
            };
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_SNDTIMEO,
                (&raw const patience).cast(),
                u32::try_from(size_of_val(&patience)).unwrap(),
            );
            let IpAddr::V4(address) = to.ip() else {
                panic!("not IPv4")
            };
            let address = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: to.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from(address).to_be(),
                },
                sin_zero: [0; 8],
            };
            let length = u32::try_from(size_of_val(&address)).unwrap();
            libc::connect(stream.as_raw_fd(), (&raw const address).cast(), length) == 0
        }
    })?;
    Ok(connected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_internet_is_reached_and_nothing_near() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let target = Target::new(&[METADATA, PRIVATE])?;
    let mut bed = Bed::new(TOLD).await?;
    bed.config.network.dns = vec![target.public];
    bed.restart()?;
    let id = made(&bed, "internet").await?;
    let public = target.public.to_string();

    assert!(reaches(&bed, id, &public, PORT).await?, "it is reached");
    let nobody = target.came();
    for closed in [METADATA, PRIVATE] {
        let host = TcpStream::connect_timeout(&format!("{closed}:{PORT}").parse()?, SECOND);
        assert!(host.is_ok(), "this host reaches {closed}: {host:?}");
        assert!(!reaches(&bed, id, closed, PORT).await?, "{closed}");
        let device = bound_to_device(&bed, id, format!("{closed}:{PORT}").parse()?)?;
        assert!(!device, "{closed} by its device");
    }
    assert!(bound_to_device(
        &bed,
        id,
        SocketAddr::new(target.public, PORT)
    )?);

    // This host, by each of its addresses, by loopback and by what the sandbox takes for its gateway.
    let listener = TcpListener::bind("[::]:0")?;
    let port = listener.local_addr()?.port();
    let host = Arc::new(AtomicUsize::new(0));
    listen(listener, Arc::clone(&host), Arc::default());
    // Other tests have cables of their own, which come and go.
    let (all, cable) = (ip("-4 -o addr show")?, target.cable());
    let own = all
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = own.filter(|words| !words[1].starts_with("owt") || words[1] == cable);
    let own: Vec<_> = own.filter_map(|words| words[3].split('/').next()).collect();
    assert!(own.len() > 2, "{own:?}");
    for address in own.into_iter().chain(["192.0.0.1", "0.0.0.0"]) {
        assert!(!reaches(&bed, id, address, port).await?, "{address}");
        bound_to_device(&bed, id, format!("{address}:{port}").parse()?)?;
    }
    // With IPv6 too, where this host has a way out by it.
    let six = ip("-6 route show default")?;
    if !six.trim().is_empty() {
        let own = ip("-6 -o addr show scope global dev eth0")?;
        let own = own
            .split_whitespace()
            .nth(3)
            .and_then(|it| it.split('/').next());
        for address in own.into_iter().chain(["fe80::1", "::ffff:127.0.0.1"]) {
            assert!(!reaches(&bed, id, address, port).await?, "{address}");
        }
        assert!(
            reaches(&bed, id, &target.public6, PORT).await?,
            "{}",
            target.public6
        );
        assert_eq!(target.came.swap(nobody + 3, Ordering::Relaxed), nobody + 4);
    }
    let came = host.load(Ordering::Relaxed);
    assert_eq!(came, 0, "nothing came to this host");
    assert_eq!(
        target.came(),
        nobody + 3,
        "this host twice, and what was bound to the device"
    );

    // One that this host gets later, and one that it has got while there was no gateway.
    let late = target.near("198.51.101.1")?;
    until("it is closed", || {
        !bound_to_device(&bed, id, SocketAddr::new(late, port)).unwrap_or(true)
    })
    .await?;
    let later = target.near("198.51.101.2")?;
    bed.restart()?;
    bed.driver.recover(id, 10 * SECOND).await?;
    assert!(!reaches(&bed, id, &later.to_string(), port).await?);

    // What is routed to this host is its own, also where no interface has it.
    let routed = "198.51.103.0/24";
    ip(&format!("route add local {routed} dev {cable}"))?;
    until("it is closed too", || {
        !bound_to_device(&bed, id, SocketAddr::new([198, 51, 103, 9].into(), port)).unwrap_or(true)
    })
    .await?;
    let broadcast: SocketAddr = format!("198.51.104.255:{port}").parse()?;
    ip(&format!("addr add 198.51.104.7/24 brd + dev {cable}"))?;
    until("so is a broadcast", || {
        refuses_datagrams(&bed, id, broadcast).unwrap_or(false)
    })
    .await?;

    // Another sandbox has the same address, and is not there.
    let other = made(&bed, "internet").await?;
    let served = "busybox nc -l -p 9000 -e /bin/echo hello & sleep 0.2; \
                  busybox nc -w 2 192.0.0.2 9000 < /dev/null";
    assert!(tell(&bed, other, served).await?.contains("hello"), "itself");
    let serving = "(busybox nc -l -p 9001 -e /bin/echo hello > /dev/null 2>&1 &) ; echo serving";
    assert!(tell(&bed, other, serving).await?.contains("serving"));
    assert!(!reaches(&bed, id, "192.0.0.2", 9001).await?);

    // Names are asked where this host asks, and nothing else is there.
    let asked = tell(&bed, id, "cat /etc/resolv.conf").await?;
    assert_eq!(asked, "nameserver 192.0.0.3\n");
    let asked = datagram(&bed, id, 0, "192.0.0.3:53".parse()?, || Ok(()))?;
    assert_eq!(asked, (true, false));
    assert!(!reaches(&bed, id, "192.0.0.3", PORT).await?);

    // The port of a datagram on this host is not the sandbox's choice, and nobody but who was asked
    // is heard there.
    let stranger = UdpSocket::bind("0.0.0.0:0")?;
    let from_here = || {
        let seen = target.seen.lock().unwrap().last().copied();
        let from = seen.ok_or_else(|| std::io::Error::other("nothing came"))?;
        assert!((32768..61000).contains(&from.port()), "{from}");
        for address in [from.ip(), IpAddr::from([127, 0, 0, 1])] {
            stranger.send_to(b"stray", (address, from.port()))?;
        }
        Ok(())
    };
    let to = SocketAddr::new(target.public, PORT);
    assert_eq!(datagram(&bed, id, 8125, to, from_here)?, (true, false));
    for closed in [METADATA, PRIVATE] {
        let to = SocketAddr::new(closed.parse()?, PORT);
        assert_eq!(
            datagram(&bed, id, 0, to, || Ok(()))?,
            (false, false),
            "{closed}"
        );
    }

    // Much arrives as it was sent, and no port is bound for connections.
    let much = format!("busybox sleep 2 | busybox nc {public} {MUCH} | busybox sha256sum");
    let much = tell(&bed, id, &much).await?;
    assert_eq!(much.split(' ').next(), Some(target.much.as_str()));
    let carrier = pids(&bed, id, true);
    assert_eq!(carrier.len(), 1, "one process carries packets");
    assert_eq!(listening(carrier[0])?, 0);

    for id in [id, other] {
        bed.driver.delete(&bed.effect(id, 2, 1)).await?;
    }
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

/// Sends a datagram out of the sandbox's network, and does `meanwhile`; whether it came back, and
/// whether another came after it.
fn datagram(
    bed: &Bed,
    id: SandboxId,
    from: u16,
    to: SocketAddr,
    meanwhile: impl FnOnce() -> std::io::Result<()> + Send,
) -> Result<(bool, bool), Error> {
    let net = File::open(format!("/proc/{}/ns/net", first(bed, id)?))?;
    let came = within(&net, || {
        let socket = UdpSocket::bind(("0.0.0.0", from))?;
        socket.set_read_timeout(Some(SECOND))?;
        let mut bytes = [0; 64];
        // Of one that is prohibited the socket hears at once.
        let sent = socket.send_to(b"sent", to).is_ok();
        let echoed = sent
            && socket
                .recv_from(&mut bytes)
                .is_ok_and(|(length, _)| length == 4);
        meanwhile()?;
        let more = socket.recv_from(&mut bytes).is_ok();
        Ok::<_, std::io::Error>((echoed, more))
    })??;
    Ok(came)
}

/// Whether the sandbox's own kernel says that nothing may be sent there.
fn refuses_datagrams(bed: &Bed, id: SandboxId, to: SocketAddr) -> Result<bool, Error> {
    let net = File::open(format!("/proc/{}/ns/net", first(bed, id)?))?;
    let sent = within(&net, || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.send_to(b"sent", to)
    })?;
    Ok(sent.is_err())
}

const SECOND: Duration = Duration::from_secs(1);

/// How many TCP sockets of a process of this host listen.
fn listening(pid: i32) -> Result<usize, Error> {
    let mut own = std::collections::BTreeSet::new();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let link = std::fs::read_link(fd.path())?
            .to_string_lossy()
            .into_owned();
        own.extend(
            link.strip_prefix("socket:[")
                .map(|text| text.trim_end_matches(']').to_owned()),
        );
    }
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/net/{name}")));
    let tables: String = tables.into_iter().flatten().collect();
    let listens = tables.lines().filter(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.len() > 9 && words[3] == "0A" && own.contains(words[9])
    });
    Ok(listens.count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_inside_can_lift_it() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let target = Target::new(&[])?;
    let bed = Bed::new(TOLD).await?;
    let id = made(&bed, "internet").await?;
    let attacks = "busybox id -u; for it in 'route del default' 'route add 10.0.0.0/8 dev eth0' \
        'addr add 10.9.9.9/24 dev eth0' 'link set eth0 down' 'link set lo down' 'rule add from all table 9' \
        'link del eth0'; do busybox ip $it; echo \"$it: $?\"; done; \
        busybox unshare -U true; echo \"userns: $?\"; echo 1 > /proc/sys/net/ipv4/ip_forward; \
        echo \"sysctl: $?\"; busybox ping -c1 -W1 127.0.0.1; echo \"raw: $?\"; \
        busybox ls /sys/class/net; (echo hello | busybox nc -l -p 80 > /dev/null &); sleep 0.1; \
        echo | busybox nc -w 1 127.0.0.1 80";
    let said = tell(&bed, id, attacks).await?;
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("0"), "as root: {said}");
    let worked: Vec<_> = said.lines().filter(|line| line.ends_with(": 0")).collect();
    assert_eq!(worked, Vec::<&str>::new(), "{said}");
    assert!(said.contains("Operation not permitted"), "{said}");
    // It sees its own devices, and may have any port of its own.
    assert!(said.contains("eth0") && !said.contains("veth"), "{said}");
    assert!(said.ends_with("hello\n"), "{said}");

    // With every right that the sandbox's user namespace has to give, which no program gets.
    let (pid, nft) = (first(&bed, id)?, "flush ruleset");
    for (name, arguments) in [("nft", nft), ("ip", "link set eth0 down")] {
        let mut command = Command::new(name);
        command.args(arguments.split(' '));
        let (net, user) = (namespace(pid, "net")?, namespace(pid, "user")?);
        // SAFETY: two system calls with descriptors that live in the closure.
        unsafe {
            command.pre_exec(move || {
                for (file, kind) in [(&net, libc::CLONE_NEWNET), (&user, libc::CLONE_NEWUSER)] {
                    if libc::setns(file.as_raw_fd(), kind) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            })
        };
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{name} {arguments}");
        assert!(text.contains("not permitted"), "{name}: {text}");
    }
    assert!(reaches(&bed, id, &target.public.to_string(), PORT).await?);
    assert!(!bound_to_device(&bed, id, "10.211.55.5:7000".parse()?)?);
    bed.driver.delete(&bed.effect(id, 2, 1)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

fn namespace(pid: i32, kind: &str) -> std::io::Result<File> {
    File::open(format!("/proc/{pid}/ns/{kind}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_configuration_opens_is_reached() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let target = Target::new(&["10.211.56.5", "10.211.57.5"])?;
    let mut bed = Bed::new(TOLD).await?;
    bed.config.network.allow = vec!["10.211.56.0/24".parse()?];
    bed.restart()?;
    let id = made(&bed, "internet").await?;
    assert!(reaches(&bed, id, "10.211.56.5", PORT).await?);
    assert!(!reaches(&bed, id, "10.211.57.5", PORT).await?);
    assert_eq!(target.came(), 1);
    bed.driver.delete(&bed.effect(id, 2, 1)).await?;

    bed.config.network.allow = vec!["127.0.0.0/8".parse()?];
    let refused = bed.restart().expect_err("loopback is nobody's").to_string();
    assert!(refused.contains("127.0.0.0/8"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hosts_own_network_is_given_only_where_it_is_switched_on() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let mut bed = Bed::new(TOLD).await?;
    let refused = made(&bed, "host").await.expect_err("it is off").to_string();
    assert!(refused.contains("local.network.host"), "{refused}");
    let unknown = made(&bed, "moon").await.expect_err("no such").to_string();
    assert!(unknown.contains("none, internet, host"), "{unknown}");
    assert_eq!(bed.left(), Vec::<String>::new());

    bed.config.network.host = true;
    bed.restart()?;
    let id = made(&bed, "host").await?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    listen(listener, Arc::default(), Arc::default());
    assert!(
        reaches(&bed, id, "127.0.0.1", port).await?,
        "it is this host's"
    );
    let said = tell(
        &bed,
        id,
        "busybox ip link set lo down; echo \"down: $?\"; busybox ip route add 10.9.0.0/16 dev lo; echo \"route: $?\"; \
         busybox find / -xdev -name gateway.sock; busybox ls /run/overwinter; echo ended",
    )
    .await?;
    assert!(
        said.contains("down: ") && !said.contains("down: 0"),
        "{said}"
    );
    assert!(!said.contains("route: 0"), "{said}");
    assert!(pids(&bed, id, true).is_empty(), "nothing carries packets");
    bed.driver.delete(&bed.effect(id, 2, 1)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gvisor_is_refused_what_it_is_not_connected_to() -> Outcome {
    let (None, Some(runsc)) = (cannot_run(), runsc()) else {
        return Ok(());
    };
    let bed = Bed::on(&runsc, TOLD).await?;
    let id = sandbox();
    let made = bed
        .driver
        .create(
            &bed.effect(id, 1, 1),
            &spec(&bed, "internet"),
            &credentials(id, 1),
        )
        .await;
    match made {
        Err(DriverError::Unsupported(why)) => assert!(why.contains("gVisor"), "{why}"),
        other => return Err(format!("{other:?}").into()),
    }
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}
