//! The image `host`: what of this host is inside, what is not, and what is so once it has changed.
//! The host lies in a folder, so that it can be changed; its root's files are this host's root's.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Bed, Outcome, cannot_run, credentials, runsc, sandbox, until};
use overwinter_driver::{Compute, Depth, Driver, DriverError, Observed, Unusable};
use overwinter_lifecycle::ids::Incarnation;

/// With every right that root has in a sandbox it tries to read, to make readable, to copy and to move
/// what is only the host's root's; then it writes to `/usr`, and says what it finds.
const READS: &str = r#"
for f in /usr/secret /usr/local/share/group /usr/local/share/mine /usr/bin/helper /usr/local/closed/inner; do
  t() { "$@" >> /workspace/got 2>> /workspace/refused; }
  t cat $f; t dd if=$f; t sh $f; t cp $f /workspace/copy; t cp $f /usr/copy
  t mv $f /workspace/moved; t ln $f /usr/linked
  t chmod 644 $f; t cat $f; t chown 0:0 $f; t cat $f; t chown 65535:65535 $f; t cat $f
  t touch $f; t cat $f
  ( exec 3<> $f && cat <&3 ) >> /workspace/got 2>> /workspace/refused
  ( echo line >> $f ) 2>> /workspace/refused
  t $f
done
chmod 755 /usr/local/closed; ls /usr/local/closed >> /workspace/got; cat /usr/local/closed/inner >> /workspace/got
mv /usr/local/closed /usr/local/opened; cat /usr/local/opened/inner >> /workspace/got
cp -r /usr/local /workspace/local
cat /usr/local/share/open > /workspace/open
echo more >> /usr/local/share/open; rm /usr/local/share/gone; echo '#!/bin/sh' > /usr/bin/tool; chmod 755 /usr/bin/tool
chown 1000:1000 /usr/local/share/open; mkdir /usr/lib/new
echo $(stat -c '%u:%g %a' /usr/bin/busybox) $(stat -c '%u:%g' /usr/local/share/open) > /workspace/owners
ls -A / > /workspace/top; ls -A /home /root /opt /srv /mnt > /workspace/empty
find /etc /var | grep -v /etc/host > /workspace/etc; cat /etc/passwd > /workspace/passwd
find / -name 'id_*' -o -name shadow -o -name machine-id > /workspace/names 2> /dev/null
echo done > /workspace/.d; mv /workspace/.d /workspace/done
while true; do sleep 1; done"#;

const SECRETS: [(&str, u32, u32); 5] = [
    ("usr/secret", 0o600, 0),
    ("usr/local/share/group", 0o640, 0),
    ("usr/local/share/mine", 0o600, 1000),
    ("usr/bin/helper", 0o4750, 0),
    ("usr/local/closed/inner", 0o644, 0),
];

/// What belongs to the host and is nobody else's business.
fn furnish(host: &Path) -> Outcome {
    fs::create_dir(host.join("usr/local/closed"))?;
    fs::set_permissions(
        host.join("usr/local/closed"),
        fs::Permissions::from_mode(0o700),
    )?;
    for (name, mode, owner) in SECRETS {
        put(host, name, "#!/bin/busybox echo\necho SECRET\n", mode)?;
        chown(host.join(name), Some(owner), Some(owner))?;
        fs::set_permissions(host.join(name), fs::Permissions::from_mode(mode))?;
    }
    for (name, text) in [
        ("usr/local/share/open", "open\n"),
        ("usr/local/share/gone", "gone\n"),
        ("etc/shadow", "root:SECRET\n"),
        ("etc/machine-id", "SECRET\n"),
        ("etc/hostname", "SECRET\n"),
        (
            "etc/passwd",
            "root:x:0:0::/root:/bin/sh\nSECRET:x:1:1::/:/bin/sh\n",
        ),
        ("etc/ssh/id_host", "SECRET\n"),
        ("etc/mime.types", "text/plain txt\n"),
        ("etc/ssl/certs/ca.pem", "-----BEGIN CERTIFICATE-----\n"),
        (
            "etc/ssl/certs/key.pem",
            "-----BEGIN RSA PRIVATE KEY-----\nSECRET\n",
        ),
        ("root/.ssh/id_root", "SECRET\n"),
        ("home/someone/id_home", "SECRET\n"),
        ("opt/thing/SECRET", "SECRET\n"),
        ("var/lib/thing", "SECRET\n"),
        ("SECRET", "SECRET\n"),
    ] {
        put(host, name, text, 0o644)?;
    }
    put(host, "etc/ssl/certs/closed.pem", "SECRET\n", 0o640)?;
    fs::create_dir(host.join("etc/alternatives"))?;
    symlink("/usr/bin/busybox", host.join("etc/alternatives/editor"))?;
    Ok(())
}

