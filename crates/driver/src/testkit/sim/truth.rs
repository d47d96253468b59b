//! What is so inside, for whoever holds it against what a gateway says.

use overwinter_api::supervisor as wire;
use overwinter_lifecycle::ids::{EffectKey, Incarnation, SandboxId};

use super::world::{Artifact, SimWorld};
use crate::types::Observed;

/// One artifact, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactTruth {
    pub name: String,
    /// As [`SimWorld::memory_of`] numbers it.
    pub memory: u64,
    /// Neither restored since nor damaged.
    pub usable: bool,
}

impl SimWorld {
    /// The number of the memory that is live or frozen now: the same for as long as its processes
    /// are. None: there is no compute.
    #[must_use]
    pub fn memory_of(&self, sandbox: SandboxId) -> Option<u64> {
        self.guest(sandbox).map(|guest| guest.number)
    }

    /// What is on disk of its memory.
    #[must_use]
    pub fn artifacts(&self, sandbox: SandboxId) -> Vec<ArtifactTruth> {
        let Some(cell) = self.known(sandbox) else {
            return Vec::new();
        };
        let of = |artifact: &Artifact| ArtifactTruth {
            name: artifact.name.clone(),
            memory: artifact.guest.number,
            usable: !artifact.consumed && !artifact.damaged,
        };
        cell.state().artifacts.iter().map(of).collect()
    }

    /// What is so, whoever asks.
    #[must_use]
    pub fn truth(&self, sandbox: SandboxId) -> Observed {
        let cell = self.known(sandbox);
        cell.map_or(Observed::Absent, |cell| cell.state().observed())
    }

    /// The processes that run in it.
    #[must_use]
    pub fn live_processes(&self, sandbox: SandboxId) -> Vec<String> {
        self.guest(sandbox).map_or(Vec::new(), |guest| guest.live())
    }

    /// The key of the newest effect that has reached the backend.
    #[must_use]
    pub fn newest_effect(&self, sandbox: SandboxId) -> Option<EffectKey> {
        let cell = self.known(sandbox)?;
        let state = cell.state();
        state.newest.map(|newest| newest.key)
    }

    /// Under which incarnation the agent inside was let in last.
    #[must_use]
    pub fn proved(&self, sandbox: SandboxId) -> Option<Incarnation> {
        self.guest(sandbox)?.proved()
    }

    /// The open connection of what is inside: its memory, and a number. None: nobody is attached.
    #[must_use]
    pub fn connection_of(&self, sandbox: SandboxId) -> Option<(u64, u64)> {
        let guest = self.guest(sandbox)?;
        Some((guest.number, guest.connection_number()?))
    }

    /// Whether any process inside was ended by a suspension.
    #[must_use]
    pub fn ended_by_suspension(&self, sandbox: SandboxId) -> bool {
        let processes = self
            .guest(sandbox)
            .map_or(Vec::new(), |guest| guest.processes());
        processes.iter().any(|process| {
            let exit = process.exit.as_option();
            exit.is_some_and(|exit| exit.cause == wire::ExitCause::Suspension)
        })
    }
}
