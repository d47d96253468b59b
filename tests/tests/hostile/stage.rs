//! A gateway with a neighbour: whatever is tried, both are as they were.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use overwinter_client::{Client, Create, Phase, Sandbox};
use overwinter_tests::Gateway;

/// What a neighbour's program may take while others attack.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Of the gateway's resident memory, at any moment.
pub(crate) const MEMORY: u64 = 256 << 20;

const NEIGHBOUR: &str = "neighbour";
const NOTE: &str = "the neighbour's own\n";

pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) client: Client,
    before: Sandbox,
}

/// What a sandbox is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Image {
    /// A shell and little more.
    Busybox,
    /// This host's programs: attackers in Python.
    Host,
}

impl Stage {
    pub(crate) async fn open() -> anyhow::Result<Self> {
        Self::open_with("").await
    }

    /// `config`: in TOML, as [`Gateway::set_config`] takes it.
    pub(crate) async fn open_with(config: &str) -> anyhow::Result<Self> {
        let mut gateway = Gateway::prepare()?;
        gateway.set_config(config)?;
        gateway.run().await?;
        let client = gateway.client();
        let create = client
            .create()
            .name(NEIGHBOUR)
            .image(gateway.image.name())
            .pids(64);
        let before = create.wait().await?.sandbox;
        client
            .files(NEIGHBOUR)
            .write("/workspace/note")
            .bytes(NOTE)
            .await?;
        Ok(Self {
            gateway,
            client,
            before,
        })
    }

    /// Makes a sandbox on a runtime.
    pub(crate) async fn tenant(
        &self,
        name: &str,
        image: Image,
        runtime: &str,
    ) -> anyhow::Result<Sandbox> {
        let create = self.create(name, image).runtime(runtime);
        Ok(create.wait().await?.sandbox)
    }

    pub(crate) fn create(&self, name: &str, image: Image) -> Create {
        let image = match image {
            Image::Busybox => self.gateway.image.name(),
            Image::Host => "host".to_owned(),
        };
        self.client.create().name(name).image(image)
    }

    /// The neighbour's program runs, sees its own file and nobody's, and its sandbox has not
    /// changed; the gateway answers, and has not grown.
    pub(crate) async fn unharmed(&self, after: &str) -> anyhow::Result<()> {
        let looked = tokio::time::timeout(PATIENCE, self.look()).await;
        looked
            .context("nothing answers")
            .flatten()
            .with_context(|| format!("after {after}"))
    }

    async fn look(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let command = ["/bin/sh", "-c", "cat /workspace/note; ls -A /workspace"];
        let ran = self.client.command(NEIGHBOUR, command).run().await?;
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        ensure!(
            ran.exit.code == 0 && said == format!("{NOTE}note\n"),
            "the neighbour says {ran:?}"
        );
        let now = self.client.get(NEIGHBOUR).await?;
        ensure!(
            now.phase() == Phase::Ready && now.id() == self.before.id(),
            "the neighbour is {:?}",
            now.phase()
        );
        self.client.gateway_status().await?;
        let memory = self.memory("VmRSS:")?;
        ensure!(memory < MEMORY, "the gateway holds {memory} bytes");
        ensure!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
        Ok(())
    }

    /// A line of the gateway's memory in proc_pid_status(5), in bytes.
    pub(crate) fn memory(&self, line: &str) -> anyhow::Result<u64> {
        let pid = self.gateway.pid().context("no gateway runs")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let found = status.lines().find_map(|text| text.strip_prefix(line));
        let words = found.with_context(|| format!("no {line} in {status}"))?;
        let kib: u64 = words.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib << 10)
    }

    /// The folder of a sandbox in which its supervisor finds the gateway, as the host sees it.
    pub(crate) fn attach_folder(&self, sandbox: &Sandbox) -> anyhow::Result<std::path::PathBuf> {
        let folder = overwinter_tests::leftovers::volatile_folder(&self.gateway.data_dir());
        Ok(folder
            .context("no folder in memory")?
            .join(sandbox.id())
            .join("attach"))
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Self {
            gateway,
            client,
            before: _,
        } = self;
        // All at once: some wait for a supervisor that does not answer.
        let all = client.list().all().await?;
        let deletes = all.iter().map(|sandbox| client.delete(sandbox.id()).wait());
        futures::future::try_join_all(deletes).await?;
        drop(client);
        gateway.end().await
    }
}

/// Whether gVisor is tried too; on the reference machine it must be.
pub(crate) fn has_gvisor() -> anyhow::Result<bool> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|folder| folder.join("runsc").is_file());
    there_or_skipped(there, "on gVisor", "runsc (make setup)")
}

/// Those that attackers are tried on.
pub(crate) fn runtimes() -> anyhow::Result<Vec<&'static str>> {
    let gvisor = has_gvisor()?.then_some("runsc");
    Ok(["runc"].into_iter().chain(gvisor).collect())
}

/// Whether this host's own Python, in which attackers are written, is there.
pub(crate) fn has_python() -> anyhow::Result<bool> {
    let there = Path::new("/usr/bin/python3").exists() && cfg!(target_arch = "x86_64");
    there_or_skipped(
        there,
        "attackers in Python",
        "/usr/bin/python3 (make setup) on x86-64",
    )
}

/// Whether sandboxes can have a network here, and a machine can be made that they reach by it.
pub(crate) fn has_network() -> anyhow::Result<bool> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let there = ["pasta", "nft", "ip"].iter().all(has);
    let needs = "pasta, nft and ip (Debian: passt, nftables, iproute2)";
    there_or_skipped(there, "sandboxes with a network", needs)
}

/// A test that is skipped says so, and fails where all must run.
fn there_or_skipped(there: bool, what: &str, needs: &str) -> anyhow::Result<bool> {
    if !there {
        ensure!(
            std::env::var_os("OVERWINTER_REQUIRE_LOCAL").is_none(),
            "OVERWINTER_REQUIRE_LOCAL is set, and {what} cannot run: needs {needs}"
        );
        eprintln!("SKIPPED {what}: needs {needs}");
    }
    Ok(there)
}