fn put(host: &Path, name: &str, text: &str, mode: u32) -> Outcome {
    let path = host.join(name);
    fs::create_dir_all(path.parent().ok_or("no parent")?)?;
    fs::write(&path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// The mode of a file, its owner and what it holds.
type Held = (u32, u32, Vec<u8>);

fn tree(root: &Path) -> Result<BTreeMap<PathBuf, Held>, std::io::Error> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let (path, meta) = entry.and_then(|it| Ok((it.path(), it.metadata()?)))?;
            let bytes = if meta.is_file() {
                fs::read(&path)?
            } else {
                Vec::new()
            };
            if meta.is_dir() {
                folders.push(path.clone());
            }
            found.insert(path, (meta.mode(), meta.uid(), bytes));
        }
    }
    Ok(found)
}

async fn hides_and_keeps(runtime: &Path) -> Outcome {
    let bed = Bed::on_host(runtime, READS).await?;
    let host = bed.config.host_root.clone();
    furnish(&host)?;
    let before = tree(&host)?;
    let id = sandbox();
    let mut spec = bed.spec();
    spec.image = bed.driver.pin("host").await?;
    let made = bed
        .driver
        .create(&bed.effect(id, 1, 1), &spec, &credentials(id, 1))
        .await?;
    assert_eq!(made.remarks, Vec::<String>::new());
    let workspace = bed.sandbox_dir(id).join("workspace");
    let read = |name: &str| fs::read_to_string(workspace.join(name)).unwrap_or_default();
    until("it has tried", || workspace.join("done").exists()).await?;

    let refused = read("refused").lines().count();
    assert!(refused >= 50, "{refused}: {}", read("refused"));
    let kept = tree(&bed.sandbox_dir(id))?;
    for (path, (_, _, bytes)) in &kept {
        let leaked = bytes.windows(6).any(|part| part == b"SECRET");
        assert!(!leaked, "{} holds a secret", path.display());
    }
    assert_eq!(read("open"), "open\n");
    assert_eq!(read("owners"), "0:0 755 1000:1000\n");
    let top: Vec<_> =
        "bin dev etc home lib mnt opt proc root run sbin srv sys tmp usr var workspace"
            .split(' ')
            .collect();
    let seen = read("top");
    let seen: Vec<_> = seen.lines().filter(|it| !it.starts_with('.')).collect();
    assert_eq!(seen, top);
    assert_eq!(read("names"), "");
    let empty = read("empty");
    let inside: Vec<_> = empty
        .lines()
        .filter(|it| !it.ends_with(':') && !it.is_empty())
        .collect();
    assert_eq!(inside, ["user"]);
    let etc = read("etc");
    let mut etc: Vec<_> = etc.lines().collect();
    etc.sort_unstable();
    assert_eq!(
        etc,
        [
            "/etc",
            "/etc/alternatives",
            "/etc/alternatives/editor",
            "/etc/group",
            "/etc/mime.types",
            "/etc/nsswitch.conf",
            "/etc/passwd",
            "/etc/resolv.conf",
            "/etc/ssl",
            "/etc/ssl/certs",
            "/etc/ssl/certs/ca.pem",
            "/var",
            "/var/cache",
            "/var/lib",
            "/var/log",
            "/var/run",
            "/var/tmp",
        ]
    );
    assert!(
        read("passwd").starts_with("root:x:0:0:"),
        "{}",
        read("passwd")
    );

    // What it wrote is its own, and there after a stop.
    fs::remove_file(workspace.join("done"))?;
    bed.driver
        .suspend(&bed.effect(id, 2, 1), Depth::Stop)
        .await?;
    bed.driver
        .start(&bed.effect(id, 3, 2), &spec, &credentials(id, 2))
        .await?;
    until("it has tried again", || workspace.join("done").exists()).await?;
    assert_eq!(read("open"), "open\nmore\n");
    let upper = bed.sandbox_dir(id).join("root/usr/upper");
    assert_eq!(
        fs::read_to_string(upper.join("local/share/open"))?,
        "open\nmore\nmore\n"
    );
    assert!(upper.join("lib/new").is_dir() && upper.join("bin/tool").is_file());
    assert_eq!(tree(&host)?, before, "the host was written to");
    bed.driver.delete(&bed.effect(id, 4, 2)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn nothing_that_is_the_hosts_roots_alone_is_read_and_writes_stay_inside() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    hides_and_keeps(Path::new("runc")).await
}

#[tokio::test]
async fn nor_on_gvisor() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    hides_and_keeps(&runsc).await
}

