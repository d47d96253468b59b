//! The effects, a file a kind. Each begins with its turn ([`crate::driver::Turn`]), looks at what is
//! there, and says at its end what is so.

mod checkpoint;
mod cold;
mod delete;
mod live;
mod memory;
mod network;
mod paging;
mod restore;
mod stop;
mod storage;
mod tasks;

use overwinter_driver::{Compute, Debt, DebtKind, DriverError, DriverReference, Effected};
use overwinter_lifecycle::ids::EffectKey;

use crate::artifact;
use crate::compute::ComputeRecord;
use crate::error::LocalError;
use crate::layout::SandboxDir;

/// Stamped on every reference of this driver's.
pub(crate) const DRIVER: &str = "local";
const FORMAT: u32 = 1;

fn effected(compute: Compute) -> Effected {
    Effected {
        compute,
        reference: DriverReference {
            driver: DRIVER.to_owned(),
            format: FORMAT,
            ..DriverReference::default()
        },
        size_bytes: 0,
        leftovers: Vec::new(),
        remarks: Vec::new(),
        reclaimed: None,
    }
}

/// Artifacts that are of no more use once this effect is done.
fn owed(dir: &SandboxDir, key: EffectKey) -> Result<Vec<Debt>, DriverError> {
    owed_but(dir, key, None)
}

fn owed_but(
    dir: &SandboxDir,
    key: EffectKey,
    kept: Option<&str>,
) -> Result<Vec<Debt>, DriverError> {
    let names = artifact::names(dir).map_err(LocalError::unsettled)?;
    let owed = names.into_iter().filter(|name| kept != Some(name.as_str()));
    let debt = |reference| Debt {
        key,
        kind: DebtKind::Artifact,
        reference,
    };
    Ok(owed.map(debt).collect())
}

/// To frozen compute: which one, and under which boot of which host.
fn reference(record: &ComputeRecord) -> Result<DriverReference, serde_json::Error> {
    Ok(DriverReference {
        driver: DRIVER.to_owned(),
        format: FORMAT,
        location: record.boot_id.clone(),
        data: serde_json::to_vec(record)?,
    })
}

/// None: not one of this driver's, in this format.
fn read_reference(reference: &DriverReference) -> Option<ComputeRecord> {
    let ours = reference.driver == DRIVER && reference.format == FORMAT;
    ours.then(|| serde_json::from_slice(&reference.data).ok())
        .flatten()
}
