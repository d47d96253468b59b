//! A driver on a daemon of the test's own, and what the gateway would be to it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use overwinter_driver::testkit::conformance::{Backend, Subject, TestLedger, TestPort, Wires};
use overwinter_driver::{Driver, PinnedImage};
use overwinter_driver_docker::testkit::{Daemon, Proxy, cannot_run, cannot_run_rootless};
use overwinter_driver_docker::{DockerConfig, DockerDriver, Flavor, PullPolicy};
use overwinter_lifecycle::ids::SandboxId;
use uuid::Uuid;

pub const IMAGE: &str = "winter:latest";

/// Whether the tests of a real daemon can run here. Loud where not, so that a run that has tested
/// nothing does not look like one that has.
pub fn needs(flavor: Flavor) -> bool {
    let why = cannot_run(flavor);
    if let Some(why) = why {
        skip(why);
    }
    why.is_none()
}

/// The same of a Podman without privilege.
pub fn needs_rootless() -> bool {
    let why = cannot_run_rootless();
    if let Some(why) = why {
        skip(why);
    }
    why.is_none()
}

fn skip(why: &str) {
    assert!(
        std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
        "OVERWINTER_REQUIRE_LOCAL is set, and this test {why}"
    );
    eprintln!("SKIPPED: {why}");
}

/// The static supervisor, where it has been built: what `make supervisor` makes.
pub fn supervisor() -> Option<PathBuf> {
    let target = std::env::current_exe().ok()?.ancestors().nth(3)?.to_owned();
    let built = [
        std::env::var_os("OVERWINTER_SUPERVISOR").map(PathBuf::from),
        Some(target.join("supervisor/overwinter-supervisor")),
    ];
    let found = built.into_iter().flatten().find(|path| path.is_file());
    if found.is_none() {
        skip("needs the static supervisor (make supervisor, or OVERWINTER_SUPERVISOR)");
    }
    found
}

/// With the image that the tests use.
pub async fn daemon(flavor: Flavor) -> Arc<tokio::sync::Mutex<Daemon>> {
    let folder = folder();
    with_image(Daemon::start(flavor, &folder).await.unwrap()).await
}

/// A Podman without privilege, with the same image.
pub async fn rootless() -> Arc<tokio::sync::Mutex<Daemon>> {
    let folder = folder();
    with_image(Daemon::start_rootless(&folder).await.unwrap()).await
}

fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ow-docker-{}", short()));
    fs::create_dir(&folder).unwrap();
    folder
}

async fn with_image(daemon: Daemon) -> Arc<tokio::sync::Mutex<Daemon>> {
    daemon.import(IMAGE, &[]).await.unwrap();
    Arc::new(tokio::sync::Mutex::new(daemon))
}

/// It has left nothing.
pub fn end(daemon: Arc<tokio::sync::Mutex<Daemon>>) {
    let daemon = Arc::into_inner(daemon).unwrap().into_inner();
    let folder = daemon.socket().parent().unwrap().to_owned();
    drop(daemon);
    assert_eq!(Daemon::traces(&folder), Vec::<String>::new());
    assert!(!folder.exists());
}

pub fn short() -> String {
    Uuid::new_v4().simple().to_string()[..8].to_owned()
}

/// A gateway's worth of driver.
pub struct Bed {
    pub daemon: Arc<tokio::sync::Mutex<Daemon>>,
    driver: Mutex<Arc<DockerDriver>>,
    /// Of gateways of before. They follow the daemon as long as they are there, and write into the folder.
    dead: Mutex<Vec<Arc<DockerDriver>>>,
    wires: Arc<Wires>,
    ledger: Arc<TestLedger>,
    pub config: DockerConfig,
    _folder: tempfile::TempDir,
}

impl Bed {
    pub async fn new(
        flavor: Flavor,
        daemon: &Arc<tokio::sync::Mutex<Daemon>>,
        supervisor: &Path,
    ) -> Self {
        let socket = daemon.lock().await.socket();
        Self::through(flavor, daemon, supervisor, socket)
    }