const COUNTS: &str = "n=0; while true; do n=$((n+1)); echo $n > /workspace/.n; \
    mv /workspace/.n /workspace/count; cat /etc/mime.types > /workspace/types; sleep 0.02; done";

#[tokio::test]
async fn memory_is_put_back_over_the_host_that_it_was_taken_over_alone() -> Outcome {
    let Some(runsc) = runsc() else { return Ok(()) };
    let mut bed = Bed::on_host(&runsc, COUNTS).await?;
    let host = bed.config.host_root.clone();
    let (status, types) = (
        host.join("var/lib/dpkg/status"),
        host.join("etc/mime.types"),
    );
    fs::write(&types, "old\n")?;
    let mut spec = bed.spec();
    spec.image = bed.driver.pin("host").await?;
    let id = sandbox();
    bed.driver
        .create(&bed.effect(id, 1, 1), &spec, &credentials(id, 1))
        .await?;
    until("it counts", || bed.number(id, "count") > 2).await?;
    let taken = bed
        .driver
        .suspend(&bed.effect(id, 2, 1), Depth::Checkpoint)
        .await?;
    let count = bed.number(id, "count");

    // A package was installed meanwhile, and the gateway was started anew.
    let was = fs::read(&status)?;
    fs::write(&status, "Package: busybox\nPackage: other\n")?;
    fs::write(&types, "new\n")?;
    bed.restart()?;
    let ctx = bed.effect(id, 3, 2);
    let resumed = bed
        .driver
        .resume(
            &ctx,
            Depth::Checkpoint,
            &taken.reference,
            &credentials(id, 2),
        )
        .await;
    let Err(DriverError::Unusable { why, message }) = resumed else {
        return Err(format!("{resumed:?}").into());
    };
    assert_eq!(why, Unusable::OtherImage);
    assert!(message.contains("/usr of this host"), "{message}");
    let seen = bed.driver.observe(id).await?;
    assert_eq!((seen.observed, seen.storage), (Observed::Absent, true));
    assert_eq!(bed.number(id, "count"), count, "something ran");

    // Put back, it is memory again; its `/etc` is what it was taken over.
    fs::write(&status, was)?;
    let resumed = bed
        .driver
        .resume(
            &bed.effect(id, 4, 3),
            Depth::Checkpoint,
            &taken.reference,
            &credentials(id, 3),
        )
        .await?;
    let held = Incarnation(3);
    assert_eq!(resumed.compute, Compute::Live { held });
    until("it goes on", || bed.number(id, "count") > count + 2).await?;
    let types_inside = bed.sandbox_dir(id).join("workspace/types");
    fs::remove_file(&types_inside)?;
    until("it reads", || {
        fs::read_to_string(&types_inside).is_ok_and(|text| text == "old\n")
    })
    .await?;

    // Changed while it runs: no memory is taken that could not be put back, and it runs on.
    fs::write(host.join("usr/local/share/new"), "")?;
    for refused in [
        bed.driver.prepare(id, Depth::Checkpoint).await.err(),
        bed.driver
            .suspend(&bed.effect(id, 5, 3), Depth::Checkpoint)
            .await
            .err(),
    ] {
        let Some(DriverError::Rejected(why)) = refused else {
            return Err(format!("{refused:?}").into());
        };
        assert!(why.contains("depth stop"), "{why}");
    }
    let count = bed.number(id, "count");
    until("it runs on", || bed.number(id, "count") > count + 2).await?;

    // A cold start takes the host as it is, and says so.
    bed.driver
        .suspend(&bed.effect(id, 6, 3), Depth::Stop)
        .await?;
    let started = bed
        .driver
        .start(&bed.effect(id, 7, 4), &spec, &credentials(id, 4))
        .await?;
    let [remark] = &started.remarks[..] else {
        return Err(format!("{:?}", started.remarks).into());
    };
    assert!(remark.contains("have changed"), "{remark}");
    until("it reads", || {
        fs::read_to_string(&types_inside).is_ok_and(|text| text == "new\n")
    })
    .await?;
    // From what it runs on now, memory can be taken again.
    bed.driver.prepare(id, Depth::Checkpoint).await?;
    bed.driver.delete(&bed.effect(id, 8, 4)).await?;
    assert_eq!(bed.left(), Vec::<String>::new());

    // What nothing is made from any more is not kept.
    let skeletons = || -> Result<usize, std::io::Error> {
        Ok(fs::read_dir(bed.state().join("images/by-digest"))?.count())
    };
    assert_eq!(skeletons()?, 2);
    let (driver, _, _) = common::open(&bed.config, Default::default())?;
    assert_eq!(skeletons()?, 0);
    drop(driver);
    Ok(())
}

