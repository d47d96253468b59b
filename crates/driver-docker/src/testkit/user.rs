//! A user for one daemon without privilege, with a range of subordinate ids. Nothing of the host's is
//! changed: the daemon has a mount namespace in which `/etc` has lines for it. What runs as the user, or as
//! one of its subordinates, is the daemon's.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Pid;
use uuid::Uuid;

/// Numbers that no distribution gives to anybody, and the driver `local` neither. A user and its range have
/// the double of what a range is long.
const FIRST: u32 = 0x6000_0000;
const APART: u32 = 0x2_0000;
const SUBORDINATES: u32 = 0x1_0000;
/// What is looked up there about a user.
const FILES: [&str; 4] = ["passwd", "group", "subuid", "subgid"];
/// Its arguments: folder, user, group, and the program with its own.
const AS_USER: &str = r#"
for file in passwd group subuid subgid; do mount --bind "$1/etc/$file" "/etc/$file" || exit; done
user=$2 group=$3; shift 3
exec setpriv --reuid "$user" --regid "$group" --clear-groups --inh-caps=-all --pdeathsig TERM -- "$@"
"#;

/// Why a daemon of a user cannot run here; None: it can.
pub(super) fn cannot_run() -> Option<&'static str> {
    let there = |name: &str| Path::new(name).exists();
    if !there("/usr/bin/newuidmap") || !there("/etc/subuid") || !there("/etc/subgid") {
        Some("needs newuidmap (Debian: uidmap)")
    } else if fs::read_to_string("/proc/sys/user/max_user_namespaces")
        .is_ok_and(|most| most.trim() == "0")
    {
        Some("needs user namespaces (user.max_user_namespaces is 0)")
    } else if fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone")
        .is_ok_and(|may| may.trim() == "0")
    {
        Some("needs user namespaces for all (kernel.unprivileged_userns_clone is 0)")
    } else {
        None
    }
}

#[derive(Clone, Debug)]
pub(super) struct User {
    id: u32,
    folder: PathBuf,
}

impl User {
    /// Gives `folder`, which is to be the daemon's, to a new one.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let (random, _) = Uuid::new_v4().as_u64_pair();
        let user = Self {
            id: FIRST + u32::try_from(random % 4096).unwrap_or_default() * APART,
            folder: folder.to_owned(),
        };
        fs::create_dir(folder.join("etc"))?;
        for file in FILES {
            let host = fs::read_to_string(Path::new("/etc").join(file))?;
            fs::write(folder.join("etc").join(file), host + &user.line(file))?;
        }
        for own in ["home", "run", "tmp"] {
            fs::create_dir(folder.join(own))?;
            chown(folder.join(own), Some(user.id), Some(user.group()))?;
        }
        chown(folder, Some(user.id), Some(user.group()))?;
        Ok(user)
    }

    /// Another number than the user's: who takes one for the other is found out.
    const fn group(&self) -> u32 {
        self.id + 1
    }

    const fn subordinates(&self) -> u32 {
        self.id + SUBORDINATES
    }

    fn line(&self, file: &str) -> String {
        let (id, group, home) = (self.id, self.group(), self.folder.join("home"));
        let (name, home) = (format!("ow{id}"), home.display());
        match file {
            "passwd" => format!("{name}:x:{id}:{group}::{home}:/bin/sh\n"),
            "group" => format!("{name}:x:{group}:\n"),
            _ => format!("{name}:{}:{SUBORDINATES}\n", self.subordinates()),
        }
    }

    /// A program as this user, in the folder, with an environment of its own.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "slave", "sh", "-c", AS_USER])
            .arg("sh")
            .arg(&self.folder)
            .args([self.id, self.group()].map(|id| id.to_string()))
            .arg(program)
            .current_dir(&self.folder)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.folder.join("home"))
            .env("XDG_RUNTIME_DIR", self.folder.join("run"))
            .env("TMPDIR", self.folder.join("tmp"));
        command
    }

    /// All that run as the user or its subordinates, with their command lines.
    pub(super) fn processes(&self) -> Vec<(Pid, String)> {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ours = all.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            let line = status.lines().find_map(|it| it.strip_prefix("Uid:"))?;
            let uid: u32 = line.split_whitespace().next()?.parse().ok()?;
            let above = uid.checked_sub(self.id)?;
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            (above < APART).then(|| Pid::from_raw(pid).map(|pid| (pid, line.replace('\0', " "))))?
        });
        ours.collect()
    }

    /// What Podman keeps elsewhere, for its locks.
    pub(super) fn forget(&self) {
        let _ = fs::remove_file(format!("/dev/shm/libpod_rootless_lock_{}", self.id));
    }
}
