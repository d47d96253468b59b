//! What the daemon may do on its host, and what a container must be told for that. Asking for it is one
//! thing, and what follows another, which is pure.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bollard::models::{ContainerCreateBody, SystemInfo};
use overwinter_driver::Limit;
use serde::{Deserialize, Serialize};

use crate::error::DockerError;
use crate::flavor::Flavor;
use crate::libpod::{self, InfoHost};
use crate::users::{Nobody, Range, UNMAPPED, Users, read};

/// Of one daemon, found each time that it is met. Kept for a description while it is away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) users: Users,
    /// It labels containers for SELinux.
    pub(crate) selinux: bool,
    /// None: it runs as root.
    pub(crate) rootless: Option<Rootless>,
}

/// What a daemon without privilege cannot do here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rootless {
    /// Why nothing can be paused; None: it can.
    pub(crate) no_freeze: Option<String>,
    /// Why it has no network of its own; None: it has.
    pub(crate) no_network: Option<String>,
    /// Control of CPU, memory, processes.
    pub(crate) limits: [bool; 3],
}

const ROOTLESS_DOCKER: &str =
    "it is a rootless Docker, which is not supported: use a rootless Podman, or a daemon of root";
const FREEZE_V1: &str = "a rootless Podman pauses nothing under control groups v1 (v2 is needed)";
const FREEZE_OWN: &str = "this rootless Podman makes control groups by itself, and whether a container has one is not sure: with cgroup_manager = \"systemd\" and a session of its user, it has";
const NO_SLIRP: &str = "a rootless Podman needs slirp4netns for it";
const TUN: &str = "/dev/net/tun";
/// In the order of [`Rootless::limits`].
const CONTROLLED: [Limit; 3] = [Limit::Cpu, Limit::Memory, Limit::Pids];

impl Host {
    /// Asks for what `info` does not say.
    pub(crate) async fn meet(
        flavor: Flavor,
        socket: &Path,
        info: &SystemInfo,
    ) -> Result<Self, DockerError> {
        let unfit = |why: String| DockerError::Unfit {
            socket: socket.to_owned(),
            why,
        };
        match flavor {
            Flavor::Docker if says(info, "rootless") => Err(unfit(ROOTLESS_DOCKER.to_owned())),
            Flavor::Docker => Ok(Self::of_docker(info)),
            Flavor::Podman => {
                let found = libpod::info(socket).await?;
                let (uids, gids) = own_ranges();
                Self::of_podman(&found, (&uids, &gids), tun_is_open())
                    .map_err(|nobody| unfit(nobody.to_string()))
            }
        }
    }

    /// Of a daemon that says all there is through Docker's API.
    pub(crate) fn of_docker(info: &SystemInfo) -> Self {
        let root = info.docker_root_dir.as_deref().unwrap_or_default();
        let remapped = says(info, "userns").then(|| base_of(Path::new(root)));
        Self {
            users: Users::moved(remapped.unwrap_or(0)),
            selinux: says(info, "selinux"),
            rootless: None,
        }
    }

    /// `own`: the ranges of this process, users and groups. `tun`: whether everybody may open the device by
    /// which a network without privilege is made.
    pub(crate) fn of_podman(
        info: &InfoHost,
        own: (&[Range], &[Range]),
        tun: bool,
    ) -> Result<Self, Nobody> {
        let none = [UNMAPPED];
        let mapped = &info.id_mappings;
        let uids = mapped.uidmap.as_deref().unwrap_or(&none);
        let gids = mapped.gidmap.as_deref().unwrap_or(&none);
        Ok(Self {
            users: Users::of(uids, gids, own)?,
            selinux: info.security.selinux_enabled,
            rootless: info.security.rootless.then(|| Rootless::of(info, tun)),
        })
    }

    /// What a container needs beside what it is to be.
    pub(crate) fn fit(&self, body: &mut ContainerCreateBody) {
        let Some(host) = &mut body.host_config else {
            return;
        };
        if self.selinux {
            // With any label the policy keeps a container from a socket that a program of the host listens
            // on, whatever label its file has.
            let options = host.security_opt.get_or_insert_default();
            options.push("label=disable".to_owned());
        }
        if self.lacks(Limit::Pids) {
            // The usual limit is no reason to be refused; one that was asked for was refused before.
            host.pids_limit = None;
        }
    }

    pub(crate) fn lacks(&self, limit: Limit) -> bool {
        let at = CONTROLLED.iter().position(|it| *it == limit);
        match (&self.rootless, at) {
            (Some(rootless), Some(at)) => !rootless.limits[at],
            (Some(_) | None, _) => false,
        }
    }

    pub(crate) fn no_freeze(&self) -> Option<&String> {
        self.rootless.as_ref()?.no_freeze.as_ref()
    }

    pub(crate) fn no_network(&self) -> Option<&String> {
        self.rootless.as_ref()?.no_network.as_ref()
    }

