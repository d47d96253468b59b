//! A daemon of a test's own (feature `testkit`): its folder, its socket, its control groups, its
//! containerd; no network, and nothing of the host's is changed. Ended by its process id, and what it
//! leaves is cleared away, also where it was killed.

mod image;
mod proxy;
mod registry;
mod user;

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bollard::query_parameters::{
    CreateImageOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::TryStreamExt;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use overwinter_lifecycle::ids::SandboxId;

use crate::container::name_of;
use crate::flavor::Flavor;

use image::{BUSYBOX, image};
pub use proxy::{Events, Fault, Met, Proxy};
use user::User;

pub use registry::{PASSWORD, Registry, USER, no_registry};

/// For a daemon to be there, and to be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why tests with such a daemon cannot run here; None: they can.
#[must_use]
pub fn cannot_run(flavor: Flavor) -> Option<&'static str> {
    let there = |names: [&str; 2]| names.iter().any(|path| Path::new(path).exists());
    if !rustix::process::geteuid().is_root() {
        Some("needs root")
    } else if !Path::new(BUSYBOX).exists() {
        Some("needs /bin/busybox (Debian: busybox-static)")
    } else {
        match flavor {
            Flavor::Docker if !there(["/usr/sbin/dockerd", "/usr/bin/dockerd"]) => {
                Some("needs dockerd (Debian: docker.io)")
            }
            Flavor::Podman if !there(["/usr/bin/podman", "/usr/local/bin/podman"]) => {
                Some("needs podman (Debian: podman, conmon, runc)")
            }
            Flavor::Docker | Flavor::Podman => None,
        }
    }
}

/// The same of a Podman without privilege, of a user that is there for it alone.
#[must_use]
pub fn cannot_run_rootless() -> Option<&'static str> {
    cannot_run(Flavor::Podman).or_else(user::cannot_run)
}

/// A daemon that runs, or did. Ended when dropped.
pub struct Daemon {
    flavor: Flavor,
    /// None: root.
    user: Option<User>,
    folder: PathBuf,
    /// Of its containers.
    cgroup: String,
    child: Option<Child>,
}

impl Daemon {
    /// Starts one in `folder`, which must be its own, and waits until it answers.
    ///
    /// # Errors
    /// When it does not; its log is in the folder.
    pub async fn start(flavor: Flavor, folder: &Path) -> io::Result<Self> {
        Self::start_as(flavor, None, folder).await
    }