#[tokio::test]
async fn a_host_that_keeps_programs_outside_usr_is_no_image() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let bed = Bed::on_host(Path::new("runc"), "sleep 1").await?;
    let host = &bed.config.host_root;
    for make in [
        |path: &Path| fs::create_dir(path),
        |path: &Path| symlink("../opt/lib", path),
    ] {
        let lib = host.join("lib");
        if lib.is_symlink() {
            fs::remove_file(&lib)?;
        } else {
            fs::remove_dir(&lib)?;
        }
        make(&lib)?;
        let pinned = bed.driver.pin("host").await;
        let Err(DriverError::Rejected(why)) = pinned else {
            return Err(format!("{pinned:?}").into());
        };
        assert!(why.contains("usrmerge"), "{why}");
    }
    Ok(())
}

/// A start does not wait for a look at this host's hundred thousand files.
#[tokio::test]
async fn this_host_is_looked_at_quickly() -> Outcome {
    if cannot_run().is_some() {
        return Ok(());
    }
    let (folder, config) = Bed::place()?;
    let (driver, _, _) = common::open(&config, Default::default())?;
    let first = driver.pin("host").await?;
    // The best of some: others use this host too.
    let mut best = Duration::MAX;
    for _ in 0..10 {
        let begun = std::time::Instant::now();
        let again = driver.pin("host").await?;
        best = best.min(begun.elapsed());
        assert_eq!(first.image, again.image);
    }
    eprintln!("pinning this host took {best:?}");
    assert!(best < Duration::from_millis(500), "{best:?}");
    drop((driver, folder));
    Ok(())
}
