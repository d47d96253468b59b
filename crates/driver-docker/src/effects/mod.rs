//! The effects, a file a kind. Each begins with its turn ([`crate::driver::Turn`]), looks at what is
//! there, and says at its end what is so.
//!
//! A call that the daemon has answered is over, and a look after it tells what came of it. One that it
//! has not answered may be carried out later: the outcome is `Unknown`, and nothing is cleared away.

mod cold;
mod delete;
mod memory;
mod stop;

use overwinter_driver::{Compute, DriverReference, Effected};

use crate::flavor::Flavor;
use crate::look::Running;

/// Stamped on every reference, beside the driver's name.
const FORMAT: u32 = 1;

fn effected(flavor: Flavor, compute: Compute) -> Effected {
    Effected {
        compute,
        reference: DriverReference {
            driver: flavor.name().to_owned(),
            format: FORMAT,
            ..DriverReference::default()
        },
        size_bytes: 0,
        leftovers: Vec::new(),
        remarks: Vec::new(),
        reclaimed: None,
    }
}

/// To a frozen run: which one, and under which boot of which host.
fn reference(flavor: Flavor, running: &Running) -> Result<DriverReference, serde_json::Error> {
    Ok(DriverReference {
        driver: flavor.name().to_owned(),
        format: FORMAT,
        location: running.receipt.boot_id.clone(),
        data: serde_json::to_vec(&retained(running))?,
    })
}

/// What names a run for ever.
fn retained(running: &Running) -> (String, String) {
    (
        running.container.id.clone(),
        running.container.started.clone(),
    )
}

/// None: not one of this driver's, in this format.
fn read_reference(flavor: Flavor, reference: &DriverReference) -> Option<(String, String)> {
    let ours = reference.driver == flavor.name() && reference.format == FORMAT;
    ours.then(|| serde_json::from_slice(&reference.data).ok())
        .flatten()
}