    /// A Podman without privilege, as [`Self::start`] does.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub async fn start_rootless(folder: &Path) -> io::Result<Self> {
        let user = User::new(folder)?;
        Self::start_as(Flavor::Podman, Some(user), folder).await
    }

    async fn start_as(flavor: Flavor, user: Option<User>, folder: &Path) -> io::Result<Self> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let mut daemon = Self {
            flavor,
            user,
            folder: folder.to_owned(),
            cgroup: format!("overwinter-{}", name.trim_start_matches('.')),
            child: None,
        };
        daemon.start_again().await?;
        Ok(daemon)
    }

    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("docker.sock")
    }

    /// As after a kill or an end.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub async fn start_again(&mut self) -> io::Result<()> {
        let at = |name: &str| self.folder.join(name);
        let log = fs::File::create(at("log"))?;
        let mut command = match self.flavor {
            Flavor::Docker => self.dockerd()?,
            Flavor::Podman => self.podman(&["system", "service", "--time", "0", &self.url()])?,
        };
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // SAFETY: one system call, which a child may make before it becomes another program.
        unsafe {
            command.pre_exec(|| {
                set_parent_process_death_signal(Some(Signal::TERM)).map_err(io::Error::from)
            });
        }
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(at("pid"));
        // Its containerd ends with a daemon that was killed, and is taken for one that runs where nobody
        // reaps it.
        let _ = fs::remove_file(at("exec/containerd/containerd.pid"));
        self.child = Some(command.spawn()?);
        let until = Instant::now() + PATIENCE;
        // It listens on its socket long before it reads from it: from then on the answer is the event.
        while UnixStream::connect(self.socket()).is_err() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?;
            if ended.flatten().is_some() || Instant::now() > until {
                let log = fs::read_to_string(at("log")).unwrap_or_default();
                return Err(io::Error::other(format!("no daemon: {log}")));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::timeout(PATIENCE, self.client()).await??;
        Ok(())
    }

    fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn dockerd(&self) -> io::Result<Command> {
        let at = |name: &str| self.folder.join(name);
        // Else its name is the host's, and a file in /etc.
        let key = format!(
            "{{\"deprecated-key-path\":\"{}\"}}",
            at("key.json").display()
        );
        fs::write(at("daemon.json"), key)?;
        let mut command = Command::new("dockerd");
        command
            .arg("--data-root")
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("pid"))
            .arg(format!("--host={}", self.url()))
            .arg(format!("--cgroup-parent=/{}", self.cgroup))
            .arg("--config-file")
            .arg(at("daemon.json"))
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
            .args(["--ip-forward=false", "--ip-masq=false"]);
        Ok(command)
    }

    /// A program as the user of a daemon without privilege.
    ///
    /// # Errors
    /// Of one of root.
    pub fn as_user(&self, program: &Path) -> io::Result<Command> {
        let user = self.user.as_ref();
        let user = user.ok_or_else(|| io::Error::other("it has no user of its own"))?;
        Ok(user.command(&program.to_string_lossy()))
    }

    /// Podman with everything of its own in the folder, as the daemon's user.
    ///
    /// # Errors
    /// When its configuration cannot be written.
    pub fn podman(&self, arguments: &[&str]) -> io::Result<Command> {
        let at = |name: &str| self.folder.join(name);
        // Raising a hard limit takes a capability that may not be there.
        let containers = "[containers]\ndefault_ulimits = [\"nofile=20000:20000\", \"nproc=32768:32768\"]\n\
            [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n";
        let storage = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = {:?}\nrunroot = {:?}\n",
            at("data"),
            at("run")
        );
        // Docker takes loopback for safe by itself.
        let registries =
            "[[registry]]\nprefix = \"127.0.0.1\"\nlocation = \"127.0.0.1\"\ninsecure = true\n";
        fs::write(at("registries.conf"), registries)?;
        fs::write(at("containers.conf"), containers)?;
        fs::write(at("storage.conf"), storage)?;
        let mut command = match &self.user {
            Some(user) => user.command("podman"),
            None => Command::new("podman"),
        };
        command
            .env("CONTAINERS_CONF", at("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", at("storage.conf"))
            .env("CONTAINERS_REGISTRIES_CONF", at("registries.conf"))
            .arg("--tmpdir")
            .arg(at("tmp"))
            .arg("--network-config-dir")
            .arg(at("net"))
            .args(arguments);
        Ok(command)
    }

    /// A client of the test's own.
    ///
    /// # Errors
    /// When there is no socket, or no answer.
    pub async fn client(&self) -> io::Result<Docker> {
        let path = self.socket();
        let client = Docker::connect_with_unix(&path.to_string_lossy(), 120, API_DEFAULT_VERSION);
        let client = client.map_err(io::Error::other)?.negotiate_version().await;
        client.map_err(io::Error::other)
    }

    /// Makes an image of busybox with these files beside it.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn import(&self, name: &str, files: &[(&str, &str)]) -> io::Result<()> {
        self.import_as(name, files, &[]).await
    }

    /// The same with lines of a Dockerfile that say how it is run, like `ENV A=b`.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn import_as(
        &self,
        name: &str,
        files: &[(&str, &str)],
        changes: &[&str],
    ) -> io::Result<()> {
        self.import_tar(name, image(files)?, changes).await
    }

    /// Makes an image of this root.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn import_tar(&self, name: &str, root: Vec<u8>, changes: &[&str]) -> io::Result<()> {
        let (repo, tag) = name.split_once(':').unwrap_or((name, "latest"));
        let options = CreateImageOptionsBuilder::default()
            .from_src("-")
            .repo(repo)
            .tag(tag)
            .changes(changes.iter().map(|&it| it.to_owned()).collect())
            .build();
        let body = bollard::body_full(root.into());
        let client = self.client().await?;
        let steps = client.create_image(Some(options), Some(body), None);
        let steps: Result<Vec<_>, _> = steps.try_collect().await;
        steps.map(|_| ()).map_err(io::Error::other)
    }

    /// Removes an image by name.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn forget(&self, name: &str) -> io::Result<()> {
        let client = self.client().await?;
        let options = RemoveImageOptionsBuilder::default().force(true).build();
        let removed = client.remove_image(name, Some(options), None).await;
        removed.map(|_| ()).map_err(io::Error::other)
    }

    /// The ids of all containers, whatever they do.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn containers(&self) -> io::Result<Vec<String>> {
        let options = ListContainersOptionsBuilder::default().all(true).build();
        let client = self.client().await?;
        let all = client.list_containers(Some(options)).await;
        let all = all.map_err(io::Error::other)?;
        Ok(all.into_iter().filter_map(|it| it.id).collect())
    }

    /// Removes a container, whatever it does.
    ///
    /// # Errors
    /// What the daemon says.
    pub async fn remove(&self, name: &str) -> io::Result<()> {
        let options = RemoveContainerOptionsBuilder::default().force(true).build();
        let client = self.client().await?;
        let removed = client.remove_container(name, Some(options)).await;
        removed.map_err(io::Error::other)
    }

    /// The first process of a sandbox's container.
    ///
    /// # Errors
    /// When it has none.
    pub async fn pid_of(&self, sandbox: SandboxId) -> io::Result<Pid> {
        let client = self.client().await?;
        let found = client
            .inspect_container(&name_of(sandbox), None::<InspectContainerOptions>)
            .await;
        let state = found.map_err(io::Error::other)?.state.unwrap_or_default();
        let pid = state.pid.and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("it does not run"))
    }

    /// SIGKILL of the first process of a sandbox's container.
    ///
    /// # Errors
    /// When there is none.
    pub async fn kill_inside(&self, sandbox: SandboxId) -> io::Result<()> {
        let first = self.pid_of(sandbox).await?;
        Ok(kill_process(first, Signal::KILL)?)
    }

    /// SIGKILL of the daemon; its containers run on for now.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.child.take() {
            // Of one without privilege there may be two.
            let all = self.user.iter().flat_map(User::processes);
            for (pid, _) in all.filter(|(_, line)| line.contains(" system service ")) {
                let _ = kill_process(pid, Signal::KILL);
            }
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Ends the daemon in good order, and with it what it runs.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end(&mut self) -> io::Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let until = Instant::now() + PATIENCE;
        while child.try_wait()?.is_none() {
            if Instant::now() > until {
                child.kill()?;
                child.wait()?;
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Processes that name the folder: a containerd or a shim that outlived the daemon.
    fn stragglers(&self) -> Vec<Pid> {
        if let Some(user) = &self.user {
            return user.processes().into_iter().map(|(pid, _)| pid).collect();
        }
        let name = self.folder.as_os_str().as_encoded_bytes();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ours = all.filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
            let runs = program.ends_with(b"containerd")
                || program.ends_with(b"containerd-shim-runc-v2")
                || program.ends_with(b"conmon");
            runs && line.windows(name.len()).any(|part| part == name)
        });
        ours.filter_map(|entry| {
            entry
                .file_name()
                .to_str()?
                .parse()
                .ok()
                .and_then(Pid::from_raw)
        })
        .collect()
    }

    /// Processes of containers.
    fn contained(&self) -> Vec<Pid> {
        let mut pids = Vec::new();
        for group in self.groups() {
            for group in fs::read_dir(&group).into_iter().flatten().flatten() {
                let _ = fs::write(group.path().join("freezer.state"), "THAWED");
                let procs = fs::read_to_string(group.path().join("cgroup.procs"));
                let procs = procs.unwrap_or_default();
                pids.extend(
                    procs
                        .lines()
                        .filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw)),
                );
            }
        }
        pids
    }

    fn groups(&self) -> Vec<PathBuf> {
        let roots = fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        let roots = roots.map(|root| root.path());
        roots
            .chain([PathBuf::from("/sys/fs/cgroup")])
            .map(|root| root.join(&self.cgroup))
            .filter(|group| group.is_dir())
            .collect()
    }

    fn clear(&self) {
        if self.flavor == Flavor::Podman
            && let Ok(mut all) = self.podman(&["rm", "--all", "--force", "--time", "0"])
        {
            let _ = all.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        for _ in 0..100 {
            let pids = [self.stragglers(), self.contained()].concat();
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let folder = self.folder.display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let ours: Vec<_> = points.filter(|point| point.starts_with(&folder)).collect();
        for point in ours.into_iter().rev() {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
        for group in self.groups() {
            for inner in fs::read_dir(&group).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(inner.path());
            }
            let _ = fs::remove_dir(group);
        }
        // All of Podman's are below one, which goes when the last has.
        for root in fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let group = root.path().join("libpod_parent");
            let _ = fs::remove_dir(group.join("conmon"));
            let _ = fs::remove_dir(group);
        }
        if let Some(user) = &self.user {
            user.forget();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// What of it is on the host beside its folder. Empty once it was ended and dropped.
    #[must_use]
    pub fn traces(folder: &Path) -> Vec<String> {
        let text = folder.display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let lines = mounts.lines().filter(|line| line.contains(&text));
        lines.map(str::to_owned).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.end();
        self.clear();
    }
}
