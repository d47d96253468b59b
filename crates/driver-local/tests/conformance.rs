//! The suite that every driver passes, on this host with the real supervisor.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use common::{
    Bed, Outcome, Sweep, busybox_image, cannot_run, host_leftovers, runsc, sentries, supervisor,
    until,
};
use futures::StreamExt;
use overwinter_api::supervisor as wire;
use overwinter_driver::testkit::conformance::{
    self, Backend, Subject, TestLedger, TestPort, Wires,
};
use overwinter_driver::{Depth, Driver, PinnedImage};
use overwinter_driver_local::{LocalConfig, LocalDriver};
use overwinter_lifecycle::ids::SandboxId;

struct Host {
    driver: Mutex<Arc<LocalDriver>>,
    wires: Arc<Wires>,
    ledger: Arc<TestLedger>,
    config: LocalConfig,
    _sweep: Sweep,
    folder: tempfile::TempDir,
}

impl Host {
    fn new(runtime: &Path, supervisor: PathBuf) -> Result<Self, Box<dyn std::error::Error>> {
        let (folder, mut config) = Bed::place()?;
        config.runtime = runtime.to_owned();
        // What is offered is what this one can do.
        config.also = Vec::new();
        config.supervisor = supervisor;
        let wires = Wires::new();
        let ledger = Arc::new(TestLedger::default());
        let driver = LocalDriver::open(config.clone(), wires.clone(), ledger.clone())?;
        Ok(Self {
            driver: Mutex::new(driver),
            wires,
            ledger,
            _sweep: Sweep(config.clone()),
            config,
            folder,
        })
    }
}

