//! The effects, a file a kind. Each begins with its turn ([`crate::driver::Turn`]), looks at what is
//! there, and says at its end what is so.

mod cold;
mod delete;
mod memory;
mod stop;
mod tasks;

use overwinter_driver::{Compute, DriverReference, Effected};

use crate::compute::ComputeRecord;

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
    }
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
