//! What lies outside: the gateway and its sockets, the host's network and files, another sandbox by
//! any address, and the image that all of them stand on.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use overwinter_client::ExecEvent;
use overwinter_tests::compute::Compute;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::attack::{self, PRELUDE, check};
use crate::stage::{Image, Stage, has_python, runtimes};

const PROGRAM: &str = include_str!("programs/reach.py");
const VICTIM: &str = include_str!("programs/victim.py");

const NO_WAY: &[&str] = &[
    "ENETUNREACH",
    "ECONNREFUSED",
    "EADDRNOTAVAIL",
    "EHOSTUNREACH",
    "EINVAL",
];

const ALLOWED: &[(&str, &[&str])] = &[
    ("address", NO_WAY),
    // Of the resolver, which has errors of its own: nobody answers.
    ("address by name", &["EINTR", "-2", "-3", "-5", "gaierror"]),
    ("abstract", &["ECONNREFUSED"]),
    ("path", &["ENOENT"]),
    ("host's socket", &["ENOENT"]),
    ("mount table", &["[]"]),
    ("process names", &["[]"]),
    ("process", &["ESRCH", "EPERM"]),
    ("process root", &["ENOENT"]),
    ("shared memory", &["ENOENT"]),
    ("message queue", &["ENOENT", "ENOSYS"]),
    ("socket table", &["clean", "ENOENT"]),
    // gVisor's own, which leads to no file system of the host.
    ("disks", &["[]", "['fuse']"]),
    ("empty", &["0 seen", "ENOENT", "EACCES"]),
    ("chroot twice", &["ENOENT"]),
];

/// The addresses of this host that lead somewhere, found without sending anything.
fn addresses() -> Vec<String> {
    ["192.0.2.1:9", "10.0.0.1:9", "169.254.169.254:9"]
        .iter()
        .filter_map(|to| {
            let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
            socket.connect(to).ok()?;
            Some(socket.local_addr().ok()?.ip().to_string())
        })
        .chain(["169.254.169.254".to_owned()])
        .collect()
}

#[tokio::test]
async fn nothing_outside_can_be_reached() -> anyhow::Result<()> {
    if !has_python()? {
        return Ok(());
    }
    let runtimes = runtimes()?;
    let stage = Stage::open().await?;
    let victim = stage.tenant("victim", Image::Host, "runc").await?;

    // All that there is to be reached, so that a refusal means something.
    let listener = TcpListener::bind("0.0.0.0:0")?;
    let port = listener.local_addr()?.port();
    std::net::TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    let abstract_name = format!("overwinter-hostile-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&abstract_name)?;
    let _abstract = UnixListener::bind_addr(&address)?;
    let folder = stage.gateway.folder().to_owned();
    let secret = folder.join("secret");
    std::fs::write(&secret, "of the host")?;
    let data = stage.gateway.data_dir();
    let attach = stage.attach_folder(&victim)?;
    let storage = data.join("local/sandboxes").join(victim.id());
    let home = std::env::home_dir().context("root has no home")?;
    let paths: Vec<PathBuf> = [
        PathBuf::from("/etc/shadow"),
        "/etc/ssh".into(),
        home.join(".ssh"),
        home.join(".bashrc"),
        secret,
        data.join("state.db"),
        storage.join("workspace"),
        storage.join("root/upper"),
        attach.join("attach"),
        data.join("local/ranges"),
    ]
    .into();
    let knows = json!({
        "folder": folder,
        "port": port,
        "other_port": 7_777,
        "addresses": addresses(),
        "abstract": [abstract_name, "overwinter-hostile-victim"],
        "paths": paths,
        "sockets": [stage.gateway.socket(), attach.join("gateway.sock")],
        "pids": {
            "gateway": stage.gateway.pid(),
            "victim": Compute::of(victim.id())?.pid,
        },
        "key": 0x0123_4567,
    });
    let text = format!("{PRELUDE}\n{VICTIM}");
    let command = ["/usr/bin/python3", "-c", &text, &knows.to_string()];
    let mut listening = stage.client.command("victim", command).exec().await?;
    match listening.next().await.context("the victim has ended")? {
        ExecEvent::Stdout(said) => ensure!(said.starts_with(b"listening"), "{said:?}"),
        other => bail!("the victim says {other:?}"),
    }

    for runtime in runtimes {
        stage.tenant(runtime, Image::Host, runtime).await?;
        let outcomes = attack::run(&stage, runtime, "root", PROGRAM, &knows).await?;
        check(runtime, &outcomes, ALLOWED)?;
        stage.unharmed(runtime).await?;
    }

    // Nor can an ordinary user of the host look at what belongs to a sandbox.
    let closed = std::fs::metadata(&storage)?.permissions().mode() & 0o077;
    ensure!(closed == 0, "{} is open: {closed:o}", storage.display());
    for path in [attach.join("attach"), attach.clone(), storage] {
        let status = std::process::Command::new("setpriv")
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "ls",
            ])
            .arg(&path)
            .output()
            .context("setpriv")?;
        ensure!(!status.status.success(), "{}", path.display());
    }
    drop(listening);
    stage.close().await
}