#[async_trait]
impl Backend for Host {
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
        self.folder.path().join("image").display().to_string()
    }

    async fn vanished_image(&self) -> PinnedImage {
        let folder = self.folder.path().join("vanishing");
        busybox_image(&folder).unwrap();
        let pinned = self
            .driver()
            .pin(&folder.display().to_string())
            .await
            .unwrap();
        fs::remove_dir_all(folder).unwrap();
        pinned
    }

    fn counter(&self) -> Vec<String> {
        let script = "n=0; while true; do n=$((n+1)); echo $n; sleep 0.05; done";
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    async fn kill(&self, sandbox: SandboxId) {
        let of_it = sandbox.0.simple().to_string();
        let sentries = fs::read_dir(sentries(&self.config)).into_iter().flatten();
        for entry in sentries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&of_it) {
                let state = fs::read(entry.path().join("c_sandbox:c.state")).unwrap();
                let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
                let pid = i32::try_from(state["sandbox"]["pid"].as_i64().unwrap()).unwrap();
                // SAFETY: a signal to the process that the test has started.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        for entry in fs::read_dir(self.config.state_dir.join("runc"))
            .unwrap()
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with(&of_it) {
                let state = fs::read(entry.path().join("state.json")).unwrap();
                let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
                let pid = i32::try_from(state["init_process_pid"].as_i64().unwrap()).unwrap();
                // SAFETY: a signal to the process that the test has started.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
    }

    async fn restart(&self) {
        let driver =
            LocalDriver::open(self.config.clone(), self.wires.clone(), self.ledger.clone())
                .unwrap();
        self.wires.cut();
        // Nothing of the old one is tidied up: it has died.
        std::mem::forget(std::mem::replace(&mut *self.driver.lock().unwrap(), driver));
    }

    async fn leftovers(&self) -> Vec<String> {
        host_leftovers(&self.config)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_driver_conforms() -> Outcome {
    let (None, Some(binary)) = (cannot_run(), supervisor()) else {
        return Ok(());
    };
    conforms(Path::new("runc"), &binary).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_conforms_with_gvisor() -> Outcome {
    let (Some(runsc), Some(binary)) = (runsc(), supervisor()) else {
        return Ok(());
    };
    conforms(&runsc, &binary).await;
    Ok(())
}

/// Who is inside becomes the users that it is asked to be, by ways of gVisor's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_programs_are_their_users_own_on_gvisor() -> Outcome {
    let (Some(runsc), Some(binary)) = (runsc(), supervisor()) else {
        return Ok(());
    };
    let host = Host::new(&runsc, binary)?;
    let (mut subject, agent) = Subject::created(&host).await;
    let folder = |path: &str, mode, user: &str| wire::MakeDirectoryRequest {
        path: path.as_bytes().to_vec().into(),
        mode,
        user: user.to_owned(),
        ..Default::default()
    };
    agent
        .make_directory(folder("/workspace/open", 0o777, ""))
        .await?;
    agent
        .make_directory(folder("/workspace/shut", 0o700, ""))
        .await?;
    agent
        .make_directory(folder("/workspace/open/own", 0o755, "1000"))
        .await?;
    let refused = agent
        .make_directory(folder("/workspace/shut/own", 0o755, "1000"))
        .await;
    assert!(refused.is_err(), "a user got into root's folder");
    // The worker that acted as a user is itself again.
    agent
        .make_directory(folder("/workspace/shut/roots", 0o755, ""))
        .await?;

    let script = "id -u > /workspace/open/id; grep CapEff /proc/self/status >> /workspace/open/id; \
        kill -9 1 2>> /workspace/open/id; cat /run/overwinter/attach 2> /dev/null >> /workspace/open/id; \
        touch /workspace/open/done";
    let start = wire::ExecStart {
        process_id: "00000000-0000-4000-8000-000000000003".to_owned(),
        process: wire::ProcessSpec {
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            user: "1000".to_owned(),
            ..Default::default()
        }
        .into(),
    };
    agent.start_process(start).await?;
    let open = host
        .config
        .state_dir
        .join(format!("sandboxes/{}/workspace/open", subject.id));
    until("it has run", || open.join("done").exists()).await?;
    let seen = fs::read_to_string(open.join("id"))?;
    let mut lines = seen.lines();
    assert_eq!(lines.next(), Some("1000"));
    assert!(
        lines
            .next()
            .is_some_and(|line| line.ends_with("0000000000000000")),
        "{seen}"
    );
    assert!(
        lines.next().is_some_and(|line| line.contains("permitted")),
        "{seen}"
    );
    assert_eq!(lines.next(), None, "the token was read");
    for path in ["own", "id"] {
        let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(open.join(path))?);
        assert_eq!(owner, 1000, "{path}");
    }
    subject.delete().await;
    assert_eq!(host_leftovers(&host.config), Vec::<String>::new());
    Ok(())
}

/// Descriptors come and go before each checkpoint: what they left in the set that PID 1 waits on must
/// not come back with the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_busy_comes_back_from_disk() -> Outcome {
    let (Some(runsc), Some(binary)) = (runsc(), supervisor()) else {
        return Ok(());
    };
    let host = Host::new(&runsc, binary)?;
    for round in 0..6_u32 {
        let (mut subject, agent) = Subject::created(&host).await;
        let start = |number: u32, script: &str| wire::ExecStart {
            process_id: format!("00000000-0000-4000-8000-{round:06}{number:06}"),
            process: wire::ProcessSpec {
                command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
                ..Default::default()
            }
            .into(),
        };
        let exec = async |start: wire::ExecStart| {
            let first = wire::ExecRequest {
                message: Some(start.into()),
            };
            let input = futures::stream::iter([first]).chain(futures::stream::pending());
            agent.exec(input.boxed()).await
        };
        let counting = exec(start(0, "while true; do echo x; sleep 0.02; done")).await?;
        let read = tokio::spawn(counting.for_each(|_| async {}));
        for number in 1..6 {
            let mut short = exec(start(number, "echo one; echo two >&2; id -u")).await?;
            while short.next().await.is_some() {}
        }
        let suspended = subject.suspend(Depth::Checkpoint, &agent).await;
        read.await?;
        let agent = subject
            .resume(Depth::Checkpoint, &suspended.reference)
            .await;
        let counter = start(0, "").process_id;
        assert!(agent.get_process(counter).await?.running);
        subject.delete().await;
    }
    assert_eq!(host_leftovers(&host.config), Vec::<String>::new());
    Ok(())
}

async fn conforms(runtime: &Path, supervisor: &Path) {
    let make = || async { Host::new(runtime, supervisor.to_owned()).unwrap() };
    let report = conformance::run(make).await;
    assert!(report.failed.is_empty(), "{report}");
}
