//! What a driver's errors mean to the core. Nothing is matched by message text.

use overwinter_driver::{DriverError, Unusable};
use overwinter_lifecycle::operation::EffectKind;
use overwinter_lifecycle::{Depth, Fault, Reason};

/// What a driver's refusal of an effect means. Where memory is missing, it is lost.
pub(super) fn refusal(effect: EffectKind, error: DriverError) -> Fault {
    match (effect, &error) {
        (
            EffectKind::Resume(_) | EffectKind::Suspend(Depth::Checkpoint),
            DriverError::Missing(_),
        ) => Fault {
            reason: Reason::RetainedLost,
            ..fault(error)
        },
        (
            EffectKind::Create
            | EffectKind::Start
            | EffectKind::Suspend(_)
            | EffectKind::Resume(_)
            | EffectKind::Reattach
            | EffectKind::Delete,
            _,
        ) => fault(error),
    }
}

pub(super) fn fault(error: DriverError) -> Fault {
    let reason = match &error {
        DriverError::Rejected(_) | DriverError::Missing(_) | DriverError::Fenced => {
            Reason::DriverRejected
        }
        DriverError::NoSpace(_) => Reason::DiskFull,
        DriverError::Unusable { why, .. } => match why {
            Unusable::Damaged => Reason::ArtifactDamaged,
            Unusable::Foreign => Reason::ArtifactForeign,
            Unusable::Stale => Reason::RetainedStale,
            Unusable::OtherBuild => Reason::RuntimeChanged,
            Unusable::OtherImage => Reason::ImageChanged,
            Unusable::RootLost => Reason::RootLost,
        },
        DriverError::Unsupported(_) => Reason::Unsupported,
        DriverError::Unknown(_) => Reason::DriverTimeout,
    };
    Fault::new(reason, error.to_string())
}
