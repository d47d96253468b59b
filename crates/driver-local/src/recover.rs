//! Looking, and finding one's own again after a restart of the gateway.

use std::sync::Arc;
use std::time::{Duration, Instant};

use overwinter_driver::{DriverError, Observation};
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::steps::Observed;

use crate::artifact;
use crate::cgroup::Freezer;
use crate::compute::{ComputeRecord, Look, Running};
use crate::driver::{Shared, Turn, blocking};
use crate::error::LocalError;
use crate::host::{Host, read_spec};
use crate::lock::SandboxLock;
use crate::network::Network;
use crate::runtime::Kind;
use crate::teardown;

/// To end what a half-done effect left.
const CLEAR_WITHIN: Duration = Duration::from_secs(15);

pub(crate) fn observe(
    host: &Host,
    sandbox: SandboxId,
    busy: bool,
) -> Result<Observation, LocalError> {
    let dir = host.layout.sandbox(sandbox);
    // An effect is under way: ours, or a subprocess of an earlier gateway.
    let busy = busy || SandboxLock::is_taken(&dir.lock())?;
    let observed = if busy {
        Observed::InTransition
    } else {
        host.look(sandbox)?.observed()
    };
    Ok(Observation {
        observed,
        boot_id: host.boot_id.clone(),
        storage: host.has_storage(sandbox),
    })
}

/// Its way to the internet is beside it, where it has one.
fn adopt_network(
    host: &Host,
    sandbox: SandboxId,
    record: &ComputeRecord,
) -> Result<(), LocalError> {
    let native = &record.native;
    let carried = host.cgroups.carrier(native)?.is_some();
    let spec = read_spec(&host.layout.sandbox(sandbox));
    let asked = spec.is_ok_and(|spec| Network::parse(&spec.network) == Some(Network::Internet));
    let Some(first) = record.find_first(&host.layout)? else {
        return Ok(());
    };
    if !carried && !asked {
        return Ok(());
    }
    if let Err(error) = host.networks.adopt(&host.cgroups, native, first) {
        tracing::error!(
            %error, native,
            "addresses that this host got meanwhile cannot be closed to a sandbox: its network is cut"
        );
        return teardown::end_companion(host, native, Instant::now() + CLEAR_WITHIN);
    }
    Ok(())
}

impl Shared {
    /// Takes the lock, by force past `patience`; then clears away all that is not live compute, and
    /// opens the socket of what is.
    pub(crate) async fn recover(
        self: &Arc<Self>,
        sandbox: SandboxId,
        patience: Duration,
    ) -> Result<(), DriverError> {
        let entry = self.turns.entry(sandbox);
        let alone = entry.alone(patience).await?;
        let host = Arc::clone(&self.host);
        let dir = host.layout.sandbox(sandbox);
        let (lock, look) = blocking(move || {
            let lock = if dir.kept.is_dir() {
                Some(SandboxLock::seize(&dir.lock(), patience)?)
            } else {
                None
            };
            let look = host.look(sandbox)?;
            let keep = match &look {
                Look::Running(running) => Some(running.record.native.as_str()),
                Look::Nothing | Look::Remains(_) => None,
            };
            teardown::end_others(&host, sandbox, keep, Instant::now() + CLEAR_WITHIN)?;
            match &look {
                Look::Running(running) => {
                    // Mounts of a start that was cut short; the compute has its own.
                    crate::mounts::detach(&host.layout.mounts_of(&running.record.native))?;
                    adopt_network(&host, sandbox, &running.record)?;
                }
                Look::Nothing | Look::Remains(_) => teardown::forget(&host, sandbox)?,
            }
            Ok((lock, look))
        })
        .await
        .map_err(LocalError::unsettled)?;
        match look {
            Look::Running(running) => {
                let turn = Turn::to_recover(lock, alone);
                self.settle_running(&turn, sandbox, running).await?;
            }
            Look::Nothing | Look::Remains(_) => entry.set_live(None),
        }
        Ok(())
    }

    /// Makes it what an observation will say: frozen, or running with its socket open.
    async fn settle_running(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
        running: Running,
    ) -> Result<(), DriverError> {
        let native = running.record.native.clone();
        let frozen = match (running.freezer, running.record.runtime) {
            (Freezer::Frozen, _) => true,
            // Its memory was being written to disk.
            (Freezer::Thawed | Freezer::Freezing, Kind::Gvisor)
                if running.record.saving.is_some() =>
            {
                return self.settle_saving(turn, sandbox, running).await;
            }
            (Freezer::Thawed | Freezer::Freezing, Kind::Runc) => false,
            // A freeze or what deepens it was cut short where the group was thawed for the sentry.
            (Freezer::Thawed | Freezer::Freezing, Kind::Gvisor) if running.record.asleep => {
                let host = Arc::clone(&self.host);
                let until = turn.until;
                blocking(move || host.cgroups.freeze(&native, until))
                    .await
                    .map_err(LocalError::unsettled)?;
                true
            }
            (Freezer::Thawed | Freezer::Freezing, Kind::Gvisor) => {
                let woken = self.wake(turn, &running.record).await;
                woken.map_err(LocalError::unsettled)?;
                false
            }
        };
        self.watch_settled(turn, sandbox, running, frozen)
    }

    /// With its memory on disk it must not run on: the next call ends it.
    async fn settle_saving(
        self: &Arc<Self>,
        turn: &Turn,
        sandbox: SandboxId,
        mut running: Running,
    ) -> Result<(), DriverError> {
        let dir = self.host.layout.sandbox(sandbox);
        let birth = running.record.birth;
        let taken = blocking(move || artifact::taken_of(&dir, sandbox, birth));
        let taken = taken.await.map_err(LocalError::unsettled)?;
        if !taken.is_empty() {
            running.record.asleep = true;
        }
        self.undone(turn, sandbox, running)
            .await
            .map_err(LocalError::unsettled)?;
        match self.host.look(sandbox).map_err(LocalError::unsettled)? {
            Look::Running(now) => {
                let frozen = now.freezer == Freezer::Frozen;
                self.watch_settled(turn, sandbox, now, frozen)
            }
            Look::Nothing | Look::Remains(_) => {
                turn.entry.set_live(None);
                Ok(())
            }
        }
    }

    fn watch_settled(
        &self,
        turn: &Turn,
        sandbox: SandboxId,
        running: Running,
        frozen: bool,
    ) -> Result<(), DriverError> {
        if frozen {
            let live = self.watch_of(sandbox, running);
            turn.entry.set_live(Some(live));
            Ok(())
        } else {
            self.open_door(&turn.entry, sandbox, running)
                .map_err(LocalError::unsettled)
        }
    }
}
