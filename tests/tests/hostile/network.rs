//! A program with a way out: what lies near is closed to it, the filter is not its to lift, and what
//! cannot have a filter gets no way out at all. Through the gateway's door; the driver's own tests have
//! more of what is closed, and what ends a network.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail, ensure};
use futures::TryStreamExt;
use overwinter_client::{Code, Depth, ExecEvent};
use serde_json::json;

use crate::attack::{self, check};
use crate::stage::{Image, Stage, has_gvisor, has_network, has_python};
use crate::target::{PORT, Target, ip, listen};

const PROGRAM: &str = include_str!("programs/network.py");
const METADATA: &str = "169.254.169.254";
const PRIVATE: &str = "10.211.58.5";
const OTHERS: u16 = 7_777;
/// What the other sandbox runs: everybody who comes is greeted.
const SERVES: &str = "import socket\n\
    door = socket.create_server(('0.0.0.0', 7777))\n\
    print('serving', flush=True)\n\
    while True: door.accept()[0].send(b'other')\n";

const CLOSED: &[&str] = &["ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EINVAL"];
const NO_RIGHT: &[&str] = &["EPERM"];

const ALLOWED: &[(&str, &[&str])] = &[
    ("program", NO_RIGHT),
    ("raw", NO_RIGHT),
    ("raw echo", &["EACCES", "EPERM"]),
    ("option", NO_RIGHT),
    ("unshare", NO_RIGHT),
    ("setns", NO_RIGHT),
    ("tun", &["ENOENT"]),
    ("sysctl", &["EROFS", "EACCES", "EPERM"]),
    ("public", &["hello"]),
    ("public by datagram", &["sent"]),
    ("closed", CLOSED),
    ("closed datagram", NO_RIGHT),
    ("socket", &["ENOENT", "ECONNREFUSED"]),
];

/// From this host. Who greets has counted before.
fn greeted(address: &str, port: u16) -> std::io::Result<()> {
    let mut greeting = [0; 5];
    TcpStream::connect((address, port))?.read_exact(&mut greeting)
}

