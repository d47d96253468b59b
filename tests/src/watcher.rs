//! An independent eye on the host: a thread that samples the cgroups of every hierarchy and the
//! runtime's own state, and notes two live computes of one sandbox at one moment. It reads only
//! what the kernel and the runtime say, nothing of the gateway's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;

/// Between two samples.
const PAUSE: Duration = Duration::from_millis(2);
/// Every so manieth sample looks at every hierarchy, the others at the one that freezes: all that is
/// whole is in all of them, and a host has a dozen.
const WHOLE: u64 = 50;
/// The watcher goes before those whom it watches.
const PRIORITY: i32 = -15;
/// Native names are `<sandbox id without dashes>-<fence>-<serial>`.
const ID_DIGITS: usize = 32;

/// A thread that watches. See [`Watcher::finish`].
pub struct Watcher {
    stop: Arc<AtomicBool>,
    /// Folders in which the runtime keeps its state, one a gateway.
    runtimes: Arc<Mutex<Vec<PathBuf>>>,
    thread: JoinHandle<Seen>,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub samples: u64,
    pub longest_gap: Duration,
    /// Native computes, by name.
    pub computes: BTreeSet<String>,
    /// Pairs of native computes, each with its first evidence.
    pub violations: BTreeMap<(String, String), String>,
}

impl Watcher {
    /// # Errors
    /// When no thread can be had.
    pub fn start() -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let runtimes = Arc::new(Mutex::new(Vec::new()));
        let (stopped, folders) = (Arc::clone(&stop), Arc::clone(&runtimes));
        let thread = std::thread::Builder::new()
            .name("watcher".to_owned())
            .spawn(move || {
                // Refused: it goes on as everybody else.
                let _ = rustix::process::setpriority_process(None, PRIORITY);
                let mut seen = Seen::default();
                let all = hierarchies();
                let freezer: Vec<PathBuf> =
                    all.iter().filter(|root| freezes(root)).cloned().collect();
                let mut last = Instant::now();
                while !stopped.load(Ordering::Relaxed) {
                    let folders = folders
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .clone();
                    let roots = if seen.samples % WHOLE == 0 {
                        &all
                    } else {
                        &freezer
                    };
                    Host::now(roots, folders).sample(&mut seen);
                    seen.samples += 1;
                    seen.longest_gap = seen.longest_gap.max(last.elapsed());
                    last = Instant::now();
                    std::thread::sleep(PAUSE);
                }
                seen
            })?;
        Ok(Self {
            stop,
            runtimes,
            thread,
        })
    }

    /// Watches the runtime's state of one more gateway.
    pub fn add(&self, data_dir: &Path) {
        let mut runtimes = self.runtimes.lock().unwrap_or_else(PoisonError::into_inner);
        runtimes.push(runtime_root(data_dir));
    }

    /// Ends the thread.
    ///
    /// # Errors
    /// When it has panicked.
    pub fn finish(self) -> anyhow::Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the watcher has panicked")
    }
}

/// Everything of a sandbox that is on this host: cgroups, state of the runtime, mounts, folders and
/// its range of user ids. Empty after a delete.
#[must_use]
pub fn traces_of(sandbox_id: &str, data_dir: &Path) -> Vec<String> {
    let host = Host::now(&hierarchies(), vec![runtime_root(data_dir)]);
    let simple = sandbox_id.replace('-', "");
    let groups = host.groups.iter().chain(&host.states);
    let mut found: Vec<String> = groups
        .filter(|(native, _)| native.starts_with(&simple))
        .flat_map(|(_, folders)| folders.iter().map(|folder| folder.display().to_string()))
        .collect();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    found.extend(
        mounted
            .filter(|point| point.contains(&simple) || point.contains(sandbox_id))
            .map(|point| format!("mount {point}")),
    );
    let folder = data_dir.join("local/sandboxes").join(sandbox_id);
    if folder.exists() {
        found.push(folder.display().to_string());
    }
    for range in children(&data_dir.join("local/ranges")) {
        if std::fs::read_to_string(&range).is_ok_and(|owner| owner.contains(sandbox_id)) {
            found.push(format!("user ids {}", range.display()));
        }
    }
    found
}

fn runtime_root(data_dir: &Path) -> PathBuf {
    data_dir.join("local/runc")
}

/// What is there, by native name; nothing has been opened yet.
struct Host {
    groups: BTreeMap<String, Vec<PathBuf>>,
    states: BTreeMap<String, Vec<PathBuf>>,
}