/// Every way to write to a file or folder that is in the image.
const WRITES: &str = r#"
echo spoilt >> /etc/passwd; echo spoilt > /etc/group; : > /bin/busybox.new
cat /etc/passwd > /bin/busybox; echo x >> /bin/busybox
chmod 4777 /bin/busybox; chown 1000:1000 /etc; touch -d 2001-01-01 /etc/passwd
ln /etc/passwd /tmp/linked; echo spoilt >> /tmp/linked
mv /etc/group /etc/moved; mv /root /root.moved; rm -rf /sys/x /tmp/gone
ln -sf /etc/passwd /bin/sh.link; echo spoilt > /bin/sh.link
mkdir -p /usr/new /root; mkfifo /etc/fifo; mknod /etc/null c 1 3; mknod /etc/out c 0 0
truncate -s 0 /bin/busybox; rm -f /bin/ls /etc/passwd; rm -rf /bin
echo done
"#;

/// Names, kinds, modes, owners, times and contents of all below a folder.
fn digest(folder: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut ahead = vec![folder.to_owned()];
    while let Some(path) = ahead.pop() {
        let meta = std::fs::symlink_metadata(&path)?;
        let contents = if meta.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                ahead.push(entry?.path());
            }
            Vec::new()
        } else if meta.is_symlink() {
            std::fs::read_link(&path)?.as_os_str().as_bytes().to_vec()
        } else {
            std::fs::read(&path)?
        };
        let seen = format!(
            "{:o} {}:{} {} {}.{} {:x?}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.nlink(),
            meta.mtime(),
            meta.mtime_nsec(),
            Sha256::digest(contents)
        );
        found.insert(path, seen);
    }
    Ok(found)
}

#[tokio::test]
async fn nothing_is_written_through_to_the_image() -> anyhow::Result<()> {
    let runtimes = runtimes()?;
    let stage = Stage::open().await?;
    let image = stage.gateway.image.root.clone();
    let before = digest(&image)?;
    ensure!(before.len() > 100, "an image without files");
    for runtime in runtimes {
        stage.tenant(runtime, Image::Busybox, runtime).await?;
        // With a shell of its own, which goes on when the image's is no more.
        let script =
            format!("mkdir /tmp/k; cp /bin/busybox /tmp/k; exec /tmp/k/busybox sh -c '{WRITES}'");
        let command = ["/bin/sh", "-c", &script];
        let ran = stage.client.command(runtime, command).run().await?;
        ensure!(ran.stdout.ends_with(b"done\n"), "{ran:?}");
        // It was written, for this sandbox.
        ensure!(stage.client.files(runtime).stat("/bin/ls").await.is_err());
        let after = digest(&image)?;
        let changed: Vec<_> = after
            .iter()
            .filter(|(path, seen)| before.get(*path) != Some(*seen))
            .collect();
        ensure!(
            changed.is_empty() && after.len() == before.len(),
            "{runtime}: {changed:?}"
        );
        // The neighbour stands on the same image.
        stage.unharmed(runtime).await?;
    }
    stage.close().await
}
