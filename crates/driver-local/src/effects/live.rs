//! Compute that runs: it is watched until its end, and its supervisor is let in.

use std::sync::Arc;

use overwinter_driver::door::{self, Door};
use overwinter_driver::{Changed, Credentials};
use overwinter_lifecycle::ids::SandboxId;

use crate::compute::{ComputeRecord, Look, Running};
use crate::driver::{Entry, Shared, Turn, blocking};
use crate::error::LocalError;
use crate::live::Live;
use crate::runtime::Runtime;

impl Shared {
    /// What the runtime says it has started.
    pub(super) async fn watch_new(
        &self,
        turn: &Turn,
        sandbox: SandboxId,
        mut record: ComputeRecord,
        runtime: &Runtime,
        door: Door,
    ) -> Result<(), LocalError> {
        let host = Arc::clone(&self.host);
        let look = blocking(move || {
            record.first = record.find_first(&host.layout)?;
            // Saves reading the runtime's long state at each look. On a full disk it is read.
            let _ = record.write(&host.layout.sandbox(sandbox));
            host.look(sandbox)
        })
        .await?;
        let Look::Running(running) = look else {
            return Err(LocalError::Runtime {
                runtime: runtime.version.clone(),
                message: "PID 1 ended as soon as it was started".to_owned(),
            });
        };
        let mut live = self.watch_of(sandbox, running);
        live.door = Some(door);
        turn.entry.set_live(Some(live));
        Ok(())
    }

    pub(crate) fn watch_of(&self, sandbox: SandboxId, running: Running) -> Live {
        let changed = Changed {
            sandbox,
            held: running.record.birth,
        };
        let net = self.host.networks.find_net(&running.record.native);
        let first = running.pidfd.try_clone();
        let (host, its) = (Arc::clone(&self.host), net.clone());
        // Its way to the internet ends with it, also where nobody asks for the sandbox any more. No
        // more than that: the compute's name may be another's by now.
        let at_its_end = move || {
            if let Some(net) = its {
                host.networks.end(&net);
            }
        };
        let mut live = Live::watch(
            &running.record,
            running.pidfd,
            changed,
            Arc::clone(&self.watchers),
            at_its_end,
        );
        if let (Some(net), Ok(first)) = (net, first) {
            live.carried(&net, first);
        }
        live
    }

    /// Opens the socket, unless it is open, and writes the credentials: in this order, so that who
    /// sees the file change finds the socket.
    pub(crate) fn let_in(
        &self,
        turn: &Turn,
        sandbox: SandboxId,
        running: Running,
        credentials: &Credentials,
    ) -> Result<(), LocalError> {
        self.open_door(&turn.entry, sandbox, running)?;
        let base = self.host.ranges.take(sandbox)?;
        let folder = self.host.layout.sandbox(sandbox).attach();
        Ok(door::write(&folder, base, credentials)?)
    }

    pub(crate) fn open_door(
        &self,
        entry: &Entry,
        sandbox: SandboxId,
        running: Running,
    ) -> Result<(), LocalError> {
        let base = self.host.ranges.take(sandbox)?;
        let folder = self.host.layout.sandbox(sandbox).attach();
        let user = running.record.runtime.peer(base);
        let mut slot = entry.live();
        let live = match &mut *slot {
            Some(live) if live.native == running.record.native => live,
            other => other.insert(self.watch_of(sandbox, running)),
        };
        if live.door.is_none() {
            live.door = Some(Door::open(
                &folder,
                sandbox,
                base,
                user,
                Arc::clone(&self.port),
            )?);
        }
        Ok(())
    }
}