impl Host {
    fn now(roots: &[PathBuf], runtimes: Vec<PathBuf>) -> Self {
        let gateways = roots
            .iter()
            .flat_map(|root| children(&root.join("overwinter")));
        Self {
            groups: by_native(gateways),
            states: by_native(runtimes.into_iter()),
        }
    }

    fn sample(&self, seen: &mut Seen) {
        let mut by_sandbox: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for native in self.groups.keys().chain(self.states.keys()) {
            if !seen.computes.contains(native) {
                seen.computes.insert(native.clone());
            }
            by_sandbox
                .entry(&native[..ID_DIGITS])
                .or_default()
                .insert(native);
        }
        for natives in by_sandbox.values() {
            let natives: Vec<&str> = natives.iter().copied().collect();
            for (index, one) in natives.iter().enumerate() {
                for other in &natives[index + 1..] {
                    if let Some(evidence) = self.both_live(one, other) {
                        let pair = ((*one).to_owned(), (*other).to_owned());
                        seen.violations.entry(pair).or_insert(evidence);
                    }
                }
            }
        }
    }

    /// Looked at twice around the other: then both lived at the moment in between.
    fn both_live(&self, one: &str, other: &str) -> Option<String> {
        let first = self.live(one);
        if first.is_empty() {
            return None;
        }
        let second = self.live(other);
        if second.is_empty() {
            return None;
        }
        let still: Vec<_> = self.live(one).intersection(&first).cloned().collect();
        (!still.is_empty()).then(|| format!("{one}: {still:?}\n    and {other}: {second:?}"))
    }

    /// Processes that are alive: in any of its groups, or as the first one of the runtime's.
    fn live(&self, native: &str) -> BTreeSet<String> {
        let mut live = BTreeSet::new();
        for group in self.groups.get(native).into_iter().flatten() {
            // Gone since it was listed: empty.
            let pids = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for pid in pids.lines().filter_map(|line| line.parse().ok()) {
                if let Some(process) = Process::read(pid).filter(Process::is_alive) {
                    live.insert(format!("{} {}", process.describe(), group.display()));
                }
            }
        }
        for folder in self.states.get(native).into_iter().flatten() {
            live.extend(first_process(folder).map(|first| {
                format!(
                    "{} {}",
                    first.describe(),
                    folder.join("state.json").display()
                )
            }));
        }
        live
    }
}

/// The process that the runtime calls a container's first, while it lives.
fn first_process(folder: &Path) -> Option<Process> {
    let text = std::fs::read(folder.join("state.json")).ok()?;
    let state: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let pid = state.get("init_process_pid")?.as_i64()?;
    let start = state.get("init_process_start")?.as_u64()?;
    // The number may be another process's by now.
    Process::read(i32::try_from(pid).ok()?).filter(|it| it.is_alive() && it.start == start)
}

/// Fields of proc_pid_stat(5).
struct Process {
    pid: i32,
    name: String,
    state: char,
    /// In clock ticks since the host's boot.
    start: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses, and may hold any of them.
        let (before, after) = stat.rsplit_once(") ")?;
        let mut fields = after.split(' ');
        Some(Self {
            pid,
            name: before.split_once('(')?.1.to_owned(),
            state: fields.next()?.chars().next()?,
            start: fields.nth(18)?.parse().ok()?,
        })
    }

    const fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x')
    }

    fn describe(&self) -> String {
        format!("{} ({}) started at {}", self.pid, self.name, self.start)
    }
}

/// Where cgroups of every hierarchy are mounted.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (point, kind) = (words.nth(1)?, words.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(point))
    });
    points.collect()
}

/// The freezer's own hierarchy, or the one that has every controller.
fn freezes(root: &Path) -> bool {
    root.ends_with("freezer") || root.join("cgroup.controllers").exists()
}

fn by_native(folders: impl Iterator<Item = PathBuf>) -> BTreeMap<String, Vec<PathBuf>> {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for path in folders.flat_map(|folder| children(&folder)) {
        if let Some(native) = path.file_name().and_then(|name| name.to_str())
            && is_native(native)
        {
            found.entry(native.to_owned()).or_default().push(path);
        }
    }
    found
}

fn is_native(name: &str) -> bool {
    let (id, rest) = name.split_at_checked(ID_DIGITS).unwrap_or(("", ""));
    rest.starts_with('-') && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Nothing where there is no such folder.
fn children(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default()
}