    /// What is not there that could be, with what to do for it.
    pub(crate) fn lacks_what(&self) -> Vec<Lack> {
        let mut all = Vec::new();
        let mut add = |what: String, fix: String| all.push(Lack { what, fix });
        if let Some(rootless) = &self.rootless {
            if let Some(why) = &rootless.no_freeze {
                let fix = if *why == FREEZE_V1 {
                    "boot with control groups v2 (systemd.unified_cgroup_hierarchy=1)"
                } else {
                    "give its user a session (loginctl enable-linger), and run the service in that"
                };
                add(format!("no depth freeze: {why}"), fix.to_owned());
            }
            let lacking = CONTROLLED.into_iter().filter(|limit| self.lacks(*limit));
            let lacking: Vec<_> = lacking.map(Limit::as_str).collect();
            if !lacking.is_empty() {
                add(
                    format!("no limits of {}: they are not its user's to set", lacking.join(", ")),
                    "delegate the controllers to users, under control groups v2 (Delegate=cpu memory pids of user@.service)".to_owned(),
                );
            }
            if let Some(why) = &rootless.no_network {
                let fix = if *why == NO_SLIRP {
                    "install it (Debian: slirp4netns); sandboxes without a network need none"
                        .to_owned()
                } else {
                    format!("chmod 0666 {TUN}; sandboxes without a network need none")
                };
                add(format!("no network podman: {why}"), fix);
            }
        }
        if self.selinux {
            add(
                "SELinux is on: containers run without its labels (label=disable)".to_owned(),
                "nothing, unless they are to be kept apart by it: then use the driver local"
                    .to_owned(),
            );
        }
        all
    }

    /// For a description.
    pub(crate) fn features(&self) -> Vec<String> {
        let rootless = self
            .rootless
            .is_some()
            .then(|| format!("rootless (user {})", self.users.root.0));
        let selinux = self
            .selinux
            .then(|| "SELinux, without labels on containers".to_owned());
        rootless.into_iter().chain(selinux).collect()
    }

    /// Of a refusal to make a container: which folder is to blame, where one is.
    pub(crate) fn explain(&self, folder: &Path, error: DockerError) -> DockerError {
        match (error, self.closed_on_the_way(folder)) {
            (DockerError::Answered { status, message }, Some(closed)) => DockerError::Answered {
                status,
                message: format!("{message}; {}", self.how_to_open(closed)),
            },
            (error, _) => error,
        }
    }

    /// Whether the daemon's user will get to what is in `data`, which need not be there yet.
    pub(crate) fn closed(&self, data: &Path) -> Option<Lack> {
        self.rootless.as_ref().filter(|_| self.users.root.0 != 0)?;
        let folder = data.display();
        if !data.exists() {
            return Some(Lack {
                what: format!(
                    "{folder} would be made for this user alone, and the daemon is another's"
                ),
                fix: format!("install -d -m 0711 {folder}"),
            });
        }
        let closed = self.closed_on_the_way(data)?;
        let (user, folder) = (self.users.root.0, closed.display());
        Some(Lack {
            what: format!("user {user}, whom the daemon runs as, may not pass through {folder}"),
            fix: format!("chmod o+x {folder}"),
        })
    }

    /// For a folder that is closed.
    pub(crate) fn how_to_open(&self, closed: &Path) -> String {
        let (user, folder) = (self.users.root.0, closed.display());
        format!(
            "user {user}, whom the daemon runs as, may not pass through {folder}: chmod o+x {folder}"
        )
    }

    /// The first folder on the way to `path` that the daemon's user may not pass through, as its mode has
    /// it; access lists are not looked at.
    pub(crate) fn closed_on_the_way<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        self.rootless.as_ref()?;
        let (uid, gid) = self.users.root;
        let ways: Vec<_> = path.ancestors().collect();
        let closed = |folder: &&Path| {
            fs::metadata(folder).is_ok_and(|found| {
                let shift = match (found.uid() == uid, found.gid() == gid) {
                    (true, _) => 6,
                    (false, true) => 3,
                    (false, false) => 0,
                };
                uid != 0 && found.mode() >> shift & 1 == 0
            })
        };
        ways.into_iter().rev().find(closed)
    }
}

/// Something that a daemon cannot do as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub what: String,
    pub fix: String,
}

impl Rootless {
    fn of(info: &InfoHost, tun: bool) -> Self {
        let v2 = info.cgroup_version == "v2";
        let controllers = info.cgroup_controllers.as_deref().unwrap_or_default();
        let no_freeze = if !v2 {
            Some(FREEZE_V1)
        } else if info.cgroup_manager == "systemd" {
            None
        } else {
            Some(FREEZE_OWN)
        };
        let programs = [&info.slirp4netns, &info.pasta];
        let no_network = if programs.iter().all(|it| it.executable.is_empty()) {
            Some(NO_SLIRP.to_owned())
        } else if !tun {
            Some(format!("a rootless Podman may not open {TUN} here"))
        } else {
            None
        };
        Self {
            no_freeze: no_freeze.map(str::to_owned),
            no_network,
            limits: CONTROLLED.map(|limit| v2 && controllers.iter().any(|it| it == limit.as_str())),
        }
    }
}

