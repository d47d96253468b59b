//! The runtime's `config.json` (OCI runtime specification 1.0).

use overwinter_driver::door::INSIDE as ATTACH_INSIDE;
use overwinter_driver::{ComputeSpec, EffectContext};
use serde_json::{Value, json};

use crate::mounts::Mounted;
use crate::network::Joined;
use crate::runtime::Kind;
use crate::seccomp;
use crate::userns::{RANGE, SUPERVISOR_ID};

/// Where the supervisor's folder is inside.
const SUPERVISOR_INSIDE: &str = "/.overwinter";

/// What PID 1 may do inside its user namespace: act as any user of the sandbox, and no more.
const CAPABILITIES: [&str; 13] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_MKNOD",
    "CAP_SETFCAP",
    "CAP_AUDIT_WRITE",
];

const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
];

const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Labels on the native compute.
pub(crate) const GATEWAY: &str = "io.overwinter.gateway";
pub(crate) const SANDBOX: &str = "io.overwinter.sandbox";
pub(crate) const INCARNATION: &str = "io.overwinter.incarnation";

pub(crate) struct Bundle<'a> {
    pub(crate) ctx: &'a EffectContext,
    pub(crate) spec: &'a ComputeSpec,
    pub(crate) runtime: Kind,
    pub(crate) mounted: &'a Mounted,
    pub(crate) network: &'a Joined,
    pub(crate) base: u32,
    pub(crate) gateway: &'a str,
    pub(crate) cgroup: &'a str,
    pub(crate) default_pids: u32,
    /// The host's hard limit of open files: raising it takes a capability that may not be there.
    pub(crate) open_files: u64,
    /// In place of the supervisor.
    pub(crate) init_args: Option<&'a [String]>,
}

impl Bundle<'_> {
    pub(crate) fn config(&self) -> Value {
        let mut supervisor = vec![
            format!("{SUPERVISOR_INSIDE}/supervisor"),
            "--run-dir".to_owned(),
            ATTACH_INSIDE.to_owned(),
        ];
        // gVisor gives capabilities to nobody but root: there PID 1 makes itself its user.
        let user = match self.runtime {
            Kind::Runc => SUPERVISOR_ID,
            Kind::Gvisor => {
                supervisor.extend(["--user".to_owned(), SUPERVISOR_ID.to_string()]);
                supervisor.push("--poll-connection".to_owned());
                0
            }
        };
        // What gVisor's own kernel calls is its own business: this host's kernel sees nothing of it.
        let seccomp = match self.runtime {
            Kind::Runc => seccomp::profile().clone(),
            Kind::Gvisor => Value::Null,
        };
        let args = self.init_args.unwrap_or(&supervisor);
        let mut namespaces = ["pid", "ipc", "uts", "mount", "cgroup", "user"]
            .map(|kind| json!({ "type": kind }))
            .to_vec();
        match self.network {
            Joined::Nothing => namespaces.push(json!({ "type": "network" })),
            Joined::Internet(made) => {
                namespaces.push(json!({ "type": "network", "path": made.path() }));
            }
            Joined::Host => {}
        }
        let map = json!([{ "containerID": 0, "hostID": self.base, "size": RANGE }]);
        json!({
            "ociVersion": "1.0.2",
            "hostname": self.spec.name,
            "root": { "path": self.mounted.root(), "readonly": false },
            "process": {
                "terminal": false,
                "cwd": "/",
                "user": { "uid": user, "gid": user },
                "args": args,
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                // Set-user-id programs of the image work: inside, they can become nobody but one
                // of the sandbox's own users.
                "noNewPrivileges": false,
                "capabilities": {
                    "bounding": CAPABILITIES,
                    "effective": CAPABILITIES,
                    "inheritable": CAPABILITIES,
                    "permitted": CAPABILITIES,
                    "ambient": CAPABILITIES,
                },
                "rlimits": [{
                    "type": "RLIMIT_NOFILE",
                    "soft": self.open_files.min(65_536),
                    "hard": self.open_files,
                }],
            },
            "mounts": self.mounts(),
            "annotations": {
                GATEWAY: self.gateway,
                SANDBOX: self.ctx.sandbox().to_string(),
                INCARNATION: self.ctx.incarnation.to_string(),
            },
            "linux": {
                "uidMappings": map,
                "gidMappings": map,
                "namespaces": namespaces,
                "cgroupsPath": self.cgroup,
                "resources": self.resources(),
                "seccomp": seccomp,
                "maskedPaths": MASKED,
                "readonlyPaths": READ_ONLY,
            },
        })
    }

    fn mounts(&self) -> Value {
        // First: nothing else lies above another.
        let usr = self.mounted.usr().map(|usr| {
            json!({ "destination": "/usr", "type": "bind", "source": usr,
                    "options": ["bind", "nosuid", "nodev", "rw"] })
        });
        let others = [
            json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] }),
            json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts",
              "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"] }),
            json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
              "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] }),
            json!({ "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
              "options": ["nosuid", "noexec", "nodev"] }),
            self.sysfs(),
            json!({ "destination": "/workspace", "type": "bind", "source": self.mounted.workspace(),
              "options": ["bind", "nodev", "rw"] }),
            json!({ "destination": SUPERVISOR_INSIDE, "type": "bind", "source": self.mounted.supervisor(),
              "options": ["bind", "ro", "nosuid", "nodev"] }),
            json!({ "destination": ATTACH_INSIDE, "type": "bind", "source": self.mounted.attach(),
              "options": ["bind", "ro", "nosuid", "nodev", "noexec"] }),
        ];
        usr.into_iter().chain(others).collect()
    }

    /// It shows one network namespace, and only who has rights over that may mount it.
    fn sysfs(&self) -> Value {
        match self.network {
            Joined::Nothing => json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs",
                "options": ["nosuid", "noexec", "nodev", "ro"] }),
            Joined::Internet(_) | Joined::Host => {
                json!({ "destination": "/sys", "type": "bind", "source": self.mounted.sysfs(),
                    "options": ["bind", "nosuid", "noexec", "nodev", "ro"] })
            }
        }
    }

    fn resources(&self) -> Value {
        let asked = &self.spec.resources;
        let pids = if asked.pids == 0 {
            self.default_pids
        } else {
            asked.pids
        };
        let mut resources = json!({
            "devices": [{ "allow": false, "access": "rwm" }],
            "pids": { "limit": pids },
        });
        if asked.memory_bytes > 0 {
            resources["memory"] = json!({ "limit": asked.memory_bytes });
        }
        if asked.cpu_millis > 0 {
            resources["cpu"] = json!({ "period": PERIOD, "quota": quota(asked.cpu_millis) });
        }
        resources
    }
}

/// Microseconds, the kernel's default.
pub(crate) const PERIOD: u64 = 100_000;

/// Microseconds of CPU time a period; the kernel takes no less than 1,000.
pub(crate) fn quota(cpu_millis: u32) -> u64 {
    (u64::from(cpu_millis) * PERIOD / 1000).max(1000)
}