/// Ports of this host that a process is bound to, whether it listens or not.
fn bound_by(pid: u32) -> anyhow::Result<Vec<String>> {
    let mut own = BTreeSet::new();
    for file in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let Ok(link) = std::fs::read_link(file.path()) else {
            continue;
        };
        let link = link.to_string_lossy().into_owned();
        let inode = link.strip_prefix("socket:[");
        own.extend(inode.map(|inode| inode.trim_end_matches(']').to_owned()));
    }
    let mut bound = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"] {
        // Without IPv6 its tables are not there.
        let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let lines = text.lines().skip(1);
        let of_it = |line: &&str| {
            line.split_whitespace()
                .nth(9)
                .is_some_and(|it| own.contains(it))
        };
        bound.extend(lines.filter(of_it).map(|line| format!("{table} {line}")));
    }
    Ok(bound)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_way_out_leads_nowhere_near() -> anyhow::Result<()> {
    if !has_python()? || !has_network()? {
        return Ok(());
    }
    let target = Target::new(&[METADATA, PRIVATE]).map_err(|error| anyhow::anyhow!("{error}"))?;
    let stage = Stage::open().await?;
    for name in ["tenant", "other"] {
        let create = stage.create(name, Image::Host).runtime("runc");
        create.network("internet").wait().await?;
    }
    let command = ["/usr/bin/python3", "-c", SERVES];
    let mut serving = stage.client.command("other", command).exec().await?;
    match serving.next().await.context("the other has ended")? {
        ExecEvent::Stdout(said) => ensure!(said.starts_with(b"serving"), "{said:?}"),
        other => bail!("the other says {other:?}"),
    }

    // All that there is to be reached, so that a refusal means something.
    let listener = TcpListener::bind("[::]:0")?;
    let port = listener.local_addr()?.port();
    let came = Arc::new(AtomicUsize::new(0));
    listen(listener, Arc::clone(&came), Arc::default());
    let abstract_name = format!("overwinter-network-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&abstract_name)?;
    let _abstract = UnixListener::bind_addr(&address)?;
    for near in [METADATA, PRIVATE, "127.0.0.1"] {
        let port = if near == "127.0.0.1" { port } else { PORT };
        greeted(near, port).with_context(|| format!("{near} of this host"))?;
    }
    let (own, cable) = (
        ip("-4 -o addr show").map_err(|error| anyhow::anyhow!("{error}"))?,
        target.cable(),
    );
    // Other tests have cables of their own, which come and go.
    let lines = own
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let lines = lines.filter(|words| !words[1].starts_with("owt") || words[1] == cable);
    let own: Vec<_> = lines
        .filter_map(|words| words[3].split('/').next().map(str::to_owned))
        .chain(
            [
                "127.0.0.2",
                "0.0.0.0",
                "192.0.0.1",
                "192.0.0.2",
                "192.0.0.3",
            ]
            .map(str::to_owned),
        )
        .chain(["::1", "::ffff:127.0.0.1", "fe80::1"].map(str::to_owned))
        .collect();
    let knows = json!({
        "public": [target.public.to_string(), PORT],
        "beyond": [METADATA, PRIVATE],
        "own": own,
        "ports": [port, OTHERS],
        "sockets": [stage.gateway.socket(), format!("\0{abstract_name}")],
    });
    let (before, to_target) = (came.load(Ordering::Relaxed), target.came());

    let mut runs = 0;
    for depth in [None, Some(Depth::Freeze), Some(Depth::Stop)] {
        if let Some(depth) = depth {
            stage.client.suspend("tenant").depth(depth).wait().await?;
            stage.client.resume("tenant").wait().await?;
        }
        for user in ["root", "user"] {
            let who = format!("{user} after {depth:?}");
            let outcomes = attack::run(&stage, "tenant", user, PROGRAM, &knows).await;
            check(&who, &outcomes.context(who.clone())?, ALLOWED)?;
            runs += 1;
            stage.unharmed(&who).await?;
        }
    }
    let came = came.load(Ordering::Relaxed) - before;
    ensure!(came == 0, "{came} connections came to this host");
    // By the routes, and by the device.
    let to_target = target.came() - to_target;
    ensure!(
        to_target == 2 * runs,
        "{to_target} connections in {runs} runs"
    );
    let pid = stage.gateway.pid().context("no gateway runs")?;
    let bound = bound_by(pid)?;
    ensure!(bound.is_empty(), "the gateway has ports: {bound:?}");
    drop(serving);
    stage.close().await
}

#[tokio::test]
async fn what_a_runtime_cannot_have_is_refused_before_anything_is_written() -> anyhow::Result<()> {
    if !has_network()? || !has_gvisor()? {
        return Ok(());
    }
    let stage = Stage::open().await?;
    let operations = || stage.client.operations(None, false).try_collect::<Vec<_>>();
    let before = operations().await?.len();
    for (network, runtime, why) in [
        ("internet", "runsc", "gVisor"),
        ("host", "runsc", "local.network.host"),
        ("moon", "runsc", "none, internet, host"),
        ("none", "moon", "runc, runsc"),
    ] {
        let create = stage.create("out", Image::Busybox).network(network);
        let error = create.runtime(runtime).accept().await.err();
        let error = error.with_context(|| format!("{network} on {runtime} is accepted"))?;
        ensure!(error.code() == Code::Unimplemented, "{error:?}");
        ensure!(error.message().contains(why), "{error:?}");
    }
    let image = stage.gateway.image.name();
    let said = stage
        .gateway
        .say([
            "sandbox",
            "create",
            "out",
            "--image",
            &image,
            "--network",
            "internet",
            "--runtime",
            "runsc",
        ])
        .await?;
    ensure!(said.code != 0 && said.err.contains("gVisor"), "{said:?}");
    let found = stage
        .client
        .get("out")
        .await
        .err()
        .context("a record is there")?;
    ensure!(found.code() == Code::NotFound, "{found:?}");
    let after = operations().await?.len();
    ensure!(after == before, "{before} operations, then {after}");
    stage.unharmed("what was refused").await?;
    stage.close().await
}

#[tokio::test]
async fn gvisor_as_the_default_gives_no_way_out_either() -> anyhow::Result<()> {
    if !has_network()? || !has_gvisor()? {
        return Ok(());
    }
    let stage = Stage::open_with("[local]\nruntime = \"runsc\"\n").await?;
    let refused = stage
        .create("out", Image::Busybox)
        .network("internet")
        .accept();
    let error = refused.await.err().context("it is accepted")?;
    ensure!(error.reason() == "UNSUPPORTED", "{error:?}");
    ensure!(error.message().contains("gVisor"), "{error:?}");
    let create = stage.create("out", Image::Busybox).network("internet");
    let made = create.runtime("runc").wait().await?.sandbox;
    ensure!(made.id() == stage.client.get("out").await?.id());
    stage.close().await
}