/// A daemon that remaps users names its folder by the first of them: `…/100000.100000`.
fn base_of(root: &Path) -> u32 {
    let name = root.file_name().unwrap_or_default().to_string_lossy();
    let first = name.split('.').next().unwrap_or_default();
    first.parse().unwrap_or(0)
}

/// Whether one of a daemon's security options has this name.
fn says(info: &SystemInfo, name: &str) -> bool {
    let options = info.security_options.iter().flatten();
    let mut names = options.filter_map(|option| option.split(',').next()?.strip_prefix("name="));
    names.any(|it| it == name)
}

/// The ranges of this process, users and groups.
fn own_ranges() -> (Vec<Range>, Vec<Range>) {
    let ranges = |file: &str| {
        let read = fs::read_to_string(file).map(|text| read(&text));
        read.ok()
            .filter(|it| !it.is_empty())
            .unwrap_or_else(|| vec![UNMAPPED])
    };
    (ranges("/proc/self/uid_map"), ranges("/proc/self/gid_map"))
}

/// Whether everybody may open it. Where it cannot be seen, that is taken for granted.
fn tun_is_open() -> bool {
    fs::metadata(TUN).map_or(true, |found| found.mode() & 0o006 == 0o006)
}

#[cfg(test)]
mod tests {
    use bollard::models::HostConfig;

    use super::*;

    const ALL: (&[Range], &[Range]) = (&[UNMAPPED], &[UNMAPPED]);

    fn podman(json: &str) -> Host {
        let info = serde_json::from_str::<libpod::Info>(json).unwrap();
        Host::of_podman(&info.host, ALL, true).unwrap()
    }

    fn rootless(rest: &str) -> Host {
        let map = r#"[{"container_id":0,"host_id":1000,"size":1},{"container_id":1,"host_id":100000,"size":65536}]"#;
        podman(&format!(
            r#"{{"host":{{"idMappings":{{"uidmap":{map},"gidmap":{map}}},
            "security":{{"rootless":true,"selinuxEnabled":false}},{rest}}}}}"#
        ))
    }

    fn fitted(host: &Host) -> HostConfig {
        let mut body = ContainerCreateBody {
            host_config: Some(HostConfig {
                pids_limit: Some(1024),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        host.fit(&mut body);
        body.host_config.unwrap()
    }

    #[test]
    fn without_control_groups_of_its_own_nothing_is_paused_or_limited() {
        let v1 =
            rootless(r#""cgroupVersion":"v1","cgroupManager":"cgroupfs","cgroupControllers":[]"#);
        assert!(v1.no_freeze().unwrap().contains("v2 is needed"));
        assert!(CONTROLLED.iter().all(|limit| v1.lacks(*limit)));
        assert_eq!(fitted(&v1).pids_limit, None);
        // A list of null is none.
        let own =
            rootless(r#""cgroupVersion":"v2","cgroupManager":"cgroupfs","cgroupControllers":null"#);
        assert!(own.no_freeze().unwrap().contains("cgroup_manager"));
    }

    #[test]
    fn what_is_delegated_is_offered() {
        let some = rootless(
            r#""cgroupVersion":"v2","cgroupManager":"systemd","cgroupControllers":["memory","pids"],
            "slirp4netns":{"executable":"/usr/bin/slirp4netns"}"#,
        );
        assert_eq!(some.no_freeze(), None);
        assert_eq!(some.no_network(), None);
        let lacking = CONTROLLED.map(|limit| some.lacks(limit));
        assert_eq!(lacking, [true, false, false]);
        assert_eq!(fitted(&some).pids_limit, Some(1024));
        assert_eq!(some.features(), ["rootless (user 1000)"]);
    }

    #[test]
    fn of_root_nothing_is_lacking() {
        let host = podman(
            r#"{"host":{"idMappings":{"uidmap":null,"gidmap":null},"cgroupVersion":"v1",
            "security":{"rootless":false,"selinuxEnabled":false}}}"#,
        );
        assert_eq!(host, Host::default());
        assert_eq!(fitted(&host).pids_limit, Some(1024));
        assert_eq!(fitted(&host).security_opt, None);
    }

    #[test]
    fn labels_are_off_where_the_daemon_says_that_there_are_any() {
        let options = |all: &[&str]| SystemInfo {
            security_options: Some(all.iter().map(|&it| it.to_owned()).collect()),
            docker_root_dir: Some("/var/lib/docker/100000.100000".to_owned()),
            ..SystemInfo::default()
        };
        let docker = |all: &[&str]| Host::of_docker(&options(all));
        let off = Some(vec!["label=disable".to_owned()]);
        let labelled = docker(&["name=seccomp,profile=default", "name=selinux"]);
        assert_eq!(fitted(&labelled).security_opt, off);
        let not = docker(&["name=seccomp,profile=selinux", "name=cgroupns"]);
        assert_eq!(fitted(&not).security_opt, None);
        assert_eq!(not.users, Users::moved(0));
        assert_eq!(docker(&["name=userns"]).users, Users::moved(100_000));
        let podman = podman(r#"{"host":{"security":{"rootless":false,"selinuxEnabled":true}}}"#);
        assert_eq!(fitted(&podman).security_opt, off);
    }
}