    /// With another way to the daemon.
    pub fn through(
        flavor: Flavor,
        daemon: &Arc<tokio::sync::Mutex<Daemon>>,
        supervisor: &Path,
        socket: PathBuf,
    ) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("ow-docker-state-")
            .tempdir()
            .unwrap();
        // A daemon without privilege passes through it to what it mounts.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let config = DockerConfig {
            socket,
            pull: PullPolicy::Never,
            ..DockerConfig::new(
                flavor,
                folder.path().join("docker"),
                supervisor.to_owned(),
                format!("test-{}", short()),
            )
        };
        let wires = Wires::new();
        let ledger = Arc::new(TestLedger::default());
        let driver = DockerDriver::open(config.clone(), wires.clone(), ledger.clone()).unwrap();
        Self {
            daemon: Arc::clone(daemon),
            driver: Mutex::new(driver),
            dead: Mutex::default(),
            wires,
            ledger,
            config,
            _folder: folder,
        }
    }
}

#[async_trait]
impl Backend for Bed {
    fn driver(&self) -> Arc<dyn Driver> {
        self.driver.lock().unwrap().clone()
    }

    fn port(&self) -> Arc<TestPort> {
        self.wires.port()
    }

    fn ledger(&self) -> Arc<TestLedger> {
        Arc::clone(&self.ledger)
    }

    async fn image(&self) -> String {
        IMAGE.to_owned()
    }

    async fn vanished_image(&self) -> PinnedImage {
        // Podman imports under the tag `latest` alone.
        let name = format!("vanishing-{}:latest", short());
        let daemon = self.daemon.lock().await;
        daemon.import(&name, &[("etc/other", &name)]).await.unwrap();
        let pinned = self.driver().pin(&name).await.unwrap();
        daemon.forget(&name).await.unwrap();
        pinned
    }

    fn counter(&self) -> Vec<String> {
        let script = "n=0; while true; do n=$((n+1)); echo $n; sleep 0.05; done";
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    async fn kill(&self, sandbox: SandboxId) {
        let daemon = self.daemon.lock().await;
        daemon.kill_inside(sandbox).await.unwrap();
    }

    async fn restart(&self) {
        let driver =
            DockerDriver::open(self.config.clone(), self.wires.clone(), self.ledger.clone())
                .unwrap();
        self.wires.cut();
        // Nothing of the old one is tidied up before the end: it has died.
        let dead = std::mem::replace(&mut *self.driver.lock().unwrap(), driver);
        self.dead.lock().unwrap().push(dead);
    }

    async fn leftovers(&self) -> Vec<String> {
        let daemon = self.daemon.lock().await;
        let mut left = daemon.containers().await.unwrap();
        let client = daemon.client().await.unwrap();
        let options = None::<bollard::query_parameters::ListVolumesOptions>;
        let volumes = client.list_volumes(options).await.unwrap().volumes;
        left.extend(volumes.unwrap_or_default().into_iter().map(|it| it.name));
        let folders = fs::read_dir(self.config.state_dir.join("sandboxes")).unwrap();
        left.extend(folders.flatten().map(|it| it.path().display().to_string()));
        left
    }
}

/// A driver with a proxy between it and its daemon.
pub struct Stage {
    pub bed: Bed,
    pub proxy: Proxy,
    pub daemon: Arc<tokio::sync::Mutex<Daemon>>,
}

impl Stage {
    /// None where no daemon can be run.
    pub async fn set(flavor: Flavor) -> Option<Self> {
        let (true, Some(binary)) = (needs(flavor), supervisor()) else {
            return None;
        };
        let daemon = daemon(flavor).await;
        let own = daemon.lock().await.socket();
        let socket = std::env::temp_dir().join(format!("ow-proxy-{}.sock", short()));
        let proxy = Proxy::start(&socket, &own).unwrap();
        Some(Self {
            bed: Bed::through(flavor, &daemon, &binary, socket),
            proxy,
            daemon,
        })
    }

    /// Whether anything runs in the sandbox's container.
    pub async fn runs(&self, subject: &Subject<'_, Bed>) -> bool {
        let daemon = self.daemon.lock().await;
        daemon.pid_of(subject.id).await.is_ok()
    }

    pub async fn strike(self) {
        assert_eq!(self.bed.leftovers().await, Vec::<String>::new());
        drop((self.bed, self.proxy));
        end(self.daemon);
    }
}
