//! Whether a driver offers what a suspend asks for, before anything is written.

use overwinter_driver::{Description, Reclaim, SuspensionMode};
use overwinter_lifecycle::Depth;

use super::ApiError;

/// # Errors
/// With what the driver says of what it does not offer.
pub(super) fn check(
    description: &Description,
    depth: Depth,
    reclaim: bool,
) -> Result<(), ApiError> {
    match description.mode(depth) {
        Some(mode) if reclaim => gives_back(mode),
        Some(_) => Ok(()),
        None => {
            let mut missing = description.unavailable.iter();
            let why = missing
                .find(|(missing, _)| *missing == depth)
                .map_or("it is not one of its modes", |(_, why)| why.as_str());
            Err(ApiError::unsupported(format!(
                "the driver {:?} does not offer depth {depth}: {why}",
                description.name
            )))
        }
    }
}

fn gives_back(mode: &SuspensionMode) -> Result<(), ApiError> {
    let depth = mode.depth;
    let why = match &mode.reclaim {
        Reclaim::Offered => return Ok(()),
        Reclaim::Missing(why) => why.as_str(),
        Reclaim::No if depth != Depth::Freeze => {
            return Err(ApiError::invalid(format!(
                "reclaim: a {depth} keeps no memory that could be given back; it goes with freeze"
            )));
        }
        Reclaim::No => "its backend has no way to",
    };
    Err(ApiError::unsupported(format!(
        "memory of a {depth} is not given back here: {why}"
    )))
}
