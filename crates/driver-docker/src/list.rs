//! Every container that carries a gateway's label. Another gateway's are named, and left alone.

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum};
use overwinter_driver::Found;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::steps::Observed;

use crate::container::{BIRTH, GATEWAY, SANDBOX, sandbox_of};
use crate::driver::Shared;
use crate::error::DockerError;
use crate::look::{Look, incarnation};

pub(crate) async fn list(shared: &Shared) -> Result<Vec<Found>, DockerError> {
    let mut found = Vec::new();
    for container in shared.engine.labelled(GATEWAY).await? {
        found.push(one(shared, container).await?);
    }
    Ok(found)
}

async fn one(shared: &Shared, container: ContainerSummary) -> Result<Found, DockerError> {
    let labels = container.labels.unwrap_or_default();
    let names = container.names.unwrap_or_default();
    let native_name = names.first().map(|name| name.trim_start_matches('/'));
    let native_name = native_name.unwrap_or_default().to_owned();
    let gateway = labels.get(GATEWAY).cloned();
    let sandbox: Option<SandboxId> = labels.get(SANDBOX).and_then(|id| id.parse().ok());
    let born = labels.get(BIRTH).and_then(|text| incarnation(text));
    let ours = gateway.as_ref() == Some(&shared.config.gateway_id);
    // What runs now may have been started later than the container was made; only its receipt tells.
    let (birth, observed) = match (ours, sandbox) {
        (true, Some(id)) if sandbox_of(&native_name) == Some(id) => match shared.look(id).await? {
            Look::Running(running) => {
                let held = running.receipt.held;
                (Some(held), Look::Running(running).observed())
            }
            other => (born, other.observed()),
        },
        _ => (born, coarse(container.state)),
    };
    Ok(Found {
        gateway,
        sandbox,
        birth,
        native_name,
        observed,
    })
}

/// Of a container whose receipt is another's.
fn coarse(state: Option<ContainerSummaryStateEnum>) -> Observed {
    match state {
        Some(
            ContainerSummaryStateEnum::CREATED
            | ContainerSummaryStateEnum::EXITED
            | ContainerSummaryStateEnum::DEAD,
        ) => Observed::Stopped,
        Some(
            ContainerSummaryStateEnum::RESTARTING
            | ContainerSummaryStateEnum::REMOVING
            | ContainerSummaryStateEnum::STOPPING,
        ) => Observed::InTransition,
        Some(
            ContainerSummaryStateEnum::RUNNING
            | ContainerSummaryStateEnum::PAUSED
            | ContainerSummaryStateEnum::EMPTY,
        )
        | None => Observed::Unknown,
    }
}
